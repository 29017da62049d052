"""`UIMessageStream`: every chunk is one that the SDK takes, in an order that it takes, and tells what is on record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.agent.shapes import well_formed
from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.ai_sdk.asked import descriptor_of, hidden, reason_of
from hitl_guard.integrations.ai_sdk.chunks import CHANGED, UIMessageStream, finish_reason
from hitl_guard.integrations.ai_sdk.parts import is_inner, named_call, part_id, rebuilt, repeated_id
from hitl_guard.integrations.ai_sdk.values import MAX_DEPTH, exact_integers, obstacle, sendable
from hitl_guard.models import ApprovalRequest
from hitl_guard.policy.core import Status
from tests.agent.stage import Stage
from tests.agent.stage import stage as stage
from tests.integrations.conftest import OpenChat, Serve
from tests.integrations.wire import Chunk, app_of, checked, kinds, one
from tests.support import BOB, World, document

CHAT_RULES = """\
version: 1
name: chat
default: not_applicable
rules:
  - id: refunds
    tools: [refund]
    effect: require_approval
    reason: Money leaves the house.
  - id: two
    tools: [wire]
    effect: require_approval
    quorum: 2
    approvers: [lead, "user:carol"]
    channels: [inbox, chat]
  - id: own
    tools: [confirm, wire]
    effect: require_approval
    self_approval: true
    channels: [chat]
  - id: changeable
    tools: [mail]
    effect: require_approval
    edit: true
  - id: fine
    tools: [ping]
    effect: allow
    reason: Pings are free.
"""
PROTO = json.loads('{"__proto__": {"admin": true}, "id": 1}')
NESTED: Any = []
for _ in range(MAX_DEPTH + 10):
    NESTED = [NESTED]
HOSTILE: list[Any] = [
    PROTO, [{"a": [PROTO]}], {"constructor": {"prototype": 1}}, {"x": math.nan}, [math.inf], "\ud800", {"\udfff": 1},
    NESTED, {1: 2},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["__proto__", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["__proto__", "constructor", "prototype"]), inner, max_size=4
    ),
    max_leaves=12,
)


@pytest.fixture
def world(stage: Stage) -> World:
    return World(stage.store, policy=document(CHAT_RULES))


def ask(world: World, tool: str = "refund", arguments: Any = None, **scope: Any) -> ApprovalRequest:
    return world.guard.request(world.call(tool, arguments, **scope))


def again(world: World, request: ApprovalRequest) -> ApprovalRequest:
    return world.guard.get(request.id, tenant=request.tenant)


def shown(world: World, request: ApprovalRequest) -> tuple[list[Chunk], dict[str, Any]]:
    """Return the stream in which a call waits, and the part that an SDK client has of it."""
    stream = UIMessageStream()
    call_id = request.call_id or ""
    chunks = [*stream.tool_call(call_id, request.tool, request.arguments), *stream.approval(request)]
    asked = one(chunks, "tool-approval-request")
    part = {
        "type": f"tool-{request.tool}", "toolCallId": call_id, "state": "approval-requested",
        "input": json.loads(request.canonical), "approval": {
            "id": request.id, "signature": asked["signature"], "descriptor": asked["approvalDescriptor"],
        },
    }
    return checked([*chunks, *stream.finish("tool-calls")]), part


def answered(part: dict[str, Any], approved: bool, **more: Any) -> dict[str, Any]:
    return part | {"state": "approval-responded", "approval": part["approval"] | {"approved": approved}} | more


# -- the message -----------------------------------------------------------------------------------------------------


def test_every_kind_of_chunk_has_the_fields_of_the_protocol_and_its_place(world: World) -> None:
    stream, request = UIMessageStream(), ask(world, call_id="c1")

    chunks = [
        *stream.start("msg-1", {"run": "r"}), *stream.reasoning("r1", "Hm."), *stream.text("t1", "I "),
        *stream.text("t1", "refund it."), *stream.tool_call("c1", "refund", request.arguments, title="Refund"),
        *stream.approval(request, descriptor={"page": "/inbox"}, note="Ask Bob."), *stream.text("t2", "And:"),
        *stream.tool_call("c2", "ping", {}, dynamic=True),
        *stream.automatic("c2", "auto-1", approved=True, reason="Pings are free.", token="t"),
        *stream.output("c2", {"pong": True}), *stream.start_step(), *stream.tool_call("c3", "drop", {}),
        *stream.automatic("c3", "auto-2", approved=False, reason="Never."), *stream.denied("c3"),
        *stream.tool_call("c4", "ping", []), *stream.output_error("c4", "No network."),
        *stream.suspended("c5", {"q": 1}, suspension_id="s1", run_id="r", tool="ask", resume_schema="{}"),
        *stream.resumed("c5", {"q": 1}, suspension_id="s1", run_id="r", tool="ask", resume_schema="{}"),
        *stream.finish("tool_calls"),
    ]

    assert [chunk["type"] for chunk in checked(chunks)] == [
        "start", "start-step", "reasoning-start", "reasoning-delta", "reasoning-end", "text-start", "text-delta",
        "text-delta", "text-end", "tool-input-available", "tool-approval-request", "text-start", "text-delta",
        "text-end", "tool-input-available", "tool-approval-request", "tool-approval-response", "tool-output-available",
        "finish-step", "start-step", "tool-input-available", "tool-approval-request", "tool-approval-response",
        "tool-output-denied", "tool-input-available", "tool-output-error", "data-tool-call-suspended",
        "data-tool-call-suspended", "data-tool-call-resumed", "finish-step", "finish",
    ]
    asked = next(chunk for chunk in chunks if chunk["type"] == "tool-approval-request")
    assert (asked["approvalId"], asked["signature"], asked["reason"]) == (
        request.id, request.token, "Money leaves the house.\nAsk Bob."
    )
    assert asked["approvalDescriptor"] == descriptor_of(request) | {"page": "/inbox"}


def test_after_its_end_nothing_more_is_said_of_a_message() -> None:
    for end in (UIMessageStream.finish, UIMessageStream.error, UIMessageStream.abort, UIMessageStream.end):
        stream = UIMessageStream()
        chunks = [*stream.text("t", "a"), *stream.tool_call("c", "ping", {}), *stream.text("t", "b"), *end(stream)]

        later = [
            *stream.start(), *stream.start_step(), *stream.text("t", "c"), *stream.tool_call("d", "ping", {}),
            *stream.output("c", 1), *stream.end(), *stream.error(), *stream.abort("x"), *stream.finish_step(),
        ]

        assert later == []
        checked(chunks)


def test_a_message_that_goes_on_is_started_without_an_id_of_its_own_where_nobody_gives_one() -> None:
    stream = UIMessageStream(known=["c1"])

    chunks = checked([*stream.output("c1", 1), *stream.start("msg-2"), *stream.end()], known=["c1"])

    assert [chunk["type"] for chunk in chunks] == ["start", "tool-output-available", "finish"]
    assert chunks[0] == {"type": "start"}


@pytest.mark.parametrize(("given", "told"), [
    ("stop", "stop"), ("end_turn", "stop"), ("tool_calls", "tool-calls"), ("suspended", "tool-calls"),
    ("max_tokens", "length"), ("content_filter", "content-filter"), ("failed", "error"), ("max-steps", "other"),
    ("__proto__", "other"), (None, "other"),
])
def test_finish_reasons_are_those_of_the_sdk(given: str | None, told: str) -> None:
    assert finish_reason(given) == told


# -- calls and their ids ---------------------------------------------------------------------------------------------


def test_a_call_is_shown_once_and_ends_once() -> None:
    stream = UIMessageStream()

    chunks = [
        *stream.tool_call("c", "ping", {"n": 1}), *stream.tool_call("c", "ping", {"n": 1.0}),
        *stream.output("c", 1), *stream.output("c", 2), *stream.output_error("c", "x"), *stream.denied("c"),
        *stream.end(),
    ]

    assert kinds(checked(chunks)) == ["tool-input-available", "tool-output-available"]
    with pytest.raises(ConfigurationError, match="show it first"):
        stream.output("unknown", 1)


def test_ids_that_a_model_repeats_or_leaves_empty_are_made_distinct_and_stay_so() -> None:
    stream = UIMessageStream()

    chunks = [
        *stream.tool_call("", "ping", {"n": 1}), *stream.output("", 1), *stream.tool_call("", "ping", {"n": 1}),
        *stream.output("", 2), *stream.tool_call("c", "ping", {"n": 1}), *stream.tool_call("c", "ping", {"n": 2}),
        *stream.output("c", 3), *stream.tool_call("c\ud800", "ping", {}), *stream.output("c\ud800", 4), *stream.end(),
    ]

    outputs = {chunk["toolCallId"]: chunk["output"] for chunk in checked(chunks) if "output" in chunk}
    assert outputs == {"~0": 1, "~1": 2, "c~1": 3, "c\ufffd": 4}
    assert (part_id(""), part_id("", 1), part_id("c", 1)) == ("~0", "~1", "c~1")


RUN = "A" * 22


@given(st.lists(st.tuples(
    st.sampled_from(["", "c", "c~1", "~0", "./c", f"{RUN}/c", f"./{RUN}/c", "c~1~1"]) | st.text(max_size=5),
    st.integers(0, 2), st.sampled_from([None, RUN, f"chat.sub.{'B' * 22}", "run"]),
), min_size=2, max_size=2, unique=True))
def test_different_calls_have_different_ids_and_inner_ones_are_known_as_such(calls: list[Any]) -> None:
    ids = [part_id(*call) for call in calls]

    assert ids[0] != ids[1]
    assert [is_inner(id_) for id_ in ids] == [run is not None for _, _, run in calls]


@given(st.lists(st.tuples(
    st.sampled_from(["", "c", "c~1", f"~{RUN}/c", f"{RUN}/c", f"./~{RUN}/c", f"~{'B' * 22}/c"]) | st.text(max_size=5),
    st.integers(0, 2), st.sampled_from([f"chat.{RUN}", f"chat.{'B' * 22}", "run"]), st.booleans(),
), min_size=2, max_size=2, unique=True))
def test_the_second_id_of_a_call_is_no_other_calls_id_and_no_sub_agents(calls: list[Any]) -> None:
    (one_, again_), *_ = ids = [
        (part_id(call_id, number), repeated_id(call_id, number, run)) for call_id, number, run, _ in calls
    ]

    assert not any(is_inner(id_) for both in ids for id_ in both)
    assert one_ not in [id_ for _, id_ in ids]
    assert len({again_, *(id_ for _, id_ in ids)}) == len({call[:3] for call in calls})


@given(st.sampled_from(["", "c", "c~1", "~0", "./c", f"{RUN}/c", f"~{RUN}/c", "a/b"]) | st.text(max_size=5),
       st.integers(0, 12))
def test_the_way_back_from_a_parts_id_is_exact(call_id: str, number: int) -> None:
    ids = [part_id(call_id, number), repeated_id(call_id, number, f"chat.{RUN}"), part_id(call_id, number, RUN)]

    assert [named_call(id_) for id_ in ids] == [well_formed(call_id)] * 3


def test_an_id_means_the_call_that_took_it_first_unless_that_has_ended_or_was_asked_for() -> None:
    asked = {"type": "tool-x", "toolCallId": "asked", "input": {}, "approval": {"id": "a"}}
    ended = {"type": "tool-x", "toolCallId": "ended", "state": "output-available", "input": {}, "output": 1}
    shown_ = {"type": "tool-x", "toolCallId": "shown", "state": "input-available", "input": {}}

    def taken(call_id: str, **how: Any) -> bool:
        return UIMessageStream(known=[asked, ended, shown_]).takes(call_id, "r", **how)

    assert [taken(id_, new=True) for id_ in ("asked", "ended", "shown", "none")] == [False, False, True, True]
    assert [taken(id_, open_=True) for id_ in ("asked", "ended", "shown", "none")] == [True, False, True, True]
    done = {"type": "tool-x", "toolCallId": "done", "state": "output-denied", "input": {}, "approval": {"id": "a"}}
    assert [UIMessageStream(known=[done]).takes("done", "r", approval_id=id_) for id_ in ("a", "b", None)] == [
        True, False, True,
    ]
    assert [taken(id_) for id_ in ("asked", "ended", "shown", "none")] == [True] * 4
    stream = UIMessageStream()
    assert [stream.takes("c", run, new=True) for run in ("r", "q", "r")] == [True, False, True]


def test_an_ordinary_id_stays_as_the_provider_wrote_it() -> None:
    assert [part_id(id_) for id_ in ("call_0", "toolu_01/x", "a b")] == ["call_0", "toolu_01/x", "a b"]


# -- requests --------------------------------------------------------------------------------------------------------


def test_a14_a_request_names_its_call_its_reason_and_who_decides(world: World) -> None:
    request = ask(world, "wire", {"to": "X"}, call_id="c1")

    chunks, _ = shown(world, request)

    asked = one(chunks, "tool-approval-request")
    assert (asked["approvalId"], asked["toolCallId"], asked["signature"]) == (request.id, "c1", request.token)
    assert "isAutomatic" not in asked
    assert one(chunks, "tool-input-available")["input"] == {"to": "X"}
    told = asked["approvalDescriptor"]
    assert (told["fingerprint"], told["expiresAt"]) == (request.fingerprint, request.decide_by)
    assert (told["approvers"], told["quorum"], told["selfApproval"], told["channels"]) == (
        ["lead", "user:carol"], 2, False, ["chat"]
    )
    assert [rule["quorum"] for rule in told["requirements"]] == [2, 1]
    assert chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}


def test_a_request_that_was_shown_is_not_shown_again_and_one_alone_shows_its_own_call(world: World) -> None:
    request = ask(world, "confirm", {"id": 1}, call_id="c1", occurrence=1)
    stream = UIMessageStream()

    chunks = checked([*stream.approval(request), *stream.approval(request), *stream.finish("tool-calls")])

    assert kinds(chunks) == ["tool-input-available", "tool-approval-request"]
    assert chunks[2]["toolCallId"] == part_id("c1", 1)
    assert descriptor_of(request)["selfApproval"] is True


def test_a_request_without_a_tool_call_id_is_shown_under_its_own(world: World) -> None:
    request = ask(world, call_id=None)
    stream = UIMessageStream()

    assert {chunk["toolCallId"] for chunk in stream.approval(request) if "toolCallId" in chunk} == {request.id}


def test_large_integers_stand_exactly_in_the_reason(world: World) -> None:
    request = ask(world, arguments={"a/b": [2**53 + 1, 7], "n": {"x": -(10**30)}, "ok": 2**53 - 1}, call_id="c")

    reason = one(shown(world, request)[0], "tool-approval-request")["reason"]

    assert reason == (
        "Money leaves the house.\nA browser rounds large whole numbers. These are exactly: "
        f"/a~1b/0 = {2**53 + 1}, /n/x = {-(10**30)}."
    )
    assert list(exact_integers([2**53])) == [("/0", 2**53)]


def test_letters_that_a_browser_hides_or_turns_are_warned_of(world: World) -> None:
    request = ask(world, arguments={"to": "abc\u202ecba"}, call_id="c")

    assert "(hidden-characters" in (reason_of(request) or "")
    assert reason_of(ask(world, "confirm", {"id": 2}, call_id="d")) is None


def test_a_request_whose_place_in_the_message_is_taken_is_left_to_the_inbox(world: World) -> None:
    request = ask(world, call_id="c")
    taken = {
        "type": "tool-refund", "toolCallId": "c", "state": "output-available", "input": {}, "output": 1,
        "approval": {"id": "another", "approved": True},
    }

    chunks = UIMessageStream(known=[taken]).approval(request)

    told = one(chunks, "data-tool-call-approval")["data"]
    assert (told["approvalId"], told["decideIn"]) == (request.id, "inbox")
    assert "its place in this message is taken" in "".join(chunk.get("delta", "") for chunk in chunks)


@pytest.mark.parametrize("arguments", [PROTO, {"n": [2**60 + n for n in range(300)]}], ids=["proto", "numbers"])
def test_arguments_that_a_browser_cannot_show_exactly_are_not_offered_in_the_chat(
    world: World, arguments: Any
) -> None:
    request = ask(world, arguments=arguments, call_id="c")
    stream = UIMessageStream()

    waits = [
        *stream.tool_call("c", "refund", request.arguments), *stream.approval(request), *stream.approval(request),
    ]
    told = one(waits, "data-tool-call-approval")
    assert "tool-approval-request" not in kinds(waits)
    assert (told["id"], told["data"]["decideIn"], told["data"]["resumed"]) == (request.id, "inbox", False)
    assert "Decide it in the inbox." in "".join(chunk.get("delta", "") for chunk in waits)

    world.approve(request)
    ended = [*stream.decision(again(world, request)), *stream.output("c", "ok"), *stream.end()]

    assert one(ended, "data-tool-call-approval")["data"]["resumed"] is True
    chunks = checked([*waits, *ended])
    answered = kinds(chunks).count("tool-approval-response")
    assert (answered, kinds(chunks)[-1]) == (0 if arguments is PROTO else 1, "tool-output-available")
    if arguments is PROTO:
        assert "tool-approval-request" not in kinds(chunks)  # the text that is shown is not what was approved
        asked = one(chunks, "tool-input-start")
        assert (asked["dynamic"], json.loads(json.loads(one(chunks, "tool-input-delta")["inputTextDelta"]))) == (
            True, PROTO
        )
        assert hidden(request) == "its arguments hold the key '__proto__'"


def test_a_request_whose_arguments_were_changed_shows_what_would_run_now(world: World) -> None:
    first = ask(world, "mail", {"to": "ana"}, call_id="c")
    _, part = shown(world, first)
    edit = world.guard.decide(
        first.id, approver=BOB, approve=True, fingerprint=first.fingerprint, arguments={"to": "bob"}
    )
    now = world.guard.get(edit.request_id, tenant=first.tenant)

    chunks = checked([*(stream := UIMessageStream(known=[part])).approval(now), *stream.end()], known=["c"])
    assert one(chunks, "tool-input-available")["input"] == {"to": "bob"}
    assert one(chunks, "tool-approval-request")["reason"] == CHANGED

    # In an earlier step it cannot be replaced: there it is not offered.
    stream = UIMessageStream(known=[part, {"type": "step-start"}])
    chunks = checked([*stream.approval(now), *stream.end()], known=["c"])
    assert kinds(chunks) == ["data-tool-call-approval", "text-start", "text-delta", "text-end"]


# -- what is on record -----------------------------------------------------------------------------------------------


def approved(world: World, request: ApprovalRequest) -> None:
    world.approve(request, reason="Checked.")


def denied(world: World, request: ApprovalRequest) -> None:
    world.deny(request, reason="Too much.")


def revoked(world: World, request: ApprovalRequest) -> None:
    world.guard.revoke(request.id, by=BOB)


RECORDS: list[tuple[Callable[[World, ApprovalRequest], None], bool | None, list[str]]] = [
    (approved, None, ["tool-approval-response"]),
    (approved, True, []),
    (approved, False, ["tool-approval-response"]),
    (denied, None, ["tool-approval-response"]),
    (denied, True, ["tool-approval-response"]),
    (denied, False, []),
    (revoked, None, []),
    (revoked, True, ["tool-approval-request"]),
    (revoked, False, ["tool-approval-request"]),
]


@pytest.mark.parametrize(("decide", "client", "said"), RECORDS)
def test_a19_what_the_client_holds_of_a_decision_becomes_what_is_on_record(
    world: World, decide: Callable[[World, ApprovalRequest], None], client: bool | None, said: list[str]
) -> None:
    request = ask(world, call_id="c")
    _, part = shown(world, request)
    part = part if client is None else answered(part, client)
    decide(world, request)
    stream = UIMessageStream(known=[part])

    chunks = stream.decision(again(world, request))

    assert kinds(chunks) == said
    response = next((chunk for chunk in chunks if chunk["type"] == "tool-approval-response"), None)
    if response is not None:
        assert (response["approved"], response["reason"]) == (
            (True, "Checked.") if decide is approved else (False, "Too much.")
        )
    checked([*chunks, *stream.output_error("c", "x"), *stream.end()], known=["c"])


def test_a_part_of_which_only_the_id_is_known_is_told_everything_anew(world: World) -> None:
    request = ask(world, call_id="c")
    approved(world, request)
    stream = UIMessageStream(known=["c"])

    chunks = checked([*stream.decision(again(world, request)), *stream.output("c", 1), *stream.end()], known=["c"])

    assert kinds(chunks) == ["tool-approval-request", "tool-approval-response", "tool-output-available"]
    assert chunks[1]["reason"] == "Money leaves the house."


def test_an_automatic_decision_is_told_as_one_with_its_reason_and_token(world: World) -> None:
    call = world.call("ping", {}, call_id="c")
    permit = world.guard.authorize(call)
    request = world.guard.get(permit.request_id or "", tenant="default")
    stream = UIMessageStream()

    chunks = checked([
        *stream.tool_call("c", "ping", {}), *stream.decision(request), *stream.output("c", "pong"), *stream.end()
    ])

    asked, response = one(chunks, "tool-approval-request"), one(chunks, "tool-approval-response")
    assert (asked["isAutomatic"], asked["signature"], "reason" in asked) == (True, request.token, False)
    assert (response["approved"], response["reason"]) == (True, "Pings are free.")


@pytest.mark.parametrize("client", [True, False])
def test_no_part_is_left_with_an_answer_that_contradicts_its_end(world: World, client: bool) -> None:
    _, part = shown(world, ask(world, call_id="c"))
    known = [answered(part, client)]
    refused, failed = UIMessageStream(known=known), UIMessageStream(known=known)

    assert kinds(refused.denied("c")) == ["tool-approval-response", "tool-output-denied"][client is False :]
    assert kinds(failed.output_error("c", "x")) == ["tool-approval-request", "tool-output-error"][client is True :]
    assert refused.moved("c")
    assert not refused.moved("d")


def test_a_call_that_the_client_runs_is_told_to_it_once_it_may(world: World) -> None:
    request = ask(world, call_id="c")
    stream = UIMessageStream()
    waits = checked([*stream.approval(request, quiet=True), *stream.finish("tool-calls")])
    _, part = shown(world, request)

    stream = UIMessageStream(known=[answered(part, True)])
    runs = [*stream.runs_now("c", "refund", request.arguments), *stream.runs_now("d", "ping", {}), *stream.end()]

    assert kinds(waits) == ["tool-input-start", "tool-input-delta", "tool-approval-request"]
    assert kinds(checked(runs, known=["c"])) == [
        "tool-approval-request", "tool-input-available", "tool-input-available"
    ]
    stale = UIMessageStream(known=[answered(part, True), {"type": "step-start"}])
    assert stale.runs_now("c", "refund", request.arguments) == []


# -- questions of tools ----------------------------------------------------------------------------------------------


def test_m50_a_question_is_marked_as_answered_by_a_part_that_replaces_it_and_a_signal() -> None:
    asked = one(UIMessageStream().suspended(
        "c", {"question": "Which city?"}, suspension_id="s1", run_id="r1", tool="weather", resume_schema="{}"
    ), "data-tool-call-suspended")

    for known in ([], [asked]):
        replaced, signal = UIMessageStream(known=known).resumed(
            "c", {"question": "Which city?"}, suspension_id="s1", run_id="r1", tool="weather", resume_schema="{}"
        )[-2:]

        assert replaced == asked | {"data": asked["data"] | {"resumed": True}}
        assert signal == {
            "type": "data-tool-call-resumed", "transient": True,
            "data": {"kind": "suspension", "pauseId": "s1", "toolCallId": "c"},
        }


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_result_that_the_client_cannot_parse_goes_out_as_text_that_says_so(value: Any) -> None:
    stream = UIMessageStream()

    chunks = checked([*stream.tool_call("c", "ping", {}), *stream.output("c", value), *stream.end()])

    assert one(chunks, "tool-output-available")["output"].startswith("(Shown as text, since it holds ")


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_arguments_that_the_client_cannot_parse_are_kept_back_and_then_shown_as_text(value: Any) -> None:
    stream = UIMessageStream()
    assert stream.tool_call("c", "ping", value) == []

    chunks = checked([*stream.output("c", 1), *stream.end()])

    assert one(chunks, "tool-input-start")["dynamic"] is True
    assert isinstance(json.loads(one(chunks, "tool-input-delta")["inputTextDelta"]), str)


def test_values_that_are_fine_go_out_as_they_are() -> None:
    fine = {"constructor": {"name": "x"}, "prototype": 1, "big": 2**70, "f": 1.5, "n": None, "t": [True, "é"]}

    assert sendable(fine) is fine
    assert obstacle({"constructor": None}) is None
    assert sendable({"day": date(2026, 1, 2)}) == {"day": "2026-01-02"}
    assert sendable((1, 2)) == [1, 2]
    assert sendable({"a": PROTO, "b": date(2026, 1, 2)}).startswith("(Shown as text")


@given(JSON, JSON, st.text(), st.text())
def test_whatever_a_model_or_a_tool_says_the_stream_parses(arguments: Any, result: Any, name: str, text: str) -> None:
    stream = UIMessageStream()
    checked([
        *stream.text(name, text), *stream.tool_call(text, name, arguments),
        *stream.automatic(text, name, approved=True),
        *stream.output(text, result), *stream.tool_call(text, name, arguments), *stream.output_error(text, name),
        *stream.suspended(name, result, suspension_id=text, run_id=name, tool=text, resume_schema=arguments),
        *stream.start_step(), *stream.reasoning(text, name), *stream.error(text),
    ])


# -- a message again -------------------------------------------------------------------------------------------------

PARTS: list[dict[str, Any]] = [
    {"type": "step-start"},
    {"type": "reasoning", "text": "Hm.", "state": "done"},
    {"type": "text", "text": "I will.", "state": "done"},
    {"type": "tool-ping", "toolCallId": "a", "state": "output-available", "input": {"n": 1}, "output": None},
    {"type": "tool-drop", "toolCallId": "b", "state": "output-denied", "input": {}, "title": "Drop",
     "approval": {"id": "x", "isAutomatic": True, "approved": False, "reason": "Never."}},
    {"type": "dynamic-tool", "toolName": "mcp", "toolCallId": "c", "state": "output-error", "input": "i",
     "errorText": "No."},
    {"type": "tool-refund", "toolCallId": "d", "state": "approval-responded", "input": {"o": 1},
     "approval": {"id": "y", "approved": True, "signature": "t", "requestReason": "Money", "descriptor": {"q": 1}}},
    {"type": "data-tool-call-suspended", "id": "s", "data": {"resumed": False}},
    {"type": "source-url", "sourceId": "u", "url": "https://example.org/", "title": "T"},
    {"type": "file", "url": "data:,x", "mediaType": "text/plain"},
]
STRANGE: list[dict[str, Any]] = [
    {"type": "tool-x"}, {"type": "dynamic-tool", "toolCallId": "q"}, {"type": 3}, {"type": "text", "text": 3},
    {"type": "file"}, {"type": "unknown"}, {},
]


def test_the_parts_of_a_message_can_be_made_again_for_a_client_that_replays_its_continuation() -> None:
    chunks = checked([
        {"type": "start"}, *rebuilt([*PARTS, *STRANGE]), {"type": "finish-step"}, *UIMessageStream().end()[1:]
    ])

    assert [chunk for chunk in chunks if chunk.get("toolCallId") == "d"] == [
        {"type": "tool-input-start", "toolCallId": "d", "toolName": "refund"},
        {"type": "tool-input-delta", "toolCallId": "d", "inputTextDelta": '{"o": 1}'},
        {"type": "tool-approval-request", "approvalId": "y", "toolCallId": "d", "reason": "Money", "signature": "t",
         "approvalDescriptor": {"q": 1}},
    ]
    UIMessageStream(known=[*PARTS, *STRANGE])


# -- the real client -------------------------------------------------------------------------------------------------


def test_the_sdk_takes_a_message_that_has_everything(world: World, serve: Serve, open_chat: OpenChat) -> None:
    request = ask(world, call_id="c1")
    first, second = UIMessageStream(), UIMessageStream(known=["c1"])
    asked = [
        *first.start("msg-1"), *first.reasoning("r", "Hm."), *first.text("t", "I refund it."),
        *first.tool_call("c2", "ping", PROTO, dynamic=True), *first.output("c2", {"x": [PROTO]}),
        *first.tool_call("c3", "drop", {}), *first.automatic("c3", "auto", approved=False, reason="Never."),
        *first.denied("c3"), *first.suspended("c4", 1, suspension_id="s", run_id="r", tool="ask"),
        *first.approval(request, quiet=True), *first.finish("tool-calls"),
    ]

    def goes_on(body: Any) -> list[Chunk]:
        part = next(one for one in body["messages"][-1]["parts"] if one.get("toolCallId") == "c1")
        assert part["approval"]["signature"] == request.token
        assert part["approval"]["descriptor"] == descriptor_of(request)
        assert part["input"] == request.arguments
        return [
            *second.start("msg-1"), *second.output("c1", {"n": 2**60}),
            *second.resumed("c4", 1, suspension_id="s", run_id="r", tool="ask"), *second.start_step(),
            *second.text("t", "Done."), *second.finish(),
        ]

    chat = open_chat(f"{serve(app_of(asked, goes_on))}/api/chat")
    chat.send("Refund it.")
    assert chat.tool_part("c1")["state"] == "approval-requested"
    chat.approve(request.id, "Fine.")

    assert (chat.status, chat.error, len(chat.posts), chat.text) == ("ready", None, 2, "I refund it.Done.")
    states = {part["toolCallId"]: part["state"] for part in chat.tool_parts}
    assert states == {"c1": "output-available", "c2": "output-available", "c3": "output-denied"}
    (question,) = [part for part in chat.parts if part["type"] == "data-tool-call-suspended"]
    assert question["data"]["resumed"] is True


def test_the_sdk_shows_what_is_on_record_instead_of_its_own_answer(
    world: World, serve: Serve, open_chat: OpenChat
) -> None:
    requests = {name: ask(world, "mail", {"to": name}, call_id=name) for name in ("late", "edited", "other")}
    first = UIMessageStream()
    asked = [*first.start("msg-1"), *(chunk for one in requests.values() for chunk in first.approval(one)),
             *first.finish("tool-calls")]

    def goes_on(body: Any) -> list[Chunk]:
        revoked(world, requests["late"])
        edit = requests["edited"]
        made = world.guard.decide(
            edit.id, approver=BOB, approve=True, fingerprint=edit.fingerprint, arguments={"to": "dora"}
        )
        denied(world, requests["other"])
        stream = UIMessageStream(known=body["messages"][-1]["parts"])
        return [
            *stream.start("msg-1"), *stream.decision(again(world, requests["late"])),
            *stream.output_error("late", "Withdrawn."),
            *stream.decision(world.guard.get(made.request_id, tenant="default")), *stream.output("edited", "sent"),
            *stream.decision(again(world, requests["other"])), *stream.denied("other"), *stream.finish(),
        ]

    chat = open_chat(f"{serve(app_of(asked, goes_on))}/api/chat")
    chat.send("Mail them.")
    for name, request in requests.items():
        chat.respond(request.id, name != "late", wait=name == "other")

    assert (chat.status, chat.error, len(chat.posts)) == ("ready", None, 2)
    late, edited, other = (chat.tool_part(name) for name in requests)
    assert (late["state"], "approved" in late["approval"]) == ("output-error", False)
    assert (edited["state"], edited["input"], edited["approval"]["approved"]) == (
        "output-available", {"to": "dora"}, True
    )
    assert (other["state"], other["approval"]["approved"], other["approval"]["reason"]) == (
        "output-denied", False, "Too much."
    )


def test_the_sdk_makes_the_parts_of_a_message_again(serve: Serve, open_chat: OpenChat) -> None:
    answer = [{"type": "start", "messageId": "m"}, *rebuilt(PARTS), {"type": "finish", "finishReason": "stop"}]
    chat = open_chat(f"{serve(app_of(answer, [*answer[:1], *UIMessageStream().abort()[1:]]))}/api/chat")

    chat.send("Again.", wait=False)
    chat.reached("approval-responded")

    kept = {name: value for part in chat.parts if part.get("toolCallId") == "d" for name, value in part.items()}
    assert kept["approval"] == PARTS[6]["approval"]
    assert [part["type"] for part in chat.parts] == [part["type"] for part in PARTS]
    assert [part.get("state") for part in chat.tool_parts] == [
        part["state"] for part in PARTS if "toolCallId" in part
    ]


def test_the_policy_of_these_tests_is_what_they_think(world: World) -> None:
    assert world.guard.evaluate(world.call("ping", {})).status is Status.APPROVED
