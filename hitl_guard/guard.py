"""Guard: the one place where the order of checks is written.

Everything else hands over material: `lifecycle.desk` binds calls to bytes and reads verified records,
`lifecycle.ask`, `claim`, `decide` and `settle` write the transitions, `people` is the approver's side, `dropin` turns
loops and functions into calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from . import canonical, fingerprint
from .dropin import DropIn
from .envelope import REQUEST_TYPE, Envelope
from .errors import (
    ApprovalDeniedError,
    ApprovalRequired,
    ArgsMismatchError,
    ConfigurationError,
    ConsumedError,
    ExpiredError,
    HitlGuardError,
    InDoubtError,
    InvalidApprovalError,
    KeyInactiveError,
    PolicyChangedError,
    PolicyDeniedError,
    RevokedError,
    ScopeMismatchError,
    SupersededError,
    ToolChangedError,
)
from .keyring import Keyring
from .lifecycle import ask, claim, settle
from .lifecycle.bound import Bound
from .lifecycle.desk import ROUNDS, Desk, Reading, busy
from .lifecycle.record import Record, to_request
from .lifecycle.rights import Directory, check_decisions
from .lifecycle.settings import Settings
from .models import ApprovalRequest, Permit, Principal, ToolCall
from .people import People
from .policy.combined import Policy
from .policy.core import Status, Verdict
from .signing import Signer
from .store.base import Store

DEFAULT_DENIAL = "Tool call was not approved by the user"
"""What the model is told when a person said no without a reason."""


class Guard(People, DropIn):
    """Makes human approval of tool calls unforgeable, single-use and provable. Safe to share between threads.

    Args:
        policy: A policy file's path, a `Policy`, a status, a function, a map … (see `Policy.of`).
        keyring: The signing keys; from ``HITL_GUARD_KEYS`` or ``HITL_GUARD_KEYS_FILE`` when omitted.
        store: Where requests and events live, e.g. ``SQLStore("sqlite:///approvals.db")``.
        directory: Answers whether a person still has a role; needed where a rule says ``recheck_approvers``.
        settings: Windows, limits and the operator's role.
        tools: Names of tools that are not registered with `tool`, e.g. those behind a wrapped dispatcher: a policy that
            is a map of tools is checked against them at once, and against registered ones at the first call.

    Raises:
        ConfigurationError: something is missing, weak or unknown. There is no unsigned and no in-memory mode.
    """

    def __init__(
        self, *, policy: Any, store: Store, keyring: Keyring | None = None, directory: Directory | None = None,
        settings: Settings | None = None, tools: Iterable[str] = (),
    ) -> None:
        if store is None or not hasattr(store, "load"):
            raise ConfigurationError("A guard needs a store, e.g. SQLStore('sqlite:///approvals.db').")
        if not isinstance(keyring, Keyring | None) or not isinstance(settings, Settings | None):
            raise ConfigurationError("'keyring' must be a Keyring and 'settings' a Settings, or left out.")
        ring = Keyring.from_env() if keyring is None else keyring
        loaded = Policy.of(policy)
        if loaded.needs_recheck and directory is None:
            raise ConfigurationError("A policy rule says 'recheck_approvers': give the guard a directory.")
        self._desk = Desk(store, Signer(ring), loaded, directory, settings or Settings())
        self._desk.know(tools)
        self._desk.check_names()
        store.check()
        try:
            ring.signing_key(store.now())
        except KeyInactiveError as error:
            raise ConfigurationError("No key is active now: run 'hitl-guard keys rotate'.", detail="no-key") from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Guard:
        """Make a guard from ``HITL_GUARD_POLICY``, ``HITL_GUARD_STORE`` (URL) and the keys' variables."""
        from .store import SQLStore

        environ = os.environ if environ is None else environ
        missing = [name for name in ("HITL_GUARD_POLICY", "HITL_GUARD_STORE") if not environ.get(name)]
        if missing:
            raise ConfigurationError(f"Set {' and '.join(missing)} in the environment.")
        store = SQLStore(environ["HITL_GUARD_STORE"])
        return cls(policy=environ["HITL_GUARD_POLICY"], store=store, keyring=Keyring.from_env(environ))

    def __repr__(self) -> str:
        return f"<Guard policy={self._desk.policy.version[:12]}>"

    def close(self) -> None:
        """Release the store's connections. The guard can be used again; it opens new ones."""
        self._desk.store.close()

    @property
    def policy_version(self) -> str:
        """The version of the policy in force here: 64 hex digits, signed into every request."""
        return self._desk.policy.version

    # -- before the call -----------------------------------------------------------------------------------------

    def evaluate(self, call: ToolCall) -> Verdict:
        """Return what the policy says about a call. Nothing is asked or spent.

        Raises:
            CanonicalizationError: the call has no canonical form, exceeds a limit or breaks the tool's schema.
            ConfigurationError: a part of its scope is missing.
        """
        with self._refusals(call):
            return self._desk.evaluate(self._desk.bind(call))

    def request(self, call: ToolCall) -> ApprovalRequest:
        """Ask for an approval, or join the open request of the same call (idempotent).

        It asks even where the policy would not: the host may be stricter.

        Raises:
            PolicyDeniedError, ApprovalDeniedError, ConsumedError, ArgsMismatchError …: as `authorize`.
        """
        with self._refusals(call):
            bound = self._desk.bind(call)
            for _ in range(ROUNDS):
                reading = self._read(bound, None)
                record = reading.record
                if record is not None and not self._asks_anew(bound, record):
                    self._check_fingerprint(bound, record)  # only the same tool and arguments join a request
                    if record.state in ("pending", "approved"):
                        return to_request(record)
                    self._refuse_state(record)
                verdict = self._judge(bound, reading)
                made = ask.ask(self._desk, bound, reading, verdict)
                if made is not None:
                    return to_request(made)
            raise busy()

    # -- the call ------------------------------------------------------------------------------------------------

    def authorize(self, call: ToolCall, *, request_id: str | None = None, token: str | bytes | None = None) -> Permit:
        """Return the permit for a call, or raise. The order of checks, each labelled below or where it is named:

        1. size and strict parse of the call, and of ``token`` if given (`Desk.bind`, `Signer.open`)
        2. envelope type and version (`Signer.open`)
        3. key id look-up and key state (`Signer.open`)
        4. envelope MAC (`Signer.open`); then request and events are loaded by id and tenant, and their MACs and
           versions are verified without a gap, before any column is believed (`Desk.read`)
        5. state
        6. times
        7. scope: tenant, user, run, tool call, occurrence
        8. fingerprint
        9. tool definition
        10. control row (pauses, policy in force), policy version, and the policy evaluated again
        11. decisions: approvers' rights, distinct people, quorum
        12. the claim: one insert that only one can win; last, so that a refused call never burns a grant
        13. the tool, by the caller, with the permit's arguments (`run`)

        Without ``request_id`` or ``token`` the call is looked up by its identity: where there is nothing to use, the
        policy decides, and a new request may be made. With them nothing is ever made.

        Args:
            request_id: The grant to spend. token: Its envelope as it travelled; checked in full, then compared.

        Raises:
            ApprovalRequired: a person must decide first (only without ``request_id`` and ``token``).
            RefusedError: the call must not run; ``code`` says why, and the audit has it.
            UnavailableError: nobody can tell now. The tool must not run.
        """
        with self._refusals(call, request=request_id):
            bound = self._desk.bind(call)  # 1
            named = self._named(bound, request_id, token)  # 1-4 of the token
            for _ in range(ROUNDS):
                reading = self._read(bound, named)  # 4
                record = reading.record
                if named is None and (record is None or self._asks_anew(bound, record)):
                    permit = self._decide_by_policy(bound, reading)
                else:
                    permit = self._spend(bound, reading, named, token)
                if permit is not None:
                    return permit
            raise busy()

    def _named(self, bound: Bound, request_id: str | None, token: str | bytes | None) -> str | None:
        """Return the request id that the caller names, after checks 1 to 4 of a token."""
        if token is None:
            if request_id is not None and (type(request_id) is not str or not 0 < len(request_id) <= 64):
                raise _unknown()
            return request_id
        fields = self._desk.signer.open(
            token, expected_purpose="request", expected_type=REQUEST_TYPE, now=self._desk.store.now()
        )
        envelope = Envelope.from_fields(fields)
        if envelope.scope.tenant != bound.scope.tenant or request_id not in (None, envelope.request_id):
            raise _unknown()
        return envelope.request_id

    def _read(self, bound: Bound, named: str | None) -> Reading:
        identity = bound.identity if named is None else None
        key = None if bound.scope.call_id is None else fingerprint.spend_key_of_call(bound.identity)
        return self._desk.read(bound.scope.tenant, request_id=named, identity=identity, spend_key=key)

    def _asks_anew(self, bound: Bound, record: Record) -> bool:
        """Whether the policy is to decide: an ended request, an outdated one, or a spent deny-and-retry one."""
        if record.state in ("expired", "revoked", "superseded"):
            return True
        if record.state in ("pending", "approved"):
            # Another tool or other arguments in the same place are tampering, whatever else is outdated.
            return _fits(bound, record) and self._outdated(bound, record) is not None
        return record.envelope.binding == "retry" and record.state in ("executing", "succeeded", "failed", "abandoned")

    def _outdated(self, bound: Bound, record: Record) -> HitlGuardError | None:
        if record.envelope.tool_digest != bound.tool_digest:
            return ToolChangedError("The tool's definition is not the one that was approved; ask again.")
        if record.envelope.policy_version != self.policy_version:
            return PolicyChangedError("The policy changed since this was approved; ask again.")
        return None

    def _check_fingerprint(self, bound: Bound, record: Record) -> None:
        if not _fits(bound, record):
            raise ArgsMismatchError("The tool or its arguments are not the approved ones.")

    def _spend(self, bound: Bound, reading: Reading, named: str | None, token: str | bytes | None) -> Permit | None:
        """Checks 5 to 12 on one verified reading. None: another transition won; read again."""
        record = reading.record
        if record is None or (token is not None and _text(token) != record.row.envelope):
            raise _unknown()
        if named is None:
            # 8 comes first for a call that was found by its place: other arguments there are tampering in any state
            self._check_fingerprint(bound, record)
        # 5 state
        if record.state == "pending":
            if named is None:
                raise ApprovalRequired(to_request(record))
            raise InvalidApprovalError("The request is not decided yet.", detail="pending")
        if record.state != "approved":
            self._refuse_state(record)
        # 6 times: both windows are in the state above, read with the database's clock
        record.check_issued(reading.now, self._desk.settings.skew)
        # 7 scope; only now is it known that the spend key that was looked up is this grant's
        self._check_scope(bound, record)
        _check_unspent(reading)
        # 8 fingerprint
        self._check_fingerprint(bound, record)
        # 9 tool definition
        bound.check_definition()
        outdated = self._outdated(bound, record)
        if isinstance(outdated, ToolChangedError):
            raise outdated
        # 10 control row, policy version, the policy again
        for agent in (bound.agent, record.envelope.agent):  # the one that claims, and the one that asked
            reading.control.check(tool=bound.tool, agent=agent, policy_version=self.policy_version)
        if outdated is not None:
            raise outdated
        verdict = self._evaluate_again(bound, record)
        # 11 decisions
        needs = tuple(dict.fromkeys((*record.details.requirements, *verdict.requirements)))
        # Who stands behind the call now (another agent, say, with another owner) may not have approved it either.
        who = record.details.parties.joined(bound.parties)
        check_decisions(needs, who, record.votes, directory=self._desk.directory)
        # 12 the claim
        return claim.claim(self._desk, bound, reading, record)

    def _refuse_state(self, record: Record) -> NoReturn:
        if record.state == "denied":
            vote = record.denial()
            reason = vote.reason if vote and vote.reason else DEFAULT_DENIAL
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

    def _check_scope(self, bound: Bound, record: Record) -> None:
        approved, given = record.envelope.scope, bound.scope
        same = (approved.user, approved.run) == (given.user, given.run)
        if record.envelope.binding == "call":
            same = same and (approved.call_id, approved.occurrence) == (given.call_id, given.occurrence)
        if not same:
            raise ScopeMismatchError("The approval is for another user, run or tool call; ask for this one.")

    def _evaluate_again(self, bound: Bound, record: Record) -> Verdict:
        """Evaluate the policy on what was signed (`ask.as_signed`); only the context may be the caller's of now."""
        verdict = self._desk.evaluate(ask.as_signed(bound, record))
        if verdict.errors:
            raise PolicyDeniedError(
                "The policy failed to answer when it was asked again; see 'hitl-guard policy explain'.",
                detail="policy-error",
            )
        if verdict.status is Status.DENIED:
            raise _policy_denied(verdict)
        return verdict

    def _judge(self, bound: Bound, reading: Reading) -> Verdict:
        """Return the verdict on a call that has no request to use: never made before, not paused, not denied."""
        _check_unspent(reading)
        bound.check_definition()
        reading.control.check(tool=bound.tool, agent=bound.agent, policy_version=self.policy_version)
        verdict = self._desk.evaluate(bound)
        if verdict.status is Status.DENIED:
            raise _policy_denied(verdict)
        return verdict

    def _decide_by_policy(self, bound: Bound, reading: Reading) -> Permit | None:
        """Where no request can be used: the policy lets it run, denies it, approves it by itself, or asks a person."""
        verdict = self._judge(bound, reading)
        if reading.record is not None and reading.record.envelope.policy_version == self.policy_version:
            # Under this very policy a person was asked about this call (the host may have wanted it), and nobody said
            # yes: that the request ended must not let the call run.
            verdict = ask.asking_again(verdict, reading.record)
        if verdict.status is Status.NOT_APPLICABLE:
            return claim.free_permit(bound)
        if verdict.status is Status.APPROVED:
            return claim.claim_automatic(self._desk, bound, reading, verdict)
        made = ask.ask(self._desk, bound, reading, verdict)
        if made is None:
            return None
        raise ApprovalRequired(to_request(made))

    # -- after the call ------------------------------------------------------------------------------------------

    def settle(self, permit: Permit, outcome: str, detail: str | None = None) -> None:
        """Record a claimed call's outcome: ``succeeded``, ``failed`` (no effect) or ``in_doubt``.

        Args:
            detail: A short word for the audit log, or None; never arguments or results.

        Raises:
            ConsumedError: its outcome is on record already.
            StoreUnavailableError: it could not be recorded; the call then reads as in doubt.
            ConfigurationError: this is no permit, no outcome or no detail.
        """
        if not isinstance(permit, Permit):
            raise ConfigurationError("Settle the permit that 'authorize' returned.")
        settle.settle(self._desk, permit, outcome, detail)

    def _refusals(self, call: ToolCall, **facts: Any) -> AbstractContextManager[None]:
        if not isinstance(call, ToolCall):
            raise ConfigurationError("Give the guard a ToolCall.")
        return self._desk.refusals(
            "call:refused", tenant=call.tenant, tool=call.tool, user=_name(call.user), agent=_name(call.agent),
            run=call.run_id, call_id=call.call_id, **facts,
        )


def _fits(bound: Bound, record: Record) -> bool:
    """Whether it is the same call. An edited request also answers a loop that still holds what it replaced."""
    return bound.fingerprint in (record.envelope.fingerprint, record.original)


def _unknown() -> InvalidApprovalError:
    return InvalidApprovalError("There is no such approval; look at 'hitl-guard requests list'.", detail="unknown")


def _name(who: object) -> object:
    return who.id if isinstance(who, Principal) else who


def _check_unspent(reading: Reading) -> None:
    if reading.spent:
        raise ConsumedError("This call was made before. A new call needs a new tool-call id.", detail="spent")


def _text(token: str | bytes) -> bytes:
    return token.encode("ascii") if isinstance(token, str) else token


def _policy_denied(verdict: Verdict) -> PolicyDeniedError:
    rules = f": rule {', '.join(verdict.rules)}" if verdict.rules else ""
    return PolicyDeniedError(f"The policy denies this call{rules}.", detail="policy", reason=verdict.reason)
