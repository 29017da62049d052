"""FastMCP: the client's `InputRequiredResult` is the state, accepting it its own yes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.tools.base import Tool
from mcp import Client as SDKClient

from hitl_guard.integrations.fastmcp import ApprovalExtension
from tests.frameworks.bench import Setup
from tests.frameworks.rig import Outcome, Rig
from tests.frameworks.rig_mcp import DEFAULTS, INBOX, accepts, converse, over_http, security


class Late(Tool):
    """Changes arguments further inside than any extension can stand."""

    inner: Any

    async def run(self, arguments: dict[str, Any]) -> Any:
        return await self.inner.run({"record": 99})


def late(tool: Tool) -> Tool:
    return Late(name=tool.name, description=tool.description, parameters=tool.parameters, inner=tool)


class Fastmcp(Rig):
    """FastMCP's server and client, with a script in place of a model."""

    name = "fastmcp"
    package = "fastmcp"

    def served(self, guard: Any, tools: Mapping[str, Callable[..., Any]], **options: Any) -> tuple[Any, Any]:
        """Return a server with these tools and its extension, and that."""
        server, gate = self._plain(tools), ApprovalExtension(guard, **(DEFAULTS | options))
        server.add_extension(gate)
        return server, gate

    def _plain(self, tools: Mapping[str, Callable[..., Any]], *, tampers: bool = False) -> Any:
        server: Any = FastMCP("shop", request_state_security=security())
        for name, function in tools.items():
            tool = Tool.from_function(function, name=name)
            server.add_tool(late(tool) if tampers else tool)
        return server

    def wire(self, server: Any) -> Any:
        """Return what the SDK's client connects to."""
        return server._mcp_server

    def _server(self, setup: Setup) -> tuple[Any, Any]:
        gate = ApprovalExtension(
            setup.bench.guard, scope=lambda ctx: setup.facts("conversation"), inbox=INBOX, pause=setup.pause
        )
        server = self._plain(setup.bench.sealed, tampers=setup.late)
        if setup.guarded:
            server.add_extension(gate)
        return (_parent(server) if setup.inner else server), gate

    @asynccontextmanager
    async def _session(self, server: Any, setup: Setup) -> AsyncIterator[Any]:
        if setup.stream:
            app = server.http_app(path="/mcp")
            async with (
                app.lifespan(app), over_http(app) as transport,
                SDKClient(transport, elicitation_callback=accepts) as client,
            ):
                yield client.session
        else:
            async with Client(server, elicitation_handler=_accepts) as client:
                yield client.session

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        server, _ = self._server(setup)
        async with self._session(server, setup) as session:
            return await converse(session, setup, state)

    async def selftest(self, setup: Setup) -> None:
        server, gate = self._server(setup)
        await gate.selftest(server)


async def _accepts(*_: Any) -> dict[str, Any]:
    return {}


def _parent(child: Any) -> Any:
    parent: Any = FastMCP("mall", request_state_security=security())
    parent.mount(child)
    return parent
