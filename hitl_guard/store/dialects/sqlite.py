"""SQLite: the embedded default. WAL, synchronous=FULL, one writer connection per store and process.

Reads have connections of their own in autocommit mode, so that they never hold the write lock. A file that was
renamed over, replaced or deleted is noticed by its inode: the driver would go on with the old file.
"""

from __future__ import annotations

import os
import pathlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import NullPool, QueuePool

from ...clock import monotonic_ms, sleep_ms
from ...errors import ConfigurationError, StoreRolledBackError
from ..hot import Words
from .base import Dialect, Failure, Rows

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_TAKEN = frozenset({sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY})


class SQLite(Dialect):
    """A SQLite file."""

    name = "sqlite"
    # julianday counts days; its resolution (40 µs) recovers SQLite's whole milliseconds exactly. 'now' is one value
    # within a statement, and no statement waits inside BEGIN IMMEDIATE.
    words = Words(
        clock="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", skip=" ON CONFLICT DO NOTHING"
    )
    most_writers = 1
    error = (sqlite3.Error, OverflowError)  # an integer beyond 64 bits

    def __init__(self, url: URL, *, timeout_ms: int) -> None:
        database = url.database or ""
        if database in ("", ":memory:") or database.startswith("file:") or url.query:
            raise ConfigurationError(
                "SQLStore needs a SQLite file (sqlite:///path, without options): an approval must survive a restart.",
                detail="url",
            )
        self.path = os.path.abspath(database)
        self._inode: tuple[int, int] | None = None
        super().__init__(url, timeout_ms=timeout_ms)

    def connect(self, *, read_only: bool) -> sqlite3.Connection:
        self.verify()
        return self._connect("rw", query_only=read_only)

    def _connect(self, access: str, *, query_only: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{pathlib.Path(self.path).as_uri()}?mode={access}", uri=True, isolation_level=None,
            timeout=self.timeout_ms / 1000, check_same_thread=False,
        )
        try:
            if self._journal(connection) != "wal":
                raise ConfigurationError("The SQLite file cannot be kept in WAL mode; use a local disk.", detail="wal")
            # NORMAL can give a spent approval back after a power cut; fullfsync is macOS's real fsync.
            for pragma in ("synchronous = FULL", "fullfsync = ON", "trusted_schema = OFF"):
                connection.execute(f"PRAGMA {pragma}")
            if query_only:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _journal(self, connection: sqlite3.Connection) -> Any:
        """Switch to WAL and return the mode that resulted. SQLite does not wait here for others who switch: we do."""
        until = monotonic_ms() + self.timeout_ms
        while True:
            try:
                return connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if self.failure(error) is not Failure.TIMEOUT or monotonic_ms() >= until:
                    raise
                sleep_ms(5)

    def engine(self) -> Engine:
        engine = create_engine(
            "sqlite+pysqlite://", poolclass=QueuePool, pool_size=2, max_overflow=0, hide_parameters=True,
            pool_timeout=self.timeout_ms / 1000, pool_reset_on_return=None, isolation_level="AUTOCOMMIT",
        )

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, _args: list[Any], _options: dict[str, Any]) -> sqlite3.Connection:
            return self.connect(read_only=True)

        return engine

    def migrator(self) -> Engine:
        engine = create_engine("sqlite+pysqlite://", poolclass=NullPool, hide_parameters=True)

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, _args: list[Any], _options: dict[str, Any]) -> sqlite3.Connection:
            # Arguments may hold secrets: only the owner reads a file that we make (SQLite gives -wal the same mode).
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as error:
                raise ConfigurationError(
                    "The SQLite file cannot be made or opened. Check its folder and their permissions.", detail="file"
                ) from error
            return self._connect("rwc", query_only=False)

        return engine

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        connection.commit()

    def verify(self) -> None:
        try:
            stat = os.stat(self.path)
        except OSError as error:
            if self._inode is None:
                raise ConfigurationError(
                    "The SQLite file does not exist. Run `hitl-guard db upgrade` (or SQLStore.setup()).",
                    detail="schema",
                ) from error
            raise _replaced() from error
        inode = (stat.st_dev, stat.st_ino)
        if self._inode != inode:
            if self._inode is not None:
                raise _replaced()
            self._inode = inode

    def failure(self, error: Exception) -> Failure:
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in _BUSY:
            return Failure.TIMEOUT
        if code in _TAKEN:
            return Failure.RACE
        if code == sqlite3.SQLITE_ERROR and str(error).startswith("no such table"):
            return Failure.SCHEMA
        return Failure.REFUSED

    def statement(self, text: str) -> str:
        return text

    def run(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
        rows: Rows = raw.execute(sql, parameters).fetchall()
        return rows

    def change(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> int:
        return int(raw.execute(sql, parameters).rowcount)

    def begin(self, raw: Any) -> None:
        raw.execute("BEGIN IMMEDIATE")

    def commit(self, raw: Any) -> None:
        raw.execute("COMMIT")

    def rollback(self, raw: Any) -> None:
        if raw.in_transaction:
            raw.execute("ROLLBACK")


def _replaced() -> StoreRolledBackError:
    return StoreRolledBackError(
        "The SQLite file was replaced or deleted while it was in use. Find out why, run `hitl-guard audit verify`, "
        "then restart.",
        detail="file",
    )
