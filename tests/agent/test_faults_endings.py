"""F13: however a run ends, its decision is on record, nothing waits any more, and whoever reads is told the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.history import recalled
from hitl_guard.agent.snapshots import Snapshots, thread_key
from hitl_guard.errors import NoEffect
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.store.base import DropThread
from tests.agent.faults import ONE, Script, assert_over, code_of, noticed, paused, results, trail
from tests.agent.processes import inner
from tests.agent.stage import Stage, read, types
from tests.support import BOB, OPERATOR, until

MakeStage = Callable[..., Stage]
Events = list[dict[str, Any]]
End = Callable[[Stage, Agent], Awaitable[Events]]
DENIED = "Tool call was not approved by the user"


async def approved(_stage: Stage, agent: Agent) -> Events:
    return await read(agent.approve_tool_call("r", approver=BOB, reason="fine"))


async def declined(_stage: Stage, agent: Agent) -> Events:
    return await read(agent.decline_tool_call("r", approver=BOB, reason="no"))


async def revoked(stage: Stage, agent: Agent) -> Events:
    (request,) = stage.guard.pending()
    stage.guard.revoke(request.id, by=BOB)
    return await read(agent.continue_stream("r", user="ana"))


async def overdue(stage: Stage, agent: Agent) -> Events:
    until(stage.store, stage.store.now() + 300)
    events = await read(agent.continue_stream("r", user="ana"))
    assert stage.guard.sweep() == 1  # it reads as expired at once; the sweep writes that down
    return events


async def other_tools(stage: Stage, agent: Agent) -> Events:
    other = Agent("shop", model=agent.model, tools=[stage.tool("look")], guard=stage.guard)
    return await read(other.approve_tool_call("r", approver=BOB))


ENDS: dict[str, tuple[End, dict[str, Any], list[str], str]] = {
    "result": (approved, {}, ["request:approved", "grant:claimed", "call:succeeded"], '{"ok":true}'),
    "declined": (declined, {}, ["request:denied"], "no"),
    "revoked": (revoked, {}, ["request:revoked"], "Refused (revoked)"),
    "expired": (overdue, {"settings": Settings(decide_within=200)}, ["request:expired"], "approval expired"),
    "tool-gone": (other_tools, {}, ["request:approved"], "Tool "),
    "raised": (approved, {"raises": ValueError("broken")}, ["request:approved", "grant:claimed", "call:in_doubt"],
               "broken"),
    "no-effect": (approved, {"raises": NoEffect("not now")}, ["request:approved", "grant:claimed", "call:failed"],
                  "not now"),
}


async def ends(stage: Stage, end: End, options: dict[str, Any], events: list[str], said: str) -> None:
    def execute(given: Any) -> Any:
        stage.ran.append(("delete", given))
        if "raises" in options:
            raise options["raises"]
        return {"ok": True}

    model = Script([ONE], "done")
    tool = stage.tool(require_approval=True, execute=execute)
    agent = Agent("shop", model=model, tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()

    told = types(await end(stage, agent))

    final = [kind for kind in told if kind in ("tool-result", "tool-error", "tool-output-denied")]
    assert (len(final), told[-1], told.count("finish")) == (1, "finish", 1)
    assert results(model.calls[-1])[0][1].startswith(said)
    made = trail(stage, request.id)
    assert made[: len(events)] == events
    assert (await agent.list_suspended_runs(user="ana")).runs == ()
    assert await code_of(agent.continue_stream("r", user="ana").result()) == "run-not-found"
    for left in stage.guard.pending(states=["in_doubt"]):
        stage.guard.resolve(left.id, "abandoned", by=OPERATOR, reason="looked")
    for left in stage.guard.pending(states=["approved"]):
        stage.guard.revoke(left.id, by=BOB)
    assert_over(stage)


@pytest.mark.parametrize("end", ENDS)
async def test_f13_every_end_of_a_call_is_on_record_told_once_and_leaves_nothing(
    make_stage: MakeStage, end: str
) -> None:
    act, options, events, said = ENDS[end]
    stage = make_stage(**({"settings": options["settings"]} if "settings" in options else {}))

    await ends(stage, act, options, events, said)


async def test_f13_a_check_of_endings_notices_what_is_left_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Snapshots.dropped
    monkeypatch.setattr(
        Snapshots, "dropped",
        staticmethod(lambda *given: [step for step in real(*given) if not isinstance(step, DropThread)]),
    )

    await noticed(ends(stage, *ENDS["result"]))


async def test_f13_a_check_of_endings_notices_a_run_that_stays_listed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Snapshots, "dropped", staticmethod(lambda *_: []))

    await noticed(ends(stage, *ENDS["declined"]))


async def test_f13_a_decision_is_stored_with_who_made_it_and_why(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = Agent(
        "shop", model=Script([ONE], "done"), tools=[stage.tool(require_approval=True)], guard=stage.guard, memory=True
    )
    await paused(agent, run_id="r", thread_id="t")
    (request,) = stage.guard.pending()

    await agent.decline_tool_call("r", approver=BOB, reason="no refunds", channel="page")

    (vote,) = stage.guard.get(request.id).votes
    assert (vote.approver, vote.approve, vote.reason, vote.channel) == ("bob", False, "no refunds", "page")
    (answer,) = [one for one in await agent.recall("t", user="ana") if one["role"] == "tool"]
    assert answer["approval"] == {
        "approvalId": request.id, "approved": False, "id": "c1", "reason": "no refunds",
    }
    assert answer["state"] == "output-denied"
    assert (stage.stored(), len(stage.guard.pending())) == (0, 0)


@pytest.mark.parametrize("scene", ["own", "sub-agent"])
async def test_f13_a_model_that_fails_ends_its_run_and_the_failure_is_told(make_stage: MakeStage, scene: str) -> None:
    stage = make_stage()
    broken = Script([ONE], RuntimeError("no model"))
    tool = stage.tool(require_approval=True)
    agent = Agent("shop", model=broken, tools=[tool], guard=stage.guard)
    if scene == "sub-agent":
        sub = Agent("clerk", model=broken, tools=[tool], guard=stage.guard)
        agent = Agent(
            "shop", model=Script([("d1", "agent-clerk", {"prompt": "go"})], "done"), agents=[sub], guard=stage.guard
        )
    await paused(agent, run_id="r")
    told: Events = []

    async def reading() -> None:
        async for event in agent.approve_tool_call("r", approver=BOB):
            told.append(event)

    if scene == "own":
        with pytest.raises(RuntimeError):
            await reading()
        assert (types(told)[-1], told[-1]["payload"]["error"]["message"]) == ("error", "no model")
    else:
        await reading()
        assert [kind for kind in types(told) if kind in ("tool-error", "finish")] == ["tool-error", "finish"]
    assert stage.ran == [("delete", {"id": "1"})]
    assert trail(stage) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert_over(stage)


async def test_f13_a_tool_that_outlives_its_window_is_on_record_and_its_result_is_used(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)
    stage = make_stage(settings=Settings(run_within=1))
    model = Script([ONE], "done")
    seen: list[str] = []

    def slow(given: Any) -> Any:
        until(stage.store, stage.store.now() + 5)
        seen.extend(request.state for request in stage.guard.pending(states=["executing", "in_doubt"]))
        return {"ok": True}

    tool = stage.tool(require_approval=True, execute=slow)
    agent = Agent("shop", model=model, tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")

    result = await agent.approve_tool_call("r", approver=BOB)

    assert (result.status, seen) == ("success", ["in_doubt"])
    assert results(model.calls[-1]) == [("c1", '{"ok":true}')]
    assert trail(stage) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert_over(stage)


async def test_f13_a_sub_agents_conversation_ends_with_its_run_and_a_thread_stays(make_stage: MakeStage) -> None:
    stage = make_stage()
    base = inner(stage)
    agent = Agent("shop", model=base.model, agents=base._sub_agents.values(), guard=stage.guard, memory=True)
    await paused(agent, run_id="r", thread_id="t")

    await agent.approve_tool_call("r", approver=BOB)

    roles = [message["role"] for message in recalled(stage.store, thread_key("default", "ana", "t"))]
    kept = stage.store._connections.query(_threads)
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert kept == {thread_key("default", "ana", "t")}
    assert (stage.stored(), len(stage.guard.pending())) == (0, 0)


def _threads(connection: Any) -> set[bytes]:
    from sqlalchemy import text

    return {bytes(row[0]) for row in connection.execute(text("SELECT DISTINCT thread FROM hitl_guard_segments"))}
