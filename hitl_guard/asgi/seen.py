"""Proof that a person opened a request: only what was opened can be approved together with others.

The page of a request carries a signed text (purpose ``session``) for whoever opened it; the list's script hands the
texts in with a bulk approval. The server keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import RefusedError
from ..guard import Guard
from ..models import ApprovalRequest
from .identity import Viewer

SEEN_MS = 12 * 3_600_000
"""How long an opened request counts as opened, in milliseconds."""

_TYPE = "hitl-seen"


def proof(guard: Guard, viewer: Viewer, request: ApprovalRequest) -> str:
    """Return the proof that this viewer was shown this request as it is."""
    fields = _bound(viewer, request.id, request.fingerprint) | {"until": viewer.now + SEEN_MS}
    return guard._desk.signer.sign("session", _TYPE, fields, now=viewer.now).decode("ascii")


def proven(guard: Guard, viewer: Viewer, proofs: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return ``(request id, fingerprint)`` of every proof that holds for this viewer; others count for nothing."""
    found = set()
    for text in proofs:
        try:
            fields = guard._desk.signer.open(text, expected_purpose="session", expected_type=_TYPE, now=viewer.now)
        except RefusedError:
            continue
        bound = _bound(viewer, fields.get("request"), fields.get("fingerprint"))
        until = fields.get("until")
        if type(until) is int and viewer.now < until and all(fields.get(name) == bound[name] for name in bound):
            found.add((fields["request"], fields["fingerprint"]))
    return frozenset(found)


def _bound(viewer: Viewer, request_id: object, fingerprint: object) -> dict[str, object]:
    return {
        "fingerprint": fingerprint, "principal": viewer.principal.id, "request": request_id, "tenant": viewer.tenant,
    }
