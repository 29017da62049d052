"""Chat endpoints as people have them, and what their clients post: honest, or with one thing changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hitl_guard.asgi.middleware import ApprovalMiddleware
from hitl_guard.models import ApprovalRequest, Principal
from hitl_guard.protocols.verify import PostedApprovals
from tests.support import World

PATH = "/api/chat"
FORMATS = ("ai-sdk-ui", "ai-sdk-model", "openai-responses", "ag-ui")
REFUSED = {"status": 403, "title": "An approval in this request is refused.", "type": "urn:hitl-guard:problem:refused"}


@dataclass(frozen=True)
class Answer:
    """One answered approval, to be written down in any format.

    ``output``: what the history says came of the call; None: nothing yet.
    """

    request_id: str
    token: str | None
    call_id: str
    tool: str
    arguments: Any
    approved: Any = True
    run: str = "run-1"
    output: Any = None

    @classmethod
    def to(cls, request: ApprovalRequest, **changed: Any) -> Answer:
        """Return the honest answer to a request."""
        assert request.call_id is not None
        honest = cls(request.id, request.token, request.call_id, request.tool, request.arguments, run=request.run_id)
        return replace(honest, **changed)

    def body(self, kind: str) -> dict[str, Any]:
        """Return what a client of a format posts."""
        return {
            "ai-sdk-ui": self._ui, "ai-sdk-model": self._model, "openai-responses": self._openai, "ag-ui": self._ag_ui,
        }[kind]()

    def part(self) -> dict[str, Any]:
        """Return the answered part of a UI message."""
        signature = {} if self.token is None else {"signature": self.token}
        ended = {} if self.output is None else {"output": self.output}
        state = "approval-responded" if self.output is None else "output-available"
        return {
            "type": f"tool-{self.tool}", "toolCallId": self.call_id, "state": state, "input": self.arguments, **ended,
            "approval": {"id": self.request_id, "approved": self.approved, **signature},
        }

    def _ui(self) -> dict[str, Any]:
        return {"id": self.run, "trigger": "submit-message", "messages": [
            {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Please refund A-17."}]},
            {"id": "m1", "role": "assistant", "parts": [{"type": "step-start"}, self.part()]},
        ]}

    def _model(self) -> dict[str, Any]:
        signature = {} if self.token is None else {"signature": self.token}
        asked = {"type": "tool-approval-request", "approvalId": self.request_id, "toolCallId": self.call_id}
        call = {"type": "tool-call", "toolCallId": self.call_id, "toolName": self.tool, "input": self.arguments}
        answer = {"type": "tool-approval-response", "approvalId": self.request_id, "approved": self.approved}
        result = {
            "type": "tool-result", "toolCallId": self.call_id, "toolName": self.tool,
            "output": {"type": "json", "value": self.output},
        }
        return {"id": self.run, "messages": [
            {"role": "user", "content": "Please refund A-17."},
            {"role": "assistant", "content": [call, asked | signature]},
            {"role": "tool", "content": [answer]},
            *([] if self.output is None else [{"role": "tool", "content": [result]}]),
        ]}

    def _openai(self) -> dict[str, Any]:
        arguments = json.dumps(self.arguments)
        request = {"type": "mcp_approval_request", "id": self.call_id, "name": self.tool, "arguments": arguments,
                   "server_label": "shop"}
        answer = {"type": "mcp_approval_response", "approval_request_id": self.call_id, "approve": self.approved}
        result = {"type": "mcp_call", "id": "mcp-1", "approval_request_id": self.call_id, "name": self.tool,
                  "arguments": arguments, "output": json.dumps(self.output), "error": None}
        return {"id": self.run, "input": [request, answer, *([] if self.output is None else [result])]}

    def _ag_ui(self) -> dict[str, Any]:
        metadata = {} if self.token is None else {"metadata": {"hitl_guard": {"token": self.token}}}
        function = {"name": self.tool, "arguments": json.dumps(self.arguments)}
        return {"id": self.run, "threadId": self.run, "messages": [
            {"id": "u1", "role": "user", "content": "Please refund A-17."},
            {"id": "m1", "role": "assistant", "toolCalls": [
                {"id": self.call_id, "type": "function", "function": function},
            ]},
        ], "resume": [
            {"interruptId": self.request_id, "status": "resolved", "payload": {"approved": self.approved}, **metadata},
        ]}


def principal_of(request: HTTPConnection) -> Principal | None:
    """Return who a test says is logged in."""
    user = request.headers.get("x-user", "ana")
    return Principal(user, tenant=request.headers.get("x-tenant", "default")) if user else None


@pytest.fixture(name="world")
def fresh_world(make_database: Callable[..., Any], open_store: Callable[..., Any]) -> World:
    """A guard on a SQLite database that is copied, not set up anew. Import it where it is wanted."""
    return World(open_store(make_database("sqlite")))


class Chat:
    """Three existing apps, with the middleware in front of each and without.

    Attributes:
        seen: The bodies that the app behind the middleware saw.
        found: What it found in its scope.
    """

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.options = options
        self.seen: list[bytes] = []
        self.found: list[PostedApprovals | None] = []

    async def _take(self, request: Request) -> bytes:
        body = await request.body()
        self.seen.append(body)
        self.found.append(request.scope.get("hitl_guard"))
        return body

    def starlette(self) -> Any:
        """Return a bare Starlette app that answers with what it was sent."""
        async def chat(request: Request) -> Response:
            return Response(await self._take(request), 201, {"x-app": "starlette"}, "application/json")

        return Starlette(routes=[Route(PATH, chat, methods=["POST", "GET", "PUT"])])

    def fastapi(self) -> Any:
        """Return a FastAPI app that reads its body as a model."""
        app = FastAPI()

        @app.post(PATH)
        async def chat(request: Request, body: dict[str, Any]) -> dict[str, Any]:
            await self._take(request)
            return {"got": body}

        return app

    def sse(self) -> Any:
        """Return an app that streams server-sent events."""
        async def chat(request: Request) -> Response:
            body = await self._take(request)

            async def events() -> AsyncIterator[bytes]:
                for number in range(5):
                    yield b"data: %d %d\n\n" % (number, len(body))
                yield b"data: [DONE]\n\n"

            return StreamingResponse(events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

        return Starlette(routes=[Route(PATH, chat, methods=["POST"])])

    def guarded(self, app: Any = None) -> ApprovalMiddleware:
        """Return an app behind the middleware."""
        given: dict[str, Any] = {
            "authenticate": principal_of, "run_of": lambda request, body: body["id"], "paths": [PATH],
        }
        return ApprovalMiddleware(app or self.starlette(), self.world.guard, **(given | self.options))

    async def post(self, body: Any, app: Any = None, **headers: str) -> httpx.Response:
        """Post a body (plain data, or raw bytes) as JSON to an app, by default the guarded Starlette one."""
        content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        sent = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        return await send(app or self.guarded(), "POST", content=content, headers=sent)

    def codes(self) -> list[tuple[str, str | None]]:
        """Return code and detail of every audited refusal, sorted."""
        return sorted((event["code"], event.get("detail")) for event in self.world.audited())


async def send(app: Any, method: str, path: str = PATH, **options: Any) -> httpx.Response:
    """Send one request to an app in this process."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat.test") as client:
        return await client.request(method, path, **options)


__all__ = ["FORMATS", "PATH", "REFUSED", "Answer", "Chat", "fresh_world", "principal_of", "send"]
