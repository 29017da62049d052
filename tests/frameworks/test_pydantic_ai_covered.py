"""What Pydantic AI would run around the guard: output functions, others' tools, the provider's, its own approvals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, DeferredToolRequests, NativeOutput, TextOutput, ToolOutput, UserError
from pydantic_ai.capabilities import AbstractCapability, NativeTool
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    FunctionToolset,
    PrefixedToolset,
)

from hitl_guard.errors import ApprovalRequired, ConfigurationError
from hitl_guard.integrations.pydantic_ai import ApprovalCapability
from tests.frameworks.bench import BOB, ONE, PAYING, Bench, Turn
from tests.frameworks.rig_pydantic_ai import _model
from tests.frameworks.test_pydantic_ai import resumed, told

LOOK: list[Turn] = [[("c1", "look", {"place": "attic"})]]


def capability(bench: Bench, **options: Any) -> ApprovalCapability:
    return ApprovalCapability(bench.guard, **({"scope": lambda ctx: {"user": "ana"}} | options))


def agent_of(guard: ApprovalCapability, calls: Any = ONE, **options: Any) -> Agent[Any, Any]:
    model = _model(calls) if isinstance(calls, list) else calls
    return Agent(model, **({"output_type": [str, DeferredToolRequests], "capabilities": [guard]} | options))


OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "a function": lambda function: function,
    "a tool": lambda function: ToolOutput(function, name="final"),
}


@pytest.mark.parametrize("kind", OUTPUTS)
async def test_an_output_function_does_not_run_around_the_guard(bench: Bench, kind: str) -> None:
    output = [str, DeferredToolRequests, OUTPUTS[kind](bench.tools["delete_record"])]
    guard = capability(bench)
    named = TestModel(custom_output_args={"record": 42})
    agent = agent_of(guard, named, output_type=output[2:])

    with pytest.raises(ConfigurationError, match=r"delete_record.*uncovered"):
        await guard.selftest(agent)
    with pytest.raises(ConfigurationError, match=r"delete_record.*uncovered"):
        await agent.run("go")
    with pytest.raises(ConfigurationError, match="delete_record"):
        async with agent.run_stream("go") as stream:
            await stream.get_output()
    assert bench.ran == []


@pytest.mark.parametrize("name", ["delete_record", "final"])
async def test_an_output_function_runs_where_the_app_says_so(bench: Bench, name: str) -> None:
    output = ToolOutput(bench.tools["delete_record"], name="final")
    guard = capability(bench, uncovered=[name])
    agent = agent_of(guard, TestModel(custom_output_args={"record": 42}), output_type=output)

    await guard.selftest(agent)
    await agent.run("go")

    assert bench.ran == ["delete 42"]


async def test_a_text_is_handed_to_no_function_unasked(bench: Bench) -> None:
    guard = capability(bench)
    agent = agent_of(guard, [], output_type=TextOutput(bench.tools["look"]))

    with pytest.raises(ConfigurationError, match="look"):
        await guard.selftest(agent)
    with pytest.raises(ConfigurationError, match="look"):
        await agent.run("go")
    assert bench.ran == []


async def test_an_answers_plain_form_needs_nobody(bench: Bench) -> None:
    guard = capability(bench)
    agent = agent_of(guard, TestModel(), output_type=NativeOutput([int, list[str]]))

    await guard.selftest(agent)


class Adds(AbstractCapability[Any]):
    """Adds tools of its own around the agent's, or changes their names."""

    def __init__(self, wrap: Callable[[AbstractToolset[Any]], AbstractToolset[Any]]) -> None:
        self.wrap = wrap

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return self.wrap(toolset)


@pytest.mark.parametrize("first", [True, False])
async def test_a_tool_that_another_capability_adds_does_not_run(bench: Bench, first: bool) -> None:
    extra = FunctionToolset([Tool(bench.tools["delete_record"], name="delete_record")])
    adds, guard = Adds(lambda toolset: CombinedToolset([toolset, extra])), capability(bench)
    agent = agent_of(guard, capabilities=[adds, guard] if first else [guard, adds])

    with pytest.raises(ConfigurationError, match="delete_record"):
        await agent.run("go")
    assert bench.ran == []


async def test_a_tool_that_another_capability_puts_in_the_place_of_ours_does_not_run(bench: Bench) -> None:
    extra = FunctionToolset([Tool(bench.tools["look"], name="look")])
    adds, guard = Adds(lambda toolset: extra), capability(bench)
    agent = agent_of(guard, LOOK, capabilities=[adds, guard], tools=[Tool(bench.sealed["look"], name="look")])

    with pytest.raises(ConfigurationError, match="look"):
        await agent.run("go")
    assert bench.ran == []


async def test_a_tool_under_another_name_than_the_policy_knows_does_not_run(bench: Bench) -> None:
    adds, guard = Adds(lambda toolset: PrefixedToolset(toolset, prefix="x")), capability(bench)
    calls: list[Turn] = [[("c1", "x_delete_record", {"record": 42})]]
    agent = agent_of(guard, calls, capabilities=[adds, guard], tools=[bench.tools["delete_record"]])

    with pytest.raises(ConfigurationError, match="x_delete_record"):
        await agent.run("go")
    assert bench.ran == []


async def test_tools_that_come_at_run_time_are_asked_for(bench: Bench) -> None:
    extra = FunctionToolset([Tool(bench.sealed["delete_record"], name="delete_record")])

    class Gives(AbstractCapability[Any]):
        def get_toolset(self) -> Any:
            return extra

    agent = agent_of(capability(bench))
    await agent.run("go", toolsets=[extra])
    await agent.run("go", capabilities=[Gives()])
    with agent.override(toolsets=[extra]):
        await agent.run("go")

    assert (bench.ran, len(bench.waiting())) == ([], 3)


async def test_what_the_provider_runs_is_refused_unless_the_app_names_it(bench: Bench) -> None:
    search = NativeTool(WebSearchTool())
    guard, lax = capability(bench), capability(bench, uncovered=["web_search"])
    refused = agent_of(guard, TestModel(), capabilities=[guard, search], output_type=str)
    named = agent_of(lax, TestModel(), capabilities=[lax, search], output_type=str)

    with pytest.raises(ConfigurationError, match="web_search"):
        await refused.run("go")
    with pytest.raises(UserError, match="built-in tools"):  # the scripted model has no web search: it was asked, though
        await named.run("go")


@pytest.mark.parametrize("uncovered", ["look", [1]], ids=str)
def test_what_is_uncovered_is_a_list_of_names(bench: Bench, uncovered: Any) -> None:
    with pytest.raises(ConfigurationError, match="list of names"):
        capability(bench, uncovered=uncovered)


@pytest.mark.parametrize("pause", ["native", "retry"])
async def test_a_tool_that_wants_an_approval_needs_one_of_the_guard(bench: Bench, pause: str) -> None:
    facts = {"user": "ana", "run_id": "r"}
    guard = capability(bench, pause=pause, scope=lambda ctx: facts)
    tool = Tool(bench.sealed["look"], name="look", requires_approval=True)
    agent = agent_of(guard, LOOK, tools=[tool])
    await guard.selftest(agent)
    first = await agent.run("go")
    assert (bench.ran, bench.only().tool) == ([], "look")

    again = await (resumed(agent, first) if pause == "native" else agent.run("go"))
    assert bench.ran == []

    bench.approve(bench.only())
    last = await (resumed(agent, again) if pause == "native" else agent.run("go"))
    assert bench.ran == ["look attic"]
    assert "seen: attic" in told(last)


async def test_a_toolset_that_wants_an_approval_needs_one_of_the_guard(bench: Bench) -> None:
    inner = FunctionToolset([Tool(bench.sealed["look"], name="look")])
    agent = agent_of(capability(bench), LOOK, toolsets=[ApprovalRequiredToolset(inner)])
    first = await agent.run("go")  # the framework's own pause: the policy lets the call run
    assert (bench.ran, bench.waiting()) == ([], [])

    second = await resumed(agent, first)
    assert bench.ran == []
    bench.approve(bench.only())

    await resumed(agent, second)
    assert bench.ran == ["look attic"]


async def test_a_refusal_is_a_failed_call_and_a_persons_answer_is_none(bench: Bench) -> None:
    agent = agent_of(capability(bench), tools=[Tool(bench.sealed["delete_record"], name="delete_record")])
    outcomes = []
    for respond in (None, {"answer": "I did it myself."}):
        paused = await agent.run("go")
        request = bench.only()
        bench.guard.decide(
            request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, reason="No.", respond=respond,
        )
        ended = await resumed(agent, paused)
        outcomes += [
            (part.outcome, "No." in str(part.content)) for message in ended.all_messages() for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    assert outcomes == [("failed", True), ("success", False)]


async def test_what_stops_a_call_inside_a_tool_is_no_pause_of_the_tools_own(bench: Bench) -> None:
    inner = bench.guard.tool(bench.tools["delete_record"], name="delete_record")

    async def look(place: str) -> str:
        bench.note(f"look {place}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(await inner(record=42))

    agent = agent_of(capability(bench), LOOK, tools=[Tool(look)])

    with pytest.raises(ApprovalRequired):
        await agent.run("go")
    assert (bench.ran, bench.only().tool) == (["look attic"], "delete_record")


async def test_two_calls_below_a_limit_for_the_turn_run_unasked(bench: Bench) -> None:
    agent = agent_of(capability(bench), PAYING, tools=[Tool(bench.sealed["pay"], name="pay")])

    await agent.run("go")

    assert sorted(bench.ran) == ["pay 20", "pay 21"]
    assert bench.only().arguments == {"amount": 22}
