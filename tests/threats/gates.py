"""A store at whose first read a race is provoked: everyone has read before anyone writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from hitl_guard.errors import ApprovalRequired, HitlGuardError, UnavailableError
from hitl_guard.store.base import Loaded

LIMIT_S = 30
"""How long a rival waits for the others before the test fails: a guard against hanging, not a measure of speed."""

T = TypeVar("T")


class GatedStore:
    """A real store that stops each thread once, right after it has read.

    Args:
        after: The method that the actor reads with: ``load``, ``open_requests`` (a sweep) or ``now`` (settling).
        passed: Called once per thread, after its first such read.
        now: What that first read says the time was: the thread read in time, and was suspended since.
    """

    def __init__(
        self, store: Any, passed: Callable[[], object], *, after: str = "load", now: int | None = None
    ) -> None:
        self._store, self._passed, self._after, self._now = store, passed, after, now
        self._seen = threading.local()

    def load(self, *args: Any, **options: Any) -> Loaded:
        found: Loaded = self._store.load(*args, **options)
        return self._gate("load", found if self._now is None or self._has_passed() else replace(found, now=self._now))

    def open_requests(self, **options: Any) -> Any:
        return self._gate("open_requests", self._store.open_requests(**options))

    def now(self) -> int:
        return self._gate("now", int(self._store.now()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _has_passed(self) -> bool:
        return getattr(self._seen, "passed", False)

    def _gate(self, method: str, found: T) -> T:
        if method == self._after and not self._has_passed():
            self._seen.passed = True
            self._passed()
        return found


def told(action: Callable[[], object]) -> str:
    """Run ``action`` and return what it was told: ``ok``, ``asked`` (a person must decide) or the error's code.

    Where the store failed, which no race may bring about, the cause is told too.
    """
    try:
        action()
    except ApprovalRequired:
        return "asked"
    except UnavailableError as error:
        return f"{error.code} {error.detail}: {error.__cause__!r}"
    except HitlGuardError as error:
        return error.code
    return "ok"


def at_once(actions: Sequence[Callable[[], T]]) -> list[T]:
    """Run every action in a thread of its own and return their results in order."""
    with ThreadPoolExecutor(len(actions)) as threads:
        return [job.result(LIMIT_S) for job in [threads.submit(action) for action in actions]]


def all_read(parties: int) -> Callable[[], object]:
    """Return what to wait at until ``parties`` threads have read."""
    barrier = threading.Barrier(parties)
    return lambda: barrier.wait(LIMIT_S)
