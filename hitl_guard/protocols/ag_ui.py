"""AG-UI 1.0: a run ends with the outcome ``interrupt``, and ``resume: [{interruptId, status, payload, metadata?}]`` of
the next run's input answers it.

An answer is an approval where its payload is ``{approved: …, editedArgs?, reason?}``, or the bare boolean of a
confirmation. Other payloads answer other questions, and a cancelled interrupt grants nothing. The interrupt's id is the
approval request's; a request's signed envelope may travel as ``metadata: {"hitl_guard": {"token": …}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import ConfigurationError
from ..models import ApprovalRequest
from ..render.request import utc
from .answers import question
from .claims import MISSING, Claim, boolean, malformed, member, optional_text, pointer, text
from .document import Document, Node

FORMAT = "ag-ui"

REASON = "tool_call"
"""The protocol's reason of an interrupt that asks whether a tool may be called; it must name the tool call."""

REASON_UNBOUND = "confirmation"
"""The protocol's reason of a yes-or-no question without a tool-call id (deny-and-retry)."""


def interrupt_of(request: ApprovalRequest) -> dict[str, Any]:
    """Return the interrupt that asks for an approval. Its id is the request's; its message has the arguments, whole
    but for what the tool's schema marks as secret.

    Without ``edit`` in the rule (`hitl_guard.models.Requirement`) edited arguments are not among the answers.
    """
    answers = {"approved": {"type": "boolean"}, "reason": {"type": ["string", "null"]}}
    if all(need.edit for need in request.requirements):
        answers["editedArgs"] = {"type": "object"}
    return {
        "id": request.id, "reason": REASON_UNBOUND if request.call_id is None else REASON,
        "message": question(request),
        **({} if request.call_id is None else {"toolCallId": request.call_id}),
        "responseSchema": {"type": "object", "properties": answers, "required": ["approved"]},
        "expiresAt": utc(request.decide_by),
        "metadata": {"hitl_guard": {"fingerprint": request.fingerprint, "token": request.token, "tool": request.tool}},
    }


def outcome_of(requests: Iterable[ApprovalRequest]) -> dict[str, Any]:
    """Return the ``outcome`` of the ``RUN_FINISHED`` event of a run that waits.

    Raises:
        ConfigurationError: it waits for nothing; then its outcome is another.
    """
    interrupts = [interrupt_of(request) for request in requests]
    if not interrupts:
        raise ConfigurationError("A run that waits for nobody has the outcome 'success'.")
    return {"type": "interrupt", "interrupts": interrupts}


def claims(document: Document) -> Iterator[Claim]:
    """Yield the answers that are approvals. All are live: a run's input holds no earlier answers.

    Raises:
        InvalidApprovalError: one is malformed (``detail`` malformed).
    """
    for node in document.resumes:
        payload = node.value.get("payload")
        if type(payload) is bool or (type(payload) is dict and "approved" in payload):
            yield _claim(node, payload)


def _claim(node: Node, payload: Any) -> Claim:
    if node.value.get("status", "resolved") != "resolved":
        malformed("an answer with an approval must be 'resolved'")
    answer = {"approved": payload} if type(payload) is bool else payload
    edited = member(answer, "editedArgs")
    if edited is not MISSING and type(edited) is not dict:
        malformed("'editedArgs' must be an object")
    return Claim(
        FORMAT, pointer(node.path), boolean(answer, "approved"), request_id=text(node.value, "interruptId"),
        token=_token(node.value.get("metadata")), arguments=None if edited is MISSING else edited,
        reason=optional_text(answer, "reason", nullable=True),
    )


def _token(metadata: Any) -> str | None:
    ours = metadata.get("hitl_guard") if type(metadata) is dict else None
    if ours is None:
        return None
    if type(ours) is not dict:
        malformed("'hitl_guard' must be an object")
    return optional_text(ours, "token")
