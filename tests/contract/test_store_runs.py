"""Suspended runs and conversations: what each step does, alone and among others, and what is read back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.rows import RequestRow, RunNode, RunRow, Segment
from hitl_guard.store.base import AddRequest, AddSegment, Append, DropRun, DropThread, PutRun, Step
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    HOUR,
    REFUSAL,
    RUN,
    added,
    approved,
    claim,
    digest,
    event,
    events_of,
    put,
    request,
    run_node,
    run_row,
    seal,
    segment,
)
from tests.databases import Database

EVERY_BYTE = bytes(range(256))
LARGE = EVERY_BYTE * (5 * 1024 * 4)  # 5 MB
MESSAGES, OTHER = digest("thread"), digest("other thread")
NEAR_KEYS = [b"key", b"KEY", b"Key", b"key ", b"key\0", b" key", b"ke\xff", b"k\xc3\xa9y", b""]
NEAR_TEXTS = ["run", "RUN", "run ", "run\0", "r\u00fcn", "ru\u0308n", "r\ud800n", "\U0001f680", ""]


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


def listed(store: SQLStore, owner: str = "owner", **which: Any) -> list[RunNode]:
    total, found = store.list_runs(digest(owner), **which)
    assert total >= len(found)
    return [node for node, _ in found]


class TestRuns:
    def test_a_run_that_nobody_suspended_is_not_there(self, store: SQLStore) -> None:
        before = store.now()

        now, row = store.load_run(digest("run"))

        assert row is None
        assert before <= now <= store.now()
        assert store.list_runs(digest("owner")) == (0, [])

    @pytest.mark.parametrize("body", [b"", EVERY_BYTE, LARGE], ids=["empty", "every byte", "5 MB"])
    def test_a_run_comes_back_as_it_was_stored(self, store: SQLStore, body: bytes) -> None:
        row, node = run_row(body=body, signature=EVERY_BYTE), run_node()
        before = store.now()

        written = store.write([PutRun(row, (node,))], seal)
        now, found = store.load_run(row.key)

        assert written is not None
        assert before <= written.now <= now <= store.now()
        assert written.events == ()
        assert found == row
        assert store.list_runs(node.owner) == (1, [(node, row)])

    def test_a_key_is_taken_once(self, store: SQLStore) -> None:
        first = run_row()
        assert store.write([PutRun(first, (run_node(),))], seal) is not None

        assert store.write([PutRun(run_row(body=b"another"), (run_node(run_id="another"),))], seal) is None
        assert store.write([REFUSAL, PutRun(run_row(body=b"another"), ())], seal) is None

        assert store.load_run(first.key)[1] == first
        assert listed(store) == [run_node()]

    def test_a_version_replaces_exactly_the_one_before(self, store: SQLStore) -> None:
        assert put(store, version=2) is None
        assert put(store, version=0) is None
        assert put(store, version=1) is not None
        assert put(store, version=3) is None
        assert put(store, version=2, tenant="moved", body=LARGE, signature=b"second") is not None

        assert put(store, version=2) is None
        assert put(store, version=1) is None
        expected = run_row(version=2, tenant="moved", body=LARGE, signature=b"second")
        assert store.load_run(digest("run"))[1] == expected

    def test_equal_content_is_a_new_version_all_the_same(self, store: SQLStore) -> None:
        for version in (1, 2, 3):
            assert put(store, version=version) is not None

        assert store.load_run(digest("run"))[1] == run_row(version=3)

    def test_a_new_version_replaces_the_runs_nodes_and_no_others(self, store: SQLStore) -> None:
        inner = [run_node(f"inner {n}", root="run", created_at=n) for n in range(3)]
        assert put(store, nodes=(run_node(), *inner[:2])) is not None
        assert put(store, "stranger", nodes=(run_node("stranger"),)) is not None

        assert put(store, version=2, nodes=(run_node(), *inner[1:])) is not None

        assert {node.run_id for node in listed(store)} == {"run", "inner 1", "inner 2", "stranger"}

    def test_a_refused_version_leaves_the_nodes_as_they_were(self, store: SQLStore) -> None:
        assert put(store, nodes=(run_node(), run_node("inner", root="run"))) is not None

        assert put(store, version=3, nodes=()) is None

        assert len(listed(store)) == 2

    def test_a_run_stands_in_a_tree_once(self, store: SQLStore) -> None:
        twice = (run_node(), run_node("inner", root="run"), run_node("inner", root="run", created_at=9))

        assert put(store, nodes=twice) is None

        assert store.load_run(digest("run"))[1] is None
        assert listed(store) == []

    def test_one_run_may_stand_in_two_trees(self, store: SQLStore) -> None:
        shared = [run_node("inner", root=root) for root in ("run", "other")]
        assert put(store, "run", nodes=(shared[0],)) is not None
        assert put(store, "other", nodes=(shared[1],)) is not None

        assert sorted(node.root for node in listed(store)) == sorted(node.root for node in shared)

    def test_exactly_one_version_is_dropped_with_its_nodes(self, database: Database, store: SQLStore) -> None:
        assert put(store, nodes=(run_node(), run_node("inner", root="run"))) is not None
        assert put(store, version=2, nodes=(run_node(), run_node("inner", root="run"))) is not None
        assert put(store, "stranger", nodes=(run_node("stranger"),)) is not None
        for version in (0, 1, 3):
            assert store.write([DropRun(digest("run"), version)], seal) is None
        assert len(listed(store)) == 3

        assert store.write([DropRun(digest("run"), 2)], seal) is not None

        assert store.load_run(digest("run"))[1] is None
        assert listed(store) == [run_node("stranger")]
        assert database.execute("SELECT root FROM hitl_guard_run_nodes") == [(digest("stranger"),)]
        assert store.write([DropRun(digest("run"), 2)], seal) is None
        assert store.write([DropRun(digest("nobody"), 1)], seal) is None

    def test_a_run_that_was_dropped_may_be_put_again(self, store: SQLStore) -> None:
        assert put(store) is not None
        assert store.write([DropRun(digest("run"), 1)], seal) is not None
        assert put(store) is not None

        again: list[Step] = [DropRun(digest("run"), 1), PutRun(run_row(body=b"again"), (run_node(created_at=9),))]
        assert store.write(again, seal) is not None

        assert store.load_run(digest("run"))[1] == run_row(body=b"again")
        assert listed(store) == [run_node(created_at=9)]

    def test_keys_that_look_alike_are_different_keys(self, store: SQLStore) -> None:
        rows = [RunRow(key, "tenant", 1, key, key) for key in NEAR_KEYS]
        for row in rows:
            node = RunNode(row.key, row.key, "run", row.key, row.key, row.key, 1)
            assert store.write([PutRun(row, (node,))], seal) is not None

        for row in rows:
            assert store.load_run(row.key)[1] == row
            assert [found for _, found in store.list_runs(row.key)[1]] == [row]
            assert store.list_runs(row.key, thread=row.key, resource=row.key)[0] == 1
        dropped, *kept = rows
        assert store.write([DropRun(dropped.key, 1)], seal) is not None
        assert [store.load_run(row.key)[1] for row in rows] == [None, *kept]

    def test_texts_come_back_as_they_were_or_as_no_text_that_was_signed(self, store: SQLStore) -> None:
        for text in NEAR_TEXTS:
            row = run_row(text, tenant=text)
            assert store.write([PutRun(row, (run_node(text, owner=text),))], seal) is not None

        for text in NEAR_TEXTS:
            ((node, row),) = store.list_runs(digest(text))[1]
            expected = text.replace("\ud800", "\ufffd" * 3)
            assert (node.run_id, row.tenant) == (expected, expected)

    def test_columns_that_a_forger_filled_with_nonsense_become_values_that_no_signature_fits(
        self, database: Database, store: SQLStore
    ) -> None:
        assert put(store) is not None
        database.execute("UPDATE hitl_guard_runs SET tenant = :x", {"x": b"\xff\xfe"})
        if database.kind == "sqlite":
            database.execute("UPDATE hitl_guard_runs SET version = 'one', body = 7, signature = 'text'")
            database.execute("UPDATE hitl_guard_run_nodes SET created_at = 'yesterday', run_id = 1.5")

        row = store.load_run(digest("run"))[1]
        total, ((node, same),) = store.list_runs(digest("owner"))

        assert (total, same) == (1, row)
        assert row is not None
        assert row.tenant == "\ufffd\ufffd"
        if database.kind == "sqlite":
            assert (row.version, row.body, row.signature) == (-1, b"", b"")
            assert (node.created_at, node.run_id) == (-1, "")


class TestLists:
    @pytest.fixture(autouse=True)
    def _trees(self, store: SQLStore) -> None:
        """Three trees of two owners: a at 10, b at 20 with an inner run of other's at 25, c at 20 elsewhere."""
        assert put(store, "a", nodes=(run_node("a", created_at=10),)) is not None
        inner = run_node("inner", root="b", owner="other", created_at=25)
        assert put(store, "b", nodes=(run_node("b", created_at=20), inner)) is not None
        elsewhere = run_node("c", created_at=20, thread="elsewhere", resource="somebody")
        assert put(store, "c", nodes=(elsewhere,)) is not None

    def ids(self, store: SQLStore, owner: str = "owner", **which: Any) -> list[str]:
        return [node.run_id for node in listed(store, owner, **which)]

    def test_the_newest_come_first_and_those_of_one_moment_by_key(self, store: SQLStore) -> None:
        same = sorted("bc", key=digest)

        assert self.ids(store) == [*same, "a"]

    def test_an_inner_run_is_listed_with_the_root_of_its_tree(self, store: SQLStore) -> None:
        ((node, row),) = store.list_runs(digest("other"))[1]

        assert node == run_node("inner", root="b", owner="other", created_at=25)
        assert row == run_row("b")
        assert self.ids(store, "nobody") == []

    @pytest.mark.parametrize(
        ("which", "found"),
        [
            ({"thread": digest("thread")}, "ab"),
            ({"thread": digest("elsewhere")}, "c"),
            ({"resource": digest("resource")}, "ab"),
            ({"resource": digest("somebody"), "thread": digest("thread")}, ""),
            ({"created_from": 20}, "bc"),
            ({"created_from": 21}, ""),
            ({"created_to": 10}, "a"),
            ({"created_to": 9}, ""),
            ({"created_from": 10, "created_to": 20}, "abc"),
            ({"created_from": 11, "created_to": 19}, ""),
            ({"created_from": 0, "thread": digest("elsewhere")}, "c"),
        ],
        ids=str,
    )
    def test_filters_are_inclusive_and_all_count(self, store: SQLStore, which: dict[str, Any], found: str) -> None:
        assert sorted(self.ids(store, **which)) == list(found)
        assert store.list_runs(digest("owner"), **which)[0] == len(found)

    def test_pages_partition_the_list_and_the_total_counts_before_paging(self, store: SQLStore) -> None:
        whole = store.list_runs(digest("owner"))[1]
        pages = [store.list_runs(digest("owner"), limit=2, offset=offset) for offset in (0, 2, 4)]

        assert [total for total, _ in pages] == [3, 3, 3]
        assert [row for _, page in pages for row in page] == whole
        assert store.list_runs(digest("owner"), offset=1) == (3, whole[1:])
        assert store.list_runs(digest("owner"), limit=0) == (3, [])
        assert store.list_runs(digest("owner"), thread=digest("thread"), limit=1)[0] == 2

    def test_a_node_whose_tree_is_gone_is_not_listed(self, database: Database, store: SQLStore) -> None:
        database.execute("DELETE FROM hitl_guard_runs WHERE run = :run", {"run": digest("b")})

        assert sorted(self.ids(store)) == ["a", "c"]
        assert store.list_runs(digest("other")) == (0, [])


class TestSegments:
    def test_a_conversation_comes_back_in_order(self, store: SQLStore) -> None:
        rows = [segment(0, body=LARGE), segment(1, body=EVERY_BYTE), segment(2, body=b"")]
        for row in reversed(rows):
            written = store.write([AddSegment(row)], seal)
            assert written is not None
            assert written.events == ()

        assert store.segments(MESSAGES) == rows
        assert store.last_segments(MESSAGES, None) == rows
        assert store.segments(OTHER) == store.last_segments(OTHER, None) == []

    def test_a_place_is_taken_once(self, store: SQLStore) -> None:
        first = segment(0)
        assert store.write([AddSegment(first)], seal) is not None

        assert store.write([AddSegment(segment(0, body=b"another"))], seal) is None
        assert store.write([AddSegment(segment(1)), AddSegment(segment(1))], seal) is None
        assert store.write([AddSegment(segment(0, thread="other thread"))], seal) is not None
        assert store.segments(MESSAGES) == [first]

    def test_one_conversation_is_dropped_and_no_other(self, store: SQLStore) -> None:
        steps: list[Step] = [AddSegment(segment(seq)) for seq in range(3)]
        assert store.write([*steps, AddSegment(segment(0, thread="other thread"))], seal) is not None

        assert store.write([DropThread(MESSAGES)], seal) is not None
        assert store.write([DropThread(MESSAGES)], seal) is not None

        assert store.segments(MESSAGES) == []
        assert store.segments(OTHER) == [segment(0, thread="other thread")]

    def test_a_conversation_is_replaced_in_one_write(self, store: SQLStore) -> None:
        assert store.write([AddSegment(segment(0)), AddSegment(segment(1))], seal) is not None

        new = segment(0, body=b"summary")
        assert store.write([DropThread(MESSAGES), AddSegment(new)], seal) is not None

        assert store.segments(MESSAGES) == [new]

    @pytest.mark.parametrize(
        ("which", "found"),
        [
            ({}, [0, 1, 2, 3, 4]),
            ({"first": 2}, [2, 3, 4]),
            ({"first": 9}, []),
            ({"below": 2}, [0, 1]),
            ({"below": 0}, []),
            ({"first": 1, "below": 3}, [1, 2]),
            ({"below": 2, "run": digest("own")}, [0, 1, 4]),
            ({"first": 1, "below": 2, "run": digest("own")}, [1, 4]),
            ({"below": 0, "run": digest("own")}, [1, 4]),
            ({"below": 2, "run": digest("nobody")}, [0, 1]),
            ({"run": digest("own")}, [0, 1, 2, 3, 4]),
        ],
        ids=str,
    )
    def test_a_part_of_a_conversation_with_what_a_run_wrote_itself(
        self, store: SQLStore, which: dict[str, Any], found: list[int]
    ) -> None:
        rows = [segment(seq, run="own" if seq in (1, 4) else "earlier") for seq in range(5)]
        assert store.write([AddSegment(row) for row in rows], seal) is not None
        assert store.write([AddSegment(segment(2, run="own", thread="other thread"))], seal) is not None

        assert store.segments(MESSAGES, **which) == [rows[seq] for seq in found]

    @pytest.mark.parametrize(("limit", "found"), [(None, [0, 1, 2]), (9, [0, 1, 2]), (2, [1, 2]), (1, [2]), (0, [])])
    def test_the_newest_segments_in_ascending_order(
        self, store: SQLStore, limit: int | None, found: list[int]
    ) -> None:
        rows = [segment(seq) for seq in range(3)]
        assert store.write([AddSegment(row) for row in rows], seal) is not None

        assert store.last_segments(MESSAGES, limit) == [rows[seq] for seq in found]

    def test_conversations_that_look_alike_are_different_ones(self, store: SQLStore) -> None:
        rows = [Segment(key, 0, key, key) for key in NEAR_KEYS]
        for row in rows:
            assert store.write([AddSegment(row)], seal) is not None

        assert [store.segments(row.thread) for row in rows] == [[row] for row in rows]
        assert store.write([DropThread(rows[0].thread)], seal) is not None
        assert [store.last_segments(row.thread, 1) for row in rows] == [[], *([row] for row in rows[1:])]


class TestWholeWrites:
    def test_a_request_and_the_suspended_run_are_written_together(self, store: SQLStore) -> None:
        row, node = run_row(), run_node()
        asked = request()

        written = store.write(
            [AddRequest(asked, RUN, 9), Append(event(asked, 1)), AddSegment(segment(0)), PutRun(row, (node,))], seal
        )

        assert written is not None
        assert events_of(store, asked) == written.events
        assert store.load_run(row.key)[1] == row
        assert store.list_runs(node.owner) == (1, [(node, row)])
        assert store.segments(MESSAGES) == [segment(0)]

    def test_runs_and_segments_make_no_event(self, store: SQLStore) -> None:
        assert put(store) is not None
        steps: list[Step] = [AddSegment(segment(0)), DropThread(MESSAGES), DropRun(digest("run"), 1)]
        assert store.write(steps, seal) is not None

        assert store.chains() == []
        assert list(store.request_histories()) == []

    @pytest.mark.parametrize("place", ["first", "last"])
    @pytest.mark.parametrize(
        "unmet",
        [
            lambda _row: PutRun(run_row("taken", body=b"another"), ()),
            lambda _row: PutRun(run_row("taken", version=3), ()),
            lambda _row: PutRun(run_row("nobody", version=2), ()),
            lambda _row: PutRun(run_row("twice"), (run_node("twice"), run_node("twice"))),
            lambda _row: DropRun(digest("taken"), 2),
            lambda _row: AddSegment(segment(0)),
            lambda row: AddRequest(row, RUN, 9),
            lambda row: Append(event(row, 1)),
        ],
        ids=[
            "run that exists", "later version of a run", "version of no run", "node twice", "drop of another version",
            "segment that exists", "request that exists", "event that exists",
        ],
    )
    def test_one_unmet_demand_undoes_every_step(
        self, store: SQLStore, unmet: Callable[[RequestRow], Step], place: str
    ) -> None:
        row, first = approved(store)
        assert put(store, "taken", nodes=(run_node("taken"),)) is not None
        assert put(store, "next", nodes=(run_node("next"),)) is not None
        assert put(store, "ended", nodes=(run_node("ended"),)) is not None
        assert store.write([AddSegment(segment(0)), AddSegment(segment(0, thread="other thread"))], seal) is not None
        before = store.list_runs(digest("owner"))
        asked = request()
        met: list[Step] = [
            AddRequest(asked, RUN, 9), Append(event(asked, 1)), claim(row, first),
            PutRun(run_row("new"), (run_node("new"),)), PutRun(run_row("next", version=2), ()),
            DropRun(digest("ended"), 1), AddSegment(segment(1)), DropThread(OTHER),
        ]

        steps = [unmet(row), *met] if place == "first" else [*met, unmet(row)]
        assert store.write(steps, seal) is None

        assert store.load("tenant", request_id=asked.id).request is None
        assert events_of(store, row) == (first,)
        assert store.list_runs(digest("owner")) == before
        assert store.load_run(digest("new"))[1] is None
        assert store.segments(MESSAGES) == [segment(0)]
        assert len(store.segments(OTHER)) == 1
        assert store.write(met, seal) is not None

    def test_the_clock_is_compared_again_after_a_run_was_put(
        self, store: SQLStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, first = approved(store)
        limit = store.now() + HOUR
        monkeypatch.setattr(store._dialect, "clock", lambda raw: limit)

        assert store.write([claim(row, first, before=limit), PutRun(run_row(), ())], seal) is None

        assert events_of(store, row) == (first,)
        assert store.load_run(digest("run"))[1] is None


class TestConnections:
    def test_a_closed_store_can_be_used_again(self, store: SQLStore) -> None:
        assert put(store) is not None
        assert store.write([AddSegment(segment(0))], seal) is not None

        store.close()

        assert store.load_run(digest("run"))[1] == run_row()
        assert len(listed(store)) == 1
        assert store.segments(MESSAGES) == store.last_segments(MESSAGES, 1) == [segment(0)]
        store.close()
        assert put(store, version=2) is not None

    def test_a_forked_child_has_connections_of_its_own(self, store: SQLStore) -> None:
        assert put(store) is not None
        assert store.write([AddSegment(segment(0))], seal) is not None
        assert len(listed(store)) == 1

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                fine = (
                    store.load_run(digest("run"))[1] == run_row()
                    and put(store, version=2) is not None
                    and store.write([AddSegment(segment(1))], seal) is not None
                    and len(listed(store)) == 1
                )
                status = 0 if fine else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert put(store, version=2) is None
        assert store.load_run(digest("run"))[1] == run_row(version=2)
        assert store.segments(MESSAGES) == [segment(0), segment(1)]

    @pytest.mark.parametrize(
        "url", ["postgresql://nobody:hunter2@127.0.0.1:1/x", "mariadb://nobody:hunter2@127.0.0.1:1/x"],
        ids=["postgresql", "mariadb"],
    )
    def test_a_server_that_is_down_refuses_every_use(self, url: str) -> None:
        for use in _uses(SQLStore(url)):
            with pytest.raises(StoreUnavailableError) as caught:
                use()
            assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
    def test_a_database_without_the_schema_says_what_to_run(
        self, kind: str, make_database: Callable[..., Database], open_store: Callable[..., SQLStore]
    ) -> None:
        for use in _uses(open_store(make_database(kind, empty=True))):
            with pytest.raises(ConfigurationError, match="db upgrade") as caught:
                use()
            assert caught.value.detail == "schema"

    def test_a_number_that_no_database_holds_is_refused(self, store: SQLStore) -> None:
        assert put(store) is not None
        steps: list[Step] = [
            AddSegment(segment(2**80)), PutRun(run_row(version=2), (run_node(created_at=-(2**80)),)),
        ]

        for step in steps:
            with pytest.raises(StoreUnavailableError) as caught:
                store.write([step], seal)
            assert caught.value.detail in ("refused", "lost")

        assert store.load_run(digest("run"))[1] == run_row()
        assert (listed(store), store.segments(MESSAGES)) == ([run_node()], [])

    def test_a_key_of_more_bytes_than_a_digest_never_stands_for_its_beginning(
        self, database: Database, store: SQLStore
    ) -> None:
        key = digest("run") + b"more"
        row = RunRow(key, "tenant", 1, b"state", b"signed")

        if database.kind == "mariadb":
            with pytest.raises(StoreUnavailableError):
                store.write([PutRun(row, ())], seal)
        else:
            assert store.write([PutRun(row, ())], seal) is not None
            assert store.load_run(key)[1] == row
        assert store.load_run(digest("run"))[1] is None

    def test_requests_are_untouched_by_runs_of_the_same_name(self, store: SQLStore) -> None:
        row = added(store, run=digest("run"))
        assert put(store) is not None

        assert store.write([DropRun(digest("run"), 1)], seal) is not None

        assert [found for _, found, _ in store.open_requests(tenant=None, limit=9, run=digest("run"))] == [row]


def _uses(store: SQLStore) -> list[Callable[[], object]]:
    """Everything that is done with runs and segments."""
    return [
        lambda: store.load_run(digest("run")), lambda: store.list_runs(digest("owner")),
        lambda: store.segments(MESSAGES), lambda: store.last_segments(MESSAGES, 1), lambda: put(store),
        lambda: store.write([DropRun(digest("run"), 1)], seal), lambda: store.write([AddSegment(segment(0))], seal),
        lambda: store.write([DropThread(MESSAGES)], seal),
    ]
