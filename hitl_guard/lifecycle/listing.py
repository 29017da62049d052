"""Lists of open and of ended requests: pages of verified views, and what could not be verified named beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .. import audit, fingerprint, signing
from ..errors import (
    ConfigurationError,
    InvalidApprovalError,
    InvalidSignatureError,
    KeyRevokedError,
    StoreRolledBackError,
)
from ..models import ApprovalRequest, check_optional, check_text
from ..rows import Draft, EventRow, RequestRow
from ..signing import Examiner
from ..store.base import Append, Unlist, Wanted
from . import floods
from . import record as records
from .ask import ending
from .desk import Desk
from .record import Record, to_request
from .state import ENDED, STATES, TRANSITIONS

MAX_PAGE = 500


@dataclass(frozen=True, slots=True)
class Damaged:
    """A listed request that is refused: its id, the error code, and the key id that it names (unverified)."""

    request_id: str
    code: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of open requests, the most urgent first, or of ended ones, the newest first.

    Attributes:
        damaged: Listed requests that did not verify; they can only be asked again.
        next: Hand it in as ``after`` for the next page; None at the end.
        now: The database's clock when the page was read, epoch milliseconds.
    """

    requests: tuple[ApprovalRequest, ...]
    damaged: tuple[Damaged, ...]
    next: str | None
    now: int

    def __iter__(self) -> Iterator[ApprovalRequest]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, index: int) -> ApprovalRequest:
        return self.requests[index]


def listed(
    desk: Desk, *, tenant: str | None, run_id: str | None, states: Sequence[str], limit: int, after: str | None
) -> Page:
    """Return one page. ``states`` are those that a request must read as now.

    Raises:
        ConfigurationError: a filter is of the wrong type, or a state is unknown.
    """
    if not isinstance(states, (list, tuple, set, frozenset)) or not set(states) <= STATES:
        raise ConfigurationError(f"'states' is a list of these: {', '.join(sorted(STATES))}.")
    run, size = _filters(tenant, run_id, limit)
    rows = desk.store.open_requests(tenant=tenant, limit=size, after=_cursor(after), run=run)
    return _page(desk, rows, size, tenant, run_id, frozenset(states))


def ended(desk: Desk, *, tenant: str, run_id: str | None, limit: int, after: str | None) -> Page:
    """Return one page of requests that ended and that people were asked about.

    Raises:
        ConfigurationError: a filter is of the wrong type.
    """
    check_text("tenant", tenant)
    run, size = _filters(tenant, run_id, limit)
    rows = desk.store.ended_requests(tenant=tenant, limit=size, after=_cursor(after), run=run)
    return _page(desk, rows, size, tenant, run_id, ENDED)


def _filters(tenant: str | None, run_id: str | None, limit: int) -> tuple[bytes | None, int]:
    """Return the digest of a run, if one is asked for, and the size of a page."""
    if type(limit) is not int:
        raise ConfigurationError("'limit' must be an integer.")
    check_optional("tenant", tenant)
    check_optional("run_id", run_id)
    run = None if run_id is None or tenant is None else fingerprint.run_digest(tenant, run_id)
    return run, max(1, min(limit, MAX_PAGE))


def _page(
    desk: Desk, rows: Sequence[tuple[int, RequestRow, tuple[EventRow, ...]]], size: int, tenant: str | None,
    run_id: str | None, states: frozenset[str],
) -> Page:
    now = desk.store.now()
    good: list[ApprovalRequest] = []
    damaged: list[Damaged] = []
    for _, row, events in rows:
        found = verified(desk, row, events, now)
        if isinstance(found, Damaged):
            damaged.append(found)
            continue
        # The list is a cache that somebody may have edited: what was signed says whose request it is, and its state.
        scope = found.envelope.scope
        if found.state in states and tenant in (None, scope.tenant) and run_id in (None, scope.run):
            good.append(to_request(found))
    following = f"{rows[-1][0]}:{rows[-1][1].id}" if len(rows) == size else None
    return Page(tuple(good), tuple(damaged), following, now)


def _cursor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError("'after' must be the 'next' of an earlier page.")
    position, _, request_id = text.partition(":")
    if not (position.isascii() and position.isdigit() and len(position) < 17 and 0 < len(request_id) < 65):
        raise ConfigurationError("'after' must be the 'next' of an earlier page.")
    return int(position), request_id


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did.

    Attributes:
        overdue: How many requests it recorded as expired or in doubt.
        void: How many it took off the list of open requests, since a revoked key or an earlier restore epoch signed
            them. They stay stored, and `audit verify` reads them.
    """

    overdue: int
    void: int


def sweep(desk: Desk, *, limit: int) -> Swept:
    """Write down what reads as over already (expired requests, claims whose worker never reported), and take off the
    list what is void. What is damaged stays there, for somebody to find out why.
    """
    now, overdue, void = desk.store.now(), 0, 0
    examiner = Examiner(desk.signer.keyring)
    after: tuple[int, str] | None = None
    while overdue + void < limit and (rows := desk.store.open_requests(tenant=None, limit=MAX_PAGE, after=after)):
        last = rows[-1][0], rows[-1][1].id
        if after is not None and last <= after:
            break  # an edited list would come again for ever
        after = last
        for place, row, events in rows:
            if overdue + void >= limit:
                break
            found = verified(desk, row, events, now)
            if isinstance(found, Damaged):
                if _is_void(desk, examiner, row, events, now):
                    void += desk.store.write([Unlist(row.id, place, now)], desk.sealer) is not None
            elif found.state != found.stored_state:
                overdue += desk.store.write([_overdue(found, now)], desk.sealer) is not None
    return Swept(overdue, void)


def _is_void(desk: Desk, examiner: Examiner, row: RequestRow, events: Sequence[EventRow], now: int) -> bool:
    """Whether a request that does not verify is what was signed all the same: by a key that was revoked since, or in an
    earlier restore epoch. (Of what a destroyed key signed nobody can say more than that.)
    """
    try:
        records.verify(row, events, signer=examiner, sealer=audit.Sealer(examiner), now=now, any_earlier_epoch=True)
    except KeyRevokedError:
        return True
    except (InvalidSignatureError, InvalidApprovalError, StoreRolledBackError):
        return False
    # Judged once more: the keys may have been loaded anew in between, and then it may count.
    return isinstance(verified(desk, row, events, now), Damaged)


def _overdue(record: Record, now: int) -> Append:
    if record.state == "expired":
        return ending(record, "request:expired", now)
    body = audit.body(claim=record.claim_id, detail="overdue", request=record.digest)
    draft = Draft("call:in_doubt", record.row.tenant, now, body, record.row.id, record.version + 1)
    return Append(draft, previous_mac=record.last)


_STORED = {"expired": ("approved", "expired"), "in_doubt": ("executing", "in_doubt")}
"""State that overdue requests read as → the states that are stored of requests that may read so."""


def wanted(
    *, tenant: str, now: int, states: frozenset[str] | None, run_id: str | None, tool: str | None,
    requester: str | None, own: Sequence[str] | None, foreign: Sequence[bytes],
) -> Wanted:
    """Return what the store needs to look at so that nothing is missed of what fits.

    Args:
        states: Those that a request must read as at ``now`` (epoch milliseconds); None: any.
        own: The viewer's names: their requests are looked at wherever they wait. None: all requests are.
        foreign: Desks (see `floods.desk_digest`) that are nothing to the viewer.
    """
    stored = None if states is None else {one for state in states for one in _STORED.get(state, (state,))}
    return Wanted(
        tenant=tenant, now=now, pending=states is None or "pending" in states,
        open=None if stored is None else _last_types(stored - ENDED - {"pending"}),
        overdue=states is None or "expired" in states,
        ended=None if stored is None else _last_types(stored & ENDED),
        run=None if run_id is None else fingerprint.run_digest(tenant, run_id),
        tool=None if tool is None else floods.tool_digest(tenant, tool),
        requester=None if requester is None else floods.user_digest(tenant, requester),
        own=None if own is None else tuple(floods.user_digest(tenant, name) for name in own),
        foreign=tuple(foreign),
    )


def _last_types(states: Collection[str]) -> tuple[str, ...]:
    """Return the types of the last events of requests that are in one of these stored states."""
    return tuple(sorted(kind for (_, kind), state in TRANSITIONS.items() if state in states))


def read(desk: Desk, row: RequestRow, events: Sequence[EventRow], now: int) -> ApprovalRequest | Damaged:
    """Return a listed request as it reads at ``now``, or how it does not verify."""
    found = verified(desk, row, events, now)
    return found if isinstance(found, Damaged) else to_request(found)


def verified(desk: Desk, row: RequestRow, events: Sequence[EventRow], now: int) -> Record | Damaged:
    """Return a listed request as it verifies, or how it does not."""
    try:
        return desk.verify(row, events, now)
    except (InvalidSignatureError, InvalidApprovalError, StoreRolledBackError) as error:
        return Damaged(row.id, error.code, _key_id(row))


def _key_id(row: RequestRow) -> str | None:
    try:
        return signing.unverified_key_id(row.envelope)
    except InvalidApprovalError:
        return None
