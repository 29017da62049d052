"""The latest changes that a process has told, kept by tenant for clients that come back after a pause of the line.

What one tenant does costs the others nothing: each has a ring of its own, and when all of them together hold too much,
the longest are cut first. Times are epoch milliseconds of the database.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

WINDOW_MS = 30_000
"""How much older than its position a change may still turn up: the longest transaction that is reckoned with."""

FULL_RINGS = 10
"""How many full rings hold as much as all rings together may."""


@dataclass(frozen=True, slots=True)
class Note:
    """One change of one request. ``at``: epoch milliseconds."""

    tenant: str
    request_id: str
    version: int
    type: str
    at: int

    def text(self) -> bytes:
        """Return the event as it is sent."""
        data = json.dumps({"request": self.request_id, "type": self.type, "version": self.version})
        return f"event: change\nid: {self.at}\ndata: {data}\n\n".encode()


@dataclass(slots=True)
class Ring:
    """The latest changes of one tenant.

    Attributes:
        start: Everything committed from then on was read.
        dropped: The latest time of a change that was here and is no more.
    """

    start: int
    dropped: int = -1
    notes: deque[Note] = field(default_factory=deque)

    def add(self, note: Note, most: int) -> None:
        """Keep a change, and the latest ``most`` of all."""
        self.notes.append(note)
        self.cut(most)

    def cut(self, most: int) -> None:
        """Keep the latest ``most`` changes."""
        while len(self.notes) > most:
            self.dropped = max(self.dropped, self.notes.popleft().at)

    def since(self, position: int, now: int) -> list[Note] | None:
        """Return what a client that stopped at ``position`` may have missed; None when nobody can tell."""
        oldest = position - WINDOW_MS
        if position < self.start or oldest <= self.dropped or position > now + WINDOW_MS:
            return None
        return [note for note in self.notes if note.at >= oldest]


class Rings:
    """The rings of all tenants.

    Args:
        start: Everything committed from then on was read.
        most: Notes of one ring. All of them together hold as many as `FULL_RINGS` full ones.
    """

    def __init__(self, start: int, most: int) -> None:
        self._start, self._most = start, most
        self._forgotten = -1
        self._rings: dict[str, Ring] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, note: Note) -> None:
        """Keep a change."""
        ring = self._rings.get(note.tenant)
        if ring is None:
            ring = self._rings[note.tenant] = self._new()
        before = len(ring.notes)
        ring.add(note, self._most)
        self._total += len(ring.notes) - before
        self._bound()

    def since(self, tenant: str, position: int, now: int) -> list[Note] | None:
        """Return what a client of a tenant may have missed since ``position``; None when nobody can tell."""
        return (self._rings.get(tenant) or self._new()).since(position, now)

    def reset(self, tenant: str, now: int) -> None:
        """Forget a tenant's changes: whoever comes back from before ``now`` loads again."""
        before = self._rings.get(tenant)
        self._total -= 0 if before is None else len(before.notes)
        self._rings[tenant] = Ring(now)
        self._bound()

    def _new(self) -> Ring:
        return Ring(self._start, self._forgotten)

    def _bound(self) -> None:
        """Cut the longest rings until a quarter of the room is free, or forget all of too many tenants."""
        most, rings = self._most * FULL_RINGS, self._rings.values()
        if self._total <= most and len(rings) <= most:
            return
        room = most * 3 // 4
        level = 0 if len(rings) > room else self._most
        while level and sum(min(len(ring.notes), level) for ring in rings) > room:
            level //= 2
        for ring in rings:
            ring.cut(level)
        self._total = sum(len(ring.notes) for ring in rings)
        if not level:
            self._forgotten = max(self._forgotten, *(ring.dropped for ring in rings))
            self._start = max(self._start, *(ring.start for ring in rings))
            self._rings = {}
