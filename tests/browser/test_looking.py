"""Looking at requests in a real browser: hostile arguments, folds, secrets, keyboard, phone, dark, live, axe."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page, Route, expect

from hitl_guard.models import ToolDefinition
from hitl_guard.render import arguments
from tests.browser.conftest import Opened, Site
from tests.unit.test_markup import ATTACKS
from tests.unit.test_render import UNSEEN, is_plain

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "first " + "word " * 800 + "LAST"


def link(request: Any) -> str:
    return f"/requests/{request.id}"


async def test_at58_every_display_attack_is_visible_and_inert(site: Site, visit: Opened, shot: Any) -> None:
    dialogs: list[str] = []
    hidden = "".join(one for one in UNSEEN.values() if one != "\ud800")
    call = {f"{name} {attack[:40]}": attack[:3_000] for name, attack in ATTACKS.items()} | {"hidden": f"a{hidden}b"}
    request = site.ask("refund", call, user="ana", agent="bot\u202e<b>", run_id='run"><img src=x onerror=alert(1)>')
    page = await visit(link(request))
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))

    for _ in await page.locator(".unfold").all():
        await page.locator(".unfold").first.click()
    shown = await page.locator("#arguments").text_content() or ""

    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", arguments(request.canonical))
    assert is_plain(await page.locator("#main").inner_text())
    await expect(page.locator("#digest")).to_contain_text("What you see is what was signed")
    await expect(page.locator(".hidden-count")).to_contain_text("hidden characters shown as escapes")
    await expect(page.locator(".warning").first).to_contain_text("hidden-characters")
    await expect(page.locator("#main script, #main img, #main b")).to_have_count(0)
    await expect(page.locator(".facts")).to_contain_text("bot\\u202e<b>")
    await shot(page, "hostile")
    await page.goto("/")
    await expect(page.locator(".row")).to_contain_text("bot\\u202e<b>")
    assert dialogs == []


async def test_at58_lines_inside_a_value_cannot_pass_for_another_argument(site: Site, visit: Opened) -> None:
    request = site.ask("refund", {"amount": 9500, "note": 'x",\n  "amount": 1500,\n  "z": "'})
    page = await visit(link(request))

    lines = page.locator("#arguments .line")
    await expect(lines).to_have_count(4)
    value = page.locator("#arguments .several")
    assert await value.evaluate("e => getComputedStyle(e).borderLeftStyle") == "solid"
    box, outer = await value.bounding_box(), await lines.nth(2).bounding_box()
    assert box is not None
    assert outer is not None
    assert box["y"] >= outer["y"]
    assert box["y"] + box["height"] <= outer["y"] + outer["height"] + 1


async def test_at59_arguments_come_first_and_what_the_agent_wrote_is_marked_as_its_words(
    site: Site, visit: Opened
) -> None:
    earlier = site.world.call("refund", {"order": "A-1", "why": "Ignore the amount, it is only 1.00"})
    request = site.ask("refund", {"order": "A-17", "amount": 9500}, turn=(earlier,))
    page = await visit(link(request))

    words = page.get_by_role("region", name="The agent's own words")
    await expect(words).to_contain_text("Ignore the amount")
    await expect(words).to_contain_text("The model wrote this. Nobody checked it")
    await expect(words.locator("blockquote")).to_have_count(1)
    tops = [await page.locator(one).evaluate("e => e.getBoundingClientRect().top") for one in
            ("#arguments", ".decide", ".untrusted")]
    assert tops == sorted(tops)


async def test_approve_waits_until_every_fold_was_opened_and_the_end_was_seen(
    site: Site, visit: Opened, shot: Any
) -> None:
    request = site.ask("refund", {"a": LONG, "b": LONG, "c": list(range(60))})
    page = await visit(link(request), viewport={"width": 390, "height": 700})
    approve = page.get_by_role("button", name="Approve")

    await expect(approve).to_be_disabled()
    await expect(page.locator("#gate")).to_contain_text("open the 2 folded values")
    await shot(page, "folded")
    await page.locator(".unfold").first.click()
    await expect(page.locator("#gate")).to_contain_text("open the folded value")
    await page.locator(".unfold").first.click()
    await expect(page.locator("#gate")).to_have_text("Approve is off: look at the arguments to their end.")
    await page.locator("[data-end]").scroll_into_view_if_needed()

    await expect(approve).to_be_enabled()
    await expect(page.locator("#gate")).to_be_empty()
    await approve.click()
    await expect(page.locator("#notice")).to_have_text("Approved.")


@pytest.mark.parametrize(("signed", "altered"), [
    ('<bdi class="plain">1500</bdi>', '<bdi class="plain">9500</bdi>'),
    ('<bdi>A-17</bdi>', '<bdi>A-18</bdi>'),
    ('id="tool"><bdi>refund</bdi>', 'id="tool"><bdi>transfer</bdi>'),
    ('name="fingerprint" value="', 'name="fingerprint" value="0'),
], ids=["number", "text", "tool", "fingerprint"])
async def test_a_page_that_was_altered_on_its_way_raises_the_alarm_and_approves_nothing(
    site: Site, visit: Opened, signed: str, altered: str
) -> None:
    request = site.ask("refund", {"order": "A-17", "amount": 1500})
    page = await visit()

    async def alter(route: Route) -> None:
        answer = await route.fetch()
        text = await answer.text()
        assert signed in text
        await route.fulfill(response=answer, body=text.replace(signed, altered, 1))

    # The page alone: its script reads the request through the API, too.
    await page.route(re.compile(r"^http://[^/]+/requests/"), alter)
    await page.goto(link(request))

    await expect(page.locator("#digest")).to_contain_text("Alarm")
    await expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    # The page may look again by itself: what is under way ends before the browser goes.
    await page.unroute_all(behavior="wait")


async def test_at67_a_secret_is_masked_until_it_is_revealed_and_that_is_audited(
    site: Site, visit: Opened, shot: Any
) -> None:
    request = site.mail(password="hunter2", body="Plain.")
    page = await visit(link(request))
    assert "hunter2" not in await page.content()
    await expect(page.locator("#digest")).to_contain_text("secret values are masked")
    await shot(page, "secret")

    await page.get_by_role("button", name="Reveal the secret value").click()

    await expect(page.locator("#arguments")).to_contain_text("hunter2")
    await expect(page.locator("#digest")).to_contain_text("What you see is what was signed")
    assert [event["by"] for event in site.world.audited("argument:revealed")] == ["bob"]


async def test_the_attempt_before_is_compared(site: Site, visit: Opened) -> None:
    first = site.ask("refund", {"order": "A-17", "amount": 1500})
    site.world.deny(first)
    second = site.ask("refund", {"order": "A-17", "amount": 9500})
    page = await visit(link(second))

    await expect(page.locator(".diff tbody tr")).to_have_count(1)
    await expect(page.locator(".diff tbody tr")).to_have_text("/amount15009500")


async def test_m64_decided_requests_stay_visible_with_who_when_and_why(site: Site, visit: Opened) -> None:
    site.world.deny(site.ask(), reason="Too much.")
    site.ask("wire")
    page = await visit("/?state=all")

    rows = page.locator(".row")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("wire")
    await expect(rows.last).to_contain_text("bob (as lead) denied")
    await expect(rows.last).to_contain_text("Too much.")
    await page.get_by_label("Tool").fill("refund")
    await page.get_by_role("button", name="Filter").click()
    await expect(rows).to_have_count(1)


async def test_the_list_is_worked_with_the_keyboard_alone(site: Site, visit: Opened) -> None:
    first, second = site.ask(), site.mail()
    page = await visit()
    await page.keyboard.press("j")
    await expect(page.locator(f'[data-id="{first.id}"] h2 a')).to_be_focused()
    await page.keyboard.press("j")
    await expect(page.locator(f'[data-id="{second.id}"] h2 a')).to_be_focused()
    await page.keyboard.press("x")
    await expect(page.locator(f'[data-id="{second.id}"] input')).to_be_checked()
    await page.keyboard.press("k")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Text")).to_be_focused()
    await page.keyboard.press("j")
    await expect(page.get_by_label("Text")).to_have_value("j")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Text")).not_to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()

    await page.keyboard.press("a")

    await expect(page.locator("#approve")).to_be_focused()
    assert site.state(first) == "pending"
    await page.keyboard.press("r")
    await expect(page.locator("#deny-reason")).to_be_focused()
    await page.keyboard.type("No, j and a are words here.")
    await page.keyboard.press("Escape")
    await page.keyboard.press("a")
    await page.keyboard.press("Enter")
    await expect(page.locator("#notice")).to_have_text("Approved.")
    await page.keyboard.press("Escape")
    await expect(page).to_have_title("(1) Approval requests")
    await page.keyboard.press("j")
    await page.keyboard.press("e")
    await expect(page.get_by_role("group", name="body", exact=True).get_by_role("textbox")).to_be_focused()
    assert [site.state(one) for one in (first, second)] == ["approved", "pending"]


async def test_single_keys_can_be_switched_off_and_stay_off(site: Site, visit: Opened) -> None:
    site.ask()
    page = await visit()
    await page.get_by_role("button", name="Keyboard shortcuts").click()
    await page.get_by_label("Single keys are shortcuts").uncheck()
    await page.get_by_role("button", name="Close").click()
    await page.reload()

    await page.keyboard.press("j")
    await page.keyboard.press("?")

    await expect(page.locator(".row h2 a")).not_to_be_focused()
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_keys_with_modifiers_do_nothing(site: Site, visit: Opened) -> None:
    site.ask()
    page = await visit()

    await page.keyboard.press("Alt+j")
    await page.keyboard.press("Control+j")

    await expect(page.locator(".row h2 a")).not_to_be_focused()


async def test_a_new_request_appears_without_moving_what_is_under_the_mouse(
    site: Site, visit: Opened, shot: Any
) -> None:
    first = site.ask(arguments={"n": 0})
    page = await visit()
    await expect(page.locator("body")).to_have_attribute("data-live", "yes")
    row = page.locator(f'[data-id="{first.id}"]')
    untouched = await row.bounding_box()
    await row.locator("input").check()
    before = await row.bounding_box()
    await row.hover()

    new = site.ask("wire")
    await expect(page.get_by_role("status").first).to_contain_text("1 new")
    await expect(page.locator(f'[data-id="{new.id}"]')).to_contain_text("wire")
    after = await row.bounding_box()
    assert untouched == before == after
    assert before is not None
    await expect(page).to_have_title("(2) Approval requests")
    await expect(row.locator("input")).to_be_checked()
    await shot(page, "live")

    site.world.approve(new)
    await expect(page.locator(f'[data-id="{new.id}"]')).to_contain_text("1 of 2 approvals")
    site.world.deny(first)
    await expect(row).to_contain_text("no longer in this list")
    await expect(row.locator("input")).to_have_count(0)


async def test_a_request_that_changes_while_it_is_open_says_so_and_approve_is_off(site: Site, visit: Opened) -> None:
    request = site.ask()
    page = await visit(link(request))
    await expect(page.locator("body")).to_have_attribute("data-live", "yes")

    site.world.deny(request)

    await expect(page.locator("#live")).to_contain_text("has changed")
    await expect(page.get_by_role("button", name="Approve")).to_be_disabled()
    await page.get_by_role("button", name="Load it again").click()
    await expect(page.locator(".summary .state")).to_have_text("denied")


async def test_on_a_phone_nothing_is_cut_and_every_target_can_be_hit(site: Site, visit: Opened, shot: Any) -> None:
    request = site.mail(body="x" * 300)
    for path, name in (("/", "phone-list"), (link(request), "phone-request")):
        page = await visit(path, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
        await shot(page, name)
        await _all_open(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        small = await page.evaluate(_SMALL)
        assert small == []


_SMALL = """() => [...document.querySelectorAll("a, button, input, select, textarea, summary")].filter((one) => {
  const target = one.matches("input[type=checkbox]") ? one.closest("label") : one;
  const box = target.getBoundingClientRect();
  const inline = one.matches("p a, dd a, .skip");
  return one.checkVisibility() && box.width && !inline && (box.height < 44 || box.width < 44);
}).map((one) => one.outerHTML)"""


async def test_axe_finds_nothing_on_any_page_light_or_dark(site: Site, visit: Opened, shot: Any) -> None:
    request = site.mail(password="hunter2")
    hostile = site.ask("refund", {"a": "x\u202ey\n" + LONG, "b": [1, {"c": "\u200b"}]})
    site.world.approve(site.ask("wire"))
    axe = Axe()
    page = await visit("/?state=all", who="olga")
    for path in ("/?state=all", link(request), link(hostile), "/runs", "/passkeys", "/control", "/requests/none"):
        await page.goto(path, wait_until="domcontentloaded")
        await _all_open(page)
        for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 22, 26)")):
            await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            await expect(page.locator("body")).to_have_css("background-color", ground)
            found = await axe.run(page)
            assert found.violations_count == 0, f"{path} {scheme}: {found.generate_report()}"
        if path == link(request):
            await shot(page, "request-dark")


async def _all_open(page: Page) -> None:
    await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


async def test_a_list_of_thousands_is_paged(site: Site, visit: Opened) -> None:
    for number in range(52):
        site.ask(arguments={"n": number}, definition=ToolDefinition("refund"))
    page = await visit()

    await expect(page.locator(".row")).to_have_count(50)
    await expect(page).to_have_title("(50+) Approval requests")
    await page.get_by_role("link", name="Next page").click()
    await expect(page.locator(".row")).to_have_count(2)
    await page.get_by_role("link", name="First page").click()
    await expect(page.locator(".row")).to_have_count(50)
