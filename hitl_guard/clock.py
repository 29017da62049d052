"""The only reader of this process's clocks.

Decisions about approvals use the *database's* time (`Store.now`, epoch milliseconds). What is here serves start-up,
waiting and rate limits, where no store is asked.
"""

from __future__ import annotations

import time


def epoch_ms() -> int:
    """Return this host's wall clock in epoch milliseconds (key files made by the CLI, skew reports)."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that never goes back, in milliseconds (rate limits, refresh intervals, waiting)."""
    return time.monotonic_ns() // 1_000_000


def sleep_ms(duration: int) -> None:
    """Block this thread for ``duration`` milliseconds."""
    time.sleep(duration / 1000)
