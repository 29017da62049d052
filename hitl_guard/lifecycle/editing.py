"""Editing: the request with other arguments that takes a request's place, and the editor's vote on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import fingerprint
from ..envelope import Evidence, Vote
from ..errors import ExpiredError, NotAuthorisedError, PolicyDeniedError
from ..models import Decision
from ..policy.core import Status, Verdict
from ..store.base import AddRequest
from . import ask
from .bound import Bound
from .desk import Desk, Reading
from .record import Details, Record, to_decision
from .rights import entitled
from .toolspec import validate


def execute_by(now: int, evidence: Evidence | None, within: int, wanted: int | None) -> int:
    """Return the end of an execution window, epoch milliseconds: it starts when the decision is made, or was put to a
    passkey, and is as long as the request allows, or shorter where the approver wants that.
    """
    return (now if evidence is None else evidence.at) + min(wanted or within, within)


def check_window(vote: Vote) -> None:
    """Raise `ExpiredError` if the window was over before the passkey answered: such a vote is never recorded."""
    if vote.execute_by is None or vote.execute_by <= vote.at:
        raise ExpiredError("The time to run it was over before the passkey answered: try again.", detail="execute-by")


@dataclass(frozen=True, slots=True)
class Edited:
    """A request that takes another one's place, and the editor's vote on it."""

    added: AddRequest
    details: Details
    vote: Vote


def edited(
    desk: Desk, arguments: Mapping[str, Any] | str | bytes, vote: Vote, record: Record, reading: Reading,
    request_id: str, execute_within: int | None,
) -> Edited:
    """Return the request with the edited arguments, as it would be stored under ``request_id``, and the vote on it.

    Args:
        execute_within: Milliseconds, to shorten the execution window; or None.

    Raises:
        NotAuthorisedError: the rule lets nobody edit, or the editor may not decide the new request.
        PolicyDeniedError, CanonicalizationError: the arguments are denied, or unusable.
    """
    old = record.details
    if not all(need.edit for need in old.requirements):
        raise NotAuthorisedError("The policy rule does not let an approver edit the arguments.", detail="edit")
    raw = desk.canonical_arguments(arguments)
    validate(old.definition, raw)
    bound = Bound(
        tool=old.tool, canonical=raw, fingerprint=fingerprint.fingerprint(old.tool, raw), scope=record.envelope.scope,
        identity=record.row.identity, definition=old.definition,
        agent=record.envelope.agent, agents=(), who=old.parties,
        turn=ask.stored_turn(old),
        context=None if old.context is None else ask.stored_bytes(dict(old.context)),
        spec=desk.tools.get(old.tool), _tool_digest=record.envelope.tool_digest,
    )
    verdict = _asked_again(desk, bound, record)
    envelope, details = ask.envelope_of(desk, bound, verdict, reading, supersedes=record, edited=True)
    envelope = replace(envelope, request_id=request_id)
    entitled(details.requirements, details.parties, vote)
    new_vote = replace(
        vote, request_id=request_id, fingerprint=envelope.fingerprint,
        execute_by=execute_by(vote.at, vote.evidence, envelope.execute_within, execute_within),
    )
    check_window(new_vote)
    return Edited(ask.sign(desk, envelope, details, bound, reading), details, new_vote)


def edited_before(
    desk: Desk, arguments: Mapping[str, Any] | str | bytes, vote: Vote, record: Record
) -> Decision | None:
    """Return the decision that this very edit made before, if it did: to repeat it is no second one."""
    if record.state != "superseded":
        return None
    newest = desk.read(record.row.tenant, identity=record.row.identity).record
    if newest is None or newest.envelope.supersedes is None or newest.envelope.supersedes[0] != record.row.id:
        return None
    if newest.row.arguments != desk.canonical_arguments(arguments) or not newest.votes:
        return None
    first = newest.votes[0]
    return to_decision(first, newest.state) if (first.approver, first.reason) == (vote.approver, vote.reason) else None


def _asked_again(desk: Desk, bound: Bound, record: Record) -> Verdict:
    """Evaluate edited arguments; a policy that no longer asks keeps the old requirements, never fewer than one."""
    verdict = desk.evaluate(bound)
    if verdict.errors or verdict.status is Status.DENIED:
        raise PolicyDeniedError("The policy denies the edited arguments.", detail="edit")
    if verdict.status is Status.USER_APPROVAL:
        return verdict
    return replace(
        verdict, status=Status.USER_APPROVAL, requirements=record.details.requirements, rules=record.details.rules
    )
