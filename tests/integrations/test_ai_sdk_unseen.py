"""What an earlier run of a chat did that nobody saw is told under the user's next message, once, before its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from hitl_guard import Guard, Principal
from hitl_guard.agent import Agent, Tool
from hitl_guard.integrations.ai_sdk import Chat, UIMessageStream
from hitl_guard.integrations.ai_sdk.events import asks, chunks_of, tells
from hitl_guard.integrations.ai_sdk.texts import RUN_FAILED
from hitl_guard.models import ApprovalRequest
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import ScriptedModel, UnsafeKeyring, UnsafeMemoryStore
from tests.chat.client import ChatClient
from tests.integrations import test_ai_sdk_chat as chats
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.test_ai_sdk_chat import FOUR_EYES, House
from tests.integrations.wire import applied, checked, kinds

house = chats.house
BOB = Principal("bob")
DELETE = [("c1", "deleteFile", {"n": 1})]


def decided(home: House, approve: bool = True) -> None:
    """Have the only request that waits decided in the inbox."""
    (request,) = home.pending()
    home.decide(request, approve=approve)


def texts(client: ChatClient) -> list[str]:
    """Return the texts of the client's last message, one by one."""
    return [part["text"] for part in client.messages[-1]["parts"] if part["type"] == "text"]


# -- the order, and a new run that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
def test_what_nobody_saw_is_shown_once_though_the_new_run_fails_before_it_starts(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(FOUR_EYES, DELETE, "Deleted.", "Hello.", memory=memory)
    home.client.send("Delete it.")
    decided(home)

    def fails(turn: Any) -> Any:
        raise RuntimeError("no options")

    loop: Any = home.chat.loop
    loop._prepare = fails
    home.client.send("And now?")

    assert ((home.client.error or {})["message"], home.ran) == (RUN_FAILED, [("deleteFile", {"n": 1})])
    assert [part["state"] for part in home.client.tool_parts] == ["output-available"]
    assert texts(home.client) == ["Deleted."]
    loop._prepare = None
    home.client.send("And?")
    assert (home.client.status, texts(home.client), home.client.tool_parts) == ("ready", ["Hello."], [])
    assert home.ran == [("deleteFile", {"n": 1})]


@pytest.mark.parametrize("memory", [True, False])
def test_what_nobody_saw_is_shown_though_the_model_of_the_new_run_fails(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(FOUR_EYES, DELETE, "Deleted.", RuntimeError("no model"), "Hello.", memory=memory)
    home.client.send("Delete it.")
    decided(home)

    home.client.send("And now?")

    assert (home.client.error or {})["message"] == RUN_FAILED
    assert (home.client.tool_part()["output"], texts(home.client)) == ("deleteFile done", ["Deleted."])


@pytest.mark.parametrize("memory", [True, False])
def test_an_earlier_run_that_fails_on_its_way_tells_what_it_had_done_and_fails_no_new_one(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(FOUR_EYES, DELETE, RuntimeError("no model"), "Hello.", memory=memory)
    home.client.send("Delete it.")
    decided(home)

    home.client.send("And now?")

    assert (home.client.status, texts(home.client)) == ("ready", ["Hello."])
    assert (home.client.tool_part()["state"], home.ran) == ("output-available", [("deleteFile", {"n": 1})])


def event(kind: str, run: str = "r", **payload: Any) -> dict[str, Any]:
    return {"type": kind, "run_id": run, "payload": payload}


CALL: dict[str, Any] = {"toolCallId": "c1", "toolName": "look", "args": {}}
UNSEEN = [
    event("tool-result", "old", **CALL, result=1), event("step-start", "old"),
    event("text-delta", "old", id="t", text="Looked."), event("text-end", "old"),
]


async def told(events: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Return the chunks of a run with these events."""
    async def nobody(request_id: str) -> ApprovalRequest | None:
        return None

    async def source() -> AsyncIterator[dict[str, Any]]:
        for one in events:
            if isinstance(one, Exception):
                raise one
            yield one

    stream = UIMessageStream()
    chunks = [chunk async for chunk in chunks_of(source(), stream, request_of=nobody, **options)]
    return checked([*chunks, *stream.end()])


ENDS_OF_A_RUN: dict[str, list[Any]] = {
    "nothing": [], "an error": [event("error")], "an exception": [RuntimeError("x")],
    "a start": [event("start", messageId="m")],
    "no start": [event("step-start"), event("finish", stepResult={"reason": "stop"})],
    "a start, then an error": [event("start", messageId="m"), event("error")],
    "a start, then an exception": [event("start", messageId="m"), RuntimeError("x")],
}


@pytest.mark.parametrize("end", ENDS_OF_A_RUN)
async def test_however_the_new_run_ends_what_came_of_the_earlier_one_is_told_once(end: str) -> None:
    chunks = await told(ENDS_OF_A_RUN[end], before=UNSEEN)

    assert kinds(chunks)[:6] == [
        "tool-input-start", "tool-input-delta", "tool-output-available", "text-start", "text-delta", "text-end",
    ]
    assert kinds(chunks)[6:] == (["error"] if "error" in end or "exception" in end else [])


async def test_texts_of_two_runs_with_one_id_are_two_parts() -> None:
    new = [
        event("start", messageId="m"), event("step-start"), event("text-delta", id="t", text="Hel"),
        event("text-delta", id="t", text="lo."), event("finish", stepResult={"reason": "stop"}),
    ]

    chunks = await told(new, before=UNSEEN)

    said = [chunk for chunk in chunks if chunk["type"].startswith("text-")]
    assert [(chunk["type"], chunk.get("delta")) for chunk in said] == [
        ("text-start", None), ("text-delta", "Looked."), ("text-end", None), ("text-start", None),
        ("text-delta", "Hel"), ("text-delta", "lo."), ("text-end", None),
    ]
    places = [part["type"] for part in applied(chunks)]
    assert places == ["step-start", "tool-look", "step-start", "text", "step-start", "text", "text"]


# -- tools that the browser runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
def test_a_call_of_the_browser_that_an_unseen_run_came_to_is_passed_over_by_the_new_message(
    house: Callable[..., House], memory: bool
) -> None:
    """The user went on without its result, as where a message passes over any call that has no end."""
    policy = FOUR_EYES + b"  - {id: where, tools: [locate], effect: allow}\n"
    home = house(policy, DELETE, [("c2", "locate", {})], "Hello.", "Bye.", memory=memory)
    home.agent._tools["locate"] = Tool("locate")
    home.client.send("Delete it, then locate me.")
    decided(home)

    home.client.send("And now?")

    assert (home.client.status, texts(home.client)) == ("ready", ["Hello."])
    assert [(part["type"], part["state"]) for part in home.client.tool_parts] == [
        ("tool-deleteFile", "output-available")
    ]
    home.client.send("Thanks.")
    assert (home.client.status, texts(home.client)) == ("ready", ["Bye."])
    parts = [part["type"] for message in home.client.messages for part in message["parts"]]
    assert "tool-locate" not in parts  # no browser runs it under another message, or twice


# -- sub-agents ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approve", [True, False])
def test_the_end_of_a_sub_agents_unseen_call_comes_as_its_supervisors_result(
    serve: Serve, open_chat: OpenChat, approve: bool
) -> None:
    with UnsafeMemoryStore() as store:
        policy = FOUR_EYES + b"  - {id: sub, tools: [agent-files], effect: allow}\n"
        guard = Guard(policy=PolicyDocument.from_source(policy, "c.yaml"), keyring=UnsafeKeyring(), store=store)
        ran: list[Any] = []
        inner = Agent("files", model=ScriptedModel(DELETE, "Inner word."), guard=guard,
                      tools=[Tool("deleteFile", execute=ran.append)])
        model = ScriptedModel([("d1", "agent-files", {"prompt": "Delete."})], "All done.", "Hello.", "Bye.")
        chat = Chat(Agent("boss", model=model, agents=[inner], guard=guard), authenticate=chats._who)
        client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")
        client.send("Delete it.")
        (request,) = guard.pending().requests
        guard.decide(request.id, approver=BOB, approve=approve, fingerprint=request.fingerprint)

        client.send("And now?")

        assert (client.status, texts(client), len(client.posts)) == ("ready", ["All done.", "Hello."], 2)
        (part,) = client.tool_parts
        assert (part["type"], part["state"]) == ("tool-agent-files", "output-available")
        assert ran == ([{"n": 1}] if approve else [])
        client.send("Thanks.")
        assert (client.status, texts(client)) == ("ready", ["Bye."])


def test_what_is_inside_a_sub_agent_neither_tells_nor_hides_what_waits() -> None:
    def inside(one: dict[str, Any]) -> dict[str, Any]:
        return event("tool-output", toolCallId="d1", toolName="agent-x", output=one)

    waits = event("tool-call-approval", **CALL, approvalId="a1")

    assert [tells(one) for one in (*UNSEEN, waits, inside(UNSEEN[0]))] == [True, True, True, True, False, False]
    assert [asks(one) for one in (waits, inside(waits), inside(inside(waits)), UNSEEN[0], inside(UNSEEN[0]))] == [
        True, True, True, False, False,
    ]
    assert [asks(one, {"a1"}) for one in (waits, inside(waits))] == [False, False]


# -- a page that also posts by itself when tools have ended ----------------------------------------------------------


def wants_to_post(messages: list[dict[str, Any]]) -> bool:
    """``lastAssistantMessageIsCompleteWithToolCalls`` of the SDK: every call of the last step has its output."""
    if messages[-1]["role"] != "assistant":
        return False
    parts = messages[-1]["parts"]
    step = max((place for place, part in enumerate(parts) if part["type"] == "step-start"), default=-1)
    states = [part["state"] for part in parts[step + 1 :] if "toolCallId" in part]
    return bool(states) and set(states) <= {"output-available", "output-error"}


def left_alone(client: ChatClient) -> int:
    """Let such a page post for as long as it wants to, up to ten times; return how often it did."""
    posts = 0
    while client.status == "ready" and wants_to_post(client.messages) and posts < 10:
        client.proceed()
        posts += 1
    return posts


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_a_page_that_posts_when_tools_have_ended_does_not_post_again_under_a_new_message(
    house: Callable[..., House], memory: bool, approve: bool
) -> None:
    home = house(FOUR_EYES, DELETE, "So it is.", "Hello.", memory=memory)
    home.client.send("Delete it.")
    assert left_alone(home.client) == 0
    decided(home, approve)

    home.client.send("And now?")

    assert (left_alone(home.client), len(home.client.posts), len(home.model.calls)) == (0, 2, 3)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_a_page_that_posts_when_tools_have_ended_comes_to_rest_after_a_call_that_waits_beside_another(
    house: Callable[..., House], memory: bool, approve: bool
) -> None:
    home = house(FOUR_EYES, [*DELETE, ("c2", "pay", {"n": 2})], "Hm.", "Both.", "Hello.", memory=memory)
    home.client.send("Do both.")
    first, second = home.pending()
    home.decide(first, approve=approve)
    home.client.send("And now?")  # the run waits still: what has ended in it is told, the other request stands above
    assert left_alone(home.client) == 0
    home.decide(second)

    home.client.send("And?")

    assert left_alone(home.client) == 0
    assert len(home.ran) == (2 if approve else 1)
    assert (home.client.status, home.pending()) == ("ready", [])


@pytest.mark.parametrize("memory", [True, False])
def test_a_page_that_posts_when_tools_have_ended_comes_to_rest_where_the_new_run_fails(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(FOUR_EYES, DELETE, "Deleted.", RuntimeError("no model"), "Hello.", memory=memory)
    home.client.send("Delete it.")
    decided(home)

    home.client.send("And now?")

    assert (left_alone(home.client), home.client.status, len(home.client.posts)) == (0, "error", 2)
