"""The approvers' passkeys as they are kept: signed rows, bound to tenant and owner.

A row is a signed text of a purpose of its own (``credential``), so that no ticket, session or control row ever passes
for one. Its two events (registered, removed) are in the audit chain under one record, unique by version: a passkey is
registered once and never again, and a row that somebody put back after its removal is found out by its last event, or
by a process that knows of the removal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import fingerprint, signing
from ..errors import InvalidApprovalError, InvalidSignatureError, KeyRevokedError, KeyUnknownError
from ..rows import CredentialRow
from ..signing import COMMON_FIELDS, Signer
from ..store.base import PutCredential
from . import assertions
from .desk import Desk

CREDENTIAL_TYPE = "hitl-credential"

_FIELDS = frozenset({
    "created_at", "credential", "key", "name", "owner", "rp", "sign_count", "tenant", "transports", "used_at",
    "version",
}) | COMMON_FIELDS


@dataclass(frozen=True, slots=True)
class Registration:
    """The start of registering a passkey.

    Attributes:
        ticket: Signed text to hand back with the answer, within five minutes.
        options: What ``PublicKeyCredential.parseCreationOptionsFromJSON`` takes for ``navigator.credentials.create``.
        confirm: What ``parseRequestOptionsFromJSON`` takes for ``navigator.credentials.get``: a person who has a
            passkey adds another one with it. None for the first one.
    """

    ticket: str = field(repr=False)
    options: dict[str, Any]
    confirm: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Challenge:
    """A decision put to the person's authenticator: ``ticket`` and ``options`` as in `Registration`."""

    ticket: str = field(repr=False)
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Assertion:
    """An authenticator's answer to a `Challenge`: its ticket, and the credential's JSON form. Nothing in it is trusted.

    Attributes:
        response: What ``credential.toJSON()`` gave after ``navigator.credentials.get``.
    """

    ticket: str = field(repr=False)
    response: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credential:
    """A registered passkey.

    Attributes:
        id: The credential's id, base64url. owner: The principal's id. name: What the owner calls it.
        created_at, used_at: Epoch milliseconds; ``used_at`` is None before its first use.
        sign_count: The authenticator's own count of signatures, 0 where it keeps none.
        transports: Hints for the browser, as the authenticator gave them.
        version: How often its row was written.
    """

    id: str
    tenant: str
    owner: str
    name: str
    created_at: int
    used_at: int | None = None
    sign_count: int = 0
    transports: tuple[str, ...] = ()
    rp: str = ""
    key: bytes = field(default=b"", repr=False)
    version: int = 1

    def raw_id(self) -> bytes:
        """Return the id's bytes."""
        return signing.decode(self.id.encode()) or b""


@dataclass(frozen=True, slots=True)
class Kept:
    """A verified passkey and the row that it came from."""

    credential: Credential
    row: CredentialRow


def key_of(raw_id: bytes) -> bytes:
    """Return the 32-byte digest under which a passkey is kept: one in the whole store, whoever registers it."""
    return fingerprint.place("credential", assertions.text(raw_id))


def owner_of(tenant: str, principal_id: str) -> bytes:
    """Return the 32-byte digest of a passkey's owner; authenticators keep it as the user's handle."""
    return fingerprint.place("credential-owner", tenant, principal_id)


def signed_row(credential: Credential, signer: Signer, now: int) -> CredentialRow:
    """Return the row of a passkey, signed at ``now`` (epoch milliseconds)."""
    fields: dict[str, Any] = {
        "created_at": credential.created_at, "credential": credential.id, "key": assertions.text(credential.key),
        "name": credential.name, "owner": credential.owner, "rp": credential.rp, "sign_count": credential.sign_count,
        "tenant": credential.tenant, "transports": list(credential.transports), "used_at": credential.used_at,
        "version": credential.version,
    }
    body = signer.sign("credential", CREDENTIAL_TYPE, fields, now=now)
    return CredentialRow(key_of(credential.raw_id()), owner_of(credential.tenant, credential.owner), body)


def verify_row(row: CredentialRow, *, signer: Signer, now: int, any_earlier_epoch: bool = False) -> Credential:
    """Return the passkey if every byte of its row was signed, for this place and this owner.

    Args:
        any_earlier_epoch: For the audit alone: what was registered before a restore is void, yet not damaged.

    Raises:
        InvalidSignatureError and its kin, InvalidApprovalError: as `Signer.open`; or the row was moved.
    """
    fields = signer.open(
        row.body, expected_purpose="credential", expected_type=CREDENTIAL_TYPE, now=now,
        any_earlier_epoch=any_earlier_epoch,
    )
    mismatch = InvalidSignatureError("A stored passkey is not what was signed.", detail="mismatch")
    if fields.keys() != _FIELDS:
        raise mismatch
    credential = Credential(
        id=fields["credential"], tenant=fields["tenant"], owner=fields["owner"], name=fields["name"],
        created_at=fields["created_at"], used_at=fields["used_at"], sign_count=fields["sign_count"],
        transports=tuple(fields["transports"]), rp=fields["rp"], version=fields["version"],
        key=signing.decode(fields["key"].encode()) or b"",
    )
    if (row.key, row.owner) != (key_of(credential.raw_id()), owner_of(credential.tenant, credential.owner)):
        raise mismatch
    return credential


def rewritten(kept: Kept, signer: Signer, now: int, *, sign_count: int | None = None) -> PutCredential:
    """Return the step that writes a passkey's row anew, which demands the row as it was read.

    It always changes it, so that of two transactions that hold one passkey's row only one succeeds.

    Args:
        sign_count: What the authenticator told now, if the passkey was used.
    """
    after = replace(kept.credential, version=kept.credential.version + 1)
    if sign_count is not None:
        after = replace(after, sign_count=sign_count, used_at=now)
    return PutCredential(signed_row(after, signer, now), replaced=kept.row.body)


@dataclass(frozen=True, slots=True)
class Owned:
    """A person's passkeys.

    Attributes:
        kept: Those that count, oldest first.
        damaged: Whether there is a row of theirs that somebody damaged.
        foreign: Whether there is one of a key that is not in the key ring, so that nobody here can tell what it is.
    """

    kept: tuple[Kept, ...]
    damaged: bool
    foreign: bool = False


def of_owner(desk: Desk, tenant: str, principal_id: str, now: int) -> Owned:
    """Return a person's passkeys.

    What a revoked key or another restore epoch signed counts for nothing, as if it were not there, and so does what
    was registered for another domain, or removed and put back. What a key signed that is not in the key ring proves
    nothing either, but it is there: other nodes may know the key.

    Raises:
        StoreRolledBackError: this process saw that one of them was removed, and the store has lost that.
    """
    kept, damaged, foreign = [], False, False
    known = desk.removals
    for row, version in desk.store.credentials(owner=owner_of(tenant, principal_id)):
        try:
            credential = verify_row(row, signer=desk.signer, now=now)
        except KeyRevokedError:
            continue
        except KeyUnknownError:
            foreign = True
            continue
        except (InvalidApprovalError, InvalidSignatureError) as error:
            damaged = damaged or error.detail != "epoch"
            continue
        if version > 1:
            desk.remember_removed(row.key)
        elif version == 1:
            desk.demand_removed(row.key, known)
            if credential.rp == desk.settings.rp_id:
                kept.append(Kept(credential, row))
    kept.sort(key=lambda one: (one.credential.created_at, one.credential.id))
    return Owned(tuple(kept), damaged, foreign)
