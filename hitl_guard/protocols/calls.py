"""The tool calls that a posted conversation states, in any known format, and which of them have an answer.

An app may run a call from where it is stated, not from where it was approved. So a live approval also has to agree with
every other statement of its call; that is what these are for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import canonical
from ..errors import CanonicalizationError, InvalidApprovalError
from .claims import MISSING, Outcome, member
from .document import Document, Node

_LIMITS = canonical.Limits(max_depth=200, max_nodes=1_000_000, max_bytes=67_108_864)


@dataclass(frozen=True, slots=True)
class Stated:
    """One statement of a tool call. What cannot be read is None, which equals no approved call."""

    tool: Any
    arguments: Any
    node: Node
    answered: bool = False


class Calls:
    """Tool calls and their results by tool-call id, in document order."""

    def __init__(self, document: Document) -> None:
        self._stated: dict[str, list[Stated]] = defaultdict(list)
        self._results: dict[str, list[tuple[str, Node, Outcome]]] = defaultdict(list)
        self._found: dict[tuple[str, Any, str | None], list[tuple[int, Outcome]]] = {}
        for node in document.parts:
            self._part(node)
        for node in document.items:
            self._item(node)
        for node in document.messages:
            self._message(node)
        for statements in self._stated.values():
            statements.sort(key=lambda call: call.node.position)
        self._index()

    def _index(self) -> None:
        """Sort the results once: a hostile body has thousands of one call."""
        for call_id, results in self._results.items():
            for source, node, outcome in results:
                if node.conversation is not None:
                    for kind in (source, None):
                        self._found.setdefault((call_id, node.conversation, kind), []).append((node.position, outcome))
        for found in self._found.values():
            found.sort()

    def stated(self, call_id: str) -> list[Stated]:
        """Return every statement of a call, in document order."""
        return self._stated.get(call_id, [])

    def open(self, call_id: str) -> list[Stated]:
        """Return the statements of a call that an app might run: those without an answer, and the last one."""
        stated = self.stated(call_id)
        earlier = [call for call in stated[:-1] if not call.answered and self.answer(call_id, call.node) is None]
        return earlier + stated[-1:]

    def answer(self, call_id: str, node: Node, kind: str | None = None) -> Outcome | None:
        """Return what the first result of a call after a node says; None: there is none.

        Only the same list of messages counts: a result elsewhere in the body is one that the app does not see.

        Args:
            kind: ``model``, ``mcp`` or ``chat``: results of this format alone. None: of any.
        """
        found = self._found.get((call_id, node.conversation, kind), [])
        place = bisect_right(found, node.position, key=lambda result: result[0])
        return found[place][1] if place < len(found) else None

    def _part(self, node: Node) -> None:
        value, kind = node.value, node.value.get("type")
        call_id = _read(value, "toolCallId")
        if type(call_id) is not str or type(kind) is not str:
            return
        if kind in ("tool-result", "tool-error") and "state" not in value:
            error = kind == "tool-error" or _is_error(value.get("output"))
            self._results[call_id].append(("model", node, "error" if error else "output"))
        elif not kind.startswith("tool-approval-") or "state" in value:
            named = _read(value, "toolName")
            tool = named if kind == "dynamic-tool" or (kind == "tool-call" and named is not None) else kind[5:]
            arguments = value.get("input", value.get("args"))
            answered = value.get("state") in ("output-available", "output-error", "output-denied")
            self._stated[call_id].append(Stated(tool, arguments, node, answered))

    def _item(self, node: Node) -> None:
        value, kind = node.value, node.value["type"]
        if kind in ("function_call", "mcp_approval_request"):
            call_id = value.get("id" if kind == "mcp_approval_request" else "call_id")
            self._state(call_id, value.get("name"), value.get("arguments"), node)
        elif kind == "mcp_call" and type(value.get("approval_request_id")) is str:
            call_id, failed = value["approval_request_id"], value.get("error") is not None
            if failed or value.get("output") is not None:  # else it is still being called
                self._results[call_id].append(("mcp", node, "error" if failed else "output"))
        elif kind == "function_call_output" and type(value.get("call_id")) is str:
            self._results[value["call_id"]].append(("chat", node, "output"))

    def _message(self, node: Node) -> None:
        call_id = _read(node.value, "toolCallId")
        if node.value.get("role") == "tool" and type(call_id) is str:
            self._results[call_id].append(("chat", node, "output"))
        for name in ("tool_calls", "toolCalls"):
            calls = node.value.get(name)
            for call in calls if type(calls) is list else ():
                function = call.get("function") if type(call) is dict else None
                if type(function) is dict:
                    self._state(call.get("id"), function.get("name"), function.get("arguments"), node)

    def _state(self, call_id: Any, tool: Any, arguments: Any, node: Node) -> None:
        if type(call_id) is str:
            self._stated[call_id].append(Stated(tool, parsed(arguments), node))


def parsed(arguments: Any) -> Any:
    """Return what a JSON text of arguments says, or None where it is none."""
    if type(arguments) is not str:
        return None
    try:
        return canonical.parse(arguments, limits=_LIMITS)
    except CanonicalizationError:
        return None


def _read(node: Mapping[str, Any], name: str) -> Any:
    """Return a member, or None where it is missing or there in two spellings: here nothing is refused."""
    try:
        value = member(node, name)
    except InvalidApprovalError:
        return None
    return None if value is MISSING else value


def _is_error(output: Any) -> bool:
    kind = output.get("type") if type(output) is dict else None
    return kind in ("error-text", "error-json", "execution-denied")
