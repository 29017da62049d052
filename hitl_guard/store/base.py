"""The Store contract: what the guard needs from a database, and what it may rely on.

Requests are immutable; everything that happens to one is an event. `Store.write` is one durable transaction whose
inserts *are* the transitions: it either commits all of them, or nothing and returns None. The store believes no
column: it moves rows, the layers above verify them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..rows import (
    CONTROL_PREFIX,
    ControlRow,
    CredentialRow,
    Draft,
    EventRow,
    Link,
    RequestRow,
    RunNode,
    RunRow,
    Seal,
    Segment,
    control_record,
)

__all__ = [
    "CONTROL_PREFIX", "AddRequest", "AddSegment", "Append", "ControlRow", "CredentialRow", "CredentialStep", "Draft",
    "DropCredential", "DropRun", "DropThread", "EventRow", "Found", "Link", "Loaded", "Place", "PutCredential",
    "PutRun", "RequestRow", "RunNode", "RunRow", "RunStep", "Seal", "Segment", "SetControl", "Step", "Store", "Unlist",
    "Wanted", "Written", "control_record",
]


@dataclass(slots=True)
class AddRequest:
    """Insert a request (immutable) and its line in the list of open requests.

    Attributes:
        run: 32-byte digest of tenant and run, to list a run's requests by.
        listed_until: Epoch milliseconds of its decide-by, to list the most urgent first.
        requester: 32-byte digest of who asks, to count by; None: not counted.
        desk: 32-byte digest of the approvers that it names, to count by; empty: no person is asked; None: not counted.
        added_at: Epoch milliseconds of the asking, to find new requests by; None: not found that way.
        tool: 32-byte digest of the tool, to narrow lists by; None: looked at by every list.
    """

    row: RequestRow
    run: bytes
    listed_until: int
    requester: bytes | None = None
    desk: bytes | None = None
    added_at: int | None = None
    tool: bytes | None = None


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
        everywhere: Likewise the version of the control row that reaches every tenant (`rows.EVERYWHERE`).
        unlist: Whether the request leaves the list of open requests, for that of ended ones.
    """

    draft: Draft
    previous_mac: bytes | None = None
    before: int | None = None
    control: tuple[str, int] | None = None
    everywhere: int | None = None
    unlist: bool = False


@dataclass(slots=True)
class SetControl:
    """Replace the tenant's control row of version ``row.version - 1`` (insert it for version 1).

    It first excludes claims that read the old row (PostgreSQL: ``LOCK TABLE … IN EXCLUSIVE MODE``).
    """

    row: ControlRow


@dataclass(slots=True)
class Unlist:
    """Take a request that nobody can use any more off the list of open requests, without an event: no list has it then.

    Attributes:
        listed_until: Where it must stand in the list. at: The time of this, epoch milliseconds.
    """

    request_id: str
    listed_until: int
    at: int


@dataclass(slots=True)
class PutRun:
    """Replace the suspended run of version ``row.version - 1`` (insert it for version 1), and all nodes of its tree."""

    row: RunRow
    nodes: tuple[RunNode, ...]


@dataclass(slots=True)
class DropRun:
    """Delete the suspended run, which must have exactly this version, and the nodes of its tree."""

    key: bytes
    version: int


@dataclass(slots=True)
class AddSegment:
    """Insert a segment, whose place in its conversation must be free."""

    segment: Segment


@dataclass(slots=True)
class DropThread:
    """Delete every segment of a conversation, if any; one that another transaction is adding meanwhile stays."""

    thread: bytes


RunStep = PutRun | DropRun | AddSegment | DropThread
"""What the built-in agent keeps. None of them makes an event: they are conveniences of a loop, not decisions."""


@dataclass(slots=True)
class PutCredential:
    """Insert a passkey whose key must be free, or (``replaced``) replace the row that must have exactly this body.

    A transaction that holds it has an event too: the removal, the registration or the decision that it belongs to.
    """

    row: CredentialRow
    replaced: bytes | None = None


@dataclass(slots=True)
class DropCredential:
    """Delete the passkey, whose row must have exactly this body; together with its event, like `PutCredential`."""

    key: bytes
    body: bytes


CredentialStep = PutCredential | DropCredential

Step = AddRequest | Append | SetControl | Unlist | RunStep | CredentialStep


@dataclass(slots=True)
class Written:
    """What a committed `write` did.

    Attributes:
        now: The database's clock after every wait.
        events: The sealed events, in order.
        mark: 16 random bytes that a write of runs or segments leaves beside each of them; empty for any other write.
            It tells two writers apart that wrote the same: only one of them succeeded.
    """

    now: int
    events: tuple[EventRow, ...]
    mark: bytes = b""


@dataclass(slots=True)
class Loaded:
    """One consistent reading for one operation.

    Attributes:
        now: The database's clock, epoch milliseconds.
        control: The tenant's control row, or None.
        control_overtaken: Whether an event of a later control version exists (an old row was put back, or the row
            is missing although its events exist).
        everywhere, everywhere_overtaken: The same of the control row that reaches every tenant.
        request: The request asked for (the latest generation when looked up by identity), or None.
        events: Its events by version.
        spent: Whether the spend key asked about is present.
    """

    now: int
    control: ControlRow | None
    control_overtaken: bool
    everywhere: ControlRow | None
    everywhere_overtaken: bool
    request: RequestRow | None
    events: tuple[EventRow, ...]
    spent: bool


Place = tuple[int, int, str]
"""Where a list goes on: behind this ``(part, listed_until, request id)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which listed requests to look at. All of it goes by columns that nobody verified, so it only narrows.

    A list has three parts. What is pending: no event but votes, and time left. What else is open, by the type of its
    last event (``""``: none). What ended and a person was asked about, by that type too.

    Attributes:
        now: Epoch milliseconds, against which pending requests have time left.
        pending: Whether that part is wanted.
        open, ended: Types of the last event; empty: none of that part; None: all of it.
        overdue: Whether, beside ``open``, those are wanted that nobody decided in time.
        run, tool, requester: 32-byte digests, or None for any.
        own: Requesters (digests) whose requests the viewer sees; None: the viewer sees everything.
        foreign: Desks (digests) that the viewer is known not to sit at. What is at another desk, or at none that is
            known, is looked at; so is what is older than these columns.
    """

    tenant: str
    now: int
    pending: bool = True
    open: tuple[str, ...] | None = None
    overdue: bool = True
    ended: tuple[str, ...] | None = None
    run: bytes | None = None
    tool: bytes | None = None
    requester: bytes | None = None
    own: tuple[bytes, ...] | None = None
    foreign: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at the list found.

    Attributes:
        rows: ``(place, row, events)`` in the list's order.
        more: Where the list goes on behind all of them; None at its end.
    """

    rows: tuple[tuple[Place, RequestRow, tuple[EventRow, ...]], ...]
    more: Place | None


class Store(Protocol):
    """Every method raises `StoreUnavailableError` when the database does not answer or answers with an error, and
    `StoreRolledBackError` when something that this process wrote is gone. No method waits without a limit.
    """

    @property
    def reads_at_once(self) -> bool:
        """Whether a read waits for no network and no lock, so that an event loop may do it by itself."""

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

    def load_new(self, tenant: str, *, identity: bytes, spend_key: bytes | None) -> Loaded | None:
        """Read what a call needs that was never asked for, with less work than `load`; None: it was."""

    def write(self, steps: Sequence[Step], seal: Seal) -> Written | None:
        """Commit all steps durably, or nothing. None: a demand no longer held, or a unique key was taken; read again.

        A lost reply to COMMIT is resolved by looking on another connection for what the write left. A write that only
        deletes counts as committed once everything is gone, whoever deleted it.
        """

    def open_requests(
        self, *, tenant: str | None, limit: int, after: tuple[int, str] | None = None, run: bytes | None = None
    ) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(listed_until, row, events)`` of listed requests in a constant number of queries.

        Ordered by ``(listed_until, request id)``, starting after that pair. ``tenant=None`` lists all tenants.
        """

    def ended_requests(
        self, *, tenant: str, limit: int, after: tuple[int, str] | None = None, run: bytes | None = None
    ) -> list[tuple[int, RequestRow, tuple[EventRow, ...]]]:
        """Return ``(time of the end, row, events)`` of requests that ended, in a constant number of queries.

        The newest come first, those of one millisecond by request id, starting after that pair. Left out is what no
        person was asked about.
        """

    def look(self, wanted: Wanted, *, limit: int, after: Place | None = None) -> Found:
        """Return up to ``limit`` requests of a list, in a constant number of queries whatever is in the database.

        Pending ones come first, the most urgent before the others; then what else is open, likewise; then what ended,
        the newest first. Only so many lines that are not wanted are passed over, and only so many bytes are read: fewer
        than ``limit`` may come although there are more behind them.
        """

    def desk_samples(self, tenant: str, *, known: Sequence[bytes], limit: int) -> list[RequestRow]:
        """Return an open request of each of up to ``limit`` desks that have some, but for the ``known`` ones."""

    def count_open(
        self, *, run: bytes, requester: bytes, desk: bytes, now: int, limits: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        """Return how many listed requests people have before them, of a requester's run, of a requester and of a desk.

        Args:
            now: Epoch milliseconds; a request whose decide-by is over does not count.
            limits: Where each count stops; a run's is made among as many of the requester's as theirs.
        """

    @property
    def notifies(self) -> bool:
        """Whether `wait_for_changes` waits."""

    def wait_for_changes(self, timeout_ms: int) -> bool:
        """Wait until some process has written, at most so long. False: nothing was heard; False at once where the
        database does not tell: look now and then. True, also at the first call: look now.
        """

    def heads(self) -> list[tuple[str, int]]:
        """Return ``(chain, number of its last event)`` of every chain that a writer may still write."""

    def added_requests(self, since: int, *, limit: int) -> list[tuple[int, str, str]]:
        """Return ``(time of asking, tenant, request id)`` of open requests asked at ``since`` or later, oldest first.

        Left out is what no person was asked about.
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

    def credentials(
        self, *, owner: bytes | None = None, key: bytes | None = None
    ) -> list[tuple[CredentialRow, int]]:
        """Return passkeys with the version of each one's last event (0: it has none), all of them without a choice.

        They come in order of their keys. ``owner``, ``key``: 32-byte digests (see `CredentialRow`).
        """

    def last_version(self, request_id: str) -> int:
        """Return the version of the last event of a request or record; 0: it has none."""

    def load_run(self, key: bytes) -> tuple[int, RunRow | None]:
        """Return the database's clock (epoch milliseconds) and the suspended run, or None, as of one moment."""

    def list_runs(
        self, owner: bytes, *, thread: bytes | None = None, resource: bytes | None = None,
        created_from: int | None = None, created_to: int | None = None, limit: int | None = None, offset: int = 0,
    ) -> tuple[int, list[tuple[RunNode, RunRow]]]:
        """Return how many runs an owner has in suspended trees, and one page of them, each with its tree's root.

        The newest come first, those of one millisecond by key. ``created_from`` and ``created_to`` are inclusive
        (epoch milliseconds). The number is counted before paging, and a moment earlier.
        """

    def segments(
        self, thread: bytes, *, first: int = 0, below: int | None = None, run: bytes | None = None
    ) -> list[Segment]:
        """Return a conversation's segments in order, from ``first``: those below ``below``, and any that ``run`` wrote.

        Without ``below`` all of them.
        """

    def last_segments(self, thread: bytes, limit: int | None) -> list[Segment]:
        """Return a conversation's newest ``limit`` segments (None: all), in ascending order."""

    def close(self) -> None:
        """Release every connection."""
