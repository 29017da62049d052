"""Claims against the store: what a client says was decided must be what signed records say.

This grants nothing and spends nothing. It reads, so that what is forged, altered, replayed or foreign is refused before
an app sees it. Whether a call may run, only `Guard.authorize` says (`Guard.run`), with the checks that are left out
here: the tool's definition, the control row, the policy, the approvers' rights, and the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from .. import canonical, fingerprint
from ..errors import (
    CanonicalizationError,
    ConsumedError,
    InvalidApprovalError,
    InvalidSignatureError,
    KeyUnknownError,
    RefusedError,
    ScopeMismatchError,
)
from ..lifecycle.desk import Desk, Reading, unknown
from ..lifecycle.record import Record
from ..lifecycle.refusals import DEFAULT_DENIAL, check_fingerprint, check_scope, refuse_state
from ..models import Principal, Scope, check_text
from .calls import Calls
from .claims import Claim
from .echo import alike
from .void import Void, void

MAX_EDITS = 20
"""Edits of one call, one after another, that are followed from the first request to the one that counts."""

MAX_STATED = 100
"""Statements of one live call in a body; each is compared with what was approved."""


@dataclass(frozen=True, slots=True)
class VerifiedApproval:
    """An approval in a posted body that agrees with the store. It lets nothing run; `Guard.run` does.

    Attributes:
        request_id: The request that was decided: after an edit the one with the edited arguments, else the named one.
        call_id: The tool-call id, or None for deny-and-retry.
        approved: The decision on record.
        reason: What the deciding person wrote (a denial without it has the text that the model is told), or None.
        edited: Whether a person changed the arguments.
        history: Whether it carries how its call ended, so that there is nothing to run now.
        format, path: Where it stands in the body.
    """

    request_id: str
    call_id: str | None
    tool: str
    approved: bool
    reason: str | None
    edited: bool
    history: bool
    format: str
    path: str


@dataclass(frozen=True, slots=True)
class PostedApprovals:
    """What `ApprovalMiddleware` puts into ``scope["hitl_guard"]``.

    Attributes:
        principal: Who posts.
        run: The run of the body, or None where it holds no approvals and nobody asked.
        approvals: Every answered approval in it, verified.
    """

    principal: Principal
    run: str | None = None
    approvals: tuple[VerifiedApproval, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    scope: Scope
    fingerprint: str


def verify(
    desk: Desk, claims: Sequence[Claim], calls: Calls, *, principal: Principal, run: str, audited: bool = True
) -> tuple[VerifiedApproval, ...]:
    """Return the claims of one body as verified approvals, or refuse them all with the first that is wrong.

    The order is that of `Guard.authorize` as far as it goes (see `_verify`). Every refusal is audited.

    Args:
        principal: Who posts, as the host's authenticator says; its tenant and id are the scope.
        run: The run that the host says the body belongs to.
        audited: False only reads: whoever is refused then must call again, audited.

    Raises:
        RefusedError: a claim is not what the store says; ``code`` says why.
        UnavailableError: nobody can tell now.
    """
    check_text("run", run)
    verified: list[VerifiedApproval] = []
    live: set[str] = set()
    for claim in claims:
        facts = {"tool": claim.tool, "call_id": claim.call_id, "request": claim.request_id}
        with desk.refusals(
            "call:refused", tenant=principal.tenant, user=principal.id, run=run, **facts
        ) if audited else nullcontext():
            one = _verify(desk, claim, calls, Scope(principal.tenant, principal.id, run, claim.call_id, 0))
            if one.request_id in live:
                raise ConsumedError("One approval is answered twice.", detail="repeated")
            if claim.outcome == "none":
                live.add(one.request_id)
            verified.append(one)
    return tuple(verified)


@dataclass(frozen=True, slots=True)
class Posted:
    """A claim that is about a request of the store. Of a live one it was not compared what was decided.

    Attributes:
        named: The request that the client names.
        record: The one that counts: after an edit the one with the edited arguments, else the named one.
    """

    claim: Claim
    named: Record
    record: Record


def posted(
    desk: Desk, claim: Claim, *, principal: Principal, owns: Callable[[str], bool],
    call_id_of: Callable[[Scope], str | None] = lambda scope: scope.call_id,
) -> Posted | Void:
    """Return the request that a claim names, where request, signature, scope, tool and arguments agree with it.

    For a server that takes decisions from a chat and runs what it has stored: whether the request is still open, and
    who may decide it, the guard says when it is decided. Nothing is granted, and nothing is audited here. Other
    statements of the call are not compared: nothing runs from them, and models repeat ids.

    The checks and their order are those of `_verify`, but for two: the signature must be there, and 5 (state) is for
    history alone, since a live claim is what decides. A claim about a request that counts no more is `Void`.

    Args:
        principal: Who posts, as the host's authenticator says.
        owns: Whether a run belongs to the conversation that is posted to.
        call_id_of: How the client knows the call of a request's scope.

    Raises:
        InvalidSignatureError: the request's signed envelope did not come back (``missing``), or is not what was signed.
        InvalidApprovalError: there is no such request for this person in this conversation, or what history says came
            of it is not what is on record.
        ArgsMismatchError, ScopeMismatchError: tool, arguments or tool-call id are other ones.
        KeyRevokedError, KeyUnknownError: what came back is nothing that the store holds.
        UnavailableError: nobody can tell now.
    """
    if claim.token is None:
        raise InvalidSignatureError("The approval's signature is missing.", detail="missing")

    def check_place(scope: Scope) -> None:
        if scope.user != principal.id or not owns(scope.run):
            raise unknown()
        if claim.call_id != call_id_of(scope):
            raise ScopeMismatchError("The approval is for another tool call; ask for this one.")

    place = Scope(principal.tenant, principal.id, "", claim.call_id, 0)
    try:
        reading, named = _read(desk, claim, place)  # 1-4
        record = _edited(desk, named) or named
    except RefusedError as error:
        gone = void(desk, claim, error, tenant=principal.tenant, check_place=check_place)
        if not (isinstance(error, KeyUnknownError) and desk.signer.keyring.look()):
            return gone
        reading, named = _read(desk, claim, place)  # the key was new
        record = _edited(desk, named) or named
    _compare(desk, claim, None, reading, (record, named), check_place, decided=claim.outcome != "none")
    return Posted(claim, named, record)


def _verify(desk: Desk, claim: Claim, calls: Calls, scope: Scope) -> VerifiedApproval:
    """Check one claim. The numbers and the order are those of `Guard.authorize`:

    1-4. the token, if there is one, then request and events (`_read`)
    5. state: the decision on record is the claimed one; approved and unspent where the call has not run, spent where
       a result is posted with it
    6. times
    7. scope. The occurrence is in no format: it is checked when the call runs.
    8. fingerprint, also of every other statement of a live call

    That state comes before scope tells nobody anything: whichever check it was, the client gets one answer for all.
    """
    reading, named = _read(desk, claim, scope)  # 1-4
    record = _edited(desk, named) or named

    def check_place(approved: Scope) -> None:
        given = replace(scope, occurrence=approved.occurrence, call_id=scope.call_id or approved.call_id)
        check_scope(_Asked(given, ""), record)

    _compare(desk, claim, calls, reading, (record, named), check_place, decided=True)
    vote = record.votes[-1] if claim.approved else record.denial()
    reason = None if vote is None else vote.reason
    return VerifiedApproval(
        request_id=record.row.id, call_id=record.envelope.scope.call_id, tool=record.details.tool,
        approved=claim.approved, reason=reason or (None if claim.approved else DEFAULT_DENIAL),
        edited=record.original != record.envelope.fingerprint, history=claim.outcome != "none", format=claim.format,
        path=claim.path,
    )


def _compare(
    desk: Desk, claim: Claim, calls: Calls | None, reading: Reading, records: tuple[Record, Record],
    check_place: Callable[[Scope], None], *, decided: bool,
) -> None:
    """Checks 5 to 8 of one claim.

    Args:
        calls: Every statement of the body's calls, where they are compared as well.
        records: The request that counts, and the named one. decided: Whether the claim's decision must be on record.
    """
    record = records[0]
    if decided:
        _check_state(claim, record)  # 5
    record.check_issued(reading.now, desk.settings.skew)  # 6
    check_place(record.envelope.scope)  # 7
    _check_calls(desk, claim, calls, records)  # 8


def _read(desk: Desk, claim: Claim, scope: Scope) -> tuple[Reading, Record]:
    """Return the request that a claim names, by its id, or by the call where the format has no id of ours."""
    named = desk.named(_Asked(scope, ""), claim.request_id, None)
    identity = fingerprint.identity(scope, "") if named is None else None
    reading = desk.read(scope.tenant, request_id=named, identity=identity)
    record = reading.record
    if record is None or (claim.token is not None and claim.token.encode() != record.row.envelope):
        # A token that is the stored envelope is verified with it; any other one is opened, to say what is wrong.
        desk.named(_Asked(scope, ""), claim.request_id, claim.token)
        raise unknown()
    return reading, record


def _edited(desk: Desk, record: Record) -> Record | None:
    """Return the request in whose place an approver's edit put a superseded one: the client knows the first alone."""
    if record.state != "superseded":
        return None
    newest = found = desk.read(record.row.tenant, identity=record.row.identity).record
    for _ in range(MAX_EDITS):
        before = None if found is None or not _is_edit_of(found, record) else found.envelope.supersedes
        if before is None:
            return None  # asked anew since, or under another policy: that is another request
        if before[0] == record.row.id:
            return newest
        found = desk.read(record.row.tenant, request_id=before[0]).record
    return None


def _is_edit_of(record: Record, first: Record) -> bool:
    """Whether an approver changed the arguments of a call that was first asked for as ``first`` was."""
    return record.original != record.envelope.fingerprint and record.original == first.original


def _check_state(claim: Claim, record: Record) -> None:
    """Raise unless the decision on record is the claimed one, and the call is where the claim says."""
    if record.state == "pending":
        raise InvalidApprovalError("The request is not decided yet.", detail="pending")
    if not claim.approved:
        if record.state != "denied":
            raise InvalidApprovalError("The request was not denied.", detail="not-denied")
    elif claim.outcome == "output" and record.state == "approved":
        raise InvalidApprovalError("The call has a result, but it did not run.", detail="not-run")
    elif not {
        "none": record.state == "approved",
        "output": record.claim_id is not None,
        "error": record.execute_by is not None,  # it may have been too late to run, but somebody did approve it
    }[claim.outcome]:
        refuse_state(record)


def _check_calls(desk: Desk, claim: Claim, calls: Calls | None, records: tuple[Record, ...]) -> None:
    """Raise `ArgsMismatchError` unless tool and arguments are the approved ones, wherever a live call is stated."""
    record, tool, scope = records[0], records[0].details.tool, records[0].envelope.scope
    call_id = scope.call_id if claim.call_id is None else claim.call_id
    stated: list[tuple[Any, Any]] = []
    if claim.tool is not None or claim.arguments is not None:
        stated.append((tool if claim.tool is None else claim.tool, claim.arguments))
    if calls is not None and claim.outcome == "none" and claim.approved and call_id is not None:
        if len(calls.stated(call_id)) > MAX_STATED:
            raise InvalidApprovalError("One call is stated too often in the request.", detail="malformed")
        stated += [
            (call.tool, call.arguments) for call in calls.open(call_id)
            if call.tool != claim.tool or call.arguments is not claim.arguments  # else it is the claim's own
        ]
    for name, arguments in stated:
        check_fingerprint(_Asked(scope, _print(desk, name, arguments, records)), record)


def _print(desk: Desk, tool: Any, arguments: Any, records: tuple[Record, ...]) -> str:
    """Return the fingerprint of a stated call: the signed one where only a browser's numbers make the difference."""
    if type(tool) is not str or not tool:
        return ""
    try:
        raw = desk.canonical_value(arguments)
    except CanonicalizationError:
        raw = b""
    for record in records:
        if tool == record.details.tool and (
            raw == record.row.arguments or alike(canonical.decode(record.row.arguments), arguments)
        ):
            return record.envelope.fingerprint
    return fingerprint.fingerprint(tool, raw) if raw else ""
