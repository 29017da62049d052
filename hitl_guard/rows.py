"""The rows that a store keeps, as plain values. Nothing here is believed before its MAC was verified.

They are made by the dozen for each call, so they are not frozen: a frozen one takes three times as long to make.
Nobody changes one all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class RequestRow:
    """One immutable request, as stored.

    Attributes:
        id: 22 characters of base64url (128 random bits).
        identity: 32-byte digest of the call's identity; with ``generation`` unique.
        generation: 0 for the first request of an identity, then counting.
        envelope: The signed envelope (text as ASCII bytes).
        arguments: Canonical bytes of the arguments.
        details: Canonical bytes of the signed details.
    """

    id: str
    tenant: str
    identity: bytes
    generation: int
    envelope: bytes
    arguments: bytes
    details: bytes


@dataclass(slots=True)
class Draft:
    """An event before it has its place in a chain.

    Attributes:
        type: One of `hitl_guard.audit.EVENT_TYPES`.
        at: Epoch milliseconds, the operation's one reading of the database's clock.
        body: Canonical JSON bytes of what the event records.
        request_id, version: The request and the event's number in it, from 1; None, None for an event of no request.
        spend_key: 32 bytes, unique over the whole store: what a claim spends, or the challenge that a passkey answered.
    """

    type: str
    tenant: str
    at: int
    body: bytes
    request_id: str | None = None
    version: int | None = None
    spend_key: bytes | None = None


@dataclass(slots=True)
class Link:
    """An event's place in a chain.

    Attributes:
        chain: 22 characters. seq: Number from 0. previous: MAC of the event before it, 32 bytes; zeros at 0.
    """

    chain: str
    seq: int
    previous: bytes


@dataclass(slots=True)
class EventRow:
    """One event as stored. ``mac`` (32 bytes) covers every other field."""

    type: str
    tenant: str
    at: int
    body: bytes
    request_id: str | None
    version: int | None
    spend_key: bytes | None
    chain: str
    seq: int
    previous: bytes
    epoch: int
    key_id: str
    mac: bytes


@dataclass(slots=True)
class ControlRow:
    """The signed control row of one tenant. ``body`` is a signed text as ASCII bytes; ``version`` counts from 1."""

    tenant: str
    version: int
    body: bytes


@dataclass(slots=True)
class CredentialRow:
    """One approver's passkey.

    Attributes:
        key: 32-byte digest of the credential's id. owner: 32-byte digest of tenant and principal.
        body: A signed text as ASCII bytes.
    """

    key: bytes
    owner: bytes
    body: bytes


@dataclass(slots=True)
class RunRow:
    """One suspended outermost run, with everything that resuming it needs.

    Attributes:
        key: 32-byte digest of tenant and run id.
        version: Counts from 1; each write replaces the one before.
        body: The state, as bytes.
        signature: A signed text as ASCII bytes; it covers a digest of the body.
    """

    key: bytes
    tenant: str
    version: int
    body: bytes
    signature: bytes


@dataclass(slots=True)
class RunNode:
    """One run in a tree of suspended runs, the root's own or a sub-agent's, to list it by. Never evidence.

    Attributes:
        key, root: 32-byte digests of tenant and run id: the run's own, and the outermost one's (`RunRow.key`).
        owner, thread, resource: At most 32 bytes each: digests of what the run is listed by.
        created_at: Epoch milliseconds.
    """

    key: bytes
    root: bytes
    run_id: str
    owner: bytes
    thread: bytes
    resource: bytes
    created_at: int


@dataclass(slots=True)
class Segment:
    """Some consecutive messages of one conversation; never changed once written.

    Attributes:
        thread: 32-byte digest of the conversation; with ``seq``, from 0, unique.
        run: 32-byte key of the run that wrote it.
        body: The messages, as bytes.
    """

    thread: bytes
    seq: int
    run: bytes
    body: bytes


Seal = Callable[[Draft, Link], EventRow]
"""Gives a draft its MAC. Called by the writer, which alone knows the chain's head."""

CONTROL_PREFIX = "control:"

EVERYWHERE = ""
"""The tenant of the one control row that reaches every tenant; no real tenant has this name."""


def control_record(tenant: str) -> str:
    """Return the request id under which a tenant's control events are stored (version = the control row's version)."""
    return CONTROL_PREFIX + hashlib.sha256(tenant.encode()).hexdigest()


CREDENTIAL_PREFIX = "credential:"


def credential_record(key: bytes) -> str:
    """Return the request id under which a passkey's events are stored: version 1 registers it, version 2 removes it."""
    return CREDENTIAL_PREFIX + key.hex()
