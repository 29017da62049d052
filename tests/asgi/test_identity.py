"""Who is looking: the host's login, the recipes, and what happens when it fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.routing import Mount

from hitl_guard.asgi.app import create_app
from hitl_guard.asgi.identity import Identity, request_user, trusted_header
from hitl_guard.asgi.sessions import cookie_of
from hitl_guard.errors import ConfigurationError
from hitl_guard.models import Principal
from tests.asgi.conftest import ORIGIN, House, by_bearer, decision
from tests.support import ANA, BOB, World


def test_x10_there_is_no_inbox_without_an_authenticator(world: World) -> None:
    with pytest.raises(ConfigurationError, match="authenticate"):
        create_app(world.guard)


@pytest.mark.parametrize("path", ["/api/requests", "/api/requests/unknown", "/api/session", "/api/events", "/api/runs"])
async def test_at55_nobody_sees_anything_without_a_login(house: House, path: str) -> None:
    async with house.client(None) as client:
        answer = await client.get(path)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"] == "urn:hitl-guard:problem:unauthenticated"


@pytest.mark.parametrize(("raised", "status"), [
    (HTTPException(401), 401), (HTTPException(403), 401), (HTTPException(500), 503), (RuntimeError("secret"), 503),
])
async def test_x10_an_authenticator_that_fails_lets_nobody_in(world: World, raised: Exception, status: int) -> None:
    async def authenticate(request: Request) -> Identity | None:
        raise raised

    async with House(world, authenticate=authenticate).client() as client:
        answer = await client.get("/api/session")

    assert answer.status_code == status
    assert "secret" not in answer.text


@pytest.mark.parametrize("raised", [HTTPException(500, "secret"), RuntimeError("secret")])
async def test_x10_an_authenticator_that_fails_is_logged_without_what_it_says(
    world: World, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    def authenticate(request: Request) -> Identity | None:
        raise raised

    async with House(world, authenticate=authenticate).client() as client:
        answer = await client.get("/api/session")

    (record,) = [one for one in caplog.records if one.name == "hitl_guard.asgi"]
    assert answer.status_code == 503
    assert type(raised).__name__ in record.message
    assert "test_identity.py" in record.message
    assert "secret" not in caplog.text


async def test_x10_a_plain_authenticator_keeps_nobody_else_waiting(world: World) -> None:
    """Two requests meet inside it, which they could not on one thread."""
    both = threading.Barrier(2)

    def authenticate(request: Request) -> Principal | None:
        both.wait(30)
        return BOB

    async with House(world, authenticate=authenticate).client() as client:
        answers = await asyncio.gather(client.get("/api/session"), client.get("/api/session"))

    assert [answer.json()["id"] for answer in answers] == ["bob", "bob"]


async def test_x10_a_plain_authenticator_may_return_an_awaitable(world: World) -> None:
    async def later() -> Principal:
        return BOB

    async with House(world, authenticate=lambda _: later()).client() as client:
        assert (await client.get("/api/session")).json()["id"] == "bob"


HOST = b"__Host-hitl_login"


@pytest.mark.parametrize(("lines", "value"), [
    ([HOST + b"=a"], "a"), ([b"x=1; " + HOST + b"=a; y=2"], "a"), ([b"x=1", HOST + b"=a=b"], "a=b"),
    ([b"\xa0" + HOST + b"=a"], None), ([HOST + b"\xa0=a"], None), ([HOST + b" =a"], None),
    ([b"\x1f" + HOST + b"=a"], None), ([b"__host-hitl_login=a"], None), ([HOST], ""), ([], None),
    ([b"hitl_login=a"], None), ([HOST + b"=a; " + HOST + b"=b"], None), ([HOST + b"=a", HOST + b"=a"], None),
    ([HOST + b"=\xff"], None), ([b"\xa0" + HOST + b"=evil; " + HOST + b"=a"], "a"),
])
def test_at56_our_cookies_are_read_byte_for_byte_and_once(lines: list[bytes], value: str | None) -> None:
    """Any host of the domain may set a cookie whose name only looks like ours to a lenient reader."""
    request = _asked(PROXY, (b"host", b"inbox.example"), *((b"cookie", line) for line in lines))
    request.scope["scheme"] = "https"

    assert cookie_of(request, "login") == value


async def test_at56_a_tossed_cookie_is_not_the_session(house: House) -> None:
    asked = house.ask()
    async with house.browser("bob") as bob:
        ours = bob.cookies["__Host-hitl_session"]
        bob.cookies.clear()
        for header, status in (
            (f"login=bob; __Host-hitl_session\xa0={ours}", 403),
            (f"login=bob; __Host-hitl_session={ours}; __Host-hitl_session=other", 403),
            (f"login=bob; __Host-hitl_session={ours}", 200),
        ):
            sent: Any = {b"cookie": header.encode("latin-1")}
            answer = await bob.post(f"/api/requests/{asked.id}/decision", json=decision(asked), headers=sent)
            assert answer.status_code == status


async def test_x10_an_authenticator_that_returns_something_else_lets_nobody_in(world: World) -> None:
    odd: Any = lambda request: "bob"  # noqa: E731

    async with House(world, authenticate=odd).client() as client:
        answer = await client.get("/api/session")

    assert answer.status_code == 500
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_x10_an_identity_that_ends_is_nobody_from_then_on(world: World) -> None:
    async with House(world, authenticate=lambda _: Identity(BOB, until=world.store.now())).client() as client:
        assert (await client.get("/api/session")).status_code == 401

    async with House(world, authenticate=lambda _: Identity(BOB, until=world.store.now() + 60_000)).client() as client:
        assert (await client.get("/api/session")).json()["id"] == "bob"


def _asked(client: tuple[str, int] | None, *headers: tuple[bytes, bytes]) -> Request:
    return Request({"type": "http", "client": client, "headers": list(headers), "method": "GET", "path": "/"})


PROXY = ("10.0.7.9", 4711)
TRUST = trusted_header(header="X-Forwarded-User", proxies=["10.0.7.0/24"], roles_header="x-groups")


def test_x10_a_header_is_believed_from_the_proxy() -> None:
    found: Any = TRUST(_asked(PROXY, (b"x-forwarded-user", b"bob"), (b"x-groups", b"lead, ops ,")))

    assert found.principal == Principal("bob", roles=("lead", "ops"))
    assert found.method == "header"


@pytest.mark.parametrize(("client", "headers"), [
    (("10.0.8.1", 1), [(b"x-forwarded-user", b"bob")]),
    (None, [(b"x-forwarded-user", b"bob")]),
    (("unix", 0), [(b"x-forwarded-user", b"bob")]),
    (PROXY, []),
    (PROXY, [(b"x-forwarded-user", b"")]),
    (PROXY, [(b"x-forwarded-user", b"bob"), (b"x-forwarded-user", b"ana")]),
    (PROXY, [(b"x-forwarded-user", b"bob,ana")]),
    (PROXY, [(b"x-forwarded-user", b"b\xffb")]),
    (PROXY, [(b"x-forwarded-user", "b\u200bob".encode())]),
    (PROXY, [(b"x-forwarded-user", b"b" * 600)]),
    (PROXY, [(b"x-forwarded-user", b"bob"), (b"x-groups", b"a"), (b"x-groups", b"operator")]),
], ids=["peer", "no-peer", "socket", "none", "empty", "two", "joined", "bytes", "hidden", "long", "two-roles"])
def test_x10_a_header_that_may_be_anybodys_is_nobody(client: Any, headers: Any) -> None:
    assert TRUST(_asked(client, *headers)) is None


@pytest.mark.parametrize(("roles", "own"), [
    (None, ["staff"]), ({}, []), ({"staff": "lead"}, ["lead"]),
    ({"operator": "operator", "staff": "global-operator", "lead": "lead"}, ["operator", "global-operator"]),
])
async def test_x10_a_proxys_groups_make_operators_only_where_they_are_mapped(
    world: World, roles: dict[str, str] | None, own: list[str]
) -> None:
    trust = trusted_header(header="x-user", proxies=["127.0.0.0/8"], roles_header="x-groups", roles=roles)
    headers = {"x-user": "mallory", "x-groups": "operator,staff,global-operator"}
    transport = httpx.ASGITransport(House(world, authenticate=trust).app, client=("127.0.0.1", 1))

    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers) as client:
        session = (await client.get("/api/session")).json()

    assert sorted(session["roles"]) == sorted(own)
    assert (session["operator"], session["global_operator"]) == ("operator" in own, "global-operator" in own)


def test_x10_a_proxy_that_speaks_ipv6_for_ipv4_is_the_same_proxy() -> None:
    assert TRUST(_asked(("::ffff:10.0.7.9", 1), (b"x-forwarded-user", b"bob"))) is not None


@pytest.mark.parametrize("options", [
    {"header": "x-user", "proxies": []}, {"header": "x-user", "proxies": ["everywhere"]},
    {"header": "x-user", "proxies": "10.0.0.0/8"}, {"header": "x user", "proxies": ["10.0.0.0/8"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8"], "tenant": ""}, {"header": "x-user", "proxies": ["0.0.0.0/0"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8", "::/0"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8"], "roles": {"a": "b"}},
    {"header": "x-user", "proxies": ["10.0.0.0/8"], "roles_header": "x-groups", "roles": ["a"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8"], "roles_header": "x-groups", "roles": {"a": ""}},
])
def test_x10_a_trusted_header_needs_its_proxies_by_name(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        trusted_header(**options)


class _User(BaseUser):
    def __init__(self, principal: Principal) -> None:
        self.principal = principal

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def display_name(self) -> str:
        return "Bob the Lead"


class _Backend(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("authorization")
        return None if name is None else (AuthCredentials(), _User(BOB))


@pytest.mark.parametrize("principal_of", [None, lambda user: user.principal], ids=["attribute", "function"])
async def test_x10_starlettes_own_user_is_who_is_looking(world: World, principal_of: Any) -> None:
    inner = create_app(world.guard, authenticate=request_user(principal_of))
    app = Starlette(
        routes=[Mount("/inbox", inner)], middleware=[Middleware(AuthenticationMiddleware, backend=_Backend())]
    )

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as client:
        nobody = await client.get("/inbox/api/session")
        bob = await client.get("/inbox/api/session", headers={"authorization": "Bearer x"})

    assert nobody.status_code == 401
    assert bob.json()["display"] == "Bob the Lead"


async def test_x10_a_missing_authentication_middleware_is_a_fault_and_no_login(world: World) -> None:
    async with House(world, authenticate=request_user()).client() as client:
        assert (await client.get("/api/session")).status_code == 500


async def test_x10_a_user_without_a_principal_is_nobody() -> None:
    authenticate = request_user()

    class Stranger:
        is_authenticated = True

    request = _asked(PROXY)
    request.scope["user"] = Stranger()

    assert authenticate(request) is None
    request.scope["user"] = ANA
    found: Any = authenticate(request)
    assert found.principal is ANA


def test_x10_the_packages_names_load_lazily() -> None:
    from hitl_guard import asgi

    assert asgi.create_app is create_app
    assert set(asgi.__all__) <= set(dir(asgi))
    with pytest.raises(AttributeError):
        _ = asgi.nothing  # type: ignore[attr-defined]
    assert by_bearer(_asked(PROXY)) is None
