"""MCP servers made with the official SDK: an extension that stands innermost around ``tools/call``.

``gate = ApprovalExtension(guard, …)`` and ``server = gate.attach(MCPServer("shop", extensions=[gate]))``: nothing runs
before it is attached, and nothing where another extension comes after it. Clients that can show a link pause natively
(see `hitl_guard.integrations.mcp_gate`), with the server's ``request_state_security``: with a key of its own for each
process, which is the SDK's default, a pause does not outlive the process, but the call made anew does.

Only what clients call comes by here: seal the functions, so that ``server.call_tool`` runs none of them either. A tool
cannot ask its client for anything in an approved call. What your resolvers (``Resolve``) work out by themselves is part
of your tool: no approver sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from mcp import Client
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequestParams, CallToolResult, InputRequiredResult, TextContent

from ..aio import AsyncGuard
from ..errors import ConfigurationError
from ..guard import Guard
from ..models import Permit, ToolDefinition
from .bridge import Facts
from .mcp_gate import IDENTIFIER, Gate, Leg, Run

S = TypeVar("S", bound=MCPServer)


class ApprovalExtension(Extension):
    """Asks the guard before every tool of a server.

    Args:
        scope: From the SDK's ``ServerRequestContext`` to the call's facts, e.g. ``lambda ctx: {"user": "ana", "run_id":
            "inbox"}``. Without it the user is the access token's subject, which is unique in one issuer only, and the
            run id the transport's session; clients of 2026-07-28, stateless servers and pipes have no session. What a
            client says of itself (``_meta``, its name) is no login.
        inbox: Where the inbox is (``https://approvals.example``), for links, or None.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. The native pause needs ``inbox``.

    Raises:
        ConfigurationError: one of these is none.
    """

    identifier = IDENTIFIER

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[Any], Facts] | None = None, inbox: str | None = None,
        pause: str = "native", effects: Mapping[str, str] | None = None,
    ) -> None:
        self._gate = Gate(guard, _Shapes(), scope=scope, inbox=inbox, pause=pause, effects=effects)
        self._server: Any = None

    def attach(self, server: S) -> S:
        """Return the server that this extension was given to, once it is sure that it stands last.

        Raises:
            ConfigurationError: it does not, or is another server's.
        """
        if self._server not in (None, server):
            raise ConfigurationError("Make an extension of its own for each server.")
        _check_last(self, server)
        self._server = server
        return server

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Run a call, or answer it without running it."""
        leg = Leg(
            framework=ctx, session=ctx.session, tool=params.name, arguments=params.arguments or {},
            state=params.request_state,
        )

        async def start(permit: Permit, run: Run) -> Any:
            # The handler takes the very `params` that this method got.
            params.name, params.arguments = leg.tool, permit.arguments
            approved = permit.request_id is not None
            if approved or leg.ours:  # the answer to our question is none of the tool's
                params.request_state = params.input_responses = None
            return await call_next(replace(ctx, session=run.quiet(ctx.session)) if approved else ctx)

        return await self._gate.handle(leg, lambda: self._definition(params.name), start)

    async def _definition(self, name: str) -> ToolDefinition | None:
        if self._server is None:
            raise ConfigurationError("Attach the extension: server = extension.attach(MCPServer(..., extensions=[…])).")
        _check_last(self, self._server)
        tools = await self._server.list_tools()
        self._gate.bridge.know(tool.name for tool in tools)
        found = [tool for tool in tools if tool.name == name]
        if len(found) != 1:
            return None
        return ToolDefinition(name, found[0].description, found[0].input_schema)

    async def selftest(self, server: MCPServer) -> None:
        """Run a canary call as a client of this very server. Do it before you serve: it adds a tool for a moment.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
        if self._server is not server:
            raise ConfigurationError("The extension is not attached to this server.")
        with self._gate.bridge.canary() as canary:
            server.add_tool(canary.tool, name=canary.name)
            try:
                async with Client(server) as client:
                    with suppress(MCPError):  # whatever ended it: the canary tells whether this guard did
                        await client.session.call_tool(canary.name, {}, allow_input_required=True)
            finally:
                server.remove_tool(canary.name)


class _Shapes:
    def told(self, text: str, *, is_error: bool, structured: Mapping[str, Any] | None) -> CallToolResult:
        content = [TextContent(type="text", text=text)]
        return CallToolResult(content=content, is_error=is_error, structured_content=structured)

    def asked(self, question: InputRequiredResult) -> InputRequiredResult:
        return question

    def asks(self, result: Any) -> bool:
        return isinstance(result, InputRequiredResult)

    def succeeded(self, result: Any) -> bool:
        return isinstance(result, CallToolResult) and not result.is_error


def _check_last(extension: ApprovalExtension, server: MCPServer) -> None:
    """Raise where an extension comes later: it could change the arguments after the guard has seen them."""
    extensions = getattr(server, "_extensions", None)
    if not extensions or extensions[-1] is not extension:
        raise ConfigurationError("Give the server the guard's extension as the last one: extensions=[..., extension].")
