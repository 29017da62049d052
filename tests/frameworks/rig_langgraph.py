"""LangGraph: a graph of one's own, whose tool node runs again as a whole when it goes on."""

from __future__ import annotations

from typing import Any, ClassVar

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from hitl_guard.integrations.langgraph import ApprovalToolNode, each_call, tool_node
from tests.frameworks.bench import Setup
from tests.frameworks.rig_langchain import CheckpointRig, Model, delegate_to, mutated, tool_of


def graph_of(script: Any, node: ToolNode, saver: Any, route: Any = tools_condition) -> Any:
    """Return the graph that everybody builds first: a model, its tools, and the model again."""
    model = Model(script=script)

    async def amodel(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", amodel).add_node("tools", node)
    graph.add_edge(START, "model").add_conditional_edges("model", route, ["tools", "__end__"])
    return graph.add_edge("tools", "model").compile(checkpointer=saver)


class LangGraph(CheckpointRig):
    """LangGraph's `ToolNode`, which runs all calls of a turn."""

    name = "langgraph"
    route: ClassVar[Any] = staticmethod(tools_condition)

    def _agent(self, setup: Setup, saver: Any) -> tuple[Any, ApprovalToolNode]:
        options: dict[str, Any] = {"scope": lambda request: setup.facts(), "pause": setup.pause}
        tools = [tool_of(function, name=name) for name, function in setup.bench.sealed.items()]
        if setup.late:
            tools = [mutated(tool) for tool in tools]
        node = tool_node(setup.bench.guard, tools, **options)
        inner = node if setup.guarded else ToolNode(tools)
        graph = graph_of(setup.script, inner, None if setup.inner else saver, self.route)
        if setup.inner:
            outer = tool_node(setup.bench.guard, [delegate_to(graph)], **options)
            graph = graph_of([[("d1", "delegate", {"task": "delete it"})]], outer, saver, self.route)
        return graph, node

    def graph(self, setup: Setup, saver: Any) -> Any:
        return self._agent(setup, saver)[0]

    async def selftest(self, setup: Setup) -> None:
        graph, node = self._agent(setup, None)
        await node.selftest(graph)


class EachCall(LangGraph):
    """The same with each call as a task of its own."""

    route: ClassVar[Any] = staticmethod(each_call)
