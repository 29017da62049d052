"""A stored request with its events: verified whole, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard import audit
from hitl_guard.errors import HitlGuardError
from hitl_guard.lifecycle import record as records
from hitl_guard.rows import Draft, EventRow, Link, RequestRow
from tests.support import CAROL, World
from tests.threats.attacker import CONTROL, EVENTS, Attacker, findings


class Stored:
    """One approved request as its rows, which a test may change and have verified again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.desk = world.guard._desk
        _, request = world.grant(world.call("wire"), by=CAROL)
        loaded = world.store.load("default", request_id=request.id)
        assert loaded.request is not None
        self.row: RequestRow = loaded.request
        self.events: tuple[EventRow, ...] = loaded.events

    def verify(self) -> records.Record:
        return records.verify(
            self.row, self.events, signer=self.desk.signer, sealer=self.desk.sealer, now=self.world.store.now()
        )

    def sealed(self, **changed: Any) -> EventRow:
        """Return the last event sealed anew with the guard's own key, but with other content."""
        last = self.events[-1]
        facts = {name: getattr(last, name) for name in ("type", "tenant", "at", "body", "request_id", "version")}
        return self.desk.sealer(Draft(**(facts | changed)), Link(last.chain, last.seq, last.previous))


@pytest.fixture
def stored(world: World) -> Stored:
    return Stored(world)


def test_rows_that_are_what_was_signed_are_a_record(stored: Stored) -> None:
    record = stored.verify()

    assert (record.state, record.version, record.last) == ("pending", 1, stored.events[-1].mac)
    assert [vote.approver for vote in record.votes] == ["carol"]
    assert record.denial() is None


OTHER_REQUEST: dict[str, Callable[[Stored], dict[str, Any]]] = {
    "another tenant": lambda stored: {"tenant": "elsewhere"},
    "another request": lambda stored: {"request_id": "x" * 22},
    "another digest": lambda stored: {"body": audit.body(request="0" * 64)},
    "no digest": lambda stored: {"body": audit.body()},
}


@pytest.mark.parametrize("change", OTHER_REQUEST)
def test_a_sealed_event_counts_for_its_own_request_only(stored: Stored, change: str) -> None:
    stored.events = (stored.sealed(**OTHER_REQUEST[change](stored)),)

    with pytest.raises(HitlGuardError) as caught:
        stored.verify()
    assert (caught.value.code, caught.value.detail) == ("invalid-signature", "mismatch")


@pytest.mark.parametrize("version", [0, 2, None])
def test_an_event_out_of_its_place_means_that_one_is_missing(stored: Stored, version: int | None) -> None:
    stored.events = (stored.sealed(version=version),)

    with pytest.raises(HitlGuardError) as caught:
        stored.verify()
    assert (caught.value.code, caught.value.detail) == ("store-rolled-back", "gap")


def test_a_request_under_another_id_is_not_what_was_signed(stored: Stored) -> None:
    stored.row = replace(stored.row, id="x" * 22)

    with pytest.raises(HitlGuardError) as caught:
        stored.verify()
    assert (caught.value.code, caught.value.detail) == ("invalid-signature", "mismatch")


def test_a_claim_writes_the_control_row_anew_where_somebody_deleted_it(
    make_database: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    """A claim must be able to lock a control row, so that a pause can stop it; the audit finds what was deleted."""
    database = make_database("sqlite")
    world, attacker = World(open_store(database)), Attacker(database)
    call, request = world.grant()
    attacker.delete(EVENTS, type=b"control:changed")
    attacker.delete(CONTROL)

    node = world.another(store=open_store(database))
    assert node.run(call, request_id=request.id) == "done"

    assert {row["tenant"] for row in attacker.rows(CONTROL)} == {b"default", b""}
    assert "gap" in findings(node)
