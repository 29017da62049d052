"""The lists of the Store contract on every database: what is open, what ended, how much waits for whom, what is new."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy import event as listening

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.rows import Draft, EventRow, RequestRow
from hitl_guard.store import anchors, lists, schema
from hitl_guard.store.base import AddRequest, Append, Unlist, Wanted
from hitl_guard.store.sql import SQLStore
from tests.contract.build import REFUSAL, RUN, added, approved, claim, digest, event, request, seal, set_control
from tests.databases import Database

ANA, DESK, OTHER = digest("ana"), digest("desk"), digest("other")


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


def asked(store: SQLStore, **changes: Any) -> RequestRow:
    """Store a request as the guard does, and return its row."""
    row = request(**{name: changes.pop(name) for name in ("tenant", "id") if name in changes})
    now = store.now()
    fields: dict[str, Any] = {
        "run": RUN, "listed_until": now + 60_000, "requester": ANA, "desk": DESK, "added_at": now,
    }
    assert store.write([AddRequest(row, **fields | changes)], seal) is not None
    return row


def end(store: SQLStore, row: RequestRow, at: int, *, kind: str = "request:expired") -> EventRow:
    """End a request that has no event yet."""
    written = store.write([Append(event(row, 1, kind, at=at), unlist=True)], seal)
    assert written is not None
    return written.events[0]


def ended(store: SQLStore, **which: Any) -> list[str]:
    options: dict[str, Any] = {"tenant": "tenant", "limit": 99} | which
    return [row.id for _, row, _ in store.ended_requests(**options)]


@contextmanager
def queries() -> Iterator[list[str]]:
    """Collect the statements that go through SQLAlchemy."""
    sent: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    listening.listen(Engine, "before_cursor_execute", count)
    try:
        yield sent
    finally:
        listening.remove(Engine, "before_cursor_execute", count)


class TestEnded:
    def test_requests_that_ended_are_listed_the_newest_first_and_page_by_page(self, store: SQLStore) -> None:
        rows = [asked(store) for _ in range(5)]
        for row, at in zip(rows, (30, 10, 20, 20, 40), strict=True):
            end(store, row, at)
        same = sorted(rows[2:4], key=lambda row: row.id.encode())
        order = [row.id for row in (rows[4], rows[0], *same, rows[1])]

        assert ended(store) == order
        assert ended(store, limit=2) == order[:2]
        assert ended(store, after=(30, order[1])) == order[2:]
        assert ended(store, after=(20, order[2])) == order[3:]
        assert store.open_requests(tenant=None, limit=9) == []

    def test_a_request_that_ended_keeps_its_history(self, store: SQLStore) -> None:
        row, first = approved(store)

        written = store.write([claim(row, first)], seal)

        assert written is not None
        last = written.events[0]
        assert store.ended_requests(tenant="tenant", limit=9) == [(last.at, row, (first, last))]

    def test_requests_that_ended_are_found_by_tenant_and_by_run(self, store: SQLStore) -> None:
        mine, other_run, foreign = asked(store), asked(store, run=OTHER), asked(store, tenant="other")
        for at, row in enumerate((mine, other_run, foreign), start=1):
            end(store, row, at)

        assert ended(store) == [other_run.id, mine.id]
        assert ended(store, run=RUN) == [mine.id]
        assert ended(store, tenant="other") == [foreign.id]
        assert ended(store, tenant="nobody") == []

    def test_what_no_person_was_asked_about_is_not_among_what_ended(self, store: SQLStore) -> None:
        seen, unseen = asked(store), asked(store, requester=None, desk=b"")
        uncounted = added(store)  # as versions wrote it that counted nothing
        for row in (seen, unseen, uncounted):
            end(store, row, 1_790_000_000_000)

        assert sorted(ended(store)) == sorted([seen.id, uncounted.id])
        assert store.open_requests(tenant=None, limit=9) == []

    def test_a_refused_event_ends_nothing(self, store: SQLStore) -> None:
        row, first = approved(store)

        assert store.write([claim(row, first, before=0)], seal) is None

        assert ended(store) == []
        assert [found.id for _, found, _ in store.open_requests(tenant=None, limit=9)] == [row.id]

    def test_a_request_ends_once_in_the_list(self, store: SQLStore) -> None:
        row = asked(store)
        first = end(store, row, 7)

        store.write([Append(event(row, 2, "call:failed", at=9), previous_mac=first.mac, unlist=True)], seal)

        assert [at for at, _, _ in store.ended_requests(tenant="tenant", limit=9)] == [7]

    def test_of_two_ends_at_once_one_is_listed(self, database: Database, open_store: Callable[..., SQLStore]) -> None:
        stores = [open_store(database) for _ in range(4)]
        rows = [asked(stores[0]) for _ in range(8)]

        def race(job: tuple[int, RequestRow]) -> bool:
            number, row = job
            step = Append(event(row, 1, "request:revoked", at=100 + number), unlist=True)
            return stores[number].write([step], seal) is not None

        with ThreadPoolExecutor(len(stores)) as pool:
            won = list(pool.map(race, [(number, row) for row in rows for number in range(len(stores))]))

        assert sum(won) == len(rows)
        assert sorted(ended(stores[0])) == sorted(row.id for row in rows)
        for at, row, (event_,) in stores[0].ended_requests(tenant="tenant", limit=99):
            assert (event_.at, event_.request_id) == (at, row.id)

    def test_at61_an_end_whose_commit_reply_was_lost_is_in_the_list(
        self, store: SQLStore, plan: dict[str, Any]
    ) -> None:
        row = asked(store)
        store.write([REFUSAL], seal)  # the chain is open
        plan.update(broken=True, applied=True)

        last = end(store, row, 5)

        assert store.ended_requests(tenant="tenant", limit=9) == [(5, row, (last,))]

    def test_at61_an_end_that_was_not_committed_leaves_the_list_as_it_is(
        self, store: SQLStore, plan: dict[str, Any]
    ) -> None:
        row = asked(store)
        store.write([REFUSAL], seal)  # the chain is open
        plan.update(broken=True, applied=False)

        with pytest.raises(StoreUnavailableError):
            end(store, row, 5)

        assert ended(store) == []
        assert [found for _, found, _ in store.open_requests(tenant=None, limit=9)] == [row]

    def test_a_page_takes_two_queries_however_long_it_is(self, store: SQLStore) -> None:
        for at in range(1, 13):
            end(store, asked(store), at)
        ended(store, limit=1)

        with queries() as sent:
            found = store.ended_requests(tenant="tenant", limit=12)

        assert [len(events) for _, _, events in found] == [1] * 12
        assert len(sent) == 2

    def test_each_list_is_read_through_an_index_of_its_own(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        """A tenant's page must not pass over what other tenants have in the list. (SQLite tells its plan exactly.)"""
        database = make_database("sqlite")
        store = open_store(database)
        with queries() as sent:
            store.open_requests(tenant="tenant", limit=9, after=(5, "id"))
            store.ended_requests(tenant="tenant", limit=9, after=(5, "id"))
            store.ended_requests(tenant="tenant", run=RUN, limit=9)
            store.added_requests(5, limit=9)
        lists = [statement for statement in sent if schema.open_requests.name in statement]

        plans = []
        with database.connect() as connection:
            for statement in lists:
                number = statement.count("?")
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (b"",) * number)
                plans.append(" ".join(str(row[3]) for row in rows))

        assert len(plans) == 4
        assert all("USE TEMP B-TREE" not in plan for plan in plans)
        names = [plan.partition(f"INDEX {schema.open_requests.name}_")[2].partition(" ")[0] for plan in plans]
        assert names == ["tenant", "tenant", "run", "added"]


class TestUnlisting:
    """A request that nobody can use leaves the list without an event."""

    def take_off(self, store: SQLStore, row: RequestRow) -> Any:
        places = {found.id: place for place, found, _ in store.open_requests(tenant=None, limit=99)}
        return store.write([Unlist(row.id, places.get(row.id, 1), 7)], seal)

    def test_a_request_that_is_taken_off_is_in_no_list_and_stays_stored(self, store: SQLStore) -> None:
        gone, left = asked(store), asked(store)

        written = self.take_off(store, gone)

        assert (written.events, written.now > 0) == ((), True)
        assert [row.id for _, row, _ in store.open_requests(tenant=None, limit=9)] == [left.id]
        assert ended(store) == []
        assert store.load("tenant", request_id=gone.id).request == gone
        assert store.count_open(
            run=RUN, requester=ANA, desk=DESK, now=store.now(), limits=(9, 9, 9)
        ) == (1, 1, 1)
        assert [id_ for _, _, id_ in store.added_requests(0, limit=9)] == [left.id]

    def test_it_is_taken_off_once_and_not_after_it_ended(self, store: SQLStore) -> None:
        gone, over = asked(store), asked(store)
        place = {row.id: place for place, row, _ in store.open_requests(tenant=None, limit=9)}[over.id]
        end(store, over, 5)

        assert self.take_off(store, gone) is not None
        assert self.take_off(store, gone) is None
        assert store.write([Unlist(over.id, place, 7)], seal) is None
        assert ended(store) == [over.id]

    def test_at61_a_lost_reply_to_commit_is_resolved_by_the_list(self, store: SQLStore, plan: dict[str, Any]) -> None:
        gone, left = asked(store), asked(store)
        plan.update(broken=True, applied=True)
        assert self.take_off(store, gone) is not None

        plan.update(broken=True, applied=False)
        with pytest.raises(StoreUnavailableError):
            self.take_off(store, left)

        assert [row.id for _, row, _ in store.open_requests(tenant=None, limit=9)] == [left.id]


class TestCounts:
    def counted(self, store: SQLStore, **changes: Any) -> tuple[int, int, int]:
        fields: dict[str, Any] = {
            "run": RUN, "requester": ANA, "desk": DESK, "now": store.now(), "limits": (99, 99, 99),
        }
        return store.count_open(**fields | changes)

    def test_x16_open_requests_are_counted_by_requester_and_run_requester_and_desk(self, store: SQLStore) -> None:
        asked(store)
        asked(store, run=OTHER)
        asked(store, requester=OTHER)
        asked(store, run=OTHER, requester=OTHER)

        assert self.counted(store) == (1, 2, 4)
        assert self.counted(store, requester=OTHER) == (1, 2, 4)
        assert self.counted(store, run=OTHER, requester=digest("nobody"), desk=OTHER) == (0, 0, 0)

    def test_x16_counting_stops_at_its_limit(self, store: SQLStore) -> None:
        for _ in range(4):
            asked(store)

        assert self.counted(store, limits=(1, 2, 3)) == (1, 2, 3)
        assert self.counted(store, limits=(3, 2, 1)) == (2, 2, 1)

    def test_x16_what_ended_is_overdue_or_concerns_nobody_does_not_count(self, store: SQLStore) -> None:
        now = store.now()
        end(store, asked(store), now)
        asked(store, listed_until=now)
        asked(store, desk=b"", requester=None)
        left = asked(store, listed_until=now + 1)

        assert self.counted(store, now=now) == (1, 1, 1)
        assert left.id in [row.id for _, row, _ in store.open_requests(tenant=None, limit=9)]

    def test_x16_rows_of_an_older_version_do_not_count(self, store: SQLStore) -> None:
        added(store)

        assert self.counted(store) == (0, 0, 0)

    def test_x16_the_counts_come_from_indexes(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database("sqlite")
        store = open_store(database)
        parameters: dict[str, Any] = {
            "run": RUN, "requester": ANA, "desk": DESK, "now": 1, "run_limit": 9, "requester_limit": 9, "desk_limit": 9,
        }

        with database.connect() as connection:
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {store._count_open}"), parameters)
            plan = " ".join(str(row[3]) for row in rows)

        used = [plan.count(f"_{name} ({name}=? AND listed_until>?") for name in ("run", "requester", "desk")]
        assert used == [0, 2, 1]


class TestNews:
    def test_requests_are_found_by_the_time_of_asking(self, store: SQLStore) -> None:
        older, newer = asked(store, added_at=10), asked(store, added_at=20, tenant="other")
        asked(store, added_at=30, desk=b"")
        added(store)
        gone = asked(store, added_at=40)
        end(store, gone, 41)

        assert store.added_requests(10, limit=9) == [(10, "tenant", older.id), (20, "other", newer.id)]
        assert store.added_requests(11, limit=9) == [(20, "other", newer.id)]
        assert store.added_requests(10, limit=1) == [(10, "tenant", older.id)]

    def test_every_chain_is_told_with_its_last_event(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        first, second = open_store(database), open_store(database)
        assert first.heads() == []
        first.write([REFUSAL], seal)
        (one,) = first.chains()
        second.write([REFUSAL], seal)
        second.write([REFUSAL], seal)
        (other,) = set(first.chains()) - {one}

        assert dict(first.heads()) == {one: 1, other: 2}

    def test_a_chain_that_goes_on_is_not_dropped_by_who_found_it_silent(
        self, database: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "ANCHOR_EVERY", 2)
        first, second = open_store(database), open_store(database)
        first.write([Append(Draft("call:refused", "tenant", 5, b"{}"))], seal)
        (silent,) = first.chains()
        now = first.now()
        refusal = Append(Draft("call:refused", "tenant", now, b"{}"))
        found = anchors.Anchors._others

        def just_before(self: Any, raw: Any, chain: anchors.Chain, at: int) -> Any:
            heads, dropped = found(self, raw, chain, at)
            if chain.id != silent and dropped and database.kind != "sqlite":  # SQLite has one writer at a time
                monkeypatch.setattr(anchors.Anchors, "_others", found)
                first.write([refusal], seal)
            return heads, dropped

        monkeypatch.setattr(anchors.Anchors, "_others", just_before)
        for _ in range(5):
            second.write([refusal], seal)
        if database.kind == "sqlite":
            first.write([refusal], seal)

        assert dict(first.heads())[silent] == 3
        assert [event_.type for event_ in first.chain_events(silent)][2:] == ["chain:anchored", "call:refused"]


class TestNotifying:
    @pytest.fixture
    def loud(self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]) -> SQLStore:
        return open_store(make_database("postgresql"), notify=True)

    def test_without_notify_nobody_waits(self, store: SQLStore) -> None:
        assert not store.notifies
        assert [store.wait_for_changes(60_000), store.wait_for_changes(60_000)] == [False, False]

    @pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
    def test_a_database_that_cannot_notify_says_so(self, make_database: Callable[..., Database], kind: str) -> None:
        url = make_database(kind).url

        with pytest.raises(ConfigurationError) as caught:
            SQLStore(url, notify=True)

        assert caught.value.detail == "notify"

    def test_who_listens_hears_of_every_kind_of_write(self, loud: SQLStore) -> None:
        assert loud.notifies
        assert loud.wait_for_changes(60_000)  # it has just begun to listen
        rows: list[RequestRow] = []

        def approve() -> None:
            assert loud.write([Append(event(rows[0], 1))], seal) is not None

        def together() -> None:
            assert loud.write([AddRequest(request(), RUN, 9), REFUSAL], seal) is not None

        def ending() -> None:
            end(loud, rows[1], 9)

        def ask() -> None:
            rows.append(asked(loud))

        def pause() -> None:
            assert set_control(loud, 1) is not None

        for write in (ask, ask, approve, together, ending, pause):
            write()
            assert loud.wait_for_changes(60_000)
        while loud.wait_for_changes(1):
            pass
        assert not loud.wait_for_changes(1)

    def test_another_process_is_heard_and_a_write_before_is_not_forgotten(self, loud: SQLStore) -> None:
        other = SQLStore(loud._dialect.url.render_as_string(hide_password=False), notify=True)
        assert loud.wait_for_changes(60_000)
        while loud.wait_for_changes(1):
            pass

        other.write([REFUSAL], seal)

        assert loud.wait_for_changes(60_000)
        other.close()

    def test_a_write_that_failed_tells_nobody(self, loud: SQLStore) -> None:
        row, first = approved(loud)
        assert loud.wait_for_changes(60_000)
        while loud.wait_for_changes(1):
            pass

        assert loud.write([claim(row, first, before=0)], seal) is None

        assert not loud.wait_for_changes(1)

    def test_a_listener_whose_connection_was_ended_is_an_error_and_then_listens_again(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database("postgresql")
        store = open_store(database, notify=True)
        assert store.wait_for_changes(60_000)
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )

        with pytest.raises(StoreUnavailableError):
            store.wait_for_changes(60_000)

        assert store.wait_for_changes(60_000)

    def test_a_server_that_lets_nobody_listen_is_an_error(
        self, loud: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hitl_guard.store.dialects.postgresql.CHANNEL", "no channel")

        with pytest.raises(StoreUnavailableError):
            loud.wait_for_changes(60_000)

    def test_a_forked_child_listens_on_a_connection_of_its_own(self, loud: SQLStore) -> None:
        assert loud.wait_for_changes(60_000)
        while loud.wait_for_changes(1):
            pass
        process = multiprocessing.get_context("fork").Process(target=_listen, args=(loud,))

        process.start()
        process.join(60)

        assert process.exitcode == 0
        loud.write([REFUSAL], seal)
        assert loud.wait_for_changes(60_000)


def _listen(store: SQLStore) -> None:
    """Exit with 0 if a new connection was made, which says True at once."""
    os._exit(0 if store.wait_for_changes(60_000) else 1)


def test_the_two_ranges_of_ended_requests_never_meet(store: SQLStore) -> None:
    """No time of ours is as long ago, or as far ahead, as the ranges are apart."""
    assert schema.ENDED_UNSEEN < -(10**15)
    row = asked(store, id=secrets.token_urlsafe(16), requester=None, desk=b"")

    end(store, row, 1)

    assert ended(store) == []


def test_x10_mariadb_reads_no_line_of_a_list_more_than_a_few_times_for_a_page_that_shows_almost_none(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> None:
    """It runs a common table expression anew for each mention. (It counts what it reads, however busy it is.)"""
    database = make_database("mariadb")
    store, number = open_store(database), 200
    for which in range(number):
        asked(store, listed_until=store.now() + 600_000 + which, tool=digest("tool"))
    query = lists.looked_at(Wanted(tenant="tenant", now=store.now(), own=(), foreign=(DESK,)), 50, None)
    assert query is not None

    with database.connect() as connection:
        connection.execute(text("FLUSH STATUS"))
        found = connection.execute(query).all()
        reads = sum(int(count) for _, count in connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'")))

    assert found == []
    assert number < reads < 9 * number
