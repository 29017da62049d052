"""Suspended runs are found in the store: from any process, by those they belong to, and decided from there."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from datetime import UTC, datetime
from typing import Any

import pytest

from hitl_guard.agent import Agent, SuspendedRuns
from hitl_guard.agent.snapshots import owner_key
from hitl_guard.agent.tools import APPROVAL_RESUME_SCHEMA
from hitl_guard.errors import AgentError, ConfigurationError, DecisionError
from hitl_guard.models import Principal
from tests.support import ANA, until

from .elsewhere import elsewhere, in_another_process
from .stage import BOB, CITY_SCHEMA, Stage

DELETE = [("call-1", "delete", {"id": "7"})]
ASK: list[tuple[str, str, Any]] = [("call-1", "weather", {})]
ROME = {"location": "Rome"}
NORTH = Principal("nora", tenant="north")


def gated(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent with memory whose every run pauses at once, for each of the turns."""
    return stage.agent(*turns, tools=[stage.tool(require_approval=True)], memory=True, **options)


def ids(page: SuspendedRuns) -> list[str]:
    return [run.run_id for run in page.runs]


def edit(stage: Stage, sql: str, *values: Any) -> None:
    """Change the stage's database as somebody who has it, but no key."""
    with sqlite3.connect(str(stage.store._dialect.url.database)) as connection:
        connection.execute(sql, values)
    connection.close()


# -- M57 -------------------------------------------------------------------------------------------------------------


async def test_m57_another_process_finds_a_pending_run_with_nothing_in_memory(stage: Stage) -> None:
    here = gated(stage, DELETE)
    paused = await here.generate("go", user="ana", thread_id="t")

    with elsewhere(stage) as there:
        agent = gated(there, "done")
        (found,) = (await agent.list_suspended_runs(user="ana")).runs
        result = await agent.approve_tool_call(found.run_id, found.tool_calls[0].tool_call_id, approver=BOB)

    assert found.run_id == paused.run_id
    assert (result.status, result.text, stage.ran) == ("success", "done", [("delete", {"id": "7"})])
    assert (await here.list_suspended_runs(user="ana")).total == 0


async def test_m57_a_real_second_process_finds_decides_and_ends_it(stage: Stage) -> None:
    paused = await gated(stage, DELETE).generate("go", user="ana")

    told = in_another_process(stage, "done")

    assert (told["run_id"], told["listed"], told["status"]) == (paused.run_id, ["delete"], "success")
    assert (told["ran"], stage.stored()) == ([["delete", {"id": "7"}]], 0)


async def test_m57_a_question_is_found_and_answered_from_another_process(stage: Stage) -> None:
    await stage.agent(ASK, tools=[stage.asking()]).generate("go", user="ana")

    with elsewhere(stage) as there:
        agent = there.agent("done", tools=[there.asking()])
        (found,) = (await agent.list_suspended_runs(user="ana")).runs
        result = await agent.resume_generate(ROME, found.run_id, user="ana")

    assert (result.status, stage.ran) == ("success", [("weather", None), ("weather", ROME)])


# -- M58 -------------------------------------------------------------------------------------------------------------


async def test_m58_a_run_is_listed_with_its_calls_and_what_each_of_them_waits_for(stage: Stage) -> None:
    agent = stage.agent(
        [("gated", "delete", {"id": "7"}), ("question", "weather", {})], memory=True,
        tools=[stage.tool(require_approval=True), stage.asking()],
    )
    before = stage.store.now()
    paused = await agent.generate("go", user="ana", thread_id="t", resource_id="r")

    page = await agent.list_suspended_runs(user="ana")

    (run,) = page.runs
    ask, question = sorted(run.tool_calls, key=lambda call: call.tool_call_id)
    assert (page.total, page.damaged) == (1, ())
    assert (run.run_id, run.status, run.thread_id, run.resource_id) == (paused.run_id, "suspended", "t", "r")
    assert datetime.fromtimestamp(before / 1000, UTC) <= run.suspended_at
    assert run.suspended_at <= datetime.fromtimestamp(stage.store.now() / 1000, UTC)
    told = {pause["toolCallId"]: pause for pause in paused.pauses}
    assert dataclasses.asdict(ask) == {
        "tool_call_id": "gated", "tool_name": "delete", "args": {"id": "7"}, "requires_approval": True,
        "suspend_payload": None, "resume_schema": APPROVAL_RESUME_SCHEMA, "pause_id": told["gated"]["approvalId"],
        "fingerprint": told["gated"]["fingerprint"],
    }
    assert (question.tool_call_id, question.tool_name, question.suspend_payload, question.pause_id) == (
        "question", "weather", {"question": "Which city?"}, told["question"]["suspensionId"]
    )
    assert json.loads(question.resume_schema or "") == CITY_SCHEMA


async def test_m58_a_run_that_a_process_goes_on_with_is_not_listed_and_one_that_it_left_is_interrupted(
    stage: Stage
) -> None:
    agent = stage.agent(DELETE, "done", "done after all", tools=[stage.tool(require_approval=True)])
    run_id = (await agent.generate("go", user="ana")).run_id
    stream = agent.approve_tool_call(run_id, approver=BOB)

    async for event in stream:
        if event["type"] == "step-start":
            break
    meanwhile = await agent.list_suspended_runs(user="ana")
    await stream.aclose()
    (left,) = (await agent.list_suspended_runs(user="ana")).runs
    result = await agent.continue_generate(run_id, user="ana")

    assert (meanwhile.runs, meanwhile.total) == ((), 0)
    assert (left.run_id, left.status, left.tool_calls) == (run_id, "interrupted", ())
    assert (result.status, stage.ran, stage.stored()) == ("success", [("delete", {"id": "7"})], 0)


async def test_m58_a_stored_run_that_does_not_verify_is_named_as_damaged_and_no_other_is_lost(stage: Stage) -> None:
    agent = gated(stage, DELETE, DELETE)
    bad, good = [(await agent.generate("go", user="ana")).run_id for _ in range(2)]
    edit(stage, "UPDATE hitl_guard_runs SET body = CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB)", bad, bad[::-1])

    page = await agent.list_suspended_runs(user="ana")

    assert (ids(page), page.total, page.damaged) == ([good], 1, ((bad, "invalid-signature (mismatch)"),))


# -- M59 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approve", [True, False], ids=["approve", "decline"])
async def test_m59_what_requires_approval_is_approved_or_declined(stage: Stage, approve: bool) -> None:
    agent = gated(stage, DELETE, "done")
    await agent.generate("go", user="ana")
    (run,) = (await agent.list_suspended_runs(user="ana")).runs
    decide = agent.approve_tool_call if approve else agent.decline_tool_call

    assert run.tool_calls[0].requires_approval is True
    with pytest.raises(DecisionError):
        await agent.resume_generate(ROME, run.run_id, user="ana", approver=BOB)
    result = await decide(run.run_id, approver=BOB)

    assert (result.status, len(stage.ran)) == ("success", int(approve))


async def test_m59_what_requires_no_approval_is_resumed_with_data(stage: Stage) -> None:
    agent = stage.agent(ASK, "done", tools=[stage.asking()])
    await agent.generate("go", user="ana")
    (run,) = (await agent.list_suspended_runs(user="ana")).runs

    assert run.tool_calls[0].requires_approval is False
    with pytest.raises(AgentError) as refused:
        await agent.approve_tool_call(run.run_id, approver=ANA)
    result = await agent.resume_generate(ROME, run.run_id, user="ana")

    assert (refused.value.code, result.status) == ("invalid-resume-data", "success")


# -- M60 -------------------------------------------------------------------------------------------------------------


async def three(stage: Stage) -> tuple[Agent, dict[str, str], list[int]]:
    """Return an agent with three suspended runs, their ids by thread, and moments before, between and after them."""
    agent = gated(stage, *[DELETE] * 3)
    found, moments = {}, [stage.store.now()]
    for thread, resource in (("t1", "r1"), ("t2", "r1"), ("t3", "r2")):
        until(stage.store, moments[-1] + 2)
        paused = await agent.generate("go", user="ana", thread_id=thread, resource_id=resource)
        found[thread] = paused.run_id
        until(stage.store, stage.store.now() + 2)
        moments.append(stage.store.now())
    return agent, found, moments


async def test_m60_runs_are_filtered_by_thread_resource_and_time_and_paged_with_the_newest_first(stage: Stage) -> None:
    agent, run, moments = await three(stage)
    start, first, second, end = moments
    day = datetime.fromtimestamp(first / 1000, UTC)
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({}, "t3 t2 t1", 3),
        ({"thread_id": "t1"}, "t1", 1),
        ({"resource_id": "r1"}, "t2 t1", 2),
        ({"thread_id": "t3", "resource_id": "r1"}, "", 0),
        ({"thread_id": "T1"}, "", 0),
        ({"per_page": 2, "page": 0}, "t3 t2", 3),
        ({"per_page": 2, "page": 1}, "t1", 3),
        ({"per_page": 2, "page": 9}, "", 3),
        ({"per_page": 1}, "t3 t2 t1", 3),
        ({"page": 1}, "t3 t2 t1", 3),
        ({"resource_id": "r1", "per_page": 1, "page": 1}, "t1", 2),
        ({"from_date": end}, "", 0),
        ({"to_date": start}, "", 0),
        ({"from_date": start, "to_date": end}, "t3 t2 t1", 3),
        ({"from_date": first, "to_date": second}, "t2", 1),
        ({"from_date": day}, "t3 t2", 2),
        ({"to_date": day}, "t1", 1),
    ]

    for filters, threads, total in cases:
        page = await agent.list_suspended_runs(user="ana", **filters)

        assert (ids(page), page.total) == ([run[thread] for thread in threads.split()], total), filters


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"per_page": 0, "page": 0}, "per-page"), ({"per_page": -1}, "per-page"), ({"per_page": 1.5}, "per-page"),
        ({"per_page": True, "page": 0}, "per-page"), ({"per_page": "2"}, "per-page"), ({"page": -1}, "page"),
        ({"page": 0.5}, "page"), ({"page": False}, "page"), ({"from_date": "yesterday"}, "date"),
        ({"to_date": True}, "date"), ({"to_date": 1.5}, "date"),
    ],
    ids=str,
)
async def test_m60_a_page_or_a_date_that_cannot_be_used_is_an_error(
    stage: Stage, wrong: dict[str, Any], detail: str
) -> None:
    with pytest.raises(AgentError) as refused:
        await gated(stage).list_suspended_runs(user="ana", **wrong)

    assert (refused.value.code, refused.value.detail) == ("invalid-page", detail)


# -- M61 -------------------------------------------------------------------------------------------------------------


async def test_m61_each_agent_sees_its_own_run_and_no_other(stage: Stage) -> None:
    top = stage.chain(3, stage.tool(require_approval=True))
    middle = top.sub_agent("agent-level-1")
    assert middle is not None
    innermost = middle.sub_agent("agent-level-0")
    assert innermost is not None

    paused = await top.generate("go", user="ana", resource_id="r")

    (outer,), (between,), (inner,) = [
        (await agent.list_suspended_runs(user="ana")).runs for agent in (top, middle, innermost)
    ]
    assert outer.run_id == paused.run_id
    assert len({outer.run_id, between.run_id, inner.run_id}) == 3
    assert [run.tool_calls[0].tool_call_id for run in (outer, between, inner)] == ["deleg-2", "deleg-1", "inner"]
    assert {(run.tool_calls[0].tool_name, run.tool_calls[0].pause_id) for run in (outer, between, inner)} == {
        ("delete", outer.tool_calls[0].pause_id)
    }
    assert [run.resource_id for run in (outer, between, inner)] == [
        "r", "r-level-1", "r-level-1-level-0"
    ]
    with pytest.raises(AgentError) as refused:
        await innermost.approve_tool_call(inner.run_id, approver=BOB)
    assert (refused.value.code, stage.ran) == ("run-not-found", [])


async def test_m61_a_foreign_user_agent_or_tenant_neither_sees_nor_resumes_a_run(stage: Stage) -> None:
    agent = stage.agent(ASK, "done", tools=[stage.asking()])
    other = stage.agent(id="other", tools=[stage.asking()])
    run_id = (await agent.generate("go", user="ana")).run_id
    strangers: list[tuple[Agent, dict[str, Any]]] = [
        (agent, {"user": "eve"}), (agent, {"user": "Ana"}), (agent, {"user": "ana "}),
        (agent, {"user": "ana", "tenant": "north"}), (other, {"user": "ana"}),
        (agent, {"user": Principal("ana", tenant="north"), "tenant": "north"}),
    ]

    for there, who in strangers:
        assert (await there.list_suspended_runs(**who)).total == 0
        for attempt in (there.resume_generate(ROME, run_id, **who), there.continue_generate(run_id, **who)):
            with pytest.raises(AgentError) as refused:
                await attempt
            assert refused.value.code == "run-not-found"

    assert (stage.ran, ids(await agent.list_suspended_runs(user="ana"))) == ([("weather", None)], [run_id])


async def test_m61_a_principal_of_another_tenant_is_never_taken_for_a_user_of_this_one(stage: Stage) -> None:
    agent = stage.agent(ASK, tools=[stage.asking()], memory=True)
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    namesake = Principal("ana", tenant="north")

    with pytest.raises(ConfigurationError, match="tenants"):
        await agent.list_suspended_runs(user=namesake)
    with pytest.raises(ConfigurationError, match="tenants"):
        await agent.recall("t", user=namesake, resource_id="ana")
    for attempt in (agent.resume_stream, agent.continue_stream):
        given = (ROME, run_id) if attempt == agent.resume_stream else (run_id,)
        with pytest.raises(ConfigurationError, match="tenants"):
            await attempt(*given, user=namesake)
    with pytest.raises(ConfigurationError, match="tenants"):
        await agent.send_tool_approval(thread_id="t", user=namesake, approved=True, approver=BOB)

    assert (stage.ran, stage.stored()) == ([("weather", None)], 1)


async def test_m61_a_question_is_answered_by_whom_it_was_asked_and_by_no_other_principal(stage: Stage) -> None:
    agent = stage.agent(ASK, "done", tools=[stage.asking(resume_schema=None)])
    run_id = (await agent.generate("go", user="ana")).run_id

    for stranger in (BOB, NORTH):
        for decide in (agent.approve_tool_call, agent.decline_tool_call):
            with pytest.raises(AgentError) as refused:
                await decide(run_id, approver=stranger)
            assert refused.value.code == "run-not-found"

    assert (stage.ran, stage.stored()) == ([("weather", None)], 1)


async def test_m61_an_entitled_approver_of_another_agent_or_tenant_decides_nothing(stage: Stage) -> None:
    agent, other = gated(stage, DELETE), gated(stage, id="other")
    run_id = (await agent.generate("go", user="ana")).run_id

    for there, approver in ((other, BOB), (agent, NORTH)):
        with pytest.raises(AgentError) as refused:
            await there.approve_tool_call(run_id, approver=approver)
        assert refused.value.code == "run-not-found"
    with pytest.raises(DecisionError):
        await agent.approve_tool_call(run_id, approver=ANA)

    assert (stage.ran, ids(await agent.list_suspended_runs(user="ana"))) == ([], [run_id])


async def test_m61_nobody_owns_a_run_by_leaving_the_user_out_or_by_editing_the_list(stage: Stage) -> None:
    agent = gated(stage, DELETE)
    await agent.generate("go", user="ana")
    edit(stage, "UPDATE hitl_guard_run_nodes SET owner = ?", owner_key("default", agent.id, "eve"))

    assert (await agent.list_suspended_runs(user="eve")).total == 0
    with pytest.raises(TypeError, match="user"):
        await agent.list_suspended_runs()  # type: ignore[call-arg]
    nobodies: list[Any] = ["", None]
    for nobody in nobodies:
        with pytest.raises(ConfigurationError):
            await agent.list_suspended_runs(user=nobody)
