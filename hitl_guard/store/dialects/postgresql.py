"""PostgreSQL through psycopg 3. Imported only when a URL asks for it.

Connections are in autocommit mode: a claim is one statement and one round trip, a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import NullPool, QueuePool

from ...clock import monotonic_ms
from .. import schema
from ..hot import UNLIST, Shape, Words
from .base import MIGRATION_WAIT_S, Dialect, Failure, Rows

_T = TypeVar("_T")
_RACE = frozenset({
    "23505",  # unique_violation
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "22012",  # division_by_zero: our own way to say "too late", see `PostgreSQL.appending`
})
_TIMEOUT = frozenset({"55P03", "57014", "25P03"})  # lock_not_available, query_canceled, idle in transaction
_SCHEMA_LOCK = 0x6869746C67756172  # "hitlguar"; any number that no other program on the server uses
CHANNEL = "hitl_guard"
"""What is notified; each database of a server has channels of its own."""
_GRACE_MS = 2_000
"""How much longer the client waits than the server, so that the server's own answer normally comes first."""

_SETTINGS = {
    "default_transaction_isolation": "'read committed'",
    "default_transaction_read_only": "%(read_only)s",
    "statement_timeout": "%(limit)s",
    "lock_timeout": "%(limit)s",
    # A client that vanished must not hold its locks for ever.
    "idle_in_transaction_session_timeout": "%(patience)s",
    # Every hot statement goes by a unique index. Plans made while the tables were nearly empty would scan them, and
    # would be kept while they grow.
    "plan_cache_mode": "'force_generic_plan'",
    "enable_seqscan": "'off'",
    "jit": "'off'",
    # No schema of somebody else's may stand before the server's own functions: the clock decides what expired.
    "search_path": "'pg_catalog, ' || current_setting('search_path')",
}
# A claim is durable before the tool runs; settings stronger than 'on' stay as they are.
_SESSION = (
    "SELECT " + ", ".join(f"set_config('{name}', {value}, false)" for name, value in _SETTINGS.items())
    + ", CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN set_config('synchronous_commit', 'on', false) END"
)


class _FrozenServer(psycopg.OperationalError):
    """The server did not answer, not even that it gave up."""


def _limited(steps: Generator[Any, Any, _T], limit_ms: int) -> Generator[Any, Any, _T]:
    """Pass psycopg's steps through, and raise once the server has been silent for ``limit_ms``."""
    until = 0
    ready: Any = None
    while True:
        try:
            state = steps.send(ready)
        except StopIteration as end:
            answer: _T = end.value
            return answer
        ready = yield state
        if not ready:  # psycopg wakes up now and then, so that no clock is read while answers come
            until = until or monotonic_ms() + limit_ms
            if monotonic_ms() > until:
                raise _FrozenServer("no answer in time")


class _Connection(psycopg.Connection[Any]):
    """A connection that never waits without a limit, even for a server that is frozen."""

    limit_ms: int = 30_000

    def wait(self, gen: Generator[Any, Any, _T], *args: Any, **kwargs: Any) -> _T:
        """Wait as psycopg does, but not for ever."""
        try:
            return super().wait(_limited(gen, self.limit_ms), *args, **kwargs)
        except _FrozenServer:
            # What the server does with the statement is unknown from here on.
            self.close()
            raise


class _Listener(psycopg.Connection[Any]):
    """A connection that hears of writes: it may be silent for as long as nothing happens."""

    fresh: bool = True


class PostgreSQL(Dialect):
    """A PostgreSQL server, 14 or later, with ``fsync`` on.

    Sessions keep settings and prepared statements: a pooler in between must pool sessions, not transactions.
    """

    name = "postgresql"
    words = Words(
        clock="CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)",
        share=" FOR SHARE",
        skip=" ON CONFLICT DO NOTHING",
        binary="'\\x{}'::bytea",
    )
    one_statement = True
    error = (psycopg.Error,)

    def __init__(self, url: URL, *, timeout_ms: int) -> None:
        super().__init__(url.set(drivername="postgresql+psycopg"), timeout_ms=timeout_ms)
        # SQLAlchemy knows how a URL becomes psycopg's arguments.
        self._args, self._options = create_engine(self.url).dialect.create_connect_args(self.url)

    def connect(self, *, read_only: bool) -> psycopg.Connection[Any]:
        options = {"connect_timeout": max(2, self.timeout_ms // 1000), **self._options}
        connection = _Connection.connect(*self._args, **options, autocommit=True)
        try:
            connection.limit_ms = self.timeout_ms + _GRACE_MS
            connection.prepare_threshold = 0
            settings = {"limit": self.timeout_ms, "patience": connection.limit_ms, "read_only": read_only}
            connection.execute(_SESSION, {name: str(value) for name, value in settings.items()})
        except BaseException:
            connection.close()
            raise
        return connection

    def engine(self) -> Engine:
        engine = create_engine(
            self.url, poolclass=QueuePool, pool_size=2, max_overflow=0, pool_timeout=self.timeout_ms / 1000,
            pool_reset_on_return=None, hide_parameters=True, isolation_level="AUTOCOMMIT", use_native_hstore=False,
        )

        @event.listens_for(engine, "do_connect")
        def connect(
            _dialect: Any, _record: Any, _args: list[Any], _options: dict[str, Any]
        ) -> psycopg.Connection[Any]:
            return self.connect(read_only=True)

        return engine

    def migrator(self) -> Engine:
        return create_engine(self.url, poolclass=NullPool, hide_parameters=True, use_native_hstore=False)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{MIGRATION_WAIT_S}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
        yield
        connection.commit()

    def failure(self, error: Exception) -> Failure:
        state = getattr(error, "sqlstate", None)
        if state is None or (state[:2] in ("08", "57") and state not in _TIMEOUT):
            return Failure.LOST
        if state in _RACE:
            return Failure.RACE
        if state in _TIMEOUT:
            return Failure.TIMEOUT
        return Failure.SCHEMA if state == "42P01" else Failure.REFUSED

    def run(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
        rows: Rows = raw.execute(sql, parameters, binary=True).fetchall()
        return rows

    def change(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> int:
        return int(raw.execute(sql, parameters).rowcount)

    def begin(self, raw: Any) -> None:
        raw.execute("BEGIN")

    def commit(self, raw: Any) -> None:
        raw.execute("COMMIT")

    def rollback(self, raw: Any) -> None:
        if raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raw.execute("ROLLBACK")

    def appending(self, text: str, shape: Shape, unlist: bool) -> str:
        """The WHERE is evaluated before a wait on a unique index ends; what is returned, after it. So the clock is
        compared again there, and "too late" is a division by zero, which undoes the whole statement."""
        answer = self.answer
        if shape.before:
            answer += f", 1 / (CASE WHEN {self.words.clock} < :before THEN 1 ELSE 0 END)"
        if not unlist:
            return f"{text} RETURNING {answer}"
        # The join needs both parts before its first row, so that the clock is read after the DELETE's wait too.
        return (
            f"WITH appended AS ({text} RETURNING request_id), "
            f"unlisted AS ({UNLIST} AND EXISTS (SELECT 1 FROM appended) RETURNING 1) "
            f"SELECT {answer} FROM appended CROSS JOIN (SELECT count(*) FROM unlisted) u"
        )

    def notify(self) -> None:
        # The comparison makes a boolean of it: the function itself returns nothing that a driver could read.
        self.answer = f"{self.words.clock}, pg_notify('{CHANNEL}', '') IS NULL"

    def listener(self) -> psycopg.Connection[Any]:
        if self.answer == self.words.clock:
            return self.connect(read_only=True)
        options = {"connect_timeout": max(2, self.timeout_ms // 1000), **self._options}
        connection = _Listener.connect(*self._args, **options, autocommit=True)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return connection

    def heard(self, raw: Any, timeout_ms: int) -> bool:
        if not isinstance(raw, _Listener):
            return False
        if raw.fresh:
            # What was written before it listened, nobody told it.
            raw.fresh = False
            return True
        # To the end of what arrived together: many writes are one reason to look.
        return bool(list(raw.notifies(timeout=timeout_ms / 1000, stop_after=1)))

    def exclude_claims(self, raw: Any) -> None:
        # Claims' share locks on the row otherwise starve its update: 6.5 s instead of 10 ms.
        raw.execute(f"LOCK TABLE {schema.control.name} IN EXCLUSIVE MODE")
