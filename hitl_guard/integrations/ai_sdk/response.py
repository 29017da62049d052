"""`UIMessageStreamResponse`: chunks of the UI message stream as server-sent events, for Starlette and FastAPI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from ...asgi.logs import failed
from ...errors import ConfigurationError
from .parts import Chunk
from .texts import STREAM_FAILED

HEADERS = {
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "content-type": "text/event-stream",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""The headers that the SDK itself sends."""

KEEP_ALIVE_S = 15.0
"""After how many idle seconds a comment shows proxies that the stream lives."""

_BEAT = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_QUEUED = 16
"""Chunks that are made ahead of a client that reads slowly."""


def encoded(chunk: Chunk) -> bytes:
    """Return one chunk as a server-sent event.

    Raises:
        ValueError, TypeError, RecursionError: it is no JSON.
    """
    return f"data: {json.dumps(chunk, allow_nan=False, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class UIMessageStreamResponse(Response):
    """Sends chunks to their end, then ``[DONE]``.

    What fails in the middle is logged, and the client gets an error chunk with a fixed text. When the client goes away,
    the source is stopped and closed; what tools did is on record.

    Args:
        chunks: The chunks, in order: see `UIMessageStream`.
        headers: More headers. Those of the protocol stay as they are.
        goes_on: Whether the source is read to its end though the client went away. (`Streams` is better: with it the
            client can come back.)
        keep_alive: Idle seconds before a comment is sent.

    Raises:
        ConfigurationError: ``keep_alive`` is no positive number.
    """

    def __init__(
        self, chunks: AsyncIterator[Chunk], headers: Mapping[str, str] | None = None, *, goes_on: bool = False,
        keep_alive: float = KEEP_ALIVE_S,
    ) -> None:
        if type(keep_alive) not in (int, float) or not 0 < keep_alive < float("inf"):
            raise ConfigurationError("'keep_alive' is a positive number of seconds.")
        more = {name.lower(): value for name, value in (headers or {}).items()}
        super().__init__(None, 200, more | HEADERS)
        del self.headers["content-length"]
        self._chunks = chunks
        self._goes_on = goes_on
        self._keep_alive = keep_alive
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and, but for HEAD, the chunks."""
        leaving = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send(scope, send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            self._gone = not sending.done()
            if self._gone and self._goes_on:
                await asyncio.wait({sending})
        finally:
            for task in (leaving, sending):
                task.cancel()
            await asyncio.gather(leaving, sending, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None and not isinstance(error, OSError):
            raise error

    async def _send(self, scope: Scope, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await self._put(send, head)
        if scope["method"] == "HEAD":
            await self._put(send, _body(b"", more=False))
            return
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED)
        reading = asyncio.create_task(self._read(queue))
        try:
            await self._pass_on(queue, send)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _pass_on(self, queue: asyncio.Queue[bytes | None], send: Send) -> None:
        while True:
            try:
                # Not wait_for: before Python 3.12 it loses the cancellation that meets a part, and the response stays.
                async with asyncio.timeout(self._keep_alive):
                    part = await queue.get()
            except TimeoutError:
                await self._put(send, _body(_BEAT))
                continue
            if part is None:
                await self._put(send, _body(_DONE, more=False))
                return
            await self._put(send, _body(part))

    async def _put(self, send: Send, message: AsgiMessage) -> None:
        if self._gone:
            return
        try:
            await send(message)
        except OSError:  # as servers say that the client is gone
            if not self._goes_on:
                raise
            self._gone = True

    async def _read(self, queue: asyncio.Queue[bytes | None]) -> None:
        """Read the source in one task of its own: a generator that others enter from many tasks cannot be relied on."""
        try:
            try:
                async for chunk in self._chunks:
                    await queue.put(encoded(chunk))
            finally:
                if hasattr(self._chunks, "aclose"):
                    await self._chunks.aclose()
        except Exception as error:  # noqa: BLE001  the client must be told that it failed, and no details
            failed("A stream of a chat failed", error)
            await queue.put(encoded({"type": "error", "errorText": STREAM_FAILED}))
        await queue.put(None)


def _body(part: bytes, *, more: bool = True) -> AsgiMessage:
    return {"type": "http.response.body", "body": part, "more_body": more}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
