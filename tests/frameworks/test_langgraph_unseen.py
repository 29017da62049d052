"""What a self-test of LangChain and LangGraph must find, how a call of any form has ended, and what a provider runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RouterRunnable
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command

from hitl_guard.errors import ApprovalRequired, ConfigurationError
from hitl_guard.guard import Guard
from hitl_guard.integrations.langchain import ApprovalMiddleware
from hitl_guard.integrations.langgraph import ApprovalToolNode, tool_node
from hitl_guard.keyring import Keyring
from hitl_guard.models import ToolCall
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from tests.frameworks.bench import ONE, Bench
from tests.frameworks.rig_langchain import CONFIG, Model, tool_of

GO: dict[str, Any] = {"messages": [HumanMessage("go")]}


def scope(request: Any) -> dict[str, str]:
    return {"user": "ana"}


def agent_of(
    bench: Bench, *tools: Any, script: Any = ONE, before: Any = (), after: Any = (), agent: Any = None, **options: Any
) -> Any:
    guard = ApprovalMiddleware(options.pop("guard", bench.guard), scope=scope, **options)
    return create_agent(
        Model(script=script), list(tools), middleware=[*before, guard, *after], checkpointer=InMemorySaver(),
        **(agent or {}),
    )


def told(state: Any) -> list[str]:
    return [str(one.content) for one in state["messages"] if isinstance(one, ToolMessage)]


def look_node(bench: Bench, *, guarded: bool = True) -> ToolNode:
    tools = [tool_of(bench.tools["look"], name="look")]
    return tool_node(bench.guard, tools, scope=scope) if guarded else ToolNode(tools)


# -- what the self-test finds ------------------------------------------------------------------------------------------


def _after_an_empty_cell(node: ToolNode) -> Any:
    def run(state: Any) -> Any:
        return node.invoke(state) if state else never

    return run
    never: Any = None


def _through_a_helper(node: ToolNode) -> Any:
    def helper(state: Any) -> Any:
        return node.invoke(state)

    return lambda state: helper(state)


NAMED: list[ToolNode] = []


def _of_the_module(node: ToolNode) -> Any:
    NAMED[:] = [node]

    def run(state: Any) -> Any:
        return (lambda: NAMED[0])().invoke(state)

    return run


def _as_a_default(node: ToolNode) -> Any:
    def run(state: Any, *, own: Any = node) -> Any:
        return own.invoke(state)

    return run


class Holder:
    def __init__(self, node: ToolNode) -> None:
        self.tools = {"mine": node}

    def run(self, state: Any) -> Any:
        return self.tools["mine"].invoke(state)

    def __call__(self, state: Any) -> Any:
        return self.run(state)


PLACES: dict[str, Callable[[ToolNode], Any]] = {
    "a function with a variable that is not set yet": _after_an_empty_cell,
    "a function that another one calls": _through_a_helper,
    "a name of the module": _of_the_module,
    "a default": _as_a_default,
    "a method's object": lambda node: Holder(node).run,
    "an object that can be called": Holder,
    "a router": lambda node: RouterRunnable({"a": node}),
}


@pytest.mark.parametrize("place", PLACES)
async def test_the_self_test_finds_a_tool_node_in(bench: Bench, place: str) -> None:
    guarded = look_node(bench)
    assert isinstance(guarded, ApprovalToolNode)

    def graph(node: ToolNode) -> Any:
        built = StateGraph(MessagesState).add_node("inner", PLACES[place](node)).add_edge(START, "inner")
        return built.add_node("tools", guarded).add_edge("inner", "tools").compile()

    await guarded.selftest(graph(look_node(bench)))
    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guarded.selftest(graph(look_node(bench, guarded=False)))


async def test_the_self_test_finds_a_tool_node_in_an_edge(bench: Bench) -> None:
    guarded, bare = look_node(bench), look_node(bench, guarded=False)
    assert isinstance(guarded, ApprovalToolNode)

    def route(state: Any) -> str:
        bare.invoke(state)
        return "tools"

    graph = StateGraph(MessagesState).add_node("tools", guarded).add_conditional_edges(START, route, ["tools"])

    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guarded.selftest(graph.compile())


async def test_the_self_test_comes_to_an_end_in_a_graph_that_calls_itself(bench: Bench) -> None:
    guarded, made = look_node(bench), dict[str, Any]()
    assert isinstance(guarded, ApprovalToolNode)
    graph = StateGraph(MessagesState).add_node("tools", guarded).add_edge(START, "tools")
    graph.add_node("again", lambda state: made["graph"].invoke(state)).add_edge("tools", "again")
    made["graph"] = graph.compile()

    await guarded.selftest(made["graph"])

    assert bench.waiting() == []


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_what_a_guarded_tool_does_is_its_own(bench: Bench, way: str) -> None:
    child = create_agent(Model(script=[]), [tool_of(bench.tools["look"], name="look")])

    def delegate(task: str) -> str:
        """Delegate a task."""
        return str(child.invoke({"messages": [HumanMessage(task)]}))

    async def adelegate(task: str) -> str:
        """Delegate a task."""
        return str(await child.ainvoke({"messages": [HumanMessage(task)]}))

    guard = ApprovalMiddleware(bench.guard, scope=scope)
    tool = tool_of(delegate if way == "sync" else adelegate)

    await guard.selftest(create_agent(Model(script=[]), [tool], middleware=[guard]))
    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guard.selftest(child)


async def test_the_self_test_takes_a_tool_node_that_gets_another_state_than_the_graph(bench: Bench) -> None:
    class Chat(TypedDict):
        chat: Annotated[list[Any], add_messages]

    Chat.__annotations__ = {"chat": Annotated[list[Any], add_messages]}
    guarded, bare = look_node(bench), look_node(bench, guarded=False)
    assert isinstance(guarded, ApprovalToolNode)

    def graph(node: ToolNode) -> Any:
        return StateGraph(Chat).add_node("in", lambda state: node.invoke(state["chat"])).add_edge(START, "in").compile()

    await guarded.selftest(graph(guarded))
    with pytest.raises(ConfigurationError, match="not stopped by this guard"):
        await guarded.selftest(graph(bare))


# -- how a call has ended ----------------------------------------------------------------------------------------------


@dataclass
class Update:
    messages: list[Any]


def _message(call: str, status: str) -> ToolMessage:
    return ToolMessage("what came of it", tool_call_id=call, status="error" if status == "error" else "success")


def _mapping(call: str, status: str) -> dict[str, Any]:
    return {"role": "tool", "content": "what came of it", "tool_call_id": call, "status": status}


FORMS: dict[str, Callable[[str, str], Any]] = {
    "a mapping": lambda call, status: Command(update={"messages": [_mapping(call, status)]}),
    "an object": lambda call, status: Command(update=Update([_message(call, status)])),
    "pairs": lambda call, status: Command(update=(("messages", [_message(call, status)]),)),
    "a history": lambda call, status: Command(
        update={"messages": [ToolMessage("earlier trouble", tool_call_id="d9", status="error"), _message(call, status)]}
    ),
}


def ending(bench: Bench, form: str, status: str) -> Any:
    async def delete_record(record: int, call: Annotated[str, InjectedToolCallId]) -> Any:
        """Delete a record."""
        bench.note(f"delete {record}")
        return FORMS[form](call, status)

    return agent_of(bench, tool_of(delete_record))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("status", "state"), [("error", "in_doubt"), ("success", "succeeded")])
async def test_an_error_of_the_call_is_no_success_in_whatever_form_a_command_has_it(
    bench: Bench, form: str, status: str, state: str
) -> None:
    agent = ending(bench, form, status)
    await agent.ainvoke(GO, CONFIG)
    request = bench.only()
    bench.approve(request)

    ended = await agent.ainvoke(Command(resume=True), CONFIG)

    assert (bench.state(request), told(ended)[-1]) == (state, "what came of it")


@pytest.mark.parametrize("form", FORMS)
async def test_the_model_hears_of_a_changed_call_in_whatever_form_a_command_has_its_result(
    bench: Bench, form: str
) -> None:
    agent = ending(bench, form, "success")
    await agent.ainvoke(GO, CONFIG)
    bench.approve(bench.only(), arguments={"record": 43})

    ended = await agent.ainvoke(Command(resume=True), CONFIG)

    assert bench.ran == ["delete 43"]
    assert told(ended)[-1].startswith("A person changed this call")
    assert told(ended)[-1].endswith("what came of it")


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("told_by_the_node", [True, False])
async def test_what_stops_a_call_inside_an_approved_tool_is_an_error_of_the_tool(
    bench: Bench, way: str, told_by_the_node: bool
) -> None:
    inner = bench.guard.tool(bench.tools["pay"], name="pay", require_approval=True)

    def delete_record(record: int) -> str:
        """Delete a record, and pay for it."""
        bench.note(f"delete {record}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(inner(amount=1))

    node = tool_node(bench.guard, [tool_of(delete_record)], scope=scope, handle_tool_errors=told_by_the_node)
    graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    call = {"id": "c1", "name": "delete_record", "args": {"record": 42}}

    async def run(given: Any) -> Any:
        return agent.invoke(given, CONFIG) if way == "sync" else await agent.ainvoke(given, CONFIG)

    await run({"messages": [AIMessage("", tool_calls=[call])]})
    request = bench.only()
    bench.approve(request)
    if told_by_the_node:
        ended = await run(Command(resume=True))
        assert (ended.get("__interrupt__"), "needs an approval" in told(ended)[-1]) == (None, True)
    else:
        with pytest.raises(ApprovalRequired) as stopped:
            await run(Command(resume=True))
        assert stopped.value.request.tool == "pay"

    assert (bench.ran, bench.state(request), bench.only().tool) == (["delete 42"], "in_doubt", "pay")


# -- what the framework fills in ---------------------------------------------------------------------------------------


class Owned(AgentState[Any]):
    owner: str


async def test_nobody_is_shown_what_a_model_says_of_a_parameter_that_the_framework_fills_in(bench: Bench) -> None:
    async def delete_record(owner: Annotated[str, InjectedState("owner")], **arguments: Any) -> str:
        bench.note(f"{owner} {arguments}")
        return "deleted"

    delete_record.__annotations__["owner"] = Annotated[str, InjectedState("owner")]
    schema = {"type": "object", "properties": {"record": {"type": "integer"}}, "required": ["record"]}
    tool = StructuredTool(
        name="delete_record", description="Deletes.", args_schema=schema, coroutine=delete_record, func=None
    )
    forged = [[("c1", "delete_record", {"record": 42, "owner": "somebody harmless"})]]
    agent = agent_of(bench, tool, script=forged, agent={"state_schema": Owned}, trusted_state=["owner"])
    await agent.ainvoke({**GO, "owner": "boss"}, CONFIG)
    assert bench.only().arguments == {"record": 42}
    bench.approve(bench.only())

    await agent.ainvoke(Command(resume=True), CONFIG)

    assert bench.ran == ["boss {'record': 42}"]


def of_the_owner(bench: Bench, name: str) -> Any:
    async def delete(owner: Any) -> str:
        """Delete everything of the owner that is chosen."""
        bench.note(f"{name} of {owner}")
        return "deleted"

    delete.__annotations__ = {"owner": Annotated[str, InjectedState("owner")], "return": str}
    return tool_of(delete, name=name)


async def test_a_policy_may_let_a_call_run_whose_argument_comes_from_the_state(bench: Bench) -> None:
    source = b"version: 1\nname: p\ndefault: deny\nrules:\n  - {id: all, tools: [delete_record], effect: allow}\n"
    allowing = Guard(
        policy=Policy.of(PolicyDocument.from_source(source, "p.yaml")), store=bench.store,
        keyring=Keyring.from_file(bench.folder / "keys.json"),
    )
    agent = agent_of(
        bench, of_the_owner(bench, "delete_record"), script=[[("c1", "delete_record", {})]], guard=allowing,
        agent={"state_schema": Owned},
    )

    await agent.ainvoke({**GO, "owner": "boss"}, CONFIG)
    allowing.close()

    assert bench.ran == ["delete_record of boss"]


async def test_a_persons_yes_that_the_app_asked_for_covers_no_argument_from_the_state(bench: Bench) -> None:
    tool = of_the_owner(bench, "look")
    gate = ApprovalMiddleware(bench.guard)._gate  # makes the very call that the adapter will make
    seen: list[ToolCall] = []

    class Asking(AgentMiddleware[Any, Any]):
        """Asks a person although the policy would not, as an app may."""

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            with bench.guard.context(user="ana", run_id="thread"):
                seen.append(gate._call(request))
            bench.approve(bench.guard.request(seen[0]))
            return await handler(request)

    agent = agent_of(
        bench, tool, script=[[("c1", "look", {})]], before=[Asking()], agent={"state_schema": Owned}
    )

    with pytest.raises(ConfigurationError, match="trusted_state"):
        await agent.ainvoke({**GO, "owner": "boss"}, CONFIG)
    assert (len(seen), bench.ran) == (1, [])


# -- what the model's provider runs ------------------------------------------------------------------------------------


async def asked(agent: Any, way: str) -> str:
    ended = agent.invoke(GO, CONFIG) if way == "sync" else await agent.ainvoke(GO, CONFIG)
    return str(ended["messages"][-1].content)


async def test_a_tool_that_only_its_member_names_is_refused_unless_the_app_names_each(bench: Bench) -> None:
    tool: dict[str, Any] = {"google_search": {}, "code_execution": {}}
    half = agent_of(bench, tool, script=[], uncovered=["google_search"])
    whole = agent_of(bench, tool, script=[], uncovered=["google_search", "code_execution"])

    with pytest.raises(ConfigurationError, match="guard: code_execution"):
        await asked(half, "async")
    assert await asked(whole, "async") == "done"


@pytest.mark.parametrize("tool", [
    {"name": "look", "parameters": {"type": "object", "properties": {}}},
    {"name": "look", "input_schema": {"type": "object", "properties": {}}},
    {"title": "look", "type": "object", "properties": {}},
    {"function_declarations": [{"name": "look"}]},
], ids=["a function", "an input schema", "a JSON schema", "declarations"])
async def test_what_is_only_declared_to_the_model_is_the_apps_own(bench: Bench, tool: dict[str, Any]) -> None:
    assert await asked(agent_of(bench, tool, script=[]), "async") == "done"


class Offering(AgentMiddleware[Any, Any]):
    """Changes what the model is asked, as the innermost or an outer middleware."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self.change(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self.change(request))


SEARCH = {"type": "web_search"}
OFFERS: dict[str, Callable[[Any], Any]] = {
    "a tool": lambda request: request.override(tools=[*request.tools, SEARCH]),
    "a setting": lambda request: request.override(model_settings={"tools": [SEARCH]}),
    "a model that it was bound to": lambda request: request.override(model=request.model.bind(tools=[SEARCH])),
    "an object": lambda request: request.override(tools=[AIMessage("no tool")]),
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("way", ["sync", "async"])
async def test_what_a_middleware_lets_the_provider_run_is_refused(bench: Bench, offer: str, way: str) -> None:
    agent = agent_of(bench, script=[], before=[Offering(OFFERS[offer])])

    with pytest.raises(ConfigurationError, match="web_search" if offer != "an object" else "AIMessage"):
        await asked(agent, way)


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_middleware_that_could_add_such_tools_further_inside_is_refused(bench: Bench, way: str) -> None:
    agent = agent_of(bench, script=[], after=[Offering(OFFERS["a tool"])])

    with pytest.raises(ConfigurationError, match="last in the list"):
        await asked(agent, way)
