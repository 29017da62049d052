"""OpenAI Agents SDK: a copy of an agent whose tools each ask the guard, around the tool's own invoker.

``agent = protect(agent, guard, scope=...)``. A call that waits is an interruption, as with ``needs_approval``. The
framework's item has no room for a request's id, and its state no proof of a yes: `answer` tells where to decide, and
says the framework's yes to what was decided. Whatever the state says, the store is asked when the tool is to run.

A handoff's own call and what a provider runs (hosted tools) never come by here.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    Tool,
    UserError,
    function_tool,
)
from agents._tool_identity import build_function_tool_lookup_map  # as the framework finds the tool of a call
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool import get_function_tool_origin

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, ConfigurationError
from ..guard import Guard
from .bridge import Bridge, Facts, Refusal, request_facts
from .openai_agents_tools import HeardServer, Invoker, Protected, context_of


def protect(
    agent: Agent[Any], guard: Guard | AsyncGuard, *, scope: Callable[[RunContextWrapper[Any]], Facts] | None = None,
    pause: str = "native", effects: Mapping[str, str] | None = None, uncovered: Iterable[str] = (),
) -> Agent[Any]:
    """Return a copy of an agent, and of the agents that it hands off to, whose tools run through the guard only.

    Tools of its local MCP servers are covered when the framework lists them. A tool's own ``needs_approval`` makes the
    guard ask, also where the policy would not.

    Args:
        scope: From the run's context to the call's facts, e.g. ``lambda ctx: {"user": ctx.context.user, "run_id":
            ctx.context.thread}``. The framework knows neither; else set both with `Guard.context` around the run. The
            context that it reads must be an object of your own class: a stored state could bring a mapping, or none.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`.
        uncovered: Names of tools and handoffs that may run without the guard, because no wrapper can reach them:
            hosted tools, shell, patches, computers, agents as tools that are not protected, handoffs that take input
            or whose agent cannot be seen; ``prompt`` for a stored prompt, and ``tools`` for model settings, that may
            bring tools of their own.

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
        ctx = context_of(state, owner)
        tools = build_function_tool_lookup_map(await item.agent.get_all_tools(ctx))
        key = item.tool_lookup_key
        invoker = None if key is None else getattr(tools.get(key), "on_invoke_tool", None)
        if not isinstance(invoker, Invoker):
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
    protection.check(agent, agent.tools)
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


_BRINGING = frozenset({"mcp_servers", "plugins", "search_parameters", "tools", "web_search_options"})
"""What providers' requests call tools that they run themselves."""


class _Protected(Protected):
    """An agent that offers no tool but covered ones, whoever added it later. Each `protect` makes its own class."""

    protection: ClassVar[_Protection]

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        tools: list[Tool] = await super().get_all_tools(run_context)
        self.protection.check(self, tools)
        return tools

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        view = copy.copy(self)
        view.mcp_servers = [HeardServer(server) for server in self.mcp_servers]
        tools = await super(_Protected, view).get_mcp_tools(run_context)
        return [self.protection.tool(tool, self.name, heard=True) for tool in tools]


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
            self.check(copied, copied.tools)
        return self._copies[id(agent)]

    def tool(self, tool: Tool, agent: str, *, heard: bool = False) -> Tool:
        """Return a tool's covered copy, or what cannot be covered as it is: `check` tells.

        Args:
            heard: Its MCP server is one whose errors are noticed.
        """
        if not isinstance(tool, FunctionTool):
            return tool
        if isinstance(tool.on_invoke_tool, Invoker):
            self._same_guard(tool.on_invoke_tool.bridge, tool.name)
            return tool
        unprotected = tool._is_agent_tool and not isinstance(tool._agent_instance, _Protected)
        if unprotected and tool.name not in self.uncovered:
            raise ConfigurationError(
                f"The tool '{tool.name}' is an agent that is not protected: use protect(agent, ...).as_tool(...)."
            )
        origin = get_function_tool_origin(tool)
        if not heard and origin is not None and origin.mcp_server_name is not None:
            raise ConfigurationError(f"'{tool.name}' is a tool of an MCP server: name the server in 'mcp_servers'.")
        covered = copy.copy(tool)
        covered.on_invoke_tool = Invoker(self.bridge, tool, agent).__agents_bind_function_tool__(covered)
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

    def check(self, agent: Agent[Any], tools: Iterable[Tool]) -> None:
        """Raise `ConfigurationError` for what the guard does not cover and nobody named."""
        missed = [_name(one) for one in (*tools, *agent.handoffs) if not self._covers(one)]
        if missed := [*missed, *(_bringing_tools(agent) - self.uncovered)]:
            raise ConfigurationError(
                f"The guard does not cover: {', '.join(sorted(missed))}. Add tools and agents before 'protect'; what no"
                " wrapper can reach must go, or be named in protect(uncovered=[...])."
            )

    def _covers(self, one: Any) -> bool:
        # A name excuses only what cannot be covered: a server could give it to a tool of its own.
        if isinstance(one, FunctionTool):
            return isinstance(one.on_invoke_tool, Invoker)
        if isinstance(one, Agent):
            return isinstance(one, _Protected)
        return isinstance(getattr(one, "on_invoke_handoff", None), _Handover) or _name(one) in self.uncovered

    def _same_guard(self, bridge: Bridge, name: str) -> None:
        if bridge.guard is not self.bridge.guard:
            raise ConfigurationError(f"'{name}' is protected by another guard.")


def _bringing_tools(agent: Agent[Any]) -> set[str]:
    """Return what of an agent may bring tools that its provider runs, and that no list of tools shows."""
    args = agent.model_settings.extra_args or {}
    extra = [one for one in (agent.model_settings.extra_body, args, args.get("extra_body")) if one is not None]
    found = {"tools"} if any(not isinstance(one, Mapping) or _BRINGING & one.keys() for one in extra) else set()
    stored = agent.prompt is not None or any(isinstance(one, Mapping) and "prompt" in one for one in extra)
    return {*found, "prompt"} if stored else found


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
