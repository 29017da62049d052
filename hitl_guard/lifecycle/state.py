"""The state machine of one request. One table is the protocol: what is not in it cannot happen.

States: ``pending → approved | denied | expired | revoked | superseded``; ``approved → executing | expired | revoked |
superseded``; ``executing → succeeded | failed | in_doubt | suspended``; ``suspended → executing | revoked``;
``in_doubt → succeeded | failed | abandoned``. Terminal states never leave; no state leads back to ``approved``.

``suspended`` is a tool's own word, by the claim's holder: it stopped, to be started again from the top with an answer.
Each such start is one event as well, so that nothing can repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from ..errors import StoreRolledBackError

TRANSITIONS = MappingProxyType({
    ("pending", "request:voted"): "pending",
    ("pending", "request:approved"): "approved",
    ("pending", "request:denied"): "denied",
    ("pending", "request:expired"): "expired",
    ("pending", "request:revoked"): "revoked",
    ("pending", "request:superseded"): "superseded",
    ("approved", "grant:claimed"): "executing",
    ("approved", "request:expired"): "expired",
    ("approved", "request:revoked"): "revoked",
    ("approved", "request:superseded"): "superseded",
    ("executing", "call:succeeded"): "succeeded",
    ("executing", "call:failed"): "failed",
    ("executing", "call:in_doubt"): "in_doubt",
    ("executing", "call:suspended"): "suspended",
    ("suspended", "grant:resumed"): "executing",
    ("suspended", "request:revoked"): "revoked",
    ("in_doubt", "call:succeeded"): "succeeded",
    ("in_doubt", "call:failed"): "failed",
    ("in_doubt", "call:abandoned"): "abandoned",
})
"""``(state, event type) → next state``."""

STATES = frozenset({"pending", *TRANSITIONS.values()})

ENDED = STATES - {state for state, _ in TRANSITIONS}
"""The states that nothing leaves."""


def fold(types: Iterable[str]) -> str:
    """Return the state after the given event types, from ``pending``.

    Raises:
        StoreRolledBackError: they are no path of the table; signed events are missing or out of place.
    """
    state = "pending"
    for kind in types:
        following = TRANSITIONS.get((state, kind))
        if following is None:
            raise StoreRolledBackError(
                "A request's events contradict each other: some were deleted. Run 'hitl-guard audit verify'.",
                detail="transition",
            )
        state = following
    return state


def at(state: str, *, now: int, decide_by: int, execute_by: int | None, run_by: int | None) -> str:
    """Return ``state`` as it reads at ``now``: overdue ones read as expired, or as in doubt, at once."""
    if state == "pending" and now >= decide_by:
        return "expired"
    if state == "approved" and (execute_by is None or now >= execute_by):
        return "expired"
    if state == "executing" and (run_by is None or now >= run_by):
        return "in_doubt"
    return state
