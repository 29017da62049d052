"""What Pydantic AI would run around the guard: output functions, others' tools, the provider's, its own approvals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import AfterValidator
from pydantic_ai import Agent, DeferredToolRequests, NativeOutput, RunContext, TextOutput, ToolOutput, UserError
from pydantic_ai.capabilities import AbstractCapability, Capability, HandleDeferredToolCalls, NativeTool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    FunctionToolset,
    PrefixedToolset,
    ToolsetTool,
    WrapperToolset,
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


class AddsSearch(AbstractCapability[Any]):
    """Adds a tool of the provider's when everything that stands before a request has ended."""

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        given = request_context.model_request_parameters
        request_context.model_request_parameters = replace(given, native_tools=[WebSearchTool()])
        return request_context


async def test_what_the_provider_would_run_is_refused_however_late_it_is_added(bench: Bench) -> None:
    guard = capability(bench)

    with pytest.raises(ConfigurationError, match="web_search"):
        await agent_of(guard, [], capabilities=[AddsSearch(), guard]).run("go")


async def test_what_the_settings_let_the_provider_run_is_refused_unless_the_app_names_it(bench: Bench) -> None:
    settings: Any = {"openai_native_tools": [{"type": "file_search"}]}
    model = FunctionModel(lambda messages, info: ModelResponse([TextPart("done")]), settings=settings)

    with pytest.raises(ConfigurationError, match="file_search"):
        await agent_of(capability(bench), [], model_settings=settings).run("go")
    with pytest.raises(ConfigurationError, match="file_search"):
        await agent_of(capability(bench), model).run("go")
    named = await agent_of(capability(bench, uncovered=["file_search"]), [], model_settings=settings).run("go")

    assert named.output == "done"


async def test_a_tool_that_the_framework_loads_on_demand_is_asked_for(bench: Bench) -> None:
    extra: Capability[Any] = Capability(
        id="extra", description="More tools.", defer_loading=True,
        tools=[Tool(bench.sealed["delete_record"], name="delete_record")],
    )
    guard = capability(bench)
    calls: list[Turn] = [[("c0", "load_capability", {"id": "extra"})], *ONE]

    await agent_of(guard, calls, capabilities=[guard, extra]).run("go")

    assert (bench.ran, bench.only().tool) == ([], "delete_record")


class Batch(WrapperToolset[Any]):
    """Adds a tool that calls the tool ``pay`` several times."""

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        given = await super().get_tools(ctx)

        async def batch(ctx: RunContext[Any], amounts: list[int]) -> None:
            for amount in amounts:
                await self.wrapped.call_tool("pay", {"amount": amount}, ctx, given["pay"])

        batch.__annotations__ = {"ctx": RunContext[Any], "amounts": list[int]}
        self.own = await FunctionToolset([Tool(batch)]).get_tools(ctx)
        return {**given, **self.own}

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: Any) -> Any:
        own = self.own.get(name)
        if own is None:
            return await super().call_tool(name, tool_args, ctx, tool)
        return await own.toolset.call_tool(name, tool_args, ctx, own)


async def test_what_a_tool_calls_by_itself_does_not_pass_as_alone_in_the_models_turn(bench: Bench) -> None:
    guard = capability(bench, uncovered=["batch"])
    calls: list[Turn] = [[("c1", "batch", {"amounts": [40, 40, 40]})]]

    agent = agent_of(guard, calls, tools=[Tool(bench.tools["pay"], name="pay")], capabilities=[guard, Adds(Batch)])
    await agent.run("go")

    assert bench.ran == []


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


@pytest.mark.parametrize("wanted", [True, False], ids=["by the tool", "by the policy"])
async def test_a_handler_that_says_yes_to_everything_runs_nothing(bench: Bench, wanted: bool) -> None:
    yes: HandleDeferredToolCalls[Any] = HandleDeferredToolCalls(
        handler=lambda ctx, requests: requests.build_results(approve_all=True)
    )
    guard = capability(bench)
    name, calls = ("look", LOOK) if wanted else ("delete_record", ONE)
    tool = Tool(bench.sealed[name], name=name, requires_approval=wanted)

    paused = await agent_of(guard, calls, tools=[tool], capabilities=[yes, guard]).run("go")

    assert (bench.ran, bench.only().tool) == ([], name)
    assert isinstance(paused.output, DeferredToolRequests)


async def test_a_sub_agents_own_pause_does_not_end_unseen_in_its_parents_tool(bench: Bench) -> None:
    child = agent_of(capability(bench), tools=[Tool(bench.sealed["delete_record"], name="delete_record")])

    async def delegate(task: str) -> Any:
        return (await child.run(task)).output

    calls: list[Turn] = [[("d1", "delegate", {"task": "delete it"})]]

    with pytest.raises(ConfigurationError, match="pause='retry'"):
        await agent_of(capability(bench), calls, tools=[Tool(delegate)]).run("go")
    assert bench.ran == []


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


async def test_an_edit_that_only_the_tools_own_check_refuses_runs_nothing_and_is_told(bench: Bench) -> None:
    def even(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    def delete_record(record: Annotated[int, AfterValidator(even)]) -> str:
        bench.note(f"delete {record}")
        return "deleted"

    delete_record.__annotations__ = {"record": Annotated[int, AfterValidator(even)], "return": str}
    agent = agent_of(capability(bench), tools=[Tool(delete_record)])
    paused = await agent.run("go")
    bench.approve(bench.only(), arguments={"record": 43})

    ended = await resumed(agent, paused)

    assert bench.ran == []
    assert "does not take the arguments" in told(ended)
    events = [event.type for event in bench.store.chain_events(bench.store.chains()[0], limit=100)]
    assert events[-1] == "call:failed"


@pytest.mark.parametrize("arguments", ['{"amount": 1, "amount": 40}', "{}"])
async def test_what_an_earlier_call_of_the_turn_came_to_counts_as_it_ran(bench: Bench, arguments: str) -> None:
    def pay(amount: int = 40) -> str:
        bench.note(f"pay {amount}")
        return "paid"

    def turn(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(
            [TextPart("done")] if asked else [ToolCallPart("pay", arguments, f"p{number}") for number in range(4)]
        )

    await agent_of(capability(bench), FunctionModel(turn), tools=[Tool(pay)]).run("go")

    assert bench.ran == ["pay 40"]
    assert len(bench.waiting()) == 3


async def test_two_calls_below_a_limit_for_the_turn_run_unasked(bench: Bench) -> None:
    agent = agent_of(capability(bench), PAYING, tools=[Tool(bench.sealed["pay"], name="pay")])

    await agent.run("go")

    assert sorted(bench.ran) == ["pay 20", "pay 21"]
    assert bench.only().arguments == {"amount": 22}
