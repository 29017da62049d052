"""Values as a JavaScript client sends them back: every number went through a double (IEEE 754) on its way."""

from __future__ import annotations

from typing import Any


def alike(stored: Any, posted: Any) -> bool:
    """Whether ``posted`` is what a JavaScript client makes of ``stored``: numbers are equal as doubles, the rest is.

    An integer beyond 2^53 comes back rounded, one beyond the largest double as null. So this says that somebody saw
    these arguments, never what may run: the stored ones run.
    """
    kind = type(stored)
    if kind is type(posted) and kind in (int, float) and stored == posted:
        return True  # also beyond every double
    if kind is dict:
        return type(posted) is dict and stored.keys() == posted.keys() and all(
            alike(item, posted[name]) for name, item in stored.items()
        )
    if kind is list:
        return type(posted) is list and len(stored) == len(posted) and all(map(alike, stored, posted))
    if kind is int or kind is float:
        double = _double(stored)
        if double is None:
            return posted is None
        return type(posted) in (int, float) and double == _double(posted)
    return kind is type(posted) and bool(stored == posted)


def _double(number: float) -> float | None:
    """Return a number as a double; None where it is beyond them all, which JavaScript writes as null."""
    try:
        return float(number)
    except OverflowError:
        return None
