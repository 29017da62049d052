"""What does `ApprovalMiddleware` cost a chat endpoint?

The floor is the same Starlette app on the same server (uvicorn, a process of its own), without it. Both get the same
posts of 20 messages over kept connections, several at once: with one approval in each, which is verified against the
store each time, and without any. The app echoes the last text word by word as server-sent events, as chat endpoints
answer. One row only informs: an app that answers with one small JSON object and does nothing else.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hitl_guard import Guard, Principal, SQLStore, ToolCall
from hitl_guard.asgi import ApprovalMiddleware
from hitl_guard.testing import UnsafeKeyring

from ._harness import Row, at_least, medians

STREAM, PLAIN = "/api/chat", "/api/plain"
TEXT = "The order A-17 was late, so the customer asks for the shipping costs back. " * 4
ANSWER = (
    "I have looked at your order A-17: it was promised for Monday and came on Friday. I am sorry for that. The "
    "shipping costs go back to the card that you paid with; that takes two or three days."
)
DONE = b"[DONE]"
CONNECTIONS = 8
RATIO = 0.65


def rows() -> list[Row]:
    """Measure, and return a row for a history with an approval and one for a history without."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _serving(None) as (bare, plain),
        _serving(f"sqlite:///{Path(folder) / 'bench.db'}") as (guarded, answered),
    ):
        return [
            _row("chat endpoint, 20 messages, 1 approval verified", bare, guarded, STREAM, answered, RATIO),
            _row("chat endpoint, 20 messages, no approval", bare, guarded, STREAM, plain, RATIO),
            _row("nothing but an answer, 20 messages, 1 approval verified", bare, guarded, PLAIN, answered, None),
        ]


def _row(name: str, bare: int, guarded: int, path: str, body: bytes, hold: float | None) -> Row:
    with _posting(bare, path, body) as plain, _posting(guarded, path, body) as checked:
        plain(), checked()
        times = medians({"bare": plain, "guarded": checked}, rounds=101, repeats=1)
    return at_least(name, times["guarded"] / CONNECTIONS, times["bare"] / CONNECTIONS, hold)


@contextmanager
def _posting(port: int, path: str, body: bytes) -> Iterator[Callable[[], None]]:
    """Yield a function that posts a body once over each of `CONNECTIONS` and reads the answers."""
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]

    def post() -> None:
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            answer = b""
            while DONE not in answer or (b"chunked" in answer and not answer.endswith(b"0\r\n\r\n")):
                part = connection.recv(65_536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 "), answer

    try:
        yield post
    finally:
        for connection in connections:
            connection.close()


def _app() -> Starlette:
    async def chat(request: Request) -> Response:
        messages = (await request.json())["messages"]

        async def events() -> AsyncIterator[bytes]:
            yield b'data: {"type":"start","messageId":"m%d"}\n\n' % len(messages)
            for word in ANSWER.split():
                yield b"data: " + orjson.dumps({"type": "text-delta", "id": "t1", "delta": word}) + b"\n\n"
            yield b"data: " + DONE + b"\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def plain(request: Request) -> Response:
        return JSONResponse({"messages": len((await request.json())["messages"]), "state": DONE.decode()})

    return Starlette(routes=[Route(STREAM, chat, methods=["POST"]), Route(PLAIN, plain, methods=["POST"])])


@contextmanager
def _serving(url: str | None) -> Iterator[tuple[int, bytes]]:
    """Serve the app in a process of its own, guarded if there is a store's URL; yield its port and what to post."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(url, there), daemon=True)
    process.start()
    try:
        assert here.poll(60)
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def _serve(url: str | None, pipe: Any) -> None:
    app: Any = _app()
    guard = None
    if url is not None:
        store = SQLStore(url)
        store.setup()
        guard = Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)
        app = ApprovalMiddleware(
            app, guard, authenticate=lambda request: Principal("ana"), run_of=lambda request, body: str(body["id"]),
            paths=[STREAM, PLAIN],
        )
    body = _body(guard)
    # The server binds by itself: asyncio leaves Nagle's algorithm on for sockets that it is handed.
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", access_log=False)
    )
    startup = server.startup

    async def starting(*args: Any, **options: Any) -> None:
        await startup(*args, **options)
        pipe.send((server.servers[0].sockets[0].getsockname()[1], body))

    server.startup = starting  # type: ignore[method-assign]
    server.run()


def _body(guard: Guard | None) -> bytes:
    """Return what ``useChat`` posts: a conversation whose last message answers an approval, if there is a guard."""
    messages: list[dict[str, Any]] = [
        {"id": f"m{number}", "role": "assistant" if number % 2 else "user", "parts": [{"type": "text", "text": TEXT}]}
        for number in range(20)
    ]
    if guard is not None:
        arguments = {"amount": 82, "order": "A-17"}
        request = guard.request(ToolCall("refund", arguments, run_id="chat-1", call_id="call-1", user="ana"))
        guard.decide(request.id, approver=Principal("bob"), approve=True, fingerprint=request.fingerprint)
        approval = {"id": request.id, "approved": True, "signature": request.token}
        messages[-1]["parts"] = [{"type": "step-start"}, {
            "type": "tool-refund", "toolCallId": "call-1", "state": "approval-responded", "input": arguments,
            "approval": approval,
        }]
    return orjson.dumps({"id": "chat-1", "messages": messages, "trigger": "submit-message"})
