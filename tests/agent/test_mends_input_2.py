"""Readers that leave, requests with gates of their own, gates that were lost, agents over agents, copies, operators."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Hooks, Tool
from hitl_guard.agent.auto import RESUME_TOOL
from hitl_guard.errors import ConfigurationError, PausedError
from hitl_guard.models import Principal
from hitl_guard.testing import ScriptedModel
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, TWO, Script, approvals, assert_over, code_of, paused, results, segments, trail
from tests.agent.stage import Event, Stage, inner, only, read, types
from tests.support import ANA, BOB, CAROL, OPERATOR
from tests.threats.gates import LIMIT_S

OSLO = {"location": "Oslo"}
ASK: list[tuple[str, str, Any]] = [("c1", "weather", {})]


# -- readers -----------------------------------------------------------------------------------------------------------


async def test_who_may_not_approve_learns_nothing_of_the_run_from_his_stream(stage: Stage) -> None:
    said = {"content": "I delete the secret one.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "delete", "arguments": '{"id": "1"}'}},
    ]}
    agent = stage.agent(said, "done", tools=[stage.tool(require_approval=True)])
    await paused(agent, run_id="r")
    streams = [agent.approve_tool_call("r", approver=ANA), agent.decline_tool_call("r", approver=ANA)]

    codes = [await code_of(stream.result()) for stream in streams]

    assert codes == ["not-authorised"] * 2
    assert [(one.text, one.tool_calls, one.pauses, one.messages) for one in streams] == [("", [], [], [])] * 2
    allowed = agent.approve_tool_call("r", approver=BOB)
    await allowed
    assert (allowed.text, len(allowed.tool_calls)) == ("I delete the secret one.done", 1)


async def test_a_reader_cancelled_while_an_approved_sync_tool_runs_loses_nothing_and_nothing_runs_twice(
    make_stage: Callable[..., Stage]
) -> None:
    stage = make_stage()
    begun, go = threading.Event(), threading.Event()

    def execute(given: Any) -> str:
        stage.ran.append(("delete", given))
        begun.set()
        go.wait(LIMIT_S)
        return "deleted"

    agent = stage.agent([ONE], "done", tools=[stage.tool(execute=execute, require_approval=True)])
    model: Any = agent.model
    await paused(agent, run_id="r")
    task = asyncio.ensure_future(read(agent.approve_tool_call("r", approver=BOB)))
    await asyncio.to_thread(begun.wait, LIMIT_S)

    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    between = trail(stage)
    events = await read(agent.continue_stream("r", user="ana"))

    assert between == ["request:approved", "grant:claimed", "call:succeeded"]
    assert only(events, "tool-result")["result"] == "deleted"
    assert results(model.calls[-1]) == [("c1", "deleted")]
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


# -- auto-resume -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [
    {"require_tool_approval": True}, {"require_tool_approval": lambda info: False}, {"hooks": Hooks()},
], ids=["boolean", "function", "hooks"])
async def test_a_request_with_gates_of_its_own_is_a_run_of_its_own(stage: Stage, gate: dict[str, Any]) -> None:
    agent = stage.agent(
        ASK, "hello", [("x", RESUME_TOOL, {"resumeData": OSLO})], "sunny", tools=[stage.asking(auto_resume=True)],
        memory=True, auto_resume_suspended_tools=True,
    )
    run_id = await paused(agent, thread_id="t")

    own = await agent.generate("Oslo", user="ana", thread_id="t", **gate)
    plain = await agent.generate("Oslo", user="ana", thread_id="t")

    assert (own.run_id != run_id, own.text) == (True, "hello")
    assert (plain.run_id, plain.text) == (run_id, "sunny")


@pytest.mark.parametrize("field", [
    {"type": "boolean"}, {"type": ["boolean", "null"]}, {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
    {"type": "array", "items": {"type": "boolean"}}, {"properties": {"deep": {"type": "boolean"}}},
])
def test_a_tool_whose_answer_has_a_boolean_cannot_opt_in(field: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"sure": field}}

    with pytest.raises(ConfigurationError):
        Tool("pay", execute=lambda given: given, resume_schema=schema, auto_resume=True)

    assert Tool("pay", execute=lambda given: given, resume_schema=schema).auto_resume is False


# -- what was lost with a process --------------------------------------------------------------------------------------


def never(arguments: Any, info: Any) -> bool:
    """A tool's own, authoritative function, which says that nobody is needed."""
    return False


def asks_first(info: Any) -> bool:
    return bool(info.args["id"] == "1")


async def test_after_its_hooks_were_lost_every_start_needs_a_person_whatever_the_tool_says(stage: Stage) -> None:
    def agent(here: Stage) -> Agent:
        tools = [here.tool(require_approval=True), here.tool("look", require_approval=never)]
        return Agent("shop", model=Script([ONE], [("c2", "look", {"id": "2"})], "done"), tools=tools, guard=here.guard)

    await paused(agent(stage), run_id="r", hooks=Hooks(before_tool_call=lambda info: None))
    await paused(agent(stage), run_id="plain")

    with elsewhere(stage) as there:
        hooked = await agent(there).approve_tool_call("r", approver=BOB)
        plain = await agent(there).approve_tool_call("plain", approver=BOB)

    assert (hooked.status, [pause["toolName"] for pause in hooked.pauses]) == ("suspended", ["look"])
    assert plain.status == "success"
    assert [name for name, _ in stage.ran] == ["delete", "delete", "look"]


async def test_after_its_hooks_were_lost_a_question_of_a_free_call_is_not_answered_without_a_person(
    stage: Stage
) -> None:
    def agent(here: Stage) -> Agent:
        return Agent("shop", model=Script(ASK, "done"), tools=[here.asking()], guard=here.guard)

    hooks = Hooks(before_tool_call=lambda info: None)
    await paused(agent(stage), run_id="r", hooks=hooks)

    with elsewhere(stage) as there:
        cold = agent(there)
        events = await read(cold.resume_stream(OSLO, "r", user="ana"))
        ran = list(stage.ran)
        asks_again = await cold.approve_tool_call("r", approver=BOB)
        last = await cold.resume_generate(OSLO, "r", user="ana")

    assert ([one["toolName"] for one in approvals(events)], ran) == (["weather"], [("weather", None)])
    assert (asks_again.status, last.text) == ("suspended", "done")
    assert stage.ran == [("weather", None), ("weather", None), ("weather", OSLO)]


async def test_after_its_function_was_lost_a_tools_own_function_does_not_lift_the_demand(stage: Stage) -> None:
    def agent(here: Stage) -> Agent:
        tools = [here.tool(), here.tool("look", require_approval=never)]
        return Agent("shop", model=Script([ONE], [("c2", "look", {"id": "2"})], "done"), tools=tools, guard=here.guard)

    for run_id in ("warm", "cold"):
        first = agent(stage)
        await paused(first, run_id=run_id, require_tool_approval=asks_first)

        with elsewhere(stage) as there:
            going_on = first if run_id == "warm" else agent(there)
            result = await going_on.approve_tool_call(run_id, approver=BOB)

        waits = [pause["toolName"] for pause in result.pauses]
        assert (run_id, waits) in (("warm", []), ("cold", ["look"]))


# -- agents over agents ------------------------------------------------------------------------------------------------


def boss(stage: Stage, *turns: Any, tool: Tool) -> Agent:
    """Return a supervisor that belongs to bob, over an agent that uses a tool."""
    sub = stage.agent(*turns, id="sub", tools=[tool])
    return stage.agent(
        [("d1", "agent-sub", {"prompt": "go"})], "all done", id="boss", agents=[sub], owner="bob"
    )


async def test_neither_a_supervisors_owner_nor_the_supervisor_approves_what_its_sub_agent_asks(stage: Stage) -> None:
    agent = boss(stage, [ONE], "sub done", tool=stage.tool(require_approval=True))
    await paused(agent, run_id="r")

    codes = [
        await code_of(agent.approve_tool_call("r", approver=who).result())
        for who in (BOB, Principal("boss"), Principal("boss", kind="agent"), Principal("sub"), ANA)
    ]

    assert (codes, stage.ran) == (["not-authorised"] * 5, [])
    assert (await agent.approve_tool_call("r", approver=CAROL)).text == "all done"
    assert stage.ran == [("delete", {"id": "1"})]


async def test_a_pause_of_a_supervisor_stops_what_its_sub_agent_does_for_it_and_nothing_else(stage: Stage) -> None:
    def and_pause(_: Any) -> Any:
        stage.guard.pause(by=OPERATOR, agent="boss")
        return [("f1", "look", {"id": "1"})]

    agent = boss(stage, and_pause, "sub done", tool=stage.tool("look"))
    sub: Any = agent.sub_agent("agent-sub")
    own = stage.agent([("f1", "look", {"id": "2"})], "fine", id="sub", tools=[stage.tool("look")])

    events = await read(agent.stream("go", user="ana"))
    alone = await own.generate("go", user="ana")

    told = [inner(event) for event in events if inner(event)["type"] == "tool-error"]
    assert [one["payload"]["error"]["code"] for one in told] == ["paused"]
    assert results(sub.model.calls[-1])[0][1].startswith("Refused (paused)")
    assert (alone.text, stage.ran) == ("fine", [("look", {"id": "2"})])


async def test_a_pause_of_a_supervisor_holds_an_approved_call_of_its_sub_agent_until_it_is_over(stage: Stage) -> None:
    agent = boss(stage, [ONE], "sub done", tool=stage.tool(require_approval=True))
    await paused(agent, run_id="r")
    stage.guard.pause(by=OPERATOR, agent="boss")

    with pytest.raises(PausedError):
        await agent.approve_tool_call("r", approver=CAROL)
    before = list(stage.ran)
    stage.guard.resume(by=OPERATOR, agent="boss")
    last = await agent.continue_generate("r", user="ana")

    assert (before, last.text, stage.ran) == ([], "all done", [("delete", {"id": "1"})])
    assert_over(stage)


# -- copies ------------------------------------------------------------------------------------------------------------


def spoil(data: Any) -> None:
    """Change everything inside plain data, in place."""
    for item in list(data.values()) if isinstance(data, dict) else data if isinstance(data, list) else ():
        spoil(item)
    if isinstance(data, dict):
        data.update({name: "spoilt" for name, value in data.items() if not isinstance(value, (dict, list))})
        data["more"] = "spoilt"
    elif isinstance(data, list):
        data.append("spoilt")


class Spoiling(ScriptedModel):
    """A model whose adapter changes in place what it was given, once it has used it."""

    async def __call__(self, messages: Any, tools: Any, settings: Any) -> Any:
        answer = await super().__call__(messages, tools, settings)
        for given in (messages, tools, settings):
            spoil(given)
        return answer


def busy_agent(stage: Stage, model: type[ScriptedModel] = ScriptedModel) -> Agent:
    """Return an agent with every kind of event: results, errors, refusals, questions, a sub-agent, a client's call."""
    def breaks(given: Any) -> None:
        raise ValueError("no")

    tools = [
        stage.tool(require_approval=True, result={"rows": [{"n": 1}]}), stage.tool("break", execute=breaks),
        stage.tool("look", result={"rows": [{"n": 2}]}), stage.asking(), stage.tool("show", execute=None),
    ]
    sub = Agent("sub", model=model([("s1", "look", {"id": "s"})], "sub done"), tools=tools, guard=stage.guard)
    turns: list[Any] = [
        [("f1", "look", {"id": "1"}), ("b1", "break", {"id": "1"}), ("d1", "agent-sub", {"prompt": "go"})],
        [ONE, TWO, ("c3", "weather", {})], [("v1", "show", {"id": "v"})],
    ]
    return Agent(
        "shop", model=model(*turns), tools=tools, agents=[sub], guard=stage.guard, memory=True, instructions="Be good.",
        settings={"stop": ["a", {"b": 1}]},
    )


async def played(agent: Agent, run_id: str, touch: Callable[[Any], object]) -> list[Any]:
    """Play a run of three answers to its end; return what the models, the tools and the conversation then know."""
    events: list[Event] = []

    async def each(stream: Any) -> None:
        async for event in stream:
            events.append(event)
            touch(event["payload"])

    await each(agent.stream("go", user="ana", run_id=run_id, thread_id=run_id))
    (run,) = (await agent.list_suspended_runs(user="ana")).runs
    first, second, third = (call.pause_id for call in run.tool_calls)
    await each(agent.approve_tool_call(run_id, first, approver=BOB))
    await each(agent.decline_tool_call(run_id, second, approver=BOB, reason="not that"))
    await each(agent.resume_stream(OSLO, run_id, third, user="ana"))
    sub: Any = agent.sub_agent("agent-sub")
    model: Any = agent.model
    told = [[one.calls, one.tools, one.settings] for one in (model, sub.model)]
    conversation = json.dumps(await agent.recall(run_id, user="ana"))
    assert {"tool-call-approval", "tool-call-suspended", "tool-output-denied", "tool-error"} <= set(types(events))
    return [told, re.sub('"[A-Za-z0-9_-]{22}"', '"an id"', conversation)]


async def test_what_a_consumer_does_to_events_changes_nothing_that_runs_or_is_stored(stage: Stage) -> None:
    expected = await played(busy_agent(stage), "plain", lambda payload: None)
    ran = sorted(map(repr, stage.ran))
    stage.ran.clear()

    spoilt = await played(busy_agent(stage), "spoilt", spoil)

    assert spoilt == expected
    assert sorted(map(repr, stage.ran)) == ran
    assert not any(b"spoilt" in body for body in segments(stage))


async def test_what_an_adapter_does_to_what_it_gets_changes_nothing_that_runs_or_is_stored(stage: Stage) -> None:
    await played(busy_agent(stage), "plain", lambda payload: None)
    ran = list(stage.ran)

    await played(busy_agent(stage, Spoiling), "spoilt", lambda payload: None)

    assert stage.ran == ran * 2
    assert not any(b"spoilt" in body for body in segments(stage))


async def test_an_adapter_changes_neither_the_message_that_answers_nor_the_settings(stage: Stage) -> None:
    model = Spoiling(ASK, [("x", RESUME_TOOL, {"resumeData": OSLO})], "sunny")
    agent = Agent(
        "shop", model=model, tools=[stage.asking(auto_resume=True)], guard=stage.guard, memory=True,
        settings={"stop": ["a"]}, auto_resume_suspended_tools=True,
    )
    await paused(agent, thread_id="t")

    await agent.generate("Oslo", user="ana", thread_id="t")

    said = [one["content"] for one in await agent.recall("t", user="ana") if one["role"] == "user"]
    assert (said, model.settings) == (["go", "Oslo"], [{"stop": ["a"]}] * 3)


# -- operators ---------------------------------------------------------------------------------------------------------


async def test_a_call_that_is_asked_for_anew_while_its_tool_is_paused_goes_on_waiting_and_is_not_lost(
    make_stage: Callable[..., Stage]
) -> None:
    stage = make_stage()

    def agent(here: Stage, description: str) -> Agent:
        tool = here.tool(require_approval=True, description=description)
        return Agent("shop", model=Script([ONE, TWO], "done"), tools=[tool], guard=here.guard)

    await paused(agent(stage, "Deletes."), run_id="r")
    old = {request.id for request in stage.guard.pending()}
    stage.guard.pause(by=OPERATOR, tool="delete")

    with elsewhere(stage) as there:
        changed = agent(there, "Deletes for good.")
        codes = [
            await code_of(changed.approve_tool_call("r", call_id, approver=BOB).result()) for call_id in ("c1", "c2")
        ]
        (run,) = (await changed.list_suspended_runs(user="ana")).runs
        stage.guard.resume(by=OPERATOR, tool="delete")
        events = await read(changed.continue_stream("r", user="ana"))
        anew = {one["approvalId"] for one in approvals(events)}
        assert stage.ran == []
        first = await changed.approve_tool_call("r", "c1", approver=BOB)
        last = await changed.approve_tool_call("r", "c2", approver=BOB)

    assert codes == ["paused", "paused"]
    assert {call.pause_id for call in run.tool_calls} == old
    assert (len(anew), anew & old) == (2, set())
    assert (first.status, last.text) == ("suspended", "done")
    assert stage.ran == [("delete", {"id": "1"}), ("delete", {"id": "2"})]
    assert_over(stage)
