"""What ``useChat`` posts is read strictly, and turned into chat messages for a loop that keeps no conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical
from hitl_guard.errors import CanonicalizationError, HitlGuardError, InvalidApprovalError
from hitl_guard.integrations.ai_sdk import messages as module
from hitl_guard.integrations.ai_sdk.conversation import ran_there
from hitl_guard.integrations.ai_sdk.halves import read_json
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
    (claim,) = post.claims
    assert (claim.request_id, claim.approved, claim.call_id, claim.arguments) == ("ap1", True, "c1", {"path": "/a"})


def test_a_post_with_a_new_message_begins_something() -> None:
    post = read_post(body(USER, assistant(PENDING), USER | {"id": "m3"}))

    assert (post.message_id, post.known, post.claims) == (None, (), ())
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

    with pytest.raises(CanonicalizationError, match="of another format") as refused:
        read_post(body(USER, assistant(other)))

    assert (refused.value.code, refused.value.detail) == ("unsupported-value", "post")


@pytest.mark.parametrize(("limit", "given_"), [
    ("MAX_MESSAGES", body(USER, USER, USER)), ("MAX_PARTS", body(USER, assistant(PENDING, PENDING, PENDING))),
    ("MAX_WAITING", body(USER, assistant(PENDING, PENDING, PENDING))),
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


@pytest.mark.parametrize(("trigger", "regenerates"), [("submit-message", False), ("regenerate-message", True)])
def test_a_post_says_whether_the_last_answer_is_to_be_made_anew(trigger: str, regenerates: bool) -> None:
    assert read_post(body(USER, trigger=trigger)).regenerates is regenerates


def test_the_requests_and_questions_that_a_client_has_are_found_wherever_they_stand() -> None:
    question = {"type": "data-tool-call-suspended", "id": "s1", "data": {}}
    odd: list[dict[str, Any]] = [{"type": "data-x", "id": 7}, {"type": "tool-x", "approval": {"id": None}}]

    post = read_post(body(USER, assistant(PENDING, question), USER, assistant(*odd)))

    assert post.held == {"ap1", "s1"}


# -- half a character ------------------------------------------------------------------------------------------------

LIMITS = canonical.Limits(max_bytes=10_000, max_depth=20, max_nodes=1_000)


def read(*parts: dict[str, Any], **more: Any) -> Any:
    """Return what is read of a post with these parts, as JavaScript writes it."""
    return read_json(json.dumps(body(assistant(*parts)) | more).encode(), LIMITS)


@pytest.mark.parametrize(("said", "heard"), [
    ("\ud83d", "\ufffd"), ("\ude00 b", "\ufffd b"),
    ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"), ("\udfff\ud800", "\ufffd\ufffd"),
    ("\\ud83d", "\\ud83d"), ("\\\ud83d", "\\\ufffd"), ("\U0001f600", "\U0001f600"), ("\ud83dude00", "\ufffdude00"),
])
@pytest.mark.parametrize(("kind", "name"), [
    ("text", "text"), ("reasoning", "text"), ("file", "filename"), ("tool-look", "output"), ("tool-look", "errorText"),
    ("dynamic-tool", "output"),
])
def test_half_a_character_in_text_for_the_model_is_read_as_javascript_makes_it_well_formed(
    kind: str, name: str, said: str, heard: str
) -> None:
    assert read({"type": kind, name: said})["messages"][0]["parts"][1] == {"type": kind, name: heard}
    assert read({"type": kind, name: said}) == read({"type": kind, name: heard})


@pytest.mark.parametrize("wrong", [
    lambda: read({"type": "text", "text": "a", "approval": {"reason": "\ud83d"}}),
    lambda: read({"type": "text", "\ud83d": "a"}), lambda: read({"type": "text\ud83d", "text": "a"}),
    lambda: read({"type": "tool-x", "input": {"a": ["\ud83d"]}}),
    lambda: read({"type": "tool-x", "input": {"\ud83d": 1}}),
    lambda: read({"type": "tool-x", "toolCallId": "\ud83d"}), lambda: read({"type": "tool-x", "text": "\ud83d"}),
    lambda: read({"type": "data-x", "output": "\ud83d"}),
    lambda: read({"type": "data-x", "data": "\ud83d"}), lambda: read({"type": "file", "url": "\ud83d"}),
    lambda: read(id="\ud83d"), lambda: read(resumeData={"text": "\ud83d"}), lambda: read(extra={"text": "\ud83d"}),
    lambda: read({"type": "text", "text": "\ud83d"}, id="\ud83d"), lambda: read(messages="\ud83d"),
    lambda: read_json(b'"\\ud83d"', LIMITS),
    lambda: read_json(b'[{"parts": [{"type": "text", "text": "\\ud83d"}]}]', LIMITS),
])
def test_half_a_character_anywhere_else_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(CanonicalizationError) as refused:
        wrong()

    assert (refused.value.code, refused.value.detail) == ("unsupported-value", "text")


@pytest.mark.parametrize(("raw", "detail"), [
    (b'{"id":"c","messages":[{"parts":[{"type":"text","text":"\\ud83d","text":"b"}]}]}', "duplicate"),
    (b'{"id":"c","messages":[{"parts":[{"type":"tool-x","output":{"\\ud83d":1,"\\ufffd":2}}]}]}', "duplicate"),
    (b'{"messages":[{"parts":[{"type":"text","text":"\\ud83d","n":NaN}]}]}', "number"),
    (b'{"messages":[{"parts":[{"type":"text","text":"\xed\xa0\xbd"}]}]}', "encoding"),
    (b'{"messages":[{"parts":[{"type":"text","text":"\\ud83d"}]}]} x', "trailing"),
    (b'{"messages":[{"parts":[{"type":"text","text":"\\ud83d","deep":' + b"[" * 30 + b"]" * 30 + b"}]}]}", "depth"),
])
def test_a_post_with_half_a_character_is_read_as_strictly_as_any_other(raw: bytes, detail: str) -> None:
    with pytest.raises(CanonicalizationError) as refused:
        read_json(raw, LIMITS)

    assert refused.value.detail == detail


@given(st.text(st.characters() | st.sampled_from("\ud800\udbff\udc00\udfff\\u\""), max_size=12))
def test_whatever_text_javascript_sends_is_read_with_nothing_else_changed(text: str) -> None:
    (part,) = read({"type": "text", "text": text})["messages"][0]["parts"][1:]

    assert part["text"] == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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


WHOLE = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "step-start", "tool-x", "dynamic-tool", "data-x", "file"])},
    optional={"text": JSON, "state": JSON.filter(lambda state: state != "approval-responded") | st.just(
        "output-available"), "toolCallId": JSON, "input": JSON, "toolName": JSON, "output": JSON},
)


@given(st.lists(st.fixed_dictionaries({
    "id": st.text(min_size=1, max_size=3), "role": st.just("assistant"), "parts": st.lists(WHOLE, max_size=4),
}), min_size=1, max_size=3))
def test_whatever_its_parts_hold_a_post_without_answers_is_read(messages: list[dict[str, Any]]) -> None:
    post = read_post(body(USER, *messages))
    told = list(chat_messages(post.messages))

    assert (post.messages, post.claims) == ((USER, *messages), ())
    assert told[0] == {"content": "Delete /a", "role": "user"}
    json.dumps(told)


# -- what the browser ran --------------------------------------------------------------------------------------------


def stored(*calls: str, answered: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": id_} for id_ in calls]}
    return [{"role": "user", "content": "go"}, said, *({"role": "tool", "tool_call_id": id_} for id_ in answered)]


@pytest.mark.parametrize(("kept", "told", "lacking"), [
    ([], [("c1", "a")], []),
    ([{"role": "user", "content": "go"}], [("c1", "a")], []),
    (stored("c1"), [("c1", "a")], [("c1", "a")]),
    (stored("c1", answered=("c1",)), [("c1", "a")], []),
    (stored("c1", "c2", answered=("c1",)), [("c1", "a"), ("c2", "b")], [("c2", "b")]),
    (stored("c1"), [("c1", "old"), (f"~{'A' * 22}/c1", "new")], [("c1", "new")]),
    (stored("c1"), [("c1", "old"), (f"~{'A' * 22}/c1", None)], []),
    (stored("c1", "c1"), [("c1", "a"), ("c1~1", "b")], [("c1", "a"), ("c1", "b")]),
    (stored("c1"), [("c2", "a")], []),
])
def test_the_results_that_a_stored_conversation_lacks_are_those_of_its_last_open_calls(
    kept: list[dict[str, Any]], told: list[tuple[str, str | None]], lacking: list[tuple[str, str]]
) -> None:
    assert ran_there(told, kept) == [
        {"content": content, "role": "tool", "tool_call_id": id_} for id_, content in lacking
    ]


def test_what_a_provider_wrote_beside_a_call_answers_nothing() -> None:
    answered = {"type": "tool-refund", "toolCallId": "c", "state": "approval-responded", "input": {},
                "approval": {"id": "r", "approved": True}}
    spoken = {"type": "text", "text": "hello", "providerMetadata": {"parts": [answered]}}

    def claims_of(*parts: Any) -> int:
        return len(read_post({"id": "chat", "messages": [{"id": "m", "role": "assistant", "parts": [*parts]}]}).claims)

    assert (claims_of(answered), claims_of(spoken), claims_of(spoken, answered)) == (1, 0, 1)
