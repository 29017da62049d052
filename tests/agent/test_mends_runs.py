"""What belongs to one run alone, and what failing parts of it leave behind: functions, edits, hooks, cancellations."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Hooks, Tool
from hitl_guard.agent.drive import Drive
from hitl_guard.errors import AgentError, ConfigurationError, DecisionError, StoreUnavailableError
from hitl_guard.models import Principal
from hitl_guard.testing import ScriptedModel
from tests.agent.faults import ONE, Failing, Script, assert_over, paused, results
from tests.agent.stage import Event, Stage, only, read, types
from tests.support import BOB, document
from tests.threats.gates import LIMIT_S

BOTH = ([("d1", "delete", {"id": "1"}), ("l1", "look", {"id": "1"})],
        [("d2", "delete", {"id": "2"}), ("l2", "look", {"id": "2"})])
RESULT = '{"ok":true}'


def demands(tool: str) -> Callable[[Any], bool]:
    """Return a function policy that asks a person for one tool alone."""
    return lambda info: bool(info.tool_name == tool)


def pair(stage: Stage, *turns: Any) -> Agent:
    return stage.agent(*turns, tools=[stage.tool("delete"), stage.tool("look")])


def gated(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent that makes one call which a person must approve."""
    return stage.agent([ONE], *turns, tools=[stage.tool(require_approval=True)], **options)


def asked(result: Any) -> list[str]:
    """Return the names of the tools for which a person is asked."""
    return [pause["toolName"] for pause in result.pauses]


# -- remembered functions --------------------------------------------------------------------------------------------


async def test_two_tenants_with_one_run_id_each_go_on_under_their_own_function(stage: Stage) -> None:
    agent = Agent("shop", model=Script(*BOTH, "done"), tools=[stage.tool("delete"), stage.tool("look")],
                  guard=stage.guard)
    bobs = {tenant: Principal("bob", tenant=tenant) for tenant in ("a", "b")}
    first, second = [
        await agent.generate(
            "go", user=Principal("ana", tenant=tenant), tenant=tenant, run_id="r", require_tool_approval=demands(tool)
        ) for tenant, tool in (("a", "delete"), ("b", "look"))
    ]

    second_turns = [await agent.approve_tool_call("r", approver=bob) for bob in bobs.values()]
    ends = [await agent.approve_tool_call("r", approver=bob) for bob in bobs.values()]

    assert [asked(first), asked(second)] == [["delete"], ["look"]]
    assert [asked(result) for result in second_turns] == [["delete"], ["look"]]
    assert [result.status for result in ends] == ["success", "success"]
    assert (agent._warm, stage.stored()) == ({}, 0)


@pytest.mark.parametrize("pauses", [False, True], ids=["at-once", "after-its-pause"])
async def test_a_run_with_the_id_of_one_that_failed_goes_on_under_its_own_function(stage: Stage, pauses: bool) -> None:
    failing = [BOTH[0], LookupError("overloaded")] if pauses else [LookupError("overloaded")]
    agent = pair(stage, *failing, *BOTH, "done")
    failed = agent.stream("go", user="ana", run_id="r", require_tool_approval=demands("delete"))
    if pauses:
        await failed
        failed = agent.approve_tool_call("r", approver=BOB)
    with pytest.raises(LookupError):
        await failed
    after_failure = dict(agent._warm)

    first = await agent.generate("go", user="ana", run_id="r", require_tool_approval=demands("look"))
    second = await agent.approve_tool_call("r", approver=BOB)
    end = await agent.decline_tool_call("r", approver=BOB)

    assert (asked(first), asked(second), end.status) == (["look"], ["look"], "success")
    assert (after_failure, agent._warm) == ({}, {})


async def test_a_run_that_never_came_to_be_stored_is_not_remembered(stage: Stage) -> None:
    agent = pair(stage, BOTH[0], BOTH[0], "done")
    store = Failing(stage, "write", at=0, stays=True)
    with pytest.raises(StoreUnavailableError):
        await agent.generate("go", user="ana", require_tool_approval=demands("delete"))
    unstored = dict(agent._warm)
    store.mend()

    async with agent.stream("go", user="ana", require_tool_approval=demands("delete")) as stream:
        async for event in stream:
            if event["type"] == "tool-call":
                break
    left = dict(agent._warm)
    await agent.generate("go", user="ana", require_tool_approval=demands("delete"))

    assert (unstored, left, agent._warm) == ({}, {}, {})


async def test_hooks_of_a_request_are_its_runs_own_and_forgotten_with_it(stage: Stage) -> None:
    seen: list[str] = []

    def noting(tenant: str) -> Hooks:
        return Hooks(before_tool_call=lambda info: seen.append(f"{tenant}-{info['toolName']}"))

    agent = Agent("shop", model=Script(*BOTH, "done"), tools=[
        stage.tool("delete", require_approval=True), stage.tool("look")
    ], guard=stage.guard)
    for tenant in ("a", "b"):
        ana = Principal("ana", tenant=tenant)
        await agent.generate("go", user=ana, tenant=tenant, run_id="r", hooks=noting(tenant))
    seen.clear()

    for _ in range(2):
        await agent.approve_tool_call("r", approver=Principal("bob", tenant="a"))

    assert sorted(seen) == ["a-delete", "a-delete", "a-look"]
    assert len(agent._warm) == 1


# -- what a client is to run -----------------------------------------------------------------------------------------


async def test_a_client_is_told_the_arguments_that_were_approved_and_never_the_ones_before(stage: Stage) -> None:
    there = Stage(stage.store, policy=document())
    agent = there.agent(
        [("c1", "mail", {"id": "proposed"})], memory=True,
        tools=[there.tool("mail", execute=None, require_approval=True)],
    )
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id

    stream = agent.approve_tool_call(run_id, approver=BOB, arguments={"id": "approved"})
    events = await read(stream)

    finish = only(events, "finish")
    result = await stream.result()
    kept = await agent.recall("t", user="ana")
    told = [{"toolCallId": "c1", "toolName": "mail", "args": {"id": "approved"}}]
    assert (finish["output"]["toolCalls"], result.client_calls) == (told, told)
    assert [call["function"]["arguments"] for call in kept[-1]["tool_calls"]] == ['{"id":"approved"}']
    assert "proposed" not in json.dumps([finish, only(events, "step-finish"), kept, result.messages])


# -- cancellations that are nobody's ---------------------------------------------------------------------------------


async def cancels_itself(_: Any) -> None:
    raise asyncio.CancelledError


def cancels_itself_too(_: Any) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("asks", [False, True], ids=["free", "approved"])
@pytest.mark.parametrize("execute", [cancels_itself, cancels_itself_too], ids=["async", "sync"])
async def test_a_tool_that_cancels_itself_is_an_error_and_the_run_goes_on(
    stage: Stage, execute: Any, asks: bool
) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool(execute=execute, require_approval=asks)])
    stream = agent.stream("go", user="ana")
    if asks:
        await stream
        stream = agent.approve_tool_call(stream.run_id, approver=BOB)

    events = await read(stream)

    error = only(events, "tool-error")["error"]
    assert (error["name"], error["message"]) == ("RuntimeError", "The tool cancelled itself.")
    assert error.get("code") == ("in-doubt" if asks else None)
    assert (stream.status, stream.text, stage.stored()) == ("success", "done", 0)


@pytest.mark.parametrize("resumed", [False, True], ids=["started", "resumed"])
async def test_a_model_that_cancels_itself_fails_the_run_with_an_error_event(stage: Stage, resumed: bool) -> None:
    agent = gated(stage, asyncio.CancelledError()) if resumed else stage.agent(asyncio.CancelledError())
    stream = agent.stream("go", user="ana")
    if resumed:
        await stream
        stream = agent.approve_tool_call(stream.run_id, approver=BOB)
    events: list[Event] = []

    async def note() -> None:
        async for event in stream:
            events.append(event)

    with pytest.raises(RuntimeError, match="cancelled itself"):
        await note()

    assert only(events, "error") == {"error": {"message": "The model cancelled itself.", "name": "RuntimeError"}}
    assert (stream.status, stage.stored()) == ("failed", 0)


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_task_that_is_cancelled_from_outside_ends_with_that(stage: Stage, where: str) -> None:
    begun = asyncio.Event()
    asked_: list[Any] = []

    async def waits(*_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async def model(messages: Any, *_: Any) -> Any:
        asked_.append(messages)
        return await (waits() if where == "model" else ScriptedModel([ONE])(messages, [], {}))

    agent = Agent("shop", model=model, tools=[Tool("delete", execute=waits)], guard=stage.guard)
    task = asyncio.create_task(read(agent.stream("go", user="ana")))
    await asyncio.wait_for(begun.wait(), LIMIT_S)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (task.cancelled(), len(asked_)) == (True, 1)


# -- failures that are not the model's -------------------------------------------------------------------------------


async def test_a_failure_of_the_loop_itself_never_deletes_the_stored_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = gated(stage, "done")
    model: Any = agent.model
    run_id = await paused(agent)

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Drive, "land", broken)
        with pytest.raises(ValueError, match="a bug"):
            await agent.approve_tool_call(run_id, approver=BOB)
    kept = stage.stored()
    end = await agent.continue_generate(run_id, user="ana")

    assert (kept, end.status, end.text) == (1, "success", "done")
    assert (stage.ran, results(model.calls[-1])) == ([("delete", {"id": "1"})], [("c1", RESULT)])
    assert_over(stage)


async def test_a_failing_hook_after_the_tool_leaves_its_result_and_is_told_beside_it(stage: Stage) -> None:
    def fails(_: Any) -> None:
        raise LookupError("no such log")

    agent = gated(stage, "done", hooks=Hooks(after_tool_call=fails))
    model: Any = agent.model
    waiting = await agent.generate("go", user="ana")
    approval = (waiting.suspend_payload or {})["approvalId"]

    events = await read(agent.approve_tool_call(waiting.run_id, approver=BOB))

    told = only(events, "tool-result")
    assert (told["result"], told["hookError"]) == ({"ok": True}, {"message": "no such log", "name": "LookupError"})
    assert (results(model.calls[-1]), stage.guard.get(approval).state) == ([("c1", RESULT)], "succeeded")


async def test_a_failing_hook_before_the_tool_keeps_it_from_running_and_the_approval_has_failed(stage: Stage) -> None:
    def fails(_: Any) -> None:
        raise LookupError("no such log")

    agent = gated(stage, "done", hooks=Hooks(before_tool_call=fails))
    waiting = await agent.generate("go", user="ana")
    approval = (waiting.suspend_payload or {})["approvalId"]

    events = await read(agent.approve_tool_call(waiting.run_id, approver=BOB))

    assert only(events, "tool-error")["error"] == {"message": "no such log", "name": "LookupError"}
    assert (stage.ran, stage.guard.get(approval).state, types(events)[-1]) == ([], "failed", "finish")


# -- who answers, and what he was shown ------------------------------------------------------------------------------


async def test_an_approver_never_answers_what_another_user_was_asked(stage: Stage) -> None:
    agent = stage.agent([("c1", "weather", {})], tools=[stage.asking(resume_schema=None)], memory=True)
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    codes = []

    for work in (
        agent.send_tool_approval(thread_id="t", user="ana", approved=True, approver=BOB),
        agent.send_tool_approval(thread_id="t", user="ana", approved=True, approver=BOB, tool_call_id="c1"),
        agent.approve_tool_call(run_id, approver=BOB), agent.decline_tool_call(run_id, "c1", approver=BOB),
    ):
        with pytest.raises(AgentError) as refused:
            await work
        codes.append(refused.value.code)

    (waiting,) = (await agent.list_suspended_runs(user="ana")).runs
    assert (codes, stage.ran) == (["run-not-found"] * 4, [("weather", None)])
    assert [call.tool_call_id for call in waiting.tool_calls] == ["c1"]


@pytest.mark.parametrize("approve", [True, False], ids=["approve", "decline"])
async def test_an_empty_fingerprint_is_one_that_does_not_fit(stage: Stage, approve: bool) -> None:
    agent = gated(stage, "done")
    run_id = await paused(agent)

    with pytest.raises(DecisionError) as refused:
        await (agent.approve_tool_call if approve else agent.decline_tool_call)(run_id, approver=BOB, fingerprint="")

    assert (refused.value.code, stage.ran) == ("args-mismatch", [])
    assert [request.state for request in stage.guard.pending()] == ["pending"]


# -- the synchronous twin --------------------------------------------------------------------------------------------


def test_the_twin_uses_one_event_loop_for_every_call(stage: Stage) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def model(*_: Any) -> dict[str, Any]:
        loops.append(asyncio.get_running_loop())
        return {"content": "done"}

    agents = [Agent(name, model=model, guard=stage.guard) for name in ("shop", "shop", "clerk")]

    texts = [agent.sync.generate("go", user="ana").text for agent in agents]

    assert (texts, len({id(loop) for loop in loops})) == (["done"] * 3, 1)
    assert not loops[0].is_closed()


def test_a_closed_synchronous_stream_has_nothing_more_and_only_its_own_attributes(stage: Stage) -> None:
    agent = stage.agent("done")
    model: Any = agent.model
    unread, begun = agent.sync.stream("go", user="ana"), agent.sync.stream("go", user="ana")

    unread.close()
    first = next(iter(begun))
    begun.close()

    assert (list(unread), unread.status, model.calls) == ([], "closed", [])
    assert (first["type"], list(begun), begun.status, begun.pauses) == ("start", [], "closed", [])
    for name in ("aclose", "_source", "take_over", "anything"):
        with pytest.raises(AttributeError, match=name):
            getattr(begun, name)


async def test_the_twin_inside_a_running_loop_is_refused_without_a_warning(stage: Stage) -> None:
    agent = stage.agent("done")
    model: Any = agent.model

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(ConfigurationError, match="event loop"):
            agent.sync.generate("go", user="ana")
        with pytest.raises(ConfigurationError, match="event loop"):
            agent.sync.stream("go", user="ana").close()
        gc.collect()

    assert [one for one in told if issubclass(one.category, RuntimeWarning)] == []
    assert model.calls == []


def test_a_tool_may_use_the_twin_of_another_agent(stage: Stage) -> None:
    helper = stage.agent("from the helper", id="helper")
    tool = stage.tool(execute=lambda _: helper.sync.generate("help", user="ana").text)
    agent = stage.agent([ONE], "done", tools=[tool])
    found: list[Any] = []

    thread = threading.Thread(target=lambda: found.append(agent.sync.generate("go", user="ana")), daemon=True)
    thread.start()
    thread.join(LIMIT_S)

    assert not thread.is_alive()
    assert (found[0].text, found[0].tool_results[0]["payload"]["result"]) == ("done", "from the helper")
