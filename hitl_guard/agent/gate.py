"""Between the loop and the guard: what a call asks, what the loop's own policy adds, how a refusal ends a call.

The guard decides. The agent's and the tools' own settings can only add to its verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import canonical
from ..errors import (
    ApprovalDeniedError,
    CanonicalizationError,
    ConsumedError,
    ExpiredError,
    HitlGuardError,
    InDoubtError,
    KeyRevokedError,
    PolicyChangedError,
    PolicyDeniedError,
    RevokedError,
    SupersededError,
    ToolChangedError,
)
from ..guard import Guard
from ..lifecycle.threads import resolve
from ..models import Permit, Principal, ToolCall
from ..policy.code import Runner, ToolPolicy, verdicts_of
from ..policy.core import PolicyInput, Status, Verdict, strictest
from ..toolcalls import as_text, edit_notice, refusal_result
from .state import Call, Outcome, Owner
from .tools import Tool

EXPIRED = "approval expired"
"""What the model is told when nobody decided in time."""

_BEFORE = {
    "failed": "the call was stopped before it had an effect", "succeeded": "the call has run; its result is not known",
}
"""What the model is told of a call that was started before, by the state of its request."""

IN_DOUBT = "Nobody knows whether the call had an effect. Do not make it again; tell the user."
"""What the model is told beside the error of a call that is in doubt."""

RequireApproval = bool | Callable[..., Any]

_NO_POLICY = ToolPolicy()


@dataclass(frozen=True, slots=True)
class Asked:
    """A call for which a person must be asked, with the verdict of the loop's own policy (None: the guard's alone)."""

    call: ToolCall
    own: Verdict | None


@dataclass(slots=True)
class Gate:
    """What every call of one agent's run is checked with.

    Attributes:
        agent: The agent as a principal. require: What the request asked for; it covers sub-agents too.
        own: What this agent asks for all its calls.
        lost: Whether the request's function policy was lost with its process. unhooked: Whether its hooks were.
    """

    guard: Guard
    owner: Owner
    agent: Principal
    run_id: str
    require: RequireApproval
    own: RequireApproval
    lost: bool = False
    unhooked: bool = False

    def tool_call(self, call: Call, earlier: list[Call], tool: Tool) -> ToolCall:
        """Return the call as the guard takes it; ``earlier`` are those before it in the same turn."""
        return ToolCall(
            call.name, call.args or {}, run_id=self.run_id, call_id=call.id, user=self.owner.user,
            tenant=self.owner.tenant, occurrence=call.occurrence, agent=self.agent, definition=tool.definition,
            turn=tuple(
                ToolCall(one.name, one.args, run_id=self.run_id, call_id=one.id, user=self.owner.user)
                for one in earlier if one.args is not None
            ),
            context=self.owner.context,
        )

    def permit(self, call: Call, asked: ToolCall, tool: Tool) -> Permit | Asked:
        """Return the permit of a call, or that a person must be asked. Blocks: call it in a thread.

        A call that waits for its request gets its permit from that request and from nothing else.

        Raises:
            RefusedError, CanonicalizationError, UnavailableError: as `hitl_guard.Guard.authorize`.
        """
        if call.request_id is not None:
            try:
                permit = self.guard._permit(asked, request_id=call.request_id, resumes=call.claim_id)
            except (SupersededError, PolicyChangedError, ToolChangedError, KeyRevokedError):
                if call.claim_id is not None:
                    raise  # it was started before: nothing else may start it
                return Asked(asked, self.demanded())
            return permit or Asked(asked, self.demanded())
        started = call.suspension is not None  # what suspended itself was judged when it started
        own = self.demanded() if call.asked or self.unhooked or (self.lost and not started) else None
        if own is None and not started:
            own = self._verdict(asked, tool)
        if own is not None:
            return Asked(asked, own)
        return self.guard._permit(asked) or Asked(asked, None)

    def free(self, call: Call, asked: ToolCall, tool: Tool) -> Permit | None:
        """Return the permit of a call that needs nobody, where that is known at once; None: `permit` will say.

        A thread of its own would cost more than all the checks of such a call.
        """
        desk = self.guard._desk
        quick = desk.store.reads_at_once and desk.policy.is_static and self._silent(tool) and not (
            call.asked or call.request_id
        )
        return self.guard._free_permit(asked) if quick and not (self.lost or self.unhooked) else None

    def _silent(self, tool: Tool) -> bool:
        # Never by their truth: a policy object that is callable may read as empty.
        one, two, three = self.require, self.own, tool.policy.require_approval
        if (one is False or one is None) and (two is False or two is None):
            return three is False or three is None or self._default(tool) is _NO_POLICY
        return False

    @staticmethod
    def demanded() -> Verdict:
        """Return the verdict on a call that was asked for once: it always needs a person."""
        return Verdict(Status.USER_APPROVAL, rules=("agent",))

    def _verdict(self, call: ToolCall, tool: Tool) -> Verdict | None:
        """Return the verdict of the loop's own policy where it asks a person, else None.

        A tool's own function is authoritative over what agent and request ask for; a boolean is combined by OR.
        """
        if self._silent(tool):
            return None
        demands: list[RequireApproval] = [need for need in (self.require, self.own) if need is not False]
        default = self._default(tool)
        if default.require_approval is True or (True in demands and not callable(default.require_approval)):
            return self.demanded()
        raw = self.guard._desk.canonical_arguments(call.arguments)
        asked = PolicyInput(
            tool=call.tool, arguments=canonical.decode(raw), user=self.owner.user.id, tenant=self.owner.tenant,
            run_id=self.run_id, call_id=call.call_id, agent=self.agent.id,
            turn=None if call.turn is None else tuple(
                (one.tool, dict(one.arguments)) for one in call.turn if isinstance(one.arguments, dict)
            ),
            context=self.owner.context,
        )
        verdicts = [
            verdict for need, policy in self._settings(demands, default)
            for verdict in verdicts_of(
                asked, require_approval=need, tool_approval=None, tool_policy=policy,
                runner=Runner(resolve, self.guard._desk.policy.timeout_s),
            )
        ]
        verdict = strictest(verdicts)
        return verdict if verdict.status is Status.USER_APPROVAL else None

    def _default(self, tool: Tool) -> ToolPolicy:
        """Return the tool's own setting; none where the guard's ``tool_approval`` speaks of the tool in its place."""
        return _NO_POLICY if self.guard._desk.policy.replaces(tool.name) else tool.policy

    @staticmethod
    def _settings(demands: list[RequireApproval], policy: ToolPolicy) -> list[tuple[Any, ToolPolicy | None]]:
        if callable(policy.require_approval) or not demands:
            return [(None, policy)]
        return [(need, None) for need in demands]


def stays(error: HitlGuardError) -> bool:
    """Whether a refusal leaves the call waiting: it may be allowed later, and its grant is not spent."""
    if isinstance(error, PolicyDeniedError):
        return error.detail == "policy-error"
    ends = (ApprovalDeniedError, ExpiredError, RevokedError, ConsumedError, InDoubtError, SupersededError)
    return not isinstance(error, (*ends, PolicyChangedError, ToolChangedError, CanonicalizationError)) and (
        error.code not in ("args-mismatch", "scope-mismatch")
    )


def runs_elsewhere(error: HitlGuardError) -> bool:
    """Whether a refusal says that another process has started the call, and may be at it."""
    return isinstance(error, ConsumedError) and error.detail == "executing"


def refused(call: Call, error: HitlGuardError) -> Outcome:
    """Return how a call ends that must not run: as a denial where a person or the policy said no, else as an error."""
    if isinstance(error, ApprovalDeniedError):
        reason = error.reason or ""
        said = refusal_result(error)
        return Outcome("denied", reason, as_text(said), approval(call, approved=False, reason=reason))
    if isinstance(error, PolicyDeniedError):
        reason = as_text(refusal_result(error))
        automatic = approval(call, approved=False, reason=reason) | {"isAutomatic": True}
        return Outcome("denied", reason, None, automatic)
    if isinstance(error, ExpiredError):
        return Outcome("denied", EXPIRED, None, approval(call, approved=False, reason=EXPIRED))
    if isinstance(error, (ConsumedError, InDoubtError)):
        became = _BEFORE.get(error.detail or "", "the call was started before, and nobody knows here what became of it")
        return failed("RefusedError", f"Refused ({error.code}): {became}.", code=error.code)
    # Why arguments have no canonical form, or do not fit the schema, helps a model to write better ones.
    why = f" {error}" if isinstance(error, CanonicalizationError) else ""
    message = f"Refused ({error.code}): the call of '{call.name}' was not run.{why}"
    return failed("RefusedError", message, code=error.code)


def failed(name: str, message: str, *, code: str | None = None, in_doubt: bool = False) -> Outcome:
    """Return how a call ends that failed; the model is told the message, and where nobody knows what happened, that."""
    code = "in-doubt" if in_doubt else code
    value = {"message": message, "name": name} | ({} if code is None else {"code": code})
    return Outcome("error", value, f"{message} ({IN_DOUBT})" if in_doubt else message)


def approval(call: Call, *, approved: bool, reason: str | None = None) -> dict[str, Any]:
    """Return what is kept in the conversation about a decision."""
    kept: dict[str, Any] = {"approved": approved, "id": call.id}
    if call.request_id is not None:
        kept["approvalId"] = call.request_id
    return kept if reason is None else kept | {"reason": reason}


def succeeded(call: Call, value: Any, permit: Permit) -> Outcome:
    """Return how a call ends that ran."""
    outcome = Outcome("result", value)
    if call.asked:
        outcome.approval = approval(call, approved=True)
    elif permit.request_id is not None:  # the policy approved it by itself
        outcome.approval = {"approved": True, "approvalId": permit.request_id, "id": call.id, "isAutomatic": True}
    if permit.edited:
        outcome.args, outcome.said = permit.arguments, edit_notice(permit) + as_text(value)
    return outcome
