"""The signed control row of a tenant: what is paused or muted, and which policy version must be in force.

One more row, of no tenant (`rows.EVERYWHERE`), has the pauses that reach every tenant.
"""

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
    LimitError,
    PausedError,
    PolicyChangedError,
    StoreRolledBackError,
)
from ..rows import ControlRow, Draft, control_record
from ..signing import COMMON_FIELDS, Signer
from ..store.base import Append, SetControl, Step

EVERYTHING = ("all", "")
"""The pause of a whole tenant; in the row that reaches every tenant, of all of them."""

CANARY_TOOL = "hitl_guard_canary"
CANARY_TENANT = "hitl-guard-selftest"
"""The self-test's call: it always needs an approval, whatever the policy says, and no pause of all tenants stops it."""

_FIELDS = frozenset({"pauses", "policy", "tenant", "version"}) | COMMON_FIELDS

MAX_MUTES = 500
"""Mutes that a tenant may have at once. The row is read for every call, so it must stay small."""


@dataclass(frozen=True, slots=True, order=True)
class Mute:
    """A requester's calls of one tool that are refused without asking anybody, because a person was tired of them.

    It reaches what that person could have denied, and no further (see `floods.check_muted`).

    Attributes:
        user: The requester, folded (see `rights.folded`).
        by: The id of who muted.
        request_id: The request that was denied then: its signed denial says who that was, with which roles, and why.
        until: When it ends, epoch milliseconds of the database.
    """

    user: str
    tool: str
    by: str
    request_id: str
    until: int

    def to_json(self) -> dict[str, Any]:
        """Return the signed form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Control:
    """A verified control row.

    Attributes:
        version: 0 when the tenant has none yet.
        pauses: ``(kind, name)``: ``("all", "")``, ``("tool", NAME)`` or ``("agent", ID)``.
        policy: The policy version that must be in force, or None for each node's own.
        mutes: In order, the ones that are over included.
        everywhere: What is paused in all tenants, as ``pauses``. everywhere_version: The version of that row.
        everywhere_restored: That row is as ``restored`` says.
        restored: The row is of another restore epoch, or signed with a key that was revoked since: everything is paused
            until an operator confirms. What a revoked key signed is not believed: single pauses and the policy that
            must be in force are then gone, and have to be set again before everything is resumed.
    """

    tenant: str
    version: int = 0
    pauses: frozenset[tuple[str, str]] = frozenset()
    policy: str | None = None
    restored: bool = False
    mutes: tuple[Mute, ...] = ()
    everywhere: frozenset[tuple[str, str]] = frozenset()
    everywhere_version: int = 0
    everywhere_restored: bool = False

    def check(self, *, tool: str, agent: str | None, policy_version: str) -> None:
        """Raise `PausedError` when the call is paused, `PolicyChangedError` when another policy must be in force."""
        canary = tool == CANARY_TOOL and self.tenant == CANARY_TENANT
        if self.restored or (self.everywhere_restored and not canary):
            raise _restored(everywhere=not self.restored)
        everywhere = frozenset[tuple[str, str]]() if canary else self.everywhere
        for pause in (EVERYTHING, ("tool", tool), ("agent", agent or "")) if self.pauses or everywhere else ():
            if pause in self.pauses:
                raise PausedError("An operator paused this. Wait until it is resumed.", detail=pause[0])
            if pause in everywhere:
                raise PausedError("An operator paused this in all tenants. Wait until it is resumed.", detail=pause[0])
        if self.policy is not None and self.policy != policy_version:
            raise PolicyChangedError("Another policy version is in force; reload the policy here.", detail="node")


    def below(self, everywhere: Control) -> Control:
        """Return this with what the row that reaches every tenant says."""
        return replace(
            self, everywhere=everywhere.pauses, everywhere_version=everywhere.version,
            everywhere_restored=everywhere.restored,
        )


def _restored(*, everywhere: bool) -> PausedError:
    command = "control resume --everywhere" if everywhere else "control resume"
    whose = "of operators of all tenants" if everywhere else "of operators"
    return PausedError(
        "The control row is of another restore epoch or was signed with a revoked key: check what is paused, then run "
        f"'hitl-guard {command}' with the role {whose}.", detail="restored",
    )


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
    mutes = fields.pop("mutes", None)
    if fields.keys() != _FIELDS or mutes == [] or fields["tenant"] != tenant or fields["version"] != row.version:
        raise InvalidSignatureError(
            "The control row is not this tenant's. Run 'hitl-guard audit verify'.", detail="mismatch"
        )
    return Control(
        tenant, row.version, frozenset((kind, name) for kind, name in fields["pauses"]), fields["policy"],
        restored=fields["epoch"] != signer.keyring.epoch, mutes=tuple(Mute(**mute) for mute in mutes or ()),
    )


def steps_to_replace(
    old: Control, new: Control, *, by: str, reason: str | None, signer: Signer, now: int
) -> list[Step]:
    """Return the steps that put ``new`` in the place of ``old``, with their event. Mutes that are over are left out.

    A row without mutes has the fields that it always had.
    """
    version = old.version + 1
    mutes = [mute.to_json() for mute in sorted(at(new, now).mutes)]
    fields: dict[str, Any] = {
        "pauses": [list(pause) for pause in sorted(new.pauses)], "policy": new.policy, "tenant": new.tenant,
        "version": version,
    } | ({"mutes": mutes} if mutes else {})
    text = signer.sign("control", CONTROL_TYPE, fields, now=now)
    body = audit.body(by=by, control=text.decode(), reason=reason)
    draft = Draft("control:changed", new.tenant, now, body, control_record(new.tenant), version)
    return [SetControl(ControlRow(new.tenant, version, text)), Append(draft)]


def at(control: Control, now: int) -> Control:
    """Return the control row without the mutes that are over at ``now``, epoch milliseconds."""
    return replace(control, mutes=tuple(mute for mute in control.mutes if mute.until > now))


def paused(kind: str, name: str) -> Callable[[Control], Control]:
    """Return the change that adds a pause."""
    return lambda control: replace(control, pauses=_stopped(control) | {(kind, name)})


def resumed(kind: str, name: str) -> Callable[[Control], Control]:
    """Return the change that takes a pause away; only the one of everything confirms a restored database."""
    return lambda control: replace(control, pauses=_stopped(control) - {(kind, name)})


def with_policy(version: str | None) -> Callable[[Control], Control]:
    """Return the change that demands a policy version, or (None) none."""
    return lambda control: replace(control, pauses=_stopped(control), policy=version)


def muted(mute: Mute, *, now: int) -> Callable[[Control], Control]:
    """Return the change that adds a mute, in the place of the same person's for that requester and tool.

    Raises:
        LimitError: from the change, when the tenant has too many already.
    """
    def change(control: Control) -> Control:
        others = [
            one for one in at(control, now).mutes
            if (one.user, one.tool, one.by) != (mute.user, mute.tool, mute.by)
        ]
        if len(others) >= MAX_MUTES:
            raise LimitError(
                f"This tenant has {MAX_MUTES} mutes already. Deny without one, or have an operator lift some "
                "('hitl-guard control unmute').", detail="mutes",
            )
        return replace(control, pauses=_stopped(control), mutes=(*others, mute))

    return change


def unmuted(user: str, tool: str, by: str | None) -> Callable[[Control], Control]:
    """Return the change that takes away a requester's (folded) mutes of a tool: those of ``by``, or (None) all."""
    def change(control: Control) -> Control:
        left = tuple(
            one for one in control.mutes if (one.user, one.tool) != (user, tool) or by not in (None, one.by)
        )
        return replace(control, pauses=_stopped(control), mutes=left)

    return change


def _stopped(control: Control) -> frozenset[tuple[str, str]]:
    """Return what is paused. The new row is of this restore epoch, so a restored one's standstill becomes a pause."""
    return control.pauses | {EVERYTHING} if control.restored else control.pauses
