"""Asking: the signed request is made and stored, or an open one is joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import audit, canonical, fingerprint
from ..envelope import DECISION_TYPE, REQUEST_TYPE, Envelope, Vote
from ..errors import HitlGuardError, PolicyDeniedError
from ..models import ApprovalRequest, Requirement
from ..policy.core import Status, Verdict
from ..rows import EVERYWHERE, Draft, RequestRow
from ..store.base import AddRequest, Append, Step
from . import floods
from .bound import Bound
from .control import Control, steps_to_replace
from .desk import Desk, Reading, new_id
from .record import Details, Record
from .refusals import policy_denied

POLICY_APPROVER = "policy"

Alongside = Callable[[list[ApprovalRequest | HitlGuardError]], Sequence[Step]]
"""Returns a loop's own steps, to be committed with the requests that it is given (see `Guard._request_together`)."""

_DETAILS_LIMITS = canonical.Limits(max_bytes=67_108_864, max_depth=200, max_nodes=2_000_000)
"""Wider than those of one call: details hold the definition, the context and every earlier call of the turn."""


def details_bytes(details: Details) -> bytes:
    """Return the canonical bytes of the details, as stored."""
    return stored_bytes(details.to_json())


def stored_bytes(value: Any) -> bytes:
    """Return the canonical bytes of what was checked against the guard's own limits before."""
    return canonical.canonicalize(value, limits=_DETAILS_LIMITS)


def stored_turn(details: Details) -> tuple[tuple[str, bytes], ...] | None:
    """Return the earlier calls of the model's turn as bytes; None: not known."""
    return None if details.turn is None else tuple((tool, stored_bytes(given)) for tool, given in details.turn)


def envelope_of(
    desk: Desk, bound: Bound, verdict: Verdict, reading: Reading, *, supersedes: Record | None = None,
    edited: bool = False,
) -> tuple[Envelope, Details]:
    """Return the unsigned envelope and details of a new request.

    Args:
        supersedes: The request whose place it takes. Its fingerprint stays accepted only where a person edited the
            arguments (``edited``).
    """
    needs, now = verdict.requirements or (Requirement(),), reading.now
    details = Details(
        tool=bound.tool, definition=bound.definition, requirements=needs, rules=verdict.rules, reason=verdict.reason,
        parties=bound.parties,
        turn=bound.turn_decoded(),
        context=None if bound.context is None else canonical.decode(bound.context), generation=reading.generation,
    )
    settings = desk.settings
    origin = None
    if supersedes is not None:
        origin = (supersedes.row.id, supersedes.original if edited else bound.fingerprint)
    return Envelope(
        request_id=new_id(), binding="retry" if bound.scope.call_id is None else "call", agent=bound.agent,
        fingerprint=bound.fingerprint, tool_digest=bound.tool_digest, policy_version=desk.policy.version,
        details=fingerprint.details_digest(details_bytes(details)), scope=bound.scope,
        nonce=new_id(), issued_at=now,
        decide_by=now + min(need.decide_within or settings.decide_within for need in needs),
        execute_within=min(need.execute_within or settings.execute_within for need in needs), supersedes=origin,
        key_id=desk.signer.keyring.signing_key(now).id,
    ), details


def sign(
    desk: Desk, envelope: Envelope, details: Details, bound: Bound, reading: Reading, *, seen: bool = True
) -> AddRequest:
    """Return the step that stores a new request. ``seen``: whether people are asked about it."""
    text = desk.signer.sign("request", REQUEST_TYPE, envelope.to_fields(), now=envelope.issued_at)
    original = envelope.supersedes[1] if envelope.supersedes else envelope.fingerprint
    row = RequestRow(
        id=envelope.request_id, tenant=envelope.scope.tenant,
        identity=fingerprint.identity(envelope.scope, original), generation=reading.generation, envelope=text,
        arguments=bound.canonical, details=details_bytes(details),
    )
    return AddRequest(
        row, fingerprint.run_digest(envelope.scope.tenant, envelope.scope.run), envelope.decide_by,
        requester=floods.requester_digest(envelope.scope) if seen else None,
        desk=floods.desk_digest(envelope.scope.tenant, details.requirements) if seen else floods.UNSEEN,
        added_at=envelope.issued_at, tool=floods.tool_digest(envelope.scope.tenant, details.tool),
    )


def digest_of(row: RequestRow) -> str:
    """Return the digest that every event of the request carries."""
    return fingerprint.record_digest(row.envelope, row.arguments, row.details)


def ending(record: Record, kind: str, now: int, **facts: object) -> Append:
    """Return the step that ends an open request (``request:expired``, ``request:superseded`` …)."""
    body = audit.body(request=record.digest, **facts)
    draft = Draft(kind, record.row.tenant, now, body, record.row.id, record.version + 1)
    return Append(draft, previous_mac=record.last, unlist=True)


def control_steps(desk: Desk, reading: Reading) -> list[Step]:
    """Return the steps that give a new tenant its first control row, and the first of all its row that reaches every
    tenant; none where they are there.
    """
    control, steps = reading.control, list[Step]()
    for tenant, version in ((control.tenant, control.version), (EVERYWHERE, control.everywhere_version)):
        if not version:
            new = Control(tenant)
            steps += steps_to_replace(new, new, by="hitl-guard", reason="first", signer=desk.signer, now=reading.now)
    return steps


def ask(desk: Desk, bound: Bound, reading: Reading, verdict: Verdict) -> Record | None:
    """Store a new request for the call and return it, or None when another one was faster (read again)."""
    record, steps = asked(desk, bound, reading, verdict)
    return None if desk.store.write([*control_steps(desk, reading), *steps], desk.sealer) is None else record


def asked(
    desk: Desk, bound: Bound, reading: Reading, verdict: Verdict, among: Sequence[Step] = ()
) -> tuple[Record, list[Step]]:
    """Return a new request for the call, and the steps that store it.

    An overdue request of the same identity is ended as expired, an outdated one as superseded, in the same
    transaction.

    Args:
        among: Steps that are committed before these, in the same transaction.

    Raises:
        ApprovalDeniedError: a person muted such calls. LimitError: too many requests wait for people.
    """
    replaced = _replaced(reading)
    envelope, details = envelope_of(desk, bound, verdict, reading, supersedes=replaced)
    floods.check_muted(desk, envelope.scope, details, reading)
    added = sign(desk, envelope, details, bound, reading)
    if replaced is None:  # else one goes as one comes
        floods.check_room(desk, added, reading, among)
    # What was signed a moment ago needs no second look before it is shown.
    record = Record(
        envelope, details, added.row, (), (), "pending", "pending", None, None, digest_of(added.row)
    )
    return record, [*endings(reading, envelope.request_id), added]


def _replaced(reading: Reading) -> Record | None:
    """Return the open request whose place a new one takes: an outdated one. Overdue ones just expire."""
    old = reading.record
    return old if old is not None and old.state in ("pending", "approved") else None


def endings(reading: Reading, new_id_: str) -> list[Step]:
    """Return the step that ends the identity's last request, where it is still open, because a new one is made."""
    old, replaced = reading.record, _replaced(reading)
    if replaced is not None:
        return [ending(replaced, "request:superseded", reading.now, by=new_id_)]
    if old is not None and old.stored_state in ("pending", "approved"):
        return [ending(old, "request:expired", reading.now)]
    return []


def asking_again(verdict: Verdict, ended: Record) -> Verdict:
    """Return a verdict that asks a person, with the ended request's requirements where the policy would not ask."""
    if verdict.status is Status.USER_APPROVAL or ended.state not in ("expired", "revoked", "superseded"):
        return verdict
    return replace(
        verdict, status=Status.USER_APPROVAL, requirements=ended.details.requirements, rules=ended.details.rules,
        reason=ended.details.reason,
    )


def as_signed(bound: Bound, record: Record) -> Bound:
    """Return the call as it was signed: agent, edited arguments, turn; and its context, unless one is given now."""
    details = record.details
    context = bound.context
    if context is None and details.context is not None:
        context = stored_bytes(dict(details.context))
    return replace(
        bound, agent=record.envelope.agent, canonical=record.row.arguments, fingerprint=record.envelope.fingerprint,
        context=context,
        turn=stored_turn(details),
    )


def evaluate_again(desk: Desk, bound: Bound, record: Record) -> Verdict:
    """Evaluate the policy on what was signed (`as_signed`); only the context may be the caller's of now.

    Raises:
        PolicyDeniedError: it denies, or (``detail`` policy-error) fails to answer.
    """
    verdict = desk.evaluate(as_signed(bound, record))
    if verdict.errors:
        raise PolicyDeniedError(
            "The policy failed to answer when it was asked again; see 'hitl-guard policy explain'.",
            detail="policy-error",
        )
    if verdict.status is Status.DENIED:
        raise policy_denied(verdict)
    return verdict


def automatic_approval(desk: Desk, added: AddRequest, envelope: Envelope, reason: str | None, now: int) -> Append:
    """Return the step that records the policy's own approval: no person is behind it, and it says so."""
    vote = Vote(
        tenant=envelope.scope.tenant, request_id=envelope.request_id, fingerprint=envelope.fingerprint,
        policy_version=envelope.policy_version, approver=POLICY_APPROVER, kind="service", names=(POLICY_APPROVER,),
        roles=(), channel=POLICY_APPROVER, credential=None, approve=True, automatic=True, reason=reason, response=None,
        nonce=new_id(), execute_by=now + envelope.execute_within,
    )
    digest = digest_of(added.row)
    return vote_step(desk, vote, added.row, digest, kind="request:approved", version=1, last=None, now=now)


def vote_step(
    desk: Desk, vote: Vote, row: RequestRow, digest: str, *, kind: str, version: int, last: bytes | None, now: int,
    before: int | None = None,
) -> Append:
    """Return the step that records a signed decision as the request's next event."""
    text = desk.signer.sign("decision", DECISION_TYPE, vote.to_fields(), now=now)
    body = audit.body(decision=text.decode(), request=digest)
    draft = Draft(kind, row.tenant, now, body, row.id, version)
    return Append(draft, previous_mac=last, before=before, unlist=kind == "request:denied")
