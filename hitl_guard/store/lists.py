"""The queries over the list of requests: the open ones, the most urgent first; the ended ones, the newest first.

The list is a cache that whoever has the database can edit: what it names is loaded and verified, or only counted.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, or_, select

from . import hot, schema
from .values import pack, tenant_digest

REQUESTS = [schema.requests.c[name] for name in hot.REQUEST_COLUMNS]
"""The columns of a request, in the order that `values.request_row` takes."""

_LISTED = schema.open_requests.c


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
    place = _LISTED.listed_until
    query = (
        select(place, *REQUESTS)
        .join(schema.open_requests, _LISTED.request_id == schema.requests.c.id)
        .where(place >= (first if after is None else max(first, after[0])))
        .order_by(place, _LISTED.request_id)
        .limit(limit)
    )
    if tenant is not None:
        query = query.where(_LISTED.tenant == tenant_digest(tenant))
    if run is not None:
        query = query.where(_LISTED.run == run)
    if after is not None:
        # With the comparison above: an index starts there instead of passing over the pages before.
        query = query.where(or_(place > after[0], _LISTED.request_id > pack(after[1])))
    return query
