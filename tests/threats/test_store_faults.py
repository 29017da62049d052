"""The database fails at the worst moment: nothing runs unclaimed, and nothing that was claimed runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from hitl_guard.errors import AuditUnavailableError, ConsumedError, StoreUnavailableError, UnavailableError
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.models import ApprovalRequest, ToolCall
from hitl_guard.store.sql import SQLStore
from tests.databases import Database
from tests.support import OPERATOR, Settings, World, ring, until
from tests.threats.faults import AFTER, BEFORE, COMMIT_AFTER, FULL, WHEN, Faults, install
from tests.threats.gates import told
from tests.threats.processes import Processes, facts_of, started

processes = pytest.fixture(scope="module")(started)


FAULTS = pytest.mark.parametrize(
    ("when", "stays_down"),
    [*((when, False) for when in WHEN), *((when, True) for when in (BEFORE, AFTER, COMMIT_AFTER))],
)
KEYS = ring()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return install(monkeypatch)


@pytest.fixture
def world(faults: Faults, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A guard on connections that may fail. A call that was claimed reads as in doubt a millisecond later.

    So short a time to run would also keep tools from starting; that is tested where permits are.
    """
    assert not faults.down
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)
    world = World(SQLStore(database.url), keyring=KEYS, settings=Settings(run_within=1))
    yield world
    world.store.close()


def committed(database: Database, when: str) -> bool:
    """Whether what failed is in the database: PostgreSQL commits a single statement by itself."""
    return when == COMMIT_AFTER or (when == AFTER and database.kind == "postgresql")


def events(world: World, request: ApprovalRequest) -> list[str]:
    return [event.type for event in world.store.load(request.tenant, request_id=request.id).events]


def whole(world: World) -> None:
    """Demand that the audit finds nothing half-written."""
    assert verify(world.guard._desk).findings == ()


def in_doubt(world: World, call: ToolCall, request: ApprovalRequest) -> None:
    """Demand that a claimed call whose outcome nobody knows never runs, and that only an operator ends it."""
    until(world.store, world.store.now() + 2)
    ran = len(world.effects)
    with world.refused("in-doubt"):
        world.run(call, request_id=request.id)
    assert told(lambda: world.run(call)) == "in-doubt"
    assert request.id in [found.id for found in world.guard.pending(states=("in_doubt",))]
    world.guard.resolve(request.id, "failed", by=OPERATOR, reason="The books say that nothing happened.")
    with world.refused("consumed", "failed"):
        world.run(call, request_id=request.id)
    assert told(lambda: world.run(call)) == "consumed"
    assert len(world.effects) == ran


# -- AT-60, AT-61: reading and claiming


@pytest.mark.parametrize(("when", "stays_down"), [(BEFORE, False), (BEFORE, True), (AFTER, False), (FULL, False)])
def test_at60_a_grant_that_cannot_be_read_is_not_run_and_not_spent(
    world: World, faults: Faults, when: str, stays_down: bool
) -> None:
    call, request = world.grant()
    faults.arm("read", when, stays_down=stays_down)

    with pytest.raises(StoreUnavailableError) as down:
        world.run(call, request_id=request.id)

    assert (down.value.code, faults.happened, world.effects) == ("store-unavailable", 1, [])
    faults.mend()
    assert events(world, request) == ["request:approved"]
    assert world.run(call, request_id=request.id) == "done"
    assert len(world.effects) == 1
    whole(world)


@FAULTS
def test_at60_at61_a_claim_that_fails_is_not_made_or_is_never_made_again(
    world: World, database: Database, faults: Faults, when: str, stays_down: bool
) -> None:
    call, request = world.grant()
    faults.arm("claim", when, stays_down=stays_down)

    answer = told(lambda: world.run(call, request_id=request.id))

    assert faults.happened == 1
    faults.mend()
    if not committed(database, when):
        assert answer.startswith("store-unavailable")
        assert world.effects == []
        assert events(world, request) == ["request:approved"]
        assert world.run(call, request_id=request.id) == "done"
    elif stays_down:
        assert answer.startswith("store-unavailable commit-unknown")
        assert world.effects == []
        assert events(world, request) == ["request:approved", "grant:claimed"]
        in_doubt(world, call, request)
        whole(world)
        return
    else:  # the reply was lost, and reading again on another connection told that the claim is ours
        assert answer == "ok"
    assert len(world.effects) == 1
    with world.refused("consumed", "succeeded"):
        world.run(call, request_id=request.id)
    whole(world)


@FAULTS
def test_at60_an_automatic_approval_that_fails_is_not_made_or_is_never_made_again(
    world: World, faults: Faults, when: str, stays_down: bool
) -> None:
    world.grant()
    call = world.call("ping")
    faults.arm("claim", when, stays_down=stays_down)

    answer = told(lambda: world.run(call))

    assert faults.happened == 1
    faults.mend()
    made = when == COMMIT_AFTER  # on PostgreSQL, too: request, approval and claim are one transaction
    assert answer == "ok" if made and not stays_down else answer.startswith("store-unavailable")
    assert len(world.effects) == (made and not stays_down)
    until(world.store, world.store.now() + 2)
    assert told(lambda: world.run(call)) == ("consumed" if answer == "ok" else "in-doubt" if made else "ok")
    assert len(world.effects) == (not made or not stays_down)
    whole(world)


def test_at61_a_claim_whose_fate_is_known_too_late_is_not_granted(
    world: World, faults: Faults
) -> None:
    """The reply to COMMIT is lost, and the execution window ends before the database can be asked what became of it."""
    call, request = world.grant()
    assert request.execute_by is not None
    connections = world.store._connections
    read = connections.read
    late: list[int] = []

    def asked_late(work: Callable[[Any], Any]) -> Any:
        found = read(work)
        if isinstance(found, tuple) and faults.happened:
            late.append(found[1])
            return found[0], request.execute_by
        return found

    connections.read = asked_late  # type: ignore[method-assign]
    faults.arm("claim", COMMIT_AFTER)
    answer = told(lambda: world.run(call, request_id=request.id))
    del connections.read

    assert answer.startswith("store-unavailable commit-unknown")
    assert (len(late), world.effects) == (1, [])
    in_doubt(world, call, request)


# -- AT-60: the audit


@FAULTS
def test_at60_a_refusal_that_cannot_be_audited_is_a_refusal_still(
    world: World, database: Database, faults: Faults, when: str, stays_down: bool
) -> None:
    call, request = world.grant()
    other = world.call(arguments={"order": "A-17", "amount": 820}, call_id=call.call_id)
    faults.arm("audit", when, stays_down=stays_down)

    answer = told(lambda: world.run(other, request_id=request.id))

    assert faults.happened == 1
    faults.mend()
    written = committed(database, when)
    # A lost reply is looked up: then the refusal is on record, and told as what it is.
    known = written and not stays_down
    assert answer.split()[0] == ("args-mismatch" if known else "audit-unavailable")
    refused = [event["code"] for event in world.audited() if event["call_id"] == call.call_id]
    assert refused == ["args-mismatch"] * written
    assert world.effects == []
    assert events(world, request) == ["request:approved"]
    assert world.run(call, request_id=request.id) == "done"
    whole(world)


# -- AT-60: the receipt


@FAULTS
def test_at60_a_receipt_that_cannot_be_written_leaves_the_call_in_doubt_and_the_result_with_the_caller(
    world: World, database: Database, faults: Faults, when: str, stays_down: bool
) -> None:
    call, request = world.grant()
    faults.arm("settle", when, stays_down=stays_down)
    written = committed(database, when)

    if written and not stays_down:
        assert world.run(call, request_id=request.id) == "done"
    else:
        with pytest.raises(AuditUnavailableError) as lost:
            world.run(call, request_id=request.id)
        assert (lost.value.code, lost.value.detail, lost.value.result) == ("audit-unavailable", "receipt", "done")

    assert (faults.happened, len(world.effects)) == (1, 1)
    faults.mend()
    if written:
        with world.refused("consumed", "succeeded"):
            world.run(call, request_id=request.id)
    else:
        in_doubt(world, call, request)
    assert len(world.effects) == 1
    whole(world)


def test_at60_what_the_tool_raised_matters_more_than_its_receipt(world: World, faults: Faults) -> None:
    call, request = world.grant()

    def broken(**_: Any) -> None:
        faults.down = True
        raise ValueError("out of paper")

    with pytest.raises(ValueError, match="out of paper") as raised:
        world.guard.run(call, broken, request_id=request.id)

    assert raised.value.__notes__ == [
        "hitl_guard: the outcome was not recorded (store-unavailable); look at the request's state."
    ]
    faults.mend()
    in_doubt(world, call, request)


def test_at60_a_call_that_was_resolved_while_it_ran_reports_late_and_keeps_its_result(world: World) -> None:
    call, request = world.grant()

    def slow(**_: Any) -> str:
        world.guard.resolve(request.id, "failed", by=OPERATOR, reason="The worker seems dead.", force=True)
        return "paid"

    with pytest.raises(AuditUnavailableError) as late:
        world.guard.run(call, slow, request_id=request.id)

    assert (late.value.detail, late.value.result) == ("late", "paid")
    assert world.state(request) == "failed"
    with world.refused("consumed", "failed"):
        world.run(call, request_id=request.id)


# -- AT-60: asking and deciding


@FAULTS
def test_at60_a_question_that_fails_is_not_asked_or_is_joined_by_the_next_try(
    world: World, faults: Faults, when: str, stays_down: bool
) -> None:
    world.grant()
    call = world.call(run_id=f"run-{world.calls}")
    faults.arm("ask", when, stays_down=stays_down)

    answer = told(lambda: world.run(call))

    assert faults.happened == 1
    faults.mend()
    assert answer == "asked" or answer.startswith("store-unavailable")
    request = world.ask(call)
    assert [found.id for found in world.guard.pending(run_id=call.run_id)] == [request.id]
    world.approve(request)
    assert world.run(call) == "done"
    whole(world)


@FAULTS
def test_at60_a_decision_that_fails_is_not_made_or_is_made_once(
    world: World, database: Database, faults: Faults, when: str, stays_down: bool
) -> None:
    call = world.call()
    request = world.guard.request(call)
    faults.arm("decide", when, stays_down=stays_down)

    answer = told(lambda: world.approve(request))

    assert faults.happened == 1
    faults.mend()
    made = committed(database, when)
    assert answer == "ok" if made and not stays_down else answer.startswith("store-unavailable")
    assert events(world, request) == ["request:approved"] * made
    assert world.approve(request).state == "approved"
    assert events(world, request) == ["request:approved"]
    assert world.run(call, request_id=request.id) == "done"
    whole(world)


# -- AT-60: the whole database


def test_at60_nothing_runs_while_the_database_is_down_and_everything_after(world: World, faults: Faults) -> None:
    granted, request = world.grant()
    pending = world.guard.request(world.call())
    faults.down = True

    for action in (
        lambda: world.run(granted, request_id=request.id), lambda: world.run(granted),
        lambda: world.run(world.call("ping")), lambda: world.run(world.call()), lambda: world.approve(pending),
        lambda: world.guard.revoke(request.id, by=OPERATOR), lambda: world.guard.pause(by=OPERATOR),
        lambda: world.guard.get(request.id), world.guard.pending, world.guard.sweep, world.another,
    ):
        with pytest.raises(UnavailableError) as down:
            action()
        assert down.value.code == "store-unavailable"

    assert world.effects == []
    faults.mend()
    assert (world.state(request), world.state(pending)) == ("approved", "pending")
    assert world.run(granted) == "done"
    whole(world)


def test_at60_a_lock_that_somebody_holds_is_waited_for_within_a_limit(database: Database) -> None:
    world = World(SQLStore(database.url, timeout_ms=1_000), keyring=KEYS)
    call, request = world.grant(world.call(call_id="waits-for-a-lock"))
    with database.connect() as other, other.begin():
        if database.kind == "postgresql":
            other.exec_driver_sql("LOCK TABLE hitl_guard_control IN ACCESS EXCLUSIVE MODE")
        elif database.kind == "mariadb":
            other.exec_driver_sql("SELECT * FROM hitl_guard_control FOR UPDATE")

        with pytest.raises(StoreUnavailableError) as waited:
            world.run(call, request_id=request.id)

        assert (waited.value.detail, world.effects) == ("timeout", [])

    assert events(world, request) == ["request:approved"]
    assert world.run(call, request_id=request.id) == "done"
    world.store.close()


class LosingStore:
    """A real store whose first writes lose to a deadlock: nothing is written, and nobody else wrote either."""

    def __init__(self, store: Any, losses: int) -> None:
        self._store, self._losses = store, losses

    def write(self, *args: Any) -> Any:
        self._losses -= 1
        return None if self._losses >= 0 else self._store.write(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def losing(world: World, losses: int) -> None:
    store: Any = LosingStore(world.store, losses)
    world.guard._desk.store = store


def test_at60_a_refusal_or_a_receipt_that_loses_to_a_deadlock_is_written_all_the_same(world: World) -> None:
    call, request = world.grant()
    foreign = world.call(call_id=call.call_id, run_id="another-run")
    losing(world, 3)

    with world.refused("scope-mismatch"):
        world.run(foreign, request_id=request.id)
    permit = world.guard.authorize(call)
    losing(world, 3)
    world.guard.settle(permit, "succeeded")

    assert events(world, request) == ["request:approved", "grant:claimed", "call:succeeded"]
    with pytest.raises(ConsumedError) as again:
        world.guard.settle(permit, "failed")
    assert again.value.detail == "settled"


def test_at60_what_loses_every_time_is_unavailable_and_not_forgotten(world: World) -> None:
    call, request = world.grant()
    permit = world.guard.authorize(call)
    losing(world, 10_000)

    with pytest.raises(UnavailableError) as lost:
        world.guard.settle(permit, "succeeded")
    with pytest.raises(AuditUnavailableError) as unaudited:
        world.run(call, request_id=request.id)

    assert (lost.value.code, lost.value.detail) == ("store-unavailable", "busy")
    assert unaudited.value.code == "audit-unavailable"
    losing(world, 0)
    in_doubt(world, call, request)


# -- AT-62: the process dies


@pytest.mark.parametrize(
    ("point", "effects"), [("read", 0), ("claimed", 0), ("started", 0), ("done", 1), ("settling", 1)]
)
def test_at62_a_worker_killed_at_any_point_leaves_at_most_one_effect_and_never_a_second_run(
    world: World, database: Database, processes: Processes, point: str, effects: int
) -> None:
    call, request = world.grant()
    child = processes.start("die", world, database.url, call=facts_of(call), request=request.id, point=point)
    heard = [child.hear() for _ in range(effects + 1)]

    child.kill()

    assert heard == ["effect"] * effects + [point]
    if point == "read":
        assert events(world, request) == ["request:approved"]
        assert world.run(call, request_id=request.id) == "done"
        assert len(world.effects) == 1
    else:
        assert events(world, request) == ["request:approved", "grant:claimed"]
        in_doubt(world, call, request)
        assert world.effects == []
    whole(world)


def test_at62_a_forked_child_shares_no_connection_and_no_grant_with_its_parent(
    world: World, database: Database, processes: Processes
) -> None:
    calls = [world.grant()[0] for _ in range(4)]
    child = processes.start("fork", world, database.url, calls=[facts_of(call) for call in calls])

    heard = child.hear()

    assert (heard["before"], heard["parent"][0], heard["child"][0]) == ("ok", "ok", "ok")
    assert sorted([heard["parent"][1], heard["child"][1]]) == ["consumed", "ok"]
    assert heard["findings"] == []
    assert [told(partial(world.run, call)) for call in calls] == ["consumed"] * 4
