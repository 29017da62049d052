"""A posted body, walked once: where in it approvals, tool calls and results may stand.

The whole body is walked, since only the app knows where it reads its messages. What is not walked is the data of a tool
part in a list named ``parts`` or ``content``: arguments, results and the answer are data, whatever they look like.
All else in such a part is walked: a message does not stop being one because somebody gave it the type of a tool part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .claims import Path

_ITEMS = frozenset({
    "function_call", "function_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call",
})

_DATA = frozenset({"approval", "args", "input", "output", "rawInput", "raw_input", "result"})
"""Members of a tool part that hold data."""

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Node:
    """One JSON object of the body.

    Attributes:
        position: Its number in document order.
        part: Whether it stands in a list of parts.
        owner: The object that has the list (or itself) as a member: of a part, the message. None: there is none.
    """

    value: dict[str, Any]
    path: Path
    position: int
    part: bool
    owner: dict[str, Any] | None

    @property
    def conversation(self) -> Path | None:
        """Where the list of messages or items is that this belongs to; None for what stands in no such list."""
        path = self.path[0][0] if self.part else self.path
        return path[0] if path and type(path[1]) is int else None


class Document:
    """The objects of a body that a parser may care for, in document order.

    Attributes:
        parts: Objects whose ``type`` is that of a tool part (AI SDK), and others in ``parts`` that carry an approval.
        items: Items of OpenAI's Responses format.
        messages: Objects with a list of tool calls, and results of role ``tool`` (chat format, AG-UI).
        resumes: Answers to interrupts (AG-UI).
    """

    def __init__(self, body: Any) -> None:
        self.parts: list[Node] = []
        self.items: list[Node] = []
        self.messages: list[Node] = []
        self.resumes: list[Node] = []
        position = 0
        stack: list[tuple[Any, Path, str, dict[str, Any] | None]] = [(body, (), "", None)]
        while stack:
            value, path, name, owner = stack.pop()
            if type(value) is list:
                place = len(value)
                for item in reversed(value):
                    place -= 1
                    if type(item) is dict or type(item) is list:
                        stack.append((item, (path, place), name, owner))
            elif type(value) is dict:
                position += 1
                data = self._sort(value, path, name, position, owner)
                for key in reversed(value):
                    item = value[key]
                    if (type(item) is dict or type(item) is list) and key not in data:
                        stack.append((item, (path, key), key, value))

    def _sort(
        self, value: dict[str, Any], path: Path, name: str, position: int, owner: dict[str, Any] | None
    ) -> frozenset[str]:
        """Put an object where its parsers find it, whatever else it is; return which of its members are data."""
        kind = value.get("type")
        is_tool = type(kind) is str and (kind.startswith("tool-") or kind == "dynamic-tool")
        places = []
        if is_tool or (name == "parts" and "approval" in value):
            places.append(self.parts)
        if type(kind) is str and kind in _ITEMS:
            places.append(self.items)
        if "tool_calls" in value or "toolCalls" in value or value.get("role") == "tool":
            places.append(self.messages)
        if name == "resume" and ("interruptId" in value or "interrupt_id" in value):
            places.append(self.resumes)
        if not places:
            return _NOTHING  # as nearly every object of a conversation
        node = _node(value, path, name, position, owner)
        for place in places:
            place.append(node)
        return _DATA if is_tool and node.part else _NOTHING


def _node(value: dict[str, Any], path: Path, name: str, position: int, owner: dict[str, Any] | None) -> Node:
    part = name in ("parts", "content") and bool(path) and type(path[1]) is int
    return Node(value, path, position, part, owner)
