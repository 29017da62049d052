"""Databases that fail at a chosen statement, at the drivers' own connections.

On PostgreSQL and MariaDB the socket is really shut, or the server really answers with an error, and the driver says
what it then says. SQLite has no socket: there the driver's call raises what a broken disk makes it raise.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import psycopg
import pymysql
import pymysql.cursors
import pytest

from hitl_guard.store.dialects import postgresql

T = TypeVar("T")

if TYPE_CHECKING:
    MariaDBConnection = pymysql.connections.Connection[Any]
else:  # generic in its type stubs alone
    MariaDBConnection = pymysql.connections.Connection

BEFORE, AFTER, COMMIT_BEFORE, COMMIT_AFTER, FULL = "before", "after", "commit-before", "commit-after", "disk-full"
WHEN = (BEFORE, AFTER, COMMIT_BEFORE, COMMIT_AFTER, FULL)
"""The connection breaks before the statement reaches the server, after it was executed, before or after its COMMIT;
or the server answers the statement with an error."""

_WRITES = {
    b"grant:claimed": "claim", b"call:refused": "audit", b"call:succeeded": "settle", b"request:approved": "decide",
}
_NOWHERE = {"host": "127.0.0.1", "port": 1}


class Faults:
    """Decides which statement of which connection fails. Everything works until `arm`, and again after `mend`."""

    def __init__(self) -> None:
        self.down = False
        self.happened = 0
        self._armed: tuple[str, str, bool] | None = None

    def arm(self, statement: str, when: str, *, stays_down: bool = False) -> None:
        """Let the next such statement fail.

        Args:
            statement: ``read`` (a grant), ``claim``, ``audit`` (a refusal), ``settle``, ``decide`` or ``ask``.
            when: One of `WHEN`.
            stays_down: Whether the database cannot be reached from then on.
        """
        self._armed = statement, when, stays_down

    def mend(self) -> None:
        self.down, self._armed = False, None

    def run(self, place: Place, sql: str, parameters: Any, really: Callable[[], T]) -> T:
        """Do ``really``, unless it is this statement's turn to fail."""
        if self.down:
            place.cut()
        committing, kind = sql == "COMMIT", _kind_of(sql, parameters)
        alone = place.alone()
        if committing:
            kind = place.writing
        elif kind is not None:
            place.writing = kind
        if self._armed is None or kind != self._armed[0]:
            return really()
        _, when, stays_down = self._armed
        if when.startswith("commit-"):
            if not (committing or alone):
                return really()
            when = when.removeprefix("commit-")
        elif committing:
            return really()
        self._armed, self.down = None, stays_down
        self.happened += 1
        if when == FULL:
            place.refuse()
        if when == AFTER:
            really()
        place.cut()


class Place(ABC):
    """What a faulty connection can do to itself. ``writing``: the kind of event that its transaction holds."""

    writing: str | None = None

    def alone(self) -> bool:
        """Whether a statement sent now is a transaction of its own."""
        return False

    @abstractmethod
    def cut(self) -> NoReturn:
        """Break the connection and raise what the driver says then."""

    @abstractmethod
    def refuse(self) -> NoReturn:
        """Raise what the driver says when the database refuses a statement."""


def _kind_of(sql: str, parameters: Any) -> str | None:
    if not isinstance(parameters, Mapping):
        return None
    if "type" in parameters:
        return _WRITES.get(parameters["type"])
    if "envelope" in parameters:
        return "ask"
    return "read" if "spend_key" in parameters and sql.startswith("SELECT") else None


def _shut(number: int) -> None:
    with socket.socket(fileno=os.dup(number)) as twin:
        twin.shutdown(socket.SHUT_RDWR)


def install(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Make the connections that are opened from now on faulty, and return what decides about them."""
    faults = Faults()
    _sqlite(monkeypatch, faults)
    _postgresql(monkeypatch, faults)
    _mariadb(monkeypatch, faults)
    return faults


def _sqlite(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    real = sqlite3.connect

    def broken(message: str, code: int) -> NoReturn:
        error = sqlite3.OperationalError(message)
        error.sqlite_errorcode = code
        raise error

    class Connection(sqlite3.Connection, Place):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            return faults.run(self, sql, parameters, lambda: super(Connection, self).execute(sql, parameters))

        def cut(self) -> NoReturn:
            broken("disk I/O error", sqlite3.SQLITE_IOERR)

        def refuse(self) -> NoReturn:
            broken("database or disk is full", sqlite3.SQLITE_FULL)

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        if faults.down:
            broken("unable to open database file", sqlite3.SQLITE_CANTOPEN)
        return real(*args, **options, factory=Connection)

    monkeypatch.setattr(sqlite3, "connect", connect)


def _postgresql(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    class Connection(postgresql._Connection, Place):
        @classmethod
        def connect(cls, *args: Any, **options: Any) -> Any:
            return super().connect(*args, **options | (_NOWHERE if faults.down else {}))

        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            return faults.run(
                self, str(query), params, lambda: super(Connection, self).execute(query, params, **options)
            )

        def alone(self) -> bool:
            return self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

        def cut(self) -> NoReturn:
            _shut(self.fileno())
            super().execute("SELECT 1")
            raise AssertionError("a connection that was cut answered")

        def refuse(self) -> NoReturn:
            super().execute("DO $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full'; END $$")
            raise AssertionError("the server did not refuse")

    monkeypatch.setattr(postgresql, "_Connection", Connection)


def _mariadb(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    class Cursor(pymysql.cursors.Cursor):
        connection: Connection

        def execute(self, query: str, args: Any = None) -> int:
            return faults.run(
                self.connection, query, args, lambda: super(Cursor, self).execute(query, args)
            )

    class Connection(MariaDBConnection, Place):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | (_NOWHERE if faults.down else {}), cursorclass=Cursor)

        def commit(self) -> None:
            faults.run(self, "COMMIT", None, super().commit)

        def cut(self) -> NoReturn:
            _shut(vars(self)["_sock"].fileno())
            self.ping(reconnect=False)
            raise AssertionError("a connection that was cut answered")

        def refuse(self) -> NoReturn:
            pymysql.cursors.Cursor(self).execute("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021")
            raise AssertionError("the server did not refuse")

    monkeypatch.setattr(pymysql, "connect", Connection)
