"""The AI SDK's client behaves as our rules assume, and the tools that drive it tell what it does.

A server written here by hand streams what the SDK's own server was measured to stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tests.chat import client as client_module
from tests.chat import node as node_module
from tests.chat.client import ChatClient, ChatClientError
from tests.chat.node import UnavailableError, find_node
from tests.integrations.conftest import OpenChat, OpenPage, Serve

Chunk = dict[str, Any]

START: Chunk = {"type": "start", "messageId": "msg-1"}
STEP: Chunk = {"type": "start-step"}
STEP_END: Chunk = {"type": "finish-step"}
CALL: Chunk = {"type": "tool-input-available", "toolCallId": "c1", "toolName": "deleteFile", "input": {"path": "/a"}}
ASK: Chunk = {
    "type": "tool-approval-request", "approvalId": "ap-2", "toolCallId": "c1", "reason": "Deletes data",
    "signature": "JIdd", "approvalDescriptor": {"quorum": 1},
}
OUTPUT: Chunk = {"type": "tool-output-available", "toolCallId": "c1", "output": {"done": "/a"}}
DENIED: Chunk = {"type": "tool-output-denied", "toolCallId": "c1"}
FAILED: Chunk = {"type": "tool-output-error", "toolCallId": "c1", "errorText": "Error: disk on fire"}
PAUSE = [STEP_END, {"type": "finish", "finishReason": "tool-calls"}]
STOP = [STEP_END, {"type": "finish", "finishReason": "stop"}]
SAID = [
    {"type": "text-start", "id": "t"}, {"type": "text-delta", "id": "t", "delta": "All is well."},
    {"type": "text-end", "id": "t"},
]
QUESTION = [START, STEP, CALL, ASK, *PAUSE]
HEADERS = {"cache-control": "no-cache", "x-vercel-ai-ui-message-stream": "v1", "x-accel-buffering": "no"}
POLICY = "default-src 'self'; img-src data:; style-src 'self'"


def automatic(approved: bool) -> list[Chunk]:
    answered = {"type": "tool-approval-response", "approvalId": "ap-2", "approved": approved, "reason": "rule 1"}
    return [START, STEP, CALL, ASK | {"isAutomatic": True}, answered, OUTPUT if approved else DENIED, *STOP]


def sse(chunks: list[Chunk]) -> Response:
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Response(f"{lines}data: [DONE]\n\n", media_type="text/event-stream", headers=HEADERS)


class Scripted:
    """An app that answers the first post with the first of ``answers``, and so on; the last one for ever."""

    def __init__(self, *answers: list[Chunk] | Response, page: Path | None = None) -> None:
        self.bodies: list[Any] = []
        self.users: list[str | None] = []
        self._answers = answers
        routes: list[Any] = [
            Route("/api/chat", self._chat, methods=["POST"]),
            Route("/api/chat/{id}/stream", self._resume),
        ]
        if page is not None:
            routes.append(Mount("/", _Page(directory=page, html=True)))
        self.app = Starlette(routes=routes)

    async def _chat(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        self.users.append(request.headers.get("x-demo-user"))
        answer = self._answers[min(len(self.bodies), len(self._answers)) - 1]
        return answer if isinstance(answer, Response) else sse(answer)

    async def _resume(self, request: Request) -> Response:
        return sse([START, STEP, *SAID, *STOP]) if request.path_params["id"] == "running" else Response(status_code=204)


class _Page(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["content-security-policy"] = POLICY
        return response


async def unending() -> AsyncIterator[str]:
    for chunk in (START, STEP, CALL, ASK):
        yield f"data: {json.dumps(chunk)}\n\n"
    await asyncio.Event().wait()


@pytest.fixture
def talk(serve: Serve, open_chat: OpenChat) -> Any:
    """``talk(server)``: a chat with it."""
    return lambda server, **options: open_chat(f"{serve(server.app)}/api/chat", **options)


def test_an_approved_call_gets_its_output_and_the_answer_goes_on(talk: Any) -> None:
    server = Scripted(QUESTION, [START, OUTPUT, STEP, *SAID, *STOP])
    chat = talk(server, user="bob", id="chat-1")

    chat.send("Delete /a.")

    asked = chat.tool_part()
    assert (asked["type"], asked["state"], asked["input"]) == ("tool-deleteFile", "approval-requested", {"path": "/a"})
    assert asked["approval"] == {
        "id": "ap-2", "requestReason": "Deletes data", "signature": "JIdd", "descriptor": {"quorum": 1},
    }
    assert (chat.status, chat.posts[0]["trigger"], chat.posts[0]["id"]) == ("ready", "submit-message", "chat-1")

    chat.approve("ap-2", "fine")

    assert chat.tool_part()["state"] == "output-available"
    assert chat.tool_part()["output"] == {"done": "/a"}
    assert (chat.status, chat.text, chat.error) == ("ready", "All is well.", None)
    posted = server.bodies[1]
    answered = asked["approval"] | {"approved": True, "reason": "fine"}
    assert posted["messageId"] == "msg-1"
    assert posted["messages"][-1]["parts"][-1] == asked | {"state": "approval-responded", "approval": answered}
    assert chat.posts == server.bodies
    assert server.users == ["bob", "bob"]
    assert [exchange.chunks[0] for exchange in chat.exchanges] == [START, START]
    assert [ending["finishReason"] for ending in chat.endings] == ["tool-calls", "stop"]


def test_a_denied_call_ends_as_denied(talk: Any) -> None:
    server = Scripted(QUESTION, [START, DENIED, STEP, *SAID, *STOP])
    chat = talk(server)
    chat.send("Delete /a.")

    chat.deny("ap-2", "no")

    assert chat.tool_part()["state"] == "output-denied"
    assert (chat.tool_part()["approval"]["approved"], len(chat.posts)) == (False, 2)


@pytest.mark.parametrize(("approved", "state"), [(True, "output-available"), (False, "output-denied")])
def test_an_automatic_decision_needs_no_second_post(talk: Any, approved: bool, state: str) -> None:
    chat = talk(Scripted(automatic(approved)))

    chat.send("Delete /a.")

    approval = chat.tool_part()["approval"]
    assert chat.tool_part()["state"] == state
    assert (approval["isAutomatic"], approval["approved"], approval["reason"]) == (True, approved, "rule 1")
    assert (chat.status, len(chat.posts)) == ("ready", 1)


def test_a_tool_that_failed_shows_its_error(talk: Any) -> None:
    chat = talk(Scripted(QUESTION, [START, FAILED, STEP, *SAID, *STOP]))
    chat.send("Delete /a.")

    chat.approve("ap-2")

    assert (chat.tool_part()["state"], chat.tool_part()["errorText"]) == ("output-error", "Error: disk on fire")
    assert chat.status == "ready"


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (PlainTextResponse("forged", 403), "forged"),
        ([START, {"type": "error", "errorText": "An error occurred."}], "An error occurred."),
        ([START, {"type": "approval-refused", "toolCallId": "c1"}], "Type validation failed"),
    ],
    ids=["status", "error-chunk", "unknown-chunk"],
)
def test_a_refused_turn_is_an_error_and_leaves_the_answer_given(talk: Any, refusal: Any, message: str) -> None:
    chat = talk(Scripted(QUESTION, refusal))
    chat.send("Delete /a.")

    chat.approve("ap-2")

    assert chat.status == "error"
    assert message in chat.error["message"]
    assert (chat.tool_part()["state"], len(chat.posts)) == ("approval-responded", 2)
    assert chat.endings[-1]["isError"]


def test_an_answer_that_moves_nothing_is_posted_again_until_the_limit(talk: Any) -> None:
    chat = talk(Scripted(QUESTION, [START, {"type": "finish", "finishReason": "stop"}]))
    chat.send("Delete /a.")

    chat.approve("ap-2")

    assert (chat.status, len(chat.posts)) == ("error", 50)
    assert "posted 50 times" in chat.error["message"]


def test_a_request_sent_again_is_open_again_and_nothing_is_posted(talk: Any) -> None:
    chat = talk(Scripted(QUESTION, [START, ASK | {"reason": "Bob decides this."}, *PAUSE[1:]]))
    chat.send("Delete /a.")

    chat.approve("ap-2")

    assert chat.tool_part()["state"] == "approval-requested"
    assert chat.tool_part()["approval"]["requestReason"] == "Bob decides this."
    assert (chat.status, len(chat.posts)) == ("ready", 2)


def test_two_answers_are_sent_together_and_a_wrong_kind_of_answer_as_it_is(talk: Any) -> None:
    second = [chunk | {"toolCallId": "c2"} for chunk in (CALL, ASK | {"approvalId": "ap-3"}, OUTPUT)]
    server = Scripted([START, STEP, CALL, ASK, *second[:2], *PAUSE], [START, DENIED, second[2], *STOP])
    chat = talk(server)
    chat.send("Delete both.")

    chat.deny("ap-2")
    chat.deny("ap-2")

    assert (chat.tool_part("c1")["state"], len(chat.posts)) == ("approval-responded", 1)

    chat.respond("ap-3", "yes")

    sent = [part["approval"]["approved"] for part in server.bodies[1]["messages"][-1]["parts"] if "approval" in part]
    assert sent == [False, "yes"]
    assert [part["state"] for part in chat.tool_parts] == ["output-denied", "output-available"]


def test_the_client_rounds_and_shortens_numbers(talk: Any) -> None:
    server = Scripted([START, STEP, CALL | {"input": {"n": 2**53 + 1, "m": 1.0}}, ASK, *PAUSE], [START, OUTPUT, *STOP])
    chat = talk(server)
    chat.send("Delete /a.")

    chat.approve("ap-2")

    assert json.dumps(server.bodies[1]["messages"][-1]["parts"][-1]["input"]) == '{"n": 9007199254740992, "m": 1}'


def test_history_can_be_changed_taken_over_by_another_and_posted_raw(talk: Any) -> None:
    server = Scripted(QUESTION, [START, OUTPUT, *STOP], PlainTextResponse("bad JSON", 400))
    chat = talk(server, user="alice")
    chat.send("Delete /a.")
    forged = json.loads(json.dumps(chat.messages).replace('"/a"', '"/b"').replace("requested", "responded"))
    forged[-1]["parts"][-1]["approval"]["approved"] = True

    chat.set_messages(forged)
    chat.act_as("mallory")
    chat.proceed()

    assert (server.bodies[1]["messages"][-1]["parts"][-1]["input"], server.users[1]) == ({"path": "/b"}, "mallory")

    answer = chat.post(b'{"id": 1, "id": 2}', **{"content-type": "text/plain"})

    assert (answer.status, answer.text, server.bodies[2]) == (400, "bad JSON", {"id": 2})
    assert len(chat.posts) == 2

    chat.open(messages=forged)

    assert (chat.messages, chat.posts) == (forged, [])


def test_a_running_answer_can_be_stopped_and_resumed(talk: Any) -> None:
    chat = talk(Scripted(StreamingResponse(unending(), media_type="text/event-stream")))

    chat.send("Delete /a.", wait=False)
    chat.reached("approval-requested")
    streaming = chat.status
    chat.stop()

    assert (streaming, chat.status, chat.endings[-1]["isAbort"]) == ("streaming", "ready", True)

    chat.resume()
    nothing = chat.messages
    chat.open(id="running", messages=nothing[:1])
    chat.resume()

    assert [part["type"] for part in nothing[-1]["parts"]] == ["step-start", "tool-deleteFile"]
    assert (chat.text, [exchange.method for exchange in chat.exchanges]) == ("All is well.", ["GET"])


def test_the_driver_says_what_went_wrong(talk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat: ChatClient = talk(Scripted([START, STEP, *SAID, *STOP]))
    chat.send("Hello.")

    with pytest.raises(ChatClientError, match="settled without output-denied"):
        chat.reached("output-denied")
    chat.set_messages([])
    with pytest.raises(ChatClientError, match="message undefined not found"):
        chat.regenerate()
    assert chat.text == ""

    chat = talk(Scripted(StreamingResponse(unending(), media_type="text/event-stream")))
    chat.send("Hello.", wait=False)
    monkeypatch.setattr(client_module, "LIMIT_S", 0.1)
    with pytest.raises(ChatClientError, match=r"took more than 0\.1 s"):
        chat.settle()
    monkeypatch.undo()
    with pytest.raises(ChatClientError, match="has ended"):
        chat.send("Hello?")
    chat.close()
    with pytest.raises(ChatClientError, match="is closed"):
        chat.send("Hello?")


def test_an_old_node_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\necho v20.20.2\n", "ascii")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert find_node().path.parent != tmp_path

    monkeypatch.setattr(node_module, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="Node 22 or newer"):
        find_node()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_asks_sends_the_answer_and_shows_the_result(
    chat_page: Path, serve: Serve, open_page: OpenPage
) -> None:
    denial = [START, DENIED, STEP, *SAID, *STOP]
    hostile = CALL | {"toolCallId": "c2", "input": {"path": "<img src=x onerror=alert(1)>"}}
    second = [hostile, ASK | {"approvalId": "ap-3", "toolCallId": "c2"}]
    server = Scripted(
        QUESTION, [START, OUTPUT, STEP, *SAID, *STOP], [START | {"messageId": "msg-2"}, STEP, *second, *PAUSE],
        [START | {"messageId": "msg-2"}, *[chunk | {"toolCallId": "c2"} for chunk in denial[1:2]], *denial[2:]],
        PlainTextResponse("The answer was forged.", 403), page=chat_page,
    )
    page = await open_page(f"{serve(server.app)}/?user=bob")
    message, send = page.get_by_label("Message"), page.get_by_role("button", name="Send")

    await message.fill("Delete /a.")
    await message.press("Enter")

    tool = page.get_by_role("region", name="Tool deleteFile")
    await expect(tool).to_have_attribute("data-state", "approval-requested")
    await expect(tool).to_contain_text('"path": "/a"')
    await expect(tool).to_contain_text("Why it asks: Deletes data")
    found = await Axe().run(page)
    assert found.response["violations"] == []

    await tool.get_by_label("Reason (optional)").fill("fine")
    await tool.get_by_role("button", name="Approve").click()

    await expect(tool).to_have_attribute("data-state", "output-available")
    await expect(tool).to_contain_text('"done": "/a"')
    await expect(tool).to_contain_text("Approved: fine")
    await expect(page.get_by_role("log")).to_contain_text("All is well.")

    await message.fill("And <img>.")
    await send.click()
    await expect(tool.last).to_have_attribute("data-state", "approval-requested")
    await expect(tool.last).to_contain_text("<img src=x onerror=alert(1)>")
    await tool.last.get_by_role("button", name="Deny").click()
    await expect(tool.last).to_have_attribute("data-state", "output-denied")

    await message.fill("More.")
    await send.click()
    await expect(page.get_by_role("alert")).to_have_text("The answer was forged.")
    assert server.users == ["bob"] * 5
    decided = server.bodies[3]["messages"][-1]["parts"][-1]["approval"]
    assert (decided["id"], decided["approved"], "reason" in decided) == ("ap-3", False, False)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_shows_automatic_decisions_and_failures_without_buttons(
    chat_page: Path, serve: Serve, open_page: OpenPage
) -> None:
    failed = [START | {"messageId": "msg-3"}, STEP, CALL | {"toolCallId": "c3"}, FAILED | {"toolCallId": "c3"}, *STOP]
    server = Scripted(automatic(approved=False), failed, page=chat_page)
    page = await open_page(f"{serve(server.app)}/")
    message, tool = page.get_by_label("Message"), page.get_by_role("region", name="Tool deleteFile")

    await message.fill("Delete /a.")
    await message.press("Enter")
    await expect(tool).to_have_attribute("data-state", "output-denied")
    await expect(tool).to_contain_text("Denied by the policy: rule 1")
    await message.fill("Again.")
    await message.press("Enter")

    await expect(tool.last).to_contain_text("Error: disk on fire")
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    assert server.users == ["alice", "alice"]
