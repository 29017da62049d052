"""The claim: one insert, committed durably before the tool runs, that spends a grant. Only one can win."""

from __future__ import annotations

from .. import audit, clock, fingerprint
from ..models import Permit
from ..policy.core import Verdict
from ..rows import Draft
from ..store.base import Append, Step
from . import ask
from .bound import Bound
from .desk import Desk, Reading, new_id
from .record import Record


def free_permit(bound: Bound) -> Permit:
    """Return the permit of a call that needs no approval: it spends nothing."""
    return Permit(
        tool=bound.tool, canonical=bound.canonical, fingerprint=bound.fingerprint, scope=bound.scope,
        schema=None if bound.definition is None else bound.definition.input_schema,
    )


def claim(desk: Desk, bound: Bound, reading: Reading, record: Record) -> Permit | None:
    """Spend a verified grant and return the permit, or None when anything changed since it was read.

    The permit is built from the verified bytes, never from what the statement returned.
    """
    if _control_was_missing(desk, reading) or record.execute_by is None:
        return None
    scope, claim_id = record.envelope.scope, new_id()
    key = fingerprint.spend_key(scope, record.row.id) if scope.call_id is None else (
        fingerprint.spend_key_of_call(record.row.identity)
    )
    desk.demand_spent(scope.tenant, key, reading.now)
    version = record.version + 1
    draft = _draft(desk, record.row.tenant, record.row.id, version, reading.now, key, claim_id, record.digest)
    step = Append(
        draft, previous_mac=record.last, before=record.execute_by, control=(scope.tenant, reading.control.version),
        everywhere=reading.control.everywhere_version,
    )
    written = desk.store.write([step], desk.sealer)
    if written is None:
        return None
    desk.remember(key, record.execute_by, reading.now)
    return _permit(desk, record, claim_id, written.events[-1].mac)


def claim_again(desk: Desk, reading: Reading, record: Record) -> Permit | None:
    """Start a suspended call again, from the top: the same one insert that only one can win. None as above.

    The spend key is there since the first claim; here the event's place, unique in the request, is what is spent. This
    process remembers the start that it follows, as long as it would remember a first claim.
    """
    if _control_was_missing(desk, reading):
        return None
    suspended, claim_id = (record.claim_id or "").encode(), new_id()
    desk.demand_resumed(record, suspended, reading.now)
    draft = _draft(
        desk, record.row.tenant, record.row.id, record.version + 1, reading.now, None, claim_id, record.digest,
        kind="grant:resumed",
    )
    step = Append(
        draft, previous_mac=record.last, control=(record.row.tenant, reading.control.version),
        everywhere=reading.control.everywhere_version,
    )
    written = desk.store.write([step], desk.sealer)
    if written is None:
        return None
    desk.remember(suspended, reading.now + record.envelope.execute_within, reading.now)
    return _permit(desk, record, claim_id, written.events[-1].mac)


def _permit(desk: Desk, record: Record, claim_id: str, last: bytes) -> Permit:
    scope, definition = record.envelope.scope, record.details.definition
    return Permit(
        tool=record.details.tool, canonical=record.row.arguments, fingerprint=record.envelope.fingerprint, scope=scope,
        request_id=record.row.id, claim_id=claim_id, version=record.version + 1, last=last,
        record_digest=record.digest, edited=record.original != record.envelope.fingerprint, start_by=_start_by(desk),
        idempotency_key=fingerprint.idempotency_key(scope.tenant, record.row.id, record.envelope.fingerprint),
        schema=None if definition is None else definition.input_schema,
    )


def claim_automatic(desk: Desk, bound: Bound, reading: Reading, verdict: Verdict) -> Permit | None:
    """Record the policy's own approval and claim it, in one transaction; None as above."""
    if _control_was_missing(desk, reading):
        return None
    envelope, details = ask.envelope_of(desk, bound, verdict, reading)
    added = ask.sign(desk, envelope, details, bound, reading, seen=False)
    digest, claim_id = ask.digest_of(added.row), new_id()
    key = fingerprint.spend_key(bound.scope, envelope.request_id)
    execute_by = reading.now + envelope.execute_within
    spend = Append(
        _draft(desk, bound.scope.tenant, envelope.request_id, 2, reading.now, key, claim_id, digest),
        before=execute_by, control=(bound.scope.tenant, reading.control.version),
        everywhere=reading.control.everywhere_version,
    )
    steps: list[Step] = [
        *ask.endings(reading, envelope.request_id), added,
        ask.automatic_approval(desk, added, envelope, verdict.reason, reading.now), spend,
    ]
    written = desk.store.write(steps, desk.sealer)
    if written is None:
        return None
    desk.remember(key, execute_by, reading.now)
    return Permit(
        tool=bound.tool, canonical=bound.canonical, fingerprint=bound.fingerprint, scope=bound.scope,
        request_id=envelope.request_id, claim_id=claim_id, version=2, last=written.events[-1].mac,
        record_digest=digest, start_by=_start_by(desk),
        schema=None if bound.definition is None else bound.definition.input_schema,
        idempotency_key=fingerprint.idempotency_key(bound.scope.tenant, envelope.request_id, envelope.fingerprint),
    )


def _draft(
    desk: Desk, tenant: str, request_id: str, version: int, now: int, key: bytes | None, claim_id: str, digest: str, *,
    kind: str = "grant:claimed",
) -> Draft:
    body = audit.body(claim=claim_id, request=digest, run_by=now + desk.settings.run_within)
    return Draft(kind, tenant, now, body, request_id, version, key)


def _start_by(desk: Desk) -> int:
    return clock.monotonic_ms() + desk.settings.run_within


def _control_was_missing(desk: Desk, reading: Reading) -> bool:
    """Give a new tenant its control row first: a claim must be able to lock one, so that a pause can stop it."""
    steps = ask.control_steps(desk, reading)
    if not steps:
        return False
    desk.store.write(steps, desk.sealer)
    return True
