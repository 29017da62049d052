"""AG-UI: ``resume: [{interruptId, status, payload, metadata?}]`` of a run's input answers the interrupts before it.

An answer is an approval where its payload is ``{approved: …, editedArgs?, reason?}``, or the bare boolean of a
confirmation. Other payloads answer other questions, and a cancelled interrupt grants nothing. The interrupt's id is the
approval request's; a request's signed envelope may travel as ``metadata: {"hitl_guard": {"token": …}}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .claims import MISSING, Claim, boolean, malformed, member, optional_text, pointer, text
from .document import Document, Node

FORMAT = "ag-ui"


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
