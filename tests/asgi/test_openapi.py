"""The OpenAPI document: every route is in it, and the app does what it says, with and without a login."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from starlette.routing import Route

from hitl_guard.asgi.identity import request_user, trusted_header
from hitl_guard.asgi.login import LoginLinks
from hitl_guard.asgi.openapi import document
from tests.asgi.conftest import House, by_bearer, decision
from tests.support import CAROL, World


@pytest.fixture
async def filled(world: World) -> AsyncIterator[House]:
    """An inbox with a few requests."""
    house = House(world)
    for number in range(3):
        house.ask(call_id=f"c{number}")
    world.deny(world.guard.pending()[0], reason="No.")
    yield house
    await house.inbox.close()


async def test_x10_every_route_and_page_is_in_the_document(house: House) -> None:
    async with house.client(None) as client:
        paths = (await client.get("/api/openapi.json")).json()["paths"]

    for route in house.app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            assert method.lower() in paths[route.path], route.path
    names = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(set(names)) == len(names)


def test_x10_what_is_no_route_is_left_out() -> None:
    assert list(document([object()])["paths"]) == ["/api/openapi.json"]  # type: ignore[list-item]


async def test_x10_real_answers_have_the_documented_shape(filled: House) -> None:
    asked = filled.ask("mail", {"to": "a@example.org"}, context={"note": "please"})
    fixed = document(filled.app.routes)

    async with filled.client("bob") as bob, filled.client("olga") as olga:
        answers = {
            "Listing": await bob.get("/api/requests"), "Dossier": await bob.get(f"/api/requests/{asked.id}"),
            "Session": await bob.get("/api/session"), "Runs": await bob.get("/api/runs"),
            "Decision": await bob.post(f"/api/requests/{asked.id}/decision", json=decision(asked)),
            "Control": await olga.post("/api/control/pause", json={"tool": "refund"}),
            "Problem": await bob.post(f"/api/requests/{asked.id}/revoke", json={"x": 1}),
            "Ready": await bob.get("/ready"),
        }

    assert len(answers["Listing"].json()["items"]) == 4
    for name, answer in answers.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": fixed["components"]}
        jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)


def test_x10_the_document_says_what_the_forms_take_and_that_the_control_row_may_not_verify(house: House) -> None:
    paths = document(house.app.routes)["paths"]

    def fits(path: str, **form: Any) -> bool:
        content = paths[path]["post"]["requestBody"]["content"]
        return jsonschema.Draft202012Validator(content["application/x-www-form-urlencoded"]["schema"]).is_valid(form)

    assert fits("/bulk", answer="approve", pick=["id fingerprint"], seen=["proof"], reason="Fine.")
    assert fits("/control", change="pause", tool="t" * 512, reason="r" * 4096)
    assert fits("/control", change="unmute", tool="t", user="u" * 512)
    assert not fits("/control", change="pause", tool="t" * 513)
    assert not fits("/control", change="pause", tool="t", agent="a")
    assert not fits("/bulk", answer="approve", pick=["x"] * 101)
    assert "409" in paths["/api/control"]["get"]["responses"]


@pytest.mark.parametrize("who", ["olga", "bob", None])
def test_x10_the_app_does_what_its_document_says(filled: House, who: str | None) -> None:
    headers = {} if who is None else {"authorization": f"Bearer {who}"}
    # The stream of events has no end; `test_events` reads it.
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", filled.app).exclude(path="/api/events")
    seen = 0
    for operation in schema.get_all_operations():
        seen += 1
        assert isinstance(operation, Ok)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the tool itself calls is not ours
            _checked(operation.ok(), headers)

    assert seen > 25


def _checked(operation: Any, headers: dict[str, str]) -> None:
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True,
              phases=[Phase.generate], database=None)
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        case.validate_response(case.call(headers=headers), headers=headers)

    run()


# Credentials


BEHIND_PROXY = trusted_header(header="X-Forwarded-User", proxies=["127.0.0.1/32"])


def test_x10_the_document_is_a_valid_openapi_document_whoever_logs_in(world: World) -> None:
    for authenticate in (by_bearer, BEHIND_PROXY, LoginLinks(world.guard), request_user()):
        schemathesis.openapi.from_asgi("/api/openapi.json", House(world, authenticate=authenticate).app).validate()


async def test_x10_every_operation_says_what_it_needs_and_those_without_a_login_that_they_need_nothing(
    house: House,
) -> None:
    async with house.client(None) as client:
        shown = (await client.get("/api/openapi.json")).json()
        needs = {
            (method, path): one["security"] for path, found in shown["paths"].items() for method, one in found.items()
        }
        schemes = set(shown["components"]["securitySchemes"])
        for (method, path), alternatives in needs.items():
            assert all(alternative and set(alternative) <= schemes for alternative in alternatives)
            if method == "get" and not alternatives:
                address = path.replace("{name}", "inbox.css")
                assert (await client.get(address)).status_code == 200, path

    assert {path for (_, path), alternatives in needs.items() if not alternatives} == {
        "/api/openapi.json", "/health", "/ready", "/static/{name}",
    }


def test_x10_the_pages_of_a_login_are_before_the_login() -> None:
    routes = [Route(path, endpoint=print, methods=["GET"]) for path in ("/login", "/secret")]
    paths = document(routes, public=["/login"])["paths"]

    assert paths["/login"]["get"]["security"] == []
    assert paths["/secret"]["get"]["security"] == [{"bearer": []}]


@pytest.mark.parametrize(("authenticate", "known"), [
    (by_bearer, {"bearer": "Bearer carol"}), (BEHIND_PROXY, {"proxy": "carol"}),
], ids=["bearer", "proxy"])
async def test_x10_what_the_document_asks_for_is_enough_and_nothing_less_is(
    world: World, authenticate: Any, known: dict[str, str]
) -> None:
    house = House(world, authenticate=authenticate)
    async with house.client(None) as client:
        shown = (await client.get("/api/openapi.json")).json()
        schemes = shown["components"]["securitySchemes"]
        (needed,) = shown["paths"]["/api/requests/{request_id}/decision"]["post"]["security"]
        (to_read,) = shown["paths"]["/api/session"]["get"]["security"]
        session = await client.get("/api/session", headers=dict(_sent(schemes, to_read, known)))
        assert session.status_code == 200
        values = known | {"session": session.cookies.get("__Host-hitl_session"), "csrf": session.json()["token"]}

        async def answered(names: Iterable[str]) -> int:
            client.cookies.clear()
            own = {} if "bearer" in needed else {"sec-fetch-site": "same-origin"}
            asked = house.ask(call_id="-".join(names) or "nothing")
            address = f"/api/requests/{asked.id}/decision"
            sent = own | dict(_sent(schemes, names, values))
            return (await client.post(address, headers=sent, json=decision(asked))).status_code

        assert await answered(list(needed)) == 200
        for left_out in needed:
            assert await answered([name for name in needed if name != left_out]) in (401, 403)


def _sent(schemes: dict[str, Any], names: Iterable[str], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the headers that carry these credentials as the document says."""
    for name in names:
        scheme = schemes[name]
        if scheme["type"] == "http":
            yield "authorization", values[name]
        elif scheme["in"] == "cookie":
            yield "cookie", f"{scheme['name']}={values[name]}"
        else:
            yield scheme["name"], values[name]


async def test_x10_a_login_by_link_is_the_cookie_that_the_document_names(world: World) -> None:
    links = LoginLinks(world.guard)
    house = House(world, authenticate=links)
    link = await asyncio.to_thread(links.link, CAROL, "https://inbox.example")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(links.app()), base_url="https://inbox.example") as door:
        headers = {"sec-fetch-site": "same-origin"}
        cookies = (await door.post(link.replace("/login/", "/"), headers=headers)).cookies
    async with house.client(None) as client:
        shown = (await client.get("/api/openapi.json")).json()
        (needed,) = shown["paths"]["/api/requests"]["get"]["security"]
        scheme = shown["components"]["securitySchemes"]["login"]
        client.cookies.set(scheme["name"], cookies[scheme["name"]])
        answer = await client.get("/api/requests")

    assert (needed, answer.status_code) == ({"login": []}, 200)


@pytest.mark.parametrize(("body", "good"), [
    ({"tool": "refund"}, True), ({"agent": "shop", "everywhere": True}, True), ({"everything": True}, True),
    ({"tool": "refund", "agent": None, "everything": False}, True), ({}, False), ({"everywhere": True}, False),
    ({"everything": False}, False), ({"tool": None}, False), ({"tool": "refund", "everything": True}, False),
    ({"tool": "refund", "agent": "shop"}, False),
], ids=str)
def test_x18_the_document_says_that_a_pause_names_exactly_one_thing(house: House, body: Any, good: bool) -> None:
    fixed = document(house.app.routes)
    schema = {"$ref": "#/components/schemas/PauseBody", "components": fixed["components"]}

    assert jsonschema.Draft202012Validator(schema).is_valid(body) is good
