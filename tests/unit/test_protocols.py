"""What counts as an answered approval in each format, and what of it is malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import CanonicalizationError, InvalidApprovalError
from hitl_guard.protocols import Claim, claims_in, may_claim
from hitl_guard.protocols.echo import alike


def ui(**changed: Any) -> dict[str, Any]:
    """Return a body with one answered UI part; a change to None takes the member away."""
    part = {"type": "tool-refund", "toolCallId": "c1", "state": "approval-responded", "input": {"amount": 1},
            "approval": {"id": "r1", "approved": True}} | changed
    return {"messages": [{"role": "assistant", "parts": [without_none(part)]}]}


def without_none(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if value is not None}


CALL = {"type": "tool-call", "toolCallId": "c1", "toolName": "refund", "input": {"amount": 1}}
ASKED = {"type": "tool-approval-request", "approvalId": "r1", "toolCallId": "c1", "signature": "t"}
ANSWER = {"type": "tool-approval-response", "approvalId": "r1", "approved": True, "reason": "fine"}
RESULT = {"type": "tool-result", "toolCallId": "c1", "toolName": "refund", "output": {"type": "text", "value": "ok"}}


def model(*contents: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant" if CALL in content else "tool", "content": content}
                         for content in contents]}


MCP = {"type": "mcp_approval_request", "id": "m1", "name": "refund", "arguments": '{"amount":1}', "server_label": "s"}
MCP_ANSWER = {"type": "mcp_approval_response", "approval_request_id": "m1", "approve": True, "reason": None}


def ag_ui(**changed: Any) -> dict[str, Any]:
    entry = {"interruptId": "r1", "status": "resolved", "payload": {"approved": True}} | changed
    return {"threadId": "t", "resume": [without_none(entry)]}


def only(body: Any) -> Claim:
    (claim,) = claims_in(body)[0]
    return claim


def test_x11_an_answered_ui_part_is_a_claim() -> None:
    answered = {"id": "r1", "approved": False, "reason": "no", "signature": "t", "isAutomatic": True, "descriptor": {}}

    assert only(ui()) == Claim("ai-sdk-ui", "/messages/0/parts/0", True, "r1", None, "c1", "refund", {"amount": 1})
    claim = only(ui(approval=answered, type="dynamic-tool", toolName="any tool"))
    assert (claim.approved, claim.reason, claim.token, claim.tool) == (False, "no", "t", "any tool")


@pytest.mark.parametrize(("state", "approved", "more", "outcome"), [
    ("approval-responded", True, {}, "none"), ("approval-responded", False, {}, "none"),
    ("output-available", True, {"output": {}}, "output"), ("output-error", True, {"errorText": "x"}, "error"),
    ("output-denied", False, {}, "error"),
])
def test_x11_a_ui_parts_state_says_what_came_of_the_call(
    state: str, approved: bool, more: dict[str, Any], outcome: str
) -> None:
    claim = only(ui(state=state, approval={"id": "r1", "approved": approved}, **more))

    assert (claim.approved, claim.outcome) == (approved, outcome)


def test_x11_what_is_not_answered_is_no_claim() -> None:
    bodies: list[Any] = [
        ui(state="approval-requested", approval={"id": "r1"}), ui(state="input-available", approval=None),
        ui(state="output-available", approval={"id": "r1"}, output=1), ui(state="output-available", approval=None),
        model([CALL, ASKED]), model([CALL], [RESULT]), {"input": [MCP]}, {"input": "approved"},
        ag_ui(status="cancelled", payload=None), ag_ui(payload={"location": "Kyoto"}), ag_ui(payload="yes"),
        {"resume": "a curriculum vitae"}, {"resume": [{"employer": "x", "approved": True}]},
        {"approved": True, "approval": {"id": "r1", "approved": True}}, [], "approved", None, True, 7,
        {"type": "tool-approval-response", "toolCallId": "c1", "state": "input-available", "input": {}},
    ]

    assert [claims_in(body)[0] for body in bodies] == [[]] * len(bodies)


MALFORMED: dict[str, Any] = {
    "ui: no answer": ui(approval={"id": "r1"}),
    "ui: no approval": ui(approval=None),
    "ui: approval is a list": ui(approval=[True]),
    "ui: approval is true": ui(approval=True, state="output-available"),
    "ui: no id": ui(approval={"approved": True}),
    "ui: an empty id": ui(approval={"id": "", "approved": True}),
    "ui: the id is a number": ui(approval={"id": 7, "approved": True}),
    "ui: no call id": ui(toolCallId=None),
    "ui: two call ids": ui(tool_call_id="c2"),
    "ui: no input": ui(input=None),
    "ui: no state": ui(state=None),
    "ui: still requested": ui(state="approval-requested"),
    "ui: still being written": ui(state="input-available"),
    "ui: an unknown state": ui(state="approved"),
    "ui: a state that is none": ui(state=["approval-responded"]),
    "ui: approved and denied": ui(state="output-denied"),
    "ui: denied and run": ui(state="output-available", output=1, approval={"id": "r1", "approved": False}),
    "ui: denied and failed": ui(state="output-error", errorText="x", approval={"id": "r1", "approved": False}),
    "ui: run without a result": ui(state="output-available"),
    "ui: failed without an error": ui(state="output-error"),
    "ui: no tool": ui(type="tool-"),
    "ui: a text part": ui(type="text"),
    "ui: no type": ui(type=None),
    "ui: a dynamic tool without a name": ui(type="dynamic-tool"),
    "ui: a token that is none": ui(approval={"id": "r1", "approved": True, "signature": 7}),
    "ui: a reason that is none": ui(approval={"id": "r1", "approved": True, "reason": {}}),
    "ui: another input beside it": ui(approval={"id": "r1", "approved": True, "inputSchemaInput": {"amount": 2}}),
    "ui: true is not 1": ui(approval={"id": "r1", "approved": True, "inputSchemaInput": {"amount": True}}),
    "model: no request": model([CALL], [ANSWER]),
    "model: another's request": model([CALL, ASKED | {"approvalId": "r2"}], [ANSWER]),
    "model: asked twice": model([CALL, ASKED, ASKED], [ANSWER]),
    "model: no call": model([ASKED], [ANSWER]),
    "model: the call comes later": model([ASKED, CALL], [ANSWER]),
    "model: another call": model([CALL | {"toolCallId": "c2"}, ASKED], [ANSWER]),
    "model: a call without a tool": model([CALL | {"toolName": ""}, ASKED], [ANSWER]),
    "model: a call in two spellings": model([CALL | {"tool_call_id": "c1"}, ASKED], [ANSWER]),
    "model: no answer": model([CALL, ASKED], [without_none(ANSWER | {"approved": None})]),
    "model: an id that is none": model([CALL, ASKED], [ANSWER | {"approvalId": 7}]),
    "model: two ids": model([CALL, ASKED], [ANSWER | {"approval_id": "r2"}]),
    "model: a reason that is none": model([CALL, ASKED], [ANSWER | {"reason": 7}]),
    "openai: no id": {"input": [MCP, without_none(MCP_ANSWER | {"approval_request_id": None})]},
    "openai: no answer": {"input": [MCP, without_none(MCP_ANSWER | {"approve": None})]},
    "openai: asked twice": {"input": [MCP, MCP, MCP_ANSWER]},
    "openai: arguments that are no text": {"input": [MCP | {"arguments": {}}, MCP_ANSWER]},
    "openai: arguments that are no object": {"input": [MCP | {"arguments": "[1]"}, MCP_ANSWER]},
    "openai: arguments with a name twice": {"input": [MCP | {"arguments": '{"a":1,"a":2}'}, MCP_ANSWER]},
    "openai: no tool": {"input": [MCP | {"name": ""}, MCP_ANSWER]},
    "openai: a reason that is none": {"input": [MCP, MCP_ANSWER | {"reason": 7}]},
    "ag-ui: cancelled with an answer": ag_ui(status="cancelled"),
    "ag-ui: an unknown status": ag_ui(status="approved"),
    "ag-ui: an id that is none": ag_ui(interruptId=7),
    "ag-ui: two ids": ag_ui(interrupt_id="r2"),
    "ag-ui: an answer that is none": ag_ui(payload={"approved": "yes"}),
    "ag-ui: edited arguments that are none": ag_ui(payload={"approved": True, "editedArgs": "x"}),
    "ag-ui: edited arguments in two spellings": ag_ui(payload={"approved": True, "editedArgs": {}, "edited_args": {}}),
    "ag-ui: metadata of ours that is none": ag_ui(metadata={"hitl_guard": "t"}),
    "ag-ui: a token that is none": ag_ui(metadata={"hitl_guard": {"token": 7}}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_x11_a_malformed_answer_is_refused(case: str) -> None:
    with pytest.raises(InvalidApprovalError) as refusal:
        claims_in(MALFORMED[case])

    assert (refusal.value.code, refusal.value.detail) == ("invalid-approval", "malformed")


def test_x11_an_answer_in_model_messages_is_tied_to_its_request_and_its_call() -> None:
    claim = only(model([CALL, ASKED], [ANSWER]))

    assert claim == Claim(
        "ai-sdk-model", "/messages/1/content/0", True, "r1", "t", "c1", "refund", {"amount": 1}, "fine"
    )


@pytest.mark.parametrize(("result", "outcome"), [
    (RESULT, "output"), (RESULT | {"output": {"type": "error-text", "value": "x"}}, "error"),
    (RESULT | {"output": {"type": "execution-denied"}}, "error"), (RESULT | {"type": "tool-error"}, "none"),
    (RESULT | {"output": "plain"}, "output"), (RESULT | {"toolCallId": "c2"}, "none"),
])
def test_x11_a_result_after_the_answer_makes_it_history(result: dict[str, Any], outcome: str) -> None:
    assert only(model([CALL, ASKED], [ANSWER], [result])).outcome == outcome
    assert only(model([CALL, ASKED], [ANSWER, result])).outcome == outcome
    assert only(model([CALL, ASKED], [result], [ANSWER])).outcome == "none"
    elsewhere = model([CALL, ASKED], [ANSWER]) | {"zz": [{"content": [result]}]}
    assert only(elsewhere).outcome == "none"


UNSEEN = {
    "spelled otherwise": model([without_none(RESULT | {"toolCallId": None, "tool_call_id": "c1"})]),
    "a message": {"messages": [RESULT | {"role": "tool"}]},
    "a message of another role": {"messages": [RESULT | {"role": "data", "type": "tool-error", "content": []}]},
    "in a message of another role": {"messages": [{"role": "assistant", "content": [RESULT]}]},
    "in parts": {"messages": [{"role": "tool", "parts": [RESULT]}]},
    "in a list inside the content": model([[RESULT]]),  # type: ignore[list-item]
    "an item": {"messages": [{"type": "function_call_output", "call_id": "c1", "output": "x"}]},
    "of the chat format": {"messages": [{"role": "tool", "toolCallId": "c1", "content": "x"}]},
}


@pytest.mark.parametrize("result", UNSEEN.values(), ids=UNSEEN)
def test_x11_a_result_that_the_formats_reader_does_not_see_makes_no_history(result: dict[str, Any]) -> None:
    body = model([CALL, ASKED], [ANSWER])
    other = CALL | {"input": {"amount": 9}}

    body["messages"] += result["messages"]
    restated = {"messages": [{"content": [other]}, *result["messages"], {"content": [CALL]}]}

    assert only(body).outcome == "none"
    assert other["input"] in [call.arguments for call in claims_in(restated)[1].open("c1")]


def test_x11_an_answer_in_snake_case_is_history_by_a_result_in_snake_case() -> None:
    def snake(part: dict[str, Any]) -> dict[str, Any]:
        return {name.replace("Id", "_id").replace("toolC", "tool_c"): value for name, value in part.items()}

    assert only(model([CALL, ASKED], [snake(ANSWER)], [snake(RESULT)])).outcome == "output"
    assert only(model([CALL, ASKED], [snake(ANSWER)], [RESULT])).outcome == "none"


def test_x11_an_mcp_result_in_a_messages_content_is_no_item() -> None:
    called = {"type": "mcp_call", "approval_request_id": "m1", "name": "refund", "arguments": "{}", "output": "x"}

    assert only({"input": [MCP, MCP_ANSWER, {"role": "assistant", "content": [called]}]}).outcome == "none"


TWICE = {
    "a call's id": {"content": [CALL | {"tool_call_id": "zzz"}]},
    "a tool part's id": {"parts": [{"type": "tool-refund", "toolCallId": "c1", "tool_call_id": "zzz", "input": {}}]},
    "a call's name": {"content": [CALL | {"tool_name": "other"}]},
    "a call's arguments": {"content": [CALL | {"args": {"amount": 9}}]},
    "a result's id": {"role": "tool", "content": [RESULT | {"tool_call_id": "c1"}]},
    "the id of a result of the chat format": {"role": "tool", "toolCallId": "c1", "tool_call_id": "zzz"},
}


@pytest.mark.parametrize("message", TWICE.values(), ids=TWICE)
def test_x11_what_says_something_twice_is_refused_whatever_it_says(message: dict[str, Any]) -> None:
    body = model([CALL, ASKED], [ANSWER])
    body["messages"].insert(1, message)

    with pytest.raises(InvalidApprovalError) as refusal:
        claims_in(body)

    assert refusal.value.detail == "malformed"


def test_x11_arguments_that_are_there_twice_and_alike_are_one_statement() -> None:
    calls = claims_in({"content": [CALL | {"args": {"amount": 1.0}}]})[1]

    assert [call.arguments for call in calls.open("c1")] == [{"amount": 1}]


def test_x11_a_result_that_repeats_its_call_states_it() -> None:
    repeated = [RESULT | {"args": {"amount": 9}}, RESULT | {"type": "tool-error", "input": {"amount": 7}}]
    calls = claims_in({"content": [CALL, *repeated, {"type": "tool-result", "toolCallId": "c1", "input": {}}]})[1]

    assert [(call.tool, call.arguments) for call in calls.open("c1")] == [
        ("refund", {"amount": 1}), ("refund", {"amount": 9}), ("refund", {"amount": 7}), ("result", {}),
    ]


def test_x11_the_nearest_call_before_the_request_is_meant_where_ids_are_repeated() -> None:
    other = CALL | {"input": {"amount": 2}}

    assert only(model([other], [RESULT], [CALL, ASKED], [ANSWER])).arguments == {"amount": 1}


def test_x11_an_answer_in_responses_items_names_a_call() -> None:
    called = {"type": "mcp_call", "id": "x", "approval_request_id": "m1", "name": "refund", "arguments": "{}"}

    claim = only({"input": [MCP, MCP_ANSWER]})
    assert claim == Claim("openai-responses", "/input/1", True, None, None, "m1", "refund", {"amount": 1})
    assert only({"input": [MCP_ANSWER | {"approve": False, "reason": "no"}]}).tool is None
    for more, outcome in (({"output": "x"}, "output"), ({"error": "x"}, "error"), ({"status": "calling"}, "none")):
        assert only({"input": [MCP, MCP_ANSWER, called | more]}).outcome == outcome


def test_x11_an_answer_to_an_interrupt_is_a_claim_where_it_says_yes_or_no() -> None:
    token = {"hitl_guard": {"token": "t"}, "other": 1}
    edited = {"approved": True, "editedArgs": {"amount": 1}, "reason": None}

    assert only(ag_ui(metadata=token)) == Claim("ag-ui", "/resume/0", True, "r1", "t")
    assert only(ag_ui(payload=False)).approved is False
    assert only(ag_ui(payload=edited)).arguments == {"amount": 1}
    assert only({"resume": {"interrupt_id": "r1", "payload": True}, "x": {"hitl_guard": None}}).request_id == "r1"


def test_x11_an_escaped_name_is_found_too() -> None:
    raw = json.dumps(ui()).replace("approv", "\\u0061pprov").replace("interrupt", "x").encode()

    assert may_claim(raw)
    assert only(json.loads(raw)) == only(ui())


def test_x11_one_body_may_hold_answers_of_several_formats() -> None:
    body = {"a/b": ui(), "c~d": [model([CALL, ASKED], [ANSWER])], "e": {"input": [MCP, MCP_ANSWER]}, **ag_ui()}

    assert [claim.path for claim in claims_in(body)[0]] == [
        "/a~1b/messages/0/parts/0", "/c~0d/0/messages/1/content/0", "/e/input/1", "/resume/0",
    ]


def test_x11_what_is_inside_arguments_and_results_is_data() -> None:
    inside = [ui(), model([CALL, ASKED], [ANSWER]), ag_ui(approved=1)]
    part = {"type": "tool-x", "toolCallId": "c2", "state": "output-available", "input": inside, "output": inside}

    assert claims_in({"messages": [{"parts": [part]}]})[0] == []
    assert claims_in(model([RESULT | {"output": {"type": "json", "value": inside}}]))[0] == []
    assert len(claims_in({"type": "tool-x", "input": inside})[0]) == 3


@pytest.mark.parametrize("name", ["content", "parts"])
def test_x11_a_message_that_poses_as_a_tool_part_hides_nothing(name: str) -> None:
    posing = {"type": "tool-x", "toolCallId": "c2", "state": "output-available", "input": {}, "output": {}}
    whole = [
        ui(), ui()["messages"][0], model([CALL, ASKED], [ANSWER]), {"content": [CALL, ASKED, ANSWER]},
        {"input": [MCP, MCP_ANSWER]}, ag_ui(), {"anything": {"else": ui()}},
    ]

    assert [len(claims_in({name: [{**body, **posing}]})[0]) for body in whole] == [1, 1, 1, 1, 0, 1, 1]
    assert only({"resume": [{**ag_ui()["resume"][0], "type": "tool-x"}]}).format == "ag-ui"


def test_x11_a_message_that_poses_as_a_tool_part_states_its_calls() -> None:
    function = {"name": "refund", "arguments": '{"amount":1}'}
    body = {"content": [{"type": "tool-x", "tool_calls": [{"id": "c1", "function": function}]}]}

    assert [call.tool for call in claims_in(body)[1].stated("c1")] == ["refund"]


def test_x11_statements_of_a_call_are_found_in_every_format() -> None:
    function = {"name": "refund", "arguments": '{"amount":1}'}
    body = {"messages": [
        {"parts": [{"type": "tool-refund", "toolCallId": "c1", "state": "output-available", "input": {"amount": 1}}]},
        {"content": [CALL]}, {"role": "tool", "content": [RESULT]},
        {"tool_calls": [{"id": "c1", "function": function}, "x", {"id": 7, "function": function}]},
        {"role": "tool", "tool_call_id": "c1"},
        {"type": "function_call", "call_id": "c1", **function}, {"type": "function_call_output", "call_id": "c1"},
        {"toolCalls": [{"id": "c1", "function": function | {"arguments": '{"a":1,"a":1}'}}]},
        {"type": "function_call", "call_id": "c1", "name": "refund", "arguments": 7}, {"tool_calls": "x"},
        {"content": [{"type": "tool-call", "toolCallId": "c1", "args": {"amount": 1}}]},
        {"content": [{"type": "tool-call"}]},
    ]}

    calls = claims_in(body)[1]

    assert [(call.tool, call.arguments) for call in calls.stated("c1")] == [
        ("refund", {"amount": 1}), ("refund", {"amount": 1}), ("refund", {"amount": 1}), ("refund", {"amount": 1}),
        ("refund", None), ("refund", None), ("call", {"amount": 1}),
    ]
    assert [call.tool for call in calls.open("c1")] == ["refund", "refund", "call"]
    assert calls.open("c2") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([
    "type", "approval", "approved", "approvalId", "approval_id", "approve", "approval_request_id", "content", "id",
    "input", "interruptId", "messages", "metadata", "payload", "parts", "resume", "role", "state", "status",
    "toolCallId", "toolCalls", "toolName", "tool_calls", "function", "arguments", "name", "output", "errorText",
])
WORDS = st.sampled_from([
    "tool-x", "tool-approval-response", "tool-approval-request", "tool-call", "tool-result", "dynamic-tool", "tool",
    "mcp_approval_response", "mcp_approval_request", "mcp_call", "function_call", "approval-responded", "resolved",
    "output-available", "c1", "",
])
HOSTILE = st.recursive(
    WORDS | st.booleans() | st.none() | st.integers(0, 2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6), max_leaves=30,
)


@given(HOSTILE)
def test_x11_any_body_gives_claims_or_is_malformed_and_nothing_else(body: Any) -> None:
    try:
        claims, calls = claims_in(body)
    except InvalidApprovalError:
        assert may_claim(json.dumps(body).encode())
        return
    assert may_claim(json.dumps(body).encode()) or not claims
    for claim in claims:
        assert type(claim.approved) is bool
        assert claim.request_id or claim.call_id
        assert calls.open(claim.call_id or "") is not None


@given(JSON, JSON)
def test_x11_an_echo_is_alike_only_what_it_is_an_echo_of(value: Any, other: Any) -> None:
    assert alike(value, value)
    if alike(value, other):
        assert repr(value) == repr(other) or value == other or _rounded(value) == _rounded(other)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(value) if type(value) in (int, float) and abs(value) < 2**1023 else value


@pytest.mark.parametrize(("stored", "posted", "same"), [
    (2**53 + 1, 2**53, True), (2**53 + 1, float(2**53), True), (2**53 + 1, 2**53 + 2, False), (1, 1.0, True),
    (1, True, False), (True, 1, False), (1, "1", False), (None, 0, False), (0, None, False), (10**400, None, True),
    (10**400, 10**400, True), (10**400, 10**400 + 1, False), (1, 10**400, False), (-0.0, 0, True),
    ("\u00e9", "e\u0301", False), ([1], [1, 2], False),
    ({"a": 1}, {"a": 1, "b": None}, False), ({"a": [2**60]}, {"a": [2**60 + 1]}, True), ([], {}, False),
])
def test_x11_numbers_are_compared_as_a_browser_keeps_them(stored: Any, posted: Any, same: bool) -> None:
    assert alike(stored, posted) is same


def test_x11_too_many_answers_in_one_body_are_refused_before_they_are_compared() -> None:
    answers = [{"type": "mcp_approval_response", "approval_request_id": "m", "approve": False} for _ in range(6)]

    assert len(claims_in({"input": answers}, most=6)[0]) == 6
    with pytest.raises(CanonicalizationError) as caught:
        claims_in({"input": answers}, most=5)
    assert (caught.value.code, caught.value.detail) == ("too-large", "claims")
