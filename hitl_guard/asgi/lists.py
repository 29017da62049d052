"""Lists of requests for one viewer: filtered, paged with signed cursors, what waits first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .. import canonical
from ..errors import DecisionError, RefusedError
from ..guard import Guard
from ..lifecycle.listing import Damaged, Page
from ..lifecycle.state import STATES
from ..models import ApprovalRequest
from ..render.secrets import masked, secret_pointers
from .identity import Viewer
from .visibility import visible, waits_for

MAX_LIMIT = 200
"""The most requests on one page."""

ROUNDS = 20
"""How many pages of the store one page of ours may take: a filter that lets little through gives short pages."""

OPEN = frozenset({"pending", "approved", "executing", "suspended", "in_doubt", "expired"})
"""States that a request of the open list may read as; an overdue one reads as expired before it is swept."""

_PENDING = frozenset({"pending"})
_PHASES = ("pending", "open", "ended")
_TYPE = "hitl-cursor"


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list shows. All that are given must fit.

    Attributes:
        states: None for all.
        mine: Only what waits for a decision of the viewer.
        text: Part of tool, requester, agent, run, id, rule, reason or arguments (secret ones aside), whatever the case.
    """

    states: frozenset[str] | None = None
    tool: str | None = None
    requester: str | None = None
    run: str | None = None
    mine: bool = False
    text: str | None = None

    def digest(self) -> str:
        """Return what a cursor is bound to."""
        shown = [
            None if self.states is None else sorted(self.states), self.tool, self.requester, self.run, self.mine,
            self.text,
        ]
        return hashlib.sha256(canonical.canonicalize(shown)).hexdigest()

    def fits(self, request: ApprovalRequest, viewer: Viewer) -> bool:
        """Return whether a request is to be shown to this viewer."""
        return (
            (self.states is None or request.state in self.states)
            and self.tool in (None, request.tool)
            and self.requester in (None, request.user)
            and self.run in (None, request.run_id)
            and visible(request, viewer)
            and (not self.mine or waits_for(request, viewer))
            and (self.text is None or self.text.casefold() in searched(request))
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """One page for one viewer: what is pending first, then what else is open, then what ended, the latest first.

    Attributes:
        damaged: Listed requests that did not verify; operators alone are told.
        next: Hand it in as ``cursor``; None at the end. A page may be short before the end.
        now: The database's clock, epoch milliseconds.
        total: How many there are in all, where the first page is the whole list; else None.
    """

    items: tuple[ApprovalRequest, ...]
    damaged: tuple[Damaged, ...]
    next: str | None
    now: int
    total: int | None


def secrets_of(request: ApprovalRequest) -> frozenset[str]:
    """Return the JSON pointers of a request's secret arguments."""
    schema = None if request.definition is None else request.definition.input_schema
    return secret_pointers(schema, request.arguments) if schema is not None else frozenset()


def searched(request: ApprovalRequest) -> str:
    """Return the text that a search looks through: nothing that is masked is in it."""
    secrets = secrets_of(request)
    arguments = (
        json.dumps(masked(request.arguments, secrets), ensure_ascii=False) if secrets else request.canonical.decode()
    )
    parts = [request.tool, request.user, request.agent, request.run_id, request.id, request.reason, *request.rules]
    return "\n".join([*(part for part in parts if part), arguments]).casefold()


@dataclass(slots=True)
class _Place:
    """Where a list goes on: a phase and the store's own cursor in it."""

    phase: str
    after: str | None = None


@dataclass(slots=True)
class _Found:
    items: list[ApprovalRequest] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)


def listed(guard: Guard, viewer: Viewer, filters: Filters, *, limit: int, cursor: str | None) -> Listing:
    """Return one page. Blocks.

    Raises:
        DecisionError: ``invalid-approval``, detail ``malformed``: the limit or a state cannot be used; or
            ``args-mismatch``, detail ``stale``: the cursor is not of this list, this person and these keys.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise _malformed(f"'limit' is a number from 1 to {MAX_LIMIT}")
    if filters.states is not None and not filters.states <= STATES:
        raise _malformed(f"a state is one of {', '.join(sorted(STATES))}")
    place: _Place | None = _Place(_PHASES[0]) if cursor is None else _opened(guard, viewer, filters, cursor)
    found = _Found()
    for _ in range(ROUNDS):
        if place is None or len(found.items) == limit:
            break
        place = _step(guard, viewer, filters, place, limit - len(found.items), found)
    following = None if place is None else _signed(guard, viewer, filters, place)
    damaged = tuple(found.damaged) if viewer.operator else ()
    total = len(found.items) if cursor is None and following is None else None
    return Listing(tuple(found.items), damaged, following, viewer.now, total)


def _step(
    guard: Guard, viewer: Viewer, filters: Filters, place: _Place, size: int, found: _Found
) -> _Place | None:
    """Read one page of the store and return where to go on, or None at the end."""
    page = _page(guard, viewer, filters, place, size)
    if page is not None:
        found.items += [one for one in page.requests if filters.fits(one, viewer)]
        # What does not verify has no state: it is named once, in the last phase that reads the open list.
        found.damaged += page.damaged if place.phase != "pending" or not _others(filters) else ()
        if page.next is not None and page.next != place.after:
            return _Place(place.phase, page.next)
    following = _PHASES.index(place.phase) + 1
    return _Place(_PHASES[following]) if following < len(_PHASES) else None


def _page(guard: Guard, viewer: Viewer, filters: Filters, place: _Place, size: int) -> Page | None:
    """Return a page of the store, or None where the phase has nothing that is asked for."""
    wanted = STATES if filters.states is None else filters.states
    read: Callable[..., Page] = guard.pending
    states = wanted & _PENDING if place.phase == "pending" else _others(filters)
    more: dict[str, Sequence[str]] = {"states": sorted(states)}
    if place.phase == "ended":
        states, read, more = wanted - (OPEN - {"expired"}), guard.ended, {}
    if not states:
        return None
    return read(tenant=viewer.tenant, run_id=filters.run, limit=size, after=place.after, **more)


def _others(filters: Filters) -> frozenset[str]:
    """Return the states that are asked for of requests that are open but not pending."""
    return (STATES if filters.states is None else filters.states) & (OPEN - _PENDING)


def _signed(guard: Guard, viewer: Viewer, filters: Filters, place: _Place) -> str:
    fields = _bound(viewer, filters) | {"after": place.after, "phase": place.phase}
    return guard._desk.signer.sign("cursor", _TYPE, fields, now=viewer.now).decode("ascii")


def _opened(guard: Guard, viewer: Viewer, filters: Filters, cursor: str) -> _Place:
    try:
        fields = guard._desk.signer.open(cursor, expected_purpose="cursor", expected_type=_TYPE, now=viewer.now)
    except RefusedError:
        raise _stale() from None
    bound = _bound(viewer, filters)
    if any(fields.get(name) != bound[name] for name in bound) or fields.get("phase") not in _PHASES:
        raise _stale()
    return _Place(fields["phase"], fields["after"])


def _bound(viewer: Viewer, filters: Filters) -> dict[str, object]:
    return {"filters": filters.digest(), "principal": viewer.principal.id, "tenant": viewer.tenant}


def _malformed(what: str) -> DecisionError:
    return DecisionError(f"The list cannot be shown: {what}.", detail="malformed")


def _stale() -> DecisionError:
    return DecisionError("This page is not one of this list: begin with the first.", code="args-mismatch",
                         detail="stale")
