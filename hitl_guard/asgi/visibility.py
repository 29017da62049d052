"""Who sees a request: the requester's side, whoever may decide it by its rules, who voted, and operators.

To everybody else, and in every other tenant, it looks exactly like an id that does not exist.
"""

from __future__ import annotations

from ..lifecycle import rights
from ..lifecycle.rights import Parties
from ..models import ApprovalRequest, Requirement
from .identity import Viewer


def visible(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether a viewer sees a verified request."""
    if request.tenant != viewer.tenant:
        return False
    return rights.may_see(
        request.requirements, _parties(request), viewer.principal, user=request.user, operator=viewer.operator,
        voters=(vote.approver for vote in request.votes if not vote.automatic),
    )


def may_decide(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether the rules let the viewer decide, whatever the channel, the evidence and the state are."""
    return rights.may_decide(request.requirements, _parties(request), viewer.principal)


def _parties(request: ApprovalRequest) -> Parties:
    return Parties(request.requesters, request.agent_names)


def sits_at(entries: frozenset[str], viewer: Viewer) -> bool:
    """Return whether rules that name these approvers (see `floods.desk_entries`) could let the viewer decide."""
    need = Requirement(approvers=() if "" in entries else tuple(sorted(entries)))
    return rights.may_decide([need], Parties(frozenset(), frozenset()), viewer.principal)


def waits_for(request: ApprovalRequest, viewer: Viewer) -> bool:
    """Return whether a decision of this viewer is what the request waits for."""
    return request.state == "pending" and viewer.names.isdisjoint(request.voters) and may_decide(request, viewer)
