"""A small pool of driver connections for the hot path.

SQLAlchemy's pool costs 5 µs a loan, half as much as a whole SQLite UPDATE, and the hot path needs none of its hooks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from ..errors import StoreUnavailableError
from .anchors import Chain


class Lease:
    """One borrowed driver connection, and the chain that lives with it.

    Attributes:
        raw: The driver's connection.
        dirty: Whether a transaction may be open, or its outcome unknown: then the lease is discarded in the end.
        chain: The writer's chain; None before its first event, and on readers.
    """

    __slots__ = ("chain", "dirty", "generation", "raw")

    def __init__(self, raw: Any, generation: int) -> None:
        self.raw = raw
        self.generation = generation
        self.dirty = False
        self.chain: Chain | None = None


class Pool:
    """At most ``size`` connections, the last used first, so that a quiet process keeps few chains.

    Args:
        connect: Makes a driver connection.
        disconnect: Ends one, whatever its state; never raises a driver's error.
        timeout_ms: How long a borrower waits for a free one.
    """

    def __init__(
        self, connect: Callable[[], Any], disconnect: Callable[[Any], None], *, size: int, timeout_ms: int
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._timeout_s = timeout_ms / 1000
        # One token per connection that may be lent. (A `threading.Semaphore` is written in Python, and costs µs.)
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._slots.put(None)
        self._idle: list[Lease] = []
        self._lock = threading.Lock()
        self._left: list[Chain] = []
        self._generation = 0

    def idle(self) -> bool:
        """Whether a connection is open and lent to nobody right now."""
        return bool(self._idle)

    def borrow(self) -> Lease:
        """Lend a connection; hand it to `give_back` or `discard` afterwards, exactly once.

        Raises:
            StoreUnavailableError: none became free in time. A driver's error passes through.
        """
        try:
            self._slots.get(timeout=self._timeout_s)
        except queue.Empty:
            raise StoreUnavailableError(
                "No database connection became free in time. Nothing was written.", detail="timeout"
            ) from None
        try:
            while True:
                try:
                    lease = self._idle.pop()
                except IndexError:
                    return Lease(self._connect(), self._generation)
                if lease.generation == self._generation:
                    return lease
                self._end(lease)
        except BaseException:
            self._slots.put(None)
            raise

    def give_back(self, lease: Lease) -> None:
        """Take back a connection that has no transaction open."""
        if lease.generation == self._generation:
            self._idle.append(lease)
        else:
            self._end(lease)
        self._slots.put(None)

    def discard(self, lease: Lease) -> None:
        """Take back a connection in an unknown state: it is closed, and its chain ends."""
        self._end(lease)
        self._slots.put(None)

    def lost(self) -> None:
        """Replace every connection of today's age before its next use."""
        self._generation += 1

    def left(self) -> list[Chain]:
        """Return the ends of the chains that were given up here and not looked for since."""
        with self._lock:
            return list(self._left)

    def found(self, chains: list[Chain]) -> None:
        """The ends of ``chains`` were found in the database and an anchor records them."""
        with self._lock:
            self._left = [chain for chain in self._left if chain not in chains]

    def close(self) -> None:
        """Close every connection: idle ones now, borrowed ones when they come back. The pool can be used again."""
        self._generation += 1
        while self._idle:
            self._end(self._idle.pop())

    def _end(self, lease: Lease) -> None:
        if lease.chain is not None:
            with self._lock:
                self._left.append(lease.chain)
        self._disconnect(lease.raw)
