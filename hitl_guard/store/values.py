"""Between rows of bytes and integers and the values of `hitl_guard.rows`. Nothing here believes a column."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ..rows import EventRow, RequestRow


def event_row(row: Sequence[Any]) -> EventRow:
    """Return a stored event. A column that someone changed to another type becomes a value that no MAC fits."""
    kind, tenant, at, body, request_id, version, spend_key, chain, seq, previous, epoch, key_id, mac = row
    return EventRow(
        text(kind), text(tenant), number(at), raw(body), None if request_id is None else text(request_id),
        None if version is None else number(version), None if spend_key is None else raw(spend_key), text(chain),
        number(seq), raw(previous), number(epoch), text(key_id), raw(mac),
    )


def request_row(row: Sequence[Any]) -> RequestRow:
    """Return a stored request."""
    id_, tenant, identity, generation, envelope, arguments, details = row
    return RequestRow(
        text(id_), text(tenant), raw(identity), number(generation), raw(envelope), raw(arguments), raw(details)
    )


def pack(value: str) -> bytes:
    """Return the bytes that stand for a text in the database; a lone surrogate is kept, so that no two texts meet."""
    return value.encode("utf-8", "surrogatepass")


def tenant_digest(tenant: str) -> bytes:
    """Return the 32 bytes by which a tenant's control row and open requests are found."""
    return hashlib.sha256(pack(tenant)).digest()


def raw(value: Any) -> bytes:
    """Return a column's bytes; anything but bytes (SQLite lets a forger store any type) becomes empty."""
    return value if type(value) is bytes else b""


def number(value: Any) -> int:
    """Return a column's integer; anything else becomes -1, which no record holds."""
    return value if type(value) is int else -1


def text(value: Any) -> str:
    """Return a column's text; bytes that are not UTF-8 become U+FFFD, which no MAC fits."""
    return raw(value).decode("utf-8", "replace")
