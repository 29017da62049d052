"""Who sees a request: the requester's side, whoever may decide it by its rules, who voted, and operators.

To everybody else, and in every other tenant, it looks exactly like an id that does not exist.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ..envelope import Vote
from ..errors import NotAuthorisedError
from ..lifecycle.rights import Parties, entitled, folded
from ..models import ApprovalRequest, Requirement
from .identity import Viewer


def visible(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether a viewer sees a verified request."""
    if request.tenant != viewer.tenant:
        return False
    return viewer.operator or is_requester(request, viewer) or has_voted(request, viewer) or may_decide(request, viewer)


def is_requester(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether the viewer is on the side that asked."""
    # Exactly: names are folded where they exclude somebody, and never where they let somebody in.
    return request.user in viewer.principal.names()


def has_voted(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether the viewer decided on this request."""
    return any(vote.approver == viewer.principal.id for vote in request.votes if not vote.automatic)


def may_decide(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether the rules let the viewer decide, whatever the channel, the evidence and the state are."""
    try:
        entitled(
            [_anywhere(need) for need in request.requirements], Parties(request.requesters, request.agent_names),
            _vote(viewer),
        )
    except NotAuthorisedError:
        return False
    return True


def waits_for(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether a decision of this viewer is what the request waits for."""
    voters = folded(vote.approver for vote in request.votes if not vote.automatic)
    return request.state == "pending" and viewer.names.isdisjoint(voters) and may_decide(request, viewer)


@functools.lru_cache(maxsize=1024)
def _anywhere(need: Requirement) -> Requirement:
    return replace(need, channels=(), evidence="hmac")


def _vote(viewer: Viewer) -> Vote:
    """Return what the viewer's vote would look like, as far as rights go."""
    who = viewer.principal
    return Vote(
        tenant=who.tenant, request_id="", fingerprint="", policy_version="", approver=who.id, kind=who.kind,
        names=tuple(viewer.names), roles=who.roles, channel="", credential=None, approve=True, automatic=False,
        reason=None, response=None, nonce="",
    )
