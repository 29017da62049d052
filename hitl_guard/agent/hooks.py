"""What a host may do around each run of a tool. A hook sees the arguments that were signed, and cannot change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .functions import start
from .shapes import copied
from .tools import ToolContext

if TYPE_CHECKING:
    from .work import Node


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions, sync or async, that are called around each run of a tool; those of a request replace the agent's.

    Attributes:
        before_tool_call: Called with ``{"toolName", "input", "context", "metadata": {"agentId", "agentName"}}`` right
            before ``execute``: not while a call waits, and not for a declined one. Returning ``{"proceed": False,
            "output": value}`` skips the tool and makes ``value`` its result; returning None proceeds.
        after_tool_call: Called with the same and ``"output"`` after ``execute`` has returned.

    Raises:
        ConfigurationError: a hook is no function.
    """

    before_tool_call: Callable[[dict[str, Any]], Any] | None = None
    after_tool_call: Callable[[dict[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        for hook in (self.before_tool_call, self.after_tool_call):
            if hook is not None and not callable(hook):
                raise ConfigurationError("A hook is a function, or None.")


async def before(node: Node, tool: str, args: dict[str, Any], context: ToolContext) -> tuple[Any] | None:
    """Call the hook before a tool. Returns the value that takes the tool's place, in a tuple; None: run the tool.

    Raises:
        ConfigurationError: the hook returned something that it may not; the tool does not run.
    """
    hook = _hook(node, "before_tool_call")
    if hook is None:
        return None
    answer = await start(hook, (_info(node, tool, args, context),))
    if answer is None or (isinstance(answer, Mapping) and answer.get("proceed") is True):
        return None
    if not isinstance(answer, Mapping) or answer.get("proceed") is not False:
        raise ConfigurationError("before_tool_call returns None, or a mapping with 'proceed' and 'output'.")
    return (answer.get("output"),)


async def after(node: Node, tool: str, args: dict[str, Any], output: Any, context: ToolContext) -> None:
    """Call the hook after a tool."""
    hook = _hook(node, "after_tool_call")
    if hook is not None:
        await start(hook, (_info(node, tool, args, context) | {"output": copied(output)},))


def _hook(node: Node, name: str) -> Callable[[dict[str, Any]], Any] | None:
    own: Callable[[dict[str, Any]], Any] | None = getattr(node.drive.hooks, name, None)
    agents: Callable[[dict[str, Any]], Any] | None = getattr(node.agent.hooks, name)
    return agents if own is None else own


def _info(node: Node, tool: str, args: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    metadata = {"agentId": node.agent.id, "agentName": node.agent.id}
    return {"context": context, "input": copied(args), "metadata": metadata, "toolName": tool}
