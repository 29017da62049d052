"""Races, provoked: with barriers where both sides have read, with locks held open, and with load."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text, update

from hitl_guard.rows import EVERYWHERE, ControlRow, Draft, EventRow, Link, RequestRow
from hitl_guard.store import schema
from hitl_guard.store.base import AddRequest, Append, SetControl, Step, Written
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    RUN,
    added,
    approved,
    claim,
    event,
    events_of,
    in_processes,
    request,
    seal,
    set_control,
    wait_until_blocked,
)
from tests.databases import Database

TRANSITIONS = [
    "request:approved", "request:denied", "request:expired", "request:revoked", "request:superseded", "grant:claimed",
]


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


@pytest.fixture
def threads() -> Iterable[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def _won(futures: Iterable[Future[Written | None]]) -> list[Written]:
    return [written for written in (future.result(timeout=60) for future in futures) if written is not None]


def _occupy(blocker: Connection, row: RequestRow, version: int, spend_key: bytes | None = None) -> None:
    """Take a request's version, or a spend key, in a transaction that stays open."""
    blocker.begin()
    blocker.execute(
        text(
            "INSERT INTO hitl_guard_events (chain, seq, request_id, version, type, tenant, at, body, spend_key, "
            "previous, epoch, key_id, mac) VALUES (:x, 0, :id, :version, :x, :x, 0, :x, :spend_key, :x, 1, :x, :x)"
        ),
        {
            "x": b"x", "id": row.id.encode() if spend_key is None else None,
            "version": version if spend_key is None else None, "spend_key": spend_key,
        },
    )


class TestTheClock:
    @pytest.mark.parametrize("what", ["version", "spend key"])
    @pytest.mark.parametrize("among", [False, True], ids=["alone", "among others"])
    def test_a_claim_that_waited_beyond_its_end_is_not_granted(
        self, database: Database, store: SQLStore, threads: ThreadPoolExecutor, what: str, among: bool
    ) -> None:
        row, first = approved(store)
        step = claim(row, first)
        with database.connect() as blocker:
            _occupy(blocker, row, 2, step.draft.spend_key if what == "spend key" else None)
            end = store.now() + 700
            steps: list[Step] = [claim(row, first, before=end)]
            if among:
                steps.append(AddRequest(request(), RUN, 9))
            waiting = threads.submit(store.write, steps, seal)
            wait_until_blocked(database, waiting)
            while store.now() < end:
                assert database.kind == "sqlite" or not waiting.done()
            blocker.rollback()

        assert waiting.result(timeout=60) is None
        assert events_of(store, row) == (first,)
        assert not store.load("tenant", spend_key=step.draft.spend_key).spent
        assert store.write([claim(row, first)], seal) is not None

    def test_a_claim_that_waited_within_its_time_is_granted(
        self, database: Database, store: SQLStore, threads: ThreadPoolExecutor
    ) -> None:
        row, first = approved(store)
        with database.connect() as blocker:
            _occupy(blocker, row, 2)
            waiting = threads.submit(store.write, [claim(row, first, before=store.now() + HOUR)], seal)
            wait_until_blocked(database, waiting)
            released = store.now()
            blocker.rollback()

        written = waiting.result(timeout=60)
        assert written is not None
        assert written.now >= released
        assert events_of(store, row) == (first, *written.events)

    def test_a_claim_that_waited_for_another_that_was_committed_loses(
        self, database: Database, store: SQLStore, threads: ThreadPoolExecutor
    ) -> None:
        row, first = approved(store)
        with database.connect() as blocker:
            _occupy(blocker, row, 2)
            waiting = threads.submit(store.write, [claim(row, first, before=store.now() + HOUR)], seal)
            wait_until_blocked(database, waiting)
            blocker.commit()

        assert waiting.result(timeout=60) is None
        assert len(events_of(store, row)) == 2


def _both_rows(store: SQLStore) -> dict[str, Any]:
    """Store a tenant's control row and that of all tenants; return the demands of a claim that read them."""
    set_control(store, 1)
    set_control(store, 1, EVERYWHERE)
    return {"control": ("tenant", 1), "everywhere": 1}


@pytest.mark.parametrize("whose", ["tenant", EVERYWHERE], ids=["of the tenant", "of all tenants"])
class TestPauses:
    """A claim against a change of either control row that it was checked against."""

    @pytest.mark.parametrize("committed", [False, True])
    def test_a_claim_waits_for_a_pause_under_way(
        self, database: Database, store: SQLStore, threads: ThreadPoolExecutor, committed: bool, whose: str
    ) -> None:
        demands = _both_rows(store)
        row, first = approved(store)
        with database.connect() as pause:
            pause.begin()
            pause.execute(update(schema.control).where(schema.control.c.tenant == whose.encode()).values(version=2))
            waiting = threads.submit(store.write, [claim(row, first, **demands)], seal)
            wait_until_blocked(database, waiting)
            if committed:
                pause.commit()
            else:
                pause.rollback()

        assert (waiting.result(timeout=60) is None) is committed
        assert len(events_of(store, row)) == (1 if committed else 2)

    @pytest.mark.parametrize("kind", ["postgresql", "mariadb"])  # SQLite has one writer at a time anyway
    def test_a_pause_waits_for_a_claim_under_way(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        threads: ThreadPoolExecutor, whose: str,
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        demands = _both_rows(store)
        row, first = approved(store)
        claiming, paused = threading.Event(), threading.Event()

        def between(draft: Draft, link: Link) -> EventRow:
            if draft.type == "call:refused":  # the claim, the step before, has the control row locked by now
                claiming.set()
                assert paused.wait(60)
            return seal(draft, link)

        steps = [claim(row, first, **demands), Append(Draft("call:refused", "tenant", 5, b"{}"))]
        claimed = threads.submit(store.write, steps, between)
        assert claiming.wait(60)
        pausing = threads.submit(set_control, store, 2, whose)
        wait_until_blocked(database, pausing)
        assert not pausing.done()
        paused.set()

        assert claimed.result(timeout=60) is not None
        assert pausing.result(timeout=60) is not None

    @pytest.mark.parametrize("kind", ["postgresql", "mariadb"])  # SQLite has one writer at a time anyway
    def test_no_claim_overtakes_a_pause_that_waits(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        threads: ThreadPoolExecutor, whose: str,
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        demands = _both_rows(store)
        row, first = approved(store)
        share = "FOR SHARE" if kind == "postgresql" else "LOCK IN SHARE MODE"
        with database.connect() as earlier_claim:
            earlier_claim.begin()
            earlier_claim.exec_driver_sql(f"SELECT version FROM hitl_guard_control {share}")
            pausing = threads.submit(set_control, store, 2, whose)
            wait_until_blocked(database, pausing)
            claiming = threads.submit(store.write, [claim(row, first, **demands)], seal)
            wait_until_blocked(database, claiming, sessions=2)
            earlier_claim.commit()

        assert pausing.result(timeout=60) is not None
        assert claiming.result(timeout=60) is None


class TestManyPauses:
    def test_a_pause_gets_through_a_crowd_of_claims_and_stops_them(
        self, store: SQLStore, threads: ThreadPoolExecutor
    ) -> None:
        set_control(store, 1)
        crowd, paused, under_way = 8, threading.Event(), threading.Barrier(9)
        grants = [[approved(store) for _ in range(4)] for _ in range(crowd)]

        def hammer(mine: list[tuple[RequestRow, EventRow]]) -> tuple[int, int]:
            """Claim without end; count the claims that began before the pause was committed, and those after."""
            won = {False: 0, True: 0}
            under_way.wait(60)
            for row, first in itertools.chain(mine, iter(lambda: approved(store), None)):
                after = paused.is_set()
                if store.write([claim(row, first, control=("tenant", 1))], seal) is not None:
                    won[after] += 1
                if after:
                    return won[False], won[True]
            raise AssertionError("unreachable")

        crowds = [threads.submit(hammer, mine) for mine in grants]
        under_way.wait(60)
        assert set_control(store, 2) is not None  # were it starved, it would end in a time-out
        paused.set()

        results = [future.result(timeout=60) for future in crowds]
        assert [after for _, after in results] == [0] * crowd
        assert store.load("tenant").control == ControlRow("tenant", 2, b"signed")

    def test_of_two_changes_of_one_control_row_one_wins(self, store: SQLStore, threads: ThreadPoolExecutor) -> None:
        for version in (1, 2):
            start = threading.Barrier(8)

            def change(body: bytes, version: int = version, start: threading.Barrier = start) -> Written | None:
                start.wait(60)
                return store.write([SetControl(ControlRow("tenant", version, body))], seal)

            assert len(_won([threads.submit(change, bytes([n])) for n in range(8)])) == 1


class TestTransitions:
    @pytest.mark.parametrize(
        ("one", "other"), list(itertools.combinations_with_replacement(TRANSITIONS, 2)),
    )
    def test_at27_of_two_simultaneous_transitions_one_wins(
        self, database: Database, open_store: Callable[..., SQLStore], threads: ThreadPoolExecutor, one: str, other: str
    ) -> None:
        stores = [open_store(database, pool_size=1), open_store(database, pool_size=1)]
        row, first = approved(stores[0])
        approved(stores[1])
        gate = threading.Barrier(2)

        def transition(store: SQLStore, type_: str) -> Written | None:
            def meet(draft: Draft, link: Link) -> EventRow:
                # Both have read and are about to insert. SQLite's lock is taken before: there they meet outside.
                if database.kind != "sqlite":
                    gate.wait(60)
                return seal(draft, link)

            if database.kind == "sqlite":
                gate.wait(60)
            draft = event(row, 2, type_, spend_key=b"k" * 32 if type_ == "grant:claimed" else None)
            ends = type_ != "request:approved"
            return store.write([Append(draft, previous_mac=first.mac, unlist=ends)], meet)

        won = _won([threads.submit(transition, *pair) for pair in zip(stores, (one, other), strict=True)])

        assert len(won) == 1
        assert events_of(stores[0], row) == (first, *won[0].events)

    def test_at25_of_64_threads_that_claim_one_grant_one_wins(
        self, store: SQLStore, threads: ThreadPoolExecutor
    ) -> None:
        set_control(store, 1)
        row, first = approved(store)
        end = store.now() + HOUR
        start = threading.Barrier(64)

        def run() -> Written | None:
            start.wait(60)
            return store.write([claim(row, first, before=end, control=("tenant", 1))], seal)

        won = _won([threads.submit(run) for _ in range(64)])

        assert len(won) == 1
        assert events_of(store, row) == (first, *won[0].events)
        assert store.load("tenant", spend_key=won[0].events[0].spend_key).spent

    def test_at25_of_claims_by_many_processes_one_wins(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)

        counts = in_processes(_claim_in_a_process, [(database.url, row, first)] * 4)

        assert sum(counts) == 1
        assert len(events_of(store, row)) == 2

    def test_of_64_identical_requests_one_is_added(self, store: SQLStore, threads: ThreadPoolExecutor) -> None:
        start = threading.Barrier(64)
        identity = b"i" * 32

        def run() -> Written | None:
            start.wait(60)
            return store.write([AddRequest(request(identity=identity), RUN, 9)], seal)

        assert len(_won([threads.submit(run) for _ in range(64)])) == 1
        assert len(store.open_requests(tenant=None, limit=99)) == 1

    def test_writes_that_lock_in_opposite_orders_end_in_one_of_them_or_both(
        self, database: Database, open_store: Callable[..., SQLStore], threads: ThreadPoolExecutor
    ) -> None:
        stores = [open_store(database, pool_size=1), open_store(database, pool_size=1)]
        pairs = [approved(stores[0]), approved(stores[1])]
        gate = threading.Barrier(2)

        def run(store: SQLStore, steps: list[Append]) -> Written | None:
            def meet(draft: Draft, link: Link) -> EventRow:
                if draft is steps[1].draft and database.kind != "sqlite":
                    gate.wait(60)  # each holds the row that the other wants
                return seal(draft, link)

            return store.write(steps, meet)

        claims = [claim(*pair) for pair in pairs]
        orders = (claims, claims[::-1])
        won = _won([threads.submit(run, store, steps) for store, steps in zip(stores, orders, strict=True)])

        assert len(won) == 1
        assert all(len(events_of(stores[0], row)) == 2 for row, _ in pairs)

    def test_chains_stay_whole_under_load(self, store: SQLStore, threads: ThreadPoolExecutor) -> None:
        def run() -> None:
            for _ in range(5):
                row, first = approved(store)
                assert store.write([claim(row, first)], seal) is not None

        for future in [threads.submit(run) for _ in range(16)]:
            future.result(timeout=120)

        events = [store.chain_events(chain) for chain in store.chains()]
        assert sum(item.request_id is not None for chain in events for item in chain) == 160
        for chain in events:
            assert [item.seq for item in chain] == list(range(len(chain)))
            assert [item.previous for item in chain] == [bytes(32), *[item.mac for item in chain[:-1]]]


def _claim_in_a_process(job: tuple[str, RequestRow, EventRow]) -> int:
    """Claim one grant with 16 threads at once, as a process of its own would; return how many succeeded."""
    url, row, first = job
    store = SQLStore(url, pool_size=2)
    start = threading.Barrier(16)

    def run() -> Written | None:
        start.wait(60)
        return store.write([claim(row, first)], seal)

    with ThreadPoolExecutor(16) as threads:
        won = _won([threads.submit(run) for _ in range(16)])
    store.close()
    return len(won)


def test_a_database_can_be_shared_by_stores_that_know_it_by_different_names(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> None:
    database = make_database("mariadb")
    other = make_url(database.url).set(drivername="mysql").render_as_string(hide_password=False)
    row = added(open_store(database))

    second = SQLStore(other)
    try:
        assert second.load("tenant", request_id=row.id).request == row
    finally:
        second.close()
