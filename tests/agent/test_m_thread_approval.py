"""A call is decided by naming its conversation; what a page needs to find and decide it is plain data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.errors import AgentError, DecisionError
from tests.support import ANA

from .elsewhere import elsewhere
from .stage import BOB, Stage

DELETE = [("call-1", "delete", {"id": "7"})]
ASK: list[tuple[str, str, Any]] = [("call-1", "weather", {})]


def gated(stage: Stage, *turns: Any) -> Agent:
    """Return an agent with memory whose tool needs an approval."""
    return stage.agent(*turns, tools=[stage.tool(require_approval=True)], memory=True)


def told(agent: Agent) -> list[str]:
    """Return what the model was told last in place of its calls' results."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[-1] if message["role"] == "tool"]


async def sent(agent: Agent, approved: Any = True, **options: Any) -> dict[str, Any]:
    """Decide by Ana's conversation ``t``."""
    return await agent.send_tool_approval(
        **({"thread_id": "t", "user": "ana", "approver": BOB, "approved": approved} | options)
    )


# -- M62 -------------------------------------------------------------------------------------------------------------


async def test_m62_a_call_is_approved_by_its_conversation(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id

    receipt = await sent(agent)

    result = receipt.pop("result")
    assert receipt == {"accepted": True, "run_id": run_id, "tool_call_id": "call-1"}
    assert (result.run_id, result.status, result.text) == (run_id, "success", "done")
    assert stage.ran == [("delete", {"id": "7"})]


async def test_m62_a_call_is_declined_by_its_conversation_with_a_reason(stage: Stage) -> None:
    agent = gated(stage, DELETE, "as you wish")
    await agent.generate("go", user="ana", thread_id="t")

    receipt = await sent(agent, False, reason="too risky")

    assert (receipt["accepted"], receipt["result"].text, told(agent)) == (True, "as you wish", ["too risky"])
    assert stage.ran == []


async def test_m62_the_store_finds_the_run_where_nothing_is_in_memory(stage: Stage) -> None:
    run_id = (await gated(stage, DELETE).generate("go", user="ana", thread_id="t")).run_id

    with elsewhere(stage) as there:
        with pytest.raises(AgentError) as unknown:
            await sent(gated(there), tool_call_id="call-2")
        receipt = await sent(gated(there, "done"), tool_call_id="call-1")

    assert (unknown.value.code, unknown.value.detail) == ("run-not-found", "thread")
    assert (receipt["run_id"], receipt["result"].status, stage.ran) == (run_id, "success", [("delete", {"id": "7"})])


@pytest.mark.parametrize(
    "other",
    [{"thread_id": "nope"}, {"resource_id": "another"}, {"user": "eve"}, {"tool_call_id": "delete"}],
    ids=["thread", "resource", "user", "call"],
)
async def test_m62_where_nothing_waits_in_that_conversation_it_fails(stage: Stage, other: dict[str, Any]) -> None:
    agent = gated(stage, DELETE, "done")
    await agent.generate("go", user="ana", thread_id="t")

    with pytest.raises(AgentError) as refused:
        await sent(agent, **other)
    await sent(agent)
    with pytest.raises(AgentError) as ended:
        await sent(agent)

    for error in (refused.value, ended.value):
        assert (error.code, error.detail) == ("run-not-found", "thread")
    assert len(stage.ran) == 1


@pytest.mark.parametrize("approved", ["true", 1, 0, None, {}], ids=repr)
async def test_m62_a_decision_is_a_real_boolean(stage: Stage, approved: Any) -> None:
    agent = gated(stage, DELETE, "done")
    await agent.generate("go", user="ana", thread_id="t")

    with pytest.raises(DecisionError) as refused:
        await sent(agent, approved)

    assert (refused.value.code, stage.ran, stage.stored()) == ("invalid-approval", [], 1)


async def test_m62_the_runs_user_does_not_approve_his_own_call(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    await agent.generate("go", user="ana", thread_id="t")

    with pytest.raises(DecisionError) as refused:
        await sent(agent, approver=ANA)

    assert (refused.value.code, refused.value.detail, stage.ran) == ("not-authorised", "self-approval", [])
    assert (await sent(agent))["accepted"] is True


async def test_m62_a_question_of_the_conversation_is_answered_as_approved(stage: Stage) -> None:
    agent = stage.agent(ASK, "done", tools=[stage.asking(resume_schema=None)], memory=True)
    await agent.generate("go", user="ana", thread_id="t")

    await sent(agent, False, reason="no", approver=ANA)

    assert stage.ran == [("weather", None), ("weather", {"approved": False, "reason": "no"})]


# -- M63 -------------------------------------------------------------------------------------------------------------


async def test_m63_where_several_runs_of_a_conversation_wait_the_call_must_be_named(stage: Stage) -> None:
    agent = gated(stage, DELETE, [("call-2", "delete", {"id": "8"})], "done")
    await agent.generate("go", user="ana", thread_id="t")
    second = await agent.generate("go on", user="ana", thread_id="t")

    with pytest.raises(AgentError) as refused:
        await sent(agent)
    receipt = await sent(agent, tool_call_id="call-2")

    assert refused.value.code == "call-ambiguous"
    assert (receipt["run_id"], receipt["tool_call_id"]) == (second.run_id, "call-2")
    assert stage.ran == [("delete", {"id": "8"})]


async def test_m63_where_two_runs_share_a_call_id_the_pause_itself_must_be_named(stage: Stage) -> None:
    agent = gated(stage, DELETE, [("call-1", "delete", {"id": "8"})], "done")
    await agent.generate("go", user="ana", thread_id="t")
    second = await agent.generate("go on", user="ana", thread_id="t")
    assert second.suspend_payload is not None

    with pytest.raises(AgentError) as refused:
        await sent(agent, tool_call_id="call-1")
    receipt = await sent(agent, tool_call_id=second.suspend_payload["approvalId"])

    assert (refused.value.code, receipt["run_id"]) == ("call-ambiguous", second.run_id)
    assert stage.ran == [("delete", {"id": "8"})]


async def test_m63_of_several_calls_of_one_run_the_most_recent_is_meant_unless_one_is_named(stage: Stage) -> None:
    agent = gated(stage, [(name, "delete", {"id": name}) for name in ("A", "B", "C")], "done")
    await agent.generate("go", user="ana", thread_id="t")

    decided = [(await sent(agent, tool_call_id=name))["tool_call_id"] for name in (None, "A", None)]

    assert decided == ["C", "A", "B"]
    assert (stage.stored(), [given["id"] for _, given in stage.ran]) == (0, ["C", "A", "B"])


# -- M64 -------------------------------------------------------------------------------------------------------------


async def test_m64_what_a_route_returns_is_plain_data_by_which_a_page_finds_and_decides(stage: Stage) -> None:
    agent = stage.agent(
        [("gated", "delete", {"id": "7"}), ("question", "weather", {})], "done", memory=True,
        tools=[stage.tool(require_approval=True), stage.asking()],
    )
    await agent.generate("go", user="ana", thread_id="t")
    page = await agent.list_suspended_runs(user="ana", per_page=10, page=0)

    body = json.loads(json.dumps(dataclasses.asdict(page), default=lambda date: date.isoformat()))
    (run,) = body["runs"]
    for call in run["tool_calls"]:
        given = (run["run_id"], call["pause_id"])
        result = await (
            agent.approve_tool_call(*given, approver=BOB) if call["requires_approval"]
            else agent.resume_stream({"location": "Rome"}, *given, user="ana")
        )

    assert (body["total"], run["status"], run["thread_id"], run["resource_id"]) == (1, "suspended", "t", "ana")
    assert run["suspended_at"].endswith("+00:00")
    assert (result.status, told(agent)) == ("success", ['{"ok":true}', '{"weather":"Rome: sunny"}'])


async def test_m64_what_is_logged_of_a_list_shows_no_arguments(stage: Stage) -> None:
    agent = gated(stage, [("call-1", "delete", {"id": "s3cret"})])
    await agent.generate("go", user="ana", thread_id="t")

    assert "s3cret" not in repr(await agent.list_suspended_runs(user="ana"))
