"""An inbox in front of a guard on a real database, and clients that act as different people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from hitl_guard.asgi.app import create_app
from hitl_guard.asgi.identity import Authenticate, Identity
from hitl_guard.models import ApprovalRequest, Principal
from hitl_guard.store.sql import SQLStore
from tests.asgi.visitor import Visitor
from tests.databases import Database
from tests.support import ANA, BOB, CAROL, OPERATOR, World

DAVE = Principal("dave", tenant="other", roles=("lead", "operator"))
BOT = Principal("bot", kind="service")
PEOPLE = {person.id: person for person in (ANA, BOB, CAROL, OPERATOR, DAVE, BOT)}


def by_bearer(request: Any) -> Identity | None:
    """Authenticate by ``Authorization: Bearer NAME`` or a cookie ``login=NAME``, as a host's own login would."""
    name = request.headers.get("authorization", "").removeprefix("Bearer ") or request.cookies.get("login", "")
    person = PEOPLE.get(name)
    return None if person is None else Identity(person, display=name.title(), method="test")


class House:
    """One app on a world, and its people.

    Attributes:
        world: The guard and its tools.
    """

    def __init__(self, world: World, *, authenticate: Authenticate = by_bearer, **options: Any) -> None:
        self.world = world
        self.app: Starlette = create_app(world.guard, authenticate=authenticate, **options)
        self.inbox = self.app.state.inbox

    def client(self, name: str | None = "bob", **headers: str) -> httpx.AsyncClient:
        """Return a client without cookies that has credentials of its own; None: one without any."""
        own = {} if name is None else {"authorization": f"Bearer {name}"}
        return self._client(own | headers)

    @asynccontextmanager
    async def browser(self, name: str = "bob") -> AsyncIterator[httpx.AsyncClient]:
        """A browser on a page of the inbox: a login cookie, the session's cookie, and the token as a header."""
        async with self._client({"origin": ORIGIN, "sec-fetch-site": "same-origin"}) as client:
            client.cookies.set("login", name)
            token = (await client.get("/api/session")).json()["token"]
            client.headers["x-csrf-token"] = token
            yield client

    @asynccontextmanager
    async def visitor(self, name: str) -> AsyncIterator[Visitor]:
        """Somebody's browser without a script, on the way to a page."""
        visitor = self.at_a_page(name)
        async with visitor.client:
            yield visitor

    def at_a_page(self, name: str) -> Visitor:
        """Return the same; whoever asks closes its client."""
        client = self._client({"origin": "null", "sec-fetch-site": "same-origin"})
        client.cookies.set("login", name)
        return Visitor(client)

    def _client(self, headers: dict[str, str]) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers)

    def ask(self, tool: str = "refund", arguments: Any = None, **scope: Any) -> ApprovalRequest:
        """Ask for a call of ana's."""
        return self.world.guard.request(self.world.call(tool, arguments, **scope))

    def doubtful(self) -> ApprovalRequest:
        """Return a request whose approved call broke in the middle: nobody knows what came of it."""
        call, request = self.world.grant()

        def breaks(**_arguments: Any) -> None:
            raise RuntimeError("the line went dead")

        with pytest.raises(RuntimeError):
            self.world.guard.run(call, breaks)
        return request


ORIGIN = "https://inbox.example"


def decision(request: ApprovalRequest, *, approve: bool = True, **more: Any) -> dict[str, Any]:
    """Return the body of a decision on what was shown."""
    return {"approve": approve, "fingerprint": request.fingerprint, **more}


@pytest.fixture
def place(make_database: Callable[..., Database]) -> Database:
    """A new SQLite database, copied from one that was set up once."""
    return make_database("sqlite")


@pytest.fixture
def world(place: Database, open_store: Callable[..., SQLStore]) -> World:
    """A guard on that database."""
    return World(open_store(place))


OpenHouse = Callable[..., House]


@pytest.fixture
async def open_house(world: World) -> AsyncIterator[OpenHouse]:
    """``open_house(pace=…)``: an inbox on the world, or on ``open_house(another)``; it is closed after the test."""
    opened: list[House] = []

    def opens(of: World | None = None, **options: Any) -> House:
        opened.append(House(of or world, **options))
        return opened[-1]

    yield opens
    for house in opened:
        await house.inbox.close()


@pytest.fixture
def house(open_house: OpenHouse) -> House:
    """An inbox on a new SQLite database."""
    return open_house()


@pytest.fixture
async def visitors(house: House) -> AsyncIterator[Callable[[str], Visitor]]:
    """``visitors("bob")``: somebody's browser, as `House.visitor` has it, to the end of the test."""
    opened: list[Visitor] = []

    def visit(name: str) -> Visitor:
        opened.append(house.at_a_page(name))
        return opened[-1]

    yield visit
    for visitor in opened:
        await visitor.client.aclose()


@pytest.fixture
def bob(visitors: Callable[[str], Visitor]) -> Visitor:
    """The browser of a lead, who may decide."""
    return visitors("bob")


@pytest.fixture
def olga(visitors: Callable[[str], Visitor]) -> Visitor:
    """The browser of an operator."""
    return visitors("olga")
