"""After the claim: what became of the call, and what an operator does when nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .. import audit
from ..errors import (
    ConfigurationError,
    ConsumedError,
    InDoubtError,
    InvalidApprovalError,
)
from ..models import Permit, Principal, check_reason
from ..rows import Draft
from ..store.base import Append, Step
from .desk import ROUNDS, Desk, busy
from .record import Record
from .rights import check_resolver

Outcome = Literal["succeeded", "failed", "in_doubt", "suspended"]
Resolution = Literal["succeeded", "failed", "abandoned"]


def settle(
    desk: Desk, permit: Permit, outcome: str, detail: str | None, alongside: Callable[[], Sequence[Step]] | None = None
) -> None:
    """Record the outcome of a claimed call, once, by the claim's holder. A permit that spent nothing has none.

    Args:
        alongside: Returns steps of the caller's own that are committed with it, or all of it is tried again; asked anew
            for each attempt.

    Raises:
        ConsumedError: it was settled or resolved before (``detail`` settled).
        StoreUnavailableError: it could not be recorded; the call then reads as in doubt.
    """
    if outcome not in ("succeeded", "failed", "in_doubt", "suspended"):
        raise ConfigurationError("An outcome is 'succeeded', 'failed', 'in_doubt' or 'suspended'.")
    check_reason(detail)
    if permit.request_id is None and alongside is None:
        return
    tenant, version = permit.scope.tenant, permit.version + 1
    for _ in range(ROUNDS):
        steps: list[Step] = [] if alongside is None else list(alongside())
        if permit.request_id is not None:
            steps.append(receipt(permit, outcome, detail, desk.store.now()))
        if not steps or desk.store.write(steps, desk.sealer) is not None:
            return
        # Nothing was written: another outcome was faster, or (another change of what stands alongside, or a deadlock
        # that the database broke) nothing at all.
        if permit.request_id is None:
            continue
        stored = desk.store.load(tenant, request_id=permit.request_id).events
        if any((event.version or 0) >= version for event in stored):
            raise ConsumedError("This call's outcome was recorded before; it stays as it is.", detail="settled")
    raise busy()


def receipt(permit: Permit, outcome: str, detail: str | None, now: int) -> Append:
    """Return the step that records the outcome of a claimed call, by the claim's holder."""
    body = audit.body(claim=permit.claim_id, detail=detail, request=permit.record_digest)
    draft = Draft(
        f"call:{outcome}", permit.scope.tenant, now, body, permit.request_id, permit.version + 1
    )
    return Append(draft, previous_mac=permit.last, unlist=outcome not in ("in_doubt", "suspended"))


def resolve(
    desk: Desk, request_id: str, by: Principal, outcome: str, reason: str, *, force: bool
) -> str:
    """Close a call whose outcome is unknown, as an operator. Returns the final state.

    "Not executed" (``failed``) does not revive the grant: a new request is needed.

    Raises:
        NotAuthorisedError: no operator role, or the requester's own call.
        InDoubtError: the worker may still live (``detail`` running): wait, or use ``force``.
        InvalidApprovalError: nothing of this request is in doubt.
    """
    if outcome not in ("succeeded", "failed", "abandoned"):
        raise ConfigurationError("A resolution is 'succeeded', 'failed' or 'abandoned'.")
    if not isinstance(by, Principal) or not reason:
        raise ConfigurationError("A resolution needs a named principal and a reason.")
    check_reason(reason)
    for _ in range(ROUNDS):
        reading, record = desk.find(by.tenant, request_id)
        _may_resolve(desk, by, record, force)
        facts = {"by": by.id, "claim": record.claim_id, "forced": force, "reason": reason, "request": record.digest}
        steps: list[Step] = []
        version, last = record.version, record.last
        if record.stored_state == "executing":
            draft = Draft(
                "call:in_doubt", by.tenant, reading.now, audit.body(**facts), request_id, version + 1
            )
            steps.append(Append(draft, previous_mac=last))
            version, last = version + 1, None
        draft = Draft(f"call:{outcome}", by.tenant, reading.now, audit.body(**facts), request_id, version + 1)
        steps.append(Append(draft, previous_mac=last, unlist=True))
        if desk.store.write(steps, desk.sealer) is not None:
            return outcome
    raise busy()


def _may_resolve(desk: Desk, by: Principal, record: Record, force: bool) -> None:
    check_resolver(record.details.parties, by, operator_role=desk.settings.operator_role)
    if record.state == "executing" and not force:
        raise InDoubtError("The worker may still be running; wait, or force it with a reason.", detail="running")
    if record.state not in ("executing", "in_doubt"):
        raise InvalidApprovalError("Nothing of this request is in doubt; there is nothing to do.", detail=record.state)
