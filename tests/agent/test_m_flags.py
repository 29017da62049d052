"""Flags that let a call wait for a person, what the pause tells, and what a decline does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.stream import AgentStream
from hitl_guard.envelope import REQUEST_TYPE, Envelope
from hitl_guard.errors import AgentError, DecisionError, InvalidSignatureError

from .elsewhere import elsewhere
from .stage import BOB, Event, Stage, only, read, types

MakeStage = Callable[..., Stage]
DELETE = [("call-1", "delete", {"id": "7"})]
BATCH = [("call-1", "delete", {"id": "1"}), ("call-2", "delete", {"id": "2"})]
DEFAULT = "Tool call was not approved by the user"
ASKED = ["start", "step-start", "tool-call", "tool-call-approval"]
ANSWERED = ["step-finish", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"]
WAYS = ("stream", "generate")


def asked(events: list[Event]) -> list[str]:
    """Return the tool-call ids of the approvals among events."""
    return [event["payload"]["toolCallId"] for event in events if event["type"] == "tool-call-approval"]


def told(agent: Agent) -> list[str]:
    """Return what the model was told in place of its calls' results, when it was called last."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[-1] if message["role"] == "tool"]


async def begun(agent: Agent, way: str, **options: Any) -> tuple[str, list[str]]:
    """Start a run by ``stream`` or ``generate``; return its id and the ids of the calls that wait for an approval."""
    if way == "stream":
        stream = agent.stream("go", user="ana", **options)
        return stream.run_id, asked(await read(stream))
    result = await agent.generate("go", user="ana", **options)
    return result.run_id, [pause["toolCallId"] for pause in result.pauses]


# -- M8 to M12: who pauses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_m08_a_requests_flag_pauses_every_tool_call_of_that_request(stage: Stage, way: str) -> None:
    turns = [[("a", "delete", {"id": "1"}), ("b", "look", {"id": "2"})], [("c", "look", {"id": "3"})], "done"]
    tools = [stage.tool(), stage.tool("look")]
    agent = stage.agent(*turns, tools=tools)

    run_id, first = await begun(agent, way, require_tool_approval=True)
    assert (first, stage.ran) == (["a", "b"], [])
    await agent.approve_tool_call_generate(run_id, "a", approver=BOB)
    second = await agent.approve_tool_call_generate(run_id, "b", approver=BOB)
    ended = await agent.approve_tool_call_generate(run_id, approver=BOB)

    assert ([pause["toolCallId"] for pause in second.pauses], ended.status) == (["c"], "success")
    assert stage.ran == [("delete", {"id": "1"}), ("look", {"id": "2"}), ("look", {"id": "3"})]
    _, other = await begun(stage.agent(*turns, tools=tools), way)
    assert (other, len(stage.ran)) == ([], 6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("request_", [None, True, False, lambda info: False], ids=["none", "true", "false", "function"])
async def test_m09_a_tools_flag_pauses_that_tool_whatever_the_request_says(
    stage: Stage, way: str, request_: Any
) -> None:
    options = {} if request_ is None else {"require_tool_approval": request_}
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])

    _, waiting = await begun(agent, way, **options)

    assert (waiting, stage.ran) == (["call-1"], [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", [None, True, False], ids=["tool-none", "tool-true", "tool-false"])
@pytest.mark.parametrize("request_", [None, True, False], ids=["request-none", "request-true", "request-false"])
async def test_m10_the_two_flags_are_combined_by_or_and_neither_asks_by_default(
    stage: Stage, way: str, request_: bool | None, tool: bool | None
) -> None:
    options = {} if request_ is None else {"require_tool_approval": request_}
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=tool)])

    _, waiting = await begun(agent, way, **options)

    pauses = True in (request_, tool)
    assert (waiting, len(stage.ran)) == ((["call-1"], 0) if pauses else ([], 1))


@pytest.mark.parametrize("way", WAYS)
async def test_m11_a_tools_false_does_not_cancel_a_requests_requirement(stage: Stage, way: str) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=False)])

    run_id, waiting = await begun(agent, way, require_tool_approval=True)
    assert (waiting, stage.ran) == (["call-1"], [])
    ended = await agent.decline_tool_call_generate(run_id, approver=BOB)

    assert (ended.status, stage.ran) == ("success", [])


@pytest.mark.parametrize("gated_first", [True, False], ids=["gated-first", "gated-last"])
async def test_m12_other_tools_of_the_same_batch_run_at_once(stage: Stage, gated_first: bool) -> None:
    calls = [("call-1", "delete", {"id": "1"}), ("call-2", "look", {"id": "2"}), ("call-3", "look", {"id": "3"})]
    calls = calls if gated_first else calls[::-1]
    agent = stage.agent(calls, "done", tools=[stage.tool(require_approval=True), stage.tool("look")])
    stream = agent.stream("go", user="ana")

    paused = await read(stream)
    assert types(paused) == ["start", "step-start", *["tool-call"] * 3, "tool-call-approval"]
    assert sorted(given["id"] for _, given in stage.ran) == ["2", "3"]
    resumed = await read(agent.approve_tool_call(stream.run_id, approver=BOB))

    assert types(resumed) == ["tool-call-resumed", *["tool-result"] * 3, *ANSWERED]
    assert [event["payload"]["toolCallId"] for event in resumed[1:4]] == [call[0] for call in calls]
    assert stage.ran[2:] == [("delete", {"id": "1"})]


# -- M13, M14: what the pause tells, and how it goes on --------------------------------------------------------------


async def test_m13_a_pause_tells_the_call_and_a_token_that_verifies(stage: Stage) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])
    stream = agent.stream("go", user="ana")

    events = await read(stream)
    payload, signer = only(events, "tool-call-approval"), stage.guard._desk.signer
    demands: dict[str, Any] = {"expected_purpose": "request", "expected_type": REQUEST_TYPE, "now": stage.store.now()}
    envelope = Envelope.from_fields(signer.open(payload["token"], **demands))

    assert events[-1] == {"type": "tool-call-approval", "run_id": stream.run_id, "from": "AGENT", "payload": payload}
    assert payload.keys() == {
        "toolCallId", "toolName", "args", "resumeSchema", "approvalId", "fingerprint", "token", "expiresAt", "reason",
    }
    assert (payload["toolCallId"], payload["toolName"], payload["args"]) == ("call-1", "delete", {"id": "7"})
    assert json.loads(payload["resumeSchema"])["required"] == ["approved"]
    assert (envelope.request_id, envelope.fingerprint) == (payload["approvalId"], payload["fingerprint"])
    assert (envelope.decide_by, envelope.scope.run) == (payload["expiresAt"], stream.run_id)
    head, mac = payload["token"].rsplit(".", 1)
    with pytest.raises(InvalidSignatureError):
        signer.open(f"{head}.{'B' if mac[0] == 'A' else 'A'}{mac[1:]}", **demands)


async def test_m13_pauses_by_either_flag_look_the_same(stage: Stage) -> None:
    by_tool = stage.agent(DELETE, tools=[stage.tool(require_approval=True)])
    by_request = stage.agent(DELETE, tools=[stage.tool()])

    one = only(await read(by_tool.stream("go", user="ana")), "tool-call-approval")
    other = only(await read(by_request.stream("go", user="ana", require_tool_approval=True)), "tool-call-approval")

    differ = ("approvalId", "token", "expiresAt")
    assert list(one) == list(other)
    assert {name: one[name] for name in one if name not in differ} == {
        name: other[name] for name in other if name not in differ
    }


async def test_m13_the_reason_is_what_the_policy_says(make_stage: MakeStage) -> None:
    stage = make_stage(policy={"delete": {"type": "user-approval", "reason": "It cannot be undone."}})
    agent = stage.agent(DELETE, tools=[stage.tool()])

    payload = only(await read(agent.stream("go", user="ana")), "tool-call-approval")

    assert (payload["reason"], stage.guard.get(payload["approvalId"]).reason) == ("It cannot be undone.",) * 2


@pytest.mark.parametrize("named", [True, False], ids=["call-named", "call-omitted"])
@pytest.mark.parametrize("decision", ["approve", "decline"])
async def test_m14_a_decision_returns_a_stream_that_goes_on_under_the_same_run_id(
    make_stage: MakeStage, decision: str, named: bool
) -> None:
    stage = make_stage()
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])
    first = agent.stream("go", user="ana")
    assert types(await read(first)) == ASKED
    decide = agent.approve_tool_call if decision == "approve" else agent.decline_tool_call

    stream = decide(first.run_id, "call-1" if named else None, approver=BOB)
    assert (type(stream), stage.ran) == (AgentStream, [])
    events = await read(stream)

    end = "tool-result" if decision == "approve" else "tool-output-denied"
    assert types(events) == ["tool-call-resumed", end, *ANSWERED]
    assert {event["run_id"] for event in events} | {stream.run_id} == {first.run_id}
    assert (stream.status, stream.finish_reason, stream.text) == ("success", "stop", "done")


# -- M15 to M19: declining -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["decline_tool_call", "decline_tool_call_generate", "decline_network_tool_call"])
@pytest.mark.parametrize("given", [{}, {"reason": "Not this one."}], ids=["no-reason", "reason"])
async def test_m15_every_way_to_decline_takes_a_reason(stage: Stage, method: str, given: dict[str, str]) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana")

    await getattr(agent, method)(paused.run_id, approver=BOB, **given)

    assert (told(agent), stage.ran) == ([given.get("reason", DEFAULT)], [])


async def test_m16_the_reason_reaches_the_model_in_place_of_a_result_and_it_may_change_course(stage: Stage) -> None:
    agent = stage.agent(
        DELETE, lambda messages: [("call-2", "archive", {"id": "7"})] if "Archive" in messages[-1]["content"] else "no",
        "archived", tools=[stage.tool(require_approval=True), stage.tool("archive")],
    )
    paused = await agent.generate("go", user="ana")

    ended = await agent.decline_tool_call_generate(paused.run_id, approver=BOB, reason="Archive it instead.")

    assert told(agent) == ["Archive it instead.", '{"ok":true}']
    assert (ended.text, stage.ran) == ("archived", [("archive", {"id": "7"})])


async def test_m17_the_reason_is_kept_with_the_call_and_there_when_the_conversation_is_recalled(stage: Stage) -> None:
    agent = stage.agent(DELETE, "done", memory=True, tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana", thread_id="thread-1")
    approval = {
        "id": "call-1", "approved": False, "reason": "Not this one.", "approvalId": paused.pauses[0]["approvalId"],
    }

    events = await read(agent.decline_tool_call(paused.run_id, approver=BOB, reason="Not this one."))
    with elsewhere(stage) as there:
        recalled = await there.agent(memory=True).recall("thread-1", user="ana")

    assert only(events, "tool-output-denied") == {
        "toolCallId": "call-1", "toolName": "delete", "args": {"id": "7"}, "approval": approval,
    }
    assert recalled[2] == {
        "role": "tool", "tool_call_id": "call-1", "state": "output-denied", "content": "Not this one.",
        "approval": approval,
    }
    model: Any = agent.model
    assert not any({"approval", "state"} & message.keys() for message in model.calls[-1])


@pytest.mark.parametrize("reason", [None, "", "   ", "\n\t "], ids=["none", "empty", "blank", "lines"])
async def test_m18_without_a_reason_the_model_gets_exactly_the_default_text(stage: Stage, reason: str | None) -> None:
    agent = stage.agent(DELETE, "done", memory=True, tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana", thread_id="thread-1")

    events = await read(agent.decline_tool_call(paused.run_id, approver=BOB, reason=reason))
    recalled = await agent.recall("thread-1", user="ana")

    assert told(agent) == ["Tool call was not approved by the user"]
    assert only(events, "tool-output-denied")["approval"]["reason"] == DEFAULT
    assert (recalled[2]["content"], recalled[2]["approval"]["reason"]) == (DEFAULT, DEFAULT)


@pytest.mark.parametrize("reason", [7, True, ["no"], {"text": "no"}], ids=repr)
async def test_m18_a_reason_that_is_no_text_is_refused_and_the_call_still_waits(stage: Stage, reason: Any) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana")

    with pytest.raises(DecisionError) as refused:
        await agent.decline_tool_call(paused.run_id, approver=BOB, reason=reason)

    assert (refused.value.code, refused.value.detail) == ("invalid-approval", "malformed")
    assert stage.guard.get(paused.pauses[0]["approvalId"]).state == "pending"
    assert (await agent.decline_tool_call_generate(paused.run_id, approver=BOB)).status == "success"


async def test_m19_a_declined_tool_never_runs_whatever_comes_after(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = stage.agent(BATCH, "done", tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana")
    first, second = (pause["approvalId"] for pause in paused.pauses)
    await agent.decline_tool_call_generate(paused.run_id, "call-1", approver=BOB)

    for name in ("call-1", first):
        with pytest.raises(AgentError) as over:
            await agent.approve_tool_call(paused.run_id, name, approver=BOB)
        assert over.value.code == "call-not-suspended"
    request = stage.guard.get(first)
    with pytest.raises(DecisionError) as decided:
        stage.guard.decide(first, approver=BOB, approve=True, fingerprint=request.fingerprint)
    assert (decided.value.code, decided.value.detail) == ("already-decided", "denied")
    await agent.continue_generate(paused.run_id, user="ana")
    with elsewhere(stage) as there:
        restarted = there.agent("done", tools=[there.tool(require_approval=True)])
        ended = await restarted.approve_tool_call_generate(paused.run_id, second, approver=BOB)
        with pytest.raises(AgentError) as gone:
            await restarted.approve_tool_call(paused.run_id, "call-1", approver=BOB)

    assert (ended.status, told(restarted)) == ("success", [DEFAULT, '{"ok":true}'])
    assert (gone.value.code, stage.ran) == ("run-not-found", [("delete", {"id": "2"})])
    assert stage.guard.get(first).state == "denied"


async def test_m19_a_decline_whose_process_died_before_going_on_still_counts(stage: Stage) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=True)])
    pause = (await agent.generate("go", user="ana")).pauses[0]
    (found,) = (await agent.list_suspended_runs(user="ana")).runs
    request = stage.guard.get(pause["approvalId"])
    stage.guard.decide(request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, reason="No.")

    with pytest.raises(DecisionError) as decided:
        await agent.approve_tool_call(found.run_id, approver=BOB)
    with elsewhere(stage) as there:
        restarted = there.agent("done", tools=[there.tool(require_approval=True)])
        ended = await restarted.continue_generate(found.run_id, user="ana")

    assert (decided.value.code, decided.value.detail) == ("already-decided", "denied")
    assert (ended.status, told(restarted), stage.ran) == ("success", ["No."], [])


async def test_m19_the_same_call_asked_for_again_is_another_question(stage: Stage) -> None:
    agent = stage.agent(
        DELETE, [("call-2", "delete", {"id": "7"})], "done", tools=[stage.tool(require_approval=True)],
    )
    paused = await agent.generate("go", user="ana")

    again = await agent.decline_tool_call_generate(paused.run_id, approver=BOB)
    ended = await agent.decline_tool_call_generate(paused.run_id, approver=BOB, reason="Still no.")

    assert ([pause["toolCallId"] for pause in again.pauses], stage.ran) == (["call-2"], [])
    assert (ended.status, told(agent), stage.ran) == ("success", [DEFAULT, "Still no."], [])
