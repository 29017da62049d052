"""F12: what a run was started with holds when it goes on, and what changed meanwhile in the world is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Hooks
from hitl_guard.keyring import Keyring, revoked, rotated
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.policy.code import code_policy
from hitl_guard.testing import ScriptedModel
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, TWO, Script, approvals, assert_over, code_of, noticed, paused, results, trail
from tests.agent.processes import one, two
from tests.agent.stage import Stage, only, read, types
from tests.support import BOB, OPERATOR, document, until

MakeStage = Callable[..., Stage]
TURNS: list[Any] = [[ONE], [TWO], "done"]
POLICY = """\
version: 1
name: drift
default: not_applicable
rules:
  - id: deletes
    tools: [delete]
    effect: {effect}
"""


def plain(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent whose tool needs nobody unless somebody says so."""
    return Agent("shop", model=Script(*(turns or TURNS)), tools=[stage.tool()], guard=stage.guard, **options)


async def keeps_its_demand(stage: Stage, demand: Any, **options: Any) -> None:
    """A request asks for approvals; the run goes on in another process, whose agent asks for none."""
    await plain(stage).generate("go", user="ana", run_id="r", require_tool_approval=demand, **options)

    with elsewhere(stage) as there:
        result = await plain(there).approve_tool_call("r", approver=BOB)
        waiting = [request.call_id for request in there.guard.pending()]

    assert (result.status, waiting) == ("suspended", ["c2"])
    assert stage.ran == [("delete", {"id": "1"})]


async def test_f12_a_check_of_demands_notices_one_that_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "_kept", lambda *_: (False, None, False))

    await noticed(keeps_its_demand(stage, True))

    assert stage.ran == [("delete", {"id": "1"}), ("delete", {"id": "2"})]


@pytest.mark.parametrize("demand", [
    True, lambda info: True, lambda info: info.arguments["id"] == "1",
    code_policy(lambda info: info.tool_name == "delete", name="unknown-there", version="1"),
], ids=["boolean", "function", "function-that-would-not-ask", "unknown-declared-one"])
async def test_f12_what_a_request_demands_holds_elsewhere(make_stage: MakeStage, demand: Any) -> None:
    await keeps_its_demand(make_stage(), demand)


async def test_f12_hooks_that_cannot_be_stored_make_every_later_call_ask(make_stage: MakeStage) -> None:
    stage = make_stage()
    hooks = Hooks(before_tool_call=lambda info: None)

    await keeps_its_demand(stage, True, hooks=hooks)
    other = plain(stage, [ONE], [TWO], "done")
    await other.generate("go", user="ana", run_id="r2", require_tool_approval=True, hooks=hooks)
    with elsewhere(stage) as there:
        await plain(there).approve_tool_call("r2", approver=BOB)

    assert sorted(request.run_id for request in stage.guard.pending()) == ["r", "r2"]


async def test_f12_limits_settings_and_context_are_those_of_the_start(make_stage: MakeStage) -> None:
    stage = make_stage()
    seen: list[Any] = []

    def build(here: Stage, **options: Any) -> Agent:
        def execute(given: Any, context: Any) -> str:
            seen.append(context.request_context)
            return "ok"

        tool = here.tool(execute=execute, require_approval=True)
        return Agent("shop", model=ScriptedModel(*options.pop("turns")), tools=[tool], guard=here.guard, **options)

    first = build(stage, turns=[[ONE]], settings={"temperature": 0.1, "seed": 7})
    context = {"tenant": "nord", "limits": [1, 2]}
    await first.generate(
        "go", user="ana", run_id="r", max_steps=2, settings={"seed": 8}, request_context=context
    )
    context["tenant"] = "changed meanwhile"
    with elsewhere(stage) as there:
        other = build(there, turns=[[TWO], "never"], settings={"temperature": 0.9}, max_steps=9)
        model: Any = other.model
        await other.approve_tool_call("r", approver=BOB)
        last = await other.approve_tool_call("r", approver=BOB)

    assert model.settings == [{"temperature": 0.1, "seed": 8}]
    assert seen == [{"tenant": "nord", "limits": [1, 2]}] * 2
    assert (last.status, last.finish_reason) == ("success", "max-steps")
    assert_over(stage)


# -- the world ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [{}, {"tool": "delete"}, {"agent": "shop"}], ids=["everything", "tool", "agent"])
async def test_f12_a_pause_stops_an_approved_call_and_it_runs_when_that_is_over(
    make_stage: MakeStage, what: dict[str, Any]
) -> None:
    stage = make_stage()
    agent = one(stage)
    await paused(agent, run_id="r")
    stage.guard.pause(by=OPERATOR, **what)

    stopped = [
        await code_of(agent.approve_tool_call("r", approver=BOB).result()),
        await code_of(agent.continue_stream("r", user="ana").result()),
    ]
    between = (list(stage.ran), trail(stage), stage.stored())
    stage.guard.resume(by=OPERATOR, **what)
    events = await read(agent.continue_stream("r", user="ana"))

    assert stopped == ["paused", "paused"]
    assert between == ([], ["request:approved"], 1)
    assert (types(events)[-1], stage.ran) == ("finish", [("delete", {"id": "1"})])
    assert_over(stage)


async def test_f12_a_pause_does_not_end_a_call_that_must_be_asked_for_anew(make_stage: MakeStage) -> None:
    stage = make_stage()
    await paused(one(stage), run_id="r")
    tool = stage.tool(require_approval=True, description="Deletes for good.")
    agent = Agent("shop", model=Script([ONE], "done"), tools=[tool], guard=stage.guard)
    stage.guard.pause(by=OPERATOR)

    code = await code_of(agent.approve_tool_call("r", approver=BOB).result())
    (listed,) = (await agent.list_suspended_runs(user="ana")).runs
    stage.guard.resume(by=OPERATOR)
    asked = approvals(await read(agent.continue_stream("r", user="ana")))

    assert (code, len(listed.tool_calls), stage.ran) == ("paused", 1, [])
    assert asked[0]["approvalId"] != listed.tool_calls[0].pause_id
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f12_a_policy_that_denies_by_now_ends_the_call_unasked(make_stage: MakeStage) -> None:
    stage = make_stage(policy=document(POLICY.format(effect="require_approval")))
    agent = plain(stage, [ONE], "done")
    await paused(agent, run_id="r")

    with elsewhere(stage, policy=document(POLICY.format(effect="deny"))) as there:
        other = plain(there, [ONE], "done")
        model: Any = other.model
        late = await code_of(other.approve_tool_call("r", approver=BOB).result())
        events = await read(other.continue_stream("r", user="ana"))

    assert late == "policy-changed"
    assert only(events, "tool-output-denied")["approval"]["approved"] is False
    assert (types(events)[-1], stage.ran) == ("finish", [])
    assert results(model.calls[-1]) == [("c1", "The policy does not allow this call.")]
    assert stage.stored() == 0


@pytest.mark.parametrize("decided", [False, True], ids=["still-pending", "approved-before"])
async def test_f12_under_another_policy_the_call_is_asked_for_anew(make_stage: MakeStage, decided: bool) -> None:
    stage = make_stage(policy=document(POLICY.format(effect="require_approval")))
    await paused(plain(stage, [ONE], "done"), run_id="r")
    (old,) = stage.guard.pending()
    if decided:
        stage.world.approve(old)

    changed = POLICY.format(effect="require_approval") + "    quorum: 1\n"
    with elsewhere(stage, policy=document(changed)) as there:
        other = plain(there, [ONE], "done")
        events = await read(other.continue_stream("r", user="ana"))
        asked = approvals(events)
        before = list(stage.ran)
        done = await other.approve_tool_call("r", asked[0]["approvalId"], approver=BOB)
        state = there.guard.get(old.id).state

    assert [ask["toolCallId"] for ask in asked] == ["c1"]
    assert asked[0]["approvalId"] != old.id
    assert (before, done.status, state) == ([], "success", "superseded")
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f12_a_rotated_key_loses_no_waiting_run(make_stage: MakeStage) -> None:
    stage = make_stage()
    await paused(one(stage), run_id="r")

    with elsewhere(stage, keyring=after_rotation(stage)) as there:
        agent = one(there)
        (listed,) = (await agent.list_suspended_runs(user="ana")).runs
        result = await agent.approve_tool_call("r", approver=BOB)

    assert (listed.run_id, result.status, stage.ran) == ("r", "success", [("delete", {"id": "1"})])


async def test_f12_a_run_that_a_revoked_key_signed_goes_nowhere_and_is_named(make_stage: MakeStage) -> None:
    stage = make_stage()
    await paused(one(stage), run_id="r")
    (request,) = stage.guard.pending()
    stage.world.approve(request)
    ring, _ = revoked(stage.world.keyring, stage.world.keyring.keys[0].id, now=stage.store.now())

    with elsewhere(stage, keyring=ring) as there:
        agent = one(there)
        page = await agent.list_suspended_runs(user="ana")
        codes = [await code_of(work) for work in (
            agent.approve_tool_call("r", approver=BOB).result(), agent.continue_stream("r", user="ana").result(),
        )]

    assert (page.runs, page.damaged) == ((), (("r", "key-revoked (compromised)"),))
    assert (codes, stage.ran) == (["key-revoked", "key-revoked"], [])


async def test_f12_a_request_that_a_revoked_key_signed_is_asked_for_anew(make_stage: MakeStage) -> None:
    """The run's state was signed again since, with the next key; only the other call's request is the old key's."""
    stage = make_stage()
    await paused(two(stage), run_id="r")
    old = {request.call_id: request.id for request in stage.guard.pending()}
    ring = after_rotation(stage)
    with elsewhere(stage, keyring=ring) as there:
        await two(there).approve_tool_call("r", "c1", approver=BOB)
        there.world.approve(there.guard.get(old["c2"]))
    ring, _ = revoked(ring, ring.keys[0].id, now=stage.store.now())

    with elsewhere(stage, keyring=ring) as there:
        agent = two(there)
        stopped = await code_of(agent.continue_stream("r", user="ana").result())
        there.world.confirm()
        asked = approvals(await read(agent.continue_stream("r", user="ana")))
        before = list(stage.ran)
        done = await agent.approve_tool_call("r", approver=BOB)

    assert stopped == "paused"
    assert [(ask["toolCallId"], ask["approvalId"] != old["c2"]) for ask in asked] == [("c2", True)]
    assert (before, done.status) == ([("delete", {"id": "1"})], "success")
    assert stage.ran == [("delete", {"id": "1"}), ("delete", {"id": "2"})]


def after_rotation(stage: Stage) -> Keyring:
    """Return the key ring after a rotation, when the new key signs and the old one only verifies."""
    ring, _ = rotated(stage.world.keyring, now=stage.store.now(), refresh_ms=10)
    end = ring.keys[0].deactivates_at
    assert end is not None
    until(stage.store, end)
    return ring


# -- time --------------------------------------------------------------------------------------------------------------


async def test_f12_a_request_that_nobody_decided_in_time_ends_as_approval_expired(make_stage: MakeStage) -> None:
    stage = make_stage(settings=Settings(decide_within=1))
    agent = one(stage)
    model: Any = agent.model
    await paused(agent, run_id="r")
    until(stage.store, stage.store.now() + 2)

    late = await code_of(agent.approve_tool_call("r", approver=BOB).result())
    events = await read(agent.continue_stream("r", user="ana"))

    assert (late, types(events)[-1]) == ("expired", "finish")
    assert only(events, "tool-output-denied")["approval"]["reason"] == "approval expired"
    assert results(model.calls[-1]) == [("c1", "approval expired")]
    assert (stage.ran, trail(stage)) == ([], ["request:expired"])
    assert_over(stage)


async def test_f12_an_approval_that_nobody_used_in_time_ends_as_approval_expired(make_stage: MakeStage) -> None:
    stage = make_stage(settings=Settings(execute_within=1))
    agent = one(stage)
    model: Any = agent.model
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()
    stage.world.approve(request)
    until(stage.store, stage.store.now() + 2)

    events = await read(agent.continue_stream("r", user="ana"))

    assert only(events, "tool-output-denied")["approval"]["reason"] == "approval expired"
    assert results(model.calls[-1]) == [("c1", "approval expired")]
    assert (stage.ran, stage.stored()) == ([], 0)
    assert "grant:claimed" not in trail(stage)


async def test_f12_a_request_that_was_withdrawn_ends_its_call(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()
    stage.guard.revoke(request.id, by=BOB, reason="no longer wanted")

    late = await code_of(agent.approve_tool_call("r", approver=BOB).result())
    events = await read(agent.continue_stream("r", user="ana"))

    assert late == "revoked"
    assert only(events, "tool-error")["error"]["code"] == "revoked"
    assert (types(events)[-1], stage.ran) == ("finish", [])
    assert_over(stage)
