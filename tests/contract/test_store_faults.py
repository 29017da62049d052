"""What the store does when the database fails: at connect, read, write and commit; when it loses what it had."""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from hitl_guard.audit import anchored_heads
from hitl_guard.errors import ConfigurationError, StoreRolledBackError, StoreUnavailableError, UnavailableError
from hitl_guard.rows import ControlRow, Draft
from hitl_guard.store import anchors
from hitl_guard.store.base import AddRequest, Append, SetControl, Step
from hitl_guard.store.dialects import postgresql, sqlite
from hitl_guard.store.dialects.base import Failure
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    RUN,
    added,
    approved,
    claim,
    control,
    event,
    events_of,
    request,
    seal,
    set_control,
)
from tests.databases import Database

REFUSAL = Append(Draft("call:refused", "tenant", 1_790_000_000_000, b"{}"))


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


class Breaking:
    """A driver connection that breaks at the end of the next transaction, before or after the server has done it."""

    def __init__(self, raw: Any, plan: dict[str, Any]) -> None:
        self._raw = raw
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def execute(self, sql: Any, *rest: Any, **options: Any) -> Any:
        one_statement = isinstance(self._raw, psycopg.Connection) and self._raw.info.transaction_status == 0
        if not (sql == "COMMIT" or (one_statement and str(sql).startswith(("INSERT", "WITH")))):
            return self._raw.execute(sql, *rest, **options)
        error: type[Exception] = sqlite3.OperationalError
        if isinstance(self._raw, psycopg.Connection):
            error = psycopg.OperationalError
        return self._end(lambda: self._raw.execute(sql, *rest, **options), error("connection lost"))

    def commit(self) -> None:
        self._end(self._raw.commit, pymysql.err.OperationalError(2013, "Lost connection"))

    def _end(self, commit: Callable[[], Any], error: Exception) -> Any:
        if not self._plan["broken"]:
            return commit()
        if self._plan["applied"]:
            commit()
        self._plan["broken"] = False
        then = self._plan.get("then")
        if then:
            then()
        raise error


@pytest.fixture
def plan(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``plan["broken"] = True`` breaks the next COMMIT; ``plan["applied"]`` says on which side of it."""
    plan: dict[str, Any] = {"broken": False, "applied": False}
    connect = store._dialect.connect

    def breaking(*, read_only: bool) -> Any:
        raw = connect(read_only=read_only)
        return raw if read_only else Breaking(raw, plan)

    monkeypatch.setattr(store._dialect, "connect", breaking)
    return plan


class TestLostReplies:
    def test_at61_a_commit_that_was_applied_is_found_again(self, store: SQLStore, plan: dict[str, Any]) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=True)

        written = store.write([claim(row, first, before=store.now() + HOUR)], seal)

        assert written is not None
        assert events_of(store, row) == (first, *written.events)
        assert store.write([claim(row, first)], seal) is None

    def test_at61_a_commit_that_was_not_applied_is_unknown_and_can_be_tried_again(
        self, store: SQLStore, plan: dict[str, Any]
    ) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=False)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first, before=store.now() + HOUR)], seal)

        assert caught.value.detail == "commit-unknown"
        assert events_of(store, row) == (first,)
        assert store.write([claim(row, first)], seal) is not None

    def test_at61_a_commit_that_is_known_of_too_late_is_not_granted(
        self, store: SQLStore, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        limit = store.now() + HOUR

        def later() -> None:
            monkeypatch.setattr(store._dialect, "clock", lambda _: limit)

        plan.update(broken=True, applied=True, then=later)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first, before=limit)], seal)

        assert caught.value.detail == "commit-unknown"
        assert len(events_of(store, row)) == 2

    def test_at61_a_commit_that_nobody_can_look_for_is_unknown(
        self, store: SQLStore, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)

        def unreachable(raw: Any, *_rest: Any) -> Any:
            raise store._dialect.error[0]("unreachable")

        def cut() -> None:
            monkeypatch.setattr(store._dialect, "run", unreachable)

        plan.update(broken=True, applied=True, then=cut)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([claim(row, first)], seal)

        assert caught.value.detail == "commit-unknown"

    @pytest.mark.parametrize("applied", [False, True])
    @pytest.mark.parametrize(
        "steps",
        [
            lambda: [AddRequest(request(id="r" * 22), RUN, 9)],
            lambda: [SetControl(ControlRow("tenant", 1, b"body"))],
            lambda: control(1),
            lambda: [Append(Draft("call:refused", "tenant", 5, b"{}")), AddRequest(request(id="r" * 22), RUN, 9)],
        ],
        ids=["request", "control", "control and event", "event and request"],
    )
    def test_any_write_is_looked_for(
        self, store: SQLStore, plan: dict[str, Any], steps: Callable[[], list[Step]], applied: bool
    ) -> None:
        approved(store)
        plan.update(broken=True, applied=applied)

        if applied:
            assert store.write(steps(), seal) is not None
            assert store.write(steps(), seal) is None
        else:
            with pytest.raises(StoreUnavailableError) as caught:
                store.write(steps(), seal)
            assert caught.value.detail == "commit-unknown"
            assert store.write(steps(), seal) is not None

    @pytest.mark.parametrize("applied", [False, True])
    def test_a_chain_that_could_not_be_opened_for_certain_writes_nothing_else(
        self, store: SQLStore, plan: dict[str, Any], applied: bool
    ) -> None:
        row = added(store)
        plan.update(broken=True, applied=applied)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([Append(event(row, 1))], seal)

        assert caught.value.detail in ("lost", "refused")
        assert events_of(store, row) == ()
        assert store.write([Append(event(row, 1))], seal) is not None
        assert len(store.chains()) == (2 if applied else 1)

    def test_a_connection_whose_commit_failed_is_not_used_again(self, store: SQLStore, plan: dict[str, Any]) -> None:
        row, first = approved(store)
        plan.update(broken=True, applied=True)
        written = store.write([claim(row, first)], seal)
        assert written is not None

        after = store.write([REFUSAL], seal)

        assert after is not None
        assert after.events[0].chain != first.chain
        opened = store.chain_events(after.events[0].chain)[0]
        assert anchored_heads(opened) == [(first.chain, written.events[0].seq, written.events[0].mac)]


class TestFailures:
    @pytest.mark.parametrize(
        "url", ["postgresql://nobody:hunter2@127.0.0.1:1/x", "mariadb://nobody:hunter2@127.0.0.1:1/x"]
    )
    def test_at60_a_server_that_is_down_refuses_every_use(self, url: str) -> None:
        store = SQLStore(url)

        for use in (store.now, store.check, store.setup, lambda: store.write(control(1), seal)):
            with pytest.raises(StoreUnavailableError) as caught:
                use()
            assert "hunter2" not in str(caught.value)

    def test_at60_a_file_that_is_no_database_refuses_every_use(self, tmp_path: Path) -> None:
        path = tmp_path / "approvals.db"
        path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
        store = SQLStore(f"sqlite:///{path}")

        for use in (store.now, store.check, store.setup, lambda: store.write(control(1), seal)):
            with pytest.raises(StoreUnavailableError):
                use()

    @pytest.mark.parametrize("where", ["run", "change", "begin"])
    def test_at60_a_write_that_fails_changes_nothing(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        row, first = approved(store)

        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        with monkeypatch.context() as patch:
            patch.setattr(store._dialect, where, fail)
            with pytest.raises(UnavailableError) as caught:
                store.write([claim(row, first), SetControl(ControlRow("tenant", 1, b"body"))], seal)

        assert caught.value.code == "store-unavailable"
        assert "82" not in str(caught.value)
        assert events_of(store, row) == (first,)
        assert store.write([claim(row, first)], seal) is not None

    def test_at60_a_read_that_fails_says_so(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        def interrupt(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(store._dialect, "run", fail)
        with pytest.raises(StoreUnavailableError):
            store.load("tenant")
        monkeypatch.setattr(store._dialect, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.load("tenant")
        monkeypatch.undo()

        assert store.load("tenant").request is None

    def test_a_rollback_that_fails_costs_the_connection(self, store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> None:
        row, first = approved(store)

        def fail(*_: Any) -> Any:
            raise store._dialect.error[0](1234, "disk on fire")

        with monkeypatch.context() as patch:
            patch.setattr(store._dialect, "run", fail)
            patch.setattr(store._dialect, "change", fail)
            patch.setattr(store._dialect, "rollback", fail)
            with pytest.raises(StoreUnavailableError):
                store.write([claim(row, first), SetControl(ControlRow("tenant", 1, b"body"))], seal)

        written = store.write([claim(row, first)], seal)
        assert written is not None
        assert written.events[0].chain != first.chain

    def test_a_head_that_cannot_be_looked_for_is_no_answer(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        run = store._dialect.run

        def fail(raw: Any, sql: str, parameters: Any) -> Any:
            if "h.seq" in sql and not sql.startswith(("INSERT", "WITH")):
                raise store._dialect.error[0](1234, "disk on fire")
            return run(raw, sql, parameters)

        monkeypatch.setattr(store._dialect, "run", fail)

        with pytest.raises(StoreUnavailableError):
            store.write([claim(row, first, before=0)], seal)

    def test_a_lock_that_is_not_released_ends_the_wait(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, timeout_ms=1000)
        row, first = approved(store)
        with database.connect() as blocker:
            blocker.begin()
            blocker.exec_driver_sql("UPDATE hitl_guard_control SET version = version")
            if database.kind != "sqlite":
                blocker.exec_driver_sql(
                    "INSERT INTO hitl_guard_events (chain, seq, request_id, version, type, tenant, at, body, previous, "
                    "epoch, key_id, mac) SELECT 'x', 0, request_id, 2, type, tenant, at, body, previous, epoch, "
                    "key_id, mac FROM hitl_guard_events WHERE version = 1"
                )

            alone: list[Step] = [claim(row, first)]
            among: list[Step] = [claim(row, first), REFUSAL]
            for steps in (alone, among):
                with pytest.raises(StoreUnavailableError) as caught:
                    store.write(steps, seal)
                assert caught.value.detail == "timeout"
            blocker.rollback()

        patient = open_store(database)
        assert patient.write([claim(row, first)], seal) is not None

    def test_a_caller_waits_for_a_connection_but_not_for_ever(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, pool_size=1, timeout_ms=20)
        row, first = approved(open_store(database))
        store.write([REFUSAL], seal)
        inside, done = threading.Event(), threading.Event()

        def hold(draft: Any, link: Any) -> Any:
            inside.set()
            assert done.wait(60)
            return seal(draft, link)

        holder = threading.Thread(target=store.write, args=([Append(Draft("call:refused", "t", 5, b"{}"))], hold))
        holder.start()
        assert inside.wait(60)
        try:
            with pytest.raises(StoreUnavailableError) as caught:
                store.write([claim(row, first)], seal)
            assert caught.value.detail == "timeout"
        finally:
            done.set()
            holder.join()

    def test_lists_wait_for_a_connection_but_not_for_ever(
        self, database: Database, open_store: Callable[..., SQLStore]
    ) -> None:
        store = open_store(database, timeout_ms=20)
        held = [store._connections._cold.connect() for _ in range(2)]
        try:
            with pytest.raises(StoreUnavailableError) as caught:
                store.controls()
            assert caught.value.detail == "timeout"
        finally:
            for connection in held:
                connection.close()

    def test_a_statement_that_the_database_refuses_says_so(self, store: SQLStore, database: Database) -> None:
        database.reusable = False
        database.execute("ALTER TABLE hitl_guard_control RENAME COLUMN body TO no_body")

        with pytest.raises(StoreUnavailableError) as caught:
            store.controls()
        assert caught.value.detail == "refused"
        with pytest.raises(StoreUnavailableError):
            store.load("tenant")


def _kill(database: Database) -> None:
    """End every session of the store's on the server."""
    if database.kind == "postgresql":
        database.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    else:
        sessions = database.execute(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        for (session,) in sessions:
            database.execute(f"KILL {session}")


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
class TestLostConnections:
    def test_a_restarted_server_costs_one_failure(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        row, first = approved(store)
        store.load("tenant")
        store.controls()
        _kill(database)

        with pytest.raises(StoreUnavailableError):
            store.load("tenant")

        assert store.load("tenant", request_id=row.id).events == (first,)
        assert store.controls() == []
        written = store.write([claim(row, first)], seal)
        assert written is not None
        opened = store.chain_events(written.events[0].chain)[0]
        assert anchored_heads(opened) == [(first.chain, first.seq, first.mac)]

    def test_one_broken_connection_condemns_all_of_its_age(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        both = threading.Barrier(2)

        def meet(draft: Any, link: Any) -> Any:
            if draft.type != "chain:opened":
                both.wait(60)
            return seal(draft, link)

        threads = [threading.Thread(target=store.write, args=([REFUSAL], meet)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.chains()) == 2
        _kill(database)

        with pytest.raises(StoreUnavailableError):
            store.write([REFUSAL], seal)

        assert store.write([REFUSAL], seal) is not None
        assert len(store.chains()) == 3

    def test_a_chain_that_was_left_must_still_be_there_when_the_next_is_opened(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database(kind)
        store = open_store(database)
        row, first = approved(store)
        _kill(database)
        database.execute("DELETE FROM hitl_guard_events WHERE version = 1")
        with pytest.raises(StoreUnavailableError):
            store.write([REFUSAL], seal)

        with pytest.raises(StoreRolledBackError):
            store.write([REFUSAL], seal)

        assert store.chains() == [first.chain]
        assert events_of(store, row) == ()


class TestLosses:
    def test_a_write_is_refused_once_the_chains_head_was_deleted(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        store.write([REFUSAL], seal)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 2")

        with pytest.raises(StoreRolledBackError) as caught:
            store.write([claim(row, first)], seal)

        assert (caught.value.code, caught.value.detail) == ("store-rolled-back", "chain")
        assert events_of(store, row) == (first,)

    def test_a_loss_is_final_for_this_process(self, database: Database, store: SQLStore) -> None:
        approved(store)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 1")
        for _ in range(2):
            with pytest.raises(StoreRolledBackError):
                store.write([REFUSAL], seal)

        with pytest.raises(StoreRolledBackError):
            store.write([AddRequest(request(), RUN, 9)], seal)

    def test_a_forged_event_in_the_writers_next_place_is_noticed(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        database.execute(
            "INSERT INTO hitl_guard_events (chain, seq, type, tenant, at, body, previous, epoch, key_id, mac) "
            "SELECT chain, 2, type, tenant, at, body, previous, epoch, key_id, mac FROM hitl_guard_events WHERE seq = 1"
        )

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first)], seal)

    def test_an_edited_head_is_noticed(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        database.execute("UPDATE hitl_guard_events SET mac = :mac WHERE seq = 1", {"mac": bytes(32)})

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first), REFUSAL], seal)

    def test_a_loss_is_noticed_when_the_chain_is_anchored(
        self, database: Database, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(anchors, "ANCHOR_EVERY", 1)
        store.write([REFUSAL], seal)
        database.execute("DELETE FROM hitl_guard_events WHERE seq = 1")

        with pytest.raises(StoreRolledBackError):
            store.write([REFUSAL], seal)

    @pytest.mark.parametrize("loss", ["renamed over", "deleted", "copied back"])
    def test_a_sqlite_file_that_is_not_the_one_that_was_opened_is_noticed(
        self, loss: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore], tmp_path: Path
    ) -> None:
        database = make_database("sqlite")
        store = open_store(database)
        row, first = approved(store)
        path = Path(str(make_url(database.url).database))
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        if loss == "renamed over":
            copy.rename(path)
        else:
            path.unlink()
            if loss == "copied back":
                path.write_bytes(copy.read_bytes())

        uses: list[Callable[[], object]] = [
            lambda: store.write([claim(row, first)], seal), lambda: store.load("tenant"), store.controls,
        ]
        for use in uses:
            with pytest.raises(StoreRolledBackError) as caught:
                use()
            assert caught.value.detail in ("file", "chain")

    def test_a_sqlite_file_that_is_replaced_during_the_commit_is_noticed(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        database = make_database("sqlite")
        store = open_store(database)
        row, first = approved(store)
        path = Path(str(make_url(database.url).database))
        commit = store._dialect.commit

        def replaced(raw: Any) -> None:
            commit(raw)
            path.rename(path.with_suffix(".old"))

        monkeypatch.setattr(store._dialect, "commit", replaced)

        with pytest.raises(StoreRolledBackError):
            store.write([claim(row, first)], seal)

    def test_a_sqlite_file_on_a_disk_without_wal_is_refused(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store = open_store(make_database("sqlite"))

        class NoWal(sqlite3.Connection):
            def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
                return super().execute(sql.replace("= WAL", "= DELETE"), *rest)

        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=NoWal))

        with pytest.raises(ConfigurationError) as caught:
            store.now()

        assert caught.value.detail == "wal"

    @pytest.mark.parametrize("patience", [1, 9])
    def test_a_sqlite_file_that_others_switch_to_wal_is_waited_for(
        self, patience: int, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store = open_store(make_database("sqlite"), timeout_ms=patience)
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        left = [busy, busy]

        class Contended(sqlite3.Connection):
            def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
                if "= WAL" in sql and left:
                    raise left.pop()
                return super().execute(sql, *rest)

        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Contended))
        now = itertools.count()
        monkeypatch.setattr(sqlite, "monotonic_ms", lambda: next(now))
        monkeypatch.setattr(sqlite, "sleep_ms", lambda _: None)

        if patience == 9:
            assert store.now() > 0
        else:
            with pytest.raises(StoreUnavailableError) as caught:
                store.now()
            assert caught.value.detail == "timeout"


class TestSQLite:
    def test_the_meaning_of_errors(self) -> None:
        failure = SQLStore("sqlite:///x.db")._dialect.failure
        meant = {
            (sqlite3.SQLITE_BUSY, ""): Failure.TIMEOUT,
            (sqlite3.SQLITE_BUSY_SNAPSHOT, ""): Failure.TIMEOUT,
            (sqlite3.SQLITE_CONSTRAINT_UNIQUE, ""): Failure.RACE,
            (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, ""): Failure.RACE,
            (sqlite3.SQLITE_CONSTRAINT_NOTNULL, ""): Failure.REFUSED,
            (sqlite3.SQLITE_ERROR, "no such table: x"): Failure.SCHEMA,
            (sqlite3.SQLITE_ERROR, "no such column: x"): Failure.REFUSED,
            (sqlite3.SQLITE_FULL, ""): Failure.REFUSED,
        }

        for (code, message), meaning in meant.items():
            error = sqlite3.OperationalError(message)
            error.sqlite_errorcode = code
            assert failure(error) is meaning
        assert failure(OverflowError()) is Failure.REFUSED


class TestForks:
    def test_a_forked_child_has_connections_and_a_chain_of_its_own(self, database: Database, store: SQLStore) -> None:
        row, first = approved(store)
        store.controls()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                written = store.write([claim(row, first)], seal)
                again = store.write([REFUSAL], seal)
                fine = (
                    written is not None and again is not None and written.events[0].chain != first.chain
                    and again.events[0].chain == written.events[0].chain and store.controls() == []
                )
                status = 0 if fine else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert store.write([claim(row, first)], seal) is None
        written = store.write([REFUSAL], seal)
        assert written is not None
        assert written.events[0].chain == first.chain
        assert len(store.chains()) == 2


class TestMariaDB:
    @pytest.fixture
    def mariadb(self, make_database: Callable[..., Database]) -> Database:
        return make_database("mariadb")

    def test_a_server_whose_inserts_answer_nothing_is_asked_for_its_clock(
        self, mariadb: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(mariadb)
        server = "SELECT '8.4.0', 0, 0, 1"  # as MySQL would say
        monkeypatch.setattr("hitl_guard.store.dialects.mariadb._PROBE", server)
        row, first = approved(store)
        other, second = approved(store)

        written = store.write([claim(row, first, before=store.now() + HOUR)], seal)

        assert not store._dialect.returning
        assert written is not None
        assert store.write([claim(other, second, before=0)], seal) is None
        assert store.write([claim(row, first)], seal) is None
        assert store.write([AddRequest(row, RUN, 9)], seal) is None
        assert events_of(store, row) == (first, *written.events)

    def test_a_clock_that_stands_still_is_refused(
        self, mariadb: Database, open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hitl_guard.store.dialects.mariadb._PROBE", "SELECT '11.4.2-MariaDB', 0, 0, 0")

        with pytest.raises(ConfigurationError) as caught:
            open_store(mariadb).now()

        assert caught.value.detail == "clock"

    def test_the_meaning_of_errors(self, mariadb: Database, open_store: Callable[..., SQLStore]) -> None:
        failure = open_store(mariadb)._dialect.failure
        meant = {
            1062: Failure.RACE, 1213: Failure.RACE, 1205: Failure.TIMEOUT, 1969: Failure.TIMEOUT, 3024: Failure.TIMEOUT,
            1146: Failure.SCHEMA, 1064: Failure.REFUSED, 2006: Failure.LOST, 2013: Failure.LOST, 1927: Failure.LOST,
        }

        assert {code: failure(pymysql.err.OperationalError(code, "…")) for code in meant} == meant
        assert failure(pymysql.err.InterfaceError(0, "")) is Failure.LOST
        assert failure(pymysql.err.OperationalError()) is Failure.LOST


class TestPostgreSQL:
    def test_the_meaning_of_errors(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        failure = open_store(make_database("postgresql"))._dialect.failure
        meant = {
            "23505": Failure.RACE, "40001": Failure.RACE, "40P01": Failure.RACE, "22012": Failure.RACE,
            "55P03": Failure.TIMEOUT, "57014": Failure.TIMEOUT, "42P01": Failure.SCHEMA, "42601": Failure.REFUSED,
            "57P01": Failure.LOST, "08006": Failure.LOST,
        }

        assert {state: failure(psycopg.errors.lookup(state)("…")) for state in meant} == meant
        assert failure(psycopg.OperationalError("…")) is Failure.LOST

    def test_a_server_that_answers_nothing_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter(range(0, 1000, 10))
        monkeypatch.setattr(postgresql, "monotonic_ms", lambda: next(clock))

        def silent() -> Generator[str, Any, None]:
            while True:
                yield "wait"

        steps = postgresql._limited(silent(), 50)
        assert next(steps) == "wait"
        assert steps.send(1) == "wait"

        for _ in range(5):
            assert steps.send(0) == "wait"

        with pytest.raises(psycopg.OperationalError):
            steps.send(0)

    def test_a_server_that_answers_is_waited_for(self) -> None:
        def answering() -> Generator[str, Any, str]:
            yield "wait"
            return "answer"

        steps = postgresql._limited(answering(), 0)
        next(steps)

        with pytest.raises(StopIteration) as caught:
            steps.send(1)

        assert caught.value.value == "answer"

    def test_a_frozen_servers_connection_is_given_up(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store = open_store(make_database("postgresql"))
        row, first = approved(store)

        def frozen(steps: Generator[Any, Any, Any], limit_ms: int) -> Generator[Any, Any, Any]:
            yield next(steps)
            raise postgresql._FrozenServer("no answer in time")

        with monkeypatch.context() as patch:
            patch.setattr(postgresql, "_limited", frozen)
            with pytest.raises(StoreUnavailableError) as caught:
                store.write([claim(row, first)], seal)
        assert caught.value.detail == "commit-unknown"

        written = store.write([REFUSAL], seal)
        assert written is not None
        assert written.events[0].chain != first.chain

    def test_settings_of_the_session_make_claims_durable(
        self, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        database = make_database("postgresql")
        database.reusable = False
        name = make_url(database.url).database
        database.execute(f"ALTER DATABASE {name} SET synchronous_commit = 'off'")
        store = open_store(database)

        rows = store._connections.read(
            lambda raw: raw.execute(
                "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
            ).fetchall()
        )

        assert rows == [("on", "read committed")]


def test_controls_of_many_tenants_are_listed(store: SQLStore) -> None:
    for tenant in ("b", "a"):
        set_control(store, 1, tenant)

    assert sorted(row.tenant for row in store.controls()) == ["a", "b"]
