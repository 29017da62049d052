"""OpenAI Agents SDK's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    ToolOutputImage,
    ToolOutputText,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
)
from agents.mcp import MCPServerStdio
from agents.run_context import RunContextWrapper
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool import HostedMCPTool, LocalShellTool, ShellTool
from agents.tool_context import ToolContext
from pydantic import BaseModel

from hitl_guard.errors import ApprovalRequired, ConfigurationError, StoreUnavailableError
from hitl_guard.integrations.openai_agents import answer, protect, selftest
from tests.frameworks.bench import ONE, Bench, Setup, Turn
from tests.frameworks.contract import Contract
from tests.frameworks.rig_openai_agents import QUIET, OpenAIAgents, model_of

FACTS = {"user": "ana", "run_id": "conversation"}


class TestOpenAIAgents(Contract):
    rig = OpenAIAgents()


def tool_of(function: Any, **options: Any) -> FunctionTool:
    return function_tool(function, name_override=function.__name__, **options)


def raw(name: str, arguments: str, call_id: str = "c1") -> ScriptedModel:
    return ScriptedModel([[function_call(name, arguments, call_id=call_id)], [assistant_message("done")]])


def agent_of(bench: Bench, *tools: Any, model: Any = None, **options: Any) -> Agent[Any]:
    agent: Agent[Any] = Agent("worker", tools=[*tools], model=model or model_of(ONE))
    return protect(agent, bench.guard, **({"scope": lambda ctx: FACTS} | options))


async def started(agent: Agent[Any], given: Any = "go", **options: Any) -> Any:
    return await Runner.run(agent, given, run_config=QUIET, **options)


async def restored(agent: Agent[Any], paused: Any, **options: Any) -> Any:
    """Return the run's state as another process would read it, with the framework's yes to every call."""
    state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())), **options)
    for item in state.get_interruptions():
        state.approve(item)
    return state


async def resumed(agent: Agent[Any], paused: Any) -> Any:
    return await started(agent, await restored(agent, paused))


def told(result: Any) -> str:
    return "\n".join(
        str(item["output"]) for item in result.to_input_list() if item.get("type") == "function_call_output"
    )


# -- what the framework itself does not notice ---------------------------------------------------------------------


async def test_the_framework_alone_runs_an_altered_state(bench: Bench) -> None:
    """Else the contract's row about it would prove nothing."""
    def delete_record(record: int) -> str:
        bench.note(f"delete {record}")
        return "ran"

    agent = Agent("worker", tools=[tool_of(delete_record, needs_approval=True)], model=model_of(ONE))
    paused = await started(agent)
    altered = OpenAIAgents().tampered(json.dumps(paused.to_state().to_json()))
    state = await RunState.from_json(agent, json.loads(altered))
    state.approve(state.get_interruptions()[0])

    await started(agent, state)

    assert bench.ran == ["delete 99"]


async def test_the_guard_refuses_what_the_framework_does_not_notice(bench: Bench) -> None:
    rig = OpenAIAgents()
    state = (await rig.run(Setup(bench=bench))).state
    assert state is not None
    bench.approve(bench.only())

    outcome = await rig.run(Setup(bench=bench), rig.tampered(state))

    assert (bench.ran, bench.refusals()) == ([], [("args-mismatch", None)])
    assert "args-mismatch" in outcome.told


# -- pause and answer ----------------------------------------------------------------------------------------------


async def test_answer_tells_where_to_decide_and_says_yes_to_what_was_decided(bench: Bench) -> None:
    script: list[Turn] = [[("c1", "delete_record", {"record": 42}), ("c2", "delete_record", {"record": 7})]]
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), model=model_of(script))
    state = (await started(agent)).to_state()

    facts = await answer(state)
    first, second = sorted(bench.waiting(), key=lambda request: str(request.call_id))  # asked at the same time
    assert [one["request_id"] for one in facts] == [first.id, second.id]
    assert {one["tenant"] for one in facts} == {"default"}

    bench.approve(first)
    assert [one["request_id"] for one in await answer(state)] == [second.id]
    again = await started(agent, state)
    assert (bench.ran, len(again.interruptions)) == (["delete 42"], 1)

    bench.deny(second, "Keep seven.")
    state = again.to_state()
    assert await answer(state) == []
    ended = await started(agent, state)
    assert (bench.ran, ended.interruptions) == (["delete 42"], [])
    assert "Keep seven." in told(ended)


async def test_answer_reaches_the_calls_of_a_sub_agent(bench: Bench) -> None:
    child = agent_of(bench, tool_of(bench.sealed["delete_record"]))
    model = model_of([[("d1", "delegate", {"input": "it"})]])
    agent = agent_of(bench, child.as_tool("delegate", "Delegate."), model=model)
    state = (await started(agent)).to_state()

    (facts,) = await answer(state)
    assert facts["request_id"] == bench.only().id
    bench.approve(bench.only())
    assert await answer(state) == []
    await started(agent, state)

    assert bench.ran == ["delete 42"]


async def test_answer_refuses_an_agent_that_is_not_protected(bench: Bench) -> None:
    agent = Agent("worker", tools=[tool_of(bench.tools["look"], needs_approval=True)], model=raw("look", "{}"))
    state = (await started(agent)).to_state()

    with pytest.raises(ConfigurationError, match="not protected"):
        await answer(state)


async def test_the_frameworks_yes_before_a_person_decided_ends_the_run(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]))
    paused = await started(agent)

    with pytest.raises(UserError) as caught:
        await resumed(agent, paused)

    assert isinstance(caught.value.__cause__, ApprovalRequired)
    bench.approve(bench.only())
    await resumed(agent, paused)
    assert bench.ran == ["delete 42"]


async def test_a_yes_for_always_lets_no_other_call_run(bench: Bench) -> None:
    script: list[Turn] = [[("c1", "delete_record", {"record": 42})], [("c2", "delete_record", {"record": 7})]]
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), model=model_of(script))
    state = (await started(agent)).to_state()
    bench.approve(bench.only())
    state.approve(state.get_interruptions()[0], always_approve=True)

    with pytest.raises(UserError, match="needs an approval"):
        await started(agent, state)

    assert (bench.ran, bench.only().arguments) == (["delete 42"], {"record": 7})


@pytest.mark.parametrize("wanted", [True, lambda ctx, arguments, call_id: arguments["place"] == "attic"])
@pytest.mark.parametrize("pause", ["native", "retry"])
async def test_a_tool_that_wants_an_approval_itself_gets_the_guards(bench: Bench, wanted: Any, pause: str) -> None:
    agent = agent_of(
        bench, tool_of(bench.sealed["look"], needs_approval=wanted), model=raw("look", '{"place": "attic"}'),
        pause=pause,
    )
    first = await started(agent)
    assert (bench.ran, bench.only().tool) == ([], "look")

    bench.approve(bench.only())
    if pause == "native":
        await resumed(agent, first)
    else:
        agent.model = raw("look", '{"place": "attic"}', "c2")
        await started(agent)
    assert bench.ran == ["look attic"]


async def test_a_call_without_argument_text_is_asked_for_when_it_is_answered(bench: Bench) -> None:
    def delete_record() -> str:
        bench.note("deleted")
        return "deleted"

    agent = agent_of(bench, tool_of(delete_record), model=raw("delete_record", ""))
    state = (await started(agent)).to_state()

    (facts,) = await answer(state)
    assert facts["request_id"] == bench.only().id
    bench.approve(bench.only())
    await answer(state)
    await started(agent, state)

    assert bench.ran == ["deleted"]


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"record": 42, "record": 7}', '{"record": NaN}', '{"record": 42', "[42]"])
@pytest.mark.parametrize("name", ["delete_record", "look"])
async def test_text_that_is_not_one_strict_json_object_never_runs(bench: Bench, text: str, name: str) -> None:
    def tool(record: int) -> str:
        bench.note("ran")
        return "ran"

    tool.__name__ = name
    agent = agent_of(bench, tool_of(tool), model=raw(name, text))
    result = await started(agent)
    if result.interruptions:  # the framework pauses for what it cannot parse; nobody is asked
        assert bench.waiting() == []
        result = await resumed(agent, result)

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Refused" in told(result)


async def test_arguments_that_a_hook_changes_do_not_run(bench: Bench) -> None:
    class Late(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            context.tool_call.arguments = '{"record": 99}'

    agent = agent_of(bench, tool_of(bench.tools["delete_record"]))
    paused = await started(agent)
    bench.approve(bench.only())
    state = await restored(agent, paused)

    result = await started(agent, state, hooks=Late())

    assert bench.ran == []
    assert "args-mismatch" in told(result)


async def test_a_sealed_tool_gets_its_context_and_models_made_of_the_signed_arguments(bench: Bench) -> None:
    class Record(BaseModel):
        number: int

    async def delete_record(ctx: ToolContext[str], record: Record, again: bool = False) -> str:
        assert ctx.tool_call is not None
        bench.note(f"{ctx.context} {record.number} {ctx.tool_arguments} {ctx.tool_call.arguments}")
        return "ran"

    delete_record.__annotations__ = {"ctx": ToolContext[str], "record": Record, "again": bool, "return": str}
    text = '{"record": {"number": 42}, "again": false}'
    agent = agent_of(bench, tool_of(bench.guard.sealed(delete_record)), model=raw("delete_record", text))
    paused = await started(agent, context="dep")
    assert bench.only().arguments == {"record": {"number": 42}, "again": False}
    bench.approve(bench.only(), arguments={"record": {"number": 43}, "again": False})

    await started(agent, await restored(agent, paused, context_override="dep"))

    (line,) = bench.ran
    assert line.startswith("dep 43 ")
    assert "42" not in line


async def test_the_scope_sees_the_apps_context(bench: Bench) -> None:
    def facts(ctx: RunContextWrapper[SimpleNamespace]) -> dict[str, str]:
        return {"user": ctx.context.user, "run_id": ctx.context.thread}

    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=facts)
    await started(agent, context=SimpleNamespace(user="eva", thread="t1"))

    assert (bench.only().user, bench.only().run_id) == ("eva", "t1")


async def test_an_agent_that_nobody_named_runs_nothing(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), scope=None)
    with pytest.raises(UserError, match="Nobody says 'user'"):
        await started(agent)
    agent.model = model_of(ONE)
    with bench.guard.context(user="ana", run_id="r"):
        await started(agent)

    assert (bench.ran, bench.only().user, bench.only().run_id) == ([], "ana", "r")


async def test_a_repeated_call_id_in_a_session_is_asked_for_again(bench: Bench, tmp_path: Path) -> None:
    for occurrence in (0, 1):
        agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), model=raw("delete_record", '{"record": 42}'))
        session = SQLiteSession("thread", tmp_path / "session.db")
        paused = await started(agent, session=session)
        assert (bench.only().call_id, bench.only().occurrence) == ("c1", occurrence)
        state = await RunState.from_json(agent, json.loads(json.dumps(paused.to_state().to_json())))
        assert [facts["request_id"] for facts in await answer(state)] == [bench.only().id]
        bench.approve(bench.only())
        assert await answer(state) == []
        await started(agent, state, session=session)
        session.close()

    assert bench.ran == ["delete 42", "delete 42"]


# -- results -------------------------------------------------------------------------------------------------------


async def test_a_tool_that_raises_is_in_doubt_and_the_model_hears_what_the_tool_says_of_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "openai.agents")

    async def delete_record(record: int) -> str:
        raise RuntimeError("secret")

    def own(ctx: Any, error: Exception) -> str:
        return f"own: {type(error).__name__}"

    settings: list[tuple[dict[str, Any], str]] = [({}, "An error"), ({"failure_error_function": own}, "own: Runtime")]
    for place, (options, says) in enumerate(settings):
        model = raw("delete_record", '{"record": 42}', f"c{place}")
        agent = agent_of(bench, tool_of(delete_record, **options), model=model)
        paused = await started(agent)
        request = bench.only()
        bench.approve(request)
        result = await resumed(agent, paused)

        assert bench.state(request) == "in_doubt"
        assert says in told(result)
        assert "secret" not in told(result)
        assert "Tool delete_record failed" in caplog.text  # as the framework itself reports it
        caplog.clear()


async def test_a_tool_without_a_failure_function_ends_the_run(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        raise RuntimeError("gone")

    agent = agent_of(bench, tool_of(delete_record, failure_error_function=None))
    paused = await started(agent)
    request = bench.only()
    bench.approve(request)

    with pytest.raises(UserError, match="gone"):
        await resumed(agent, paused)

    assert bench.state(request) == "in_doubt"


async def test_a_tool_whose_time_is_up_is_in_doubt(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def delete_record(record: int) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    timed: list[asyncio.Future[Any]] = []

    async def up(task: asyncio.Future[Any], timeout: float) -> Any:
        timed.append(task)
        await begun.wait()
        if task is not timed[-1]:  # were the time-out further inside as well, it would be up first
            return await task
        task.cancel()
        await asyncio.wait([task])
        raise TimeoutError

    agent = agent_of(bench, tool_of(delete_record, timeout=600))
    paused = await started(agent)
    request = bench.only()
    bench.approve(request)
    monkeypatch.setattr(asyncio, "wait_for", up)

    result = await resumed(agent, paused)

    assert bench.state(request) == "in_doubt"
    assert "timed out" in told(result)


@pytest.mark.parametrize(("value", "says"), [
    (None, "None"), ({"a": 1}, "{'a': 1}"), (b"x", "b'x'"), (["a", 2], "['a', 2]"), ("", ""),
], ids=["none", "dict", "bytes", "list", "empty"])
@pytest.mark.parametrize("edited", [False, True])
async def test_results_of_any_type_reach_the_model(bench: Bench, value: Any, says: str, edited: bool) -> None:
    def delete_record(record: int) -> Any:
        return value

    agent = agent_of(bench, tool_of(delete_record))
    paused = await started(agent)
    request = bench.only()
    bench.approve(request, **({"arguments": {"record": 43}} if edited else {}))

    result = await resumed(agent, paused)

    assert says in told(result)
    assert ("A person changed this call" in told(result)) is edited


async def test_an_image_stays_one_when_a_person_changed_the_call(bench: Bench) -> None:
    def delete_record(record: int) -> Any:
        return ToolOutputImage(image_url="https://example.org/1.png")

    agent = agent_of(bench, tool_of(delete_record))
    paused = await started(agent)
    bench.approve(bench.only(), arguments={"record": 43})

    result = await resumed(agent, paused)

    (notice, image) = next(item.output for item in result.new_items if item.type == "tool_call_output_item")
    assert isinstance(notice, ToolOutputText)
    assert "A person changed" in notice.text
    assert isinstance(image, ToolOutputImage)


async def test_two_resumes_at_once_run_the_call_once(bench: Bench) -> None:
    state = (await OpenAIAgents().run(Setup(bench=bench))).state
    bench.approve(bench.only())
    barrier = threading.Barrier(2)
    errors: list[BaseException] = []

    def resume() -> None:
        other = Bench(bench.folder)

        def scope(ctx: Any) -> dict[str, str]:
            barrier.wait()  # both are about to ask the guard
            return FACTS

        async def once() -> None:
            tool = function_tool(other.sealed["delete_record"])
            agent = agent_of(other, tool, scope=scope)
            await resumed_text(agent, state)

        try:
            asyncio.run(once())
        except BaseException as error:  # noqa: BLE001  shown by the assertion
            errors.append(error)
        finally:
            other.close()

    threads = [threading.Thread(target=resume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert (bench.ran, errors) == (["delete 42"], [])


async def resumed_text(agent: Agent[Any], text: str | None) -> Any:
    assert text is not None
    state = await RunState.from_json(agent, json.loads(text))
    state.approve(state.get_interruptions()[0])
    return await started(agent, state)


# -- sub-agents and handoffs ---------------------------------------------------------------------------------------


async def test_a_sub_agent_that_pauses_goes_on_though_its_own_call_was_spent(bench: Bench) -> None:
    def agent() -> Agent[Any]:
        look = tool_of(bench.sealed["look"], needs_approval=True)
        child = agent_of(bench, look, model=raw("look", '{"place": "a"}', "c2"))
        outer = child.as_tool("delete_record", "Delegate.")
        return agent_of(bench, outer, model=raw("delete_record", '{"input": "it"}'))

    paused = await started(agent())
    delegation = bench.only()
    bench.approve(delegation)
    inner = await resumed(agent(), paused)
    assert (bench.only().tool, bench.ran) == ("look", [])
    bench.approve(bench.only())

    fresh = agent()
    state = await restored(fresh, inner)
    ended = await started(fresh, state)
    assert (ended.interruptions, bench.ran) == ([], ["look a"])

    again = agent()
    replayed = await started(again, await restored(again, paused))
    assert bench.ran == ["look a"]
    assert "consumed" in told(replayed)


async def test_a_guard_that_cannot_tell_ends_the_run_of_the_sub_agents_parent_too(bench: Bench) -> None:
    child = agent_of(bench, tool_of(bench.sealed["delete_record"]))
    model = model_of([[("d1", "delegate", {"input": "it"})]])
    agent = agent_of(bench, child.as_tool("delegate", "Delegate."), model=model)
    state = (await started(agent)).to_state()
    bench.approve(bench.only())
    await answer(state)
    claims = bench.store.write

    def write(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("The store does not answer.")

    bench.store.write = write  # type: ignore[method-assign]
    with pytest.raises(UserError, match="store does not answer"):
        await started(agent, state)
    bench.store.write = claims  # type: ignore[method-assign]

    assert bench.ran == []


@pytest.mark.parametrize("plain", [True, False])
async def test_an_agent_that_is_handed_the_run_is_guarded_and_may_hand_it_back(bench: Bench, plain: bool) -> None:
    def agents() -> Agent[Any]:
        worker: Agent[Any] = Agent("worker", tools=[tool_of(bench.sealed["delete_record"])], model=model_of(ONE))
        model = raw("transfer_to_worker", "{}", "h1")
        desk: Agent[Any] = Agent("desk", handoffs=[worker if plain else handoff(worker)], model=model)
        worker.handoffs = [desk]
        return protect(desk, bench.guard, scope=lambda ctx: FACTS)

    desk = agents()
    paused = await started(desk)
    assert (len(paused.interruptions), bench.ran) == (1, [])
    bench.approve(bench.only())

    fresh = agents()
    ended = await resumed(fresh, paused)

    assert (bench.ran, ended.last_agent.name, ended.final_output) == (["delete 42"], "worker", "done")
    assert ended.last_agent.handoffs == [fresh]


async def test_a_handoff_that_leads_elsewhere_ends_the_run(bench: Bench) -> None:
    other: Agent[Any] = Agent("other", tools=[tool_of(bench.tools["delete_record"])], model=model_of(ONE))
    worker: Agent[Any] = Agent("worker")
    made = handoff(worker)

    async def elsewhere(ctx: Any, text: str) -> Agent[Any]:
        return other

    crooked = replace(made, on_invoke_handoff=elsewhere)
    crooked._agent_ref = made._agent_ref
    desk = protect(
        Agent("desk", handoffs=[crooked], model=raw("transfer_to_worker", "{}")), bench.guard, scope=lambda ctx: FACTS
    )

    with pytest.raises(ConfigurationError, match="not protected"):
        await started(desk)

    assert bench.ran == []


# -- what is refused at the start ----------------------------------------------------------------------------------


def opaque() -> Handoff[Any, Any]:
    async def invoke(ctx: Any, text: str) -> Agent[Any]:
        return Agent("hidden")

    return Handoff("transfer_to_hidden", "Hand over.", {}, invoke, "hidden")


class Reason(BaseModel):
    text: str


@pytest.mark.parametrize(("name", "options"), [
    ("web_search", {"tools": [WebSearchTool()]}),
    ("hosted_mcp", {"tools": [HostedMCPTool(tool_config={"type": "mcp", "server_label": "s", "server_url": "u"})]}),
    ("local_shell", {"tools": [LocalShellTool(executor=lambda request: "ran")]}),
    ("shell", {"tools": [ShellTool(executor=lambda request: "ran")]}),
    ("child", {"tools": [Agent("child").as_tool("child", "A child.")]}),
    ("transfer_to_hidden", {"handoffs": [opaque()]}),
    ("transfer_to_child", {"handoffs": [
        handoff(Agent("child"), on_handoff=lambda ctx, reason: None, input_type=Reason),
    ]}),
])
async def test_what_cannot_be_covered_is_refused_unless_it_is_named(
    bench: Bench, name: str, options: dict[str, Any]
) -> None:
    agent: Agent[Any] = Agent("worker", **options)

    with pytest.raises(ConfigurationError, match=name):
        protect(agent, bench.guard)
    with pytest.raises(ConfigurationError, match=name):
        protect(Agent("desk", handoffs=[agent]), bench.guard)
    assert await protect(agent, bench.guard, uncovered=[name]).get_all_tools(RunContextWrapper(None)) is not None


async def test_a_tool_that_is_added_later_ends_the_run(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), uncovered=["look"])
    agent.tools.append(tool_of(bench.tools["look"]))
    with pytest.raises(ConfigurationError, match="look"):
        await started(agent)
    with pytest.raises(ConfigurationError, match="look"):
        await selftest(agent)

    agent = agent_of(bench)
    agent.handoffs.append(Agent("late"))
    with pytest.raises(ConfigurationError, match="late"):
        await started(agent)
    assert bench.ran == []


async def test_a_copy_of_agent_or_tool_stays_guarded(bench: Bench) -> None:
    (tool,) = agent_of(bench, tool_of(bench.sealed["delete_record"])).tools
    for copied in (copy.copy(tool), replace(tool, needs_approval=False, is_enabled=lambda ctx, agent: True)):
        agent = agent_of(bench).clone(tools=[copied], model=model_of(ONE))
        paused = await started(agent)
        assert (bench.ran, len(paused.interruptions), bench.only().tool) == ([], 1, "delete_record")

    agent = agent_of(bench).clone(tools=[tool_of(bench.tools["look"])])
    with pytest.raises(ConfigurationError, match="look"):
        await started(agent)


async def test_the_agent_that_was_given_is_left_as_it_was(bench: Bench) -> None:
    tool = tool_of(bench.tools["look"])
    worker: Agent[Any] = Agent("worker", tools=[tool])
    desk: Agent[Any] = Agent("desk", tools=[tool], handoffs=[worker])
    invoker = tool.on_invoke_tool

    protected = protect(desk, bench.guard)

    assert (desk.tools, desk.handoffs, worker.tools, tool.on_invoke_tool) == ([tool], [worker], [tool], invoker)
    assert (type(desk), tool.needs_approval) == (Agent, False)
    (made,) = protected.tools
    assert (made.name, made.description, made.params_json_schema) == (
        tool.name, tool.description, tool.params_json_schema,
    )
    assert protect(protected, bench.guard) is protected


def test_what_another_guard_protects_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other")
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]))

    for given in (agent, Agent("worker", tools=agent.tools), Agent("desk", handoffs=[agent])):
        with pytest.raises(ConfigurationError, match="another guard"):
            protect(given, other.guard)
    other.close()


@pytest.mark.parametrize("given", [None, "worker", FunctionTool])
def test_what_is_no_agent_is_refused(bench: Bench, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes an Agent"):
        protect(given, bench.guard)


@pytest.mark.parametrize("names", ["shell", [1]])
def test_a_list_of_names_is_needed(bench: Bench, names: Any) -> None:
    with pytest.raises(ConfigurationError, match="uncovered"):
        protect(Agent("worker"), bench.guard, uncovered=names)


async def test_the_self_test_leaves_the_agent_and_its_model_alone(bench: Bench) -> None:
    agent = agent_of(bench, tool_of(bench.sealed["delete_record"]), pause="retry")
    tools = list(agent.tools)

    await selftest(agent)

    assert (agent.tools, len(agent.model.calls), bench.waiting()) == (tools, 0, [])


# -- local MCP servers ---------------------------------------------------------------------------------------------

SERVER = """\
import sys
from mcp.server import MCPServer

server = MCPServer("records")

@server.tool()
def delete_record(record: int) -> str:
    with open(sys.argv[1], "a") as journal:
        journal.write(f"delete {record}\\n")
    return f"deleted {record}"

server.run()
"""


async def test_the_tools_of_a_local_mcp_server_are_guarded(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    params: Any = {"command": sys.executable, "args": [str(script), str(bench.folder / "journal")]}
    async with MCPServerStdio(params, name="records", client_session_timeout_seconds=None) as server:
        agent = protect(
            Agent("worker", mcp_servers=[server], model=model_of(ONE)), bench.guard, scope=lambda ctx: FACTS,
            uncovered=["delete_record"],
        )
        paused = await started(agent)
        assert (len(paused.interruptions), bench.ran, bench.only().arguments) == (1, [], {"record": 42})
        bench.approve(bench.only(), arguments={"record": 43})

        agent = agent_of(bench, model=model_of(ONE))
        agent.mcp_servers = [server]  # servers that are added later are covered too
        ended = await resumed(agent, paused)

    assert bench.ran == ["delete 43"]
    assert "deleted 43" in told(ended)


async def test_a_state_that_makes_a_sub_agent_of_a_tool_runs_it_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(bench, tool_of(bench.tools["delete_record"]))
    paused = await started(agent)
    bench.approve(bench.only())
    await resumed(agent, paused)
    nested = SimpleNamespace(interruptions=[object()])
    monkeypatch.setattr(
        "hitl_guard.integrations.openai_agents_tools.peek_agent_tool_run_result", lambda *given, **more: nested
    )

    with suppress(Exception):
        await resumed(agent, paused)

    assert bench.ran == ["delete 42"]
