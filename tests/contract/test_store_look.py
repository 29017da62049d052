"""Looking at a list for one viewer, on every database: parts, order, narrowing, bounds, and a number of queries."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.rows import RequestRow
from hitl_guard.store import lists, schema
from hitl_guard.store.base import Append, Place, Wanted
from hitl_guard.store.sql import SQLStore
from tests.contract.build import RUN, digest, event, seal
from tests.contract.test_store_lists import ANA, DESK, OTHER, asked, end, queries
from tests.databases import Database

TOOL = digest("tool")
FAR = 4_000_000_000_000  # no test lives to see it


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


def wanted(store: SQLStore, **changes: Any) -> Wanted:
    fields: dict[str, Any] = {"tenant": "tenant", "now": store.now()}
    return Wanted(**fields | changes)


def ids(store: SQLStore, *, limit: int = 99, **changes: Any) -> list[str]:
    return [row.id for _, row, _ in store.look(wanted(store, **changes), limit=limit).rows]


def paged(store: SQLStore, *, limit: int, **changes: Any) -> list[str]:
    """Return what all pages show, one after the other."""
    which, seen, after = wanted(store, **changes), list[str](), None
    for _ in range(99):
        found = store.look(which, limit=limit, after=after)
        assert len(found.rows) <= limit
        seen += [row.id for _, row, _ in found.rows]
        if found.more is None:
            return seen
        assert after is None or found.more > after
        after = found.more
    raise AssertionError("the pages never end")


def happened(store: SQLStore, row: RequestRow, *types: str) -> None:
    """Write the events of an open request, from its first."""
    last = None
    for version, kind in enumerate(types, start=1):
        written = store.write([Append(event(row, version, kind), previous_mac=last)], seal)
        assert written is not None
        last = written.events[0].mac


def everything(store: SQLStore) -> dict[str, RequestRow]:
    """Store a request of every kind, in the order of a list; return them by name."""
    now = store.now()
    rows = {
        "urgent": asked(store, listed_until=FAR), "voted": asked(store, listed_until=FAR + 1),
        "late": asked(store, listed_until=now - 1), "late, voted": asked(store, listed_until=now),
        "approved": asked(store, listed_until=FAR), "running": asked(store, listed_until=FAR + 1),
        "again": asked(store, listed_until=FAR + 2), "doubtful": asked(store, listed_until=FAR + 3),
        "asking": asked(store, listed_until=FAR + 4),
        "denied": asked(store), "succeeded": asked(store),
    }
    happened(store, rows["voted"], "request:voted")
    happened(store, rows["late, voted"], "request:voted")
    happened(store, rows["approved"], "request:voted", "request:approved")
    happened(store, rows["running"], "request:approved", "grant:claimed")
    happened(store, rows["again"], "request:approved", "grant:claimed", "call:suspended", "grant:resumed")
    happened(store, rows["doubtful"], "request:approved", "grant:claimed", "call:in_doubt")
    happened(store, rows["asking"], "request:approved", "grant:claimed", "call:suspended")
    end(store, rows["denied"], now - 5, kind="request:denied")
    end(store, rows["succeeded"], now - 9, kind="call:succeeded")
    return rows


def test_what_is_pending_comes_first_then_what_is_open_then_what_ended(store: SQLStore) -> None:
    rows = everything(store)

    found = store.look(wanted(store), limit=99)

    assert [row.id for _, row, _ in found.rows] == [row.id for row in rows.values()]
    assert [place[0] for place, _, _ in found.rows] == [lists.PENDING] * 2 + [lists.OPEN] * 7 + [lists.ENDED] * 2
    assert [len(events) for _, _, events in found.rows] == [0, 1, 0, 1, 2, 2, 4, 3, 3, 1, 1]
    assert found.rows[0][1] == rows["urgent"]
    assert found.more is None


@pytest.mark.parametrize("limit", [1, 3, 11])
@pytest.mark.parametrize("passed_over", [1, 2, 99])
def test_pages_show_each_request_once_however_much_is_passed_over(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch, limit: int, passed_over: int
) -> None:
    monkeypatch.setattr(lists, "PASSED_OVER", passed_over)
    rows = everything(store)

    assert paged(store, limit=limit) == [row.id for row in rows.values()]


def test_parts_are_narrowed_by_the_last_event(store: SQLStore) -> None:
    rows = everything(store)
    names = {row.id: name for name, row in rows.items()}
    nothing: dict[str, Any] = {"pending": False, "open": (), "overdue": False, "ended": ()}

    def found(**changes: Any) -> list[str]:
        return [names[id_] for id_ in ids(store, **nothing | changes)]

    assert found() == []
    assert found(pending=True) == ["urgent", "voted"]
    assert found(open=("call:in_doubt", "grant:claimed")) == ["running", "doubtful"]
    assert found(overdue=True) == ["late", "late, voted"]
    assert found(open=("request:approved",), overdue=True) == ["late", "late, voted", "approved"]
    assert found(open=None) == list(rows)[2:9]
    assert found(ended=("request:denied", "call:failed")) == ["denied"]
    assert found(ended=None) == ["denied", "succeeded"]


def test_nothing_wanted_is_the_end_of_the_list(store: SQLStore) -> None:
    everything(store)

    found = store.look(wanted(store, pending=False, open=(), overdue=False, ended=()), limit=9)

    assert (found.rows, found.more) == ((), None)


def test_lists_are_narrowed_by_tenant_run_tool_and_requester(store: SQLStore) -> None:
    plain = asked(store, tool=TOOL)
    other_run, other_tool = asked(store, tool=TOOL, run=OTHER), asked(store, tool=OTHER)
    other_user = asked(store, tool=TOOL, requester=OTHER)
    asked(store, tool=TOOL, tenant="other")
    older = asked(store, requester=None, desk=None, added_at=None)  # as an earlier version wrote it
    every = {row.id for row in (plain, other_run, other_tool, other_user, older)}

    assert set(ids(store)) == every
    assert set(ids(store, run=RUN)) == every - {other_run.id}
    assert set(ids(store, tool=TOOL)) == every - {other_tool.id}
    assert set(ids(store, requester=ANA)) == every - {other_user.id}
    assert set(ids(store, run=OTHER, tool=OTHER)) == set()


def test_a_viewer_gets_own_requests_and_those_at_desks_that_are_not_known_to_be_foreign(store: SQLStore) -> None:
    own = asked(store, tool=TOOL, requester=ANA, desk=OTHER)
    at_desk = asked(store, tool=TOOL, requester=OTHER, desk=DESK)
    asked(store, tool=TOOL, requester=OTHER, desk=OTHER)
    by_policy = asked(store, tool=TOOL, requester=None, desk=b"")
    no_desk, no_tool = asked(store, tool=TOOL, requester=None, desk=None), asked(store, requester=OTHER, desk=OTHER)
    always = {by_policy.id, no_desk.id, no_tool.id}

    assert set(ids(store, own=(ANA,), foreign=(OTHER,))) == {own.id, at_desk.id} | always
    assert set(ids(store, own=(), foreign=(OTHER,))) == {at_desk.id} | always
    assert set(ids(store, own=(), foreign=(OTHER, DESK))) == always
    assert len(ids(store, own=(), foreign=())) == 6
    assert len(ids(store, own=None, foreign=(OTHER,))) == 6


@pytest.mark.parametrize("part", ["pending", "open", "ended"])
def test_a_search_that_passed_over_enough_says_where_it_goes_on(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(lists, "PASSED_OVER", 2)
    now = store.now()
    rows = [asked(store, tool=OTHER, listed_until=FAR + number) for number in range(7)]
    rows += [asked(store, tool=TOOL, listed_until=FAR + 6)]
    for number, row in enumerate(rows):
        if part == "open":
            happened(store, row, "request:approved")
        if part == "ended":
            end(store, row, now - number)
    which: dict[str, Any] = {"pending": part == "pending", "open": (), "overdue": False, "ended": (), "tool": TOOL}
    which |= {} if part == "pending" else {part: None}

    first = store.look(wanted(store, **which), limit=5)

    assert first.rows == ()
    assert first.more is not None
    assert paged(store, limit=5, **which) == [rows[-1].id]


def test_a_page_holds_so_many_bytes_and_one_request_at_least(
    store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [asked(store, listed_until=FAR + number) for number in range(5)]
    size = len(rows[0].arguments) + len(rows[0].details)
    order = [row.id for row in rows]

    for bound, number in ((1, 1), (size, 1), (2 * size, 2), (5 * size, 5)):
        monkeypatch.setattr(lists, "MOST_BYTES", bound)
        assert ids(store) == order[:number]
        assert paged(store, limit=9) == order


@pytest.mark.parametrize("number", [1, 40])
def test_a_look_takes_three_queries_whatever_is_there(store: SQLStore, number: int) -> None:
    for which in range(number):
        row = asked(store, tool=TOOL)
        if which % 2:
            happened(store, row, "request:approved")
    store.look(wanted(store), limit=1)

    kinds: list[dict[str, Any]] = [{}, {"tool": OTHER}, {"own": (), "foreign": (DESK,)}]
    for changes, limit in itertools.product(kinds, (1, 99)):
        with queries() as sent:
            store.look(wanted(store, **changes), limit=limit)
        assert len(sent) == 3


def test_a_line_whose_request_is_gone_is_left_out(store: SQLStore, database: Database) -> None:
    gone, here = asked(store, listed_until=FAR), asked(store, listed_until=FAR + 1)
    database.execute("DELETE FROM hitl_guard_requests WHERE id = :id", {"id": gone.id.encode()})

    assert ids(store) == [here.id]
    assert paged(store, limit=1) == [here.id]


def test_a_line_of_another_type_stops_no_list(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> None:
    database = make_database("sqlite")
    store = open_store(database)
    here, edited = asked(store), asked(store)
    database.execute(
        "UPDATE hitl_guard_open_requests SET request_id = 'text', listed_until = 'text' WHERE request_id = :id",
        {"id": edited.id.encode()},
    )

    assert ids(store) == [here.id]


def test_the_parts_of_a_list_are_read_in_the_order_of_an_index(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
) -> None:
    """A page must not read all lines to sort them. (SQLite tells its plan exactly.)"""
    database = make_database("sqlite")
    store = open_store(database)
    after: Place = (0, 5, "id")
    with queries() as sent:
        store.look(wanted(store, own=(ANA,), foreign=(DESK,), tool=TOOL), limit=9, after=after)
        store.look(wanted(store, run=RUN), limit=9)
    looks = [statement for statement in sent if "edge_0" in statement]

    with database.connect() as connection:
        for statement, index in zip(looks, ("tenant", "run"), strict=True):
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (b"",) * statement.count("?"))
            plan = " ".join(str(row[3]) for row in rows)
            assert "USE TEMP B-TREE" not in plan
            assert plan.count(f"{schema.open_requests.name}_{index} ({index}=?") >= 6


def test_of_each_desk_that_is_not_known_one_open_request_is_shown(store: SQLStore) -> None:
    first = asked(store, listed_until=FAR)
    asked(store, listed_until=FAR + 1)
    second = asked(store, desk=OTHER)
    ended_ = asked(store, desk=digest("ended"))
    end(store, ended_, 5)
    asked(store, desk=b"")
    asked(store, desk=None)
    asked(store, desk=digest("theirs"), tenant="other")

    def samples(*known: bytes, limit: int = 9) -> set[str]:
        return {row.id for row in store.desk_samples("tenant", known=known, limit=limit)}

    assert samples() == {first.id, second.id}
    assert samples(DESK) == {second.id}
    assert samples(DESK, OTHER) == set()
    assert len(samples(limit=1)) == 1
