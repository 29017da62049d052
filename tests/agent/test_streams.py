"""What a caller holds: streams that are read, awaited, closed or left, and the agent's synchronous twin."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, AgentResult, Tool
from hitl_guard.agent.sync import SyncAgent
from hitl_guard.errors import AgentError, ConfigurationError

from .stage import BOB, Stage, read, types

DELETE = [("call-1", "delete", {"id": "7"})]
ASK: list[tuple[str, str, Any]] = [("call-1", "weather", {})]
ROME = {"location": "Rome"}


def gated(stage: Stage, *turns: Any, **options: Any) -> Agent:
    return stage.agent(*turns, tools=[stage.tool(require_approval=True)], **options)


def calls_of(agent: Agent) -> int:
    """Return how often the model was called."""
    model: Any = agent.model
    return len(model.calls)


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_nothing_happens_before_a_stream_is_read(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    stream = agent.stream("go", user="ana")

    before = (calls_of(agent), stage.stored(), stream.status)
    await read(stream)
    decision = agent.approve_tool_call(stream.run_id, approver=BOB)
    undecided = stage.guard.get((stream.suspend_payload or {})["approvalId"]).state
    await decision

    assert (before, undecided, stage.stored()) == ((0, 0, "running"), "pending", 0)


@pytest.mark.parametrize("leave", ["stream", "decision", "network"])
async def test_a_stream_that_was_never_read_warns_that_nothing_has_happened(stage: Stage, leave: str) -> None:
    agent = gated(stage)
    made: dict[str, Callable[[], Any]] = {
        "stream": lambda: agent.stream("go", user="ana"), "network": lambda: agent.network("go", user="ana"),
        "decision": lambda: agent.approve_tool_call("run", approver=BOB),
    }

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made[leave]()
        gc.collect()

    assert [(one.category, "never read" in str(one.message)) for one in told] == [(RuntimeWarning, True)]


async def test_a_stream_that_was_read_awaited_or_closed_warns_of_nothing(stage: Stage) -> None:
    agent = stage.agent("one", "two", "three")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await read(agent.stream("go", user="ana"))
        await agent.stream("go", user="ana")
        await anext(agent.stream("go", user="ana"))
        await agent.stream("go", user="ana").aclose()
        gc.collect()

    assert calls_of(agent) == 2


async def test_a_stream_that_could_not_be_made_warns_of_nothing(stage: Stage) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigurationError):
            stage.agent().stream("go", user="ana", thread_id="t")
        gc.collect()


async def test_reading_goes_on_where_it_stopped_and_a_second_reading_has_nothing_more(stage: Stage) -> None:
    stream = stage.agent("done").stream("go", user="ana")

    first = await anext(stream)
    rest = [event async for event in stream]

    assert types([first, *rest]) == [
        "start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"
    ]
    assert await read(stream) == []
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_paused_stream_holds_what_has_ended_beside_the_pause(stage: Stage) -> None:
    calls = [("call-1", "delete", {"id": "7"}), ("call-1", "look", {"id": "8"}), ("call-2", "locate", {})]
    agent = stage.agent(
        calls, tools=[stage.tool(require_approval=True), stage.tool("look"), Tool("locate")]
    )
    stream = agent.stream("go", user="ana")

    events = await read(stream)

    (ended,) = stream.withheld
    assert (ended["type"], ended["payload"]["toolCallId"], ended["payload"]["occurrence"]) == (
        "tool-result", "call-1", 1
    )
    assert ended["payload"]["toolName"] == "look"
    assert "tool-result" not in types(events)
    proposed = [event["payload"] for event in events if event["type"] == "tool-call"]
    assert [(one.get("occurrence"), one.get("clientSide")) for one in proposed] == [
        (None, None), (1, None), (None, True)
    ]


async def test_awaiting_a_stream_gives_its_result_however_much_of_it_was_read(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    stream = agent.stream("go", user="ana")
    await anext(stream)

    paused = await stream
    again = await stream.result()

    assert isinstance(paused, AgentResult)
    assert paused == again
    assert repr(stream) == f"<AgentStream run_id={stream.run_id!r} status='suspended'>"
    assert (paused.run_id, paused.status, paused.suspend_payload) == (
        stream.run_id, "suspended", stream.suspend_payload
    )
    assert [event["payload"]["toolCallId"] for event in paused.tool_calls] == ["call-1"]


async def test_a_result_counts_steps_usage_messages_and_text(stage: Stage) -> None:
    turns: list[dict[str, Any]] = [
        {"content": text, "usage": {"total_tokens": 3}} for text in ("Deleting. ", "Done.")
    ]
    turns[0]["tool_calls"] = [
        {"id": "call-1", "type": "function", "function": {"name": "delete", "arguments": '{"id": "7"}'}}
    ]
    agent = stage.agent(*turns, tools=[stage.tool()])

    result = await agent.generate("go", user="ana")

    assert (result.steps, result.usage, result.text) == (2, {"total_tokens": 6}, "Deleting. Done.")
    assert [message["role"] for message in result.messages] == ["assistant", "tool", "assistant"]
    assert result.messages[1]["state"] == "result"
    assert [event["payload"]["result"] for event in result.tool_results] == [{"ok": True}]


async def test_a_resumed_result_has_the_text_and_the_calls_of_its_run_so_far(stage: Stage) -> None:
    first = {"content": "Deleting. ", "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "delete", "arguments": '{"id": "7"}'}}
    ]}
    agent = gated(stage, first, "Done.")
    run_id = (await agent.generate("go", user="ana")).run_id

    result = await agent.approve_tool_call_generate(run_id, approver=BOB)

    assert (result.text, result.steps) == ("Deleting. Done.", 2)
    assert [event["payload"]["toolCallId"] for event in result.tool_calls] == ["call-1"]


async def test_what_a_model_raises_is_told_as_an_event_and_raised(stage: Stage) -> None:
    stream = stage.agent(LookupError("overloaded")).stream("go", user="ana")
    told = []

    with pytest.raises(LookupError, match="overloaded"):  # noqa: PT012  what was told before it is the point
        async for event in stream:
            told.append(event)

    assert types(told) == ["start", "step-start", "error"]
    assert told[-1]["payload"] == {"error": {"message": "overloaded", "name": "LookupError"}}
    assert (stream.status, stream.finish_reason, stage.stored()) == ("failed", "error", 0)


# -- closing ---------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_closed_unread_does_nothing_and_one_closed_twice_neither(stage: Stage) -> None:
    agent = stage.agent("done")
    stream = agent.stream("go", user="ana")

    await stream.aclose()
    await stream.aclose()

    assert calls_of(agent) == 0


async def test_a_stream_that_is_closed_at_its_pause_leaves_the_pause_in_the_store(stage: Stage) -> None:
    agent = gated(stage, DELETE, "done")
    stream = agent.stream("go", user="ana")
    async for event in stream:
        if event["type"] == "tool-call-approval":
            break

    await stream.aclose()
    result = await agent.approve_tool_call(stream.run_id, approver=BOB)

    assert (result.status, stage.ran) == ("success", [("delete", {"id": "7"})])


async def test_a_stream_that_is_closed_after_a_tool_ran_goes_on_elsewhere_without_running_it_again(
    stage: Stage
) -> None:
    agent = gated(stage, DELETE, "done")
    run_id = (await agent.generate("go", user="ana")).run_id
    stream = agent.approve_tool_call(run_id, approver=BOB)
    async for event in stream:
        if event["type"] == "tool-result":
            break

    await stream.aclose()
    result = await agent.continue_generate(run_id, user="ana")

    assert (result.status, result.text, stage.ran) == ("success", "done", [("delete", {"id": "7"})])


async def test_closing_a_stream_closes_the_models_own(stage: Stage) -> None:
    closed: list[str] = []

    async def endless(*_: Any) -> Any:
        try:
            while True:
                yield {"content": "more "}
        finally:
            closed.append("model")

    agent = Agent("shop", model=endless, guard=stage.guard)
    stream = agent.stream("go", user="ana")
    async for event in stream:
        if event["type"] == "text-delta":
            break

    await stream.aclose()

    assert closed == ["model"]


async def test_a_cancelled_reader_leaves_a_run_that_another_goes_on_with(stage: Stage) -> None:
    started = asyncio.Event()

    async def hanging(_: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    agent = gated(stage, DELETE, "done")
    run_id = (await agent.generate("go", user="ana")).run_id
    scripted, agent.model = agent.model, lambda messages, *_: hanging(messages)
    reader = asyncio.ensure_future(agent.approve_tool_call_generate(run_id, approver=BOB))
    await started.wait()

    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    agent.model = scripted
    result = await agent.continue_generate(run_id, user="ana")

    assert (result.status, stage.ran) == ("success", [("delete", {"id": "7"})])


# -- the synchronous twin --------------------------------------------------------------------------------------------


METHODS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "stream": (("go",), {"user": "ana"}), "generate": (("go",), {"user": "ana"}),
    "network": (("go",), {"user": "ana"}),
    "approve_tool_call": (("run",), {"approver": BOB}), "decline_tool_call": (("run",), {"approver": BOB}),
    "approve_tool_call_generate": (("run",), {"approver": BOB}),
    "decline_tool_call_generate": (("run",), {"approver": BOB}),
    "approve_network_tool_call": (("run",), {"approver": BOB}),
    "decline_network_tool_call": (("run",), {"approver": BOB}),
    "resume_stream": ((ROME, "run"), {"user": "ana"}), "resume_generate": ((ROME, "run"), {"user": "ana"}),
    "continue_stream": (("run",), {"user": "ana"}), "continue_generate": (("run",), {"user": "ana"}),
    "list_suspended_runs": ((), {"user": "ana"}), "recall": (("t",), {"user": "ana"}),
    "send_tool_approval": ((), {"thread_id": "t", "user": "ana", "approved": True, "approver": BOB}),
}


def test_the_twin_has_every_method_that_a_host_awaits() -> None:
    hosts = {
        name for name, value in inspect.getmembers(Agent, inspect.isfunction)
        if not name.startswith("_") and (
            inspect.iscoroutinefunction(value) or "AgentStream" in str(inspect.signature(value).return_annotation)
        )
    }

    twins = {name for name, _ in inspect.getmembers(SyncAgent, inspect.isfunction) if not name.startswith("_")}

    assert twins == hosts == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
async def test_the_twin_refuses_to_run_inside_an_event_loop(stage: Stage, method: str) -> None:
    twin = stage.agent("done", memory=True).sync
    given, options = METHODS[method]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigurationError, match="event loop"):
            list(getattr(twin, method)(*given, **options))
        with pytest.raises(ConfigurationError, match="event loop"):
            getattr(twin, method)(*given, **options).result()
        gc.collect()

    assert repr(twin) == "<SyncAgent 'shop'>"


def test_the_twin_streams_decides_and_finds(stage: Stage) -> None:
    agent = gated(stage, DELETE, DELETE, "done", memory=True).sync
    stream = agent.stream("go", user="ana", thread_id="t")
    paused = types(list(stream))

    declined = list(agent.decline_tool_call(stream.run_id, approver=BOB, reason="no"))
    (run,) = agent.list_suspended_runs(user="ana").runs
    assert list(agent.continue_stream(run.run_id, user="ana")) == []
    approved = agent.approve_tool_call(run.run_id, approver=BOB).result()

    assert paused == ["start", "step-start", "tool-call", "tool-call-approval"]
    assert (stream.status, run.run_id) == ("suspended", stream.run_id)
    assert types(declined)[:2] == ["tool-call-resumed", "tool-output-denied"]
    assert (approved.status, stage.ran) == ("success", [("delete", {"id": "7"})])
    assert [message["role"] for message in agent.recall("t", user="ana")][-1] == "assistant"


def test_the_twin_generates_resumes_and_continues(stage: Stage) -> None:
    agent = stage.agent(ASK, ASK, ASK, DELETE, DELETE, "done", memory=True, tools=[
        stage.asking(), stage.tool(require_approval=True)
    ]).sync
    run_id = agent.generate("go", user="ana", thread_id="t").run_id

    first = types(list(agent.resume_stream(ROME, run_id, user="ana")))
    second = agent.resume_generate(ROME, run_id, user="ana")
    third = agent.resume_generate(ROME, run_id, user="ana")
    fourth = agent.decline_tool_call_generate(run_id, approver=BOB)
    sent = agent.send_tool_approval(thread_id="t", user="ana", approved=True, approver=BOB)

    assert (first[0], first[-1]) == ("tool-call-resumed", "tool-call-suspended")
    assert [one.status for one in (second, third, fourth)] == ["suspended"] * 3
    assert (sent["result"].status, stage.ran[-1]) == ("success", ("delete", {"id": "7"}))
    with pytest.raises(AgentError):
        agent.continue_generate(run_id, user="ana")


def test_the_twin_approves_and_plays_networks(stage: Stage) -> None:
    agent = gated(stage, DELETE, DELETE, DELETE, "done").sync
    stream = agent.network("go", user="ana")
    assert types(list(stream))[-1] == "tool-execution-approval"

    again = types(list(agent.approve_network_tool_call(stream.run_id, approver=BOB)))
    declined = agent.decline_network_tool_call(stream.run_id, approver=BOB).result()
    last = agent.approve_tool_call_generate(stream.run_id, approver=BOB)

    assert again[1] == "tool-execution-end"
    assert (declined.status, last.status, len(stage.ran)) == ("suspended", "success", 2)


def test_a_synchronous_reader_that_stops_early_closes_the_stream_and_loses_nothing(stage: Stage) -> None:
    agent = gated(stage, [("A", "delete", {"id": "1"}), ("B", "delete", {"id": "2"})], "done").sync
    stream = agent.stream("go", user="ana")

    for event in stream:
        if event["type"] == "tool-call-approval":
            break
    del event
    (run,) = agent.list_suspended_runs(user="ana").runs
    results = [agent.approve_tool_call(run.run_id, approver=BOB).result().status for _ in range(2)]

    assert list(stream) == []
    assert (results, len(stage.ran)) == (["suspended", "success"], 2)
