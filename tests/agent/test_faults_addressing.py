"""F2: a decision reaches the call that was shown and no other. F10: nor does it lose its way among runs in runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, sessions
from hitl_guard.agent.state import Run, Snapshot, Way
from hitl_guard.errors import UnavailableError
from tests.agent.faults import ONE, TWO, Script, approvals, assert_over, code_of, noticed, paused, results
from tests.agent.processes import inner, one, two
from tests.agent.stage import Stage, label, read, types
from tests.support import BOB

MakeStage = Callable[..., Stage]


async def reaches_its_call(stage: Stage) -> None:
    """Two runs with equal tool-call ids, each with two calls of one tool: only what is named is decided."""
    agent = two(stage)
    for run_id in ("r1", "r2"):
        await paused(agent, run_id=run_id)
    asked = {(request.run_id, request.call_id): request for request in stage.guard.pending()}
    assert len(asked) == 4

    await agent.approve_tool_call("r2", asked["r2", "c1"].id, approver=BOB)
    first = list(stage.ran)
    await agent.decline_tool_call("r1", "c2", approver=BOB)

    assert first == [("delete", {"id": "1"})]
    assert stage.ran == first
    states = {place: stage.guard.get(request.id).state for place, request in asked.items()}
    assert states == {
        ("r1", "c1"): "pending", ("r1", "c2"): "denied", ("r2", "c1"): "succeeded", ("r2", "c2"): "pending",
    }


async def test_f02_a_check_of_addresses_notices_a_call_that_is_found_by_its_tools_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_name(snapshot: Snapshot, _call_id: str | None) -> Way:
        return next(way for way in snapshot.waiting() if way[-1][1].name == "delete")

    monkeypatch.setattr(sessions, "picked", by_name)

    await noticed(reaches_its_call(stage))


async def test_f02_a_decision_reaches_the_call_and_the_run_that_it_names(make_stage: MakeStage) -> None:
    await reaches_its_call(make_stage())


async def test_f02_a_name_of_something_else_decides_nothing(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = two(stage)
    for run_id in ("r1", "r2"):
        await paused(agent, run_id=run_id)
    foreign = next(request.id for request in stage.guard.pending() if request.run_id == "r2")
    requests = stage.guard.pending()

    codes = [
        await code_of(agent.approve_tool_call("r1", name, approver=BOB).result())
        for name in ("delete", "C1", "c1 ", "", "r1", foreign, requests[0].fingerprint, "c" * 10_000)
    ]

    assert codes == ["call-not-suspended"] * 8
    assert stage.ran == []
    assert [request.state for request in stage.guard.pending()] == ["pending"] * 4


async def test_f02_a_click_on_a_page_that_is_out_of_date_decides_nothing(make_stage: MakeStage) -> None:
    """The page shows a call that was decided since, and the run waits for another call of the same tool by now."""
    stage = make_stage()
    model = Script([ONE], [TWO], "done")
    agent = Agent("shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard)
    await paused(agent, run_id="r")
    (shown,) = stage.guard.pending()
    await agent.decline_tool_call("r", approver=BOB)

    by_id = await code_of(agent.approve_tool_call("r", shown.id, approver=BOB).result())
    by_call = await code_of(agent.approve_tool_call("r", "c1", approver=BOB).result())
    by_print = await code_of(agent.approve_tool_call("r", approver=BOB, fingerprint=shown.fingerprint).result())

    assert (by_id, by_call, by_print) == ("call-not-suspended", "call-not-suspended", "args-mismatch")
    assert stage.ran == []
    assert [request.call_id for request in stage.guard.pending()] == ["c2"]


async def test_f02_two_calls_with_one_id_are_told_apart_by_their_own_ids(make_stage: MakeStage) -> None:
    stage = make_stage()
    calls = [("same", "delete", {"id": "1"}), ("same", "delete", {"id": "2"})]
    agent = Agent(
        "shop", model=Script(calls, "done"), tools=[stage.tool(require_approval=True)], guard=stage.guard
    )
    asked = approvals(await read(agent.stream("go", user="ana", run_id="r")))

    both = await code_of(agent.approve_tool_call("r", "same", approver=BOB).result())
    await agent.decline_tool_call("r", asked[1]["approvalId"], approver=BOB)
    await agent.approve_tool_call("r", asked[0]["approvalId"], approver=BOB)

    assert both == "call-ambiguous"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f02_without_a_name_it_is_the_most_recent_pause_and_the_others_stay(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = two(stage)
    await paused(agent, run_id="r")

    await agent.approve_tool_call("r", approver=BOB)

    assert stage.ran == [("delete", {"id": "2"})]
    assert [request.call_id for request in stage.guard.pending()] == ["c1"]


# -- runs in runs ------------------------------------------------------------------------------------------------------


def nested(stage: Stage) -> Agent:
    """An agent that makes a gated call beside two delegations to one sub-agent; every gated call has the same id."""
    tool = stage.tool(require_approval=True)

    def calls(messages: list[dict[str, Any]]) -> list[Any]:
        which = messages[0]["content"]
        return [("c1", "delete", {"id": which}), ("c9", "delete", {"id": f"{which}b"})]

    sub = Agent("clerk", model=Script(calls, "inner done"), tools=[tool], guard=stage.guard)
    outer = [
        ("d1", "agent-clerk", {"prompt": "first"}), ("c1", "delete", {"id": "own"}),
        ("d2", "agent-clerk", {"prompt": "second"}),
    ]
    return Agent("shop", model=Script(outer, "done"), tools=[tool], agents=[sub], guard=stage.guard)


async def keeps_its_way(stage: Stage) -> None:
    """Each of five pauses is decided by its own id; nothing else is decided with it."""
    agent = nested(stage)
    model: Any = agent.model
    asked = approvals(await read(agent.stream("go", user="ana", run_id="r")))
    assert sorted((one_["toolCallId"], one_["args"]["id"]) for one_ in asked) == [
        ("c1", "own"), ("d1", "first"), ("d1", "firstb"), ("d2", "second"), ("d2", "secondb"),
    ]

    for number, one_ in enumerate(asked):
        waiting = len(stage.guard.pending())
        decide = agent.decline_tool_call if one_["args"]["id"] == "firstb" else agent.approve_tool_call
        await decide("r", one_["approvalId"], approver=BOB)
        assert len(stage.guard.pending()) == waiting - 1
        runs = [given["id"] for _, given in stage.ran]
        assert sorted(runs) == sorted(
            done["args"]["id"] for done in asked[: number + 1] if done["args"]["id"] != "firstb"
        )

    assert results(model.calls[-1]) == [("d1", "inner done"), ("c1", '{"ok":true}'), ("d2", "inner done")]
    assert_over(stage)


async def test_f10_a_check_of_runs_in_runs_notices_an_inner_run_with_its_supervisors_id(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Agent.new_run

    def same_id(agent: Agent, tenant: str, run_id: str | None = None, *, inside: str = "") -> Run:
        return real(agent, tenant, run_id or "r")

    monkeypatch.setattr(Agent, "new_run", same_id)

    await noticed(keeps_its_way(stage), error=UnavailableError)  # two runs want one place in the store


async def test_f10_every_pause_in_a_tree_of_runs_is_decided_by_its_own_id(make_stage: MakeStage) -> None:
    await keeps_its_way(make_stage())


async def test_f10_an_id_that_several_pauses_share_decides_none_of_them(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = nested(stage)
    await paused(agent, run_id="r")

    codes = [await code_of(agent.approve_tool_call("r", name, approver=BOB).result()) for name in ("d1", "c1", "c9")]

    assert codes == ["call-ambiguous"] * 3
    assert (stage.ran, len(stage.guard.pending())) == ([], 5)


async def test_f10_two_pauses_inside_one_sub_agent_are_two(make_stage: MakeStage) -> None:
    stage = make_stage()
    sub = Agent(
        "clerk", model=Script([ONE, TWO], "inner done"), tools=[stage.tool(require_approval=True)], guard=stage.guard
    )
    model = Script([("d1", "agent-clerk", {"prompt": "go"})], "done")
    agent = Agent("shop", model=model, agents=[sub], guard=stage.guard)
    asked = approvals(await read(agent.stream("go", user="ana", run_id="r")))

    first = await agent.approve_tool_call("r", asked[1]["approvalId"], approver=BOB)
    between = list(stage.ran)
    last = await read(agent.decline_tool_call("r", "d1", approver=BOB))

    assert [(one_["toolCallId"], one_["innerToolCallId"]) for one_ in asked] == [("d1", "c1"), ("d1", "c2")]
    assert (first.status, between) == ("suspended", [("delete", {"id": "2"})])
    assert [label(event) for event in last].count("tool-output<tool-output-denied>") == 1
    assert (types(last)[-1], stage.ran) == ("finish", between)
    assert_over(stage)


async def test_f10_the_inner_run_is_no_run_of_its_own_to_decide_and_the_outer_one_is(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = inner(stage)
    (sub,) = agent._sub_agents.values()
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()
    (listed,) = (await sub.list_suspended_runs(user="ana")).runs

    codes = [
        await code_of(who.approve_tool_call(run_id, approver=BOB).result())
        for who, run_id in ((agent, request.run_id), (sub, request.run_id), (sub, "r"))
    ]
    done = await agent.approve_tool_call("r", "d1", approver=BOB)

    assert (listed.run_id, request.run_id != "r") == (request.run_id, True)
    assert codes == ["run-not-found"] * 3
    assert (done.status, stage.ran) == ("success", [("delete", {"id": "1"})])
    assert_over(stage)


async def test_f10_equal_calls_of_two_runs_are_two_requests(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    for run_id in ("r1", "r2"):
        await paused(agent, run_id=run_id)

    await agent.approve_tool_call("r1", approver=BOB)

    assert stage.ran == [("delete", {"id": "1"})]
    assert [(request.run_id, request.state) for request in stage.guard.pending()] == [("r2", "pending")]
