"""The approval API: what each endpoint takes, does and answers, on a real database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request

from hitl_guard.errors import DecisionError, StoreUnavailableError
from hitl_guard.models import Principal, ToolDefinition
from tests.asgi.conftest import PEOPLE, House, decision
from tests.support import BOB, World, document

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "order": {"type": "string"}, "pin": {"writeOnly": True}},
}
SECRET = {"amount": 82, "order": "A-17", "pin": "hunter2"}


def problem(answer: Any) -> str:
    """Return the class of a problem, checked to be one."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    return str(body["type"].removeprefix("urn:hitl-guard:problem:"))


# -- lists -------------------------------------------------------------------------------------------------------


async def test_x10_the_list_shows_what_waits_and_what_was_decided_with_who_and_why(house: House) -> None:
    open_, denied = house.ask(), house.ask()
    house.world.deny(denied, reason="Too much.")

    async with house.client() as client:
        page = (await client.get("/api/requests")).json()

    assert [(one["id"], one["state"]) for one in page["items"]] == [(open_.id, "pending"), (denied.id, "denied")]
    assert page["items"][1]["votes"][0]["approver"] == "bob"
    assert page["items"][1]["votes"][0]["reason"] == "Too much."
    assert page["items"][0]["waits_for_me"] is True
    assert (page["total"], page["next"]) == (2, None)
    assert "arguments" not in page["items"][0]


async def test_x10_the_list_is_filtered(house: House) -> None:
    refund, mail = house.ask(), house.ask("mail", {"to": "someone@example.org"})
    other = house.ask("transfer", {"amount": 5}, user="carol", run_id="run-2")
    house.world.approve(mail)
    wanted = {
        "state=pending": {refund.id, other.id}, "state=pending&state=approved": {refund.id, mail.id, other.id},
        "tool=mail": {mail.id}, "requester=carol": {other.id}, "run=run-2": {other.id},
        "mine=true": {refund.id, other.id}, "text=SOMEONE%40": {mail.id}, "text=nothing": set(),
    }

    async with house.client() as client:
        for query, ids in wanted.items():
            page = (await client.get(f"/api/requests?{query}")).json()
            assert {one["id"] for one in page["items"]} == ids, query


@pytest.mark.parametrize("query", [
    "limit=0", "limit=201", "limit=x", "limit=1&limit=2", "state=open", "mine=yes", "tool=", "colour=red", "cursor=",
    f"text={'x' * 200}",
])
async def test_x10_a_query_that_cannot_be_used_is_refused(house: House, query: str) -> None:
    async with house.client() as client:
        answer = await client.get(f"/api/requests?{query}")

    assert (answer.status_code, problem(answer)) == (400, "malformed")


async def test_x10_pages_follow_one_another_without_a_gap(house: House) -> None:
    asked = [house.ask(call_id=f"c{number}").id for number in range(7)]
    house.world.deny(house.world.guard.get(asked[0]))
    seen, cursor, pages = [], "", 0

    async with house.client() as client:
        while cursor is not None and pages < 9:
            answer = await client.get(f"/api/requests?limit=2{cursor and '&cursor=' + cursor}")
            page = answer.json()
            seen += [one["id"] for one in page["items"]]
            assert len(page["items"]) <= 2
            cursor, pages = page["next"], pages + 1

    assert sorted(seen) == sorted(asked)
    assert seen[-1] == asked[0]


async def test_x10_a_cursor_belongs_to_one_person_and_one_list(house: House) -> None:
    for number in range(3):
        house.ask(call_id=f"c{number}")

    async with house.client() as bob, house.client("carol") as carol, house.client("dave") as dave:
        cursor = (await bob.get("/api/requests?limit=1")).json()["next"]
        good = await bob.get(f"/api/requests?limit=1&cursor={cursor}")
        others = [
            await carol.get(f"/api/requests?limit=1&cursor={cursor}"),
            await dave.get(f"/api/requests?limit=1&cursor={cursor}"),
            await bob.get(f"/api/requests?limit=1&state=pending&cursor={cursor}"),
            await bob.get(f"/api/requests?limit=1&cursor={cursor[:-2]}xx"),
        ]

    assert good.status_code == 200
    assert [problem(answer) for answer in others] == ["stale"] * 4


@pytest.mark.parametrize("options", [{"limit": 0}, {"limit": 201}, {"limit": True}, {"states": ["open"]}])
async def test_x10_a_list_in_process_is_as_strict_as_over_http(house: House, options: Any) -> None:
    request = Request({"type": "http", "headers": [(b"authorization", b"Bearer bob")], "method": "GET", "path": "/"})
    viewer = await house.inbox.viewer(request)
    assert viewer is not None

    with pytest.raises(DecisionError) as caught:
        await house.inbox.list(viewer, **options)

    assert caught.value.detail == "malformed"


# -- one request -------------------------------------------------------------------------------------------------


async def test_x10_one_request_is_shown_whole_with_its_history(house: House) -> None:
    asked = house.ask("wire")
    house.world.approve(asked, by=BOB)

    async with house.client("carol") as client:
        shown = (await client.get(f"/api/requests/{asked.id}")).json()

    request = shown["request"]
    assert request["canonical"] == '{"amount":82,"order":"A-17"}'
    assert request["arguments"] == {"amount": 82, "order": "A-17"}
    assert (shown["missing"], shown["entitled"], request["waits_for_me"]) == (1, True, True)
    assert "request:voted" in [one["type"] for one in shown["history"]]


async def test_x10_integers_beyond_64_bits_come_out_exactly(house: House) -> None:
    asked = house.ask(arguments={"amount": 2**70 + 1})

    async with house.client() as client:
        answer = await client.get(f"/api/requests/{asked.id}")

    assert json.loads(answer.text)["request"]["arguments"]["amount"] == 2**70 + 1


async def test_x10_what_is_sent_is_printable_ascii(house: House) -> None:
    asked = house.ask(arguments={"note": "\u202egnp.exe \x1b[31m"})

    async with house.client() as client:
        answer = await client.get(f"/api/requests/{asked.id}")

    assert answer.text.isascii()
    assert answer.text.isprintable()


async def test_x10_secret_arguments_are_masked_until_one_is_revealed_and_that_is_audited(house: House) -> None:
    definition = ToolDefinition("refund", input_schema=SCHEMA)
    asked = house.ask(arguments=SECRET, definition=definition)

    async with house.client() as client:
        shown = await client.get(f"/api/requests/{asked.id}")
        listed = await client.get("/api/requests")
        found = await client.get("/api/requests?text=hunter")
        revealed = await client.post(f"/api/requests/{asked.id}/reveal", json={"pointer": "/pin"})
        wrong = await client.post(f"/api/requests/{asked.id}/reveal", json={"pointer": "/order"})

    request = shown.json()["request"]
    assert "hunter2" not in shown.text + listed.text + found.text
    assert (request["secrets"], request["canonical"]) == (["/pin"], None)
    assert request["arguments"] == SECRET | {"pin": "[masked]"}
    assert found.json()["items"] == []
    assert revealed.json() == {"value": "hunter2"}
    assert problem(wrong) == "not-found"
    (event,) = house.world.audited("argument:revealed")
    assert event == {"by": "bob", "fingerprint": asked.fingerprint, "place": "/pin", "request": asked.id}


# -- deciding ----------------------------------------------------------------------------------------------------


async def test_x10_an_approval_lets_the_call_run(house: House) -> None:
    call = house.world.call()
    asked = house.world.guard.request(call)

    async with house.client() as client:
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked, reason="Fine."))

    assert answer.status_code == 200
    made = answer.json()
    assert (made["state"], made["approver"], made["channel"], made["reason"]) == ("approved", "bob", "api", "Fine.")
    assert house.world.run(call) == "done"


async def test_x10_a_denial_has_its_reason_and_may_answer_for_the_tool(house: House) -> None:
    asked = house.ask()

    async with house.client() as client:
        answer = await client.post(
            f"/api/requests/{asked.id}/decision",
            json=decision(asked, approve=False, reason="Use the voucher.", respond={"voucher": 5}),
        )

    assert (answer.json()["state"], answer.json()["response"]) == ("denied", {"voucher": 5})


async def test_x10_an_edit_supersedes_the_request(house: House) -> None:
    asked = house.ask("mail", {"to": "a@example.org"})

    async with house.client() as client:
        answer = await client.post(
            f"/api/requests/{asked.id}/decision", json=decision(asked, arguments={"to": "b@example.org"})
        )
        old = await client.get(f"/api/requests/{asked.id}")
        new = await client.get(f"/api/requests/{answer.json()['request_id']}")

    assert answer.json()["request_id"] != asked.id
    assert old.json()["request"]["state"] == "superseded"
    assert new.json()["request"]["arguments"] == {"to": "b@example.org"}


async def test_x10_an_edit_never_runs_with_a_mask_in_the_place_of_a_secret(house: House) -> None:
    asked = house.ask("mail", SECRET, definition=ToolDefinition("mail", input_schema=SCHEMA))

    async with house.client() as client:
        masked = (await client.get(f"/api/requests/{asked.id}")).json()["request"]["arguments"]
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked, arguments=masked))

    assert (answer.status_code, problem(answer)) == (422, "unprocessable")
    assert house.world.state(asked) == "pending"


async def test_x10_repeating_ones_own_decision_returns_it_and_another_says_who_decided(house: House) -> None:
    asked = house.ask()
    body = decision(asked)

    async with house.client() as bob, house.client("carol") as carol:
        first = await bob.post(f"/api/requests/{asked.id}/decision", json=body)
        again = await bob.post(f"/api/requests/{asked.id}/decision", json=body)
        other = await carol.post(f"/api/requests/{asked.id}/decision", json=body)
        turned = await bob.post(f"/api/requests/{asked.id}/decision", json=body | {"approve": False})

    assert first.json() == again.json()
    assert [(one.status_code, one.json()["decided_by"], one.json()["state"]) for one in (other, turned)] == [
        (409, "bob", "approved")
    ] * 2
    assert len(house.world.guard.get(asked.id).votes) == 1


async def test_x17_another_fingerprint_than_the_shown_one_is_refused(house: House) -> None:
    asked, other = house.ask(), house.ask(arguments={"amount": 9500})

    async with house.client() as client:
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(other))

    assert (answer.status_code, problem(answer)) == (409, "stale")
    assert house.world.state(asked) == "pending"


@pytest.mark.parametrize(("change", "status"), [
    ({"approve": "true"}, 400), ({"approve": 1}, 400), ({"approve": None}, 400), ({"extra": 1}, 400),
    ({"fingerprint": "x"}, 400), ({"fingerprint": None}, 400), ({"reason": ""}, 400), ({"reason": "x" * 5_000}, 400),
    ({"arguments": []}, 400), ({"execute_within": 0}, 400), ({"execute_within": 1.5}, 400),
    ({"evidence": {"ticket": "x"}}, 400), ({"respond": 1}, 400), ({"approve": False, "arguments": {}}, 400),
])
async def test_x10_a_body_that_is_not_exactly_a_decision_is_refused(house: House, change: Any, status: int) -> None:
    asked = house.ask()

    async with house.client() as client:
        answer = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked) | change)

    assert (answer.status_code, problem(answer)) == (status, "malformed")
    assert house.world.state(asked) == "pending"


@pytest.mark.parametrize(("raw", "kind", "status"), [
    (b'{"approve": true, "approve": true, "fingerprint": "%s"}', "application/json", 400),
    (b"\xef\xbb\xbf{}", "application/json", 400), (b'{"approve": NaN}', "application/json", 400),
    (b"[" * 300 + b"]" * 300, "application/json", 413), (b"{} {}", "application/json", 400),
    (b"", "application/json", 400),
    (b'{"approve": true, "fingerprint": "%s"}', "text/plain", 415),
    (b'{"approve": true, "fingerprint": "%s"}', "application/x-www-form-urlencoded", 415),
    (b'{"approve": true, "fingerprint": "%s"}', "", 415),
    (b'{"reason": "' + b"x" * 4_200_000 + b'"}', "application/json", 413),
], ids=["duplicate", "bom", "nan", "deep", "trailing", "empty", "plain", "form", "untyped", "large"])
async def test_x10_bodies_are_strict_json_within_a_bound(house: House, raw: bytes, kind: str, status: int) -> None:
    asked = house.ask()

    async with house.client() as client:
        answer = await client.post(
            f"/api/requests/{asked.id}/decision", content=raw.replace(b"%s", asked.fingerprint.encode()),
            headers={"content-type": kind} if kind else {},
        )

    assert answer.status_code == status
    assert house.world.state(asked) == "pending"


async def test_x16_a_denial_can_mute_the_requester_for_this_tool(house: House) -> None:
    asked = house.ask()

    async with house.client() as client, house.client("olga") as operator:
        denied = await client.post(
            f"/api/requests/{asked.id}/decision", json=decision(asked, approve=False, mute=60_000)
        )
        with house.world.refused("denied", "muted"):
            house.ask(call_id="again")
        control = (await operator.get("/api/control")).json()
        (mute,) = control["mutes"]
        lifted = await operator.post("/api/control/unmute", json={"user": mute["user"], "tool": mute["tool"]})

    assert denied.status_code == 200
    assert lifted.json() == {}
    assert house.ask(call_id="third").state == "pending"


async def test_x10_a_request_is_withdrawn_by_its_requester(house: House) -> None:
    asked = house.ask()

    async with house.client("ana") as client:
        answer = await client.post(f"/api/requests/{asked.id}/revoke", json={"reason": "Wrong order."})
        again = await client.post(f"/api/requests/{asked.id}/revoke", json={})

    assert answer.json() == {"state": "revoked"}
    assert problem(again) == "ended"


async def test_x13_an_operator_closes_a_call_in_doubt(house: House) -> None:
    asked = house.doubtful()
    body = {"outcome": "failed", "reason": "The bank has no such transfer.", "force": True}
    async with house.client("bob") as bob, house.client("olga") as olga:
        refused = await bob.post(f"/api/requests/{asked.id}/resolve", json=body)
        answer = await olga.post(f"/api/requests/{asked.id}/resolve", json=body)

    assert problem(refused) == "forbidden"
    assert answer.json() == {"state": "failed"}
    assert house.world.state(asked) == "failed"


# -- operators ---------------------------------------------------------------------------------------------------


async def test_x18_an_operator_pauses_and_resumes(house: House) -> None:
    async with house.client("olga") as olga, house.client("bob") as bob:
        paused = await olga.post("/api/control/pause", json={"tool": "refund", "reason": "Odd refunds."})
        with house.world.refused("paused"):
            house.ask()
        refused = [
            await bob.get("/api/control"), await bob.post("/api/control/pause", json={"everything": True}),
            await bob.post("/api/control/resume", json={"tool": "refund"}),
            await bob.post("/api/control/unmute", json={"user": "ana", "tool": "refund"}),
        ]
        resumed = await olga.post("/api/control/resume", json={"tool": "refund"})

    assert paused.json()["pauses"] == [{"kind": "tool", "name": "refund"}]
    assert [problem(answer) for answer in refused] == ["forbidden"] * 4
    assert resumed.json()["pauses"] == []


@pytest.mark.parametrize("body", [
    {}, {"reason": "x"}, {"everything": False}, {"tool": None}, {"everywhere": True}, {"tool": "a", "agent": "b"},
    {"tool": "a", "everything": True}, {"agent": "a", "everything": True}, {"everything": 1}, {"everything": "true"},
], ids=str)
@pytest.mark.parametrize("change", ["pause", "resume"])
async def test_x18_a_pause_says_what_it_is_of_and_naming_nothing_is_not_everything(
    house: House, change: str, body: Any
) -> None:
    async with house.client("olga") as olga:
        answer = await olga.post(f"/api/control/{change}", json=body)

    assert (answer.status_code, problem(answer)) == (400, "malformed")
    assert house.world.guard.control().version <= 1


@pytest.mark.parametrize("target", [{}, {"tool": "a", "agent": "b"}, {"tool": "a", "everything": True}])
async def test_x18_a_pause_in_process_is_as_strict_as_over_http(house: House, target: Any) -> None:
    request = Request({"type": "http", "headers": [(b"authorization", b"Bearer olga")], "method": "GET", "path": "/"})
    viewer = await house.inbox.viewer(request)
    assert viewer is not None

    for change in (house.inbox.pause, house.inbox.unpause):
        with pytest.raises(DecisionError) as caught:
            await change(viewer, **target)
        assert caught.value.detail == "malformed"


async def test_x18_everything_everywhere_is_for_operators_of_all_tenants(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "greta", Principal("greta", roles=("global-operator",)))
    monkeypatch.setitem(PEOPLE, "robot", Principal("robot", kind="agent", roles=("global-operator",)))
    house.world.deny(house.ask(), mute=60_000)
    body = {"everything": True, "everywhere": True}

    async with house.client("olga") as olga, house.client("greta") as greta, house.client("robot") as robot:
        refused = [
            await olga.post("/api/control/pause", json=body), await robot.post("/api/control/pause", json=body),
            await robot.get("/api/control"), await greta.post("/api/control/pause", json={"everything": True}),
        ]
        paused = await greta.post("/api/control/pause", json=body)
        with house.world.refused("paused"):
            house.world.guard.request(house.world.call(tenant="other"))
        seen = await olga.get("/api/control")
        resumed = await greta.post("/api/control/resume", json=body)
        sessions = [(await one.get("/api/session")).json()["global_operator"] for one in (olga, greta)]

    assert [problem(answer) for answer in refused] == ["forbidden"] * 4
    assert paused.json()["everywhere"] == seen.json()["everywhere"] == [{"kind": "all", "name": ""}]
    assert (paused.json()["pauses"], resumed.json()["everywhere"], sessions) == ([], [], [False, True])
    assert (len(seen.json()["mutes"]), paused.json()["mutes"]) == (1, [])


# -- the rest ----------------------------------------------------------------------------------------------------


async def test_x10_health_and_readiness_need_no_login_and_tell_no_secret(house: House) -> None:
    async with house.client(None) as client:
        health, ready = await client.get("/health"), await client.get("/ready")

    assert health.json() == {"status": "ok"}
    assert ready.json() == {
        "checks": {"events": True, "keys": True, "schema": True, "store": True}, "status": "ok"
    }


async def test_x10_a_server_without_its_store_is_not_ready_and_denies_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = house.ask()

    def down(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("The store did not answer.")

    for name in ("now", "load", "open_requests", "check"):
        monkeypatch.setattr(house.world.store, name, down)
    async with house.client() as client:
        ready = await client.get("/ready")
        answers = [
            await client.get("/api/requests"),
            await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked)),
        ]

    assert ready.status_code == 503
    assert ready.json()["checks"] == {"events": True, "keys": False, "schema": False, "store": False}
    assert [(problem(answer), answer.headers["retry-after"]) for answer in answers] == [("unavailable", "5")] * 2


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/requests/", "/api/requests/a/b", "/nothing", "/api/events/x"])
async def test_x10_an_unknown_address_is_a_problem_and_never_a_redirect(house: House, path: str) -> None:
    async with house.client() as client:
        answer = await client.get(path)

    assert (answer.status_code, problem(answer)) == (404, "not-found")


async def test_x10_another_method_is_told_which_there_are(house: House) -> None:
    async with house.client() as client:
        answer = await client.put("/api/requests")

    assert (answer.status_code, problem(answer)) == (405, "method-not-allowed")
    assert "GET" in answer.headers["allow"]


async def test_x10_a_quorum_needs_its_people(world: World) -> None:
    house = House(world)
    asked = house.ask("wire")

    async with house.client("bob") as bob, house.client("carol") as carol:
        first = await bob.post(f"/api/requests/{asked.id}/decision", json=decision(asked))
        twice = await bob.post(f"/api/requests/{asked.id}/decision", json=decision(asked))
        second = await carol.post(f"/api/requests/{asked.id}/decision", json=decision(asked))

    assert [one.json()["state"] for one in (first, twice, second)] == ["pending", "pending", "approved"]


async def test_x10_rules_by_channel_see_a_browser_as_the_inbox_and_a_program_as_the_api(world: World) -> None:
    policy = "version: 1\nname: t\ndefault: deny\nrules:\n  - id: r\n    tools: [refund]\n" \
             "    effect: require_approval\n    channels: [inbox]\n"
    house = House(World(world.store, policy=document(policy), keyring=world.keyring))
    asked = house.ask()

    async with house.client() as client, house.browser() as browser:
        program = await client.post(f"/api/requests/{asked.id}/decision", json=decision(asked))
        person = await browser.post(f"/api/requests/{asked.id}/decision", json=decision(asked))

    assert problem(program) == "forbidden"
    assert (person.status_code, person.json()["channel"]) == (200, "inbox")
