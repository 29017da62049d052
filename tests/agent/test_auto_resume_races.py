"""A message that may answer a question, while others answer it, end its run, or have it answered by halves."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.auto import RESUME_TOOL
from hitl_guard.errors import AgentError

from .elsewhere import elsewhere
from .stage import Stage, read, types

ASK: list[tuple[str, str, Any]] = [("call-1", "weather", {})]
ROME = {"location": "Rome"}
AGAIN = "Rome, please."


def answer(data: Any) -> list[tuple[str, str, Any]]:
    return [("answer", RESUME_TOOL, {"resumeData": data})]


def agent_of(stage: Stage, *turns: Any) -> Agent:
    """Return an agent whose questions a message may answer."""
    return stage.agent(
        *turns, tools=[stage.asking(auto_resume=True)], memory=True, auto_resume_suspended_tools=True
    )


async def test_a_question_that_others_answer_meanwhile_is_not_answered_twice(stage: Stage) -> None:
    agent, other = agent_of(stage, ASK, answer(ROME), "hello"), agent_of(stage, "Oslo it is.")
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    scripted: Any = agent.model

    async def overtaken(*asked: Any) -> Any:
        if len(scripted.calls) == 1:
            await other.resume_generate({"location": "Oslo"}, run_id, user="ana")
        return await scripted(*asked)

    agent.model = overtaken

    stream = agent.stream(AGAIN, user="ana", thread_id="t")
    events = await read(stream)

    assert types(events)[0] == "start"
    assert {event["run_id"] for event in events} == {stream.run_id}
    assert (stream.run_id != run_id, stream.text, stream.tool_calls) == (True, "hello", [])
    assert stage.ran == [("weather", None), ("weather", {"location": "Oslo"})]


async def test_a_run_that_ends_while_it_is_looked_at_is_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(stage, ASK, "hello")
    await agent.generate("go", user="ana", thread_id="t")
    monkeypatch.setattr(agent.snapshots, "load", lambda *_: None)

    result = await agent.generate(AGAIN, user="ana", thread_id="t")

    assert result.text == "hello"


async def test_a_resumed_run_that_is_taken_away_later_is_an_error_and_no_second_run(stage: Stage) -> None:
    def deleted(_: Any) -> str:
        with sqlite3.connect(str(stage.store._dialect.url.database)) as connection:
            connection.execute("DELETE FROM hitl_guard_runs")
        connection.close()
        return "done"

    agent = agent_of(stage, ASK, answer(ROME), deleted)
    model: Any = agent.model
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    stream = agent.stream(AGAIN, user="ana", thread_id="t")

    with pytest.raises(AgentError) as refused:
        await stream

    assert (refused.value.code, stream.run_id, stream.status) == ("run-busy", run_id, "failed")
    assert len(model.calls) == 3


async def test_a_message_that_answered_one_of_two_questions_is_kept_for_whoever_answers_the_other(
    stage: Stage
) -> None:
    agent = agent_of(stage, [("A", "weather", {}), ("B", "weather", {})], answer(ROME))
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    await agent.generate(AGAIN, user="ana", thread_id="t")

    with elsewhere(stage) as there:
        second = agent_of(there, "done")
        await second.resume_generate({"location": "Oslo"}, run_id, user="ana")
        kept = [(one["role"], one["content"]) for one in await second.recall("t", user="ana")]

    assert kept == [
        ("user", "go"), ("assistant", None), ("tool", '{"weather":"Oslo: sunny"}'),
        ("tool", '{"weather":"Rome: sunny"}'), ("user", AGAIN), ("assistant", "done"),
    ]
