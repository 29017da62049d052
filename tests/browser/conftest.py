"""The inbox in a real browser: Chromium of this machine, a real server on localhost, a real database.

Chromium is looked for on the path. Without it the tests are skipped, visibly; under CI they fail.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from starlette.requests import HTTPConnection

from hitl_guard.asgi.app import create_app
from hitl_guard.asgi.events import Pace
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Principal, ToolDefinition
from hitl_guard.store import SQLStore
from tests.support import ANA, BOB, CAROL, OPERATOR, POLICY, World, document

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
PEOPLE = {who.id: who for who in (ANA, BOB, CAROL, OPERATOR)}
RULES = POLICY + """\
  - id: signed
    tools: [payout]
    effect: require_approval
    evidence: passkey
    edit: true
"""
MAIL_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["to", "body", "copies"],
    "properties": {
        "to": {"type": "string"}, "body": {"type": "string", "description": "What the <b>person</b> reads."},
        "copies": {"type": "integer", "minimum": 1}, "urgent": {"type": "boolean"},
        "folder": {"enum": ["inbox", "archive"]}, "weight": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}}, "password": {"type": "string", "format": "password"},
    },
}
MAIL: dict[str, Any] = {
    "to": "kim@example.org", "body": "Dear Kim,\nsee you.", "copies": 9_007_199_254_740_993, "urgent": False,
    "folder": "inbox", "weight": None, "tags": ["a"],
}

expect.set_options(timeout=10_000)


class Site:
    """A server with one inbox, and the guard behind it.

    Attributes:
        url: Its address; the host is ``localhost``, where browsers allow passkeys.
    """

    def __init__(self, store: SQLStore) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://localhost:{self._socket.getsockname()[1]}"
        settings = Settings(rp_id="localhost", rp_origins=(self.url,))
        self.world = World(store, policy=document(RULES), settings=settings)
        self.guard = self.world.guard
        self.app = create_app(self.guard, authenticate=_by_cookie, pace=Pace(poll_ms=200))
        config = uvicorn.Config(self.app, lifespan="on", log_config=None, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def ask(self, tool: str = "refund", arguments: Any = None, **scope: Any) -> ApprovalRequest:
        """Return a new request."""
        return self.guard.request(self.world.call(tool, arguments, **scope))

    def mail(self, **arguments: Any) -> ApprovalRequest:
        """Return a request whose arguments may be edited, with a schema."""
        definition = ToolDefinition("mail", "Sends mail.", MAIL_SCHEMA)
        return self.ask("mail", MAIL | arguments, definition=definition)

    def state(self, request: ApprovalRequest) -> str:
        return self.world.state(request)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
        assert not self._thread.is_alive()


def _by_cookie(request: HTTPConnection) -> Principal | None:
    return PEOPLE.get(request.cookies.get("who", ""))


@pytest.fixture
def site(make_database: Callable[..., Any], open_store: Callable[..., SQLStore]) -> Iterator[Site]:
    """A running inbox on a new database."""
    made = Site(open_store(make_database("sqlite")))
    yield made
    made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The machine's Chromium, one for all tests."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if "CI" in os.environ:
            pytest.fail("no chromium on the path: install the distribution's package", pytrace=False)
        pytest.skip("no chromium on the path: install the distribution's package")
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        await found.close()


Opened = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, site: Site) -> AsyncIterator[Opened]:
    """``await visit("/path", who="bob", **context)``: a page in a fresh browser context of one person.

    At the end every page must have run without a script error and without a violation of its security policy.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    async def visit_(path: str = "/", *, who: str = "bob", **options: Any) -> Page:
        context = await browser.new_context(base_url=site.url, **({"locale": "en-GB"} | options))
        contexts.append(context)
        await context.add_cookies([{"name": "who", "value": who, "url": site.url}])
        page = await context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda told: faults.append(told.text) if "Content Security" in told.text else None)
        await page.goto(path, wait_until="domcontentloaded")
        return page

    yield visit_
    for context in contexts:
        await context.close()
    assert faults == []


@pytest.fixture
def shot() -> Callable[..., Awaitable[None]]:
    """``await shot(page, name)``: keep a screenshot in ``build/screenshots``."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    async def shot_(page: Page, name: str) -> None:
        await page.evaluate("window.scrollTo(0, 0)")
        tall = await page.evaluate("document.documentElement.scrollHeight") > 4_000
        await page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=not tall)

    return shot_
