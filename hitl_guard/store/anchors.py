"""Chains: where a writer stands in its own, and how it records where the others stand."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from ..audit import anchor_body
from ..rows import Draft, EventRow, Link, Seal
from . import hot, values
from .base import Append, Written
from .dialects.base import Dialect

ANCHOR_EVERY = 256
"""Events of a chain between two anchors."""

RETIRE_AFTER = 24 * 60 * 60 * 1000
"""A chain that is anchored whole and has been silent for this long (ms) is no longer looked at when anchoring. Its
writer, should it live, anchors first (and so registers again) when it writes after half of that time."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The end of one writer's chain.

    Attributes:
        id: 22 characters of base64url (128 random bits).
        seq: The next event's number.
        mac: MAC of the last event; zeros before the first.
        at: Time of the last event, epoch milliseconds.
        anchored: ``seq`` after this chain's last anchor.
    """

    id: str
    seq: int = 0
    mac: bytes = bytes(32)
    at: int = 0
    anchored: int = 0

    @classmethod
    def new(cls) -> Chain:
        """Return a chain that has no event yet."""
        return cls(secrets.token_urlsafe(16))

    def due(self, at: int) -> bool:
        """Whether the chain must be opened or anchored before an event of time ``at`` is written."""
        return self.seq == 0 or self.seq - self.anchored >= ANCHOR_EVERY or at - self.at > RETIRE_AFTER // 2

    def link(self) -> Link:
        """Return the place of the next event."""
        return Link(self.id, self.seq, self.mac)

    def after(self, row: EventRow) -> Chain:
        """Return the chain with ``row`` at its end."""
        return Chain(self.id, row.seq + 1, row.mac, row.at, self.anchored)

    def after_anchor(self, row: EventRow) -> Chain:
        """Return the chain with the anchor ``row`` at its end."""
        return replace(self.after(row), anchored=row.seq + 1)


class Anchors:
    """Writes ``chain:opened`` and ``chain:anchored`` within a transaction that is open."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        words = dialect.words
        self._heads, self._drop, self._anchored, self._add = (
            dialect.statement(text) for text in (hot.HEADS, hot.DROP_CHAIN, hot.ANCHORED, hot.add_chain(words))
        )
        self._first, self._next = (
            dialect.statement(hot.append(words, hot.Shape("", before=False, control=False, chained=chained)))
            for chained in (False, True)
        )

    def write(self, raw: Any, chain: Chain, seal: Seal) -> Written | None:
        """Append the anchor and mark what it covers.

        Returns:
            What was written; None when the chain's head is gone or its place is taken.
        """
        dialect = self._dialect
        now = dialect.clock(raw)
        heads, silent = self._others(raw, chain, now)
        kind = "chain:anchored" if chain.seq else "chain:opened"
        draft = Draft(kind, "", now, anchor_body(heads))
        row = seal(draft, chain.link())
        text = self._next if chain.seq else self._first
        if dialect.change(raw, text, hot.append_parameters(Append(draft), row)) != 1:
            return None
        marks = {other: (self._anchored, seq) for other, seq, _ in heads}
        marks |= {other: (self._drop, anchored) for other, anchored in silent}
        # Our own is changed too, so that nobody who found it silent drops it now.
        marks[chain.id] = self._anchored, -1
        # In the order of their ids, so that two writers that anchor at once cannot deadlock.
        for other, (change, seq) in sorted(marks.items()):
            changed = dialect.change(raw, change, {"chain": other.encode(), "anchored_seq": seq})
            if other == chain.id and not changed:
                dialect.change(raw, self._add, {"chain": other.encode(), "anchored_seq": seq})
        return Written(now, (row,))

    def _others(
        self, raw: Any, chain: Chain, now: int
    ) -> tuple[list[tuple[str, int, bytes]], list[tuple[str, int]]]:
        """Return the heads that moved since they were anchored, and the chains that fell silent, as anchored."""
        heads: list[tuple[str, int, bytes]] = []
        silent: list[tuple[str, int]] = []
        for row in self._dialect.run(raw, self._heads, {}):
            other, (anchored, seq), at = values.text(row[0]), map(values.number, row[1:3]), values.number(row[4])
            if other == chain.id:
                continue
            if seq != anchored:
                heads.append((other, seq, values.raw(row[3])))
            elif at < now - RETIRE_AFTER:
                silent.append((other, anchored))
        return heads, silent
