"""What else could run a tool of Microsoft Agent Framework: other middleware, other tools, other arguments."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("agent_framework")

from agent_framework import (
    Agent,
    AgentSession,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    MCPStdioTool,
    MiddlewareFailure,
)

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.agent_framework import ApprovalMiddleware
from hitl_guard.models import ToolCall
from tests.frameworks.bench import ONE, PAYING, Bench
from tests.frameworks.rig_agent_framework import Scripted
from tests.frameworks.test_agent_framework import Late, agent_of, answered, tool_of

RETRY: dict[str, Any] = {"pause": "retry", "scope": lambda context: {"user": "ana", "run_id": "conversation"}}
SERVER = """\
from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", log_level="CRITICAL")

@server.tool()
def delete_record(record: int, force: bool = False) -> str:
    with open({journal!r}, "a") as journal:
        journal.write(f"delete {{record}} {{force}}\\n")
    if force:
        raise ValueError("locked")
    return "deleted"

server.run()
"""


def session_of() -> AgentSession:
    return AgentSession(session_id="conversation")


def told(response: Any) -> str:
    return str([message.to_dict() for message in response.messages])


class Changes(FunctionMiddleware):
    """Does something to a call, then lets it go on."""

    def __init__(self, change: Callable[[FunctionInvocationContext], None]) -> None:
        self.change = change

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        self.change(context)
        await call_next()


class Twice(FunctionMiddleware):
    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        await call_next()
        await call_next()


# -- the model's turn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_small_calls_of_one_turn_run_until_they_are_too_much_together(bench: Bench, stream: bool) -> None:
    agent, session = agent_of(bench, tool_of(bench.tools["pay"], "pay"), calls=PAYING), session_of()

    if stream:
        run = agent.run("go", session=session, stream=True)
        async for _ in run:
            pass
        paused = await run.get_final_response()
    else:
        paused = await agent.run("go", session=session)
    assert sorted(bench.ran) == ["pay 20", "pay 21"]
    bench.approve(bench.only())
    await agent.run(answered(paused), session=session)

    assert sorted(bench.ran) == ["pay 20", "pay 21", "pay 22"]


async def test_earlier_calls_count_as_their_tools_get_them(bench: Bench) -> None:
    calls: Any = [[("p1", "pay", {"amount": "40"}), ("p2", "pay", {"amount": 11})]]
    agent = agent_of(bench, tool_of(bench.tools["pay"], "pay"), calls=calls)

    await agent.run("go", session=session_of())

    assert (bench.ran, bench.only().arguments) == (["pay 40"], {"amount": 11})


async def test_of_a_call_that_was_changed_on_its_way_nobody_knows_the_turn(bench: Bench) -> None:
    def more(context: FunctionInvocationContext) -> None:
        context.arguments = {"amount": 45}

    guard = ApprovalMiddleware(bench.guard, scope=lambda context: {"user": "ana"})
    client: Any = Scripted(script=[[("p1", "pay", {"amount": 5}), ("p2", "pay", {"amount": 5})]])
    agent: Agent[Any] = Agent(
        client=client, tools=[tool_of(bench.tools["pay"], "pay")], middleware=[Changes(more), guard]
    )

    await agent.run("go", session=session_of())

    assert bench.ran == []
    assert [request.arguments for request in bench.waiting()] == [{"amount": 45}] * 2


async def test_what_a_stored_session_says_of_a_turn_is_not_believed(bench: Bench) -> None:
    calls: Any = [[("c1", "look", {"place": "attic"}), ("p1", "pay", {"amount": 5})]]
    look = tool_of(bench.tools["look"], "look", approval_mode="always_require")
    agent, session = agent_of(bench, look, tool_of(bench.tools["pay"], "pay"), calls=calls), session_of()
    paused = await agent.run("go", session=session)  # the framework keeps both in the session

    await agent.run(answered(paused), session=session)

    assert (bench.ran, sorted(request.tool for request in bench.waiting())) == ([], ["look", "pay"])


# -- other middleware ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("name", ["delete_record", "look"])
async def test_a_middleware_that_exchanges_the_tool_runs_none(bench: Bench, order: str, name: str) -> None:
    def harmless(record: int) -> str:
        bench.note("harmless")
        return "nothing"

    def exchange(context: FunctionInvocationContext) -> None:
        context.function = tool_of(harmless, name)

    guard = ApprovalMiddleware(bench.guard, **RETRY)
    middleware: Any = [Changes(exchange), guard] if order == "before" else [guard, Changes(exchange)]
    agent: Agent[Any] = Agent(
        client=Scripted(script=ONE), tools=[tool_of(bench.tools["delete_record"], "delete_record")],
        middleware=middleware,
    )
    await agent.run("go")
    for request in bench.waiting():
        bench.approve(request)

    await agent.run("go")

    assert bench.ran == []
    assert ("args-mismatch", "sealed") in bench.refusals()


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_middleware_that_comes_later_changes_nothing_of_a_tool_that_is_not_sealed(
    bench: Bench, in_place: bool,
) -> None:
    def change(context: FunctionInvocationContext) -> None:
        context.arguments["record"] = 99

    late = Changes(change) if in_place else Late()
    agent = agent_of(bench, tool_of(bench.tools["delete_record"], "delete_record"), more=[late], **RETRY)
    await agent.run("go")
    bench.approve(bench.only())
    ended = await agent.run("go")

    assert (bench.ran, bench.refusals()) == ([], [("args-mismatch", "sealed")])
    assert "Refused (args-mismatch)" in told(ended)


async def test_a_middleware_of_one_run_comes_later_and_changes_nothing(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.tools["delete_record"], "delete_record"), **RETRY)
    await agent.run("go")
    bench.approve(bench.only())

    await agent.run("go", middleware=[Late()])

    assert bench.ran == []


async def test_a_middleware_that_makes_a_call_twice_makes_it_once(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.tools["delete_record"], "delete_record"), more=[Twice()], **RETRY)
    await agent.run("go")
    bench.approve(bench.only())

    await agent.run("go")

    assert (bench.ran, bench.refusals()) == (["delete 42"], [("consumed", "permit")])


async def test_a_middleware_before_the_guard_may_change_its_context_afterwards(bench: Bench) -> None:
    class Tidies(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
            await call_next()
            context.arguments = {}

    guard = ApprovalMiddleware(bench.guard, **RETRY)
    agent: Agent[Any] = Agent(
        client=Scripted(script=[[("c1", "look", {"place": "attic"})]]), middleware=[Tidies(), guard],
        tools=[tool_of(bench.tools["look"], "look")],
    )

    ended = await agent.run("go")

    assert (bench.ran, "seen: attic" in told(ended)) == (["look attic"], True)


# -- other tools -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["native", "retry"])
async def test_the_frameworks_own_yes_to_a_tool_that_demands_one_is_no_persons(bench: Bench, pause: str) -> None:
    look = tool_of(bench.tools["look"], "look", approval_mode="always_require")
    agent = agent_of(bench, look, calls=[[("c1", "look", {"place": "attic"})]] * 2, **(RETRY | {"pause": pause}))
    session = session_of()
    paused = await agent.run("go", session=session)

    again = await agent.run(answered(paused), session=session)
    assert (bench.ran, bench.only().tool) == ([], "look")
    bench.approve(bench.only())
    await agent.run(answered(again), session=session)

    assert bench.ran == ["look attic"]


async def test_tools_that_a_provider_runs_must_be_named(bench: Bench) -> None:
    hosted = {"type": "web_search"}
    agent = agent_of(bench, hosted)
    with pytest.raises(MiddlewareFailure, match="web_search"):
        await agent.run("go", session=session_of())
    with pytest.raises(ConfigurationError, match="web_search"):
        await agent.middleware[0].selftest(agent)

    named = agent_of(bench, hosted, uncovered=["web_search"])
    await named.middleware[0].selftest(named)
    assert (await named.run("go", session=session_of())).text == "done"


async def test_an_agent_that_is_a_tool_needs_the_guard_too(bench: Bench) -> None:
    worker: Agent[Any] = Agent(
        client=Scripted(script=ONE), name="worker", tools=[tool_of(bench.tools["delete_record"], "delete_record")]
    )
    boss = agent_of(bench, worker.as_tool(), calls=[[("d1", "worker", {"task": "delete it"})]])

    with pytest.raises(MiddlewareFailure, match="worker"):
        await boss.run("go", session=session_of())
    with pytest.raises(ConfigurationError, match="worker"):
        await boss.middleware[0].selftest(boss)
    worker.middleware = [ApprovalMiddleware(bench.guard, **RETRY)]
    await boss.middleware[0].selftest(boss)
    await boss.run("go", session=session_of())

    assert (bench.ran, bench.only().tool) == ([], "delete_record")


async def test_a_tool_that_was_added_while_the_agent_runs_asks_too(bench: Bench) -> None:
    async def load(ctx: FunctionInvocationContext) -> str:
        assert ctx.tools is not None
        ctx.tools.append(tool_of(bench.tools["delete_record"], "delete_record"))
        return "loaded"

    load.__annotations__ = {"ctx": FunctionInvocationContext, "return": str}
    agent = agent_of(bench, tool_of(load), calls=[[("l1", "load", {})], *ONE])

    await agent.run("go", session=session_of())

    assert (bench.ran, bench.only().arguments) == ([], {"record": 42})


async def test_a_middleware_that_comes_later_fails_the_self_test(bench: Bench) -> None:
    agent = agent_of(bench, more=[Late()])

    with pytest.raises(ConfigurationError, match="last"):
        await agent.middleware[0].selftest(agent)


@pytest.mark.parametrize("names", ["look", [1]])
def test_names_that_are_none_are_refused(bench: Bench, names: Any) -> None:
    with pytest.raises(ConfigurationError, match="uncovered"):
        ApprovalMiddleware(bench.guard, uncovered=names)


# -- what a tool does and gets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["drop_database", "delete_record"])
async def test_a_call_that_the_guard_stops_inside_a_tool_is_that_tools_failure(bench: Bench, inner: str) -> None:
    def delete_record(record: int) -> str:
        bench.note("started")
        bench.guard.authorize(ToolCall(inner, {"record": 1}, run_id="r", call_id="inner", user="ana"))
        return "never"

    agent, session = agent_of(bench, tool_of(delete_record)), session_of()
    paused = await agent.run("go", session=session)
    request = bench.only()
    bench.approve(request)

    ended = await agent.run(answered(paused), session=session)

    assert (bench.ran, bench.state(request)) == (["started"], "in_doubt")
    assert (ended.user_input_requests, ended.text) == ([], "done")
    assert "Function failed" in told(ended)


async def test_what_the_app_hands_to_its_tools_fills_no_parameter(bench: Bench) -> None:
    def delete_record(record: int, force: bool = False) -> str:
        bench.note(f"delete {record} {force}")
        return "deleted"

    agent, session = agent_of(bench, tool_of(delete_record)), session_of()
    paused = await agent.run("go", session=session, function_invocation_kwargs={"force": True})
    bench.approve(bench.only())

    await agent.run(answered(paused), session=session, function_invocation_kwargs={"force": True, "record": 99})

    assert bench.ran == ["delete 42 False"]


async def test_what_the_app_hands_to_a_servers_tool_is_shown_and_signed(bench: Bench) -> None:
    script = bench.folder / "server.py"
    script.write_text(SERVER.format(journal=str(bench.folder / "journal")))
    async with MCPStdioTool(name="shop", command=sys.executable, args=[str(script)], load_prompts=False) as shop:
        agent, session = agent_of(bench, shop), session_of()
        paused = await agent.run("go", session=session, function_invocation_kwargs={"force": True, "token": "t"})
        request = bench.only()
        assert request.arguments == {"force": True, "record": 42}
        bench.approve(request)

        await agent.run(answered(paused), session=session, function_invocation_kwargs={"force": False})

    # What was approved is what the server got, and the error that it told is none of a success.
    assert (bench.ran, bench.state(request)) == (["delete 42 True"], "in_doubt")


async def test_a_validator_that_changes_arguments_is_applied_once(bench: Bench) -> None:
    from pydantic import BaseModel, field_validator

    class Twofold(BaseModel):
        place: str

        @field_validator("place")
        @classmethod
        def _double(cls, place: str) -> str:
            return place * 2

    tool = FunctionTool(name="look", description="d", func=bench.tools["look"], input_model=Twofold)
    agent = agent_of(bench, tool, calls=[[("c1", "look", {"place": "a"})]], **RETRY)

    await agent.run("go")

    assert bench.ran == ["look aa"]
