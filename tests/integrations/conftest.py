"""The AI SDK's client under Node, its page in Chromium, and a server for both.

Without Node, its packages or Chromium the tests are skipped, visibly; under CI they fail.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, BrowserContext, Page
from starlette.types import ASGIApp

from tests.browser.conftest import browser as browser
from tests.chat.client import ChatClient
from tests.chat.node import Node, UnavailableError, build_page, installed

T = TypeVar("T")


def _needed(get: Callable[[], T]) -> T:
    try:
        return get()
    except UnavailableError as error:
        if "CI" in os.environ:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def node() -> Node:
    """A Node with the locked packages beside `tests/chat/client.mjs`."""
    return _needed(installed)


@pytest.fixture(scope="session")
def chat_page() -> Path:
    """The folder of the built `useChat` page."""
    return _needed(build_page)


Serve = Callable[[ASGIApp], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(app)``: run an ASGI app, its lifespan too, in a thread; return its address without a slash at the end."""
    with ExitStack() as servers:
        yield lambda app: _start(app, servers)


def _start(app: ASGIApp, servers: ExitStack) -> str:
    listening = servers.enter_context(socket.create_server(("127.0.0.1", 0)))
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()

    servers.callback(stop)
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


OpenChat = Callable[..., ChatClient]


@pytest.fixture
def open_chat(node: Node) -> Iterator[OpenChat]:
    """``open_chat(api, user="alice", …)``: a `ChatClient` that the test need not close."""
    with ExitStack() as clients:
        yield lambda api, **options: clients.enter_context(ChatClient(api, node=node, **options))


OpenPage = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """``await open_page(url, **context)``: a page in a fresh browser context, at the end without a script error."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    async def open_(url: str, **options: Any) -> Page:
        contexts.append(await browser.new_context(**({"locale": "en-GB"} | options)))
        page = await contexts[-1].new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda told: faults.append(told.text) if "Content Security" in told.text else None)
        await page.goto(url, wait_until="domcontentloaded")
        return page

    yield open_
    for context in contexts:
        await context.close()
    assert faults == []
