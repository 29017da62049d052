"""OpenAI Agents SDK: `RunState.to_json` is the state, `RunState.approve` its own yes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agents import Agent, FunctionTool, RunConfig, Runner, RunState, function_tool
from agents._tool_invocation import tool_invocation_identity
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from hitl_guard.integrations.openai_agents import protect, selftest
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig

QUIET = RunConfig(tracing_disabled=True)


def model_of(script: list[Turn]) -> ScriptedModel:
    """Return a model that asks for the first turn of its script that is not in the history yet."""
    def turn(call: Any) -> list[Any]:
        asked = {item.get("call_id") for item in call.input if isinstance(item, dict)}
        for one in script:
            if not asked & {call_id for call_id, _, _ in one}:
                return [function_call(tool, arguments, call_id=call_id) for call_id, tool, arguments in one]
        return [assistant_message("done")]

    return ScriptedModel([ModelStep.respond(turn)] * (len(script) + 2))


def mutated(tool: FunctionTool) -> FunctionTool:
    """Let something that stands further inside than the guard make 99 of every number."""
    invoke = tool.on_invoke_tool

    async def late(ctx: Any, arguments: str) -> Any:
        return await invoke(ctx, arguments.replace("42", "99"))

    tool.on_invoke_tool = late
    return tool


def calls_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every function call that stands anywhere in a state."""
    if isinstance(value, dict) and value.get("type") == "function_call" and "call_id" in value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from calls_in(inner)


def digest_of(call: dict[str, Any]) -> str:
    """Return what the framework keeps of a call, to notice another one under its id."""
    identity = tool_invocation_identity(call)
    assert identity is not None
    return str(identity[2])


class OpenAIAgents(Rig):
    """OpenAI Agents SDK."""

    name = "openai-agents"
    package = "openai-agents"

    def _agent(self, setup: Setup) -> Agent[Any]:
        tools = [function_tool(function, name_override=name) for name, function in setup.bench.sealed.items()]
        if setup.late:
            tools = [mutated(tool) for tool in tools]
        agent: Agent[Any] = Agent("worker", tools=[*tools], model=model_of(setup.script))
        options: dict[str, Any] = {"scope": lambda ctx: setup.facts("conversation"), "pause": setup.pause}
        if setup.guarded:
            agent = protect(agent, setup.bench.guard, **options)
        if not setup.inner:
            return agent
        delegate = agent.as_tool("delegate", "Delegate a task.")
        model = model_of([[("d1", "delegate", {"input": "delete it"})]])
        return protect(Agent("boss", tools=[delegate], model=model), setup.bench.guard, **options)

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        agent = self._agent(setup)
        given: Any = "go"
        if state is not None:
            given = await RunState.from_json(agent, json.loads(state))
            for item in given.get_interruptions():
                given.approve(item)
        if setup.stream:
            result: Any = Runner.run_streamed(agent, given, run_config=QUIET)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, given, run_config=QUIET)
        outputs = [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]
        paused = json.dumps(result.to_state().to_json()) if result.interruptions else None
        return Outcome(state=paused, told="\n".join(map(str, [*outputs, result.final_output])))

    async def selftest(self, setup: Setup) -> None:
        await selftest(self._agent(setup))

    def tampered(self, state: str) -> str:
        """Alter the calls, and with them the digests that the framework keeps: they have no key."""
        altered, digests = json.loads(state), {}
        for call in calls_in(altered):
            before = digest_of(call)
            call["arguments"] = super().tampered(call["arguments"])
            digests[before] = digest_of(call)
        text = json.dumps(altered)
        for before, after in digests.items():
            text = text.replace(before, after)
        return text
