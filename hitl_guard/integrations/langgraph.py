"""LangGraph: a `ToolNode` whose tools each ask the guard, for graphs of one's own.

``graph.add_node("tools", tool_node(guard, tools, scope=...))``. A call that waits is an `interrupt`; whatever
``Command(resume=...)`` says is a hint: the store is asked. LangGraph runs a paused node again from its start, and the
store can only know what needed an approval. So the node decides first, for every call of the turn, and nothing of it
runs while one call waits. With `each_call` in place of ``tools_condition`` each call is a task of its own, as in
``create_agent``: calls that wait hold nobody up, and LangGraph keeps the results of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import RunnableConfig, run_in_executor
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.graph import END
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Send

from ..aio import AsyncGuard
from ..errors import ConfigurationError, UnavailableError
from ..guard import Guard
from ..models import ApprovalRequest
from .langgraph_gate import AsyncHandler, Gate, Handler, Scope, history, pause, use_up
from .langgraph_selftest import selftest


def tool_node(
    guard: Guard | AsyncGuard, tools: Sequence[BaseTool | Callable[..., Any]], *, scope: Scope | None = None,
    pause: str = "native", effects: Mapping[str, str] | None = None, trusted_state: Iterable[str] = (), **options: Any,
) -> ApprovalToolNode:
    """Return a `ToolNode` whose tools run through the guard only.

    Args:
        scope: From the `ToolCallRequest` to the call's facts, e.g. ``lambda request: {"user":
            request.runtime.context.user}``. The run id is the thread's, and the user the one whom a LangGraph server
            authenticated, unless it says others. Take nothing from ``request.state``: it is read from the
            checkpoint.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`.
        trusted_state: Fields of the graph's state that tools may get as parameters (``InjectedState("field")``) in
            calls that need a person, although nobody is shown them. The whole state, the store and the runtime are a
            tool's own business.
        options: As `ToolNode` takes them.

    Raises:
        ConfigurationError: the options have wrappers of their own, which would stand where the guard must.
    """
    if options.keys() & {"wrap_tool_call", "awrap_tool_call"}:
        raise ConfigurationError(
            "'tool_node' wraps the calls itself: leave out wrap_tool_call, or use create_agent with middleware."
        )
    gate = Gate(
        guard, scope=scope, pause=pause, effects=effects, trusted_state=trusted_state,
        messages_key=options.get("messages_key", "messages"),
    )
    return ApprovalToolNode(gate, tools, options)


def each_call(state: Any, messages_key: str = "messages", node: str = "tools") -> list[Send] | str:
    """Send each tool call of the last answer to the node as a task of its own; a router like ``tools_condition``."""
    messages = history(state, messages_key)
    calls = messages[-1].tool_calls if messages and isinstance(messages[-1], AIMessage) else []
    return [Send(node, [call]) for call in calls] or END


class ApprovalToolNode(ToolNode):
    """Made by `tool_node`. It asks for every call of the turn before any tool runs."""

    def __init__(self, gate: Gate, tools: Sequence[BaseTool | Callable[..., Any]], options: Mapping[str, Any]) -> None:
        super().__init__(tools, wrap_tool_call=self._guarded, awrap_tool_call=self._aguarded, **options)
        self._gate = gate
        self._asker = ToolNode(
            list(self.tools_by_name.values()), messages_key=options.get("messages_key", "messages"),
            handle_tool_errors=False, wrap_tool_call=self._ask, awrap_tool_call=self._aask,
        )
        gate.bridge.know(self.tools_by_name)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the turn's calls, once all of them may run.

        Raises:
            ConfigurationError: a tool paused by itself beside others of the turn, which would run again.
            UnavailableError: nobody can tell; the tools did not run.
        """
        alone = True
        if self._gate.bridge.pause == "native":
            alone = self._decided(self._asker.invoke(input, config, **kwargs))
        with _ending(alone):
            return super().invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Do the same in a task."""
        alone = True
        if self._gate.bridge.pause == "native":
            alone = self._decided(await self._asker.ainvoke(input, config, **kwargs))
        with _ending(alone):
            return await super().ainvoke(input, config, **kwargs)

    def _decided(self, answers: Any) -> bool:
        """Pause while one of the turn's calls waits; then return whether there is only one."""
        messages = answers if isinstance(answers, list) else next(iter(answers.values()))
        asked = [message.artifact for message in messages]
        if waiting := [one for one in asked if isinstance(one, ApprovalRequest)]:
            pause(waiting)
        if any(asked):
            use_up()
        return len(asked) < 2

    def _ask(self, request: ToolCallRequest, handler: Handler) -> ToolMessage:
        asked = self._gate.asked(request)
        return ToolMessage("", tool_call_id=request.tool_call["id"] or "", artifact=asked)

    async def _aask(self, request: ToolCallRequest, handler: AsyncHandler) -> ToolMessage:
        return await run_in_executor(None, self._ask, request, handler)

    def _guarded(self, request: ToolCallRequest, handler: Handler) -> Any:
        with _aborting():
            return handler(request) if request.tool is None else self._gate.run(request, handler, _late)

    async def _aguarded(self, request: ToolCallRequest, handler: AsyncHandler) -> Any:
        with _aborting():
            return await (handler(request) if request.tool is None else self._gate.arun(request, handler, _late))

    async def selftest(self, graph: Pregel) -> None:
        """Run a canary call through every tool node of a compiled graph.

        See `hitl_guard.integrations.langgraph_selftest.selftest` for what cannot be seen.

        Raises:
            ConfigurationError: one of them let it run, or there is none. Do not start.
        """
        await selftest(self._gate.bridge, graph)


def _late(request: ApprovalRequest) -> None:
    """Let the model hear that a call waits which did not when the turn was decided: other tools of it run already."""


@contextmanager
def _aborting() -> Iterator[None]:
    """Keep what must end the run from a node that makes messages of errors."""
    try:
        yield
    except (ConfigurationError, UnavailableError) as error:
        raise GraphBubbleUp from error


@contextmanager
def _ending(alone: bool) -> Iterator[None]:
    try:
        yield
    except GraphInterrupt as paused:
        if alone:
            raise
        raise ConfigurationError(
            "A tool paused by itself beside others, which would run again: route each call on its own, by 'each_call'."
        ) from paused
    except GraphBubbleUp as signal:
        if isinstance(signal.__cause__, (ConfigurationError, UnavailableError)):
            raise signal.__cause__ from None
        raise
