"""MariaDB and MySQL through PyMySQL. Imported only when a URL asks for it.

Columns are binary, so no collation takes part: MariaDB's default one matched ``'Tenant-A '`` to ``tenant-a``. Writers'
connections have autocommit off, which saves the round trip of BEGIN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.err import InterfaceError
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import NullPool, QueuePool

from ...errors import ConfigurationError, StoreUnavailableError
from ..hot import Words
from .base import MIGRATION_WAIT_S, Dialect, Failure, Rows

_RACE = frozenset({1062, 1213})  # duplicate entry, deadlock
_TIMEOUT = frozenset({1205, 1317, 1969, 3024})  # lock wait, interrupted, MariaDB's and MySQL's statement limits
_ENDED = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1927, 4031})  # shutdown, aborted, network, killed, idle
_NO_TABLE = 1146
_PROBE = "SELECT VERSION(), SYSDATE(6), SLEEP(0.001), SYSDATE(6)"
_GRACE_S = 2
"""How much longer the client waits than the server, so that the server's own answer normally comes first."""


class MariaDB(Dialect):
    """A MariaDB (10.5 or later) or MySQL (8.0 or later) server with InnoDB.

    A claim is as durable as the server's ``innodb_flush_log_at_trx_commit``: leave it at 1.
    """

    name = "mariadb"
    # SYSDATE is the moment of its evaluation, NOW that of the statement's start.
    words = Words(
        clock="CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)", share=" LOCK IN SHARE MODE", dual=" FROM DUAL"
    )
    error = (pymysql.MySQLError,)

    def __init__(self, url: URL, *, timeout_ms: int) -> None:
        if not url.database:
            raise ConfigurationError("The database URL names no database: mariadb://host/database.", detail="url")
        super().__init__(url.set(drivername="mysql+pymysql"), timeout_ms=timeout_ms)
        # SQLAlchemy knows how a URL becomes PyMySQL's arguments.
        self._args, self._options = create_engine(self.url).dialect.create_connect_args(self.url)

    def connect(self, *, read_only: bool) -> Any:
        limit_s = max(1, -(-self.timeout_ms // 1000))
        options = dict(self._options) | {
            "autocommit": read_only, "charset": "utf8mb4", "binary_prefix": True,
            "connect_timeout": limit_s, "read_timeout": limit_s + _GRACE_S, "write_timeout": limit_s + _GRACE_S,
        }
        connection = pymysql.connect(*self._args, **options)
        try:
            with connection.cursor() as cursor:
                access = ", READ ONLY" if read_only else ""
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED{access}")
                cursor.execute(
                    "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
                    f"innodb_lock_wait_timeout = {limit_s}, lock_wait_timeout = {limit_s}"
                )
                cursor.execute(_PROBE)
                version, earlier, _, later = cursor.fetchone()
                if earlier == later:
                    raise ConfigurationError(
                        "The server runs with sysdate-is-now: its clock stands still while a statement waits. "
                        "Remove that option.",
                        detail="clock",
                    )
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        # MySQL has no INSERT … RETURNING; there the clock is a statement of its own in the same transaction.
        self.returning = "MariaDB" in version
        return connection

    def engine(self) -> Engine:
        engine = create_engine(
            self.url, poolclass=QueuePool, pool_size=2, max_overflow=0, pool_timeout=self.timeout_ms / 1000,
            pool_reset_on_return=None, hide_parameters=True,
        )

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, _args: list[Any], _options: dict[str, Any]) -> Any:
            return self.connect(read_only=True)

        return engine

    def migrator(self) -> Engine:
        return create_engine(self.url, poolclass=NullPool, hide_parameters=True)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        name = "CONCAT('hitl_guard_', MD5(DATABASE()))"
        if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {MIGRATION_WAIT_S})").scalar_one() != 1:
            raise StoreUnavailableError("Another process migrates the database and does not end.", detail="timeout")
        yield
        # DDL commits by itself here; what remains is the version table's row. The lock ends with the connection.
        connection.commit()

    def failure(self, error: Exception) -> Failure:
        code = error.args[0] if error.args else None
        if isinstance(error, InterfaceError) or not isinstance(code, int) or 2000 <= code < 3000 or code in _ENDED:
            return Failure.LOST
        if code in _RACE:
            return Failure.RACE
        if code in _TIMEOUT:
            return Failure.TIMEOUT
        return Failure.SCHEMA if code == _NO_TABLE else Failure.REFUSED

    def run(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with raw.cursor() as cursor:
            cursor.execute(sql, parameters)
            rows: Rows = cursor.fetchall()
        return rows

    def change(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> int:
        with raw.cursor() as cursor:
            return int(cursor.execute(sql, parameters))

    def begin(self, raw: Any) -> None:
        """Nothing to send: autocommit is off, so that the first statement starts the transaction."""

    def commit(self, raw: Any) -> None:
        raw.commit()

    def rollback(self, raw: Any) -> None:
        raw.rollback()
