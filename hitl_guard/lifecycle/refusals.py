"""What a call is told that may not run: one error for each state, each mismatch."""

from __future__ import annotations

from typing import NoReturn

from .. import canonical
from ..errors import (
    ApprovalDeniedError,
    ArgsMismatchError,
    ConsumedError,
    ExpiredError,
    HitlGuardError,
    InDoubtError,
    PolicyDeniedError,
    RevokedError,
    ScopeMismatchError,
    SupersededError,
)
from ..models import Principal
from ..policy.core import Verdict
from .bound import Asked
from .desk import Reading
from .record import Record

DEFAULT_DENIAL = "Tool call was not approved by the user"
"""What the model is told when a person said no without a reason."""


def refuse_state(record: Record) -> NoReturn:
    """Raise what a request's state says to who wants to run its call."""
    if record.state == "denied":
        vote = record.denial()
        reason = vote.reason if vote and (vote.reason or "").strip() else DEFAULT_DENIAL
        response = None if vote is None or vote.response is None else canonical.decode(vote.response.encode())
        raise ApprovalDeniedError("A person denied this call.", reason=reason, response=response)
    errors: dict[str, HitlGuardError] = {
        "expired": ExpiredError("The approval expired; ask again."),
        "revoked": RevokedError("The approval was withdrawn; ask again if the call is still wanted."),
        "superseded": SupersededError("Another request took this one's place; call without a request id."),
        "in_doubt": InDoubtError("The call was started and its outcome is unknown; an operator must resolve it."),
    }
    raise errors.get(record.state) or ConsumedError(
        "The approval was used before. A new call needs a new approval.", detail=record.state
    )


def check_scope(bound: Asked, record: Record) -> None:
    """Raise `ScopeMismatchError` unless the approval is for this user, run and tool call."""
    approved, given = record.envelope.scope, bound.scope
    same = (approved.user, approved.run) == (given.user, given.run)
    if record.envelope.binding == "call":
        same = same and (approved.call_id, approved.occurrence) == (given.call_id, given.occurrence)
    if not same:
        raise ScopeMismatchError("The approval is for another user, run or tool call; ask for this one.")


def check_unspent(reading: Reading) -> None:
    """Raise `ConsumedError` if the call was made before."""
    if reading.spent:
        raise ConsumedError("This call was made before. A new call needs a new tool-call id.", detail="spent")


def policy_denied(verdict: Verdict) -> PolicyDeniedError:
    """Return the error for a verdict that denies."""
    rules = f": rule {', '.join(verdict.rules)}" if verdict.rules else ""
    return PolicyDeniedError(f"The policy denies this call{rules}.", detail="policy", reason=verdict.reason)


def name_of(who: object) -> object:
    """Return the id of who makes a call, as the audit log names him."""
    return who.id if isinstance(who, Principal) else who


def fits(bound: Asked, record: Record) -> bool:
    """Whether it is the same call. An edited request also answers a loop that still holds what it replaced."""
    return bound.fingerprint in (record.envelope.fingerprint, record.original)


def check_fingerprint(bound: Asked, record: Record) -> None:
    """Raise `ArgsMismatchError` unless tool and arguments are the approved ones."""
    if not fits(bound, record):
        raise ArgsMismatchError("The tool or its arguments are not the approved ones.")
