"""The events of a network of agents; and the named use cases from the request to the effect."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import Principal, load_policy
from hitl_guard.agent import Agent, Tool, tool
from hitl_guard.errors import DecisionError
from hitl_guard.policy.code import CallInfo
from tests.support import ANA, CAROL, document

from .stage import BOB, ID_SCHEMA, Stage, only, read, types

DELETE = [("call-1", "delete", {"id": "7"})]
FOUR_EYES = load_policy(Path(__file__).resolve().parents[2] / "policies" / "payments-four-eyes.yaml")
PAYMENT = {"amount": 5000, "iban": "DE02"}
SPOKEN = ["routing-agent-text-start", "routing-agent-text-delta", "routing-agent-text-end"]
MAIL_SCHEMA: dict[str, Any] = {
    "additionalProperties": False, "properties": {"text": {"type": "string"}, "to": {"type": "string"}},
    "required": ["text", "to"], "type": "object",
}
TWO_MAY_EDIT = """\
version: 1
name: office
default: not_applicable
rules:
  - {id: mail, tools: [mail], effect: require_approval, quorum: 2, edit: true}
"""
FINANCE = [Principal(name, roles=("finance",)) for name in ("frida", "fred")]


class Directory:
    """Says that the people of finance are still in finance."""

    def roles_of(self, tenant: str, principal_id: str) -> tuple[str, ...]:
        return ("finance",) if principal_id in [one.id for one in FINANCE] else ()


def gated(stage: Stage, *turns: Any) -> Agent:
    return stage.agent(*turns, tools=[stage.tool(require_approval=True)])


def told(agent: Agent) -> list[str]:
    """Return what the model was told last in place of its calls' results."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[-1] if message["role"] == "tool"]


# -- M72 -------------------------------------------------------------------------------------------------------------


async def test_m72_a_network_tells_its_pause_as_the_execution_of_a_tool(stage: Stage) -> None:
    stream = gated(stage, DELETE).network("go", user="ana")

    events = await read(stream)

    assert types(events) == ["start", "routing-agent-start", "tool-execution-start", "tool-execution-approval"]
    assert {(event["from"], event["run_id"]) for event in events} == {("NETWORK", stream.run_id)}
    asked = only(events, "tool-execution-approval")
    assert (asked["toolCallId"], asked["toolName"], asked["args"], asked["runId"]) == (
        "call-1", "delete", {"id": "7"}, stream.run_id
    )
    assert (stream.status, stream.finish_reason, stage.ran) == ("suspended", "suspended", [])
    assert (stream.suspend_payload or {})["approvalId"] == asked["approvalId"]


async def test_m72_an_approved_network_call_runs_and_the_network_goes_on_to_its_end(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    run_id = (await agent.network("go", user="ana")).run_id

    stream = agent.approve_network_tool_call(run_id, approver=BOB)
    events = await read(stream)

    assert types(events) == [
        "tool-call-resumed", "tool-execution-end", "step-finish", "routing-agent-start", *SPOKEN, "step-finish",
        "network-execution-event-finish",
    ]
    ended, finish = only(events, "tool-execution-end"), only(events, "network-execution-event-finish")
    assert (ended["primitiveId"], ended["primitiveType"], ended["result"]) == ("delete", "tool", {"ok": True})
    assert (finish["result"], finish["completionReason"], finish["isComplete"]) == ("done", "stop", True)
    assert (only(events, "routing-agent-start")["inputData"], finish["iteration"]) == ({"iteration": 2}, 2)
    result = await stream
    assert (result.run_id, result.status, result.finish_reason, result.text, result.steps) == (
        run_id, "success", "stop", "done", 2
    )
    assert (stage.ran, [one["type"] for one in result.tool_results]) == ([("delete", {"id": "7"})], ["tool-result"])


@pytest.mark.parametrize(
    ("reason", "text"),
    [("not that one", "not that one"), (None, "Tool call was not approved by the user")],
    ids=["reason", "default"],
)
async def test_m72_a_declines_text_is_the_result_of_the_execution(
    stage: Stage, reason: str | None, text: str
) -> None:
    agent = gated(stage, DELETE, "as you wish")
    run_id = (await agent.network("go", user="ana")).run_id

    stream = agent.decline_network_tool_call(run_id, approver=BOB, reason=reason)
    events = await read(stream)

    assert only(events, "tool-execution-end")["result"] == text
    assert (told(agent), stage.ran, stream.status, stream.text) == ([text], [], "success", "as you wish")


async def test_m72_a_call_inside_an_agent_of_the_network_is_the_execution_of_an_agent(stage: Stage) -> None:
    top = stage.chain(2, stage.tool(require_approval=True))
    stream = top.network("go", user="ana")

    paused = await read(stream)
    ended = await read(top.approve_network_tool_call(stream.run_id, approver=BOB))

    assert types(paused)[:3] == ["start", "routing-agent-start", "agent-execution-start"]
    asked, result = only(paused, "agent-execution-approval"), only(ended, "agent-execution-end")
    assert (asked["toolCallId"], asked["toolName"], asked["args"]) == ("deleg-1", "delete", {"id": "7"})
    assert (result["primitiveId"], result["task"], result["result"]["text"]) == ("agent-level-0", "go", "level 0 done")


@pytest.mark.parametrize("depth", [1, 2])
async def test_m72_a_question_of_the_network_is_told_and_answered(stage: Stage, depth: int) -> None:
    agent = stage.chain(depth, stage.asking(), call=("inner", "weather", {}))
    stream = agent.network("go", user="ana")

    asked = only(await read(stream), f"{'tool' if depth == 1 else 'agent'}-execution-suspended")
    result = await agent.resume_generate({"location": "Rome"}, stream.run_id, user="ana")

    assert asked["suspendPayload"] == {"question": "Which city?"}
    assert (stream.suspend_payload or {})["suspensionId"] == asked["suspensionId"]
    assert result.status == "success"


async def test_m72_a_tool_that_fails_has_its_message_as_result_and_the_network_goes_on(stage: Stage) -> None:
    def broken(given: Any) -> None:
        raise LookupError("no such row")

    agent = stage.agent([("call-1", "broken", {})], "sorry", tools=[Tool("broken", execute=broken)])

    stream = agent.network("go", user="ana")
    events = await read(stream)

    assert (only(events, "tool-execution-end")["result"], stream.status) == ("no such row", "success")


async def test_m72_a_network_stream_that_was_closed_unread_warns_of_nothing(stage: Stage) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await gated(stage).network("go", user="ana").aclose()
        gc.collect()

    assert stage.stored() == 0


# -- M73 -------------------------------------------------------------------------------------------------------------


async def test_m73_an_irreversible_action_waits_for_a_person_each_time(stage: Stage) -> None:
    agent = gated(stage, DELETE, [("call-2", "delete", {"id": "7"})], "done")
    first = await agent.generate("delete 7", user="ana")

    second = await agent.approve_tool_call(first.run_id, approver=BOB)
    result = await agent.decline_tool_call(first.run_id, approver=BOB, reason="It is gone already.")

    assert (second.status, result.status, stage.ran) == ("suspended", "success", [("delete", {"id": "7"})])
    assert told(agent) == ['{"ok":true}', "It is gone already."]


async def test_m73_a_large_payment_needs_two_people_of_finance_besides_whoever_asked(stage: Stage) -> None:
    shop = Stage(stage.store, policy=FOUR_EYES, directory=Directory())
    agent = shop.agent([("call-1", "payout", PAYMENT)], "paid", tools=[shop.tool("payout", input_schema=None)])
    run_id = (await agent.generate("pay the invoice", user="ana")).run_id

    for wrong in (ANA, CAROL, Principal("ana", roles=("finance",))):
        with pytest.raises(DecisionError):
            await agent.approve_tool_call(run_id, approver=wrong)
    first = await agent.approve_tool_call(run_id, approver=FINANCE[0])
    again = await agent.approve_tool_call(run_id, approver=FINANCE[0])
    unpaid = shop.ran.copy()
    result = await agent.approve_tool_call(run_id, approver=FINANCE[1])

    assert (first.status, again.status, unpaid) == ("suspended", "suspended", [])
    assert (result.status, result.text, shop.ran) == ("success", "paid", [("payout", PAYMENT)])


async def test_m73_small_refunds_run_by_themselves_until_they_add_up(stage: Stage) -> None:
    shop = Stage(stage.store, policy=FOUR_EYES, directory=Directory())
    calls = [(f"call-{number}", "refund", {"amount": 30, "order": f"A-{number}"}) for number in (1, 2)]
    agent = shop.agent(calls, "done", tools=[shop.tool("refund", input_schema=None)])

    paused = await agent.generate("refund both", user="ana")

    assert [call["order"] for _, call in shop.ran] == ["A-1"]
    assert [pause["args"]["order"] for pause in paused.pauses] == ["A-2"]
    assert (paused.suspend_payload or {})["reason"] == "Refunds of more than 50 a turn need a second person."


async def test_m73_an_email_goes_out_as_the_person_corrected_it(stage: Stage) -> None:
    office = Stage(stage.store, policy=None)
    draft, mended = {"text": "hi", "to": "eve@example.org"}, {"text": "Dear Eve,", "to": "eve@example.org"}
    agent = office.agent([("call-1", "mail", draft)], "sent", tools=[office.tool("mail", input_schema=MAIL_SCHEMA)])
    run_id = (await agent.generate("write to Eve", user="ana")).run_id

    with pytest.raises(DecisionError):
        await agent.approve_tool_call(run_id, approver=BOB, arguments={"text": "Dear Eve,"})
    events = await read(agent.approve_tool_call(run_id, approver=BOB, arguments=mended))

    assert types(events)[:3] == ["tool-call-resumed", "tool-result", "step-finish"]
    assert only(events, "tool-result")["args"] == mended
    assert office.ran == [("mail", mended)]
    assert "A person changed this call's arguments" in told(agent)[0]
    assert "Dear Eve," in told(agent)[0]


async def test_m73_a_corrected_email_is_shown_to_the_next_approver_as_it_will_go_out(stage: Stage) -> None:
    office = Stage(stage.store, policy=document(TWO_MAY_EDIT))
    draft, mended = {"text": "hi", "to": "eve@example.org"}, {"text": "Dear Eve,", "to": "eve@example.org"}
    agent = office.agent([("call-1", "mail", draft)], "sent", tools=[office.tool("mail", input_schema=MAIL_SCHEMA)])
    first = await agent.generate("write to Eve", user="ana")

    second = await agent.approve_tool_call(first.run_id, approver=BOB, arguments=mended)
    (run,) = (await agent.list_suspended_runs(user="ana")).runs
    result = await agent.approve_tool_call(first.run_id, run.tool_calls[0].pause_id, approver=CAROL)

    shown = second.suspend_payload or {}
    request = office.guard.get(shown["approvalId"])
    assert (shown["args"], run.tool_calls[0].args, request.arguments) == (mended, mended, mended)
    assert (shown["fingerprint"], run.tool_calls[0].pause_id) == (request.fingerprint, request.id)
    assert (result.status, office.ran) == ("success", [("mail", mended)])


async def test_m73_a_costly_call_waits_and_a_cheap_one_runs(stage: Stage) -> None:
    def costly(args: dict[str, Any], info: CallInfo) -> bool:
        return bool(args["rows"] > 1000)

    query = stage.tool("query", input_schema=None, require_approval=costly)
    agent = stage.agent([("small", "query", {"rows": 10}), ("large", "query", {"rows": 10**6})], "done", tools=[query])

    paused = await agent.generate("count them", user="ana")
    cheap = stage.ran.copy()
    await agent.approve_tool_call(paused.run_id, approver=BOB)

    assert (cheap, [pause["toolCallId"] for pause in paused.pauses]) == ([("query", {"rows": 10})], ["large"])
    assert stage.ran[1:] == [("query", {"rows": 10**6})]


async def test_m73_a_tool_that_has_started_asks_for_a_confirmation_where_its_state_says_so(stage: Stage) -> None:
    stock = {"7": 0, "8": 3}

    @tool(input_schema=ID_SCHEMA)
    async def order(id: str, context: Any) -> str:
        if stock[id] == 0 and context.resume_data is not True:
            await context.suspend(f"{id} is sold out. Order it from the other warehouse?")
            return ""
        stage.ran.append(("order", id))
        return "ordered"

    agent = stage.agent([("A", "order", {"id": "8"}), ("B", "order", {"id": "7"})], "done", tools=[order])

    paused = await agent.generate("order both", user="ana")
    at_once = stage.ran.copy()
    result = await agent.resume_generate(True, paused.run_id, user="ana")

    assert (paused.suspend_payload or {})["suspendPayload"] == "7 is sold out. Order it from the other warehouse?"
    assert (at_once, stage.ran, result.status) == ([("order", "8")], [("order", "8"), ("order", "7")], "success")
