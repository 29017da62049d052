"""The closed set of event types, the keyed chains they form, and what their MACs cover.

An event's MAC is HMAC-SHA256 (purpose ``event``) over ``len(header) header len(body) body`` (lengths as 8 big-endian
bytes), where the header is the canonical JSON array of every other field, the place in the chain included. A chain
belongs to one writer; ``chain:opened`` and ``chain:anchored`` record the other chains' heads, so that a chain whose
writer is gone cannot be cut below its last anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import orjson

from . import canonical
from .errors import InvalidSignatureError
from .fingerprint import joined
from .rows import Draft, EventRow, Link
from .signing import ALGORITHM, FORMAT_VERSION, Signer, equal

REQUEST_EVENTS = frozenset({
    "request:voted", "request:approved", "request:denied", "request:expired", "request:revoked", "request:superseded",
    "grant:claimed", "grant:resumed", "call:succeeded", "call:failed", "call:in_doubt", "call:abandoned",
    "call:suspended",
})
"""Events of one request; each moves its state (see `hitl_guard.lifecycle.state`)."""

OTHER_EVENTS = frozenset({
    "call:refused", "decision:refused", "control:changed", "credential:registered", "credential:removed",
    "argument:revealed", "chain:opened", "chain:anchored",
})
"""Events of no request."""

EVENT_TYPES = REQUEST_EVENTS | OTHER_EVENTS


class Sealer:
    """Gives events their MACs, and verifies them."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def __call__(self, draft: Draft, link: Link) -> EventRow:
        """Return ``draft`` at its place in a chain, with its MAC (a `Seal`).

        Raises:
            KeyInactiveError: no key is active at ``draft.at``.
        """
        key = self._signer.keyring.signing_key(draft.at)
        epoch = self._signer.keyring.epoch
        message = _message(draft, link, epoch, key.id)
        mac = self._signer.mac(key, "event", message)
        return EventRow(
            draft.type, draft.tenant, draft.at, draft.body, draft.request_id, draft.version, draft.spend_key,
            link.chain, link.seq, link.previous, epoch, key.id, mac,
        )

    def verify(self, row: EventRow, *, now: int) -> None:
        """Raise unless ``row`` is exactly what was sealed and its key still counts at ``now``.

        Raises:
            InvalidSignatureError, KeyUnknownError, KeyInactiveError, KeyRevokedError: see `hitl_guard.errors`.
        """
        if row.type not in EVENT_TYPES:
            raise InvalidSignatureError("An event's type is unknown.", detail="type")
        key = self._signer.verifying_key(row.key_id, made_at=row.at, now=now)
        if not equal(self._signer.mac(key, "event", _message(row, row, row.epoch, row.key_id)), row.mac):
            raise InvalidSignatureError("An event's MAC does not match.", detail="mismatch")


def _message(event: Draft | EventRow, link: Link | EventRow, epoch: int, key_id: str) -> bytes:
    # orjson prints an array of strings, integers and null exactly as RFC 8785 does.
    header = orjson.dumps([
        "hitl-event", FORMAT_VERSION, ALGORITHM, key_id, epoch, link.chain, link.seq, link.previous.hex(), event.type,
        event.tenant, event.at, event.request_id, event.version,
        None if event.spend_key is None else event.spend_key.hex(),
    ])
    return joined(header, event.body)


def body(**facts: Any) -> bytes:
    """Return an event's body: the canonical bytes of what it records."""
    return canonical.canonicalize(facts)


def anchor_body(heads: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Return the body of ``chain:opened`` and ``chain:anchored``: ``(chain, seq, MAC)`` of the other chains' heads."""
    return body(heads=[[chain, seq, mac.hex()] for chain, seq, mac in heads])


def anchored_heads(row: EventRow) -> list[tuple[str, int, bytes]]:
    """Return the heads that a verified ``chain:opened`` or ``chain:anchored`` event records."""
    return [(chain, seq, bytes.fromhex(mac)) for chain, seq, mac in orjson.loads(row.body)["heads"]]


class Limiter:
    """Keeps a flood of refusals from becoming a flood of writes: a bucket of events per code.

    Args:
        monotonic: A clock in milliseconds that never goes back.
        burst: Events that a code may have at once. refill: Events that it gains per second.
    """

    def __init__(self, monotonic: Callable[[], int], *, burst: int = 200, refill: int = 50) -> None:
        self._monotonic, self._burst, self._refill = monotonic, burst, refill
        self._buckets: dict[str, tuple[float, int, int]] = {}
        self._lock = Lock()

    def admit(self, code: str) -> int | None:
        """Return how many events of ``code`` were left out since the last one admitted, or None to leave this out."""
        with self._lock:
            now = self._monotonic()
            level, last, suppressed = self._buckets.get(code, (float(self._burst), now, 0))
            level = min(float(self._burst), level + (now - last) * self._refill / 1000)
            if level < 1:
                self._buckets[code] = (level, now, suppressed + 1)
                return None
            self._buckets[code] = (level - 1, now, 0)
            return suppressed
