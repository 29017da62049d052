"""F3: several calls of one run wait. What happens to one loses, overwrites or blocks none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, sessions
from hitl_guard.agent.drive import Drive
from hitl_guard.agent.events import Event
from hitl_guard.agent.snapshots import Found, run_key
from hitl_guard.errors import StoreUnavailableError
from hitl_guard.lifecycle import claim
from tests.agent import processes
from tests.agent.faults import (
    ONE,
    TWO,
    Meeting,
    Script,
    approvals,
    assert_over,
    code_of,
    codes_of,
    noticed,
    paused,
    results,
)
from tests.agent.processes import pair, two
from tests.agent.stage import Stage, only, read, types
from tests.databases import Database
from tests.support import BOB, CAROL
from tests.threats.processes import Processes

MakeStage = Callable[..., Stage]
DONE = [("c1", '{"ok":true}'), ("c2", '{"ok":true}')]
RUNS = [("delete", {"id": "1"}), ("delete", {"id": "2"})]

children = pytest.fixture(scope="module")(processes.started)


def overwriting(stage: Stage) -> None:
    """The fault: a snapshot is written whatever version is there."""
    steps: Any = stage.store._writer._steps._runs
    steps._next_run = steps._next_run.replace("version = :replaced", ":replaced = :replaced")


async def both_approved_at_once(stage: Stage) -> None:
    agent = two(stage)
    model: Any = agent.model
    run_id = await paused(agent)
    meeting = Meeting(stage, rounds=2)

    codes = await codes_of(*(
        agent.approve_tool_call(run_id, call, approver=by).result() for call, by in (("c1", BOB), ("c2", CAROL))
    ))

    assert meeting.versions == [1, 1, 1, 1]  # also what each call came to was merged into the same version
    assert sorted(stage.ran, key=str) == RUNS
    assert set(codes) <= {"ok", "run-busy"}
    assert [results(asked) for asked in model.calls] == [[], DONE]
    assert_over(stage)


async def test_f03_a_check_of_two_calls_at_once_notices_snapshots_that_overwrite_each_other(stage: Stage) -> None:
    overwriting(stage)

    await noticed(both_approved_at_once(stage))

    assert sorted(stage.ran, key=str) == RUNS


async def test_f03_two_calls_of_one_run_that_are_approved_at_once_are_both_kept(make_stage: MakeStage) -> None:
    await both_approved_at_once(make_stage())


async def test_f03_two_processes_that_run_two_calls_of_one_run_at_once_are_both_kept(
    make_stage: MakeStage, database: Database, children: Processes
) -> None:
    stage = make_stage()
    run_id = await paused(two(stage))
    rivals = []
    for call in ("c1", "c2"):  # each reads version 1, decides its own call, and stops with the tool behind it
        rivals.append(children.start(
            "play", stage.world, database.url, scene="two", do="approve", run_id=run_id, call=call, stop="effect"
        ))
        assert rivals[-1].hear() == "effect"
    assert [request.state for request in stage.guard.pending(states=["executing"])] == ["executing"] * 2
    _, row = stage.store.load_run(run_key("default", run_id))
    assert row is not None
    assert row.version == 1

    for rival in rivals:
        rival.say("go")
    told = [rival.hear() for rival in rivals]

    assert [one["ran"] for one in told] == [[["delete", {"id": "1"}]], [["delete", {"id": "2"}]]]
    assert sorted(one["models"] for one in told) == [0, 1]
    first, last = sorted(told, key=lambda one: int(one["models"]))
    assert (first["told"], last["told"]) == ("suspended", "success")
    assert last["types"].count("tool-result") == 2
    assert first["types"].count("tool-result") == 0
    assert_over(stage)


@pytest.mark.parametrize("order", [("c1", "c2"), ("c2", "c1")], ids=["in-order", "last-first"])
async def test_f03_answers_in_any_order_leave_the_other_call_waiting_and_results_come_in_call_order(
    make_stage: MakeStage, order: tuple[str, str]
) -> None:
    stage = make_stage()
    agent = two(stage)
    model: Any = agent.model
    run_id = await paused(agent)

    first = await agent.approve_tool_call(run_id, order[0], approver=BOB)
    (listed,) = (await agent.list_suspended_runs(user="ana")).runs
    events = await read(agent.decline_tool_call(run_id, order[1], approver=BOB, reason="not this"))

    assert (first.status, first.tool_results) == ("suspended", [])
    assert [call.tool_call_id for call in listed.tool_calls] == [order[1]]
    told = [(event["payload"]["toolCallId"], event["type"]) for event in events
            if event["type"] in ("tool-result", "tool-output-denied")]
    assert sorted(told) == told
    assert dict(told)[order[1]] == "tool-output-denied"
    assert dict(results(model.calls[-1])) == {order[0]: '{"ok":true}', order[1]: "not this"}
    assert len(model.calls) == 2
    assert_over(stage)


async def asked_anew_at_once(stage: Stage) -> None:
    """After a deployment with another tool, both calls are asked for anew; one process is slower to store that."""
    run_id = await paused(two(stage))
    tool = stage.tool(require_approval=True, description="Deletes for good.")
    fast, slow = (Agent("shop", model=Script([ONE, TWO], "done"), tools=[tool], guard=stage.guard) for _ in range(2))
    at_commit, go_on = asyncio.Event(), asyncio.Event()
    real = Drive.commit

    async def commit(drive: Drive) -> bool:
        if drive.root.agent is slow:
            at_commit.set()
            await go_on.wait()
        return await real(drive)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drive, "commit", commit)
        late = asyncio.create_task(read(slow.approve_tool_call(run_id, "c1", approver=BOB)))
        await at_commit.wait()
        events = await read(fast.approve_tool_call(run_id, "c2", approver=BOB))
        go_on.set()
        await late

    told = {ask["toolCallId"]: ask["approvalId"] for ask in approvals(events)}
    assert sorted(told) == ["c1", "c2"]
    (run,) = (await fast.list_suspended_runs(user="ana")).runs
    assert {call.tool_call_id: call.pause_id for call in run.tool_calls} == told
    for approval in told.values():
        assert await code_of(fast.approve_tool_call(run_id, approval, approver=BOB).result()) == "ok"
    assert stage.ran == RUNS


async def test_f03_a_check_of_calls_asked_anew_notices_a_process_that_puts_its_old_view_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Drive._replaced

    def everything(drive: Drive, found: Found, _asked: set[int]) -> Any:
        return real(drive, found, {id(call) for node in drive.root.tree() for call in node.run.calls})

    monkeypatch.setattr(Drive, "_replaced", everything)

    await noticed(asked_anew_at_once(stage))


async def test_f03_a_call_that_another_process_asked_anew_keeps_its_new_request(make_stage: MakeStage) -> None:
    await asked_anew_at_once(make_stage())


async def one_reading_overtakes_the_other(stage: Stage) -> None:
    """Both calls end at once in one process; what it read after the first is looked at after the second."""
    agent = two(stage)
    run_id = await paused(agent)
    for request in stage.guard.pending():
        stage.world.approve(request)
    real, held = Drive.land, list[tuple[Any, ...]]()

    def land(drive: Drive, *landing: Any) -> None:
        held.append(landing)
        if len(held) == 2:  # the newer reading is looked at first, then the older one
            for one in sorted(held, key=lambda one: -one[-1].found.version):
                real(drive, *one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drive, "land", land)
        result = await agent.continue_stream(run_id, user="ana")

    assert len(held) == 2
    assert result.status == "success"
    assert_over(stage)


async def test_f03_a_check_of_overtaken_readings_notices_when_their_order_does_not_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Drive.adopt

    def forgetful(drive: Drive, found: Found) -> None:
        drive._adopted = 0
        real(drive, found)

    monkeypatch.setattr(Drive, "adopt", forgetful)

    await noticed(one_reading_overtakes_the_other(stage))


async def test_f03_an_older_reading_that_comes_late_takes_the_turn_from_nobody(make_stage: MakeStage) -> None:
    await one_reading_overtakes_the_other(make_stage())


async def test_f03_calls_inside_two_sub_agents_that_are_approved_at_once_are_both_kept(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = pair(stage)
    model: Any = agent.model
    asked = approvals(await read(agent.stream("go", user="ana", run_id="r")))
    Meeting(stage)

    codes = await codes_of(*(
        agent.approve_tool_call("r", one["approvalId"], approver=BOB).result() for one in asked
    ))

    assert [one["toolCallId"] for one in asked] == ["d1", "d2"]
    assert set(codes) <= {"ok", "run-busy"}
    assert sorted(stage.ran, key=str) == RUNS
    assert [results(said) for said in model.calls] == [[], [("d1", "one done"), ("d2", "two done")]]
    assert_over(stage)


async def test_f03_a_call_that_ran_beside_a_waiting_one_keeps_its_result(make_stage: MakeStage) -> None:
    stage = make_stage()
    model = Script([("f1", "look", {"id": "9"}), ONE, ("f2", "look", {"id": "8"})], "done")
    agent = Agent(
        "shop", model=model, tools=[stage.tool(require_approval=True), stage.tool("look")], guard=stage.guard
    )
    run_id = await paused(agent)
    before = list(stage.ran)

    events = await read(agent.approve_tool_call(run_id, approver=BOB))

    assert sorted(before, key=str) == [("look", {"id": "8"}), ("look", {"id": "9"})]
    assert stage.ran == [*before, ("delete", {"id": "1"})]
    assert [_id(event) for event in events if event["type"] == "tool-result"] == ["f1", "c1", "f2"]
    assert [call for call, _ in results(model.calls[-1])] == ["f1", "c1", "f2"]


async def test_f03_a_call_that_cannot_start_now_stops_none_that_runs(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails for one call while the other's tool is at work: that one ends as if nothing had happened."""
    stage = make_stage()
    failed, real = asyncio.Event(), claim.claim
    loop = asyncio.get_running_loop()

    def failing(desk: Any, bound: Any, *rest: Any) -> Any:
        if bound.scope.call_id == "c2":
            loop.call_soon_threadsafe(failed.set)
            raise StoreUnavailableError("The database is gone.", detail="lost")
        return real(desk, bound, *rest)

    async def waiting(given: Any) -> Any:
        await failed.wait()
        stage.ran.append(("delete", given))
        return {"ok": True}

    model = Script([ONE, TWO], "done")
    agent = Agent(
        "shop", model=model, tools=[stage.tool(require_approval=True, execute=waiting)], guard=stage.guard
    )
    run_id = await paused(agent)
    for request in stage.guard.pending():
        stage.world.approve(request)
    with monkeypatch.context() as patch:
        patch.setattr(claim, "claim", failing)
        code = await code_of(agent.continue_stream(run_id, user="ana").result())
    first = list(stage.ran)

    again = await agent.continue_stream(run_id, user="ana")

    assert (code, first, again.status) == ("store-unavailable", RUNS[:1], "success")
    assert stage.ran == RUNS
    assert results(model.calls[-1]) == DONE
    assert_over(stage)


async def read_in_one_piece(stage: Stage) -> None:
    """A run ends elsewhere after its state was read here, and before its conversation was."""
    agent = two(stage)
    await paused(agent, run_id="r")
    await agent.approve_tool_call("r", "c1", approver=BOB)
    real = stage.store.segments

    def segments(*args: Any, **options: Any) -> Any:
        vars(stage.store).pop("segments")
        asyncio.run(agent.decline_tool_call("r", "c2", approver=CAROL).result())
        return real(*args, **options)

    vars(stage.store)["segments"] = segments

    code = await code_of(agent.approve_tool_call("r", "c2", approver=BOB).result())

    assert (code, stage.ran) == ("already-decided", RUNS[:1])
    assert_over(stage)


async def test_f03_a_check_of_readings_notices_two_that_are_not_of_one_moment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(agent: Agent, run_id: str, answer: Any) -> Any:
        found = sessions.loaded(agent, run_id, answer.tenant, answer.user)
        return found, agent.drive_of(found)

    monkeypatch.setattr(sessions, "_opened", at_once)

    await noticed(read_in_one_piece(stage))


async def test_f03_a_run_that_ends_elsewhere_while_it_is_read_is_not_taken_for_a_damaged_one(
    make_stage: MakeStage
) -> None:
    await read_in_one_piece(make_stage())


async def test_f03_a_second_run_with_the_id_of_a_waiting_one_does_not_take_its_place(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = two(stage)
    await paused(agent, run_id="r")
    before = stage.rows()

    code = await code_of(agent.generate("again", user="ana", run_id="r"))
    first = await agent.approve_tool_call("r", "c1", approver=BOB)
    events = await read(agent.approve_tool_call("r", "c2", approver=BOB))

    assert code != "ok"
    assert [len(row) for row in before] == [2]
    assert first.status == "suspended"
    assert types(events)[-1] == "finish"
    assert only(events, "finish")["output"]["text"] == "done"
    assert stage.ran == RUNS


def _id(event: Event) -> str:
    return str(event["payload"]["toolCallId"])
