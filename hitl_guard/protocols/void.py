"""Claims about requests that count no more: what signed them is gone, or a restore ended them.

An honest client's history names them still and must not be refused for it, so such a claim is compared with what is
stored. It grants nothing, whatever comes of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from .. import canonical, fingerprint, signing
from ..envelope import REQUEST_TYPE, Envelope
from ..errors import (
    ArgsMismatchError,
    CanonicalizationError,
    InvalidApprovalError,
    KeyInactiveError,
    KeyRevokedError,
    KeyUnknownError,
    RefusedError,
)
from ..lifecycle.desk import Desk, unknown
from ..models import Scope
from ..rows import RequestRow
from ..store.base import Loaded
from .claims import Claim
from .echo import alike

_KEY_GONE = (KeyRevokedError, KeyUnknownError, KeyInactiveError)
"""What is raised before any MAC is looked at: whoever writes such a key id into a text of his own gets it too."""


@dataclass(frozen=True, slots=True)
class Void:
    """A claim about a request of ours that counts no more. Nothing can be decided on it, and nothing runs on it.

    Attributes:
        restored: Whether it is of before a restore. Else a key that signed it is gone.
    """

    claim: Claim
    restored: bool


def void(
    desk: Desk, claim: Claim, error: RefusedError, *, tenant: str, check_place: Callable[[Scope], None]
) -> Void:
    """Return a claim whose request could not be read as void, or refuse it. The checks are those of `Guard.authorize`:

    1-4. ``error`` says that a key is gone, or that it is of before a restore; and the token is the stored envelope,
       byte for byte. No stored one is needed where the token's own MAC holds: the restore lost that request.
    5. state: a call with a result did start. After a restore the store may know less than the client; not then.
    7. scope. 8. fingerprint.

    Of 5 to 8 nothing is verified where the key is gone. It is believed only to refuse.

    Args:
        error: What reading the request raised. check_place: Raises unless a scope is that of the claim.

    Raises:
        RefusedError: it is not void, or not what is stored.
        UnavailableError: nobody can tell now.
    """
    after_restore = isinstance(error, InvalidApprovalError) and error.detail == "epoch"
    if claim.token is None or not (after_restore or isinstance(error, _KEY_GONE)):
        raise error
    desk.read(tenant)  # raises where it is the control row that does not verify
    loaded = desk.store.load(tenant, request_id=claim.request_id)
    row, token = loaded.request, claim.token.encode()
    if row is not None and row.envelope != token:
        desk.signer.open(token, expected_purpose="request", expected_type=REQUEST_TYPE, now=loaded.now)
        raise unknown()
    if after_restore:
        fields = desk.signer.open(
            token, expected_purpose="request", expected_type=REQUEST_TYPE, now=loaded.now, any_earlier_epoch=True
        )
    elif row is not None:
        fields = _unverified(row)
    else:
        raise error
    envelope, restored = Envelope.from_fields(fields), fields["epoch"] != desk.signer.keyring.epoch
    if (envelope.scope.tenant, envelope.request_id) != (tenant, claim.request_id):
        raise unknown()
    if claim.outcome == "output" and not restored and not _started(loaded):  # 5
        raise InvalidApprovalError("The call has a result, but it did not run.", detail="not-run")
    check_place(envelope.scope)  # 7
    _check_arguments(desk, claim, envelope, row)  # 8
    return Void(claim, restored)


def _unverified(row: RequestRow) -> dict[str, Any]:
    """Return what a stored envelope says whose MAC nobody can check any more."""
    fields: dict[str, Any] = orjson.loads(signing.decode(row.envelope.partition(b".")[0]) or b"{}")
    return fields


def _started(loaded: Loaded) -> bool:
    return any(event.type == "grant:claimed" for event in loaded.events)


def _check_arguments(desk: Desk, claim: Claim, envelope: Envelope, row: RequestRow | None) -> None:
    """Raise unless tool and arguments are those of an envelope, or what a browser makes of the stored ones' numbers."""
    stated: list[bytes] = []
    with suppress(CanonicalizationError):  # a browser can make numbers of ours into what has no canonical form
        stated.append(desk.canonical_value(claim.arguments))
    if row is not None and alike(canonical.decode(row.arguments), claim.arguments):
        stated.append(row.arguments)
    asked = {envelope.fingerprint} | ({envelope.supersedes[1]} if envelope.supersedes else set())
    if not claim.tool or asked.isdisjoint(fingerprint.fingerprint(claim.tool, raw) for raw in stated):
        raise ArgsMismatchError("The tool or its arguments are not the approved ones.")
