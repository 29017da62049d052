"""The self-test of LangChain's and LangGraph's adapters: a canary call through every tool node that can be found."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt.tool_node import ToolNode
from langgraph.pregel import Pregel

from ..errors import ConfigurationError
from .bridge import Bridge

_FRAMEWORK = ("langchain", "langchain_core", "langgraph", "langsmith")
"""Packages whose functions name no tool nodes of the app in their modules."""


async def selftest(bridge: Bridge, graph: Pregel) -> None:
    """Run a canary call through every tool node of a compiled graph, sync and async, behind their own wrappers.

    They are looked for in the graph's nodes and edges: in graphs, in runnables of any kind, and in what functions and
    objects with methods hold or name (closures, attributes, the module's own names). What a guarded tool does is its
    own. Not seen: a node that calls a tool itself, that makes its tool node when it runs or takes it from elsewhere
    (the configuration, an attribute of another object), and graphs on a server.

    Raises:
        ConfigurationError: one of them let it run, or there is none. Do not start.
    """
    nodes = list(_tool_nodes(graph))
    if not nodes:
        raise ConfigurationError("The graph has no tool node: nothing in it is guarded.")
    for owner, node in nodes:
        with bridge.canary() as canary:
            tool = StructuredTool.from_function(canary.tool, name=canary.name, description="A self-test's tool.")
            probe = ToolNode(
                [tool], messages_key=node._messages_key, handle_tool_errors=node._handle_tool_errors,
                wrap_tool_call=node._wrap_tool_call, awrap_tool_call=node._awrap_tool_call,
            )
            built = StateGraph(_schema(owner, node._messages_key)).add_node("tools", probe).add_edge(START, "tools")
            ready = built.compile(checkpointer=InMemorySaver())
            for way, invoke in (("async", ready.ainvoke), ("sync", ready.invoke)):
                call = {"name": canary.name, "args": {}, "id": f"canary-{way}"}
                given = {node._messages_key: [AIMessage("", tool_calls=[call])]}
                with suppress(NotImplementedError):  # a middleware that has not this way: nor can a run go it
                    ended = invoke(given, {"configurable": {"thread_id": way}})
                    if way == "async":
                        await ended


def _schema(graph: Pregel, messages_key: str) -> Any:
    """Return the state that the graph's nodes get; any, where the tool node must get another."""
    return graph.builder.state_schema if messages_key in graph.channels and hasattr(graph, "builder") else dict


def _tool_nodes(graph: Pregel) -> Iterator[tuple[Pregel, ToolNode]]:
    """Yield each tool node that can be reached from a graph, with the innermost graph that it was found in."""
    seen: dict[int, Any] = {}  # by id; held here, so that no id is given anew
    left: list[tuple[Pregel, Any]] = [(graph, graph)]
    while left:
        owner, thing = left.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, ToolNode):
            yield owner, thing
        elif isinstance(thing, Pregel):
            left += [(thing, part) for node in thing.nodes.values() for part in (node.bound, node.writers)]
        else:
            left += [(owner, part) for part in _parts(thing)]


def _parts(thing: Any) -> Iterator[Any]:
    """Yield what a thing may run: what a runnable, a container, a function or an object that can be called holds."""
    if isinstance(thing, (type, BaseTool, BaseLanguageModel)):
        return  # a tool is run by a tool node, and it is for that one to guard it
    if isinstance(thing, Mapping):
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
        yield from () if isinstance(thing.__self__, Runnable) else getattr(thing.__self__, "__dict__", {}).values()
    elif isinstance(thing, FunctionType):
        yield from _named(thing)
    elif isinstance(thing, Runnable) or callable(thing):
        yield from getattr(thing, "__dict__", {}).values()
        if callable(thing):
            yield type(thing).__call__


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield what a function's code can name: what it closed over, its defaults, and what is in its module."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # still empty
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)
    package = function.__module__.partition(".")[0]
    if package in _FRAMEWORK:
        return
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        # Other packages' functions name nothing of the app's.
        if not isinstance(value, FunctionType) or value.__module__.partition(".")[0] == package:
            yield value


def _global_names(code: CodeType) -> set[str]:
    """Return the names of its module that a function uses, those of functions inside it too."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(one) for one in code.co_consts if isinstance(one, CodeType)))
