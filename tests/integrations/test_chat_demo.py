"""``hitl-guard demo chat``: a person clicks in a real ``useChat`` page, in a real browser."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect

from hitl_guard.cli.demo_chat import ChatDemo
from tests.integrations.conftest import OpenChat, OpenPage, Serve

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a20_a_person_approves_and_denies_in_the_page(
    tmp_path: Path, chat_page: Path, serve: Serve, open_page: OpenPage
) -> None:
    demo = ChatDemo(tmp_path, chat_page)
    page = await open_page(f"{serve(demo.app)}/")
    message, send = page.get_by_label("Message"), page.get_by_role("button", name="Send")
    tools = page.get_by_role("region", name="Tool deleteFile")

    await message.fill("Please delete /srv/cache")
    await send.click()
    await expect(tools).to_contain_text("/srv/cache")
    await expect(tools).to_contain_text("It deletes data.")
    await expect(tools).to_have_attribute("data-state", "approval-requested")
    assert demo.deleted == []
    await tools.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("log")).to_contain_text("It ended like this: deleted /srv/cache")
    await expect(tools).to_have_attribute("data-state", "output-available")
    assert [one["path"] for one in demo.deleted] == ["/srv/cache"]

    await message.fill("And /etc")
    await send.click()
    await tools.last.get_by_role("button", name="Deny").click()
    await expect(page.get_by_role("log")).to_contain_text("Tool call was not approved by the user")
    await expect(tools.last).to_have_attribute("data-state", "output-denied")
    await expect(tools.first).to_have_attribute("data-state", "output-available")
    assert [one["path"] for one in demo.deleted] == ["/srv/cache"]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    return number


@pytest.fixture
def served(port: int) -> Iterator[str]:
    """The command, running; its address."""
    command = [str(Path(sys.executable).with_name("hitl-guard")), "demo", "chat", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        assert "The chat is on" in process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(20) in (0, -15)


async def test_the_command_serves_a_chat_and_counts_what_the_tool_did(served: str, open_chat: OpenChat) -> None:
    chat = open_chat(f"{served}/api/chat", user=None)
    for _ in range(200):
        chat.open()
        chat.send("Delete /a")
        if chat.status == "ready":  # it listens by now
            break

    chat.approve(chat.tool_part()["approval"]["id"])

    assert httpx2.get(f"{served}/effects").json() == {"executions": 1}
