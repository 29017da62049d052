"""Where a suspended run is kept, what is kept of it and for how long; and the two ways in which a run pauses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from hitl_guard import Guard
from hitl_guard.agent import Agent
from hitl_guard.errors import AgentError, ConfigurationError, DecisionError
from hitl_guard.testing import ScriptedModel, UnsafeMemoryStore
from tests.support import Settings, until

from .elsewhere import elsewhere, in_another_process
from .stage import BOB, Event, Stage, only, read, types

DELETE = [("call-1", "delete", {"id": "7"})]
MakeStage = Callable[..., Stage]

WAYS: dict[str, Callable[[Agent, str], Any]] = {
    "approve": lambda agent, run: agent.approve_tool_call(run, approver=BOB),
    "decline": lambda agent, run: agent.decline_tool_call(run, approver=BOB),
    "resume": lambda agent, run: agent.resume_stream({"location": "Rome"}, run, user="ana"),
    "continue": lambda agent, run: agent.continue_stream(run, user="ana"),
    "approve-generate": lambda agent, run: agent.approve_tool_call_generate(run, approver=BOB),
    "decline-generate": lambda agent, run: agent.decline_tool_call_generate(run, approver=BOB),
    "resume-generate": lambda agent, run: agent.resume_generate({"location": "Rome"}, run, user="ana"),
    "continue-generate": lambda agent, run: agent.continue_generate(run, user="ana"),
}


def deleting(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent that deletes one thing with a person's approval and then says these turns."""
    return stage.agent(DELETE, *(turns or ("done",)), tools=[stage.tool(require_approval=True)], **options)


def rows(stage: Stage) -> dict[str, int]:
    """Return how many rows of suspended runs and of conversations the store holds."""
    def count(connection: Any) -> dict[str, int]:
        return {
            name: connection.scalar(text(f"SELECT COUNT(*) FROM hitl_guard_{name}"))
            for name in ("runs", "run_nodes", "segments")
        }

    return stage.store._connections.query(count)


NOTHING = {"runs": 0, "run_nodes": 0, "segments": 0}


def body(stage: Stage) -> dict[str, Any]:
    """Return the one stored snapshot."""
    ((_, stored),) = stage.rows()
    snapshot: dict[str, Any] = json.loads(stored)
    return snapshot


# -- M1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_m01_without_a_stored_snapshot_a_resume_fails(stage: Stage, way: str) -> None:
    agent = deleting(stage)
    ended = await agent.generate("go", user="ana")
    await agent.approve_tool_call_generate(ended.run_id, approver=BOB)
    never_paused = await stage.agent("hello").generate("go", user="ana")

    for run_id in ("nope", "", "x" * 65, ended.run_id, never_paused.run_id):
        with pytest.raises(AgentError) as refused:
            await WAYS[way](agent, run_id)
        assert (refused.value.code, vars(refused.value)["run_id"]) == ("run-not-found", run_id)

    assert len(stage.ran) == 1


def test_m01_an_agent_without_the_guards_own_store_cannot_be_made(stage: Stage) -> None:
    options: dict[str, Any] = {"model": ScriptedModel()}

    with UnsafeMemoryStore() as other, pytest.raises(ConfigurationError, match="stored together"):
        Agent("shop", guard=stage.guard, store=other, **options)
    with pytest.raises(ConfigurationError, match="environment"):
        Agent("shop", **options)
    without: Any = None
    with pytest.raises(ConfigurationError, match="store"):
        Guard(policy="not-applicable", keyring=stage.world.keyring, store=without)
    assert Agent("shop", guard=stage.guard, store=stage.store, **options).guard is stage.guard


# -- M2 --------------------------------------------------------------------------------------------------------------


async def test_m02_the_snapshot_holds_what_resuming_needs_and_nothing_else(stage: Stage) -> None:
    agent = deleting(stage, instructions="Be careful.", settings={"temperature": 0})

    paused = await agent.generate("Please remove it.", user="ana", request_context={"shop": "north"})
    stored = body(stage)
    (call,) = stored["root"]["calls"]

    assert stored.keys() == {"created_at", "format", "options", "owner", "root", "said", "since", "suspended_at"}
    assert (stored["said"], stored["since"]) == ([], {paused.pauses[0]["approvalId"]: 1})
    assert stored["options"] == {
        "hooks": False, "lost": False, "max_steps": 50, "require_approval": False, "settings": {"temperature": 0},
    }
    assert stored["owner"]["context"] == {"shop": "north"}
    assert stored["root"].keys() == {
        "agent", "base", "calls", "digest", "first", "id", "lease", "message_id", "private", "skipped", "step",
        "stored", "text", "thread", "usage",
    }
    assert call == {
        "args": {"id": "7"}, "asked": True, "child": None, "claim_id": None, "edited": None,
        "fingerprint": call["fingerprint"],
        "id": "call-1", "name": "delete", "occurrence": 0, "outcome": None,
        "request_id": paused.pauses[0]["approvalId"], "suspension": None,
    }
    for foreign in ("Please remove it.", "Be careful.", paused.pauses[0]["token"], "input_schema", "tool_calls"):
        assert foreign not in json.dumps(stored)


async def test_m02_the_snapshot_does_not_grow_with_the_conversation(stage: Stage) -> None:
    sizes = []

    for run_id, said in (("run-1", "go"), ("run-2", "go " * 10_000)):
        agent = deleting(stage)
        paused = await agent.generate([{"content": said, "role": "user"}] * 3, user="ana", run_id=run_id)
        sizes.append(len(stage.rows()[0][1]))
        await agent.decline_tool_call_generate(paused.run_id, approver=BOB)

    assert sizes[0] == sizes[1] < 2_000


async def test_m02_a_later_pause_keeps_nothing_of_the_turns_before_it(stage: Stage) -> None:
    agent = deleting(stage, [("call-2", "delete", {"id": "8"})], "done")
    paused = await agent.generate("go", user="ana")
    first = len(stage.rows()[0][1])

    await agent.approve_tool_call_generate(paused.run_id, approver=BOB)
    stored = body(stage)

    assert [call["id"] for call in stored["root"]["calls"]] == ["call-2"]
    assert "call-1" not in json.dumps(stored)
    assert abs(len(stage.rows()[0][1]) - first) < 100


# -- M3 --------------------------------------------------------------------------------------------------------------


async def test_m03_the_snapshot_is_there_while_the_run_waits_and_deleted_after_success(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = deleting(stage, [("call-2", "delete", {"id": "8"})], "done")

    paused = await agent.generate("go", user="ana")
    assert (paused.status, stage.stored()) == ("suspended", 1)
    again = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)
    assert (again.status, stage.stored()) == ("suspended", 1)
    ended = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert (ended.status, rows(stage)) == ("success", NOTHING)


async def test_m03_it_is_deleted_after_a_decline(stage: Stage) -> None:
    agent = deleting(stage)
    paused = await agent.generate("go", user="ana")

    ended = await agent.decline_tool_call_generate(paused.run_id, approver=BOB)

    assert (ended.status, stage.ran, rows(stage)) == ("success", [], NOTHING)


async def test_m03_it_is_deleted_when_the_model_fails(stage: Stage) -> None:
    agent = deleting(stage, LookupError("overloaded"))
    paused = await agent.generate("go", user="ana")
    resumed = agent.approve_tool_call(paused.run_id, approver=BOB)
    events: list[Event] = []

    async def consume() -> None:
        async for event in resumed:
            events.append(event)

    with pytest.raises(LookupError, match="overloaded"):
        await consume()

    assert only(events, "error")["error"] == {"message": "overloaded", "name": "LookupError"}
    assert (resumed.status, len(stage.ran), rows(stage)) == ("failed", 1, NOTHING)


async def test_m03_a_run_that_fails_before_any_pause_leaves_nothing(stage: Stage) -> None:
    agent = stage.agent([("call-1", "look", {"id": "7"})], LookupError("overloaded"), tools=[stage.tool("look")])

    with pytest.raises(LookupError, match="overloaded"):
        await agent.generate("go", user="ana")

    assert (len(stage.ran), rows(stage)) == (1, NOTHING)


async def test_m03_it_is_deleted_after_nobody_decided_in_time(make_stage: MakeStage) -> None:
    stage = make_stage(settings=Settings(decide_within=1))
    agent = deleting(stage)
    paused = await agent.generate("go", user="ana")
    until(stage.store, paused.pauses[0]["expiresAt"])

    with pytest.raises(DecisionError) as late:
        await agent.approve_tool_call(paused.run_id, approver=BOB)
    assert (late.value.code, stage.stored()) == ("expired", 1)
    events = await read(agent.continue_stream(paused.run_id, user="ana"))

    assert only(events, "tool-output-denied")["approval"]["reason"] == "approval expired"
    assert (types(events)[-1], stage.ran, rows(stage)) == ("finish", [], NOTHING)


@pytest.mark.parametrize("last", ["client", "max-steps", "error"])
async def test_m03_it_is_deleted_however_else_the_run_ends(stage: Stage, last: str) -> None:
    turn: Any = [("call-2", "open_page", {})] if last == "client" else "done"
    options: dict[str, Any] = {"max_steps": 1} if last == "max-steps" else {}
    execute = (lambda given: 1 / 0) if last == "error" else (lambda given: "deleted")
    tools = [stage.tool(require_approval=True, execute=execute), stage.tool("open_page", execute=None, input_schema={})]
    agent = stage.agent(DELETE, turn, tools=tools, **options)
    paused = await agent.generate("go", user="ana")

    ended = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert ended.finish_reason == {"client": "tool-calls", "max-steps": "max-steps", "error": "stop"}[last]
    assert (ended.status, rows(stage)) == ("success", NOTHING)


async def test_m03_the_rows_of_sub_agents_runs_are_deleted_with_it(stage: Stage) -> None:
    agent = stage.chain(3, stage.tool(require_approval=True))
    paused = await agent.generate("go", user="ana")
    assert (rows(stage)["runs"], rows(stage)["run_nodes"]) == (1, 3)

    ended = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert (ended.status, rows(stage)) == ("success", NOTHING)


async def test_m03_a_conversation_that_is_kept_outlives_the_snapshot(stage: Stage) -> None:
    agent = deleting(stage, memory=True)
    paused = await agent.generate("go", user="ana", thread_id="thread-1")

    await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert (rows(stage)["runs"], rows(stage)["run_nodes"]) == (0, 0)
    assert [one["role"] for one in await agent.recall("thread-1", user="ana")] == [
        "user", "assistant", "tool", "assistant",
    ]


# -- M4 --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful() -> Iterator[UnsafeMemoryStore]:
    """A store that forgets everything when it is closed."""
    with UnsafeMemoryStore() as store:
        yield store


async def test_m04_the_memory_store_loses_pending_runs_when_it_ends(forgetful: UnsafeMemoryStore) -> None:
    before = Stage(forgetful)
    agent = deleting(before)
    paused = await agent.generate("go", user="ana")
    assert (await agent.list_suspended_runs(user="ana")).total == 1
    forgetful.close()

    with UnsafeMemoryStore() as store:
        after = deleting(Stage(store, keyring=before.world.keyring))

        assert (await after.list_suspended_runs(user="ana")).runs == ()
        with pytest.raises(AgentError) as lost:
            await after.approve_tool_call(paused.run_id, approver=BOB)
    assert (lost.value.code, before.ran) == ("run-not-found", [])


async def test_m04_a_database_keeps_them_over_a_restart(make_stage: MakeStage) -> None:
    stage = make_stage()
    paused = await deleting(stage).generate("go", user="ana")
    stage.store.close()

    with elsewhere(stage) as there:
        agent = there.agent("done", tools=[there.tool(require_approval=True)])
        (found,) = (await agent.list_suspended_runs(user="ana")).runs
        ended = await agent.approve_tool_call_generate(found.run_id, approver=BOB)

    assert (found.run_id, ended.run_id, ended.text) == (paused.run_id, paused.run_id, "done")
    assert stage.ran == [("delete", {"id": "7"})]


async def test_m04_a_run_goes_on_in_a_second_real_process(stage: Stage) -> None:
    paused = await deleting(stage).generate("go", user="ana")

    told = in_another_process(stage, "done")

    assert (told["listed"], told["run_id"], told["status"]) == (["delete"], paused.run_id, "success")
    assert told["types"][:3] == ["tool-call-resumed", "tool-result", "step-finish"]
    assert told["ran"] == [["delete", {"id": "7"}]]
    assert (stage.ran, rows(stage)) == ([], NOTHING)


# -- M5, M6, M7 ------------------------------------------------------------------------------------------------------


async def test_m05_the_model_picks_the_call_and_nothing_runs_before_an_explicit_approval(stage: Stage) -> None:
    agent = deleting(stage)
    stream = agent.stream("go", user="ana")

    events = await read(stream)
    asked = only(events, "tool-call-approval")
    await agent.continue_generate(stream.run_id, user="ana")

    assert (asked["toolName"], asked["args"]) == ("delete", {"id": "7"})
    assert (stream.status, stage.ran, stage.guard.get(asked["approvalId"]).state) == ("suspended", [], "pending")
    await agent.approve_tool_call_generate(stream.run_id, asked["toolCallId"], approver=BOB)
    assert (stage.ran, stage.guard.get(asked["approvalId"]).state) == ([("delete", {"id": "7"})], "succeeded")


async def test_m06_a_tool_that_has_started_may_suspend_itself(stage: Stage) -> None:
    agent = stage.agent([("call-1", "weather", {})], "done", tools=[stage.asking()])
    stream = agent.stream("go", user="ana")

    events = await read(stream)

    assert types(events) == ["start", "step-start", "tool-call", "tool-call-suspended"]
    assert only(events, "tool-call-suspended")["suspendPayload"] == {"question": "Which city?"}
    assert (stream.status, stage.ran) == ("suspended", [("weather", None)])
    ended = await agent.resume_generate({"location": "Rome"}, stream.run_id, user="ana")
    assert (ended.status, stage.ran[1:]) == ("success", [("weather", {"location": "Rome"})])


async def test_m07_flag_stream_event_and_an_approval_from_inside_the_consuming_loop(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = deleting(stage)
    stream = agent.stream("go", user="ana")
    order: list[str] = []

    async for event in stream:
        order.append(f"outer:{event['type']}")
        if event["type"] == "tool-call-approval":
            resumed = agent.approve_tool_call(stream.run_id, event["payload"]["toolCallId"], approver=BOB)
            order += [f"inner:{one['type']}" async for one in resumed]

    assert order == [
        "outer:start", "outer:step-start", "outer:tool-call", "outer:tool-call-approval", "inner:tool-call-resumed",
        "inner:tool-result", "inner:step-finish", "inner:step-start", "inner:text-start", "inner:text-delta",
        "inner:text-end", "inner:step-finish", "inner:finish",
    ]
    assert (stream.status, stream.finish_reason, resumed.status) == ("suspended", "suspended", "success")
    assert (stage.ran, rows(stage)) == ([("delete", {"id": "7"})], NOTHING)
