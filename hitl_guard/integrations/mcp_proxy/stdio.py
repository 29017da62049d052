"""The client's pipes, and the server as a child process."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ...errors import ConfigurationError, UnavailableError
from .frames import CLIENT_LIMITS, SERVER_LIMITS, Frame, Lines

CHUNK = 65_536
PATIENCE_S = 5.0
"""How long a server may take to end once its input is closed."""
TERMINATION_S = 2.0
"""How long it may take then, once it was told to terminate, before it is killed."""
OURS = "HITL_GUARD_"
"""How the names of our own environment variables start; the server, whom nobody trusts, sees none of them."""

Line = bytes | None


class Pipes:
    """The client's end: standard input and output of this process.

    Threads do the reading and writing: files, terminals and pipes alike, none of which is changed for other processes.

    Attributes:
        gone: Set once the client reads no more.
    """

    def __init__(self, reading: int = 0, writing: int = 1) -> None:
        self._reading, self._writing = reading, writing
        self._loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(16)
        self._lines: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        for work in (self._read, self._write):  # daemons: a read that never returns keeps nothing alive
            threading.Thread(target=work, daemon=True, name=f"hitl-guard-mcp{work.__name__}").start()

    def _read(self) -> None:
        chunk = b"-"
        while chunk:
            try:
                chunk = os.read(self._reading, CHUNK)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(self._chunks.put(chunk), self._loop).result()
            except RuntimeError:  # the loop is closed
                return

    def _write(self) -> None:
        while True:
            line, written = self._lines.get()
            gone = False
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(self._writing, left) :]
            except OSError:
                gone = True
            try:
                self._loop.call_soon_threadsafe(self._written, written, gone)
            except RuntimeError:
                return

    def _written(self, future: asyncio.Future[None], gone: bool) -> None:
        if gone:
            self.gone.set()
        if not future.done():
            future.set_result(None)

    async def lines(self) -> AsyncIterator[Line]:
        """Yield the client's lines until it closes its end."""
        async for line in _lines(self._chunks.get, CLIENT_LIMITS.max_bytes):
            yield line

    async def write(self, line: bytes) -> None:
        """Write a line, whole, after the ones before it. A client that reads no more gets none."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._lines.put((line + b"\n", written))
        await written


async def _lines(chunks: Callable[[], Awaitable[bytes]], most: int) -> AsyncIterator[Line]:
    lines = Lines(most)
    while chunk := await chunks():
        for line in lines.feed(chunk):
            yield line
    for line in lines.end():
        yield line


class Child:
    """The server as a child process. Its standard error is ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        """Start the server.

        Raises:
            ConfigurationError: it cannot be started.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        pipe = asyncio.subprocess.PIPE
        try:
            return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The server cannot be started ({type(error).__name__}): check the command after '--'."
            ) from error

    async def send(self, frame: Frame) -> None:
        """See `relay.Upstream.send`."""
        pipe = self._process.stdin
        try:
            if pipe is None or pipe.is_closing():
                raise BrokenPipeError
            pipe.write(frame.line + b"\n")
            await pipe.drain()
        except (ConnectionError, BrokenPipeError) as error:
            raise UnavailableError("The server reads no more.", code="server-unavailable") from error

    async def lines(self) -> AsyncIterator[Line]:
        """Yield the server's lines until it closes its end."""
        pipe = self._process.stdout
        if pipe is None:
            return

        async def chunks() -> bytes:
            return await pipe.read(CHUNK)

        async for line in _lines(chunks, SERVER_LIMITS.max_bytes):
            yield line

    def close(self) -> None:
        """Close the server's input, so that it ends."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self, *, patience_s: float = PATIENCE_S) -> int:
        """Wait for the server's end, force it if need be, and return its exit code as a shell has it."""
        self.close()
        for within, then in ((patience_s, self._process.terminate), (TERMINATION_S, self._process.kill)):
            try:
                async with asyncio.timeout(within):
                    await self._process.wait()
                break
            except TimeoutError:
                try:
                    then()
                except ProcessLookupError:
                    break
        code = await self._process.wait()
        return code if code >= 0 else 128 - code
