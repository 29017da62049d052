"""From the answers in a post to decisions: everything is verified before anything is decided.

Each answer goes through the guard as its own decision, made by whoever is logged in, in the channel ``chat``. What the
client says of earlier decisions decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ...errors import (
    DecisionError,
    InvalidApprovalError,
    KeyInactiveError,
    KeyRevokedError,
    KeyUnknownError,
    NotAuthorisedError,
    RefusedError,
)
from ...guard import Guard
from ...models import ApprovalRequest, Scope
from ...protocols import Claim
from ...protocols.verify import Posted, agrees, posted
from ...render import escape
from .messages import ChatId, Post

CHANNEL = "chat"
"""The channel of a decision that is made in a chat; a rule's ``channels`` can name it or leave it out."""

_OVER = (KeyRevokedError, KeyUnknownError, KeyInactiveError)
"""Why what was signed properly may count no more."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one live answer came to.

    Attributes:
        call_id: The tool call, as the client knows it.
        request: The request as it is now (after an edit the one with the edited arguments); None where it counts no
            more, because its key is gone.
        run_id: Its run. note: Why it still waits, for the person who answered; None where it does not.
    """

    call_id: str
    request: ApprovalRequest | None
    run_id: str | None
    note: str | None = None

    @property
    def waits(self) -> bool:
        """Whether somebody must still decide."""
        return self.request is not None and self.request.state == "pending"


def taken(
    guard: Guard, chat: ChatId, post: Post, *, owns: Callable[[str], bool],
    call_id_of: Callable[[Scope], str | None],
) -> list[Told]:
    """Verify every answer in a post, then hand the live ones to the guard as decisions. Blocks.

    One that is forged, altered or of elsewhere refuses the whole post, and nothing is decided.

    Args:
        owns: Whether a run belongs to the chat. call_id_of: How the client knows a call.

    Raises:
        RefusedError: as `hitl_guard.protocols.verify.posted`; each is audited.
        UnavailableError: nobody can tell now; what was decided before that is on record, and posting again is safe.
    """
    live: list[tuple[Claim, Posted | None]] = []
    for claim in post.claims:
        with guard._desk.refusals(
            "call:refused", tenant=chat.user.tenant, user=chat.user.id, tool=claim.tool, call_id=claim.call_id,
            request=claim.request_id, channel=CHANNEL,
        ):
            answer: Posted | None = None
            with suppress(*_OVER):
                answer = _posted(guard, chat, claim, owns, call_id_of)
                if answer is not None and claim.outcome != "none":
                    agrees(answer)
        if claim.outcome == "none":
            live.append((claim, answer))
    with guard._desk.refusals("call:refused", tenant=chat.user.tenant, user=chat.user.id, channel=CHANNEL):
        once = _check_once(live)
    return [_decided(guard, chat, claim, answer) for claim, answer in once]


def _posted(
    guard: Guard, chat: ChatId, claim: Claim, owns: Callable[[str], bool], call_id_of: Callable[[Scope], str | None]
) -> Posted | None:
    try:
        return posted(guard._desk, claim, principal=chat.user, owns=owns, call_id_of=call_id_of)
    except InvalidApprovalError as error:
        if error.detail != "epoch":
            raise
        return None  # of before a restore: void, and no fault


def _check_once(live: Sequence[tuple[Claim, Posted | None]]) -> list[tuple[Claim, Posted | None]]:
    """Return each answer once. The same one may stand in a history twice; two that differ are none.

    Raises:
        InvalidApprovalError: one request is answered in two ways (``detail`` repeated).
    """
    once: dict[str | None, tuple[Claim, Posted | None]] = {}
    for claim, answer in live:
        first = once.setdefault(claim.request_id, (claim, answer))[0]
        if first.approved is not claim.approved:
            raise InvalidApprovalError("One approval is answered twice.", detail="repeated")
    return list(once.values())


def _decided(guard: Guard, chat: ChatId, claim: Claim, answer: Posted | None) -> Told:
    call_id = claim.call_id or ""
    if answer is None:
        return Told(call_id, None, None)
    record, run_id, note = answer.record, answer.record.envelope.scope.run, None
    if record.state == "pending" and record is not answer.named:
        note = "Somebody changed the arguments: this is what is asked now."
    elif record.state == "pending":
        note = _decide(guard, chat, claim, answer)
    elif record.state == "approved" and not claim.approved:
        _withdraw(guard, chat, claim, answer)
    request = guard.get(record.row.id, tenant=chat.user.tenant)
    if request.state == "pending" and note is None:
        note = "Your decision is on record. Others must decide, too."
    return Told(call_id, request, run_id, note)


def _withdraw(guard: Guard, chat: ChatId, claim: Claim, answer: Posted) -> None:
    """Take an approval back that has not been used: the one who asked says No by now, and nothing may run on a No."""
    with suppress(DecisionError, RefusedError):  # it was used meanwhile, and that is told
        guard.revoke(answer.record.row.id, by=chat.user, reason=claim.reason or "Denied in the chat.")


def _decide(guard: Guard, chat: ChatId, claim: Claim, answer: Posted) -> str | None:
    """Hand one answer to the guard; return why it did not take it, or None.

    Raises:
        UnavailableError: nobody can tell now.
    """
    try:
        guard.decide(
            answer.record.row.id, approver=chat.user, approve=claim.approved,
            fingerprint=answer.record.envelope.fingerprint, reason=claim.reason or None, channel=CHANNEL,
        )
    except (DecisionError, RefusedError) as error:
        if error.code == NotAuthorisedError.default_code:
            why = _WHY.get(error.detail or "", "You may not decide this here.")
            return f"{why} {_who_decides(answer)}"
        return f"Your decision was not taken ({error.code}). Look at the request in the inbox."
    return None


def _who_decides(answer: Posted) -> str:
    names = dict.fromkeys(name for need in answer.record.details.requirements for name in need.approvers)
    return f"Who decides: {', '.join(map(escape, names)) or 'any other person'}."


_WHY = {
    "evidence": "This needs a passkey: decide it in the inbox.",
    "self-approval": "You cannot decide what was asked for you.",
}
