"""A loop of one's own that is wrong: its author learns where, the client is told no more than it may, nothing runs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from hitl_guard import Guard, Policy, Principal
from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.ai_sdk import Chat, ChatId, UIMessageStream, chunks_of, request_of, tool_approval
from hitl_guard.integrations.ai_sdk.event_forms import with_withheld
from hitl_guard.integrations.ai_sdk.own_loop import Turn
from hitl_guard.integrations.ai_sdk.texts import RUN_FAILED
from hitl_guard.models import ApprovalRequest, ToolCall
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore
from tests.chat.client import ChatClient
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.test_ai_sdk_own_loop import LEAST, OWN
from tests.integrations.wire import checked, kinds

Event = dict[str, Any]
CALL: dict[str, Any] = {"toolCallId": "c1", "toolName": "delete", "args": {"id": 7}}
NOT_HERE = "A call waits for a decision that cannot be made here"
ALICE = Principal("alice")


def _who(connection: HTTPConnection) -> Principal | None:
    return Principal(connection.headers["x-demo-user"])


class TellingLoop:
    """A loop that tells what it is given, one list of ``(type, payload)`` after the other; ``turn``: the newest run."""

    id = "telling"

    def __init__(self, guard: Guard, *tells: Callable[[Turn], list[tuple[str, Any]]]) -> None:
        self.guard = guard
        self._tells = [*tells]

    async def start(self, turn: Turn) -> AsyncIterator[Event]:
        for kind, payload in self._tells.pop(0)(turn):
            yield {"type": kind, "run_id": turn.run_id, "payload": payload}

    async def go_on(self, chat: ChatId, run_id: str) -> AsyncIterator[Event]:
        raise AssertionError("nothing goes on")
        yield {}

    async def answer(self, chat: ChatId, run_id: str, call_id: str | None, data: Any) -> AsyncIterator[Event]:
        raise AssertionError("nothing is asked")
        yield {}

    async def ready(self, chat: ChatId) -> Sequence[str]:
        return []


@pytest.fixture
def guard() -> Iterator[Guard]:
    with UnsafeMemoryStore() as store:
        yield Guard(policy=PolicyDocument.from_source(OWN, "own.yaml"), keyring=UnsafeKeyring(), store=store)


Open = Callable[..., ChatClient]


@pytest.fixture
def opened(guard: Guard, serve: Serve, open_chat: OpenChat) -> Open:
    def open_(*tells: Callable[[Turn], list[tuple[str, Any]]]) -> ChatClient:
        chat = Chat(TellingLoop(guard, *tells), authenticate=_who)
        return open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")

    return open_


def hello(turn: Turn) -> list[tuple[str, Any]]:
    return [
        ("start", {"messageId": f"m{len(turn.messages)}"}), ("step-start", {}),
        ("text-delta", {"id": "t", "text": "Hello."}), ("finish", {"stepResult": {"reason": "stop"}}),
    ]


async def told_by(guard: Guard, *events: Any) -> list[dict[str, Any]]:
    """Return the chunks of events."""
    async def source() -> AsyncIterator[Any]:
        for event in events:
            yield event

    stream = UIMessageStream()
    told = [chunk async for chunk in chunks_of(source(), stream, request_of=request_of(guard))]
    return checked([*told, *stream.end()])


# -- the form of events ----------------------------------------------------------------------------------------------


def needed() -> list[tuple[str, str]]:
    """Return every type with every key that the table demands of its payload."""
    found = []
    for kind, events in LEAST.items():
        (payload,) = [payload for type_, payload in events[-1:] if type_ == kind]
        optional = {"tool-call": {"dynamic"}, "finish": {"output"}, "tool-output-denied": {"approval"}}.get(kind, set())
        found += [(kind, name) for name in payload if name not in optional]
    return found


def least(kind: str) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(json.dumps(LEAST[kind][-1][1]))
    return payload


@pytest.mark.parametrize(("kind", "name"), needed())
async def test_an_event_that_lacks_something_ends_the_run_and_the_log_says_what_it_lacks(
    kind: str, name: str, guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    payload = least(kind)
    del payload[name]

    chunks = await told_by(guard, {"type": kind, "run_id": "r", "payload": payload})

    assert kinds(chunks) == ["error"]
    assert chunks[-1]["errorText"] == RUN_FAILED
    assert f"(Event '{kind}' must have '{name}': see hitl_guard.integrations.ai_sdk.own_loop.)" in caplog.text


def test_what_the_table_demands_is_tested_for_every_type_that_demands_anything() -> None:
    assert {kind for kind, _ in needed()} == LEAST.keys() - {"step-start", "text-end", "error"}


@pytest.mark.parametrize(("kind", "changed"), [
    ("start", {"messageId": 7}), ("text-delta", {"id": None}), ("text-delta", {"text": b"Hi"}),
    ("tool-call", {"toolCallId": 1}), ("tool-call", {"toolName": None}), ("tool-call", {"occurrence": -1}),
    ("tool-call", {"occurrence": True}), ("tool-call", {"occurrence": "0"}), ("tool-call-approval", {"approvalId": 7}),
    ("tool-call-suspended", {"suspensionId": None}), ("tool-call-resumed", {"kind": "other"}),
    ("tool-result", {"approval": "yes"}), ("tool-result", {"approval": {"approvalId": 7}}),
    ("tool-error", {"error": "disk"}), ("tool-output-denied", {"approval": []}), ("finish", {"stepResult": "stop"}),
    ("finish", {"stepResult": {"reason": 7}}), ("finish", {"output": []}), ("finish", {"output": {"toolCalls": [7]}}),
    ("tool-output", {"output": {}}), ("tool-output", {"output": {"type": "error", "run_id": "r", "payload": None}}),
])
async def test_an_event_that_holds_something_else_ends_the_run_and_the_log_names_it(
    kind: str, changed: dict[str, Any], guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = await told_by(guard, {"type": kind, "run_id": "r", "payload": least(kind) | changed})

    assert kinds(chunks) == ["error"]
    assert f"vent '{kind}'" in caplog.text or kind == "tool-output"
    assert "own_loop.)" in caplog.text
    assert "hitl_guard.errors.ConfigurationError" in caplog.text


@pytest.mark.parametrize("event", [
    7, None, [], "start", {}, {"type": "error", "run_id": "r"}, {"type": "error", "payload": {}},
    {"type": "error", "run_id": None, "payload": {}}, {"type": None, "run_id": "r", "payload": {}},
    {"type": [], "run_id": "r", "payload": {}}, {"type": "error", "run_id": "r", "payload": []},
], ids=repr)
async def test_what_is_no_event_ends_the_run(event: Any, guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    assert kinds(await told_by(guard, event)) == ["error"]
    assert "An event must be a dict with 'type' and 'run_id', both strings, and 'payload', a dict" in caplog.text


async def test_a_sub_agents_event_is_looked_at_like_any_other(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    inner = {"type": "tool-call-approval", "run_id": "r.sub.x", "payload": {"toolCallId": "c1", "toolName": "pay"}}

    await told_by(guard, {"type": "tool-output", "run_id": "r", "payload": {"output": inner}})

    assert "Event 'tool-call-approval' must have 'args'" in caplog.text


async def test_a_coroutine_in_the_place_of_events_is_named_and_closed(
    guard: Guard, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def start() -> None:
        raise AssertionError("nobody awaits it")

    stream = UIMessageStream()
    given: Any = start()
    told = [chunk async for chunk in chunks_of(given, stream, request_of=request_of(guard))]

    assert kinds(told) == ["error"]
    assert "must be async generators that yield events, or return such an iterator, and this is 'coroutine'" in (
        caplog.text
    )
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []


async def test_an_unknown_type_is_passed_over_and_named_in_the_log_once(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"type": "tool-resutl", "run_id": "r", "payload": {}}
    quiet: list[Event] = [{"type": kind, "run_id": "r", "payload": {}} for kind in ("step-finish", "text-start")]
    with caplog.at_level(logging.WARNING, "hitl_guard.asgi"):
        first = await told_by(guard, odd, odd, *quiet)
        second = await told_by(guard, odd)

    assert (kinds(first), kinds(second)) == ([], [])
    assert [record.getMessage() for record in caplog.records] == [
        "Events of type 'tool-resutl' say nothing to a chat, and are passed over: "
        "see hitl_guard.integrations.ai_sdk.own_loop."
    ]


async def test_events_are_closed_whatever_they_hold() -> None:
    closed = []

    async def source() -> AsyncIterator[Any]:
        try:
            yield {}
        finally:
            closed.append(True)

    with pytest.raises(ConfigurationError):
        [event async for event in with_withheld(source())]

    assert closed == [True]


def test_the_client_of_a_loop_with_a_malformed_event_is_told_that_the_run_failed(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    client = opened(lambda turn: [("start", {"messageId": "m"}), ("text-delta", {"id": "t"})], hello)

    client.send("Hi.")

    assert ((client.error or {})["message"], client.status) == (RUN_FAILED, "error")
    assert "Event 'text-delta' must have 'text'" in caplog.text
    client.send("Hi?")
    assert (client.status, client.text) == ("ready", "Hello.")


# -- requests that are not the chat's --------------------------------------------------------------------------------


def asking(guard: Guard, made: list[ApprovalRequest], **changes: Any) -> Callable[[Turn], list[tuple[str, Any]]]:
    """Return what a loop tells that asked the guard with some other facts than its events have."""
    def tells(turn: Turn) -> list[tuple[str, Any]]:
        facts: dict[str, Any] = {"user": turn.chat.user, "run_id": turn.run_id, "call_id": "c1"} | changes
        made.append(guard.request(ToolCall("delete", {"id": 7}, **facts)))
        return [
            ("start", {"messageId": "m"}), ("step-start", {}), ("tool-call", CALL),
            ("tool-call-approval", CALL | {"approvalId": made[0].id}),
        ]

    return tells


@pytest.mark.parametrize(("changes", "what"), [
    ({"run_id": "another"}, "run id"), ({"user": "bob"}, "user or tenant"),
    ({"call_id": "c9"}, "call id or occurrence"), ({"call_id": None}, "call id or occurrence"),
    ({"occurrence": 1}, "call id or occurrence"),
])
def test_a_request_whose_answer_would_be_refused_is_not_offered_and_the_log_says_why(
    guard: Guard, opened: Open, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], what: str
) -> None:
    made: list[ApprovalRequest] = []
    client = opened(asking(guard, made, **changes), hello)

    client.send("Delete 7.")

    part = client.tool_part()
    assert (part["state"], "approval" in part, client.status) == ("input-available", False, "ready")
    assert NOT_HERE in client.text
    assert made[0].id not in json.dumps(client.messages)
    assert f"The loop asked the guard with another {what} than its events have" in caplog.text
    client.send("And?")  # the history is taken
    assert (client.status, client.text, len(client.posts)) == ("ready", "Hello.", 2)


def test_a_request_of_the_chat_itself_is_offered_and_nothing_is_logged(
    guard: Guard, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    client = opened(asking(guard, []), hello)

    client.send("Delete 7.")

    assert client.tool_part()["state"] == "approval-requested"
    assert caplog.records == []


def test_a_request_that_cannot_be_read_is_named_in_the_log(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    client = opened(lambda turn: [
        ("start", {"messageId": "m"}), ("tool-call", CALL), ("tool-call-approval", CALL | {"approvalId": "misspelt"}),
    ])

    client.send("Delete 7.")

    assert NOT_HERE in client.text
    assert "Refused with invalid-approval/unknown: a call that waits in a chat, request miss..." in caplog.text


@pytest.mark.parametrize("changes", [{"run_id": "another"}, {"user": "bob"}])
def test_the_record_of_a_request_of_elsewhere_is_not_told_with_a_result_and_the_chat_goes_on(
    guard: Guard, opened: Open, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    facts: dict[str, Any] = {"user": "alice", "run_id": "r", "call_id": "c1"} | changes
    request = guard.request(ToolCall("pay", {"secret": "hunter2"}, **facts))
    guard.decide(request.id, approver=Principal("zoe"), approve=True, fingerprint=request.fingerprint)
    client = opened(lambda turn: [
        ("start", {"messageId": "m"}), ("tool-result", CALL | {"result": 1, "approval": {"approvalId": request.id}}),
        ("finish", {"stepResult": {"reason": "stop"}}),
    ], hello)

    client.send("Delete 7.")

    part = client.tool_part()
    assert (part["state"], part["output"], "approval" in part) == ("output-available", 1, False)
    assert "hunter2" not in json.dumps(client.messages)
    assert "The loop asked the guard with another" in caplog.text
    client.send("And?")
    assert (client.status, client.text) == ("ready", "Hello.")


def test_a_clients_word_on_whose_request_a_call_waits_for_tells_it_nothing_and_blames_nobody(
    guard: Guard, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = guard.request(ToolCall("pay", {"secret": "hunter2"}, user="bob", run_id="r", call_id="c1"))
    client = opened(hello, lambda turn: [("tool-result", CALL | {"result": 1})])
    client.send("Hi.")
    messages = client.messages
    messages[-1]["parts"].append({
        "type": "tool-delete", "toolCallId": "c1", "state": "approval-requested", "input": {"id": 7},
        "approval": {"id": foreign.id},
    })
    client.set_messages(messages)

    client.proceed()

    assert (client.tool_part()["state"], client.tool_part()["input"]) == ("output-available", {"id": 7})
    assert "hunter2" not in json.dumps([one.text for one in client.exchanges])
    assert caplog.records == []


# -- what the client makes of a result alone, and of the policy's own Yes ----------------------------------------------


def test_a_result_of_a_call_that_was_never_announced_is_a_whole_part(opened: Open) -> None:
    client = opened(lambda turn: [
        ("start", {"messageId": "m"}), ("tool-result", CALL | {"result": {"ok": 1}}),
        ("finish", {"stepResult": {"reason": "stop"}}),
    ], hello)

    client.send("Delete 7.")

    part = client.tool_part()
    assert (part["type"], part["state"], part["input"], part["output"]) == (
        "tool-delete", "output-available", {"id": 7}, {"ok": 1}
    )
    client.send("Thanks.")
    assert (client.status, client.text) == ("ready", "Hello.")


def test_a_call_that_a_rule_allowed_is_shown_as_automatic_where_the_result_names_its_request(
    serve: Serve, open_chat: OpenChat
) -> None:
    with UnsafeMemoryStore() as store:
        guard = Guard(policy=Policy(tool_approval=tool_approval({"delete": {"type": "approved", "reason": "Cheap."}})),
                      keyring=UnsafeKeyring(), store=store)

        def tells(turn: Turn) -> list[tuple[str, Any]]:
            call = ToolCall("delete", {"id": 7}, user=turn.chat.user, run_id=turn.run_id, call_id="c1")
            permit = guard.authorize(call)
            return [
                ("start", {"messageId": "m"}), ("tool-call", CALL),
                ("tool-result", CALL | {"result": 1, "approval": {"approvalId": permit.request_id}}),
                ("finish", {"stepResult": {"reason": "stop"}}),
            ]

        chat = Chat(TellingLoop(guard, tells), authenticate=_who)
        client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")

        client.send("Delete 7.")

        approval = client.tool_part()["approval"]
        assert (approval["isAutomatic"], approval["approved"], approval["reason"]) == (True, True, "Cheap.")


# -- a chat that cannot work does not start --------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["start", "go_on", "answer", "ready"])
def test_a_chat_needs_a_loop_with_every_method(guard: Guard, missing: str) -> None:
    loop: Any = TellingLoop(guard)
    setattr(loop, missing, None)

    with pytest.raises(ConfigurationError, match=f"missing: {missing}\\."):
        Chat(loop, authenticate=_who)


@pytest.mark.parametrize("id_", ["", None, 7])
def test_a_chat_needs_a_loop_with_a_name(guard: Guard, id_: Any) -> None:
    loop = TellingLoop(guard)
    loop.id = id_

    with pytest.raises(ConfigurationError, match="'id'"):
        Chat(loop, authenticate=_who)


def test_a_chat_needs_to_know_who_posts(guard: Guard) -> None:
    nobody: Any = None

    with pytest.raises(ConfigurationError, match="The chat needs to know who posts"):
        Chat(TellingLoop(guard), authenticate=nobody)


@pytest.mark.parametrize("path", ["api/chat", "", "/", "/api/chat/", None])
def test_the_path_of_a_chat_is_one_that_can_be_served(guard: Guard, path: Any) -> None:
    with pytest.raises(ConfigurationError, match="begins with a slash"):
        Chat(TellingLoop(guard), authenticate=_who).routes(path)
