"""Which frame goes where, and which answer belongs to whom."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import ConfigurationError, UnavailableError
from . import frames
from .frames import Fault, Frame, Key
from .gate import Gate
from .listing import Listing
from .pausing import Pausing

INITIALIZE = "initialize"
CANCELLED, CHANGED = "notifications/cancelled", "notifications/tools/list_changed"

LOST = "The server went away before it answered; whether the call had an effect is unknown."

_LOG = logging.getLogger("hitl_guard.mcp_proxy")


class Upstream(Protocol):
    """The way to the server."""

    async def send(self, frame: Frame) -> None:
        """Send one frame.

        Raises:
            UnavailableError: it cannot be sent.
        """


@dataclass(slots=True)
class _Waiting:
    """A request that was sent to the server. ``answer``: who waits for it here; None: the client alone."""

    request: Frame
    answer: asyncio.Future[Frame] | None


class Relay:
    """Passes frames on between one client and one server.

    Args:
        write: Sends the client a line.
    """

    def __init__(
        self, upstream: Upstream, gate: Gate, listing: Listing, pausing: Pausing,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._upstream = upstream
        self._gate = gate
        self._listing = listing
        self._pausing = pausing
        self._write = write
        self._waiting: dict[Key, _Waiting] = {}
        self._calls: dict[Key, asyncio.Task[None]] = {}  # without those whose id was answered
        self._tasks: set[asyncio.Task[None]] = set()
        # Ids that no client can guess, so that none of them is ever also a client's.
        self._own = f"hitl-guard-{secrets.token_urlsafe(16)}-"
        self._asked = 0

    # -- from the client -----------------------------------------------------------------------------------------

    async def from_client(self, line: bytes | None) -> None:
        """Take a line of the client's; None for one that was too long."""
        frame = _read(line, frames.CLIENT_LIMITS)
        if isinstance(frame, Fault):
            await self._fault(line, frame)
        elif frame.kind == "request":
            await self._request(frame)
        elif frame.method == CANCELLED and self._cancelled(frame):
            return  # the server never heard of it
        else:
            await self._send(frame)

    async def _fault(self, line: bytes | None, fault: Fault) -> None:
        guessed = None if line is None else frames.guessed_id(line)
        if guessed is not None and self._is_open(frames.key_of(guessed)):
            guessed = None  # the answer would be taken for another request's
        await self.reply(frames.error(guessed, fault.code, fault.message))

    async def _request(self, frame: Frame) -> None:
        if self._is_open(frame.key):
            await self.reply(frames.error(None, frames.INVALID_REQUEST, "This id is a running request's: use another."))
        elif frame.method == frames.CALL:
            task = asyncio.create_task(self._gate.handle(frame, self))
            self._calls[frame.key] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._ended(frame.key, done))
        else:
            self._waiting[frame.key] = _Waiting(frame, None)
            if not await self._send(frame):
                self._waiting.pop(frame.key, None)

    def _is_open(self, key: Key) -> bool:
        return key in self._waiting or key in self._calls

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._calls.get(key) is task:
            del self._calls[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("A call's answer was lost by %s.", type(error).__name__)

    def _cancelled(self, frame: Frame) -> bool:
        """Cancel a call that waits in the guard: it never starts. False: the server must hear of it."""
        cancelled = frame.params.get("requestId")
        if not frames.is_id(cancelled):
            return False
        key = frames.key_of(cancelled)
        if key not in self._calls or key in self._waiting:
            return False
        self._calls[key].cancel()
        return True

    async def _send(self, frame: Frame) -> bool:
        try:
            await self._upstream.send(frame)
        except UnavailableError as error:
            if frame.kind == "request":
                await self.reply(frames.error(frame.id, frames.UNAVAILABLE, str(error)))
            return False
        return True

    # -- from the server -----------------------------------------------------------------------------------------

    async def from_server(self, line: bytes | None) -> None:
        """Take a line of the server's; None for one that was too long."""
        frame = _read(line, frames.SERVER_LIMITS)
        if isinstance(frame, Fault):
            _LOG.error("A line of the server was not passed on. %s", frame.message)
            guessed = None if line is None else frames.guessed_id(line)
            if guessed is not None:
                await self.lost(frames.key_of(guessed), "The server's answer was refused: it has no single meaning.")
            return
        if frame.kind != "response":
            if frame.method == CHANGED:
                self._listing.forget()
            await self.reply(frame.line)
            return
        if frame.data["id"] is None:  # it could not tell which request it refuses
            await self.reply(frame.line)
            return
        waiting = self._waiting.pop(frame.key, None)
        if waiting is None:
            _LOG.warning("The server answered a request that it was not sent, or answered before.")
        elif waiting.answer is None:
            await self.reply(self._looked_at(waiting.request, frame))
        elif not waiting.answer.done():
            waiting.answer.set_result(frame)

    def _looked_at(self, request: Frame, answer: Frame) -> bytes:
        """Return the line for the client, after what the proxy itself must know of it."""
        if request.method == INITIALIZE:
            self._pausing.greeted(request, answer)
        try:
            return self._listing.seen(request, answer) if request.method == frames.LIST else answer.line
        except ConfigurationError as error:
            _LOG.error("%s [%s]", error, error.code)
            return frames.error(answer.id, frames.UNAVAILABLE, f"{error} [{error.code}]")

    async def lost(self, key: Key, why: str = LOST) -> None:
        """End a request whose answer will never come."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        if waiting.answer is None:
            await self.reply(frames.error(waiting.request.id, frames.UNAVAILABLE, why))
        elif not waiting.answer.done():
            waiting.answer.set_exception(UnavailableError(why, code="server-unavailable"))

    # -- for the gate --------------------------------------------------------------------------------------------

    async def call(self, frame: Frame) -> Frame:
        """See `gate.Server.call`."""
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[frame.key] = waiting = _Waiting(frame, answer)
        try:
            await self._upstream.send(frame)
            return await answer
        finally:
            if self._waiting.get(frame.key) is waiting:
                del self._waiting[frame.key]

    async def ask(self, method: str, params: Mapping[str, Any]) -> Frame:
        """See `gate.Server.ask`."""
        self._asked += 1
        made = frames.read(frames.request(f"{self._own}{self._asked}", method, params), frames.CLIENT_LIMITS)
        if isinstance(made, Fault):
            raise UnavailableError("The server's cursor cannot be sent back.", code="server-unavailable")
        return await self.call(made)

    async def reply(self, line: bytes, *, ends: Key | None = None) -> None:
        """See `gate.Server.reply`."""
        if ends is not None:
            self._calls.pop(ends, None)
        await self._write(line)

    # -- the end -------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """The client is gone: calls that wait in the guard never start."""
        for key, task in list(self._calls.items()):
            if key not in self._waiting:
                task.cancel()
        self._gate.hang_up()

    async def end(self, *, patience_s: float) -> None:
        """The server is gone: every open call gets its outcome on record, and an answer if the client still reads.

        Args:
            patience_s: How long the client may take to read.
        """
        self.hang_up()
        calls_first = sorted(self._waiting.items(), key=lambda item: item[1].answer is None)
        try:
            async with asyncio.timeout(patience_s):
                for key, _ in calls_first:
                    await self.lost(key)
                await asyncio.gather(*self._tasks, return_exceptions=True)
        except TimeoutError:
            _LOG.warning("The client reads no more: it did not get its last answers.")


def _read(line: bytes | None, limits: Any) -> Frame | Fault:
    if line is None:
        return Fault(frames.PARSE_ERROR, "The frame is too large: send less.")
    return frames.read(line, limits)
