"""Deciding: a person's vote, an edit, a withdrawal. One event each; of two at once exactly one wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .. import fingerprint
from ..envelope import Vote
from ..errors import (
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    DecisionError,
    ExpiredError,
    NotAuthorisedError,
    PolicyChangedError,
    PolicyDeniedError,
    RefusedError,
    RevokedError,
    SupersededError,
)
from ..models import Decision, Principal, check_reason
from ..policy.core import Status, Verdict
from ..store.base import Step
from . import ask
from . import state as states
from .bound import Bound
from .desk import ROUNDS, Desk, Reading, busy, new_id
from .record import Record, to_decision
from .rights import entitled, folded, met
from .toolspec import validate

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ballot:
    """What an approver hands in. Nothing of it is trusted but the principal, whom the host authenticated.

    Attributes:
        fingerprint: The one that was shown to the approver.
        arguments: Other arguments to run instead (an edit), or None.
        respond: A value to hand the model instead of running the tool (with a denial), or None.
        execute_within: Milliseconds, to shorten the execution window; or None.
    """

    request_id: str
    approver: Principal
    approve: bool
    fingerprint: str
    reason: str | None
    arguments: Mapping[str, Any] | str | bytes | None
    respond: Any
    channel: str
    credential: str | None
    execute_within: int | None


def check_ballot(ballot: Ballot) -> None:
    """Refuse what is not a plain decision by a named person: nothing is coerced.

    Raises:
        DecisionError: ``invalid-approval``, detail ``malformed``.
    """
    wrong = None
    if type(ballot.approve) is not bool:
        wrong = "'approve' must be true or false"
    elif not isinstance(ballot.approver, Principal):
        wrong = "'approver' must be a Principal"
    elif type(ballot.request_id) is not str or type(ballot.fingerprint) is not str:
        wrong = "request id and fingerprint must be strings"
    elif ballot.reason is not None and (type(ballot.reason) is not str or len(ballot.reason) > 4096):
        wrong = "the reason must be a string of at most 4096 characters"
    elif ballot.arguments is not None and (not ballot.approve or ballot.respond is not None):
        wrong = "edited arguments go with an approval and with nothing else"
    elif ballot.respond is not None and ballot.approve:
        wrong = "a response for the tool goes with a denial"
    elif ballot.execute_within is not None and (type(ballot.execute_within) is not int or ballot.execute_within < 1):
        wrong = "'execute_within' must be a positive number of milliseconds"
    elif type(ballot.channel) is not str or not ballot.channel:
        wrong = "'channel' must say where the decision came from"
    elif ballot.credential is not None and (type(ballot.credential) is not str or not ballot.credential):
        wrong = "'credential' must be the id of a credential"
    elif "" in folded(ballot.approver.names()):
        wrong = "an id of the approver is blank"
    if wrong is not None:
        raise DecisionError(f"The decision was not accepted: {wrong}.", detail="malformed")


def decide(desk: Desk, ballot: Ballot) -> Decision:
    """Record one decision and return it. Judges anew after each lost race, so that colliding votes are both kept."""
    check_ballot(ballot)
    for _ in range(ROUNDS):
        reading, record = desk.find(ballot.approver.tenant, ballot.request_id)
        vote = _vote(ballot, record, reading.now, desk)
        done = _judge(desk, ballot, vote, record, reading)
        if done is not None:
            return done
    raise busy()


def _vote(ballot: Ballot, record: Record, now: int, desk: Desk) -> Vote:
    approver, within = ballot.approver, record.envelope.execute_within
    response = None if ballot.respond is None else desk.canonical_value(ballot.respond).decode()
    return Vote(
        tenant=record.row.tenant, request_id=record.row.id, fingerprint=record.envelope.fingerprint,
        policy_version=record.envelope.policy_version, approver=approver.id, kind=approver.kind,
        names=tuple(sorted(folded(approver.names()))), roles=approver.roles, channel=ballot.channel,
        credential=ballot.credential, approve=ballot.approve, automatic=False, reason=ballot.reason or None,
        response=response, nonce=new_id(), execute_by=now + min(ballot.execute_within or within, within), at=now,
    )


def _judge(desk: Desk, ballot: Ballot, vote: Vote, record: Record, reading: Reading) -> Decision | None:
    """Check one decision against one reading. None: another transition won; read again.

    The order is not that of `Guard.authorize`, which decides whether a tool runs: here the right to decide comes first,
    so that nobody without it learns a request's state. A pause stops asking and running, not deciding.

    1. the approver's right (people, self-approval, role, channel)  2. the same decision again: no second one
    3. state and decision window  4. the fingerprint that was shown  5. the policy version  6. one decision a person
    """
    entitled(record.details.requirements, record.details.parties, vote)  # 1
    mine = _same_vote(record, vote, ballot.fingerprint)  # 2
    if mine is not None and ballot.arguments is None and record.state != "superseded":
        return to_decision(mine, record.state)
    if record.state != "pending":  # 3
        _refuse_ended(desk, record, reading)
    record.check_issued(reading.now, desk.settings.skew)
    if ballot.fingerprint != record.envelope.fingerprint:  # 4
        raise ArgsMismatchError("The page that was shown is out of date: look at the request again.", detail="stale")
    if record.envelope.policy_version != desk.policy.version:  # 5
        raise PolicyChangedError("The policy changed since this was asked. The agent must ask again.")
    if any(set(other.names) & set(vote.names) for other in record.votes):  # 6
        raise DecisionError("You have decided this already.", code="already-decided", decided_by=vote.approver)
    if ballot.arguments is not None:
        return _edit(desk, ballot, ballot.arguments, vote, record, reading)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind=_kind(record, vote), version=record.version + 1, last=record.last,
        now=reading.now, before=record.envelope.decide_by,
    )
    if desk.store.write([step], desk.sealer) is None:
        return None
    return to_decision(vote, states.fold((step.draft.type,)))


def _kind(record: Record, vote: Vote) -> str:
    if not vote.approve:
        return "request:denied"
    complete = met(record.details.requirements, record.details.parties, (*record.votes, vote))
    return "request:approved" if complete else "request:voted"


def _same_vote(record: Record, vote: Vote, shown: str) -> Vote | None:
    """Return the same decision if this person made it before: repeating it is no second decision."""
    for other in record.votes:
        if (other.approver, other.approve, other.fingerprint) == (vote.approver, vote.approve, shown):
            return other
    return None


def _refuse_ended(desk: Desk, record: Record, reading: Reading) -> None:
    if record.state == "expired":
        if record.stored_state != "expired":
            desk.store.write([ask.ending(record, "request:expired", reading.now)], desk.sealer)
        raise ExpiredError("The time to decide this is over. The agent must ask again.", detail="decide-by")
    if record.state == "revoked":
        raise RevokedError("This request was withdrawn; there is nothing left to decide.")
    if record.state == "superseded":
        raise SupersededError("Another request took this one's place: look at the list again.")
    by = record.votes[-1].approver if record.votes else None
    raise DecisionError("This was decided already.", code="already-decided", detail=record.state, decided_by=by)


def _edit(
    desk: Desk, ballot: Ballot, arguments: Mapping[str, Any] | str | bytes, vote: Vote, record: Record, reading: Reading
) -> Decision | None:
    """Supersede the request by one with the edited arguments, on which the editor has voted once."""
    old = record.details
    if not all(need.edit for need in old.requirements):
        raise NotAuthorisedError("The policy rule does not let an approver edit the arguments.", detail="edit")
    raw = desk.canonical_arguments(arguments)
    validate(old.definition, raw)
    bound = Bound(
        tool=old.tool, canonical=raw, fingerprint=fingerprint.fingerprint(old.tool, raw), scope=record.envelope.scope,
        identity=record.row.identity, definition=old.definition,
        agent=record.envelope.agent, agents=(), who=old.parties,
        turn=tuple((tool, ask.stored_bytes(arguments)) for tool, arguments in old.turn),
        context=None if old.context is None else ask.stored_bytes(dict(old.context)),
        spec=desk.tools.get(old.tool), _tool_digest=record.envelope.tool_digest,
    )
    verdict = _asked_again(desk, bound, record)
    envelope, details = ask.envelope_of(desk, bound, verdict, reading, supersedes=record, edited=True)
    entitled(details.requirements, details.parties, vote)
    added = ask.sign(desk, envelope, details, bound, reading)
    new_vote = replace(
        vote, request_id=envelope.request_id, fingerprint=envelope.fingerprint,
        execute_by=reading.now + min(ballot.execute_within or envelope.execute_within, envelope.execute_within),
    )
    complete = met(details.requirements, details.parties, (new_vote,))
    steps: list[Step] = [
        ask.ending(record, "request:superseded", reading.now, by=envelope.request_id, editor=vote.approver),
        added,
        ask.vote_step(
            desk, new_vote, added.row, ask.digest_of(added.row), version=1, last=None, now=reading.now,
            kind="request:approved" if complete else "request:voted", before=record.envelope.decide_by,
        ),
    ]
    if desk.store.write(steps, desk.sealer) is None:
        return None
    return to_decision(new_vote, "approved" if complete else "pending")


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


def as_decision_error(action: Callable[[], T]) -> T:
    """Run ``action``; what it refuses reaches the approver as a `DecisionError` with the same code."""
    try:
        return action()
    except (RefusedError, CanonicalizationError) as error:
        by = getattr(error, "decided_by", None)
        raise DecisionError(str(error), code=error.code, detail=error.detail, decided_by=by) from error


def revoke(desk: Desk, request_id: str, by: Principal, reason: str | None) -> None:
    """Withdraw an open request, or a suspended call: the requester, an entitled approver or an operator may.

    Raises:
        InvalidApprovalError and its kin: unknown, ended or spent already. NotAuthorisedError: no right.
    """
    if not isinstance(by, Principal):
        raise ConfigurationError("'by' must be a Principal.")
    check_reason(reason)
    for _ in range(ROUNDS):
        reading, record = desk.find(by.tenant, request_id)
        _may_revoke(desk, by, record, reading.now)
        if record.state not in ("pending", "approved", "suspended"):
            _refuse_ended(desk, record, reading)
        step = ask.ending(record, "request:revoked", reading.now, by=by.id, reason=reason)
        if desk.store.write([step], desk.sealer) is not None:
            return
    raise busy()


def _may_revoke(desk: Desk, by: Principal, record: Record, now: int) -> None:
    operator = desk.settings.operator_role in by.roles and by.kind != "agent"
    if operator or folded(by.names()) & record.details.parties.requester:
        return
    ballot = Ballot(record.row.id, by, False, "", None, None, None, "api", None, None)
    vote = replace(_vote(ballot, record, now, desk), channel="api")
    needs = [replace(need, channels=()) for need in record.details.requirements]
    entitled(needs, record.details.parties, vote)
