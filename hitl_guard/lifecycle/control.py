"""The signed control row of a tenant: what is paused, and which policy version must be in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import audit
from ..envelope import CONTROL_TYPE
from ..errors import (
    InvalidApprovalError,
    InvalidSignatureError,
    KeyRevokedError,
    KeyUnknownError,
    PausedError,
    PolicyChangedError,
    StoreRolledBackError,
)
from ..rows import ControlRow, Draft, control_record
from ..signing import COMMON_FIELDS, Signer
from ..store.base import Append, SetControl, Step

EVERYTHING = ("all", "")
"""The pause of a whole tenant."""
_FIELDS = frozenset({"pauses", "policy", "tenant", "version"}) | COMMON_FIELDS


@dataclass(frozen=True, slots=True)
class Control:
    """A verified control row.

    Attributes:
        version: 0 when the tenant has none yet.
        pauses: ``(kind, name)``: ``("all", "")``, ``("tool", NAME)`` or ``("agent", ID)``.
        policy: The policy version that must be in force, or None for each node's own.
        restored: The row is of another restore epoch, or signed with a key that was revoked since: everything is paused
            until an operator confirms. What a revoked key signed is not believed: single pauses and the policy that
            must be in force are then gone, and have to be set again before everything is resumed.
    """

    tenant: str
    version: int = 0
    pauses: frozenset[tuple[str, str]] = frozenset()
    policy: str | None = None
    restored: bool = False

    def check(self, *, tool: str, agent: str | None, policy_version: str) -> None:
        """Raise `PausedError` when the call is paused, `PolicyChangedError` when another policy must be in force."""
        if self.restored:
            raise PausedError(
                "The control row is of another restore epoch or was signed with a revoked key: check what is paused, "
                "then run 'hitl-guard control resume --role operator'.",
                detail="restored",
            )
        for pause in (EVERYTHING, ("tool", tool), ("agent", agent or "")) if self.pauses else ():
            if pause in self.pauses:
                raise PausedError("An operator paused this. Wait until it is resumed.", detail=pause[0])
        if self.policy is not None and self.policy != policy_version:
            raise PolicyChangedError("Another policy version is in force; reload the policy here.", detail="node")


def verify(row: ControlRow | None, *, tenant: str, overtaken: bool, signer: Signer, now: int) -> Control:
    """Return the verified control row; a tenant without one, and without events of one, starts with nothing paused.

    Raises:
        StoreRolledBackError: an older row was put back, or the row was deleted.
        InvalidSignatureError: the row is not what was signed.
    """
    if overtaken:
        raise StoreRolledBackError(
            "The control row is older than its events: an old row was put back, or the row was deleted. "
            "Run 'hitl-guard audit verify'.", detail="control",
        )
    if row is None:
        return Control(tenant)
    try:
        fields = signer.open(
            row.body, expected_purpose="control", expected_type=CONTROL_TYPE, now=now, any_earlier_epoch=True
        )
    except (KeyRevokedError, KeyUnknownError):
        # Whoever stole the key may have written this row (or its key is gone), so nothing in it counts: all is paused.
        return Control(tenant, row.version, frozenset({EVERYTHING}), restored=True)
    except InvalidApprovalError as error:
        if error.detail == "epoch":
            raise
        # The store is damaged; an agent must not take that for a missing approval.
        raise InvalidSignatureError(
            "The control row cannot be read. Run 'hitl-guard audit verify'.", detail=error.detail
        ) from error
    if fields.keys() != _FIELDS or fields["tenant"] != tenant or fields["version"] != row.version:
        raise InvalidSignatureError(
            "The control row is not this tenant's. Run 'hitl-guard audit verify'.", detail="mismatch"
        )
    return Control(
        tenant, row.version, frozenset((kind, name) for kind, name in fields["pauses"]), fields["policy"],
        restored=fields["epoch"] != signer.keyring.epoch,
    )


def steps_to_replace(
    old: Control, new: Control, *, by: str, reason: str | None, signer: Signer, now: int
) -> list[Step]:
    """Return the steps that put ``new`` in the place of ``old``, with their event."""
    version = old.version + 1
    fields: dict[str, Any] = {
        "pauses": [list(pause) for pause in sorted(new.pauses)], "policy": new.policy, "tenant": new.tenant,
        "version": version,
    }
    text = signer.sign("control", CONTROL_TYPE, fields, now=now)
    body = audit.body(by=by, control=text.decode(), reason=reason)
    draft = Draft("control:changed", new.tenant, now, body, control_record(new.tenant), version)
    return [SetControl(ControlRow(new.tenant, version, text)), Append(draft)]


def paused(kind: str, name: str) -> Callable[[Control], Control]:
    """Return the change that adds a pause."""
    return lambda control: replace(control, pauses=_stopped(control) | {(kind, name)})


def resumed(kind: str, name: str) -> Callable[[Control], Control]:
    """Return the change that takes a pause away; only the one of everything confirms a restored database."""
    return lambda control: replace(control, pauses=_stopped(control) - {(kind, name)})


def with_policy(version: str | None) -> Callable[[Control], Control]:
    """Return the change that demands a policy version, or (None) none."""
    return lambda control: replace(control, pauses=_stopped(control), policy=version)


def _stopped(control: Control) -> frozenset[tuple[str, str]]:
    """Return what is paused. The new row is of this restore epoch, so a restored one's standstill becomes a pause."""
    return control.pauses | {EVERYTHING} if control.restored else control.pauses
