"""Approving with a passkey, through Chromium's own virtual authenticator."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import Opened, Site
from tests.support import BOB

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def authenticator(page: Page) -> Any:
    """Give the page's browser an authenticator that always finds its person there and willing."""
    session = await page.context.new_cdp_session(page)
    await session.send("WebAuthn.enable")
    await session.send("WebAuthn.addVirtualAuthenticator", {"options": {
        "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
        "isUserVerified": True, "automaticPresenceSimulation": True,
    }})
    return session


async def register(page: Page, name: str = "Laptop") -> None:
    await page.goto("/passkeys")
    await page.get_by_label("Name").fill(name)
    await page.get_by_role("button", name="Register").click()
    await expect(page.locator("#notice")).to_have_text("The passkey is registered.")
    await expect(page.get_by_role("heading", name=name)).to_be_visible()


async def test_at50_a_call_that_needs_a_passkey_is_approved_with_one(site: Site, visit: Opened, shot: Any) -> None:
    request = site.ask("payout", {"amount": 1500})
    page = await visit()
    await authenticator(page)
    await register(page)
    await shot(page, "passkeys")
    await page.goto(f"/requests/{request.id}")
    await expect(page.locator(".decide")).to_contain_text("needs your passkey")

    await page.get_by_role("button", name="Approve", exact=True).click()

    await expect(page.locator("#notice")).to_have_text("Approved.")
    assert site.state(request) == "approved"
    assert site.guard.get(request.id).votes[0].channel == "inbox"


async def test_1500_that_becomes_9500_on_its_way_is_refused(site: Site, visit: Opened) -> None:
    request = site.ask("payout", {"amount": 1500})
    page = await visit()
    await authenticator(page)
    await register(page)

    async def alter(route: Route) -> None:
        sent = json.loads(route.request.post_data or "")
        await route.continue_(post_data=json.dumps(sent | {"arguments": {"amount": 9500}}))

    await page.route("**/decision", alter)
    await page.goto(f"/requests/{request.id}")
    await page.get_by_role("button", name="Approve", exact=True).click()

    await expect(page.get_by_role("alert")).to_contain_text("The passkey does not prove this decision")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    assert site.state(request) == "pending"


async def test_a_denial_that_mutes_is_proven_with_the_passkey_and_a_plain_one_needs_none(
    site: Site, visit: Opened
) -> None:
    plain, muting = site.ask("payout", {"amount": 1}), site.ask("payout", {"amount": 2})
    page = await visit()
    await authenticator(page)
    await register(page)
    await page.goto(f"/requests/{plain.id}")
    await page.get_by_role("button", name="Deny").click()
    await expect(page.locator("#notice")).to_have_text("Denied.")
    await page.goto(f"/requests/{muting.id}")

    await page.get_by_label("to refuse more than this needs your passkey").select_option(label=(
        "refuse this tool for this requester for an hour"
    ))
    await page.get_by_role("button", name="Deny").click()

    await expect(page.locator("#notice")).to_have_text("Denied.")
    assert [site.guard.get(one.id).votes[0].evidence for one in (plain, muting)] == ["hmac", "passkey"]
    assert [mute.tool for mute in site.guard.control().mutes] == ["payout"]


async def test_an_edit_is_signed_as_it_will_run(site: Site, visit: Opened) -> None:
    request = site.ask("payout", {"amount": 12345678901234567890})
    page = await visit()
    await authenticator(page)
    await register(page)
    await page.goto(f"/requests/{request.id}")
    await page.get_by_text("Edit the arguments, then approve").click()
    field = page.get_by_role("group", name="All arguments").get_by_role("textbox")
    await field.fill('{"amount": 12345678901234567891}')
    await page.get_by_role("button", name="Look at the change").click()

    await page.get_by_role("button", name="Approve the changed call").click()

    await expect(page.locator("#notice")).to_have_text("Approved.")
    await expect(page.locator("#arguments")).to_contain_text("12345678901234567891")
    assert site.state(request) == "superseded"


async def test_without_a_passkey_nothing_is_decided_and_the_page_says_what_to_do(site: Site, visit: Opened) -> None:
    request = site.ask("payout", {"amount": 1500})
    page = await visit(f"/requests/{request.id}")
    await authenticator(page)

    await page.get_by_role("button", name="Approve", exact=True).click()

    await expect(page.get_by_role("alert")).to_contain_text("register one first")
    assert site.state(request) == "pending"


async def test_without_javascript_the_page_says_that_this_one_needs_it(site: Site, visit: Opened) -> None:
    request = site.ask("payout", {"amount": 1500})
    page = await visit(f"/requests/{request.id}", java_script_enabled=False)

    await expect(page.locator(".decide")).to_contain_text("A passkey needs JavaScript, which is switched off here.")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
    await page.get_by_role("button", name="Deny").click()
    await expect(page.locator("#notice")).to_have_text("Denied.")


async def test_a_second_passkey_is_added_with_the_first_and_removed(site: Site, visit: Opened) -> None:
    page = await visit()
    await authenticator(page)
    await register(page)
    second = await page.context.new_cdp_session(page)
    await second.send("WebAuthn.enable")
    await second.send("WebAuthn.addVirtualAuthenticator", {"options": {
        "protocol": "ctap2", "transport": "usb", "hasResidentKey": True, "hasUserVerification": True,
        "isUserVerified": True, "automaticPresenceSimulation": True,
    }})

    await register(page, "Key <b>two</b>")

    assert len(site.guard.passkeys(BOB)) == 2
    await page.get_by_role("button", name="Remove Laptop").click()
    await expect(page.locator("#notice")).to_have_text("The passkey is removed.")
    await expect(page.get_by_role("heading", name="Laptop")).to_have_count(0)
