"""Pydantic AI's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel, Field, SecretStr
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext, ToolApproved
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import Tool

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.pydantic_ai import ApprovalCapability
from tests.frameworks.bench import ONE, Bench, Setup
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


async def test_a_capability_further_out_sees_the_pause_and_cannot_pass_it_over(bench: Bench) -> None:
    outcome = await PydanticAI().run(Setup(bench=bench, late=True))

    assert (outcome.state is None, bench.ran) == (False, [])


async def test_text_alone_asks_for_nothing(bench: Bench) -> None:
    model = FunctionModel(lambda messages, info: ModelResponse([TextPart("hello")]))

    result = await agent_of(bench, bench.sealed["delete_record"], calls=model).run("go")

    assert (result.output, bench.waiting()) == ("hello", [])
