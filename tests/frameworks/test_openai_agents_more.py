"""OpenAI Agents SDK: what a scope may read, whose pause ends a run, and which tool an answer is for."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, FunctionTool, RunState, ToolGuardrailFunctionOutput, tool_input_guardrail, tool_namespace
from agents.mcp import MCPUtil
from agents.model_settings import ModelSettings
from agents.run_context import RunContextWrapper
from agents.testing import ScriptedModel, assistant_message, function_call

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.openai_agents import answer, protect
from tests.frameworks.bench import Bench
from tests.frameworks.rig_openai_agents import model_of
from tests.frameworks.test_openai_agents import FACTS, agent_of, restored, started, told, tool_of
from tests.frameworks.test_openai_agents_who import Server, Who

# -- who asks ---------------------------------------------------------------------------------------------------------


def anybody(ctx: RunContextWrapper[Any]) -> dict[str, str]:
    """Name somebody also where the run has no context."""
    return {"user": ctx.context.user if ctx.context else "service", "run_id": "t"}


def careless(ctx: RunContextWrapper[Any]) -> dict[str, str]:
    """Name somebody also where the context cannot be read."""
    try:
        return {"user": ctx.context.user, "run_id": "t"}
    except Exception:  # noqa: BLE001  what an app might do
        return {"user": "service", "run_id": "t"}


@pytest.mark.parametrize("scope", [anybody, careless])
@pytest.mark.parametrize("forged", [{}, None, {"user": "zoe"}], ids=["empty", "none", "mapping"])
async def test_a_state_without_the_apps_context_makes_nobody_else_ask(bench: Bench, scope: Any, forged: Any) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=scope)
    paused = await started(agent, context=Who("bob"))
    stored = json.loads(json.dumps(paused.to_state().to_json()))
    stored["context"]["context"] = forged

    state = await RunState.from_json(agent, stored)
    with pytest.raises(ConfigurationError, match="context_override"):
        await answer(state)

    assert (bench.ran, bench.only().user) == ([], "bob")


@pytest.mark.parametrize("context", [None, {}, {"user": "zoe"}], ids=["none", "empty", "mapping"])
async def test_a_scope_that_reads_no_context_needs_none(bench: Bench, context: Any) -> None:
    def facts(ctx: RunContextWrapper[Any]) -> dict[str, str]:
        return FACTS | {"agent": f"after {len(ctx.turn_input)}"}  # the rest of the wrapper is there

    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=facts)
    paused = await started(agent, context=context)
    assert (bench.only().user, bench.only().agent) == ("ana", "after 1")
    bench.approve(bench.only())

    await started(agent, await restored(agent, paused))

    assert bench.ran == ["delete 42"]


# -- whose pause ends a run -------------------------------------------------------------------------------------------


async def test_what_waits_inside_a_tool_of_a_sub_agent_does_not_end_the_outer_run(bench: Bench) -> None:
    inner = bench.guard.tool(bench.tools["delete_record"], name="delete_record")

    async def look(place: str) -> str:
        bench.note(f"look {place}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(await inner(record=42))

    child = agent_of(
        bench, tool_of(look, failure_error_function=None), model=model_of([[("c1", "look", {"place": "attic"})]])
    )
    agent = agent_of(
        bench, child.as_tool("delegate", "Delegate."), model=model_of([[("d1", "delegate", {"input": "it"})]])
    )

    ended = await started(agent)

    assert (bench.ran, bench.only().tool) == (["look attic"], "delete_record")
    assert (ended.final_output, ended.interruptions, "error" in told(ended)) == ("done", [], True)


# -- which tool an answer is for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "names"), [("files", ["A"]), ("mails", ["B"])])
async def test_an_answer_is_for_the_tool_of_the_calls_namespace(bench: Bench, place: str, names: list[str]) -> None:
    def named(namespace: str, letter: str) -> list[FunctionTool]:
        def remove(record: int) -> str:
            bench.note(letter)
            return "removed"

        tools: list[FunctionTool] = tool_namespace(
            name=namespace, description="Some.", tools=[tool_of(remove, needs_approval=True)]
        )
        return tools

    call = function_call("remove", '{"record": 1}', call_id="c1").model_copy(update={"namespace": place})
    model = ScriptedModel([[call], [assistant_message("done")]])
    agent = agent_of(bench, *named("files", "A"), *named("mails", "B"), model=model)
    state = (await started(agent)).to_state()

    (facts,) = await answer(state)
    assert (bench.only().id, bench.only().tool) == (facts["request_id"], f"{place}.remove")
    bench.approve(bench.only())
    assert await answer(state) == []
    await started(agent, state)

    assert bench.ran == names


# -- what changes a call, and what brings tools -----------------------------------------------------------------------


async def test_arguments_that_a_tools_own_guardrail_changes_do_not_run(bench: Bench) -> None:
    @tool_input_guardrail
    def late(data: Any) -> ToolGuardrailFunctionOutput:
        data.context.tool_call.arguments = data.context.tool_arguments = '{"record": 99}'
        return ToolGuardrailFunctionOutput.allow()

    agent = agent_of(bench, tool_of(bench.tools["delete_record"], tool_input_guardrails=[late]))
    paused = await started(agent)
    assert bench.only().arguments == {"record": 42}
    bench.approve(bench.only())

    ended = await started(agent, await restored(agent, paused))

    assert bench.ran == []
    assert "args-mismatch" in told(ended)


async def test_a_tool_of_a_server_that_nobody_hears_is_refused(bench: Bench) -> None:
    """Its errors would be on record as successes."""
    tools = await MCPUtil.get_function_tools(Server(fails=True), False, RunContextWrapper(None), Agent("worker"))

    with pytest.raises(ConfigurationError, match="mcp_servers"):
        protect(Agent("worker", tools=tools), bench.guard, uncovered=["delete_record"])


@pytest.mark.parametrize("bypass", ["clone", "late"])
async def test_an_unprotected_tool_added_to_a_protected_agent_never_runs(bench: Bench, bypass: str) -> None:
    agent, bare = agent_of(bench), tool_of(bench.tools["delete_record"])
    if bypass == "clone":
        agent = agent.clone(tools=[bare])
    else:
        agent.tools.append(bare)

    with pytest.raises(ConfigurationError, match="does not cover: delete_record"):
        await started(agent)

    assert bench.ran == []


BRINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt in the body": ("prompt", {"extra_body": {"prompt": {"id": "pmpt_1"}}}),
    "prompt in the arguments": ("prompt", {"extra_args": {"prompt": {"id": "pmpt_1"}}}),
    "body in the arguments": ("tools", {"extra_args": {"extra_body": {"tools": []}}}),
    "search": ("tools", {"extra_args": {"web_search_options": {}}}),
    "servers": ("tools", {"extra_body": {"mcp_servers": []}}),
    "plugins": ("tools", {"extra_body": {"plugins": [{"id": "web"}]}}),
    "a body that nobody can read": ("tools", {"extra_body": [("tools", [])]}),
}


@pytest.mark.parametrize("what", BRINGS)
def test_settings_that_bring_tools_of_the_providers_are_refused_unless_named(bench: Bench, what: str) -> None:
    name, settings = BRINGS[what]
    agent: Agent[Any] = Agent("worker", model_settings=ModelSettings(**settings))

    with pytest.raises(ConfigurationError, match=f"does not cover: {name}"):
        protect(agent, bench.guard)
    protect(agent, bench.guard, uncovered=[name])


def test_settings_that_bring_no_tools_are_taken(bench: Bench) -> None:
    settings = ModelSettings(extra_body={"service_tier": "flex"}, extra_args={"seed": 7})

    protect(Agent("worker", model_settings=settings), bench.guard)
