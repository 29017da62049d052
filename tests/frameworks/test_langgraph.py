"""LangGraph's real package, by the contract and by what only it has."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.integrations.langgraph import each_call, tool_node
from tests.frameworks.bench import BOB, MIXED, ONE, Bench, Setup
from tests.frameworks.contract import Contract
from tests.frameworks.rig_langchain import CONFIG, delegate_to, tool_of
from tests.frameworks.rig_langgraph import EachCall, LangGraph, graph_of

GO: Any = {"messages": [HumanMessage("go")]}
USER: Any = {"scope": lambda request: {"user": "ana"}}


class TestLangGraph(Contract):
    rig = LangGraph()


class TestEachCall(Contract):
    rig = EachCall()


def agent_of(bench: Bench, *tools: Any, calls: Any = ONE, route: Any = tools_condition, **options: Any) -> Any:
    listed = [tool if isinstance(tool, BaseTool) else tool_of(tool) for tool in tools]
    return graph_of(calls, tool_node(bench.guard, listed, **(USER | options)), InMemorySaver(), route)


async def resumed(graph: Any, yes: Any = True) -> Any:
    waits = [one.id for one in (await graph.aget_state(CONFIG)).interrupts]
    return await graph.ainvoke(Command(resume=dict.fromkeys(waits, yes)), CONFIG)


def results(ended: Any) -> list[ToolMessage]:
    return [message for message in ended["messages"] if isinstance(message, ToolMessage)]


def told(ended: Any) -> str:
    return "\n".join(str(message.content) for message in results(ended))


# -- a node that runs again ----------------------------------------------------------------------------------------


async def test_the_framework_alone_runs_calls_beside_one_that_waits_twice(bench: Bench) -> None:
    """Else the tests about it would prove nothing."""
    seen = asyncio.Event()

    async def delete_record(record: int) -> str:
        """Delete a record."""
        await seen.wait()
        interrupt("really?")
        return "ran"

    async def look(place: str) -> str:
        """Look somewhere."""
        bench.note(f"look {place}")
        seen.set()
        return "seen"

    graph = graph_of([MIXED[0][::2]], ToolNode([tool_of(delete_record), tool_of(look)]), InMemorySaver())
    await graph.ainvoke(GO, CONFIG)
    await resumed(graph)

    assert bench.ran == ["look attic", "look attic"]


async def test_nothing_of_a_turn_runs_before_everything_is_decided_and_then_all_of_it_once(bench: Bench) -> None:
    graph = agent_of(bench, *bench.sealed.values(), calls=MIXED)
    paused = await graph.ainvoke(GO, CONFIG)
    first, second = bench.waiting()
    (facts,) = [one.value["hitl_guard"] for one in paused["__interrupt__"]]
    assert {one["request_id"] for one in facts} == {first.id, second.id}

    bench.approve(first)
    paused = await resumed(graph)
    assert bench.ran == []
    (facts,) = [one.value["hitl_guard"] for one in paused["__interrupt__"]]
    assert [one["request_id"] for one in facts] == [second.id]
    bench.approve(second)
    ended = await resumed(graph)

    assert sorted(bench.ran) == ["delete 42", "delete 7", "look attic"]
    assert [message.content for message in results(ended)] == ["deleted 42", "deleted 7", "seen: attic"]


async def test_calls_that_are_tasks_of_their_own_hold_nobody_up_and_run_once(bench: Bench) -> None:
    graph = agent_of(bench, *bench.sealed.values(), calls=MIXED, route=each_call)
    await graph.ainvoke(GO, CONFIG)
    first, second = sorted(bench.waiting(), key=lambda request: str(request.call_id))
    assert bench.ran == ["look attic"]

    bench.approve(first)
    await resumed(graph)
    assert bench.ran == ["look attic", "delete 42"]
    bench.approve(second)
    ended = await resumed(graph)

    assert bench.ran == ["look attic", "delete 42", "delete 7"]
    assert sorted(str(message.content) for message in results(ended)) == ["deleted 42", "deleted 7", "seen: attic"]


async def test_a_call_that_waits_only_after_the_turn_was_decided_is_told_to_the_model(bench: Bench) -> None:
    looked: list[str] = []

    def scope(request: Any) -> dict[str, str]:
        if request.tool_call["name"] == "delete_record":
            looked.append("delete_record")
            if len(looked) == 4:  # decided three times, twice too early; now it is to run
                bench.guard.revoke(asked.id, by=BOB)
        return {"user": "ana"}

    calls = [[("c1", "delete_record", {"record": 42}), ("c2", "look", {"place": "attic"})]]
    graph = agent_of(bench, *bench.sealed.values(), calls=calls, scope=scope)
    await graph.ainvoke(GO, CONFIG)
    asked = bench.only()
    await resumed(graph)
    bench.approve(asked)

    ended = await resumed(graph)

    assert bench.ran == ["look attic"]
    assert "approval-pending" in told(ended)
    assert bench.only().id != asked.id


@pytest.mark.parametrize("apart", [False, True], ids=["one node", "tasks of their own"])
async def test_a_tool_that_pauses_by_itself_beside_others_ends_the_run_or_is_a_task_of_its_own(
    bench: Bench, apart: bool
) -> None:
    seen = asyncio.Event()

    async def ask(question: str) -> str:
        """Ask something."""
        await seen.wait()
        return f"answered {interrupt(question)}"

    async def look(place: str) -> str:
        """Look somewhere."""
        bench.note(f"look {place}")
        seen.set()
        return "seen"

    calls = [[("c1", "ask", {"question": "where?"}), ("c2", "look", {"place": "attic"})]]
    graph = agent_of(bench, ask, look, calls=calls, route=each_call if apart else tools_condition)
    if apart:
        await graph.ainvoke(GO, CONFIG)
        assert "answered there" in told(await resumed(graph, "there"))
    else:
        with pytest.raises(ConfigurationError, match="each_call"):
            await graph.ainvoke(GO, CONFIG)

    assert bench.ran == ["look attic"]


async def test_our_yes_does_not_answer_a_pause_of_the_tools_own(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"answered {interrupt('really?')}")
        return "ran"

    graph = agent_of(bench, delete_record)
    await graph.ainvoke(GO, CONFIG)
    request = bench.only()
    await resumed(graph)
    bench.approve(request)

    paused = await graph.ainvoke(Command(resume=True), CONFIG)

    assert (bench.ran, paused["__interrupt__"][0].value, bench.state(request)) == ([], "really?", "in_doubt")
    assert "Refused" in told(await resumed(graph))
    assert bench.ran == []


async def test_our_yes_does_not_answer_a_pause_of_a_tool_beside_it(bench: Bench) -> None:
    async def ask(question: str) -> str:
        """Ask something."""
        bench.note(f"answered {interrupt(question)}")
        return "ran"

    calls = [[("c1", "ask", {"question": "where?"}), ("c2", "delete_record", {"record": 42})]]
    graph = agent_of(bench, ask, bench.sealed["delete_record"], calls=calls)
    await graph.ainvoke(GO, CONFIG)
    bench.approve(bench.only())

    with pytest.raises(ConfigurationError, match="each_call"):
        await resumed(graph)

    assert not [line for line in bench.ran if line.startswith("answered")]


async def test_a_free_tool_alone_may_pause_by_itself(bench: Bench) -> None:
    async def look(place: str) -> str:
        """Look somewhere."""
        return f"answered {interrupt('where?')}"

    graph = agent_of(bench, look, calls=[[("c1", "look", {"place": "attic"})]])
    await graph.ainvoke(GO, CONFIG)

    assert told(await resumed(graph, "there")) == "answered there"


async def test_sub_agents_that_pause_side_by_side_each_run_their_call_once(bench: Bench) -> None:
    def child(record: int) -> Any:
        node = tool_node(bench.guard, [tool_of(bench.sealed["delete_record"])], **USER)
        return graph_of([[(f"d{record}", "delete_record", {"record": record})]], node, None)

    tools = []
    for record in (42, 7):
        tools.append(delegate_to(child(record)))
        tools[-1].name = f"delegate_{record}"
    calls = [[("c1", "delegate_42", {"task": "go"}), ("c2", "delegate_7", {"task": "go"})]]
    graph = agent_of(bench, *tools, calls=calls, route=each_call)
    await graph.ainvoke(GO, CONFIG)
    for request in bench.waiting():
        bench.approve(request)

    ended = await resumed(graph)

    assert sorted(bench.ran) == ["delete 42", "delete 7"]
    assert all(text in told(ended) for text in ("deleted 42", "deleted 7"))


# -- resumes -------------------------------------------------------------------------------------------------------


async def test_the_guard_refuses_what_the_framework_does_not_notice(bench: Bench) -> None:
    rig = LangGraph()
    state = (await rig.run(Setup(bench=bench))).state
    assert state is not None
    bench.approve(bench.only())

    outcome = await rig.run(Setup(bench=bench), rig.tampered(state))

    assert bench.ran == []
    assert set(bench.refusals()) == {("args-mismatch", None)}
    assert "args-mismatch" in outcome.told


async def test_two_resumes_at_once_run_the_call_once(bench: Bench) -> None:
    barrier = asyncio.Barrier(2)

    class Together(ToolNode):
        """Lets two workers start the node at the same time."""

        def __init__(self, node: Any) -> None:
            super().__init__(list(node.tools_by_name.values()))
            self.node = node

        async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
            await barrier.wait()
            return await self.node.ainvoke(input, config, **options)

    # The same thread in two stores: two workers that know nothing of each other.
    nodes = [Together(tool_node(bench.guard, [tool_of(bench.sealed["delete_record"])], **USER)) for _ in range(2)]
    graphs = [graph_of(ONE, node, InMemorySaver()) for node in nodes]
    await asyncio.gather(*(graph.ainvoke(GO, CONFIG) for graph in graphs))
    bench.approve(bench.only())

    ended = await asyncio.gather(*(resumed(graph) for graph in graphs))

    assert bench.ran == ["delete 42"]
    assert sum("deleted 42" in told(one) for one in ended) == 1


async def test_a_synchronous_run_pauses_and_goes_on(bench: Bench) -> None:
    def delete_record(record: int) -> str:
        """Delete a record."""
        bench.note(f"delete {record}")
        return f"deleted {record}"

    def model(state: Any) -> Any:
        asked = any(isinstance(message, AIMessage) for message in state["messages"])
        calls = [] if asked else [{"id": "c1", "name": "delete_record", "args": {"record": 42}}]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    State.__annotations__ = {"messages": Annotated[list[Any], add_messages]}
    node = tool_node(bench.guard, [tool_of(bench.guard.sealed(delete_record))], **USER)
    built = StateGraph(State).add_node("model", model).add_node("tools", node).add_edge(START, "model")
    built.add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = built.compile(checkpointer=InMemorySaver())
    graph.invoke(GO, CONFIG)
    graph.invoke(Command(resume=True), CONFIG)
    assert bench.ran == []
    bench.approve(bench.only(), arguments={"record": 43})

    ended = graph.invoke(Command(resume=True), CONFIG)

    assert bench.ran == ["delete 43"]
    assert "A person changed this call" in told(ended)


async def test_messages_under_another_key_are_found(bench: Bench) -> None:
    class State(TypedDict):
        chat: Annotated[list[Any], add_messages]

    State.__annotations__ = {"chat": Annotated[list[Any], add_messages]}
    node = tool_node(bench.guard, [tool_of(bench.sealed["delete_record"])], messages_key="chat", **USER)
    built = StateGraph(State).add_node("tools", node).add_edge(START, "tools").add_edge("tools", END)
    graph = built.compile(checkpointer=InMemorySaver())
    call = {"id": "c1", "name": "delete_record", "args": {"record": 42}}
    earlier = [AIMessage("", tool_calls=[call]), ToolMessage("deleted 42", tool_call_id="c1")]
    await graph.ainvoke({"chat": [*earlier, AIMessage("", tool_calls=[call])]}, CONFIG)
    assert bench.only().occurrence == 1
    bench.approve(bench.only())

    ended = await resumed(graph)

    assert (bench.ran, ended["chat"][-1].content) == (["delete 42"], "deleted 42")


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another"])
async def test_an_outage_after_the_decision_ends_the_run_even_where_errors_become_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    calls = [ONE[0] if alone else MIXED[0][::2]]
    graph = agent_of(bench, *bench.sealed.values(), calls=calls, handle_tool_errors=True)
    await graph.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    def down(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("The store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(bench.guard, "authorize", down)
        with pytest.raises(StoreUnavailableError):
            await resumed(graph)
    assert (bench.ran, bench.state(request)) == ([], "approved")

    await graph.ainvoke(None, CONFIG)

    assert "delete 42" in bench.ran


async def test_an_error_that_the_node_tells_the_model_is_in_doubt(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        """Delete a record."""
        raise RuntimeError("half of it is gone")

    graph = agent_of(bench, delete_record, handle_tool_errors=True)
    await graph.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    ended = await resumed(graph)

    assert "half of it is gone" in told(ended)
    assert bench.state(request) == "in_doubt"


async def test_arguments_that_do_not_fit_are_told_as_the_node_tells_them_and_asked_of_nobody(bench: Bench) -> None:
    calls = [[("c1", "delete_record", {"record": "many"}), ("c2", "gone", {})]]
    graph = agent_of(bench, bench.sealed["delete_record"], calls=calls)

    ended = await graph.ainvoke(GO, CONFIG)

    assert (bench.ran, bench.waiting()) == ([], [])
    assert "Error invoking tool 'delete_record'" in told(ended)
    assert "gone is not a valid tool" in told(ended)


def test_wrappers_of_ones_own_are_refused_where_the_guard_must_stand(bench: Bench) -> None:
    def late(request: Any, execute: Any) -> Any:
        return execute(request.override(tool_call={**request.tool_call, "args": {"record": 99}}))

    options: list[dict[str, Any]] = [{"wrap_tool_call": late}, {"awrap_tool_call": late}]
    for option in options:
        with pytest.raises(ConfigurationError, match="leave out wrap_tool_call"):
            tool_node(bench.guard, [tool_of(bench.tools["look"])], **option)


async def test_the_self_test_finds_another_tool_node_in_the_graph(bench: Bench) -> None:
    node = tool_node(bench.guard, [tool_of(bench.sealed["look"])], **USER)
    built = StateGraph(dict).add_node("tools", node).add_node("more", ToolNode([tool_of(bench.tools["look"])]))
    built.add_edge(START, "tools").add_edge("tools", "more")

    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await node.selftest(built.compile())
