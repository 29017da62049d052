"""What a loop of agents builds on: calls that suspend themselves and start again, requests made together, own steps."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.errors import (
    ArgsMismatchError,
    ConfigurationError,
    ConsumedError,
    ExpiredError,
    HitlGuardError,
    PolicyDeniedError,
    UnavailableError,
)
from hitl_guard.keyring import Keyring, revoked
from hitl_guard.lifecycle import running, settle
from hitl_guard.lifecycle.desk import ROUNDS
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.models import ApprovalRequest, Permit, Principal, Requirement, ToolCall, ToolDefinition
from hitl_guard.policy.core import Status, Verdict
from hitl_guard.rows import EVERYWHERE, RunRow, Segment
from hitl_guard.store.base import AddSegment, PutRun, Step
from hitl_guard.store.sql import SQLStore
from tests.support import ANA, ARGUMENTS, BOB, CAROL, OPERATOR, POLICY, Settings, World, document, until
from tests.threats.gates import GatedStore, all_read, at_once

MakeWorld = Callable[..., World]
Answers = list[ApprovalRequest | HitlGuardError]

RUN, THREAD = hashlib.sha256(b"run").digest(), hashlib.sha256(b"thread").digest()
CLOSING = POLICY + "  - id: closed\n    tools: [refund]\n    when: context.closed == true\n    effect: deny\n"
RECHECKED = POLICY.replace("approvers: [lead]", "approvers: [lead]\n    recheck_approvers: true")
LOOP = Verdict(Status.USER_APPROVAL, "The loop asks.", rules=("loop",))


def suspend(world: World, permit: Permit, alongside: Callable[[], Sequence[Step]] | None = None) -> None:
    """Record that the permit's tool stopped itself, to be started again with an answer."""
    settle.settle(world.guard._desk, permit, "suspended", None, alongside)


def suspended(world: World, call: ToolCall | None = None) -> tuple[ToolCall, ApprovalRequest, str]:
    """Return a call that a person approved and whose tool suspended itself, its request, and the id of that start."""
    call, request = world.grant(call)
    permit = started(world.guard._permit(call, request_id=request.id))
    suspend(world, permit)
    return call, request, permit.claim_id or ""


def started(permit: Permit | None) -> Permit:
    assert permit is not None
    return permit


def again(world: World, call: ToolCall, request: ApprovalRequest, start: str) -> Permit:
    """Start a suspended call again, and demand that nobody had to be asked."""
    return started(world.guard._permit(call, request_id=request.id, resumes=start))


def types_of(world: World, request: ApprovalRequest) -> list[str]:
    return [event.type for event in world.store.load(request.tenant, request_id=request.id).events]


def snapshot(version: int = 1, body: bytes = b"state") -> PutRun:
    """Return the step with which a loop keeps its run."""
    return PutRun(RunRow(RUN, "default", version, body, b"signed"), ())


def kept(world: World) -> tuple[int, bytes] | None:
    """Return version and body of the loop's run, as stored."""
    _, row = world.store.load_run(RUN)
    return None if row is None else (row.version, row.body)


def only_requests(answers: Answers) -> list[ApprovalRequest]:
    assert all(isinstance(answer, ApprovalRequest) for answer in answers)
    return [answer for answer in answers if isinstance(answer, ApprovalRequest)]


class Losing:
    """A store on which the next so many transitions lose their race; each loss is told first, so that one can meddle.

    Attributes:
        writes: How often it was written to.
    """

    def __init__(self, store: SQLStore, losses: int, lost: Callable[[], object] = lambda: None) -> None:
        self._store, self._losses, self._lost, self.writes = store, losses, lost, 0

    def write(self, *args: Any) -> Any:
        self.writes += 1
        if self._losses == 0:
            return self._store.write(*args)
        self._losses -= 1
        self._lost()
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def losing(world: World, losses: int, lost: Callable[[], object] = lambda: None) -> tuple[World, Losing]:
    """Return another node on the same database that loses its races, and its store."""
    store: Any = Losing(world.store, losses, lost)
    return world.another(store=store), store


# -- a suspended call is started again --------------------------------------------------------------------------------


def test_m38_a_suspended_call_is_started_again_from_the_top_with_what_was_signed(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()
    first = started(world.guard._permit(call, request_id=request.id))
    suspend(world, first)
    assert world.state(request) == "suspended"

    second = again(world, call, request, first.claim_id or "")

    assert world.state(request) == "executing"
    assert (second.arguments, second.tool, second.scope) == (ARGUMENTS, "refund", first.scope)
    assert second.idempotency_key == first.idempotency_key
    assert (second.request_id, second.version, second.fingerprint) == (request.id, 4, first.fingerprint)
    assert second.claim_id not in (None, first.claim_id)
    world.guard.settle(second, "succeeded")
    assert types_of(world, request) == [
        "request:approved", "grant:claimed", "call:suspended", "grant:resumed", "call:succeeded",
    ]
    assert world.state(request) == "succeeded"


def test_m40_a_call_may_suspend_itself_as_often_as_it_likes_and_each_start_has_an_id_of_its_own(
    make_world: MakeWorld
) -> None:
    world = make_world()
    call, request, start = suspended(world)
    starts = [start]

    for _ in range(3):
        permit = again(world, call, request, starts[-1])
        suspend(world, permit)
        starts.append(permit.claim_id or "")

    assert len(set(starts)) == 4
    assert types_of(world, request)[2:] == ["call:suspended", "grant:resumed"] * 3 + ["call:suspended"]
    for old in starts[:-1]:
        with world.refused("consumed", "suspended"):
            again(world, call, request, old)
    world.guard.settle(again(world, call, request, starts[-1]), "failed")
    assert world.state(request) == "failed"


@pytest.mark.parametrize("start", ["", "another", "A" * 22], ids=["empty", "short", "as long"])
def test_nobody_but_who_knows_the_suspended_start_starts_it_again(make_world: MakeWorld, start: str) -> None:
    world = make_world()
    call, request, real = suspended(world)

    with world.refused("consumed", "suspended"):
        again(world, call, request, start)

    assert again(world, call, request, real).request_id == request.id


ELSEWHERE: dict[str, Callable[[World, ToolCall, ApprovalRequest], object]] = {
    "authorize": lambda world, call, request: world.guard.authorize(call),
    "authorize by id": lambda world, call, request: world.guard.authorize(call, request_id=request.id),
    "authorize by token": lambda world, call, request: world.guard.authorize(call, token=request.token),
    "request": lambda world, call, request: world.guard.request(call),
    "run": lambda world, call, request: world.run(call, request_id=request.id),
    "a permit of the loop": lambda world, call, request: world.guard._permit(call),
    "a permit by id": lambda world, call, request: world.guard._permit(call, request_id=request.id),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_without_the_suspended_starts_id_a_suspended_call_is_spent(make_world: MakeWorld, how: str) -> None:
    world = make_world()
    call, request, _ = suspended(world)

    with world.refused("consumed", "suspended"):
        ELSEWHERE[how](world, call, request)

    assert world.state(request) == "suspended"


@pytest.mark.parametrize("named", [True, False], ids=["by id", "by identity"])
def test_a_suspended_call_is_started_again_once(make_world: MakeWorld, named: bool) -> None:
    world = make_world()
    call, request, start = suspended(world)
    request_id = request.id if named else None
    assert world.guard._permit(call, request_id=request_id, resumes=start) is not None

    with world.refused("consumed", "executing"):
        world.guard._permit(call, request_id=request_id, resumes=start)

    assert types_of(world, request).count("grant:resumed") == 1


@pytest.mark.parametrize(
    ("outcome", "code"), [("succeeded", "consumed"), ("failed", "consumed"), ("in_doubt", "in-doubt")]
)
def test_a_start_that_ended_otherwise_is_not_started_again(make_world: MakeWorld, outcome: str, code: str) -> None:
    world = make_world()
    call, request = world.grant()
    permit = world.guard.authorize(call)
    with world.refused("consumed", "executing"):
        again(world, call, request, permit.claim_id or "")

    world.guard.settle(permit, outcome)

    with world.refused(code):
        again(world, call, request, permit.claim_id or "")


@pytest.mark.parametrize("state", ["pending", "approved", "denied"])
def test_a_request_that_was_never_claimed_has_no_start_to_follow(make_world: MakeWorld, state: str) -> None:
    """Who was suspended was claimed before: a grant that reads as unspent is then one that somebody put back."""
    world = make_world()
    call = world.call()
    request = world.guard.request(call)
    if state != "pending":
        (world.approve if state == "approved" else world.deny)(request)

    code, detail = {
        "pending": ("invalid-approval", "pending"), "approved": ("consumed", "approved"), "denied": ("denied", None),
    }[state]
    with world.refused(code, detail):
        again(world, call, request, "a start of old")

    assert world.state(request) == state


@pytest.mark.parametrize("by", [ANA, BOB, OPERATOR], ids=["the requester", "an approver", "an operator"])
def test_a_suspended_call_that_was_revoked_is_not_started_again(make_world: MakeWorld, by: Principal) -> None:
    world = make_world()
    call, request, start = suspended(world)

    world.guard.revoke(request.id, by=by, reason="No longer wanted.")

    with world.refused("revoked"):
        again(world, call, request, start)
    with world.refused("consumed", "spent"):  # found by its identity it would be asked anew, were it not spent
        world.guard._permit(call, resumes=start)
    with world.refused("consumed", "spent"):
        world.guard.request(call)
    assert world.state(request) == "revoked"
    assert len(world.guard.pending(states=("suspended", "revoked"))) == 0
    with world.refused("revoked", kind="decision:refused"):
        world.guard.revoke(request.id, by=by)


def test_a_stranger_revokes_no_suspended_call(world: World) -> None:
    call, request, start = suspended(world, world.call("close_account"))

    with world.refused("not-authorised", "role", kind="decision:refused"):
        world.guard.revoke(request.id, by=CAROL)

    assert again(world, call, request, start).request_id == request.id


@pytest.mark.parametrize(
    ("what", "detail"), [({}, "all"), ({"tool": "refund"}, "tool"), ({"agent": "bot"}, "agent")], ids=str
)
def test_x18_a_pause_stops_a_suspended_call_until_it_is_lifted(
    make_world: MakeWorld, what: dict[str, Any], detail: str
) -> None:
    world = make_world()
    call, request, start = suspended(world, world.call(agent="bot"))
    world.guard.pause(by=OPERATOR, **what)

    with world.refused("paused", detail):
        again(world, call, request, start)

    world.guard.resume(by=OPERATOR, **what)
    assert again(world, call, request, start).request_id == request.id


def test_the_policy_that_denies_meanwhile_stops_a_suspended_call(make_world: MakeWorld) -> None:
    world = make_world(policy=document(CLOSING))
    call, request, start = suspended(world, world.call(context={"closed": False}))

    with world.refused("policy-denied", "policy"):
        again(world, replace(call, context={"closed": True}), request, start)
    with world.refused("policy-denied", "policy-error"):
        again(world, replace(call, context={}), request, start)

    assert again(world, replace(call, context=None), request, start).request_id == request.id


def test_another_policy_version_stops_a_suspended_call(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    node = world.another(policy=document(POLICY + "# later\n"))

    with node.refused("policy-changed"):
        again(node, call, request, start)
    world.guard.activate_policy("0" * 64, by=OPERATOR)
    with world.refused("policy-changed", "node"):
        again(world, call, request, start)

    assert world.state(request) == "suspended"


def test_another_tool_definition_stops_a_suspended_call(make_world: MakeWorld) -> None:
    world = make_world()
    definition = ToolDefinition("refund", "Pay money back.")
    call, request, start = suspended(world, world.call(definition=definition))

    for other in (replace(definition, description="Pay it all."), replace(definition, name="transfer"), None):
        with world.refused("tool-changed"):
            again(world, replace(call, definition=other), request, start)

    assert again(world, call, request, start).request_id == request.id


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"arguments": {"order": "A-17", "amount": 820}}, "args-mismatch"), ({"tool": "transfer"}, "args-mismatch"),
    ({"user": "ben"}, "scope-mismatch"), ({"run_id": "run-2"}, "scope-mismatch"),
    ({"call_id": "another"}, "scope-mismatch"), ({"call_id": None}, "scope-mismatch"),
    ({"occurrence": 1}, "scope-mismatch"), ({"tenant": "other"}, "invalid-approval"),
]


@pytest.mark.parametrize(("changed", "code"), CHANGES, ids=[str(changed) for changed, _ in CHANGES])
def test_x01_a_suspended_call_is_started_again_only_as_what_it_was(
    make_world: MakeWorld, changed: dict[str, Any], code: str
) -> None:
    world = make_world()
    call, request, start = suspended(world)

    with world.refused(code):
        again(world, replace(call, **changed), request, start)

    assert again(world, call, request, start).arguments == ARGUMENTS


def test_x01_an_edited_call_is_started_again_with_what_the_person_wrote(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call("mail", {"to": "all"})
    world.approve(world.guard.request(call), arguments={"to": "one"})
    permit = started(world.guard._permit(call))
    suspend(world, permit)

    second = started(world.guard._permit(call, request_id=permit.request_id, resumes=permit.claim_id))

    assert (second.arguments, second.edited) == ({"to": "one"}, True)


def test_an_approver_who_lost_the_role_meanwhile_stops_a_suspended_call(make_world: MakeWorld) -> None:
    roles = {"bob": ["lead"]}

    class Staff:
        def roles_of(self, _tenant: str, principal_id: str) -> Sequence[str] | None:
            return roles.get(principal_id)

    world = make_world(policy=document(RECHECKED), directory=Staff())
    call, request, start = suspended(world, world.call("close_account"))
    roles["bob"] = []

    with world.refused("not-authorised", "role"):
        again(world, call, request, start)

    roles["bob"] = ["lead"]
    assert again(world, call, request, start).request_id == request.id


def test_who_stands_behind_the_call_by_now_may_not_have_approved_it(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    bobs = Principal("bot", kind="agent", owner="bob")

    with world.refused("not-authorised", "quorum"):
        again(world, replace(call, agent=bobs), request, start)


def test_what_a_revoked_key_or_an_earlier_epoch_signed_is_not_started_again(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    ring, _ = revoked(world.keyring, request.key_id, now=clock.epoch_ms())

    for keyring, code in ((ring, "key-revoked"), (Keyring(world.keyring.keys, epoch=2), "invalid-approval")):
        node = world.another(keyring=keyring)
        with node.refused(code):
            again(node, call, request, start)


def test_both_windows_were_the_first_starts_and_do_not_end_a_suspension(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    assert request.execute_by is not None
    late = max(request.decide_by, request.execute_by) + 3_600_000
    store: Any = GatedStore(world.store, lambda: None, now=late)

    permit = again(world.another(store=store), call, request, start)

    assert (permit.request_id, permit.version) == (request.id, 4)


def test_a_suspension_is_never_overdue_and_nothing_sweeps_it(make_world: MakeWorld) -> None:
    world = make_world(settings=Settings(run_within=1))
    call, request = world.grant()
    permit = started(world.guard._permit(call, request_id=request.id))
    suspend(world, permit)
    until(world.store, world.store.now() + 2)

    assert world.guard.sweep() == 0
    assert world.state(request) == "suspended"


def test_a_start_that_never_reports_is_in_doubt_like_a_first_one(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    dying = world.another(settings=Settings(run_within=1))
    permit = again(dying, call, request, start)
    until(world.store, world.store.now() + 2)

    assert world.state(request) == "in_doubt"
    for claim_id in (start, permit.claim_id or ""):
        with world.refused("in-doubt"):
            again(world, call, request, claim_id)
    assert world.guard.sweep() == 1
    assert world.guard.resolve(request.id, "abandoned", by=OPERATOR, reason="Gone.") == "abandoned"
    assert types_of(world, request)[3:] == ["grant:resumed", "call:in_doubt", "call:abandoned"]


def test_nobody_resolves_or_decides_what_waits_for_its_tools_answer(make_world: MakeWorld) -> None:
    world = make_world()
    _, request, _ = suspended(world)

    with world.refused("invalid-approval", "suspended", kind="decision:refused"):
        world.guard.resolve(request.id, "failed", by=OPERATOR, reason="Looked.", force=True)
    with world.refused("already-decided", "suspended", kind="decision:refused"):
        world.deny(request, CAROL)

    assert world.state(request) == "suspended"


def test_m57_suspended_calls_are_listed_until_they_end(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)

    def listed(state: str) -> list[str]:
        return [one.id for one in world.guard.pending(states=(state,), run_id="run-1")]

    assert (listed("suspended"), listed("executing")) == ([request.id], [])
    permit = again(world, call, request, start)
    assert (listed("suspended"), listed("executing")) == ([], [request.id])
    suspend(world, permit)
    assert listed("suspended") == [request.id]
    world.guard.settle(again(world, call, request, permit.claim_id or ""), "succeeded")
    assert world.store.open_requests(tenant=None, limit=10) == []


def test_the_first_starts_holder_settles_nothing_of_the_second(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()
    first = started(world.guard._permit(call, request_id=request.id))
    suspend(world, first)
    second = again(world, call, request, first.claim_id or "")

    for outcome in ("succeeded", "failed", "in_doubt", "suspended"):
        with pytest.raises(ConsumedError) as caught:
            settle.settle(world.guard._desk, first, outcome, None)
        assert caught.value.detail == "settled"

    assert world.state(request) == "executing"
    world.guard.settle(second, "succeeded")


def test_a_deny_and_retry_call_suspends_and_starts_again_too(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world, world.call(call_id=None))

    with world.refused("consumed", "suspended"):
        world.guard.request(call)
    world.guard.settle(again(world, call, request, start), "succeeded")

    assert world.ask(call).id != request.id


def test_each_start_has_a_permit_that_starts_one_tool_once(world: World) -> None:
    call, request = world.grant()
    first = started(world.guard._permit(call))
    running.take(first)
    suspend(world, first)

    second = again(world, call, request, first.claim_id or "")
    running.take(second)

    for permit in (first, second):
        with pytest.raises(ConsumedError) as caught:
            running.take(permit)
        assert caught.value.detail == "permit"


def test_a_permit_to_start_again_that_lay_too_long_starts_nothing(world: World) -> None:
    call, request, start = suspended(world)
    permit = again(world.another(settings=Settings(run_within=1)), call, request, start)
    until(world.store, world.store.now() + 3)

    with pytest.raises(ExpiredError) as caught:
        running.take(permit)

    assert caught.value.detail == "run-by"


# -- of a start again that loses its race -----------------------------------------------------------------------------


def test_a_start_again_that_loses_its_race_is_judged_anew(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    node, store = losing(world, 2)

    permit = again(node, call, request, start)

    assert (permit.version, store.writes) == (4, 3)
    assert types_of(world, request).count("grant:resumed") == 1


MEANWHILE: dict[str, tuple[Callable[[World, ToolCall, ApprovalRequest, str], object], str]] = {
    "a pause": (lambda world, call, request, start: world.guard.pause(by=OPERATOR), "paused"),
    "a revocation": (lambda world, call, request, start: world.guard.revoke(request.id, by=OPERATOR), "revoked"),
    "another start": (lambda world, call, request, start: again(world, call, request, start), "consumed"),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_happened_between_reading_and_starting_again_stops_the_start(make_world: MakeWorld, what: str) -> None:
    world = make_world()
    call, request, start = suspended(world)
    act, code = MEANWHILE[what]
    store: Any = GatedStore(world.store, lambda: act(world, call, request, start))
    node = world.another()
    node.guard._desk.store = store  # only now, since a guard that starts reads as well

    with world.refused(code):
        again(node, call, request, start)

    assert types_of(world, request).count("grant:resumed") == (what == "another start")


def test_a_start_again_that_loses_every_race_says_so(make_world: MakeWorld) -> None:
    world = make_world()
    call, request, start = suspended(world)
    node, store = losing(world, 1_000_000)

    with pytest.raises(UnavailableError) as caught:
        again(node, call, request, start)

    assert (caught.value.detail, store.writes) == ("busy", ROUNDS)
    assert world.state(request) == "suspended"


# -- permits without asking anybody -----------------------------------------------------------------------------------


def test_a_call_that_needs_no_approval_gets_a_free_permit(make_world: MakeWorld) -> None:
    world = make_world()

    permit = started(world.guard._permit(world.call("look_up")))

    assert (permit.request_id, permit.claim_id, permit.arguments) == (None, None, ARGUMENTS)
    assert world.store.chains() == []


def test_a_call_that_the_policy_approves_is_claimed_at_once_and_may_suspend_itself(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call("ping")
    permit = started(world.guard._permit(call))
    request = world.guard.get(permit.request_id or "")
    assert (request.state, request.votes[0].automatic) == ("executing", True)

    suspend(world, permit)
    world.guard.settle(again(world, call, request, permit.claim_id or ""), "succeeded")

    assert types_of(world, request) == [
        "request:approved", "grant:claimed", "call:suspended", "grant:resumed", "call:succeeded",
    ]
    with world.refused("consumed", "succeeded"):
        world.guard._permit(call)


@pytest.mark.parametrize("now", ["user-approval", "denied", "not-applicable"])
def test_what_the_policy_approved_by_itself_is_started_again_by_its_word_alone(world: World, now: str) -> None:
    says = {"status": "approved"}
    node = world.another(policy=lambda info: says["status"])
    call = node.call()
    permit = started(node.guard._permit(call))
    request = node.guard.get(permit.request_id or "")
    suspend(node, permit)

    says["status"] = now

    if now == "not-applicable":
        assert again(node, call, request, permit.claim_id or "").request_id == request.id
        return
    code, detail = ("not-authorised", "quorum") if now == "user-approval" else ("policy-denied", "policy")
    with node.refused(code, detail):
        again(node, call, request, permit.claim_id or "")
    says["status"] = "approved"
    assert again(node, call, request, permit.claim_id or "").request_id == request.id


def test_what_people_approved_needs_them_still_where_the_policy_would_not_ask_any_more(world: World) -> None:
    says = {"status": "user-approval"}
    node = world.another(policy=lambda info: says["status"])
    call, request, start = suspended(node)
    says["status"] = "approved"

    with node.refused("not-authorised", "quorum"):
        again(node, replace(call, agent=Principal("bot", kind="agent", owner="bob")), request, start)

    assert again(node, call, request, start).request_id == request.id


def test_where_a_person_must_be_asked_there_is_no_permit_and_nothing_is_made(make_world: MakeWorld) -> None:
    world = make_world()

    assert world.guard._permit(world.call()) is None

    assert len(world.guard.pending()) == 0
    assert world.store.chains() == []


def test_where_a_person_has_not_decided_yet_there_is_no_permit(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)

    assert world.guard._permit(call) is None
    with world.refused("invalid-approval", "pending"):
        world.guard._permit(call, request_id=request.id)

    world.approve(request)
    assert started(world.guard._permit(call)).request_id == request.id


@pytest.mark.parametrize("policy", ["not-applicable", "approved"])
def test_where_a_request_ended_without_a_yes_a_person_must_be_asked_again(world: World, policy: str) -> None:
    node = world.another(policy=policy)
    call = node.call()
    request = node.guard.request(call)
    node.guard.revoke(request.id, by=OPERATOR)

    assert node.guard._permit(call) is None
    assert [one.id for one in node.guard.pending(states=("pending", "revoked"))] == []


def test_what_must_not_run_is_refused_and_audited_where_nobody_is_asked(make_world: MakeWorld) -> None:
    world = make_world()
    denied = world.call()
    world.deny(world.guard.request(denied), reason="No.")
    call, request = world.grant()

    with world.refused("policy-denied", "policy"):
        world.guard._permit(world.call("drop_database"))
    with world.refused("denied"):
        world.guard._permit(denied)
    with world.refused("args-mismatch"):
        world.guard._permit(replace(call, arguments={}), request_id=request.id)
    with world.refused("invalid-approval", "unknown"):
        world.guard._permit(call, request_id="none")
    with pytest.raises(ConfigurationError):
        world.guard._permit(world.call(run_id=""))


def test_a_permit_that_loses_a_race_is_judged_anew(world: World) -> None:
    node, _ = losing(world, 3)
    call, request = world.grant()

    assert started(node.guard._permit(call)).request_id == request.id
    node, _ = losing(world, 3)
    assert started(node.guard._permit(node.call("ping", call_id="free"))).claim_id is not None


def test_a_free_permit_starts_one_tool_once_and_nothing_is_recorded(world: World) -> None:
    permit, seen = started(world.guard._permit(world.call("look_up"))), []

    async def look_up(given: Permit) -> str:
        seen.append((given, running.current_permit()))
        return "found"

    assert asyncio.run(running.run_free(permit, look_up)) == "found"
    with pytest.raises(ConsumedError) as caught:
        asyncio.run(running.run_free(permit, look_up))

    assert caught.value.detail == "permit"
    assert (seen, running.current_permit(), world.store.chains()) == ([(permit, permit)], None, [])


def test_a_free_permit_takes_no_generator_for_a_result(world: World) -> None:
    async def later(_permit: Permit) -> Any:
        return (number for number in range(3))

    with pytest.raises(ConfigurationError):
        asyncio.run(running.run_free(started(world.guard._permit(world.call("look_up"))), later))


def test_a_free_permit_that_is_only_looked_for_writes_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    node, store = losing(world, 1_000_000)

    permit = started(node.guard._free_permit(node.call("look_up")))

    assert (permit.request_id, permit.arguments, store.writes) == (None, ARGUMENTS, 0)


NOT_FREE: dict[str, Callable[[World], ToolCall]] = {
    "a person must be asked": lambda world: world.call(),
    "the policy approves": lambda world: world.call("ping"),
    "the policy denies": lambda world: world.call("drop_database"),
    "asked before": lambda world: world.call("look_up", call_id=world.guard.request(world.call("look_up")).call_id),
    "granted": lambda world: world.grant(world.call("look_up"))[0],
    "suspended": lambda world: suspended(world, world.call("look_up"))[0],
    "no canonical form": lambda world: world.call("look_up", {"n": float("nan")}),
    "no scope": lambda world: world.call("look_up", run_id=""),
    "another definition": lambda world: world.call("look_up", definition=ToolDefinition("refund")),
}


@pytest.mark.parametrize("why", NOT_FREE)
def test_no_other_permit_is_found_without_writing_and_no_refusal_is_audited_yet(
    make_world: MakeWorld, why: str
) -> None:
    world = make_world()
    call = NOT_FREE[why](world)
    before = world.store.chains()
    node, store = losing(world, 1_000_000)

    assert node.guard._free_permit(call) is None

    assert (store.writes, world.audited(), world.store.chains()) == (0, [], before)


def test_a_pause_stops_free_calls_too(make_world: MakeWorld) -> None:
    world = make_world()
    world.guard.pause(by=OPERATOR)

    assert world.guard._free_permit(world.call("look_up")) is None
    with world.refused("paused", "all"):
        world.guard._permit(world.call("look_up"))


# -- requests made together -------------------------------------------------------------------------------------------


def test_m16_requests_and_the_loops_own_steps_are_one_transaction(make_world: MakeWorld) -> None:
    world = make_world()
    calls = [world.call(), world.call("wire"), world.call("look_up")]
    told: list[Answers] = []

    def alongside(answers: Answers) -> list[Step]:
        told.append(answers)
        ids = " ".join(request.id for request in only_requests(answers))
        return [snapshot(body=ids.encode()), AddSegment(Segment(THREAD, 0, RUN, b"hello"))]

    answers = world.guard._request_together([(call, None) for call in calls], alongside)

    requests = only_requests(answers)
    assert told == [answers]
    assert [(one.tool, one.state) for one in requests] == [
        ("refund", "pending"), ("wire", "pending"), ("look_up", "pending"),
    ]
    assert kept(world) == (1, " ".join(request.id for request in requests).encode())
    assert world.store.segments(THREAD) == [Segment(THREAD, 0, RUN, b"hello")]
    assert {one.id for one in world.guard.pending()} == {request.id for request in requests}
    world.approve(requests[0])
    assert world.run(calls[0], request_id=requests[0].id) == "done"


def test_requests_whose_companion_fails_leave_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    attempts: list[Answers] = []

    def alongside(answers: Answers) -> list[Step]:
        attempts.append(answers)
        return [snapshot(version=7)]  # there is no version 6

    with pytest.raises(UnavailableError) as caught:
        world.guard._request_together([(world.call(), None), (world.call(tenant="new"), None)], alongside)

    assert caught.value.detail == "busy"
    assert len(attempts) == ROUNDS
    assert len({request.id for answers in attempts for request in only_requests(answers)}) == 2 * ROUNDS
    assert len(world.guard.pending(tenant=None)) == 0
    assert (kept(world), world.store.controls()) == (None, [])
    report = verify(world.guard._desk)
    assert (report.requests, report.findings) == (0, ())


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_companion_that_fails_takes_no_joined_or_outdated_request_with_it(
    make_world: MakeWorld, place: str
) -> None:
    world = make_world()
    joined, outdated = world.call(), world.call()
    mine, old = world.guard.request(joined), world.guard.request(outdated)
    node = world.another(policy=document(POLICY + "# later\n"))
    wrong: list[Step] = [snapshot(version=7), AddSegment(Segment(THREAD, 0, RUN, b""))]

    with pytest.raises(UnavailableError):
        node.guard._request_together(
            [(outdated, None)], lambda answers: wrong if place == "first" else wrong[::-1]
        )

    assert [world.state(one) for one in (mine, old)] == ["pending", "pending"]
    assert world.store.segments(THREAD) == []


def test_the_companions_steps_are_asked_anew_for_each_attempt(make_world: MakeWorld) -> None:
    world = make_world()
    assert world.store.write([snapshot()], world.guard._desk.sealer) is not None
    versions = iter([1, 1, 2])  # the loop reads its run again, until it has the newest

    def alongside(answers: Answers) -> list[Step]:
        (request,) = only_requests(answers)
        return [snapshot(next(versions), request.id.encode())]

    (answer,) = world.guard._request_together([(world.call(), None)], alongside)

    assert isinstance(answer, ApprovalRequest)
    assert [one.id for one in world.guard.pending()] == [answer.id]
    assert kept(world) == (2, answer.id.encode())
    assert list(versions) == []


@pytest.mark.parametrize("count", [2, 5])
def test_two_calls_of_a_new_tenant_share_one_first_control_row(make_world: MakeWorld, count: int) -> None:
    world = make_world()
    calls = [world.call(tenant="new") for _ in range(count)]

    answers = only_requests(world.guard._request_together([(call, None) for call in calls]))

    assert {(row.tenant, row.version) for row in world.store.controls()} == {("new", 1), (EVERYWHERE, 1)}
    for call, request in zip(calls, answers, strict=True):
        world.approve(request, replace(BOB, tenant="new"))
        assert world.run(call, request_id=request.id) == "done"
    assert verify(world.guard._desk).findings == ()


def test_calls_of_several_new_tenants_run_as_well(make_world: MakeWorld) -> None:
    world = make_world()
    calls = [world.call(tenant=tenant) for tenant in ("a", "b")]

    answers = only_requests(world.guard._request_together([(call, None) for call in calls]))

    for call, request in zip(calls, answers, strict=True):
        world.approve(request, replace(BOB, tenant=call.tenant))
        assert world.run(call) == "done"
    assert {row.tenant for row in world.store.controls()} == {"a", "b", EVERYWHERE}


def test_loops_that_ask_for_the_same_new_calls_at_once_have_the_same_requests(make_world: MakeWorld) -> None:
    world = make_world()
    calls = [(world.call(tenant="new"), None), (world.call(tenant="new"), None)]
    node = world.another()
    gated: Any = GatedStore(world.store, all_read(4))
    node.guard._desk.store = gated

    answers = at_once([lambda: node.guard._request_together(calls)] * 4)

    assert len({tuple(request.id for request in only_requests(one)) for one in answers}) == 1
    assert len(world.guard.pending(tenant="new")) == 2
    assert [row.version for row in world.store.controls()] == [1, 1]


def test_the_refusal_of_one_call_leaves_the_others_asked_and_is_audited_once(make_world: MakeWorld) -> None:
    world = make_world()
    spent, _ = world.grant()
    world.run(spent)
    calls = [
        world.call("drop_database"), world.call(), spent, world.call(arguments={"n": float("nan")}), world.call("wire"),
    ]
    versions = iter([7, 7, 1])

    answers = world.guard._request_together(
        [(call, None) for call in calls], lambda answers: [snapshot(next(versions))]
    )

    assert [getattr(answer, "code", "asked") for answer in answers] == [
        "policy-denied", "asked", "consumed", "unsupported-value", "asked",
    ]
    assert sorted(event["code"] for event in world.audited()) == ["consumed", "policy-denied", "unsupported-value"]
    asked = [answer.id for answer in answers if isinstance(answer, ApprovalRequest)]
    assert {one.id for one in world.guard.pending()} == set(asked)
    assert kept(world) == (1, b"state")


def test_where_every_call_is_refused_the_loop_still_keeps_what_it_wants(make_world: MakeWorld) -> None:
    world = make_world()
    seen: list[Answers] = []

    def alongside(answers: Answers) -> list[Step]:
        seen.append(answers)
        return [snapshot()]

    answers = world.guard._request_together([(world.call("drop_database"), None)], alongside)

    assert isinstance(answers[0], PolicyDeniedError)
    assert (seen, kept(world)) == ([answers], (1, b"state"))
    assert len(world.guard.pending()) == 0


def test_open_requests_are_joined_and_then_nothing_is_written(make_world: MakeWorld) -> None:
    world = make_world()
    pending, (granted, grant) = world.call(), world.grant()
    mine = world.guard.request(pending)
    node, store = losing(world, 1_000_000)

    answers = only_requests(node.guard._request_together([(pending, None), (granted, LOOP)], lambda answers: []))

    assert [(one.id, one.state) for one in answers] == [(mine.id, "pending"), (grant.id, "approved")]
    assert store.writes == 0


def test_nothing_asked_for_is_nothing_made(world: World) -> None:
    node, store = losing(world, 1_000_000)

    assert node.guard._request_together([]) == []
    assert store.writes == 0


def test_other_arguments_in_the_place_of_an_open_request_are_tampering(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    request = world.guard.request(call)

    (answer, other) = world.guard._request_together(
        [(replace(call, arguments={"amount": 820}), None), (world.call(), None)]
    )

    assert isinstance(answer, ArgsMismatchError)
    assert {one.id for one in world.guard.pending()} == {request.id, *(one.id for one in only_requests([other]))}


def test_outdated_requests_are_superseded_in_the_same_transaction(make_world: MakeWorld) -> None:
    world = make_world()
    call = world.call()
    old = world.guard.request(call)
    node = world.another(policy=document(POLICY + "# later\n"))

    (new,) = only_requests(node.guard._request_together([(call, None)], lambda answers: [snapshot()]))

    assert (world.state(old), new.supersedes) == ("superseded", old.id)
    assert kept(world) == (1, b"state")


def test_a_call_that_is_none_or_has_no_scope_stops_them_all_before_anything_is_written(world: World) -> None:
    nobody: Any = "refund"

    for wrong in (nobody, world.call(run_id="")):
        with pytest.raises(ConfigurationError):
            world.guard._request_together([(world.call(), None), (wrong, None)])

    assert len(world.guard.pending()) == 0


OWN: list[tuple[str, Verdict, set[str], int]] = [
    ("refund", LOOP, {"refunds", "loop"}, 1),
    ("look_up", LOOP, {"loop"}, 1),
    ("ping", LOOP, {"loop"}, 1),
    ("refund", Verdict(Status.NOT_APPLICABLE), {"refunds"}, 1),
    ("refund", Verdict(Status.APPROVED, rules=("loop",)), {"refunds"}, 1),
    ("refund", replace(LOOP, requirements=(Requirement(approvers=("lead",), quorum=2),)), {"refunds", "loop"}, 2),
]


@pytest.mark.parametrize(
    ("tool", "own", "rules", "requirements"), OWN, ids=[f"{tool}-{own.status}-{n}" for tool, own, _, n in OWN]
)
def test_a_loops_own_verdict_can_only_add_to_the_guards(
    world: World, tool: str, own: Verdict, rules: set[str], requirements: int
) -> None:
    call = world.call(tool)

    (request,) = only_requests(world.guard._request_together([(call, own)]))

    assert (set(request.rules), len(request.requirements)) == (rules, requirements)
    assert world.guard._permit(call) is None


def test_what_a_loops_own_verdict_demands_is_demanded_of_the_grant(world: World) -> None:
    needs = replace(LOOP, requirements=(Requirement(approvers=("lead",)), Requirement(approvers=("audit",))))
    call = world.call("look_up")
    (request,) = only_requests(world.guard._request_together([(call, needs)]))

    with world.refused("not-authorised", "role", kind="decision:refused"):
        world.approve(request, CAROL)
    world.approve(request, BOB)
    assert world.guard._permit(call) is None
    world.approve(request, replace(CAROL, roles=("audit",)))

    assert started(world.guard._permit(call, request_id=request.id)).request_id == request.id


@pytest.mark.parametrize("tool", ["refund", "look_up", "ping"])
def test_a_loops_own_denial_asks_nobody(make_world: MakeWorld, tool: str) -> None:
    world = make_world()
    own = Verdict(Status.DENIED, "Not from here.", rules=("loop",))

    with world.refused("policy-denied", "policy"):
        (answer,) = world.guard._request_together([(world.call(tool), own)])
        assert isinstance(answer, PolicyDeniedError)
        raise answer

    assert (answer.reason, "loop" in str(answer)) == ("Not from here.", True)
    assert len(world.guard.pending()) == 0


# -- outcomes and the loop's own steps --------------------------------------------------------------------------------


def test_a_free_permits_outcome_is_nothing_and_the_companion_is_kept(make_world: MakeWorld) -> None:
    world = make_world()
    permit = started(world.guard._permit(world.call("look_up")))

    settle.settle(world.guard._desk, permit, "succeeded", None, lambda: [snapshot()])

    assert kept(world) == (1, b"state")
    assert world.store.chains() == []


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "in_doubt", "suspended"])
def test_an_outcome_and_its_companion_are_one_transaction(make_world: MakeWorld, outcome: str) -> None:
    world = make_world()
    call, request = world.grant()
    permit = started(world.guard._permit(call))

    settle.settle(world.guard._desk, permit, outcome, "word", lambda: [snapshot(body=outcome.encode())])

    assert (world.state(request), kept(world)) == (outcome, (1, outcome.encode()))
    assert world.audited(f"call:{outcome}")[0]["detail"] == "word"
    assert len(world.guard.pending(states=("in_doubt", "suspended"))) == (outcome in ("in_doubt", "suspended"))


@pytest.mark.parametrize("tool", ["look_up", "refund"], ids=["free", "claimed"])
def test_a_companion_that_loses_its_race_is_asked_anew_and_all_of_it_tried_again(
    make_world: MakeWorld, tool: str
) -> None:
    world = make_world()
    call, request = world.grant() if tool == "refund" else (world.call(tool), None)
    permit = started(world.guard._permit(call))
    assert world.store.write([snapshot()], world.guard._desk.sealer) is not None
    versions = iter([1, 1, 2])

    suspend(world, permit, lambda: [snapshot(next(versions), b"later")])

    assert (kept(world), list(versions)) == ((2, b"later"), [])
    assert request is None or types_of(world, request)[2:] == ["call:suspended"]


@pytest.mark.parametrize("tool", ["look_up", "refund"], ids=["free", "claimed"])
def test_a_companion_that_loses_every_race_leaves_no_outcome(make_world: MakeWorld, tool: str) -> None:
    world = make_world()
    call, request = world.grant() if tool == "refund" else (world.call(tool), None)
    permit = started(world.guard._permit(call))
    asked: list[int] = []

    def alongside() -> list[Step]:
        asked.append(1)
        return [snapshot(version=7)]

    with pytest.raises(UnavailableError) as caught:
        settle.settle(world.guard._desk, permit, "succeeded", None, alongside)

    assert (caught.value.detail, len(asked), kept(world)) == ("busy", ROUNDS, None)
    assert request is None or world.state(request) == "executing"


@pytest.mark.parametrize("before", ["succeeded", "suspended"])
def test_the_companion_of_an_outcome_that_was_recorded_before_is_not_kept(make_world: MakeWorld, before: str) -> None:
    world = make_world()
    call, request = world.grant()
    permit = started(world.guard._permit(call))
    settle.settle(world.guard._desk, permit, before, None)

    with pytest.raises(ConsumedError) as caught:
        settle.settle(world.guard._desk, permit, "failed", None, lambda: [snapshot()])

    assert caught.value.detail == "settled"
    assert (kept(world), world.state(request)) == (None, before)


def test_what_raises_instead_of_giving_steps_leaves_the_call_running(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()
    permit = started(world.guard._permit(call))

    def alongside() -> list[Step]:
        raise KeyError("the run is gone")

    with pytest.raises(KeyError):
        suspend(world, permit, alongside)

    assert world.state(request) == "executing"


@pytest.mark.parametrize("steps", [None, list], ids=["no companion", "a companion without steps"])
def test_a_free_permit_with_nothing_beside_it_writes_nothing(
    world: World, steps: Callable[[], Sequence[Step]] | None
) -> None:
    node, store = losing(world, 1_000_000)
    permit = started(node.guard._permit(node.call("look_up")))

    settle.settle(node.guard._desk, permit, "succeeded", None, steps)

    assert store.writes == 0


def test_a_companion_without_steps_leaves_the_outcome_alone(make_world: MakeWorld) -> None:
    world = make_world()
    call, request = world.grant()

    suspend(world, started(world.guard._permit(call)), list)

    assert types_of(world, request)[2:] == ["call:suspended"]


@pytest.mark.parametrize("outcome", ["executing", "revoked", "", None, "SUSPENDED"])
def test_an_outcome_that_is_none_is_refused_before_the_companion_is_asked(world: World, outcome: Any) -> None:
    permit = started(world.guard._permit(world.call("look_up")))

    with pytest.raises(ConfigurationError):
        settle.settle(world.guard._desk, permit, outcome, None, lambda: [snapshot()])

    assert kept(world) is None


def test_a_host_cannot_say_that_a_call_suspended_itself(world: World) -> None:
    call, _ = world.grant()
    permit = world.guard.authorize(call)

    with pytest.raises(ConfigurationError):
        world.guard.settle(permit, "suspended")

    world.guard.settle(permit, "succeeded")
