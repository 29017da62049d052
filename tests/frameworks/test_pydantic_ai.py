"""Pydantic AI's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    ToolApproved,
    ToolReturn,
    exceptions,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import FunctionToolResultEvent, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import Tool

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.pydantic_ai import ApprovalCapability
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.contract import Contract
from tests.frameworks.rig_pydantic_ai import PydanticAI, _model


class TestPydanticAI(Contract):
    rig = PydanticAI()


class Item(BaseModel):
    number: int
    price: int = Field(default=5, exclude=True)


def agent_of(bench: Bench, *tools: Any, calls: Any = ONE, **options: Any) -> Agent[Any, Any]:
    capability = ApprovalCapability(bench.guard, **({"scope": lambda ctx: {"user": "ana"}} | options))
    listed = [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]
    return Agent(
        _model(calls) if isinstance(calls, list) else calls, tools=listed, capabilities=[capability],
        output_type=[str, DeferredToolRequests],
    )


async def resumed(agent: Agent[Any, Any], paused: Any, yes: Any = True) -> Any:
    waits = {call.tool_call_id: yes for call in paused.output.approvals}
    return await agent.run(
        message_history=paused.all_messages(), deferred_tool_results=DeferredToolResults(approvals=waits)
    )


def told(result: Any) -> str:
    parts = [part for message in result.all_messages() for part in message.parts]
    return "\n".join(str(part.content) for part in parts if isinstance(part, ToolReturnPart))


async def test_the_pause_tells_where_to_decide(bench: Bench) -> None:
    paused = await agent_of(bench, bench.sealed["delete_record"]).run("go")

    (facts,) = [one["hitl_guard"] for one in paused.output.metadata.values()]
    assert (facts["request_id"], facts["tenant"]) == (bench.only().id, "default")


async def test_arguments_that_the_app_overrides_at_the_resume_do_not_run(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    paused = await agent.run("go")
    bench.approve(bench.only())

    result = await resumed(agent, paused, ToolApproved(override_args={"record": 99}))

    assert bench.ran == []
    assert "args-mismatch" in told(result)


async def test_a_history_that_claims_an_approval_that_nobody_asked_for_runs_nothing(bench: Bench) -> None:
    history = [ModelResponse([ToolCallPart("delete_record", {"record": 7}, "zz")])]
    agent = agent_of(bench, bench.sealed["delete_record"])

    result = await agent.run(
        message_history=history, deferred_tool_results=DeferredToolResults(approvals={"zz": True})
    )

    assert (bench.ran, isinstance(result.output, DeferredToolRequests)) == ([], True)


async def test_a_repeated_call_id_is_asked_for_again(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], calls=[ONE[0], ONE[0]])
    paused = await agent.run("go")
    first = bench.only()
    bench.approve(first)

    again = await resumed(agent, paused)

    assert (bench.ran, isinstance(again.output, DeferredToolRequests)) == (["delete 42"], True)
    assert (bench.only().call_id, bench.only().occurrence) == (first.call_id, 1)
    bench.approve(bench.only())
    await resumed(agent, again)
    assert bench.ran == ["delete 42", "delete 42"]


async def test_two_resumes_at_once_run_the_call_once(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    paused = await agent.run("go")
    bench.approve(bench.only())

    await asyncio.gather(*(resumed(agent, paused) for _ in range(4)), return_exceptions=True)

    assert bench.ran == ["delete 42"]


@pytest.mark.parametrize(
    ("hint", "value"), [(SecretStr, "abc"), (list[Item], [{"number": 1, "price": 9}])], ids=["secret", "hidden"]
)
async def test_what_an_approver_could_not_see_does_not_run(bench: Bench, hint: Any, value: Any) -> None:
    async def delete_record(record: Any) -> str:
        bench.note("ran")
        return "ran"

    delete_record.__annotations__["record"] = hint
    agent = agent_of(bench, delete_record, calls=[[("c1", "delete_record", {"record": value})]])

    result = await agent.run("go")

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Refused" in told(result)


async def test_a_sealed_tool_gets_its_context_and_models_made_of_the_signed_arguments(bench: Bench) -> None:
    class Record(BaseModel):
        number: int

    async def delete_record(ctx: RunContext[str], record: Record) -> str:
        bench.note(f"{ctx.deps} {record.number}")
        return "ran"

    delete_record.__annotations__ = {"ctx": RunContext[str], "record": Record, "return": str}
    tool = Tool(bench.guard.sealed(delete_record))
    agent = agent_of(bench, tool, calls=[[("c1", "delete_record", {"number": "42"})]])
    paused = await agent.run("go", deps="dep")
    assert bench.only().arguments == {"number": 42}
    bench.approve(bench.only(), arguments={"number": 43})

    waits = {call.tool_call_id: True for call in paused.output.approvals}
    await agent.run(
        message_history=paused.all_messages(), deferred_tool_results=DeferredToolResults(approvals=waits), deps="dep"
    )

    assert bench.ran == ["dep 43"]


@pytest.mark.parametrize("error", [RuntimeError, ModelRetry], ids=["fails", "asks for a retry"])
async def test_a_tool_that_raises_after_its_claim_is_in_doubt(bench: Bench, error: type[Exception]) -> None:
    async def delete_record(record: int) -> str:
        raise error("gone")

    agent = agent_of(bench, delete_record)
    paused = await agent.run("go")
    request = bench.only()
    bench.approve(request)

    with contextlib.suppress(RuntimeError):
        await resumed(agent, paused)

    assert bench.state(request) == "in_doubt"


async def test_a_tool_that_runs_out_of_time_after_its_claim_is_in_doubt(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        bench.note("started")
        await asyncio.Event().wait()
        return "never"

    agent = agent_of(bench, Tool(delete_record, timeout=0.01))
    paused = await agent.run("go")
    request = bench.only()
    bench.approve(request)

    await resumed(agent, paused)

    assert (bench.ran, bench.state(request)) == (["started"], "in_doubt")


async def test_arguments_that_a_person_changed_pass_the_tools_own_check_or_do_not_run(bench: Bench) -> None:
    def below_fifty(ctx: RunContext[Any], record: int) -> None:
        if record >= 50:
            raise ModelRetry("Too high.")

    for edit, ran in ((99, []), (43, ["delete 43"])):
        agent = agent_of(bench, Tool(bench.tools["delete_record"], name="delete_record", args_validator=below_fifty))
        paused = await agent.run("go")
        bench.approve(bench.only(), arguments={"record": edit})

        result = await resumed(agent, paused)

        assert (bench.ran, "does not take the arguments" in told(result)) == (ran, not ran)


async def test_a_check_of_the_tools_own_may_be_asynchronous(bench: Bench) -> None:
    async def below_fifty(ctx: RunContext[Any], record: int) -> None:
        if record >= 50:
            raise ModelRetry("Too high.")

    agent = agent_of(bench, Tool(bench.tools["delete_record"], name="delete_record", args_validator=below_fifty))
    paused = await agent.run("go")
    bench.approve(bench.only(), arguments={"record": 99})

    await resumed(agent, paused)

    events = [event.type for event in bench.store.chain_events(bench.store.chains()[0], limit=100)]
    assert (bench.ran, events[-1]) == ([], "call:failed")


async def test_the_notice_of_an_edit_stands_in_what_a_rich_result_tells_the_model(bench: Bench) -> None:
    async def delete_record(record: int) -> ToolReturn[Any]:
        return ToolReturn(return_value=f"deleted {record}", metadata={"kept": True})

    agent = agent_of(bench, delete_record)
    paused = await agent.run("go")
    bench.approve(bench.only(), arguments={"record": 43})

    result = await resumed(agent, paused)

    (part,) = [
        part for message in result.all_messages() for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    assert part.metadata == {"kept": True}
    assert str(part.content).startswith("A person changed")
    assert str(part.content).endswith("\ndeleted 43")


async def test_strict_types_that_come_from_json_text_are_signed_and_run(bench: Bench) -> None:
    class Labels(BaseModel):
        model_config = ConfigDict(strict=True)
        names: tuple[str, ...]

    async def delete_record(record: list[Any]) -> str:
        bench.note(repr(record[0].names))
        return "ran"

    delete_record.__annotations__["record"] = list[Labels]

    def script(messages: list[Any], info: Any) -> ModelResponse:
        asked = any(isinstance(message, ModelResponse) for message in messages)
        text = '{"record": [{"names": ["a"]}]}'
        return ModelResponse([TextPart("done") if asked else ToolCallPart("delete_record", text, "c1")])

    agent = agent_of(bench, delete_record, calls=FunctionModel(script))
    paused = await agent.run("go")
    assert bench.only().arguments == {"record": [{"names": ["a"]}]}
    bench.approve(bench.only())

    await resumed(agent, paused)

    assert bench.ran == ["('a',)"]


async def test_a_tool_that_the_policy_denies_never_asks(bench: Bench) -> None:
    def drop_database() -> str:
        bench.note("dropped")
        return "dropped"

    result = await agent_of(bench, drop_database, calls=[[("c1", "drop_database", {})]]).run("go")

    assert (bench.ran, bench.waiting(), told(result)) == ([], [], "Never.")


async def test_an_agent_that_nobody_named_runs_nothing(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"], scope=None)
    with pytest.raises(ConfigurationError, match="user"):
        await agent.run("go")
    with bench.guard.context(user="ana", run_id="r"):
        await agent.run("go")

    assert (bench.ran, bench.only().user, bench.only().run_id) == ([], "ana", "r")


class PassesOver(AbstractCapability[Any]):
    """Takes a pause for a result."""

    async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
        try:
            return await handler(args)
        except exceptions.ApprovalRequired:
            return "passed over"


async def test_a_capability_further_out_that_passes_a_pause_over_runs_nothing(bench: Bench) -> None:
    guard = ApprovalCapability(bench.guard, scope=lambda ctx: {"user": "ana"})
    agent = Agent(
        _model(ONE), tools=[Tool(bench.sealed["delete_record"], name="delete_record")],
        capabilities=[PassesOver(), guard], output_type=[str, DeferredToolRequests],
    )

    result = await agent.run("go")

    assert (bench.ran, bench.only().state) == ([], "pending")
    assert "passed over" in told(result)


async def test_who_watches_a_run_sees_a_refusal_as_a_failed_call(bench: Bench) -> None:
    agent = agent_of(bench, bench.sealed["delete_record"])
    paused = await agent.run("go")
    bench.deny(bench.only(), "No.")
    outcomes: list[str] = []

    async def watch(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        async for event in events:
            if isinstance(event, FunctionToolResultEvent) and isinstance(event.part, ToolReturnPart):
                outcomes.append(event.part.outcome)

    await agent.run(
        message_history=paused.all_messages(), event_stream_handler=watch,
        deferred_tool_results=DeferredToolResults(approvals={"c1": True}),
    )

    assert outcomes == ["failed"]


async def test_text_alone_asks_for_nothing(bench: Bench) -> None:
    model = FunctionModel(lambda messages, info: ModelResponse([TextPart("hello")]))

    result = await agent_of(bench, bench.sealed["delete_record"], calls=model).run("go")

    assert (result.output, bench.waiting()) == ("hello", [])
