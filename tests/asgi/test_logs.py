"""The host's own log: the code of each refusal that its answer does not tell, and what is wrong in the set-up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from hitl_guard.asgi import ApprovalMiddleware, create_app, logs
from hitl_guard.errors import NotAuthorisedError
from hitl_guard.models import Principal
from tests.asgi.chat import PATH, REFUSED, Answer, Chat
from tests.asgi.conftest import ORIGIN, House, decision
from tests.asgi.test_api import problem
from tests.asgi.visitor import Visitor, link
from tests.databases import Database
from tests.support import World


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log has of ours."""
    return [one.getMessage() for one in caplog.records if one.name == "hitl_guard.asgi"]


# Refusals


def test_x10_a_refusal_is_one_line_without_its_message_and_with_ids_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    error = NotAuthorisedError("The card is 4111.", detail="token\n\x1b[2J")
    who = Principal("\u202eroberta@example.org", tenant="a\ncompany")

    logs.refused(error, "POST /bulk", who=who, request="Ab3d-in-full", run=None, call="\n\n")

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("hitl_guard.asgi", logging.WARNING)
    assert record.getMessage() == (
        "Refused with not-authorised/token\\n\\u001b[2J: POST /bulk, tenant a\\nco..., by \\u202erob..., "
        "request Ab3d..., call \\n..."
    )


@pytest.mark.parametrize("text", ["x", "bo", "bob", "kim@example.org", "x" * 5000])
def test_x10_no_id_is_logged_in_full(caplog: pytest.LogCaptureFixture, text: str) -> None:
    logs.refused(NotAuthorisedError("No."), "GET /", request=text)

    shown = told(caplog)[0].removeprefix("Refused with not-authorised: GET /, request ").removesuffix("...")
    assert text.startswith(shown)
    assert len(shown) <= min(4, len(text) // 2)


async def test_x10_the_api_logs_the_code_behind_a_403(house: House, caplog: pytest.LogCaptureFixture) -> None:
    request = house.ask(arguments={"order": "the-order"})

    async with house.client("ana") as ana:
        answer = await ana.post(f"/api/requests/{request.id}/decision", json=decision(request, reason="my-reason"))

    (audited,) = house.world.audited("decision:refused")
    assert problem(answer) == "forbidden"
    assert told(caplog) == [
        f"Refused with {audited['code']}/{audited['detail']}: POST /api/requests/{{request_id}}/decision, "
        f"tenant def..., by a..., request {request.id[:4]}..."
    ]
    for secret in (request.id, request.fingerprint, "the-order", "my-reason"):
        assert secret not in caplog.text


async def test_x10_the_api_logs_the_code_that_a_404_hides(house: House, caplog: pytest.LogCaptureFixture) -> None:
    request = house.ask("close_account")

    async with house.client("carol") as carol:
        answer = await carol.post(f"/api/requests/{request.id}/decision", json=decision(request))
        unknown = await carol.post("/api/requests/nothing/decision", json=decision(request))

    assert problem(answer) == problem(unknown) == "not-found"
    assert [one.partition(":")[0].partition("/")[0] for one in told(caplog)] == ["Refused with not-authorised"]


async def test_x10_the_code_of_a_record_that_does_not_verify_is_logged(
    house: House, place: Database, caplog: pytest.LogCaptureFixture
) -> None:
    request = house.ask()
    place.execute("UPDATE hitl_guard_requests SET arguments = :x", {"x": b"{}"})

    async with house.client("olga") as olga, house.client("bob") as bob:
        answers = [await client.get(f"/api/requests/{request.id}") for client in (olga, bob)]

    assert [problem(one) for one in answers] == ["damaged", "not-found"]
    assert [one.partition(": ")[2].partition(", ")[0] for one in told(caplog)] == ["GET /api/requests/{request_id}"] * 2
    assert all(one.startswith("Refused with invalid-signature") for one in told(caplog))


async def test_x10_a_form_that_is_refused_is_logged(
    house: House, bob: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    request = house.ask()
    form = {"answer": "deny", "fingerprint": request.fingerprint, "reason": "my-reason", "csrf_token": "my-token"}

    answer = await bob.post(link(request, "/decision"), form)

    assert answer.status_code == 403
    (line,) = told(caplog)
    assert line.startswith("Refused with not-authorised/token: POST /requests/{request_id}/decision, tenant def")
    for secret in ("my-reason", "my-token", request.id, "bob"):
        assert secret not in caplog.text


async def test_x10_one_of_many_that_is_refused_is_logged(
    house: House, bob: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    request = house.ask()
    await bob.go("/")

    answer = await bob.post("/bulk", {"answer": "approve", "pick": f"{request.id} {request.fingerprint}"})

    assert answer.status_code == 200
    (line,) = told(caplog)
    assert line.startswith("Refused with not-authorised/bulk: POST /bulk, ")


async def test_x10_what_is_answered_or_unknown_or_said_in_full_is_no_refusal_to_log(
    house: House, bob: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    request = house.ask()
    house.world.deny(request)

    async with house.client() as client, house.client(None) as nobody:
        await client.get("/api/requests")
        again = await client.post(f"/api/requests/{request.id}/decision", json=decision(request))
        await nobody.get("/api/requests")
    await bob.go(link(request))
    await bob.go("/requests/none")

    assert problem(again) == "already-decided"
    assert told(caplog) == []


@pytest.mark.parametrize("change", [
    {}, {"arguments": {"order": "another-order"}}, {"token": "forged.token"}, {"call_id": "another-call"},
], ids=lambda one: next(iter(one), "undecided"))
async def test_x10_the_middleware_logs_the_code_that_is_audited(
    world: World, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    request = world.guard.request(world.call(arguments={"order": "the-order"}))
    if change:
        world.approve(request)
    chat = Chat(world)

    answer = await chat.post(Answer.to(request, **change).body("ai-sdk-ui"))

    ((code, detail),) = chat.codes()
    assert answer.json() == REFUSED
    (line,) = told(caplog)
    said = code if detail is None else f"{code}/{detail}"
    assert line.startswith(f"Refused with {said}: POST {PATH}, tenant def..., by a..., run ru..., request ")
    for secret in (request.id, request.token, "another-order", "the-order", "forged.token", "another-call", "run-1"):
        assert secret not in caplog.text


async def test_x10_an_honest_post_leaves_no_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    request = world.guard.request(world.call())
    world.approve(request)

    answer = await Chat(world).post(Answer.to(request).body("ai-sdk-ui"))

    assert (answer.status_code, told(caplog)) == (201, [])


async def test_x10_an_authenticator_that_refuses_in_front_of_a_chat_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(request: Any) -> None:
        raise NotAuthorisedError("Not with sk-12345.", detail="plan")

    answer = await Chat(world, authenticate=refuses).post({"id": "run-1"})

    assert answer.json() == REFUSED
    assert told(caplog) == [f"Refused with not-authorised/plan: POST {PATH}"]
    assert "sk-12345" not in caplog.text


# What is wrong in the set-up


def _name(request: Any) -> Any:
    return "bob@example.org"


async def _later(request: Any) -> Any:
    return "bob@example.org"


def _served(world: World, authenticate: Callable[[Any], Any]) -> FastAPI:
    """Return a FastAPI app with the inbox mounted in it and a chat behind the middleware."""
    app = FastAPI()

    @app.post(PATH)
    async def chat(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("the app saw a post of nobody")

    app.mount("/approvals", create_app(world.guard, authenticate=authenticate))
    app.add_middleware(
        ApprovalMiddleware, guard=world.guard, authenticate=authenticate, run_of=lambda request, body: body["id"],
        paths=[PATH],
    )
    return app


@pytest.mark.parametrize("authenticate", [_name, _later])
@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/approvals/api/requests"), ("POST", "/approvals/api/requests/x/decision"),
    ("GET", "/approvals/api/events"), ("GET", "/approvals/"), ("POST", "/approvals/bulk"), ("POST", PATH),
])
async def test_x10_an_authenticator_that_returns_no_principal_is_a_problem_in_a_fastapi_app_and_is_logged(
    world: World, caplog: pytest.LogCaptureFixture, authenticate: Callable[[Any], Any], method: str, path: str
) -> None:
    transport = httpx.ASGITransport(_served(world, authenticate), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        answer = await client.request(method, path, json={"id": "run-1"} if method == "POST" else None)

    assert answer.status_code == 500
    if path in ("/approvals/", "/approvals/bulk"):
        assert "Something is wrong on this side." in answer.text
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == {
            "status": 500, "title": "Something is wrong on this side.", "type": "urn:hitl-guard:problem:internal",
        }
    (line,) = told(caplog)
    assert "hitl_guard.errors.ConfigurationError ('authenticate' must return a Principal, an Identity or None.)" in line
    assert "identity.py" in line
    for text in (answer.text, caplog.text):
        assert "bob@example.org" not in text
    assert "authenticate" not in answer.text
