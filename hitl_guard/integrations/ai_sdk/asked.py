"""What a chat is told of one request: why it waits, who decides, what a browser shows wrongly, what was decided.

A chat gets the arguments whole, secret ones too. The client posts them back, and they are compared with what was
signed; a chat without memory tells them to the model again. Who sees them is the requester, whose agent wrote them.
Where secret values stand is told (`descriptor_of`), so that a page can mask them until its user asks. The inbox masks
them by itself, and audits who reveals one.
"""

from __future__ import annotations

from typing import Any

from ...models import ApprovalRequest
from ...render import escape, warnings
from ...render.secrets import secrets_of
from .values import exact_integers, obstacle

MAX_EXACT = 4_000
"""Characters of the sentence that states large integers; a request that needs more is decided in the inbox."""

MAX_SECRETS = 4_000
"""Characters of all places of secret arguments; where there are more, all arguments are told to be secret."""

_TOLD = frozenset({"big-integer", "long-text"})
"""Warnings that a chat needs no inbox for: large integers are stated exactly, and long texts are shown whole."""


def reason_of(request: ApprovalRequest, note: str | None = None) -> str | None:
    """Return why a request waits, and what a person must know who sees its arguments in a browser; None for nothing."""
    sentences = [request.reason, note, _exactly(request), _beware(request)]
    return "\n".join(sentence for sentence in sentences if sentence) or None


def _exactly(request: ApprovalRequest) -> str | None:
    """Return the large integers in a sentence; it ends early where it is too long for a chat (see `hidden`)."""
    exact, length = [], 0
    for place, number in exact_integers(request.arguments):
        exact.append(f"{escape(place)} = {number}")
        length += len(exact[-1])
        if length > MAX_EXACT:
            exact.append("and more")
            break
    return f"A browser rounds large whole numbers. These are exactly: {', '.join(exact)}." if exact else None


def _beware(request: ApprovalRequest) -> str | None:
    slugs = [warning.partition(":")[0] for warning in warnings(request.canonical)]
    odd = [slug for slug in slugs if slug not in _TOLD]
    if not odd:
        return None
    return f"The arguments may not be what they look like here ({', '.join(odd)}): the inbox shows them as they are."


def hidden(request: ApprovalRequest) -> str | None:
    """Return why a person cannot be shown in a chat exactly what would run; None where that can be."""
    why = obstacle(request.arguments)
    if why is not None:
        return f"its arguments hold {why}"
    exact = _exactly(request)
    return "its arguments hold many numbers that a browser rounds" if exact and len(exact) > MAX_EXACT else None


def descriptor_of(request: ApprovalRequest) -> dict[str, Any]:
    """Return what a page may show beside a request (``approvalDescriptor``).

    ``fingerprint``; ``expiresAt`` (epoch milliseconds); ``approvers`` (roles and ``user:ID``; empty: anybody but the
    requester), ``quorum``, ``selfApproval`` and ``channels`` (empty: any) over all requirements together;
    ``requirements``, each with the same, for a request of several rules; and ``secrets``: the JSON pointers (RFC 6901)
    of the arguments that the tool's schema marks secret, by the rule of the inbox (`hitl_guard.render.secrets`).
    """
    each = [
        {
            "approvers": [*one.approvers], "channels": [*one.channels], "quorum": one.quorum,
            "selfApproval": one.self_approval,
        }
        for one in request.requirements
    ]
    limited = [set(one.channels) for one in request.requirements if one.channels]
    return {
        "approvers": [*dict.fromkeys(name for one in request.requirements for name in one.approvers)],
        "channels": sorted(set.intersection(*limited)) if limited else [],
        "expiresAt": request.decide_by, "fingerprint": request.fingerprint,
        "quorum": max((one.quorum for one in request.requirements), default=1), "requirements": each,
        "secrets": _secret_places(request),
        "selfApproval": bool(request.requirements) and all(one.self_approval for one in request.requirements),
    }


def _secret_places(request: ApprovalRequest) -> list[str]:
    places = sorted(secrets_of(request))
    return places if sum(map(len, places)) <= MAX_SECRETS else [""]


def decided(request: ApprovalRequest) -> tuple[bool | None, str | None, bool]:
    """Return what is on record of a decision.

    Returns:
        ``(approved, reason, automatic)``: None for ``approved`` where nothing was decided (``execute_by`` is set by an
        approval and by nothing else); the reason of the last vote for it; whether the policy decided alone.
    """
    if request.state != "denied" and request.execute_by is None:
        return None, None, False
    approved = request.state != "denied"
    votes = [vote for vote in request.votes if vote.approve is approved]
    reason = votes[-1].reason if votes else None
    return approved, reason or None, bool(votes) and all(vote.automatic for vote in votes)
