"""Steps for the store's tests, and a seal that any test can recompute."""

from __future__ import annotations

import hashlib
import multiprocessing
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from hitl_guard.rows import (
    ControlRow,
    Draft,
    EventRow,
    Link,
    RequestRow,
    RunNode,
    RunRow,
    Segment,
    control_record,
)
from hitl_guard.store.base import AddRequest, Append, PutRun, SetControl, Step, Written
from hitl_guard.store.sql import SQLStore
from tests.databases import Database

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


def digest(name: str) -> bytes:
    """A stand-in for any 32-byte digest that a run or a segment is found by."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def run_row(name: str = "run", **changes: Any) -> RunRow:
    """A suspended run, of version 1 unless told otherwise."""
    fields: dict[str, Any] = {
        "key": digest(name), "tenant": "tenant", "version": 1, "body": b"state", "signature": b"signed",
    }
    return RunRow(**fields | changes)


def run_node(
    run_id: str = "run", *, root: str | None = None, owner: str = "owner", thread: str = "thread",
    resource: str = "resource", created_at: int = 1,
) -> RunNode:
    """A run in a tree, by default in one of its own."""
    tree = digest(run_id if root is None else root)
    return RunNode(digest(run_id), tree, run_id, digest(owner), digest(thread), digest(resource), created_at)


def put(
    store: SQLStore, name: str = "run", *, nodes: tuple[RunNode, ...] | None = None, **changes: Any
) -> Written | None:
    """Store a suspended run, by default with its own node alone."""
    return store.write([PutRun(run_row(name, **changes), (run_node(name),) if nodes is None else nodes)], seal)


def segment(seq: int, *, thread: str = "thread", run: str = "run", body: bytes = b"messages") -> Segment:
    return Segment(digest(thread), seq, digest(run), body)


# Each process is forked from one that runs nothing and has read the code already; to read it takes a second.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([
    "pytest", "tests.contract.test_migrations", "tests.contract.test_store_races",
    "tests.contract.test_store_runs_races", "hitl_guard.store.dialects.mariadb", "hitl_guard.store.dialects.postgresql",
    "hitl_guard.store.dialects.sqlite",
])


def in_processes(work: Callable[[_Job], _Answer], jobs: Sequence[_Job]) -> list[_Answer]:
    """Run each job in a new process of its own, all at once."""
    pool = _PROCESSES.Pool(len(jobs))
    answers = pool.map(work, jobs, chunksize=1)
    pool.close()  # and not terminate(): the processes still write down what they covered
    pool.join()
    return answers


def _blocked(database: Database, observer: Connection) -> int:
    """Return how many sessions of this database wait for a lock."""
    query = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'",
        # InnoDB's own tables of waits stand still while they are polled. A statement that takes 100 ms here waits.
        "mariadb": "SELECT count(*) FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = 'Query' AND time_ms > 100",
    }[database.kind]
    return int(observer.execute(text(query)).scalar_one())


def wait_until_blocked(database: Database, future: Future[Any], sessions: int = 1) -> None:
    """Return once ``future``'s statement waits for a lock (on SQLite: once nothing else can be seen)."""
    if database.kind == "sqlite":
        return
    with database.connect().execution_options(isolation_level="AUTOCOMMIT") as observer:
        while _blocked(database, observer) < sessions:
            assert not future.done(), "it did not wait"
