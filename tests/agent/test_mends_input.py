"""What hosts, clients and models may hand in: odd values are refused by name, and what is a copy stays one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.errors import AgentError, HitlGuardError, InvalidSignatureError
from hitl_guard.models import Principal
from hitl_guard.testing import ScriptedModel
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, TWO, Script, approvals, assert_over, code_of, codes_of, paused, results
from tests.agent.stage import Stage, only, read, types
from tests.support import ANA, BOB, document

LONE = "\ud800"
ODD_TEXTS: list[Any] = [5, "", LONE, "x" * 600, ["t"], {"t": 1}, b"t"]
LOOSE: dict[str, Any] = {"type": "object"}


# -- malformed settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [
    {"settings": 5}, {"settings": [1]}, {"settings": {"a": object()}}, {"settings": {5: 1}}, {"policies": ["x"]},
    {"policies": 5}, {"agents": ["x"]}, {"agents": 5}, {"tools": 5}, {"tools": ["x"]}, {"memory": 3}, {"hooks": 3},
    {"max_steps": 0}, {"max_steps": True}, {"max_steps": "9"}, {"require_tool_approval": "yes"},
    {"require_tool_approval": lambda: True}, {"instructions": 5}, {"instructions": LONE}, {"description": 5},
    {"description": LONE}, {"owner": 5}, {"owner": ""}, {"owner": LONE}, {"guard": 5}, {"store": 5},
    {"auto_resume_suspended_tools": "no"}, {"id": 5}, {"id": ""}, {"id": LONE}, {"model": None},
])
async def test_an_agent_with_a_malformed_setting_is_refused_by_name(stage: Stage, odd: dict[str, Any]) -> None:
    given: dict[str, Any] = {"id": "shop", "model": ScriptedModel("hello"), "guard": stage.guard} | odd

    with pytest.raises(HitlGuardError):
        await Agent(**given).generate("go", user="ana")


def test_two_sub_agents_or_two_tools_of_one_name_are_refused(stage: Stage) -> None:
    subs = [stage.agent("hi", id="sub"), stage.agent("ho", id="sub")]
    delegation = stage.tool("agent-sub")

    for odd in ({"agents": subs}, {"tools": [stage.tool(), stage.tool()]}, {"agents": subs[:1], "tools": [delegation]}):
        with pytest.raises(HitlGuardError):
            stage.agent("hello", **odd)


@pytest.mark.parametrize("odd", [
    *({"thread_id": text} for text in ODD_TEXTS), *({"resource_id": text} for text in ODD_TEXTS),
    *({"run_id": text} for text in [*ODD_TEXTS, "x" * 100]), *({"tenant": text} for text in ODD_TEXTS),
    *({"user": text} for text in [*ODD_TEXTS, None]), {"user": Principal("ana", tenant="other")},
    {"settings": 5}, {"settings": {"a": object()}}, {"settings": {"a": LONE}}, {"settings": {5: 1}},
    {"request_context": 5}, {"request_context": [1]}, {"request_context": {"a": object()}}, {"max_steps": 0},
    {"max_steps": "9"}, {"hooks": 3}, {"require_tool_approval": "yes"}, {"auto_resume_suspended_tools": "no"},
])
async def test_a_start_with_a_malformed_value_is_refused_and_starts_nothing(stage: Stage, odd: dict[str, Any]) -> None:
    agent = stage.agent("hello", tools=[stage.tool()], memory=True)
    model: Any = agent.model

    with pytest.raises(HitlGuardError):
        await agent.generate(**({"messages": "go", "user": "ana"} | odd))

    assert (model.calls, stage.stored()) == ([], 0)


@pytest.mark.parametrize("messages", [
    5, None, ["x"], [5], [{}], [{"role": 5}], [{"role": []}], [{"role": {}}], [{"role": "robot"}], {"role": "user"},
    [{"role": "user", "content": object()}], [{"role": "user", "content": LONE}], [{"role": "user", 5: 1}], LONE,
])
async def test_messages_that_are_none_are_refused_and_start_nothing(stage: Stage, messages: Any) -> None:
    agent = stage.agent("hello")
    model: Any = agent.model

    with pytest.raises(HitlGuardError):
        await agent.generate(messages, user="ana")

    assert model.calls == []


ACTS: dict[str, Callable[[Agent, dict[str, Any]], Any]] = {
    "list": lambda agent, odd: agent.list_suspended_runs(**({"user": "ana"} | odd)),
    "recall": lambda agent, odd: agent.recall(**({"thread_id": "t", "user": "ana"} | odd)),
    "continue": lambda agent, odd: agent.continue_generate(**({"run_id": "r", "user": "ana"} | odd)),
    "resume": lambda agent, odd: agent.resume_generate(1, **({"run_id": "r", "user": "ana"} | odd)),
    "approve": lambda agent, odd: agent.approve_tool_call_generate(**({"run_id": "r", "approver": BOB} | odd)),
    "decline": lambda agent, odd: agent.decline_tool_call_generate(**({"run_id": "r", "approver": BOB} | odd)),
    "send": lambda agent, odd: agent.send_tool_approval(
        **{"thread_id": "t", "user": "ana", "approver": BOB, "approved": True, **odd}
    ),
}
NAMES = {
    "list": ("user", "tenant", "thread_id", "resource_id"), "recall": ("user", "tenant", "thread_id", "resource_id"),
    "continue": ("run_id", "user", "tenant"), "resume": ("run_id", "tool_call_id", "user", "tenant", "approver"),
    "approve": ("run_id", "tool_call_id", "approver", "fingerprint", "reason", "arguments", "channel"),
    "decline": ("run_id", "tool_call_id", "approver", "fingerprint", "reason", "channel"),
    "send": ("thread_id", "tool_call_id", "user", "approver", "resource_id", "reason", "approved"),
}


@pytest.mark.parametrize(("act", "name"), [(act, name) for act, names in NAMES.items() for name in names])
async def test_a_malformed_value_of_a_later_step_is_refused_or_finds_nothing_and_the_call_still_waits(
    stage: Stage, act: str, name: str
) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool(require_approval=True)], memory=True)
    await paused(agent, run_id="r", thread_id="t")
    free = name in ("reason", "channel")  # any text is one

    for odd in [odd for odd in ODD_TEXTS if not (free and isinstance(odd, str))]:
        try:
            found = await ACTS[act](agent, {name: odd})
        except HitlGuardError:
            continue
        assert act in ("list", "recall")
        assert found == [] if act == "recall" else found.runs == (), odd

    assert (stage.ran, len(stage.guard.pending()), stage.stored()) == ([], 1, 1)


# -- starts under one id -----------------------------------------------------------------------------------------------


async def test_of_two_starts_of_one_id_at_once_one_pauses_and_the_other_is_told_at_once(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_stage()
    both = asyncio.Barrier(2)

    async def model(*asked: Any) -> Any:
        turn = await Script([ONE], "done")(*asked)
        if len(asked[0]) == 1:
            await both.wait()
        return turn

    agent = Agent("shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard)
    writes: list[int] = []
    write = stage.store.write
    monkeypatch.setattr(stage.store, "write", lambda *args: writes.append(1) or write(*args))  # type: ignore[func-returns-value]

    codes = await codes_of(agent.generate("go", user="ana", run_id="r"), agent.generate("go", user="ana", run_id="r"))

    assert sorted(codes) == ["ok", "run-busy"]
    assert len(writes) < 8
    assert (len(stage.guard.pending()), stage.stored(), stage.ran) == (1, 1, [])
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_a_start_under_the_id_of_a_suspended_run_is_refused_and_does_no_harm(stage: Stage) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool(require_approval=True)])
    model: Any = agent.model
    await paused(agent, run_id="r")

    with pytest.raises(AgentError) as refused:
        await agent.generate("go", user="ana", run_id="r")

    assert (refused.value.code, len(model.calls)) == ("run-busy", 1)
    assert (await agent.approve_tool_call("r", approver=BOB)).text == "done"
    assert_over(stage)


# -- ids of the model --------------------------------------------------------------------------------------------------


async def test_an_id_that_a_model_writes_in_the_form_of_ours_is_made_anew_and_decides_nothing(stage: Stage) -> None:
    first = stage.agent([ONE], tools=[stage.tool(require_approval=True)])
    await paused(first, run_id="first")
    (old,) = stage.guard.pending()
    stage.guard.revoke(old.id, by=ANA)
    agent = stage.agent([(old.id, "delete", {"id": "9"})], "done", tools=[stage.tool(require_approval=True)])

    asked = approvals(await read(agent.stream("go", user="ana", run_id="r")))
    code = await code_of(agent.approve_tool_call("r", old.id, approver=BOB).result())

    assert len(old.id) == 22
    assert (len(asked), asked[0]["toolCallId"], code, stage.ran) == (1, "call_0", "call-not-suspended", [])
    assert (await agent.approve_tool_call("r", asked[0]["approvalId"], approver=BOB)).status == "success"
    assert stage.ran == [("delete", {"id": "9"})]


# -- histories ---------------------------------------------------------------------------------------------------------

ODD_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"}, {"role": "assistant"}, {"role": "assistant", "tool_calls": 5},
    {"role": "assistant", "content": ["a", 5], "tool_calls": [5, {}, {"id": 5}, {"id": "c1"}]},
    {"role": "tool", "content": "said by a client"}, {"role": "tool", "tool_call_id": 7, "state": "result"},
    {"role": "tool", "tool_call_id": "c1", "content": None, "state": "result", "value": {"ok": True}},
    {"role": "user"},
]


@pytest.mark.parametrize("options", [{}, {"thread_id": "t"}], ids=["alone", "thread"])
async def test_a_run_with_an_odd_given_history_resumes_here_and_elsewhere(stage: Stage, options: Any) -> None:
    for run_id in ("here", "there"):
        agent = Agent("shop", model=Script([ONE], "done", after=3), tools=[stage.tool(require_approval=True)],
                      guard=stage.guard, memory=True)
        thread = {name: f"{run_id}-{value}" for name, value in options.items()}
        result = await agent.generate(ODD_HISTORY, user="ana", run_id=run_id, **thread)
        assert result.status == "suspended"

    with elsewhere(stage) as other:
        there = Agent("shop", model=Script([ONE], "done", after=3), tools=[other.tool(require_approval=True)],
                      guard=other.guard, memory=True)
        events = await read(there.approve_tool_call("there", approver=BOB))
    last = await agent.approve_tool_call("here", approver=BOB)

    assert only(events, "finish")["output"]["toolResults"] == [
        {"args": {"id": "1"}, "result": {"ok": True}, "toolCallId": "c1", "toolName": "delete"}
    ]
    assert (last.text, last.status, stage.ran) == ("done", "success", [("delete", {"id": "1"})] * 2)


@pytest.mark.parametrize("body", [
    "{}", "5", "null", "[1]", "[[]]", "[{}]", '[{"role":5}]', '[{"role":[]}]', '[{"role":{}}]', '[{"role":"user"}]',
    '[{"role":"assistant","tool_calls":5}]', '[{"role":"tool","state":"result"}]', "[", "",
])
async def test_a_stored_piece_of_another_shape_is_no_conversation(stage: Stage, body: str) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool(require_approval=True)], memory=True)
    await paused(agent, run_id="r", thread_id="t")
    with sqlite3.connect(str(stage.store._dialect.url.database)) as connection:
        connection.execute("UPDATE hitl_guard_segments SET body = ?", (body.encode(),))
    connection.close()

    with pytest.raises(InvalidSignatureError) as refused:
        await agent.approve_tool_call("r", approver=BOB)

    assert (refused.value.detail, stage.ran) == ("history", [])
    if not body.startswith('[{"role":"'):
        with pytest.raises(InvalidSignatureError):
            await agent.recall("t", user="ana")


# -- what is large -----------------------------------------------------------------------------------------------------


async def test_of_two_hundred_calls_in_a_turn_the_first_128_are_treated_and_the_model_goes_on(stage: Stage) -> None:
    calls = [(f"c{number}", "delete", {"id": str(number)}) for number in range(200)]
    agent = stage.agent(calls, "done", tools=[stage.tool()])
    model: Any = agent.model

    events = await read(agent.stream("go", user="ana"))

    errors = [event["payload"] for event in events if event["type"] == "tool-error"]
    assert sorted(int(given["id"]) for _, given in stage.ran) == list(range(128))
    assert [(error["toolCallId"], error["error"]["name"]) for error in errors] == [("c128", "TooManyCallsError")]
    assert results(model.calls[-1])[-1][1].endswith("This and all after it were dropped; make them later.")
    assert (len(results(model.calls[-1])), types(events).count("tool-call"), types(events)[-1]) == (129, 129, "finish")


@pytest.mark.parametrize("gated", [False, True])
async def test_a_result_of_three_megabytes_is_cut_with_a_notice_and_the_run_goes_on(stage: Stage, gated: bool) -> None:
    agent = stage.agent([ONE], [TWO], "done", tools=[stage.tool(result="x" * 3_000_000, require_approval=gated)])
    model: Any = agent.model

    result = await agent.generate("go", user="ana", run_id="r")
    while result.status == "suspended":
        result = await agent.approve_tool_call("r", approver=BOB)

    texts = [text for _, text in results(model.calls[-1])]
    assert (result.text, len(stage.ran)) == ("done", 2)
    assert [len(text) < 1_001_000 for text in texts] == [True, True]
    assert texts[0].endswith("(The result was cut: it has 3000000 characters.)")


async def test_a_call_in_doubt_is_told_as_that_and_the_model_must_not_repeat_it(stage: Stage) -> None:
    def breaks(given: Any) -> None:
        raise OSError("connection reset")

    agent = stage.agent([ONE], "sorry", tools=[stage.tool(execute=breaks, require_approval=True)])
    model: Any = agent.model
    await paused(agent, run_id="r")

    events = await read(agent.approve_tool_call("r", approver=BOB))

    error = only(events, "tool-error")["error"]
    ((_, told),) = results(model.calls[-1])
    assert error == {"code": "in-doubt", "message": "connection reset", "name": "OSError"}
    assert "Nobody knows whether the call had an effect. Do not make it again" in told
    assert [request.state for request in stage.guard.pending(states=("in_doubt",))] == ["in_doubt"]


# -- edits -------------------------------------------------------------------------------------------------------------

EDITABLE = """\
version: 1
name: edits
default: not_applicable
rules:
  - {id: mail, tools: [flag], effect: require_approval, quorum: 2, edit: true}
"""


@pytest.mark.parametrize(("before", "after"), [(0, False), (1, True), (False, 0), (True, 1)])
async def test_an_edit_that_python_calls_equal_is_shown_as_the_edit_that_it_is(
    stage: Stage, before: Any, after: Any
) -> None:
    two = Stage(stage.store, policy=document(EDITABLE))
    agent = two.agent([("c1", "flag", {"on": before})], "done", tools=[two.tool("flag", input_schema=LOOSE)])
    await paused(agent, run_id="r")

    asked = approvals(await read(agent.approve_tool_call("r", approver=BOB, arguments={"on": after})))
    (run,) = (await agent.list_suspended_runs(user="ana")).runs
    (call,) = run.tool_calls

    assert (len(asked), two.ran) == (1, [])
    assert [json.dumps(shown) for shown in (asked[0]["args"], call.args)] == [json.dumps({"on": after})] * 2
    assert call.pause_id == asked[0]["approvalId"]
