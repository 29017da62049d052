"""The small server behind a URL (Streamable HTTP), answering as JSON or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.mcp_proxy.server import Server
from tests.support import WAIT_S

SESSION = "s-1"


class Site:
    """What is served, and what came.

    Attributes:
        kind: ``json``, ``sse``, ``broken`` (a stream that ends without its answer) or ``resumed`` (one that can be
            taken up again).
        heads: The headers of every request, with its HTTP method.
    """

    def __init__(self, log: Path, kind: str) -> None:
        self.kind = kind
        self.heads: list[tuple[str, dict[str, str]]] = []
        self.port = 0
        self._out: list[bytes] = []
        self._left: list[bytes] = []
        self.listening = asyncio.Event()
        self._log = log
        self._server = Server(self._out.append, self._note)

    def _note(self, line: bytes) -> None:
        with self._log.open("ab") as file:
            file.write(line + b"\n")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def post(self, request: Request) -> Response:
        self.heads.append(("POST", dict(request.headers)))
        body = await request.body()
        frame = json.loads(body)
        if "id" not in frame or "method" not in frame:
            self._server.take(body)
            return Response(status_code=202)
        self._out.clear()
        self._server.take(body)
        lines = list(self._out)
        calls = frame["method"] == "tools/call"
        head = {"mcp-session-id": SESSION} if frame["method"] == "initialize" else {}
        if frame["method"] == "test/refused":
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "no"}}, 400)
        if frame["method"] == "test/login":
            return JSONResponse({"error": "invalid_token"}, 401)
        if frame["method"] == "test/down":
            return Response("down", status_code=503)
        if self.kind == "json":
            (line,) = lines
            return Response(line.replace(b", ", b",\n  ", 1), media_type="application/json", headers=head)
        if calls and self.kind in ("broken", "resumed"):
            self._left, lines = lines, []
        name = b"id: e-1\nretry: 1\ndata:\n\n" if self.kind == "resumed" else b": hello\n\n"

        async def events() -> AsyncIterator[bytes]:
            yield name
            for line in lines:
                yield b"event: message\r\ndata: " + line.replace(b", ", b",\r\ndata: ", 1) + b"\r\n\r\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers=head)

    async def get(self, request: Request) -> Response:
        self.heads.append(("GET", dict(request.headers)))
        if "last-event-id" in request.headers:
            (line,) = self._left
            return Response(b"id: e-2\ndata: " + line + b"\n\n", media_type="text/event-stream")
        if self.kind != "sse":
            return Response(status_code=405)

        async def events() -> AsyncIterator[bytes]:
            yield b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\xe2\x80\xa8"}}\n\n'
            await self.listening.wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def delete(self, request: Request) -> Response:
        self.heads.append(("DELETE", dict(request.headers)))
        return Response()


@contextmanager
def serving(log: Path, kind: str) -> Iterator[Site]:
    """Serve it on a free port of this machine."""
    site = Site(log, kind)
    routes = [Route("/mcp", getattr(site, name), methods=[name.upper()]) for name in ("post", "get", "delete")]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server: Any = uvicorn.Server(config)
    config.timeout_graceful_shutdown = 1
    ready = threading.Event()
    startup = server.startup

    async def starting(*args: Any, **options: Any) -> None:
        await startup(*args, **options)
        site.port = server.servers[0].sockets[0].getsockname()[1]
        ready.set()

    server.startup = starting
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield site
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
