"""The connections of one store: readers, writers, listeners, a few for SQLAlchemy; and what a fork does to them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy.exc
from sqlalchemy import Connection

from ..errors import StoreUnavailableError
from .dialects.base import Dialect, Failure, translated
from .pool import Lease, Pool

_T = TypeVar("_T")
_INHERITED: list[Any] = []
"""What a forked child inherited. It is kept for ever: closing it would end the parent's sessions."""


class Connections:
    """Lends the connections of one store."""

    def __init__(self, dialect: Dialect, *, pool_size: int, timeout_ms: int) -> None:
        self._dialect = dialect
        self._pool_size = pool_size
        self._timeout_ms = timeout_ms
        self._open()
        _ALL.add(self)

    def _open(self) -> None:
        dialect = self._dialect
        self._readers = Pool(
            lambda: dialect.connect(read_only=True), self._disconnect, size=self._pool_size, timeout_ms=self._timeout_ms
        )
        self.writers = Pool(
            lambda: dialect.connect(read_only=False), self._disconnect, timeout_ms=self._timeout_ms,
            size=min(self._pool_size, dialect.most_writers),
        )
        self._listeners = Pool(
            dialect.listener, self._disconnect, size=self._pool_size, timeout_ms=self._timeout_ms
        )
        self._cold = dialect.engine()

    def writer(self) -> Lease:
        """Borrow a writer's connection from `writers`."""
        return self._borrow(self.writers)

    def reader_idle(self) -> bool:
        """Whether a reader's connection is open and lent to nobody right now."""
        return self._readers.idle()

    def read(self, work: Callable[..., _T], *given: Any) -> _T:
        """Return what ``work`` reads on a driver's connection and with ``given``, outside any transaction."""
        return self._use(self._readers, work, *given)

    def listen(self, work: Callable[[Any], _T]) -> _T:
        """Return what ``work`` hears on a connection that listens; it goes on listening between two calls."""
        return self._use(self._listeners, work)

    def _use(self, pool: Pool, work: Callable[..., _T], *given: Any) -> _T:
        lease = self._borrow(pool)
        try:
            found = work(lease.raw, *given)
        except self._dialect.error as error:
            pool.discard(lease)
            self.heed(error)
            raise translated(self._dialect, error) from error
        except BaseException:
            pool.discard(lease)
            raise
        pool.give_back(lease)
        return found

    def query(self, work: Callable[[Connection], _T]) -> _T:
        """Return what ``work`` reads through SQLAlchemy (paths where its cost does not matter)."""
        self._dialect.verify()
        try:
            with self._cold.connect() as connection:
                return work(connection)
        except sqlalchemy.exc.TimeoutError as error:
            raise StoreUnavailableError("No database connection became free in time.", detail="timeout") from error
        except sqlalchemy.exc.DBAPIError as error:
            cause = error.orig if isinstance(error.orig, Exception) else error
            self.heed(cause)
            raise translated(self._dialect, cause) from error

    def heed(self, error: Exception) -> Failure:
        """Say what a driver's error means. Where a connection broke, replace all before their next use.

        So a restarted server costs one failure per operation under way, not one per pooled connection.
        """
        failure = self._dialect.failure(error)
        if failure is Failure.LOST:
            self._readers.lost()
            self._listeners.lost()
            self.writers.lost()
            self._cold.dispose()
        return failure

    def close(self) -> None:
        """Close every connection that is not in use, and the others when they come back."""
        self._readers.close()
        self._listeners.close()
        self.writers.close()
        self._cold.dispose()

    def forked(self) -> None:
        """In a forked child: leave the parent's connections and chains alone and start with none."""
        _INHERITED.append((self._readers, self._listeners, self.writers, self._cold))
        self._open()

    def _borrow(self, pool: Pool) -> Lease:
        self._dialect.verify()
        try:
            return pool.borrow()
        except self._dialect.error as error:
            raise translated(self._dialect, error) from error

    def _disconnect(self, raw: Any) -> None:
        # The connection is given up because of an error that is reported elsewhere; what closing it says adds nothing.
        with suppress(*self._dialect.error, OSError):
            raw.close()


_ALL: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forked() -> None:
    for connections in list(_ALL):
        connections.forked()


os.register_at_fork(after_in_child=_forked)
