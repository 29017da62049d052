"""Suspended runs and conversations under contention, and when the reply to COMMIT is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from hitl_guard.errors import StoreUnavailableError
from hitl_guard.rows import Draft, EventRow, Link
from hitl_guard.store.base import AddRequest, AddSegment, Append, DropRun, DropThread, PutRun, Step, Written
from hitl_guard.store.sql import SQLStore
from tests.contract.build import (
    REFUSAL,
    RUN,
    control,
    digest,
    in_processes,
    put,
    request,
    run_node,
    run_row,
    seal,
    segment,
    wait_until_blocked,
)
from tests.databases import Database

KEY, MESSAGES = digest("run"), digest("thread")


@pytest.fixture
def store(database: Database, open_store: Callable[..., SQLStore]) -> SQLStore:
    return open_store(database)


@pytest.fixture
def threads() -> Iterable[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def first(who: str) -> list[Step]:
    return [PutRun(run_row(body=who.encode()), (run_node(), run_node(who, root="run")))]


def second(who: str) -> list[Step]:
    return [PutRun(run_row(version=2, body=who.encode()), (run_node(), run_node(who, root="run")))]


def drop(_who: str) -> list[Step]:
    return [DropRun(KEY, 1)]


def add(who: str) -> list[Step]:
    return [AddSegment(segment(1, body=who.encode()))]


def turn(who: str) -> list[Step]:
    """What a loop writes that suspends again: the next state, what was said, and the request that it waits for."""
    return [*second(who), *add(who), AddRequest(request(id=who.ljust(22, "x")), RUN, 9)]


class TestRaces:
    @pytest.mark.parametrize(
        ("exists", "one", "other"),
        [
            (False, first, first), (True, second, second), (True, drop, drop), (True, second, drop), (True, add, add),
            (True, turn, turn), (True, turn, drop), (True, turn, add),
        ],
        ids=[
            "first and first", "next and next", "drop and drop", "next and drop", "segment and segment",
            "turn and turn", "turn and drop", "turn and segment",
        ],
    )
    def test_of_two_that_read_the_same_state_one_wins_and_nothing_is_mixed(
        self, database: Database, open_store: Callable[..., SQLStore], threads: ThreadPoolExecutor, exists: bool,
        one: Callable[[str], list[Step]], other: Callable[[str], list[Step]],
    ) -> None:
        stores = [open_store(database, pool_size=1), open_store(database, pool_size=1)]
        if exists:
            assert put(stores[0]) is not None
        assert stores[0].write([AddSegment(segment(0))], seal) is not None
        both = threading.Barrier(2)

        def contend(store: SQLStore, who: str, steps: list[Step]) -> str | None:
            read = store.load_run(KEY)[1]
            both.wait(60)
            assert read == (run_row() if exists else None)
            return who if store.write(steps, seal) is not None else None

        contenders = zip(stores, ("one", "other"), (one("one"), other("other")), strict=True)
        won = [future.result(timeout=60) for future in [threads.submit(contend, *each) for each in contenders]]

        (winner,) = [who for who in won if who is not None]
        kind = {"one": one, "other": other}[winner]
        row = stores[0].load_run(KEY)[1]
        if kind in (first, second, turn):
            assert row == run_row(version=1 if kind is first else 2, body=winner.encode())
            assert {node.run_id for node, _ in stores[0].list_runs(digest("owner"))[1]} == {"run", winner}
        elif kind is drop:
            assert (row, stores[0].list_runs(digest("owner"))) == (None, (0, []))
        else:
            assert row == run_row()
        said = [segment(1, body=winner.encode())] if kind in (add, turn) else []
        assert stores[0].segments(MESSAGES) == [segment(0), *said]
        asked = [found.id.rstrip("x") for _, found, _ in stores[0].open_requests(tenant=None, limit=9)]
        assert asked == ([winner] if kind is turn else [])

    @pytest.mark.parametrize("committed", [False, True], ids=["rolled back", "committed"])
    @pytest.mark.parametrize(
        ("occupy", "steps"),
        [
            ("UPDATE hitl_guard_runs SET version = 2 WHERE run = :run", second),
            ("UPDATE hitl_guard_runs SET version = 2 WHERE run = :run", drop),
            ("DELETE FROM hitl_guard_runs WHERE run = :run", second),
            ("DELETE FROM hitl_guard_runs WHERE run = :run", drop),
            (
                "INSERT INTO hitl_guard_segments (thread, seq, run, mark, body) "
                "SELECT :thread, 1, run, mark, body FROM hitl_guard_runs WHERE run = :run",
                add,
            ),
            (
                "INSERT INTO hitl_guard_runs (run, tenant, version, mark, signature, body) "
                "SELECT :new, tenant, 1, mark, signature, body FROM hitl_guard_runs WHERE run = :run",
                lambda _who: [PutRun(run_row("new"), ())],
            ),
        ],
        ids=[
            "next after next", "drop after next", "next after drop", "drop after drop", "segment after segment",
            "first after first",
        ],
    )
    def test_who_waits_for_another_wins_only_if_that_one_gives_up(
        self, database: Database, store: SQLStore, threads: ThreadPoolExecutor, occupy: str,
        steps: Callable[[str], list[Step]], committed: bool,
    ) -> None:
        assert put(store) is not None
        names = {"run": KEY, "thread": MESSAGES, "new": digest("new")}
        with database.connect() as blocker:
            blocker.begin()
            blocker.execute(text(occupy), {name: value for name, value in names.items() if f":{name}" in occupy})
            waiting = threads.submit(store.write, steps("waiter"), seal)
            wait_until_blocked(database, waiting)
            _end(blocker, committed)

        assert (waiting.result(timeout=60) is None) is committed

    def test_writes_that_lock_in_opposite_orders_end_in_one_of_them(
        self, database: Database, open_store: Callable[..., SQLStore], threads: ThreadPoolExecutor
    ) -> None:
        stores = [open_store(database, pool_size=1), open_store(database, pool_size=1)]
        for store, name in zip(stores, ("a", "b"), strict=True):
            assert put(store, name) is not None
            assert store.write([REFUSAL], seal) is not None
        gate = threading.Barrier(2)

        def run(store: SQLStore, names: str) -> Written | None:
            def meet(draft: Draft, link: Link) -> EventRow:
                if database.kind != "sqlite":
                    gate.wait(60)  # each holds the row that the other wants
                return seal(draft, link)

            one, other = (PutRun(run_row(name, version=2, body=names.encode()), (run_node(name),)) for name in names)
            return store.write([one, REFUSAL, other], meet)

        answers = [threads.submit(run, store, names) for store, names in zip(stores, ("ab", "ba"), strict=True)]
        won = [names for names, answer in zip(("ab", "ba"), answers, strict=True) if answer.result(60) is not None]

        (winner,) = won
        rows = [stores[0].load_run(digest(name))[1] for name in "ab"]
        assert rows == [run_row(name, version=2, body=winner.encode()) for name in "ab"]

    def test_of_16_threads_each_version_has_one_winner_and_none_is_lost(
        self, store: SQLStore, threads: ThreadPoolExecutor
    ) -> None:
        start = threading.Barrier(16)

        def write(who: int) -> int:
            """Put the next version and add the next segment, over and over, as many loops on one run would."""
            won = 0
            start.wait(60)
            while won < 3:
                row = store.load_run(KEY)[1]
                version = 1 if row is None else row.version + 1
                step = PutRun(run_row(version=version, body=bytes([who])), (run_node(), run_node("inner", root="run")))
                if store.write([step, AddSegment(segment(version - 1, body=bytes([who])))], seal) is not None:
                    won += 1
            return won

        assert [future.result(timeout=120) for future in [threads.submit(write, who) for who in range(16)]] == [3] * 16

        said = store.segments(MESSAGES)
        last = store.load_run(KEY)[1]
        assert [found.seq for found in said] == list(range(48))
        assert sorted(found.body for found in said) == sorted(bytes([who]) for who in range(16) for _ in range(3))
        assert last == run_row(version=48, body=said[-1].body)
        assert store.list_runs(digest("owner"))[0] == 2

    def test_of_writes_by_many_processes_one_wins(self, database: Database, store: SQLStore) -> None:
        assert put(store) is not None

        assert sum(in_processes(_put_in_a_process, [database.url] * 4)) == 1
        assert store.load_run(KEY)[1] == run_row(version=2)


def _end(blocker: Connection, committed: bool) -> None:
    if committed:
        blocker.commit()
    else:
        blocker.rollback()


def _put_in_a_process(url: str) -> int:
    """Put version 2 with 8 threads at once; return how many succeeded."""
    store = SQLStore(url, pool_size=2)
    start = threading.Barrier(8)

    def run() -> Written | None:
        start.wait(60)
        return put(store, version=2)

    with ThreadPoolExecutor(8) as threads:
        won = [future.result(timeout=60) for future in [threads.submit(run) for _ in range(8)]]
    store.close()
    return sum(written is not None for written in won)


LAST_STEPS: dict[str, Callable[[], list[Step]]] = {
    "first version": lambda: [PutRun(run_row("new"), (run_node("new"),))],
    "next version": lambda: second("who"),
    "dropped run": lambda: drop("who"),
    "segment": lambda: add("who"),
    "dropped conversation": lambda: [DropRun(KEY, 1), DropThread(MESSAGES)],
    "turn": lambda: turn("who"),
    "request, then the run": lambda: [AddRequest(request(id="r" * 22), RUN, 9), *second("who")],
    "event, then the run": lambda: [REFUSAL, *second("who")],
    "control row, then the run": lambda: [*control(1)[:1], *second("who")],
    "run, then a dropped conversation": lambda: [*second("who"), DropThread(MESSAGES)],
    "segment, then a dropped run": lambda: [*add("who"), *drop("who")],
    "run and segment that the same write drops": lambda: [
        PutRun(run_row("new"), ()), AddSegment(segment(9)), DropThread(MESSAGES), DropRun(digest("new"), 1),
        DropRun(KEY, 1),
    ],
    "run that the same write puts again": lambda: [*drop("who"), *first("who")],
    "two versions": lambda: [*second("who"), PutRun(run_row(version=3), ())],
}


class TestLostReplies:
    @pytest.fixture(autouse=True)
    def _suspended(self, store: SQLStore, plan: dict[str, Any]) -> None:
        assert store.write([REFUSAL, *first("before"), AddSegment(segment(0))], seal) is not None

    @pytest.mark.parametrize("steps", LAST_STEPS.values(), ids=LAST_STEPS)
    def test_a_commit_that_was_applied_is_found_again(
        self, store: SQLStore, plan: dict[str, Any], steps: Callable[[], list[Step]]
    ) -> None:
        plan.update(broken=True, applied=True)
        before = store.now()

        written = store.write(steps(), seal)

        assert written is not None
        assert before <= written.now <= store.now()
        assert len(written.events) == sum(isinstance(step, Append) for step in steps())
        again = store.write(steps(), seal)
        assert (again is None) is ("again" not in _name(steps))

    @pytest.mark.parametrize("steps", LAST_STEPS.values(), ids=LAST_STEPS)
    def test_a_commit_that_was_not_applied_is_unknown_and_can_be_tried_again(
        self, store: SQLStore, plan: dict[str, Any], steps: Callable[[], list[Step]]
    ) -> None:
        plan.update(broken=True, applied=False)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(steps(), seal)

        assert caught.value.detail == "commit-unknown"
        assert store.load_run(KEY)[1] == run_row(body=b"before")
        assert store.segments(MESSAGES) == [segment(0)]
        assert store.write(steps(), seal) is not None

    @pytest.mark.parametrize("steps", [second, add, first], ids=["next version", "segment", "run put again"])
    def test_anothers_equal_success_is_not_taken_for_ones_own(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any],
        steps: Callable[[str], list[Step]],
    ) -> None:
        other = open_store(database)
        ours = [*(drop("who") if steps is first else []), *steps("who")]

        def meanwhile() -> None:
            assert other.write(ours, seal) is not None

        plan.update(broken=True, applied=False, then=meanwhile)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(ours, seal)

        assert caught.value.detail == "commit-unknown"

    @pytest.mark.parametrize(
        "theirs",
        [[DropRun(digest("other"), 1)], [DropThread(MESSAGES)], [DropRun(KEY, 1)]],
        ids=["the other run", "the conversation", "the run"],
    )
    def test_a_part_that_another_deleted_does_not_tell_of_the_whole(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any],
        theirs: list[Step],
    ) -> None:
        assert put(store, "other") is not None
        other = open_store(database)

        def meanwhile() -> None:
            assert other.write(theirs, seal) is not None

        plan.update(broken=True, applied=False, then=meanwhile)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write([DropRun(KEY, 1), DropRun(digest("other"), 1), DropThread(MESSAGES)], seal)

        assert caught.value.detail == "commit-unknown"

    def test_what_is_gone_counts_as_deleted_whoever_deleted_it(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any]
    ) -> None:
        other = open_store(database)

        def meanwhile() -> None:
            assert other.write(drop("who"), seal) is not None

        plan.update(broken=True, applied=False, then=meanwhile)

        assert store.write(drop("who"), seal) is not None
        assert store.load_run(KEY)[1] is None

    def test_a_run_that_another_took_on_meanwhile_leaves_the_outcome_unknown(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any]
    ) -> None:
        other = open_store(database)

        def meanwhile() -> None:
            assert put(other, version=3) is not None

        plan.update(broken=True, applied=True, then=meanwhile)

        with pytest.raises(StoreUnavailableError) as caught:
            store.write(second("who"), seal)

        assert caught.value.detail == "commit-unknown"
        assert store.load_run(KEY)[1] == run_row(version=3)

    @pytest.mark.parametrize(
        "lasting", [[AddRequest(request(id="r" * 22), RUN, 9)], [REFUSAL]], ids=["request", "event"]
    )
    def test_what_nobody_replaces_tells_of_the_write_whatever_became_of_the_run(
        self, database: Database, store: SQLStore, open_store: Callable[..., SQLStore], plan: dict[str, Any],
        lasting: list[Step],
    ) -> None:
        other = open_store(database)

        def meanwhile() -> None:
            assert put(other, version=3) is not None

        plan.update(broken=True, applied=True, then=meanwhile)

        assert store.write([*lasting, *second("who")], seal) is not None


def _name(steps: Callable[[], list[Step]]) -> str:
    return next(name for name, candidate in LAST_STEPS.items() if candidate is steps)
