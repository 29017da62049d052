"""`audit verify`: a healthy store has no finding, and every kind of tampering is named by the right one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hitl_guard import canonical
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle import ledger
from hitl_guard.lifecycle.ledger import Report
from hitl_guard.models import ApprovalRequest
from hitl_guard.rows import CONTROL_PREFIX, Draft, EventRow, Link, control_record
from hitl_guard.store.sql import SQLStore
from hitl_guard.store.values import tenant_digest
from tests.databases import Database
from tests.support import CAROL, OPERATOR, World
from tests.threats.attacker import CONTROL, EVENTS, REQUESTS, Attacker, flipped, opened, reworded


@dataclass
class Scene:
    """A store with a bit of everything in it, and somebody who edits it.

    Attributes:
        other: A second writer, whose chain's first event anchors the first writer's chain.
        done: A request that was approved and ran; ``waiting``: one that is pending.
        chain: The first writer's chain.
    """

    world: World
    other: World
    attacker: Attacker
    done: ApprovalRequest
    waiting: ApprovalRequest
    chain: bytes

    def report(self, keyring: Keyring | None = None) -> Report:
        world = self.world if keyring is None else self.world.another(keyring=keyring)
        return ledger.verify(world.guard._desk)

    def codes(self) -> set[str]:
        """Return the findings' codes, each with the kind of thing that it is about."""
        return {f"{finding.where.split()[0]} {finding.code}" for finding in self.report().findings}

    def event(self, request: ApprovalRequest, version: int) -> dict[str, Any]:
        return {"request_id": request.id.encode(), "version": version}


@pytest.fixture
def scene(make_database: Callable[..., Database], open_store: Callable[..., SQLStore]) -> Scene:
    database = make_database("sqlite")
    world = World(open_store(database))
    call, done = world.grant()
    world.run(call)
    denied = world.guard.request(world.call())
    world.deny(denied)
    waiting = world.guard.request(world.call("wire"))
    world.approve(waiting)
    world.guard.pause(by=OPERATOR, tool="mail")
    world.guard.pause(by=OPERATOR, tool="ping")
    (chain,) = world.store.chains()
    other = world.another(store=open_store(database))
    other.calls = 100
    other.approve(waiting, CAROL)
    return Scene(world, other, Attacker(database), done, waiting, chain.encode())


def sealed(scene: Scene, draft: Draft, link: Link) -> EventRow:
    """Return an event as only a holder of the key can make it."""
    return scene.world.guard._desk.sealer(draft, link)


# -- nothing was touched ---------------------------------------------------------------------------------------------


def test_a_healthy_store_has_no_finding_and_everything_is_counted(scene: Scene) -> None:
    report = scene.report()

    assert (report.findings, report.void) == ((), ())
    assert (report.chains, report.requests) == (2, 3)
    assert report.events == len(scene.attacker.rows(EVENTS))


def test_an_empty_store_has_no_finding(world: World) -> None:
    assert ledger.verify(world.guard._desk) == Report(0, 0, 0, (), ())


def test_a_busy_store_has_no_finding_on_any_database(make_world: Callable[..., World]) -> None:
    world = make_world()
    for tool in ("refund", "wire", "mail"):
        call, request = world.grant(world.call(tool))
        if request.state == "approved":
            world.run(call)
    for tenant in ("a", "b", "\0 ", "\u00e4"):
        by = replace(OPERATOR, tenant=tenant)
        world.guard.pause(by=by)
        world.guard.resume(by=by)
    with world.refused("policy-denied"):
        world.run(world.call("drop_database"))

    report = ledger.verify(world.guard._desk)

    assert (report.findings, report.requests) == ((), 3)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_chain_is_read_in_pages_of_any_size(scene: Scene, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(ledger, "PAGE", size)

    assert scene.report().findings == ()

    scene.attacker.delete(EVENTS, chain=scene.chain, seq=3)
    assert Counter(finding.code for finding in scene.report().findings)["gap"] == 1


# -- events ----------------------------------------------------------------------------------------------------------

EDITS: dict[str, Any] = {
    "type": b"request:denied", "tenant": b"other", "at": 1_900_000_000_000, "body": b"{}", "previous": bytes(32),
    "epoch": 2, "mac": bytes(32), "spend_key": bytes(32),
}


@pytest.mark.parametrize("column", EDITS)
def test_an_edited_event_is_named_in_its_chain_and_in_its_request(scene: Scene, column: str) -> None:
    scene.attacker.set(EVENTS, {column: EDITS[column]}, **scene.event(scene.done, 1))

    report = scene.report()

    where = f"chain {scene.chain.decode()} "
    event = scene.attacker.row(EVENTS, **scene.event(scene.done, 1))
    wrong = [finding.where for finding in report.findings if finding.code == "invalid-signature"]
    assert f"{where}{event['seq']}" in wrong
    assert f"request {scene.done.id}" in [finding.where for finding in report.findings]
    assert "chain invalid-signature" in scene.codes()


@pytest.mark.parametrize("place", range(32))
def test_an_event_with_one_changed_bit_in_its_mac_is_named(scene: Scene, place: int) -> None:
    event = scene.attacker.row(EVENTS, **scene.event(scene.done, 2))
    scene.attacker.set(EVENTS, {"mac": flipped(event["mac"], place)}, **scene.event(scene.done, 2))

    assert {"chain invalid-signature", "chain broken-link", "request invalid-signature"} <= scene.codes()


def test_an_event_under_another_key_id_is_named(scene: Scene) -> None:
    scene.attacker.set(EVENTS, {"key_id": b"k-unknown"}, **scene.event(scene.done, 1))

    assert scene.codes() == {"chain key-unknown", "request key-unknown"}


def test_an_event_of_an_unknown_type_is_named(scene: Scene) -> None:
    scene.attacker.set(EVENTS, {"type": b"request:blessed"}, **scene.event(scene.done, 1))

    assert scene.codes() == {"chain invalid-signature", "request invalid-signature"}


def test_an_event_given_to_another_request_is_named(scene: Scene) -> None:
    scene.attacker.set(EVENTS, {"request_id": scene.waiting.id.encode(), "version": 9}, **scene.event(scene.done, 3))

    report = scene.report()

    assert {"chain invalid-signature", "request store-rolled-back"} <= scene.codes()
    assert f"request {scene.waiting.id}" in [finding.where for finding in report.findings]


def test_two_events_that_changed_places_are_named(scene: Scene) -> None:
    scene.attacker.swap(
        EVENTS, ("seq",), {"chain": scene.chain, "seq": 3}, {"chain": scene.chain, "seq": 4}
    )

    findings = [finding for finding in scene.report().findings if finding.code == "invalid-signature"]

    assert {f"chain {scene.chain.decode()} 3", f"chain {scene.chain.decode()} 4"} <= {one.where for one in findings}


@pytest.mark.parametrize("seq", [1, 2, 5])
def test_an_event_deleted_from_the_middle_is_named_by_the_number_after_it(scene: Scene, seq: int) -> None:
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=seq)

    gaps = [finding for finding in scene.report().findings if finding.code == "gap"]

    assert [(gap.where, gap.message) for gap in gaps if gap.where.startswith("chain")] == [
        (f"chain {scene.chain.decode()} {seq + 1}", f"Events are missing before it: {seq} to {seq}.")
    ]


def test_several_events_deleted_are_named_with_their_numbers(scene: Scene) -> None:
    for seq in (2, 3, 4):
        scene.attacker.delete(EVENTS, chain=scene.chain, seq=seq)

    assert [one.message for one in scene.report().findings if one.where == f"chain {scene.chain.decode()} 5"] == [
        "Events are missing before it: 2 to 4."
    ]


def test_a_chain_without_its_first_event_is_named(scene: Scene) -> None:
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=0)

    assert scene.codes() == {"chain gap"}


def test_a_deleted_event_of_a_request_is_named_at_the_request(scene: Scene) -> None:
    scene.attacker.delete(EVENTS, **scene.event(scene.done, 1))

    assert {"chain gap", "request store-rolled-back"} == scene.codes()


def test_a_tail_cut_below_another_chains_anchor_is_named(scene: Scene) -> None:
    last = max(row["seq"] for row in scene.attacker.rows(EVENTS, chain=scene.chain))
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=last)

    cut = [finding for finding in scene.report().findings if finding.code == "cut"]

    assert [finding.where for finding in cut] == [f"chain {scene.chain.decode()} {last}"]


def test_an_anchored_event_that_was_replaced_is_named(scene: Scene) -> None:
    last = max(row["seq"] for row in scene.attacker.rows(EVENTS, chain=scene.chain))
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=last)
    before = scene.attacker.row(EVENTS, chain=scene.chain, seq=last - 1)
    draft = Draft("call:refused", "", scene.world.store.now(), b'{"code":"consumed"}')
    scene.attacker.insert_event(sealed(scene, draft, Link(scene.chain.decode(), last, before["mac"])))

    assert "chain cut" in scene.codes()


def test_a_whole_chain_that_is_gone_is_named_by_the_chain_that_anchored_it(scene: Scene) -> None:
    scene.attacker.delete(EVENTS, chain=scene.chain)

    assert {"chain cut", "request store-rolled-back", "control store-rolled-back"} <= scene.codes()


def test_a_tail_that_nobody_anchored_cannot_be_missed_here(scene: Scene) -> None:
    """The limit that `audit verify` has, as its docstring says."""
    other = scene.other.store.chains()
    (chain,) = [name for name in other if name != scene.chain.decode()]
    with scene.other.refused("policy-denied"):
        scene.other.run(scene.other.call("drop_database"))
    last = max(row["seq"] for row in scene.attacker.rows(EVENTS, chain=chain.encode()))

    scene.attacker.delete(EVENTS, chain=chain.encode(), seq=last)

    assert scene.report().findings == ()


@pytest.mark.parametrize("own_chain", [True, False], ids=["the same chain", "a new chain"])
def test_a_copied_event_is_named(scene: Scene, own_chain: bool) -> None:
    refusal = scene.attacker.row(EVENTS, chain=scene.chain, seq=0)
    last = max(row["seq"] for row in scene.attacker.rows(EVENTS, chain=scene.chain))
    place = {"seq": last + 1} if own_chain else {"chain": b"n" * 22}

    scene.attacker.insert(EVENTS, refusal | place)

    assert "chain invalid-signature" in scene.codes()


def test_an_event_that_follows_another_one_than_the_one_before_it_is_named(scene: Scene) -> None:
    last = max(row["seq"] for row in scene.attacker.rows(EVENTS, chain=scene.chain))
    draft = Draft("call:refused", "", scene.world.store.now(), b"{}")

    scene.attacker.insert_event(sealed(scene, draft, Link(scene.chain.decode(), last + 1, b"\1" * 32)))

    assert scene.codes() == {"chain broken-link"}


def test_a_chain_that_does_not_start_with_its_opening_is_named(scene: Scene) -> None:
    draft = Draft("call:refused", "", scene.world.store.now(), b"{}")

    scene.attacker.insert_event(sealed(scene, draft, Link("n" * 22, 0, ledger.NO_PREVIOUS)))

    assert scene.codes() == {"chain no-opening"}


def test_a_chains_first_event_has_no_predecessor(scene: Scene) -> None:
    draft = Draft("chain:opened", "", scene.world.store.now(), b'{"heads":[]}')

    scene.attacker.insert_event(sealed(scene, draft, Link("n" * 22, 0, b"\1" * 32)))

    assert scene.codes() == {"chain broken-link"}


@pytest.mark.parametrize("chain", [b"\xff\xfe", b"\xed\xa0\x80", 7, "text", 1.5], ids=repr)
def test_an_event_in_a_chain_that_no_writer_can_have_is_named(scene: Scene, chain: Any) -> None:
    scene.attacker.insert(EVENTS, scene.attacker.row(EVENTS, chain=scene.chain, seq=0) | {"chain": chain})

    assert "chain unreadable" in scene.codes()


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("seq", [-1, -7, "text", b"bytes", 2.5], ids=repr)
def test_an_event_with_a_number_that_is_none_is_named_and_does_not_stop_the_audit(
    scene: Scene, seq: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "PAGE", size)
    scene.attacker.insert(EVENTS, scene.attacker.row(EVENTS, chain=scene.chain, seq=0) | {"seq": seq})
    scene.attacker.delete(REQUESTS, id=scene.done.id.encode())

    codes = scene.codes()

    assert {"chain misplaced", "chain invalid-signature", "request missing"} <= codes
    assert "chain gap" not in codes


# -- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [("tenant", b"other"), ("identity", bytes(32)), ("arguments", b'{"amount":820}'), ("details", b"{}"),
     ("arguments", b"\xff"), ("details", b"no JSON")],
)
def test_an_edited_request_is_named(scene: Scene, column: str, value: bytes) -> None:
    scene.attacker.set(REQUESTS, {column: value}, id=scene.done.id.encode())

    assert [(finding.where, finding.code) for finding in scene.report().findings] == [
        (f"request {scene.done.id}", "invalid-signature")
    ]


@pytest.mark.parametrize("which", ["edited", "garbage", "empty", "of another request"])
def test_an_edited_envelope_is_named(scene: Scene, which: str) -> None:
    envelope = {
        "edited": reworded(scene.done.token, lambda fields: fields.update(agent="x")),
        "garbage": "garbage",
        "empty": "",
        "of another request": scene.waiting.token,
    }[which]
    scene.attacker.set(REQUESTS, {"envelope": envelope.encode()}, id=scene.done.id.encode())

    findings = scene.report().findings

    assert [finding.where for finding in findings] == [f"request {scene.done.id}"]
    assert findings[0].code == {"edited": "invalid-signature", "of another request": "invalid-signature"}.get(
        which, "invalid-approval"
    )


def test_a_deleted_request_is_named_by_its_events(scene: Scene) -> None:
    scene.attacker.delete(REQUESTS, id=scene.done.id.encode())

    assert [(finding.where, finding.code) for finding in scene.report().findings] == [
        (f"request {scene.done.id}", "missing")
    ]


def test_a_request_under_another_id_is_named_twice(scene: Scene) -> None:
    scene.attacker.set(REQUESTS, {"id": b"z" * 22}, id=scene.done.id.encode())

    assert {(finding.where, finding.code) for finding in scene.report().findings} == {
        (f"request {scene.done.id}", "missing"), (f"request {'z' * 22}", "invalid-signature"),
    }


@pytest.mark.parametrize("request_id", [b"forged", b"\xff", CONTROL_PREFIX.encode() + b"x", b"control:"], ids=repr)
def test_a_forged_request_is_named(scene: Scene, request_id: bytes) -> None:
    row = scene.attacker.row(REQUESTS, id=scene.done.id.encode())

    scene.attacker.insert(REQUESTS, row | {"id": request_id, "generation": 9})

    assert [finding.where.split()[0] for finding in scene.report().findings] == ["request"]


def test_two_requests_that_exchanged_their_contents_are_both_named(scene: Scene) -> None:
    columns = ("envelope", "arguments", "details")
    scene.attacker.swap(REQUESTS, columns, {"id": scene.done.id.encode()}, {"id": scene.waiting.id.encode()})

    assert {finding.where for finding in scene.report().findings} == {
        f"request {scene.done.id}", f"request {scene.waiting.id}",
    }


def test_one_fault_does_not_hide_another(scene: Scene) -> None:
    scene.attacker.set(REQUESTS, {"arguments": b"{}"}, id=scene.done.id.encode())
    scene.attacker.set(CONTROL, {"body": b"x"}, tenant=b"default")
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=2)
    scene.attacker.insert(EVENTS, scene.attacker.row(EVENTS, chain=scene.chain, seq=0) | {"chain": b"\xff"})

    codes = scene.codes()

    assert {"chain gap", "chain unreadable", "request invalid-signature", "control invalid-signature"} <= codes


# -- the control row -------------------------------------------------------------------------------------------------


def control_events(scene: Scene) -> list[dict[str, Any]]:
    rows = scene.attacker.rows(EVENTS, request_id=control_record("default").encode())
    return sorted(rows, key=lambda row: int(row["version"]))


def old_control(scene: Scene, version: int) -> dict[str, Any]:
    """Return the columns of an earlier control row, which every reader of the audit log knows."""
    body = json.loads(control_events(scene)[version - 1]["body"])["control"]
    return {"version": version, "body": body.encode()}


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_control_row_that_was_put_back_is_named(scene: Scene, version: int) -> None:
    scene.attacker.set(CONTROL, old_control(scene, version), tenant=b"default")

    assert scene.codes() == {"control store-rolled-back"}


def test_an_old_control_body_under_the_newest_version_is_named(scene: Scene) -> None:
    scene.attacker.set(CONTROL, {"body": old_control(scene, 1)["body"]}, tenant=b"default")

    assert scene.codes() == {"control invalid-signature"}


def test_an_edited_control_row_is_named(scene: Scene) -> None:
    body = scene.attacker.row(CONTROL, tenant=b"default")["body"].decode()
    forged = reworded(body, lambda fields: fields.update(pauses=[]))
    scene.attacker.set(CONTROL, {"body": forged.encode()}, tenant=b"default")

    assert scene.codes() == {"control invalid-signature"}


def test_a_deleted_control_row_is_named(scene: Scene) -> None:
    scene.attacker.delete(CONTROL, tenant=b"default")

    assert [(finding.where, finding.code) for finding in scene.report().findings] == [("control 'default'", "missing")]


def test_a_control_row_given_to_another_tenant_is_named(scene: Scene) -> None:
    scene.attacker.set(
        CONTROL, {"tenant": b"other", "tenant_digest": tenant_digest("other")}, tenant=b"default"
    )

    findings = {(finding.where, finding.code) for finding in scene.report().findings}

    assert findings == {("control 'other'", "invalid-signature"), ("control 'default'", "missing")}


def test_a_control_row_where_its_tenant_does_not_look_is_named(scene: Scene) -> None:
    scene.attacker.set(CONTROL, {"tenant_digest": bytes(32)}, tenant=b"default")

    assert scene.codes() == {"control store-rolled-back"}


def test_a_control_row_without_any_event_is_named(scene: Scene) -> None:
    scene.attacker.delete(EVENTS, request_id=control_record("default").encode())

    assert "control store-rolled-back" in scene.codes()


@pytest.mark.parametrize("version", [1, 2])
def test_a_deleted_control_event_is_named_at_the_control_row(scene: Scene, version: int) -> None:
    scene.attacker.delete(EVENTS, request_id=control_record("default").encode(), version=version)

    assert scene.codes() == {"chain gap", "control gap"}


@pytest.mark.parametrize("body", [b"", b"no JSON", b"{}", b'{"control":7}', b"[]", b"\xff"], ids=repr)
def test_a_control_event_with_another_body_is_named_and_does_not_stop_the_audit(scene: Scene, body: bytes) -> None:
    newest = control_events(scene)[-1]["version"]
    scene.attacker.set(EVENTS, {"body": body}, request_id=control_record("default").encode(), version=newest)
    scene.attacker.delete(REQUESTS, id=scene.done.id.encode())

    assert {"chain invalid-signature", "control invalid-signature", "request missing"} <= scene.codes()


def test_a_control_row_that_is_not_what_its_event_recorded_is_named(scene: Scene) -> None:
    """Only a holder of the key can make one; it is noticed all the same."""
    desk = scene.world.guard._desk
    fields, _ = opened(scene.attacker.row(CONTROL, tenant=b"default")["body"].decode())
    forged = desk.signer.seal("control", desk.signer.keyring.keys[0], canonical.canonicalize(fields | {"pauses": []}))
    scene.attacker.set(CONTROL, {"body": forged}, tenant=b"default")

    assert scene.codes() == {"control store-rolled-back"}


# -- keys ------------------------------------------------------------------------------------------------------------


def revoked(scene: Scene, state: Any) -> Keyring:
    old = scene.world.keyring.keys[0]
    gone = old.changed(state=state) if state == "compromised" else Key(
        old.id, None, activates_at=old.activates_at, state="destroyed"
    )
    return Keyring([gone, Key.generate(scene.world.store.now() - 1_000_000)])


@pytest.mark.parametrize("state", ["compromised", "destroyed"])
def test_what_a_revoked_key_signed_is_void_and_no_fault(scene: Scene, state: str) -> None:
    report = scene.report(revoked(scene, state))

    assert report.findings == ()
    assert {finding.code for finding in report.void} == {"key-revoked"}
    assert len(report.void) == report.events + report.requests + 2  # its control row, and that of all tenants


@pytest.mark.parametrize("table", [EVENTS, REQUESTS, CONTROL])
def test_what_a_compromised_key_signed_and_somebody_without_it_edited_is_a_fault(scene: Scene, table: str) -> None:
    if table == EVENTS:
        scene.attacker.set(EVENTS, {"body": b"{}"}, **scene.event(scene.done, 1))
    elif table == REQUESTS:
        scene.attacker.set(REQUESTS, {"arguments": b"{}"}, id=scene.done.id.encode())
    else:
        body = scene.attacker.row(CONTROL, tenant=b"default")["body"].decode()
        forged = reworded(body, lambda fields: fields.update(pauses=[]))
        scene.attacker.set(CONTROL, {"body": forged.encode()}, tenant=b"default")

    faults = scene.report(revoked(scene, "compromised")).findings

    assert {finding.code for finding in faults} == {"invalid-signature"}
    assert {finding.where.split()[0] for finding in faults} == {
        EVENTS: {"chain", "request"}, REQUESTS: {"request"}, CONTROL: {"control"},
    }[table]


def test_an_edited_event_cannot_hide_behind_a_compromised_key(scene: Scene) -> None:
    old = Key.generate(scene.world.store.now() - 2_000_000).changed(state="compromised")
    both = Keyring([*scene.world.keyring.keys, old])
    scene.attacker.set(EVENTS, {"body": b"{}", "key_id": old.id.encode()}, **scene.event(scene.done, 1))

    report = scene.report(both)

    assert {finding.code for finding in report.findings} == {"invalid-signature"}
    assert report.void == ()


def test_a_chain_with_a_gap_keeps_its_gap_under_a_revoked_key(scene: Scene) -> None:
    scene.attacker.delete(EVENTS, chain=scene.chain, seq=2)

    assert "gap" in {finding.code for finding in scene.report(revoked(scene, "destroyed")).findings}


def test_a_change_of_the_control_row_during_the_audit_is_no_fault(scene: Scene) -> None:
    """The rows are read first; what is written after that is in the events alone."""

    class Busy:
        def __init__(self, store: SQLStore) -> None:
            self._store = store

        def controls(self) -> Any:
            rows = self._store.controls()
            scene.world.guard.pause(by=replace(OPERATOR, tenant="new"))
            return rows

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    desk = replace(scene.world.guard._desk, store=Busy(scene.world.store))

    assert ledger.verify(desk).findings == ()
