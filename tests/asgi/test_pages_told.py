"""What a page says was done, which is true, and what it keeps of a form that was refused: each in its own place."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request

from hitl_guard.asgi.page_renderer import DONE
from hitl_guard.asgi.page_views import MAX_REVEALED
from hitl_guard.asgi.service import unseen
from hitl_guard.asgi.sessions import NOTE_MS
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import MAX_REASON, ApprovalRequest, Principal, ToolDefinition
from tests.agent.stage import Stage
from tests.asgi.conftest import PEOPLE, House, OpenHouse
from tests.asgi.visitor import Visitor, link, mail, words
from tests.authenticator import ORIGIN as SITE
from tests.authenticator import RP, Authenticator
from tests.support import CAROL, GLOBAL, OPERATOR, World

LONG = "x" * (MAX_REASON + 1)


def notice(page: str) -> str | None:
    """Return what a page says was done."""
    found = re.search(r'id="notice"[^>]*>([^<]*)<', page)
    return None if found is None else html.unescape(found[1])


def forms(page: str) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the page's forms: of each the hidden fields, and what stands in the fields that a person fills."""
    found = []
    for text in re.findall(r"<form.*?</form>", page, re.DOTALL):
        hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text))
        hidden["action"] = (re.findall(r'action="([^"]*)"', text) or [""])[0].rpartition("/")[2]
        filled = {}
        for name, rest in re.findall(r'<input(?! type="(?:hidden|checkbox)") name="([^"]+)"([^>]*)>', text):
            filled[name] = (re.findall(r'value="([^"]*)"', rest) or [""])[0]
        filled |= dict(re.findall(r'<textarea name="([^"]+)"[^>]*>\n?(.*?)</textarea>', text, re.DOTALL))
        for name, options in re.findall(r'<select name="([^"]+)">(.*?)</select>', text, re.DOTALL):
            filled[name] = (re.findall(r'value="([^"]*)" selected', options) or [""])[0]
        for name, rest in re.findall(r'<input type="checkbox" name="([^"]+)"([^>]*)>', text):
            filled[name] = "1" if rest.endswith(" checked") else ""
        found.append((hidden, {name: html.unescape(value) for name, value in filled.items()}))
    return found


def only(page: str, **which: str) -> dict[str, str]:
    """Return what stands in the one form with these hidden fields; in all others of the page nothing may stand."""
    mine = [filled for hidden, filled in forms(page) if which.items() <= hidden.items()]
    theirs = [filled for hidden, filled in forms(page) if not which.items() <= hidden.items()]
    assert len(mine) == 1, forms(page)
    assert [one for one in theirs if any(one.values())] == []
    return mine[0]


# What a page says was done


@pytest.mark.parametrize("done", ["approved", "denied", "decided", "revoked", "resolved", "yes", ""])
async def test_m64_an_address_says_of_a_request_only_what_its_viewer_did(
    house: House, bob: Visitor, olga: Visitor, done: str
) -> None:
    approved, denied, withdrawn, foreign, open_ = (house.ask() for _ in range(5))
    house.world.approve(approved)
    house.world.deny(denied)
    house.world.approve(withdrawn)
    house.world.guard.revoke(withdrawn.id, by=OPERATOR)
    house.world.deny(foreign, by=CAROL)

    async def said(visitor: Visitor, request: ApprovalRequest) -> str | None:
        return notice((await visitor.go(link(request, f"?done={done}"))).text)

    assert [await said(bob, one) for one in (approved, denied, withdrawn, foreign, open_)] == [
        "Approved.", "Denied.", "Your decision is recorded.", None, None,
    ]
    assert [await said(olga, one) for one in (approved, withdrawn)] == [None, "Revoked."]


async def test_m64_a_page_says_what_was_just_done(house: House, bob: Visitor) -> None:
    first, second = house.ask("wire"), house.ask("wire")
    house.world.approve(second, by=CAROL)

    async def answered(request: ApprovalRequest, **form: str) -> str | None:
        await bob.go(link(request))
        form |= {"fingerprint": request.fingerprint}
        sent = (await bob.post(link(request, "/decision"), form)).headers["location"]
        return notice((await bob.go(sent)).text)

    assert await answered(first, answer="approve") == "Your approval is recorded; others are still needed."
    assert await answered(second, answer="approve") == "Approved."
    assert await answered(house.ask(), answer="respond", response="No.") == "Answered."
    assert await answered(house.ask(), answer="deny") == "Denied."


async def test_m64_who_edited_a_request_is_told_so_on_the_new_one_alone(house: House, bob: Visitor) -> None:
    asked = mail(house)
    made = house.world.approve(asked, arguments={"to": "lee@example.org"})

    assert notice((await bob.go(link(asked, "?done=yes"))).text) is None
    assert notice((await bob.go(f"/requests/{made.request_id}?done=yes")).text) == "Approved."


async def test_m64_a_call_that_the_viewer_resolved_is_said_to_be_so(house: House, olga: Visitor) -> None:
    request = house.doubtful()
    house.world.guard.resolve(request.id, "failed", by=OPERATOR, reason="The bank says so.")

    assert notice((await olga.go(link(request, "?done=yes"))).text) == "Resolved."


@pytest.mark.parametrize("done", [*DONE, "yes", "", "<b>"])
async def test_m64_an_address_makes_no_other_page_say_that_something_was_done(
    house: House, olga: Visitor, done: str
) -> None:
    for page in ("/", "/control", "/runs", "/requests/none"):
        text = (await olga.go(f"{page}?done={done}")).text
        assert notice(text) is None
        assert "<b>" not in text


async def test_m64_what_was_done_is_said_once_to_the_browser_that_did_it(
    house: House, olga: Visitor, visitors: Callable[[str], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "gina", replace(GLOBAL, roles=("operator",)))
    other_browser, other_person = visitors("olga"), visitors("gina")
    await olga.go("/control")
    sent = (await olga.post("/control", {"change": "pause", "tool": "mail", "agent": ""})).headers["location"]
    for visitor in (other_browser, other_person):
        await visitor.go("/control")

    assert notice((await olga.go(sent)).text) == "Done."
    assert notice((await olga.go(sent.replace("/control", "/runs"))).text) is None
    assert notice((await other_browser.go(sent)).text) is None
    assert notice((await other_person.go(sent)).text) is None


async def test_m64_what_was_done_is_said_for_a_minute(house: House) -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "scheme": "https", "headers": [
        (b"authorization", b"Bearer olga"), (b"cookie", b"__Host-hitl_session=abc"), (b"host", b"inbox.example"),
    ]})
    viewer, sessions = await house.inbox.viewer(request), house.inbox.sessions
    assert viewer is not None

    note = sessions.note(request, viewer, "changed")

    assert sessions.noted(request, viewer, note, "changed")
    assert not sessions.noted(request, viewer, note, "resumed")
    assert not sessions.noted(request, viewer, sessions.token(request, viewer), "changed")
    assert not sessions.noted(request, replace(viewer, now=viewer.now + NOTE_MS), note, "changed")


async def test_m64_a_passkey_is_said_to_be_registered_where_one_just_was(open_house: OpenHouse, world: World) -> None:
    settings, owner = Settings(rp_id=RP, rp_origins=(SITE,)), Principal("bob")
    house = open_house(World(world.store, settings=settings))
    guard = house.world.guard

    def register(*, by: Authenticator | None) -> Authenticator:
        key, begun = Authenticator(), guard.passkey_registration(owner)
        confirm = None if by is None or begun.confirm is None else by.get(begun.confirm)
        made = key.create(begun.options)
        guard.register_passkey(owner, ticket=begun.ticket, response=made, name="x", confirm=confirm)
        return key

    async with house.visitor("bob") as bob:
        for done in ("registered", "removed"):
            assert notice((await bob.go(f"/passkeys?done={done}")).text) is None
        register(by=register(by=None))
        assert notice((await bob.go("/passkeys?done=removed")).text) is None
        assert notice((await bob.go("/passkeys?done=registered")).text) == "The passkey is registered."
        one = guard.passkeys(owner)[0]
        sent = (await bob.post("/passkeys/remove", {"credential": one.id})).headers["location"]
        assert notice((await bob.go(sent)).text) == "The passkey is removed."


# What stays of a form that was refused


@pytest.mark.parametrize(("form", "which"), [
    ({"answer": "approve", "reason": "Fine.", "within": "soon"}, {"answer": "approve"}),
    ({"answer": "deny", "reason": LONG, "mute": "60"}, {"answer": "deny"}),
    ({"answer": "respond", "reason": "Known.", "response": "{", "as": "json"}, {"answer": "respond"}),
])
async def test_m64_what_was_typed_stands_in_its_own_form_again_and_in_no_other(
    house: House, bob: Visitor, form: dict[str, str], which: dict[str, str]
) -> None:
    request = house.ask()
    await bob.go(link(request))

    answer = await bob.post(link(request, "/decision"), form | {"fingerprint": request.fingerprint})

    assert answer.status_code == 422
    assert only(answer.text, **which) == {name: value for name, value in form.items() if name != "answer"}


@pytest.mark.parametrize("back", ["", "1"])
async def test_m64_the_reason_of_an_edit_stays_with_the_edit(house: House, bob: Visitor, back: str) -> None:
    asked = mail(house)
    await bob.go(link(asked))

    answer = await bob.post(link(asked, "/preview"), {
        "reason": "Kim moved.", "fingerprint": asked.fingerprint, "back": back,
    })

    assert answer.status_code == (200 if back else 422)
    assert only(answer.text, action="preview")["reason"] == "Kim moved."


async def test_m64_the_reason_of_a_withdrawal_stays_with_it(house: House, bob: Visitor) -> None:
    request = house.ask()
    await bob.go(link(request))

    answer = await bob.post(link(request, "/revoke"), {"reason": LONG})

    assert answer.status_code == 422
    assert only(answer.text, action="revoke") == {"reason": LONG}
    assert house.world.state(request) == "pending"


async def test_m64_what_was_said_of_a_call_in_doubt_stays_there(house: House, olga: Visitor) -> None:
    request = house.doubtful()
    await olga.go(link(request))
    form = {"outcome": "abandoned", "reason": LONG, "force": "1"}

    long = await olga.post(link(request, "/resolve"), form)
    none = await olga.post(link(request, "/resolve"), form | {"reason": " "})
    odd = await olga.post(link(request, "/resolve"), form | {"reason": "So.", "outcome": "fine"})

    assert [one.status_code for one in (long, none, odd)] == [422, 422, 400]
    assert only(long.text, action="resolve") == form
    assert "Say how you know" in words(none.text)
    assert house.world.state(request) == "in_doubt"


async def test_x18_a_pause_that_was_refused_is_kept_in_its_own_form(
    open_house: OpenHouse, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEOPLE, "both", Principal("both", roles=("operator", "global-operator")))
    house = open_house()
    world.guard.pause(by=OPERATOR, tool="mail")
    world.guard.pause(by=OPERATOR, agent="mail")
    world.guard.pause(by=GLOBAL, everywhere=True)
    async with house.visitor("both") as both:
        await both.go("/control")
        form = {"tool": "wire", "agent": "bot", "everything": "1", "everywhere": "1", "reason": "Looks odd."}

        paused = await both.post("/control", form | {"change": "pause"})
        assert paused.status_code == 400
        assert only(paused.text, change="pause") == form

        for kind, name in (("tool", "mail"), ("agent", "mail")):
            resumed = await both.post("/control", {"change": "resume", kind: name, "reason": LONG})
            assert resumed.status_code == 422
            assert only(resumed.text, change="resume", **{kind: name}) == {"reason": LONG}
        everything = {"everything": "1", "everywhere": "1"}
        resumed = await both.post("/control", {"change": "resume", "reason": LONG} | everything)
        assert only(resumed.text, change="resume", **everything) == {"reason": LONG}
        for user, tool in (("", "mail"), ("ana", "")):
            unmuted = await both.post("/control", {"change": "unmute", "user": user, "tool": tool})
            assert unmuted.status_code == 400


async def test_m64_an_answer_to_a_run_is_kept_when_it_is_refused(open_house: OpenHouse, world: World) -> None:
    stage = Stage(world.store)
    calls = [("c1", "weather", {"id": "7"})]
    agent = stage.agent(calls, calls, "It is sunny.", tools=[stage.asking(input_schema=None)])
    for run in ("run-8", "run-9"):
        await agent.generate("How is it?", run_id=run, user="ana")
    house = open_house(stage.world, agents=[agent])
    async with house.visitor("ana") as ana:
        await ana.go("/runs")
        hidden = next(one for one, filled in forms(ana.page) if one.get("run") == "run-9" and "answer" in filled)
        form = {"run": "run-9", "agent": "shop", "call": hidden["call"], "answer": '{"location": "Rome"', "as": "json"}

        answer = await ana.post("/runs", form)
        assert answer.status_code == 422
        assert only(answer.text, run="run-9", call=hidden["call"])["answer"] == form["answer"]
        sent = (await ana.post("/runs", form | {"answer": '{"location": "Rome"}'})).headers["location"]
        assert notice((await ana.go(sent)).text) == "The run went on."


# Withdrawing, revealing


@pytest.mark.parametrize("tool", ["refund", "close_account"])
@pytest.mark.parametrize("who", [Principal("ANA"), Principal("ana\u200b"), Principal("x", unverified_aliases=("ana",))])
async def test_at68_who_only_looks_like_the_requester_neither_sees_nor_withdraws_a_request(
    house: House, visitors: Callable[[str], Visitor], monkeypatch: pytest.MonkeyPatch, tool: str, who: Principal
) -> None:
    monkeypatch.setitem(PEOPLE, "like", who)
    request, page = house.ask(tool), visitors("like")

    async with house.client("like") as client:
        real = await client.post(f"/api/requests/{request.id}/revoke", json={})
        none = await client.post("/api/requests/none/revoke", json={})
    await page.go("/")
    posted = await page.post(link(request, "/revoke"), {"reason": ""})

    assert (real.status_code, real.content) == (404, none.content)
    assert posted.status_code == 404
    assert house.world.state(request) == "pending"


async def test_m64_who_no_longer_sees_what_they_withdrew_comes_to_the_list(
    house: House, visitors: Callable[[str], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, ana = house.ask(), visitors("ana")
    await ana.go(link(request))

    async def out_of_sight(*_: Any) -> Any:
        raise unseen()

    monkeypatch.setattr(house.inbox, "get", out_of_sight)
    answer = await ana.post(link(request, "/revoke"), {"reason": ""})

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert house.world.state(request) == "revoked"


async def test_at67_a_secret_is_revealed_once_for_each_place_and_a_bounded_number_at_once(
    house: House, bob: Visitor
) -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string", "x-secret": True}}
    many = {f"k{number}": "s3cret" for number in range(MAX_REVEALED + 1)}
    request = house.ask("mail", many, definition=ToolDefinition("mail", "Sends mail.", schema))
    page = (await bob.go(link(request))).text
    places = re.findall(r'name="place" value="([^"]+)"', page)

    assert len(places) == MAX_REVEALED
    assert f"Reveal the first {MAX_REVEALED} secret values" in words(page)
    refused = await bob.post(link(request, "/reveal"), {"place": [f"/{name}" for name in many]})
    assert refused.status_code == 400
    assert house.world.audited("argument:revealed") == []
    twice = await bob.post(link(request, "/reveal"), {"place": ["/k1", "/k1"]})
    assert twice.status_code == 200
    assert len(house.world.audited("argument:revealed")) == 1
