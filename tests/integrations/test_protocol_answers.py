"""What a client is asked in AG-UI's and OpenAI's formats, and what its answers decide."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hitl_guard.errors import ArgsMismatchError, ConfigurationError, ConsumedError, InvalidApprovalError
from hitl_guard.models import ApprovalRequest, ToolDefinition
from hitl_guard.protocols import Claim, ag_ui, claims_in, openai_responses
from hitl_guard.protocols.answers import decision
from tests.support import BOB, World

LOOKS_ALIKE = {"amount": 82, "note": "pay\u202eevil \x1b[2J"}


def resumed(interrupt: dict[str, Any], payload: Any, **more: Any) -> dict[str, Any]:
    """Return what an AG-UI client posts to answer an interrupt that went over the wire."""
    kept = json.loads(json.dumps(interrupt))
    entry = {"interruptId": kept["id"], "status": "resolved", "payload": payload}
    return {"threadId": "t", "runId": "r2", "messages": [], "resume": [entry | more]}


def answered(item: dict[str, Any], approve: bool, **more: Any) -> list[dict[str, Any]]:
    """Return what an OpenAI client posts: the request as it got it, and its answer."""
    kept = json.loads(json.dumps(item))
    return [kept, {"type": "mcp_approval_response", "approval_request_id": kept["id"], "approve": approve, **more}]


def only(body: Any) -> Claim:
    (claim,) = claims_in(body)[0]
    return claim


def decide(world: World, claim: Claim, request: ApprovalRequest) -> None:
    world.guard.decide(request.id, approver=BOB, **decision(claim, request))


def test_an_interrupt_tells_the_whole_call_and_where_its_answer_belongs(world: World) -> None:
    call = world.call(arguments=LOOKS_ALIKE)
    request = world.ask(call)

    outcome = ag_ui.outcome_of([request])

    (interrupt,) = outcome["interrupts"]
    assert (outcome["type"], interrupt["id"], interrupt["toolCallId"]) == ("interrupt", request.id, call.call_id)
    assert interrupt["reason"] == "tool_call"
    assert interrupt["expiresAt"].startswith("20")
    assert interrupt["metadata"]["hitl_guard"]["fingerprint"] == request.fingerprint
    assert "82" in interrupt["message"]
    assert "\\u202e" in interrupt["message"]
    assert not {"\u202e", "\x1b"} & set(interrupt["message"])


def test_a_run_that_waits_for_nobody_has_no_interrupt() -> None:
    with pytest.raises(ConfigurationError):
        ag_ui.outcome_of([])


@pytest.mark.parametrize("payload", [{"approved": True}, True])
def test_a_yes_to_an_interrupt_lets_its_call_run_once(world: World, payload: Any) -> None:
    call = world.call()
    request = world.ask(call)
    token = {"hitl_guard": {"token": request.token}}

    decide(world, only(resumed(ag_ui.interrupt_of(request), payload, metadata=token)), request)

    assert world.run(call) == "done"
    with pytest.raises(ConsumedError):
        world.run(call)
    assert len(world.effects) == 1


def test_a_yes_to_openais_question_lets_its_call_run_once(world: World) -> None:
    call = world.call()
    request = world.ask(call)
    item = openai_responses.approval_request_of(request, server_label="shop")
    assert item["arguments"] == request.canonical.decode()

    decide(world, only(answered(item, True)), request)

    assert world.run(call) == "done"
    with pytest.raises(ConsumedError):
        world.run(call)


@pytest.mark.parametrize("kind", ["ag-ui", "openai"])
def test_a_no_lets_nothing_run_and_tells_why(world: World, kind: str) -> None:
    call = world.call()
    request = world.ask(call)
    if kind == "ag-ui":
        body: Any = resumed(ag_ui.interrupt_of(request), {"approved": False, "reason": "Too much."})
    else:
        item = openai_responses.approval_request_of(request, server_label="shop")
        body = answered(item, False, reason="Too much.")

    decide(world, only(body), request)

    assert world.guard.get(request.id).votes[0].reason == "Too much."
    with pytest.raises(Exception, match=r"denied|Too much"):
        world.run(call)
    assert world.effects == []


def test_edited_arguments_are_what_runs(world: World) -> None:
    call = world.call(tool="mail", arguments={"amount": 82})
    request = world.ask(call)
    interrupt = ag_ui.interrupt_of(request)
    assert "editedArgs" in interrupt["responseSchema"]["properties"]

    decide(world, only(resumed(interrupt, {"approved": True, "editedArgs": {"amount": 7}})), request)

    world.run(call)
    assert world.effects == [{"amount": 7}]


def test_where_nobody_may_edit_the_answer_has_no_place_for_it(world: World) -> None:
    request = world.ask(world.call())

    assert "editedArgs" not in ag_ui.interrupt_of(request)["responseSchema"]["properties"]


@pytest.mark.parametrize("changed", [
    {"arguments": '{"amount":9500}'}, {"name": "delete_order"}, {"arguments": '{"amount":82,"more":1}'},
])
def test_an_item_that_was_changed_on_its_way_decides_nothing(world: World, changed: dict[str, str]) -> None:
    request = world.ask(world.call(arguments={"amount": 1500}))
    item = openai_responses.approval_request_of(request, server_label="shop") | changed

    with pytest.raises(ArgsMismatchError):
        decision(only(answered(item, True)), request)


def test_an_answer_to_another_request_decides_nothing(world: World) -> None:
    request, other = world.ask(world.call()), world.ask(world.call())
    for body in (
        resumed(ag_ui.interrupt_of(other), True),
        resumed(ag_ui.interrupt_of(request), True, metadata={"hitl_guard": {"token": other.token}}),
        answered(openai_responses.approval_request_of(other, server_label="shop"), True),
    ):
        with pytest.raises(InvalidApprovalError):
            decision(only(body), request)


def test_an_answer_that_names_nothing_decides_nothing(world: World) -> None:
    with pytest.raises(InvalidApprovalError):
        decision(Claim("ag-ui", "/resume/0", True), world.ask(world.call()))


def test_an_answer_whose_call_has_a_result_is_history(world: World) -> None:
    request = world.ask(world.call())
    item = openai_responses.approval_request_of(request, server_label="shop")
    result = {"type": "mcp_call", "id": "m", "approval_request_id": item["id"], "name": request.tool,
              "arguments": item["arguments"], "output": "done", "server_label": "shop"}

    with pytest.raises(InvalidApprovalError):
        decision(only([*answered(item, True), result]), request)


def test_a_no_with_other_arguments_is_malformed(world: World) -> None:
    request = world.ask(world.call())
    body = resumed(ag_ui.interrupt_of(request), {"approved": False, "editedArgs": {"amount": 7}})

    with pytest.raises(InvalidApprovalError):
        decision(only(body), request)


def test_a_cancelled_interrupt_is_no_answer(world: World) -> None:
    request = world.ask(world.call())

    assert claims_in(resumed(ag_ui.interrupt_of(request), None, status="cancelled"))[0] == []


def test_a_request_without_a_call_id_cannot_be_asked_for_in_openais_format(world: World) -> None:
    request = world.ask(world.call(call_id=None))

    assert "toolCallId" not in ag_ui.interrupt_of(request)
    with pytest.raises(ConfigurationError):
        openai_responses.approval_request_of(request, server_label="shop")


def test_secret_arguments_are_masked_in_the_question(world: World) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}
    definition = ToolDefinition("refund", "Pay back.", schema)
    request = world.ask(replace(world.call(arguments={"key": "sesame"}), definition=definition))

    assert "sesame" not in ag_ui.interrupt_of(request)["message"]
