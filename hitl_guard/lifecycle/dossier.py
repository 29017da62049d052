"""One request with everything that a person needs who decides it: all of it verified, none of it a second copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from .. import fingerprint
from ..envelope import Vote
from ..models import ApprovalRequest, Principal, ToolDefinition
from ..rows import EventRow
from .desk import Desk
from .listing import verified
from .record import Record, to_request
from .rights import Parties, may_decide, missing

LOOK_BACK = 50
"""How many of a run's open and how many of its ended requests are looked at to find the one before."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One verified event of a request.

    Attributes:
        type: One of `hitl_guard.audit.REQUEST_EVENTS`.
        at: Epoch milliseconds.
        by: Who did it, or None where nobody in particular did.
        reason: What that person wrote, or None.
        detail: Of a vote the channel; of ``request:superseded`` the id of the request that took its place; else what
            the tool's host noted; or None.
    """

    type: str
    at: int
    by: str | None
    reason: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Dossier:
    """One request and what belongs to it, as of one reading.

    Attributes:
        definition: What the model was told about the tool, or None.
        turn: ``(tool, arguments)`` of the earlier calls of the same model turn, written by the model, as are arguments;
            None: nobody said which there are.
        context: JSON data that the host gave for the policy, or None.
        requesters, agent_names: Everybody on the requester's side, and the agent's own names, folded (`rights.folded`).
        history: Every event, in order. The asking itself is none: ``request.issued_at`` says when it was.
        now: The database's clock, epoch milliseconds.
        previous: The latest earlier request of the same user, run and tool, looked for among the run's newest, or None.
        missing: How many more people must approve before the call may run: the most that any rule still needs; 0 once
            it is not pending. ``missing_each`` says it per requirement, in the order of ``request.requirements``.
    """

    request: ApprovalRequest
    definition: ToolDefinition | None
    turn: tuple[tuple[str, dict[str, Any]], ...] | None
    context: Mapping[str, Any] | None
    requesters: frozenset[str]
    agent_names: frozenset[str]
    history: tuple[Happening, ...]
    now: int
    previous: ApprovalRequest | None
    missing_each: tuple[int, ...]
    _parties: Parties = field(repr=False)

    @property
    def missing(self) -> int:
        """How many more people must approve (see above)."""
        return max(self.missing_each, default=0)

    def entitled(self, principal: Principal, *, channel: str | None = None) -> bool:
        """Whether a principal may decide this request, pending or not, by the rules on people and self-approval.

        Args:
            channel: Whether it may from there too; None: from wherever the rule allows.
        """
        return principal.tenant == self.request.tenant and may_decide(
            self.request.requirements, self._parties, principal, channel=channel
        )


def compiled(desk: Desk, request_id: str, tenant: str) -> Dossier:
    """Return the dossier of a request.

    Raises:
        InvalidApprovalError: there is none in this tenant (``detail`` unknown).
    """
    reading, record = desk.find(tenant, request_id)
    details, request = record.details, to_request(record)
    needed = missing(request.requirements, request.approvals) if record.state == "pending" else ()
    return Dossier(
        request=request, definition=details.definition, turn=details.turn, context=details.context,
        requesters=details.parties.requester, agent_names=details.parties.agent, history=_history(record),
        now=reading.now, previous=_previous(desk, record, reading.now),
        missing_each=needed or (0,) * len(details.requirements), _parties=details.parties,
    )


def _history(record: Record) -> tuple[Happening, ...]:
    votes = iter(record.votes)
    return tuple(_happening(event, orjson.loads(event.body), votes) for event in record.events)


def _happening(event: EventRow, body: dict[str, Any], votes: Any) -> Happening:
    if "decision" in body:
        vote: Vote = next(votes)
        return Happening(event.type, event.at, vote.approver, vote.reason, vote.channel)
    if event.type == "request:superseded":
        return Happening(event.type, event.at, body.get("editor"), None, body["by"])
    return Happening(event.type, event.at, body.get("by"), body.get("reason"), body.get("detail"))


def _previous(desk: Desk, record: Record, now: int) -> ApprovalRequest | None:
    """Return the latest earlier request of the run and tool; the one whose place this one took, where there is one."""
    scope = record.envelope.scope
    run = fingerprint.run_digest(scope.tenant, scope.run)
    rows = [
        *desk.store.open_requests(tenant=scope.tenant, limit=LOOK_BACK, run=run),
        *desk.store.ended_requests(tenant=scope.tenant, limit=LOOK_BACK, run=run),
    ]
    replaced, _ = record.envelope.supersedes or (None, None)
    found = [one for one in (verified(desk, row, events, now) for _, row, events in rows) if isinstance(one, Record)]
    earlier = [
        one for one in found
        if (one.details.tool, one.envelope.scope.tenant, one.envelope.scope.user, one.envelope.scope.run)
        == (record.details.tool, scope.tenant, scope.user, scope.run)
        and (one.envelope.issued_at < record.envelope.issued_at or one.row.id == replaced)
    ]
    newest = max(earlier, key=lambda one: (one.row.id == replaced, one.envelope.issued_at), default=None)
    return None if newest is None else to_request(newest)
