"""Lists of requests for one viewer: filtered, paged with signed cursors, what waits first.

A page takes the same number of statements however much is in the database. The database only narrows, by columns that
nobody verified; what is shown was verified, and `Filters.fits` decides. Where it takes something out, the page reads on
(see `_filled`): a page that it left short would tell of requests that nobody may know of.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from .. import canonical
from ..errors import DecisionError, RefusedError
from ..guard import Guard
from ..lifecycle import listing
from ..lifecycle.listing import Damaged
from ..lifecycle.state import STATES
from ..models import ApprovalRequest
from ..render.secrets import masked, secrets_of
from ..store.base import Found, Place, Wanted
from .desks import KNOWN
from .identity import Viewer
from .visibility import visible, waits_for

MAX_LIMIT = 200
"""The most requests on one page."""

LOOKED_THROUGH = 200
"""How many requests are looked through for one page where some of them do not fit."""

SEARCHED_BYTES = 16_384
"""Longer arguments are not searched: with their secrets masked, that would cost more than a page may."""

_TYPE = "hitl-cursor"


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list shows. All that are given must fit.

    Attributes:
        states: None for all.
        mine: Only what waits for a decision of the viewer.
        text: Part of tool, requester, agent, run, id, rule, reason or arguments (secret ones aside, and those of more
            than `SEARCHED_BYTES`), whatever the case.
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

    @property
    def told_by_columns(self) -> bool:
        """Whether the database can tell what fits, but for a few requests."""
        overdue = self.states is not None and ("in_doubt" in self.states) != ("executing" in self.states)
        return self.text is None and not self.mine and not overdue


@dataclass(frozen=True, slots=True)
class Listing:
    """One page for one viewer: what is pending first, then what else is open, then what ended, the latest first.

    Attributes:
        damaged: Listed requests that did not verify; operators alone are told.
        next: Hand it in as ``cursor``; None at the end. A page may be short, or empty, before the end.
        now: The database's clock, epoch milliseconds.
        total: How many there are in all, where the first page is the whole list; else None.
        looked: How many requests were looked through for this page.
    """

    items: tuple[ApprovalRequest, ...]
    damaged: tuple[Damaged, ...]
    next: str | None
    now: int
    total: int | None
    looked: int


def searched(request: ApprovalRequest) -> str:
    """Return the text that a search looks through: nothing that is masked is in it."""
    parts = [request.tool, request.user, request.agent, request.run_id, request.id, request.reason, *request.rules]
    if len(request.canonical) <= SEARCHED_BYTES:
        secrets = secrets_of(request)
        hidden = masked(request.arguments, secrets) if secrets else None
        parts.append(json.dumps(hidden, ensure_ascii=False) if secrets else request.canonical.decode())
    return "\n".join(part for part in parts if part).casefold()


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
    after = None if cursor is None else _opened(guard, viewer, filters, cursor)
    page = _filled(guard, viewer, filters, limit, after)
    return Listing(
        tuple(page.items), tuple(page.damaged) if viewer.operator else (),
        None if page.more is None else _signed(guard, viewer, filters, page.more), viewer.now,
        len(page.items) if after is None and page.more is None else None, page.looked,
    )


@dataclass(slots=True)
class _Page:
    """A page as it grows; ``more`` is where the list goes on behind it."""

    more: Place | None
    looked: int = 0
    items: list[ApprovalRequest] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)


def _filled(guard: Guard, viewer: Viewer, filters: Filters, limit: int, after: Place | None) -> _Page:
    """Return a page that is full, or at the end of its list, or for which `LOOKED_THROUGH` requests were looked at.

    The database is asked once more only after something it found was left out. (What it passes over on its own, or
    holds back since a page would be too large, makes a page short as well: that is no request's secret.)
    """
    wanted = _wanted(guard, viewer, filters)
    most = limit if filters.told_by_columns else max(limit, LOOKED_THROUGH)
    page = _Page(after)
    while True:
        before, begun = page.looked, page.more
        _read(guard, viewer, filters, guard._desk.store.look(wanted, limit=most, after=begun), limit, page)
        # An edited list could lead back to where it came from, for ever.
        if page.more is not None and begun is not None and page.more <= begun:
            page.more = None
        left_out = page.looked - len(page.items) - (len(page.damaged) if viewer.operator else 0)
        most = LOOKED_THROUGH - page.looked
        if page.more is None or len(page.items) == limit or page.looked == before or not left_out or most <= 0:
            return page


def _read(guard: Guard, viewer: Viewer, filters: Filters, found: Found, limit: int, page: _Page) -> None:
    """Verify what was found, until the page is full."""
    desk, page.more = guard._desk, found.more
    now = desk.store.now()
    for place, row, events in found.rows:
        one = listing.read(desk, row, events, now)
        page.looked += 1
        if isinstance(one, Damaged):
            page.damaged.append(one)
            continue
        if not viewer.operator:
            KNOWN.learn(one)
        if filters.fits(one, viewer):
            page.items.append(one)
        if len(page.items) == limit:
            page.more = place if place != found.rows[-1][0] else found.more
            break


def _wanted(guard: Guard, viewer: Viewer, filters: Filters) -> Wanted:
    """Return what may fit; what waits for the viewer is pending, and at a desk where the viewer sits."""
    everything = viewer.operator and not filters.mine
    states = filters.states
    if filters.mine:
        states = frozenset({"pending"}) if states is None else states & {"pending"}
    return listing.wanted(
        tenant=viewer.tenant, now=viewer.now, states=states, run_id=filters.run, tool=filters.tool,
        requester=filters.requester,
        own=None if everything else () if filters.mine else viewer.principal.names(),
        foreign=() if everything else KNOWN.foreign(guard, viewer),
    )


def _signed(guard: Guard, viewer: Viewer, filters: Filters, place: Place) -> str:
    signer = guard._desk.signer
    # The place is a request that the viewer may not be allowed to see.
    hidden = signer.hide("cursor", canonical.canonicalize(list(place)), now=viewer.now)
    fields = _bound(viewer, filters) | {"place": hidden}
    return signer.sign("cursor", _TYPE, fields, now=viewer.now).decode("ascii")


def _opened(guard: Guard, viewer: Viewer, filters: Filters, cursor: str) -> Place:
    signer = guard._desk.signer
    try:
        fields = signer.open(cursor, expected_purpose="cursor", expected_type=_TYPE, now=viewer.now)
        bound = _bound(viewer, filters)
        if any(fields.get(name) != bound[name] for name in bound):
            raise _stale()
        part, place, request_id = canonical.decode(signer.uncover("cursor", fields["place"], fields, now=viewer.now))
    except RefusedError:
        raise _stale() from None
    return part, place, request_id


def _bound(viewer: Viewer, filters: Filters) -> dict[str, object]:
    return {"filters": filters.digest(), "principal": viewer.principal.id, "tenant": viewer.tenant}


def _malformed(what: str) -> DecisionError:
    return DecisionError(f"The list cannot be shown: {what}.", detail="malformed")


def _stale() -> DecisionError:
    return DecisionError("This page is not one of this list: begin with the first.", code="args-mismatch",
                         detail="stale")
