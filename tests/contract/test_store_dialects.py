"""What is particular to one kind of database."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.store.base import AddRequest
from hitl_guard.store.dialects import postgresql, sqlite
from hitl_guard.store.dialects.base import Failure
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    REFUSAL,
    RUN,
    approved,
    claim,
    events_of,
    seal,
)
from tests.databases import Database


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
