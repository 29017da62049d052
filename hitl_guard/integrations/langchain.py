"""LangChain: the last middleware of an agent, which stands around each tool where no other hook comes after it.

``create_agent(model, tools, middleware=[..., ApprovalMiddleware(guard)], checkpointer=...)``. A call that waits is an
`interrupt` of its own; whatever ``Command(resume=...)`` says is a hint: the store is asked. Each call is a task of its
own, so that calls beside it run once. Tools that a provider runs never come by here, and are refused unless you name
them. For a graph of one's own see `hitl_guard.integrations.langgraph`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolInvocationError, ToolNode
from langgraph.pregel import Pregel

from ..aio import AsyncGuard
from ..errors import ConfigurationError
from ..guard import Guard
from ..models import ApprovalRequest
from .langgraph import tool_node
from .langgraph_gate import AsyncHandler, Gate, Handler, Scope, misfit, names_of, pause
from .langgraph_selftest import selftest

__all__ = ["ApprovalMiddleware", "tool_node"]

_MODEL_HANDLERS = ("_execute_model_sync", "_execute_model_async")
"""What `create_agent` gives the innermost middleware to call the model with."""

_DECLARED = frozenset({"functionDeclarations", "function_declarations", "toolSpec"})
"""Members of a tool that declare functions, whose calls come back to the app."""


class ApprovalMiddleware(AgentMiddleware):
    """Asks the guard before every tool of an agent. It must be the last middleware that wraps calls of tools or of the
    model.

    Args:
        scope: From the `ToolCallRequest` to the call's facts, e.g. ``lambda request: {"user":
            request.runtime.context.user}``. The run id is the thread's, and the user the one whom a LangGraph server
            authenticated, unless it says others. Take nothing from ``request.state``: it is read from the
            checkpoint.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. ``native`` needs a checkpointer, as `interrupt`.
        trusted_state: See `hitl_guard.integrations.langgraph.tool_node`.
        uncovered: Tools that the model's provider runs, and that may run without the guard, by name or type, or by the
            member that names them (``google_search``). What the model object itself was made with is not seen, but
            for what was bound to it.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Scope | None = None, pause: str = "native",
        effects: Mapping[str, str] | None = None, trusted_state: Iterable[str] = (), uncovered: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._gate = Gate(guard, scope=scope, pause=pause, effects=effects, trusted_state=trusted_state)
        self._uncovered = names_of("uncovered", uncovered)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model, unless its provider would run tools.

        Raises:
            ConfigurationError: it would, and nobody named them; or another middleware could still add some.
        """
        self._check_model(request, handler)
        return handler(request)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Do the same in a task."""
        self._check_model(request, handler)
        return await handler(request)

    def _check_model(self, request: ModelRequest[Any], handler: Any) -> None:
        if getattr(handler, "__name__", None) not in _MODEL_HANDLERS:
            raise ConfigurationError(
                "Another middleware wraps model calls further inside: put ApprovalMiddleware last in the list."
            )
        kinds = [kind for tool in _offered(request) for kind in _provided(tool) if not kind & self._uncovered]
        if kinds:
            names = ", ".join(sorted("/".join(sorted(kind)) for kind in kinds))
            raise ConfigurationError(f"The model's provider runs these without the guard: {names}. See 'uncovered'.")

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> Any:
        """Run a tool if it may.

        Raises:
            ConfigurationError: another middleware stands further inside, or nobody says for whom the call is.
            UnavailableError: nobody can tell; the tool did not run.
        """
        if not self._guards(request, handler):
            return handler(request)
        try:
            return self._gate.run(request, handler, _pause)
        except ToolInvocationError as error:
            return misfit(request, error)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncHandler) -> Any:
        """Do the same in a task."""
        if not self._guards(request, handler):
            return await handler(request)
        try:
            return await self._gate.arun(request, handler, _pause)
        except ToolInvocationError as error:
            return misfit(request, error)

    def _guards(self, request: ToolCallRequest, handler: Any) -> bool:
        """Return whether there is a tool at all: else the framework tells the model which there are."""
        if getattr(handler, "__module__", None) != ToolNode.__module__:
            raise ConfigurationError(
                "Another middleware wraps tool calls further inside: put ApprovalMiddleware last in the list."
            )
        self._gate.bridge.know(tool.name for tool in getattr(request.runtime, "tools", ()))
        return request.tool is not None

    async def selftest(self, agent: Pregel) -> None:
        """Run a canary call through the agent's own middleware, and that of the graphs in it.

        See `hitl_guard.integrations.langgraph_selftest.selftest` for what cannot be seen.

        Raises:
            ConfigurationError: it ran, or this is not the last middleware. Do not start.
        """
        await selftest(self._gate.bridge, agent)


def _pause(request: ApprovalRequest) -> None:
    pause([request])


def _offered(request: ModelRequest[Any]) -> Iterator[Any]:
    """Yield every tool that the model is told of."""
    yield from request.tools
    yield from request.model_settings.get("tools") or ()
    model: Any = request.model
    while isinstance(model, RunnableBindingBase):
        yield from model.kwargs.get("tools") or ()
        model = model.bound


def _provided(tool: Any) -> list[set[str]]:
    """Return what of a tool the model's provider runs: of each, the names by which an app may name it."""
    if isinstance(tool, BaseTool) or callable(tool):
        return []
    if not isinstance(tool, Mapping):
        return [{type(tool).__name__}]
    kind, name = tool.get("type"), tool.get("name")
    if kind in ("function", "custom") or (kind is None and name is not None) or (kind == "object" and "title" in tool):
        return []  # declared as JSON; its call comes back, and there is no tool for it here
    if kind is not None:
        return [{str(one) for one in (kind, name) if one is not None}]
    return [{str(member)} for member in tool if member not in _DECLARED]
