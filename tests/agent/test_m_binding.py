"""An approval counts for one run of one call: of this tool, arguments, definition, user, run and policy version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785

from hitl_guard import canonical, fingerprint
from hitl_guard.agent import Agent, Hooks, Tool
from hitl_guard.errors import AgentError, DecisionError, HitlGuardError, InvalidApprovalError, RefusedError
from hitl_guard.models import ToolCall
from hitl_guard.policy.code import CallInfo
from tests.databases import Database

from .elsewhere import elsewhere
from .stage import BOB, ID_SCHEMA, Stage, only, read, types

MakeStage = Callable[..., Stage]
DELETE = [("call-1", "delete", {"id": "7"})]
RAN = ("delete", {"id": "7"})


def deleting(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent that deletes one thing with a person's approval and then says these turns."""
    return stage.agent(DELETE, *(turns or ("done",)), tools=[stage.tool(require_approval=True)], **options)


async def paused(agent: Agent, **options: Any) -> tuple[str, dict[str, Any]]:
    """Start a run; return its id and what its pause told."""
    result = await agent.generate("go", user="ana", **options)
    (payload,) = result.pauses
    return result.run_id, payload


def decide(stage: Stage, payload: dict[str, Any]) -> None:
    """Approve a request as the inbox or command line do, without going on with the run."""
    stage.guard.decide(payload["approvalId"], approver=BOB, approve=True, fingerprint=payload["fingerprint"])


def call_of(run: str, **scope: Any) -> ToolCall:
    """Return the agent's call as somebody else would hand it to the guard."""
    given = {"run_id": run, "call_id": "call-1", "user": "ana", "agent": "shop"} | scope
    return ToolCall("delete", {"id": "7"}, **given)


def told(agent: Agent) -> list[str]:
    """Return what the model was told in place of its calls' results, when it was called last."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[-1] if message["role"] == "tool"]


# -- M28: drift ------------------------------------------------------------------------------------------------------

DRIFTS: dict[str, dict[str, Any]] = {
    "description": {"description": "Deletes everything."},
    "schema": {"input_schema": ID_SCHEMA | {"properties": {"id": {"type": "string", "maxLength": 9}}}},
    "no-schema": {"input_schema": None},
}


@pytest.mark.parametrize("decided", [False, True], ids=["then-decided", "decided-before"])
@pytest.mark.parametrize("drift", DRIFTS)
async def test_m28_a_changed_tool_never_runs_under_the_old_approval(stage: Stage, drift: str, decided: bool) -> None:
    run_id, payload = await paused(deleting(stage))
    if decided:
        decide(stage, payload)

    with elsewhere(stage) as there:
        agent = there.agent("done", tools=[there.tool(require_approval=True, **DRIFTS[drift])])
        go_on = agent.continue_stream(run_id, user="ana") if decided else agent.approve_tool_call(run_id, approver=BOB)
        again = only(await read(go_on), "tool-call-approval")
        assert (stage.ran, stage.guard.get(payload["approvalId"]).state) == ([], "superseded")
        ended = await agent.approve_tool_call_generate(run_id, again["approvalId"], approver=BOB)

    assert again["approvalId"] != payload["approvalId"]
    assert (again["toolCallId"], again["fingerprint"]) == ("call-1", payload["fingerprint"])
    assert (ended.status, stage.ran) == ("success", [RAN])


@pytest.mark.parametrize("drift", ["unfit", "gone"])
async def test_m28_arguments_that_fit_the_tool_no_more_are_not_run(stage: Stage, drift: str) -> None:
    run_id, _ = await paused(deleting(stage))
    schema = {"properties": {"id": {"type": "integer"}}, "type": "object"}

    with elsewhere(stage) as there:
        tools = [there.tool(require_approval=True, input_schema=schema)] if drift == "unfit" else []
        agent = there.agent("done", tools=tools)
        events = await read(agent.approve_tool_call(run_id, approver=BOB))

    assert only(events, "tool-error")["error"]["name"] == ("RefusedError" if drift == "unfit" else "ToolNotFoundError")
    assert (types(events)[-1], stage.ran) == ("finish", [])


@pytest.mark.parametrize(("table", "column"), [("hitl_guard_requests", "arguments"), ("hitl_guard_runs", "body")])
async def test_m28_stored_arguments_that_were_edited_never_run(
    make_stage: MakeStage, database: Database, table: str, column: str
) -> None:
    stage = make_stage()
    agent = deleting(stage)
    run_id, payload = await paused(agent)
    ((stored,),) = database.execute(f"SELECT {column} FROM {table}")

    database.execute(f"UPDATE {table} SET {column} = :new", {"new": bytes(stored).replace(b'"7"', b'"8"')})

    with pytest.raises(HitlGuardError) as refused:
        await agent.approve_tool_call(run_id, approver=BOB)
    assert (refused.value.code, refused.value.detail) == ("invalid-signature", "mismatch")
    assert stage.ran == []
    database.execute(f"UPDATE {table} SET {column} = :old", {"old": bytes(stored)})
    assert (await agent.approve_tool_call_generate(run_id, approver=BOB)).status == "success"
    assert (stage.ran, payload["args"]) == ([RAN], {"id": "7"})


@pytest.mark.parametrize("gated", [False, True], ids=["free", "gated"])
async def test_m28_a_consumer_that_changes_what_an_event_told_changes_nothing_else(stage: Stage, gated: bool) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=gated)])

    async def reading(stream: Any) -> None:
        async for event in stream:
            spoilt = [event["payload"].get("args", {}), *event["payload"].get("messages", ())]
            for one in spoilt:
                one.update(id="changed", content="changed")

    stream = agent.stream("go", user="ana")
    await reading(stream)
    if gated:
        await reading(agent.approve_tool_call(stream.run_id, approver=BOB))

    model: Any = agent.model
    assert (stage.ran, told(agent)) == ([RAN], ['{"ok":true}'])
    assert model.calls[-1][1]["tool_calls"][0]["function"]["arguments"] == '{"id":"7"}'


# -- M29 -------------------------------------------------------------------------------------------------------------


async def test_m29_the_event_carries_all_that_a_fingerprint_needs(stage: Stage) -> None:
    given = {"id": "7", "note": "é", "amounts": [1, 2.5, None]}
    tools = [Tool("delete", require_approval=True, execute=stage.ran.append)]
    turned = {name: given[name] for name in reversed(given)}
    agent = stage.agent([("a", "delete", given), ("b", "delete", turned), ("c", "delete", {"id": "8"})], tools=tools)
    stream = agent.stream("go", user="ana")

    events = [event["payload"] for event in await read(stream) if event["type"] == "tool-call-approval"]

    for payload in events:
        canonical = rfc8785.dumps([payload["toolName"], payload["args"]])
        assert payload["fingerprint"] == hashlib.sha256(b"hitl-guard/fingerprint/v1\0" + canonical).hexdigest()
        request = stage.guard.get(payload["approvalId"])
        assert (request.fingerprint, request.run_id, request.call_id) == (
            payload["fingerprint"], stream.run_id, payload["toolCallId"],
        )
    prints = [payload["fingerprint"] for payload in events]
    assert (prints[0] == prints[1], len(set(prints))) == (True, 2)


# -- M31, M32, M33: one run, of what was shown, after the yes ---------------------------------------------------------


@pytest.mark.parametrize("second", ["call-2", "call-1"], ids=["new-id", "same-id"])
async def test_m31_an_approval_is_used_up_and_a_second_identical_call_needs_a_new_one(
    make_stage: MakeStage, second: str
) -> None:
    stage = make_stage()
    agent = deleting(stage, [(second, "delete", {"id": "7"})], "done")
    run_id, payload = await paused(agent)

    (again,) = (await agent.approve_tool_call_generate(run_id, approver=BOB)).pauses
    for node in (stage.guard, stage.world.another().guard):
        with pytest.raises(RefusedError) as used:
            node.authorize(call_of(run_id), request_id=payload["approvalId"])
        assert used.value.code == "consumed"
    assert (again["fingerprint"], again["toolCallId"]) == (payload["fingerprint"], second)
    assert (again["approvalId"] != payload["approvalId"], stage.ran) == (True, [RAN])
    ended = await agent.approve_tool_call_generate(run_id, approver=BOB)

    assert (ended.status, stage.ran) == ("success", [RAN, RAN])


async def test_m31_identical_calls_of_one_turn_need_an_approval_each(stage: Stage) -> None:
    agent = stage.agent([DELETE[0], DELETE[0]], "done", tools=[stage.tool(require_approval=True)])
    started = await agent.generate("go", user="ana")
    one, other = (pause["approvalId"] for pause in started.pauses)

    await agent.approve_tool_call_generate(started.run_id, one, approver=BOB)
    assert (one != other, stage.ran, stage.guard.get(other).state) == (True, [RAN], "pending")
    ended = await agent.decline_tool_call_generate(started.run_id, other, approver=BOB)

    assert (ended.status, stage.ran) == ("success", [RAN])


@pytest.mark.parametrize("gated", [False, True], ids=["free", "gated"])
async def test_m32_a_mismatch_is_answered_with_the_tools_name_and_nothing_runs(stage: Stage, gated: bool) -> None:
    place: dict[str, Any] = {"run_id": "run-1", "call_id": "call-1", "user": "ana"}
    approved = stage.guard.request(ToolCall("delete", {"id": "8"}, **place))
    stage.world.approve(approved)
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=gated)])

    events = await read(agent.stream("go", user="ana", run_id="run-1"))

    error = only(events, "tool-error")["error"]
    assert (error["code"], "'delete'" in error["message"], told(agent)) == ("args-mismatch", True, [error["message"]])
    assert (types(events)[-1], stage.ran, stage.world.state(approved)) == ("finish", [], "approved")


async def test_m32_a_hosts_own_register_blocks_in_a_hook_what_was_not_approved(stage: Stage) -> None:
    approved: set[tuple[str, str]] = set()
    calls = [[("call-2", "delete", {"id": "7"})], [("call-3", "delete", {"id": "8"})]]

    def before(info: dict[str, Any]) -> Any:
        print_ = fingerprint.fingerprint(info["toolName"], canonical.canonicalize(info["input"]))
        if (info["context"].run_id, print_) in approved:
            approved.remove((info["context"].run_id, print_))
            return None
        return {"proceed": False, "output": f"{info['toolName']} was not approved with these arguments."}

    def first_only(info: CallInfo) -> bool:
        return info.tool_call_id == "call-1"

    agent = stage.agent(DELETE, *calls, "done", tools=[stage.tool()], hooks=Hooks(before))
    run_id, payload = await paused(agent, require_tool_approval=first_only)
    approved.add((run_id, payload["fingerprint"]))
    await agent.approve_tool_call_generate(run_id, payload["toolCallId"], approver=BOB)

    assert (stage.ran, approved) == ([RAN], set())
    assert told(agent)[1:] == ["delete was not approved with these arguments."] * 2


async def test_m33_nothing_counts_before_a_reviewers_yes_to_what_was_shown(stage: Stage) -> None:
    agent = deleting(stage)
    run_id, payload = await paused(agent)

    with pytest.raises(InvalidApprovalError) as early:
        stage.guard.authorize(call_of(run_id), request_id=payload["approvalId"])
    with pytest.raises(DecisionError) as stale:
        await agent.approve_tool_call(run_id, "call-1", approver=BOB, fingerprint="0" * 64)
    for other, code in (((run_id, "call-9"), "call-not-suspended"), (("run-9", "call-1"), "run-not-found")):
        with pytest.raises(AgentError) as elsewhere_:
            await agent.approve_tool_call(*other, approver=BOB)
        assert elsewhere_.value.code == code
    assert [early.value.detail, stale.value.code] == ["pending", "args-mismatch"]
    assert (stage.ran, stage.guard.get(payload["approvalId"]).votes) == ([], ())

    await agent.approve_tool_call(run_id, "call-1", approver=BOB, fingerprint=payload["fingerprint"])

    (vote,) = stage.guard.get(payload["approvalId"]).votes
    assert (vote.approver, vote.fingerprint, stage.ran) == ("bob", payload["fingerprint"], [RAN])


# -- M34: kept, within its scope -------------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Any]] = {
    "user": {"user": "eve"}, "run": {"run_id": "run-9"}, "call": {"call_id": "call-9"}, "again": {"occurrence": 1},
    "tenant": {"tenant": "other"},
}


async def test_m34_an_approval_is_kept_over_a_restart_for_its_user_run_and_call_alone(make_stage: MakeStage) -> None:
    stage = make_stage()
    run_id, payload = await paused(deleting(stage))
    decide(stage, payload)

    with elsewhere(stage) as there:
        for name, other in OTHERS.items():
            with pytest.raises(RefusedError) as refused:
                there.guard.authorize(call_of(run_id, **other), request_id=payload["approvalId"])
            assert refused.value.code == ("invalid-approval" if name == "tenant" else "scope-mismatch")
        agent = there.agent("done", tools=[there.tool(require_approval=True)])
        for who in ({"user": "eve"}, {"user": "ana", "tenant": "other"}):
            with pytest.raises(AgentError) as foreign:
                await agent.continue_stream(run_id, **who)
            assert foreign.value.code == "run-not-found"
        assert (stage.ran, there.guard.get(payload["approvalId"]).state) == ([], "approved")
        ended = await agent.continue_generate(run_id, user="ana")

    assert (ended.status, stage.ran) == ("success", [RAN])


@pytest.mark.parametrize("status", ["user-approval", "not-applicable", "denied"])
@pytest.mark.parametrize("decided", [False, True], ids=["pending", "approved"])
async def test_m34_under_another_policy_version_it_counts_no_more(stage: Stage, decided: bool, status: str) -> None:
    run_id, payload = await paused(deleting(stage))
    if decided:
        decide(stage, payload)

    with elsewhere(stage, policy={"delete": status}) as there:
        agent = there.agent("done", tools=[there.tool(require_approval=True)])
        if not decided:
            with pytest.raises(DecisionError) as refused:
                await agent.approve_tool_call(run_id, approver=BOB)
            assert refused.value.code == "policy-changed"
        events = await read(agent.continue_stream(run_id, user="ana"))
        assert stage.ran == []
        if status == "denied":
            assert only(events, "tool-output-denied")["approval"]["isAutomatic"] is True
            return
        again = only(events, "tool-call-approval")
        assert there.guard.get(payload["approvalId"]).state == "superseded"
        ended = await agent.approve_tool_call_generate(run_id, again["approvalId"], approver=BOB)

    assert (ended.status, stage.ran) == ("success", [RAN])


# -- M35 -------------------------------------------------------------------------------------------------------------


async def test_m35_the_stream_of_a_decision_may_hold_the_next_approval(stage: Stage) -> None:
    turns = [[(f"call-{number}", "delete", {"id": str(number)})] for number in (1, 2, 3)]
    agent = stage.agent(*turns, "done", tools=[stage.tool(require_approval=True)])
    depths: list[tuple[int, str]] = []

    async def handled(stream: Any, depth: int) -> None:
        async for event in stream:
            depths.append((depth, event["type"]))
            if event["type"] == "tool-call-approval":
                call = event["payload"]["toolCallId"]
                decide = agent.decline_tool_call if call == "call-2" else agent.approve_tool_call
                await handled(decide(stream.run_id, call, approver=BOB), depth + 1)

    await handled(agent.stream("go", user="ana"), 0)

    asks = ["step-finish", "step-start", "tool-call", "tool-call-approval"]
    assert [kind for depth, kind in depths if depth == 1] == ["tool-call-resumed", "tool-result", *asks]
    assert [kind for depth, kind in depths if depth == 2] == ["tool-call-resumed", "tool-output-denied", *asks]
    assert depths[-1] == (3, "finish")
    assert [given["id"] for _, given in stage.ran] == ["1", "3"]
