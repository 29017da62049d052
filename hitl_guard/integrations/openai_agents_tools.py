"""How `hitl_guard.integrations.openai_agents` runs one tool: around its own invoker, with what was signed, once."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakSet

from agents import (
    Agent,
    FunctionTool,
    ItemHelpers,
    RunContextWrapper,
    RunState,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.mcp._compat import result_is_error  # the names of the MCP SDK's fields differ with its version
from agents.tool import (
    _FailureHandlingFunctionToolInvoker,  # the only kind of invoker that sees raw arguments before the pause
    get_function_tool_origin,
    invoke_function_tool,
    maybe_invoke_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext
from agents.util._approvals import evaluate_function_tool_approval

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, ConfigurationError, ConsumedError, UnavailableError
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..policy.core import Status
from .bridge import Bridge, InnerCallError, Refusal, noticed

_RAW: ContextVar[tuple[object, str] | None] = ContextVar("hitl_guard_raw_arguments", default=None)
_PAUSES: WeakSet[ApprovalRequired] = WeakSet()  # of calls of protected tools; others come from inside a tool
_PARTS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_MCP_ERRORS: ContextVar[list[Any] | None] = ContextVar("hitl_guard_mcp_errors", default=None)


class Protected(Agent[Any]):
    """An agent that offers no tool but covered ones."""


class HeardServer:
    """An MCP server whose answers are looked at: the framework makes text of an error, and forgets that it was one."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def call_tool(self, *args: Any, **options: Any) -> Any:
        """Call a tool, and note a result that says it is an error."""
        result = await self._server.call_tool(*args, **options)
        errors = _MCP_ERRORS.get()
        if errors is not None and result_is_error(result):
            errors.append(result)
        return result


class _Unread:
    """A run's context wrapper whose context the scope must not read, because a stored state may have brought it.

    A state can bring a mapping, or nothing: then a scope that has a default would ask for somebody else.
    """

    def __init__(self, ctx: RunContextWrapper[Any]) -> None:
        self._ctx = ctx
        self.error: ConfigurationError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def context(self) -> Any:
        self.error = ConfigurationError(
            "A run's context that is a mapping, or missing, may come from a stored state, which then says itself for"
            " whom it is: give the run an object of a class of your own, and"
            " RunState.from_json(..., context_override=...)."
        )
        raise self.error


class _ReportedError(Exception):
    """A tool's server told of an error: a signal inside this module, so that the outcome is on record."""


def context_of(state: RunState[Any, Any], owner: RunState[Any, Any]) -> RunContextWrapper[Any]:
    """Return the context of a state, or of the nested run in it that owns an interruption: that one is the outer's."""
    ctx = owner._context
    assert ctx is not None  # noqa: S101  every state has one
    if owner is not state and state._context is not None:
        ctx.context = state._context.context  # as when the run goes on
    ctx.turn_input = ItemHelpers.input_to_new_input_list(owner._original_input)
    return ctx


class Invoker(_FailureHandlingFunctionToolInvoker):
    """Runs one tool through the guard. The framework binds it to each copy of the tool."""

    def __init__(self, bridge: Bridge, tool: FunctionTool, agent: str) -> None:
        self.bridge, self.guard = bridge, AsyncGuard(guard=bridge.guard)
        self.tool, self.outer, self.agent = tool, tool, agent
        # What the tool raises must come here as it is, and a time-out must end the whole, so that the outcome is known.
        self.inner = set_function_tool_failure_error_function(copy.copy(tool), None)
        self.inner.timeout_seconds = None

    def __agents_bind_function_tool__(self, function_tool: FunctionTool) -> Invoker:
        bound = copy.copy(self)
        bound.outer = function_tool
        function_tool.needs_approval = bound.pauses if self.bridge.pause == "native" else False
        return bound

    def _get_wrapped_callable(self) -> object:
        raise AttributeError("A protected tool has no wrapped Python callable.")

    def prepare_arguments(self, input: str, tool_name: str) -> None:
        """Keep the raw text, which the framework shows to nobody else before the pause."""
        _RAW.set((self, input))

    async def pauses(self, ctx: RunContextWrapper[Any], parsed: dict[str, Any], call_id: str) -> bool:
        """Return whether a person must decide first: the framework's ``needs_approval``."""
        raw = _RAW.get()
        _RAW.set(None)
        text = raw[1] if raw is not None and raw[0] is self else json.dumps(parsed)
        try:
            request = await self.asked(ctx, text, call_id)
        except Refusal:
            return False  # the model is told why when the call is to run
        return request is not None and request.state == "pending"

    async def asked(self, ctx: RunContextWrapper[Any], text: str, call_id: str | None) -> ApprovalRequest | None:
        """Return the call's request, made now where there is none; None where nobody needs to be asked."""
        call = self._call(ctx, text, call_id)
        if await self._wanted(ctx, text, call_id) or (await self.guard.evaluate(call)).status is Status.USER_APPROVAL:
            return await self.guard.request(call)
        return None

    async def _wanted(self, ctx: RunContextWrapper[Any], text: str, call_id: str | None) -> bool:
        """Return whether the tool itself wants an approval, as the framework finds out."""
        return bool((await evaluate_function_tool_approval(self.tool, ctx, text, call_id)).outcome != "invoke")

    def _call(self, ctx: RunContextWrapper[Any], text: str, call_id: str | None) -> ToolCall:
        seen = _Unread(ctx) if ctx.context is None or isinstance(ctx.context, Mapping) else ctx
        tool, origin = self.outer, get_function_tool_origin(self.outer)
        server = None if origin is None else origin.mcp_server_name
        definition = ToolDefinition(tool.qualified_name, tool.description, tool.params_json_schema, server)
        call = self.bridge.call(
            tool.qualified_name, text or "{}", framework=seen, call_id=call_id, occurrence=_occurrence(ctx, call_id),
            agent=self.agent, definition=definition,
        )
        if isinstance(seen, _Unread) and seen.error is not None:
            raise seen.error  # the scope has caught it
        return call

    async def __call__(self, ctx: ToolContext[Any], input: str) -> Any:
        """Run the tool if it may, and return its result or what the model is told instead: the framework's invoker."""
        try:
            return await self._run(ctx, input)
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                _PAUSES.add(pause)
                raise  # the framework says that it was approved; its stored state can be resumed later
            return self.bridge.told(pause)
        except Refusal as refusal:
            return self.bridge.told(refusal)
        except InnerCallError as inner:
            error: Exception = inner.error
        except Exception as raised:  # noqa: BLE001  the tool's own: its settings say what becomes of it
            error = raised
        told = None if self._aborts(error) else await self._failed(ctx, input, error)
        if told is None:
            raise error
        return told

    async def _run(self, ctx: ToolContext[Any], text: str) -> Any:
        call = self._call(ctx, text, ctx.tool_call_id)
        nested = peek_agent_tool_run_result(ctx.tool_call, scope_id=get_agent_tool_state_scope(ctx))
        kept: list[Any] = []
        try:
            if await self._wanted(ctx, text, ctx.tool_call_id):
                await self.guard.request(call)
            result = await self.bridge.run(call, partial(self._start, ctx, kept))
        except _ReportedError:
            result = kept[1]
        except ConsumedError:
            if not isinstance(self.tool._agent_instance, Protected) or nested is None or not nested.interruptions:
                raise  # what the stored state says of a nested run makes no sub-agent of another tool
            # This very call was spent to start a sub-agent that has paused. Its tools ask the guard themselves.
            return await invoke_function_tool(function_tool=self.inner, context=ctx, arguments=text)
        return _parts(kept[0], result)

    async def _start(self, ctx: ToolContext[Any], kept: list[Any], permit: Permit) -> Any:
        text = json.dumps(permit.arguments)
        ctx.tool_arguments = text
        if permit.edited and not self.tool._is_agent_tool:  # a sub-agent's paused run is found by the model's call
            ctx.tool_call = ctx.tool_call.model_copy(update={"arguments": text})
        errors: list[Any] = []
        token = _MCP_ERRORS.set(errors)
        try:
            result = await invoke_function_tool(function_tool=self.inner, context=ctx, arguments=text)
        finally:
            _MCP_ERRORS.reset(token)
        kept += [result, noticed(permit, result)]
        if errors:
            raise _ReportedError
        return result

    def _aborts(self, error: BaseException | None) -> bool:
        """Whether the guard ended the run, here or in a sub-agent's run, whose errors the framework wraps.

        A call that waits inside any other tool is an error of that tool, which has started.
        """
        while error is not None:
            if isinstance(error, (ConfigurationError, UnavailableError)):
                return True
            if isinstance(error, ApprovalRequired):
                return self.tool._is_agent_tool and error in _PAUSES
            error = error.__cause__
        return False

    async def _failed(self, ctx: ToolContext[Any], text: str, error: Exception) -> str | None:
        """Return what the tool's own settings tell the model about its failure; None: the run is to end."""
        invoker = self.tool.on_invoke_tool
        if not isinstance(invoker, _FailureHandlingFunctionToolInvoker):
            return None
        told: str | None = await maybe_invoke_function_tool_failure_error_function(
            function_tool=self.outer, context=ctx, error=error
        )
        if told is not None:
            invoker._on_handled_error(self.outer, error, text, ctx)
        return told


def _parts(plain: Any, told: Any) -> Any:
    """Return a result with its notice as the framework's own parts where it is made of such (images, files)."""
    parts = plain if isinstance(plain, list) else [plain]
    if told is plain or not parts or not all(isinstance(part, _PARTS) for part in parts):
        return told
    return [ToolOutputText(text=told["message"]), *parts]


def _occurrence(ctx: RunContextWrapper[Any], call_id: str | None) -> int:
    """Return how many calls with this id the conversation had before this run; in one run the framework takes none."""
    items = [item for item in ctx.turn_input if isinstance(item, Mapping) and item.get("type") == "function_call"]
    return sum(item.get("call_id") == call_id for item in items)
