"""OpenAI Agents SDK: a copy of an agent whose tools each ask the guard, around the tool's own invoker.

``agent = protect(agent, guard, scope=...)``. A call that waits is an interruption, as with ``needs_approval``. The
framework's item has no room for a request's id, and its state no proof of a yes: `answer` tells where to decide, and
says the framework's yes to what was decided. Whatever the state says, the store is asked when the tool is to run.

A handoff's own call and what a provider runs (hosted tools) never come by here.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    ItemHelpers,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    UserError,
    function_tool,
)
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.testing import ScriptedModel, assistant_message, function_call
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
from ..guard import Guard
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..policy.core import Status
from .bridge import Bridge, Facts, Refusal, request_facts

_RAW: ContextVar[tuple[object, str] | None] = ContextVar("hitl_guard_raw_arguments", default=None)
_ABORTING = (ApprovalRequired, ConfigurationError, UnavailableError)
_PARTS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


def protect(
    agent: Agent[Any], guard: Guard | AsyncGuard, *, scope: Callable[[RunContextWrapper[Any]], Facts] | None = None,
    pause: str = "native", effects: Mapping[str, str] | None = None, uncovered: Iterable[str] = (),
) -> Agent[Any]:
    """Return a copy of an agent, and of the agents that it hands off to, whose tools run through the guard only.

    Tools of its local MCP servers are covered when the framework lists them. A tool's own ``needs_approval`` makes the
    guard ask, also where the policy would not.

    Args:
        scope: From the run's context to the call's facts, e.g. ``lambda ctx: {"user": ctx.context.user, "run_id":
            ctx.context.thread}``. The framework knows neither; else set both with `Guard.context` around the run.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`.
        uncovered: Names of tools and handoffs that may run without the guard, because no wrapper can reach them:
            hosted tools, shell, patches, computers, agents as tools that are not protected, handoffs that take input
            or whose agent cannot be seen.

    Raises:
        ConfigurationError: something of the agent's cannot be covered and is not named, or was not protected before.
    """
    names = () if isinstance(uncovered, str) else tuple(uncovered)
    if isinstance(uncovered, str) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError("'uncovered' is a list of names of tools and handoffs.")
    return _Protection(Bridge(guard, scope=scope, pause=pause, effects=effects), frozenset(names)).agent(agent)


async def answer(state: RunState[Any, Any]) -> list[dict[str, str]]:
    """Say the framework's yes to each interruption that a person has decided; return where the others are decided.

    Call it after a pause, to tell people, and again before the resume. What is still open pauses again.

    Raises:
        ConfigurationError: an interruption is not of a protected tool.
        UnavailableError: nobody can tell.
    """
    waiting = []
    for item in state.get_interruptions():
        owner, _ = state._find_nested_approval_state(item) or (state, item)
        ctx = owner._context
        ctx.turn_input = ItemHelpers.input_to_new_input_list(owner._original_input)  # as when the run goes on
        tools = {tool.name: tool for tool in await item.agent.get_all_tools(ctx)}
        invoker = getattr(tools.get(item.name), "on_invoke_tool", None)
        if not isinstance(invoker, _Invoker):
            raise ConfigurationError("A tool that waits is not protected: restore the state with the protected agent.")
        try:
            request = await invoker.asked(ctx, item.arguments or "", item.call_id)
        except Refusal:
            request = None  # the model is told why when the call is to run
        if request is not None and request.state == "pending":
            waiting.append(request_facts(request))
        else:
            state.approve(item)
    return waiting


async def selftest(agent: Agent[Any]) -> None:
    """Look whether everything of a protected agent is covered, and run a canary call through it with a scripted model.

    Raises:
        ConfigurationError: the call ran, or something is not covered. Do not start.
    """
    if not isinstance(agent, _Protected):
        raise ConfigurationError("The agent is not protected: run the one that 'protect' returned.")
    protection = agent.protection
    protection.check(agent.tools, agent.handoffs)
    with protection.bridge.canary() as canary:
        tool = protection.tool(function_tool(canary.tool, name_override=canary.name), agent.name)
        steps = [[function_call(canary.name, "{}", call_id="canary")], [assistant_message("done")]]
        probe = agent.clone(
            tools=[tool], handoffs=[], mcp_servers=[], model=ScriptedModel(steps), instructions="canary", prompt=None,
            hooks=None, input_guardrails=[], output_guardrails=[], output_type=None, tool_use_behavior="run_llm_again",
        )
        quiet = RunConfig(tracing_disabled=True)
        paused = await Runner.run(probe, "canary", run_config=quiet)
        if paused.interruptions:
            state = paused.to_state()
            state.approve(paused.interruptions[0])
            try:
                await Runner.run(probe, state, run_config=quiet)
            except UserError as error:
                if not isinstance(error.__cause__, ApprovalRequired):
                    raise


class _Protected(Agent[Any]):
    """An agent that offers no tool but covered ones, whoever added it later. Each `protect` makes its own class."""

    protection: ClassVar[_Protection]

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        tools: list[Tool] = await super().get_all_tools(run_context)
        self.protection.check(tools, self.handoffs)
        return tools

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        return [self.protection.tool(tool, self.name) for tool in await super().get_mcp_tools(run_context)]


class _Protection:
    """What one `protect` does: its bridge, the names that it leaves alone, and its copies of agents (they may circle).
    """

    def __init__(self, bridge: Bridge, uncovered: frozenset[str]) -> None:
        self.bridge, self.uncovered = bridge, uncovered
        self._copies: dict[int, Agent[Any]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if not isinstance(agent, Agent):
            raise ConfigurationError("'protect' takes an Agent of the OpenAI Agents SDK.")
        if isinstance(agent, _Protected):
            self._same_guard(agent.protection.bridge, agent.name)
            return agent
        if id(agent) not in self._copies:
            copied = agent.clone(tools=[self.tool(tool, agent.name) for tool in agent.tools], handoffs=[])
            copied.__class__ = type("ProtectedAgent", (_Protected, type(agent)), {"protection": self})
            self._copies[id(agent)] = copied
            copied.handoffs = [self._handoff(handoff) for handoff in agent.handoffs]
            self.check(copied.tools, copied.handoffs)
        return self._copies[id(agent)]

    def tool(self, tool: Tool, agent: str) -> Tool:
        """Return a tool's covered copy, or what cannot be covered as it is: `check` tells."""
        if not isinstance(tool, FunctionTool):
            return tool
        if isinstance(tool.on_invoke_tool, _Invoker):
            self._same_guard(tool.on_invoke_tool.bridge, tool.name)
            return tool
        unprotected = tool._is_agent_tool and not isinstance(tool._agent_instance, _Protected)
        if unprotected and tool.name not in self.uncovered:
            raise ConfigurationError(
                f"The tool '{tool.name}' is an agent that is not protected: use protect(agent, ...).as_tool(...)."
            )
        covered = copy.copy(tool)
        covered.on_invoke_tool = _Invoker(self.bridge, tool, agent).__agents_bind_function_tool__(covered)
        self.bridge.know([covered.qualified_name])
        return covered

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(handoff, Agent):
            return self.agent(handoff)
        target = handoff._agent_ref() if handoff._agent_ref is not None else None
        if handoff.tool_name in self.uncovered or target is None or handoff.input_json_schema.get("properties"):
            return handoff
        covered = replace(handoff, on_invoke_handoff=_Handover(handoff, target, self.agent(target)))
        covered._agent_ref = weakref.ref(covered.on_invoke_handoff.copied)
        return covered

    def check(self, tools: Iterable[Tool], handoffs: Iterable[Agent[Any] | Handoff[Any, Any]]) -> None:
        """Raise `ConfigurationError` for what the guard does not cover and nobody named."""
        if missed := [_name(one) for one in (*tools, *handoffs) if not self._covers(one)]:
            raise ConfigurationError(
                f"The guard does not cover: {', '.join(sorted(missed))}. Add tools and agents before 'protect'; what no"
                " wrapper can reach must go, or be named in protect(uncovered=[...])."
            )

    def _covers(self, one: Any) -> bool:
        # A name excuses only what cannot be covered: a server could give it to a tool of its own.
        if isinstance(one, FunctionTool):
            return isinstance(one.on_invoke_tool, _Invoker)
        if isinstance(one, Agent):
            return isinstance(one, _Protected)
        return isinstance(getattr(one, "on_invoke_handoff", None), _Handover) or _name(one) in self.uncovered

    def _same_guard(self, bridge: Bridge, name: str) -> None:
        if bridge.guard is not self.bridge.guard:
            raise ConfigurationError(f"'{name}' is protected by another guard.")


def _name(one: Any) -> str:
    return str(one.tool_name if isinstance(one, Handoff) else getattr(one, "name", type(one).__name__))


class _Handover:
    """A handoff's function that hands over to the protected copy of its agent."""

    def __init__(self, handoff: Handoff[Any, Any], target: Agent[Any], copied: Agent[Any]) -> None:
        self.handoff, self.target, self.copied = handoff, target, copied

    async def __call__(self, ctx: RunContextWrapper[Any], text: str | None = None) -> Agent[Any]:
        if await self.handoff.on_invoke_handoff(ctx, text) is not self.target:
            raise ConfigurationError(f"The handoff '{self.handoff.tool_name}' leads to an agent that is not protected.")
        return self.copied


class _Invoker(_FailureHandlingFunctionToolInvoker):
    """Runs one tool through the guard. The framework binds it to each copy of the tool."""

    def __init__(self, bridge: Bridge, tool: FunctionTool, agent: str) -> None:
        self.bridge, self.guard = bridge, AsyncGuard(guard=bridge.guard)
        self.tool, self.outer, self.agent = tool, tool, agent
        # What the tool raises must come here as it is, and a time-out must end the whole, so that the outcome is known.
        self.inner = set_function_tool_failure_error_function(copy.copy(tool), None)
        self.inner.timeout_seconds = None

    def __agents_bind_function_tool__(self, function_tool: FunctionTool) -> _Invoker:
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
        tool, origin = self.outer, get_function_tool_origin(self.outer)
        server = None if origin is None else origin.mcp_server_name
        definition = ToolDefinition(tool.qualified_name, tool.description, tool.params_json_schema, server)
        return self.bridge.call(
            tool.qualified_name, text or "{}", framework=ctx, call_id=call_id, occurrence=_occurrence(ctx, call_id),
            agent=self.agent, definition=definition,
        )

    async def __call__(self, ctx: ToolContext[Any], input: str) -> Any:
        try:
            return await self._run(ctx, input)
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                raise  # the framework says that it was approved; its stored state can be resumed later
            return self.bridge.told(pause)
        except Refusal as refusal:
            return self.bridge.told(refusal)
        except Exception as error:
            told = None if _aborts(error) else await self._failed(ctx, input, error)
            if told is None:
                raise
            return told

    async def _run(self, ctx: ToolContext[Any], text: str) -> Any:
        call = self._call(ctx, text, ctx.tool_call_id)
        nested = peek_agent_tool_run_result(ctx.tool_call, scope_id=get_agent_tool_state_scope(ctx))
        kept: list[Any] = []
        try:
            if await self._wanted(ctx, text, ctx.tool_call_id):
                await self.guard.request(call)
            result = await self.bridge.run(call, partial(self._start, ctx, kept))
        except ConsumedError:
            if not isinstance(self.tool._agent_instance, _Protected) or nested is None or not nested.interruptions:
                raise  # what the stored state says of a nested run makes no sub-agent of another tool
            # This very call was spent to start a sub-agent that has paused. Its tools ask the guard themselves.
            return await invoke_function_tool(function_tool=self.inner, context=ctx, arguments=text)
        return _parts(kept[0], result)

    async def _start(self, ctx: ToolContext[Any], kept: list[Any], permit: Permit) -> Any:
        text = json.dumps(permit.arguments)
        ctx.tool_arguments = text
        if permit.edited and not self.tool._is_agent_tool:  # a sub-agent's paused run is found by the model's call
            ctx.tool_call = ctx.tool_call.model_copy(update={"arguments": text})
        kept.append(await invoke_function_tool(function_tool=self.inner, context=ctx, arguments=text))
        return kept[0]

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


def _aborts(error: BaseException | None) -> bool:
    """Whether the guard ended the run, here or in a sub-agent's run, whose errors the framework wraps."""
    while error is not None and not isinstance(error, _ABORTING):
        error = error.__cause__
    return error is not None


def _parts(plain: Any, noticed: Any) -> Any:
    """Return a result with its notice as the framework's own parts where it is made of such (images, files)."""
    parts = plain if isinstance(plain, list) else [plain]
    if noticed is plain or not parts or not all(isinstance(part, _PARTS) for part in parts):
        return noticed
    return [ToolOutputText(text=noticed["message"]), *parts]


def _occurrence(ctx: RunContextWrapper[Any], call_id: str | None) -> int:
    """Return how many calls with this id the conversation had before this run; in one run the framework takes none."""
    items = [item for item in ctx.turn_input if isinstance(item, Mapping) and item.get("type") == "function_call"]
    return sum(item.get("call_id") == call_id for item in items)
