"""Who is looking: the host's login, the recipes, and what happens when it fails."""

from __future__ import annotations

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
from hitl_guard.errors import ConfigurationError
from hitl_guard.models import Principal
from tests.asgi.conftest import ORIGIN, House, by_bearer
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


def test_x10_a_proxy_that_speaks_ipv6_for_ipv4_is_the_same_proxy() -> None:
    assert TRUST(_asked(("::ffff:10.0.7.9", 1), (b"x-forwarded-user", b"bob"))) is not None


@pytest.mark.parametrize("options", [
    {"header": "x-user", "proxies": []}, {"header": "x-user", "proxies": ["everywhere"]},
    {"header": "x-user", "proxies": "10.0.0.0/8"}, {"header": "x user", "proxies": ["10.0.0.0/8"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8"], "tenant": ""}, {"header": "x-user", "proxies": ["0.0.0.0/0"]},
    {"header": "x-user", "proxies": ["10.0.0.0/8", "::/0"]},
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
