"""The tool calls that a posted conversation states, in any known format, and which of them have an answer.

An app may run a call from where it is stated, not from where it was approved. So a live approval also has to agree with
every other statement of its call; that is what these are for.

Statements are taken from wherever they may stand. A result counts only where the readers of its format find it, spelled
as what it answers: one that the app does not see would make it run again what looks like history here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from .. import canonical
from ..errors import CanonicalizationError
from .claims import MISSING, Outcome, malformed, member
from .document import Document, Node
from .echo import alike

_LIMITS = canonical.Limits(max_depth=200, max_nodes=1_000_000, max_bytes=67_108_864)


@dataclass(frozen=True, slots=True)
class Stated:
    """One statement of a tool call. What cannot be read is None, which equals no approved call.

    Attributes:
        kind: What its results are in: ``model``, ``item``, ``mcp`` or ``chat``; ``ui``: in itself alone.
        snake: Whether its id is spelled in snake case.
        answered: Whether it has its result in itself.
    """

    tool: Any
    arguments: Any
    node: Node
    kind: str
    snake: bool = False
    answered: bool = False


class Calls:
    """Tool calls and their results by tool-call id, in document order.

    Raises:
        InvalidApprovalError: one has its id, name or arguments twice, so that two readers would see two (``detail``
            malformed).
    """

    def __init__(self, document: Document) -> None:
        self._stated: dict[str, list[Stated]] = defaultdict(list)
        self._found: dict[tuple[Any, ...], list[tuple[int, Outcome]]] = defaultdict(list)
        for node in document.parts:
            self._part(node)
        for node in document.items:
            self._item(node)
        for node in document.messages:
            self._message(node)
        for statements in self._stated.values():
            statements.sort(key=lambda call: call.node.position)
        for found in self._found.values():
            found.sort()  # once: a hostile body has thousands of one call

    def stated(self, call_id: str) -> list[Stated]:
        """Return every statement of a call, in document order."""
        return self._stated.get(call_id, [])

    def open(self, call_id: str) -> list[Stated]:
        """Return the statements of a call that an app might run: those without an answer, and the last one."""
        stated = self.stated(call_id)
        earlier = [
            call for call in stated[:-1]
            if not call.answered and self.answer(call_id, call.node, call.kind, snake=call.snake) is None
        ]
        return earlier + stated[-1:]

    def answer(self, call_id: str, node: Node, kind: str, *, snake: bool = False) -> Outcome | None:
        """Return what the first result of a call after a node says; None: there is none.

        Only the same list of messages counts: a result elsewhere in the body is one that the app does not see.

        Args:
            kind: The format whose results count (see `Stated`).
            snake: How the results spell the call's id.
        """
        found = self._found.get(_place(call_id, node, kind, snake), [])
        place = bisect_right(found, node.position, key=lambda result: result[0])
        return found[place][1] if place < len(found) else None

    def _part(self, node: Node) -> None:
        value, kind = node.value, node.value.get("type")
        call_id = member(value, "toolCallId")
        if type(call_id) is not str or type(kind) is not str:
            return
        snake, finished = "tool_call_id" in value, kind in ("tool-result", "tool-error") and "state" not in value
        if kind == "tool-result" and finished and _is_told(node):
            self._result(call_id, node, "model", "error" if _is_error(value.get("output")) else "output", snake)
        elif finished:
            if "input" in value or "args" in value:  # some results repeat their call
                self._stated[call_id].append(_stated(node, kind, True, snake))
        elif not kind.startswith("tool-approval-") or "state" in value:
            self._stated[call_id].append(_stated(node, kind, kind == "tool-call", snake))

    def _item(self, node: Node) -> None:
        value, kind = node.value, node.value["type"]
        if kind == "function_call":
            self._state(value.get("call_id"), value, node, "item")
        elif kind == "mcp_approval_request":
            self._state(value.get("id"), value, node, "mcp")
        elif kind == "mcp_call" and type(value.get("approval_request_id")) is str:
            call_id, failed = value["approval_request_id"], value.get("error") is not None
            if failed or value.get("output") is not None:  # else it is still being called
                self._result(call_id, node, "mcp", "error" if failed else "output")
        elif kind == "function_call_output" and type(value.get("call_id")) is str:
            self._result(value["call_id"], node, "item", "output")

    def _message(self, node: Node) -> None:
        call_id = member(node.value, "toolCallId")
        if node.value.get("role") == "tool" and type(call_id) is str:
            self._result(call_id, node, "chat", "output", "tool_call_id" in node.value)
        for name in ("tool_calls", "toolCalls"):
            calls = node.value.get(name)
            for call in calls if type(calls) is list else ():
                function = call.get("function") if type(call) is dict else None
                if type(function) is dict:
                    self._state(call.get("id"), function, node, "chat", name == "tool_calls")

    def _state(self, call_id: Any, call: dict[str, Any], node: Node, kind: str, snake: bool = False) -> None:
        if type(call_id) is str:
            arguments = parsed(call.get("arguments"))
            self._stated[call_id].append(Stated(call.get("name"), arguments, node, kind, snake))

    def _result(self, call_id: str, node: Node, kind: str, outcome: Outcome, snake: bool = False) -> None:
        if node.conversation is not None:
            self._found[_place(call_id, node, kind, snake)].append((node.position, outcome))


def _place(call_id: str, node: Node, kind: str, snake: bool) -> tuple[Any, ...]:
    return call_id, node.conversation, node.part, kind, snake


def _is_told(node: Node) -> bool:
    """Whether a result of model messages stands where it must: in the content of a message with the role ``tool``."""
    return node.part and node.path[0][1] == "content" and (node.owner or {}).get("role") == "tool"


def _stated(node: Node, kind: str, by_name: bool, snake: bool) -> Stated:
    """Return the statement in a part, whose type names the tool where the part itself does not."""
    value = node.value
    named = member(value, "toolName")
    tool = named if kind == "dynamic-tool" or (by_name and named is not MISSING) else kind[5:]
    if "input" in value and "args" in value and not alike(value["input"], value["args"]):
        malformed("the arguments of a call are there twice")
    answered = value.get("state") in ("output-available", "output-error", "output-denied")
    return Stated(
        None if tool is MISSING else tool, value.get("input", value.get("args")), node, "model" if by_name else "ui",
        snake, answered,
    )


def parsed(arguments: Any) -> Any:
    """Return what a JSON text of arguments says, or None where it is none."""
    if type(arguments) is not str:
        return None
    try:
        return canonical.parse(arguments, limits=_LIMITS)
    except CanonicalizationError:
        return None


def _is_error(output: Any) -> bool:
    kind = output.get("type") if type(output) is dict else None
    return kind in ("error-text", "error-json", "execution-denied")
