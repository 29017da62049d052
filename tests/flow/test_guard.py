"""The whole path of one guarded call, and every way in which it can leave it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import Guard, NoEffect, Principal, SQLStore, ToolCall
from hitl_guard.audit import Limiter
from hitl_guard.errors import (
    ApprovalDeniedError,
    AuditUnavailableError,
    ConfigurationError,
    ConsumedError,
    DecisionError,
    HitlGuardError,
    PolicyDeniedError,
    UnavailableError,
)
from hitl_guard.keyring import FILE_VARIABLE, KEYS_VARIABLE
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ToolDefinition
from hitl_guard.policy.core import Status
from tests.support import ANA, ARGUMENTS, BOB, CAROL, OPERATOR, POLICY, World, document, ring, until

OTHER_POLICY = POLICY + "  - id: more\n    tools: [nothing]\n    effect: deny\n"
TWO_EDITORS = POLICY.replace("    edit: true\n", "    edit: true\n    quorum: 2\n")


class Losing:
    """A store on which every transition loses its race, for ever, or only the first so many."""

    def __init__(self, store: SQLStore, losses: int = 1_000_000) -> None:
        self._store, self._losses = store, losses

    def write(self, *args: Any) -> Any:
        self._losses -= 1
        return None if self._losses >= 0 else self._store.write(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def losing(world: World, losses: int = 1_000_000) -> World:
    """Return another node on the same database which loses its races."""
    store: Any = Losing(world.store, losses)
    return world.another(store=store)


def test_what_a_person_approved_runs_once_with_what_was_shown(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = world.call()

    request = world.ask(call)
    shown = (request.state, request.arguments, request.reason, request.rules, request.tool)
    decision = world.approve(request)
    result = world.run(call)

    assert shown == ("pending", ARGUMENTS, "Money leaves the house.", ("refunds",), "refund")
    assert (decision.approver, decision.state, decision.approve) == ("bob", "approved", True)
    assert (result, world.effects) == ("done", [ARGUMENTS])
    assert world.state(request) == "succeeded"
    with world.refused("consumed", "succeeded"):
        world.run(call)


def test_every_step_is_one_event_of_the_request(world: World) -> None:
    call, request = world.grant()
    world.run(call)

    _, events = next((row, events) for row, id_, events in world.store.request_histories() if id_ == request.id)

    assert [event.type for event in events] == ["request:approved", "grant:claimed", "call:succeeded"]
    assert [event.version for event in events] == [1, 2, 3]


def test_a_permit_says_what_was_spent_and_gives_a_key_that_is_stable_per_approval(world: World) -> None:
    call, request = world.grant()

    permit = world.guard.authorize(call, request_id=request.id)

    assert (permit.tool, permit.arguments, permit.request_id) == ("refund", ARGUMENTS, request.id)
    assert permit.idempotency_key is not None
    assert len(permit.idempotency_key) == 43
    assert permit.scope.call_id == call.call_id
    assert permit.edited is False
    assert world.state(request) == "executing"


# -- asking -----------------------------------------------------------------------------------------------------------


def test_asking_for_the_same_call_again_joins_its_request_until_it_has_run(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = world.call()

    first = world.guard.request(call)
    second, by_authorize = world.guard.request(call), world.ask(call)
    world.approve(first)
    approved = world.guard.request(call)

    assert {first.id, second.id, by_authorize.id, approved.id} == {first.id}
    assert approved.state == "approved"
    world.run(call)
    with world.refused("consumed", "succeeded"):
        world.guard.request(call)


def test_asking_is_allowed_where_the_policy_would_not_ask(world: World) -> None:
    call = world.call("look_up")
    request = world.guard.request(call)

    assert world.ask(call).id == request.id
    world.approve(request)
    assert world.run(call) == "done"


def test_another_occurrence_of_a_call_id_is_another_request(world: World) -> None:
    first = world.guard.request(world.call(call_id="same"))
    second = world.guard.request(world.call(call_id="same", occurrence=1))

    assert first.id != second.id


@pytest.mark.parametrize("ask", ["request", "authorize"])
def test_other_arguments_in_the_same_place_are_tampering(world: World, ask: str) -> None:
    world.guard.request(world.call(call_id="c"))

    with world.refused("args-mismatch"):
        getattr(world.guard, ask)(world.call(arguments={"order": "A-17", "amount": 820}, call_id="c"))


def test_a_request_made_a_moment_ago_reads_as_it_does_from_the_store(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = world.call(agent="bot", context={"shop": 7}, turn=(world.call("look_up", {}),))

    fresh = world.guard.request(call)

    assert fresh == world.guard.get(fresh.id)


def test_a_call_that_has_run_cannot_spend_the_grant_of_another_one(world: World) -> None:
    ran, _ = world.grant()
    world.run(ran)
    other, request = world.grant()

    with world.refused("scope-mismatch"):
        world.run(ran, request_id=request.id)
    assert world.run(other) == "done"


def test_a_token_counts_for_the_request_and_the_tenant_that_it_names(make_world: Callable[..., World]) -> None:
    world = make_world()
    call, request = world.grant()
    other_call, other = world.grant()

    with world.refused("invalid-approval", "unknown"):
        world.run(call, token=request.token, request_id=other.id)
    with world.refused("invalid-approval", "unknown"):
        world.run(replace(call, tenant="elsewhere"), token=request.token)
    with world.refused("scope-mismatch"):
        world.run(other_call, token=request.token)
    assert world.run(call, token=request.token.encode(), request_id=request.id) == "done"


def test_the_context_that_was_signed_counts_where_the_loop_gives_none_later(world: World) -> None:
    text = POLICY + "  - id: abroad\n    tools: [look_up]\n    when: context.country != 'CH'\n    effect: deny\n"
    node = world.another(policy=document(text))
    here = {"country": "CH"}
    _, request = node.grant(node.call("look_up", {}, call_id="c", context=here))

    with node.refused("policy-denied"):
        node.run(node.call("look_up", {}, call_id="c", context={"country": "DE"}), request_id=request.id)
    assert node.run(node.call("look_up", {}, call_id="c"), request_id=request.id) == "done"


# -- deny and retry ---------------------------------------------------------------------------------------------------


def test_without_a_call_id_the_same_call_again_spends_the_grant_and_then_asks_anew(
    make_world: Callable[..., World]
) -> None:
    world = make_world()
    call = world.call(call_id=None)

    first = world.ask(call)
    assert (first.binding, first.call_id) == ("retry", None)
    assert world.ask(call).id == first.id
    world.approve(first)
    assert world.run(world.call(call_id=None)) == "done"
    second = world.ask(call)

    assert second.id != first.id
    assert world.effects == [ARGUMENTS]


def test_without_a_call_id_other_arguments_users_and_runs_are_other_requests(world: World) -> None:
    first = world.ask(world.call(call_id=None))
    others = [
        world.ask(world.call(arguments={"order": "A-18", "amount": 82}, call_id=None)),
        world.ask(world.call(call_id=None, run_id="run-2")),
        world.ask(world.call(call_id=None, user="dave")),
        world.ask(world.call("transfer", call_id=None)),
    ]

    assert len({first.id, *(other.id for other in others)}) == 5


def test_a_denied_call_stays_denied_in_its_run_and_nowhere_else(world: World) -> None:
    call = world.call(call_id=None)
    world.deny(world.ask(call), reason="No refunds on Sundays.")

    for _ in range(2):
        with world.refused("denied"):
            world.run(call)
    with world.refused("denied"):
        world.guard.request(call)
    assert world.ask(world.call(call_id=None, run_id="run-2")).state == "pending"


def test_a_grant_without_a_call_id_is_no_grant_for_a_call_with_one(world: World) -> None:
    world.grant(world.call(call_id=None))

    assert world.ask(world.call()).state == "pending"


def test_a_call_in_doubt_without_a_call_id_is_not_asked_anew(world: World) -> None:
    call, _ = world.grant(world.call(call_id=None))
    with pytest.raises(ValueError, match="boom"):
        world.guard.run(call, raising(ValueError("boom")))

    with world.refused("in-doubt"):
        world.guard.authorize(call)


# -- what the policy decides by itself --------------------------------------------------------------------------------


def test_what_the_policy_does_not_ask_about_runs_and_spends_nothing(world: World) -> None:
    call = world.call("look_up")

    permit = world.guard.authorize(call)
    world.guard.settle(permit, "succeeded")
    world.run(call)
    world.run(call)

    assert (permit.request_id, permit.claim_id, permit.idempotency_key) == (None, None, None)
    assert len(world.effects) == 2
    assert list(world.store.request_histories()) == []


def test_what_the_policy_approves_by_itself_runs_once_and_is_on_record(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = world.call("ping")

    permit = world.guard.authorize(call)
    request = world.guard.get(permit.request_id or "")
    world.guard.settle(permit, "succeeded")

    assert request.state == "executing"
    assert [(vote.approver, vote.automatic, vote.approve) for vote in request.votes] == [("policy", True, True)]
    with world.refused("consumed", "succeeded"):
        world.run(call)
    assert world.run(world.call("ping")) == "done"


def test_what_the_policy_approves_by_itself_without_a_call_id_runs_each_time(world: World) -> None:
    call = world.call("ping", call_id=None)

    assert [world.run(call), world.run(call)] == ["done", "done"]
    assert len({id_ for _, id_, _ in world.store.request_histories() if not id_.startswith("control:")}) == 2


@pytest.mark.parametrize("ask", ["request", "authorize"])
def test_what_the_policy_denies_is_refused_with_its_reason(world: World, ask: str) -> None:
    act = getattr(world.guard, ask)
    with world.refused("policy-denied", "policy"):
        act(world.call("drop_database", {}))

    with pytest.raises(PolicyDeniedError, match="rule nobody") as caught:
        act(world.call("drop_database", {}))
    assert caught.value.reason == "Never."


def test_evaluate_tells_the_verdict_and_records_nothing(world: World) -> None:
    tools = ("refund", "look_up", "ping", "drop_database")

    statuses = [world.guard.evaluate(world.call(tool, {})).status for tool in tools]

    assert statuses == [Status.USER_APPROVAL, Status.NOT_APPLICABLE, Status.APPROVED, Status.DENIED]
    assert list(world.store.request_histories()) == []


def test_an_overdue_request_is_ended_when_another_policy_decides_by_itself(world: World) -> None:
    node = world.another(settings=Settings(decide_within=1))
    call = node.call("ping")
    request = node.guard.request(call)
    until(node.store, request.decide_by)

    assert world.another(policy=document(OTHER_POLICY)).run(call) == "done"
    assert node.state(request) == "expired"
    assert len(node.audited("request:expired")) == 1


@pytest.mark.parametrize("tool", ["ping", "look_up"])
def test_what_a_person_was_asked_about_does_not_run_because_nobody_answered(world: World, tool: str) -> None:
    node = world.another(settings=Settings(decide_within=1))
    call = node.call(tool)
    request = node.guard.request(call)
    until(node.store, request.decide_by)

    again = world.ask(call)

    assert (again.id != request.id, again.supersedes) == (True, None)
    assert world.effects == []


# -- a person's answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason", "response"),
    [
        ({}, "Tool call was not approved by the user", None),
        ({"reason": ""}, "Tool call was not approved by the user", None),
        ({"reason": "Ask the customer."}, "Ask the customer.", None),
        ({"respond": {"by": "hand"}}, "Tool call was not approved by the user", {"by": "hand"}),
    ],
)
def test_a_denial_carries_the_persons_words_to_the_model(
    world: World, answer: dict[str, Any], reason: str, response: Any
) -> None:
    call = world.call()
    world.deny(world.guard.request(call), **answer)

    with world.refused("denied"):
        world.run(call)
    with pytest.raises(ApprovalDeniedError) as caught:
        world.run(call)
    assert (caught.value.reason, caught.value.response) == (reason, response)


def test_a_denied_call_cannot_be_approved_any_more(world: World) -> None:
    request = world.guard.request(world.call())
    world.deny(request)

    with world.refused("already-decided", "denied", kind="decision:refused"):
        world.approve(request, by=CAROL)


def test_a_denial_with_another_answer_is_another_decision(world: World) -> None:
    request = world.guard.request(world.call())
    world.deny(request, reason="Too much.")

    assert world.deny(request, reason="Too much.").reason == "Too much."
    for other in ({"reason": "Not now."}, {"reason": "Too much.", "respond": {"paid": "by hand"}}):
        with world.refused("already-decided", "denied", kind="decision:refused"):
            world.deny(request, **other)


def test_the_same_edit_again_is_the_same_decision_and_another_one_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world()
    original = world.guard.request(world.call("mail", {"to": "all"}))

    first = world.approve(original, arguments={"to": "one"})
    again = world.approve(original, arguments={"to": "one"})

    assert (again.request_id, again.nonce, again.state) == (first.request_id, first.nonce, "approved")
    for other in ({"arguments": {"to": "two"}}, {"arguments": {"to": "one"}, "by": CAROL}, {}):
        with world.refused("superseded", kind="decision:refused"):
            world.approve(original, **other)


def test_an_edit_that_was_edited_again_is_repeated_by_nobody(make_world: Callable[..., World]) -> None:
    world = make_world(policy=document(TWO_EDITORS))
    original = world.guard.request(world.call("mail", {"to": "all"}))
    first = world.approve(original, arguments={"to": "one"})
    world.approve(world.guard.get(first.request_id), by=CAROL, arguments={"to": "two"})

    with world.refused("superseded", kind="decision:refused"):
        world.approve(original, arguments={"to": "one"})


def test_an_edit_of_what_another_policy_superseded_is_no_repetition(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = world.call("mail", {"to": "all"})
    original = world.guard.request(call)
    node = world.another(policy=document(OTHER_POLICY))
    node.ask(call)

    with world.refused("superseded", kind="decision:refused"):
        world.approve(original, arguments={"to": "all"})


def test_an_edited_call_runs_with_the_edited_arguments_for_the_loop_that_holds_the_original(
    make_world: Callable[..., World]
) -> None:
    world = make_world()
    call = world.call("mail", {"to": "all"})
    original = world.guard.request(call)

    world.approve(original, arguments={"to": "one"})
    permit = world.guard.authorize(call)

    assert (permit.arguments, permit.edited) == ({"to": "one"}, True)
    assert world.state(original) == "superseded"
    assert world.guard.get(permit.request_id or "").supersedes == original.id
    with world.refused("superseded"):
        world.guard.authorize(call, request_id=original.id)


def test_a_person_may_shorten_the_time_to_run_and_never_lengthen_it(world: World) -> None:
    short, long = world.guard.request(world.call()), world.guard.request(world.call())

    world.approve(short, execute_within=60_000)
    world.approve(long, execute_within=10**12)

    limits = [world.guard.get(request.id) for request in (short, long)]
    windows = [(request.execute_by or 0) - request.votes[0].at for request in limits]
    assert windows == [60_000, 900_000]


# -- outdated requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", [False, True])
def test_a_request_under_an_older_policy_is_superseded_and_its_grant_is_void(
    make_world: Callable[..., World], approved: bool
) -> None:
    world = make_world()
    call = world.call()
    old = world.guard.request(call)
    if approved:
        world.approve(old)
    node = world.another(policy=document(OTHER_POLICY))

    if approved:
        with node.refused("policy-changed"):
            node.run(call, request_id=old.id)
    new = node.ask(call)

    assert (new.id != old.id, new.supersedes) == (True, old.id)
    assert node.state(old) == "superseded"
    node.approve(new)
    assert node.run(call) == "done"


def test_a_request_for_another_tool_definition_is_superseded(world: World) -> None:
    def call(description: str) -> ToolCall:
        return world.call(call_id="c", definition=ToolDefinition("refund", description))

    _, old = world.grant(call("Refund an order."))
    with world.refused("tool-changed"):
        world.run(call("Refund everything."), request_id=old.id)
    new = world.guard.request(call("Refund everything."))

    assert (new.supersedes, world.state(old)) == (old.id, "superseded")


def test_a_loosened_policy_lets_an_open_request_go_and_a_stricter_one_denies(world: World) -> None:
    first, second = world.call(), world.call()
    requests = [world.guard.request(call) for call in (first, second)]

    asks = "[refund, transfer]\n    effect: require_approval"
    loose = world.another(policy=document(POLICY.replace(asks, "[refund]\n    effect: allow")))
    strict = world.another(policy=document(POLICY.replace(asks, "[refund]\n    effect: deny")))

    assert loose.run(first) == "done"
    with strict.refused("policy-denied"):
        strict.run(second)
    assert [world.state(request) for request in requests] == ["superseded", "pending"]


# -- withdrawn --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "by", [ANA, Principal("ana@example.org", aliases=("ana",)), BOB, OPERATOR], ids=lambda by: str(by.id)
)
@pytest.mark.parametrize("approved", [False, True])
def test_the_requester_an_approver_and_an_operator_may_withdraw_an_open_request(
    world: World, by: Principal, approved: bool
) -> None:
    call = world.call(user=ANA)
    request = world.guard.request(call)
    if approved:
        world.approve(request, by=CAROL)

    world.guard.revoke(request.id, by=by, reason="changed our mind")

    with world.refused("revoked"):
        world.run(call, request_id=request.id)
    with world.refused("revoked", kind="decision:refused"):
        world.guard.revoke(request.id, by=by)
    with world.refused("revoked", kind="decision:refused"):
        world.approve(request)
    assert world.ask(call).id != request.id


@pytest.mark.parametrize(
    ("by", "code", "detail"),
    [
        (Principal("dave", roles=("guest",)), "not-authorised", "role"),
        (Principal("bot", kind="service", roles=("lead",)), "not-authorised", "kind"),
        (Principal("dave", tenant="elsewhere", roles=("operator",)), "invalid-approval", "unknown"),
        (Principal("dave", aliases=("ANA",)), "not-authorised", "self-approval"),
        (Principal("dave", unverified_aliases=("ana",)), "not-authorised", "self-approval"),
    ],
    ids=["no role", "a service", "another tenant", "another spelling", "an unverified name"],
)
def test_nobody_else_may_withdraw_a_request(world: World, by: Principal, code: str, detail: str) -> None:
    request = world.guard.request(world.call("close_account"))

    with world.refused(code, detail, kind="decision:refused"):
        world.guard.revoke(request.id, by=by)
    assert world.state(request) == "pending"


def test_what_has_run_cannot_be_withdrawn(world: World) -> None:
    call, request = world.grant()
    world.run(call)

    with world.refused("already-decided", "succeeded", kind="decision:refused"):
        world.guard.revoke(request.id, by=OPERATOR)


def test_what_is_overdue_cannot_be_withdrawn_and_is_recorded_as_expired(world: World) -> None:
    node = world.another(settings=Settings(decide_within=1))
    request = node.guard.request(node.call())
    until(node.store, request.decide_by)

    with node.refused("expired", "decide-by", kind="decision:refused"):
        node.guard.revoke(request.id, by=OPERATOR)
    with node.refused("expired", "decide-by", kind="decision:refused"):
        node.approve(request)

    assert node.guard.get(request.id).version == 1


@pytest.mark.parametrize("by", ["olga", None, {"id": "olga"}])
def test_withdrawing_pausing_and_resolving_need_a_principal(world: World, by: Any) -> None:
    request = world.guard.request(world.call())

    for action in (
        lambda: world.guard.revoke(request.id, by=by),
        lambda: world.guard.resolve(request.id, "failed", by=by, reason="x"),
        lambda: world.guard.pause(by=by),
    ):
        with pytest.raises(ConfigurationError):
            action()
    assert world.state(request) == "pending"


# -- outcomes ---------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def tool(**arguments: Any) -> None:
        raise error

    return tool


@pytest.mark.parametrize(
    ("error", "effect", "state"),
    [
        (ValueError("boom"), "opaque", "in_doubt"),
        (ValueError("boom"), "probeable", "in_doubt"),
        (ValueError("boom"), "none", "failed"),
        (ValueError("boom"), "idempotent", "failed"),
        (NoEffect("not found"), "opaque", "failed"),
        (KeyboardInterrupt(), "opaque", "in_doubt"),
        (SystemExit(3), "none", "failed"),
        (StopIteration(), "opaque", "in_doubt"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_tool_that_raises_leaves_the_outcome_that_its_effect_says(
    world: World, error: BaseException, effect: str, state: str
) -> None:
    call, request = world.grant()

    with pytest.raises(type(error)) as caught:
        world.guard.run(call, raising(error), effect=effect)

    assert caught.value is error
    assert world.state(request) == state


def test_a_failed_call_is_not_revived(world: World) -> None:
    call, _ = world.grant()
    with pytest.raises(NoEffect):
        world.guard.run(call, raising(NoEffect()))

    with world.refused("consumed", "failed"):
        world.run(call)


def test_a_permit_starts_one_tool_once_and_is_settled_once(world: World) -> None:
    call, _ = world.grant()
    permit = world.guard.authorize(call)
    world.guard.settle(permit, "succeeded")

    for outcome in ("succeeded", "failed", "in_doubt"):
        with pytest.raises(ConsumedError) as caught:
            world.guard.settle(permit, outcome)
        assert caught.value.detail == "settled"


@pytest.mark.parametrize("outcome", ["done", "", "abandoned", None])
def test_an_unknown_outcome_is_refused(world: World, outcome: Any) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)

    with pytest.raises(ConfigurationError):
        world.guard.settle(permit, outcome)
    assert world.state(request) == "executing"


def test_a_result_that_comes_too_late_is_not_lost_and_not_recorded_over(world: World) -> None:
    call, request = world.grant()

    def slow(**arguments: Any) -> str:
        world.guard.resolve(request.id, "abandoned", by=OPERATOR, reason="hangs", force=True)
        return world.tool(**arguments)

    with pytest.raises(AuditUnavailableError) as caught:
        world.guard.run(call, slow)

    assert (caught.value.detail, caught.value.result) == ("late", "done")
    assert world.state(request) == "abandoned"


def test_what_a_tool_raises_too_late_is_what_the_caller_gets(world: World) -> None:
    call, request = world.grant()

    def slow(**arguments: Any) -> str:
        world.guard.resolve(request.id, "abandoned", by=OPERATOR, reason="hangs", force=True)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        world.guard.run(call, slow)

    assert "consumed" in caught.value.__notes__[0]
    assert world.state(request) == "abandoned"


# -- in doubt ---------------------------------------------------------------------------------------------------------


def in_doubt(world: World) -> Any:
    call, request = world.grant(world.call(user=ANA, agent=Principal("bot", kind="agent", owner="otto")))
    with pytest.raises(ValueError, match="boom"):
        world.guard.run(call, raising(ValueError("boom")))
    return request


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "abandoned"])
def test_an_operator_closes_a_call_in_doubt_with_a_reason(make_world: Callable[..., World], outcome: str) -> None:
    world = make_world()
    request = in_doubt(world)
    assert [listed.id for listed in world.guard.pending(states=("in_doubt",))] == [request.id]

    assert world.guard.resolve(request.id, outcome, by=OPERATOR, reason="looked at the bank's page") == outcome

    assert world.state(request) == outcome
    assert len(world.guard.pending(states=("in_doubt",))) == 0
    body = world.audited(f"call:{outcome}")[0]
    assert (body["by"], body["reason"], body["forced"]) == ("olga", "looked at the bank's page", False)
    with world.refused("invalid-approval", outcome, kind="decision:refused"):
        world.guard.resolve(request.id, outcome, by=OPERATOR, reason="again")


@pytest.mark.parametrize(
    ("by", "code", "detail"),
    [
        (BOB, "not-authorised", "role"),
        (Principal("bot-2", kind="agent", roles=("operator",)), "not-authorised", "role"),
        (Principal("Ana", roles=("operator",)), "not-authorised", "self-approval"),
        (Principal("otto", roles=("operator",)), "not-authorised", "self-approval"),
        (Principal("bot", roles=("operator",)), "not-authorised", "self-approval"),
        (Principal("olga", tenant="elsewhere", roles=("operator",)), "invalid-approval", "unknown"),
    ],
    ids=["no operator", "an agent", "the requester", "the agent's owner", "the agent's id", "another tenant"],
)
def test_nobody_else_closes_a_call_in_doubt(world: World, by: Principal, code: str, detail: str) -> None:
    request = in_doubt(world)

    with world.refused(code, detail, kind="decision:refused"):
        world.guard.resolve(request.id, "succeeded", by=by, reason="trust me")
    assert world.state(request) == "in_doubt"


@pytest.mark.parametrize(("outcome", "reason"), [("in_doubt", "x"), ("approved", "x"), ("failed", "")])
def test_a_resolution_needs_a_known_outcome_and_a_reason(world: World, outcome: str, reason: str) -> None:
    request = in_doubt(world)

    with pytest.raises(ConfigurationError):
        world.guard.resolve(request.id, outcome, by=OPERATOR, reason=reason)


def test_a_running_call_is_resolved_only_by_force(world: World) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)

    with world.refused("in-doubt", "running", kind="decision:refused"):
        world.guard.resolve(request.id, "failed", by=OPERATOR, reason="seems dead")
    assert world.guard.resolve(request.id, "failed", by=OPERATOR, reason="is dead", force=True) == "failed"

    assert [body["forced"] for body in world.audited("call:in_doubt") + world.audited("call:failed")] == [True, True]
    with pytest.raises(ConsumedError):
        world.guard.settle(permit, "succeeded")


def test_a_call_that_never_reported_is_resolved_without_force_once_its_time_is_over(world: World) -> None:
    node = world.another(settings=Settings(run_within=1))
    call, request = node.grant()
    node.guard.authorize(call)
    until(node.store, node.store.now() + 2)

    with node.refused("in-doubt"):
        node.run(call)
    assert node.guard.resolve(request.id, "succeeded", by=OPERATOR, reason="the bank says so") == "succeeded"
    assert node.guard.get(request.id).version == 4


def test_what_was_not_started_cannot_be_resolved(world: World) -> None:
    _, request = world.grant()

    with world.refused("invalid-approval", "approved", kind="decision:refused"):
        world.guard.resolve(request.id, "failed", by=OPERATOR, reason="x", force=True)


# -- lost races -------------------------------------------------------------------------------------------------------


def test_an_operation_that_loses_every_race_says_so_and_changes_nothing(world: World) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(world.grant()[0])
    node = losing(world)

    for action in (
        lambda: node.run(call),
        lambda: node.run(world.call("ping")),
        lambda: node.guard.request(world.call()),
        lambda: node.guard.authorize(world.call()),
        lambda: node.guard.revoke(request.id, by=OPERATOR),
        lambda: node.guard.pause(by=OPERATOR),
        lambda: node.guard.settle(permit, "succeeded"),
        lambda: node.guard.resolve(permit.request_id or "", "failed", by=OPERATOR, reason="x", force=True),
    ):
        with pytest.raises(UnavailableError) as caught:
            action()
        assert (caught.value.code, caught.value.detail) == ("store-unavailable", "busy")
    assert (world.state(request), world.effects) == ("approved", [])


def test_a_decision_that_loses_every_race_says_so(world: World) -> None:
    plain, editable = world.guard.request(world.call()), world.guard.request(world.call("mail"))
    node = losing(world)

    for request, arguments in ((plain, None), (editable, {"to": "one"})):
        with pytest.raises(UnavailableError) as caught:
            node.approve(request, arguments=arguments)
        assert caught.value.detail == "busy"
    assert [world.state(request) for request in (plain, editable)] == ["pending", "pending"]


def test_a_refusal_that_cannot_be_audited_is_no_ordinary_refusal(world: World) -> None:
    node = losing(world)

    with pytest.raises(AuditUnavailableError) as caught:
        node.run(node.call("drop_database", {}))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("losses", [1, 5])
def test_an_operation_that_loses_some_races_judges_anew(world: World, losses: int) -> None:
    call, request = world.grant()

    assert losing(world, losses).run(call) == "done"
    assert world.state(request) == "succeeded"
    assert losing(world, losses).guard.request(world.call()).state == "pending"
    assert losing(world, losses).run(world.call("ping")) == "done"


def test_a_flood_of_refusals_is_thinned_out_and_counted(world: World) -> None:
    moment = [0]
    world.guard._desk.limiter = Limiter(lambda: moment[0], burst=2, refill=1)

    for _ in range(5):
        with pytest.raises(PolicyDeniedError):
            world.run(world.call("drop_database", {}))
    moment[0] += 1000
    with world.refused("policy-denied"):
        world.run(world.call("drop_database", {}))

    assert sorted(body["suppressed"] for body in world.audited()) == [0, 0, 3]


# -- what a process remembers -----------------------------------------------------------------------------------------


def test_what_a_process_remembers_of_many_tenants_is_bounded(world: World) -> None:
    desk = world.guard._desk
    _, request = world.grant()
    known = next(iter(desk._controls.values()))
    desk._controls.update({f"tenant-{number}": known for number in range(1_001)})
    world.guard.pause(by=OPERATOR, tool="wire")

    assert world.state(request) == "approved"
    assert list(desk._controls) == ["default"]


def test_spent_keys_are_remembered_until_their_window_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitl_guard.lifecycle.desk.REMEMBERED", 2)
    desk = world.guard._desk
    desk._prune_at = 2
    now = world.store.now()

    for number, until_ in enumerate((now - 1, now + 60_000, now + 60_000, now + 60_000, now + 60_000, now + 60_000)):
        desk.remember(bytes([number]) * 32, until_, now)

    assert sorted(desk._remembered) == [bytes([number]) * 32 for number in range(1, 6)]
    assert desk._prune_at == 8


# -- one request by its id --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nonsense", "", "x" * 100, 7, None, b"bytes"])
def test_what_is_no_request_of_this_tenant_is_unknown(world: World, name: Any) -> None:
    request = world.guard.request(world.call())

    for id_, tenant in ((name, "default"), (request.id, "elsewhere")):
        with pytest.raises(HitlGuardError) as caught:
            world.guard.get(id_, tenant=tenant)
        assert (caught.value.code, caught.value.detail) == ("invalid-approval", "unknown")


# -- pause ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "detail"), [({"tool": "refund"}, "tool"), ({"agent": "bot"}, "agent"), ({}, "all")], ids=str
)
def test_a_pause_stops_what_it_names_until_it_is_taken_away(
    make_world: Callable[..., World], what: dict[str, Any], detail: str
) -> None:
    world = make_world()
    call, request = world.grant(world.call(agent="bot"))

    world.guard.pause(by=OPERATOR, reason="audit", **what)
    with world.refused("paused", detail):
        world.run(call)
    with world.refused("paused", detail):
        world.run(world.call(agent="bot"))
    with world.refused("paused", detail):
        world.guard.request(world.call(agent="bot"))
    world.guard.resume(by=OPERATOR, **what)

    assert world.state(request) == "approved"
    assert world.run(call) == "done"


def test_a_pause_leaves_everything_else_alone(world: World) -> None:
    call, _ = world.grant()

    world.guard.pause(by=OPERATOR, tool="transfer")
    world.guard.pause(by=OPERATOR, agent="bot")

    assert world.run(call) == "done"


def test_taking_away_the_pause_of_everything_leaves_single_pauses(world: World) -> None:
    call, _ = world.grant()
    world.guard.pause(by=OPERATOR, tool="refund")
    world.guard.pause(by=OPERATOR)

    world.guard.resume(by=OPERATOR)

    with world.refused("paused", "tool"):
        world.run(call)


def test_a_pause_also_stops_what_needs_no_approval(world: World) -> None:
    world.guard.pause(by=OPERATOR)

    for tool in ("look_up", "ping"):
        with world.refused("paused", "all"):
            world.run(world.call(tool))


def test_a_pause_is_audited_with_its_operator_and_reason(world: World) -> None:
    world.guard.pause(by=OPERATOR, tool="refund", reason="fraud")

    body = world.audited("control:changed")[-1]
    assert (body["by"], body["reason"]) == ("olga", "fraud")


@pytest.mark.parametrize(
    "what", [{"tool": "a", "agent": "b"}, {"tool": ""}, {"agent": ""}, {"tool": 7}], ids=str
)
def test_a_pause_of_nothing_that_can_be_named_is_refused(world: World, what: dict[str, Any]) -> None:
    for change in (world.guard.pause, world.guard.resume):
        with pytest.raises(ConfigurationError):
            change(by=OPERATOR, **what)


# -- set-up -----------------------------------------------------------------------------------------------------------


def environment(tmp_path: Path) -> dict[str, str]:
    policy, database = tmp_path / "policy.yaml", tmp_path / "approvals.db"
    policy.write_text(POLICY)
    store = SQLStore(f"sqlite:///{database}")
    store.setup()
    store.close()
    return {
        "HITL_GUARD_POLICY": str(policy), "HITL_GUARD_STORE": f"sqlite:///{database}",
        KEYS_VARIABLE: ring().dump().reveal().decode(),
    }


def test_a_guard_is_made_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = environment(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    guards = [Guard.from_env(), Guard.from_env(environ, settings=Settings(operator_role="chief"))]

    for guard in guards:
        guard.selftest()
        guard._desk.store.close()
    assert guards[0].policy_version == guards[1].policy_version
    assert [guard.settings.operator_role for guard in guards] == ["operator", "chief"]
    assert repr(guards[0]) == f"<Guard policy={guards[0].policy_version[:12]}>"


@pytest.mark.parametrize("missing", ["HITL_GUARD_POLICY", "HITL_GUARD_STORE", KEYS_VARIABLE])
def test_a_guard_does_not_start_where_the_environment_lacks_something(tmp_path: Path, missing: str) -> None:
    environ = environment(tmp_path)
    del environ[missing]

    with pytest.raises(ConfigurationError) as caught:
        Guard.from_env(environ)
    assert (missing if missing != KEYS_VARIABLE else FILE_VARIABLE) in str(caught.value)


def test_a_guard_takes_its_keys_from_the_environment_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError):
        Guard(policy="denied", store=world.store)

    monkeypatch.setenv(KEYS_VARIABLE, json.dumps(json.loads(world.keyring.dump().reveal())))
    assert Guard(policy="denied", store=world.store).evaluate(world.call()).status is Status.DENIED


@pytest.mark.parametrize("wrong", [{"keyring": "keys.json"}, {"settings": {"skew": 1}}], ids=str)
def test_a_guard_takes_no_other_things_for_its_parts(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be a Keyring"):
        world.another(**wrong)


@pytest.mark.parametrize("thing", [None, {"tool": "refund"}, "refund"], ids=str)
def test_what_is_no_call_or_no_permit_is_a_configuration_error(world: World, thing: Any) -> None:
    for use in (world.guard.evaluate, world.guard.request, world.guard.authorize):
        with pytest.raises(ConfigurationError, match="ToolCall"):
            use(thing)
    with pytest.raises(ConfigurationError, match="permit"):
        world.guard.settle(thing, "succeeded")
    with pytest.raises(ConfigurationError, match="definition"):
        world.guard.authorize(world.call(definition=thing or "refund"))


@pytest.mark.parametrize("store", [None, "sqlite:///approvals.db", object()])
def test_a_guard_needs_a_store(store: Any) -> None:
    with pytest.raises(ConfigurationError, match="store"):
        Guard(policy="user-approval", keyring=ring(), store=store)


def test_a_guard_does_not_start_on_a_database_without_its_schema(tmp_path: Path) -> None:
    store = SQLStore(f"sqlite:///{tmp_path / 'empty.db'}")

    with pytest.raises(ConfigurationError):
        Guard(policy="user-approval", keyring=ring(), store=store)
    store.close()


def test_a_rule_that_rechecks_approvers_needs_a_directory(world: World) -> None:
    policy = document(POLICY.replace("quorum: 2", "quorum: 2\n    recheck_approvers: true"))

    with pytest.raises(ConfigurationError, match="directory"):
        world.another(policy=policy)


@pytest.mark.parametrize(
    "wrong",
    [
        {"decide_within": 0}, {"execute_within": -1}, {"run_within": 1.5}, {"skew": -1}, {"decide_within": True},
        {"execute_within": 2**53}, {"operator_role": ""}, {"big_integers": 1}, {"limits": None},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Settings(**wrong)


@pytest.mark.parametrize(
    "scope",
    [{"user": ""}, {"user": None}, {"run_id": ""}, {"run_id": 7}, {"tenant": ""}, {"call_id": ""}, {"agent": ""}],
    ids=str,
)
def test_a_call_without_its_scope_is_a_configuration_error(world: World, scope: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        world.guard.authorize(world.call(**scope))
    assert world.effects == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"user": "x" * 513}, "too-large"), ({"run_id": "\ud800"}, "unsupported-value"),
        ({"occurrence": -1}, "unsupported-value"), ({"occurrence": True}, "unsupported-value"),
        ({"occurrence": 2**53}, "unsupported-value"), ({"context": [1]}, "unsupported-value"),
        ({"context": {"at": 1.5j}}, "unsupported-value"), ({"arguments": [1]}, "unsupported-value"),
        ({"arguments": '{"a": 1, "a": 2}'}, "unsupported-value"), ({"turn": ("refund",)}, "unsupported-value"),
        ({"turn": "refund"}, "unsupported-value"), ({"turn": 0}, "unsupported-value"),
    ],
    ids=str,
)
def test_a_call_with_an_unusable_part_is_refused(world: World, wrong: dict[str, Any], code: str) -> None:
    with world.refused(code):
        world.run(world.call(**wrong))


def test_the_approvers_side_gets_decision_errors(world: World) -> None:
    request = world.guard.request(world.call())

    with pytest.raises(DecisionError) as caught:
        world.guard.decide(request.id, approver=BOB, approve=True, fingerprint="0" * 64)
    assert (caught.value.code, caught.value.detail) == ("args-mismatch", "stale")
