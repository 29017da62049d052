"""The list of open requests, page by page, and the sweep that writes down what is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.errors import ConfigurationError
from hitl_guard.keyring import Key, Keyring, revoked
from hitl_guard.lifecycle import ledger, listing, settle
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import Principal
from tests.support import BOB, OPERATOR, POLICY, World, document, until
from tests.threats.attacker import OPEN, REQUESTS, Attacker, flipped

DAY = 86_400_000
LISTED = ("pending", "approved", "executing", "in_doubt")


def ids(page: Any) -> list[str]:
    return [request.id for request in page]


@pytest.fixture
def attacked(make_database: Callable[..., Any], open_store: Callable[..., Any]) -> tuple[World, Attacker]:
    """A guard on SQLite, and an attacker on its database."""
    database = make_database("sqlite")
    return World(open_store(database)), Attacker(database)


def test_the_most_urgent_requests_come_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    made = [
        world.another(settings=Settings(decide_within=days * DAY)).guard.request(world.call()) for days in (3, 1, 2)
    ]

    page = world.guard.pending()

    assert ids(page) == [made[1].id, made[2].id, made[0].id]
    assert (len(page), page[0].id, page.next, page.damaged) == (3, made[1].id, None, ())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 500, 10_000])
def test_pages_show_every_request_once(make_world: Callable[..., World], size: int) -> None:
    world = make_world()
    made = {world.guard.request(world.call()).id for _ in range(4)}

    seen: list[str] = []
    after, pages = None, 0
    while pages == 0 or after is not None:
        page = world.guard.pending(limit=size, after=after)
        seen, after, pages = seen + ids(page), page.next, pages + 1

    assert (len(seen), set(seen)) == (4, made)
    assert pages <= 4 // min(size, 5) + 1


def test_a_request_that_ends_between_two_pages_shifts_nothing(world: World) -> None:
    for _ in range(3):
        world.guard.request(world.call())
    first = world.guard.pending(limit=1)
    expected = ids(world.guard.pending())[1:]

    world.guard.revoke(first[0].id, by=OPERATOR)

    assert ids(world.guard.pending(after=first.next)) == expected


def test_a_list_can_be_narrowed_to_a_tenant_a_run_and_states(make_world: Callable[..., World]) -> None:
    world = make_world()
    call = {"user": "ana", "call_id": "c"}
    here = world.guard.request(world.call(run_id="run-1", **call))
    other_run = world.guard.request(world.call(run_id="run-2", **call))
    other_tenant = world.guard.request(world.call(run_id="run-1", tenant="b", **call))
    world.approve(other_run)

    pending = world.guard.pending
    assert ids(pending()) == [here.id]
    assert set(ids(pending(states=("pending", "approved")))) == {here.id, other_run.id}
    assert ids(pending(states=("approved",))) == [other_run.id]
    assert ids(pending(run_id="run-1")) == [here.id]
    assert ids(pending(run_id="run-2")) == []
    assert ids(pending(tenant="b")) == [other_tenant.id]
    assert set(ids(pending(tenant=None))) == {here.id, other_tenant.id}
    assert set(ids(pending(tenant=None, run_id="run-1"))) == {here.id, other_tenant.id}
    assert ids(pending(tenant="c")) == []


def test_a_request_leaves_the_list_when_it_ends(world: World) -> None:
    denied, withdrawn, spent, failed, left = (world.guard.request(world.call()) for _ in range(5))
    world.deny(denied)
    world.guard.revoke(withdrawn.id, by=OPERATOR)
    for request, outcome in ((spent, "succeeded"), (failed, "failed")):
        world.approve(request)
        call = world.call(call_id=request.call_id)
        world.guard.settle(world.guard.authorize(call, request_id=request.id), outcome)
    world.approve(left)
    permit = world.guard.authorize(world.call(call_id=left.call_id), request_id=left.id)
    settle.settle(world.guard._desk, permit, "suspended", None)
    assert ids(world.guard.pending(states=("suspended",))) == [left.id]
    world.guard.revoke(left.id, by=OPERATOR)

    every = [
        "pending", "approved", "denied", "expired", "revoked", "superseded", "executing", "suspended", "in_doubt",
        "succeeded", "failed", "abandoned",
    ]
    assert ids(world.guard.pending(states=every)) == []


def test_a_request_that_is_overdue_reads_as_expired_before_anyone_swept(world: World) -> None:
    node = world.another(settings=Settings(decide_within=1))
    request = node.guard.request(node.call())
    until(node.store, request.decide_by)

    assert ids(node.guard.pending()) == []
    assert ids(node.guard.pending(states=("expired",))) == [request.id]


@pytest.mark.parametrize("field", ["envelope", "arguments", "details"])
def test_a_damaged_request_is_named_beside_the_good_ones(attacked: tuple[World, Attacker], field: str) -> None:
    world, attacker = attacked
    good, bad = world.guard.request(world.call()), world.guard.request(world.call())
    row = attacker.row(REQUESTS, id=bad.id.encode())
    attacker.set(REQUESTS, {field: flipped(row[field], len(row[field]) - 2)}, id=bad.id.encode())

    page = world.guard.pending()

    assert ids(page) == [good.id]
    assert [(damaged.request_id, damaged.key_id) for damaged in page.damaged] == [(bad.id, bad.key_id)]
    assert page.damaged[0].code == "invalid-signature"


def test_a_request_whose_envelope_cannot_be_read_names_no_key(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    bad = world.guard.request(world.call())
    attacker.set(REQUESTS, {"envelope": b"\xff\x00"}, id=bad.id.encode())

    (damaged,) = world.guard.pending().damaged

    assert (damaged.request_id, damaged.code, damaged.key_id) == (bad.id, "invalid-approval", None)


def test_what_a_revoked_key_signed_is_listed_with_that_key(world: World) -> None:
    request = world.guard.request(world.call())
    keyring, _ = revoked(world.keyring, request.key_id, now=clock.epoch_ms())

    (damaged,) = world.another(keyring=keyring).guard.pending().damaged

    assert (damaged.request_id, damaged.code, damaged.key_id) == (request.id, "key-revoked", request.key_id)


def test_a_page_of_damaged_requests_still_leads_to_the_next_one(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    requests = sorted((world.guard.request(world.call()) for _ in range(3)), key=lambda one: (one.decide_by, one.id))
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=requests[0].id.encode())

    first = world.guard.pending(limit=1)
    second = world.guard.pending(limit=1, after=first.next)

    assert (ids(first), len(first.damaged)) == ([], 1)
    assert ids(second) == [requests[1].id]


def test_a_line_moved_to_another_tenants_list_shows_that_tenant_nothing(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    ours = world.guard.request(world.call(tenant="a"))
    theirs = world.guard.request(world.call(tenant="b"))
    line = attacker.row(OPEN, request_id=ours.id.encode())
    attacker.set(OPEN, {"tenant": line["tenant"], "run": line["run"]}, request_id=theirs.id.encode())

    assert ids(world.guard.pending(tenant="a")) == [ours.id]
    assert ids(world.guard.pending(tenant="b")) == []


@pytest.mark.parametrize(
    "after", [7, b"1:a", "", "x", "1", ":a", "1:", "-1:a", "١:a", "1" * 17 + ":a", "1:" + "a" * 65, "1.5:a"]
)
def test_a_cursor_that_no_page_gave_is_refused(world: World, after: Any) -> None:
    with pytest.raises(ConfigurationError, match="after"):
        world.guard.pending(after=after)


@pytest.mark.parametrize(
    "wrong",
    [
        {"states": "pending"}, {"states": ("open",)}, {"limit": "5"}, {"limit": True}, {"limit": 1.5}, {"tenant": ""},
        {"run_id": ""}, {"run_id": 7},
    ],
    ids=str,
)
def test_a_filter_that_means_nothing_is_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        world.guard.pending(**wrong)


@pytest.mark.parametrize("limit", [0, -5])
def test_a_page_has_room_for_one_request_at_least(world: World, limit: int) -> None:
    request = world.guard.request(world.call())

    assert ids(world.guard.pending(limit=limit)) == [request.id]


# -- sweep ------------------------------------------------------------------------------------------------------------


def overdue(world: World) -> tuple[World, list[Any]]:
    """Return a node, and a pending, an approved and a running request of it whose time is over."""
    node = world.another(settings=Settings(decide_within=60_000, execute_within=60_000, run_within=1))
    quick = world.another(policy=node.policy, settings=Settings(decide_within=1))
    pending = quick.guard.request(world.call())
    call, approved = world.call(), None
    approved = node.guard.request(call)
    node.approve(approved, execute_within=1)
    running_call, running = node.grant(world.call())
    node.guard.authorize(running_call)
    until(node.store, node.store.now() + 2)
    return node, [pending, approved, running]


def test_a_sweep_writes_down_what_is_over_and_nothing_twice(make_world: Callable[..., World]) -> None:
    world = make_world()
    fresh = world.guard.request(world.call())
    node, requests = overdue(world)
    before = [node.guard.get(request.id).version for request in requests]

    assert node.guard.sweep() == 3
    assert node.guard.sweep() == 0

    assert [node.state(request) for request in (*requests, fresh)] == ["expired", "expired", "in_doubt", "pending"]
    assert [node.guard.get(request.id).version for request in requests] == [version + 1 for version in before]
    assert ids(node.guard.pending(states=("expired",))) == []
    assert ids(node.guard.pending(states=("in_doubt",))) == [requests[2].id]


def test_a_sweep_does_no_more_than_it_was_told(world: World) -> None:
    node, _ = overdue(world)

    assert [node.guard.sweep(limit=limit) for limit in (0, 2, 2, 2)] == [0, 2, 1, 0]


def test_a_sweep_goes_on_behind_full_pages_of_open_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitl_guard.lifecycle.listing.MAX_PAGE", 2)
    node, requests = overdue(world)
    for _ in range(5):
        world.guard.request(world.call())

    assert node.guard.sweep() == 3
    assert node.state(requests[2]) == "in_doubt"


def test_a_sweep_leaves_what_somebody_else_ended_meanwhile(world: World) -> None:
    node, requests = overdue(world)
    rows = node.store.open_requests(tenant=None, limit=500)

    class Stale:
        """A store whose list is as old as the rows above."""

        def open_requests(self, *, after: Any = None, **options: Any) -> Any:
            return rows if after is None else []

        def __getattr__(self, name: str) -> Any:
            return getattr(node.store, name)

    store: Any = Stale()
    stale = node.another(store=store)
    assert node.guard.sweep() == 3

    assert stale.guard.sweep() == 0
    assert [node.state(request) for request in requests] == ["expired", "expired", "in_doubt"]


def test_a_sweep_of_a_list_that_comes_again_for_ever_ends(world: World) -> None:
    request = world.guard.request(world.call())
    rows = world.store.open_requests(tenant=None, limit=500)

    class Endless:
        """A store whose list somebody edited so that every page is the first one."""

        def open_requests(self, **options: Any) -> Any:
            return rows

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    store: Any = Endless()

    assert world.another(store=store).guard.sweep() == 0
    assert world.state(request) == "pending"


def test_a_sweep_passes_over_what_it_cannot_verify(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    node, requests = overdue(world)
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=requests[0].id.encode())

    assert node.guard.sweep() == 2


# -- what is void -----------------------------------------------------------------------------------------------------


def void_rings(keyring: Keyring) -> dict[str, Keyring]:
    """Return rings under which nothing counts that the ring's one key has signed so far."""
    (key,) = keyring.keys
    spare = Key.generate(clock.epoch_ms() - 3_600_000)
    gone = Key(key.id, None, activates_at=key.activates_at, state="destroyed")
    return {
        "revoked": Keyring([key.changed(state="compromised"), spare]), "destroyed": Keyring([gone, spare]),
        "restored": Keyring([key], epoch=2),
    }


@pytest.mark.parametrize("why", ["revoked", "destroyed", "restored"])
def test_at45_at63_a_sweep_takes_void_requests_off_the_list_and_leaves_them_stored(
    make_world: Callable[..., World], why: str
) -> None:
    world = make_world()
    pending = world.guard.request(world.call())
    world.grant(world.call())
    call, _ = world.grant(world.call())
    world.guard.authorize(call)
    world.guard.request(world.call(tenant="b"))
    node = world.another(keyring=void_rings(world.keyring)[why])
    node.confirm()
    fresh = node.guard.request(node.call())
    assert len(node.guard.pending(tenant=None, states=LISTED).damaged) == 4

    assert [node.guard.sweep(), node.guard.sweep()] == [4, 0]

    left = node.guard.pending(tenant=None, states=LISTED)
    assert (ids(left), left.damaged) == ([fresh.id], ())
    ended = node.guard.ended(tenant="default")
    assert (ids(ended), ended.damaged) == ([], ())
    report = ledger.verify(node.guard._desk)
    assert (report.requests, report.findings) == (5, ())
    assert len([one for one in report.void if one.where.startswith("request ")]) == (0 if why == "restored" else 4)
    again = node.guard.request(node.call(call_id=pending.call_id))  # it is asked anew, and listed
    assert again.id != pending.id
    assert set(ids(node.guard.pending())) == {fresh.id, again.id}


def test_at45_a_request_with_only_a_vote_of_a_revoked_key_is_void_too(make_world: Callable[..., World]) -> None:
    world = make_world()
    (old,) = world.keyring.keys
    spare = Key.generate(clock.epoch_ms() - 3_600_000)
    request = world.another(keyring=Keyring([spare])).guard.request(world.call("wire"))
    both = world.another(keyring=Keyring([old.changed(activates_at=spare.activates_at + 1), spare]))
    both.approve(request)
    node = world.another(keyring=Keyring([old.changed(state="compromised"), spare]))

    assert node.guard.sweep() == 1
    assert node.guard.pending().damaged == ()


def test_a_sweep_of_void_requests_does_no_more_than_it_was_told(world: World) -> None:
    for _ in range(3):
        world.guard.request(world.call())
    node = world.another(keyring=void_rings(world.keyring)["revoked"])

    assert [node.guard.sweep(limit=limit) for limit in (0, 2, 2, 2)] == [0, 2, 1, 0]


def test_a_sweep_tells_overdue_requests_from_void_ones(world: World) -> None:
    world.guard.request(world.call())
    node = world.another(keyring=void_rings(world.keyring)["revoked"], settings=Settings(decide_within=1))
    node.confirm()
    late = node.guard.request(node.call())
    until(node.store, late.decide_by)

    assert listing.sweep(node.guard._desk, limit=9) == listing.Swept(overdue=1, void=1)


@pytest.mark.parametrize("why", ["revoked", "restored"])
def test_a_sweep_leaves_what_was_edited_without_the_key_on_the_list(
    attacked: tuple[World, Attacker], why: str
) -> None:
    world, attacker = attacked
    bad, void = world.guard.request(world.call()), world.guard.request(world.call())
    attacker.set(REQUESTS, {"arguments": b"{}"}, id=bad.id.encode())
    node = world.another(keyring=void_rings(world.keyring)[why])

    assert node.guard.sweep() == 1
    assert [one.request_id for one in node.guard.pending().damaged] == [bad.id]
    assert bad.id != void.id


@pytest.mark.parametrize("newer", ["epoch", "key"])
def test_a_node_whose_keys_are_older_takes_nothing_off_the_list(world: World, newer: str) -> None:
    spare = Key.generate(clock.epoch_ms() - 3_600_000)
    rings = {"epoch": Keyring(world.keyring.keys, epoch=2), "key": Keyring([spare])}
    other = world.another(keyring=rings[newer])
    request = other.guard.request(other.call())

    assert world.guard.sweep() == 0
    assert [one.request_id for one in world.guard.pending().damaged] == [request.id]


def test_what_counts_again_under_keys_that_were_loaded_meanwhile_stays_on_the_list(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = world.guard.request(world.call())
    real, asked = listing.verified, list[str]()

    def outdated_at_first(*arguments: Any) -> Any:
        asked.append("")
        return listing.Damaged(request.id, "key-unknown", None) if len(asked) == 1 else real(*arguments)

    monkeypatch.setattr(listing, "verified", outdated_at_first)

    assert world.guard.sweep() == 0
    assert ids(world.guard.pending()) == [request.id]


def test_a_void_request_that_another_sweep_took_off_the_list_is_not_counted_again(world: World) -> None:
    world.guard.request(world.call())
    rows = world.store.open_requests(tenant=None, limit=500)

    class Stale:
        """A store whose list is as old as the rows above."""

        def open_requests(self, *, after: Any = None, **options: Any) -> Any:
            return rows if after is None else []

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    store: Any = Stale()
    ring = void_rings(world.keyring)["revoked"]
    assert world.another(keyring=ring).guard.sweep() == 1

    assert world.another(keyring=ring, store=store).guard.sweep() == 0


def test_a_call_that_was_swept_into_doubt_is_resolved_by_an_operator(world: World) -> None:
    node, requests = overdue(world)
    node.guard.sweep()

    assert node.guard.resolve(requests[2].id, "failed", by=OPERATOR, reason="the bank never saw it") == "failed"
    with node.refused("consumed", "failed"):
        node.run(world.call(call_id=requests[2].call_id), request_id=requests[2].id)


def test_votes_on_a_listed_request_are_shown(world: World) -> None:
    request = world.guard.request(world.call("wire"))
    world.approve(request, by=BOB)

    (listed,) = world.guard.pending()

    assert [(vote.approver, vote.approve) for vote in listed.votes] == [("bob", True)]
    world.approve(request, by=Principal("carol"))
    assert ids(world.guard.pending()) == []


def test_a_tenants_list_is_not_in_the_way_of_another_policy(world: World) -> None:
    request = world.guard.request(world.call())

    page = world.another(policy=document(POLICY + "# newer\n")).guard.pending()

    assert ids(page) == [request.id]
