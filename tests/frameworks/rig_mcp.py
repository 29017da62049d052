"""MCP servers made with the official SDK. The client's `InputRequiredResult` is the state, accepting it its own yes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer, RequestStateSecurity
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult

from hitl_guard.integrations.mcp import ApprovalExtension
from tests.frameworks.bench import Setup
from tests.frameworks.rig import Outcome, Rig

INBOX = "https://approvals.example"
URL = "http://127.0.0.1:8000/mcp"
DEFAULTS: dict[str, Any] = {"scope": lambda ctx: {"user": "ana", "run_id": "conversation"}, "inbox": INBOX}


class Late(MCPServer):
    """Changes arguments further inside than any extension can stand."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        return await super().call_tool(name, {"record": 99}, context)


def security() -> RequestStateSecurity:
    """Return one key for all processes, so that a pause outlives the one that made it."""
    return RequestStateSecurity(keys=["k" * 32])


async def accepts(context: Any, params: Any) -> ElicitResult:
    """Answer whatever is asked with yes, as an agent may that asks nobody."""
    return ElicitResult(action="accept")


class Mcp(Rig):
    """The official SDK's server, and its client with a script in place of a model."""

    name = "mcp"
    package = "mcp"
    absent = {"sub-agent": "a server has no agents"}  # noqa: RUF012

    def served(self, guard: Any, tools: Mapping[str, Callable[..., Any]], **options: Any) -> tuple[Any, Any]:
        """Return a server with these tools and its extension, and that."""
        gate = ApprovalExtension(guard, **(DEFAULTS | options))
        return gate.attach(self._plain(tools, gate)), gate

    def _plain(self, tools: Mapping[str, Callable[..., Any]], *extensions: Any, late: bool = False) -> Any:
        kind = Late if late else MCPServer
        server = kind("shop", extensions=extensions, request_state_security=security(), log_level="CRITICAL")
        for name, function in tools.items():
            server.add_tool(function, name=name)
        return server

    def wire(self, server: Any) -> Any:
        """Return what the SDK's client connects to."""
        return server

    def _server(self, setup: Setup) -> tuple[Any, Any]:
        gate = ApprovalExtension(
            setup.bench.guard, scope=lambda ctx: setup.facts("conversation"), inbox=INBOX, pause=setup.pause
        )
        server = self._plain(setup.bench.sealed, *([gate] if setup.guarded else []), late=setup.late)
        return (gate.attach(server) if setup.guarded else server), gate

    @asynccontextmanager
    async def _session(self, server: Any, setup: Setup) -> AsyncIterator[Any]:
        if not setup.stream:
            async with Client(server, elicitation_callback=accepts) as client:
                yield client.session
            return
        app = server.streamable_http_app()
        async with (
            server.session_manager.run(), over_http(app) as transport,
            Client(transport, elicitation_callback=accepts) as client,
        ):
            yield client.session

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        server, _ = self._server(setup)
        async with self._session(server, setup) as session:
            return await converse(session, setup, state)

    async def selftest(self, setup: Setup) -> None:
        server, gate = self._server(setup)
        await gate.selftest(server)


async def converse(session: Any, setup: Setup, state: str | None) -> Outcome:
    """Make the script's calls; with a state, first those again that wait, with a yes to what the server asked."""
    kept: dict[str, Any] = {"place": 0, "told": [], "waits": None} if state is None else json.loads(state)
    place, told, waits = kept["place"], kept["told"], kept["waits"]
    while place < len(setup.script):
        if waits is None:
            waits = [{"name": tool, "arguments": arguments} for _, tool, arguments in setup.script[place]]
        results = await asyncio.gather(*(session.call_tool(**call, allow_input_required=True) for call in waits))
        told += [text_of(result) for result in results if not is_pause(result)]
        waits = [answered(call, result) for call, result in zip(waits, results, strict=True) if is_pause(result)]
        if waits:
            paused = json.dumps({"place": place, "told": told, "waits": waits})
            return Outcome(state=paused, told="\n".join(told))
        place, waits = place + 1, None
    return Outcome(state=None, told="\n".join([*told, "done"]))


def is_pause(result: Any) -> bool:
    return isinstance(result, InputRequiredResult)


def answered(call: dict[str, Any], pause: InputRequiredResult) -> dict[str, Any]:
    """Return the call that goes on after a pause, with a yes to each question."""
    yes = {name: {"action": "accept"} for name in pause.input_requests or {}}
    return {**call, "input_responses": yes, "request_state": pause.request_state}


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


@asynccontextmanager
async def over_http(app: Any) -> AsyncIterator[Any]:
    """Yield a transport to an app of Streamable HTTP: each answer is a stream of events."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        yield streamable_http_client(URL, http_client=http)
