"""OpenAI Agents SDK: who asks is the app's word, what a call came to the tool's, and what brings tools is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, RunState, UserError
from agents.mcp import MCPServer
from agents.model_settings import ModelSettings
from agents.run_context import RunContextWrapper
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.openai_agents import answer, protect
from tests.frameworks.bench import ONE, PAYING, Bench
from tests.frameworks.rig_openai_agents import model_of
from tests.frameworks.test_openai_agents import FACTS, agent_of, restored, resumed, started, told, tool_of


@dataclass
class Who:
    user: str
    thread: str = "t"


def facts(ctx: RunContextWrapper[Any]) -> dict[str, str]:
    return {"user": ctx.context.user, "run_id": ctx.context.thread}


# -- who asks ---------------------------------------------------------------------------------------------------------


async def test_a_context_that_a_stored_state_could_have_made_up_is_none(bench: Bench) -> None:
    def named(ctx: RunContextWrapper[Any]) -> dict[str, str]:
        return {"user": ctx.context["user"], "run_id": ctx.context["thread"]}

    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=named)

    with pytest.raises(UserError, match="context_override"):
        await started(agent, context={"user": "ana", "thread": "t"})
    assert (bench.ran, bench.waiting()) == ([], [])


async def test_a_state_cannot_say_for_whom_it_is(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=facts)
    paused = await started(agent, context=Who("bob"))
    stored = json.loads(json.dumps(paused.to_state().to_json()))
    stored["context"]["context"] = {"user": "zoe", "thread": "t"}  # so that bob could approve his own call

    state = await RunState.from_json(agent, stored)
    with pytest.raises(ConfigurationError, match="context_override"):
        await answer(state)
    for item in state.get_interruptions():
        state.approve(item)
    with pytest.raises(UserError, match="context_override"):
        await started(agent, state)

    assert (bench.ran, bench.only().user) == ([], "bob")


async def test_a_restored_run_goes_on_for_whom_the_app_says(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=facts)
    paused = await started(agent, context=Who("eva"))
    bench.approve(bench.only())

    await started(agent, await restored(agent, paused, context_override=Who("eva")))

    assert bench.ran == ["delete 42"]


async def test_a_nested_run_is_for_whom_the_outer_one_is(bench: Bench) -> None:
    inner = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=facts)
    boss: Agent[Any] = Agent(
        "boss", tools=[inner.as_tool("delegate", "Delegate a task.")],
        model=model_of([[("d1", "delegate", {"input": "delete it"})]]),
    )
    agent = protect(boss, bench.guard, scope=facts)
    paused = await started(agent, context=Who("eva"))
    text = json.dumps(paused.to_state().to_json())

    state = await RunState.from_json(agent, json.loads(text), context_override=Who("eva"))
    (waits,) = await answer(state)
    assert bench.only().id == waits["request_id"]
    assert bench.only().user == "eva"
    bench.approve(bench.only())
    state = await RunState.from_json(agent, json.loads(text), context_override=Who("eva"))
    assert await answer(state) == []
    await started(agent, state)

    assert bench.ran == ["delete 42"]


# -- what a call came to ----------------------------------------------------------------------------------------------


class Server(MCPServer):
    """A server whose one tool says that it failed, or not."""

    name = "files"

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        self.called: list[Any] = []

    async def connect(self) -> None:
        """Be connected."""

    async def cleanup(self) -> None:
        """Leave nothing."""

    async def list_tools(self, *_: Any, **__: Any) -> list[MCPTool]:
        schema = {"type": "object", "properties": {"record": {"type": "integer"}}}
        return [MCPTool(name="delete_record", description="Delete a record.", input_schema=schema)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.called.append(arguments)
        return CallToolResult(content=[TextContent(type="text", text="nothing deleted")], is_error=self.fails)

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("fails", "state"), [(True, "in_doubt"), (False, "succeeded")])
@pytest.mark.parametrize("record", [42, 43])
async def test_an_error_that_an_mcp_server_tells_is_no_success(
    bench: Bench, fails: bool, state: str, record: int
) -> None:
    server = Server(fails=fails)
    agent = protect(
        Agent("worker", mcp_servers=[server], model=model_of(ONE)), bench.guard, scope=lambda ctx: FACTS
    )
    paused = await started(agent)
    request = bench.only()
    bench.approve(request, **({} if record == 42 else {"arguments": {"record": record}}))

    ended = await resumed(agent, paused)

    assert server.called == [{"record": record}]
    assert [event.type for event in bench.store.chain_events(bench.store.chains()[0], limit=100)][-1] == f"call:{state}"
    assert "nothing deleted" in told(ended)
    assert ("A person changed" in told(ended)) == (record != 42)


async def test_what_stops_a_call_inside_a_tool_is_that_tools_failure(bench: Bench) -> None:
    inner = bench.guard.tool(bench.tools["delete_record"], name="delete_record")

    async def look(place: str) -> str:
        bench.note(f"look {place}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(await inner(record=42))

    agent = agent_of(bench, tool_of(look), model=model_of([[("c1", "look", {"place": "attic"})]]))

    ended = await started(agent)

    assert (bench.ran, bench.only().tool) == (["look attic"], "delete_record")
    assert (ended.interruptions, "error" in told(ended)) == ([], True)


# -- what brings tools ------------------------------------------------------------------------------------------------


BRINGS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "tools": {"model_settings": ModelSettings(extra_body={"tools": [{"type": "web_search"}]})},
    "tools by argument": {"model_settings": ModelSettings(extra_args={"tools": []})},
}


@pytest.mark.parametrize("what", BRINGS)
async def test_what_may_bring_tools_of_the_providers_is_refused_unless_named(bench: Bench, what: str) -> None:
    name = what.split()[0]

    with pytest.raises(ConfigurationError, match=name):
        protect(Agent("worker", **BRINGS[what]), bench.guard, scope=lambda ctx: FACTS)
    protect(Agent("worker", **BRINGS[what]), bench.guard, scope=lambda ctx: FACTS, uncovered=[name])


async def test_each_call_of_a_turn_is_asked_for_where_a_rule_looks_at_the_turn(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["pay"]), model=model_of(PAYING))

    await started(agent)

    assert (bench.ran, len(bench.waiting())) == ([], 3)
