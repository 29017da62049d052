"""FastMCP servers: an extension that stands after all middleware, right before the tool.

``server.add_extension(ApprovalExtension(guard, …))``, as the last one: nothing runs where another comes after it.
Clients that can show a link pause natively (see `hitl_guard.integrations.mcp_gate`), with the server's
``request_state_security``: with a key of its own for each process a pause does not outlive the process, but the call
made anew does. A mounted server's tools come by here under the names that this server gives them.

A tool cannot ask its client for anything in an approved call. What your dependencies (``Depends``) work out is part of
your tool: no approver sees it. Tools that are addressed by a hash (those of apps) are refused, and so is a server that
runs tools in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import fastmcp_request_ctx
from fastmcp.server.extensions import MethodBinding, ServerExtension, ToolCallContinuation, ToolCallOutcome
from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from fastmcp.utilities.versions import VersionSpec
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequestParams, InputRequiredResult, TextContent

from ..aio import AsyncGuard
from ..errors import ConfigurationError, NoEffect
from ..guard import Guard
from ..models import Permit, ToolDefinition
from .bridge import Facts
from .mcp_gate import IDENTIFIER, Gate, Leg, Run

_ANSWERS = ("inputResponses", "requestState")


class ApprovalExtension(ServerExtension):
    """Asks the guard before every tool of a server.

    Args:
        scope: From FastMCP's ``Context`` to the call's facts, e.g. ``lambda ctx: {"user": "ana", "run_id": "inbox"}``.
            Without it the user is the access token's subject, which is unique in one issuer only, and the run id the
            transport's session; clients of 2026-07-28, stateless servers and pipes have no session. What a client says
            of itself (``_meta``, its name) is no login.
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
        self._names: set[str] = set()

    def methods(self) -> Sequence[MethodBinding]:
        """Return none; FastMCP asks when the extension is added.

        Raises:
            ConfigurationError: the server runs tools where the guard is not asked.
        """
        _check_asked(self.server)
        return ()

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Context, call_next: ToolCallContinuation
    ) -> ToolCallOutcome:
        """Run a call, or answer it without running it."""
        request = context.request_context
        leg = Leg(
            framework=context, session=None if request is None else request.session, tool=params.name,
            arguments=params.arguments or {}, state=params.request_state,
        )

        async def start(permit: Permit, run: Run) -> Any:
            params.name, params.arguments = leg.tool, permit.arguments  # the tool is run with what is in here
            try:
                with _unanswered(permit, run, leg):
                    return await call_next()
            except ToolError as error:
                if isinstance(error.__cause__, NoEffect):
                    raise error.__cause__ from error
                raise

        return await self._gate.handle(leg, lambda: self._definition(params), start)

    async def _definition(self, params: CallToolRequestParams) -> ToolDefinition | None:
        _check_asked(self.server)
        if list(self.server._extensions.values())[-1] is not self:
            # It could change the arguments after the guard has seen them.
            raise ConfigurationError("Add the guard's extension to the server as the last one.")
        tool = await self.server.get_tool(params.name, _version(params))
        if tool is None:
            return None
        if tool.name not in self._names:
            self._names.update(one.name for one in await self.server.list_tools(run_middleware=False))
            self._names.add(tool.name)
            self._gate.bridge.know(self._names)
        # Versions of a tool can look alike; an approval is for one of them.
        version = None if tool.version is None else f"version {tool.version}"
        return ToolDefinition(params.name, tool.description, tool.parameters, version)

    async def selftest(self, server: FastMCP) -> None:
        """Run a canary call as a client of this very server. Do it before you serve: it adds a tool for a moment.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
        with self._gate.bridge.canary() as canary:
            server.add_tool(Tool.from_function(canary.tool, name=canary.name))
            try:
                async with Client(server) as client:
                    with suppress(MCPError, ToolError):  # whatever ended it: the canary tells whether this guard did
                        await client.call_tool(canary.name, {})
            finally:
                server.local_provider.remove_tool(canary.name)


class _Shapes:
    def told(self, text: str, *, is_error: bool, structured: Mapping[str, Any] | None) -> ToolResult:
        content = [TextContent(type="text", text=text)]
        return ToolResult(content, None if structured is None else dict(structured), is_error=is_error)

    def asked(self, question: InputRequiredResult) -> InputRequiredToolResult:
        return InputRequiredToolResult(question)

    def asks(self, result: Any) -> bool:
        return isinstance(result, InputRequiredToolResult)

    def succeeded(self, result: Any) -> bool:
        return isinstance(result, ToolResult) and not self.asks(result) and not result.is_error


@contextmanager
def _unanswered(permit: Permit, run: Run, leg: Leg) -> Iterator[None]:
    """Let a tool see no answers of its client that are none of its own, nor ask for any in an approved call."""
    approved, request = permit.request_id is not None, fastmcp_request_ctx.get()
    if request is None or not (approved or leg.ours):
        yield
        return
    raw = request._srctx
    session = run.quiet(request.session) if approved else request.session
    params = {name: value for name, value in (raw.params or {}).items() if name not in _ANSWERS}
    seen = replace(request, session=session, _srctx=replace(raw, session=session, params=params))
    token = fastmcp_request_ctx.set(seen)
    try:
        yield
    finally:
        fastmcp_request_ctx.reset(token)


def _check_asked(server: FastMCP) -> None:
    if TASKS_EXTENSION_ID in server._extensions:
        raise ConfigurationError("Take out the tasks extension: in the background tools run without the guard.")


def _version(params: CallToolRequestParams) -> VersionSpec | None:
    """Return the version of the tool that will run: FastMCP notes in the call which one it was asked for."""
    meta: Any = params.meta or {}
    version = (meta.get("fastmcp") or {}).get("version")
    return VersionSpec(**version) if isinstance(version, dict) else None if version is None else VersionSpec(eq=version)
