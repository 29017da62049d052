"""Live events of several tenants: what floods one of them costs the others nothing, and all of it is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.asgi.events import Pace
from hitl_guard.asgi.ring import FULL_RINGS, Note, Ring, Rings
from hitl_guard.lifecycle.feed import Change
from tests.asgi.conftest import House
from tests.asgi.test_events import FAST, listening
from tests.support import WAIT_S, World


def note(tenant: str, at: int, request_id: str = "r") -> Note:
    return Note(tenant, request_id, 1, "request:denied", at)


def change(tenant: str, request_id: str, at: int) -> Change:
    return Change(tenant, request_id, 1, "request:denied", at)


def test_x10_the_ring_says_when_it_no_longer_knows() -> None:
    ring = Ring(start=100_000)
    for at in range(110_000, 114_000, 1_000):
        ring.add(note("t", at, str(at)), 3)

    assert ring.dropped == 110_000
    assert ring.since(99_999, 150_000) is None
    assert ring.since(140_000, 150_000) is None  # 110_000 is within the window, and gone
    assert [note.at for note in ring.since(140_001, 150_000) or []] == [111_000, 112_000, 113_000]
    assert ring.since(142_500, 150_000) == [note("t", 113_000, "113000")]
    assert ring.since(180_001, 150_000) is None  # from another database's future


def test_x10_a_noisy_tenant_pushes_out_no_change_of_another() -> None:
    rings = Rings(100_000, most=8)
    rings.add(note("quiet", 110_000))
    for number in range(500):
        rings.add(note("noisy", 110_001 + number))

    assert rings.since("quiet", 120_000, 120_000) == [note("quiet", 110_000)]
    assert rings.since("silent", 120_000, 120_000) == []
    assert rings.since("noisy", 120_000, 120_000) is None
    assert len(rings) == 9


def test_x10_many_noisy_tenants_are_cut_before_a_quiet_one() -> None:
    rings = Rings(100_000, most=8)
    rings.add(note("quiet", 110_000))
    for number in range(8):
        for tenant in range(FULL_RINGS):
            rings.add(note(f"noisy-{tenant}", 110_001 + number))

    assert len(rings) <= 8 * FULL_RINGS
    assert rings.since("quiet", 120_000, 120_000) == [note("quiet", 110_000)]
    assert rings.since("noisy-0", 120_000, 120_000) is None


def test_x10_more_tenants_than_there_is_room_for_are_forgotten_and_load_again() -> None:
    rings = Rings(100_000, most=2)
    for number in range(2 * FULL_RINGS + 1):
        rings.add(note(f"tenant-{number}", 110_000 + number))

    assert len(rings) == 0
    assert rings.since("tenant-0", 120_000, 120_000) is None
    assert rings.since("another", 120_000, 120_000) is None  # nobody can tell it apart from those
    rings.add(note("tenant-0", 150_000))
    assert rings.since("tenant-0", 155_000, 155_000) == [note("tenant-0", 150_000)]


def test_x10_tenants_that_were_reset_are_bounded_as_well() -> None:
    rings = Rings(100_000, most=2)
    for number in range(10 * FULL_RINGS):
        rings.add(note(f"tenant-{number}", 110_000))
        rings.reset(f"tenant-{number}", 110_001)
        assert len(rings) == 0

    assert len(rings._rings) <= 2 * FULL_RINGS
    assert rings.since("tenant-0", 110_000, 120_000) is None
    assert rings.since("tenant-0", 150_000, 150_000) == []


async def test_x10_only_the_tenant_that_changed_much_at_once_is_reset(world: World) -> None:
    house = House(world, pace=Pace(poll_ms=5, beat_ms=50, together=2))
    hub = house.inbox.hub
    async with listening(house) as bob, listening(house, "dave") as dave:
        before = dave.last
        asked = await asyncio.to_thread(lambda: house.ask(tenant="other"))
        assert (await dave.next())[2]["request"] == asked.id
        now = world.store.now()
        flood = [change("default", str(number), now) for number in range(3)]
        await hub._spread([*flood, change("other", asked.id, now)])

        assert (await bob.next())[0] == "reset"
        assert (await dave.next())[2] == {"request": asked.id, "type": "request:denied", "version": 1}
        async with listening(house, last=before) as back, listening(house, "dave", last=before) as other:
            assert (await back.next())[0] == "reset"
            assert (await other.next())[2]["request"] == asked.id
    await house.inbox.close()


async def test_x10_so_much_at_once_that_the_feed_cannot_tell_resets_everybody(world: World) -> None:
    house = House(world, pace=FAST)
    async with listening(house) as bob, listening(house, "dave") as dave:
        await house.inbox.hub._spread([Change("", None, 0, "reset", world.store.now())])

        assert [(await bob.next())[0], (await dave.next())[0]] == ["reset", "reset"]
    await house.inbox.close()


async def test_x10_a_first_stream_that_opens_while_changes_are_told_misses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(world, pace=FAST)
    hub = house.inbox.hub
    asked = house.ask(tenant="other")
    good, streams = hub._learn, list[Any]()
    async with listening(house):
        viewer = await house.inbox.viewer(_dave())
        assert viewer is not None

        async def learning(notes: list[Note]) -> Any:
            known = await good(notes)
            monkeypatch.setattr(hub, "_learn", good)
            streams.append(await hub.open(viewer, None))
            return known

        monkeypatch.setattr(hub, "_learn", learning)
        await hub._spread([change("other", asked.id, world.store.now())])

        assert await asyncio.wait_for(streams[0].queue.get(), WAIT_S) is None
        hub.leave(streams[0])
    await house.inbox.close()


def _dave() -> Any:
    from starlette.requests import Request

    return Request({"type": "http", "headers": [(b"authorization", b"Bearer dave")], "method": "GET", "path": "/"})


async def test_x16_a_storm_of_notifications_is_no_storm_of_queries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(world, pace=Pace(poll_ms=5, least_ms=20))
    store, looks, good = world.store, list[int](), world.store.heads
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    def heads() -> Any:
        looks.append(clock.monotonic_ms())
        if len(looks) > 6:
            loop.call_soon_threadsafe(enough.set)
        return good()

    monkeypatch.setattr(store, "notifies", True)
    monkeypatch.setattr(store, "wait_for_changes", lambda timeout_ms: True)
    monkeypatch.setattr(store, "heads", heads)
    async with listening(house):
        await asyncio.wait_for(enough.wait(), WAIT_S)
    await house.inbox.close()

    # The first is the feed's own beginning, and the first look waits for nobody. Clocks are read in whole milliseconds.
    assert looks[6] - looks[1] >= 5 * 20 - 6
