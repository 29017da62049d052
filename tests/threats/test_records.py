"""Edited, exchanged, repeated and deleted records: somebody who has the database but no key.

What is *prevented* ends in a refusal; what is only *detected* says by whom: the writer, a process that remembers, or
`audit verify`.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.errors import HitlGuardError, StoreRolledBackError
from hitl_guard.keyring import Key, Keyring
from hitl_guard.models import ApprovalRequest, ToolCall
from hitl_guard.store.sql import SQLStore
from tests.databases import Database
from tests.support import ARGUMENTS, CAROL, OPERATOR, World
from tests.threats.attacker import (
    CONTROL,
    EVENTS,
    OPEN,
    REQUESTS,
    Attacker,
    Row,
    findings,
    flipped,
    opened,
    reworded,
)

MakeWorld = Callable[..., World]


# -- edited and exchanged ---------------------------------------------------------------------------------------------


def _other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, int):
        return value + 1000
    return flipped(value, len(value) - 1) if value else secrets.token_bytes(32)


# What the guard says when one column of a verified row is another: by request id, and by the call's identity. None: the
# column is no evidence, and the approval still counts for exactly what was signed.
REQUEST_COLUMNS: dict[str, str | None] = {
    "id": "invalid-approval", "tenant": "invalid-approval", "identity": "invalid-signature",
    "generation": "invalid-signature",
    "envelope": "invalid-signature", "arguments": "invalid-signature", "details": "invalid-signature",
    "listed_until": None,
}
EVENT_COLUMNS: dict[str, str] = {
    "type": "invalid-signature", "tenant": "invalid-signature", "at": "invalid-signature", "body": "invalid-signature",
    "request_id": "invalid-approval", "version": "store-rolled-back", "spend_key": "invalid-signature",
    "chain": "invalid-signature", "seq": "invalid-signature", "previous": "invalid-signature",
    "epoch": "invalid-signature", "key_id": "key-unknown", "mac": "invalid-signature",
}


def test_x07_an_edited_column_of_a_request_never_runs_what_was_not_approved(
    make_world: MakeWorld, database: Database, subtests: pytest.Subtests
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    row = attacker.row(REQUESTS, id=request.id.encode())

    for column, code in REQUEST_COLUMNS.items():
        if code is None:
            continue
        with (
            subtests.test(column=column),
            attacker.edited(REQUESTS, {column: _other(row[column])}, id=request.id.encode()),
        ):
            with world.refused(code):
                world.run(call, request_id=request.id)
            with world.refused(code):
                world.run(call, token=request.token)
            assert findings(world) != []

    assert row.keys() == REQUEST_COLUMNS.keys()
    assert findings(world) == []
    assert world.run(call) == "done"
    assert world.effects == [ARGUMENTS]


def test_x07_an_edited_column_of_a_pending_request_cannot_be_approved(
    make_world: MakeWorld, database: Database, subtests: pytest.Subtests
) -> None:
    world, attacker = make_world(), Attacker(database)
    request = world.guard.request(world.call())
    row = attacker.row(REQUESTS, id=request.id.encode())

    for column, code in REQUEST_COLUMNS.items():
        if code is None:
            continue
        with (
            subtests.test(column=column),
            attacker.edited(REQUESTS, {column: _other(row[column])}, id=request.id.encode()),
        ):
            with world.refused(code, kind="decision:refused"):
                world.approve(request)
            assert len(world.guard.pending()) == 0

    assert world.state(request) == "pending"
    assert [one.id for one in world.guard.pending()] == [request.id]


@pytest.mark.parametrize(
    ("column", "value"),
    [("listed_until", 0), ("listed_until", -1), ("listed_until", 2**63 - 1)],
)
def test_x07_a_column_that_only_orders_and_lists_approves_nothing_and_loses_nothing(
    make_world: MakeWorld, database: Database, column: str, value: int
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()

    attacker.set(REQUESTS, {column: value}, id=request.id.encode())

    assert world.run(call, request_id=request.id) == "done"
    with world.refused("consumed"):
        world.run(call, request_id=request.id)
    assert world.effects == [ARGUMENTS]


@pytest.mark.parametrize("value", [-1, 7, 2**53, 2**63 - 1])
def test_x07_an_edited_generation_ends_in_one_of_our_errors(
    make_world: MakeWorld, database: Database, value: int
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.guard.revoke(request.id, by=OPERATOR)

    attacker.set(REQUESTS, {"generation": value}, id=request.id.encode())

    for action in (lambda: world.guard.authorize(call), lambda: world.guard.request(call)):
        with world.refused("invalid-signature", "mismatch"):
            action()
    assert "invalid-signature" in findings(world)


def test_x07_an_edited_identity_hides_a_request_and_asks_a_person_anew(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    call, request = world.grant()

    attacker.set(REQUESTS, {"identity": secrets.token_bytes(32)}, id=request.id.encode())

    assert world.ask(call).id != request.id
    assert "invalid-signature" in findings(world)
    assert world.effects == []


def test_x07_an_edited_column_of_an_event_never_runs_anything(
    make_world: MakeWorld, database: Database, subtests: pytest.Subtests
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.grant()  # so that the event under attack is not the writer's last
    event = attacker.row(EVENTS, request_id=request.id.encode())

    for column, code in EVENT_COLUMNS.items():
        with (
            subtests.test(column=column),
            attacker.edited(EVENTS, {column: _other(event[column])}, request_id=request.id.encode()),
        ):
            for grant in ({"request_id": request.id}, {"token": request.token}):
                with world.refused(code):
                    world.run(call, **grant)
            assert findings(world) != []

    assert event.keys() == EVENT_COLUMNS.keys()
    assert findings(world) == []
    assert world.run(call) == "done"
    assert world.effects == [ARGUMENTS]


def test_x07_an_edited_column_of_a_claim_never_gives_the_grant_back(
    make_world: MakeWorld, database: Database, subtests: pytest.Subtests
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.run(call)
    world.grant()
    where = {"request_id": request.id.encode(), "type": b"grant:claimed"}
    event = attacker.row(EVENTS, **where)
    fresh = world.another(store=make_world().store)  # a process that remembers nothing

    for column in EVENT_COLUMNS:
        changes = {column: None if column == "spend_key" else _other(event[column])}
        with subtests.test(column=column), attacker.edited(EVENTS, changes, **where):
            for node in (world, fresh):
                ran = len(world.effects)
                for grant in ({"request_id": request.id}, {}):
                    with pytest.raises(HitlGuardError) as refusal:
                        node.run(call, **grant)
                    assert refusal.value.code in (
                        "invalid-signature", "key-unknown", "store-rolled-back", "invalid-approval",
                    )
                assert len(world.effects) == ran
            assert findings(world) != []

    with world.refused("consumed"):
        world.run(call, request_id=request.id)
    assert world.effects == [ARGUMENTS]


@pytest.mark.parametrize("value", ["text", 1.5, "", b"", 0, -1], ids=repr)
@pytest.mark.parametrize(("table", "columns"), [(REQUESTS, REQUEST_COLUMNS), (EVENTS, EVENT_COLUMNS)])
def test_x07_a_column_of_another_type_ends_in_one_of_our_errors(
    attacked: tuple[World, Attacker], table: str, columns: dict[str, Any], value: Any
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    world.grant()
    key = "id" if table == REQUESTS else "request_id"

    for column in columns:
        if column in ("generation", "listed_until") or (column, value) == ("seq", 0):  # 0 is the opening's place
            continue
        with attacker.edited(table, {column: value}, **{key: request.id.encode()}):
            with pytest.raises(HitlGuardError):
                world.run(call, request_id=request.id)
            assert findings(world) != []

    assert world.effects == []
    assert world.run(call) == "done"


SWAPS = [
    ("envelope",), ("arguments",), ("details",), ("arguments", "details"), ("envelope", "arguments", "details"),
    ("identity",), ("identity", "arguments", "details", "envelope"), ("id",),
]


@pytest.mark.parametrize("columns", SWAPS, ids="+".join)
def test_x07_requests_whose_parts_were_exchanged_are_refused(
    attacked: tuple[World, Attacker], columns: tuple[str, ...]
) -> None:
    world, attacker = attacked
    call, small = world.grant(world.call(arguments={"amount": 82}))
    other, large = world.grant(world.call(arguments={"amount": 820_000}, user="ben"))

    attacker.swap(REQUESTS, columns, {"id": small.id.encode()}, {"id": large.id.encode()})

    for one, grant in ((call, small), (call, large), (other, large), (other, small)):
        for named in ({"request_id": grant.id}, {"token": grant.token}):
            with world.refused("invalid-signature", "mismatch"):
                world.run(one, **named)
    assert set(findings(world)) == {"invalid-signature"}
    assert world.effects == []


EVENT_SWAPS = [
    ("request_id",), ("body",), ("mac",), ("body", "mac"), ("request_id", "version", "body"), ("chain", "seq"),
]


@pytest.mark.parametrize("columns", EVENT_SWAPS, ids="+".join)
def test_x07_events_whose_parts_were_exchanged_are_refused(
    attacked: tuple[World, Attacker], columns: tuple[str, ...]
) -> None:
    world, attacker = attacked
    call, small = world.grant(world.call(arguments={"amount": 82}))
    other, large = world.grant(world.call(arguments={"amount": 820_000}))
    world.grant()

    attacker.swap(EVENTS, columns, {"request_id": small.id.encode()}, {"request_id": large.id.encode()})

    for one, grant in ((call, small), (other, large)):
        for named in ({"request_id": grant.id}, {}):
            with world.refused("invalid-signature", "mismatch"):
                world.run(one, **named)
    assert "invalid-signature" in findings(world)
    assert world.effects == []


def test_x07_an_approval_copied_to_a_pending_request_is_refused(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    _, approved = world.grant()
    call = world.call(arguments={"amount": 820_000})
    request = world.guard.request(call)
    event = attacker.row(EVENTS, request_id=approved.id.encode())

    attacker.insert(EVENTS, event | {"request_id": request.id.encode(), "chain": b"forged", "seq": 0})

    for grant in ({"request_id": request.id}, {"token": request.token}, {}):
        with world.refused("invalid-signature", "mismatch"):
            world.run(call, **grant)
    with world.refused("invalid-signature", kind="decision:refused"):
        world.approve(request)
    assert {"invalid-signature", "no-opening"} <= set(findings(world))


@pytest.mark.parametrize("knows", ["nothing", "the key id"])
def test_x07_a_whole_approval_made_with_another_key_is_refused(
    make_world: MakeWorld, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
    database: Database, knows: str,
) -> None:
    world, attacker = make_world(), Attacker(database)
    world.grant()
    (real,) = world.keyring.keys
    name = real.id if knows == "the key id" else "k-mine"
    own = make_database("sqlite")
    forge = World(
        open_store(own), policy=world.policy,
        keyring=Keyring([Key(name, secrets.token_bytes(32), activates_at=real.activates_at)]),
    )
    call, request = forge.grant(world.call())
    theirs = Attacker(own)

    attacker.insert(REQUESTS, theirs.row(REQUESTS, id=request.id.encode()))
    attacker.insert(EVENTS, theirs.row(EVENTS, request_id=request.id.encode()) | {"chain": b"forged", "seq": 0})
    attacker.insert(OPEN, theirs.row(OPEN, request_id=request.id.encode()))

    code = "invalid-signature" if knows == "the key id" else "key-unknown"
    for grant in ({"request_id": request.id}, {"token": request.token}, {}):
        with world.refused(code):
            world.run(call, **grant)
    with world.refused(code, kind="decision:refused"):
        world.approve(request)
    (damaged,) = world.guard.pending().damaged
    assert (damaged.request_id, damaged.code, damaged.key_id) == (request.id, code, name)
    assert code in findings(world)


# -- the control row --------------------------------------------------------------------------------------------------


def test_x07_an_old_control_row_that_is_put_back_does_not_lift_a_pause(
    make_world: MakeWorld, database: Database
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    before = attacker.row(CONTROL, tenant=b"default")
    world.guard.pause(by=OPERATOR, tool="refund")
    fresh = world.another(store=make_world().store)

    with attacker.edited(CONTROL, {"version": before["version"], "body": before["body"]}, tenant=b"default"):
        for node in (world, fresh):
            with node.refused("store-rolled-back", "control"):
                node.run(call, request_id=request.id)
            with node.refused("store-rolled-back", "control"):
                node.guard.request(world.call())
        assert findings(world) == ["store-rolled-back"]

    with world.refused("paused", "tool"):
        world.run(call, request_id=request.id)


@pytest.mark.parametrize("version", ["old", "kept", "next"])
def test_x07_an_old_control_body_counts_under_no_version(attacked: tuple[World, Attacker], version: str) -> None:
    world, attacker = attacked
    call, request = world.grant()
    before = attacker.row(CONTROL, tenant=b"default")
    world.guard.pause(by=OPERATOR, tool="refund")
    number = {"old": before["version"], "kept": before["version"] + 1, "next": before["version"] + 2}[version]

    attacker.set(CONTROL, {"version": number, "body": before["body"]}, tenant=b"default")

    code = "store-rolled-back" if version == "old" else "invalid-signature"
    with world.refused(code):
        world.run(call, request_id=request.id)
    assert code in findings(world) or "store-rolled-back" in findings(world)


CONTROL_FIELDS: list[tuple[str, Callable[[Row], object], str]] = [
    ("pauses", lambda fields: fields.update(pauses=[]), "invalid-signature"),
    ("policy", lambda fields: fields.update(policy="0" * 64), "invalid-signature"),
    ("tenant", lambda fields: fields.update(tenant="other"), "invalid-signature"),
    ("version", lambda fields: fields.update(version=9), "invalid-signature"),
    ("epoch", lambda fields: fields.update(epoch=0), "invalid-signature"),
    ("issued_at", lambda fields: fields.update(issued_at=fields["issued_at"] + 1), "invalid-signature"),
    ("alg", lambda fields: fields.update(alg="none"), "invalid-signature"),
    ("kid", lambda fields: fields.update(kid="other"), "paused"),
    ("type", lambda fields: fields.update(type="hitl-request"), "invalid-signature"),
    ("v", lambda fields: fields.update(v=2), "invalid-signature"),
]


@pytest.mark.parametrize(
    ("change", "code"), [row[1:] for row in CONTROL_FIELDS], ids=[row[0] for row in CONTROL_FIELDS]
)
def test_x07_a_control_text_with_one_field_changed_lifts_no_pause(
    attacked: tuple[World, Attacker], change: Callable[[Row], object], code: str
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    world.guard.pause(by=OPERATOR)
    body = attacker.row(CONTROL, tenant=b"default")["body"].decode()
    assert set(opened(body)[0]) == {row[0] for row in CONTROL_FIELDS}

    attacker.set(CONTROL, {"body": reworded(body, change).encode()}, tenant=b"default")

    for grant in ({"request_id": request.id}, {}):
        with world.refused(code):
            world.run(call, **grant)
    assert ("store-rolled-back" if code == "paused" else code) in findings(world)


@pytest.mark.parametrize(
    ("column", "code"),
    [("tenant_digest", "store-rolled-back"), ("version", "invalid-signature"), ("body", "invalid-signature")],
)
def test_x07_an_edited_control_row_stops_everything(
    attacked: tuple[World, Attacker], column: str, code: str
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    row = attacker.row(CONTROL, tenant=b"default")

    with attacker.edited(CONTROL, {column: _other(row[column])}, tenant=b"default"):
        for grant in ({"request_id": request.id}, {}):
            with world.refused(code):
                world.run(call, **grant)
        assert findings(world) != []

    assert world.run(call) == "done"


def test_x07_the_tenant_column_of_the_control_row_says_nothing_and_is_found(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    call, _ = world.grant()
    world.guard.pause(by=OPERATOR)

    attacker.set(CONTROL, {"tenant": b"other"}, tenant=b"default")

    with world.refused("paused", "all"):
        world.run(call)
    assert "invalid-signature" in findings(world)


def test_x07_another_tenants_control_row_is_refused(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    world.guard.request(world.call(tenant="free"))
    call, request = world.grant()
    world.guard.pause(by=OPERATOR)
    free = attacker.row(CONTROL, tenant=b"free")

    attacker.set(CONTROL, {"body": free["body"], "version": free["version"] + 1}, tenant=b"default")

    with world.refused("invalid-signature", "mismatch"):
        world.run(call, request_id=request.id)
    assert "invalid-signature" in findings(world)


def test_x07_a_deleted_control_row_does_not_lift_a_pause(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.guard.pause(by=OPERATOR)
    fresh = world.another(store=make_world().store)

    attacker.delete(CONTROL)

    for node in (world, fresh):
        with node.refused("store-rolled-back", "control"):
            node.run(call, request_id=request.id)
    assert "missing" in findings(world)


def test_x07_a_control_row_that_is_deleted_with_its_events_is_missed_by_who_saw_it(
    attacked: tuple[World, Attacker]
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    world.guard.pause(by=OPERATOR)
    with world.refused("paused"):
        world.run(call)

    attacker.delete(CONTROL)
    for event in attacker.rows(EVENTS, type=b"control:changed"):
        attacker.delete(EVENTS, chain=event["chain"], seq=event["seq"])

    with world.refused("store-rolled-back", "memory"):
        world.run(call, request_id=request.id)
    assert "gap" in findings(world)


# -- repeated ---------------------------------------------------------------------------------------------------------


def test_x07_a_copy_of_an_approval_behind_its_claim_does_not_approve_again(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    call, request = world.grant()
    world.run(call)
    where = {"request_id": request.id.encode()}
    approved = attacker.row(EVENTS, **where, type=b"request:approved")

    attacker.insert(EVENTS, approved | {"version": 4, "chain": b"forged", "seq": 0})

    for grant in ({"request_id": request.id}, {}):
        with world.refused("invalid-signature", "mismatch"):
            world.run(call, **grant)
    assert "invalid-signature" in findings(world)
    assert world.effects == [ARGUMENTS]


def test_x07_a_list_line_that_is_put_back_does_not_approve_again(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    line = attacker.row(OPEN, request_id=request.id.encode())
    world.run(call)

    attacker.insert(OPEN, line)

    with world.refused("consumed", "succeeded"):
        world.run(call, request_id=request.id)
    assert len(world.guard.pending(states=("pending", "approved"))) == 0
    assert world.effects == [ARGUMENTS]


def test_x07_a_request_on_another_tenants_list_is_not_shown_there(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    mine = world.guard.request(world.call())
    theirs = world.guard.request(world.call(tenant="other", user="secret-user"))
    other = attacker.row(OPEN, request_id=theirs.id.encode())
    line = attacker.row(OPEN, request_id=mine.id.encode())

    attacker.set(OPEN, {"tenant": line["tenant"], "run": line["run"]}, request_id=theirs.id.encode())

    for page in (world.guard.pending(), world.guard.pending(run_id="run-1")):
        assert [one.id for one in page] == [mine.id]
        assert page.damaged == ()
    assert other["tenant"] != line["tenant"]


def test_x07_a_request_on_another_runs_list_is_not_shown_there(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    mine = world.guard.request(world.call())
    theirs = world.guard.request(world.call(run_id="run-2"))
    line = attacker.row(OPEN, request_id=mine.id.encode())

    attacker.set(OPEN, {"run": line["run"]}, request_id=theirs.id.encode())

    assert [one.id for one in world.guard.pending(run_id="run-1")] == [mine.id]


def test_x07_an_edited_list_line_changes_nothing_but_the_list(
    make_world: MakeWorld, database: Database, subtests: pytest.Subtests
) -> None:
    world, attacker = make_world(), Attacker(database)

    for column in ("listed_until", "request_id", "tenant", "run"):
        call, request = world.grant()
        line = attacker.row(OPEN, request_id=request.id.encode())
        with subtests.test(column=column):
            attacker.set(OPEN, {column: _other(line[column])}, request_id=request.id.encode())
            ran = len(world.effects)

            assert world.run(call, request_id=request.id) == "done"
            with world.refused("consumed"):
                world.run(call, request_id=request.id)
            assert len(world.effects) == ran + 1
            assert world.guard.sweep() == 0


def test_x07_a_request_that_is_taken_off_the_list_can_still_be_decided_and_run(
    attacked: tuple[World, Attacker]
) -> None:
    world, attacker = attacked
    call = world.call()
    request = world.guard.request(call)

    attacker.delete(OPEN, request_id=request.id.encode())
    world.approve(request)

    assert world.run(call) == "done"


# -- deleted ----------------------------------------------------------------------------------------------------------


def test_x07_a_vote_deleted_from_the_middle_refuses_at_once(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call = world.call("wire")
    request = world.guard.request(call)
    world.approve(request)
    world.approve(request, by=CAROL)

    attacker.delete(EVENTS, request_id=request.id.encode(), version=1)

    for grant in ({"request_id": request.id}, {"token": request.token}, {}):
        with world.refused("store-rolled-back", "gap"):
            world.run(call, **grant)
    assert {"gap", "store-rolled-back"} <= set(findings(world))


def test_x07_a_deleted_approval_leaves_a_pending_request_and_a_gap(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.grant()

    attacker.delete(EVENTS, request_id=request.id.encode())

    with world.refused("invalid-approval", "pending"):
        world.run(call, request_id=request.id)
    assert findings(world) == ["gap"]


@pytest.mark.parametrize("binding", ["call", "retry"])
def test_x07_a_deleted_claim_is_missed_by_the_process_that_made_it(
    make_world: MakeWorld, database: Database, binding: str
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant(world.call(call_id=None) if binding == "retry" else None)
    world.run(call)
    world.grant()  # the writer's own head is still there

    attacker.delete(EVENTS, request_id=request.id.encode(), type=b"call:succeeded")
    attacker.delete(EVENTS, request_id=request.id.encode(), type=b"grant:claimed")

    for grant in ({"request_id": request.id}, {"token": request.token}, {}):
        with world.refused("store-rolled-back", "memory"):
            world.run(call, **grant)
    assert findings(world) == ["gap"]
    assert world.effects == [ARGUMENTS]


def test_x07_a_deleted_claim_that_no_process_remembers_is_found_by_audit_verify(
    make_world: MakeWorld, database: Database
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.run(call)
    world.grant()
    fresh = world.another(store=make_world().store)
    attacker.delete(EVENTS, request_id=request.id.encode(), type=b"call:succeeded")
    attacker.delete(EVENTS, request_id=request.id.encode(), type=b"grant:claimed")

    before = findings(fresh)
    with suppress(HitlGuardError):  # without a witness nothing tells a new process
        fresh.run(call)

    assert (before, findings(fresh)) == (["gap"], ["gap"])


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_x07_a_deleted_outcome_does_not_give_the_grant_back(
    make_world: MakeWorld, database: Database, outcome: str
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    permit = world.guard.authorize(call)
    world.guard.settle(permit, outcome)
    world.grant()

    attacker.delete(EVENTS, request_id=request.id.encode(), type=f"call:{outcome}".encode())

    for grant in ({"request_id": request.id}, {}):
        with world.refused("consumed", "executing"):
            world.run(call, **grant)
    assert findings(world) == ["gap"]


def test_x07_a_whole_spent_request_that_is_deleted_is_missed_by_the_process_that_ran_it(
    make_world: MakeWorld, database: Database
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.run(call)
    world.grant()

    attacker.delete(EVENTS, request_id=request.id.encode())
    attacker.delete(REQUESTS, id=request.id.encode())

    with world.refused("store-rolled-back", "memory"):
        world.run(call)
    assert findings(world) == ["gap"]


def test_x07_a_deleted_request_is_unknown_and_its_events_tell(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()

    attacker.delete(REQUESTS, id=request.id.encode())

    with world.refused("invalid-approval", "unknown"):
        world.run(call, request_id=request.id)
    assert findings(world) == ["missing"]


@pytest.mark.parametrize("ended", ["request:denied", "request:revoked"])
def test_x07_a_deleted_ending_is_found_by_audit_verify(attacked: tuple[World, Attacker], ended: str) -> None:
    world, attacker = attacked
    request = world.guard.request(world.call())
    if ended == "request:denied":
        world.deny(request)
    else:
        world.guard.revoke(request.id, by=OPERATOR)
    world.grant()

    attacker.delete(EVENTS, request_id=request.id.encode(), type=ended.encode())

    assert findings(world) == ["gap"]


def test_x07_a_deleted_refusal_is_found_by_audit_verify(attacked: tuple[World, Attacker]) -> None:
    world, attacker = attacked
    with world.refused("invalid-approval"):
        world.run(world.call(), request_id="none")
    world.grant()

    attacker.delete(EVENTS, type=b"call:refused")

    assert findings(world) == ["gap"]


SEEN_BY: dict[str, Callable[[World, ToolCall, ApprovalRequest], object]] = {
    "a claim": lambda world, call, request: world.run(call),
    "a decision": lambda world, call, request: world.guard.revoke(request.id, by=OPERATOR),
    "a request": lambda world, call, request: world.guard.request(world.call(tenant="another")),
    "a refusal": lambda world, call, request: world.run(call, request_id="none"),
    "a pause": lambda world, call, request: world.guard.pause(by=OPERATOR),
}


@pytest.mark.parametrize("act", SEEN_BY.values(), ids=SEEN_BY)
def test_x07_a_writer_whose_last_event_was_deleted_stops_at_its_next_insert(
    attacked: tuple[World, Attacker], act: Callable[[World, ToolCall, ApprovalRequest], object]
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    world.deny(world.guard.request(world.call()))
    last = max(attacker.rows(EVENTS), key=lambda event: int(event["seq"]))

    attacker.delete(EVENTS, chain=last["chain"], seq=last["seq"])
    with pytest.raises(StoreRolledBackError) as stop:
        act(world, call, request)

    assert stop.value.detail == "chain"
    for again in SEEN_BY.values():
        with pytest.raises(StoreRolledBackError):
            again(world, call, request)
    assert world.effects == []


@pytest.mark.parametrize("what", ["edited", "followed"])
def test_x07_a_writer_whose_last_event_was_edited_or_followed_by_another_stops(
    make_world: MakeWorld, database: Database, what: str
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, _ = world.grant()
    last = max(attacker.rows(EVENTS), key=lambda event: int(event["seq"]))

    if what == "edited":
        attacker.set(EVENTS, {"mac": _other(last["mac"])}, chain=last["chain"], seq=last["seq"])
    else:
        attacker.insert(EVENTS, last | {"request_id": None, "version": None, "seq": last["seq"] + 1})

    # An edited approval is seen when it is read; a place that was taken, when the writer needs it.
    with pytest.raises(StoreRolledBackError) as stop:
        world.run(call)
    assert stop.value.detail == "chain"
    assert "invalid-signature" in findings(world)
    assert world.effects == []


def test_x07_emptied_caches_approve_nothing_and_lose_nothing(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()

    database.execute("DELETE FROM hitl_guard_chains")
    database.execute("DELETE FROM hitl_guard_open_requests")

    fresh = world.another(store=make_world().store)
    assert fresh.run(call, request_id=request.id) == "done"
    for node in (world, fresh):
        with node.refused("consumed"):
            node.run(call, request_id=request.id)
    assert attacker.rows(OPEN) == []
    assert findings(world) == []
    assert world.effects == [ARGUMENTS]


def test_x07_the_tail_of_a_chain_that_another_recorded_cannot_be_cut(make_world: MakeWorld, database: Database) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    world.run(call)
    fresh = world.another(store=make_world().store)
    fresh.grant(fresh.call(call_id="later"))  # opens a chain, which records where the others stand
    (chain,) = {event["chain"] for event in attacker.rows(EVENTS, request_id=request.id.encode())}

    for event in attacker.rows(EVENTS, chain=chain):
        if event["type"] in (b"grant:claimed", b"call:succeeded"):
            attacker.delete(EVENTS, chain=chain, seq=event["seq"])

    assert findings(fresh) == ["cut"]


def test_x07_a_database_file_that_is_put_back_is_noticed_by_every_process_that_had_it_open(
    attacked: tuple[World, Attacker]
) -> None:
    world, attacker = attacked
    call, request = world.grant()
    path = Path(attacker.database.url.removeprefix("sqlite:///"))
    kept = path.with_suffix(".kept")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(kept),))
    world.run(call)

    os.replace(kept, path)

    for action in (lambda: world.run(call, request_id=request.id), lambda: world.guard.request(world.call())):
        with pytest.raises(StoreRolledBackError) as stop:
            action()
        assert stop.value.detail == "file"
    assert world.effects == [ARGUMENTS]


def test_x07_rows_put_back_to_before_the_claim_are_missed_by_the_process_that_claimed(
    make_world: MakeWorld, database: Database
) -> None:
    world, attacker = make_world(), Attacker(database)
    call, request = world.grant()
    kept = {(event["chain"], event["seq"]) for event in attacker.rows(EVENTS)}
    world.run(call)

    for event in attacker.rows(EVENTS):
        if (event["chain"], event["seq"]) not in kept:
            attacker.delete(EVENTS, chain=event["chain"], seq=event["seq"])

    with pytest.raises(StoreRolledBackError) as stop:
        world.run(call, request_id=request.id)
    assert stop.value.detail == "memory"
    with pytest.raises(StoreRolledBackError):
        world.grant()
    assert world.effects == [ARGUMENTS]
