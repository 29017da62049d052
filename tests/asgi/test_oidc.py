"""Login with an OpenID Connect provider: a real one on loopback, honest and spoilt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.routing import Mount

from hitl_guard.asgi import provider as client_side
from hitl_guard.asgi.oidc import OidcLogin
from hitl_guard.errors import ConfigurationError
from hitl_guard.lifecycle.settings import Settings
from tests.asgi.conftest import ORIGIN, House, decision
from tests.asgi.provider import CLIENT, SECRET, OidcServer, running, shared_secret
from tests.asgi.test_api import problem
from tests.support import World


@pytest.fixture(scope="module")
def started() -> Iterator[OidcServer]:
    """A provider for all tests of this file."""
    with running() as provider:
        yield provider


@pytest.fixture
def oidc(started: OidcServer) -> OidcServer:
    started.reset()
    return started


def login(world: World, oidc: OidcServer, **options: Any) -> OidcLogin:
    """Return the authenticator of an app that the provider knows."""
    given = {"issuer": oidc.issuer, "client_id": CLIENT, "client_secret": SECRET} | options
    return OidcLogin(world.guard, **given)


class Browser:
    """Keeps cookies as a browser does, and goes from the app to the provider and back."""

    def __init__(self, app: Any, home: str = "") -> None:
        self.app = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=ORIGIN)
        self.net = httpx.AsyncClient()
        self.home = home

    async def close(self) -> None:
        await self.app.aclose()
        await self.net.aclose()

    async def to_provider(self, query: str = "") -> httpx.Response:
        """Begin, and let the provider answer."""
        begun = await self.app.get(f"{self.home}/login{query}")
        assert begun.status_code == 303, begun.text
        return await self.net.get(begun.headers["location"])

    async def log_in(self, query: str = "") -> httpx.Response:
        """Go the whole way; return what the callback answered."""
        return await self.app.get((await self.to_provider(query)).headers["location"])


@pytest.fixture
async def browser(world: World, oidc: OidcServer) -> AsyncIterator[Browser]:
    made = Browser(House(world, authenticate=login(world, oidc, roles={"approvers": "lead"})).app)
    yield made
    await made.close()


async def test_x10_a_person_logs_in_and_groups_become_roles(browser: Browser, oidc: OidcServer) -> None:
    oidc.person |= {"email": "bob@example.org", "email_verified": True, "auth_time": 1_700_000_000}

    answer = await browser.log_in()
    session = (await browser.app.get("/api/session")).json()

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert (session["id"], session["display"], session["roles"]) == ("bob", "Bob the Lead", ["lead"])
    assert oidc.asked["code_challenge_method"] == "S256"
    assert oidc.asked["redirect_uri"] == f"{ORIGIN}/login/callback"
    cookies = answer.headers.get_list("set-cookie")
    assert all("HttpOnly; SameSite=Lax; Secure" in cookie for cookie in cookies)
    assert {cookie.partition("=")[0] for cookie in cookies} == {"__Host-hitl_oidc", "__Host-hitl_oidc_flow"}


async def test_at50_the_verified_mail_address_is_the_same_person(world: World, oidc: OidcServer) -> None:
    house = House(world, authenticate=login(world, oidc))
    asked = house.ask(user="bob@example.org")
    for verified, sees in ((True, True), ("true", False), (None, False)):
        oidc.person |= {"email": "bob@example.org", "email_verified": verified}
        person = Browser(house.app)
        await person.log_in()
        shown = await person.app.get(f"/api/requests/{asked.id}")
        assert (shown.json()["entitled"] if sees else shown.status_code) == (False if sees else 404)
        await person.close()


@pytest.mark.parametrize("claim", ["email", "preferred_username", "upn", "sub"])
async def test_at50_a_name_that_nobody_verified_excludes_and_lets_nobody_in(
    world: World, oidc: OidcServer, claim: str
) -> None:
    house = House(world, authenticate=login(world, oidc, id_claim="uid"))
    asked, other = house.ask(user="ana@x"), house.ask(user="somebody")
    oidc.person |= {"uid": "4711", "sub": "s", claim: "Ana@X"}
    person = Browser(house.app)
    await person.log_in()
    token = (await person.app.get("/api/session")).json()["token"]
    sent = {"x-csrf-token": token, "origin": ORIGIN, "sec-fetch-site": "same-origin"}

    answers = [
        await person.app.post(f"/api/requests/{one.id}/decision", json=decision(one), headers=sent)
        for one in (asked, other)
    ]

    assert [(answer.status_code, house.world.state(one)) for answer, one in zip(answers, (asked, other), strict=True)] \
        == [(404, "pending"), (200, "approved")]
    assert (await person.app.get("/api/requests?mine=true")).json()["items"] == []
    await person.close()


async def test_at50_a_login_cookie_without_unverified_names_is_no_login(world: World, oidc: OidcServer) -> None:
    authenticator = login(world, oidc)
    person = Browser(House(world, authenticate=authenticator).app)
    fields = authenticator._said({"sub": "bob"}, world.store.now())
    del fields["unverified"]
    person.app.cookies.set("__Host-hitl_oidc", await authenticator._signed("hitl-oidc-login", fields, 60_000))

    assert (await person.app.get("/api/session")).status_code == 401
    await person.close()


@pytest.mark.parametrize(("claims", "said"), [
    ({"groups": [f"group-{number}" for number in range(900)]}, "too many groups"),
    ({"groups": ["g" * 600]}, "administrator"), ({"email": "e" * 600}, "administrator"),
    ({"groups": {"a": 1}}, "groups cannot be read"),
], ids=["many", "long", "mail", "shape"])
async def test_x10_claims_that_fit_nowhere_are_refused_and_logged(
    world: World, oidc: OidcServer, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], said: str
) -> None:
    person = Browser(House(world, authenticate=login(world, oidc)).app)
    oidc.person |= claims

    answer = await person.log_in()

    assert (answer.status_code, problem(answer)) == (403, "forbidden")
    assert said in answer.json()["detail"]
    assert any(one.name == "hitl_guard.asgi" and said in one.message for one in caplog.records)
    assert "group-1" not in caplog.text
    await person.close()


@pytest.mark.parametrize(("name", "shown"), [("N" * 201, "bob"), (7, "bob"), ("", "bob"), ("Bob", "Bob")])
async def test_x10_a_name_that_cannot_be_shown_is_replaced_by_the_id(
    browser: Browser, oidc: OidcServer, name: Any, shown: str
) -> None:
    oidc.person |= {"name": name, "auth_time": 10**300}

    assert (await browser.log_in()).status_code == 303
    assert (await browser.app.get("/api/session")).json()["display"] == shown


async def test_x10_under_a_mount_the_callback_and_the_way_back_are_under_it(world: World, oidc: OidcServer) -> None:
    inner = House(world, authenticate=login(world, oidc)).app
    person = Browser(Starlette(routes=[Mount("/tools/inbox", inner)]), "/tools/inbox")

    answer = await person.log_in("?next=/tools/inbox/requests/abc")

    assert oidc.asked["redirect_uri"] == f"{ORIGIN}/tools/inbox/login/callback"
    assert answer.headers["location"] == "/tools/inbox/requests/abc"
    await person.close()


@pytest.mark.parametrize("wanted", [
    "https://evil.example/", "//evil.example/", "/\\evil.example", "/%5Cevil.example%2F..", "javascript:alert(1)", "",
    "/a b", "/requests//evil", "/%0d%0aX:y",
])
async def test_x10_a_login_never_leads_elsewhere(browser: Browser, wanted: str) -> None:
    answer = await browser.log_in(f"?next={wanted}")

    assert answer.headers["location"] in ("/", "/%5Cevil.example%2F..")
    assert "evil.example/" not in answer.headers["location"]


SPOILT: dict[str, dict[str, Any]] = {
    "audience": {"spoil": {"aud": "another"}}, "audiences": {"spoil": {"aud": [CLIENT, "another"]}},
    "party": {"spoil": {"azp": "another"}}, "issuer": {"spoil": {"iss": "https://evil.example"}},
    "over": {"spoil": {"exp": 1}}, "future": {"spoil": {"nbf": 9_999_999_999}}, "no-end": {"spoil": {"exp": None}},
    "nonce": {"spoil": {"nonce": "of another login"}}, "no-nonce": {"spoil": {"nonce": None}},
    "nobody": {"spoil": {"sub": None}}, "odd-subject": {"spoil": {"sub": 7}}, "blank": {"spoil": {"sub": ""}},
    "odd-groups": {"spoil": {"groups": {"a": 1}}}, "shared-secret": {"sign_with": shared_secret(),
                                                                   "header": {"alg": "HS256"}},
    "foreign-key": {"sign_with": RSAKey.generate_key(2048)}, "unknown-key": {"header": {"kid": "unknown"}},
    "at-hash": {"spoil": {"at_hash": "AAAA"}},
}


@pytest.mark.parametrize("how", SPOILT.values(), ids=SPOILT.keys())
async def test_x10_a_spoilt_token_logs_nobody_in(browser: Browser, oidc: OidcServer, how: dict[str, Any]) -> None:
    for name, value in how.items():
        setattr(oidc, name, value)

    answer = await browser.log_in()

    assert (answer.status_code, problem(answer)) == (403, "forbidden")
    assert (await browser.app.get("/api/session")).status_code == 401


async def test_x10_an_answer_belongs_to_the_browser_that_asked(world: World, oidc: OidcServer) -> None:
    app = House(world, authenticate=login(world, oidc)).app
    attacker, victim, fresh = Browser(app), Browser(app), Browser(app)
    planted = (await attacker.to_provider()).headers["location"]
    await victim.to_provider()

    answers = [
        await victim.app.get(planted), await fresh.app.get(planted),
        await victim.app.get("/login/callback?error=access_denied&state=x"),
        await victim.app.get(planted + "&state=again"), await victim.app.get("/login/callback"),
    ]

    assert [answer.status_code for answer in answers] == [403] * 5
    assert (await attacker.app.get(planted)).status_code == 303
    assert (await attacker.app.get(planted)).status_code == 403  # once
    for one in (attacker, victim, fresh):
        await one.close()


@pytest.mark.parametrize("change", ["iss=https%3A%2F%2Fevil.example", "iss="])
async def test_x10_an_answer_of_another_issuer_is_refused(browser: Browser, change: str) -> None:
    answer = (await browser.to_provider()).headers["location"]

    mixed = answer.replace(f"iss={answer.split('iss=')[1].split('&')[0]}", change)

    assert (await browser.app.get(mixed)).status_code == 403


async def test_x10_a_code_is_worth_nothing_without_the_verifier(world: World, oidc: OidcServer) -> None:
    app = House(world, authenticate=login(world, oidc)).app
    person = Browser(app)
    answer = (await person.to_provider()).headers["location"]
    for code in oidc.codes.values():
        code["code_challenge"] = "of somebody else"

    assert (await person.app.get(answer)).status_code == 403
    await person.close()


async def test_x10_a_new_key_of_the_provider_is_fetched_once(
    browser: Browser, oidc: OidcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await browser.log_in()).status_code == 303
    monkeypatch.setattr(oidc, "keys", [*oidc.keys, RSAKey.generate_key(2048, {"kid": "two"})])

    assert (await browser.log_in()).status_code == 403  # fetched a moment ago: an attacker cannot make us fetch more
    monkeypatch.setattr(client_side, "RETRY_MS", 0)
    assert (await browser.log_in()).status_code == 303
    assert oidc.fetches == 2


async def test_x10_a_login_ends(world: World, oidc: OidcServer) -> None:
    person = Browser(House(world, authenticate=login(world, oidc, login_ms=1)).app)

    await person.log_in()

    assert (await person.app.get("/api/session")).status_code == 401
    await person.close()


async def test_x10_a_cookie_of_another_kind_or_client_is_no_login(world: World, oidc: OidcServer) -> None:
    person = Browser(House(world, authenticate=login(world, oidc)).app)
    await person.to_provider()
    flow = person.app.cookies["__Host-hitl_oidc_flow"]
    await person.log_in()
    good = person.app.cookies["__Host-hitl_oidc"]
    other = Browser(House(world, authenticate=login(world, oidc, client_id="other")).app)

    for browser, cookie in ((person, flow), (person, good[:-2] + "xx"), (person, "x"), (other, good)):
        browser.app.cookies.clear()
        browser.app.cookies.set("__Host-hitl_oidc", cookie)
        assert (await browser.app.get("/api/session")).status_code == 401
    await person.close()
    await other.close()


async def test_at56_logging_out_is_for_our_own_page(browser: Browser) -> None:
    await browser.log_in()

    foreign = await browser.app.post("/logout", headers={"sec-fetch-site": "cross-site"})
    link = await browser.app.get("/logout")
    still = await browser.app.get("/api/session")
    own = await browser.app.post("/logout", headers={"sec-fetch-site": "same-origin"})
    after = await browser.app.get("/api/session")

    assert [answer.status_code for answer in (foreign, link, still, own, after)] == [403, 405, 200, 303, 401]


async def test_x10_a_page_sends_who_has_not_logged_in_to_the_login(browser: Browser) -> None:
    answer = await browser.app.get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


async def test_x10_a_silent_provider_is_unavailable_and_a_lying_one_a_fault(world: World, oidc: OidcServer) -> None:
    oidc.broken = True
    down = Browser(House(world, authenticate=login(world, oidc)).app)
    nowhere = Browser(House(world, authenticate=login(world, oidc, issuer="http://127.0.0.1:9")).app)
    answers = [await down.app.get("/login"), await nowhere.app.get("/login")]
    oidc.broken = False
    lies = []
    for lie in ({"issuer": "https://evil.example"}, {"token_endpoint": "http://evil.example"}, {"jwks_uri": None}):
        oidc.metadata = lie
        person = Browser(House(world, authenticate=login(world, oidc)).app)
        lies.append((await person.app.get("/login")).status_code)
        await person.close()
    await down.close()
    await nowhere.close()

    assert [answer.status_code for answer in answers] == [503, 503]
    assert lies == [500, 500, 500]


async def test_x10_a_token_endpoint_that_is_silent_or_gives_no_id_token(world: World, oidc: OidcServer) -> None:
    oidc.metadata = {"token_endpoint": "http://127.0.0.1:9/token"}
    silent = Browser(House(world, authenticate=login(world, oidc)).app)
    first = await silent.log_in()
    oidc.metadata, oidc.tokenless = {}, True
    bare = Browser(House(world, authenticate=login(world, oidc)).app)
    second = await bare.log_in()
    await silent.close()
    await bare.close()

    assert (first.status_code, second.status_code) == (503, 403)


async def test_x10_one_group_may_be_a_text(world: World, oidc: OidcServer) -> None:
    oidc.person["groups"] = "lead"
    person = Browser(House(world, authenticate=login(world, oidc, redirect_uri=f"{ORIGIN}/login/callback")).app)

    await person.log_in()

    assert (await person.app.get("/api/session")).json()["roles"] == ["lead"]
    await person.close()


@pytest.mark.parametrize("options", [
    {"issuer": "http://login.example"}, {"issuer": "login.example"}, {"client_id": ""}, {"scopes": "profile"},
    {"login_ms": 0}, {"tenant": ""},
])
def test_x10_a_login_that_cannot_work_is_refused_at_start(world: World, oidc: OidcServer, options: Any) -> None:
    with pytest.raises(ConfigurationError):
        login(world, oidc, **options)


@pytest.mark.parametrize("verified", [None, False, "true"])
async def test_x10_a_mail_address_that_nobody_verified_is_no_id(
    world: World, oidc: OidcServer, verified: Any
) -> None:
    person = Browser(House(world, authenticate=login(world, oidc, id_claim="email")).app)
    oidc.person |= {"email": "bob@example.org", "email_verified": verified}

    answer = await person.log_in()

    assert answer.status_code == 403
    assert (await person.app.get("/api/session")).status_code == 401
    await person.close()


async def test_x10_a_group_of_the_operators_name_makes_no_operator_unless_it_is_mapped(
    world: World, oidc: OidcServer
) -> None:
    oidc.person |= {"groups": ["lead", "operator", "global-operator"]}
    both = {"operator": "operator", "global-operator": "global-operator"}
    for roles, held in ((None, ["lead"]), (both, ["operator", "global-operator"])):
        person = Browser(House(world, authenticate=login(world, oidc, roles=roles)).app)
        await person.log_in()

        session = (await person.app.get("/api/session")).json()
        assert session["roles"] == held
        assert session["operator"] is session["global_operator"] is (roles is both)
        await person.close()


async def test_x10_the_operators_roles_are_the_ones_of_the_settings(world: World, oidc: OidcServer) -> None:
    oidc.person |= {"groups": ["ops", "ops-everywhere", "operator"]}
    own = World(world.store, settings=Settings(operator_role="ops", global_operator_role="ops-everywhere"))
    person = Browser(House(own, authenticate=login(own, oidc)).app)

    await person.log_in()

    assert (await person.app.get("/api/session")).json()["roles"] == ["operator"]
    await person.close()
