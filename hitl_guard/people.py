"""The side of the people: deciding, withdrawing, resolving, listing, and the kill switch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .errors import ConfigurationError, NotAuthorisedError
from .lifecycle import control as controls
from .lifecycle import decide, enrolment, floods, revealing, settle
from .lifecycle.control import Control
from .lifecycle.credentials import Assertion, Challenge, Credential, Registration
from .lifecycle.desk import Desk
from .lifecycle.dossier import Dossier, compiled
from .lifecycle.listing import Page, ended, listed, sweep
from .lifecycle.record import to_request
from .lifecycle.rights import operates
from .models import ApprovalRequest, Decision, Principal, check_optional, check_reason, check_text
from .rows import EVERYWHERE

T = TypeVar("T")


class People:
    """What people do with requests; a part of `hitl_guard.Guard`."""

    _desk: Desk

    def decide(
        self, request_id: str, *, approver: Principal, approve: bool, fingerprint: str, reason: str | None = None,
        arguments: Any = None, respond: Any = None, channel: str = "api", credential: str | None = None,
        execute_within: int | None = None, evidence: Assertion | None = None, mute: int | None = None,
    ) -> Decision:
        """Record one person's decision.

        Args:
            approver: Who decides, as your authenticator says.
            fingerprint: The one that was shown; a stale page is refused.
            reason: With a denial it goes to the model.
            arguments: Approve these instead (needs ``edit: true`` in the rule).
            respond: With a denial: a value for the model in place of the tool's result.
            channel: Where the decision came from. execute_within: Shorten the window to run, in milliseconds.
            evidence: The answer of the approver's passkey to a `challenge` that was made of the same arguments.
            mute: With a denial: for so many milliseconds (thirty days at most) new requests of the same requester for
                the same tool are denied without asking anybody, as far as this approver could have denied them. A
                request that is being made at this moment may still come through. `unmute` ends it, and to repeat the
                denial does not bring it back.

        Raises:
            DecisionError: nothing changed; ``code`` says why.
            UnavailableError: nobody can tell now.
        """
        ballot = decide.Ballot(
            request_id, approver, approve, fingerprint, reason, arguments, respond, channel, credential, execute_within,
            evidence, mute,
        )
        return self._people(lambda: decide.decide(self._desk, ballot), approver, request_id)

    def challenge(
        self, request_id: str, *, approver: Principal, approve: bool, fingerprint: str, reason: str | None = None,
        arguments: Any = None, respond: Any = None, channel: str = "inbox", execute_within: int | None = None,
        mute: int | None = None,
    ) -> Challenge:
        """Put a decision to the approver's passkeys: they sign the digest of it, and of nothing else.

        Give the answer to `decide` within five minutes, with the same arguments: anything that differs is refused, and
        an answer makes one decision only. The arguments are those of `decide`.

        Raises:
            DecisionError: the decision would be refused, or the approver has no passkey (``detail`` evidence).
            ConfigurationError: the settings name no ``rp_id``, or the package ``webauthn`` is missing.
        """
        ballot = decide.Ballot(
            request_id, approver, approve, fingerprint, reason, arguments, respond, channel, None, execute_within,
            mute=mute,
        )
        return self._people(lambda: decide.challenge(self._desk, ballot), approver, request_id)

    def passkey_registration(self, principal: Principal) -> Registration:
        """Return what a person's browser needs to make a passkey; the person's login is yours to check, freshly."""
        return self._people(lambda: enrolment.begin(self._desk, principal), principal, None)

    def register_passkey(
        self, principal: Principal, *, ticket: str, response: Mapping[str, Any], name: str,
        confirm: Mapping[str, Any] | None = None,
    ) -> Credential:
        """Store the passkey that a browser made; the audit log tells.

        Args:
            ticket: The registration's. response: What ``toJSON()`` of the new credential gave. name: For the owner.
            confirm: What ``toJSON()`` gave for `Registration.confirm`: a person who has a passkey adds others with it.

        Raises:
            DecisionError: nothing was stored; ``detail`` says why (evidence, registered, limit, kind).
        """
        return self._people(
            lambda: enrolment.register(
                self._desk, principal, ticket=ticket, response=response, name=name, confirm=confirm
            ),
            principal, None,
        )

    def passkeys(self, principal: Principal) -> tuple[Credential, ...]:
        """Return a person's passkeys that count, oldest first."""
        return enrolment.listed(self._desk, principal)

    def remove_passkey(self, credential_id: str, *, by: Principal, owner: str | None = None) -> None:
        """Remove a passkey: one's own while another is left, or as an operator anybody's.

        It cannot be registered again. Decisions that it proved before stay proven.

        Args:
            owner: The id of the principal whose passkey it is, in the tenant of ``by``; None for one's own.

        Raises:
            DecisionError: ``not-authorised``, detail unknown or role.
        """
        self._people(lambda: enrolment.remove(self._desk, credential_id, by, owner), by, None)

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

    def ended(
        self, *, tenant: str, run_id: str | None = None, limit: int = 50, after: str | None = None
    ) -> Page:
        """Return verified requests that ended, the newest end first; what the policy approved by itself is left out.

        Requests that ended before the schema kept them in this list are not in it (`get` has them).
        """
        return ended(self._desk, tenant=tenant, run_id=run_id, limit=limit, after=after)

    def dossier(self, request_id: str, *, tenant: str = "default") -> Dossier:
        """Return everything about one request that an approver's page shows; raises as `get`."""
        return compiled(self._desk, request_id, tenant)

    def get(self, request_id: str, *, tenant: str = "default") -> ApprovalRequest:
        """Return one verified request in whatever state; raises `InvalidApprovalError` for unknown and foreign ids."""
        return to_request(self._desk.find(tenant, request_id)[1])

    def reveal(self, request_id: str, pointer: str, *, by: Principal) -> Any:
        """Return one secret argument; the audit log has who saw it before it is returned.

        Args:
            pointer: The JSON pointer of a value that the tool's schema marks secret.
            by: Who looks, as your authenticator says: an operator, the requester, or who may decide or has decided.

        Raises:
            DecisionError: ``invalid-approval``, detail unknown: no such request or secret that ``by`` may see.
            UnavailableError: it could not be written to the audit log; nothing is told then.
        """
        return self._people(lambda: revealing.reveal(self._desk, request_id, pointer, by), by, request_id)

    def control(self, tenant: str = "default") -> Control:
        """Return what is paused and muted in a tenant, what is paused in all of them (``everywhere``), and which
        policy version must be in force, verified.
        """
        reading = self._desk.read(check_text("tenant", tenant))
        return controls.at(reading.control, reading.now)

    def unmute(self, *, by: Principal, user: str, tool: str, reason: str | None = None) -> None:
        """Lift the mutes of a requester's calls of a tool: an operator all of them, anybody else the own one."""
        name, role = floods.name_of(check_text("user", user)), self._desk.settings.operator_role
        check_text("tool", tool)

        def change(control: Control) -> Control:
            operator = operates(by, role)
            new = controls.unmuted(name, tool, None if operator else by.id)(control)
            if new.mutes == control.mutes and not operator:
                raise NotAuthorisedError(
                    f"You muted no such calls; what others muted needs the role '{role}'.", detail="role"
                )
            return new

        self._change(change, by, reason, operators=False)

    def pause(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None,
        everywhere: bool = False,
    ) -> None:
        """Stop a tool, an agent or (neither given) everything of the operator's tenant, before its next claim.

        Args:
            everywhere: In all tenants, the ones to come included; needs the settings' ``global_operator_role``.
        """
        self._change(controls.paused(*_what(tool, agent)), by, reason, everywhere=everywhere)

    def resume(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None,
        everywhere: bool = False,
    ) -> None:
        """Take one pause away; with neither tool nor agent the one of everything (single pauses stay).

        Args:
            everywhere: One that was set with ``everywhere``. What a tenant paused for itself stays paused.
        """
        self._change(controls.resumed(*_what(tool, agent)), by, reason, everywhere=everywhere)

    def activate_policy(self, version: str | None, *, by: Principal, reason: str | None = None) -> None:
        """Let only nodes with this policy version run gated calls in the operator's tenant; None lifts that again.

        Without it every node goes by its own policy. Roll a policy out first, then activate its version
        (`Guard.policy_version`): a node that was forgotten then refuses with ``policy-changed``.
        """
        check_optional("version", version)
        self._change(controls.with_policy(version), by, reason)

    def _change(
        self, change: Callable[[Control], Control], by: Principal, reason: str | None, *, operators: bool = True,
        everywhere: bool = False,
    ) -> None:
        if not isinstance(by, Principal):
            raise ConfigurationError("'by' must be a Principal.")
        check_reason(reason)
        self._people(lambda: self._changed(change, by, reason, operators, everywhere), by, None)

    def _changed(
        self, change: Callable[[Control], Control], by: Principal, reason: str | None, operators: bool,
        everywhere: bool,
    ) -> None:
        settings = self._desk.settings
        role = settings.global_operator_role if everywhere else settings.operator_role
        if operators and not operates(by, role):
            raise NotAuthorisedError(
                f"This needs a person or service with the role '{role}' (--role on the command line).", detail="role"
            )
        self._desk.change_control(EVERYWHERE if everywhere else by.tenant, change, by=by.id, reason=reason)

    def sweep(self, *, limit: int = 1000) -> int:
        """Record what is overdue (expired requests, calls without a receipt) as events, and take off the list of open
        requests what is void (signed with a key that was revoked since, or before the restore epoch was raised).

        Returns:
            How many requests that concerned, ``limit`` at most.
        """
        swept = sweep(self._desk, limit=limit)
        return swept.overdue + swept.void

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
