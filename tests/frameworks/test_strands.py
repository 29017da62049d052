"""Strands Agents' real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("strands")

from pydantic import BaseModel
from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent
from strands.interventions import InterventionHandler
from strands.middleware import ExecuteToolStage
from strands.types.exceptions import EventLoopException

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.guard import Guard
from hitl_guard.integrations.strands import ApprovalPlugin
from hitl_guard.keyring import Keyring
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.rig_strands import Scripted, Strands
from tests.frameworks.told import POLICY as ALL

FACTS = {"user": "ana", "run_id": "conversation"}
LOOK: Any = [[("c1", "look", {"place": "attic"})]]


class TestStrands(Contract):
    rig = Strands()


def agent_of(bench: Bench, *tools: Any, calls: Any = ONE, pause: str = "native", **options: Any) -> Agent:
    plugin = ApprovalPlugin(bench.guard, scope=lambda ctx: FACTS, pause=pause)
    listed = [*tools] or [tool(name=name, description=name)(function) for name, function in bench.sealed.items()]
    return Agent(model=Scripted(calls), tools=listed, plugins=[plugin], callback_handler=None, **options)


def yes(agent: Agent) -> Any:
    return [{"interruptResponse": {"interruptId": one, "response": True}} for one in agent._interrupt_state.interrupts]


def said(agent: Agent) -> str:
    return str([message["content"] for message in agent.messages])


async def test_a_middleware_that_was_added_later_changes_nothing_that_was_approved(bench: Bench) -> None:
    async def late(context: Any, call_next: Any) -> AsyncIterator[Any]:
        context.tool_use["input"]["record"] = 99
        async for event in call_next(context):
            yield event

    agent = agent_of(bench)
    await agent.invoke_async("go")
    bench.approve(bench.only())
    agent.add_middleware(ExecuteToolStage, late)

    await agent.invoke_async(yes(agent))

    assert bench.ran == []
    assert "args-mismatch" in said(agent)


async def test_a_hook_that_changes_the_arguments_changes_what_is_asked_for(bench: Bench) -> None:
    def early(event: BeforeToolCallEvent[Any]) -> None:
        event.tool_use["input"] = {"record": 7}

    agent = agent_of(bench)
    agent.add_hook(early, BeforeToolCallEvent)

    await agent.invoke_async("go")

    assert bench.only().arguments == {"record": 7}


async def test_a_tool_that_was_exchanged_further_inside_is_stopped_by_its_seal(bench: Bench) -> None:
    other = tool(name="other", description="other")(bench.sealed["delete_record"])

    async def late(context: Any, call_next: Any) -> AsyncIterator[Any]:
        async for event in call_next(context.replace(tool=other)):
            yield event

    agent = agent_of(bench)
    agent.add_middleware(ExecuteToolStage, late)

    await agent.invoke_async("go")

    assert bench.ran == []
    assert ("args-mismatch", "unguarded") in bench.refusals()


@pytest.mark.parametrize("store_is_down", [False, True])
async def test_the_run_ends_where_nobody_can_tell(bench: Bench, store_is_down: bool) -> None:
    agent = agent_of(bench)
    if store_is_down:
        bench.fail()
    else:
        agent = Agent(
            model=Scripted(ONE), tools=[tool(name="delete_record", description="d")(bench.sealed["delete_record"])],
            plugins=[ApprovalPlugin(bench.guard)], callback_handler=None,
        )

    with pytest.raises(EventLoopException) as ended:
        await agent.invoke_async("go")

    assert isinstance(ended.value.__cause__, StoreUnavailableError if store_is_down else ConfigurationError)
    assert bench.ran == []


async def test_a_tool_that_fails_is_in_doubt_and_the_model_hears_of_it(bench: Bench) -> None:
    @tool
    def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"tried {record}")
        raise OSError("the disk is full")

    agent = agent_of(bench, delete_record)
    await agent.invoke_async("go")
    request = bench.only()
    bench.approve(request)

    await agent.invoke_async(yes(agent))

    assert (bench.ran, bench.state(request)) == (["tried 42"], "in_doubt")
    assert "the disk is full" in said(agent)


async def test_what_a_tool_streams_comes_while_it_runs(bench: Bench) -> None:
    seen, read = [], asyncio.Event()

    @tool
    async def look(place: str) -> AsyncIterator[Any]:
        """Look somewhere."""
        yield "halfway"
        await read.wait()
        yield f"seen: {place}"

    agent = agent_of(bench, look, calls=LOOK)
    async for event in agent.stream_async("go"):
        if "tool_stream_event" in event:
            seen.append(event["tool_stream_event"]["data"])
            read.set()

    assert seen[0] == "halfway"
    assert "seen: attic" in said(agent)


async def test_a_run_that_ends_early_cancels_its_tool(bench: Bench) -> None:
    cancelled = asyncio.Event()

    @tool
    async def look(place: str) -> AsyncIterator[Any]:
        """Look somewhere."""
        yield "halfway"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    agent = agent_of(bench, look, calls=LOOK)

    async def run() -> None:
        async for event in agent.stream_async("go"):
            if "tool_stream_event" in event:
                task.cancel()

    task = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await cancelled.wait()


async def test_the_form_of_an_answer_needs_no_approval(bench: Bench) -> None:
    class Answer(BaseModel):
        text: str

    policy = Policy.of(PolicyDocument.from_source(ALL.encode(), "all.yaml"))
    guard = Guard(policy=policy, keyring=Keyring.from_file(bench.folder / "keys.json"), store=bench.store)
    plugin = ApprovalPlugin(guard, scope=lambda ctx: FACTS)
    script = Scripted([[("a1", "Answer", {"text": "hello"})]])
    agent = Agent(model=script, plugins=[plugin], callback_handler=None)

    result = await agent.invoke_async("go", structured_output_model=Answer)

    assert result.structured_output == Answer(text="hello")
    assert bench.waiting() == []


def test_an_intervention_that_fails_open_is_refused_at_the_start(bench: Bench) -> None:
    class Careless(InterventionHandler):
        name = "careless"
        on_error = "proceed"

    with pytest.raises(ConfigurationError, match="careless"):
        agent_of(bench, interventions=[Careless()])


async def test_a_self_test_leaves_nothing_in_the_agents_history(bench: Bench) -> None:
    plugin = ApprovalPlugin(bench.guard, scope=lambda ctx: FACTS)
    agent = Agent(model=Scripted(ONE), plugins=[plugin], callback_handler=None)

    await plugin.selftest(agent)

    assert agent.messages == []


async def test_a_call_id_that_comes_again_is_another_call(bench: Bench) -> None:
    agent = agent_of(bench, calls=[*ONE, *ONE])
    for _ in range(2):
        await agent.invoke_async(yes(agent) or "go")
        bench.approve(bench.only())
    await agent.invoke_async(yes(agent))

    assert bench.ran == ["delete 42", "delete 42"]


async def test_the_request_names_the_agent(bench: Bench) -> None:
    agent = agent_of(bench, name="clerk")

    await agent.invoke_async("go")

    assert bench.only().agent == "clerk"


async def test_a_call_in_the_background_waits_until_a_person_has_decided(bench: Bench) -> None:
    agent = agent_of(bench, background_tasks={"always": ["delete_record"]})
    paused = await agent.invoke_async("go")
    request = bench.only()

    again = await agent.invoke_async(answers(paused))
    assert (bench.ran, again.stop_reason) == ([], "interrupt")
    bench.approve(request)
    await agent.invoke_async(answers(again))

    assert (bench.ran, bench.state(request)) == (["delete 42"], "succeeded")


async def test_a_yes_before_the_person_decided_asks_again(bench: Bench) -> None:
    agent = agent_of(bench)
    paused = await agent.invoke_async("go")
    for _ in range(2):
        paused = await agent.invoke_async(answers(paused))
        assert (bench.ran, len(paused.interrupts)) == ([], 1)
    bench.approve(bench.only())

    await agent.invoke_async(answers(paused))

    assert bench.ran == ["delete 42"]


def answers(paused: Any) -> Any:
    return [{"interruptResponse": {"interruptId": one.id, "response": True}} for one in paused.interrupts]


async def test_a_sub_agent_without_the_plugin_is_refused(bench: Bench) -> None:
    child = Agent(
        name="worker", model=Scripted(ONE), callback_handler=None,
        tools=[tool(name="delete_record", description="d")(bench.tools["delete_record"])],
    )
    agent = agent_of(bench, child.as_tool(), calls=[[("d1", "worker", {"input": "delete it"})]])

    with pytest.raises(EventLoopException, match="give it the plugin"):
        await agent.invoke_async("go")

    assert bench.ran == []


async def test_an_app_that_calls_a_tool_itself_has_to_ask_as_well(bench: Bench) -> None:
    agent = agent_of(bench)

    with pytest.raises(RuntimeError, match="interrupt"):
        await asyncio.to_thread(lambda: agent.tool.delete_record(record=42))

    assert (bench.ran, bench.only().arguments) == ([], {"record": 42})


async def test_what_the_policy_never_lets_run_does_not_run(bench: Bench) -> None:
    @tool
    def drop_database() -> str:
        """Drop it."""
        bench.note("dropped")
        return "dropped"

    agent = agent_of(bench, drop_database, calls=[[("c1", "drop_database", {})]])

    await agent.invoke_async("go")

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Never." in said(agent)


async def test_a_tool_that_nobody_has_is_told_as_unknown(bench: Bench) -> None:
    agent = agent_of(bench, calls=[[("c1", "no_such_tool", {})]])

    await agent.invoke_async("go")

    assert bench.waiting() == []
    assert "Unknown tool" in said(agent)
