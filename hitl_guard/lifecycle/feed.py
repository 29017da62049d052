"""The change feed: what any process wrote since the last look, found in the database by asking now and then.

A change is a hint that something is worth reading again, never evidence: it comes from columns that nobody verified,
and it carries no arguments. What is then read is verified as always.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..audit import REQUEST_EVENTS
from ..rows import EventRow
from .desk import Desk

MOST = 5_000
"""Changes that are told one by one; more at once become one ``reset``."""

OVERLAP = 60_000
"""How far before the last look (ms) new requests are looked for again, since a transaction may take that long between
reading the clock and its commit. One that takes longer is found by its first event, or in the list."""

ASKED, RESET = "request:asked", "reset"
"""The types of a `Change` that are none of an event."""

RETIRED = 10_000
"""Chains whose position is kept though no writer has them any more, before the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Change:
    """A hint at one change.

    Attributes:
        tenant, request_id: Where to look, both unverified. No request: of ``control:changed`` and ``reset``.
        version: The request's number of events after it; 0 for a new request.
        type: A request's event type, ``request:asked`` (a new request), ``control:changed``, or ``reset`` (so much
            changed at once that everything is worth reading again; it has no tenant).
        at: Epoch milliseconds; of ``reset`` the time of the look.
        chain, seq: The event's place, the same for every process; ``""`` and 0 where there is no event.
    """

    tenant: str
    request_id: str | None
    version: int
    type: str
    at: int
    chain: str = ""
    seq: int = 0


class Feed:
    """Finds what changed since it was made, and then since the last look. For one thread at a time.

    A look takes three queries, and one more for each chain that moved. No event is missed whose transaction was
    committed: a chain is in the store's list from the transaction of its first event on, and is there again before it
    goes on after it was taken off.

    Raises:
        StoreUnavailableError: from every method; nothing is lost by it, look again later.
    """

    def __init__(self, desk: Desk) -> None:
        self._store = desk.store
        self._looked = self._store.now()
        # Read after the clock: what is committed in between is told twice rather than never.
        self._position = dict(self._store.heads())
        self._asked = {id_ for _, _, id_ in self._new(self._looked, 0)}

    def position(self) -> dict[str, int]:
        """Return the number of the last event that was told, by chain."""
        return dict(self._position)

    def changes(self) -> list[Change]:
        """Return what changed: new requests first, then each chain's events in their order."""
        now, heads = self._store.now(), dict(self._store.heads())
        new = self._new(now, len(self._asked))
        fresh = [Change(tenant, id_, 0, ASKED, at) for at, tenant, id_ in new if id_ not in self._asked]
        position = self._position | heads
        moved = {chain: seq - self._position.get(chain, -1) for chain, seq in heads.items()}
        if min(moved.values(), default=0) < 0 or sum(moved.values()) + len(fresh) > MOST:
            fresh = [Change("", None, 0, RESET, now)]
        else:
            for chain in sorted(chain for chain, number in moved.items() if number):
                events = self._store.chain_events(chain, after=self._position.get(chain, -1), limit=MOST)
                fresh += [change for change in map(_change, events) if change is not None]
                position[chain] = max([heads[chain], *(event.seq for event in events)])
        # Nothing of this object has changed before: what raised on the way loses nothing.
        self._looked, self._asked = now, {id_ for _, _, id_ in new}
        self._position = _kept(position, heads)
        return fresh

    def _new(self, now: int, known: int) -> list[tuple[int, str, str]]:
        return self._store.added_requests(min(now, self._looked) - OVERLAP, limit=known + MOST + 1)


def _kept(position: dict[str, int], heads: dict[str, int]) -> dict[str, int]:
    """Return the positions without those of chains that no writer has any more, the first seen first, beyond a number.
    """
    retired = [chain for chain in position if chain not in heads]
    gone = set(retired[: max(0, len(retired) - RETIRED)])
    return {chain: seq for chain, seq in position.items() if chain not in gone}


def _change(event: EventRow) -> Change | None:
    """Return what an event hints at; None for one that nobody waits for (refusals, anchors, unknown ones)."""
    request_id = event.request_id if event.type in REQUEST_EVENTS else None
    if request_id is None and event.type != "control:changed":
        return None
    return Change(event.tenant, request_id, event.version or 0, event.type, event.at, event.chain, event.seq)
