"""Passkeys over the API: registered in a session, asked for exactly one decision, and nothing but that is decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from hitl_guard.lifecycle.settings import Settings
from hitl_guard.store.sql import SQLStore
from tests.asgi.conftest import House, decision
from tests.asgi.test_api import problem
from tests.authenticator import ORIGIN, RP, Authenticator
from tests.databases import Database
from tests.support import World, document

POLICY = """\
version: 1
name: passkeys
default: not_applicable
rules:
  - {id: step-up, tools: [wire], effect: require_approval, evidence: passkey}
"""


@pytest.fixture
async def secured(place: Database, open_store: Any) -> AsyncIterator[House]:
    """An inbox whose wires need a passkey."""
    store: SQLStore = open_store(place)
    house = House(World(store, policy=document(POLICY), settings=Settings(rp_id=RP, rp_origins=(ORIGIN,))))
    yield house
    await house.inbox.close()


async def enrol(client: httpx.AsyncClient, key: Authenticator, by: Authenticator | None = None) -> httpx.Response:
    """Register a passkey as the page's script does."""
    begun = (await client.post("/api/passkeys/options", json={})).json()
    body = {"name": "phone", "response": key.create(begun["options"]), "ticket": begun["ticket"]}
    if by is not None:
        body["confirm"] = by.get(begun["confirm"])
    return await client.post("/api/passkeys", json=body)


async def test_x10_a_decision_is_signed_with_a_passkey_and_nothing_else_passes(secured: House) -> None:
    asked, key = secured.ask("wire", {"amount": 1500}), Authenticator()
    other = secured.ask("wire", {"amount": 9500})
    base = f"/api/requests/{asked.id}"

    async with secured.client() as bob:
        await enrol(bob, key)
        bare = await bob.post(f"{base}/decision", json=decision(asked))
        begun = (await bob.post(f"{base}/challenge", json=decision(asked, reason="Fine."))).json()
        evidence = {"response": key.get(begun["options"]), "ticket": begun["ticket"]}
        changed = await bob.post(f"{base}/decision", json=decision(asked, reason="Other.", evidence=evidence))
        moved = await bob.post(
            f"/api/requests/{other.id}/decision", json=decision(other, reason="Fine.", evidence=evidence)
        )
        signed = await bob.post(f"{base}/decision", json=decision(asked, reason="Fine.", evidence=evidence))

    assert [problem(answer) for answer in (bare, changed, moved)] == ["forbidden"] * 3
    assert signed.json()["state"] == "approved"
    assert secured.world.state(other) == "pending"


async def test_x10_passkeys_are_listed_added_with_one_that_is_there_and_removed(secured: House) -> None:
    first, second = Authenticator(), Authenticator()

    async with secured.client() as bob, secured.client("carol") as carol:
        made = await enrol(bob, first)
        alone = await enrol(bob, second)
        added = await enrol(bob, second, by=first)
        listed = (await bob.get("/api/passkeys")).json()["passkeys"]
        others = [await carol.delete(f"/api/passkeys/{made.json()['id']}"), await carol.delete("/api/passkeys/x")]
        removed = await bob.delete(f"/api/passkeys/{made.json()['id']}")
        last = await bob.delete(f"/api/passkeys/{added.json()['id']}")

    assert (made.json()["name"], made.status_code) == ("phone", 200)
    assert problem(alone) == "forbidden"
    assert [one["id"] for one in listed] == [made.json()["id"], added.json()["id"]]
    assert others[0].content == others[1].content
    assert removed.json() == {}
    assert problem(last) == "forbidden"


async def test_x10_a_browser_needs_its_token_for_passkeys_too(secured: House) -> None:
    async with secured.browser() as browser:
        good = await browser.post("/api/passkeys/options", json={})
        del browser.headers["x-csrf-token"]
        answers = [
            await browser.post("/api/passkeys/options", json={}), await browser.post("/api/passkeys", json={}),
            await browser.delete("/api/passkeys/x"),
        ]

    assert good.status_code == 200
    assert [answer.status_code for answer in answers] == [403] * 3


async def test_x10_where_no_passkeys_are_set_up_there_are_none(house: House) -> None:
    asked = house.ask()

    async with house.client() as bob:
        answers = [
            await bob.get("/api/passkeys"), await bob.post("/api/passkeys/options", json={}),
            await bob.post("/api/passkeys", json={"name": "n", "response": {}, "ticket": "t"}),
            await bob.delete("/api/passkeys/x"),
            await bob.post(f"/api/requests/{asked.id}/challenge", json=decision(asked)),
        ]

    assert [answer.status_code for answer in answers] == [404] * 5
