"""A run of the built-in agent as a chat sees it: what waits, what was decided and by whom, what came of it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from hitl_guard.agent import Tool
from hitl_guard.agent.agent import SUB
from hitl_guard.agent.events import Event
from hitl_guard.errors import RefusedError
from hitl_guard.integrations.ai_sdk.chunks import UIMessageStream
from hitl_guard.integrations.ai_sdk.events import asks, call_id_of, chunks_of, error_text_of
from hitl_guard.integrations.ai_sdk.parts import is_inner, part_id, repeated_id
from hitl_guard.integrations.ai_sdk.texts import RUN_FAILED
from hitl_guard.models import ApprovalRequest, Scope
from tests.agent.stage import CITY_SCHEMA, Stage
from tests.agent.stage import stage as stage
from tests.integrations.test_ai_sdk_chunks import PROTO
from tests.integrations.wire import OUTPUTS, Chunk, applied, checked, kinds, one, part_of
from tests.support import BOB, document

DELETE = [("c1", "delete", {"id": "7"})]
POLICY = """\
version: 1
name: chat
default: not_applicable
rules:
  - {id: fine, tools: [delete], effect: allow, reason: Cheap.}
  - {id: never, tools: [drop], effect: deny, reason: Never.}
"""


def reader(stage: Stage) -> Callable[[str], Awaitable[ApprovalRequest | None]]:
    """Return how the chat reads requests."""
    async def request_of(request_id: str) -> ApprovalRequest | None:
        try:
            return stage.guard.get(request_id, tenant="default")
        except RefusedError:
            return None

    return request_of


class Browser:
    """A client that reads streams of one message."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.parts: list[dict[str, Any]] = []

    async def reads(self, events: AsyncIterator[Event], **options: Any) -> list[Chunk]:
        """Read a run up to its pause or end; return the chunks."""
        known = [part["toolCallId"] for part in self.parts if "toolCallId" in part]
        stream = UIMessageStream(known=self.parts)
        told = chunks_of(events, stream, request_of=reader(self.stage), **options)
        chunks = checked([*[chunk async for chunk in told], *stream.end()], known=known)
        self.parts = applied(chunks, self.parts)
        return chunks

    def answers(self, call_id: str, approved: bool) -> None:
        """Answer a request as `useChat` does: in its own message alone."""
        part = part_of(self.parts, call_id)
        assert part["state"] == "approval-requested"
        part["state"] = "approval-responded"
        part["approval"]["approved"] = approved

    def state(self, call_id: str) -> str:
        return str(part_of(self.parts, call_id)["state"])


@pytest.fixture
def browser(stage: Stage) -> Browser:
    return Browser(stage)


# -- pauses and their ends -------------------------------------------------------------------------------------------


async def test_a13_a_call_that_waits_ends_the_stream_and_a_later_one_tells_what_came_of_it(
    stage: Stage, browser: Browser
) -> None:
    agent = stage.agent(
        {"content": "I will.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "delete", "arguments": '{"id": "7"}'}}
        ]}, "done", tools=[stage.tool(require_approval=True)],
    )
    run = agent.stream("go", user="ana")

    waits = await browser.reads(run)
    browser.answers("c1", True)
    ends = await browser.reads(agent.approve_tool_call(run.run_id, approver=BOB))

    assert [chunk["type"] for chunk in waits] == [
        "start", "start-step", "text-start", "text-delta", "text-end", "tool-input-available",
        "tool-approval-request", "finish-step", "finish",
    ]
    assert waits[-1]["finishReason"] == "tool-calls"
    assert [chunk["type"] for chunk in ends] == [
        "start", "data-tool-call-resumed", "tool-output-available", "start-step", "text-start", "text-delta",
        "text-end", "finish-step", "finish",
    ]
    assert (ends[0], ends[1]["data"]["kind"], ends[-1]["finishReason"]) == ({"type": "start"}, "approval", "stop")
    assert one(ends, "tool-output-available")["output"] == {"ok": True}


async def test_a19_a_decision_that_was_made_elsewhere_stands_in_the_part_with_its_reason(
    stage: Stage, browser: Browser
) -> None:
    agent = stage.agent(DELETE, "no", tools=[stage.tool(require_approval=True)])
    run = agent.stream("go", user="ana")
    await browser.reads(run)

    await browser.reads(agent.decline_tool_call(run.run_id, approver=BOB, reason="Not this one."))

    part = part_of(browser.parts, "c1")
    assert (part["state"], part["approval"]["approved"], part["approval"]["reason"]) == (
        "output-denied", False, "Not this one."
    )
    assert (part["approval"]["signature"], stage.ran) == (run.pauses[0]["token"], [])


async def test_an_approval_that_was_withdrawn_ends_as_an_error_and_leaves_no_answer(
    stage: Stage, browser: Browser
) -> None:
    agent = stage.agent(DELETE, "late", tools=[stage.tool(require_approval=True)])
    run = agent.stream("go", user="ana")
    await browser.reads(run)
    browser.answers("c1", True)
    stage.guard.revoke(run.pauses[0]["approvalId"], by=BOB)

    await browser.reads(agent.continue_stream(run.run_id, user="ana"))

    part = part_of(browser.parts, "c1")
    assert (part["state"], part["errorText"], "approved" in part["approval"]) == (
        "output-error", "The call was not run (revoked).", False
    )


async def test_equal_ids_of_one_turn_are_two_parts_and_each_gets_its_own_end(stage: Stage, browser: Browser) -> None:
    twice = [("c1", "delete", {"id": "1"}), ("c1", "delete", {"id": "2"})]
    agent = stage.agent(twice, "done", tools=[stage.tool(require_approval=True)])
    run = agent.stream("go", user="ana")
    await browser.reads(run)
    second = part_of(browser.parts, "c1~1")

    await browser.reads(agent.decline_tool_call(run.run_id, second["approval"]["id"], approver=BOB))
    await browser.reads(agent.approve_tool_call(run.run_id, approver=BOB))

    assert {part["toolCallId"]: (part["input"], part["state"]) for part in browser.parts if "toolCallId" in part} == {
        "c1": ({"id": "1"}, "output-available"), "c1~1": ({"id": "2"}, "output-denied"),
    }
    assert stage.ran == [("delete", {"id": "1"})]


async def test_a13_what_ended_beside_a_call_that_waits_is_told_at_once_and_not_again(
    stage: Stage, browser: Browser
) -> None:
    gated = stage.tool(require_approval=True)
    calls = [("c1", "delete", {"id": "1"}), ("c2", "look", {"id": "2"}), ("c3", "delete", {"id": "3"})]
    agent = stage.agent(calls, "done", tools=[gated, stage.tool("look")])
    run = agent.stream("go", user="ana")

    first = await browser.reads(run)
    browser.answers("c3", True)
    second = await browser.reads(agent.approve_tool_call(run.run_id, "c3", approver=BOB))
    browser.answers("c1", False)
    last = await browser.reads(agent.decline_tool_call(run.run_id, "c1", approver=BOB))

    def outputs(chunks: list[Chunk]) -> list[str]:
        return [one["toolCallId"] for one in chunks if one["type"] in OUTPUTS]

    assert (outputs(first), outputs(second), outputs(last)) == (["c2"], ["c3"], ["c1"])
    assert (browser.state("c1"), browser.state("c3")) == ("output-denied", "output-available")


async def test_a13_what_ended_beside_a_waiting_call_of_a_sub_agent_is_told_at_once(
    stage: Stage, browser: Browser
) -> None:
    calls = [("i1", "delete", {"id": "1"}), ("i2", "delete", {"id": "2"})]
    clerk = stage.agent(calls, "inner done", id="clerk", tools=[stage.tool(require_approval=True)])
    agent = stage.agent([("d1", "agent-clerk", {"prompt": "go"})], "done", agents=[clerk])
    run = agent.stream("go", user="ana")
    await browser.reads(run)
    one_, two = [part for part in browser.parts if part.get("state") == "approval-requested"]

    await browser.reads(agent.approve_tool_call(run.run_id, two["approval"]["id"], approver=BOB))
    between = [browser.state(part["toolCallId"]) for part in (one_, two)]
    await browser.reads(agent.approve_tool_call(run.run_id, approver=BOB))

    assert between == ["approval-requested", "output-available"]
    assert browser.state(one_["toolCallId"]) == "output-available"


async def test_arguments_that_a_person_changed_are_the_ones_that_are_shown(stage: Stage, browser: Browser) -> None:
    agent = Stage(stage.store, policy=document(
        "version: 1\nname: e\ndefault: not_applicable\nrules:\n"
        "  - {id: e, tools: [delete], effect: require_approval, edit: true}\n"
    ))
    browser.stage = agent
    shop = agent.agent(DELETE, "done", tools=[agent.tool()])
    run = shop.stream("go", user="ana")
    await browser.reads(run)

    await browser.reads(shop.approve_tool_call(run.run_id, approver=BOB, arguments={"id": "8"}))

    part = part_of(browser.parts, "c1")
    assert (part["input"], part["state"], part["approval"]["approved"]) == ({"id": "8"}, "output-available", True)


async def test_hostile_arguments_wait_for_the_inbox_and_are_shown_as_text_at_the_end(
    stage: Stage, browser: Browser
) -> None:
    tool = stage.tool(require_approval=True, input_schema={"type": "object"})
    agent = stage.agent([("c1", "delete", PROTO)], "done", tools=[tool])
    run = agent.stream("go", user="ana")

    waits = await browser.reads(run)
    ends = await browser.reads(agent.approve_tool_call(run.run_id, approver=BOB))

    assert kinds(waits) == ["data-tool-call-approval", "text-start", "text-delta", "text-end"]
    assert one(ends, "data-tool-call-approval")["data"]["resumed"] is True
    assert json.loads(part_of(browser.parts, "c1")["input"]) == PROTO
    assert browser.state("c1") == "output-available"


# -- what the policy decides by itself -------------------------------------------------------------------------------


async def test_a5_automatic_decisions_are_shown_as_such_and_nobody_is_asked(stage: Stage) -> None:
    house = Stage(stage.store, policy=document(POLICY))
    browser = Browser(house)
    calls = [("c1", "delete", {"id": "7"}), ("c2", "drop", {"id": "8"}), ("c3", "other", {"id": "9"})]
    agent = house.agent(calls, "done", tools=[house.tool(name) for name in ("delete", "drop", "other")])

    chunks = await browser.reads(agent.stream("go", user="ana"))

    approved, denied, free = (part_of(browser.parts, name) for name in ("c1", "c2", "c3"))
    assert (approved["state"], denied["state"], free["state"]) == (
        "output-available", "output-denied", "output-available"
    )
    assert [(one["approval"]["isAutomatic"], one["approval"]["approved"], one["approval"]["reason"])
            for one in (approved, denied)] == [(True, True, "Cheap."), (True, False, "Never.")]
    assert "approval" not in free
    assert approved["approval"]["id"] != denied["approval"]["id"]
    assert [chunk["type"] for chunk in chunks if chunk.get("toolCallId") == "c1"] == [
        "tool-input-available", "tool-approval-request", "tool-output-available"
    ]
    assert sorted(name for name, _ in house.ran) == ["delete", "other"]


async def test_a14_the_result_of_an_automatic_approval_says_so(stage: Stage) -> None:
    house = Stage(stage.store, policy=document(POLICY))
    agent = house.agent(DELETE, "done", tools=[house.tool()])

    result = await agent.generate("go", user="ana")

    approval = result.tool_results[0]["payload"]["approval"]
    request = house.guard.get(approval["approvalId"], tenant="default")
    assert approval == {"approved": True, "approvalId": request.id, "id": "c1", "isAutomatic": True}
    assert (request.votes[0].automatic, request.votes[0].reason) == (True, "Cheap.")


# -- suspensions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
async def test_m50_the_question_of_a_tool_is_a_data_part_until_the_signal(
    stage: Stage, browser: Browser, depth: int
) -> None:
    agent = stage.chain(depth, stage.asking(), call=("c1", "weather", {}))
    run = agent.stream("go", user="ana")

    (question,) = [one for one in await browser.reads(run) if one["type"] == "data-tool-call-suspended"]
    told = question["data"]
    ends = await browser.reads(
        agent.resume_stream({"location": "Rome"}, told["runId"], told["suspensionId"], user="ana")
    )

    assert (told["suspendPayload"], json.loads(told["resumeSchema"]), told["resumed"], told["toolName"]) == (
        {"question": "Which city?"}, CITY_SCHEMA, False, "weather"
    )
    assert one(ends, "data-tool-call-suspended") == question | {"data": told | {"resumed": True}}
    assert one(ends, "data-tool-call-resumed")["data"]["pauseId"] == question["id"]
    assert is_inner(told["toolCallId"]) is (depth > 1)


# -- sub-agents ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("approve", [True, False])
async def test_a32_a_sub_agents_call_waits_as_a_part_of_its_own_and_ends_there(
    stage: Stage, browser: Browser, depth: int, approve: bool
) -> None:
    agent = stage.chain(depth, stage.tool(require_approval=True))
    run = agent.stream("go", user="ana", run_id="chat.run")

    await browser.reads(run)
    (inner,) = [part for part in browser.parts if part.get("state") == "approval-requested"]
    request = stage.guard.get(inner["approval"]["id"], tenant="default")
    browser.answers(inner["toolCallId"], approve)
    decide = agent.approve_tool_call if approve else agent.decline_tool_call
    await browser.reads(decide(run.run_id, request.id, approver=BOB))

    assert (inner["type"], inner["toolName"], inner["input"]) == ("dynamic-tool", "delete", {"id": "7"})
    assert inner["toolCallId"] == part_id("inner", 0, request.run_id)
    assert request.run_id.startswith(f"chat.{SUB}")
    scope = Scope("default", "ana", request.run_id, request.call_id, request.occurrence)
    assert call_id_of(scope) == inner["toolCallId"]
    assert browser.state(inner["toolCallId"]) == ("output-available" if approve else "output-denied")
    assert browser.state(f"deleg-{depth - 1}") == "output-available"
    assert "level 0 done" not in "".join(part.get("text", "") for part in browser.parts)


def test_the_client_knows_a_call_of_a_chats_own_run_by_its_own_id() -> None:
    assert call_id_of(Scope("t", "u", "abc." + "x" * 22, "c1", 1)) == "c1~1"
    assert call_id_of(Scope("t", "u", "abc.x", None, 0)) is None


async def test_a_sub_agents_call_that_never_ended_is_closed_with_the_run(stage: Stage) -> None:
    id_ = part_id("c1", 0, "A" * 22)
    stream = UIMessageStream(known=[{"type": "dynamic-tool", "toolName": "x", "toolCallId": id_, "input": {}}])

    async def events() -> AsyncIterator[Event]:
        yield {"type": "finish", "run_id": "r", "payload": {"stepResult": {"reason": "stop"}}}

    chunks = [chunk async for chunk in chunks_of(events(), stream, request_of=reader(stage))]

    assert kinds(checked([*chunks, *stream.end()], known=[id_])) == ["tool-output-error"]


# -- tools of the client, and unknown ones ---------------------------------------------------------------------------


async def test_a_tool_of_the_client_is_shown_to_it_only_when_it_may_run(stage: Stage, browser: Browser) -> None:
    tools = [Tool("locate"), Tool("wipe", require_approval=True)]
    agent = stage.agent([("c1", "locate", {}), ("c2", "wipe", {"all": True})], tools=tools)
    run = agent.stream("go", user="ana")

    waits = await browser.reads(run)
    browser.answers("c2", True)
    ends = await browser.reads(agent.approve_tool_call(run.run_id, approver=BOB))

    assert kinds(waits) == ["tool-input-start", "tool-input-delta", "tool-approval-request"]
    assert [chunk["toolCallId"] for chunk in ends if chunk["type"] == "tool-input-available"] == ["c2", "c1"]
    assert (browser.state("c2"), "approved" in part_of(browser.parts, "c2")["approval"]) == ("input-available", False)
    assert ends[-1]["finishReason"] == "tool-calls"


async def test_a_tool_of_the_client_that_was_denied_is_never_shown_as_one_to_run(stage: Stage) -> None:
    house = Stage(stage.store, policy=document(POLICY))
    agent = house.agent([("c1", "drop", {})], "no", tools=[Tool("drop")])

    chunks = await Browser(house).reads(agent.stream("go", user="ana"))

    assert "tool-input-available" not in kinds(chunks)
    assert kinds(chunks)[-4:-3] == ["tool-output-denied"]


async def test_a11_a_dynamic_tool_is_recognisable(stage: Stage) -> None:
    stream = UIMessageStream()
    call = {"toolCallId": "c1", "toolName": "found-at-run-time", "args": {}, "dynamic": True}

    async def events() -> AsyncIterator[Event]:
        yield {"type": "tool-call", "run_id": "r", "payload": call}

    chunks = checked(
        [*[chunk async for chunk in chunks_of(events(), stream, request_of=reader(stage))], *stream.end()]
    )

    assert one(chunks, "tool-input-available")["dynamic"] is True
    assert applied(chunks)[-1]["type"] == "dynamic-tool"


@pytest.mark.parametrize("approve", [True, False])
async def test_a_request_whose_call_repeats_the_id_of_an_ended_call_is_a_part_of_its_own(
    stage: Stage, browser: Browser, approve: bool
) -> None:
    tools = [Tool("locate"), stage.tool(require_approval=True)]
    agent = stage.agent([("c1", "locate", {})], DELETE, "done", tools=tools)
    await browser.reads(agent.stream("go", user="ana", run_id="chat.one"))
    part_of(browser.parts, "c1").update(state="output-available", output="Rome")
    run = agent.stream("go on", user="ana", run_id="chat.two")

    asked = one(await browser.reads(run), "tool-approval-request")
    request = stage.guard.get(asked["approvalId"], tenant="default")
    scope = Scope("default", "ana", request.run_id, request.call_id, request.occurrence)
    waits = browser.state(asked["toolCallId"])
    browser.answers(asked["toolCallId"], approve)
    decide = agent.approve_tool_call if approve else agent.decline_tool_call
    await browser.reads(decide(run.run_id, request.id, approver=BOB))

    assert (asked["toolCallId"], waits) == (repeated_id("c1", 0, "chat.two"), "approval-requested")
    assert call_id_of(scope, asked["toolCallId"]) == asked["toolCallId"]
    assert [call_id_of(scope, other) for other in ("c1", "c1~1", repeated_id("c1", 0, "chat.one"), None)] == ["c1"] * 4
    assert browser.state(asked["toolCallId"]) == ("output-available" if approve else "output-denied")
    assert (browser.state("c1"), part_of(browser.parts, "c1")["output"]) == ("output-available", "Rome")
    assert stage.ran == ([("delete", {"id": "7"})] if approve else [])


async def test_calls_of_the_client_with_one_id_are_told_to_it_one_after_the_other(
    stage: Stage, browser: Browser
) -> None:
    agent = stage.agent([("c1", "locate", {"n": 1})], [("c1", "locate", {"n": 2})], tools=[Tool("locate")])
    await browser.reads(agent.stream("go", user="ana", run_id="chat.one"))
    part_of(browser.parts, "c1").update(state="output-available", output="Rome")

    chunks = await browser.reads(agent.stream("go on", user="ana", run_id="chat.two"))

    told = one(chunks, "tool-input-available")
    assert (told["toolCallId"], told["input"]) == (repeated_id("c1", 0, "chat.two"), {"n": 2})


async def test_a_call_of_the_client_with_a_repeated_id_is_told_to_it_after_a_pause_of_its_run(
    stage: Stage, browser: Browser
) -> None:
    tools = [Tool("locate"), stage.tool(require_approval=True)]
    both = [("c1", "locate", {"n": 2}), ("c2", "delete", {"id": "7"})]
    agent = stage.agent([("c1", "locate", {"n": 1})], both, tools=tools)
    await browser.reads(agent.stream("go", user="ana", run_id="chat.one"))
    part_of(browser.parts, "c1").update(state="output-available", output="Rome")
    await browser.reads(agent.stream("go on", user="ana", run_id="chat.two"))
    assert [part["toolCallId"] for part in browser.parts if "toolCallId" in part] == ["c1", "c2"]

    ends = await browser.reads(agent.approve_tool_call("chat.two", approver=BOB))

    told = one(ends, "tool-input-available")
    assert (told["toolCallId"], told["input"]) == (repeated_id("c1", 0, "chat.two"), {"n": 2})
    assert stage.ran == [("delete", {"id": "7"})]


async def test_what_another_run_asked_for_is_told_before_an_error_ends_the_stream(stage: Stage) -> None:
    asking = stage.agent(DELETE, tools=[stage.tool(require_approval=True)])
    unseen = [event async for event in asking.stream("go", user="ana") if asks(event)]
    failing = stage.agent(RuntimeError("no model"))
    stream = UIMessageStream()

    told = chunks_of(failing.stream("go", user="ana"), stream, request_of=reader(stage), after=unseen)
    chunks = checked([chunk async for chunk in told])

    assert [event["type"] for event in unseen] == ["tool-call-approval"]
    assert kinds(chunks) == ["tool-input-available", "tool-approval-request", "error"]


async def test_a_sub_agents_call_that_waits_is_not_closed_with_the_run_of_another_one(
    stage: Stage, browser: Browser
) -> None:
    boss = stage.chain(2, stage.tool(require_approval=True))
    await browser.reads(boss.stream("go", user="ana", run_id="chat.one"))
    (inner,) = [part for part in browser.parts if part.get("state") == "approval-requested"]

    await browser.reads(stage.agent("done").stream("go on", user="ana", run_id="chat.two"))

    assert browser.state(inner["toolCallId"]) == "approval-requested"


# -- failures --------------------------------------------------------------------------------------------------------


async def test_a_failed_run_is_an_error_without_details_and_the_log_has_its_kind_and_place(
    stage: Stage, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    agent = stage.agent(RuntimeError("password=hunter2"))

    with caplog.at_level(logging.ERROR, "hitl_guard.asgi"):
        chunks = await browser.reads(agent.stream("go", user="ana"))

    assert chunks[-1] == {"type": "error", "errorText": RUN_FAILED}
    assert "hunter2" not in json.dumps(chunks)
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_failed_tool_tells_what_kind_of_failure_it_was_or_what_the_host_wants(stage: Stage) -> None:
    def fails(given: Any) -> None:
        raise OSError("password=hunter2")

    for options, told in (({}, "The call failed (OSError)."), (
        {"error_text": lambda error: error["message"]}, "password=hunter2"
    )):
        browser = Browser(stage)
        agent = stage.agent(DELETE, "sorry", tools=[stage.tool(execute=fails)])
        await browser.reads(agent.stream("go", user="ana"), **options)
        assert part_of(browser.parts, "c1")["errorText"] == told

    assert error_text_of({"name": "OSError", "code": "in-doubt"}) == "Nobody knows whether this call had an effect."


async def test_a_request_that_cannot_be_read_is_named_and_not_offered(stage: Stage) -> None:
    agent = stage.agent(DELETE, tools=[stage.tool(require_approval=True)])
    stream = UIMessageStream()

    async def nobody(request_id: str) -> None:
        return None

    events = agent.stream("go", user="ana")
    chunks = [chunk async for chunk in chunks_of(events, stream, request_of=nobody)]

    assert "tool-approval-request" not in kinds(chunks)
    assert "cannot be read" in "".join(chunk.get("delta", "") for chunk in chunks)


async def test_leaving_the_chunks_early_leaves_the_run(stage: Stage) -> None:
    agent = stage.agent("done")
    run = agent.stream("go", user="ana")
    told = chunks_of(run, UIMessageStream(), request_of=reader(stage))

    await anext(told)
    await told.aclose()

    assert run.status == "closed"
