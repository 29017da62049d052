"""Floods and fatigue: how many requests may wait at once, what a person mutes, and what is listed after its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.aio import AsyncGuard
from hitl_guard.errors import ApprovalDeniedError, ConfigurationError, LimitError, StoreUnavailableError
from hitl_guard.keyring import Key, Keyring, revoked
from hitl_guard.lifecycle import control, floods
from hitl_guard.lifecycle.control import Control, Mute
from hitl_guard.lifecycle.refusals import DEFAULT_DENIAL
from hitl_guard.lifecycle.settings import MAX_OPEN, Settings
from hitl_guard.models import ApprovalRequest, Principal, Requirement
from hitl_guard.policy.documents import PolicyDocument
from tests.support import ANA, BOB, CAROL, OPERATOR, POLICY, World, document, until
from tests.threats.attacker import CONTROL, OPEN, REQUESTS, Attacker, flipped

HOUR = 3_600_000
TIERS = """\
version: 1
name: tiers
default: not_applicable
rules:
  - id: small
    tools: [refund]
    when: args.amount < 100.0
    effect: require_approval
    approvers: [support]
  - id: large
    tools: [refund]
    when: args.amount >= 100.0
    effect: require_approval
    approvers: [lead]
"""
SUPPORT = Principal("sue", roles=("support",))


def capped(world: World, **caps: int) -> World:
    """Return a node with these limits; what is not named has room."""
    limits: dict[str, Any] = {f"max_open_per_{name}": most for name, most in caps.items()}
    return world.another(settings=Settings(**limits))


def ids(page: Any) -> list[str]:
    return [request.id for request in page]


def tiers() -> PolicyDocument:
    return PolicyDocument.from_source(TIERS.encode(), "tiers.yaml")


# -- how many may wait ------------------------------------------------------------------------------------------------


def test_x16_a_run_asks_up_to_its_limit_and_then_is_refused(make_world: Callable[..., World]) -> None:
    world = capped(make_world(), run=3)
    made = [world.guard.request(world.call()) for _ in range(3)]

    with world.refused("limit-exceeded", "run"):
        world.guard.request(world.call())
    with world.refused("limit-exceeded", "run"):
        world.guard.authorize(world.call())

    assert sorted(ids(world.guard.pending())) == sorted(request.id for request in made)
    assert world.guard.request(world.call(run_id="run-2")).state == "pending"


def test_x16_nobody_fills_a_run_for_its_owner(make_world: Callable[..., World]) -> None:
    """A run's id is no secret: whoever names a foreign one fills a count of their own."""
    world = capped(make_world(), run=2)
    for _ in range(2):
        world.guard.request(world.call(user="mallory"))
    with world.refused("limit-exceeded", "run"):
        world.guard.request(world.call(user="mallory"))

    assert [world.guard.request(world.call()).state for _ in range(2)] == ["pending"] * 2
    answers = world.guard._request_together([(world.call(user=user), None) for user in ("zoe", "yan", "zoe", "zoe")])
    assert [getattr(answer, "detail", "asked") for answer in answers] == ["asked"] * 3 + ["run"]


def test_x16_a_requester_is_limited_over_all_runs_whatever_the_spelling(world: World) -> None:
    node = capped(world, requester=2)
    node.guard.request(node.call(run_id="a", user="ana"))
    node.guard.request(node.call(run_id="b", user=" AnA\u200b"))

    with node.refused("limit-exceeded", "requester"):
        node.guard.request(node.call(run_id="c", user=ANA))

    assert node.guard.request(node.call(run_id="c", user="bob")).state == "pending"


def test_x16_the_approvers_of_a_rule_are_limited_over_all_requesters(world: World) -> None:
    node = capped(world, approver=2)
    node.guard.request(node.call("close_account", user="a", run_id="a"))
    node.guard.request(node.call("close_account", user="b", run_id="b"))

    with node.refused("limit-exceeded", "approver"):
        node.guard.request(node.call("close_account", user="c", run_id="c"))

    # Refunds go to anybody: another desk.
    assert node.guard.request(node.call("refund", user="c", run_id="c")).state == "pending"


def test_x16_the_same_approvers_are_one_desk_whatever_else_their_rules_demand() -> None:
    lead, pair = Requirement(("lead", "user:bob")), Requirement(("user:bob", "lead"), quorum=2)
    digest = floods.desk_digest

    assert digest("t", (lead,)) == digest("t", (pair,)) == digest("t", (Requirement(("lead",)), pair))
    assert len({digest("t", (lead,)), digest("u", (lead,)), digest("t", (Requirement(),)), floods.UNSEEN}) == 4


def test_at69_a_flood_of_one_tenant_leaves_the_others_alone(world: World) -> None:
    node = capped(world, run=5, requester=5, approver=5)
    asked = refused = 0
    for _ in range(60):
        try:
            node.guard.request(node.call(tenant="loud"))
            asked += 1
        except LimitError:
            refused += 1

    assert (asked, refused) == (5, 55)
    assert len(node.guard.pending(tenant="loud")) == 5
    assert node.guard.request(node.call(tenant="quiet")).state == "pending"


def test_x16_joining_an_open_request_never_counts(world: World) -> None:
    node = capped(world, run=1)
    call = node.call()
    request = node.guard.request(call)

    assert node.guard.request(call).id == request.id
    assert node.ask(call).id == request.id


def test_x16_what_ended_makes_room(world: World) -> None:
    node = capped(world, run=1)
    for end in (node.deny, lambda request: node.guard.revoke(request.id, by=OPERATOR)):
        end(node.guard.request(node.call()))
    call, _ = node.grant()
    assert node.run(call) == "done"

    assert node.guard.request(node.call()).state == "pending"


def test_x16_what_is_overdue_makes_room_before_anyone_swept(world: World) -> None:
    quick = world.another(settings=Settings(decide_within=1))
    request = quick.guard.request(quick.call())
    until(quick.store, request.decide_by)

    assert capped(world, run=1).guard.request(world.call()).state == "pending"


def test_x16_a_call_that_waits_for_nobody_takes_no_room(world: World) -> None:
    node = capped(world, run=1, requester=1, approver=1)
    permits = [node.guard.authorize(node.call("ping", {})) for _ in range(3)]
    for permit in permits:
        node.guard.settle(permit, "succeeded")

    assert [permit.request_id is not None for permit in permits] == [True] * 3
    assert node.guard.request(node.call()).state == "pending"
    assert node.guard.authorize(node.call("ping", {})).request_id is not None


def test_x16_an_outdated_request_is_replaced_where_there_is_no_more_room(world: World) -> None:
    call = world.call()
    old = world.guard.request(call)
    newer = world.another(policy=document(POLICY + "# newer\n"), settings=Settings(max_open_per_run=1))

    new = newer.guard.request(call)

    assert (world.state(old), new.supersedes) == ("superseded", old.id)
    with newer.refused("limit-exceeded", "run"):
        newer.guard.request(world.call())


def test_x16_a_batch_counts_what_it_asks_for_itself(world: World) -> None:
    node = capped(world, run=3)
    node.guard.request(node.call())

    answers = node.guard._request_together([(node.call(), None) for _ in range(4)])

    assert [type(answer) for answer in answers] == [ApprovalRequest] * 2 + [LimitError] * 2
    assert [getattr(answer, "detail", None) for answer in answers[2:]] == ["run", "run"]
    assert len(node.guard.pending()) == 3
    assert [event["code"] for event in node.audited()] == ["limit-exceeded"] * 2


def test_x16_a_batch_counts_requesters_and_desks_of_its_own(world: World) -> None:
    node = capped(world, requester=1)
    calls = [node.call(run_id=run, user=user) for run, user in (("a", "ana"), ("b", "ana"), ("c", "carol"))]

    answers = node.guard._request_together([(call, None) for call in calls])

    assert [getattr(answer, "detail", "asked") for answer in answers] == ["asked", "requester", "asked"]
    node = capped(world, approver=1)
    calls = [node.call("close_account", run_id=user, user=user) for user in ("x", "y")]
    answers = node.guard._request_together([(call, None) for call in calls])
    assert [getattr(answer, "detail", "asked") for answer in answers] == ["asked", "approver"]


def test_x16_nothing_is_counted_where_nothing_is_asked(world: World) -> None:
    class Uncounting:
        """A store that cannot count."""

        def count_open(self, **_options: Any) -> Any:
            raise StoreUnavailableError("no")

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    call, _ = world.grant()
    open_ = world.call()
    world.guard.request(open_)
    store: Any = Uncounting()
    node = world.another(store=store)

    assert node.run(call) == "done"
    assert node.guard.authorize(world.call("ping", {})).request_id is not None
    assert node.guard.request(open_).state == "pending"
    with pytest.raises(StoreUnavailableError):  # and where nobody can count, nobody is asked
        node.guard.request(world.call())
    assert len(world.guard.pending()) == 1


def test_x16_an_edited_list_lifts_or_exhausts_a_limit_and_runs_nothing(
    make_database: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    database = make_database("sqlite")
    node, attacker = World(open_store(database), settings=Settings(max_open_per_run=1)), Attacker(database)
    request = node.guard.request(node.call())

    attacker.set(OPEN, {"run": b"r" * 32}, request_id=request.id.encode())
    second = node.guard.request(node.call())
    attacker.set(OPEN, {"listed_until": 2**62}, request_id=second.id.encode())
    until(node.store, node.store.now() + 1)

    with node.refused("limit-exceeded"):
        node.guard.request(node.call())
    with node.refused("invalid-approval", "pending"):
        node.guard.authorize(node.call(call_id=second.call_id), request_id=second.id)


@pytest.mark.parametrize("name", ["max_open_per_run", "max_open_per_requester", "max_open_per_approver"])
@pytest.mark.parametrize("value", [0, -1, MAX_OPEN + 1, True, 2.0, "5", None])
def test_x16_a_limit_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Settings(**{name: value})


# -- deny and mute ----------------------------------------------------------------------------------------------------


def test_x16_a_muted_call_is_denied_without_asking_anybody(make_world: Callable[..., World]) -> None:
    world = make_world()
    request = world.guard.request(world.call())
    decision = world.deny(request, reason="Stop asking.", mute=HOUR)

    with world.refused("denied", "muted"):
        world.guard.authorize(world.call(run_id="another"))
    with pytest.raises(ApprovalDeniedError, match="hear of no other") as told:
        world.guard.request(world.call())

    assert (told.value.reason, told.value.response) == ("Stop asking.", None)
    (mute,) = world.guard.control().mutes
    assert (decision.state, world.state(request)) == ("denied", "denied")
    assert (mute.user, mute.tool, mute.by, mute.request_id) == ("ana", "refund", "bob", request.id)
    assert len(world.guard.pending()) == 0


def test_x16_a_mute_reaches_one_requester_and_one_tool_of_one_tenant(world: World) -> None:
    world.deny(world.guard.request(world.call()), mute=HOUR)

    with world.refused("denied", "muted"):
        world.guard.request(world.call(user="ANA\u200b"))

    assert world.guard.request(world.call(user="carol")).state == "pending"
    assert world.guard.request(world.call("transfer")).state == "pending"
    assert world.guard.request(world.call(tenant="b")).state == "pending"
    assert world.guard.authorize(world.call("ping", {})).request_id is not None
    assert world.guard.authorize(world.call("read", {})).request_id is None


def test_x16_what_the_policy_does_not_ask_about_is_not_muted(world: World) -> None:
    world.deny(world.guard.request(world.call("ping", {})), mute=HOUR)

    assert world.guard.authorize(world.call("ping", {})).request_id is not None
    with world.refused("denied", "muted"):
        world.guard.request(world.call("ping", {}))  # the host asks all the same


def test_x16_open_requests_outlive_a_mute(world: World) -> None:
    call = world.call()
    waiting = world.guard.request(call)
    world.deny(world.guard.request(world.call()), mute=HOUR)

    assert world.guard.request(call).id == waiting.id
    world.approve(waiting)
    assert world.run(call) == "done"


def test_x16_a_mute_reaches_only_what_its_maker_could_have_denied(world: World) -> None:
    node = world.another(policy=tiers())
    small = node.guard.request(node.call(arguments={"amount": 5}))
    node.deny(small, by=SUPPORT, mute=HOUR)

    with node.refused("denied", "muted"):
        node.guard.request(node.call(arguments={"amount": 6}))
    large = node.guard.request(node.call(arguments={"amount": 500}))

    node.deny(large, by=BOB, mute=HOUR)
    with node.refused("denied", "muted"):
        node.guard.request(node.call(arguments={"amount": 600}))
    assert [mute.by for mute in node.guard.control().mutes] == ["bob", "sue"]


def test_x16_a_mute_ends_by_the_databases_clock_and_is_pruned(world: World) -> None:
    world.deny(world.guard.request(world.call()), mute=1)
    until(world.store, world.store.now() + 2)

    again = world.guard.request(world.call())

    assert world.guard.control().mutes == ()
    version = world.guard.control().version
    assert world.guard._desk.read("default").control.mutes != ()
    world.guard.pause(by=OPERATOR, tool="wire")
    stored = world.guard._desk.read("default").control
    assert (stored.mutes, stored.version, again.state) == ((), version + 1, "pending")


def test_x16_only_who_may_decide_may_mute(world: World) -> None:
    request = world.guard.request(world.call("close_account"))

    for person, detail in ((CAROL, "role"), (ANA, "self-approval")):
        with world.refused("not-authorised", detail, kind="decision:refused"):
            world.deny(request, by=person, mute=HOUR)

    assert (world.state(request), world.guard.control().mutes) == ("pending", ())


@pytest.mark.parametrize("mute", [0, -1, floods.MAX_MUTE + 1, True, 1.5, "1h"])
def test_x16_a_mute_that_is_no_time_is_refused(world: World, mute: Any) -> None:
    request = world.guard.request(world.call())

    with world.refused("invalid-approval", "malformed", kind="decision:refused"):
        world.deny(request, mute=mute)

    assert world.state(request) == "pending"


def test_x16_an_approval_cannot_mute(world: World) -> None:
    request = world.guard.request(world.call())

    with world.refused("invalid-approval", "malformed", kind="decision:refused"):
        world.approve(request, mute=HOUR)

    assert world.state(request) == "pending"


def test_x16_a_denial_that_is_repeated_mutes_once(world: World) -> None:
    request = world.guard.request(world.call())
    first = world.deny(request, reason="No.", mute=HOUR)
    found = world.guard.control()

    again = world.deny(request, reason="No.", mute=2 * HOUR)

    assert first.nonce == again.nonce == world.deny(request, reason="No.").nonce
    assert (world.guard.control().mutes, world.guard.control().version) == (found.mutes, found.version)
    with pytest.raises(ApprovalDeniedError) as told:
        world.guard.request(world.call())
    assert told.value.reason == "No."


@pytest.mark.parametrize("by", [OPERATOR, BOB])
def test_x16_a_mute_that_was_lifted_does_not_come_back_with_the_same_denial(world: World, by: Principal) -> None:
    request = world.guard.request(world.call())
    world.deny(request, mute=HOUR)
    world.guard.unmute(by=by, user="ana", tool="refund")
    version = world.guard.control().version

    with world.refused("already-decided", "denied", kind="decision:refused"):
        world.deny(request, mute=HOUR)

    assert (world.guard.control().mutes, world.guard.control().version) == ((), version)
    assert world.deny(request).state == "denied"
    assert world.guard.request(world.call()).state == "pending"


def test_x16_a_mute_comes_with_the_first_denial_or_with_none(world: World) -> None:
    request = world.guard.request(world.call())
    world.deny(request)

    with world.refused("already-decided", "denied", kind="decision:refused"):
        world.deny(request, mute=HOUR)

    assert world.guard.control().mutes == ()


def test_x16_a_second_mute_of_the_same_person_takes_the_firsts_place(world: World) -> None:
    one, two = world.guard.request(world.call()), world.guard.request(world.call())
    world.deny(one, mute=HOUR)
    world.deny(two, mute=2 * HOUR)

    assert [mute.request_id for mute in world.guard.control().mutes] == [two.id]


def test_x16_a_mute_that_loses_a_race_is_judged_anew(world: World) -> None:
    """An operator pauses a tool between the reading and the write: neither is lost."""
    request = world.guard.request(world.call())
    races = [1]

    class Racing:
        """A store on which an operator pauses just before the first write."""

        def write(self, *args: Any) -> Any:
            if races.pop() if races else 0:
                world.guard.pause(by=OPERATOR, tool="wire")
            return world.store.write(*args)

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    store: Any = Racing()

    world.another(store=store).deny(request, mute=HOUR)

    found = world.guard.control()
    assert (set(found.pauses), [mute.request_id for mute in found.mutes]) == ({("tool", "wire")}, [request.id])
    assert (world.state(request), races) == ("denied", [])
    assert len(world.guard.get(request.id).votes) == 1


def test_x16_a_tenant_has_room_for_so_many_mutes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_MUTES", 2)
    for user in ("a", "b"):
        world.deny(world.guard.request(world.call(user=user)), mute=HOUR)
    request = world.guard.request(world.call(user="c"))

    with world.refused("limit-exceeded", "mutes", kind="decision:refused"):
        world.deny(request, mute=HOUR)

    assert world.state(request) == "pending"
    assert world.deny(request).state == "denied"
    world.guard.unmute(by=OPERATOR, user="a", tool="refund")
    assert world.deny(world.guard.request(world.call(user="c")), mute=HOUR).state == "denied"


def test_x16_an_operator_lifts_every_mute_and_anybody_the_own_one(world: World) -> None:
    one, two = world.guard.request(world.call(user="zoe")), world.guard.request(world.call(user="zoe"))
    world.deny(one, by=BOB, mute=HOUR)
    world.deny(two, by=CAROL, mute=HOUR)

    with world.refused("not-authorised", "role", kind="decision:refused"):
        world.guard.unmute(by=Principal("dave"), user="zoe", tool="refund")
    world.guard.unmute(by=BOB, user=" Zoe", tool="refund", reason="by mistake")
    assert [mute.by for mute in world.guard.control().mutes] == ["carol"]
    world.guard.unmute(by=OPERATOR, user="zoe", tool="refund")
    world.guard.unmute(by=OPERATOR, user="zoe", tool="refund")  # nothing to lift is no fault

    assert world.guard.control().mutes == ()
    assert world.guard.request(world.call(user="zoe")).state == "pending"
    changes = [(event["by"], event["reason"]) for event in world.audited("control:changed")]
    assert changes[-3:] == [("bob", "by mistake"), ("olga", None), ("olga", None)]


@pytest.mark.parametrize("wrong", [{"user": ""}, {"tool": ""}, {"user": 7}, {"by": "bob"}, {"reason": 7}], ids=str)
def test_x16_an_unclear_unmuting_is_refused(world: World, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"by": OPERATOR, "user": "ana", "tool": "refund"}

    with pytest.raises(ConfigurationError):
        world.guard.unmute(**given | wrong)


def test_x16_a_mute_stands_when_its_denial_is_void(world: World) -> None:
    """After a restore the old requests are void, and so is the reason; what was muted stays so until it ends."""
    world.deny(world.guard.request(world.call()), reason="Because.", mute=HOUR)
    node = world.another(keyring=Keyring(world.keyring.keys, epoch=2))
    node.confirm()

    with pytest.raises(ApprovalDeniedError) as denied:
        node.guard.request(node.call())

    assert (denied.value.detail, denied.value.reason) == ("muted", DEFAULT_DENIAL)


def test_x16_nobody_mutes_into_a_control_row_that_an_operator_must_confirm(world: World) -> None:
    world.guard.pause(by=OPERATOR, tool="wire")
    (old,) = world.keyring.keys
    both = Keyring([old, Key.generate(clock.epoch_ms() - 60_000)])
    request = world.another(keyring=both).guard.request(world.call())
    assert request.key_id != old.id
    keyring, _ = revoked(both, old.id, now=clock.epoch_ms())
    node = world.another(keyring=keyring)
    assert node.guard.control().restored

    with node.refused("paused", "restored", kind="decision:refused"):
        node.deny(request, mute=HOUR)

    assert node.deny(request).state == "denied"


def test_x16_a_mute_that_somebody_wrote_into_the_row_is_refused(
    make_database: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    database = make_database("sqlite")
    world, attacker = World(open_store(database)), Attacker(database)
    world.deny(world.guard.request(world.call()), mute=HOUR)
    row = attacker.row(CONTROL, tenant=b"default")
    attacker.set(CONTROL, {"body": flipped(row["body"], 40)}, tenant=b"default")

    with world.refused("invalid-signature"):
        world.guard.request(world.call(user="carol"))


def test_x18_an_operator_sees_what_is_paused_and_muted(make_world: Callable[..., World]) -> None:
    world = make_world()
    assert world.guard.control("acme") == Control("acme")
    request = world.guard.request(world.call(tenant="acme"))
    bob, olga = replace(BOB, tenant="acme"), replace(OPERATOR, tenant="acme")
    world.deny(request, by=bob, mute=HOUR)
    world.guard.pause(by=olga, tool="wire")
    world.guard.activate_policy(world.guard.policy_version, by=olga)

    found = world.guard.control("acme")

    assert (set(found.pauses), found.policy, found.restored) == ({("tool", "wire")}, world.guard.policy_version, False)
    (mute,) = found.mutes
    assert mute == Mute("ana", "refund", "bob", request.id, mute.until)
    assert 0 < mute.until - world.store.now() <= HOUR
    with pytest.raises(ConfigurationError):
        world.guard.control("")


# -- what ended -------------------------------------------------------------------------------------------------------


def test_x10_decided_requests_stay_visible_with_who_when_and_why(make_world: Callable[..., World]) -> None:
    world = make_world()
    denied, revoked_, ran = (world.guard.request(world.call()) for _ in range(3))
    world.deny(denied, reason="No.")
    world.guard.revoke(revoked_.id, by=OPERATOR)
    world.approve(ran)
    assert world.run(world.call(call_id=ran.call_id)) == "done"
    waiting = world.guard.request(world.call())

    page = world.guard.ended(tenant="default")

    assert sorted((request.id, request.state) for request in page) == sorted(
        [(denied.id, "denied"), (revoked_.id, "revoked"), (ran.id, "succeeded")]
    )
    (vote,) = next(request for request in page if request.id == denied.id).votes
    assert (vote.approver, vote.reason, vote.at > 0) == ("bob", "No.", True)
    assert world.store.now() >= page.now > 0
    assert world.guard.pending().now >= page.now
    assert ids(world.guard.pending()) == [waiting.id]


def test_x10_ended_requests_come_page_by_page_the_newest_first(world: World) -> None:
    made = []
    for _ in range(5):
        made.append(world.guard.request(world.call()))
        world.deny(made[-1])
        until(world.store, world.store.now() + 1)

    seen: list[str] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = world.guard.ended(tenant="default", limit=2, after=after)
        seen, after, pages = seen + ids(page), page.next, pages + 1

    assert seen == [request.id for request in reversed(made)]
    assert pages == 3


def test_x10_ended_requests_are_narrowed_to_a_run_and_never_another_tenants(world: World) -> None:
    here, there = world.guard.request(world.call(run_id="a")), world.guard.request(world.call(run_id="b"))
    foreign = world.guard.request(world.call(run_id="a", tenant="other"))
    for request in (here, there, foreign):
        world.deny(request, by=replace(BOB, tenant=request.tenant))

    ended = world.guard.ended
    assert ids(ended(tenant="default", run_id="a")) == [here.id]
    assert sorted(ids(ended(tenant="default"))) == sorted([here.id, there.id])
    assert ids(ended(tenant="other")) == [foreign.id]
    assert ids(ended(tenant="nobody")) == []


def test_x10_what_the_policy_approved_by_itself_is_no_decision_of_a_person(world: World) -> None:
    world.guard.settle(world.guard.authorize(world.call("ping", {})), "succeeded")

    assert ids(world.guard.ended(tenant="default")) == []


def test_x10_an_edited_list_shows_no_open_request_as_ended_and_no_foreign_one(
    make_database: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    database = make_database("sqlite")
    world, attacker = World(open_store(database)), Attacker(database)
    hidden, foreign, bad = (world.guard.request(world.call(tenant=name)) for name in ("default", "b", "default"))
    attacker.set(OPEN, {"listed_until": -5}, request_id=hidden.id.encode())
    world.deny(foreign, by=replace(BOB, tenant="b"))
    line = attacker.row(OPEN, request_id=hidden.id.encode())
    attacker.set(OPEN, {"tenant": line["tenant"]}, request_id=foreign.id.encode())
    world.deny(bad)
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=bad.id.encode())

    page = world.guard.ended(tenant="default")

    assert ids(page) == []
    assert [(one.request_id, one.code) for one in page.damaged] == [(bad.id, "invalid-signature")]
    assert world.state(hidden) == "pending"


@pytest.mark.parametrize(
    "wrong",
    [{"tenant": None}, {"tenant": ""}, {"limit": "5"}, {"run_id": 7}, {"after": "x"}, {"after": "-5:a"}],
    ids=str,
)
def test_x10_a_filter_of_ended_requests_that_means_nothing_is_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        world.guard.ended(**{"tenant": "default"} | wrong)


async def test_x16_muting_and_looking_are_the_same_awaited(world: World) -> None:
    guard = AsyncGuard(guard=world.guard)
    request = await guard.request(world.call())

    await guard.decide(request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, mute=HOUR)

    assert (await guard.control()).mutes == world.guard.control().mutes != ()
    assert (await guard.dossier(request.id)).history == world.guard.dossier(request.id).history != ()
    assert ids(await guard.ended(tenant="default")) == [request.id]
    await guard.unmute(by=BOB, user="ana", tool="refund")
    assert (await guard.control()).mutes == ()
