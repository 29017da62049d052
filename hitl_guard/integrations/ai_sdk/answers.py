"""From the answers in a post to decisions: everything is verified before anything is decided.

Each answer goes through the guard as its own decision, made by whoever is logged in, in the channel ``chat``. What the
client says of earlier decisions decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ...errors import CanonicalizationError, DecisionError, InvalidApprovalError, NotAuthorisedError, RefusedError
from ...guard import Guard
from ...lifecycle.desk import ROUNDS, busy
from ...models import ApprovalRequest, Scope
from ...protocols import Claim
from ...protocols.verify import Posted, posted
from ...protocols.void import Void
from ...render import escape
from .messages import MAX_LIVE, ChatId, Post
from .texts import CHANGED, KEY_GONE, RESTORED

CHANNEL = "chat"
"""The channel of a decision that is made in a chat; a rule's ``channels`` can name it or leave it out."""

_Refusal = DecisionError | RefusedError


@dataclass(frozen=True, slots=True)
class Told:
    """What one live answer came to.

    Attributes:
        call_id: The tool call, as the client knows it. approval_id: The request that it names.
        approved: The answer.
        request: The request as it is now (after an edit the one with the edited arguments); None where it counts no
            more, because its key is gone or a restore ended it.
        run_id: Its run. note: For the person who answered: why it still waits, or why it counts no more; else None.
    """

    call_id: str
    approval_id: str | None
    approved: bool
    request: ApprovalRequest | None
    run_id: str | None
    note: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether the call was to run, and did: then its result is the answer. A No that came too late is told so."""
        return self.approved and self.request is not None and self.request.state == "succeeded"

    @property
    def waits(self) -> bool:
        """Whether somebody must still decide."""
        return self.request is not None and self.request.state == "pending"


def taken(
    guard: Guard, chat: ChatId, post: Post, *, owns: Callable[[str], bool],
    call_id_of: Callable[[Scope, str | None], str | None],
) -> list[Told]:
    """Verify every answer in a post, then hand the live ones to the guard as decisions. Blocks.

    One that is forged, altered or of elsewhere refuses the whole post, and nothing is decided.

    Args:
        owns: Whether a run belongs to the chat. call_id_of: How the client knows the call of a scope, given how it
            names it.

    Raises:
        RefusedError: as `hitl_guard.protocols.verify.posted`; each is audited.
        CanonicalizationError: there are too many answers to requests that wait (``too-large``).
        UnavailableError: nobody can tell now; what was decided before that is on record, and posting again is safe.
    """
    answers = _Answers(guard, chat, owns, call_id_of)
    read = [(claim, answers.read(claim)) for claim in post.claims]
    with answers.audited():
        live = _once([answer for claim, answer in read if claim.outcome == "none"])
    shown = post.shown
    live = [answer for answer in live if _place(answer.claim) in shown or not _is_over(answer)]
    if len(live) > MAX_LIVE:
        raise CanonicalizationError("There are too many answers at once.", code="too-large", detail="post")
    return [answers.told(answer.claim) for answer in live]


def _place(claim: Claim) -> tuple[str | None, str | None]:
    return claim.call_id, claim.request_id


def _is_over(answer: Posted | Void) -> bool:
    """Whether an answer has nothing left to do: one in an earlier message stays there, answered, for ever."""
    return isinstance(answer, Void) or answer.record.state not in ("pending", "approved")


def _once(live: Sequence[Posted | Void]) -> list[Posted | Void]:
    """Return each answer once. The same one may stand in a history twice; two that differ are none.

    After an edit two ids name one request. No honest client answers both in one message; in two messages they are two
    answers, one after the other. The answer to what is asked now comes first: the one to what was asked before decides
    nothing.

    Raises:
        InvalidApprovalError: one request is answered in two ways (``detail`` repeated).
    """
    said: dict[tuple[str | None, str], bool] = {}
    once: dict[str | None, Posted | Void] = {}
    for answer in live:
        claim = answer.claim
        record_id = answer.record.row.id if isinstance(answer, Posted) else claim.request_id
        message = "/".join(claim.path.split("/")[:3])
        for key in ((claim.request_id, ""), (record_id, message)):
            if said.setdefault(key, claim.approved) is not claim.approved:
                raise InvalidApprovalError("One approval is answered twice.", detail="repeated")
        once.setdefault(claim.request_id, answer)
    return sorted(once.values(), key=lambda answer: isinstance(answer, Posted) and answer.record is not answer.named)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one post, each read from the store and acted on."""

    guard: Guard
    chat: ChatId
    owns: Callable[[str], bool]
    call_id_of: Callable[[Scope, str | None], str | None]

    def audited(self, claim: Claim | None = None) -> AbstractContextManager[None]:
        """Audit every refusal that leaves the block."""
        of = {} if claim is None else {"tool": claim.tool, "call_id": claim.call_id, "request": claim.request_id}
        user = self.chat.user
        return self.guard._desk.refusals("call:refused", tenant=user.tenant, user=user.id, channel=CHANNEL, **of)

    def read(self, claim: Claim) -> Posted | Void:
        """Verify one answer against the store as it is now."""
        with self.audited(claim):
            return posted(
                self.guard._desk, claim, principal=self.chat.user, owns=self.owns,
                call_id_of=lambda scope: self.call_id_of(scope, claim.call_id),
            )

    def told(self, claim: Claim) -> Told:
        """Do what one live answer says and return what it came to.

        Others decide, edit and withdraw meanwhile. An answer that is refused where the request has moved on since it
        was read is judged anew, as one that came later: nothing may run on a No.

        Raises:
            RefusedError: as `read`. UnavailableError: nobody can tell now.
        """
        answer = self.read(claim)
        for _ in range(ROUNDS):
            if isinstance(answer, Void):
                note = RESTORED if answer.restored else KEY_GONE
                return Told(claim.call_id or "", claim.request_id, claim.approved, None, None, note)
            if answer.record.state == "pending" and answer.record is not answer.named:
                return self._as_it_is(answer, CHANGED)
            refusal = self._act(answer)
            if refusal is None:
                return self._as_it_is(answer, "Your decision is on record. Others must decide, too.")
            now = self.read(claim)
            if isinstance(now, Posted) and _mark(now) == _mark(answer):
                return self._as_it_is(answer, _why(answer, refusal))
            answer = now
        raise busy()

    def _act(self, answer: Posted) -> _Refusal | None:
        """Decide as one answer says; return what refused it, or None.

        A No also takes an approval back that has not been used, the own one and that of somebody who was faster.
        """
        claim, record, refusal = answer.claim, answer.record, None
        if record.state == "pending":
            refusal = _refusal_of(lambda: self.guard.decide(
                record.row.id, approver=self.chat.user, approve=claim.approved,
                fingerprint=record.envelope.fingerprint, reason=claim.reason or None, channel=CHANNEL,
            ))
        late = record.state == "approved" or (refusal is not None and refusal.code == "already-decided")
        if late and not claim.approved:
            refusal = _refusal_of(lambda: self.guard.revoke(
                record.row.id, by=self.chat.user, reason=claim.reason or "Denied in the chat."
            ))
        return refusal

    def _as_it_is(self, answer: Posted, note: str) -> Told:
        """Tell what is on record now. The note is for a request that waits."""
        claim, record = answer.claim, answer.record
        with self.audited(claim):
            request = self.guard.get(record.row.id, tenant=self.chat.user.tenant)
        return Told(
            claim.call_id or "", claim.request_id, claim.approved, request, record.envelope.scope.run,
            note if request.state == "pending" else None,
        )


def _refusal_of(action: Callable[[], object]) -> _Refusal | None:
    """Run an action of a person; return why it was refused, or None. The guard has audited that."""
    try:
        action()
    except (DecisionError, RefusedError) as error:
        return error
    return None


def _mark(answer: Posted) -> tuple[str, int, str]:
    """Return what changes whenever somebody does something to a request, or time does."""
    return answer.record.row.id, answer.record.version, answer.record.state


def _why(answer: Posted, refusal: _Refusal) -> str:
    """Return why the guard did not take an answer, for the person who gave it."""
    if refusal.code != NotAuthorisedError.default_code:
        return f"Your decision was not taken ({refusal.code}). Look at the request in the inbox."
    names = dict.fromkeys(name for need in answer.record.details.requirements for name in need.approvers)
    who = f"Who decides: {', '.join(map(escape, names)) or 'any other person'}."
    return f"{_WHY.get(refusal.detail or '', 'You may not decide this here.')} {who}"


_WHY = {
    "evidence": "This needs a passkey: decide it in the inbox.",
    "self-approval": "You cannot decide what was asked for you.",
}
