"""AI SDK model messages: calls, requests, answers and results are content parts of their own, tied by their ids.

``tool-approval-response {approvalId, approved, reason?}`` answers ``tool-approval-request {approvalId, toolCallId,
signature?}``, which asks for the ``tool-call {toolCallId, toolName, input}`` before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .calls import Calls, Stated
from .claims import MISSING, Claim, boolean, malformed, member, optional_text, pointer, text
from .document import Document, Node

FORMAT = "ai-sdk-model"


def claims(document: Document, calls: Calls) -> Iterator[Claim]:
    """Yield the answers, each with the request and the call that it is about.

    An answer is history where a result of its call stands after it: one that is repeated after the result would make a
    server run the call again.

    Raises:
        InvalidApprovalError: one is malformed, or its request or call is missing (``detail`` malformed).
    """
    answers = [node for node in document.parts if _is(node, "tool-approval-response")]
    requests: dict[str, Node] = {}
    for node in document.parts if answers else ():
        if _is(node, "tool-approval-request") and requests.setdefault(text(node.value, "approvalId"), node) is not node:
            malformed("one approval is asked for twice")
    for node in answers:
        request = requests.get(text(node.value, "approvalId"))
        if request is None:
            malformed("there is no request for an answer")
        yield _claim(node, request, calls)


def _is(node: Node, kind: str) -> bool:
    # A tool of the interface may be named "approval-response"; its part has no approvalId.
    return node.value.get("type") == kind and member(node.value, "approvalId") is not MISSING


def _claim(node: Node, request: Node, calls: Calls) -> Claim:
    call_id = text(request.value, "toolCallId")
    call = _call(calls.stated(call_id), request)
    tool: Any = call.tool
    if type(tool) is not str or not tool:
        malformed("the call of an approval has no tool")
    return Claim(
        FORMAT, pointer(node.path), boolean(node.value, "approved"), request_id=text(node.value, "approvalId"),
        token=optional_text(request.value, "signature"), call_id=call_id, tool=tool, arguments=call.arguments,
        reason=optional_text(node.value, "reason"),
        outcome=calls.answer(call_id, node, "model", snake="approval_id" in node.value) or "none",
    )


def _call(stated: list[Stated], request: Node) -> Stated:
    """Return the call that a request is about: the nearest one before it, since providers repeat ids."""
    earlier = [call for call in stated if call.node.position < request.position]
    if not earlier:
        malformed("the call of an approval is missing")
    return earlier[-1]
