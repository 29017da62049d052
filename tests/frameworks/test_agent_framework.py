"""Microsoft Agent Framework's real package, by the contract and by what only it has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any

import pytest

pytest.importorskip("agent_framework")

from agent_framework import (
    Agent,
    AgentSession,
    ChatMiddlewareLayer,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
)

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.integrations.agent_framework import ApprovalMiddleware
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.rig_agent_framework import AgentFramework, Answers, Scripted


class TestAgentFramework(Contract):
    rig = AgentFramework()


class Late(FunctionMiddleware):
    """Comes after the guard's, and makes 99 of every number."""

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        context.arguments = {"record": 99}
        await call_next()


def tool_of(function: Any, name: str | None = None, **options: Any) -> FunctionTool:
    return FunctionTool(name=name or function.__name__, description="d", func=function, **options)


def agent_of(bench: Bench, *tools: Any, calls: Any = ONE, more: Any = (), **options: Any) -> Agent[Any]:
    guard = ApprovalMiddleware(bench.guard, **({"scope": lambda context: {"user": "ana"}} | options))
    listed = [*tools] or [tool_of(bench.sealed["delete_record"], "delete_record")]
    return Agent(client=Scripted(script=calls), tools=listed, middleware=[guard, *more])


def answered(response: Any, yes: bool = True) -> list[Message]:
    contents = [one.to_function_approval_response(yes) for one in response.user_input_requests]
    return [Message(role="user", contents=contents)]


async def test_a_middleware_that_comes_later_cannot_run_something_else(bench: Bench) -> None:
    agent, session = agent_of(bench, more=[Late()]), AgentSession(session_id="conversation")
    paused = await agent.run("go", session=session)
    bench.approve(bench.only())

    await agent.run(answered(paused), session=session)

    assert bench.ran == []


async def test_a_middleware_that_comes_later_is_noticed_by_the_seal_where_the_framework_asked_nothing(
    bench: Bench,
) -> None:
    scope = {"user": "ana", "run_id": "conversation"}
    agent = agent_of(bench, more=[Late()], pause="retry", scope=lambda context: scope)
    await agent.run("go")
    bench.approve(bench.only())

    await agent.run("go")

    assert bench.ran == []
    assert ("args-mismatch", "sealed") in bench.refusals()


async def test_a_no_in_the_framework_lets_nothing_run(bench: Bench) -> None:
    agent, session = agent_of(bench), AgentSession(session_id="conversation")
    paused = await agent.run("go", session=session)
    bench.approve(bench.only())

    await agent.run(answered(paused, yes=False), session=session)

    assert bench.ran == []


async def test_an_answer_without_a_pause_lets_nothing_run(bench: Bench) -> None:
    agent, session = agent_of(bench), AgentSession(session_id="conversation")
    paused = await agent.run("go", session=session)
    state = json.loads(json.dumps(session.to_dict()))
    state["state"] = {}

    await agent.run(answered(paused), session=AgentSession.from_dict(state))

    assert bench.ran == []


@pytest.mark.parametrize("store_is_down", [False, True])
async def test_the_run_ends_where_nobody_can_tell(bench: Bench, store_is_down: bool) -> None:
    agent = agent_of(bench) if store_is_down else agent_of(bench, scope=None)
    if store_is_down:
        bench.fail()

    with pytest.raises(MiddlewareFailure) as ended:
        await agent.run("go", session=AgentSession(session_id="conversation"))

    assert isinstance(ended.value.__cause__, StoreUnavailableError if store_is_down else ConfigurationError)
    assert bench.ran == []


async def test_without_a_session_the_run_must_be_named(bench: Bench) -> None:
    with pytest.raises(MiddlewareFailure, match="run_id"):
        await agent_of(bench).run("go")

    assert (bench.ran, bench.waiting()) == ([], [])


async def test_a_client_whose_layers_are_in_the_wrong_order_fails_the_self_test(bench: Bench) -> None:
    class Wrong(ChatMiddlewareLayer[Any], FunctionInvocationLayer[Any], Answers):
        """Its function middleware is never called."""

    guard = ApprovalMiddleware(bench.guard, scope=lambda context: {"user": "ana"})
    with pytest.raises(ConfigurationError, match="canary"):
        await guard.selftest(Agent(client=Wrong(script=[]), middleware=[guard]))


async def test_a_tool_that_fails_is_in_doubt_and_the_run_goes_on(bench: Bench) -> None:
    def delete_record(record: int) -> str:
        bench.note(f"tried {record}")
        raise OSError("the disk is full")

    agent, session = agent_of(bench, tool_of(delete_record)), AgentSession(session_id="conversation")
    paused = await agent.run("go", session=session)
    request = bench.only()
    bench.approve(request)

    ended = await agent.run(answered(paused), session=session)

    assert (bench.ran, bench.state(request), ended.text) == (["tried 42"], "in_doubt", "done")


async def test_typed_arguments_are_signed_as_the_framework_makes_them(bench: Bench) -> None:
    def delete_record(record: int, when: date) -> str:
        bench.note(f"delete {record} on {when.isoformat()}")
        return "deleted"

    calls: Any = [[("c1", "delete_record", {"record": "42", "when": "2026-05-04"})]]
    agent = agent_of(bench, tool_of(bench.guard.sealed(delete_record)), calls=calls)
    session = AgentSession(session_id="conversation")
    paused = await agent.run("go", session=session)
    assert bench.only().arguments["when"] == "2026-05-04"
    bench.approve(bench.only())

    await agent.run(answered(paused), session=session)

    assert bench.ran == ["delete 42 on 2026-05-04"]


async def test_arguments_that_do_not_fit_ask_nobody(bench: Bench) -> None:
    agent = agent_of(bench, calls=[[("c1", "delete_record", {"record": "all of them"})]])

    ended = await agent.run("go", session=AgentSession(session_id="conversation"))

    assert (bench.ran, bench.waiting(), ended.text) == ([], [], "done")


async def test_a_call_id_that_comes_again_is_another_call(bench: Bench) -> None:
    agent, session = agent_of(bench, calls=[*ONE, *ONE]), AgentSession(session_id="conversation")
    given: Any = "go"
    for _ in range(2):
        paused = await agent.run(given, session=session)
        bench.approve(bench.only())
        given = answered(paused)
    await agent.run(given, session=session)

    assert bench.ran == ["delete 42", "delete 42"]


async def test_what_the_policy_never_lets_run_does_not_run(bench: Bench) -> None:
    def drop_database() -> str:
        bench.note("dropped")
        return "dropped"

    agent = agent_of(bench, tool_of(drop_database), calls=[[("c1", "drop_database", {})]])

    ended = await agent.run("go", session=AgentSession(session_id="conversation"))

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Never." in str([message.to_dict() for message in ended.messages])
