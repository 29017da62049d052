"""The inbox's pages and forms over HTTP: what is shown, what is refused, and that looking changes nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hitl_guard.asgi.headers import HEADERS
from hitl_guard.asgi.page_views import HAPPENED, STATES, STATIC, remaining, since, static_version
from hitl_guard.audit import REQUEST_EVENTS
from hitl_guard.errors import StoreUnavailableError
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import state as states
from hitl_guard.models import Principal, ToolDefinition
from tests.agent.stage import Stage
from tests.asgi.conftest import ORIGIN, PEOPLE, House, OpenHouse
from tests.asgi.visitor import MAIL, SCHEMA, Visitor, link, mail, words
from tests.databases import Database
from tests.support import CAROL, OPERATOR, POLICY, World, document

PLACES = ("/", "/?state=all&mine=1", "/requests/ID", "/passkeys", "/control", "/runs", "/static/inbox.css")


# Looking


async def test_at55_no_page_changes_anything_when_it_is_looked_at(house: House, bob: Visitor, olga: Visitor) -> None:
    request = house.ask()
    before = house.world.audited("decision:refused")

    for visitor in (bob, olga):
        for place in (*PLACES, "/requests/ID/decision", "/bulk", "/requests/ID/revoke", "/requests/ID/reveal"):
            for method in ("GET", "HEAD", "OPTIONS"):
                await visitor.client.request(method, place.replace("ID", request.id))

    assert house.world.state(request) == "pending"
    assert house.world.guard.get(request.id).version == 0
    assert house.world.audited("decision:refused") == before


async def test_at57_every_page_and_error_has_the_headers(house: House, bob: Visitor) -> None:
    request = house.ask()
    for place in (*PLACES, "/requests/none", "/static/none"):
        answer = await bob.go(place.replace("ID", request.id))
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("name", STATIC)
async def test_a_static_file_is_kept_by_browsers_under_its_own_version_alone(bob: Visitor, name: str) -> None:
    current = await bob.go(f"/static/{name}?{static_version()}")
    old = await bob.go(f"/static/{name}?x")

    assert current.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert current.headers["content-type"].startswith(STATIC[name])
    assert old.headers["cache-control"] == "no-store"
    assert old.content == current.content


async def test_pages_hold_no_script_style_or_foreign_address_of_their_own(house: House, bob: Visitor) -> None:
    house.ask(arguments={"link": "https://evil.example/x.js"})
    for place in ("/", link(house.ask())):
        page = (await bob.go(place)).text
        assert not re.search(r"<style|style=|<script(?! src=\"/static/)|\son\w+=|javascript:", page)
        assert not re.search(r"(?:src|href|action)=\"(?!/|#main\")", page)


async def test_nobody_is_shown_a_page_without_a_login(house: House) -> None:
    async with house.client(None) as client:
        for place in ("/", link(house.ask()), "/runs", "/passkeys", "/control"):
            answer = await client.get(place)
            assert (answer.status_code, "Log in first." in answer.text) == (401, True)
            assert "refund" not in answer.text


async def test_at68_unknown_foreign_and_unseen_requests_are_one_page(
    house: House, visitors: Callable[[str], Visitor]
) -> None:
    leads_only = house.ask("close_account")
    hide = re.compile(r'data-now="\d+"|data-token="[^"]+"')
    for name in ("carol", "dave"):
        visitor = visitors(name)
        answers = [await visitor.go(link(leads_only)), await visitor.go(f"/requests/{'x' * 22}")]
        assert {one.status_code for one in answers} == {404}
        assert len({hide.sub("", one.text) for one in answers}) == 1
        assert len({len(one.text) for one in answers}) == 1
        assert leads_only.id not in answers[0].text


async def test_a_page_works_under_any_mount(house: House, world: World) -> None:
    request = house.ask()
    outer = Starlette(routes=[Mount("/admin/approvals", house.app)])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url=ORIGIN, cookies={"login": "bob"},
        headers={"sec-fetch-site": "same-origin"},
    ) as client:
        bob = Visitor(client)
        listed = (await bob.go("/admin/approvals/")).text
        assert f'href="/admin/approvals{link(request)}"' in listed
        assert not re.search(r"(?:src|href|action)=\"/(?!admin/approvals/)", listed)
        await bob.go(f"/admin/approvals{link(request)}")
        form = {"answer": "approve", "fingerprint": request.fingerprint}
        answer = await bob.post(f"/admin/approvals{link(request)}/decision", form)
    assert answer.headers["location"] == f"/admin/approvals{link(request)}?done=yes"


async def test_x10_the_list_is_filtered_by_state_tool_requester_text_and_mine(house: House, bob: Visitor) -> None:
    house.ask("refund", {"order": "A-17"})
    house.ask("wire", {"order": "B-18"}, user="kim")
    house.world.deny(house.ask("transfer"), reason="No.")
    house.ask("refund", {"order": "own"}, user="bob")

    async def tools(query: str) -> list[str]:
        return re.findall(r'href="/requests/[^"]+"><bdi>(\w+)</bdi>', (await bob.go(f"/?{query}")).text)

    assert sorted(await tools("")) == ["refund", "refund", "wire"]
    assert await tools("tool=wire") == ["wire"]
    assert await tools("requester=kim&state=open") == ["wire"]
    assert await tools("text=a-17") == ["refund"]
    assert sorted(await tools("mine=1")) == ["refund", "wire"]
    assert await tools("state=denied") == ["transfer"]
    assert len(await tools("state=all")) == 4


@pytest.mark.parametrize(("query", "status"), [("state=nonsense", 400), ("cursor=nonsense", 409)])
async def test_a_list_that_cannot_be_is_refused(bob: Visitor, query: str, status: int) -> None:
    assert (await bob.go(f"/?{query}")).status_code == status


async def test_filters_come_back_escaped(bob: Visitor) -> None:
    page = (await bob.go('/?tool="><script>alert(1)</script>&state=all')).text

    assert "<script>alert" not in page
    assert 'value="&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"' in page


async def test_m64_the_page_names_rule_reason_risk_conditions_and_history(house: House, bob: Visitor) -> None:
    request = house.ask("wire", agent="bot", context={"amount_limit": 100})
    house.world.approve(request, by=CAROL, reason="Looks right.")

    shown = words((await bob.go(link(request))).text)

    for part in ("two-people", "2 different people", "1 more person is needed", "bot", "amount_limit", "Looks right.",
                 "one of several approvals by carol", request.fingerprint, request.policy_version):
        assert part in shown


async def test_m64_the_list_counts_only_approvals_that_count_for_the_rule_that_lacks_most(
    open_house: OpenHouse, world: World
) -> None:
    rules = POLICY + """\
  - id: leads-pay
    tools: [pay]
    effect: require_approval
    approvers: [lead]
    quorum: 2
  - id: two-pay
    tools: [pay]
    effect: require_approval
    quorum: 2
"""
    house = open_house(World(world.store, policy=document(rules), keyring=world.keyring))
    request = house.ask("pay")
    house.world.approve(request, by=CAROL)

    async with house.client("olga") as client:
        listed = words((await client.get("/")).text)

    assert house.world.guard.get(request.id).approvals == (0, 1)
    assert "0 of 2 approvals" in listed


async def test_m64_the_requester_is_offered_no_way_to_resolve_the_own_call(
    house: House, visitors: Callable[[str], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "ana", Principal("ana", roles=("operator",)))
    request = house.doubtful()

    assert link(request, "/resolve") in (await visitors("olga").go(link(request))).text
    assert link(request, "/resolve") not in (await visitors("ana").go(link(request))).text


def test_every_state_and_event_has_a_word_on_the_page() -> None:
    assert set(STATES) == states.STATES
    assert set(HAPPENED) == REQUEST_EVENTS


def test_times_are_said_in_words() -> None:
    assert [remaining(61_000, 0), remaining(5, 5), remaining(1, 5)] == ["1 min 1 s left", *["no time left"] * 2]
    assert [since(0, 61_000), since(5, 5)] == ["1 min 1 s ago", "0 s ago"]


# Where a post comes from


@pytest.mark.parametrize("headers", [
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"},
    {"sec-fetch-site": "none"},
], ids=str)
async def test_at56_a_form_from_elsewhere_is_refused(house: House, bob: Visitor, headers: dict[str, str]) -> None:
    request = house.ask()
    await bob.go(link(request))

    answer = await bob.post(
        link(request, "/decision"), {"answer": "approve", "fingerprint": request.fingerprint}, headers=headers
    )

    assert answer.status_code == 403
    assert house.world.state(request) == "pending"


async def test_at56_a_form_without_a_token_or_with_anothers_is_refused(
    house: House, bob: Visitor, visitors: Callable[[str], Visitor]
) -> None:
    request, carol = house.ask(), visitors("carol")
    form = {"answer": "approve", "fingerprint": request.fingerprint}
    await bob.go(link(request))
    bob.page = ""
    assert (await bob.post(link(request, "/decision"), form)).status_code == 403
    await carol.go(link(request))
    bob.page = carol.page
    assert (await bob.post(link(request, "/decision"), form)).status_code == 403
    assert house.world.state(request) == "pending"
    assert {event["code"] for event in house.world.audited("decision:refused")} == {"not-authorised"}


async def test_at53_a_client_that_is_no_browser_decides_over_no_form(house: House) -> None:
    request = house.ask()
    form = {"answer": "approve", "fingerprint": request.fingerprint}

    async with house.client() as client:
        answer = await client.post(link(request, "/decision"), data=form)

    assert answer.status_code == 403
    assert house.world.state(request) == "pending"


@pytest.mark.parametrize(("content", "kind", "status"), [
    (b'{"answer":"approve"}', "application/json", 415),
    (b"answer=approve", "text/plain", 415),
    (b"answer=approve", "multipart/form-data; boundary=x", 415),
    (b"answer=%FF", "application/x-www-form-urlencoded", 400),
    (b"no-equals-sign", "application/x-www-form-urlencoded", 400),
    (b"answer=\xc3\xa9", "application/x-www-form-urlencoded", 400),
    (b"csrf_token=a&csrf_token=b", "application/x-www-form-urlencoded", 400),
    (b"&".join(b"a=1" for _ in range(1_001)), "application/x-www-form-urlencoded", 400),
    (b"a=" + b"x" * 4_194_304, "application/x-www-form-urlencoded", 413),
    (b"", "application/x-www-form-urlencoded", 403),
], ids=range(10))
async def test_what_is_no_form_of_ours_is_refused(
    house: House, bob: Visitor, content: bytes, kind: str, status: int
) -> None:
    answer = await bob.client.post(link(house.ask(), "/decision"), content=content, headers={"content-type": kind})

    assert answer.status_code == status


@pytest.mark.parametrize("answer", ["", "maybe", "APPROVE"])
async def test_an_answer_that_is_none_decides_nothing(house: House, bob: Visitor, answer: str) -> None:
    request = house.ask()
    await bob.go(link(request))

    told = await bob.post(link(request, "/decision"), {"answer": answer, "fingerprint": request.fingerprint})

    assert told.status_code == 400
    assert house.world.state(request) == "pending"


# Deciding


async def test_a_page_that_is_out_of_date_says_so_and_shows_the_request_as_it_is(house: House, bob: Visitor) -> None:
    request = house.ask()
    await bob.go(link(request))

    answer = await bob.post(
        link(request, "/decision"), {"answer": "deny", "fingerprint": "0" * 64, "reason": "Why <so>?", "mute": "60"}
    )

    assert answer.status_code == 409
    assert "out of date" in answer.text
    assert "Why &lt;so&gt;?" in answer.text
    assert '<option value="60" selected>' in answer.text
    assert house.world.state(request) == "pending"


async def test_the_same_decision_again_is_no_second_one_and_another_says_who_decided(
    house: House, bob: Visitor, visitors: Callable[[str], Visitor]
) -> None:
    request, carol = house.ask(), visitors("carol")
    form = {"answer": "approve", "fingerprint": request.fingerprint}
    for visitor in (bob, carol):
        await visitor.go(link(request))

    assert [(await bob.post(link(request, "/decision"), form)).status_code for _ in range(2)] == [303, 303]
    other = await carol.post(link(request, "/decision"), form | {"answer": "deny"})

    assert other.status_code == 409
    assert "Decided by bob" in words(other.text)
    assert house.world.guard.get(request.id).version == 1


async def test_m64_an_approver_shortens_the_time_to_run(house: House, bob: Visitor) -> None:
    request = house.ask()
    await bob.go(link(request))
    form = {"answer": "approve", "fingerprint": request.fingerprint}
    for wrong in ("0", "-1", "1.5", "99999999", "two"):
        assert (await bob.post(link(request, "/decision"), form | {"within": wrong})).status_code == 422

    await bob.post(link(request, "/decision"), form | {"within": "2"})

    approved = house.world.guard.get(request.id)
    assert approved.execute_by is not None
    assert approved.execute_by - approved.votes[0].at == 120_000


async def test_x16_a_denial_may_silence_the_tool_for_this_requester(house: House, bob: Visitor, olga: Visitor) -> None:
    request = house.ask()
    await bob.go(link(request))
    await bob.post(link(request, "/decision"), {"answer": "deny", "fingerprint": request.fingerprint, "mute": "60"})

    with house.world.refused("denied", "muted"):
        house.world.run(house.world.call())
    assert "refund for ana" in words((await olga.go("/control")).text)
    answer = await olga.post("/control", {"change": "unmute", "tool": "refund", "user": "ana", "agent": ""})
    assert answer.status_code == 303
    house.ask()


@pytest.mark.parametrize(("response", "kind", "stored"), [
    ("It is\r\ndone.", "text", "It is\ndone."), ('{"n": 12345678901234567890}', "json", {"n": 12345678901234567890}),
])
async def test_m64_a_person_answers_for_the_tool(
    house: House, bob: Visitor, response: str, kind: str, stored: Any
) -> None:
    request = house.ask()
    await bob.go(link(request))
    form = {"answer": "respond", "fingerprint": request.fingerprint, "as": kind}
    for wrong in ("{", "null", '{"a":1,"a":2}'):
        if kind == "json":
            told = await bob.post(link(request, "/decision"), form | {"response": wrong})
            assert told.status_code == 422
            assert html.escape(wrong, quote=True).replace("&quot;", "&#34;") in told.text

    assert (await bob.post(link(request, "/decision"), form | {"response": response})).status_code == 303
    assert house.world.guard.get(request.id).votes[0].response == stored


# Editing


def posted(page: str, **changed: str) -> dict[str, str]:
    """Return the fields of the page's form for the arguments as a browser would post them, some of them changed."""
    form = page[page.index('id="edit-form"'):]
    keys = re.findall(r'<legend>(?:<bdi>)?([^<]+).*?name="value\.(\w+)"', form[: form.index("</form>")], re.DOTALL)
    found = {f"value.{key}": changed[name] for name, key in keys if name in changed}
    return {"answer": "edit", "fingerprint": re.findall(r'name="fingerprint" value="(\w+)"', page)[0]} | found


def shown(preview: str) -> dict[str, str]:
    """Return what the form under a change that was shown posts."""
    form = preview[preview.index('id="approve-form"'):]
    fields = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form[: form.index("</form>")])
    return {name: html.unescape(value) for name, value in fields}


async def test_m64_an_edit_is_shown_first_and_then_runs_as_shown(house: House, bob: Visitor) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text
    form = posted(page, copies="12345678901234567890")

    preview = await bob.post(link(request, "/preview"), form)
    assert preview.status_code == 200
    assert "/copies112345678901234567890" in words(preview.text).replace(" ", "")
    assert house.world.state(request) == "pending"
    answer = await bob.post(link(request, "/decision"), shown(preview.text))

    edited = house.world.guard.get(answer.headers["location"].split("/")[-1].split("?")[0])
    assert edited.arguments == MAIL | {"copies": 12345678901234567890}
    assert edited.state == "approved"


async def test_x17_an_edit_is_decided_as_it_was_shown_or_not_at_all(house: House, bob: Visitor) -> None:
    request, other = mail(house), mail(house)
    page = (await bob.go(link(request))).text
    form = shown((await bob.post(link(request, "/preview"), posted(page, copies="7"))).text)
    (copies,) = [name for name, value in form.items() if value == "7"]
    changed = [
        form | {copies: "8"}, {**form, "shown": ""}, {**form, "shown": "0" * 64},
        {name: value for name, value in form.items() if name != "shown"},
    ]

    for decision in changed:
        told = await bob.post(link(request, "/decision"), decision)
        assert told.status_code == 409
        assert "not the one that was shown" in told.text
        assert '<details id="edit" open>' in told.text
    elsewhere = await bob.post(link(other, "/decision"), form | {"fingerprint": other.fingerprint})

    assert elsewhere.status_code == 409
    assert [house.world.state(one) for one in (request, other)] == ["pending", "pending"]
    assert (await bob.post(link(request, "/decision"), form)).status_code == 303


async def test_x17_a_change_that_was_typed_twice_or_repeated_is_one_decision(house: House, bob: Visitor) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text
    first = await bob.post(link(request, "/preview"), posted(page, copies="7"))
    second = await bob.post(link(request, "/preview"), shown(first.text))

    assert shown(second.text) == shown(first.text) | {"csrf_token": shown(second.text)["csrf_token"]}
    answers = [await bob.post(link(request, "/decision"), shown(second.text)) for _ in range(2)]
    assert len({one.headers["location"] for one in answers}) == 1


@pytest.mark.parametrize("changed", [{}, {"copies": "2"}], ids=str)
async def test_at67_a_guess_of_a_secret_looks_the_same_right_or_wrong(
    house: House, bob: Visitor, changed: dict[str, str]
) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text
    pages = []
    for guess in ("0000-1111", "9999-9999"):
        answer = await bob.post(link(request, "/preview"), posted(page, pin=guess, **changed))
        assert answer.status_code == 200
        assert "/pinmaskedmasked" in words(answer.text)
        varies = re.compile(
            rf'data-now="\d+"|{guess}|data-token="[^"]+"|name="csrf_token" value="[^"]+"|name="shown" value="\w{{64}}"'
        )
        pages.append(varies.sub("", answer.text))

    assert pages[0] == pages[1]
    assert house.world.audited("argument:revealed") == []


async def test_at67_a_page_does_not_say_whether_a_secret_is_the_one_of_the_attempt_before(
    house: House, bob: Visitor
) -> None:
    house.world.deny(mail(house))
    pages = []
    for pin in (MAIL["pin"], "9999-9999"):
        request = mail(house, pin=pin)
        page = words((await bob.go(link(request))).text)
        pages.append(page[page.index("Compared with"): page.index("Decide")])
        house.world.deny(request)

    assert all("/pinmaskedmasked" in page for page in pages)
    assert all("masked on both sides" in page for page in pages)


async def test_at67_a_form_does_not_say_that_a_secret_is_null(house: House, bob: Visitor) -> None:
    schema = {"properties": {"pin": {"type": ["string", "null"], "x-secret": True}}}
    pages = []
    for pin in (None, "1234"):
        request = house.ask("mail", {"pin": pin}, definition=ToolDefinition("mail", None, schema))
        page = (await bob.go(link(request))).text
        form = page[page.index('id="edit-form"'):]
        pages.append(re.sub(r'value="[^"]{20,}"', "", form[: form.index("</form>")]))

    assert pages[0] == pages[1]


async def test_at67_a_secret_is_never_in_the_page_of_an_edit_and_is_kept_or_replaced(
    house: House, bob: Visitor
) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text
    preview = await bob.post(link(request, "/preview"), posted(page, to="lee@example.org"))
    assert "0000-1111" not in page + preview.text

    replaced = await bob.post(link(request, "/preview"), posted(page, to="lee@example.org", pin="2222"))
    answer = await bob.post(link(request, "/decision"), shown(replaced.text))

    edited = house.world.guard.get(answer.headers["location"].split("/")[-1].split("?")[0])
    assert edited.arguments == {"to": "lee@example.org", "copies": 1, "pin": "2222"}


@pytest.mark.parametrize(("changed", "said"), [
    ({}, "Nothing was changed"), ({"copies": "two"}, "Write a whole number in digits."), ({"copies": "1.5"}, "whole"),
    ({"copies": ""}, "whole"),
], ids=str)
async def test_an_edit_that_is_not_right_is_told_and_kept(
    house: House, bob: Visitor, changed: dict[str, str], said: str
) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text

    told = await bob.post(link(request, "/preview"), posted(page, **changed))

    assert told.status_code == 422
    assert said in told.text
    assert all(f'value="{value}"' in told.text for value in changed.values())
    assert '<details id="edit" open>' in told.text


async def test_an_edit_that_the_schema_refuses_is_told(house: House, bob: Visitor) -> None:
    request = house.ask("mail", {"n": 1}, definition=ToolDefinition("mail", None, {
        "properties": {"n": {"type": "integer", "maximum": 5}},
    }))
    page = (await bob.go(link(request))).text

    told = await bob.post(link(request, "/preview"), posted(page, n="6"))

    assert told.status_code == 422
    assert "do not fit the tool" in told.text


async def test_an_edit_goes_back_to_the_form_with_what_was_written(house: House, bob: Visitor) -> None:
    request = mail(house)
    page = (await bob.go(link(request))).text

    back = await bob.post(link(request, "/preview"), posted(page, copies="7") | {"back": "1"})

    assert back.status_code == 200
    assert 'value="7"' in back.text


async def test_where_the_rule_allows_no_edit_there_is_no_form_and_a_posted_one_is_refused(
    house: House, bob: Visitor
) -> None:
    request = house.ask()
    page = (await bob.go(link(request))).text
    assert "edit-form" not in page

    form = {"answer": "edit", "fingerprint": request.fingerprint, "value.all": '{"amount": 9500}'}
    for rest in ("/preview", "/decision"):
        assert (await bob.post(link(request, rest), form)).status_code == 422
    assert house.world.state(request) == "pending"


async def test_at67_a_secret_that_is_not_there_yet_is_typed_unseen(house: House, bob: Visitor) -> None:
    request = house.ask("mail", {"to": "a", "copies": 1}, definition=ToolDefinition("mail", None, SCHEMA))
    page = (await bob.go(link(request))).text
    assert page.count('type="password"') == 1

    form = posted(page, pin="5555")
    field = page[page.index("<legend><bdi>pin"):]
    (state,) = re.findall(r'name="(state\.\w+)"', field[: field.index("</fieldset>")])
    preview = await bob.post(link(request, "/preview"), form | {state: "value"})

    assert preview.status_code == 200
    assert "/pinnot theremasked" in words(preview.text)


# Secrets


async def test_at67_secrets_are_masked_on_every_page_until_somebody_reveals_them(house: House, bob: Visitor) -> None:
    first = mail(house)
    house.world.deny(first)
    request = mail(house, pin="9999-2222")
    for place in ("/", "/?state=all", link(first), link(request)):
        page = (await bob.go(place)).text
        assert not re.search("0000-1111|9999-2222", page)
    assert "/pin" in words(bob.page)

    shown = await bob.post(link(request, "/reveal"), {"place": "/pin"})

    assert shown.status_code == 200
    assert shown.text.count("9999-2222") == 2
    assert "0000-1111" not in shown.text
    assert [event["place"] for event in house.world.audited("argument:revealed")] == ["/pin"]


@pytest.mark.parametrize("pointer", ["", "/to", "/none", "pin"])
async def test_at67_what_is_not_masked_cannot_be_revealed(house: House, bob: Visitor, pointer: str) -> None:
    request = mail(house)
    await bob.go(link(request))

    assert (await bob.post(link(request, "/reveal"), {"place": pointer})).status_code == 404
    assert house.world.audited("argument:revealed") == []


# Many at once


async def test_bulk_approval_needs_the_servers_own_proof_that_each_was_opened(
    house: House, bob: Visitor, visitors: Callable[[str], Visitor]
) -> None:
    first, second, quorum = house.ask(), house.ask(), house.ask("wire")
    carol = visitors("carol")
    proofs = []
    for visitor, request in ((bob, first), (carol, second), (bob, quorum)):
        page = (await visitor.go(link(request))).text
        proofs += re.findall(r'data-seen="([^"]+)"', page)
    await bob.go("/")
    pick = [f"{one.id} {one.fingerprint}" for one in (first, second, quorum)]

    answer = await bob.post("/bulk", {"answer": "approve", "pick": pick, "seen": [*proofs, "x", "a.b"]})

    assert answer.status_code == 200
    assert "1 of 3 approved" in answer.text
    assert "Open this one before you approve it." in answer.text
    assert "approve it by itself" in answer.text
    assert [house.world.state(one) for one in (first, second, quorum)] == ["approved", "pending", "pending"]


async def test_bulk_approval_of_what_was_opened_before_an_edit_is_refused(house: House, bob: Visitor) -> None:
    request = house.ask()
    page = (await bob.go(link(request))).text
    seen = re.findall(r'data-seen="([^"]+)"', page)

    answer = await bob.post("/bulk", {"answer": "approve", "pick": f"{request.id} {'0' * 64}", "seen": seen})

    assert "0 of 1 approved" in answer.text
    assert house.world.state(request) == "pending"


async def test_bulk_denial_needs_none_and_tells_each_outcome(house: House, bob: Visitor) -> None:
    first, second, mine = house.ask(), house.ask("wire"), house.ask(user="bob")
    await bob.go("/")
    pick = [f"{one.id} {one.fingerprint}" for one in (first, second, mine)] + ["unknown 0"]

    answer = await bob.post("/bulk", {"answer": "deny", "pick": pick, "reason": "Not today."})

    assert "2 of 4 denied" in answer.text
    assert house.world.guard.get(first.id).votes[0].reason == "Not today."
    assert [house.world.state(one) for one in (second, mine)] == ["denied", "pending"]


@pytest.mark.parametrize("form", [
    {"answer": "deny"}, {"answer": "other", "pick": "a b"}, {"answer": "deny", "pick": [f"a{n} b" for n in range(101)]},
], ids=range(3))
async def test_bulk_decisions_without_an_answer_or_too_many_are_refused(
    bob: Visitor, house: House, form: dict[str, Any]
) -> None:
    house.ask()
    await bob.go("/")

    assert (await bob.post("/bulk", form)).status_code == 400


# Withdrawing, operators, runs


async def test_m64_the_requester_revokes(house: House, visitors: Callable[[str], Visitor]) -> None:
    request, ana = house.ask(), visitors("ana")
    await ana.go(link(request))

    answer = await ana.post(link(request, "/revoke"), {"reason": "Wrong."})

    assert answer.headers["location"] == link(request, "?done=yes")
    assert "Revoked." in words((await ana.go(answer.headers["location"])).text)
    assert "revoked by ana" in words(ana.page)
    again = await ana.post(link(request, "/revoke"), {"reason": ""})
    assert again.status_code == 409


async def test_x18_an_operator_pauses_and_resumes_and_nobody_else_sees_the_page(
    house: House, bob: Visitor, olga: Visitor
) -> None:
    await bob.go("/")
    assert 'href="/control"' not in bob.page
    assert (await bob.go("/control")).status_code == 403
    await olga.go("/control")
    pause = {"change": "pause", "tool": "refund", "agent": "", "reason": "Looks odd."}
    nothing = {"change": "pause", "tool": "", "agent": "", "reason": "Looks odd."}
    assert (await bob.post("/control", pause)).status_code == 403

    paused = await olga.post("/control", pause)

    assert paused.headers["location"].startswith("/control?done=")
    assert "Done." in words((await olga.go(paused.headers["location"])).text)
    assert "Tool refund" in words(olga.page)
    with house.world.refused("paused"):
        house.world.run(house.world.call())
    assert (await olga.post("/control", pause | {"change": "resume"})).status_code == 303
    for wrong in ({"change": "explode"}, pause | {"agent": "bot"}, nothing, nothing | {"change": "resume"},
                  pause | {"everything": "1"}, nothing | {"everything": "yes"}):
        assert (await olga.post("/control", wrong)).status_code == 400
    assert (await olga.post("/control", nothing | {"everything": "1", "everywhere": "1"})).status_code == 403
    assert "In all tenants" not in olga.page
    house.world.run(*house.world.grant()[:1])


async def test_x18_everything_is_paused_only_when_that_is_said(house: House, olga: Visitor) -> None:
    await olga.go("/control")
    everything = {"change": "pause", "tool": "", "agent": "", "everything": "1", "reason": ""}

    assert (await olga.post("/control", everything)).status_code == 303

    page = (await olga.go("/control")).text
    assert "Everything" in words(page)
    with house.world.refused("paused"):
        house.ask()
    resume = page[page.index('value="resume"'):]
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', resume[: resume.index("</form>")]))
    assert form["everything"] == "1"
    await olga.post("/control", form | {"change": "resume"})
    house.ask()


async def test_x18_who_operates_all_tenants_pauses_everywhere_from_the_page(
    house: House, olga: Visitor, visitors: Callable[[str], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "greta", Principal("greta", roles=("global-operator",)))
    greta = visitors("greta")
    assert 'href="/control"' in (await greta.go("/")).text
    assert 'name="everywhere"' in (await greta.go("/control")).text
    pause = {"change": "pause", "tool": "refund", "everywhere": "1"}

    assert (await greta.post("/control", pause)).status_code == 303

    with house.world.refused("paused"):
        house.world.guard.request(house.world.call(tenant="other"))
    shown = words((await olga.go("/control")).text)
    assert "Tool refund, in all tenants" in shown
    assert "Resume" not in shown
    assert "Resume tool refund in all tenants" in words((await greta.go("/control")).text)
    assert (await olga.post("/control", pause | {"change": "resume"})).status_code == 403
    assert (await greta.post("/control", {"change": "pause", "tool": "mail"})).status_code == 403
    assert (await greta.post("/control", pause | {"change": "resume"})).status_code == 303
    house.world.guard.request(house.world.call(tenant="other"))


async def test_x18_a_restored_database_is_confirmed_from_the_page(
    open_house: OpenHouse, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "greta", Principal("greta", roles=("operator", "global-operator")))
    world.guard.pause(by=OPERATOR, tool="wire")
    world.guard.pause(by=PEOPLE["greta"], agent="bot", everywhere=True)
    house = open_house(world.another(keyring=Keyring(world.keyring.keys, epoch=2)))
    async with house.visitor("greta") as greta:
        page = words((await greta.go("/control")).text)
        assert page.count("another restore epoch") == 2
        assert "Everything Reason Resume everything" in page
        assert "Everything, in all tenants Reason Resume everything in all tenants" in page
        for where in ({}, {"everywhere": "1"}):
            with house.world.refused("paused", "restored"):
                house.ask()
            answer = await greta.post("/control", {"change": "resume", "everything": "1"} | where)
            assert answer.status_code == 303
        assert "restore epoch" not in (await greta.go("/control")).text
    assert house.ask().state == "pending"


async def test_m64_an_operator_resolves_what_is_in_doubt(house: House, bob: Visitor, olga: Visitor) -> None:
    request = house.doubtful()
    page = (await olga.go("/control")).text
    assert link(request, "/resolve") in page
    form = {"outcome": "failed", "reason": "The bank says so."}
    await bob.go(link(request))
    assert (await bob.post(link(request, "/resolve"), form)).status_code == 403
    await olga.go(link(request))
    assert (await olga.post(link(request, "/resolve"), form | {"reason": ""})).status_code == 422

    answer = await olga.post(link(request, "/resolve"), form)
    assert answer.status_code == 303
    assert "Resolved." in words((await olga.go(answer.headers["location"])).text)

    assert house.world.state(request) == "failed"


async def test_m64_a_run_that_asks_back_is_shown_and_answered_by_its_owner(
    open_house: OpenHouse, world: World
) -> None:
    stage = Stage(world.store)
    agent = stage.agent([("c1", "weather", {"id": "7"})], "It is sunny.", tools=[stage.asking(input_schema=None)])
    await agent.generate("How is it?", run_id="run-9", user="ana")
    house = open_house(stage.world, agents=[agent])
    async with house.visitor("ana") as ana:
        page = (await ana.go("/runs")).text
        assert "Which city?" in words(page)
        call = re.findall(r'name="call" value="([^"]+)"', page)[0]
        form = {"run": "run-9", "agent": "shop", "call": call, "as": "json"}
        assert (await ana.post("/runs", form | {"answer": "{"})).status_code == 422
        assert (await ana.post("/runs", form | {"answer": '{"location": "Rome"}', "run": "none"})).status_code == 404
        answer = await ana.post("/runs", form | {"answer": '{"location": "Rome"}'})
        assert answer.headers["location"].startswith("/runs?done=")
        assert "No run waits." in (await ana.go(answer.headers["location"])).text
    assert stage.ran[-1] == ("weather", {"location": "Rome"})


async def test_what_a_model_raises_is_logged_by_its_kind_and_not_told(
    open_house: OpenHouse, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(world.store)
    agent = stage.agent([("c1", "weather", {"id": "7"})], tools=[stage.asking(input_schema=None)])
    await agent.generate("How is it?", run_id="run-9", user="ana")

    async def fails(*_arguments: Any, **_more: Any) -> Any:
        raise RuntimeError("api key sk-12345 is wrong")

    agent.resume_generate = fails  # type: ignore[method-assign]
    house = open_house(stage.world, agents=[agent])
    async with house.visitor("ana") as ana:
        await ana.go("/runs")
        answer = await ana.post("/runs", {"run": "run-9", "agent": "shop", "answer": "1", "as": "json"})
    assert answer.status_code == 502
    assert "sk-12345" not in answer.text + caplog.text
    assert "run-9" in answer.text
    (line,) = [one.getMessage() for one in caplog.records if one.name == "hitl_guard.asgi"]
    assert line.startswith("A run did not go on in run run-9: builtins.RuntimeError")


async def test_nobody_is_sent_to_the_login_where_there_is_one(open_house: OpenHouse) -> None:
    class Login:
        login_path = "login"

        def __call__(self, _request: Any) -> None:
            return None

    house = open_house(authenticate=Login())
    async with house.client(None) as client:
        sent = await client.get("/")
        kept = await client.post("/bulk")
    assert (sent.status_code, sent.headers["location"]) == (303, "/login")
    assert kept.status_code == 401


async def test_other_peoples_runs_are_for_operators(bob: Visitor, olga: Visitor) -> None:
    assert (await bob.go("/runs?user=ana")).status_code == 403
    assert (await olga.go("/runs?user=ana")).status_code == 200


async def test_without_a_domain_there_are_no_passkeys(bob: Visitor) -> None:
    assert (await bob.go("/passkeys")).status_code == 404
    assert 'href="/passkeys"' not in bob.page


async def test_at60_a_store_that_is_gone_is_told_and_never_as_a_denial(
    house: House, bob: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = house.ask()
    await bob.go(link(request))

    def gone(*_arguments: Any, **_more: Any) -> Any:
        raise StoreUnavailableError("no route to db-7.internal")

    monkeypatch.setattr(house.world.guard, "get", gone)
    for answer in (
        await bob.go(link(request)),
        await bob.post(link(request, "/decision"), {"answer": "approve", "fingerprint": request.fingerprint}),
    ):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert "db-7" not in answer.text


@pytest.mark.parametrize("query", ["", "?state=open", "?state=all", "?tool=refund"])
async def test_a_damaged_record_is_named_to_operators_and_the_list_stays(
    house: House, place: Database, olga: Visitor, query: str
) -> None:
    house.ask()
    broken = house.ask(call_id="call-2")
    place.execute(
        "UPDATE hitl_guard_requests SET arguments = :x WHERE id = :id", {"x": b"{}", "id": broken.id.encode()}
    )

    answer = await olga.go(f"/{query}")

    assert answer.status_code == 200
    assert f"does not verify (invalid-signature): {broken.id}" in words(olga.page) or "?tool" in query
