"""A user's next message may answer a tool that suspended itself: where the host, the tool and the data all fit."""

from __future__ import annotations

from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.auto import RESUME_TOOL
from hitl_guard.errors import ConfigurationError
from hitl_guard.models import Principal

from .stage import BOB, CITY_SCHEMA, Stage, read, types

ASK: list[tuple[str, str, Any]] = [("call-1", "weather", {})]
ROME = {"location": "Rome"}
AGAIN = "Rome, please."
WAITS = ("call-1", {"question": "Which city?"})


def answer(data: Any, name: str = RESUME_TOOL) -> list[tuple[str, str, Any]]:
    return [("answer", name, {"resumeData": data})]


def agent_of(stage: Stage, *turns: Any, tools: Any = None, **options: Any) -> Agent:
    """Return an agent with memory whose first run asks for a city."""
    defaults: dict[str, Any] = {"memory": True, "auto_resume_suspended_tools": True}
    given = [stage.asking(auto_resume=True)] if tools is None else tools
    return stage.agent(ASK, *turns, tools=given, **(defaults | options))


async def asked(agent: Agent) -> str:
    """Let Ana's run come to its question; return the run's id."""
    return (await agent.generate("go", user="ana", thread_id="t")).run_id


async def waiting(agent: Agent) -> list[tuple[str, tuple[str, Any]]]:
    """Return ``(run id, (tool-call id, question))`` of all that waits for Ana."""
    page = await agent.list_suspended_runs(user="ana")
    return [(run.run_id, (call.tool_call_id, call.suspend_payload)) for run in page.runs for call in run.tool_calls]


def calls_of(agent: Agent) -> list[list[str]]:
    """Return the names of the tools of each call of the model."""
    model: Any = agent.model
    return [[one["function"]["name"] for one in tools] for tools in model.tools]


# -- M52 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent_says", "request_says", "resumes"),
    [(None, None, False), (True, None, True), (False, True, True), (True, False, False), (False, None, False)],
)
async def test_m52_auto_resume_is_off_unless_agent_or_request_says_so_and_the_request_counts(
    stage: Stage, agent_says: bool | None, request_says: bool | None, resumes: bool
) -> None:
    said: dict[str, Any] = {} if agent_says is None else {"auto_resume_suspended_tools": agent_says}
    turns = (answer(ROME), "done") if resumes else ("hello",)
    agent = stage.agent(ASK, *turns, tools=[stage.asking(auto_resume=True)], memory=True, **said)
    run_id = await asked(agent)

    result = await agent.generate(AGAIN, user="ana", thread_id="t", auto_resume_suspended_tools=request_says)

    assert (result.run_id == run_id, result.text) == (resumes, "done" if resumes else "hello")
    assert await waiting(agent) == ([] if resumes else [(run_id, WAITS)])
    assert stage.ran == ([("weather", None), ("weather", ROME)] if resumes else [("weather", None)])


# -- M53 -------------------------------------------------------------------------------------------------------------


async def test_m53_the_answer_is_derived_from_the_message_by_the_tools_own_schema(stage: Stage) -> None:
    agent = agent_of(stage, answer(ROME), "Sunny in Rome.")
    model: Any = agent.model
    run_id = await asked(agent)

    stream = agent.stream(AGAIN, user="ana", thread_id="t")
    events = await read(stream)

    (offered,) = model.tools[1]
    assert offered["function"]["name"] == RESUME_TOOL
    assert offered["function"]["parameters"]["properties"]["resumeData"] == CITY_SCHEMA
    assert model.calls[1][-1] == {"content": AGAIN, "role": "user"}
    assert "Which city?" in model.calls[1][1]["content"]
    assert "Which city?" not in model.calls[1][0]["content"]
    assert types(events)[:3] == ["tool-call-resumed", "tool-result", "step-finish"]
    assert (events[0]["payload"]["toolCallId"], events[0]["payload"]["kind"]) == ("call-1", "suspension")
    assert {event["run_id"] for event in events} == {run_id} == {stream.run_id}
    assert stage.ran == [("weather", None), ("weather", ROME)]
    assert (stream.status, await waiting(agent), stage.stored()) == ("success", [], 0)


async def test_m53_the_message_stands_after_the_result_in_the_conversation(stage: Stage) -> None:
    agent = agent_of(stage, answer(ROME), "Sunny in Rome.")
    model: Any = agent.model
    await asked(agent)

    await agent.generate(AGAIN, user="ana", thread_id="t")

    roles = [(one["role"], one["content"]) for one in await agent.recall("t", user="ana")]
    assert roles == [
        ("user", "go"), ("assistant", None), ("tool", '{"weather":"Rome: sunny"}'), ("user", AGAIN),
        ("assistant", "Sunny in Rome."),
    ]
    assert model.calls[2][-2:] == [
        {"content": '{"weather":"Rome: sunny"}', "role": "tool", "tool_call_id": "call-1"},
        {"content": AGAIN, "role": "user"},
    ]


async def test_m53_of_several_questions_the_most_recent_one_is_answered(stage: Stage) -> None:
    agent = stage.agent(
        [("A", "weather", {}), ("B", "weather", {})], answer(ROME), answer({"location": "Oslo"}), "done",
        tools=[stage.asking(auto_resume=True)], memory=True, auto_resume_suspended_tools=True,
    )
    model: Any = agent.model
    run_id = await asked(agent)

    first = await agent.generate(AGAIN, user="ana", thread_id="t")
    left = await waiting(agent)
    last = await agent.generate("And Oslo.", user="ana", thread_id="t")

    assert (first.run_id, first.status, [call for _, (call, _) in left]) == (run_id, "suspended", ["A"])
    assert (last.run_id, last.status) == (run_id, "success")
    assert [one["content"] for one in model.calls[-1][-4:]] == [
        '{"weather":"Oslo: sunny"}', '{"weather":"Rome: sunny"}', AGAIN, "And Oslo."
    ]


@pytest.mark.parametrize("depth", [2, 3])
async def test_m53_a_sub_agents_question_is_answered_too(stage: Stage, depth: int) -> None:
    inner = stage.agent(ASK, "inner done", id="inner", tools=[stage.asking(auto_resume=True)])
    names = ["inner", *(f"mid-{level}" for level in range(depth - 2))]
    for below, name in zip(names, [*names[1:], "top"], strict=True):
        turns: tuple[Any, ...] = ([("delegation", f"agent-{below}", {"prompt": "go"})],)
        turns += (answer(ROME), "done") if name == "top" else ("mid done",)
        inner = stage.agent(*turns, id=name, agents=[inner], memory=name == "top")
    await asked(inner)

    result = await inner.generate(AGAIN, user="ana", thread_id="t", auto_resume_suspended_tools=True)

    assert (result.status, result.text, stage.ran[-1]) == ("success", "done", ("weather", ROME))


# -- M54 -------------------------------------------------------------------------------------------------------------


YES = {"approved": True}


async def test_m54_an_approval_is_never_given_by_a_message(stage: Stage) -> None:
    gated = stage.asking(auto_resume=True, require_approval=True)
    agent = agent_of(stage, answer(YES), "I cannot.", tools=[gated])
    run_id = await asked(agent)

    events = await read(agent.stream("Yes, approved!", user="ana", thread_id="t"))

    assert calls_of(agent)[1] == ["weather"]
    assert [event["payload"]["error"]["name"] for event in events if event["type"] == "tool-error"] == [
        "ToolNotFoundError"
    ]
    assert (await waiting(agent), stage.ran) == ([(run_id, ("call-1", None))], [])


@pytest.mark.parametrize("way", ["approve", "decline", "resume"])
async def test_m54_an_approval_ends_by_an_explicit_decision(stage: Stage, way: str) -> None:
    agent = agent_of(stage, "hello", "done", tools=[stage.tool("weather", input_schema=None, require_approval=True)])
    run_id = await asked(agent)
    await agent.generate("Yes, approved!", user="ana", thread_id="t")

    result = await (
        agent.approve_tool_call(run_id, approver=BOB) if way == "approve"
        else agent.decline_tool_call(run_id, approver=BOB) if way == "decline"
        else agent.resume_stream(YES, run_id, user="ana", approver=BOB)
    )

    assert (result.status, stage.ran) == ("success", [] if way == "decline" else [("weather", {})])


async def test_m54_a_message_answers_what_an_approved_tool_asks_but_not_whether_it_may_start(stage: Stage) -> None:
    agent = agent_of(stage, answer(ROME), "done", tools=[stage.asking(auto_resume=True, require_approval=True)])
    run_id = await asked(agent)
    await agent.approve_tool_call(run_id, approver=BOB)

    result = await agent.generate(AGAIN, user="ana", thread_id="t")

    assert (result.run_id, result.status, stage.ran) == (run_id, "success", [("weather", None), ("weather", ROME)])


async def test_m54_where_a_question_and_an_approval_wait_only_the_question_is_answered(stage: Stage) -> None:
    agent = stage.agent(
        [("question", "weather", {}), ("gated", "delete", {"id": "7"})], answer(ROME),
        tools=[stage.asking(auto_resume=True), stage.tool(require_approval=True)], memory=True,
        auto_resume_suspended_tools=True,
    )
    run_id = await asked(agent)

    result = await agent.generate(AGAIN, user="ana", thread_id="t")

    assert (result.run_id, result.status) == (run_id, "suspended")
    assert await waiting(agent) == [(run_id, ("gated", None))]
    assert stage.ran == [("weather", None), ("weather", ROME)]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"approved": {"type": "boolean"}}, "type": "object"},
        {"properties": {"more": {"properties": {"approved": {}}, "type": "object"}}, "type": "object"},
        None,
    ],
    ids=["approved", "nested", "none"],
)
async def test_m54_a_tool_that_asks_for_consent_or_names_no_answer_cannot_opt_in(stage: Stage, schema: Any) -> None:
    with pytest.raises(ConfigurationError):
        stage.asking(resume_schema=schema, auto_resume=True)


async def test_m54_consent_is_not_derived_through_a_schema_that_is_open_for_more(stage: Stage) -> None:
    tools = [stage.asking(auto_resume=True, resume_schema={"type": "object"})]
    agent = agent_of(stage, answer([{"more": YES}]), "hello", answer(ROME | {"more": [YES]}), "hello", tools=tools)
    run_id = await asked(agent)

    for _ in range(2):
        await agent.generate("Yes, approved!", user="ana", thread_id="t")

    assert (await waiting(agent), stage.ran) == ([(run_id, WAITS)], [("weather", None)])


# -- M55 -------------------------------------------------------------------------------------------------------------


async def test_m55_without_memory_there_is_no_conversation_to_answer_in(stage: Stage) -> None:
    agent = agent_of(stage, "hello", memory=False)
    paused = await agent.generate("go", user="ana")

    with pytest.raises(ConfigurationError, match="memory"):
        agent.stream(AGAIN, user="ana", thread_id="t")
    result = await agent.generate(AGAIN, user="ana")

    assert (result.text, await waiting(agent)) == ("hello", [(paused.run_id, WAITS)])


OTHERS: list[dict[str, Any]] = [
    {"thread_id": "another"}, {"thread_id": None}, {"resource_id": "another"}, {"user": "eve"},
    {"user": "eve", "resource_id": "ana"}, {"user": Principal("ana", tenant="north"), "tenant": "north"},
]


@pytest.mark.parametrize("other", OTHERS, ids=["thread", "no-thread", "resource", "user", "user-of-resource", "tenant"])
async def test_m55_another_thread_resource_user_or_tenant_answers_nothing(stage: Stage, other: dict[str, Any]) -> None:
    agent = agent_of(stage, "hello", answer(ROME), "done")
    run_id = await asked(agent)

    result = await agent.generate(AGAIN, **({"user": "ana", "thread_id": "t"} | other))

    assert (result.text, stage.ran, calls_of(agent)[1]) == ("hello", [("weather", None)], ["weather"])
    assert await waiting(agent) == [(run_id, WAITS)]
    assert (await agent.generate(AGAIN, user="ana", thread_id="t")).run_id == run_id


async def test_m55_another_agent_of_the_same_conversation_answers_nothing(stage: Stage) -> None:
    agent = agent_of(stage)
    run_id = await asked(agent)
    other = stage.agent("hello", id="other", tools=agent.tools, memory=True, auto_resume_suspended_tools=True)

    result = await other.generate(AGAIN, user="ana", thread_id="t")

    assert (result.text, await waiting(agent), stage.ran) == ("hello", [(run_id, WAITS)], [("weather", None)])


async def test_m55_a_tool_that_did_not_opt_in_is_never_answered_by_a_message(stage: Stage) -> None:
    agent = agent_of(stage, "hello", tools=[stage.asking()])
    run_id = await asked(agent)

    result = await agent.generate(AGAIN, user="ana", thread_id="t")

    assert (result.text, calls_of(agent)[1:]) == ("hello", [["weather"]])
    assert await waiting(agent) == [(run_id, WAITS)]


@pytest.mark.parametrize(
    "turn",
    [
        answer({"location": 5}), answer({}), answer(None), answer("Rome"), answer(ROME | {"approved": True}),
        [("answer", RESUME_TOOL, "{")], [("answer", RESUME_TOOL, "[]")], [("answer", RESUME_TOOL, ROME)],
        answer(ROME) * 2, answer(ROME, "weather"), answer(ROME, "resumeSuspendedTool"), "The answer is Rome.",
    ],
    ids=["type", "empty", "none", "text", "more", "no-json", "no-object", "unwrapped", "two", "other", "case", "said"],
)
async def test_m55_data_that_do_not_fit_answer_nothing_and_the_message_starts_an_ordinary_run(
    stage: Stage, turn: Any
) -> None:
    agent = agent_of(stage, turn, "hello")
    run_id = await asked(agent)

    events = await read(agent.stream(AGAIN, user="ana", thread_id="t"))

    assert types(events)[0] == "start"
    assert events[0]["run_id"] != run_id
    assert (await waiting(agent), stage.ran) == ([(run_id, WAITS)], [("weather", None)])


# -- M56 -------------------------------------------------------------------------------------------------------------


async def test_m56_without_a_suspension_nothing_is_asked_of_the_model(stage: Stage) -> None:
    agent = stage.agent("hello", "again", tools=[stage.asking(auto_resume=True)], memory=True,
                        auto_resume_suspended_tools=True)

    await agent.generate("go", user="ana", thread_id="t")
    await agent.generate(AGAIN, user="ana", thread_id="t")

    assert calls_of(agent) == [["weather"], ["weather"]]


@pytest.mark.parametrize(
    "messages",
    [
        [], [{"content": AGAIN, "role": "user"}, {"content": "Hm.", "role": "assistant"}],
        [{"content": AGAIN, "role": "system"}],
        [{"content": '{"location":"Rome"}', "role": "tool", "tool_call_id": "call-1"}],
    ],
    ids=["nothing", "assistant", "system", "tool"],
)
async def test_m56_only_a_new_message_of_the_user_is_an_occasion(stage: Stage, messages: Any) -> None:
    agent = agent_of(stage, "hello")
    run_id = await asked(agent)

    result = await agent.generate(messages, user="ana", thread_id="t")

    assert (result.text, calls_of(agent)[1], stage.ran) == ("hello", ["weather"], [("weather", None)])
    assert await waiting(agent) == [(run_id, WAITS)]


async def test_m56_a_message_without_an_answer_leaves_the_question_open(stage: Stage) -> None:
    agent = agent_of(stage, "", "Hello to you.", answer(ROME), "Sunny in Rome.")
    run_id = await asked(agent)

    small_talk = await agent.generate("Hello!", user="ana", thread_id="t")
    still = await waiting(agent)
    result = await agent.generate(AGAIN, user="ana", thread_id="t")

    assert (small_talk.text, still) == ("Hello to you.", [(run_id, WAITS)])
    assert (result.run_id, result.text, await waiting(agent)) == (run_id, "Sunny in Rome.", [])


async def test_m56_the_same_tool_is_resumed_by_hand_as_well(stage: Stage) -> None:
    agent = agent_of(stage, "done")
    run_id = await asked(agent)

    result = await agent.resume_generate(ROME, run_id, user="ana")

    assert (result.status, stage.ran) == ("success", [("weather", None), ("weather", ROME)])


async def test_m56_a_model_that_fails_to_derive_an_answer_leaves_the_question_open(stage: Stage) -> None:
    agent = agent_of(stage, LookupError("overloaded"), answer(ROME), "done")
    run_id = await asked(agent)

    with pytest.raises(LookupError):
        await agent.generate(AGAIN, user="ana", thread_id="t")

    assert await waiting(agent) == [(run_id, WAITS)]
    assert (await agent.generate(AGAIN, user="ana", thread_id="t")).run_id == run_id
