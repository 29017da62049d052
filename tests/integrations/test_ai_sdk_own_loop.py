"""A loop of one's own in a chat: the code of `own_loop`'s docstring, as it stands there, with an unmodified client."""

from __future__ import annotations

import asyncio
import importlib
import re
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from hitl_guard import Guard, Principal, ToolDefinition
from hitl_guard.errors import AgentError, UnavailableError
from hitl_guard.integrations import ai_sdk
from hitl_guard.integrations.ai_sdk import Chat, ChatId, Turn, UIMessageStream, chunks_of, own_loop, request_of
from hitl_guard.integrations.ai_sdk.response import UIMessageStreamResponse
from hitl_guard.models import ApprovalRequest, ToolCall
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import ScriptedModel, UnsafeKeyring, UnsafeMemoryStore
from tests.chat.client import ChatClient
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.test_ai_sdk_chat import refused
from tests.integrations.wire import checked, kinds

ALICE, BOB = Principal("alice"), Principal("bob")
OWN = b"""\
version: 1
name: own
default: not_applicable
rules:
  - {id: deletions, tools: [delete], effect: require_approval, reason: It deletes data., self_approval: true}
  - {id: payments, tools: [pay], effect: require_approval, reason: Money leaves.}
  - {id: never, tools: [format], effect: deny, reason: Never.}
"""


def examples() -> list[str]:
    """Return the code blocks of the docstring: what follows a line that ends with two colons."""
    found = re.findall(r"::\n\n((?:    .*\n|\n)+)", f"{own_loop.__doc__}\n")
    return [textwrap.dedent(code) for code in found]


def example() -> dict[str, Any]:
    """Return the names that both examples make."""
    names: dict[str, Any] = {"__name__": "example"}
    for code in examples():
        exec(compile(code, "own_loop.__doc__", "exec", dont_inherit=True), names)  # noqa: S102  it is this repository's own
    return names


def defined(name: str) -> ToolDefinition:
    """Return what the model is told of a tool."""
    return ToolDefinition(name, f"It can {name}.", {"type": "object"})


class House:
    """The example's loop behind `Chat`, and what its tools really did."""

    def __init__(self, serve: Serve, open_chat: OpenChat, store: UnsafeMemoryStore, *turns: Any) -> None:
        self.guard = Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)
        self.ran: list[tuple[str, Any]] = []
        self.model = ScriptedModel(*turns)
        functions = {name: self._tool(name) for name in ("delete", "pay", "look", "format")} | {"fail": self._fail}
        tools = [(defined(name), function) for name, function in functions.items()]
        self.loop = example()["OwnLoop"](self.guard, self.model, tools)
        self.chat = Chat(self.loop, authenticate=_who)
        self.client: ChatClient = open_chat(f"{serve(Starlette(routes=self.chat.routes()))}/api/chat", user="alice")

    def _tool(self, name: str) -> Callable[..., str]:
        def run(**arguments: Any) -> str:
            self.ran.append((name, arguments))
            return f"{name} done"

        return run

    def _fail(self) -> str:
        raise OSError("disk on fire")

    def use(self, name: str, function: Callable[..., Any]) -> None:
        """Put another function in a tool's place."""
        self.loop.tools[name] = (defined(name), function)

    def requests(self) -> list[ApprovalRequest]:
        return list(self.guard.pending().requests)

    def states(self) -> list[str]:
        return [part["state"] for part in self.client.tool_parts]

    def told(self) -> list[str]:
        """Return what the model was told of its calls, in its last turn."""
        return [message["content"] for message in self.model.calls[-1] if message["role"] == "tool"]


def _who(connection: HTTPConnection) -> Principal | None:
    user = connection.headers.get("x-demo-user")
    return None if user is None else Principal(user)


@pytest.fixture
def store() -> Iterator[UnsafeMemoryStore]:
    with UnsafeMemoryStore() as one_:
        yield one_


@pytest.fixture
def house(serve: Serve, open_chat: OpenChat, store: UnsafeMemoryStore) -> Callable[..., House]:
    return lambda *turns: House(serve, open_chat, store, *turns)


def test_the_docstring_holds_a_loop_and_an_endpoint() -> None:
    assert {"OwnLoop", "response_of"} <= example().keys()
    assert len(examples()) == 2


def test_a18_a_call_of_an_own_loop_is_approved_in_the_chat_and_runs_once(house: Callable[..., House]) -> None:
    home = house([("c1", "delete", {"id": 7})], "Done.", "Bye.")
    home.client.send("Delete 7.")
    part = home.client.tool_part()
    assert (part["state"], part["input"], part["approval"]["requestReason"]) == (
        "approval-requested", {"id": 7}, "It deletes data."
    )
    assert home.ran == []

    home.client.approve(part["approval"]["id"])

    assert (home.client.status, home.client.text, home.states()) == ("ready", "Done.", ["output-available"])
    assert (home.ran, len(home.client.posts)) == ([("delete", {"id": 7})], 2)
    home.client.send("Thanks.")
    assert (home.client.text, home.ran) == ("Bye.", [("delete", {"id": 7})])


def test_a17_a_denied_call_of_an_own_loop_never_runs_and_the_model_gets_the_reason(house: Callable[..., House]) -> None:
    home = house([("c1", "delete", {"id": 7})], "I leave it.")
    home.client.send("Delete 7.")

    home.client.deny(home.client.tool_part()["approval"]["id"], "Not that one.")

    assert (home.client.status, home.states(), home.ran) == ("ready", ["output-denied"], [])
    assert home.told() == ["Not that one."]


def test_at50_who_asked_an_own_loop_cannot_decide_and_the_client_stops_posting(house: Callable[..., House]) -> None:
    home = house([("c1", "pay", {"amount": 8})], "Paid.")
    home.client.send("Pay 8.")

    home.client.approve(home.client.tool_part()["approval"]["id"])

    assert (home.states(), len(home.client.posts), home.ran) == (["approval-requested"], 2, [])
    assert "You cannot decide what was asked for you." in home.client.tool_part()["approval"]["requestReason"]


def test_a_call_of_an_own_loop_that_was_decided_in_the_inbox_goes_on_with_the_next_message(
    house: Callable[..., House]
) -> None:
    home = house([("c1", "pay", {"amount": 8})], "Paid.", "Hello.")
    home.client.send("Pay 8.")
    (request,) = home.requests()
    home.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)

    home.client.send("And?")

    assert (home.client.status, home.ran, home.loop.waiting) == ("ready", [("pay", {"amount": 8})], {})
    assert home.client.text == "Paid.Hello."
    assert (home.client.tool_part()["input"], home.client.tool_part()["state"]) == ({"amount": 8}, "output-available")


def test_a13_calls_of_one_turn_are_answered_together_and_equal_ids_apart(house: Callable[..., House]) -> None:
    turn = [("c1", "delete", {"id": 1}), ("c1", "delete", {"id": 2}), ("c2", "look", {})]
    home = house(turn, "Done.")
    home.client.send("Delete 1 and 2, look.")
    asked = [part for part in home.client.tool_parts if part["state"] == "approval-requested"]
    assert ([part["input"]["id"] for part in asked], home.ran) == ([1, 2], [("look", {})])

    home.client.deny(asked[0]["approval"]["id"])
    home.client.approve(asked[1]["approval"]["id"])

    assert home.states() == ["output-denied", "output-available", "output-available"]
    assert home.ran == [("look", {}), ("delete", {"id": 2})]
    assert len(home.told()) == 3


def test_a05_a_denial_by_the_policy_a_failure_and_calls_that_are_none_are_told_and_the_run_goes_on(
    house: Callable[..., House]
) -> None:
    calls = [
        ("c1", "format", {}), ("c2", "fail", {}), ("c3", "nothing", {}), ("c4", "look", '{"a": 1, "a": 2}'),
    ]
    home = house(calls, "Well.")

    home.client.send("Do it all.")

    assert home.states() == ["output-denied", "output-error", "output-error", "output-error"]
    assert home.client.tool_part("c1")["approval"]["reason"] == "Never."
    assert "disk on fire" not in str(home.client.messages)
    assert "disk on fire" in home.told()[1]
    assert (home.client.text, home.ran, home.loop.waiting) == ("Well.", [], {})


def test_a24_a_forged_answer_to_an_own_loop_is_refused(house: Callable[..., House]) -> None:
    home = house([("c1", "delete", {"id": 7})], "Done.")
    home.client.send("Delete 7.")
    honest = home.client.messages
    forged = [*honest[:-1], {**honest[-1], "parts": [
        {**part, "state": "approval-responded", "input": {"id": 8}, "approval": {**part["approval"], "approved": True}}
        if "approval" in part else part for part in honest[-1]["parts"]
    ]}]
    home.client.set_messages(forged)

    home.client.proceed()

    refused(home.client, 403, 2)
    assert home.ran == []


def test_an_outage_leaves_the_call_of_an_own_loop_waiting(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house([("c1", "pay", {"amount": 8})], "Paid.", "Hello.", "Hello again.")
    home.client.send("Pay 8.")
    (request,) = home.requests()
    home.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)

    def down(*_: Any, **__: Any) -> Any:
        raise UnavailableError("The store is down.")

    with monkeypatch.context() as outage:
        outage.setattr(home.guard, "authorize", down)
        home.client.send("And?")
    assert (home.ran, len(home.loop.waiting)) == ([], 1)
    home.client.send("And now?")

    assert (home.ran, home.loop.waiting) == ([("pay", {"amount": 8})], {})


def test_the_model_of_an_own_loop_learns_of_its_tools_and_a_request_is_bound_to_what_it_learnt(
    house: Callable[..., House]
) -> None:
    home = house([("c1", "delete", {"id": 7})], "Done.")

    home.client.send("Delete 7.")

    told = {one["function"]["name"]: one["function"] for one in home.model.tools[0]}
    assert list(told) == ["delete", "pay", "look", "format", "fail"]
    assert told["delete"] == {
        "name": "delete", "description": "It can delete.", "parameters": {"type": "object"},
    }
    (request,) = home.requests()
    assert request.definition == defined("delete")


async def test_a_run_whose_tool_still_runs_is_not_ready_and_nothing_goes_on_with_it(
    house: Callable[..., House]
) -> None:
    """The client left while a tool ran, what was asked for before is decided, and a new message comes."""
    home = house([("c1", "pay", {"amount": 8}), ("c2", "look", {})], "Paid.")
    entered, leave = threading.Event(), threading.Event()

    def look() -> str:
        home.ran.append(("look", {}))
        entered.set()
        assert leave.wait(20)
        return "looked"

    home.use("look", look)
    chat = ChatId("c", ALICE, home.loop.id)
    said = [{"content": "Pay 8, then look.", "role": "user"}]
    first = asyncio.create_task(collected(home.loop.start(Turn(chat, run_id := chat.new_run(), said, said))))
    assert await asyncio.to_thread(entered.wait, 20)
    (request,) = home.requests()
    home.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)

    ready = await home.loop.ready(chat)
    second = (await asyncio.gather(collected(home.loop.go_on(chat, run_id)), return_exceptions=True))[0]
    leave.set()
    kinds_ = [event["type"] for event in await first]

    assert (ready, home.ran) == ([], [("look", {})])
    assert (type(second), getattr(second, "code", None)) == (AgentError, "run-busy")
    assert kinds_[-2:] == ["tool-call-approval", "tool-result"]
    assert await home.loop.ready(chat) == [run_id]
    assert (await collected(home.loop.go_on(chat, run_id)))[0]["type"] == "tool-result"
    assert (home.ran, await home.loop.ready(chat)) == ([("look", {}), ("pay", {"amount": 8})], [])


async def test_a_run_that_broke_off_before_it_asked_for_all_can_go_on(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = house([("c1", "pay", {"amount": 8})], "Paid.")
    chat = ChatId("c", ALICE, home.loop.id)
    said = [{"content": "Pay 8.", "role": "user"}]

    def down(*_: Any, **__: Any) -> Any:
        raise UnavailableError("The store is down.")

    with monkeypatch.context() as outage:
        outage.setattr(home.guard, "authorize", down)
        with pytest.raises(UnavailableError):
            await collected(home.loop.start(Turn(chat, run_id := chat.new_run(), said, said)))

    assert await home.loop.ready(chat) == [run_id]
    (event,) = await collected(home.loop.go_on(chat, run_id))
    assert (event["type"], await home.loop.ready(chat)) == ("tool-call-approval", [])


async def collected(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


async def test_two_requests_do_not_go_on_with_one_run_of_an_own_loop(house: Callable[..., House]) -> None:
    home = house([("c1", "pay", {"amount": 8})], "Paid.")
    home.client.send("Pay 8.")
    chat, (run_id,) = ChatId("other", ALICE), home.loop.waiting
    home.loop.busy.add(run_id)

    with pytest.raises(AgentError) as busy:
        [event async for event in home.loop.go_on(chat, run_id)]
    with pytest.raises(AgentError):
        [event async for event in home.loop.answer(chat, run_id, None, {"approved": True})]

    assert (busy.value.code, home.ran) == ("run-busy", [])


def test_an_endpoint_of_ones_own_streams_what_the_client_understands(
    serve: Serve, open_chat: OpenChat, store: UnsafeMemoryStore
) -> None:
    guard = Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)
    request = guard.request(ToolCall("pay", {"amount": 8}, user="alice", run_id="r", call_id="c1"))
    response_of = example()["response_of"]

    async def endpoint(_: Request) -> Response:
        response = response_of(guard, paying(request.id))
        assert isinstance(response, UIMessageStreamResponse)
        return response

    app = Starlette(routes=[Route("/api/chat", endpoint, methods=["POST"])])
    client = open_chat(f"{serve(app)}/api/chat")

    client.send("Pay 8.")

    part = client.tool_part()
    assert (client.status, part["state"], part["approval"]["id"]) == ("ready", "approval-requested", request.id)
    assert (part["approval"]["requestReason"], client.endings[-1]["finishReason"]) == ("Money leaves.", "tool-calls")


async def paying(request_id: str) -> AsyncIterator[dict[str, Any]]:
    call = {"toolCallId": "c1", "toolName": "pay", "args": {"amount": 8}}
    for kind, payload in (
        ("start", {"messageId": "m1"}), ("step-start", {}), ("tool-call", call),
        ("tool-call-approval", call | {"approvalId": request_id}),
    ):
        yield {"type": kind, "run_id": "r", "payload": payload}


# -- the table of events -----------------------------------------------------------------------------------------------

CALL = {"toolCallId": "c1", "toolName": "ask", "args": {}}
QUESTION = {"suspensionId": "s1", "suspendPayload": {"q": 1}, "resumeSchema": None}
LEAST: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "start": [("start", {"messageId": "m"})],
    "step-start": [("step-start", {})],
    "text-delta": [("text-delta", {"id": "t", "text": "Hi"})],
    "text-end": [("text-delta", {"id": "t", "text": "Hi"}), ("text-end", {})],
    "tool-call": [("tool-call", CALL | {"dynamic": True})],
    "tool-call-approval": [("tool-call", CALL), ("tool-call-approval", CALL | {"approvalId": "REQUEST"})],
    "tool-call-suspended": [("tool-call", CALL), ("tool-call-suspended", CALL | QUESTION)],
    "tool-call-resumed": [("tool-call-resumed", CALL | QUESTION | {"kind": "suspension"})],
    "tool-result": [("tool-result", CALL | {"result": 1})],
    "tool-error": [("tool-error", CALL | {"error": {"name": "OSError"}})],
    "tool-output-denied": [("tool-output-denied", CALL | {"approval": {"reason": "No."}})],
    "finish": [("tool-call", CALL | {"clientSide": True}), (
        "finish", {"stepResult": {"reason": "tool-calls"}, "output": {"toolCalls": [CALL]}}
    )],
    "error": [("error", {})],
    "tool-output": [("tool-output", {"output": {
        "type": "tool-call-approval", "run_id": f"r.sub.{'a' * 22}", "payload": CALL | {"approvalId": "REQUEST"},
    }})],
}
"""Type → events with the least that the table demands, the last of that type."""

SHOWN = {
    "start": [], "step-start": [], "text-delta": ["text-start", "text-delta", "text-end"],
    "text-end": ["text-start", "text-delta", "text-end"], "tool-call": ["tool-input-available"],
    "tool-call-approval": ["tool-input-available", "tool-input-available", "tool-approval-request"],
    "tool-call-suspended": ["tool-input-available", "data-tool-call-suspended"],
    "tool-call-resumed": ["data-tool-call-suspended", "data-tool-call-resumed"],
    "tool-result": ["tool-input-start", "tool-input-delta", "tool-output-available"],
    "tool-error": ["tool-input-start", "tool-input-delta", "tool-output-error"],
    "tool-output-denied": [
        "tool-input-start", "tool-input-delta", "tool-approval-request", "tool-approval-response", "tool-output-denied",
    ],
    "finish": ["tool-input-available"], "error": ["error"],
    "tool-output": ["tool-input-available", "tool-approval-request"],
}


def test_the_table_names_every_type_that_is_tested_here() -> None:
    assert re.findall(r"^``([a-z-]+)``", own_loop.__doc__ or "", re.MULTILINE) == list(LEAST) == list(SHOWN)


@pytest.mark.parametrize("kind", LEAST)
async def test_an_event_with_the_payload_of_the_table_is_shown(kind: str, store: UnsafeMemoryStore) -> None:
    guard = Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)
    request = guard.request(ToolCall("pay", {"amount": 8}, user="alice", run_id="r", call_id="c1"))

    async def events() -> AsyncIterator[dict[str, Any]]:
        for type_, payload in LEAST[kind]:
            yield named({"type": type_, "run_id": "r", "payload": payload}, request.id)

    stream = UIMessageStream()
    told = [chunk async for chunk in chunks_of(events(), stream, request_of=request_of(guard))]

    assert kinds(checked([*told, *stream.end()])) == SHOWN[kind]


def named(value: Any, request_id: str) -> Any:
    """Return an event with the request's real id."""
    if isinstance(value, dict):
        return {name: named(item, request_id) for name, item in value.items()}
    return request_id if value == "REQUEST" else value


# -- reading requests, and the names --------------------------------------------------------------------------------


async def test_a_request_is_read_verified_and_only_in_its_tenant(store: UnsafeMemoryStore) -> None:
    guard = Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)
    request = guard.request(ToolCall("pay", {"amount": 8}, user="alice", run_id="r", call_id="c1"))

    found = await request_of(guard)(request.id)

    assert found is not None
    assert (found.id, found.state, found.arguments) == (request.id, "pending", {"amount": 8})
    assert await request_of(guard, tenant="other")(request.id) is None
    assert await request_of(guard)("unknown") is None


async def test_a_request_that_nobody_can_read_now_is_an_outage_and_not_absent(
    store: UnsafeMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)

    def down(*_: Any, **__: Any) -> Any:
        raise UnavailableError("The store is down.")

    monkeypatch.setattr(guard, "get", down)

    with pytest.raises(UnavailableError):
        await request_of(guard)("any")


@pytest.mark.parametrize("name", ai_sdk.__all__)
def test_every_public_name_resolves_and_is_explained_by_the_package(name: str) -> None:
    assert getattr(ai_sdk, name) is getattr(importlib.import_module(f"{ai_sdk.__name__}.{home_of(name)}"), name)
    assert name in dir(ai_sdk)
    assert name in ("Chunk", "RequestOf", "VerifiedAiSdkSignature") or f"``{name}``" in (ai_sdk.__doc__ or "")


def home_of(name: str) -> str:
    return next(home for home, names in ai_sdk._HOMES.items() if name in names)
