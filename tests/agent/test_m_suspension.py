"""A tool that has started may stop and ask; it is started again from the top with the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard.agent import Agent, Tool, ToolContext, tool
from hitl_guard.errors import AgentError, ConfigurationError, DecisionError

from .stage import BOB, CITY_SCHEMA, ID_SCHEMA, Stage, inner, only, read, types

QUESTION_SCHEMA: dict[str, Any] = {
    "additionalProperties": False, "properties": {"question": {"type": "string"}}, "required": ["question"],
    "type": "object",
}
APPROVED_SCHEMA: dict[str, Any] = {
    "additionalProperties": False, "properties": {"approved": {"type": "boolean"}}, "required": ["approved"],
    "type": "object",
}
PAUSED = ["start", "step-start", "tool-call", "tool-call-suspended"]
ENDED = ["text-start", "text-delta", "text-end", "step-finish", "finish"]
WEATHER: list[tuple[str, str, Any]] = [("call-1", "weather", {})]


class City(BaseModel):
    location: str


class Contexts:
    """A tool's function that suspends itself until it has an answer, and keeps what it was told each time."""

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload
        self.inputs: list[Any] = []
        self.seen: list[ToolContext] = []

    async def __call__(self, given: Any, context: ToolContext) -> Any:
        self.inputs.append(given)
        self.seen.append(context)
        if context.resume_data is None:
            await context.suspend(self.payload)
            return None
        return {"answered": True}


def told(agent: Agent, call: int = -1) -> list[str]:
    """Return what the model was told in place of its calls' results, at one of its calls."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[call] if message["role"] == "tool"]


# -- M36 -------------------------------------------------------------------------------------------------------------


async def test_m36_a_tool_suspends_itself_with_a_payload_that_its_schema_describes(stage: Stage) -> None:
    agent = stage.agent(WEATHER, "done", tools=[stage.asking(suspend_schema=QUESTION_SCHEMA)])

    stream = agent.stream("go", user="ana")
    events = await read(stream)

    assert types(events) == PAUSED
    assert only(events, "tool-call-suspended")["suspendPayload"] == {"question": "Which city?"}
    assert (stream.status, stream.finish_reason, stage.stored()) == ("suspended", "suspended", 1)


async def test_m36_a_payload_that_its_schema_refuses_is_no_suspension(stage: Stage) -> None:
    agent = stage.agent(WEATHER, "sorry", tools=[stage.asking(suspend_schema=APPROVED_SCHEMA)])

    stream = agent.stream("go", user="ana")
    events = await read(stream)

    assert "tool-call-suspended" not in types(events)
    assert only(events, "tool-error")["error"]["name"] == "CanonicalizationError"
    assert "Which city?" not in told(agent)[0]
    assert (stream.status, stage.ran, stage.stored()) == ("success", [("weather", None)], 0)


@pytest.mark.parametrize("payload", [None, False, 0, "", [], "Which city?", {"a": [1, 2]}], ids=repr)
async def test_m36_without_a_schema_any_payload_may_be_asked(stage: Stage, payload: Any) -> None:
    agent = stage.agent(WEATHER, tools=[Tool("weather", execute=Contexts(payload))])

    result = await agent.generate("go", user="ana")

    assert result.suspend_payload is not None
    assert result.suspend_payload["suspendPayload"] == payload
    assert (result.status, stage.stored()) == ("suspended", 1)


async def test_m36_a_synchronous_tool_suspends_without_awaiting(stage: Stage) -> None:
    @tool(resume_schema=CITY_SCHEMA)
    def weather(unit: str, context: ToolContext) -> Any:
        if context.resume_data is None:
            context.suspend({"question": "Where?"})
            context.suspend({"question": "Which city?"})
            return None
        return f"{context.resume_data['location']} in {unit}"

    agent = stage.agent([("call-1", "weather", {"unit": "C"})], "done", tools=[weather])

    paused = await agent.generate("go", user="ana")
    result = await agent.resume_generate({"location": "Rome"}, paused.run_id, user="ana")

    assert paused.pauses == [paused.suspend_payload]
    assert paused.suspend_payload is not None
    assert paused.suspend_payload["suspendPayload"] == {"question": "Which city?"}
    assert (result.status, told(agent)) == ("success", ["Rome in C"])


# -- M37 -------------------------------------------------------------------------------------------------------------


async def test_m37_the_stream_tells_what_is_asked_and_of_what_shape_the_answer_is(stage: Stage) -> None:
    agent = stage.agent([("call-1", "weather", {"id": "7"})], tools=[stage.asking(input_schema=ID_SCHEMA)])

    stream = agent.stream("go", user="ana")
    events = await read(stream)

    payload = only(events, "tool-call-suspended")
    assert (events[-1]["type"], events[-1]["run_id"], events[-1]["from"]) == (
        "tool-call-suspended", stream.run_id, "AGENT"
    )
    assert json.loads(payload.pop("resumeSchema")) == CITY_SCHEMA
    assert payload.pop("suspensionId")
    assert payload == {
        "toolCallId": "call-1", "toolName": "weather", "args": {"id": "7"},
        "suspendPayload": {"question": "Which city?"},
    }


# -- M38 -------------------------------------------------------------------------------------------------------------


async def test_m38_the_answer_starts_the_tool_again_from_the_top_with_its_original_arguments(stage: Stage) -> None:
    runs = Contexts({"question": "Which city?"})
    weather = Tool("weather", input_schema=ID_SCHEMA, resume_schema=CITY_SCHEMA, execute=runs)
    agent = stage.agent([("call-1", "weather", {"id": "7"})], "done", tools=[weather])
    stream = agent.stream("go", user="ana", request_context={"shop": "north"})
    await read(stream)

    resumed = agent.resume_stream({"location": "Paris"}, stream.run_id, user="ana")
    events = await read(resumed)

    assert types(events) == ["tool-call-resumed", "tool-result", "step-finish", "step-start", *ENDED]
    assert {event["run_id"] for event in events} == {stream.run_id}
    assert runs.inputs == [{"id": "7"}, {"id": "7"}]
    first, second = runs.seen
    assert (first.resume_data, second.resume_data) == (None, {"location": "Paris"})
    assert second.suspend_payload == {"question": "Which city?"}
    assert (second.tool_call_id, second.run_id, second.user, second.agent_id, second.request_context) == (
        "call-1", stream.run_id, "ana", "shop", {"shop": "north"}
    )
    assert (resumed.status, resumed.run_id, stage.stored()) == ("success", stream.run_id, 0)


async def test_m38_a_pydantic_answer_reaches_the_tool_as_an_instance(stage: Stage) -> None:
    runs = Contexts()
    agent = stage.agent(WEATHER, "done", tools=[Tool("weather", resume_schema=City, execute=runs)])
    paused = await agent.generate("go", user="ana")

    await agent.resume_generate({"location": "Paris"}, paused.run_id, user="ana")

    assert runs.seen[-1].resume_data == City(location="Paris")


@pytest.mark.parametrize("data", [False, 0, "", []], ids=repr)
async def test_m38_a_falsy_answer_is_an_answer(stage: Stage, data: Any) -> None:
    runs = Contexts()
    agent = stage.agent(WEATHER, "done", tools=[Tool("weather", execute=runs)])
    paused = await agent.generate("go", user="ana")

    result = await agent.resume_generate(data, paused.run_id, user="ana")

    assert (result.status, runs.seen[-1].resume_data) == ("success", data)


@pytest.mark.parametrize(
    "data", [None, {}, {"location": 5}, {"location": "Paris", "more": 1}, "Paris", object()],
    ids=["none", "empty", "type", "more", "text", "object"],
)
async def test_m38_an_answer_that_does_not_fit_is_refused_and_the_question_stays(stage: Stage, data: Any) -> None:
    agent = stage.agent(WEATHER, "done", tools=[stage.asking()])
    paused = await agent.generate("go", user="ana")

    with pytest.raises(AgentError) as refused:
        await agent.resume_generate(data, paused.run_id, user="ana")

    assert (refused.value.code, refused.value.detail) == ("invalid-resume-data", "resume-schema")
    assert (stage.ran, stage.stored()) == ([("weather", None)], 1)
    result = await agent.resume_generate({"location": "Paris"}, paused.run_id, user="ana")
    assert (result.status, told(agent)) == ("success", ['{"weather":"Paris: sunny"}'])


async def test_m38_two_questions_are_answered_one_by_one_in_any_order(stage: Stage) -> None:
    agent = stage.agent([("A", "weather", {}), ("B", "weather", {})], "done", tools=[stage.asking()])
    stream = agent.stream("go", user="ana")
    assert types(await read(stream)) == [
        "start", "step-start", "tool-call", "tool-call", "tool-call-suspended", "tool-call-suspended"
    ]

    first = agent.resume_stream({"location": "Berlin"}, stream.run_id, "B", user="ana")
    first_events = await read(first)
    second_events = await read(agent.resume_stream({"location": "Accra"}, stream.run_id, "A", user="ana"))

    assert types(first_events) == ["tool-call-resumed"]
    assert first.status == "suspended"
    assert types(second_events)[:4] == ["tool-call-resumed", "tool-result", "tool-result", "step-finish"]
    assert told(agent) == ['{"weather":"Accra: sunny"}', '{"weather":"Berlin: sunny"}']
    assert len(stage.ran) == 4


# -- M39 -------------------------------------------------------------------------------------------------------------


async def test_m39_suspend_does_not_throw_and_what_follows_it_still_runs(stage: Stage) -> None:
    seen: list[Any] = []

    async def execute(given: Any, context: ToolContext) -> Any:
        if context.resume_data is None:
            waited: Any = context.suspend({"question": "Which city?"})
            seen.extend([await waited, "after suspend"])
            return "ignored"
        return "answered"

    agent = stage.agent(WEATHER, "done", tools=[Tool("weather", execute=execute)])

    stream = agent.stream("go", user="ana")
    before = [seen.copy() async for event in stream if event["type"] == "tool-call-suspended"]
    result = await agent.resume_generate("Paris", stream.run_id, user="ana")

    assert before == [[None, "after suspend"]]
    assert (result.status, seen, told(agent)) == ("success", [None, "after suspend"], ["answered"])


async def test_m39_a_tool_that_raises_after_it_suspended_has_failed(stage: Stage) -> None:
    async def execute(given: Any, context: ToolContext) -> Any:
        await context.suspend({"question": "Which city?"})
        raise LookupError("no such city")

    agent = stage.agent(WEATHER, "sorry", tools=[Tool("weather", execute=execute)])

    events = await read(agent.stream("go", user="ana"))

    assert only(events, "tool-error")["error"]["name"] == "LookupError"
    assert ("tool-call-suspended" in types(events), stage.stored()) == (False, 0)


# -- M40 -------------------------------------------------------------------------------------------------------------


def transfer(ran: list[Any]) -> Tool:
    """Return a tool with neither flag that asks for a confirmation above 100, until it gets one."""
    @tool(resume_schema=APPROVED_SCHEMA)
    async def transfer(amount: int, context: ToolContext) -> Any:
        if amount > 100 and not (context.resume_data or {}).get("approved"):
            await context.suspend({"confirm": amount})
            return None
        ran.append(amount)
        return "sent"

    return transfer


async def test_m40_a_tool_with_neither_flag_asks_only_where_its_own_state_says_so(stage: Stage) -> None:
    ran: list[int] = []
    agent = stage.agent(
        [("small", "transfer", {"amount": 10}), ("large", "transfer", {"amount": 500})], "done", tools=[transfer(ran)]
    )

    stream = agent.stream("go", user="ana")
    events = await read(stream)
    assert (only(events, "tool-call-suspended")["toolCallId"], ran) == ("large", [10])
    again = await read(agent.resume_stream({"approved": False}, stream.run_id, user="ana"))
    assert (types(again), ran) == (["tool-call-resumed", "tool-call-suspended"], [10])
    result = await agent.resume_generate({"approved": True}, stream.run_id, user="ana")

    assert (result.status, ran, told(agent)) == ("success", [10, 500], ["sent", "sent"])


async def test_m40_a_question_asked_again_is_another_question(stage: Stage) -> None:
    agent = stage.agent([("large", "transfer", {"amount": 500})], "done", tools=[transfer([])])
    first = await agent.generate("go", user="ana")

    second = await agent.resume_generate({"approved": False}, first.run_id, user="ana")

    assert first.suspend_payload is not None
    assert second.suspend_payload is not None
    assert first.suspend_payload["suspensionId"] != second.suspend_payload["suspensionId"]
    with pytest.raises(AgentError) as refused:
        await agent.resume_generate(
            {"approved": True}, first.run_id, first.suspend_payload["suspensionId"], user="ana"
        )
    assert refused.value.code == "call-not-suspended"


async def test_m40_an_approved_tool_may_still_suspend_itself_and_its_approval_is_asked_for_once(stage: Stage) -> None:
    agent = stage.agent(WEATHER, "done", tools=[stage.asking(require_approval=True)])
    stream = agent.stream("go", user="ana")
    await read(stream)

    approved = await read(agent.approve_tool_call(stream.run_id, approver=BOB))
    answered = await read(agent.resume_stream({"location": "Paris"}, stream.run_id, user="ana"))

    assert types(approved) == ["tool-call-resumed", "tool-call-suspended"]
    assert types(answered)[:2] == ["tool-call-resumed", "tool-result"]
    assert stage.ran == [("weather", None), ("weather", {"location": "Paris"})]


# -- M41 -------------------------------------------------------------------------------------------------------------


async def test_m41_a_sub_agent_cannot_use_a_client_side_tool(stage: Stage) -> None:
    pick = Tool("pick", input_schema=ID_SCHEMA)
    top = stage.chain(2, pick, call=("inner", "pick", {"id": "7"}))

    stream = top.stream("go", user="ana")
    events = await read(stream)

    (error,) = [inner(event)["payload"] for event in events if inner(event)["type"] == "tool-error"]
    assert (error["toolCallId"], error["error"]["name"]) == ("inner", "ClientToolError")
    assert "suspend" in error["error"]["message"]
    assert (stream.status, stream.text) == ("success", "level 1 done")


@pytest.mark.parametrize("depth", [2, 3])
async def test_m41_a_sub_agents_tool_that_suspends_gets_its_structured_answer_through_the_supervisor(
    stage: Stage, depth: int
) -> None:
    top = stage.chain(depth, stage.asking(), call=("inner", "weather", {}))
    stream = top.stream("go", user="ana")
    assert only(await read(stream), "tool-call-suspended")["suspendPayload"] == {"question": "Which city?"}

    result = await top.resume_generate({"location": "Paris"}, stream.run_id, user="ana")

    assert (result.status, result.text) == ("success", f"level {depth - 1} done")
    assert stage.ran == [("weather", None), ("weather", {"location": "Paris"})]


# -- M42 -------------------------------------------------------------------------------------------------------------


async def test_m42_what_a_chat_page_needs_to_answer_is_in_the_event_as_json(stage: Stage) -> None:
    agent = stage.agent(WEATHER, "done", tools=[stage.asking()])
    events = await read(agent.stream("go", user="ana"))

    page = json.loads(json.dumps(events[-1]))
    result = await agent.resume_generate(
        {"location": "Paris"}, page["run_id"], page["payload"]["toolCallId"], user="ana"
    )

    assert (page["type"], json.loads(page["payload"]["resumeSchema"])) == ("tool-call-suspended", CITY_SCHEMA)
    assert (result.status, told(agent)) == ("success", ['{"weather":"Paris: sunny"}'])


async def test_m42_an_answer_without_its_run_goes_nowhere(stage: Stage) -> None:
    agent = stage.agent(WEATHER, "done", tools=[stage.asking()])
    await agent.generate("go", user="ana")
    nothing: Any = None

    with pytest.raises(TypeError, match="run_id"):
        agent.resume_stream({"location": "Paris"}, user="ana")  # type: ignore[call-arg]
    for run_id in (nothing, "", "another", "x" * 65, 5):
        with pytest.raises(AgentError) as refused:
            await agent.resume_generate({"location": "Paris"}, run_id, user="ana")
        assert refused.value.code == "run-not-found"
    assert stage.ran == [("weather", None)]


async def test_m42_an_answered_approval_part_is_a_decision_only_with_an_approver_and_a_real_boolean(
    stage: Stage
) -> None:
    agent = stage.agent([("call-1", "delete", {"id": "7"})], "done", tools=[stage.tool(require_approval=True)])
    paused = await agent.generate("go", user="ana")

    for data in ({"approved": "true"}, {"approved": 1}, {}, True, {"approved": True, "more": 1}, None):
        with pytest.raises(DecisionError):
            await agent.resume_generate(data, paused.run_id, user="ana", approver=BOB)
    with pytest.raises(ConfigurationError, match="approver"):
        await agent.resume_generate({"approved": True}, paused.run_id, user="ana")
    assert stage.ran == []
    result = await agent.resume_generate({"approved": True}, paused.run_id, user="ana", approver=BOB)

    assert (result.status, stage.ran) == ("success", [("delete", {"id": "7"})])
