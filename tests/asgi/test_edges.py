"""The inbox at its edges: slow, broken and vanished clients, odd characters in errors, hanging checks, long answers."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import jinja2
import pytest

from hitl_guard.asgi import api, health, logs, page_actions, page_views, problems, views
from hitl_guard.asgi.body import read_body
from hitl_guard.errors import CanonicalizationError, StoreUnavailableError
from hitl_guard.models import ToolDefinition
from tests.asgi.conftest import House, decision
from tests.asgi.test_api import problem

FORM = "application/x-www-form-urlencoded"
DOORS = {"api": ("/api/control/pause", "application/json"), "page": ("/control", FORM)}


async def post(house: House, door: str, receive: Any) -> list[Any]:
    """Post to the API or to a page, with a body that comes from ``receive``; return what the app sent."""
    path, kind = DOORS[door]
    headers = {"authorization": "Bearer olga", "content-type": kind}
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "scheme": "https", "root_path": "", "server": ("inbox.example", 443), "client": ("127.0.0.1", 1),
        "http_version": "1.1", "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await house.app(scope, receive, send)
    return sent


@pytest.mark.parametrize("door", DOORS)
async def test_x10_a_body_that_comes_too_slowly_is_answered_408(
    house: House, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    for module in (api, page_actions):
        monkeypatch.setattr(module, "read_body", partial(read_body, timeout_s=0))

    async def receive() -> Any:
        await asyncio.Event().wait()

    sent = await post(house, door, receive)

    assert sent[0]["status"] == 408


@pytest.mark.parametrize("door", DOORS)
async def test_x10_a_client_that_goes_away_in_the_middle_is_no_error(house: House, door: str) -> None:
    messages = [{"type": "http.request", "body": b'{"tool":', "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    sent = await post(house, door, receive)  # what an app raises, its server logs as an error

    assert sent[0]["status"] == 400
    assert house.world.guard.control().pauses == frozenset()


@pytest.mark.parametrize(("stated", "status"), [("16", 200), ("15", 400), ("17", 400), ("-1", 400), ("x", 400)])
async def test_x10_a_body_is_as_long_as_its_content_length_says(house: House, stated: str, status: int) -> None:
    async with house.client("olga") as client:
        answer = await client.post(
            "/api/control/pause", content=b'{"tool":"refund"}'.replace(b"refund", b"wires"),
            headers={"content-type": "application/json", "content-length": stated},
        )

    assert answer.status_code == status
    assert status == 200 or problem(answer) == "malformed"


async def test_x10_an_error_repeats_no_character_that_a_terminal_obeys(house: House) -> None:
    asked = house.ask()

    async with house.client() as client:
        answer = await client.post(
            f"/api/requests/{asked.id}/decision", json=decision(asked) | {"\u202egnp.exe\x1b[2J\u0085": 1}
        )

    assert problem(answer) == "malformed"
    assert "gnp.exe" in answer.text
    assert answer.text.isascii()
    assert answer.text.isprintable()


@pytest.mark.parametrize(("detail", "status"), [("timeout", 408), ("length", 400), ("bytes", 413), ("type", 422)])
def test_what_a_body_lacks_has_its_own_status(detail: str, status: int) -> None:
    code = "too-large" if detail == "bytes" else "unsupported-value"

    assert problems.status_of(CanonicalizationError("x", code=code, detail=detail)) == status


# Readiness


async def test_x10_a_check_that_hangs_is_not_in_order_and_is_not_started_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, started = threading.Event(), []
    real = house.world.store.check

    def hangs() -> None:
        started.append(True)
        held.wait()
        real()

    monkeypatch.setattr(house.world.store, "check", hangs)
    monkeypatch.setattr(health, "READY_MS", 0)
    monkeypatch.setattr(health, "CHECKS_S", 0.01)
    async with house.client(None) as client:
        answers = [await client.get("/ready") for _ in range(3)]
        held.set()
        monkeypatch.setattr(health, "CHECKS_S", 60)
        good = await client.get("/ready")

    assert [(one.status_code, one.json()["checks"]["schema"]) for one in answers] == [(503, False)] * 3
    assert (good.status_code, good.json()["status"]) == (200, "ok")
    assert len(started) == 1


async def test_x10_what_is_no_error_of_ours_in_a_check_is_one_of_the_servers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("password=x")

    monkeypatch.setattr(house.world.store, "check", broken)
    async with house.client(None) as client:
        answer = await client.get("/ready")

    assert (answer.status_code, problem(answer)) == (500, "internal")
    assert "password" not in answer.text


# Off the event loop


async def test_x10_long_answers_are_made_in_a_thread(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = house.ask("mail", {"to": "a"}, definition=ToolDefinition("mail", None, {"properties": {"to": {}}}))
    made: dict[str, set[bool]] = {}

    def watched(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def seen(*args: Any, **more: Any) -> Any:
            made.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return real(*args, **more)

        monkeypatch.setattr(owner, name, seen)

    for owner, name in (
        (jinja2.Template, "render"), (page_views, "laid"), (page_views, "warnings"), (views, "listing_view"),
        (views, "dossier_view"), (views, "runs_view"), (views, "decision_view"), (json, "dumps"),
    ):
        watched(owner, name)
    async with house.client() as client:
        for path in ("/", f"/requests/{asked.id}", "/runs", "/nothing/here", "/api/requests",
                     f"/api/requests/{asked.id}", "/api/runs"):
            await client.get(path)
    async with house.client() as client:
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked))

    assert answer.status_code == 200, answer.text
    assert {name for name, where in made.items() if True in where} <= {"dumps"}  # problems and such are short
    assert set(made) == {
        "decision_view", "dossier_view", "dumps", "laid", "listing_view", "render", "runs_view", "warnings",
    }


# The log


def test_the_log_has_kind_and_place_of_an_error_and_never_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise StoreUnavailableError("password=x")
    except StoreUnavailableError as error:
        logs.failed("It failed", error, run="run\n\x1b[2J\u202e")
    logs.failed("It failed", ValueError("password=y"))

    first, second = (record.getMessage() for record in caplog.records)
    assert "hitl_guard.errors.StoreUnavailableError" in first
    assert "test_edges.py" in first
    assert first.isprintable()
    assert "password" not in first + second
    assert [(record.name, record.levelno) for record in caplog.records] == [("hitl_guard.asgi", logging.ERROR)] * 2
