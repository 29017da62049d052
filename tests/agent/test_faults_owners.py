"""F11: nobody lists, resumes, goes on with or decides a run that is somebody else's to list, resume or decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, sessions
from hitl_guard.agent.snapshots import Found, gone
from hitl_guard.models import Principal
from tests.agent.faults import ONE, Script, assert_over, code_of, noticed, paused
from tests.agent.processes import asking, inner, one
from tests.agent.stage import Stage, read
from tests.support import BOB, CAROL, document
from tests.threats.attacker import Attacker

MakeStage = Callable[..., Stage]
OSLO = {"location": "Oslo"}
LEADS = """\
version: 1
name: owners
default: not_applicable
rules:
  - id: deletes
    tools: [delete]
    effect: require_approval
    approvers: [lead]
"""


async def ask_of(stage: Stage) -> tuple[Agent, Agent]:
    """Let two runs of ana wait: one for a decision, one for an answer."""
    deciding, answering = one(stage), asking(stage)
    await paused(deciding, run_id="decide")
    await paused(answering, run_id="answer")
    stage.ran.clear()
    return deciding, answering


async def belongs_to_its_owner(stage: Stage) -> None:
    """Another user tries everything that ana may do."""
    deciding, answering = await ask_of(stage)

    codes = [await code_of(work) for work in (
        answering.resume_stream(OSLO, "answer", user="eve").result(),
        answering.resume_stream(OSLO, "answer", "c1", user=Principal("eve")).result(),
        answering.continue_stream("answer", user="eve").result(),
        deciding.continue_stream("decide", user="eve").result(),
        deciding.resume_stream({"approved": True}, "decide", user="eve", approver=BOB).result(),
        answering.approve_tool_call("answer", approver=Principal("eve")).result(),
        answering.decline_tool_call("answer", approver=Principal("eve")).result(),
    )]
    listed = [run for agent in (deciding, answering) for run in (await agent.list_suspended_runs(user="eve")).runs]

    assert codes == ["run-not-found"] * 7
    assert (listed, stage.ran, stage.stored()) == ([], [], 2)


async def test_f11_a_check_of_owners_notices_runs_that_anybody_may_load(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def anybodys(agent: Agent, run_id: str, tenant: str, _user: str | None) -> Found:
        found = agent.snapshots.load(tenant, run_id)
        if found is None:
            raise gone(run_id)
        return found

    monkeypatch.setattr(sessions, "loaded", anybodys)

    await noticed(belongs_to_its_owner(stage))

    assert ("weather", OSLO) in stage.ran


async def test_f11_another_user_can_neither_list_nor_answer_nor_go_on_with_a_run(make_stage: MakeStage) -> None:
    await belongs_to_its_owner(make_stage())


async def test_f11_another_agent_can_neither_list_nor_answer_nor_decide_a_run(make_stage: MakeStage) -> None:
    stage = make_stage()
    deciding, answering = await ask_of(stage)
    other = Agent(
        "other", model=Script("done"), tools=[*deciding.tools, *answering.tools], guard=stage.guard
    )
    (request,) = stage.guard.pending()

    codes = [await code_of(work) for work in (
        other.approve_tool_call("decide", approver=BOB).result(),
        other.approve_tool_call("decide", request.id, approver=BOB).result(),
        other.decline_tool_call("decide", approver=BOB).result(),
        other.resume_stream(OSLO, "answer", user="ana").result(),
        other.continue_stream("decide", user="ana").result(),
    )]

    assert codes == ["run-not-found"] * 5
    assert ((await other.list_suspended_runs(user="ana")).runs, stage.ran, stage.stored()) == ((), [], 2)
    assert stage.guard.get(request.id).state == "pending"


async def test_f11_another_tenant_can_neither_list_nor_answer_nor_decide_a_run(make_stage: MakeStage) -> None:
    stage = make_stage()
    deciding, answering = await ask_of(stage)
    foreign = Principal("bob", tenant="north", roles=("lead",))
    (request,) = stage.guard.pending()

    codes = [await code_of(work) for work in (
        deciding.approve_tool_call("decide", approver=foreign).result(),
        deciding.decline_tool_call("decide", request.id, approver=foreign).result(),
        answering.resume_stream(OSLO, "answer", user="ana", tenant="north").result(),
        deciding.continue_stream("decide", user="ana", tenant="north").result(),
    )]
    listed = [
        run for agent in (deciding, answering)
        for run in (await agent.list_suspended_runs(user="ana", tenant="north")).runs
    ]

    assert codes == ["run-not-found"] * 4
    assert (listed, stage.ran, stage.stored()) == ([], [], 2)
    with pytest.raises(Exception, match="no such request"):
        stage.guard.decide(request.id, approver=foreign, approve=True, fingerprint=request.fingerprint)
    assert stage.guard.get(request.id).state == "pending"


async def test_f11_a_foreign_run_and_one_that_never_was_look_the_same(make_stage: MakeStage) -> None:
    stage = make_stage()
    deciding, _ = await ask_of(stage)

    refusals = []
    for run_id in ("decide", "never"):
        with pytest.raises(Exception, match="no suspended run") as caught:
            await read(deciding.continue_stream(run_id, user="eve"))
        error: Any = caught.value
        refusals.append((type(error), error.code, error.detail, str(error)))

    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("who", [
    Principal("dora"), Principal("dora", roles=("leader",)), Principal("dora", roles=("LEAD",)),
], ids=["no-role", "another-role", "other-case"])
async def test_f11_a_person_without_the_right_decides_nothing_and_learns_nothing(
    make_stage: MakeStage, who: Principal
) -> None:
    stage = make_stage(policy=document(LEADS))
    agent = Agent("shop", model=Script([ONE], "done"), tools=[stage.tool()], guard=stage.guard)
    await paused(agent, run_id="r")

    before = await code_of(agent.approve_tool_call("r", approver=who).result())
    declined = await code_of(agent.decline_tool_call("r", approver=who).result())
    await agent.approve_tool_call("r", approver=BOB)

    assert (before, declined) == ("not-authorised", "not-authorised")
    assert stage.ran == [("delete", {"id": "1"})]
    assert [event["code"] for event in stage.world.audited("decision:refused")] == ["not-authorised"] * 2
    assert_over(stage)


async def test_f11_who_asked_cannot_approve_it_and_it_is_still_pending(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = inner(stage)
    person = Principal("ana", aliases=("ana@example.org", "a.nowak"))
    await agent.generate("go", user=person, run_id="r")
    (request,) = stage.guard.pending()
    selves = [
        Principal("ana"), Principal("ANA "), Principal("ana@example.org"), Principal("a.nowak"),
        Principal("other", aliases=("a.nowak",)), Principal("shop", kind="agent"), Principal("clerk", kind="agent"),
    ]

    codes = [await code_of(agent.approve_tool_call("r", approver=who).result()) for who in selves]

    assert codes == ["not-authorised"] * len(selves)
    assert (stage.ran, stage.guard.get(request.id).state) == ([], "pending")
    assert (await agent.approve_tool_call("r", approver=CAROL)).status == "success"
    assert_over(stage)


async def test_f11_who_asked_is_remembered_over_a_restart_with_all_his_names(make_stage: MakeStage) -> None:
    stage = make_stage()
    await one(stage).generate("go", user=Principal("ana", aliases=("a.nowak",)), run_id="r")

    code = await code_of(one(stage).approve_tool_call("r", approver=Principal("a.nowak")).result())

    assert (code, stage.ran) == ("not-authorised", [])


@pytest.mark.parametrize("column", ["owner", "run_id"])
async def test_f11_an_edited_list_shows_nobody_another_persons_run(
    make_stage: MakeStage, database: Any, column: str
) -> None:
    """The list is a cache: somebody with the database moves ana's run into eve's list, or renames it."""
    stage = make_stage()
    deciding, _ = await ask_of(stage)
    eves = one(stage)
    await eves.generate("go", user="eve", run_id="eves")
    attacker = Attacker(database)
    nodes = {row[0]: row for row in attacker.database.execute("SELECT run_id, owner FROM hitl_guard_run_nodes")}
    value = {"owner": nodes[b"eves"][1], "run_id": b"eves"}[column]
    attacker.database.execute(
        f"UPDATE hitl_guard_run_nodes SET {column} = :value WHERE run_id = :run", {"value": value, "run": b"decide"}
    )

    listed = (await deciding.list_suspended_runs(user="eve")).runs
    code = await code_of(deciding.continue_stream("decide", user="eve").result())

    assert [run.run_id for run in listed] == ["eves"]
    assert code == "run-not-found"
    assert (await deciding.approve_tool_call("decide", approver=BOB)).status == "success"
