"""The queries over the list of requests: the open ones, the most urgent first; the ended ones, the newest first.

The list is a cache that whoever has the database can edit: what it names is loaded and verified, or only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Select,
    and_,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    true,
    union_all,
)

from . import hot, schema
from .base import Place, Wanted
from .values import number, pack, raw, tenant_digest, text

REQUESTS = [schema.requests.c[name] for name in hot.REQUEST_COLUMNS]
"""The columns of a request, in the order that `values.request_row` takes."""

PASSED_OVER = 20_000
"""How many lines of each part of a list `looked_at` passes over at most in search of wanted ones."""

MOST_BYTES = 16_777_216
"""How much the requests of one page hold together; the first of them may be larger."""

PENDING, OPEN, ENDED = range(3)
"""The parts of a list, in their order (see `base.Wanted`)."""

_LISTED = schema.open_requests.c
_FOREVER = 2**62
_EDGE = 1  # in the second column of what `looked_at` finds: no request, but how far the search went


def open_ones(tenant: str | None, run: bytes | None, limit: int, after: tuple[int, str] | None) -> Select[Any]:
    """Return the query of open requests, ``(listed_until, *columns of the request)``; see `Store.open_requests`."""
    return _page(tenant, run, limit, 1, after)


def ended(tenant: str, run: bytes | None, limit: int, after: tuple[int, str] | None) -> Select[Any]:
    """Return the query of ended requests, ``(minus the time of the end, *columns)``; see `Store.ended_requests`."""
    behind = None if after is None else (-after[0], after[1])
    return _page(tenant, run, limit, schema.ENDED_UNSEEN + 1, behind).where(_LISTED.listed_until < 0)


def added(since: int, limit: int) -> Select[Any]:
    """Return the query of ``(added_at, tenant, request id)``; see `Store.added_requests`."""
    requests = schema.requests.c
    return (
        select(_LISTED.added_at, requests.tenant, requests.id)
        .join(schema.requests, _LISTED.request_id == requests.id)
        .where(schema.STILL_OPEN, _LISTED.added_at >= since, or_(_LISTED.desk.is_(None), func.length(_LISTED.desk) > 0))
        .order_by(_LISTED.added_at)
        .limit(limit)
    )


def _page(
    tenant: str | None, run: bytes | None, limit: int, first: int, after: tuple[int, str] | None
) -> Select[Any]:
    """Return the query of a page that starts at ``first`` or behind ``after``, whichever comes later."""
    query = (
        select(_LISTED.listed_until, *REQUESTS)
        .join(schema.open_requests, _LISTED.request_id == schema.requests.c.id)
        .where(*_behind(first, after))
        .order_by(_LISTED.listed_until, _LISTED.request_id)
        .limit(limit)
    )
    if tenant is not None:
        query = query.where(_LISTED.tenant == tenant_digest(tenant))
    if run is not None:
        query = query.where(_LISTED.run == run)
    return query


def _behind(first: int, after: tuple[int, str] | None) -> list[ColumnElement[bool]]:
    place = _LISTED.listed_until
    if after is None:
        return [place >= first]
    # With both comparisons: an index starts there instead of passing over the pages before.
    return [place >= max(first, after[0]), or_(place > after[0], _LISTED.request_id > pack(after[1]))]


# -- lists for one viewer --------------------------------------------------------------------------------------------


def looked_at(wanted: Wanted, limit: int, after: Place | None) -> CompoundSelect[Any] | None:
    """Return the query of up to ``limit + 1`` lines of a list, for `in_order`; None where nothing is wanted.

    The parts after the first are only searched where the first does not fill the page. That is asked once for all of
    them: MariaDB runs a common table expression anew wherever its name stands.
    """
    found: list[Select[Any]] = []
    full: ColumnElement[bool] | None = None
    for part in _parts(wanted, PENDING if after is None else after[0]):
        behind = after[1:] if after is not None and after[0] == part else None
        range_ = [_LISTED.tenant == tenant_digest(wanted.tenant), *_range(part, wanted, behind)]
        if wanted.run is not None:
            range_.append(_LISTED.run == wanted.run)
        edge = _in_order(range_).offset(PASSED_OVER).limit(1).cte(f"edge_{part}")
        until = func.coalesce(select(edge.c.listed_until).scalar_subquery(), _FOREVER)
        lines = _in_order([*range_, _LISTED.listed_until <= until, *_narrowed(part, wanted)])
        lines_ = lines.limit(limit + 1).cte(f"part_{part}")
        if full is None:
            full = select(func.count()).select_from(lines_).scalar_subquery() > limit
        found += [_found(part, kind, these) for kind, these in enumerate((lines_, edge))]
    if full is None:
        return None
    first, later = found[:2], found[2:]
    if later:
        first.append(select(union_all(*later).subquery("later")).where(not_(full)))
    return union_all(*first)


def _found(part: int, kind: int, lines: CTE) -> Select[Any]:
    return select(
        literal_column(str(part)).label("part"), literal_column(str(kind)).label("kind"), *lines.c,
        _size(lines).label("size"),
    )


def in_order(lines: Iterable[Sequence[Any]], limit: int) -> tuple[list[Place], Place | None]:
    """Return the places of up to ``limit`` requests that `looked_at` found, and where the list goes on, or None."""
    places: list[Place] = []
    total = 0
    for part, kind, place, id_, size in sorted(map(_line, lines)):
        total += size
        if len(places) == limit or (places and kind != _EDGE and total > MOST_BYTES):
            return places, places[-1]
        if kind == _EDGE:
            return places, (part, place + 1, "")
        places.append((part, place, text(id_)))
    return places, None


def _line(row: Sequence[Any]) -> tuple[int, int, int, bytes, int]:
    part, kind, place, id_, size = row
    return number(part), number(kind), number(place), raw(id_), number(size)


def samples(tenant: str, known: Sequence[bytes], limit: int) -> Select[Any]:
    """Return the query of a request of each desk that has an open one; see `Store.desk_samples`."""
    lines = (
        select(_LISTED.desk)
        .where(_LISTED.tenant == tenant_digest(tenant), schema.STILL_OPEN)
        .order_by(_LISTED.listed_until, _LISTED.request_id)
        .limit(PASSED_OVER)
        .subquery("lines")
    )
    desks = (
        select(lines.c.desk).distinct()
        .where(func.length(lines.c.desk) > 0, lines.c.desk.not_in(known)).limit(limit).subquery("desks")
    )
    one = (
        select(_LISTED.request_id).where(_LISTED.desk == desks.c.desk, schema.STILL_OPEN)
        .order_by(_LISTED.listed_until).limit(1).correlate(desks).scalar_subquery()
    )
    return select(*REQUESTS).select_from(desks).join(schema.requests, schema.requests.c.id == one)


def _size(lines: CTE) -> ColumnElement[int]:
    requests = schema.requests.c
    size = func.length(requests.arguments) + func.length(requests.details)
    return select(size).where(requests.id == lines.c.request_id).scalar_subquery()


def _in_order(conditions: Iterable[ColumnElement[bool]]) -> Select[Any]:
    place = _LISTED.listed_until, _LISTED.request_id
    return select(*place).where(*conditions).order_by(*place)


def _parts(wanted: Wanted, first: int) -> Iterator[int]:
    """Return the parts of which anything is wanted, from ``first``."""
    asked = {PENDING: wanted.pending, OPEN: wanted.open != () or wanted.overdue, ENDED: wanted.ended != ()}
    return (part for part, any_of_it in asked.items() if any_of_it and part >= first)


def _range(part: int, wanted: Wanted, after: tuple[int, str] | None) -> list[ColumnElement[bool]]:
    starts = {PENDING: wanted.now + 1, OPEN: 1, ENDED: schema.ENDED_UNSEEN + 1}
    range_ = _behind(starts[part], after)
    return [*range_, _LISTED.listed_until < 0] if part == ENDED else range_


def _narrowed(part: int, wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    """Return what the lines of a part have beside its range."""
    if wanted.tool is not None:
        yield or_(_LISTED.tool == wanted.tool, _LISTED.tool.is_(None))
    if wanted.requester is not None:
        yield or_(_LISTED.requester == wanted.requester, _LISTED.requester.is_(None))
    if wanted.own is not None:
        # Where the policy approved by itself there is neither a requester nor a desk.
        yield or_(
            _LISTED.desk.not_in(wanted.foreign), _LISTED.requester.in_(wanted.own), _LISTED.tool.is_(None),
            _LISTED.desk.is_(None), func.length(_LISTED.desk) == 0,
        )
    yield _of_type(part, wanted)


def _of_type(part: int, wanted: Wanted) -> ColumnElement[bool]:
    events = schema.events.c
    last = (
        select(events.type).where(events.request_id == _LISTED.request_id).order_by(events.version.desc()).limit(1)
        .correlate(schema.open_requests).scalar_subquery()
    )
    kind = func.coalesce(last, literal(b""))
    undecided = kind.in_([b"", b"request:voted"])
    if part == PENDING:
        return undecided
    if part == ENDED:
        return true() if wanted.ended is None else kind.in_(_packed(wanted.ended))
    if wanted.open is None:
        return or_(_LISTED.listed_until <= wanted.now, not_(undecided))
    decided = kind.in_(_packed(wanted.open))
    return or_(decided, and_(_LISTED.listed_until <= wanted.now, undecided)) if wanted.overdue else decided


def _packed(types: Iterable[str]) -> list[bytes]:
    return [pack(one) for one in types]
