"""OpenAI's Responses format: ``mcp_approval_response {approval_request_id, approve, reason?}``.

The id is the provider's, of its ``mcp_approval_request {id, name, arguments}``. It is the tool-call id under which the
app asks the guard; the items carry no id of ours. The request item may be missing, where the conversation is kept by
the provider; then the store alone says what was approved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ConfigurationError
from ..models import ApprovalRequest
from .calls import Calls, parsed
from .claims import Claim, boolean, malformed, optional_text, pointer, text
from .document import Document, Node

FORMAT = "openai-responses"


def approval_request_of(request: ApprovalRequest, *, server_label: str) -> dict[str, Any]:
    """Return the item that asks for an approval: its id is the tool call's, ``arguments`` the text that was signed.

    Nothing in it is masked: the client gets secret arguments too.

    Args:
        server_label: The MCP server's label in the conversation.

    Raises:
        ConfigurationError: the request has no tool-call id (deny-and-retry), so that no answer could name it.
    """
    if request.call_id is None:
        raise ConfigurationError("A request without a tool-call id cannot be asked for in this format.")
    return {
        "type": "mcp_approval_request", "id": request.call_id, "name": request.tool,
        "arguments": request.canonical.decode(), "server_label": server_label,
    }


def claims(document: Document, calls: Calls) -> Iterator[Claim]:
    """Yield the answers. One whose ``mcp_call`` with a result stands after it is history.

    Raises:
        InvalidApprovalError: one or its request is malformed (``detail`` malformed).
    """
    answers = [node for node in document.items if node.value["type"] == "mcp_approval_response"]
    asked = [node for node in document.items if node.value["type"] == "mcp_approval_request"] if answers else []
    requests = {text(node.value, "id"): node for node in asked}
    if len(requests) != len(asked):
        malformed("one approval is asked for twice")
    for node in answers:
        call_id = text(node.value, "approval_request_id")
        yield _claim(node, call_id, requests.get(call_id), calls)


def _claim(node: Node, call_id: str, request: Node | None, calls: Calls) -> Claim:
    tool, arguments = None, None
    if request is not None:
        tool, arguments = text(request.value, "name"), parsed(text(request.value, "arguments"))
        if type(arguments) is not dict:
            malformed("'arguments' must be the text of one JSON object")
    return Claim(
        FORMAT, pointer(node.path), boolean(node.value, "approve"), call_id=call_id, tool=tool, arguments=arguments,
        reason=optional_text(node.value, "reason", nullable=True),
        outcome=calls.answer(call_id, node, "mcp") or "none",
    )
