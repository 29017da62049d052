"""F9: what is stored of a waiting run does not grow with its conversation, and the conversation is stored once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Memory
from hitl_guard.agent.history import History
from hitl_guard.agent.state import Snapshot
from tests.agent.faults import ONE, Script, assert_over, noticed, segments
from tests.agent.stage import Stage
from tests.support import BOB

MakeStage = Callable[..., Stage]
LIMIT = 8 * 1024
"""The most bytes of a snapshot beyond the conversation."""

MESSAGES = 1_000


def said(count: int) -> list[dict[str, Any]]:
    """Return a conversation of so many messages, about 100 bytes each."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"message {number:04} " + "x" * 60} for number in range(count)]


def stored(stage: Stage) -> list[dict[str, Any]]:
    """Return every stored message, in order."""
    return [message for body in segments(stage) for message in json.loads(body)]


def whole_row(stage: Stage) -> int:
    """Return the size of everything in the one snapshot's row and its nodes."""
    from sqlalchemy import text

    def rows(table: str) -> list[Any]:
        query = text(f"SELECT * FROM hitl_guard_{table}")
        return stage.store._connections.query(lambda connection: list(connection.execute(query)))

    values = [value for table in ("runs", "run_nodes") for row in rows(table) for value in row]
    return sum(len(str(value)) if isinstance(value, int) else len(bytes(value)) for value in values)


async def stays_small(stage: Stage, *, memory: bool | Memory = False) -> None:
    model = Script([ONE], "done", after=MESSAGES // 2)
    agent = Agent(
        "shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard, memory=memory
    )
    options: dict[str, Any] = {"thread_id": "t"} if memory else {}
    conversation = [*said(MESSAGES), {"role": "user", "content": "delete it"}]

    result = await agent.generate(conversation, user="ana", run_id="r", **options)

    assert (result.status, stage.stored()) == ("suspended", 1)
    assert whole_row(stage) < LIMIT
    assert [message["content"] for message in stored(stage)] == [message["content"] for message in conversation]
    assert sum(map(len, segments(stage))) < 1.1 * len(json.dumps(conversation))
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert len(model.calls[-1]) == MESSAGES + 3


@pytest.mark.parametrize("memory", [False, True], ids=["without-memory", "with-memory"])
async def test_f09_a_check_of_sizes_notices_a_snapshot_that_holds_the_conversation(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    real, everything = Snapshot.to_json, []  # type: ignore[var-annotated]
    monkeypatch.setattr(History, "add", _noting(History.add, everything))
    monkeypatch.setattr(Snapshot, "to_json", lambda snapshot: real(snapshot) | {"history": list(everything)})

    await noticed(stays_small(stage, memory=memory))


def _noting(real: Callable[..., None], everything: list[Any]) -> Callable[..., None]:
    def add(history: History, *messages: dict[str, Any], **options: Any) -> None:
        everything.extend(messages)
        real(history, *messages, **options)

    return add


@pytest.mark.parametrize("memory", [False, True], ids=["without-memory", "with-memory"])
async def test_f09_a_thousand_messages_make_no_bigger_snapshot_and_are_stored_once(
    make_stage: MakeStage, memory: bool
) -> None:
    stage = make_stage()

    await stays_small(stage, memory=memory)

    assert stage.stored() == 0
    assert len(stored(stage)) == (MESSAGES + 1 + 3 if memory else 0)


async def test_f09_a_run_in_an_old_thread_stores_its_own_messages_only(make_stage: MakeStage) -> None:
    stage = make_stage()
    model = Script("noted", [ONE], "done", after=MESSAGES // 2)
    agent = Agent(
        "shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard, memory=True
    )
    await agent.generate(said(MESSAGES), user="ana", thread_id="t")
    before = segments(stage)
    assert len(stored(stage)) == MESSAGES + 1

    await agent.generate("delete it", user="ana", thread_id="t", run_id="r")

    assert segments(stage)[: len(before)] == before
    assert [message["content"] for body in segments(stage)[len(before) :] for message in json.loads(body)] == [
        "delete it"
    ]
    assert whole_row(stage) < LIMIT
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert len(model.calls[-1]) == MESSAGES + 1 + 3


async def test_f09_many_pauses_of_one_run_leave_its_snapshot_as_small_as_the_first(make_stage: MakeStage) -> None:
    stage = make_stage()
    count = 30
    turns = [{"content": "y" * 500, "tool_calls": [_call(f"c{number}")]} for number in range(count)]
    agent = Agent(
        "shop", model=Script(*turns, "done"), tools=[stage.tool(require_approval=True, result="z" * 500)],
        guard=stage.guard,
    )
    await agent.generate("go", user="ana", run_id="r")
    sizes = [whole_row(stage)]

    for number in range(count - 1):
        result = await agent.approve_tool_call("r", f"c{number}", approver=BOB)
        assert result.status == "suspended"
        sizes.append(whole_row(stage))

    assert max(sizes) - min(sizes) < 256
    messages = stored(stage)
    assert [message["role"] for message in messages] == ["user", *["assistant", "tool"] * (count - 1)]
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert_over(stage)


async def test_f09_a_sub_agents_conversation_is_not_in_its_supervisors_snapshot(make_stage: MakeStage) -> None:
    stage = make_stage()
    sub = Agent("clerk", model=Script([ONE], "ok"), tools=[stage.tool(require_approval=True)], guard=stage.guard)
    prompt = "p" * 100_000
    model = Script([("d1", "agent-clerk", {"prompt": prompt})], "done")
    agent = Agent("shop", model=model, agents=[sub], guard=stage.guard)

    await agent.generate("go", user="ana", run_id="r")

    # The delegation's arguments are needed for its results; the sub-agent's messages stand in its own conversation.
    assert whole_row(stage) - len(prompt) < LIMIT
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert_over(stage)


def _call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "delete", "arguments": '{"id": "1"}'}}
