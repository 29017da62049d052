"""The side of the people: deciding, withdrawing, resolving, listing, and the kill switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .errors import ConfigurationError, NotAuthorisedError
from .lifecycle import control, decide, settle
from .lifecycle.desk import Desk
from .lifecycle.listing import Page, listed, sweep
from .lifecycle.record import to_request
from .models import ApprovalRequest, Decision, Principal, check_optional, check_reason, check_text

T = TypeVar("T")


class People:
    """What people do with requests; a part of `hitl_guard.Guard`."""

    _desk: Desk

    def decide(
        self, request_id: str, *, approver: Principal, approve: bool, fingerprint: str, reason: str | None = None,
        arguments: Any = None, respond: Any = None, channel: str = "api", credential: str | None = None,
        execute_within: int | None = None,
    ) -> Decision:
        """Record one person's decision.

        Args:
            approver: Who decides, as your authenticator says.
            fingerprint: The one that was shown; a stale page is refused.
            reason: With a denial it goes to the model.
            arguments: Approve these instead (needs ``edit: true`` in the rule).
            respond: With a denial: a value for the model in place of the tool's result.
            channel: Where the decision came from. execute_within: Shorten the window to run, in milliseconds.

        Raises:
            DecisionError: nothing changed; ``code`` says why.
            UnavailableError: nobody can tell now.
        """
        ballot = decide.Ballot(
            request_id, approver, approve, fingerprint, reason, arguments, respond, channel, credential, execute_within
        )
        return self._people(lambda: decide.decide(self._desk, ballot), approver, request_id)

    def revoke(self, request_id: str, *, by: Principal, reason: str | None = None) -> None:
        """Withdraw an open request, also an approved or suspended one; raises `DecisionError` when it cannot."""
        self._people(lambda: decide.revoke(self._desk, request_id, by, reason), by, request_id)

    def resolve(self, request_id: str, outcome: str, *, by: Principal, reason: str, force: bool = False) -> str:
        """Close an in-doubt call as an operator (``succeeded``, ``failed``, ``abandoned``); see `settle.resolve`."""
        return self._people(
            lambda: settle.resolve(self._desk, request_id, by, outcome, reason, force=force), by, request_id
        )

    def pending(
        self, *, tenant: str | None = "default", run_id: str | None = None, states: Sequence[str] = ("pending",),
        limit: int = 50, after: str | None = None,
    ) -> Page:
        """Return verified open requests, the most urgent first. ``tenant=None`` (in process only): of every tenant."""
        return listed(self._desk, tenant=tenant, run_id=run_id, states=states, limit=limit, after=after)

    def get(self, request_id: str, *, tenant: str = "default") -> ApprovalRequest:
        """Return one verified request in whatever state; raises `InvalidApprovalError` for unknown and foreign ids."""
        return to_request(self._desk.find(tenant, request_id)[1])

    def pause(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None
    ) -> None:
        """Stop a tool, an agent or (neither given) everything of the operator's tenant, before its next claim."""
        self._change(control.paused(*_what(tool, agent)), by, reason)

    def resume(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None
    ) -> None:
        """Take one pause away; with neither tool nor agent the one of everything (single pauses stay)."""
        self._change(control.resumed(*_what(tool, agent)), by, reason)

    def activate_policy(self, version: str | None, *, by: Principal, reason: str | None = None) -> None:
        """Let only nodes with this policy version run gated calls in the operator's tenant; None lifts that again.

        Without it every node goes by its own policy. Roll a policy out first, then activate its version
        (`Guard.policy_version`): a node that was forgotten then refuses with ``policy-changed``.
        """
        check_optional("version", version)
        self._change(control.with_policy(version), by, reason)

    def _change(self, change: Callable[[control.Control], control.Control], by: Principal, reason: str | None) -> None:
        if not isinstance(by, Principal):
            raise ConfigurationError("'by' must be a Principal.")
        check_reason(reason)
        self._people(lambda: self._changed(change, by, reason), by, None)

    def _changed(self, change: Callable[[control.Control], control.Control], by: Principal, reason: str | None) -> None:
        role = self._desk.settings.operator_role
        if role not in by.roles or by.kind == "agent":
            raise NotAuthorisedError(
                f"This needs a person or service with the role '{role}' (--role on the command line).", detail="role"
            )
        self._desk.change_control(by.tenant, change, by=by.id, reason=reason)

    def sweep(self, *, limit: int = 1000) -> int:
        """Record what is overdue (expired requests, calls without a receipt) as events; return how many."""
        return sweep(self._desk, limit=limit)

    def _people(self, action: Callable[[], T], by: object, request_id: object) -> T:
        tenant = by.tenant if isinstance(by, Principal) else ""
        name = by.id if isinstance(by, Principal) else None
        with self._desk.refusals("decision:refused", tenant=tenant, by=name, request=request_id):
            return decide.as_decision_error(action)


def _what(tool: str | None, agent: str | None) -> tuple[str, str]:
    """Return the pause that is meant, as ``(kind, name)``."""
    if tool is not None and agent is not None:
        raise ConfigurationError("Pause a tool or an agent, one at a time.")
    if tool is not None:
        return "tool", check_text("tool", tool)
    return ("all", "") if agent is None else ("agent", check_text("agent", agent))
