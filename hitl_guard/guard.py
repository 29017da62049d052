"""Guard: the one place where the order of checks is written.

Everything else hands over material: `lifecycle.desk` binds calls to bytes and reads verified records,
`lifecycle.ask`, `claim`, `decide` and `settle` write the transitions, `people` is the approver's side, `dropin` turns
loops and functions into calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .dropin import DropIn
from .errors import (
    ApprovalRequired,
    CanonicalizationError,
    ConfigurationError,
    HitlGuardError,
    InvalidApprovalError,
    KeyInactiveError,
    PolicyChangedError,
    RefusedError,
    ToolChangedError,
)
from .keyring import Keyring
from .lifecycle import ask, claim, settle
from .lifecycle.bound import Bound
from .lifecycle.desk import ROUNDS, Desk, Reading, busy, unknown
from .lifecycle.passkeys import relying_party
from .lifecycle.record import Record, to_request
from .lifecycle.refusals import (
    check_fingerprint,
    check_scope,
    check_unspent,
    fits,
    name_of,
    policy_denied,
    refuse_state,
)
from .lifecycle.rights import Directory, check_decisions
from .lifecycle.settings import Settings
from .models import ApprovalRequest, Permit, ToolCall
from .people import People
from .policy.combined import Policy
from .policy.core import Status, Verdict, strictest
from .signing import Signer
from .store.base import Step, Store


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
        if loaded.needs_passkey or self._desk.settings.rp_id is not None:
            relying_party(self._desk)
        self._desk.know(tools)
        self._desk.check_names()
        store.check()
        try:
            ring.signing_key(store.now())
        except KeyInactiveError as error:
            raise ConfigurationError("No key is active now: run 'hitl-guard keys rotate'.", detail="no-key") from error

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, settings: Settings | None = None) -> Guard:
        """Make a guard from ``HITL_GUARD_POLICY``, ``HITL_GUARD_STORE`` (URL) and the keys' variables."""
        from .store import SQLStore

        environ = os.environ if environ is None else environ
        missing = [name for name in ("HITL_GUARD_POLICY", "HITL_GUARD_STORE") if not environ.get(name)]
        if missing:
            raise ConfigurationError(f"Set {' and '.join(missing)} in the environment.")
        store = SQLStore(environ["HITL_GUARD_STORE"])
        keyring = Keyring.from_env(environ)
        return cls(policy=environ["HITL_GUARD_POLICY"], store=store, keyring=keyring, settings=settings)

    def __repr__(self) -> str:
        return f"<Guard policy={self._desk.policy.version[:12]}>"

    def close(self) -> None:
        """Release the store's connections. The guard can be used again; it opens new ones."""
        self._desk.store.close()

    @property
    def policy_version(self) -> str:
        """The version of the policy in force here: 64 hex digits, signed into every request."""
        return self._desk.policy.version

    @property
    def settings(self) -> Settings:
        """Windows, limits and roles of this guard; they do not change."""
        return self._desk.settings

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
        (asked,) = self._request_together([(call, None)])
        if isinstance(asked, HitlGuardError):
            raise asked
        return asked

    def _request_together(
        self, calls: Sequence[tuple[ToolCall, Verdict | None]], alongside: ask.Alongside | None = None
    ) -> list[ApprovalRequest | HitlGuardError]:
        """Ask for several calls in one transaction; return for each its request, or why it must not run.

        Args:
            calls: Each with the verdict of a loop's own policy, which can only add to the guard's, or None.
            alongside: What a loop keeps about these requests in the same store; asked anew on each attempt. A request
                is never to be seen before the loop can take its decision.
        """
        refused: dict[int, HitlGuardError] = {}  # each is in the audit log once, however often the rest is tried again
        for _ in range(ROUNDS):
            steps: list[Step] = []
            asked = [refused.get(place) or self._asked(call, own, steps) for place, (call, own) in enumerate(calls)]
            refused |= {place: answer for place, answer in enumerate(asked) if isinstance(answer, HitlGuardError)}
            if alongside is not None:
                steps += alongside(asked)
            if not steps or self._desk.store.write(steps, self._desk.sealer) is not None:
                return asked
        raise busy()

    def _asked(self, call: ToolCall, own: Verdict | None, steps: list[Step]) -> ApprovalRequest | HitlGuardError:
        """Return a call's open request, or a new one whose steps are added to ``steps``, or why it must not run."""
        try:
            with self._refusals(call):
                bound = self._desk.bind(call)
                reading = self._read(bound, None)
                record = reading.record
                if record is not None and not self._asks_anew(bound, record):
                    check_fingerprint(bound, record)  # only the same tool and arguments join a request
                    if record.state in ("pending", "approved"):
                        return to_request(record)
                    refuse_state(record)
                verdict = self._judge(bound, reading, own)
                made, added = ask.asked(self._desk, bound, reading, verdict, steps)
        except (RefusedError, CanonicalizationError) as refusal:
            return refusal
        # A new tenant's first control row is written once, however many calls are asked for.
        steps += added if steps else [*ask.control_steps(self._desk, reading), *added]
        return to_request(made)

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
        return self._authorize(call, request_id=request_id, token=token)

    def _permit(self, call: ToolCall, *, request_id: str | None = None, resumes: str | None = None) -> Permit | None:
        """Return a call's permit as `authorize` does, or None where a person must be asked: here nobody is.

        Args:
            resumes: The claim id of the start that suspended itself; this one starts it again (with ``request_id``).
        """
        try:
            return self._authorize(call, request_id=request_id, resumes=resumes, ask_people=False)
        except (ApprovalRequired, _MustAsk):
            return None

    def _free_permit(self, call: ToolCall) -> Permit | None:
        """Return the permit of a call that was never asked for and needs nobody; None: `_permit` will say. Only reads.
        """
        try:
            bound = self._desk.bind(call)
            reading = self._desk.read_new(bound.scope.tenant, identity=bound.identity, spend_key=bound.spend_key)
            return None if reading is None else self._decide_by_policy(bound, reading, ask_people=False, write=False)
        except (HitlGuardError, _MustAsk):
            return None

    def _authorize(
        self, call: ToolCall, *, request_id: str | None = None, token: str | bytes | None = None,
        resumes: str | None = None, ask_people: bool = True,
    ) -> Permit:
        with self._refusals(call, request=request_id):
            bound = self._desk.bind(call)  # 1
            named = self._desk.named(bound, request_id, token)  # 1-4 of the token
            for _ in range(ROUNDS):
                reading = self._read(bound, named)  # 4
                record = reading.record
                if named is None and (record is None or self._asks_anew(bound, record)):
                    permit = self._decide_by_policy(bound, reading, ask_people=ask_people)
                else:
                    permit = self._spend(bound, reading, named, token, resumes)
                if permit is not None:
                    return permit
            raise busy()

    def _read(self, bound: Bound, named: str | None) -> Reading:
        identity = bound.identity if named is None else None
        return self._desk.read(bound.scope.tenant, request_id=named, identity=identity, spend_key=bound.spend_key)

    def _asks_anew(self, bound: Bound, record: Record) -> bool:
        """Whether the policy is to decide: an ended request, an outdated one, or a spent deny-and-retry one."""
        if record.state in ("expired", "revoked", "superseded"):
            return True
        if record.state in ("pending", "approved"):
            # Another tool or other arguments in the same place are tampering, whatever else is outdated.
            return fits(bound, record) and self._outdated(bound, record) is not None
        return record.envelope.binding == "retry" and record.state in ("executing", "succeeded", "failed", "abandoned")

    def _outdated(self, bound: Bound, record: Record) -> HitlGuardError | None:
        if record.envelope.tool_digest != bound.tool_digest:
            return ToolChangedError("The tool's definition is not the one that was approved; ask again.")
        if record.envelope.policy_version != self.policy_version:
            return PolicyChangedError("The policy changed since this was approved; ask again.")
        return None

    def _spend(
        self, bound: Bound, reading: Reading, named: str | None, token: str | bytes | None, resumes: str | None
    ) -> Permit | None:
        """Checks 5 to 12 on one verified reading. None: another transition won; read again."""
        record = reading.record
        if record is None or (token is not None and _text(token) != record.row.envelope):
            raise unknown()
        if named is None:
            # 8 comes first for a call that was found by its place: other arguments there are tampering in any state
            check_fingerprint(bound, record)
        # 5 state
        if record.state == "pending":
            if named is None:
                raise ApprovalRequired(to_request(record))
            raise InvalidApprovalError("The request is not decided yet.", detail="pending")
        # A start that suspended itself is started again by who knows that start; its grant was spent by the first.
        again = resumes is not None and (record.state, record.claim_id) == ("suspended", resumes)
        if not again and (resumes is not None or record.state != "approved"):
            refuse_state(record)
        # 6 times: both windows are in the state above, read with the database's clock
        record.check_issued(reading.now, self._desk.settings.skew)
        # 7 scope; only now is it known that the spend key that was looked up is this grant's
        check_scope(bound, record)
        if not again:
            check_unspent(reading)
        # 8 fingerprint
        check_fingerprint(bound, record)
        # 9 tool definition
        bound.check_definition()
        outdated = self._outdated(bound, record)
        if isinstance(outdated, ToolChangedError):
            raise outdated
        # 10 control row, policy version, the policy again
        bound.check_control(reading.control, self.policy_version, record.envelope.agent)  # who claims, and who asked
        if outdated is not None:
            raise outdated
        verdict = ask.evaluate_again(self._desk, bound, record)
        # 11 decisions; what the policy approved by itself was claimed at once, and is started again by its word alone
        if not (again and record.automatic and verdict.status is not Status.USER_APPROVAL):
            needs = tuple(dict.fromkeys((*record.details.requirements, *verdict.requirements)))
            # Who stands behind the call now (another agent, say, with another owner) may not have approved it either.
            who = record.details.parties.joined(bound.parties)
            check_decisions(
                needs, who, record.votes, directory=self._desk.directory, settings=self._desk.settings
            )
        # 12 the claim
        if again:
            return claim.claim_again(self._desk, reading, record)
        return claim.claim(self._desk, bound, reading, record)

    def _judge(self, bound: Bound, reading: Reading, own: Verdict | None = None) -> Verdict:
        """Return the verdict on a call that has no request to use: never made before, not paused, not denied."""
        check_unspent(reading)
        bound.check_definition()
        bound.check_control(reading.control, self.policy_version)
        verdict = self._desk.evaluate(bound)
        verdict = verdict if own is None else strictest([verdict, own])
        if verdict.status is Status.DENIED:
            raise policy_denied(verdict)
        return verdict

    def _decide_by_policy(
        self, bound: Bound, reading: Reading, *, ask_people: bool, write: bool = True
    ) -> Permit | None:
        """Where no request can be used: the policy lets it run, denies it, approves it by itself, or asks a person."""
        verdict = self._judge(bound, reading)
        if reading.record is not None and reading.record.envelope.policy_version == self.policy_version:
            # Under this very policy a person was asked about this call (the host may have wanted it), and nobody said
            # yes: that the request ended must not let the call run.
            verdict = ask.asking_again(verdict, reading.record)
        if verdict.status is Status.NOT_APPLICABLE:
            return claim.free_permit(bound)
        if verdict.status is Status.APPROVED and write:
            return claim.claim_automatic(self._desk, bound, reading, verdict)
        if not ask_people:
            raise _MustAsk
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
        if outcome == "suspended":  # only a loop that keeps the call can start it again
            raise ConfigurationError("An outcome is 'succeeded', 'failed' or 'in_doubt'.")
        settle.settle(self._desk, permit, outcome, detail)

    def _refusals(self, call: ToolCall, **facts: Any) -> AbstractContextManager[None]:
        if not isinstance(call, ToolCall):
            raise ConfigurationError("Give the guard a ToolCall.")
        return self._desk.refusals(
            "call:refused", tenant=call.tenant, tool=call.tool, user=name_of(call.user), agent=name_of(call.agent),
            run=call.run_id, call_id=call.call_id, **facts,
        )


class _MustAsk(Exception):  # noqa: N818  a signal inside this module
    """A person must be asked, which the caller does not want yet."""


def _text(token: str | bytes) -> bytes:
    return token.encode("ascii") if isinstance(token, str) else token
