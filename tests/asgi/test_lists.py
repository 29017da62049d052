"""Lists of thousands: as many statements as for ten, full pages for whoever looks, cursors that say nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from hitl_guard.asgi import desks, lists
from hitl_guard.asgi.desks import Desks
from hitl_guard.keyring import Keyring, rotated
from hitl_guard.lifecycle import floods
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Principal, Requirement, ToolCall, ToolDefinition
from hitl_guard.store import lists as store_lists
from hitl_guard.store.sql import SQLStore
from tests.asgi.conftest import PEOPLE, House, OpenHouse
from tests.asgi.many import signed
from tests.asgi.many import store as store_many
from tests.asgi.test_api import problem
from tests.databases import Database
from tests.support import CAROL, World, document, ring, until

OPEN = "hitl_guard_open_requests"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a process that has learnt no desk."""
    monkeypatch.setattr(lists, "KNOWN", Desks())


async def pages(house: House, who: str, query: str = "", *, limit: int = 50) -> AsyncIterator[dict[str, Any]]:
    """Yield every page of a list, to its end."""
    cursor: str | None = ""
    async with house.client(who) as client:
        for _ in range(99):
            page = (await client.get(f"/api/requests?limit={limit}&{query}{cursor and '&cursor=' + cursor}")).json()
            yield page
            cursor = page["next"]
            if cursor is None:
                return
    raise AssertionError("the pages never end")


async def listed(house: House, who: str, query: str = "", *, limit: int = 50) -> list[list[str]]:
    """Return the ids on each page."""
    return [[one["id"] for one in page["items"]] async for page in pages(house, who, query, limit=limit)]


def flat(pages_: list[list[str]]) -> list[str]:
    return [id_ for page in pages_ for id_ in page]


# -- ten thousand ------------------------------------------------------------------------------------------------


RING = ring()


@contextmanager
def statements(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect what is sent to the database: through SQLAlchemy, and reads on the driver's own connections."""
    sent: list[str] = []
    connections = store._connections
    read = connections.read

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    def reading(work: Callable[[Any], Any]) -> Any:
        sent.append("a read")
        return read(work)

    event.listen(Engine, "before_cursor_execute", count)
    monkeypatch.setattr(connections, "read", reading)
    try:
        yield sent
    finally:
        monkeypatch.setattr(connections, "read", read)
        event.remove(Engine, "before_cursor_execute", count)


VIEWERS = ("olga", "bob", "carol", "ana", "bot", "dave")
QUERIES = (
    "", "state=pending", "state=in_doubt", "state=denied", "tool=refund", "requester=kim", "run=run-2", "mine=true",
    "text=nothing-has-this", "tool=refund&requester=kim&mine=true",
)


def calls(number: int) -> Iterator[ToolCall]:
    """Calls for leads to decide; every 150th, and the last one, anybody may decide, and the last one is kim's."""
    for which in range(1, number + 1):
        last = which == number
        yield ToolCall(
            "refund" if last or not which % 150 else "close_account", {"order": which}, user="kim" if last else "ana",
            run_id="run-2" if last else "run-1", call_id=f"n{number}-{which}",
        )


@asynccontextmanager
async def _house(database: Database, store: SQLStore) -> AsyncIterator[House]:
    house = House(World(store, keyring=RING))
    yield house
    await house.inbox.close()


async def _counted(house: House, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], int]:
    """Return how many statements each viewer's pages take."""
    found = {}
    for who in VIEWERS:
        async with house.client(who) as client:
            for query in QUERIES:
                with statements(house.world.store, monkeypatch) as sent:
                    assert (await client.get(f"/api/requests?{query}")).status_code == 200
                found[who, query] = len(sent)
            for path in ("/", "/?mine=1", *(("/control",) if who == "olga" else ())):
                with statements(house.world.store, monkeypatch) as sent:
                    assert (await client.get(path)).status_code == 200
                found[who, path] = len(sent)
    return found


@pytest.mark.parametrize("kind", [
    "sqlite", "postgresql", pytest.param("mariadb", marks=pytest.mark.slow),
])
async def test_x10_a_page_of_ten_thousand_takes_as_many_statements_as_a_page_of_ten(
    make_database: Callable[..., Database], open_store: Callable[..., SQLStore], monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    database = make_database(kind)
    async with _house(database, open_store(database)) as house:
        store_many(database, signed(house.world, calls(10)))
        of_ten = await _counted(house, monkeypatch)
        store_many(database, signed(house.world, calls(9_990)))

        assert await _counted(house, monkeypatch) == of_ten
        assert max(of_ten.values()) <= 8
        carol = await listed(house, "carol", "state=pending")
        bot = await listed(house, "bot")
        kim = await listed(house, "olga", "requester=kim")

    # Who sees few of many gets full pages, to their end.
    assert [len(page) for page in carol] == [50, 18]
    assert (bot, [len(page) for page in kim]) == ([[]], [2])


# -- who sees what, whatever the columns say -----------------------------------------------------------------------


MIXED = """\
version: 1
name: mixed
default: not_applicable
rules:
  - id: anybody
    tools: [refund]
    effect: require_approval
  - id: leads
    tools: [refund, close_account]
    effect: require_approval
    approvers: [lead]
"""


async def test_x10_who_may_decide_by_one_of_several_rules_finds_the_request(
    place: Database, open_store: Callable[..., SQLStore]
) -> None:
    house = House(World(open_store(place), policy=document(MIXED)))
    leads, either = house.ask("close_account"), house.ask("refund")

    assert flat(await listed(house, "carol")) == [either.id]
    assert flat(await listed(house, "carol", "mine=true")) == [either.id]
    assert sorted(flat(await listed(house, "bob"))) == sorted([leads.id, either.id])
    await house.inbox.close()


def test_x16_a_desk_where_anybody_sits_by_one_rule_is_not_the_one_of_the_other_rule() -> None:
    lead, anybody = Requirement(approvers=("lead",)), Requirement()

    assert floods.desk_entries((lead, anybody)) == {"", "lead"}
    assert floods.desk_entries((anybody,)) == floods.desk_entries(()) == frozenset()
    assert floods.desk_digest("t", (lead, anybody)) != floods.desk_digest("t", (lead,))
    assert floods.desk_digest("t", (anybody, anybody)) == floods.desk_digest("t", (anybody,))


async def test_x10_requests_of_an_earlier_version_are_listed_for_their_people(house: House, place: Database) -> None:
    leads, anybody = house.ask("close_account"), house.ask("refund")
    place.execute(f"UPDATE {OPEN} SET tool = NULL, desk = NULL, requester = NULL, added_at = NULL")

    assert sorted(flat(await listed(house, "bob"))) == sorted([leads.id, anybody.id])
    assert flat(await listed(house, "bob", "tool=refund")) == [anybody.id]
    assert flat(await listed(house, "carol")) == [anybody.id]
    assert len(flat(await listed(house, "ana", "requester=ana"))) == 2


async def test_x10_a_desk_that_was_never_learnt_hides_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.ask("close_account")
    asked = house.ask("refund")
    monkeypatch.setattr(desks, "SAMPLES", 1)
    monkeypatch.setattr(desks, "MOST", 1)
    monkeypatch.setattr(desks, "TENANTS", 1)

    for _ in range(3):
        assert flat(await listed(house, "carol")) == [asked.id]
        assert flat(await listed(house, "dave")) == []


async def test_x10_a_damaged_sample_lets_nobody_in_and_keeps_nobody_out(house: House, place: Database) -> None:
    damaged, good = house.ask("close_account"), house.ask("close_account")
    foreign = house.ask("close_account", tenant="other")
    place.execute(
        "UPDATE hitl_guard_requests SET details = :x WHERE id = :id", {"x": b"{}", "id": damaged.id.encode()}
    )
    place.execute(
        f"UPDATE {OPEN} SET tenant = (SELECT tenant FROM {OPEN} WHERE request_id = :mine) WHERE request_id = :id",
        {"id": foreign.id.encode(), "mine": good.id.encode()},
    )

    for _ in range(2):
        assert flat(await listed(house, "bob")) == [good.id]
        assert flat(await listed(house, "carol")) == []


async def test_x10_of_a_desk_the_requester_and_who_decided_what_ended_are_found_too(house: House) -> None:
    mine = house.ask("close_account", user="carol")
    other = house.ask("close_account")
    house.world.deny(other)

    assert flat(await listed(house, "carol")) == [mine.id]
    assert flat(await listed(house, "carol", "mine=true")) == []
    assert sorted(flat(await listed(house, "bob"))) == sorted([mine.id, other.id])
    assert flat(await listed(house, "bob", "mine=true")) == [mine.id]
    assert flat(await listed(house, "bob", "mine=true&state=denied")) == []


async def test_x10_what_a_quorum_still_lacks_waits_for_those_who_have_not_voted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 2)
    wires = [house.ask("wire") for _ in range(5)]
    for one in wires[:4]:
        house.world.approve(one, by=CAROL)

    assert flat(await listed(house, "carol", "mine=true", limit=1)) == [wires[4].id]
    assert sorted(flat(await listed(house, "bob", "mine=true", limit=1))) == sorted(one.id for one in wires)


async def test_x10_what_somebody_decided_under_another_name_of_theirs_does_not_wait_for_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = house.ask("wire")
    house.world.approve(wire, by=Principal("robert", aliases=("Bob",), unverified_aliases=("kim",)))
    monkeypatch.setitem(PEOPLE, "kim", Principal("kim"))

    assert [flat(await listed(house, who, "mine=true")) for who in ("bob", "kim", "carol")] == [[], [], [wire.id]]


async def test_at69_a_line_of_a_list_costs_nothing_that_grows_with_its_arguments(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*_: Any) -> Any:
        raise AssertionError("a list looked at the arguments")

    monkeypatch.setattr("hitl_guard.render.request.warnings", looked_at)
    monkeypatch.setattr("hitl_guard.asgi.views.warnings", looked_at)
    monkeypatch.setattr(ApprovalRequest, "arguments", property(looked_at))
    asked = house.ask("mail", {"to": "https://xn--80ak6aa92e.com"})

    assert flat(await listed(house, "bob")) == [asked.id]


# -- names that fold to one ------------------------------------------------------------------------------------------


@pytest.fixture
def namesake(monkeypatch: pytest.MonkeyPatch) -> str:
    """Somebody whose name is another than ana's, and the same in the columns of a list."""
    monkeypatch.setitem(PEOPLE, "ANA", Principal("ANA"))
    monkeypatch.setitem(PEOPLE, "Zoe", Principal("Zoe"))
    return "ANA"


@pytest.mark.parametrize("number", [1, 3, 7])
async def test_at68_no_list_tells_a_namesake_that_there_are_requests_of_the_other(
    house: House, namesake: str, number: int
) -> None:
    for which in range(number):
        house.ask("close_account", call_id=f"c{which}")

    async def told(who: str) -> tuple[Any, str]:
        async with house.client(who) as client:
            answer = (await client.get("/api/requests?limit=1")).json()
            page = (await client.get("/")).text
        return {**answer, "now": 0}, page[page.index("<h1>"):]

    shown, stranger = await told(namesake), await told("Zoe")

    assert shown[0] == stranger[0]
    assert (shown[0]["items"], shown[0]["next"], shown[0]["total"]) == ([], None, 0)
    assert _without_tokens(shown[1]) == _without_tokens(stranger[1])


def _without_tokens(page: str) -> str:
    return re.sub(r'value="[^"]{40,}"', "", page)


@pytest.mark.parametrize("looked_through", [1, 2, 3, 5, 200])
@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_x10_a_page_that_reads_on_keeps_the_order_and_neither_loses_nor_doubles_any(
    house: House, namesake: str, monkeypatch: pytest.MonkeyPatch, limit: int, looked_through: int
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", looked_through)
    for number, user in enumerate(("ana", "ana", "kim", "ana", "kim", "kim", "ana", "ana", "ana", "kim", "kim", "ana")):
        asked = house.ask("refund" if user == "kim" else "close_account", user=user, call_id=f"c{number}")
        if number % 5 == 4:
            house.world.deny(asked)
    everything = [one for page in [page async for page in pages(house, "olga")] for one in page["items"]]
    theirs = [one["id"] for one in everything if one["user"] == "kim"]

    found = await listed(house, namesake, limit=limit)

    assert len(theirs) == 5
    assert flat(found) == theirs
    if looked_through == 200:
        assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
        assert found[-1] != []


async def test_x10_to_read_on_takes_as_many_statements_for_sixty_requests_as_for_hundreds(
    house: House, place: Database, namesake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted() -> int:
        async with house.client(namesake) as client:
            with statements(house.world.store, monkeypatch) as sent:
                assert (await client.get("/api/requests")).json()["items"] == []
        return len(sent)

    def leads_only(first: int, last: int) -> Iterator[ToolCall]:
        return (house.world.call("close_account", call_id=f"c{number}") for number in range(first, last))

    async with house.client("Zoe") as client:
        await client.get("/api/requests")
    with_none = await counted()
    store_many(place, signed(house.world, leads_only(0, 60)))
    await counted()  # which learns the desk
    with_sixty = await counted()
    store_many(place, signed(house.world, leads_only(60, 700)))

    assert await counted() == with_sixty
    assert with_sixty <= with_none + 4


# -- looking through ------------------------------------------------------------------------------------------------


async def test_x10_a_search_looks_through_so_many_requests_and_says_where_it_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 3)
    monkeypatch.setattr("hitl_guard.asgi.page_looks.PAGE_SIZE", 2)
    for number in range(7):
        house.ask(arguments={"order": f"A-{number}"})
    wanted = house.world.another(settings=Settings(decide_within=10 * 86_400_000))
    last = wanted.guard.request(house.world.call(arguments={"order": "B-8"}))

    found = [page async for page in pages(house, "bob", "text=b-8", limit=2)]
    async with house.client() as bob:
        first = (await bob.get("/?text=b-8")).text
        other = (await bob.get("/?text=A-")).text
        none = (await bob.get("/?text=zz&state=denied")).text

    assert [[one["id"] for one in page["items"]] for page in found] == [[], [], [last.id]]
    assert [page["total"] for page in found] == [None] * 3
    assert "Nothing found so far. 3 requests were looked through for this page; there are more." in first
    assert "Nothing here" not in first
    assert 'id="next-page">Look further</a>' in first
    assert "looked through" not in other
    assert 'id="next-page">Next page</a>' in other
    assert "Nothing here." in none


async def test_x10_no_page_says_that_nothing_waits_while_there_is_more_to_look_through(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lists, "PASSED_OVER", 2)
    for number in range(4):
        house.ask("close_account", call_id=f"c{number}")
    await listed(house, "carol")

    async with house.client("carol") as carol:
        page = (await carol.get("/")).text
        address = page.rpartition('href="')[2].partition('"')[0]
        while "Nothing found so far; there are more to look through." in page:
            address = page[: page.index('id="next-page"')].rpartition('href="')[2].partition('"')[0]
            page = (await carol.get(address.replace("&amp;", "&"))).text

    assert "cursor=" in address
    assert "Nothing more waits for a decision." in page


async def test_x16_arguments_that_are_too_long_are_not_searched(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "SEARCHED_BYTES", 40)
    short, long = house.ask(arguments={"to": "zurich"}), house.ask(arguments={"to": "zurich " * 9})

    assert flat(await listed(house, "bob", "text=zurich")) == [short.id]
    assert sorted(flat(await listed(house, "bob", "text=REFUND"))) == sorted([short.id, long.id])


async def test_x10_a_search_finds_no_secret(house: House) -> None:
    definition = ToolDefinition("refund", None, {"properties": {"pin": {"x-secret": True}}})
    asked = house.ask(arguments={"pin": "hunter2", "to": "zurich"}, definition=definition)

    assert flat(await listed(house, "bob", "text=zurich")) == [asked.id]
    assert flat(await listed(house, "bob", "text=hunter2")) == []


async def test_x10_large_requests_make_short_pages_and_are_all_shown(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lists, "MOST_BYTES", 2_500)
    asked = [house.ask(arguments={"text": "x" * 1_000}).id for _ in range(5)]

    found = await listed(house, "bob")

    assert all(len(page) <= 2 for page in found)
    assert sorted(flat(found)) == sorted(asked)


# -- cursors --------------------------------------------------------------------------------------------------------


def _payload(cursor: str) -> dict[str, Any]:
    text = cursor.partition(".")[0]
    payload: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return payload


async def test_at68_a_cursor_tells_nothing_of_the_request_where_it_stands(
    house: House, monkeypatch: pytest.MonkeyPatch, place: Database
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 1)
    hidden = [house.ask("close_account", call_id=f"c{number}") for number in range(4)]
    place.execute(f"UPDATE {OPEN} SET desk = NULL")  # the database cannot tell that carol sees none of them

    found = [page async for page in pages(house, "carol", limit=1)]

    assert [page["items"] for page in found] == [[]] * 4
    for page in found[:3]:
        place_ = _payload(page["next"])["place"]
        raw = base64.urlsafe_b64decode(place_ + "=" * (-len(place_) % 4))
        for one in hidden:
            assert one.id not in page["next"] + str(_payload(page["next"]))
            assert one.id.encode() not in raw
            assert str(one.decide_by).encode() not in raw


async def test_x10_the_same_place_never_looks_the_same(house: House) -> None:
    for number in range(2):
        house.ask(call_id=f"c{number}")

    async with house.client() as bob:
        places = {_payload((await bob.get("/api/requests?limit=1")).json()["next"])["place"] for _ in range(3)}

    assert len(places) == 3


async def test_x6_a_cursor_outlives_the_rotation_of_keys(open_house: OpenHouse, house: House) -> None:
    asked = sorted(house.ask(call_id=f"c{number}").id for number in range(2))
    async with house.client() as bob:
        first = (await bob.get("/api/requests?limit=1")).json()
        now = house.world.store.now()
        keyring, _ = rotated(house.world.keyring, now=now, refresh_ms=1)
        until(house.world.store, now + 3)
        other = open_house(house.world.another(keyring=keyring))
        async with other.client() as again:
            answer = await again.get(f"/api/requests?limit=1&cursor={first['next']}")
        stranger = open_house(house.world.another(keyring=Keyring([*ring().keys])))
        async with stranger.client() as elsewhere:
            refused = await elsewhere.get(f"/api/requests?limit=1&cursor={first['next']}")

    assert sorted([first["items"][0]["id"], answer.json()["items"][0]["id"]]) == asked
    assert problem(refused) == "stale"


async def test_x10_a_place_that_was_hidden_for_something_else_is_no_place(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        house.ask(call_id=f"c{number}")
    signer = house.world.guard._desk.signer
    good = signer.hide
    texts = iter([good("session", b"[0,1,\"x\"]", now=house.world.store.now()), "", "!", "AAAA"])

    async with house.client() as bob:
        for text in texts:
            monkeypatch.setattr(signer, "hide", lambda *_, text=text, **__: text)
            cursor = (await bob.get("/api/requests?limit=1")).json()["next"]
            assert problem(await bob.get(f"/api/requests?limit=1&cursor={cursor}")) == "stale"


async def test_x10_a_list_that_was_edited_to_lead_back_ends(house: House, place: Database) -> None:
    asked = house.ask()
    place.execute(
        f"UPDATE {OPEN} SET request_id = :x, listed_until = listed_until + 1 WHERE request_id = :id",
        {"x": b"\xff", "id": asked.id.encode()},
    )
    second = house.ask(call_id="second")
    place.execute(f"UPDATE {OPEN} SET listed_until = 9000000000000, request_id = :x WHERE request_id = :id",
                  {"x": b"\xff\xff", "id": second.id.encode()})

    assert flat(await listed(house, "olga", limit=1)) == []


# -- what is in doubt -----------------------------------------------------------------------------------------------


async def test_x13_a_call_in_doubt_is_on_the_control_page_however_many_others_there_are(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 2)
    monkeypatch.setattr("hitl_guard.asgi.page_looks.PAGE_SIZE", 2)
    for number in range(5):
        house.ask(call_id=f"waits-{number}")
        house.world.grant(house.world.call(call_id=f"approved-{number}"))
    late = house.world.another(settings=Settings(run_within=1, decide_within=10 * 86_400_000))
    call, doubtful = late.grant(late.call(call_id="doubtful"))
    late.guard.authorize(call, request_id=doubtful.id)
    until(house.world.store, house.world.store.now() + 2)

    async with house.client("olga") as olga:
        page = (await olga.get("/control")).text

    assert f'href="/requests/{doubtful.id}"' in page
    assert "Every outcome is known." not in page
    assert "Look further" not in page


async def test_x13_the_control_page_says_that_all_is_known_only_where_it_looked_at_all(
    house: House, place: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 2)
    monkeypatch.setattr("hitl_guard.asgi.page_looks.PAGE_SIZE", 2)

    async def control() -> str:
        async with house.client("olga") as olga:
            return (await olga.get("/control")).text

    assert "Every outcome is known." in await control()
    running = [house.world.grant() for _ in range(3)]
    for call, request in running:
        house.world.guard.authorize(call, request_id=request.id)
    page = await control()
    assert "Every outcome is known." not in page
    assert "2 calls were looked at that may be in doubt; there are more." in page
    address = page[: page.index("Look further")].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    async with house.client("olga") as olga:
        further = await olga.get(address)
    assert (further.status_code, "Nothing more." in further.text) == (200, True)

    for _, request in running[1:]:
        place.execute("DELETE FROM hitl_guard_events WHERE request_id = :id", {"id": request.id.encode()})
    assert "Every outcome is known." in await control()
    place.execute("UPDATE hitl_guard_requests SET arguments = :x", {"x": b"{}"})
    page = await control()
    assert "Every outcome is known." not in page
    assert "Of 1 more nobody can tell: their records do not verify." in page
