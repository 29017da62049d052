"""F4: two decisions or answers at once. One starts the tool; the other is told, and takes nothing from the first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent.drive import Drive
from hitl_guard.agent.snapshots import Found
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.desk import new_id
from hitl_guard.models import Permit, Principal
from tests.agent import processes
from tests.agent.faults import Meeting, assert_over, codes_of, noticed, paused, results, trail
from tests.agent.processes import asking, one
from tests.agent.stage import Stage
from tests.databases import Database
from tests.support import BOB, CAROL
from tests.threats.gates import LIMIT_S
from tests.threats.processes import Processes

MakeStage = Callable[..., Stage]
APPROVED = ["request:approved", "grant:claimed", "call:succeeded"]
DENIED = ["request:denied"]
OSLO = {"location": "Oslo"}

children = pytest.fixture(scope="module")(processes.started)


def meet_at_the_claim(monkeypatch: pytest.MonkeyPatch, real: Callable[..., Any]) -> None:
    """Let two claims begin only when both have passed every check before."""
    barrier = threading.Barrier(2)
    first: list[bool] = []

    def met(*args: Any) -> Permit | None:
        if len(first) < 2:
            first.append(True)
            barrier.wait(LIMIT_S)
        permit: Permit | None = real(*args)
        return permit

    monkeypatch.setattr(claim, "claim", met)


def unclaimed(desk: Any, _bound: Any, _reading: Any, record: Any) -> Permit:
    """The fault: a permit on what was read, without the one insert that only one can win."""
    return claim._permit(desk, record, new_id(), record.last)


async def approved_twice(stage: Stage) -> None:
    agent = one(stage)
    model: Any = agent.model
    run_id = await paused(agent)
    meeting = Meeting(stage)

    codes = await codes_of(*(agent.approve_tool_call(run_id, approver=BOB).result() for _ in range(2)))

    assert meeting.versions == [1, 1]
    assert stage.ran == [("delete", {"id": "1"})]
    assert codes.count("ok") == 1
    assert set(codes) <= {"ok", "run-busy", "run-not-found", "already-decided"}
    assert [results(asked) for asked in model.calls] == [[], [("c1", '{"ok":true}')]]
    assert trail(stage) == APPROVED
    assert_over(stage)


async def test_f04_a_check_of_double_approval_notices_a_claim_that_is_no_insert(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_the_claim(monkeypatch, unclaimed)

    await noticed(approved_twice(stage))

    assert stage.ran == [("delete", {"id": "1"})] * 2


async def test_f04_of_two_approvals_of_one_call_at_once_one_runs_it_and_the_other_is_told(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_the_claim(monkeypatch, claim.claim)

    await approved_twice(make_stage())


async def test_f04_two_people_who_approve_one_call_at_once_run_it_once(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    run_id = await paused(agent)
    meeting = Meeting(stage, "load_run", "load")

    codes = await codes_of(*(agent.approve_tool_call(run_id, approver=by).result() for by in (BOB, CAROL)))

    assert meeting.versions == [1, 1]
    assert sorted(codes) == ["already-decided", "ok"]
    assert stage.ran == [("delete", {"id": "1"})]
    assert [event["code"] for event in stage.world.audited("decision:refused")] == ["already-decided"]
    assert_over(stage)


@pytest.mark.parametrize("people", [("bob", "bob"), ("bob", "carol")], ids=["one-person", "two-people"])
async def test_f04_two_processes_that_approve_one_call_at_once_run_it_once(
    make_stage: MakeStage, database: Database, children: Processes, people: tuple[str, str]
) -> None:
    stage = make_stage()
    run_id = await paused(one(stage))
    rivals = [
        children.start("play", stage.world, database.url, scene="one", do="approve", run_id=run_id, by=by, stop="read")
        for by in people
    ]
    assert [rival.hear() for rival in rivals] == ["read", "read"]

    for rival in rivals:
        rival.say("go")
    told = [rival.hear() for rival in rivals]

    assert [start for one_ in told for start in one_["ran"]] == [["delete", {"id": "1"}]]
    assert sorted(one_["models"] for one_ in told) == [0, 1]
    winner, loser = sorted(told, key=lambda one_: -one_["models"])
    assert (winner["told"], winner["types"].count("tool-result")) == ("success", 1)
    assert loser["told"] in ("already-decided", "run-busy", "run-not-found", "call-not-suspended")
    assert trail(stage) == APPROVED
    assert_over(stage)


@pytest.mark.parametrize("first", [True, False], ids=["approve-first", "decline-first"])
async def test_f04_of_approve_and_decline_at_once_one_wins_and_the_other_is_told(
    make_stage: MakeStage, first: bool
) -> None:
    stage = make_stage()
    agent = one(stage)
    model: Any = agent.model
    run_id = await paused(agent)
    ways = [agent.approve_tool_call(run_id, approver=BOB), agent.decline_tool_call(run_id, approver=CAROL)]
    meeting = Meeting(stage, "load_run", "load")

    codes = await codes_of(*(way.result() for way in (ways if first else ways[::-1])))

    approved = codes[0 if first else 1] == "ok"
    assert meeting.versions == [1, 1]
    assert sorted(codes) == ["already-decided", "ok"]
    assert stage.ran == ([("delete", {"id": "1"})] if approved else [])
    said = '{"ok":true}' if approved else "Tool call was not approved by the user"
    assert results(model.calls[-1]) == [("c1", said)]
    assert trail(stage) == (APPROVED if approved else DENIED)
    assert_over(stage)


@pytest.mark.parametrize("approve", [True, False], ids=["decline-late", "approve-late"])
async def test_f04_a_decision_whose_run_ended_before_its_conversation_was_read_is_told_who_was_first(
    make_stage: MakeStage, approve: bool
) -> None:
    stage = make_stage()
    agent, rival = one(stage), one(stage)
    run_id = await paused(agent)
    real = agent.drive_of

    def overtaken(found: Found) -> Drive:
        decide = rival.sync.approve_tool_call if approve else rival.sync.decline_tool_call
        decide(run_id, approver=BOB).result()
        return real(found)

    agent.drive_of = overtaken  # type: ignore[method-assign]
    late = agent.decline_tool_call if approve else agent.approve_tool_call

    assert await codes_of(late(run_id, approver=CAROL).result()) == ["already-decided"]
    assert trail(stage) == (APPROVED if approve else DENIED)
    assert await codes_of(agent.continue_stream(run_id, user="ana").result()) == ["run-not-found"]
    assert_over(stage)


async def test_f04_of_approve_and_decline_in_two_processes_one_wins_and_the_other_is_told(
    make_stage: MakeStage, database: Database, children: Processes
) -> None:
    stage = make_stage()
    run_id = await paused(one(stage))
    rivals = [
        children.start("play", stage.world, database.url, scene="one", do=do, run_id=run_id, by=by, stop="read")
        for do, by in (("approve", "bob"), ("decline", "carol"))
    ]
    assert [rival.hear() for rival in rivals] == ["read", "read"]

    for rival in rivals:
        rival.say("go")
    approve, decline = (rival.hear() for rival in rivals)

    approved = approve["told"] == "success"
    assert (approve["told"], decline["told"]) == (
        ("success", "already-decided") if approved else ("already-decided", "success")
    )
    assert approve["ran"] + decline["ran"] == ([["delete", {"id": "1"}]] if approved else [])
    assert trail(stage) == (APPROVED if approved else DENIED)
    assert_over(stage)


async def continued_twice(stage: Stage) -> None:
    agent = one(stage)
    run_id = await paused(agent)
    (request,) = stage.guard.pending()
    stage.world.approve(request)
    meeting = Meeting(stage)

    codes = await codes_of(*(agent.continue_stream(run_id, user="ana").result() for _ in range(2)))

    assert meeting.versions == [1, 1]
    assert stage.ran == [("delete", {"id": "1"})]
    assert codes.count("ok") == 1
    assert set(codes) <= {"ok", "run-busy", "run-not-found"}
    assert_over(stage)


async def test_f04_a_check_of_two_that_go_on_notices_a_claim_that_is_no_insert(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_the_claim(monkeypatch, unclaimed)

    await noticed(continued_twice(stage))


async def test_f04_of_two_that_go_on_with_a_decision_made_elsewhere_one_does(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_the_claim(monkeypatch, claim.claim)

    await continued_twice(make_stage())


async def resumed_twice(stage: Stage) -> None:
    agent = asking(stage)
    run_id = await paused(agent)
    meeting = Meeting(stage)

    codes = await codes_of(*(agent.resume_stream(OSLO, run_id, user="ana").result() for _ in range(2)))

    assert meeting.versions == [1, 1]
    assert stage.ran == [("weather", None), ("weather", OSLO)]
    assert codes.count("ok") == 1
    assert set(codes) <= {"ok", "call-not-suspended", "run-not-found"}
    assert_over(stage)


async def test_f04_a_check_of_double_resumption_notices_an_answer_that_nobody_takes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(2)
    monkeypatch.setattr(Drive, "take_answer", lambda *_: barrier.wait(LIMIT_S))

    await noticed(resumed_twice(stage))

    assert stage.ran.count(("weather", OSLO)) == 2


async def test_f04_of_two_answers_to_one_suspension_at_once_one_starts_the_tool(make_stage: MakeStage) -> None:
    await resumed_twice(make_stage())


async def test_f04_two_processes_that_answer_one_suspension_start_its_tool_once(
    make_stage: MakeStage, database: Database, children: Processes
) -> None:
    stage = make_stage()
    run_id = await paused(asking(stage))
    rivals = [
        children.start(
            "play", stage.world, database.url, scene="asking", do="resume", run_id=run_id, data=OSLO, stop="read"
        )
        for _ in range(2)
    ]
    assert [rival.hear() for rival in rivals] == ["read", "read"]

    for rival in rivals:
        rival.say("go")
    told = [rival.hear() for rival in rivals]

    assert [start for one_ in told for start in one_["ran"]] == [["weather", OSLO]]
    assert sorted(one_["models"] for one_ in told) == [0, 1]
    assert_over(stage)


async def test_f04_an_approver_may_repeat_his_decision_and_nothing_runs_again(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    run_id = await paused(agent)
    (request,) = stage.guard.pending()
    who = Principal("bob")

    first = await agent.approve_tool_call(run_id, request.id, approver=who)
    codes = await codes_of(
        agent.approve_tool_call(run_id, request.id, approver=who).result(),
        agent.decline_tool_call(run_id, request.id, approver=CAROL).result(),
        agent.continue_stream(run_id, user="ana").result(),
    )

    assert first.status == "success"
    assert codes == ["run-not-found"] * 3
    assert stage.ran == [("delete", {"id": "1"})]
