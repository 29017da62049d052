"""Against floods of requests: how many may wait for people at once, and what a tired person has muted.

The counts are a cache: they come from the list of open requests, which is no evidence. Somebody with write access to
the database, but no key, can make them too high, so that new requests are refused, or too low, so that people are asked
too often. Neither lets a call run that nobody approved. Mutes are signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import fingerprint
from ..envelope import Vote
from ..errors import (
    ApprovalDeniedError,
    DecisionError,
    InvalidApprovalError,
    InvalidSignatureError,
    LimitError,
    NotAuthorisedError,
    PausedError,
)
from ..models import Requirement, Scope
from ..store.base import AddRequest, Step
from .control import Mute, at, muted, steps_to_replace
from .desk import Desk, Reading
from .record import Details, Record
from .refusals import DEFAULT_DENIAL
from .rights import entitled, folded

MAX_MUTE = 30 * 86_400_000
"""The longest mute, thirty days in milliseconds."""

UNSEEN = b""
"""The desk of a call that the policy approved by itself: no person has it before them, so it is not counted."""

_REASONS = {
    "run": "This run has too many requests of this requester that wait for people",
    "requester": "This requester has too many requests that wait for people",
    "approver": "The approvers of this call have too many requests before them",
}


def name_of(user: str) -> str:
    """Return a user's id as requests are counted and muted by: another case or invisible characters change nothing."""
    return next(iter(folded((user,))))


def requester_digest(scope: Scope) -> bytes:
    """Return the 32 bytes by which a requester's requests are counted."""
    return user_digest(scope.tenant, scope.user)


def user_digest(tenant: str, user: str) -> bytes:
    """Return the `requester_digest` of a user's requests."""
    return fingerprint.place("requester", tenant, name_of(user))


def desk_digest(tenant: str, needs: Sequence[Requirement]) -> bytes:
    """Return the 32 bytes by which requests for the same approvers are counted, whatever else their rules demand.

    It stands for one exact set of entries: the same person in two sets has two desks, each with a limit of its own.
    """
    return fingerprint.place("desk", tenant, *sorted(desk_entries(needs)))


def desk_entries(needs: Sequence[Requirement]) -> frozenset[str]:
    """Return the entries of a desk: whoever fits one of them sits there.

    Where rules name nobody, anybody does: there is no entry then, or ``""`` among those of other rules.
    """
    entries = frozenset(entry for need in needs for entry in need.approvers)
    return entries if all(need.approvers for need in needs) else entries and entries | {""}


def tool_digest(tenant: str, tool: str) -> bytes:
    """Return the 32 bytes by which lists are narrowed to a tool."""
    return fingerprint.place("tool", tenant, tool)


def check_room(desk: Desk, added: AddRequest, reading: Reading, among: Sequence[Step]) -> None:
    """Raise `LimitError` if a new request would be one too many.

    Writers that ask at the same moment do not see each other's requests, so that the limit may be passed by as many as
    ask at once. A count stops at its limit.

    Args:
        among: Steps of the same transaction: what they add counts too.

    Raises:
        LimitError: ``detail`` run, requester or approver.
    """
    settings, requester, approvers = desk.settings, added.requester or b"", added.desk or b""
    limits = settings.max_open_per_run, settings.max_open_per_requester, settings.max_open_per_approver
    together = [step for step in among if isinstance(step, AddRequest)]
    own = (
        sum((step.run, step.requester) == (added.run, requester) for step in together),
        sum(step.requester == requester for step in together),
        sum(step.desk == approvers for step in together),
    )
    stored = desk.store.count_open(run=added.run, requester=requester, desk=approvers, now=reading.now, limits=limits)
    for (detail, reason), count, more, limit in zip(_REASONS.items(), stored, own, limits, strict=True):
        if count + more >= limit:
            raise LimitError(f"{reason} ({limit}). Have some decided or withdrawn, then try again.", detail=detail)


def check_muted(desk: Desk, scope: Scope, details: Details, reading: Reading) -> None:
    """Raise `ApprovalDeniedError` if a person muted this requester and tool, and could have denied this request too.

    Raises:
        ApprovalDeniedError: ``detail`` muted, with the reason of the denial.
    """
    for mute in at(reading.control, reading.now).mutes:
        if (mute.tool, mute.user) != (details.tool, name_of(scope.user)):
            continue
        denial = _denial(desk, scope.tenant, mute)
        if denial is not None and not _reaches(denial, details):
            continue
        reason = denial.reason if denial is not None and (denial.reason or "").strip() else DEFAULT_DENIAL
        raise ApprovalDeniedError(
            "A person denied such a call and wants to hear of no other for now.", detail="muted", reason=reason
        )


def _denial(desk: Desk, tenant: str, mute: Mute) -> Vote | None:
    """Return the denial that a mute came with; None where it cannot be verified any more: the mute stands without."""
    try:
        return desk.find(tenant, mute.request_id)[1].denial()
    except (InvalidApprovalError, InvalidSignatureError):
        return None


def _reaches(denial: Vote, details: Details) -> bool:
    """Whether who denied one request, with a mute, could deny another with it."""
    try:
        check_entitled(details, denial, mutes=True)
    except NotAuthorisedError:
        return False
    return True


def check_entitled(details: Details, vote: Vote, *, mutes: bool) -> None:
    """Raise `NotAuthorisedError` unless the rules let somebody decide so (see `rights.entitled`).

    Args:
        mutes: Whether the denial comes with a mute. That is no plain denial: it reaches calls that nobody has looked at
            yet, for days, so it is proven where the rules demand a proof, as a response for the tool is.
    """
    judged = replace(vote, response="null") if mutes else vote
    entitled(details.requirements, details.parties, judged)


def check_repeated(record: Record, denial: Vote, milliseconds: int | None, reading: Reading) -> None:
    """Check a denial that was made before and is handed in again, with a mute: repeating it changes nothing.

    Raises:
        DecisionError: no such mute of this person is in force (any more), and none comes of this.
    """
    if milliseconds is None:
        return
    wanted = name_of(record.envelope.scope.user), record.details.tool, denial.approver
    if wanted not in {(mute.user, mute.tool, mute.by) for mute in at(reading.control, reading.now).mutes}:
        raise DecisionError(
            "You have denied this already, and no mute comes of saying so again: mute with the next denial.",
            code="already-decided", detail="denied", decided_by=denial.approver,
        )


def muting(desk: Desk, record: Record, denial: Vote, milliseconds: int | None, reading: Reading) -> list[Step]:
    """Return the steps that mute the requester and tool of a request that ``denial`` denies; none without a time.

    Raises:
        PausedError: the control row is of a restored database; an operator must confirm it first.
        LimitError: the tenant has too many mutes.
    """
    control = reading.control
    if milliseconds is None:
        return []
    mute = Mute(
        name_of(record.envelope.scope.user), record.details.tool, denial.approver, record.row.id,
        reading.now + milliseconds,
    )
    if control.restored:
        raise PausedError(
            "An operator must confirm the restored database first; deny without a mute.", detail="restored"
        )
    return steps_to_replace(
        control, muted(mute, now=reading.now)(control), by=denial.approver, reason=denial.reason, signer=desk.signer,
        now=reading.now,
    )
