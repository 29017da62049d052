"""A call that suspended itself: each start is one event that nobody can repeat, not at once and not by way of the rows.

Whoever has the database but no key may delete events and put old ones back. What is *prevented* ends in a refusal;
what is only *detected* says by whom, as for a first claim (`test_records`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from hitl_guard.errors import HitlGuardError
from hitl_guard.lifecycle import settle
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.models import ApprovalRequest, Permit, ToolCall
from hitl_guard.rows import Draft, Link, RunRow
from hitl_guard.store.base import PutRun
from tests.databases import Database
from tests.support import OPERATOR, World
from tests.threats.attacker import EVENTS, REQUESTS, Attacker, Row, findings
from tests.threats.gates import GatedStore, all_read, at_once, told

MakeWorld = Callable[..., World]
STARTS = 64


@dataclass
class Scene:
    """A suspended call in a store, and what an attacker has kept of it.

    Attributes:
        starts: The ids of its starts, in order.
        old: Its events as they were when it had suspended itself for the first time.
    """

    world: World
    attacker: Attacker
    call: ToolCall
    request: ApprovalRequest
    starts: list[str] = field(default_factory=list)
    old: list[Row] = field(default_factory=list)

    def suspend(self, permit: Permit | None) -> None:
        assert permit is not None
        settle.settle(self.world.guard._desk, permit, "suspended", None)
        self.starts.append(permit.claim_id or "")

    def again(self, start: str, node: World | None = None) -> Permit | None:
        guard = (node or self.world).guard
        return guard._permit(self.call, request_id=self.request.id, resumes=start)

    def rows(self) -> list[Row]:
        return sorted(
            self.attacker.rows(EVENTS, request_id=self.request.id.encode()), key=lambda row: int(row["version"])
        )

    def delete(self, *versions: int) -> None:
        for version in versions:
            self.attacker.delete(EVENTS, request_id=self.request.id.encode(), version=version)

    def types(self) -> list[str]:
        return [row["type"].decode() for row in self.rows()]


@pytest.fixture
def scene(make_world: MakeWorld, database: Database) -> Scene:
    """A call that suspended itself once; the writer's head is another event."""
    world = make_world()
    call, request = world.grant()
    place = Scene(world, Attacker(database), call, request)
    place.suspend(world.guard._permit(call, request_id=request.id))
    place.old = place.rows()
    world.grant()
    return place


@pytest.fixture
def resumed(scene: Scene) -> Scene:
    """The same call, started again (event 4) and still running."""
    assert scene.again(scene.starts[0]) is not None
    scene.world.grant()
    return scene


# -- at once ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [True, False], ids=["all-have-read", "plain-load"])
def test_of_64_threads_exactly_one_starts_a_suspended_call_again(scene: Scene, gated: bool) -> None:
    meet = all_read(STARTS)
    store: Any = GatedStore(scene.world.store, meet) if gated else scene.world.store
    node = scene.world.another()
    node.guard._desk.store = store  # only now, since a guard that starts reads as well

    def start() -> str:
        if not gated:
            meet()
        return told(lambda: scene.again(scene.starts[0], node))

    codes = at_once([start] * STARTS)

    assert Counter(codes) == Counter({"ok": 1, "consumed": STARTS - 1})
    assert scene.types()[3:] == ["grant:resumed"]
    assert Counter(event["code"] for event in scene.world.audited()) == Counter({"consumed": STARTS - 1})
    with scene.world.refused("consumed", "executing"):
        scene.again(scene.starts[0])


def test_of_many_loops_that_go_on_at_once_one_writes_its_state_and_one_start(scene: Scene) -> None:
    """Whoever wins suspends the call again, with its own state beside it."""
    world, key = scene.world, bytes(32)
    meet = all_read(8)

    def go_on(number: int) -> None:
        meet()
        permit = scene.again(scene.starts[0])
        assert permit is not None
        state = PutRun(RunRow(key, "default", 1, b"%d" % number, b"signed"), ())
        settle.settle(world.guard._desk, permit, "suspended", None, lambda: [state])

    codes = at_once([partial(told, partial(go_on, number)) for number in range(8)])

    assert Counter(codes) == Counter({"ok": 1, "consumed": 7})
    _, row = world.store.load_run(key)
    assert row is not None
    assert row.body == b"%d" % codes.index("ok")
    assert scene.types()[3:] == ["grant:resumed", "call:suspended"]


# -- put back ---------------------------------------------------------------------------------------------------------


def settled(scene: Scene, permit: Permit | None, outcome: str) -> None:
    assert permit is not None
    settle.settle(scene.world.guard._desk, permit, outcome, None)
    scene.world.grant()


@pytest.mark.parametrize("then", ["running", "succeeded", "failed", "in_doubt", "suspended"])
def test_x07_a_deleted_start_is_missed_by_the_process_that_made_it(scene: Scene, then: str) -> None:
    """Everything since the first suspension is deleted, so that its start seems to be the last one."""
    permit = scene.again(scene.starts[0])
    if then != "running":
        settled(scene, permit, then)
    scene.world.grant()
    scene.delete(*range(4, len(scene.rows()) + 1))
    assert scene.rows() == scene.old

    with scene.world.refused("store-rolled-back", "memory"):
        scene.again(scene.starts[0])

    assert scene.types()[3:] == []
    assert "gap" in findings(scene.world)


def test_x07_a_deleted_start_that_was_the_writers_last_event_stops_the_writer(scene: Scene) -> None:
    scene.again(scene.starts[0])
    scene.delete(4)

    with pytest.raises(HitlGuardError) as caught:
        scene.again(scene.starts[0])

    assert caught.value.code == "store-rolled-back"
    assert scene.types() == [row["type"].decode() for row in scene.old]
    with pytest.raises(HitlGuardError) as later:
        scene.world.guard.request(scene.world.call())
    assert (later.value.code, later.value.detail) == ("store-rolled-back", "chain")


def test_x07_a_deleted_start_that_no_process_remembers_is_found_by_audit_verify(
    resumed: Scene, make_world: MakeWorld
) -> None:
    fresh = resumed.world.another(store=make_world().store)
    resumed.delete(4)

    before = findings(fresh)
    with suppress(HitlGuardError):  # without a witness nothing tells a new process
        resumed.again(resumed.starts[0], fresh)

    assert (before, findings(fresh)) == (["gap"], ["gap"])


@pytest.mark.parametrize(
    ("versions", "code", "detail"),
    [
        ((3,), "store-rolled-back", "gap"),
        ((3, 4), "consumed", "executing"),
        ((2, 3, 4), "store-rolled-back", "memory"),
        ((1, 2, 3, 4), "store-rolled-back", "memory"),
        ((2,), "store-rolled-back", "memory"),
    ],
    ids=str,
)
def test_x07_whatever_is_deleted_of_a_call_that_runs_again_gives_no_second_start(
    resumed: Scene, versions: tuple[int, ...], code: str, detail: str
) -> None:
    resumed.delete(*versions)

    for start in (resumed.starts[0], None):
        with resumed.world.refused(code, detail):
            resumed.world.guard._permit(resumed.call, request_id=resumed.request.id, resumes=start)

    assert "gap" in findings(resumed.world)


def test_x07_a_grant_that_reads_as_unspent_again_is_no_start_to_follow_for_any_process(
    resumed: Scene, make_world: MakeWorld
) -> None:
    """A loop that was suspended knows by its own signed state that the grant was claimed."""
    fresh = resumed.world.another(store=make_world().store)
    resumed.delete(2, 3, 4)

    with fresh.refused("consumed", "approved"):
        resumed.again(resumed.starts[0], fresh)


def test_x07_an_earlier_suspension_that_is_put_back_is_not_the_one_that_was_asked_for(resumed: Scene) -> None:
    (first,) = resumed.starts
    row = resumed.attacker.row(EVENTS, request_id=resumed.request.id.encode(), version=4)
    assert row["type"] == b"grant:resumed"
    second = json.loads(row["body"])["claim"]
    resumed.delete(4)

    with resumed.world.refused("consumed", "suspended"):
        resumed.again(second)
    with resumed.world.refused("store-rolled-back", "memory"):
        resumed.again(first)


def test_x07_an_old_history_that_is_put_back_after_a_second_suspension_starts_nothing(scene: Scene) -> None:
    scene.suspend(scene.again(scene.starts[0]))
    scene.world.grant()
    new = scene.rows()
    scene.attacker.delete(EVENTS, request_id=scene.request.id.encode())
    for row in scene.old:
        scene.attacker.insert(EVENTS, row)

    with scene.world.refused("store-rolled-back", "memory"):
        scene.again(scene.starts[0])
    with scene.world.refused("consumed", "suspended"):
        scene.again(scene.starts[1])

    for row in new[3:]:
        scene.attacker.insert(EVENTS, row)
    with scene.world.refused("consumed", "suspended"):
        scene.again(scene.starts[0])
    assert scene.again(scene.starts[1]) is not None
    assert findings(scene.world) == []


def test_x07_a_start_that_is_moved_out_of_its_request_is_missed_by_the_process_that_made_it(resumed: Scene) -> None:
    """The row stays at its place in the chain, so that no number is missing there."""
    resumed.attacker.set(
        EVENTS, {"request_id": b"elsewhere", "version": 1}, request_id=resumed.request.id.encode(), version=4
    )

    with resumed.world.refused("store-rolled-back", "memory"):
        resumed.again(resumed.starts[0])
    assert {"invalid-signature", "missing"} <= set(findings(resumed.world))


COPIES: dict[str, tuple[int, dict[str, Any], str]] = {
    "the suspension behind the start": (3, {"version": 5}, "invalid-signature"),
    "the start behind itself": (4, {"version": 5}, "invalid-signature"),
    "the claim behind the start": (2, {"version": 5, "spend_key": None}, "invalid-signature"),
    "the approval behind the start": (1, {"version": 5}, "invalid-signature"),
}


@pytest.mark.parametrize("what", COPIES)
def test_x07_a_copied_event_suspends_and_starts_nothing_again(resumed: Scene, what: str) -> None:
    version, changes, code = COPIES[what]
    row = resumed.attacker.row(EVENTS, request_id=resumed.request.id.encode(), version=version)

    resumed.attacker.insert(EVENTS, row | changes | {"chain": b"forged", "seq": 0})

    for start in (resumed.starts[0], None):
        with resumed.world.refused(code):
            resumed.world.guard._permit(resumed.call, request_id=resumed.request.id, resumes=start)
    assert {"invalid-signature", "no-opening"} <= set(findings(resumed.world))


def test_x07_another_requests_suspension_suspends_nothing_here(resumed: Scene) -> None:
    call, request = resumed.world.grant()
    other = Scene(resumed.world, resumed.attacker, call, request)
    other.suspend(resumed.world.guard._permit(call, request_id=request.id))
    row = resumed.attacker.row(EVENTS, request_id=request.id.encode(), version=3)

    resumed.attacker.insert(
        EVENTS, row | {"request_id": resumed.request.id.encode(), "version": 5, "chain": b"forged", "seq": 0}
    )

    with resumed.world.refused("invalid-signature", "mismatch"):
        resumed.again(other.starts[0])
    assert other.again(other.starts[0]) is not None


@pytest.mark.parametrize("column", ["type", "body", "version", "at", "mac"])
def test_x07_an_edited_start_is_refused(resumed: Scene, column: str) -> None:
    place = {"request_id": resumed.request.id.encode(), "version": 4}
    later = resumed.attacker.row(EVENTS, **place)["at"] + 1
    value = {"type": b"call:suspended", "body": b"{}", "version": 9, "at": later, "mac": bytes(32)}[column]

    with resumed.attacker.edited(EVENTS, {column: value}, **place):
        with pytest.raises(HitlGuardError) as caught:
            resumed.again(resumed.starts[0])
        assert caught.value.code == ("store-rolled-back" if column == "version" else "invalid-signature")
        assert findings(resumed.world) != []

    assert findings(resumed.world) == []


def test_x07_a_revoked_suspension_whose_ending_is_deleted_is_found_by_audit_verify(scene: Scene) -> None:
    """Only detected, as any deleted ending of a request."""
    scene.world.guard.revoke(scene.request.id, by=OPERATOR)
    scene.world.grant()
    scene.delete(4)

    assert findings(scene.world) == ["gap"]


def test_x07_a_request_that_is_deleted_with_its_suspension_is_unknown_and_its_call_stays_spent(scene: Scene) -> None:
    rows = scene.attacker.delete(EVENTS, request_id=scene.request.id.encode())
    scene.attacker.delete(REQUESTS, id=scene.request.id.encode())

    with scene.world.refused("store-rolled-back", "memory"):
        scene.again(scene.starts[0])
    assert len(rows) == 3
    assert "gap" in findings(scene.world)


# -- what a process remembers -----------------------------------------------------------------------------------------


def test_a_start_that_was_made_since_this_ones_reading_is_no_loss(scene: Scene) -> None:
    """The process remembers it already when this start looks, whose own reading is older."""
    node = scene.world.another()
    store: Any = GatedStore(scene.world.store, lambda: scene.again(scene.starts[0], node))
    node.guard._desk.store = store

    with node.refused("consumed", "executing"):
        scene.again(scene.starts[0], node)

    assert scene.types()[3:] == ["grant:resumed"]


def test_a_start_is_remembered_as_long_as_its_approval_would_count(scene: Scene) -> None:
    desk, before = scene.world.guard._desk, scene.world.store.now()

    scene.again(scene.starts[0])

    until, window = desk._remembered[scene.starts[0].encode()], desk.settings.execute_within
    assert before + window <= until <= scene.world.store.now() + window


# -- audit verify -----------------------------------------------------------------------------------------------------


def test_x08_histories_with_suspensions_are_clean_and_counted(scene: Scene) -> None:
    world = scene.world
    scene.suspend(scene.again(scene.starts[0]))
    settled(scene, scene.again(scene.starts[1]), "succeeded")
    for ending in ("failed", "in_doubt"):
        call, request = world.grant()
        other = Scene(world, scene.attacker, call, request)
        other.suspend(world.guard._permit(call))
        settled(other, other.again(other.starts[0]), ending)
    call, request = world.grant()
    withdrawn = Scene(world, scene.attacker, call, request)
    withdrawn.suspend(world.guard._permit(call))
    world.guard.revoke(request.id, by=OPERATOR)
    automatic = world.call("ping")
    permit = world.guard._permit(automatic)
    assert permit is not None
    settle.settle(world.guard._desk, permit, "suspended", None)

    report = verify(world.guard._desk)

    assert (report.findings, report.void) == ((), ())
    assert report.events == len(scene.attacker.rows(EVENTS))
    assert report.requests == len(scene.attacker.rows(REQUESTS))
    assert Counter(row["type"] for row in scene.attacker.rows(EVENTS))[b"grant:resumed"] == 4


@pytest.mark.parametrize("version", [3, 4])
def test_x08_a_start_or_a_suspension_removed_from_the_middle_is_named(resumed: Scene, version: int) -> None:
    resumed.world.guard.resolve(resumed.request.id, "failed", by=OPERATOR, reason="Gone.", force=True)
    resumed.delete(version)

    report = verify(resumed.world.guard._desk)

    assert {(finding.where.split()[0], finding.code) for finding in report.findings} == {
        ("chain", "gap"), ("request", "store-rolled-back"),
    }
    assert f"request {resumed.request.id}" in [finding.where for finding in report.findings]


def test_x08_a_second_start_after_one_suspension_is_named_whoever_made_it(resumed: Scene) -> None:
    """Two events with good MACs that follow the same suspension, as only a holder of the key can make them."""
    world = resumed.world
    seal, now = world.guard._desk.sealer, world.store.now()
    body = resumed.rows()[3]["body"]
    opening = seal(Draft("chain:opened", "", now, b'{"heads":[]}'), Link("n" * 22, 0, bytes(32)))
    start = seal(
        Draft("grant:resumed", "default", now, body, resumed.request.id, 5), Link("n" * 22, 1, opening.mac)
    )
    resumed.attacker.insert_event(opening)
    resumed.attacker.insert_event(start)

    report = verify(world.guard._desk)

    assert [(finding.where, finding.code) for finding in report.findings] == [
        (f"request {resumed.request.id}", "store-rolled-back")
    ]
    with world.refused("store-rolled-back", "transition"):
        resumed.again(resumed.starts[0])
