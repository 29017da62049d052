"""The Store contract: what the guard needs from a database, and what it may rely on.

Requests are immutable; everything that happens to one is an event. `Store.write` is one durable transaction whose
inserts *are* the transitions: it either commits all of them, or nothing and returns None. The store believes no
column: it moves rows, the layers above verify them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..rows import CONTROL_PREFIX, ControlRow, Draft, EventRow, Link, RequestRow, Seal, control_record

__all__ = [
    "CONTROL_PREFIX", "AddRequest", "Append", "ControlRow", "Draft", "EventRow", "Link", "Loaded", "RequestRow", "Seal",
    "SetControl", "Step", "Store", "Written", "control_record",
]


@dataclass(slots=True)
class AddRequest:
    """Insert a request (immutable) and its line in the list of open requests.

    Attributes:
        run: 32-byte digest of tenant and run, to list a run's requests by.
        listed_until: Epoch milliseconds of its decide-by, to list the most urgent first.
    """

    row: RequestRow
    run: bytes
    listed_until: int


@dataclass(slots=True)
class Append:
    """Insert one event, if everything in it still holds.

    Attributes:
        previous_mac: MAC of the same request's event ``version - 1``, which must still be there. None: for version 1
            the request row must be there instead; a later version's predecessor, whose MAC the caller cannot know, is
            written by an earlier step of the same transaction and must be there too; an event of no request, or of a
            control record, demands nothing.
        before: The database's clock must be earlier than this, when the statement starts *and after every wait*
            (epoch milliseconds); None for no limit.
        control: ``(tenant, version)``: the control row must still have this version, locked so that a concurrent
            change waits or is waited for; None for no demand.
        unlist: Whether the request leaves the list of open requests.
    """

    draft: Draft
    previous_mac: bytes | None = None
    before: int | None = None
    control: tuple[str, int] | None = None
    unlist: bool = False


@dataclass(slots=True)
class SetControl:
    """Replace the tenant's control row of version ``row.version - 1`` (insert it for version 1).

    It first excludes claims that read the old row (PostgreSQL: ``LOCK TABLE … IN EXCLUSIVE MODE``).
    """

    row: ControlRow


Step = AddRequest | Append | SetControl


@dataclass(slots=True)
class Written:
    """What a committed `write` did: the database's clock after every wait, and the sealed events in order."""

    now: int
    events: tuple[EventRow, ...]


@dataclass(slots=True)
class Loaded:
    """One consistent reading for one operation.

    Attributes:
        now: The database's clock, epoch milliseconds.
        control: The tenant's control row, or None.
        control_overtaken: Whether an event of a later control version exists (an old row was put back, or the row
            is missing although its events exist).
        request: The request asked for (the latest generation when looked up by identity), or None.
        events: Its events by version.
        spent: Whether the spend key asked about is present.
    """

    now: int
    control: ControlRow | None
    control_overtaken: bool
    request: RequestRow | None
    events: tuple[EventRow, ...]
    spent: bool


class Store(Protocol):
    """Every method raises `StoreUnavailableError` when the database does not answer or answers with an error, and
    `StoreRolledBackError` when something that this process wrote is gone. No method waits without a limit.
    """

    def setup(self) -> None:
        """Create or migrate the schema, under a lock; safe to call from many processes at once."""

    def check(self) -> None:
        """Raise `ConfigurationError` unless the schema is exactly this version's."""

    def now(self) -> int:
        """Return the database's clock in epoch milliseconds."""

    def load(
        self, tenant: str, *, request_id: str | None = None, identity: bytes | None = None,
        spend_key: bytes | None = None,
    ) -> Loaded:
        """Read what one operation needs in one go. By id *and* tenant, or the latest generation of an identity."""

    def write(self, steps: Sequence[Step], seal: Seal) -> Written | None:
        """Commit all steps durably, or nothing. None: a demand no longer held, or a unique key was taken; read again.

        A lost reply to COMMIT is resolved by reading the last event's MAC on a new connection.
        """

    def open_requests(
        self, *, tenant: str | None, limit: int, after: tuple[int, str] | None = None, run: bytes | None = None
    ) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(listed_until, row, events)`` of listed requests in a constant number of queries.

        Ordered by ``(listed_until, request id)``, starting after that pair. ``tenant=None`` lists all tenants.
        """

    def chains(self) -> list[str]:
        """Return the ids of all chains that have events."""

    def chain_events(self, chain: str, *, after: int = -1, limit: int = 1000) -> list[EventRow]:
        """Return a chain's events in order, from ``seq > after``."""

    def request_histories(
        self, *, after: str = "", limit: int = 500
    ) -> Iterator[tuple[RequestRow | None, str, tuple[EventRow, ...]]]:
        """Yield ``(request row or None, request id, events by version)`` in order of request id, for `audit verify`."""

    def controls(self) -> list[ControlRow]:
        """Return every control row."""

    def close(self) -> None:
        """Release every connection."""
