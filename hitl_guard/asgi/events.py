"""Server-sent events: hints that a request changed, to whoever may see it, whichever process changed it.

One task per app reads the change feed and hands each change to the streams that are open in this process. Events carry
no arguments and prove nothing: a client reads the request again. Their ids are times of the database's clock, so that
any worker can go on where another one stopped; a client drops what it has had by request and version.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from .. import clock
from ..errors import HitlGuardError, LimitError, RefusedError, UnavailableError
from ..guard import Guard
from ..lifecycle.threads import offload
from ..models import ApprovalRequest
from .identity import Viewer
from .logs import failed
from .ring import Note, Rings
from .visibility import visible

if TYPE_CHECKING:
    from ..lifecycle.feed import Change, Feed

Key = tuple[str, str]
"""A tenant, and the id of a request in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times and bounds of the live events.

    Attributes:
        poll_ms: How often the database is asked for changes.
        least_ms: How long it is left alone at least where it tells of each change by itself.
        beat_ms: How often an idle stream shows that it lives.
        login_ms: How often the login of a stream is checked again. life_ms: When a stream ends; clients reconnect.
        send_ms: How long a client may take to accept one event. Then its stream ends: while it waits for a client that
            does not read, nobody checks the login.
        idle_ms: How long changes are read on when nobody listens.
        ring: Changes of a tenant that are kept for clients that come back (see `ring.Rings` for all tenants together).
        queue: Changes that wait for a slow client before it is reset.
        together: Requests of a tenant that may change at once before its people are told to load again instead.
        streams, own_streams: Streams in this process, and of one principal.
    """

    poll_ms: int = 500
    least_ms: int = 50
    beat_ms: int = 15_000
    login_ms: int = 60_000
    life_ms: int = 900_000
    send_ms: int = 30_000
    idle_ms: int = 60_000
    ring: int = 2_000
    queue: int = 64
    together: int = 200
    streams: int = 2_000
    own_streams: int = 30


@dataclass(eq=False, slots=True)
class Stream:
    """One open stream. The queue holds notes; None for "load again"."""

    viewer: Viewer
    queue: asyncio.Queue[Note | None]
    since: int | None
    missed: bool = False

    def put(self, note: Note | None) -> None:
        """Hand a note over. A client that reads too slowly gets one reset instead of everything that waits."""
        if note is None or self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            note = None
        self.queue.put_nowait(note)


class Hub:
    """Reads the change feed once for all streams of a process.

    Args:
        viewer_of: Authenticates a stream's request again.
    """

    def __init__(
        self, guard: Guard, viewer_of: Callable[[HTTPConnection], Awaitable[Viewer | None]], pace: Pace | None = None
    ) -> None:
        self.pace = pace or Pace()
        self._guard = guard
        self._viewer_of = viewer_of
        self._streams: set[Stream] = set()
        self._known: OrderedDict[Key, ApprovalRequest] = OrderedDict()
        self._rings: Rings | None = None
        self._now = 0
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._failed = False
        self._unspread: list[Change] = []
        self._listened = self._looked = 0

    @property
    def alive(self) -> bool:
        """Whether changes are read, or would be if somebody listened."""
        return not self._closed and not self._failed

    @property
    def open_streams(self) -> int:
        """How many streams are open in this process."""
        return len(self._streams)

    async def close(self) -> None:
        """End every stream, and read no more."""
        self._closed = True
        task, self._task = self._task, None
        for stream in self._streams:
            stream.put(None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def open(self, viewer: Viewer, position: str | None) -> Stream:
        """Return a new stream for a viewer; `chunks` reads it.

        Args:
            position: ``Last-Event-ID`` of a client that comes back, or None.

        Raises:
            LimitError: too many are open. UnavailableError: changes cannot be read.
        """
        self._check_room(viewer)
        await self._start()
        self._check_room(viewer)  # others may have come meanwhile
        stream = Stream(viewer, asyncio.Queue(self.pace.queue), None)
        if position is not None:
            number = position.isascii() and position.isdigit() and len(position) < 17
            stream.since, stream.missed = (int(position), False) if number else (None, True)
        self._streams.add(stream)
        return stream

    def _check_room(self, viewer: Viewer) -> None:
        who = viewer.tenant, viewer.principal.id
        own = sum(who == (one.viewer.tenant, one.viewer.principal.id) for one in self._streams)
        if len(self._streams) >= self.pace.streams or own >= self.pace.own_streams:
            raise LimitError("Too many live streams are open: close some pages.", detail="streams")

    async def chunks(self, stream: Stream, request: HTTPConnection) -> AsyncGenerator[bytes, None]:
        """Yield what a stream sends, until its login or its life is over: looked at before each event is sent."""
        born = checked = clock.monotonic_ms()
        try:
            async with aclosing(self._texts(stream)) as texts:
                async for text in texts:
                    if self._closed or clock.monotonic_ms() - born >= self.pace.life_ms:
                        return
                    if clock.monotonic_ms() - checked >= self.pace.login_ms:
                        if not await self._still(stream, request):
                            return
                        checked = clock.monotonic_ms()
                    yield text
        finally:
            self.leave(stream)

    async def _texts(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """Yield what a stream has to say, without an end."""
        for note in await self._replayed(stream):
            yield _RESET if note is None else note.text()
        yield self._beat()
        while True:
            try:
                # Not wait_for: before Python 3.12 it loses the cancellation that meets a note, and the stream stays.
                async with asyncio.timeout(self.pace.beat_ms / 1000):
                    note = await stream.queue.get()
            except TimeoutError:
                yield self._beat()
            else:
                yield _RESET if note is None else note.text()

    def leave(self, stream: Stream) -> None:
        """Forget a stream that ended, or whose response never began."""
        self._streams.discard(stream)
        self._listened = clock.monotonic_ms()

    def _beat(self) -> bytes:
        # An id without data moves the client's position, and dispatches nothing.
        return f": alive\nid: {self._now}\n\n".encode()

    async def _still(self, stream: Stream, request: HTTPConnection) -> bool:
        try:
            viewer = await self._viewer_of(request)
        except HitlGuardError:
            return False  # nobody can tell; the client comes back
        before = stream.viewer
        if viewer is None or (viewer.tenant, viewer.principal.id) != (before.tenant, before.principal.id):
            return False
        stream.viewer = viewer
        return True

    async def _replayed(self, stream: Stream) -> list[Note | None]:
        if stream.missed:
            return [None]
        if stream.since is None:
            return []
        own = None if self._rings is None else self._rings.since(stream.viewer.tenant, stream.since, self._now)
        if own is None:
            return [None]
        known = await self._learn(own)
        return [note for note in own if _sees(stream.viewer, note, known)]

    # -- the feed ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._closed:
            raise UnavailableError("This server is shutting down; try again.", detail="closing")
        async with self._starting:
            if self._task is None or self._task.done():
                self._now, feed = await offload(self._begun)
                self._rings, self._failed = self._new(self._now), False
                self._listened = clock.monotonic_ms()
                self._task = asyncio.create_task(self._follow(feed))

    def _begun(self) -> tuple[int, Feed]:
        from ..lifecycle.feed import Feed

        desk = self._guard._desk
        feed = Feed(desk)
        return desk.store.now(), feed  # in this order: what is committed after that time is no secret to the feed

    async def _follow(self, feed: Feed) -> None:
        """Read changes for as long as somebody listens. A store that fails for a while loses none: the feed goes on.

        Whatever else goes wrong, every client is told to load again: none goes on as if nothing had changed.
        """
        try:
            while self._streams or clock.monotonic_ms() - self._listened < self.pace.idle_ms:
                try:
                    await self._look(feed)
                    self._failed = False
                except UnavailableError:
                    self._failed = True
                    await asyncio.sleep(self.pace.poll_ms / 1000)
                except Exception as error:  # noqa: BLE001  a stream that says nothing more would look like no change
                    failed("Live events failed, every client is told to load again", error)
                    self._failed, self._rings, self._unspread = True, None, []
                    self._reset(self._streams)
                    await asyncio.sleep(self.pace.poll_ms / 1000)
        finally:
            self._failed = False  # nobody listens: the next one who does starts anew

    async def _look(self, feed: Feed) -> None:
        store = self._guard._desk.store
        if store.notifies:
            await offload(lambda: store.wait_for_changes(self.pace.poll_ms))
            # However many changes are told of: one look finds them all.
            await asyncio.sleep(max(0, self._looked + self.pace.least_ms - clock.monotonic_ms()) / 1000)
            self._looked = clock.monotonic_ms()
        else:
            await asyncio.sleep(self.pace.poll_ms / 1000)
        now = await offload(store.now)
        if self._rings is None:
            self._rings = self._new(now)
        self._unspread += await offload(feed.changes)  # the feed tells each once; kept until they are told on
        await self._spread(self._unspread)
        self._unspread, self._now = [], now

    async def _spread(self, changes: list[Change]) -> None:
        notes = sorted((
            Note(one.tenant, one.request_id, one.version, one.type, one.at)
            for one in changes if one.request_id is not None
        ), key=lambda note: note.at)
        if any(one.type == "reset" for one in changes):
            self._rings = self._new(await offload(self._guard._desk.store.now))
            self._reset(self._streams)
            return
        busy = Counter(tenant for tenant, _ in {(note.tenant, note.request_id) for note in notes})
        flooded = {tenant for tenant, number in busy.items() if number > self.pace.together}
        told = [note for note in notes if note.tenant not in flooded]
        watched = self._by_tenant().keys()
        known = await self._learn([note for note in told if note.tenant in watched])
        until = await offload(self._guard._desk.store.now) if flooded else 0
        streams = self._by_tenant()  # who came while we waited is told as well
        for tenant in flooded:
            if self._rings is not None:
                self._rings.reset(tenant, until)  # who comes back from before loads again, too
        # Of a tenant whose first stream came just now nothing was learnt.
        for tenant in flooded | (streams.keys() - watched) & busy.keys():
            self._reset(streams.get(tenant, ()))
        for note in told:
            if self._rings is not None:
                self._rings.add(note)
            for stream in streams.get(note.tenant, ()):
                if _sees(stream.viewer, note, known):
                    stream.put(note)

    def _by_tenant(self) -> dict[str, list[Stream]]:
        streams: dict[str, list[Stream]] = {}
        for stream in self._streams:
            streams.setdefault(stream.viewer.tenant, []).append(stream)
        return streams

    def _new(self, start: int) -> Rings:
        return Rings(start, self.pace.ring)

    def _reset(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            stream.put(None)

    async def _learn(self, notes: list[Note]) -> Mapping[Key, ApprovalRequest]:
        """Return the requests of these notes, to tell who sees them. What that depends on never changes.

        They are handed over, not left to be looked up: what is kept is bounded, and others learn at the same time.
        """
        wanted = {(note.tenant, note.request_id) for note in notes}
        found = {key: self._known[key] for key in wanted & self._known.keys()}
        missing = wanted - found.keys()
        # What could not be read now may be later; of the rest only what says who sees it is kept.
        read = await offload(lambda: [(key, self._read(*key)) for key in missing]) if missing else []
        found |= {key: _bare(request) for key, request in read if request is not None}
        for key, request in found.items():
            self._known[key] = request
            self._known.move_to_end(key)
        while len(self._known) > 2 * self.pace.ring:
            self._known.popitem(last=False)
        return found

    def _read(self, tenant: str, request_id: str) -> ApprovalRequest | None:
        try:
            return self._guard.get(request_id, tenant=tenant)
        except RefusedError:
            return None  # damaged or gone


def _sees(viewer: Viewer, note: Note, known: Mapping[Key, ApprovalRequest]) -> bool:
    request = known.get((note.tenant, note.request_id))
    return viewer.operator if request is None else visible(request, viewer)


def _bare(request: ApprovalRequest) -> ApprovalRequest:
    """Return a request without what may be large."""
    return replace(request, canonical=b"{}", token="", definition=None)


_RESET = b"event: reset\ndata: {}\n\n"
