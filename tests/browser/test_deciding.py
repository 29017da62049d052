"""Deciding in a real browser: approve, deny, edit, stale pages, races, quorum; with and without the script."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Opened, Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


def link(request: Any) -> str:
    return f"/requests/{request.id}"


async def test_m64_an_approver_opens_the_list_reads_the_call_and_approves_it(
    site: Site, visit: Opened, shot: Any
) -> None:
    request = site.ask()
    page = await visit()
    await expect(page).to_have_title("(1) Approval requests")
    await shot(page, "list")

    await page.get_by_role("link", name="refund").click()
    await expect(page.locator("#arguments")).to_contain_text('"amount": 82')
    await expect(page.locator("#digest")).to_contain_text("What you see is what was signed")
    await shot(page, "request")
    await page.get_by_role("button", name="Approve").click()

    await expect(page.locator("#notice")).to_have_text("Approved.")
    assert site.state(request) == "approved"
    assert [vote.approver for vote in site.guard.get(request.id).votes] == ["bob"]
    assert site.guard.get(request.id).votes[0].channel == "inbox"


async def test_m64_a_denial_goes_to_the_model_with_its_reason(site: Site, visit: Opened) -> None:
    request = site.ask()
    page = await visit(link(request))

    await page.get_by_label("Why not?").fill('Too much.\n"Ask" again with 41.')
    await page.get_by_role("button", name="Deny").click()

    await expect(page.locator("#notice")).to_have_text("Denied.")
    await expect(page.locator(".vote")).to_contain_text("bob (as lead) denied")
    assert site.guard.get(request.id).votes[0].reason == 'Too much.\n"Ask" again with 41.'


async def test_m64_arguments_are_edited_in_a_form_and_the_change_is_shown_before_it_counts(
    site: Site, visit: Opened, shot: Any
) -> None:
    request = site.mail()
    page = await visit(link(request))
    await page.get_by_text("Edit the arguments, then approve").click()
    field = page.get_by_role("group", name="to", exact=True).get_by_role("textbox")
    await field.fill("lee@example.org")
    await page.get_by_role("button", name="Look at the change").click()

    await expect(page.locator(".diff tbody tr")).to_have_count(1)
    await expect(page.locator(".diff .after")).to_have_text('"lee@example.org"')
    await shot(page, "edit")
    assert site.state(request) == "pending"
    await page.get_by_role("button", name="Approve the changed call").click()

    await expect(page.locator("#notice")).to_have_text("Approved.")
    await expect(page.locator("#arguments")).to_contain_text('"lee@example.org"')
    await expect(page.locator("#arguments")).to_contain_text("9007199254740993")
    assert site.state(request) == "superseded"


async def test_x17_without_javascript_an_edit_is_decided_as_it_was_shown_or_not_at_all(
    site: Site, visit: Opened
) -> None:
    request = site.mail(password="hunter2")
    page = await visit(link(request), java_script_enabled=False)
    await page.get_by_text("Edit the arguments, then approve").click()
    await page.get_by_role("group", name="to", exact=True).get_by_role("textbox").fill("lee@example.org")
    await page.get_by_role("button", name="Look at the change").click()
    await expect(page.locator(".diff tbody tr")).to_have_count(2)
    await expect(page.locator(".diff .mask")).to_have_count(2)
    fields = page.locator("#approve-form input[type=hidden]")
    form = [
        (await one.get_attribute("name") or "", await one.get_attribute("value") or "") for one in await fields.all()
    ]

    other = [(name, "eve@example.org" if value == "lee@example.org" else value) for name, value in form]
    body = urlencode(other)
    told = await page.request.post(f"{link(request)}/decision", data=body, headers={
        "content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin", "origin": site.url,
    })
    assert told.status == 409
    assert "not the one that was shown" in await told.text()
    assert site.state(request) == "pending"

    await page.get_by_role("button", name="Approve the changed call").click()
    await expect(page.locator("#notice")).to_have_text("Approved.")
    await expect(page.locator("#arguments")).to_contain_text("lee@example.org")


async def test_a_mistake_in_the_form_is_told_beside_the_field_and_nothing_that_was_written_is_lost(
    site: Site, visit: Opened
) -> None:
    page = await visit(link(site.mail()))
    await page.get_by_text("Edit the arguments, then approve").click()
    copies = page.get_by_role("group", name="copies", exact=True)
    await copies.get_by_role("textbox").fill("two")
    body = page.get_by_role("group", name="body", exact=True).get_by_role("textbox")
    await body.fill("Other words.")

    await page.get_by_role("button", name="Look at the change").click()

    await expect(page.get_by_role("alert")).to_contain_text("not right yet")
    await expect(copies).to_contain_text("Write a whole number in digits.")
    await expect(copies.get_by_role("textbox")).to_have_value("two")
    await expect(body).to_have_value("Other words.")


async def test_at31_a_stale_tab_is_told_who_decided_and_shows_the_new_state(site: Site, visit: Opened) -> None:
    request = site.ask()
    page = await visit(link(request), java_script_enabled=False)
    site.world.deny(request, reason="No.")

    await page.get_by_role("button", name="Approve").click()

    await expect(page.get_by_role("alert")).to_contain_text("decided already")
    await expect(page.get_by_role("alert")).to_contain_text("Decided by bob")
    await expect(page.locator(".summary .state")).to_have_text("denied")
    assert site.state(request) == "denied"


async def test_a_tab_whose_call_was_edited_meanwhile_approves_nothing(site: Site, visit: Opened) -> None:
    request = site.mail()
    page = await visit(link(request), who="carol", java_script_enabled=False)
    site.world.approve(request, arguments={**request.arguments, "to": "lee@example.org"})

    await page.get_by_role("button", name="Approve", exact=True).click()

    await expect(page.get_by_role("alert")).to_contain_text("Another request took this one's place")
    assert [vote.approver for vote in site.guard.get(request.id).votes] == []


async def test_of_two_approvers_at_once_one_decides_and_the_other_is_told_so(site: Site, visit: Opened) -> None:
    request = site.ask()
    pages = [await visit(link(request), who=who, java_script_enabled=False) for who in ("bob", "carol")]

    await asyncio.gather(
        pages[0].get_by_role("button", name="Approve").click(), pages[1].get_by_role("button", name="Deny").click()
    )

    said = [await page.locator("#notice, #error").inner_text() for page in pages]
    assert sum(one in ("Approved.", "Denied.") for one in said) == 1
    assert sum("decided already" in one for one in said) == 1
    assert len(site.guard.get(request.id).votes) == 1


async def test_at52_a_quorum_of_two_shows_who_is_still_needed_and_counts_one_person_once(
    site: Site, visit: Opened
) -> None:
    request = site.ask("wire")
    page = await visit(link(request))
    await expect(page.locator(".facts")).to_contain_text("2 more people are needed")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("#notice")).to_have_text("Your approval is recorded; others are still needed.")
    await expect(page.locator(".facts")).to_contain_text("1 more person is needed")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    assert site.state(request) == "pending"

    other = await visit(link(request), who="carol")
    await expect(other.locator(".vote")).to_contain_text("bob")
    await other.get_by_role("button", name=re.compile("Approve")).click()

    await expect(other.locator("#notice")).to_have_text("Approved.")
    assert site.state(request) == "approved"


async def test_at50_the_requester_sees_the_request_and_no_way_to_decide_it(site: Site, visit: Opened) -> None:
    request = site.ask()
    page = await visit(link(request), who="ana")

    await expect(page.get_by_text("You cannot decide this one.")).to_have_count(0)
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    await expect(page.get_by_text("Revoke").first).to_be_visible()


async def test_without_javascript_everything_is_shown_and_everything_works(
    site: Site, visit: Opened, shot: Any
) -> None:
    long = "word " * 1_000 + "END"
    request = site.mail(body=long)
    page = await visit("/", java_script_enabled=False)
    await page.get_by_role("link", name="mail").click()
    await expect(page.locator("#arguments")).to_contain_text("END")
    await expect(page.locator(".folded, .unfold")).to_have_count(0)
    assert await page.locator("#arguments .text").last.evaluate("e => e.scrollHeight <= e.clientHeight + 1 || 1")
    await shot(page, "no-javascript")

    await page.get_by_role("button", name="Approve", exact=True).click()

    await expect(page.locator("#notice")).to_have_text("Approved.")
    assert site.state(request) == "approved"


async def test_m64_a_person_answers_for_the_tool(site: Site, visit: Opened) -> None:
    request = site.ask()
    page = await visit(link(request))
    await page.get_by_text("Answer for the tool").click()
    await page.get_by_label("Result").fill('{"refunded": 41}')
    await page.get_by_label("Which is").select_option("json")

    await page.get_by_role("button", name="Answer", exact=True).click()

    await expect(page.locator("#notice")).to_have_text("Answered.")
    assert site.guard.get(request.id).votes[0].response == {"refunded": 41}


async def test_m64_an_approved_request_is_revoked_before_it_ran(site: Site, visit: Opened) -> None:
    request = site.ask()
    site.world.approve(request)
    page = await visit(link(request), who="ana")
    await page.locator("summary", has_text="Revoke").click()
    await page.get_by_label("Reason").last.fill("Wrong order.")

    await page.get_by_role("button", name="Revoke").click()

    await expect(page.locator("#notice")).to_have_text("Revoked.")
    assert site.state(request) == "revoked"


async def test_bulk_denial_is_free_and_bulk_approval_is_for_what_was_opened(site: Site, visit: Opened) -> None:
    first, second, third = site.ask(), site.ask(), site.ask("wire")
    page = await visit()
    boxes = {one.id: page.locator(f'[data-id="{one.id}"] input[name=pick]') for one in (first, second, third)}
    approve = page.get_by_role("button", name="Approve selected")
    await boxes[first.id].check()
    await expect(approve).to_be_disabled()
    await expect(page.locator("#bulk-hint")).to_contain_text("open the others first")
    await page.goto(link(first))
    await page.goto("/")
    await boxes[first.id].check()
    await expect(approve).to_be_enabled()
    await boxes[third.id].check()
    await expect(approve).to_be_disabled()
    await boxes[third.id].uncheck()

    await approve.click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("1 of 1 approved")
    assert [site.state(one) for one in (first, second, third)] == ["approved", "pending", "pending"]

    await page.goto("/")
    await boxes[second.id].check()
    await boxes[third.id].check()
    await page.get_by_role("button", name="Deny selected").click()

    await expect(page.get_by_role("heading", level=1)).to_have_text("2 of 2 denied")
