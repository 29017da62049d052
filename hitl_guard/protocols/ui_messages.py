"""AI SDK UI messages: what ``useChat`` posts. A tool part carries its call, its approval and its result in one object.

``{type: "tool-NAME" | "dynamic-tool" (+ toolName), toolCallId, state, input, output?, approval?}`` with
``approval: {id, approved?, reason?, signature?, inputSchemaInput?, …}``. It is *answered* when ``approved`` is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .claims import MISSING, Claim, Outcome, boolean, malformed, member, optional_text, pointer, text
from .document import Document, Node
from .echo import alike

FORMAT = "ai-sdk-ui"

AUTOMATIC = "automatic-"
"""What the id of an approval begins with that stands for a policy's denial: of that there is no request."""

_STATES: dict[tuple[Any, bool], Outcome] = {
    ("approval-responded", True): "none",
    ("approval-responded", False): "none",
    ("output-available", True): "output",
    ("output-error", True): "error",
    ("output-denied", False): "error",
}
"""``(state, approved) → outcome``: the states in which a part may be answered; any other contradicts itself."""

_RESULT = {"output-available": "output", "output-error": "errorText"}


def claims(document: Document) -> Iterator[Claim]:
    """Yield the answered tool parts.

    Raises:
        InvalidApprovalError: one is malformed or contradicts itself (``detail`` malformed).
    """
    for node in document.parts:
        approval = node.value.get("approval")
        if approval is None and node.value.get("state") != "approval-responded":
            continue
        if type(approval) is not dict:
            malformed("'approval' must be an object")
        if _is_automatic_denial(node.value, approval):
            continue  # nobody was asked, nothing ran, and nothing can come of it
        if "approved" in approval:
            yield _claim(node, approval)
        elif node.value.get("state") == "approval-responded":
            malformed("the answer is missing")


def _is_automatic_denial(part: dict[str, Any], approval: dict[str, Any]) -> bool:
    """Whether a part says that the policy denied its call: of that there is no request in the store."""
    return (
        part.get("state") == "output-denied" and approval.get("approved") is False
        and approval.get("isAutomatic") is True and "signature" not in approval
        and str(approval.get("id")).startswith(AUTOMATIC)
    )


def _claim(node: Node, approval: dict[str, Any]) -> Claim:
    part, approved = node.value, boolean(approval, "approved")
    state = part.get("state")
    if type(state) is not str or (state, approved) not in _STATES:
        malformed("answer and state contradict each other")
    outcome, arguments = _STATES[state, approved], part.get("input", MISSING)
    if arguments is MISSING:
        malformed("'input' is missing")
    if _RESULT.get(state, "input") not in part:
        malformed("the result that its state speaks of is missing")
    original = member(approval, "inputSchemaInput")
    if original is not MISSING and not alike(original, arguments):
        # The arguments before the tool's schema changed them. Ours are the ones that run, in one form only.
        malformed("'inputSchemaInput' is not the input")
    return Claim(
        FORMAT, pointer(node.path), approved, request_id=text(approval, "id"),
        token=optional_text(approval, "signature"), call_id=text(part, "toolCallId"), tool=_tool(part),
        arguments=arguments, reason=optional_text(approval, "reason"), outcome=outcome,
    )


def _tool(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if kind == "dynamic-tool":
        return text(part, "toolName")
    if type(kind) is not str or not kind.removeprefix("tool-") or not kind.startswith("tool-"):
        malformed("what carries an approval must be a tool part")
    return kind[5:]
