"""The change feed: what any process wrote is found through the database, nothing is missed, nothing is evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from hitl_guard.errors import StoreUnavailableError
from hitl_guard.lifecycle import feed as feeds
from hitl_guard.lifecycle.feed import Change, Feed
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.store import anchors
from hitl_guard.store.sql import SQLStore
from tests.support import BOB, GLOBAL, OPERATOR, World, until

HOUR = 3_600_000


def told(changes: Sequence[Change]) -> list[tuple[str | None, int, str]]:
    return [(change.request_id, change.version, change.type) for change in changes]


def feed_of(world: World) -> Feed:
    """Return a feed that starts now; the tenant has its control row already, and all tenants have theirs."""
    world.guard.pause(by=OPERATOR, tool="nothing")
    world.guard.pause(by=GLOBAL, everywhere=True, tool="nothing")
    return Feed(world.guard._desk)


@pytest.fixture
def elsewhere(database: Any, open_store: Callable[..., SQLStore]) -> Callable[[World], World]:
    """Make another node of a world on the same database, with connections of its own, as another process has."""
    return lambda world: world.another(store=open_store(database))


def test_x10_another_process_sees_each_change_once(
    make_world: Callable[..., World], elsewhere: Callable[[World], World]
) -> None:
    world = make_world()
    other = elsewhere(world)
    world.guard.request(world.call())
    feed = feed_of(other)
    assert feed.changes() == []

    call = world.call()
    request = world.guard.request(call)
    assert told(feed.changes()) == [(request.id, 0, "request:asked")]
    world.approve(request)
    assert told(feed.changes()) == [(request.id, 1, "request:approved")]
    assert world.run(call) == "done"
    changes = feed.changes()

    assert told(changes) == [(request.id, 2, "grant:claimed"), (request.id, 3, "call:succeeded")]
    assert {change.tenant for change in changes} == {"default"}
    assert feed.changes() == []


def test_x10_a_change_names_its_events_place_and_time(world: World) -> None:
    feed = feed_of(world)
    request = world.guard.request(world.call())
    (asked,) = feed.changes()
    world.deny(request)
    (denied,) = feed.changes()

    (chain,) = world.store.chains()
    event = world.store.chain_events(chain)[-1]
    assert asked == Change("default", request.id, 0, "request:asked", request.issued_at)
    assert denied == Change("default", request.id, 1, "request:denied", event.at, chain, event.seq)
    assert feed.position() == {chain: event.seq}


def test_x10_what_every_feed_is_told_is_the_same(
    make_world: Callable[..., World], elsewhere: Callable[[World], World]
) -> None:
    world = make_world()
    other = elsewhere(world)
    here, there = Feed(world.guard._desk), Feed(other.guard._desk)
    for node in (world, other):
        node.deny(node.guard.request(world.call()))

    assert sorted(map(repr, here.changes())) == sorted(map(repr, there.changes()))
    assert here.position() == there.position()


def test_x10_a_chain_that_appears_later_is_read_from_its_start(
    make_world: Callable[..., World], elsewhere: Callable[[World], World]
) -> None:
    world = make_world()
    feed = Feed(world.guard._desk)
    assert feed.position() == {}
    first = world.guard.request(world.call())
    world.deny(first)
    feed.changes()
    second = world.guard.request(world.call())
    other = elsewhere(world)

    other.deny(second)

    assert (second.id, 1, "request:denied") in told(feed.changes())


def test_x10_a_chain_that_fell_silent_is_heard_when_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = world.another(store=SQLStore(world.store._dialect.url.render_as_string()))
    requests = [world.guard.request(world.call()) for _ in range(4)]
    quiet.deny(requests[0])
    before = feed_of(world)
    monkeypatch.setattr(anchors, "ANCHOR_EVERY", 1)
    monkeypatch.setattr(anchors, "RETIRE_AFTER", -1)
    until(world.store, world.store.now() + 1)
    world.deny(requests[1])
    world.deny(requests[2])
    world.guard.pause(by=OPERATOR, tool="x")
    after = feed_of(world)
    listed = dict(world.store.heads())

    quiet.deny(requests[3])

    assert len(listed) < len(world.store.chains())
    for feed in (before, after):
        assert (requests[3].id, 1, "request:denied") in told(feed.changes())
    quiet.store.close()


def test_x10_no_change_is_missed_while_many_write(
    make_world: Callable[..., World], elsewhere: Callable[[World], World]
) -> None:
    world = make_world()
    nodes = [elsewhere(world) for _ in range(3)]
    feed = feed_of(world)
    barrier, seen = Barrier(len(nodes) + 1), []
    done: list[str] = []

    def work(node: World) -> list[str]:
        barrier.wait()
        made = []
        for number in range(6):
            request = node.guard.request(world.call(call_id=f"{id(node)}-{number}", run_id=f"run-{id(node)}"))
            node.deny(request)
            made.append(request.id)
        return made

    # A request may have ended before anybody looked: then its events alone are told.
    with ThreadPoolExecutor(len(nodes)) as pool:
        jobs = [pool.submit(work, node) for node in nodes]
        barrier.wait()
        while not all(job.done() for job in jobs):
            seen += feed.changes()
        for job in jobs:
            done += job.result()
    seen += feed.changes()

    kinds = told(seen)
    assert [kinds.count((id_, 1, "request:denied")) for id_ in done] == [1] * 18
    assert len({change.request_id for change in seen}) == 18
    assert len(kinds) == len(set(kinds))


def test_x10_pauses_and_mutes_are_told_without_a_request(world: World) -> None:
    world.deny(world.guard.request(world.call()))
    feed = feed_of(world)

    world.guard.pause(by=OPERATOR, tool="wire")

    (change,) = feed.changes()
    assert (change.tenant, change.request_id, change.type) == ("default", None, "control:changed")


def test_x10_what_nobody_waits_for_is_not_told(world: World) -> None:
    world.guard.settle(world.guard.authorize(world.call("ping", {})), "succeeded")
    feed = feed_of(world)

    with world.refused("policy-denied"):
        world.guard.authorize(world.call("drop_database"))
    world.guard.authorize(world.call("read"))
    permit = world.guard.authorize(world.call("ping", {}))

    types = [change.type for change in feed.changes()]
    assert types == ["request:approved", "grant:claimed"]
    world.guard.settle(permit, "succeeded")


def test_x10_very_many_changes_at_once_are_one_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MOST", 5)
    feed = feed_of(world)
    requests = [world.guard.request(world.call()) for _ in range(5)]
    for request in requests[:2]:
        world.deny(request)
    world.approve(requests[3])

    changes = feed.changes()

    assert told(changes) == [(None, 0, "reset")]
    assert changes[0].tenant == ""
    assert feed.changes() == []
    world.deny(requests[2])
    assert told(feed.changes()) == [(requests[2].id, 1, "request:denied")]


def test_x10_a_feed_that_starts_among_many_new_requests_tells_them_at_most_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MOST", 3)
    for _ in range(9):
        world.guard.request(world.call())
    feed = feed_of(world)

    looks = [told(feed.changes()) for _ in range(4)]

    assert looks[-1] == []
    request = world.guard.request(world.call())
    assert told(feed.changes()) == [(request.id, 0, "request:asked")]


def test_x10_a_request_is_told_once_however_long_ago_it_was_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "OVERLAP", 0)
    feed = feed_of(world)
    request = world.guard.request(world.call())

    looks = []
    for _ in range(3):
        until(world.store, world.store.now() + 1)
        looks.append(told(feed.changes()))

    assert looks == [[(request.id, 0, "request:asked")], [], []]


def test_x10_a_store_that_fails_on_the_way_loses_no_change(world: World) -> None:
    faults = [0, 0]

    class Failing:
        """A store that cannot read a chain once."""

        def chain_events(self, *args: Any, **options: Any) -> Any:
            if faults:
                faults.pop()
                raise StoreUnavailableError("down", detail="lost")
            return world.store.chain_events(*args, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    store: Any = Failing()
    feed = feed_of(world.another(store=store))
    request, waiting = world.guard.request(world.call()), world.guard.request(world.call())
    world.deny(request)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            feed.changes()

    assert told(feed.changes()) == [(waiting.id, 0, "request:asked"), (request.id, 1, "request:denied")]


def test_x10_a_look_takes_a_constant_number_of_queries(world: World) -> None:
    asked: list[str] = []

    class Counting:
        """A store that notes what it is asked."""

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(world.store, name)

    store: Any = Counting()
    node = world.another(store=store)
    requests = [world.guard.request(world.call()) for _ in range(6)]
    feed = feed_of(node)
    for request in requests[:5]:
        world.deny(request)

    asked.clear()
    assert len(feed.changes()) == 5
    assert sorted(asked) == ["added_requests", "chain_events", "heads", "now"]
    asked.clear()
    assert feed.changes() == []
    assert sorted(asked) == ["added_requests", "heads", "now"]


def test_x10_a_chain_that_was_cut_is_a_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deny(world.guard.request(world.call()))
    feed = feed_of(world)
    ((chain, seq),) = world.store.heads()
    monkeypatch.setattr(world.store, "heads", lambda: [(chain, seq - 1)])

    assert told(feed.changes()) == [(None, 0, "reset")]
    assert feed.changes() == []
    assert feed.position() == {chain: seq - 1}


def test_x10_positions_of_chains_without_a_writer_are_forgotten_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RETIRED", 2)
    heads = [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    monkeypatch.setattr(world.store, "heads", lambda: heads)
    feed = feed_of(world)
    heads[:] = [("d", 1)]

    assert feed.changes() == []

    assert feed.position() == {"b": 1, "c": 1, "d": 1}


def test_x10_a_change_carries_no_arguments_and_no_reason(world: World) -> None:
    feed = feed_of(world)
    request = world.guard.request(world.call(arguments={"secret": "hunter2"}))
    world.deny(request, by=BOB, reason="hunter3")

    assert "hunter" not in repr(feed.changes())


def test_x10_an_edit_tells_of_the_old_request_and_of_the_new_one(world: World) -> None:
    feed = feed_of(world)
    old = world.guard.request(world.call("mail", {"to": "a"}))
    feed.changes()

    new = world.approve(old, arguments={"to": "b"})

    assert set(told(feed.changes())) == {
        (new.request_id, 0, "request:asked"), (old.id, 1, "request:superseded"),
        (new.request_id, 1, "request:approved"),
    }


def test_x10_a_sweep_is_told(world: World) -> None:
    quick = world.another(settings=Settings(decide_within=1))
    request = quick.guard.request(quick.call())
    feed = feed_of(world)
    until(world.store, request.decide_by)

    world.guard.sweep()

    assert told(feed.changes()) == [(request.id, 1, "request:expired")]
