"""What ``useChat`` posts is read strictly, and turned into chat messages for a loop that keeps no conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import CanonicalizationError, HitlGuardError, InvalidApprovalError
from hitl_guard.integrations.ai_sdk import messages as module
from hitl_guard.integrations.ai_sdk.messages import ChatId, chat_messages, read_post
from hitl_guard.models import Principal

USER = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete /a"}]}
PENDING = {
    "type": "tool-deleteFile", "toolCallId": "c1", "state": "approval-requested", "input": {"path": "/a"},
    "approval": {"id": "ap1", "signature": "s"},
}
ANSWERED = PENDING | {"state": "approval-responded", "approval": {"id": "ap1", "signature": "s", "approved": True}}


def assistant(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "m2", "role": "assistant", "parts": [{"type": "step-start"}, *parts]}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chat-1", "messages": list(messages), "trigger": "submit-message"} | more


def test_a16_a_post_with_an_answer_continues_the_assistants_message() -> None:
    post = read_post(body(USER, assistant(ANSWERED), messageId="m2"))

    assert (post.chat, post.message_id, post.known[1]["toolCallId"]) == ("chat-1", "m2", "c1")
    (claim,) = post.live
    assert (claim.request_id, claim.approved, claim.call_id, claim.arguments) == ("ap1", True, "c1", {"path": "/a"})


def test_a_post_with_a_new_message_begins_something() -> None:
    post = read_post(body(USER, assistant(PENDING), USER | {"id": "m3"}))

    assert (post.message_id, post.known, post.live) == (None, (), ())
    assert post.new == [{"content": "Delete /a", "role": "user"}]


@pytest.mark.parametrize("wrong", [
    [], "text", None, {}, {"id": "c"}, body(), body(USER) | {"id": ""}, body(USER) | {"id": 7},
    body(USER) | {"id": "x" * 257}, body(USER) | {"id": "\ud800"}, body(USER) | {"messages": {}},
    body(USER) | {"messages": ["hi"]}, body(USER) | {"trigger": "resume-stream"}, body(USER | {"role": "system"}),
    body(USER | {"role": "tool"}), body(USER | {"id": None}), body(USER | {"parts": {}}), body(USER | {"parts": [{}]}),
    body(USER | {"parts": ["text"]}), body(USER | {"parts": [{"type": 1}]}), body(USER | {"parts": [ANSWERED]}),
    body(USER, resumeData={}, runId=""), body(USER, resumeData={}), body(USER, resumeData={}, runId="r", toolCallId=7),
], ids=lambda wrong: json.dumps(wrong, default=str)[:40])
def test_a23_what_is_no_post_is_refused(wrong: Any) -> None:
    with pytest.raises(CanonicalizationError) as refused:
        read_post(wrong)

    assert refused.value.detail == "post"


@pytest.mark.parametrize("approved", ["false", "true", 1, 0, None, [], {}])
def test_a15_an_answer_that_is_no_boolean_is_refused(approved: Any) -> None:
    part = ANSWERED | {"approval": {"id": "ap1", "signature": "s", "approved": approved}}

    with pytest.raises(InvalidApprovalError) as refused:
        read_post(body(USER, assistant(part)))

    assert refused.value.detail == "malformed"


@pytest.mark.parametrize(("state", "approved", "automatic", "claims"), [
    ("output-denied", False, True, 0), ("output-denied", False, False, 1), ("output-denied", False, "yes", 1),
    ("approval-responded", True, True, 1), ("approval-responded", False, True, 1),
])
def test_a05_a_denial_by_the_policy_claims_nothing(state: str, approved: bool, automatic: Any, claims: int) -> None:
    approval = {"id": "automatic-c1", "approved": approved, "isAutomatic": automatic}

    post = read_post(body(USER, assistant(PENDING | {"state": state, "approval": approval})))

    assert len(post.claims) == claims


def test_an_approval_of_another_format_is_refused() -> None:
    other = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}

    with pytest.raises(CanonicalizationError):
        read_post(body(USER, assistant(other)))


@pytest.mark.parametrize(("limit", "given_"), [
    ("MAX_MESSAGES", body(USER, USER, USER)), ("MAX_PARTS", body(USER, assistant(PENDING, PENDING))),
    ("MAX_CLAIMS", body(USER, assistant(ANSWERED, ANSWERED | {"toolCallId": "c2"}, ANSWERED | {"toolCallId": "c3"}))),
])
def test_at69_a_post_has_its_limits(monkeypatch: pytest.MonkeyPatch, limit: str, given_: Any) -> None:
    monkeypatch.setattr(module, limit, 2)

    with pytest.raises(CanonicalizationError) as refused:
        read_post(given_)

    assert refused.value.code == "too-large"


def test_m42_the_answer_to_a_tools_own_question_names_its_run() -> None:
    post = read_post(body(USER, resumeData={"yes": 1}, runId="r.1", toolCallId="c1"))

    assert post.resume == ("r.1", "c1", {"yes": 1})
    assert read_post(body(USER, resumeData=None, runId="r.1")).resume == ("r.1", None, None)


def test_a_chat_of_another_name_user_or_tenant_has_other_runs() -> None:
    chats = [
        ChatId("c", Principal("ana")), ChatId("C", Principal("ana")), ChatId("c", Principal("bob")),
        ChatId("c", Principal("ana", tenant="acme")),
    ]

    runs = [chat.new_run() for chat in chats]
    assert [[chat.owns(run) for run in runs] for chat in chats] == [
        [one is other for other in chats] for one in chats
    ]
    assert all(len(run) <= 64 for run in runs)
    assert chats[0].new_run() != chats[0].new_run()


def test_a_conversation_is_turned_into_what_a_model_reads() -> None:
    done = {"type": "dynamic-tool", "toolName": "look", "toolCallId": "c2", "state": "output-available",
            "input": {"q": 1}, "output": {"found": True}}
    failed = PENDING | {"toolCallId": "c3", "state": "output-error", "errorText": "disk on fire"}
    denied = ANSWERED | {"toolCallId": "c4", "state": "output-denied",
                         "approval": {"id": "a", "approved": False, "reason": "Too risky."}}
    silent = denied | {"toolCallId": "c5", "approval": {"id": "b", "approved": False}}
    text = {"type": "text", "text": "Looking."}

    said = list(chat_messages([USER, assistant(text, done, failed, denied, silent, PENDING), USER | {"id": "m3"}]))

    assert [one["role"] for one in said] == ["user", "assistant", "tool", "tool", "tool", "tool", "user"]
    assert [call["function"] for call in said[1]["tool_calls"]] == [
        {"arguments": '{"q":1}', "name": "look"}, *[{"arguments": '{"path":"/a"}', "name": "deleteFile"}] * 3,
    ]
    assert said[1]["content"] == "Looking."
    assert [one["content"] for one in said[2:6]] == [
        '{"found":true}', "Error: disk on fire", "Too risky.", "Tool call was not approved by the user",
    ]


def test_a_step_of_text_alone_and_one_of_nothing() -> None:
    said = list(chat_messages([assistant(PENDING), assistant({"type": "text", "text": "Hi"}, {"type": "step-start"})]))

    assert said == [{"content": "Hi", "role": "assistant"}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=12,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "step-start", "tool-x", "dynamic-tool", "data-x", "file"])},
    optional={"text": JSON, "state": JSON | st.sampled_from(["output-available", "approval-responded"]),
              "toolCallId": JSON, "input": JSON, "toolName": JSON, "approval": JSON, "output": JSON},
)


@given(st.lists(st.fixed_dictionaries({
    "id": st.text(min_size=1, max_size=3) | JSON, "role": st.sampled_from(["user", "assistant"]) | JSON,
    "parts": st.lists(PARTS, max_size=4) | JSON,
}), max_size=3))
def test_whatever_is_posted_is_read_or_refused(messages: list[dict[str, Any]]) -> None:
    try:
        post = read_post(body(*messages))
        told = list(chat_messages(post.messages))
    except HitlGuardError:
        return
    json.dumps(told)
