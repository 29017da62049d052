"""Steps for the store's tests, and a seal that any test can recompute."""

from __future__ import annotations

import hashlib
import multiprocessing
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hitl_guard.rows import ControlRow, Draft, EventRow, Link, RequestRow, control_record
from hitl_guard.store.base import AddRequest, Append, SetControl, Step, Written
from hitl_guard.store.sql import SQLStore

_Job = TypeVar("_Job")
_Answer = TypeVar("_Answer")
RUN = hashlib.sha256(b"run").digest()
HOUR = 60 * 60 * 1000
REFUSAL = Append(Draft("call:refused", "tenant", 1_790_000_000_000, b"{}"))
"""An event of no request."""


def mac_of(draft: Draft | EventRow, link: Link | EventRow) -> bytes:
    """A stand-in for the real MAC: it covers every field."""
    fields = (
        draft.type, draft.tenant, draft.at, draft.body, draft.request_id, draft.version, draft.spend_key, link.chain,
        link.seq, link.previous,
    )
    return hashlib.sha256(repr(fields).encode()).digest()


def seal(draft: Draft, link: Link) -> EventRow:
    return EventRow(
        draft.type, draft.tenant, draft.at, draft.body, draft.request_id, draft.version, draft.spend_key, link.chain,
        link.seq, link.previous, 1, "key-1", mac_of(draft, link),
    )


def genuine(row: EventRow) -> bool:
    return row.mac == mac_of(row, row)


def request(tenant: str = "tenant", **changes: Any) -> RequestRow:
    fields: dict[str, Any] = {
        "id": secrets.token_urlsafe(16), "tenant": tenant, "identity": secrets.token_bytes(32), "generation": 0,
        "envelope": b"envelope", "arguments": b'{"amount":82}', "details": b"{}",
    }
    return RequestRow(**fields | changes)


def added(store: SQLStore, *, run: bytes = RUN, until: int | None = None, **changes: Any) -> RequestRow:
    """Store a request and return its row."""
    row = request(**changes)
    assert store.write([AddRequest(row, run, store.now() + HOUR if until is None else until)], seal) is not None
    return row


def event(row: RequestRow, version: int, type_: str = "request:approved", **changes: Any) -> Draft:
    fields: dict[str, Any] = {
        "type": type_, "tenant": row.tenant, "at": 1_790_000_000_000, "body": b"{}", "request_id": row.id,
        "version": version,
    }
    return Draft(**fields | changes)


def approved(store: SQLStore, **changes: Any) -> tuple[RequestRow, EventRow]:
    """Store a request whose first event approves it."""
    row = added(store, **changes)
    written = store.write([Append(event(row, 1))], seal)
    assert written is not None
    return row, written.events[0]


def claim(row: RequestRow, previous: EventRow, **demands: Any) -> Append:
    """The claim of an approved request: version 2, with its spend key."""
    key = demands.pop("spend_key", hashlib.sha256(row.id.encode()).digest())
    draft = event(row, 2, "grant:claimed", spend_key=key)
    fields: dict[str, Any] = {"previous_mac": previous.mac, "unlist": True}
    return Append(draft, **fields | demands)


def control(version: int, tenant: str = "tenant", body: bytes = b"signed") -> list[Step]:
    """The steps that replace a tenant's control row."""
    draft = Draft("control:changed", tenant, 1_790_000_000_000, b"{}", control_record(tenant), version)
    return [SetControl(ControlRow(tenant, version, body)), Append(draft)]


def set_control(store: SQLStore, version: int, tenant: str = "tenant") -> Written | None:
    return store.write(control(version, tenant), seal)


def events_of(store: SQLStore, row: RequestRow) -> tuple[EventRow, ...]:
    return store.load(row.tenant, request_id=row.id).events


def in_processes(work: Callable[[_Job], _Answer], jobs: Sequence[_Job]) -> list[_Answer]:
    """Run each job in a new process of its own, all at once."""
    pool = multiprocessing.get_context("spawn").Pool(len(jobs))
    answers = pool.map(work, jobs, chunksize=1)
    pool.close()  # and not terminate(): the processes still write down what they covered
    pool.join()
    return answers
