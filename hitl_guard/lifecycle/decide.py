"""Deciding: a person's vote, an edit, a withdrawal. One event each; of two at once exactly one wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..envelope import Vote
from ..errors import (
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    DecisionError,
    ExpiredError,
    PolicyChangedError,
    RefusedError,
    RevokedError,
    SupersededError,
)
from ..models import Decision, Principal, check_reason
from ..store.base import Append, Step
from . import ask, floods, passkeys
from . import state as states
from .credentials import Assertion, Challenge
from .desk import ROUNDS, Desk, Reading, busy, new_id
from .editing import check_window, edited, edited_before, execute_by
from .passkeys import Proof
from .record import Record, to_decision
from .rights import check_revoker, folded, met

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ballot:
    """What an approver hands in. Nothing of it is trusted but the principal, whom the host authenticated.

    Attributes:
        fingerprint: The one that was shown to the approver.
        arguments: Other arguments to run instead (an edit), or None.
        respond: A value to hand the model instead of running the tool (with a denial), or None.
        execute_within: Milliseconds, to shorten the execution window; or None.
        evidence: The answer of the approver's passkey to a `challenge` of exactly this decision, or None.
        mute: Milliseconds for which the requester's calls of this tool are denied unasked (with a denial), or None.
            Where a rule demands a passkey's evidence, a mute needs it too.
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
    evidence: Assertion | None = None
    mute: int | None = None


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
    elif ballot.mute is not None and (
        ballot.approve or type(ballot.mute) is not int or not 1 <= ballot.mute <= floods.MAX_MUTE
    ):
        wrong = f"'mute' goes with a denial and is a number of milliseconds from 1 to {floods.MAX_MUTE}"
    elif "" in folded(ballot.approver.every_name()):
        wrong = "an id of the approver is blank"
    elif ballot.evidence is not None and not isinstance(ballot.evidence, Assertion):
        wrong = "'evidence' must be an Assertion"
    elif ballot.evidence is not None and ballot.credential is not None:
        wrong = "with evidence the passkey itself is the credential"
    if wrong is not None:
        raise DecisionError(f"The decision was not accepted: {wrong}.", detail="malformed")


def decide(desk: Desk, ballot: Ballot) -> Decision:
    """Record one decision and return it. Judges anew after each lost race, so that colliding votes are both kept."""
    check_ballot(ballot)
    for _ in range(ROUNDS):
        reading, record = desk.find(ballot.approver.tenant, ballot.request_id)
        proof = None
        if ballot.evidence is not None:
            proof = passkeys.proof(
                desk, ballot.approver, ballot.request_id, ballot.evidence, _terms(ballot), reading.now
            )
        vote = _vote(ballot, record, reading.now, desk, proof)
        done = _judge(desk, ballot, vote, record, reading, proof)
        if done is not None:
            return done
    raise busy()


def challenge(desk: Desk, ballot: Ballot) -> Challenge:
    """Put a decision to the approver's passkeys, after every check that `decide` would make by now.

    What the authenticator signs is the digest of the complete decision, its nonce and this moment included. `decide`
    builds the decision anew from its own ballot: whatever differs by then was not signed.
    """
    check_ballot(ballot)
    reading, record = desk.find(ballot.approver.tenant, ballot.request_id)
    proof = passkeys.announced(desk, reading.now)
    vote = _vote(ballot, record, reading.now, desk, proof)
    floods.check_entitled(record.details, vote, mutes=ballot.mute is not None)
    _check_open(desk, ballot, vote, record, reading)
    if ballot.arguments is not None:
        vote = edited(desk, ballot.arguments, vote, record, reading, proof.request_id, ballot.execute_within).vote
    return passkeys.challenged(desk, ballot.approver, ballot.request_id, vote, _terms(ballot), reading.now)


def _terms(ballot: Ballot) -> dict[str, Any]:
    """Return what a ballot brings and its vote does not hold; with a passkey it is bound through the ticket."""
    return {} if ballot.mute is None else {"mute": ballot.mute}


def _vote(ballot: Ballot, record: Record, now: int, desk: Desk, proof: Proof | None = None) -> Vote:
    """Return the decision that a ballot makes of a request; with a proof the one that was put to the passkey."""
    approver, within = ballot.approver, record.envelope.execute_within
    evidence = None if proof is None else proof.evidence
    response = None if ballot.respond is None else desk.canonical_value(ballot.respond).decode()
    return Vote(
        tenant=record.row.tenant, request_id=record.row.id, fingerprint=record.envelope.fingerprint,
        policy_version=record.envelope.policy_version, approver=approver.id, kind=approver.kind,
        names=tuple(sorted(folded(approver.every_name()))),
        # Roles may come in another order with each request; an authenticator signs one.
        roles=approver.roles if evidence is None else tuple(sorted(set(approver.roles))), channel=ballot.channel,
        credential=ballot.credential, approve=ballot.approve, automatic=False, reason=ballot.reason or None,
        response=response, nonce=new_id() if proof is None else proof.nonce,
        execute_by=execute_by(now, evidence, within, ballot.execute_within), at=now, evidence=evidence,
    )


def _judge(
    desk: Desk, ballot: Ballot, vote: Vote, record: Record, reading: Reading, proof: Proof | None
) -> Decision | None:
    """Check one decision against one reading. None: another transition won; read again.

    The order is not that of `Guard.authorize`, which decides whether a tool runs: here the right to decide comes first,
    so that nobody without it learns a request's state. A pause stops asking and running, not deciding.

    1. the approver's right (people, self-approval, role, channel)  2. the same decision again: no second one
    3. state and decision window  4. the fingerprint that was shown  5. the policy version  6. one decision a person
    7. the passkey's signature, where there is one, over exactly what is written
    """
    floods.check_entitled(record.details, vote, mutes=ballot.mute is not None)  # 1
    mine = _same_vote(record, vote, ballot.fingerprint)  # 2
    if mine is not None and ballot.arguments is None and record.state != "superseded":
        floods.check_repeated(record, mine, ballot.mute, reading)
        return to_decision(mine, record.state)
    if ballot.arguments is not None and proof is None:  # 2; an answer of a passkey makes one decision only
        made = edited_before(desk, ballot.arguments, vote, record)
        if made is not None:
            return made
    _check_open(desk, ballot, vote, record, reading)  # 3 to 6
    if ballot.arguments is not None:
        return _edit(desk, ballot, ballot.arguments, vote, record, reading, proof)
    step = ask.vote_step(
        desk, vote, record.row, record.digest, kind=_kind(record, vote), version=record.version + 1, last=record.last,
        now=reading.now, before=record.envelope.decide_by,
    )
    mute = floods.muting(desk, record, vote, ballot.mute, reading)
    if desk.store.write([*_proven(desk, vote, step, proof), *mute], desk.sealer) is None:  # 7
        return None
    return to_decision(vote, states.fold((step.draft.type,)))


def _proven(desk: Desk, vote: Vote, step: Append, proof: Proof | None) -> list[Step]:
    """Return the steps that record a decision: its event alone, or what `Proof.spending` makes of it."""
    return [step] if proof is None else proof.spending(desk, vote, step)


def _check_open(desk: Desk, ballot: Ballot, vote: Vote, record: Record, reading: Reading) -> None:
    """Checks 3 to 6 of `_judge`."""
    if record.state != "pending":  # 3
        _refuse_ended(desk, record, reading)
    record.check_issued(reading.now, desk.settings.skew)
    if ballot.fingerprint != record.envelope.fingerprint:  # 4
        raise ArgsMismatchError("The page that was shown is out of date: look at the request again.", detail="stale")
    if record.envelope.policy_version != desk.policy.version:  # 5
        raise PolicyChangedError("The policy changed since this was asked. The agent must ask again.")
    if any(set(other.names) & set(vote.names) for other in record.votes):  # 6
        raise DecisionError("You have decided this already.", code="already-decided", decided_by=vote.approver)
    check_window(vote)


def _kind(record: Record, vote: Vote) -> str:
    if not vote.approve:
        return "request:denied"
    complete = met(record.details.requirements, record.details.parties, (*record.votes, vote))
    return "request:approved" if complete else "request:voted"


def _same_vote(record: Record, vote: Vote, shown: str) -> Vote | None:
    """Return the same decision if this person made it before: repeating it is no second decision."""
    for other in record.votes:
        same = other.approver, other.approve, other.fingerprint, other.reason, other.response
        if same == (vote.approver, vote.approve, shown, vote.reason, vote.response):
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
    desk: Desk, ballot: Ballot, arguments: Mapping[str, Any] | str | bytes, vote: Vote, record: Record,
    reading: Reading, proof: Proof | None,
) -> Decision | None:
    """Supersede the request by one with the edited arguments, on which the editor has voted once."""
    id_ = new_id() if proof is None else proof.request_id
    new = edited(desk, arguments, vote, record, reading, id_, ballot.execute_within)
    complete = met(new.details.requirements, new.details.parties, (new.vote,))
    step = ask.vote_step(
        desk, new.vote, new.added.row, ask.digest_of(new.added.row), version=1, last=None, now=reading.now,
        kind="request:approved" if complete else "request:voted", before=record.envelope.decide_by,
    )
    steps: list[Step] = [
        ask.ending(record, "request:superseded", reading.now, by=new.added.row.id, editor=vote.approver),
        new.added,
        *_proven(desk, new.vote, step, proof),
    ]
    if desk.store.write(steps, desk.sealer) is None:
        return None
    return to_decision(new.vote, "approved" if complete else "pending")


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
        details = record.details
        check_revoker(
            details.requirements, details.parties, by, user=record.envelope.scope.user,
            operator_role=desk.settings.operator_role,
        )
        if record.state not in ("pending", "approved", "suspended"):
            _refuse_ended(desk, record, reading)
        step = ask.ending(record, "request:revoked", reading.now, by=by.id, reason=reason)
        if desk.store.write([step], desk.sealer) is not None:
            return
    raise busy()
