"""Other sites: no link changes anything, no foreign page can post, nothing is framed or cached."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Route

from hitl_guard.asgi import sessions
from hitl_guard.asgi.headers import HEADERS
from hitl_guard.asgi.sessions import Sessions
from hitl_guard.errors import ConfigurationError, NotAuthorisedError
from tests.asgi.conftest import ORIGIN, House, decision
from tests.asgi.test_api import problem
from tests.support import World

ADDRESSES = [
    "", "/decision", "/challenge", "/reveal", "/revoke", "/resolve", "/decision?approve=true", "?approve=true",
]


def _trail(world: World) -> list[tuple[str, int]]:
    return [(chain, len(world.store.chain_events(chain))) for chain in world.store.chains()]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_at55_no_link_or_prefetch_changes_anything(house: House, method: str) -> None:
    asked = house.ask()
    before = _trail(house.world)
    others = [
        route.path.replace("{request_id}", asked.id) for route in house.app.routes
        if isinstance(route, Route) and route.path != "/api/events"
    ]

    async with house.client() as client:
        for address in [*(f"/api/requests/{asked.id}{tail}" for tail in ADDRESSES), *others]:
            answer = await client.request(method, address, headers={"purpose": "prefetch"})
            assert answer.status_code < 500, address

    assert _trail(house.world) == before
    assert house.world.state(asked) == "pending"


async def test_at56_a_browsers_own_page_may_post(house: House) -> None:
    asked = house.ask()

    async with house.browser() as browser:
        answer = await browser.post(f"/api/requests/{asked.id}/decision", json=decision(asked))

    assert answer.status_code == 200


FOREIGN: dict[str, dict[str, str | None]] = {
    "cross-site": {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
    "cross-site-with-our-origin": {"sec-fetch-site": "cross-site"},
    "same-site-subdomain": {"sec-fetch-site": "same-site", "origin": "https://blog.inbox.example"},
    "typed": {"sec-fetch-site": "none"},
    "foreign-origin": {"sec-fetch-site": None, "origin": "https://evil.example"},
    "other-scheme": {"sec-fetch-site": None, "origin": "http://inbox.example"},
    "other-port": {"sec-fetch-site": None, "origin": "https://inbox.example:8443"},
    "null-alone": {"sec-fetch-site": None, "origin": "null"},
    "null-cross-site": {"sec-fetch-site": "cross-site", "origin": "null"},
    "nothing": {"sec-fetch-site": None, "origin": None},
    "no-token": {"x-csrf-token": None},
    "empty-token": {"x-csrf-token": ""},
    "rubbish-token": {"x-csrf-token": "abc.def"},
    "null-without-token": {"origin": "null", "x-csrf-token": None},
}


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_at56_another_sites_post_is_refused(house: House, changes: Any, kind: str) -> None:
    asked = house.ask()

    async with house.browser() as browser:
        for name, value in changes.items():
            browser.headers.pop(name, None)
            if value is not None:
                browser.headers[name] = value
        answer = await browser.post(
            f"/api/requests/{asked.id}/decision", content=str(decision(asked)), headers={"content-type": kind}
        )

    assert (answer.status_code, problem(answer)) == (403, "forbidden")
    assert house.world.state(asked) == "pending"
    (event,) = house.world.audited("decision:refused")
    assert event["by"] == "bob"


async def test_at56_text_that_looks_like_json_is_refused_from_our_own_page_too(house: House) -> None:
    asked = house.ask()

    async with house.browser() as browser:
        answer = await browser.post(
            f"/api/requests/{asked.id}/decision", content="{}", headers={"content-type": "text/plain"}
        )

    assert answer.status_code == 415


@pytest.mark.parametrize("origin", ["null", ORIGIN, None])
async def test_at56_our_own_form_may_say_null_with_the_token(house: House, origin: str | None) -> None:
    asked = house.ask()

    async with house.browser() as browser:
        del browser.headers["origin"]
        answer = await browser.post(
            f"/api/requests/{asked.id}/decision", json=decision(asked),
            headers={} if origin is None else {"origin": origin},
        )

    assert answer.status_code == 200


async def test_at56_a_token_belongs_to_one_person_and_one_session(house: House) -> None:
    asked = house.ask()
    path = f"/api/requests/{asked.id}/decision"

    async with house.browser("bob") as bob, house.browser("carol") as carol, house.browser("bob") as again:
        for token in (carol.headers["x-csrf-token"], again.headers["x-csrf-token"]):
            answer = await bob.post(path, json=decision(asked), headers={"x-csrf-token": token})
            assert answer.status_code == 403
        bob.cookies.set("login", "carol")  # another login in the same browser
        assert (await bob.post(path, json=decision(asked))).status_code == 403

    assert house.world.state(asked) == "pending"


async def test_at56_a_token_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = house.ask()
    monkeypatch.setattr(sessions, "TOKEN_MS", 0)

    async with house.browser() as browser:
        answer = await browser.post(f"/api/requests/{asked.id}/decision", json=decision(asked))

    assert answer.status_code == 403


async def test_at56_a_form_carries_its_token_in_a_field(house: House) -> None:
    async with house.browser() as browser:
        cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        token = browser.headers["x-csrf-token"]
    headers = [(b"cookie", cookies.encode()), (b"host", b"inbox.example"), (b"sec-fetch-site", b"same-origin")]
    request = Request({"type": "http", "headers": headers, "method": "POST", "path": "/", "scheme": "https"})
    viewer = await house.inbox.viewer(request)
    assert viewer is not None

    assert await house.inbox.sessions.check(request, viewer, {sessions.FIELD: token}) == "inbox"
    with pytest.raises(NotAuthorisedError):
        await house.inbox.sessions.check(request, viewer, {})


@pytest.mark.parametrize("headers", [
    {"authorization": "Basic Ym9i"}, {"cookie": "x=y"}, {"origin": ORIGIN}, {"sec-fetch-site": "same-origin"},
])
async def test_at56_only_a_program_with_its_own_credentials_needs_no_token(world: World, headers: Any) -> None:
    from tests.support import BOB

    house = House(world, authenticate=lambda _: BOB)
    asked = house.ask()

    async with house.client() as client:
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked), headers=headers)

    assert answer.status_code == 403


async def test_at56_origins_that_were_named_are_the_only_ones(world: World) -> None:
    house = House(world, origins=["https://approvals.example"])
    asked = house.ask()
    path = f"/api/requests/{asked.id}/decision"

    async with house.browser() as browser:
        rebound = await browser.post(path, json=decision(asked))
        own = await browser.post(
            path, json=decision(asked), headers={"host": "approvals.example", "origin": "https://approvals.example"}
        )

    assert (rebound.status_code, own.status_code) == (403, 200)


@pytest.mark.parametrize("origins", ["https://x.example", ["x.example"], ["https://x.example/path"], [1]])
def test_at56_an_origin_is_written_as_browsers_write_it(world: World, origins: Any) -> None:
    with pytest.raises(ConfigurationError):
        Sessions(world.guard, origins=origins)


@pytest.mark.parametrize(("base", "name", "secure"), [
    (ORIGIN, "__Host-hitl_session", True), ("http://inbox.example", "__Host-hitl_session", True),
    ("http://localhost:8000", "hitl_session", False), ("http://127.0.0.1:8000", "hitl_session", False),
])
async def test_at56_the_sessions_cookie_is_out_of_reach(house: House, base: str, name: str, secure: bool) -> None:
    transport = httpx.ASGITransport(house.app)
    async with httpx.AsyncClient(transport=transport, base_url=base, cookies={"login": "bob"}) as client:
        (cookie,) = (await client.get("/api/session")).headers.get_list("set-cookie")

    assert cookie.startswith(f"{name}=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert ("Secure" in cookie) is secure


@pytest.mark.parametrize("path", ["/api/session", "/api/requests/unknown", "/nothing", "/health", "/api/openapi.json"])
async def test_at57_every_response_forbids_framing_sniffing_and_caching(house: House, path: str) -> None:
    async with house.client() as client:
        answers = [await client.get(path), await client.post(path), await client.options(path)]

    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers
    assert HEADERS["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")


async def test_x10_it_works_under_any_mount(house: House) -> None:
    asked = house.ask()
    app = Starlette(routes=[Mount("/tools/approvals", house.app)])

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=ORIGIN, headers={"authorization": "Bearer bob"}
    ) as client:
        answer = await client.post(
            f"/tools/approvals/api/requests/{asked.id}/decision", json=decision(asked)
        )

    assert answer.status_code == 200
