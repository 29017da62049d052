"""F17: a contradictory or malformed decision is refused, not read as one. F18: invalid input does not end the wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard.agent import Agent, Tool
from hitl_guard.errors import ConfigurationError, DecisionError
from hitl_guard.lifecycle import decide
from hitl_guard.models import Principal
from tests.agent.faults import ONE, Script, assert_over, code_of, noticed, paused, results
from tests.agent.processes import asking, inner, one
from tests.agent.stage import CITY_SCHEMA, Stage, only, read, types
from tests.support import BOB, CAROL

MakeStage = Callable[..., Stage]
OSLO = {"location": "Oslo"}
TRUTHY: list[Any] = [1, "true", "yes", "approved", [True], {"approved": True}, 1.0, object()]
FALSY: list[Any] = [0, "", None, [], {}, 0.0, "false", "no"]


def ids(values: list[Any]) -> list[str]:
    return [f"{type(value).__name__}-{number}" for number, value in enumerate(values)]


async def is_no_decision(stage: Stage, approved: Any) -> None:
    """Somebody answers an approval with what is no boolean, on every way that takes an answer."""
    agent = one(stage)
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()

    codes = [
        await code_of(agent.resume_stream({"approved": approved}, "r", user="ana", approver=BOB).result()),
        await code_of(_decided(stage, request, approved)),
    ]

    assert codes == ["invalid-approval"] * 2
    assert (stage.ran, stage.guard.get(request.id).state, stage.stored()) == ([], "pending", 1)
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert_over(stage)


async def _decided(stage: Stage, request: Any, approve: Any) -> None:
    stage.guard.decide(request.id, approver=BOB, approve=approve, fingerprint=request.fingerprint)


@pytest.mark.parametrize("approved", [1, 0], ids=["truthy", "falsy"])
async def test_f17_a_check_of_decisions_notices_values_that_are_coerced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, approved: Any
) -> None:
    real = decide.Ballot

    def coerced(request_id: str, approver: Any, approve: Any, *rest: Any) -> Any:
        return real(request_id, approver, bool(approve), *rest)

    monkeypatch.setattr(decide, "Ballot", coerced)

    await noticed(is_no_decision(stage, approved))

    assert len(stage.ran) == approved


@pytest.mark.parametrize("approved", TRUTHY + FALSY, ids=ids(TRUTHY + FALSY))
async def test_f17_what_is_no_boolean_is_no_decision_and_the_call_still_waits(stage: Stage, approved: Any) -> None:
    await is_no_decision(stage, approved)


@pytest.mark.parametrize("data", [
    True, False, "approved", None, [], {}, {"approve": True}, {"approved": True, "also": 1}, {"Approved": True},
    {"approved": True, "reason": 7}, {"reason": "yes"}, [{"approved": True}], {"approved": True, "reason": "x" * 5000},
], ids=lambda data: repr(data)[:40])
async def test_f17_an_answer_to_an_approval_has_exactly_its_fields(stage: Stage, data: Any) -> None:
    agent = one(stage)
    await paused(agent, run_id="r")

    code = await code_of(agent.resume_stream(data, "r", user="ana", approver=BOB).result())

    assert code in ("invalid-approval", "invalid-resume-data")
    assert (stage.ran, [request.state for request in stage.guard.pending()]) == ([], ["pending"])
    assert (await agent.decline_tool_call("r", approver=BOB)).status == "success"


@pytest.mark.parametrize("approver", [None, "bob", {"id": "bob"}, 7, BOB.id])
async def test_f17_a_decision_needs_a_named_person(stage: Stage, approver: Any) -> None:
    agent = one(stage)
    await paused(agent, run_id="r")

    for answer in (agent.approve_tool_call, agent.decline_tool_call):
        with pytest.raises(DecisionError):
            await answer("r", approver=approver)
    with pytest.raises((ConfigurationError, DecisionError)):
        await agent.resume_stream({"approved": True}, "r", user="ana", approver=approver)

    assert (stage.ran, [request.state for request in stage.guard.pending()]) == ([], ["pending"])


@pytest.mark.parametrize("options", [
    {"reason": 7}, {"reason": ["no"]}, {"reason": "x" * 5000}, {"channel": ""}, {"channel": 7},
    {"fingerprint": "f" * 64}, {"fingerprint": ""}, {"fingerprint": 7}, {"arguments": {"id": "2"}}, {"arguments": "{}"},
], ids=lambda options: next(f"{name}-{str(value)[:9]}" for name, value in options.items()))
async def test_f17_a_decision_with_anything_malformed_in_it_is_none(stage: Stage, options: dict[str, Any]) -> None:
    agent = one(stage)
    await paused(agent, run_id="r")

    code = await code_of(agent.approve_tool_call("r", approver=BOB, **options).result())

    assert code in ("invalid-approval", "args-mismatch", "not-authorised")
    assert (stage.ran, [request.state for request in stage.guard.pending()]) == ([], ["pending"])
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"


async def test_f17_contradicting_decisions_are_two_and_only_the_first_counts(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    await paused(agent, run_id="r")
    (request,) = stage.guard.pending()
    stage.world.deny(request)

    codes = [
        await code_of(agent.approve_tool_call("r", approver=by).result()) for by in (BOB, CAROL)
    ]
    events = await read(agent.continue_stream("r", user="ana"))

    assert codes == ["already-decided"] * 2
    assert (types(events).count("tool-output-denied"), stage.ran) == (1, [])
    assert_over(stage)


# -- F18 ---------------------------------------------------------------------------------------------------------------


BAD_ANSWERS: list[Any] = [
    {}, {"location": 7}, {"location": "Oslo", "also": 1}, "Oslo", 7, [], None, {"Location": "Oslo"}, object(),
    {"location": object()}, {"location": float("nan")}, {7: "Oslo"}, {"location": "\ud800"}, {"location": None},
]


async def keeps_waiting(stage: Stage, data: Any) -> None:
    agent = asking(stage)
    await paused(agent, run_id="r")
    before = stage.rows()

    code = await code_of(agent.resume_stream(data, "r", user="ana").result())

    assert (code, stage.ran) == ("invalid-resume-data", [("weather", None)])
    assert stage.rows() == before  # nothing was taken, so that the right answer needs not wait
    (run,) = (await agent.list_suspended_runs(user="ana")).runs
    assert [call.suspend_payload for call in run.tool_calls] == [{"question": "Which city?"}]
    assert (await agent.resume_stream(OSLO, "r", user="ana")).status == "success"
    assert stage.ran == [("weather", None), ("weather", OSLO)]
    assert_over(stage)


async def test_f18_a_check_of_answers_notices_one_that_is_not_validated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tool, "checked_resume", lambda tool, data: (data, data))

    await noticed(keeps_waiting(stage, {"location": 7}))


@pytest.mark.parametrize("data", BAD_ANSWERS, ids=ids(BAD_ANSWERS))
async def test_f18_an_answer_that_does_not_fit_is_refused_and_the_question_stays(stage: Stage, data: Any) -> None:
    await keeps_waiting(stage, data)


async def test_f18_an_answer_that_does_not_fit_leaves_the_question_in_the_store(make_stage: MakeStage) -> None:
    await keeps_waiting(make_stage(), {"location": 7})


@pytest.mark.parametrize("data", [False, 0, "", [], {}], ids=["false", "zero", "empty", "list", "object"])
async def test_f18_falsy_data_is_an_answer_where_the_schema_allows_it(make_stage: MakeStage, data: Any) -> None:
    stage = make_stage()
    seen: list[Any] = []

    async def execute(given: Any, context: Any) -> Any:
        if context.resume_data is None:
            await context.suspend("?")
            return None
        seen.append(context.resume_data)
        return "ok"

    tool = Tool("ask", execute=execute)
    agent = Agent("shop", model=Script([("c1", "ask", {})], "done"), tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")

    none = await code_of(agent.resume_stream(None, "r", user="ana").result())
    result = await agent.resume_stream(data, "r", user="ana")

    assert (none, result.status, seen) == ("invalid-resume-data", "success", [data])
    assert type(seen[0]) is type(data)


class City(BaseModel):
    location: str


async def test_f18_a_models_own_validators_refuse_before_the_question_is_taken(make_stage: MakeStage) -> None:
    stage = make_stage()

    async def execute(given: Any, context: Any) -> Any:
        stage.ran.append(("ask", context.resume_data))
        if context.resume_data is None:
            await context.suspend({"question": "?"})
            return None
        return context.resume_data.location

    tool = Tool("ask", execute=execute, resume_schema=City)
    agent = Agent("shop", model=Script([("c1", "ask", {})], "done"), tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")

    bad = await code_of(agent.resume_stream({"location": ["Oslo"]}, "r", user="ana").result())
    done = await agent.resume_stream(City(location="Oslo"), "r", user="ana")

    assert (bad, done.status) == ("invalid-resume-data", "success")
    assert stage.ran == [("ask", None), ("ask", City(location="Oslo"))]


async def test_f18_input_that_the_schema_refuses_is_told_to_the_model_and_nobody_is_asked(
    make_stage: MakeStage
) -> None:
    stage = make_stage()
    model = Script([("c1", "delete", {"id": 7})], [ONE], "done")
    agent = Agent("shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard)

    events = await read(agent.stream("go", user="ana", run_id="r"))

    assert only(events, "tool-error")["toolCallId"] == "c1"
    assert [request.call_id for request in stage.guard.pending()] in ([], ["c1"])
    assert stage.ran == []


@pytest.mark.parametrize("scene", [one, inner], ids=["own", "sub-agent"])
async def test_f18_a_decision_that_is_refused_leaves_the_wait_as_it_was(
    make_stage: MakeStage, scene: Callable[[Stage], Agent]
) -> None:
    stage = make_stage()
    agent = scene(stage)
    await paused(agent, run_id="r")
    before = stage.rows()

    codes = [await code_of(work) for work in (
        agent.approve_tool_call("r", "nothing", approver=BOB).result(),
        agent.approve_tool_call("r", approver=Principal("ana")).result(),
        agent.approve_tool_call("r", approver=BOB, fingerprint="0" * 64).result(),
        agent.resume_stream({"approved": "yes"}, "r", user="ana", approver=BOB).result(),
        agent.resume_stream(OSLO, "r", user="ana", approver=BOB).result(),
        agent.resume_stream({"approved": True}, "r", user="ana").result(),
    )]

    assert codes == [
        "call-not-suspended", "not-authorised", "args-mismatch", "invalid-approval", "invalid-approval", "config-error",
    ]
    assert stage.rows() == before
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f18_a_tool_that_asks_twice_gets_two_answers_and_an_invalid_one_between_is_none(
    make_stage: MakeStage
) -> None:
    stage = make_stage()

    async def execute(given: Any, context: Any) -> Any:
        stage.ran.append(("weather", context.resume_data))
        if context.resume_data in (None, {"location": "?"}):
            await context.suspend({"question": f"number {len(stage.ran)}"})
            return None
        return context.resume_data["location"]

    model = Script([("c1", "weather", {})], "done")
    tool = Tool("weather", execute=execute, resume_schema=CITY_SCHEMA)
    agent = Agent("shop", model=model, tools=[tool], guard=stage.guard)
    first = await agent.generate("go", user="ana", run_id="r")

    second = await agent.resume_stream({"location": "?"}, "r", user="ana")
    bad = await code_of(agent.resume_stream({"location": 7}, "r", user="ana").result())
    stale = await code_of(
        agent.resume_stream(OSLO, "r", (first.suspend_payload or {})["suspensionId"], user="ana").result()
    )
    last = await agent.resume_stream(OSLO, "r", user="ana")

    assert (second.suspend_payload or {})["suspendPayload"] == {"question": "number 2"}
    assert (bad, stale, last.status) == ("invalid-resume-data", "call-not-suspended", "success")
    assert results(model.calls[-1]) == [("c1", "Oslo")]
    assert len(stage.ran) == 3
