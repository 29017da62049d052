"""Errors as HTTP answers: the only place where an error gets a status. Bodies are problem details (RFC 9457).

Outside only a coarse class is told; the exact code is in the audit log, and in the host's own log (see `logs`). An
unknown id, another tenant's and one that the caller may not see get the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import (
    AgentError,
    CanonicalizationError,
    DecisionError,
    HitlGuardError,
    KeyInactiveError,
    RefusedError,
    UnavailableError,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:hitl-guard:problem:"
RETRY_AFTER_S = 5
"""What a 503 tells the client to wait, in seconds."""

PROBLEMS: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request is malformed."),
    "unauthenticated": (401, "Log in first."),
    "forbidden": (403, "You may not do this."),
    "refused": (403, "An approval in this request is refused."),
    "not-found": (404, "There is nothing here that you may see."),
    "method-not-allowed": (405, "This address does not take that method."),
    "too-slow": (408, "This came too slowly: send it again."),
    "already-decided": (409, "This was decided already."),
    "ambiguous": (409, "Several things could be meant: name one."),
    "busy": (409, "Somebody else is at it: try again."),
    "damaged": (409, "This record does not verify, or its key is gone: it must be asked again."),
    "ended": (409, "This is over or not in the right state."),
    "outdated": (409, "Policy or tool changed since this was asked: the agent must ask again."),
    "stale": (409, "What was shown is out of date: look at the request again."),
    "too-large": (413, "This is too large."),
    "unsupported-media-type": (415, "Send this as application/json."),
    "unprocessable": (422, "This cannot be accepted as it is."),
    "limited": (429, "There are too many of these."),
    "internal": (500, "Something is wrong on this side."),
    "run-failed": (502, "The run failed on its way on."),
    "unavailable": (503, "Nobody can tell now: try again."),
}
"""Coarse class → status, title."""

_BY_CODE = {
    "already-decided": "already-decided", "args-mismatch": "stale", "call-ambiguous": "ambiguous",
    "call-not-suspended": "ended", "consumed": "ended", "denied": "ended", "expired": "ended", "in-doubt": "ended",
    "invalid-page": "malformed", "invalid-resume-data": "unprocessable", "invalid-signature": "damaged",
    "key-inactive": "damaged", "key-revoked": "damaged", "key-unknown": "damaged", "limit-exceeded": "limited",
    "not-authorised": "forbidden", "not-yet-valid": "ended", "paused": "ended", "policy-changed": "outdated",
    "policy-denied": "unprocessable", "revoked": "ended", "run-busy": "busy", "run-not-found": "not-found",
    "scope-mismatch": "forbidden", "superseded": "ended", "too-large": "too-large", "tool-changed": "outdated",
    "unsupported-value": "unprocessable",
}
_BY_DETAIL = {"malformed": "malformed", "unknown": "not-found"}
_OF_BODIES = {"length": "malformed", "timeout": "too-slow"}
"""Detail of a `CanonicalizationError` of `body.read_body` → class."""
_BY_STATUS = {
    status: slug for slug, (status, _) in PROBLEMS.items() if slug in (
        "malformed", "unauthenticated", "forbidden", "not-found", "method-not-allowed", "too-slow", "too-large",
        "unsupported-media-type", "unprocessable", "limited", "internal", "unavailable",
    )
}
_SAID = frozenset({
    "already-decided", "ambiguous", "busy", "ended", "forbidden", "malformed", "outdated", "stale", "unprocessable",
})
"""Classes whose message is for the person: it holds no argument, token or key, and the caller may see the record."""


def slug_of(error: BaseException) -> str:
    """Return the coarse class of an error, one of `PROBLEMS`; what is not known is ``internal``."""
    if isinstance(error, HTTPException):
        return _BY_STATUS.get(error.status_code, "internal" if error.status_code >= 500 else "malformed")
    if isinstance(error, UnavailableError):
        return "unavailable"
    if isinstance(error, KeyInactiveError) and error.detail == "no-active-key":
        return "unavailable"  # nothing can be signed here now
    if not isinstance(error, (AgentError, CanonicalizationError, DecisionError, RefusedError)):
        return "internal"
    if isinstance(error, CanonicalizationError) and error.detail in _OF_BODIES:
        return _OF_BODIES[error.detail]
    if error.code == "invalid-approval":
        return _BY_DETAIL.get(error.detail or "", "damaged")
    return _BY_CODE.get(error.code, "internal")


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    return PROBLEMS[slug_of(error)][0]


def problem(slug: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> Response:
    """Return a problem as a response.

    Args:
        slug: One of `PROBLEMS`.
        members: Further members of the body; those that are None are left out.
    """
    status, title = PROBLEMS[slug]
    body = {"status": status, "title": title, "type": TYPE_PREFIX + slug}
    body |= {name: value for name, value in members.items() if value is not None}
    sent = dict(headers or {})
    if slug == "unauthenticated":
        sent.setdefault("www-authenticate", 'Bearer realm="hitl_guard"')
    if slug == "unavailable":
        sent.setdefault("retry-after", str(RETRY_AFTER_S))
    # Printable ASCII, as every answer of the API: what an error repeats may hold bidirectional or control characters.
    return Response(json.dumps(body), status, sent, MEDIA_TYPE)


def said_of(error: BaseException) -> str | None:
    """Return an error's message where a person may read it, else None."""
    return str(error) if slug_of(error) in _SAID and isinstance(error, HitlGuardError) else None


def response_of(error: BaseException) -> Response:
    """Return the response of an error: its class, and for a person who may know it what to do and who decided."""
    slug = slug_of(error)
    if isinstance(error, HTTPException):
        return problem(slug, headers=error.headers)
    said = said_of(error)
    decided = slug == "already-decided"
    return problem(
        slug, detail=said, decided_by=getattr(error, "decided_by", None) if decided else None,
        state=getattr(error, "detail", None) if decided else None,
    )
