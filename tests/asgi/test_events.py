"""Live events: who is told what, across processes, after a pause of the line, and when a client is slow or many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import Request

from hitl_guard.asgi.events import Hub, Pace
from hitl_guard.asgi.ring import Note
from hitl_guard.errors import StoreUnavailableError
from hitl_guard.models import Principal
from hitl_guard.store.sql import SQLStore
from tests.asgi.conftest import PEOPLE, House, OpenHouse
from tests.databases import Database
from tests.support import WAIT_S, World, eventually

FAST = Pace(poll_ms=5, beat_ms=50)


@dataclass
class Line:
    """One open stream as its client sees it: events are ``(type, id, data)``.

    Attributes:
        last: The client's position, as a browser keeps it.
        hold: The client reads no event before that; ``full`` is set once one waits for it.
    """

    queue: asyncio.Queue[tuple[str, str, Any]] = field(default_factory=asyncio.Queue)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    head: dict[str, Any] = field(default_factory=dict)
    last: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event | None = None
    full: asyncio.Event = field(default_factory=asyncio.Event)
    bytes: int = 0

    async def next(self) -> tuple[str, str, Any]:
        """Return the next event."""
        return await asyncio.wait_for(self.queue.get(), WAIT_S)

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
            return
        if self.hold is not None:
            self.full.set()
            await self.hold.wait()
        self.bytes += len(message["body"])
        for block in message["body"].decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            self.last = fields.get("id", self.last)
            if "data" in fields:
                self.queue.put_nowait((fields["event"], self.last, json.loads(fields["data"])))
            elif block:
                self.started.set()
        if not message.get("more_body"):
            self.ended.set()


@asynccontextmanager
async def listening(
    house: House, who: str = "bob", *, last: str | None = None, query: str = "", method: str = "GET",
    hold: asyncio.Event | None = None,
) -> AsyncIterator[Line]:
    """Open a stream and close it at the end, as a browser does."""
    line, gone = Line(hold=hold), asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    headers = [(b"authorization", f"Bearer {who}".encode()), (b"host", b"inbox.example")]
    headers += [] if last is None else [(b"last-event-id", last.encode())]
    scope = {
        "type": "http", "method": method, "path": "/api/events", "query_string": query.encode(), "headers": headers,
        "root_path": "", "scheme": "https", "server": ("inbox.example", 443), "http_version": "1.1",
        "client": ("127.0.0.1", 1),
    }
    task = asyncio.create_task(house.app(scope, receive, line.send))
    try:
        if hold is None:
            waits = {asyncio.create_task(line.started.wait()), asyncio.create_task(line.ended.wait())}
            await asyncio.wait(waits, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        yield line
    finally:
        gone.set()
        await asyncio.wait_for(task, WAIT_S)


@pytest.fixture
def live(open_house: OpenHouse) -> House:
    """An inbox with quick events."""
    return open_house(pace=FAST)


async def test_x10_a_change_in_another_process_is_told_live(live: House, place: Database) -> None:
    other = live.world.another(store=SQLStore(place.url))
    async with listening(live) as line:
        asked = await asyncio.to_thread(lambda: other.guard.request(other.call()))
        first = await line.next()
        await asyncio.to_thread(lambda: other.deny(asked))
        second = await line.next()
    other.store.close()

    assert first[0] == second[0] == "change"
    assert first[2] == {"request": asked.id, "type": "request:asked", "version": 0}
    assert second[2] == {"request": asked.id, "type": "request:denied", "version": 1}
    assert dict(line.head["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert dict(line.head["headers"])[b"cache-control"] == b"no-store"


async def test_x10_two_apps_on_one_database_tell_the_same(open_house: OpenHouse, live: House) -> None:
    second = open_house(live.world, pace=FAST)
    async with listening(live) as one, listening(second) as two:
        asked = await asyncio.to_thread(live.ask)

        assert (await one.next())[2] == (await two.next())[2] == {
            "request": asked.id, "type": "request:asked", "version": 0,
        }


async def test_at68_a_stream_tells_nothing_of_what_one_may_not_see(live: House) -> None:
    async with listening(live, "carol") as carol, listening(live, "dave") as dave, listening(live, "olga") as olga:
        hidden = await asyncio.to_thread(lambda: live.ask("close_account"))
        seen = await asyncio.to_thread(live.ask)
        assert [(await olga.next())[2]["request"] for _ in range(2)] == [hidden.id, seen.id]
        assert (await carol.next())[2]["request"] == seen.id

    assert carol.queue.empty()
    assert dave.queue.empty()


async def test_x10_a_client_that_comes_back_gets_what_it_missed(live: House) -> None:
    async with listening(live) as line:
        first = await asyncio.to_thread(live.ask)
        await line.next()
    async with listening(live) as watching:
        missed = await asyncio.to_thread(lambda: live.ask(call_id="missed"))
        await watching.next()

    async with listening(live, last=line.last) as back, listening(live, "dave", last=line.last) as foreign:
        told = {(await back.next())[2]["request"] for _ in range(2)}

    assert told == {first.id, missed.id}  # the first once more: clients drop what they had
    assert foreign.queue.empty()


async def test_x10_a_page_names_the_time_that_it_shows(live: House) -> None:
    async with listening(live) as line:
        asked = await asyncio.to_thread(live.ask)
        await line.next()

    async with listening(live, query=f"since={line.last}") as page:
        assert (await page.next())[2]["request"] == asked.id


@pytest.mark.parametrize("last", ["0", "x", "-1", "9" * 16, "9" * 30, ""])
async def test_x10_a_client_that_stopped_too_long_ago_is_told_to_load_again(live: House, last: str) -> None:
    async with listening(live, last=last) as line:
        assert (await line.next())[0] == "reset"


async def test_x10_a_position_moves_on_while_nothing_happens(live: House) -> None:
    async with listening(live) as line:
        first = int(line.last)
        while int(line.last) == first:
            line.started.clear()
            await asyncio.wait_for(line.started.wait(), WAIT_S)

    assert int(line.last) > first


async def test_x10_so_much_at_once_is_one_reset(open_house: OpenHouse, world: World) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=50, together=2))
    hub = house.inbox.hub
    async with listening(house) as line:
        note = Note("default", "", 1, "request:denied", world.store.now())
        await hub._spread([_change(note, str(number)) for number in range(3)])
        assert (await line.next())[0] == "reset"


def _change(note: Note, request_id: str) -> Any:
    from hitl_guard.lifecycle.feed import Change

    return Change(note.tenant, request_id, note.version, note.type, note.at)


async def test_x10_a_slow_client_is_reset_and_not_buffered_without_end(open_house: OpenHouse) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=50, queue=4))
    hold = asyncio.Event()
    async with listening(house, hold=hold) as slow:
        await eventually(lambda: house.inbox.hub.open_streams > 0)
        (stream,) = house.inbox.hub._streams
        for number in range(50):
            stream.put(Note("default", f"r{number}", 1, "request:denied", 1))
            assert stream.queue.qsize() <= 4
        hold.set()
        kinds = [(await slow.next())[0] for _ in range(2)]

    assert "reset" in kinds


async def test_x10_500_streams_live_in_one_process(open_house: OpenHouse) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=60_000, own_streams=1_000))
    hub = house.inbox.hub
    viewer = await house.inbox.viewer(_request("bob"))
    assert viewer is not None
    streams = [await hub.open(viewer, None) for _ in range(500)]
    chunks = [hub.chunks(stream, _request("bob")) for stream in streams]
    for one in chunks:
        await anext(one)

    asked = await asyncio.to_thread(house.ask)
    told = [await asyncio.wait_for(anext(one), WAIT_S) for one in chunks]

    assert hub.open_streams == 500
    assert {json.loads(one.split(b"data: ")[1])["request"] for one in told} == {asked.id}
    for one in chunks:
        await one.aclose()
    assert hub.open_streams == 0


def _request(who: str) -> Request:
    return Request({
        "type": "http", "headers": [(b"authorization", f"Bearer {who}".encode())], "method": "GET", "path": "/",
    })


@pytest.mark.parametrize("pace", [Pace(poll_ms=5, streams=1), Pace(poll_ms=5, own_streams=1)], ids=["all", "own"])
async def test_x16_open_streams_are_bounded(open_house: OpenHouse, pace: Pace) -> None:
    house = open_house(pace=pace)
    async with listening(house), house.client() as client:
        answer = await client.get("/api/events")

    assert answer.status_code == 429


@pytest.mark.parametrize("change", ["gone", "other", "failing"])
async def test_x10_a_stream_ends_with_its_login(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=5, login_ms=1))
    async with listening(house) as line:
        if change == "gone":
            monkeypatch.delitem(PEOPLE, "bob")
        elif change == "other":
            monkeypatch.setitem(PEOPLE, "bob", Principal("mallory"))
        else:
            monkeypatch.setitem(PEOPLE, "bob", 1)
        await asyncio.wait_for(line.ended.wait(), WAIT_S)

    assert house.inbox.hub.open_streams == 0


async def test_x10_a_stream_whose_client_never_reads_does_not_outlive_its_login(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=5, login_ms=0, send_ms=1))
    never = asyncio.Event()
    async with listening(house, hold=never) as line:
        await asyncio.wait_for(line.full.wait(), WAIT_S)
        monkeypatch.delitem(PEOPLE, "bob")
        await eventually(lambda: house.inbox.hub.open_streams == 0)

    assert (line.head["status"], line.bytes, never.is_set()) == (200, 0, False)


@pytest.mark.parametrize("missed", [0, 3])
async def test_x10_a_client_that_reads_again_after_its_login_ended_is_told_nothing_more(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=60_000, login_ms=0))
    hub, reads = house.inbox.hub, asyncio.Event()
    async with listening(house) as watching:
        since = watching.last
        for number in range(missed):
            await asyncio.to_thread(house.ask, call_id=f"missed-{number}")
            await watching.next()
        async with listening(house, last=since, hold=reads) as line:
            await asyncio.wait_for(line.full.wait(), WAIT_S)
            (stream,) = [one for one in hub._streams if one.since is not None]
            for number in range(5):
                stream.put(Note("default", f"r{number}", 1, "request:denied", 1))
            monkeypatch.delitem(PEOPLE, "bob")
            reads.set()
            await asyncio.wait_for(line.ended.wait(), WAIT_S)

    # One was on its way when the login ended.
    assert line.queue.qsize() == min(missed, 1)


@pytest.mark.parametrize("turns", range(12))
async def test_x10_a_stream_ends_with_its_client_though_a_change_comes_at_the_same_moment(
    open_house: OpenHouse, turns: int
) -> None:
    house = open_house(pace=Pace(poll_ms=60_000, beat_ms=60_000))
    async with listening(house):
        (stream,) = house.inbox.hub._streams
        change = asyncio.create_task(_after(turns, lambda: stream.put(Note("default", "r", 1, "request:denied", 1))))

    await change
    assert house.inbox.hub.open_streams == 0


async def _after(turns: int, act: Callable[[], None]) -> None:
    """Act when the event loop has gone round so often."""
    for _ in range(turns):
        await asyncio.sleep(0)
    act()


async def test_x10_a_stream_sees_with_the_roles_of_now(open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=5, login_ms=1))
    async with listening(house, "carol") as line:
        monkeypatch.setitem(PEOPLE, "carol", Principal("carol", roles=("lead",)))
        (stream,) = house.inbox.hub._streams
        await eventually(lambda: "lead" in stream.viewer.principal.roles)
        asked = await asyncio.to_thread(lambda: house.ask("close_account"))
        assert (await line.next())[2]["request"] == asked.id


async def test_x10_streams_end_at_shutdown_and_after_their_life(open_house: OpenHouse) -> None:
    closing = open_house(pace=FAST)
    async with listening(closing) as line:
        await closing.inbox.close()
        await asyncio.wait_for(line.ended.wait(), WAIT_S)
    short = open_house(pace=Pace(poll_ms=5, beat_ms=5, life_ms=1))
    async with listening(short) as line:
        await asyncio.wait_for(line.ended.wait(), WAIT_S)
    async with closing.client() as client:
        assert (await client.get("/api/events")).status_code == 503
        assert (await client.get("/ready")).status_code == 503


async def test_x10_the_lifespan_of_the_app_ends_its_streams(live: House) -> None:
    async with live.app.router.lifespan_context(live.app):
        assert live.inbox.hub.alive

    assert not live.inbox.hub.alive


async def test_x10_a_store_that_fails_for_a_while_loses_no_change(
    live: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = live.inbox.hub
    async with listening(live) as line:
        good = live.world.store.heads

        def down() -> Any:
            raise StoreUnavailableError("The store did not answer.")

        monkeypatch.setattr(live.world.store, "heads", down)
        await eventually(lambda: not hub.alive)
        asked = await asyncio.to_thread(live.ask)
        monkeypatch.setattr(live.world.store, "heads", good)

        assert (await line.next())[2]["request"] == asked.id
        await eventually(lambda: hub.alive)


async def test_x10_nobody_reads_changes_when_nobody_listens(open_house: OpenHouse) -> None:
    house = open_house(pace=Pace(poll_ms=1, beat_ms=5, idle_ms=1))
    async with listening(house):
        task = house.inbox.hub._task
        assert task is not None
    await asyncio.wait_for(task, WAIT_S)

    async with listening(house) as line:  # and it begins again
        asked = await asyncio.to_thread(house.ask)
        assert (await line.next())[2]["request"] == asked.id


async def test_x10_head_of_the_stream_is_its_head_alone(live: House) -> None:
    async with listening(live, method="HEAD") as line:
        await asyncio.wait_for(line.ended.wait(), WAIT_S)

    assert (line.head["status"], line.bytes) == (200, 0)
    assert live.inbox.hub.open_streams == 0


async def test_x10_a_request_that_cannot_be_read_is_told_to_operators_alone(
    open_house: OpenHouse, world: World
) -> None:
    house = open_house(pace=FAST)
    note = Note("default", "gone", 1, "request:denied", world.store.now())
    async with listening(house) as bob, listening(house, "olga") as olga:
        await house.inbox.hub._spread([_change(note, "gone")])
        assert (await olga.next())[2]["request"] == "gone"

    assert bob.queue.empty()


async def test_x10_what_is_known_of_requests_is_bounded(open_house: OpenHouse) -> None:
    house = open_house(pace=Pace(ring=1))
    hub: Hub = house.inbox.hub
    asked = [house.ask("mail", {"to": "x" * 10_000}, call_id=f"call-{number}") for number in range(3)]
    notes = [Note("default", one.id, 1, "request:denied", 1) for one in asked]
    await hub._learn([*notes, Note("default", "unreadable", 1, "request:denied", 1)])

    assert len(hub._known) == 2
    assert all(one.canonical == b"{}" for one in hub._known.values())


async def test_x10_more_changes_at_once_than_are_kept_reach_everybody_who_sees_them(
    open_house: OpenHouse, world: World
) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=50, ring=1))
    asked = [house.ask(call_id=f"call-{number}") for number in range(5)]
    now = world.store.now()
    async with listening(house, "carol") as line:
        notes = [Note("default", one.id, 1, "request:denied", now) for one in asked]
        await house.inbox.hub._spread([_change(note, note.request_id) for note in notes])
        told = {(await line.next())[2]["request"] for _ in asked}

    assert told == {one.id for one in asked}
    assert len(house.inbox.hub._known) == 2


async def test_x10_what_others_learn_meanwhile_takes_no_change_from_anybody(
    open_house: OpenHouse, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house(pace=Pace(poll_ms=5, beat_ms=50, ring=1))
    hub, own, others = house.inbox.hub, house.ask(), [house.ask() for _ in range(3)]
    now, good = world.store.now(), hub._learn

    async def learn(notes: list[Note]) -> Any:
        found = await good(notes)
        await good([Note("default", one.id, 1, "request:denied", now) for one in others])
        return found

    monkeypatch.setattr(hub, "_learn", learn)
    async with listening(house, "carol") as line:
        await hub._spread([_change(Note("default", own.id, 1, "request:denied", now), own.id)])
        assert (await line.next())[2]["request"] == own.id


async def test_x10_a_change_that_could_not_be_told_on_is_told_once_it_can(
    live: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = live.inbox.hub
    async with listening(live) as line:
        good = live.world.guard.get
        failed = asyncio.Event()

        def down(*_: Any, **__: Any) -> Any:
            failed.set()
            raise StoreUnavailableError("The store did not answer.")

        monkeypatch.setattr(live.world.guard, "get", down)
        asked = await asyncio.to_thread(live.ask)
        await asyncio.wait_for(failed.wait(), WAIT_S)
        monkeypatch.setattr(live.world.guard, "get", good)

        assert (await line.next())[2]["request"] == asked.id
        await eventually(lambda: hub.alive)


async def test_x10_whatever_else_goes_wrong_every_client_loads_again_and_events_go_on(
    live: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub = live.inbox.hub
    async with listening(live) as line:
        good = live.world.store.heads

        def broken() -> Any:
            raise ValueError("the password is hunter2")

        monkeypatch.setattr(live.world.store, "heads", broken)
        assert (await line.next())[0] == "reset"
        assert not hub.alive
        monkeypatch.setattr(live.world.store, "heads", good)
        await eventually(lambda: hub.alive)
        asked = await asyncio.to_thread(live.ask)

        told = await line.next()
        while told[0] == "reset":
            told = await line.next()
        assert told[2]["request"] == asked.id
    assert "Live events failed, every client is told to load again: builtins.ValueError at " in caplog.text
    assert "hunter2" not in caplog.text


async def test_x10_an_outage_while_nobody_listens_does_not_keep_the_app_unready(
    open_house: OpenHouse, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house(pace=Pace(poll_ms=1, beat_ms=5, idle_ms=1))
    good = world.store.heads

    def down() -> Any:
        raise StoreUnavailableError("The store did not answer.")

    async with listening(house):
        task = house.inbox.hub._task
        assert task is not None
        monkeypatch.setattr(world.store, "heads", down)
        await eventually(lambda: not house.inbox.hub.alive)
    await asyncio.wait_for(task, WAIT_S)
    monkeypatch.setattr(world.store, "heads", good)

    assert house.inbox.hub.alive
