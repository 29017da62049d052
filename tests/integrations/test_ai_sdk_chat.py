"""An unmodified ``useChat`` client against `Chat`: every honest flow works, every dishonest one runs nothing."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from hitl_guard import Guard, NoEffect, Policy, Principal, SQLStore, canonical, clock, signing
from hitl_guard.agent import Agent, Memory, Tool
from hitl_guard.cli.demo_chat import ChatDemo
from hitl_guard.errors import AgentError, ConfigurationError, InvalidApprovalError
from hitl_guard.integrations.ai_sdk import Chat, ChatId, tool_approval
from hitl_guard.integrations.ai_sdk.approval import Options
from hitl_guard.integrations.ai_sdk.texts import AGAIN, CLOSED, RUN_FAILED
from hitl_guard.keyring import Key, Keyring
from hitl_guard.models import ApprovalRequest
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import ScriptedModel, UnsafeKeyring, UnsafeMemoryStore
from tests.chat.client import ChatClient
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.ring_file import RingFile

Message = dict[str, Any]
Change = Callable[[dict[str, Any]], Any]

ARGUMENTS = {"path": "/a", "options": {"recursive": True}}
BOB = Principal("bob")


# -- the demo: the chat's own user confirms ----------------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path: Path) -> ChatDemo:
    return ChatDemo(tmp_path)


@pytest.fixture
def api(demo: ChatDemo, serve: Serve) -> str:
    return f"{serve(demo.app)}/api/chat"


@pytest.fixture
def chat(api: str, open_chat: OpenChat) -> ChatClient:
    return open_chat(api)


def asked(chat: ChatClient, text: str = "Please delete /a") -> str:
    """Have the model ask for a deletion; return the approval's id."""
    chat.send(text)
    part = chat.tool_part()
    assert part["state"] == "approval-requested"
    approval_id: str = part["approval"]["id"]
    return approval_id


def answered(messages: list[Message], change: Change = lambda part: None, **approval: Any) -> list[Message]:
    """Return a history in which the last message's tool parts are answered, as a client could write it."""
    forged = copy.deepcopy(messages)
    for part in forged[-1]["parts"]:
        if "toolCallId" in part:
            part["state"] = "approval-responded"
            part["approval"] |= {"approved": True} | approval
            change(part)
    return forged


def chunks_in(text: str) -> list[Message]:
    """Return the chunks of an answer's body."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def refusals(guard: Guard, *names: str) -> list[tuple[Any, ...]]:
    """Return what the audit log says of every refused call: code and detail, or the members that are named."""
    store = guard._desk.store
    told = [
        json.loads(event.body) for chain in store.chains() for event in store.chain_events(chain)
        if event.type == "call:refused"
    ]
    return [tuple(one[name] for name in names or ("code", "detail")) for one in told]


def status_of(chat: ChatClient) -> int | None:
    """Return the status with which a chat's last post was refused; None where it was not."""
    status: int | None = None if chat.error is None else chat.error["statusCode"]
    return status


def refused(chat: ChatClient, status: int, posts: int) -> None:
    """Check that a chat's last post was refused: the client posted so often, and no part of its moved by that."""
    assert (chat.status, status_of(chat), len(chat.posts)) == ("error", status, posts)
    assert chat.messages == chat.posts[-1]["messages"]


def test_a18_the_user_approves_and_the_tool_runs_once(demo: ChatDemo, chat: ChatClient) -> None:
    approval_id = asked(chat)
    part = chat.tool_part()
    assert (part["input"], part["approval"]["requestReason"]) == (ARGUMENTS, "It deletes data.")
    assert demo.deleted == []

    chat.approve(approval_id, "Fine.")

    part = chat.tool_part()
    assert (chat.status, part["state"], part["output"]) == ("ready", "output-available", "deleted /a")
    assert demo.deleted == [ARGUMENTS]
    assert (len(chat.posts), chat.text) == (2, "It ended like this: deleted /a")
    (vote,) = demo.guard.get(approval_id).votes
    assert (vote.approver, vote.channel, vote.reason) == ("alice", "chat", "Fine.")


@pytest.mark.parametrize("reason", [None, "Not that one."])
def test_a17_a_denial_runs_nothing_and_its_reason_goes_to_the_model(
    demo: ChatDemo, chat: ChatClient, reason: str | None
) -> None:
    chat.deny(asked(chat), reason)

    part = chat.tool_part()
    assert (chat.status, part["state"], part["approval"].get("reason")) == ("ready", "output-denied", reason)
    assert chat.text == f"It ended like this: {reason or 'Tool call was not approved by the user'}"
    assert (demo.deleted, len(chat.posts)) == ([], 2)


def test_a_conversation_goes_on_after_a_call(demo: ChatDemo, chat: ChatClient) -> None:
    chat.approve(asked(chat))
    chat.approve(asked(chat, "And /b"))

    assert [one["path"] for one in demo.deleted] == ["/a", "/b"]
    assert (chat.text, len(chat.posts)) == ("It ended like this: deleted /b", 4)


def test_a_new_message_leaves_the_request_pending(demo: ChatDemo, chat: ChatClient) -> None:
    first = asked(chat)
    second = asked(chat, "No, /b instead")

    chat.approve(second)

    assert [one["path"] for one in demo.deleted] == ["/b"]
    assert demo.guard.get(first).state == "pending"


def test_an_answer_that_comes_with_a_new_message_counts_and_its_call_runs(demo: ChatDemo, chat: ChatClient) -> None:
    first = asked(chat)
    chat.set_messages(answered(chat.messages))

    chat.send("And now /b")

    assert demo.guard.get(first).state == "succeeded"
    assert [one["path"] for one in demo.deleted] == ["/a"]
    ran, waits = chat.tool_parts
    assert [(one["input"]["path"], one["state"]) for one in (ran, waits)] == [
        ("/a", "output-available"), ("/b", "approval-requested"),
    ]
    chat.approve(waits["approval"]["id"])
    assert [one["path"] for one in demo.deleted] == ["/a", "/b"]


def forge_part(part: Message) -> None:
    part["approval"] = {"id": "aitxt-0123456789abcdef01234567", "approved": True}


def forge_key_id(part: Message, **changes: Any) -> None:
    """Name a key that nobody has, which needs none; with ``output`` as if the call had ended."""
    payload = canonical.decode(signing.decode(part["approval"]["signature"].partition(".")[0].encode()) or b"")
    forged = signing.encode(canonical.canonicalize({**payload, "kid": "k-nobody"})) + b"." + signing.encode(bytes(32))
    part["approval"] |= {"signature": forged.decode()} | ({"id": changes.pop("id")} if "id" in changes else {})
    part |= changes | ({"state": "output-available"} if "output" in changes else {})


FORGED: dict[str, Change] = {
    "input": lambda part: part["input"].update(path="/etc"),
    "input within": lambda part: part["input"]["options"].update(recursive=False),
    "one more argument": lambda part: part["input"].update(force=True),
    "tool name": lambda part: part.update(type="tool-dropTable"),
    "dynamic tool": lambda part: part.update(type="dynamic-tool", toolName="dropTable"),
    "call id": lambda part: part.update(toolCallId="call_9"),
    "signature": lambda part: part["approval"].update(signature=part["approval"]["signature"][:-4] + "AAAA"),
    "no signature": lambda part: part["approval"].pop("signature"),
    "an empty signature": lambda part: part["approval"].update(signature=""),
    "the signature of nothing": lambda part: part["approval"].update(signature="JIdd"),
    "approval id": lambda part: part["approval"].update(id="aitxt-unknown"),
    "__proto__": lambda part: part["approval"].update(id="__proto__"),
    "constructor": lambda part: part["approval"].update(id="constructor"),
    "forged from nothing": forge_part,
    "unknown key id": forge_key_id,
    "unknown key id and approval id": lambda part: forge_key_id(part, id="aitxt-unknown"),
    "unknown key id in history": lambda part: forge_key_id(part, output="gone", input={"n": 999}),
    "unknown key id and approval id in history": lambda part: forge_key_id(
        part, id="aitxt-unknown", output="gone", input={"n": 999}
    ),
    "inputSchemaInput": lambda part: part["approval"].update(inputSchemaInput={"path": "/etc"}),
    "provider executed": lambda part: part.update(providerExecuted=True, approval={"id": "x", "approved": True}),
}
REFUSED: dict[str, tuple[int, str, str | None]] = {
    "input": (403, "args-mismatch", None),
    "input within": (403, "args-mismatch", None),
    "one more argument": (403, "args-mismatch", None),
    "tool name": (403, "args-mismatch", None),
    "dynamic tool": (403, "args-mismatch", None),
    "call id": (403, "scope-mismatch", None),
    "signature": (403, "invalid-signature", "mismatch"),
    "no signature": (403, "invalid-signature", "missing"),
    "an empty signature": (400, "invalid-approval", "malformed"),
    "the signature of nothing": (400, "invalid-approval", "malformed"),
    "approval id": (403, "invalid-approval", "unknown"),
    "__proto__": (403, "invalid-approval", "unknown"),
    "constructor": (403, "invalid-approval", "unknown"),
    "forged from nothing": (403, "invalid-signature", "missing"),
    "unknown key id": (403, "key-unknown", None),
    "unknown key id and approval id": (403, "key-unknown", None),
    "unknown key id in history": (403, "key-unknown", None),
    "unknown key id and approval id in history": (403, "key-unknown", None),
    "inputSchemaInput": (400, "invalid-approval", "malformed"),
    "provider executed": (403, "invalid-signature", "missing"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a25_a26_what_was_changed_after_signing_is_refused_and_nothing_runs(
    demo: ChatDemo, chat: ChatClient, name: str
) -> None:
    status, *why = REFUSED[name]
    approval_id = asked(chat)
    honest = chat.messages
    chat.set_messages(answered(honest, FORGED[name]))

    chat.proceed()

    refused(chat, status, 2)
    assert (refusals(demo.guard), demo.deleted) == ([tuple(why)], [])
    assert demo.guard.get(approval_id).state == "pending"
    chat.set_messages(honest)
    chat.approve(approval_id)
    assert demo.deleted == [ARGUMENTS]


@pytest.mark.parametrize("approved", ["false", "true", "", 1, 0, None, {}, []])
def test_a15_an_answer_that_is_no_boolean_decides_nothing(demo: ChatDemo, chat: ChatClient, approved: Any) -> None:
    approval_id = asked(chat)

    chat.respond(approval_id, approved)
    if len(chat.posts) == 1:
        chat.proceed()

    refused(chat, 400, 2)
    assert demo.deleted == []
    assert refusals(demo.guard) == [("invalid-approval", "malformed")]
    assert demo.guard.get(approval_id).state == "pending"


def test_a24_an_approval_that_is_posted_again_runs_nothing_again(demo: ChatDemo, chat: ChatClient) -> None:
    approval_id = asked(chat)
    chat.approve(approval_id)
    body = chat.posts[-1]

    answers = [chat.post(body) for _ in range(3)]

    assert [answer.status for answer in answers] == [200] * 3
    assert [chunks_in(answer.text)[-2] for answer in answers] == [
        {"type": "tool-output-available", "toolCallId": "call_1", "output": "deleted /a"}
    ] * 3
    assert demo.deleted == [ARGUMENTS]


def test_a24_a_replayed_history_moves_on_and_the_client_stops_posting(demo: ChatDemo, chat: ChatClient) -> None:
    asked(chat)
    before = answered(chat.messages)
    chat.approve(chat.tool_part()["approval"]["id"])
    chat.set_messages(before)

    chat.proceed()

    part = chat.tool_part()
    assert (chat.status, part["state"], part["output"]) == ("ready", "output-available", "deleted /a")
    assert (demo.deleted, len(chat.posts)) == ([ARGUMENTS], 3)


def test_a24_an_old_answer_in_a_later_message_runs_nothing(demo: ChatDemo, chat: ChatClient) -> None:
    asked(chat)
    part = answered(chat.messages)[-1]["parts"]
    chat.approve(chat.tool_part()["approval"]["id"])
    chat.set_messages([*chat.messages, {"id": "forged", "role": "assistant", "parts": part}])

    chat.proceed()

    assert (chat.status, chat.tool_part()["state"]) == ("ready", "output-available")
    assert (demo.deleted, len(chat.posts)) == ([ARGUMENTS], 3)


def test_a17_a_denial_that_comes_back_as_an_approval_stays_a_denial(demo: ChatDemo, chat: ChatClient) -> None:
    asked(chat)
    before = chat.messages
    chat.deny(chat.tool_part()["approval"]["id"], "No.")
    chat.set_messages(answered(before))

    chat.proceed()

    part = chat.tool_part()
    assert (chat.status, part["state"], part["approval"]["approved"]) == ("ready", "output-denied", False)
    assert (demo.deleted, len(chat.posts)) == ([], 3)


def test_a17_an_approval_that_comes_back_as_a_denial_is_told_as_it_is(demo: ChatDemo, chat: ChatClient) -> None:
    asked(chat)
    before = chat.messages
    chat.approve(chat.tool_part()["approval"]["id"])
    chat.set_messages(answered(before, approved=False))

    chat.proceed()

    part = chat.tool_part()
    assert (chat.status, part["state"], part["approval"]["approved"]) == ("ready", "output-error", True)
    assert part["errorText"] == CLOSED["succeeded"]
    assert (demo.deleted, len(chat.posts)) == ([ARGUMENTS], 3)


def test_a24_approve_and_deny_of_one_call_are_refused_together(demo: ChatDemo, chat: ChatClient) -> None:
    approval_id = asked(chat)
    forged = answered(chat.messages)
    forged[-1]["parts"] += answered(chat.messages, approved=False)[-1]["parts"]
    chat.set_messages(forged)

    chat.proceed()

    refused(chat, 400, 2)
    assert (refusals(demo.guard), demo.deleted) == ([("invalid-approval", "repeated")], [])
    assert demo.guard.get(approval_id).state == "pending"


def test_a23_the_same_answer_in_another_chat_is_refused(
    demo: ChatDemo, api: str, chat: ChatClient, open_chat: OpenChat
) -> None:
    asked(chat)
    other = open_chat(api, id="another-chat", messages=answered(chat.messages))

    other.proceed()

    refused(other, 403, 1)
    assert demo.deleted == []
    assert refusals(demo.guard) == [("invalid-approval", "unknown")]


def test_a23_the_same_answer_of_another_user_is_refused(demo: ChatDemo, chat: ChatClient) -> None:
    asked(chat)
    chat.set_messages(answered(chat.messages))
    chat.act_as("mallory")

    chat.proceed()

    refused(chat, 403, 2)
    assert (refusals(demo.guard), demo.deleted) == ([("invalid-approval", "unknown")], [])


def test_a23_a_history_that_claims_a_result_of_a_call_that_did_not_run_is_refused(
    demo: ChatDemo, chat: ChatClient
) -> None:
    asked(chat)
    chat.set_messages(answered(chat.messages, lambda part: part.update(state="output-available", output="deleted")))

    chat.send("Go on.")

    refused(chat, 403, 2)
    assert (refusals(demo.guard), demo.deleted) == ([("invalid-approval", "pending")], [])


@pytest.mark.parametrize(("change", "status"), [
    (lambda body: body.update(messages=[]), 400), (lambda body: body.pop("id"), 400),
    (lambda body: body.update(trigger="resume"), 400), (lambda body: body.update(resumeData={"approved": True}), 400),
    (lambda body: body.update(resumeData={"approved": True}, runId="somebody's"), 404),
])
def test_a23_a_post_that_is_none_is_refused(
    demo: ChatDemo, chat: ChatClient, change: Callable[[dict[str, Any]], Any], status: int
) -> None:
    asked(chat)
    body = copy.deepcopy(chat.posts[-1])
    change(body)

    assert chat.post(body).status == status
    assert demo.deleted == []


@pytest.mark.parametrize(("body", "headers", "status"), [
    ("{", {}, 400), ('{"id":"a","id":"b","messages":[]}', {}, 400), ("[]", {}, 400),
    ("{}", {"content-type": "text/plain"}, 415), ("x" * 5_000_000, {}, 413),
])
def test_a_body_that_cannot_be_read_is_a_problem(
    chat: ChatClient, body: str, headers: dict[str, str], status: int
) -> None:
    assert chat.post(body, **headers).status == status


def test_a27_keys_and_secrets_reach_no_client(demo: ChatDemo, chat: ChatClient) -> None:
    chat.approve(asked(chat))

    secret = demo.guard._desk.signer.keyring.dump().reveal().decode()
    key = demo.guard._desk.signer.keyring.keys[0]
    seen = "".join(one.text for one in chat.exchanges) + json.dumps(chat.messages)
    parts = [part for part in secret.split('"') if len(part) > 30]
    assert key.id in secret
    assert parts
    assert "signature" in seen
    assert [part for part in parts if part in seen] == []


# -- other rules ---------------------------------------------------------------------------------------------------


FOUR_EYES = b"""\
version: 1
name: four-eyes
default: deny
rules:
  - {id: deletions, tools: [deleteFile, pay], effect: require_approval, reason: It deletes data.}
  - {id: looking, tools: [look], effect: allow}
  - {id: never, tools: [format], effect: deny, reason: Never.}
"""
OWN = FOUR_EYES.replace(b"data.}", b"data., self_approval: true}")


class House:
    """An agent with scripted turns behind `Chat`, and what its tools really did."""

    def __init__(self, serve: Serve, open_chat: OpenChat, policy: Any, *turns: Any, memory: bool = True,
                 results: dict[str, Any] | None = None, **options: Any) -> None:
        self.results = results or {}
        self.store = UnsafeMemoryStore()
        whole = PolicyDocument.from_source(policy, "chat.yaml") if isinstance(policy, bytes) else policy
        self.guard = Guard(policy=whole, keyring=UnsafeKeyring(), store=self.store)
        self.ran: list[tuple[str, Any]] = []
        self.model = ScriptedModel(*turns)
        self.agent = Agent("bot", model=self.model, tools=[
            Tool(name, execute=self._tool(name)) for name in ("deleteFile", "pay", "look", "format")
        ], guard=self.guard, memory=memory, **options)
        self.chat = Chat(self.agent, authenticate=_who)
        self.app = Starlette(routes=self.chat.routes())
        self.api = f"{serve(self.app)}/api/chat"
        self.client = open_chat(self.api)

    def _tool(self, name: str) -> Callable[[dict[str, Any]], Any]:
        def run(args: dict[str, Any]) -> Any:
            self.ran.append((name, args))
            return self.results.get(name, f"{name} done")

        return run

    def pending(self) -> list[ApprovalRequest]:
        return list(self.guard.pending().requests)

    def decide(self, request: ApprovalRequest, approve: bool = True, **options: Any) -> None:
        self.guard.decide(request.id, approver=BOB, approve=approve, fingerprint=request.fingerprint, **options)


def _who(connection: HTTPConnection) -> Principal | None:
    user = connection.headers.get("x-demo-user")
    return None if user is None else Principal(user)


@pytest.fixture
def house(serve: Serve, open_chat: OpenChat) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(policy: Any, *turns: Any, **options: Any) -> House:
        houses.append(House(serve, open_chat, policy, *turns, **options))
        return houses[-1]

    yield make
    for one in houses:
        one.store.close()


def test_nobody_is_served_without_a_login(house: Callable[..., House]) -> None:
    home = house(OWN, "hi")
    home.client.act_as(None)

    home.client.send("hi")

    assert (home.client.error or {})["statusCode"] == 401
    assert home.model.calls == []


@pytest.mark.parametrize("memory", [True, False])
def test_a13_two_calls_that_wait_are_answered_one_after_the_other(house: Callable[..., House], memory: bool) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1}), ("c2", "pay", {"n": 2})], "Both are done.", memory=memory)
    home.client.send("Do both.")
    first, second = home.client.tool_parts
    home.client.approve(second["approval"]["id"])
    assert (home.ran, len(home.client.posts)) == ([], 1)  # the client waits for the other answer

    home.client.proceed()  # the page sends all the same

    assert home.ran == [("pay", {"n": 2})]
    assert [part["state"] for part in home.client.tool_parts] == ["approval-requested", "output-available"]
    assert len(home.model.calls) == 1  # the model is not asked before all is answered

    home.client.approve(first["approval"]["id"])

    assert home.ran == [("pay", {"n": 2}), ("deleteFile", {"n": 1})]
    assert [part["state"] for part in home.client.tool_parts] == ["output-available"] * 2
    assert (home.client.text, len(home.model.calls)) == ("Both are done.", 2)
    assert [one["content"] for one in home.model.calls[1][-2:]] == ["deleteFile done", "pay done"]


def test_a26_of_two_answers_one_bad_signature_refuses_both_and_spends_none(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1}), ("c2", "pay", {"n": 2})], "Done.")
    home.client.send("Do both.")
    honest = home.client.messages
    forged = answered(honest)
    parts = [part for part in forged[-1]["parts"] if "toolCallId" in part]
    parts[0]["approval"]["signature"], parts[1]["approval"]["signature"] = (
        parts[1]["approval"]["signature"], parts[0]["approval"]["signature"],
    )
    home.client.set_messages(forged)

    home.client.proceed()

    refused(home.client, 403, 2)
    assert (refusals(home.guard), home.ran) == ([("invalid-approval", "unknown")], [])
    assert [request.state for request in home.pending()] == ["pending"] * 2


def test_at50_the_requester_is_told_who_decides_and_the_client_stops_posting(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], "Deleted.")
    home.client.send("Delete it.")
    approval = home.client.tool_part()["approval"]
    assert approval["descriptor"]["selfApproval"] is False

    home.client.approve(approval["id"])

    part = home.client.tool_part()
    assert (home.client.status, part["state"], home.ran) == ("ready", "approval-requested", [])
    assert "You cannot decide what was asked for you." in part["approval"]["requestReason"]
    assert len(home.client.posts) == 2
    home.decide(home.pending()[0], reason="Checked.")
    home.client.approve(part["approval"]["id"])
    part = home.client.tool_part()
    assert (part["state"], home.ran) == ("output-available", [("deleteFile", {"n": 1})])


def test_a17_what_somebody_denied_elsewhere_is_told_when_the_user_answers(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], "Then not.")
    home.client.send("Delete it.")
    home.decide(home.pending()[0], approve=False, reason="No.")

    home.client.approve(home.client.tool_part()["approval"]["id"])

    part = home.client.tool_part()
    assert (part["state"], part["approval"]["approved"], part["approval"]["reason"]) == ("output-denied", False, "No.")
    assert (home.client.text, home.ran) == ("Then not.", [])


def test_x14_arguments_that_somebody_edited_are_shown_before_they_are_approved(house: Callable[..., House]) -> None:
    home = house(OWN.replace(b"self_approval: true", b"self_approval: true, edit: true, quorum: 2"),
                 [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    asked_ = home.pending()[0]
    home.decide(asked_, arguments={"n": 7})

    home.client.approve(asked_.id)

    part = home.client.tool_part()
    assert (part["state"], part["input"], home.ran) == ("approval-requested", {"n": 7}, [])
    assert "Somebody changed the arguments" in part["approval"]["requestReason"]
    home.client.approve(part["approval"]["id"])
    assert home.ran == [("deleteFile", {"n": 7})]
    assert home.client.tool_part()["state"] == "output-available"


def test_a_quorum_says_that_others_must_decide_too(house: Callable[..., House]) -> None:
    home = house(OWN.replace(b"self_approval: true", b"self_approval: true, quorum: 2"),
                 [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")

    home.client.approve(home.client.tool_part()["approval"]["id"])

    part = home.client.tool_part()
    assert (part["state"], home.ran, len(home.client.posts)) == ("approval-requested", [], 2)
    assert "Others must decide, too." in part["approval"]["requestReason"]
    home.decide(home.pending()[0])
    home.client.approve(part["approval"]["id"])
    assert home.ran == [("deleteFile", {"n": 1})]


def test_numbers_that_a_browser_writes_differently_are_the_same_call_and_the_stored_ones_run(
    house: Callable[..., House]
) -> None:
    raw = '{"amount":1.0,"zero":-0.0,"id":9007199254740993,"tiny":1e-7,"10":"b","2":"a"}'
    home = house(OWN, [("c1", "pay", raw)], "Paid.")
    home.client.send("Pay.")
    part = home.client.tool_part()
    assert "/id = 9007199254740993" in part["approval"]["requestReason"]

    home.client.approve(part["approval"]["id"])

    posted = home.client.posts[-1]["messages"][-1]["parts"]
    assert next(one for one in posted if "toolCallId" in one)["input"]["id"] == 9007199254740992
    ((tool, arguments),) = home.ran
    assert tool == "pay"
    assert sorted(json.dumps(arguments)[1:-1].split(", ")) == [  # as text: 1 == 1.0, and 0 == -0.0
        '"10": "b"', '"2": "a"', '"amount": 1', '"id": 9007199254740993', '"tiny": 1e-07', '"zero": 0',
    ]
    assert home.client.tool_part()["state"] == "output-available"


def test_a05_what_the_policy_denies_is_an_automatic_denial(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "format", {}), ("c2", "look", {"q": 1})], "Looked.")

    home.client.send("Format and look.")

    denied, looked = home.client.tool_parts
    assert (denied["state"], denied["approval"]["isAutomatic"], denied["approval"]["approved"]) == (
        "output-denied", True, False,
    )
    assert (looked["state"], looked["approval"]["isAutomatic"], looked["approval"]["approved"]) == (
        "output-available", True, True,
    )
    assert home.ran == [("look", {"q": 1})]


def test_a05_a_history_with_an_automatic_denial_is_taken(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "format", {})], "Not possible.", [("c2", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Format.")

    home.client.send("Then delete.")
    home.client.approve(home.client.tool_part()["approval"]["id"])

    assert home.ran == [("deleteFile", {"n": 1})]


def test_a16_a_loop_without_memory_gets_the_conversation_from_the_client(house: Callable[..., House]) -> None:
    home = house(OWN, "Hello.", [("c1", "deleteFile", {"n": 1})], "Done.", "Bye.", memory=False)
    home.client.send("Hi.")
    home.client.send("Delete it.")
    home.client.approve(home.client.tool_part()["approval"]["id"])
    home.client.send("Thanks.")

    assert home.client.text == "Bye."
    assert [(one["role"], one.get("content")) for one in home.model.calls[-1]] == [
        ("user", "Hi."), ("assistant", "Hello."), ("user", "Delete it."), ("assistant", None),
        ("tool", "deleteFile done"), ("assistant", "Done."), ("user", "Thanks."),
    ]


def test_a_store_that_is_down_is_no_denial(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    approval_id = home.client.tool_part()["approval"]["id"]
    store, home.guard._desk.store = home.guard._desk.store, _Down()

    home.client.approve(approval_id)
    home.guard._desk.store = store

    assert (home.client.error or {})["statusCode"] == 503
    assert (home.ran, home.pending()[0].state) == ([], "pending")
    home.client.proceed()
    assert home.ran == [("deleteFile", {"n": 1})]


# -- what the SDK's own server was measured to run, and this one does not ----------------------------------------------


def test_a24_a_denial_by_the_policy_that_comes_back_as_an_approval_is_refused(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "format", {})], "Not possible.", "Hm.")
    home.client.send("Format.")
    forged = answered(home.client.messages, isAutomatic=False)
    home.client.set_messages(forged)

    home.client.proceed()

    refused(home.client, 403, 2)
    assert home.ran == []
    # Nor where another policy has no opinion by now.
    later = Guard(policy=PolicyDocument.from_source(FREE, "c.yaml"), keyring=home.guard._desk.signer.keyring,
                  store=home.store)
    home.agent.guard._desk.policy = later._desk.policy
    home.client.proceed()
    refused(home.client, 403, 3)
    assert home.ran == []


@pytest.mark.parametrize("value", ["DENY", False, {}, {"type": "deny"}, {"decision": "denied"}, None, "raise"], ids=str)
def test_a24_a_policy_that_answers_nothing_known_at_the_replay_runs_nothing(
    house: Callable[..., House], value: Any
) -> None:
    answers: list[Any] = ["user-approval"]

    def policy(input: dict[str, Any], options: Options) -> Any:
        if answers[-1] == "raise":
            raise RuntimeError("boom")
        return answers[-1]

    home = house(Policy(documents=[PolicyDocument.from_source(OWN, "c.yaml")],
                        tool_approval=tool_approval({"deleteFile": policy})),
                 [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    requests = home.pending()
    answers.append(value)

    home.client.approve(home.client.tool_part()["approval"]["id"])

    part, (request,) = home.client.tool_part(), requests
    state = home.guard.get(request.id).state
    assert len(home.client.posts) == 2
    if value is None:  # no opinion, and the document still asks a person, who said yes
        assert (part["state"], home.ran, state) == ("output-available", [("deleteFile", {"n": 1})], "succeeded")
        return
    assert ((home.client.error or {})["message"], part["state"]) == (RUN_FAILED, "approval-responded")
    assert (home.ran, state, len(home.model.calls)) == ([], "approved", 1)
    answers.append("user-approval")
    home.client.proceed()  # nothing was spent
    assert (home.client.tool_part()["state"], home.ran) == ("output-available", [("deleteFile", {"n": 1})])


def test_a08_a_policy_with_a_misspelt_tool_does_not_start(house: Callable[..., House]) -> None:
    with pytest.raises(ConfigurationError, match="deletFile"):
        house(Policy(tool_approval=tool_approval({"deletFile": "user-approval"})), [("c1", "deleteFile", {"n": 1})])


def test_a24_an_approval_of_a_tool_that_needs_none_is_refused_too(house: Callable[..., House]) -> None:
    home = house(FREE, "Hello.", "Hm.")
    home.client.send("Hi.")
    call = {"type": "tool-deleteFile", "toolCallId": "c9", "state": "approval-responded", "input": {"n": 1},
            "approval": {"id": "aitxt-1", "approved": True}}
    messages = home.client.messages
    messages[-1]["parts"].append(call)
    home.client.set_messages(messages)

    home.client.proceed()

    refused(home.client, 403, 2)
    assert home.ran == []


def test_a24_the_same_answer_under_another_text_of_the_user_runs_nothing_again(
    demo: ChatDemo, chat: ChatClient
) -> None:
    asked(chat)
    before = answered(chat.messages)
    chat.approve(chat.tool_part()["approval"]["id"])
    before[0]["parts"] = [{"type": "text", "text": "Something else entirely"}]
    chat.set_messages(before)

    chat.proceed()

    part = chat.tool_part()
    assert (part["state"], part["output"], demo.deleted) == ("output-available", "deleted /a", [ARGUMENTS])


# -- row by row ------------------------------------------------------------------------------------------------------

FREE = b"""\
version: 1
name: free
default: not_applicable
rules: []
"""


def test_a01_a_tool_runs_at_once_where_no_approval_is_configured(house: Callable[..., House]) -> None:
    home = house(FREE, [("c1", "deleteFile", {"n": 1})], "Done.")

    home.client.send("Delete it.")

    part = home.client.tool_part()
    assert (part["state"], "approval" in part, home.ran) == ("output-available", False, [("deleteFile", {"n": 1})])


@pytest.mark.parametrize("configuration", [
    {"deleteFile": "user-approval"}, {"deleteFile": {"type": "user-approval", "reason": "Sure?"}},
    {"deleteFile": lambda input, options: "user-approval" if input["n"] == 1 else None},
    lambda options: "user-approval" if options.tool_call.input["n"] == 1 else None,
], ids=["status", "object", "function", "whole"])
def test_a02_the_configuration_is_taken_by_streams_and_by_generate(
    house: Callable[..., House], configuration: Any
) -> None:
    turn, free = [("c1", "deleteFile", {"n": 1})], [("c1", "look", {"n": 2})]
    home = house(Policy(tool_approval=tool_approval(configuration)), turn, turn, turn, free, "Looked.")
    home.client.send("Delete it.")

    assert home.client.tool_part()["state"] == "approval-requested"
    assert home.agent.sync.generate("Delete it.", user="alice").status == "suspended"
    assert [event["type"] for event in home.agent.sync.stream("Delete it.", user="alice")][-1] == "tool-call-approval"
    assert home.ran == []
    assert home.agent.sync.generate("Look.", user="alice").status == "success"  # what it does not name is free
    assert home.ran == [("look", {"n": 2})]


@pytest.mark.parametrize("memory", [True, False])
def test_a03_what_a_provider_ran_is_no_business_of_ours(house: Callable[..., House], memory: bool) -> None:
    home = house(OWN, "Noted.", memory=memory)
    searched = {
        "type": "tool-web_search", "toolCallId": "ws_1", "state": "output-available", "input": {"q": "x"},
        "output": [], "providerExecuted": True,
    }
    home.client.set_messages([
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Search."}]},
        {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, searched]},
    ])

    home.client.send("And?")

    assert (home.client.status, home.client.text, home.ran) == ("ready", "Noted.", [])
    assert (home.pending(), refusals(home.guard)) == ([], [])
    told = [(one["role"], one["content"]) for one in home.model.calls[0]]
    assert told == ([("user", "And?")] if memory else [
        ("user", "Search."), ("assistant", None), ("tool", "[]"), ("user", "And?"),
    ])


@pytest.mark.parametrize("memory", [True, False])
def test_a03_a_call_of_our_own_tool_that_a_client_marks_as_the_providers_is_guarded_all_the_same(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], [("c2", "pay", {"n": 2})], "Done.", memory=memory)
    home.client.send("Delete, then pay.")
    (request,) = home.pending()
    marked = home.client.messages
    marked[-1]["parts"][-1]["providerExecuted"] = True
    posts = 1
    for change in (
        {"state": "output-available", "output": "deleted", "approval": {"id": request.id, "approved": True}},
        {"state": "approval-responded", "approval": {"id": request.id, "approved": True}},
        {"state": "approval-responded", "input": {"n": 9}, "approval": {
            **marked[-1]["parts"][-1]["approval"], "approved": True
        }},
    ):
        forged = copy.deepcopy(marked)
        forged[-1]["parts"][-1] |= change
        home.client.set_messages(forged)
        home.client.proceed()
        posts += 1
        refused(home.client, 403, posts)
        assert (home.ran, home.guard.get(request.id).state, len(home.model.calls)) == ([], "pending", 1)

    home.client.set_messages(answered(marked))
    home.client.proceed()

    # The mark lifts nothing and forbids nothing: the answer counts as any other, and the next call asks anew.
    assert home.ran == [("deleteFile", {"n": 1})]
    (waits,) = home.pending()
    assert (waits.tool, home.client.tool_parts[-1]["state"]) == ("pay", "approval-requested")


def test_a21_the_client_posts_by_itself_once_all_approvals_of_a_step_are_answered(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1}), ("c2", "pay", {"n": 2})], "Done.")
    home.client.send("Do both.")
    first, second = (part["approval"]["id"] for part in home.client.tool_parts)

    home.client.approve(first)
    assert (len(home.client.posts), home.ran) == (1, [])
    home.client.deny(second, "Not the payment.")

    assert (len(home.client.posts), home.ran) == (2, [("deleteFile", {"n": 1})])
    assert [part["state"] for part in home.client.tool_parts] == ["output-available", "output-denied"]
    assert [one["content"] for one in home.model.calls[1][-2:]] == ["deleteFile done", "Not the payment."]


def test_a22_the_stream_has_the_headers_and_the_form_that_the_client_knows(house: Callable[..., House]) -> None:
    home = house(OWN, "Hello.")
    home.client.send("Hi.")

    (exchange,) = home.client.exchanges
    assert exchange.headers["content-type"] == "text/event-stream"
    assert exchange.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert [chunk["type"] for chunk in exchange.chunks] == [
        "start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish",
    ]
    assert exchange.text.endswith("data: [DONE]\n\n")


def test_a29_keys_come_by_reference_and_only_signatures_are_stored_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, open_chat: OpenChat
) -> None:
    key = Key.generate(clock.epoch_ms() - 60_000)
    text = Keyring([key]).dump().reveal().decode()
    monkeypatch.setenv("HITL_GUARD_KEYS", text)
    store = SQLStore(f"sqlite:///{tmp_path / 'approvals.db'}")
    store.setup()
    guard = Guard(policy=PolicyDocument.from_source(OWN, "c.yaml"), keyring=Keyring.from_env(), store=store)
    agent = Agent("bot", model=ScriptedModel([("c1", "pay", {"n": 1})], "Done."), guard=guard,
                  tools=[Tool("pay", execute=lambda args: "paid")])
    chat = Chat(agent, authenticate=_who)
    client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")
    client.send("Pay.")
    client.approve(client.tool_part()["approval"]["id"])
    assert client.text == "Done."
    store.close()

    secrets = [part for part in text.split('"') if len(part) > 30]
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    seen = "".join(one.text for one in client.exchanges) + json.dumps(client.messages)
    assert secrets
    assert not [one for one in secrets if one in seen or one.encode() in stored or key.secret() in stored]


def test_a30_an_answer_to_a_request_that_nobody_made_is_refused_and_audited(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    token = home.pending()[0].token
    home.client.set_messages(answered(home.client.messages, id="aitxt-0123456789abcdef01234567", signature=token))

    home.client.proceed()

    refused(home.client, 403, 2)
    assert home.ran == []
    assert refusals(home.guard, "code", "detail", "channel") == [("invalid-approval", "unknown", "chat")]


# -- questions of tools, sub-agents, coming back ---------------------------------------------------------------------


def question(home: House) -> dict[str, Any]:
    data: dict[str, Any] = next(one for one in home.client.parts if one["type"] == "data-tool-call-suspended")["data"]
    return data


def asking_house(house: Callable[..., House], *turns: Any) -> House:
    """A house whose tool ``look`` asks its user before it looks."""
    home = house(OWN, [("c1", "look", {"q": 1})], *turns)

    def look(args: dict[str, Any], context: Any) -> str | None:
        if context.resume_data is None:
            context.suspend({"question": "Where?"})
            return None
        home.ran.append(("look", context.resume_data))
        return f"looked {context.resume_data['where']}"

    schema = {"properties": {"where": {"type": "string"}}, "required": ["where"], "type": "object"}
    tool = Tool("look", execute=look, resume_schema=schema)
    home.agent._tools["look"] = tool
    return home


def test_m42_m50_a_tools_own_question_is_answered_from_the_chat(house: Callable[..., House]) -> None:
    home = asking_house(house, "Found it.")
    home.client.send("Look.")
    asked_ = question(home)
    assert (asked_["suspendPayload"], asked_["resumed"], home.client.status) == ({"question": "Where?"}, False, "ready")

    answer = home.client.post({
        **home.client.posts[-1], "messages": home.client.messages, "resumeData": {"where": "here"},
        "runId": asked_["runId"], "toolCallId": asked_["suspensionId"],
    })

    assert home.ran == [("look", {"where": "here"})]
    assert '"resumed":true' in answer.text
    assert "Found it." in answer.text


@pytest.mark.parametrize("data", [{"where": 7}, {}, None, {"approved": True}])
def test_m42_data_that_does_not_fit_leaves_the_question_open(
    house: Callable[..., House], caplog: pytest.LogCaptureFixture, data: Any
) -> None:
    home = asking_house(house, "Found it.")
    home.client.send("Look.")
    asked_ = question(home)

    def answer(given: Any) -> Any:
        return home.client.post({
            **home.client.posts[-1], "messages": home.client.messages, "resumeData": given, "runId": asked_["runId"],
            "toolCallId": asked_["suspensionId"],
        })

    wrong = answer(data)

    assert (wrong.status, [chunk["type"] for chunk in chunks_in(wrong.text)]) == (200, ["start", "error"])
    assert chunks_in(wrong.text)[-1]["errorText"] == RUN_FAILED
    assert "A run of a chat failed: hitl_guard.errors.AgentError" in caplog.text
    with pytest.raises(AgentError) as refused:
        home.agent.sync.resume_generate(data, asked_["runId"], asked_["suspensionId"], user="alice")
    assert (refused.value.code, home.ran) == ("invalid-resume-data", [])
    assert len(home.agent.sync.list_suspended_runs(user="alice").runs) == 1
    assert "Found it." in answer({"where": "here"}).text
    assert home.ran == [("look", {"where": "here"})]


def test_m42_resume_data_never_approves_a_call(
    house: Callable[..., House], caplog: pytest.LogCaptureFixture
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    request = home.pending()[0]

    answer = home.client.post({
        **home.client.posts[-1], "messages": home.client.messages, "resumeData": {"approved": True},
        "runId": request.run_id,
    })

    assert (answer.status, [chunk["type"] for chunk in chunks_in(answer.text)]) == (200, ["start", "error"])
    assert chunks_in(answer.text)[-1]["errorText"] == RUN_FAILED
    assert "A run of a chat failed: hitl_guard.errors.ConfigurationError" in caplog.text
    assert (home.ran, [one.state for one in home.pending()], len(home.model.calls)) == ([], ["pending"], 1)
    assert home.guard.get(request.id).votes == ()


def test_m65_a_sub_agents_call_is_shown_as_it_is_and_answered_in_the_chat(
    serve: Serve, open_chat: OpenChat
) -> None:
    with UnsafeMemoryStore() as store:
        guard = Guard(
            policy=PolicyDocument.from_source(OWN + b"  - {id: sub, tools: [agent-files], effect: allow}\n", "c.yaml"),
            keyring=UnsafeKeyring(), store=store,
        )
        ran: list[Any] = []
        inner = Agent("files", model=ScriptedModel([("c1", "deleteFile", {"n": 1})], "Deleted it."),
                      tools=[Tool("deleteFile", execute=ran.append)], guard=guard)
        model = ScriptedModel([("c1", "agent-files", {"prompt": "Delete 1."})], "All done.", "Bye.")
        outer = Agent("boss", model=model, agents=[inner], guard=guard)
        chat = Chat(outer, authenticate=_who)
        client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")
        client.send("Delete it.")
        waiting = next(part for part in client.tool_parts if part["state"] == "approval-requested")
        assert (waiting["type"], waiting["toolName"], waiting["input"]) == ("dynamic-tool", "deleteFile", {"n": 1})

        client.approve(waiting["approval"]["id"])

        assert (client.status, ran, client.text) == ("ready", [{"n": 1}], "All done.")
        assert {part["state"] for part in client.tool_parts} == {"output-available"}
        client.send("Thanks.")  # the history with the sub-agent's answered call is taken
        assert (client.status, client.text) == ("ready", "Bye.")


def test_a_client_that_comes_back_finds_nothing_where_nothing_runs(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")

    home.client.resume()

    assert home.client.exchanges[-1].status == 204  # the client has all of it
    assert [len(message["parts"]) for message in home.client.messages] == [1, 2]


async def test_a_running_answer_is_replayed_to_its_user_and_to_nobody_else(house: Callable[..., House]) -> None:
    home = house(OWN, "never")
    wait = asyncio.Event()

    async def slow(messages: Any, tools: Any, settings: Any) -> dict[str, Any]:
        await wait.wait()
        return {"content": "Hello."}

    home.agent.model = slow
    body = {"id": "c", "trigger": "submit-message",
            "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}
    transport = httpx2.ASGITransport(app=home.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://chat") as web:
        first = asyncio.create_task(web.post("/api/chat", json=body, headers={"x-demo-user": "alice"}))
        while not home.chat.streams.again(ChatId("c", Principal("alice"), "bot")):
            await asyncio.sleep(0)
        again = asyncio.create_task(web.get("/api/chat/c/stream", headers={"x-demo-user": "alice"}))
        busy = await web.post("/api/chat", json=body | {"messages": [*body["messages"], {
            "id": "a", "role": "assistant", "parts": [{"type": "text", "text": "x"}]}]},
            headers={"x-demo-user": "alice"})
        stranger = await web.get("/api/chat/c/stream", headers={"x-demo-user": "mallory"})
        nobody = await web.get("/api/chat/c/stream")
        wait.set()
        answers = await asyncio.gather(first, again)

    assert (busy.status_code, stranger.status_code, nobody.status_code) == (409, 204, 401)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text == answers[1].text
    assert "Hello." in answers[0].text


# -- what was decided elsewhere, and what stands in a chat's history ---------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_a_call_that_was_decided_in_the_inbox_goes_on_with_the_next_message_and_is_shown_there(
    house: Callable[..., House], approve: bool, memory: bool
) -> None:
    turns = ["So it is.", "You are welcome.", "Bye."]
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], *turns, memory=memory)
    home.client.send("Delete it.")
    home.decide(home.pending()[0], approve=approve)

    home.client.send("And now?")

    assert home.ran == ([("deleteFile", {"n": 1})] if approve else [])
    assert [one["content"] for one in home.model.calls[1]] == [
        "Delete it.", None, "deleteFile done" if approve else "Tool call was not approved by the user",
    ]
    part = home.client.tool_part()
    assert (home.client.status, home.client.text) == ("ready", "So it is.You are welcome.")
    assert (part["input"], part["approval"]["approved"]) == ({"n": 1}, approve)
    assert (part["state"], part.get("output")) == (
        ("output-available", "deleteFile done") if approve else ("output-denied", None)
    )
    assert [(one["role"], one["content"]) for one in home.model.calls[2]] == [
        ("user", "Delete it."), ("assistant", None),
        ("tool", "deleteFile done" if approve else "Tool call was not approved by the user"),
        ("assistant", "So it is."), ("user", "And now?"),
    ]

    home.client.send("Thanks.")

    assert (home.client.status, len(home.ran)) == ("ready", int(approve))
    assert [one["content"] for one in home.model.calls[3]][-2:] == ["You are welcome.", "Thanks."]


def test_a_click_on_what_was_decided_in_the_inbox_runs_nothing_and_is_answered(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], "So it is.", "You are welcome.", "Well.")
    home.client.send("Delete it.")
    home.decide(home.pending()[0])
    home.client.send("And now?")
    old = home.client.messages
    part = next(one for one in old[1]["parts"] if one["type"] == "tool-deleteFile")
    assert part["state"] == "approval-requested"

    part["state"], part["approval"]["approved"] = "approval-responded", True
    home.client.set_messages(old)
    home.client.send("Well?")

    assert (home.ran, home.client.status) == ([("deleteFile", {"n": 1})], "ready")


def test_a_call_that_was_decided_in_the_inbox_is_told_when_the_page_asks(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], "Deleted.")
    home.client.send("Delete it.")
    home.decide(home.pending()[0])

    home.client.proceed()  # the page sends without a word, as a "look again" button would

    assert (home.client.tool_part()["state"], home.client.text) == ("output-available", "Deleted.")
    assert home.ran == [("deleteFile", {"n": 1})]


def test_an_open_question_of_a_tool_keeps_no_other_message_from_its_answer(house: Callable[..., House]) -> None:
    home = asking_house(house, "Hello.", "Bye.")
    home.client.send("Look.")
    assert question(home)["resumed"] is False

    home.client.send("Hi.")
    home.client.send("Bye.")

    assert (home.client.status, home.client.text, len(home.client.posts)) == ("ready", "Bye.", 3)


def test_an_answer_that_stays_in_the_history_is_not_told_again(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Deleted.", "One.", "Two.")
    home.client.send("Delete it.")
    home.client.set_messages(answered(home.client.messages))
    home.client.send("Thanks.")
    home.client.send("More.")

    assert (home.client.status, home.client.text, home.ran) == ("ready", "Two.", [("deleteFile", {"n": 1})])
    assert home.client.tool_parts == []


def test_numbers_beyond_every_integer_of_a_browser_break_no_later_message(house: Callable[..., House]) -> None:
    for memory in (True, False):
        home = house(OWN, [("c1", "pay", f'{{"amount":{10**22}}}')], "Paid.", "Bye.", memory=memory)
        home.client.send("Pay.")
        home.client.approve(home.client.tool_part()["approval"]["id"])
        assert home.ran == [("pay", {"amount": 10**22})]

        home.client.send("Thanks.")

        assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_a_call_that_ran_cannot_be_said_to_be_a_denial_by_the_policy_under_its_own_approval(
    house: Callable[..., House]
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Deleted.", "Hm.")
    home.client.send("Delete it.")
    home.client.approve(home.client.tool_part()["approval"]["id"])
    forged = home.client.messages
    part = next(one for one in forged[-1]["parts"] if "toolCallId" in one)
    part["state"] = "output-denied"
    part["approval"] |= {"approved": False, "isAutomatic": True}
    home.client.set_messages(forged)

    home.client.send("Did it run?")

    refused(home.client, 403, 3)
    assert len(home.model.calls) == 2


@pytest.mark.parametrize("memory", [True, False])
def test_a_history_that_invents_a_denial_by_the_policy_changes_no_record_and_runs_nothing_again(
    house: Callable[..., House], memory: bool
) -> None:
    """Of such a denial there is no request to compare with. It is the client's word: to a memory nothing, to others
    all that a conversation without one is.
    """
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Deleted.", "Hm.", memory=memory)
    home.client.send("Delete it.")
    request_id = home.client.tool_part()["approval"]["id"]
    home.client.approve(request_id)
    forged = home.client.messages
    part = next(one for one in forged[-1]["parts"] if "toolCallId" in one)
    part |= {"state": "output-denied", "approval": {"id": "automatic-c1", "approved": False, "isAutomatic": True}}
    home.client.set_messages(forged)

    home.client.send("Did it run?")

    assert (home.client.status, home.guard.get(request_id).state) == ("ready", "succeeded")
    assert home.ran == [("deleteFile", {"n": 1})]
    (told,) = [one["content"] for one in home.model.calls[-1] if one["role"] == "tool"]
    assert told == ("deleteFile done" if memory else "Tool call was not approved by the user")


def test_m42_an_answer_to_a_question_does_not_hide_a_forged_history(house: Callable[..., House]) -> None:
    home = asking_house(house, "Found it.")
    home.client.send("Look.")
    forged = home.client.messages
    forged[-1]["parts"].append({
        "type": "tool-pay", "toolCallId": "c9", "state": "output-available", "input": {}, "output": "paid",
        "approval": {"id": "aitxt-1", "approved": True},
    })

    answer = home.client.post({
        **home.client.posts[-1], "messages": forged, "resumeData": {"where": "here"},
        "runId": question(home)["runId"],
    })

    assert (answer.status, home.ran, refusals(home.guard)) == (403, [], [("invalid-signature", "missing")])
    assert question(home)["resumed"] is False


def test_m42_what_the_user_says_with_an_answer_is_heard(house: Callable[..., House]) -> None:
    home = asking_house(house, "Found it.", "You are welcome.")
    home.client.send("Look.")
    said = {"id": "m9", "role": "user", "parts": [{"type": "text", "text": "And thanks!"}]}

    answer = home.client.post({
        **home.client.posts[-1], "messages": [*home.client.messages, said], "resumeData": {"where": "here"},
        "runId": question(home)["runId"],
    })

    assert home.ran == [("look", {"where": "here"})]
    assert "You are welcome." in answer.text
    assert home.model.calls[-1][-1] == {"content": "And thanks!", "role": "user"}


def test_who_decides_is_said_where_the_user_may_not(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES.replace(b"data.}", b"data., approvers: [boss, 'user:zoe']}"),
                 [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")

    home.client.approve(home.client.tool_part()["approval"]["id"])

    assert "Who decides: boss, user:zoe." in home.client.tool_part()["approval"]["requestReason"]


@pytest.mark.parametrize("fails", [KeyError("x"), TimeoutError()], ids=repr)
def test_a_context_that_cannot_be_told_decides_nothing(house: Callable[..., House], fails: Exception) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")

    async def context(request: Any, body: Any) -> Any:
        raise fails

    home.chat._context_of, before = context, home.chat._context_of
    home.client.approve(home.client.tool_part()["approval"]["id"])

    assert ((home.client.error or {})["statusCode"], home.pending()[0].state) == (503, "pending")
    home.chat._context_of = before
    home.client.proceed()
    assert home.ran == [("deleteFile", {"n": 1})]


def test_a12_the_context_of_a_run_comes_from_the_host(house: Callable[..., House]) -> None:
    rule = b"when: 'context.tier != \"gold\"', effect: require_approval"
    home = house(OWN.replace(b"effect: require_approval", rule), [("c1", "deleteFile", {"n": 1})], "Done.")

    async def context(request: Any, body: Any) -> dict[str, Any]:
        return {"tier": request.headers["x-tier"]}

    home.chat._context_of = context
    home.client.act_as("alice", **{"x-tier": "gold"})
    home.client.send("Delete it.")

    assert home.client.tool_part()["state"] == "output-denied"  # no rule fits: the default denies


def test_chats_of_two_agents_are_two(serve: Serve, open_chat: OpenChat, house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.")
    home.client.send("Delete it.")
    other = Chat(Agent("other", model=ScriptedModel("Hi."), guard=home.guard), authenticate=_who)
    client = open_chat(f"{serve(Starlette(routes=other.routes()))}/api/chat", id=home.client.id,
                       messages=answered(home.client.messages))

    client.proceed()

    refused(client, 403, 1)
    assert home.pending()[0].state == "pending"


@pytest.mark.parametrize("loop", [None, object(), "agent"])
def test_a_chat_needs_a_loop_with_a_guard(loop: Any) -> None:
    with pytest.raises(ConfigurationError):
        Chat(loop, authenticate=_who)


def test_a_file_of_the_user_is_named_to_the_model(house: Callable[..., House]) -> None:
    home = house(OWN, "I cannot see it.")
    parts = [{"type": "text", "text": "What is this?"},
             {"type": "file", "mediaType": "image/png", "filename": "cat.png", "url": "data:image/png;base64,AA=="}]

    home.client.post({"id": "c", "messages": [{"id": "m", "role": "user", "parts": parts}]})

    assert home.model.calls[0][-1]["content"] == (
        "What is this?[A file was attached: cat.png. It is not passed on.]"
    )


def test_an_answer_in_an_older_message_goes_on_there(house: Callable[..., House]) -> None:
    """The SDK answers an approval wherever it stands, and names that message."""
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Hello.", "Deleted.", "Bye.")
    home.client.send("Delete it.")
    older = home.client.tool_part()["approval"]["id"]
    home.client.send("Hi.")
    before = home.client.messages

    home.client.approve(older)
    if len(home.client.posts) == 2:
        home.client.post({**home.client.posts[-1], "messages": home.client.messages, "messageId": before[1]["id"]})

    assert home.ran == [("deleteFile", {"n": 1})]
    home.client.set_messages(home.client.messages)
    home.client.send("Bye.")
    assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_a_model_that_repeats_a_call_id_stops_no_approval(house: Callable[..., House]) -> None:
    home = house(OWN, [("call_0", "deleteFile", {"n": 1})], [("call_0", "deleteFile", {"n": 2})], "Deleted 2.", "Bye.")
    home.client.send("Delete 1.")
    home.client.send("No, 2.")

    home.client.approve(home.client.tool_part()["approval"]["id"])
    home.client.send("Bye.")

    assert home.ran == [("deleteFile", {"n": 2})]
    assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_a17_a_no_that_follows_a_yes_runs_nothing(house: Callable[..., House]) -> None:
    """The yes was recorded, but its run did not go on (another stream was running, say)."""
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Then not.")
    home.client.send("Delete it.")
    request = home.pending()[0]
    home.guard.decide(request.id, approver=Principal("alice"), approve=True, fingerprint=request.fingerprint,
                      channel="chat")

    home.client.deny(request.id, "I changed my mind.")

    assert (home.ran, home.guard.get(request.id).state) == ([], "revoked")
    assert (home.client.status, home.client.tool_part()["state"]) == ("ready", "output-error")


def test_at63_a_raised_epoch_ends_no_chat(
    house: Callable[..., House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = RingFile(tmp_path)
    monkeypatch.setitem(globals(), "UnsafeKeyring", lambda: keys.keyring)
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "Done.", "Bye.")
    home.client.send("Delete it.")
    request = home.pending()[0]
    home.client.approve(request.id)
    keys.restore()
    with pytest.raises(InvalidApprovalError) as void:
        home.guard.get(request.id)
    assert void.value.detail == "epoch"
    home.guard.resume(by=Principal("olga", roles=("operator",)))
    home.guard.resume(by=Principal("gina", roles=("global-operator",)), everywhere=True)

    home.client.send("Thanks.")

    assert (home.client.status, home.client.text) == ("ready", "Bye.")


@pytest.mark.parametrize(("site", "status"), [
    (None, 200), ("same-origin", 200), ("same-site", 200), ("none", 200), ("cross-site", 403),
    ("same-origin, cross-site", 403), ("Same-Origin", 403), ("", 403),
])
def test_a_post_from_a_page_of_another_site_is_refused_whatever_login_comes_with_it(
    house: Callable[..., House], caplog: pytest.LogCaptureFixture, site: str | None, status: int
) -> None:
    home = house(OWN, "Hello.", "Hello.")
    body = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}

    answer = home.client.post(body, **({} if site is None else {"sec-fetch-site": site}))

    assert (answer.status, len(home.model.calls)) == (status, int(status == 200))
    if status == 403:
        assert json.loads(answer.text)["detail"] == "This did not come from a page of this site."
        assert refusals(home.guard) == [("not-authorised", "cross-site")]
        assert "Refused with not-authorised/cross-site: POST /api/chat, tenant def..., by al..." in caplog.text


async def test_two_marks_of_where_a_post_comes_from_are_one_too_many(house: Callable[..., House]) -> None:
    home = house(OWN, "never")
    body = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}
    marks = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none"), ("x-demo-user", "alice")]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=home.app), base_url="http://chat") as web:
        answer = await web.post("/api/chat", json=body, headers=marks)

    assert (answer.status_code, home.model.calls) == (403, [])


def test_a_host_can_let_pages_of_other_sites_post(
    serve: Serve, open_chat: OpenChat, house: Callable[..., House]
) -> None:
    home = house(OWN, "Hello.")
    chat = Chat(home.agent, authenticate=_who, allow_cross_site=True)
    client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")
    client.act_as("alice", **{"sec-fetch-site": "cross-site"})

    client.send("Hi.")

    assert (client.status, client.text) == ("ready", "Hello.")


def test_why_a_post_was_refused_stands_in_the_log_and_not_in_the_answer(
    demo: ChatDemo, chat: ChatClient, caplog: pytest.LogCaptureFixture
) -> None:
    asked(chat)
    chat.set_messages(answered(chat.messages, lambda part: part["input"].update(path="/etc")))

    chat.proceed()

    refused(chat, 403, 2)
    assert [record.getMessage() for record in caplog.records if record.name == "hitl_guard.asgi"] == [
        "Refused with args-mismatch: POST /api/chat, tenant def..., by al..."
    ]
    assert "mismatch" not in chat.exchanges[-1].text
    assert "/etc" not in caplog.text


@pytest.mark.parametrize("trigger", [[], {}, 7, None])
def test_a_trigger_of_another_type_is_no_post(chat: ChatClient, trigger: Any) -> None:
    chat.send("Delete /a")

    assert chat.post({**chat.posts[-1], "trigger": trigger}).status == 400


@pytest.mark.parametrize(("host", "status"), [("localhost:8090", 200), ("127.0.0.1", 200), ("evil.example", 400)])
async def test_the_demo_answers_to_names_of_this_machine_only(demo: ChatDemo, host: str, status: int) -> None:
    transport = httpx2.ASGITransport(app=demo.app)
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as web:
        assert (await web.get("/effects")).status_code == status


# -- ids that a model repeats ----------------------------------------------------------------------------------------


LOCATE = OWN + b"  - {id: where, tools: [locate], effect: allow}\n"


def located(home: House) -> None:
    """Have the model ask where the user is, and the browser answer: a run of its own, which has ended."""
    home.agent._tools["locate"] = Tool("locate")
    home.client.send("Delete what is here.")
    messages = home.client.messages
    part = messages[-1]["parts"][-1]
    assert (part["type"], part["toolCallId"], part["state"]) == ("tool-locate", "c1", "input-available")
    part |= {"state": "output-available", "output": "Rome"}
    home.client.set_messages(messages)
    home.client.proceed()


@pytest.mark.parametrize("memory", [True, False])
def test_a_call_that_repeats_the_id_of_an_ended_call_of_the_browser_is_shown_and_answered(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(LOCATE, [("c1", "locate", {})], [("c1", "deleteFile", {"n": 1})], "Deleted.", "Bye.", memory=memory)
    located(home)
    (request,) = home.pending()
    part = home.client.tool_parts[-1]
    assert (part["type"], part["state"], part["input"]) == ("tool-deleteFile", "approval-requested", {"n": 1})
    assert (part["approval"]["id"], part["toolCallId"] != "c1") == (request.id, True)

    home.client.approve(request.id)

    assert home.ran == [("deleteFile", {"n": 1})]
    assert [(one["type"], one["state"], one["output"]) for one in home.client.tool_parts] == [
        ("tool-locate", "output-available", "Rome"), ("tool-deleteFile", "output-available", "deleteFile done"),
    ]
    assert (home.client.status, home.client.text) == ("ready", "Deleted.")
    home.client.send("Thanks.")  # the history with the second id is taken
    assert (home.client.status, home.client.text, len(home.client.posts)) == ("ready", "Bye.", 4)


def test_a_denial_of_a_call_with_a_repeated_id_ends_at_its_own_part(house: Callable[..., House]) -> None:
    home = house(LOCATE, [("c1", "locate", {})], [("c1", "deleteFile", {"n": 1})], "Then not.")
    located(home)

    home.client.deny(home.client.tool_parts[-1]["approval"]["id"], "No.")

    assert [one["state"] for one in home.client.tool_parts] == ["output-available", "output-denied"]
    assert (home.ran, home.client.text) == ([], "Then not.")


def test_a26_an_answer_under_the_id_of_another_call_of_the_message_is_refused(house: Callable[..., House]) -> None:
    home = house(LOCATE, [("c1", "locate", {})], [("c1", "deleteFile", {"n": 1})], "Deleted.")
    located(home)
    honest = home.client.messages
    for id_ in (f"~{'A' * 22}/c1", "c1~1", f"./{honest[-1]['parts'][-1]['toolCallId']}"):
        forged = copy.deepcopy(honest)
        part = forged[-1]["parts"][-1]
        part |= {"toolCallId": id_, "state": "approval-responded"}
        part["approval"]["approved"] = True
        home.client.set_messages(forged)

        home.client.proceed()

        assert ((home.client.error or {})["statusCode"], home.ran, home.pending()[0].state) == (403, [], "pending")


@pytest.mark.parametrize("memory", [True, False])
def test_a_call_of_the_browser_that_repeats_an_id_gets_its_own_result_to_the_model(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(LOCATE, [("c1", "locate", {})], [("c1", "locate", {"again": True})], "Seen.", memory=memory)
    located(home)
    messages = home.client.messages
    part = messages[-1]["parts"][-1]
    assert (part["type"], part["state"], part["input"]) == ("tool-locate", "input-available", {"again": True})
    part |= {"state": "output-available", "output": "Oslo"}
    home.client.set_messages(messages)

    home.client.proceed()

    told = [(one["role"], one["content"]) for one in home.model.calls[-1] if one["role"] == "tool"]
    assert (told, home.client.text) == ([("tool", "Rome"), ("tool", "Oslo")], "Seen.")
    called = [one["tool_calls"][0]["id"] for one in home.model.calls[-1] if one.get("tool_calls")]
    assert called == [one["tool_call_id"] for one in home.model.calls[-1] if one["role"] == "tool"]


def test_a_free_call_that_repeats_an_id_is_shown_with_its_own_result(house: Callable[..., House]) -> None:
    home = house(LOCATE, [("c1", "locate", {})], [("c1", "look", {"q": 1})], "Seen.")
    located(home)

    assert [(one["type"], one["output"]) for one in home.client.tool_parts] == [
        ("tool-locate", "Rome"), ("tool-look", "look done"),
    ]


# -- what another process did ----------------------------------------------------------------------------------------


def elsewhere(home: House, *turns: Any, memory: bool = True) -> Agent:
    """Return the same agent as another process has it."""
    return Agent("bot", model=ScriptedModel(*turns), tools=home.agent.tools, guard=home.guard, memory=memory)


DELETED = "Deleted, says the other one."


@pytest.mark.parametrize(("memory", "state"), [(True, "output-available"), (False, "output-error")])
def test_a_call_that_ran_elsewhere_is_told_with_its_result_where_that_is_kept(
    house: Callable[..., House], memory: bool, state: str
) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})], memory=memory)
    home.client.send("Delete it.")
    (request,) = home.pending()
    home.decide(request)
    elsewhere(home, DELETED, memory=memory).sync.continue_generate(request.run_id, user="alice")
    assert home.ran == [("deleteFile", {"n": 1})]

    home.client.approve(request.id)

    part = home.client.tool_part()
    assert (part["state"], part["approval"]["approved"]) == (state, True)
    assert part.get("output") == ("deleteFile done" if memory else None)
    assert part.get("errorText") == (None if memory else CLOSED["succeeded"])
    assert (home.client.status, len(home.client.posts), home.ran) == ("ready", 2, [("deleteFile", {"n": 1})])
    assert len(home.model.calls) == 1


@pytest.mark.parametrize("result", [{"rows": [1, 2.5, None]}, "text", [], None, 7])
def test_a_result_that_is_kept_comes_back_as_it_was(house: Callable[..., House], result: Any) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})])
    home.client.send("Delete it.")
    (request,) = home.pending()
    home.decide(request)
    other = Agent("bot", model=ScriptedModel(DELETED), tools=[Tool("deleteFile", execute=lambda args: result)],
                  guard=home.guard, memory=True)
    other.sync.continue_generate(request.run_id, user="alice")

    home.client.approve(request.id)

    assert (home.client.tool_part()["state"], home.client.tool_part()["output"]) == ("output-available", result)


def test_a_call_that_failed_elsewhere_is_told_as_a_failure_without_its_words(house: Callable[..., House]) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1})])
    home.client.send("Delete it.")
    (request,) = home.pending()
    home.decide(request)

    def fails(args: Any) -> None:
        raise NoEffect("password=hunter2")

    other = Agent("bot", model=ScriptedModel("Sorry."), tools=[Tool("deleteFile", execute=fails)], guard=home.guard,
                  memory=True)
    other.sync.continue_generate(request.run_id, user="alice")

    home.client.approve(request.id)

    part = home.client.tool_part()
    assert (part["state"], part["errorText"]) == ("output-error", CLOSED["failed"])
    assert "hunter2" not in json.dumps(home.client.messages)


@pytest.mark.parametrize("memory", [True, False])
def test_a_call_that_ran_elsewhere_is_told_while_its_run_waits_for_another_one(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(FOUR_EYES, [("c1", "deleteFile", {"n": 1}), ("c2", "pay", {"n": 2})], memory=memory)
    home.client.send("Do both.")
    first = next(request for request in home.pending() if request.tool == "deleteFile")
    home.decide(first)
    elsewhere(home, memory=memory).sync.continue_generate(first.run_id, user="alice")
    assert home.ran == [("deleteFile", {"n": 1})]

    home.client.approve(first.id)
    home.client.proceed()

    one, two = home.client.tool_parts
    assert (one["state"], one["output"], two["state"]) == (
        "output-available", "deleteFile done", "approval-requested"
    )
    assert (home.ran, len(home.model.calls)) == ([("deleteFile", {"n": 1})], 1)


# -- an answer that is made anew -------------------------------------------------------------------------------------


def heard(home: House) -> list[tuple[str, Any]]:
    """Return what the model got last, as role and text."""
    return [(one["role"], one["content"]) for one in home.model.calls[-1]]


def test_with_a_memory_an_answer_that_is_made_anew_repeats_nothing(house: Callable[..., House]) -> None:
    home = house(OWN, "One.", "Two.", "Three.", "Four.")
    home.client.send("Count.")

    home.client.regenerate()

    assert heard(home) == [("user", "Count."), ("assistant", "One."), ("user", AGAIN)]
    home.client.regenerate()
    assert heard(home) == [
        ("user", "Count."), ("assistant", "One."), ("user", AGAIN), ("assistant", "Two."), ("user", AGAIN),
    ]
    assert [message["role"] for message in home.client.messages] == ["user", "assistant"]
    home.client.send("On.")
    assert heard(home)[-2:] == [("assistant", "Three."), ("user", "On.")]
    assert home.client.text == "Four."


def test_without_a_memory_an_answer_that_is_made_anew_is_made_from_what_the_client_says(
    house: Callable[..., House]
) -> None:
    home = house(OWN, "One.", "Two.", memory=False)
    home.client.send("Count.")

    home.client.regenerate()

    assert (heard(home), home.client.text) == ([("user", "Count.")], "Two.")


def test_a_message_whose_run_failed_is_heard_once_when_it_is_tried_again(house: Callable[..., House]) -> None:
    home = house(OWN, RuntimeError("no model"), "One.")
    home.client.send("Count.")
    assert ((home.client.error or {})["message"], home.client.status) == (RUN_FAILED, "error")

    home.client.regenerate()

    assert (heard(home), home.client.text) == ([("user", "Count.")], "One.")


def test_an_answer_that_is_made_anew_leaves_the_request_of_the_old_one_pending(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], "I rather would not.")
    home.client.send("Delete it.")

    home.client.regenerate()

    assert (heard(home), home.client.text) == ([("user", "Delete it.")], "I rather would not.")
    assert ([request.state for request in home.pending()], home.ran) == (["pending"], [])


def test_an_older_answer_that_is_made_anew_is_asked_for_where_the_conversation_stands(
    house: Callable[..., House]
) -> None:
    home = house(OWN, "One.", "Two.", "Another one.")
    home.client.send("Count.")
    first = home.client.messages
    home.client.send("On.")
    home.client.set_messages(first)

    home.client.regenerate()

    assert heard(home)[-3:] == [("user", "On."), ("assistant", "Two."), ("user", "Count.")]


def test_what_the_model_is_not_shown_any_more_is_said_again(house: Callable[..., House]) -> None:
    home = house(OWN, "One.", "Two.", memory=Memory(last_messages=1))
    home.client.send("Count.")

    home.client.regenerate()

    assert heard(home) == [("assistant", "One."), ("user", "Count.")]


# -- half a character ------------------------------------------------------------------------------------------------


def test_half_an_emoji_in_a_text_reaches_the_model_as_one_that_cannot_be_read_and_the_chat_goes_on(
    house: Callable[..., House]
) -> None:
    for memory in (True, False):
        home = house(OWN, "What?", "Bye.", memory=memory)

        home.client.send("Cut \ud83d here, \U0001f600 whole, \\ud83d no escape")
        home.client.send("Thanks.")

        assert (home.client.status, home.client.text) == ("ready", "Bye.")
        assert heard(home)[0] == ("user", "Cut \ufffd here, \U0001f600 whole, \\ud83d no escape")
        assert home.client.posts[-1]["messages"][0]["parts"][0]["text"].startswith("Cut \ud83d here")


HALVES: dict[str, Change] = {
    "argument": lambda part: part["input"].update(path="/a\ud83d"),
    "name of an argument": lambda part: part["input"].update({"\ud83d": 1}),
    "call id": lambda part: part.update(toolCallId="call_1\ud83d"),
    "signature": lambda part: part["approval"].update(signature="\ud83d"),
    "approval id": lambda part: part["approval"].update(id="\ud83d"),
    "tool name": lambda part: part.update(type="tool-deleteFile\ud83d"),
    "another member": lambda part: part.update(title="\ud83d"),
}


@pytest.mark.parametrize("change", HALVES.values(), ids=HALVES)
def test_half_an_emoji_in_what_is_approved_is_refused(demo: ChatDemo, chat: ChatClient, change: Change) -> None:
    approval_id = asked(chat)
    chat.set_messages(answered(chat.messages, change))

    chat.proceed()

    assert ((chat.error or {})["statusCode"], demo.deleted) == (400, [])
    assert demo.guard.get(approval_id).state == "pending"


# -- an answer that comes with a new message -------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
def test_what_a_run_asks_for_next_is_shown_under_the_new_message_that_came_with_the_answer(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], [("c2", "pay", {"n": 2})], "You are welcome.", "All done.",
                 "Bye.", memory=memory)
    home.client.send("Delete, then pay.")
    home.client.set_messages(answered(home.client.messages))

    home.client.send("Thanks.")

    done, part = home.client.tool_parts
    assert (done["type"], done["state"]) == ("tool-deleteFile", "output-available")
    assert (home.client.status, home.client.text, home.ran) == ("ready", "You are welcome.", [
        ("deleteFile", {"n": 1})
    ])
    assert (part["type"], part["input"], part["state"]) == ("tool-pay", {"n": 2}, "approval-requested")
    assert home.client.exchanges[-1].chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}

    home.client.approve(part["approval"]["id"])

    assert home.ran == [("deleteFile", {"n": 1}), ("pay", {"n": 2})]
    assert [one["state"] for one in home.client.tool_parts] == ["output-available", "output-available"]
    assert len(home.client.posts) == 3
    home.client.send("Bye.")
    assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_the_requests_of_two_runs_with_one_id_stand_side_by_side_and_each_answer_finds_its_own(
    house: Callable[..., House]
) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], [("c2", "pay", {"n": 2})], [("c2", "pay", {"n": 3})],
                 "Paid 3.", "Paid 2.")
    home.client.send("Delete, then pay 2.")
    home.client.set_messages(answered(home.client.messages))
    home.client.send("And pay 3.")
    _, three, two = home.client.tool_parts
    assert [(one["input"], one["state"]) for one in (three, two)] == [
        ({"n": 3}, "approval-requested"), ({"n": 2}, "approval-requested"),
    ]

    home.client.deny(two["approval"]["id"], "Not that one.")
    home.client.approve(three["approval"]["id"])

    assert home.ran == [("deleteFile", {"n": 1}), ("pay", {"n": 3})]
    assert [(one["input"], one["state"]) for one in home.client.tool_parts] == [
        ({"n": 1}, "output-available"), ({"n": 3}, "output-available"), ({"n": 2}, "output-denied"),
    ]
    assert (home.client.status, len(home.client.posts)) == ("ready", 3)


def test_a_request_is_shown_though_the_new_run_failed(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "deleteFile", {"n": 1})], [("c2", "pay", {"n": 2})], RuntimeError("no model"), "Paid.")
    home.client.send("Delete, then pay.")
    home.client.set_messages(answered(home.client.messages))

    home.client.send("Thanks.")

    assert (home.client.error or {})["message"] == RUN_FAILED
    assert [one["state"] for one in home.client.tool_parts] == ["output-available", "approval-requested"]
    home.client.approve(home.client.tool_parts[1]["approval"]["id"])
    assert home.ran == [("deleteFile", {"n": 1}), ("pay", {"n": 2})]


def test_a_sub_agents_next_request_is_shown_under_the_new_message(serve: Serve, open_chat: OpenChat) -> None:
    with UnsafeMemoryStore() as store:
        guard = Guard(
            policy=PolicyDocument.from_source(OWN + b"  - {id: sub, tools: [agent-files], effect: allow}\n", "c.yaml"),
            keyring=UnsafeKeyring(), store=store,
        )
        ran: list[Any] = []
        turns = [[("c1", "deleteFile", {"n": 1})], [("c1", "deleteFile", {"n": 2})], "Deleted both."]
        inner = Agent("files", model=ScriptedModel(*turns), tools=[Tool("deleteFile", execute=ran.append)], guard=guard)
        model = ScriptedModel([("d1", "agent-files", {"prompt": "Delete."})], "You are welcome.", "All done.")
        chat = Chat(Agent("boss", model=model, agents=[inner], guard=guard), authenticate=_who)
        client = open_chat(f"{serve(Starlette(routes=chat.routes()))}/api/chat")
        client.send("Delete both.")
        messages = client.messages
        part = next(one for one in messages[-1]["parts"] if one.get("state") == "approval-requested")
        part["state"], part["approval"]["approved"] = "approval-responded", True
        client.set_messages(messages)

        client.send("Thanks.")

        part = client.tool_part()
        assert (part["type"], part["input"], part["state"]) == ("dynamic-tool", {"n": 2}, "approval-requested")
        client.approve(part["approval"]["id"])
        assert (client.status, ran, client.tool_part(part["toolCallId"])["state"]) == (
            "ready", [{"n": 1}, {"n": 2}], "output-available"
        )


def test_a_question_that_a_run_comes_to_under_a_new_message_is_shown_there(house: Callable[..., House]) -> None:
    home = asking_house(house, "You are welcome.")
    home.model._turns.insert(0, {"tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "deleteFile", "arguments": "{}"}}
    ]})
    home.client.send("Delete, then look.")
    home.client.set_messages(answered(home.client.messages))

    home.client.send("Thanks.")

    assert (question(home)["suspendPayload"], home.client.text) == ({"question": "Where?"}, "You are welcome.")


class _Down:
    def __getattr__(self, name: str) -> Any:
        from hitl_guard.errors import StoreUnavailableError

        raise StoreUnavailableError("down", detail="lost")
