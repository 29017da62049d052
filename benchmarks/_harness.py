"""How every ratio is measured: interleaved rounds, medians, and one bound that the ratio must hold.

Machines are shared and noisy, so only ratios of one run count. In each round every candidate runs once, in turn: what
slows the machine for a while slows them alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: What is compared, in words.
        ours: Median seconds of one operation of ours.
        floor: Median seconds of what ours is compared with: a floor, or another package.
        ratio: ``ours / floor`` where a floor must be nearly reached, ``floor / ours`` where the other must be beaten.
        hold: The bound in force for the ratio, or None where a row only informs.
        ok: Whether the ratio holds; true where nothing is to hold.
    """

    name: str
    ours: float
    floor: float
    ratio: float
    hold: float | None
    ok: bool


def at_most(name: str, ours: float, floor: float, hold: float | None) -> Row:
    """Return a row that holds while ours takes at most ``hold`` times the floor."""
    ratio = ours / floor
    return Row(name, ours, floor, ratio, hold, hold is None or ratio <= hold)


def at_least(name: str, ours: float, other: float, hold: float | None) -> Row:
    """Return a row that holds while ours is at least ``hold`` times faster than the other."""
    ratio = other / ours
    return Row(name, ours, other, ratio, hold, hold is None or ratio >= hold)


def medians(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 201,
    seconds: float = 0.0005,
    repeats: int | None = None,
) -> dict[str, float]:
    """Measure candidates against one another.

    Args:
        candidates: What to run, by name. Each call is one operation.
        rounds: How often each candidate gets its turn.
        seconds: About how long one turn takes, so short that few turns are interrupted; an operation that takes
            longer runs once a turn.
        repeats: Operations in one turn, where their number must be known (they use up what was prepared). They are
            then neither warmed up nor counted by trial.

    Returns:
        The median seconds of one operation, by name.
    """
    counts = {name: repeats or _count(operation, seconds) for name, operation in candidates.items()}
    turns: dict[str, list[float]] = {name: [] for name in candidates}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, operation in candidates.items():
                turns[name].append(_turn(operation, counts[name]))
    finally:
        if collecting:
            gc.enable()
    return {name: statistics.median(measured) for name, measured in turns.items()}


def _count(operation: Callable[[], object], seconds: float) -> int:
    once = min(_turn(operation, 3) for _ in range(5))
    return max(1, round(seconds / once))


def _turn(operation: Callable[[], object], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        operation()
    return (time.perf_counter() - started) / repeats


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text for people; times in microseconds."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [f"{'':{width}}  {'ours µs':>10}  {'floor µs':>10}  {'ratio':>7}  {'hold':>6}  ok"]
    for row in rows:
        hold = "-" if row.hold is None else f"{row.hold:g}"
        verdict = "-" if row.hold is None else "yes" if row.ok else "NO"
        numbers = f"{row.ours * 1e6:10.2f}  {row.floor * 1e6:10.2f}  {row.ratio:7.2f}"
        lines.append(f"{row.name:{width}}  {numbers}  {hold:>6}  {verdict}")
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as they stand in ``results.json``: times in seconds."""
    return [asdict(row) for row in rows]
