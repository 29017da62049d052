"""`Streams`: running streams of chats. A run goes on when its client goes away, and the client can come back to it.

All of it lives in this process's memory. With several processes, send a chat's requests to one of them (or live without
coming back: what waits is in the store in any case, and what ran is on record).
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from ...asgi.logs import failed
from ...errors import AgentError, ConfigurationError, LimitError, UnavailableError
from .messages import ChatId
from .parts import Chunk
from .response import encoded
from .texts import STREAM_FAILED

_LAGGED: Chunk = {"type": "error", "errorText": "The connection is too slow: load the chat again."}
_CLOSING: Chunk = {"type": "abort", "reason": "The server is shutting down."}
_STOPPED: Chunk = {"type": "abort", "reason": "Stopped."}

Key = tuple[str, ...]
"""Tenant, user, loop and chat of a stream; one more item for one that another one took the place of."""


class _Reader:
    """Somebody who reads a stream. Only the generator that reads holds it, so that it goes with that, read or not: a
    client may be gone before it was sent anything.
    """


@dataclass(eq=False, slots=True)
class _Stream:
    """One stream of a chat.

    Attributes:
        kept: The chunks that are kept, with their bytes; ``first``: the number of the first one. size: Bytes of them.
        whole: Whether all of them are kept, so that it can be replayed.
        readers: Reader → the number of the chunk that it reads next.
        ended: True once it has ended.
    """

    before: tuple[Chunk, ...]
    kept: deque[tuple[Chunk, int]] = field(default_factory=deque)
    first: int = 0
    size: int = 0
    whole: bool = True
    readers: weakref.WeakKeyDictionary[_Reader, int] = field(default_factory=weakref.WeakKeyDictionary)
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def end(self) -> int:
        """The number of the next chunk."""
        return self.first + len(self.kept)

    def tell(self) -> None:
        """Wake every reader."""
        self.changed.set()
        self.changed = asyncio.Event()


class Streams:
    """The streams of one process, by tenant, user and chat: nobody reads another one's.

    Args:
        most: Streams in all. own: Streams of one user. One counts while it runs, and while somebody reads it.
        chunks, size: Chunks and bytes of one stream that are kept. A stream that grows beyond goes on, and can be
            replayed no more; a reader who is behind by more is cut off.

    Raises:
        ConfigurationError: a bound is no positive integer.
    """

    def __init__(
        self, *, most: int = 1_000, own: int = 20, chunks: int = 20_000, size: int = 4_194_304
    ) -> None:
        for name, value in (("most", most), ("own", own), ("chunks", chunks), ("size", size)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"'{name}' is a positive integer.")
        self._most, self._own, self._chunks, self._size = most, own, chunks, size
        self._streams: dict[Key, _Stream] = {}
        self._closed = False

    def begin(
        self, chat: ChatId, make: Callable[[], AsyncIterator[Chunk]], *, before: Iterable[Chunk] = (),
        beside: bool = False,
    ) -> AsyncGenerator[Chunk, None]:
        """Start a stream of a chat; return its chunks as they come. It goes on if these are not read.

        Args:
            chat: Whose chat it is, by the host's login.
            make: Returns the chunks of the stream. Called at once, if there is room.
            before: What a replay starts with, after the ``start`` chunk: where a message goes on, what it had
                (`rebuilt`).
            beside: Whether it may begin though the chat's last stream still runs, if nobody reads that any more: it
                goes on to its end, and can be replayed no more.

        Raises:
            AgentError: the chat has a running stream (``run-busy``, detail ``stream``).
            LimitError: there are too many (detail ``streams``). UnavailableError: the process is shutting down.
        """
        if self._closed:
            raise UnavailableError("This server is shutting down; try again.", detail="closing")
        self._forget()
        key = _key(chat)
        self.check_free(chat, beside=beside)
        if (left := self._streams.get(key)) is not None:
            self._streams[(*key, str(id(left)))] = self._streams.pop(key)
        self._make_room(key)
        had = tuple(before)
        size = sum(len(encoded(chunk)) for chunk in had)
        # Half the room at most: the rest is for what the stream itself says.
        fits = 2 * size <= self._size
        source, stream = make(), _Stream(had, size=size) if fits else _Stream((), whole=False)
        self._streams[key] = stream
        reader = self._reader(stream)
        stream.task = asyncio.create_task(self._run(stream, source))
        return reader

    def check_free(self, chat: ChatId, *, beside: bool = False) -> None:
        """Raise `AgentError` (``run-busy``, detail ``stream``) where a stream of the chat runs; see `begin`."""
        there = self._streams.get(_key(chat))
        if there is not None and not there.ended and not (beside and not there.readers):
            raise AgentError("This chat is being answered already.", code="run-busy", detail="stream")

    def again(self, chat: ChatId) -> AsyncGenerator[Chunk, None] | None:
        """Return a chat's running stream from its start on, and live after that; None where nothing runs.

        A client that reconnects replays it into an empty message. What has ended stands in the chat's history.

        Raises:
            LimitError: this user reads too many already (``detail`` streams).
        """
        self._forget()
        stream = self._streams.get(_key(chat))
        if stream is None or stream.ended or not stream.whole:
            return None
        if len(stream.readers) >= self._own:
            raise LimitError("This chat is read too often at once: close some pages.", detail="streams")
        return _with(self._reader(stream), stream.before)

    def stop(self, chat: ChatId) -> bool:
        """Stop a chat's running stream, and what it runs; say whether there was one. What tools did is on record."""
        stream = self._streams.get(_key(chat))
        if stream is None or stream.task is None or stream.ended:
            return False
        self._end(stream, _STOPPED)
        stream.task.cancel()
        return True

    async def close(self) -> None:
        """End every stream, and start no more."""
        self._closed = True
        streams = [*self._streams.values()]
        for stream in streams:
            if not stream.ended:
                self._end(stream, _CLOSING)
        tasks = [stream.task for stream in streams if stream.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._streams.clear()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _run(self, stream: _Stream, source: AsyncIterator[Chunk]) -> None:
        try:
            try:
                async for chunk in source:
                    self._keep_chunk(stream, chunk, len(encoded(chunk)))
            finally:
                if hasattr(source, "aclose"):
                    await source.aclose()
        except Exception as error:  # noqa: BLE001  the client must be told that it failed, and no details
            failed("A stream of a chat failed", error)
            self._end(stream, {"type": "error", "errorText": STREAM_FAILED})
        finally:
            self._end(stream)

    def _end(self, stream: _Stream, last: Chunk | None = None) -> None:
        if not stream.ended:
            if last is not None:
                self._keep_chunk(stream, last, len(encoded(last)))
            stream.ended, stream.before = True, ()
            stream.tell()

    def _keep_chunk(self, stream: _Stream, chunk: Chunk, size: int) -> None:
        if stream.ended:
            return
        stream.kept.append((chunk, size))
        stream.size += size
        if len(stream.kept) > self._chunks or stream.size > self._size:
            stream.whole = False
            read = min(stream.readers.values(), default=stream.end)
            while stream.kept and (
                stream.first < read or len(stream.kept) > self._chunks or stream.size > self._size
            ):
                stream.size -= stream.kept.popleft()[1]
                stream.first += 1
        stream.tell()

    def _reader(self, stream: _Stream) -> AsyncGenerator[Chunk, None]:
        me = _Reader()
        stream.readers[me] = 0
        return _read(stream, me)

    def _make_room(self, key: Key) -> None:
        if sum(of[:2] == key[:2] for of in self._streams) >= self._own or len(self._streams) >= self._most:
            raise LimitError("Too many chats are being answered: wait for one to end.", detail="streams")

    def _forget(self) -> None:
        """Forget what has ended and is read no more; what somebody still reads holds its place."""
        for key, stream in [*self._streams.items()]:
            if stream.ended and not stream.readers:
                del self._streams[key]


def _key(chat: ChatId) -> Key:
    return chat.user.tenant, chat.user.id, chat.loop, chat.id


async def _read(stream: _Stream, me: _Reader) -> AsyncGenerator[Chunk, None]:
    try:
        while True:
            place, changed = stream.readers[me], stream.changed
            if place < stream.first:
                yield _LAGGED
                return
            if place < stream.end:
                stream.readers[me] = place + 1
                yield stream.kept[place - stream.first][0]
            elif stream.ended:
                return
            else:
                await changed.wait()
    finally:
        stream.readers.pop(me, None)


async def _with(chunks: AsyncGenerator[Chunk, None], before: tuple[Chunk, ...]) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks, and after the first one, which starts the message, those before them."""
    try:
        async for chunk in chunks:
            yield chunk
            for one in before:
                yield one
            before = ()
    finally:
        await chunks.aclose()
