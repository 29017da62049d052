"""A stored request with its events, verified before any column is believed."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .. import audit, canonical, fingerprint, signing
from ..envelope import DECISION_TYPE, PASSKEY, REQUEST_TYPE, Envelope, Vote
from ..errors import InvalidApprovalError, InvalidSignatureError, NotYetValidError, StoreRolledBackError
from ..models import ApprovalRequest, Decision, Requirement, ToolDefinition
from ..rows import EventRow, RequestRow
from ..signing import Signer
from . import state as states
from .rights import Parties, approvals


@dataclass(frozen=True, slots=True)
class Details:
    """The signed details of a request: what does not travel, but is bound by the envelope's ``details`` digest."""

    tool: str
    definition: ToolDefinition | None
    requirements: tuple[Requirement, ...]
    rules: tuple[str, ...]
    reason: str | None
    parties: Parties
    turn: tuple[tuple[str, dict[str, Any]], ...] | None
    context: Mapping[str, Any] | None
    generation: int

    def to_json(self) -> dict[str, Any]:
        """Return the plain JSON object whose canonical bytes are stored."""
        return {
            "agent_names": sorted(self.parties.agent), "context": self.context,
            "definition": None if self.definition is None else self.definition.to_json(), "generation": self.generation,
            "reason": self.reason,
            "requester_names": sorted(self.parties.requester),
            "requirements": [need.to_json() for need in self.requirements], "rules": list(self.rules),
            "tool": self.tool,
            "turn": None if self.turn is None else [[tool, arguments] for tool, arguments in self.turn],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Details:
        """Read verified details."""
        definition = data["definition"]
        return cls(
            tool=data["tool"],
            definition=None if definition is None else ToolDefinition(**definition),
            requirements=tuple(Requirement.from_json(need) for need in data["requirements"]),
            rules=tuple(data["rules"]), reason=data["reason"],
            parties=Parties(frozenset(data["requester_names"]), frozenset(data["agent_names"])),
            turn=None if data["turn"] is None else tuple((tool, arguments) for tool, arguments in data["turn"]),
            context=data["context"],
            generation=data["generation"],
        )


@dataclass(slots=True)
class Record:
    """A verified request as of one reading of the database's clock.

    Attributes:
        state: As it reads now (overdue ones read as expired or in doubt).
        stored_state: As the events alone say.
        digest: Digest of the request row; every event carries it.
        run_by: Until when a claimed call may run before it reads as in doubt, epoch milliseconds.
    """

    envelope: Envelope
    details: Details
    row: RequestRow
    events: tuple[EventRow, ...]
    votes: tuple[Vote, ...]
    state: str
    stored_state: str
    execute_by: int | None
    claim_id: str | None
    digest: str
    run_by: int | None = None

    @property
    def version(self) -> int:
        """Number of events so far."""
        return len(self.events)

    @property
    def last(self) -> bytes | None:
        """MAC of the last event, or None."""
        return self.events[-1].mac if self.events else None

    @property
    def original(self) -> str:
        """The fingerprint that the model asked for: another one than the envelope's after an edit."""
        return self.envelope.supersedes[1] if self.envelope.supersedes else self.envelope.fingerprint

    @property
    def automatic(self) -> bool:
        """Whether the policy approved it by itself, and nobody else."""
        return {vote.automatic for vote in self.votes} == {True}

    def at(self, now: int) -> Record:
        """Return this record as it reads at another time of the database, in epoch milliseconds."""
        return replace(self, state=states.at(
            self.stored_state, now=now, decide_by=self.envelope.decide_by, execute_by=self.execute_by,
            run_by=self.run_by,
        ))

    def denial(self) -> Vote | None:
        """Return the vote that denied this request, if any."""
        return next((vote for vote in reversed(self.votes) if not vote.approve), None)

    def check_issued(self, now: int, skew: int) -> None:
        """Raise `NotYetValidError` if the request or a decision says that it was made more than ``skew`` ms ahead."""
        if max(self.envelope.issued_at, *(vote.at for vote in self.votes), 0) > now + skew:
            raise NotYetValidError("This was issued in the future. Check the database's clock.")


def verify(
    row: RequestRow, events: Sequence[EventRow], *, signer: Signer, sealer: audit.Sealer, now: int,
    any_earlier_epoch: bool = False,
) -> Record:
    """Return the record if every byte of it was signed and no event is missing from the middle.

    Args:
        any_earlier_epoch: For the audit alone: what was signed before a restore is void, yet not damaged.

    Raises:
        InvalidSignatureError, KeyUnknownError, KeyInactiveError, KeyRevokedError, InvalidApprovalError: as
            `Signer.open`; also when columns contradict what was signed.
        StoreRolledBackError: there is a gap in the versions, or the events are no path of the state machine.
    """
    fields = signer.open(
        row.envelope, expected_purpose="request", expected_type=REQUEST_TYPE, now=now,
        any_earlier_epoch=any_earlier_epoch,
    )
    envelope = Envelope.from_fields(fields)
    details = _details(row, envelope)
    digest = fingerprint.record_digest(row.envelope, row.arguments, row.details)
    votes: list[Vote] = []
    execute_by: int | None = None
    run_by: int | None = None
    claim_id: str | None = None
    for number, event in enumerate(events, start=1):
        body = _event(event, number, row, digest, sealer, now)
        if "decision" in body:
            vote = _vote(body["decision"], envelope, signer, now, any_earlier_epoch)
            if vote.evidence is not None and event.spend_key != vote.challenge(vote.evidence.at):
                # That key is what makes an authenticator's answer count once.
                raise InvalidApprovalError("A decision's evidence is another one's.", detail="decision")
            votes.append(vote)
            if event.type == "request:approved":
                execute_by = vote.execute_by
        elif event.type in ("grant:claimed", "grant:resumed"):
            claim_id, run_by = body.get("claim"), body.get("run_by")
            if not signing.is_time(run_by):
                raise InvalidApprovalError("A claim's time is no time.", detail="malformed")
    stored = states.fold(event.type for event in events)
    return Record(
        envelope, details, row, tuple(events), tuple(votes), stored, stored, execute_by, claim_id, digest, run_by
    ).at(now)


def _read_details(details: bytes) -> Details:
    """Return the details that verified bytes say. The same small bytes, which most requests of a tool share, are read
    once; nobody changes what is read from them."""
    return _small_details(details) if len(details) <= 4096 else Details.from_json(canonical.decode(details))


@functools.lru_cache(maxsize=512)
def _small_details(details: bytes) -> Details:
    return Details.from_json(canonical.decode(details))


def _details(row: RequestRow, envelope: Envelope) -> Details:
    mismatch = InvalidSignatureError("A stored request is not what was signed.", detail="mismatch")
    if fingerprint.details_digest(row.details) != envelope.details:
        raise mismatch
    details = _read_details(row.details)
    original = envelope.supersedes[1] if envelope.supersedes else envelope.fingerprint
    if (
        envelope.request_id != row.id
        or envelope.scope.tenant != row.tenant
        or details.generation != row.generation
        or fingerprint.fingerprint(details.tool, row.arguments) != envelope.fingerprint
        or fingerprint.identity(envelope.scope, original) != row.identity
    ):
        raise mismatch
    return details


def _event(
    event: EventRow, number: int, row: RequestRow, digest: str, sealer: audit.Sealer, now: int
) -> dict[str, Any]:
    if event.version != number:
        raise StoreRolledBackError(
            "An event of a request is missing. Run 'hitl-guard audit verify'.", detail="gap"
        )
    sealer.verify(event, now=now)
    body: dict[str, Any] = orjson.loads(event.body)
    if event.tenant != row.tenant or event.request_id != row.id or body.get("request") != digest:
        raise InvalidSignatureError("An event belongs to another request.", detail="mismatch")
    return body


def _vote(text: str, envelope: Envelope, signer: Signer, now: int, any_earlier_epoch: bool) -> Vote:
    vote = Vote.from_fields(signer.open(
        text, expected_purpose="decision", expected_type=DECISION_TYPE, now=now, any_earlier_epoch=any_earlier_epoch
    ))
    if (vote.tenant, vote.request_id, vote.fingerprint, vote.policy_version) != (
        envelope.scope.tenant, envelope.request_id, envelope.fingerprint, envelope.policy_version
    ):
        raise InvalidApprovalError("A decision belongs to another request.", detail="decision")
    window = 0 if vote.execute_by is None else vote.execute_by - vote.at
    if vote.at >= envelope.decide_by or not 0 < window <= envelope.execute_within:
        raise InvalidApprovalError("A decision is outside the request's windows.", detail="window")
    return vote


def to_decision(vote: Vote, state: str) -> Decision:
    """Return the public view of one vote."""
    response = None if vote.response is None else json.loads(vote.response)
    return Decision(
        vote.request_id, vote.tenant, vote.fingerprint, vote.policy_version, vote.approver, vote.roles, vote.channel,
        vote.approve, vote.reason, vote.at, vote.nonce, vote.automatic, response, state,
        "hmac" if vote.evidence is None else PASSKEY,
    )


def to_request(record: Record) -> ApprovalRequest:
    """Return the public view of a record."""
    envelope, scope, details = record.envelope, record.envelope.scope, record.details
    return ApprovalRequest(
        id=envelope.request_id, tenant=scope.tenant, user=scope.user, run_id=scope.run, call_id=scope.call_id,
        occurrence=scope.occurrence, binding=envelope.binding, agent=envelope.agent, tool=details.tool,
        canonical=record.row.arguments, fingerprint=envelope.fingerprint, policy_version=envelope.policy_version,
        requirements=details.requirements, rules=details.rules, reason=details.reason, state=record.state,
        issued_at=envelope.issued_at, decide_by=envelope.decide_by, execute_by=record.execute_by,
        key_id=envelope.key_id, supersedes=envelope.supersedes[0] if envelope.supersedes else None,
        votes=tuple(to_decision(vote, record.state) for vote in record.votes), version=record.version,
        token=record.row.envelope.decode("ascii"), requesters=details.parties.requester,
        agent_names=details.parties.agent, definition=details.definition,
        approvals=approvals(details.requirements, details.parties, record.votes),
        voters=frozenset(name for vote in record.votes for name in vote.names),
    )
