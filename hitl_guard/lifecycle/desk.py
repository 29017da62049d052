"""What every operation of a guard shares: the call bound to bytes, one verified reading, the audit of refusals."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from .. import audit, clock
from ..envelope import REQUEST_TYPE, Envelope
from ..errors import (
    AuditUnavailableError,
    CanonicalizationError,
    DecisionError,
    HitlGuardError,
    InvalidApprovalError,
    KeyInactiveError,
    KeyRevokedError,
    RefusedError,
    StoreRolledBackError,
    UnavailableError,
)
from ..models import Requirement, ToolCall, check_text
from ..policy.combined import Policy
from ..policy.core import Status, Verdict
from ..rows import EVERYWHERE, ControlRow, Draft
from ..signing import Signer
from ..store.base import Append, Loaded, Store
from . import control as controls
from . import record as records
from .bound import Asked, Bound, bind, canonical_arguments, canonical_value
from .control import CANARY_TENANT, CANARY_TOOL
from .rights import Directory
from .settings import Settings
from .threads import resolve
from .toolspec import ToolSpec
from .verified import Verified

ROUNDS = 64
"""How often an operation judges anew after it lost a race, before it gives up as unavailable."""

REMEMBERED = 10_000
"""Spent keys that a process keeps before it looks which of them are over."""

MAX_ID = 64
"""Longest request id, in characters; ours have 22."""


@dataclass(slots=True)
class Reading:
    """One verified reading: the database's time, the control row, the record if there is one."""

    now: int
    control: controls.Control
    record: records.Record | None
    generation: int
    spent: bool


@dataclass
class Desk:
    """The parts that every operation uses. One per guard; safe to share between threads."""

    store: Store
    signer: Signer
    policy: Policy
    directory: Directory | None
    settings: Settings
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    _checked: int = 0
    _remembered: dict[bytes, int] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _removed: dict[bytes, int] = field(default_factory=dict)
    _prune_at: int = REMEMBERED
    _lock: Lock = field(default_factory=Lock)
    _controls: dict[str, tuple[tuple[ControlRow | None, ControlRow | None], int, controls.Control]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.sealer = audit.Sealer(self.signer)
        self._verified = Verified(self.signer, self.sealer)
        self.limiter = audit.Limiter(clock.monotonic_ms)

    # -- the call ------------------------------------------------------------------------------------------------

    def bind(self, call: ToolCall) -> Bound:
        """Return the call as bytes (see `bound.bind`)."""
        spec = self.tools.get(call.tool) if isinstance(call.tool, str) else None
        return bind(call, spec, self.settings)

    def canonical_arguments(self, arguments: Mapping[str, Any] | str | bytes) -> bytes:
        """Return the canonical bytes of an arguments object under this guard's limits."""
        return canonical_arguments(arguments, self.settings)

    def canonical_value(self, value: Any) -> bytes:
        """Return canonical bytes under this guard's limits."""
        return canonical_value(value, self.settings)

    def know(self, names: Iterable[str]) -> None:
        """Note names of tools that the host has, registered or not."""
        self.names.update(check_text("tool", name) for name in names)

    def check_names(self) -> None:
        """Check once that a map of tools names none that does not exist: such an entry would guard nothing.

        Raises:
            ConfigurationError: it does. Nothing runs until that is mended.
        """
        if len(self.names) != self._checked:
            self.policy.check_tools(self.names)
            self._checked = len(self.names)

    def evaluate(self, bound: Bound) -> Verdict:
        """Ask the policy about a bound call."""
        self.check_names()
        if bound.tool == CANARY_TOOL and bound.scope.tenant == CANARY_TENANT:
            return Verdict(Status.USER_APPROVAL, reason="self-test", requirements=(Requirement(),), rules=("selftest",))
        tool_policy = None if bound.spec is None else bound.spec.policy
        constant = self.policy.constant(bound.tool, tool_policy=tool_policy)
        if constant is not None:
            return constant
        return self.policy.evaluate(bound.policy_input(), tool_policy=tool_policy, resolve=resolve)

    # -- the store -----------------------------------------------------------------------------------------------

    def read(
        self, tenant: str, *, request_id: str | None = None, identity: bytes | None = None,
        spend_key: bytes | None = None,
    ) -> Reading:
        """Load control row, request and events in one go and verify them all before any column is believed."""
        if request_id is not None and (type(request_id) is not str or len(request_id) > MAX_ID):
            raise InvalidApprovalError("There is no such request; look at the list again.", detail="unknown")
        # What this process knew before it read: what its other threads write meanwhile is no loss.
        known = self._memory(tenant, spend_key)
        loaded = self.store.load(tenant, request_id=request_id, identity=identity, spend_key=spend_key)
        control = self._control(loaded, tenant)
        self._check_memory(loaded, control, *known)
        record = None
        if loaded.request is not None:
            try:
                record = self.verify(loaded.request, loaded.events, loaded.now)
            except (KeyRevokedError, InvalidApprovalError) as error:
                if identity is None or error.detail not in ("compromised", "destroyed", "epoch"):
                    raise
                # What a revoked key or another epoch signed is void: the same call may be asked again, as if it never
                # had been. A spent call stays spent, by its spend key.
        generation = 0 if loaded.request is None else loaded.request.generation + 1
        return Reading(loaded.now, control, record, generation, loaded.spent)

    def read_new(self, tenant: str, *, identity: bytes, spend_key: bytes | None) -> Reading | None:
        """Read as `read` does, but of a call that was never asked for; None: it was."""
        known = self._memory(tenant, spend_key)
        loaded = self.store.load_new(tenant, identity=identity, spend_key=spend_key)
        if loaded is None:
            return None
        control = self._control(loaded, tenant)
        self._check_memory(loaded, control, *known)
        return Reading(loaded.now, control, None, 0, loaded.spent)

    def named(self, bound: Asked, request_id: str | None, token: str | bytes | None) -> str | None:
        """Return the request id that a caller names, after checks 1 to 4 of a token (see `Guard.authorize`)."""
        if token is None:
            if request_id is not None and (type(request_id) is not str or not 0 < len(request_id) <= MAX_ID):
                raise unknown()
            return request_id
        fields = self.signer.open(
            token, expected_purpose="request", expected_type=REQUEST_TYPE, now=self.store.now()
        )
        envelope = Envelope.from_fields(fields)
        if envelope.scope.tenant != bound.scope.tenant or request_id not in (None, envelope.request_id):
            raise unknown()
        return envelope.request_id

    def find(self, tenant: str, request_id: str) -> tuple[Reading, records.Record]:
        """Read one request by id and tenant.

        Raises:
            InvalidApprovalError: there is none in this tenant (``detail`` unknown).
        """
        reading = self.read(tenant, request_id=request_id)
        if reading.record is None:
            raise InvalidApprovalError("There is no such request; look at the list again.", detail="unknown")
        return reading, reading.record

    def _control(self, loaded: Loaded, tenant: str) -> controls.Control:
        """Return the verified control row, with that of all tenants. The same bytes under the same keys are not
        verified twice.
        """
        rows, generation = (loaded.control, loaded.everywhere), self.signer.keyring.generation
        known = self._controls.get(tenant)
        overtaken = loaded.control_overtaken or loaded.everywhere_overtaken
        if known is not None and not overtaken and known[0] == rows and known[1] == generation:
            return known[2]
        control, everywhere = (
            controls.verify(row, tenant=of, overtaken=newer, signer=self.signer, now=loaded.now)
            for row, of, newer in zip(
                rows, (tenant, EVERYWHERE), (loaded.control_overtaken, loaded.everywhere_overtaken), strict=True
            )
        )
        control = control.below(everywhere)
        if len(self._controls) > 1_000:
            self._controls.clear()
        self._controls[tenant] = (rows, generation, control)
        return control

    def verify(self, row: Any, events: Any, now: int, *, any_earlier_epoch: bool = False) -> records.Record:
        """Verify one request with its events (see `records.verify`), unless the very same was verified before.

        Args:
            any_earlier_epoch: For the audit alone, which verifies every time.
        """
        if not any_earlier_epoch:
            return self._verified(row, events, now)
        return records.verify(
            row, events, signer=self.signer, sealer=self.sealer, now=now, any_earlier_epoch=any_earlier_epoch
        )

    def _memory(self, tenant: str, spend_key: bytes | None) -> tuple[int, int, int]:
        """Return the versions that were seen of the tenant's control row and of that of all tenants, and until when
        the spend key is remembered.
        """
        spent_until = 0 if spend_key is None else self._remembered.get(spend_key, 0)
        return self._versions.get(tenant, 0), self._versions.get(EVERYWHERE, 0), spent_until

    def _check_memory(
        self, loaded: Loaded, control: controls.Control, seen: int, seen_everywhere: int, spent_until: int
    ) -> None:
        """A process notices when what it wrote itself is gone: a claim it made, a control row it saw."""
        if (
            control.version < seen or control.everywhere_version < seen_everywhere
            or (spent_until > loaded.now and not loaded.spent)
        ):
            raise _lost()
        if control.version > seen or control.everywhere_version > seen_everywhere:
            with self._lock:
                for of, version in ((control.tenant, control.version), (EVERYWHERE, control.everywhere_version)):
                    self._versions[of] = max(version, self._versions.get(of, 0))

    def demand_spent(self, tenant: str, spend_key: bytes, now: int) -> None:
        """Raise if this process remembers a claim that is gone from the store.

        `read` does it for calls with a tool-call id. The key of a deny-and-retry call is over its request id, which is
        not known before; what another thread claimed since that reading is in the store by now, and no loss.
        """
        if self._remembered.get(spend_key, 0) > now and not self.store.load(tenant, spend_key=spend_key).spent:
            raise _lost()

    def demand_resumed(self, record: records.Record, suspended: bytes, now: int) -> None:
        """Raise if this process started a suspended call again and that is gone from the store; as `demand_spent`."""
        if self._remembered.get(suspended, 0) > now:
            stored = self.store.load(record.row.tenant, request_id=record.row.id).events
            if len(stored) <= record.version:
                raise _lost()

    def remember(self, spent: bytes, until: int, now: int) -> None:
        """Remember a spent key, or the id of a start that was started again, to notice a rolled-back store.

        Args:
            until: Epoch milliseconds; of a spend key, its execute-by.
        """
        with self._lock:
            if len(self._remembered) >= self._prune_at:
                self._remembered = {key: end for key, end in self._remembered.items() if end > now}
                self._prune_at = max(REMEMBERED, 2 * len(self._remembered))
            self._remembered[spent] = until

    @property
    def removals(self) -> int:
        """How many removals of passkeys this process knows of: what `demand_removed` gets was true before a reading."""
        return len(self._removed)

    def remember_removed(self, passkey: bytes) -> None:
        """Remember the key of a passkey's row that was removed, to notice when the removal is gone from the store."""
        with self._lock:
            self._removed.setdefault(passkey, len(self._removed))

    def demand_removed(self, passkey: bytes, known: int) -> None:
        """Raise if a passkey that counts, as the store says, is one of the first ``known`` removals."""
        if self._removed.get(passkey, known) < known:
            raise _lost()

    def change_control(self, tenant: str, change: Any, *, by: str, reason: str | None) -> controls.Control:
        """Apply ``change`` to the verified control row of a tenant, atomically; tries again after a lost race."""
        for _ in range(ROUNDS):
            reading = self.read(tenant)
            new = change(reading.control)
            steps = controls.steps_to_replace(
                reading.control, new, by=by, reason=reason, signer=self.signer, now=reading.now
            )
            if self.store.write(steps, self.sealer) is not None:
                return self.read(tenant).control
        raise busy()

    # -- refusals ------------------------------------------------------------------------------------------------

    @contextmanager
    def refusals(self, event: str, *, tenant: object, **facts: Any) -> Iterator[None]:
        """Audit every refusal that leaves the block, with its exact code, before it reaches the caller.

        Raises:
            AuditUnavailableError: from the refusal, when it cannot be audited. The tool does not run either way.
            StoreRolledBackError: likewise, when the writer finds that its last event is gone.
        """
        try:
            yield
        except (RefusedError, CanonicalizationError, DecisionError, StoreRolledBackError) as refusal:
            suppressed = self.limiter.admit(refusal.code)
            if suppressed is not None:
                try:
                    self._write_refusal(event, tenant, refusal, suppressed, facts)
                except (UnavailableError, KeyInactiveError) as error:
                    if isinstance(refusal, (UnavailableError, KeyInactiveError)):
                        raise refusal from error
                    if isinstance(error, StoreRolledBackError):
                        raise error from refusal
                    raise AuditUnavailableError(
                        "A refusal could not be written to the audit log. Check the store.", refused=refusal.code
                    ) from refusal
            raise

    def _write_refusal(
        self, event: str, tenant: object, refusal: HitlGuardError, suppressed: int, facts: dict[str, Any]
    ) -> None:
        shown = {name: _short(value) for name, value in facts.items()}
        body = audit.body(code=refusal.code, detail=refusal.detail, suppressed=suppressed, **shown)
        named = tenant if isinstance(tenant, str) and _short(tenant) == tenant else ""
        for _ in range(ROUNDS):
            if self.store.write([Append(Draft(event, named, self.store.now(), body))], self.sealer) is not None:
                return
        raise busy()


def unknown() -> InvalidApprovalError:
    """Return the error for an id that is unknown, or another tenant's: nobody can tell them apart."""
    return InvalidApprovalError("There is no such approval; look at 'hitl-guard requests list'.", detail="unknown")


def busy() -> UnavailableError:
    """Return the error of an operation that lost every race it ran."""
    return UnavailableError("Too many simultaneous changes of one record; try again.", detail="busy")


def _lost() -> StoreRolledBackError:
    return StoreRolledBackError(
        "The store lost something that this process saw in it: an old copy was put back, or events were deleted. "
        "Stop, then run 'hitl-guard audit verify'.", detail="memory",
    )


def new_id() -> str:
    """Return 128 random bits as 22 characters of base64url; none starts with '-', which a shell takes for an option."""
    while (text := secrets.token_urlsafe(16)).startswith("-"):
        continue
    return text


def _short(value: object) -> str | None:
    """Return an id for the audit log: short, well-formed text, or None."""
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "replace")[:128].decode("utf-8", "ignore") or None
