"""The response that carries a live stream: server-sent events, for as long as its client takes them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .events import Hub, Stream


class EventStream(Response):
    """Sends a stream until it, the client or the app ends, or the client accepts nothing for too long."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, stream: Stream, request: HTTPConnection) -> None:
        super().__init__(headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._hub, self._stream, self._request = hub, stream, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and, but for HEAD, the events."""
        gone = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send(scope, send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            self._hub.leave(self._stream)
        if not sending.cancelled() and (error := sending.exception()) is not None and not isinstance(error, OSError):
            raise error

    async def _send(self, scope: Scope, send: Send) -> None:
        async def sent(**message: Any) -> None:
            # Over time this is an OSError as any other of a broken line: the stream ends, and nobody is told.
            async with asyncio.timeout(self._hub.pace.send_ms / 1000):
                await send(message)

        await sent(type="http.response.start", status=200, headers=self.raw_headers)
        if scope["method"] != "HEAD":
            async with aclosing(self._hub.chunks(self._stream, self._request)) as chunks:
                async for chunk in chunks:
                    await sent(type="http.response.body", body=chunk, more_body=True)
        await sent(type="http.response.body", body=b"", more_body=False)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
