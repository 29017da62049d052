"""F1: a declined call never runs, whatever comes after. F14: a model that tries again gets nothing by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.gate import Gate
from hitl_guard.agent.state import Call
from hitl_guard.guard import Guard
from hitl_guard.lifecycle import claim
from hitl_guard.models import Permit, ToolCall
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, Script, assert_over, code_of, noticed, paused, results, trail
from tests.agent.processes import inner, one
from tests.agent.stage import Stage, only, read, types
from tests.support import BOB, CAROL

MakeStage = Callable[..., Stage]
No = Callable[[Stage, Agent, str], Awaitable[list[dict[str, Any]]]]
DENIED = "Tool call was not approved by the user"


async def declining(_stage: Stage, agent: Agent, run_id: str) -> list[dict[str, Any]]:
    return await read(agent.decline_tool_call(run_id, approver=BOB))


async def answering_no(_stage: Stage, agent: Agent, run_id: str) -> list[dict[str, Any]]:
    return await read(agent.resume_stream({"approved": False}, run_id, user="ana", approver=BOB))


async def from_the_inbox(stage: Stage, agent: Agent, run_id: str) -> list[dict[str, Any]]:
    (request,) = stage.guard.pending()
    stage.world.deny(request)
    return await read(agent.continue_stream(run_id, user="ana"))


async def in_another_process(stage: Stage, agent: Agent, run_id: str) -> list[dict[str, Any]]:
    with elsewhere(stage) as there:
        model: Any = agent.model
        other = one(there) if not agent._sub_agents else inner(there)
        events = await read(other.decline_tool_call(run_id, approver=BOB))
        model.calls += other.model.calls  # type: ignore[attr-defined]
    return events


WAYS: dict[str, No] = {
    "declined": declining, "answered-no": answering_no, "inbox": from_the_inbox, "elsewhere": in_another_process,
}


async def never_runs(stage: Stage, scene: Callable[[Stage], Agent], decline: No) -> None:
    agent = scene(stage)
    run_id = await paused(agent)
    (request,) = stage.guard.pending()
    before = stage.guard.get(request.id).state

    events = await decline(stage, agent, run_id)
    later = [
        await code_of(agent.approve_tool_call(run_id, request.id, approver=CAROL).result()),
        await code_of(agent.continue_stream(run_id, user="ana").result()),
    ]
    with pytest.raises(Exception, match="decided"):
        stage.world.approve(request, by=CAROL)

    assert stage.ran == []
    assert (before, stage.guard.get(request.id).state) == ("pending", "denied")
    assert sum("tool-output-denied" in kind for kind in types(events)) == 1
    assert (types(events)[-1], later) == ("finish", ["run-not-found"] * 2)
    assert trail(stage) == ["request:denied"]
    assert_over(stage)


def ungated(gate: Gate, _call: Call, asked: ToolCall, _tool: Any) -> Permit:
    """The fault: whatever was asked for gets a permit, once somebody has answered."""
    return claim.free_permit(gate.guard._desk.bind(asked))


async def test_f01_a_check_of_declined_calls_notices_one_that_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Gate.permit
    monkeypatch.setattr(
        Gate, "permit", lambda gate, call, *rest: (ungated if call.request_id else real)(gate, call, *rest)
    )

    await noticed(never_runs(stage, one, declining))

    assert stage.ran == [("delete", {"id": "1"})]


@pytest.mark.parametrize("scene", [one, inner], ids=["own", "sub-agent"])
@pytest.mark.parametrize("way", WAYS)
async def test_f01_a_declined_call_never_runs(
    make_stage: MakeStage, way: str, scene: Callable[[Stage], Agent]
) -> None:
    await never_runs(make_stage(), scene, WAYS[way])


async def asked_once(stage: Stage) -> None:
    """The host repeats a whole run after a denial: the same model makes the same call in the same place."""
    agent = one(stage)
    model: Any = agent.model
    await paused(agent, run_id="r")
    await agent.decline_tool_call("r", approver=BOB, reason="no refunds")

    again = await read(agent.stream("go", user="ana", run_id="r"))

    assert "tool-call-approval" not in types(again)
    assert only(again, "tool-output-denied")["approval"]["reason"] == "no refunds"
    assert results(model.calls[-1]) == [("c1", "no refunds")]
    assert (stage.ran, len(trail(stage))) == ([], 1)
    assert_over(stage)


async def test_f14_a_check_of_repeated_runs_notices_a_person_who_is_asked_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "_asks_anew", lambda *_: True)

    await noticed(asked_once(stage))


async def test_f14_the_same_call_in_the_same_place_stays_denied_and_nobody_is_asked_again(
    make_stage: MakeStage
) -> None:
    await asked_once(make_stage())


@pytest.mark.parametrize("call_id", ["c1", "c2"], ids=["same-id", "another-id"])
async def test_f14_a_later_call_is_another_one_and_asks_anew(make_stage: MakeStage, call_id: str) -> None:
    """Providers use ids again: a call in a later turn is another call, whatever its id, and never the denied one."""
    stage = make_stage()
    tool = stage.tool(require_approval=True)
    model = Script([ONE], [(call_id, "delete", {"id": "1"})], "done")
    agent = Agent("shop", model=model, tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")
    (first,) = stage.guard.pending()

    events = await read(agent.decline_tool_call("r", approver=BOB))
    (second,) = stage.guard.pending()
    after_denial = list(stage.ran)
    await read(agent.approve_tool_call("r", approver=BOB))

    assert types(events).count("tool-call-approval") == 1
    assert (second.id != first.id, second.call_id, second.fingerprint) == (True, call_id, first.fingerprint)
    assert (after_denial, stage.ran) == ([], [("delete", {"id": "1"})])
    assert results(model.calls[-1]) == [("c1", DENIED), (call_id, '{"ok":true}')]
    assert_over(stage)


async def test_f14_a_model_that_never_stops_trying_comes_to_the_end_of_its_steps(make_stage: MakeStage) -> None:
    stage = make_stage()
    turns = [[(f"c{number}", "delete", {"id": "1"})] for number in range(9)]
    agent = Agent(
        "shop", model=Script(*turns), tools=[stage.tool(require_approval=True)], guard=stage.guard, max_steps=4
    )
    await paused(agent, run_id="r")

    streams = [agent.decline_tool_call("r", approver=BOB) for _ in range(4)]
    events = [await read(stream) for stream in streams]

    assert [stream.status for stream in streams] == ["suspended"] * 3 + ["success"]
    assert streams[-1].finish_reason == "max-steps"
    assert [types(told).count("tool-output-denied") for told in events] == [1] * 4
    assert (stage.ran, trail(stage)) == ([], ["request:denied"] * 4)
    assert_over(stage)
