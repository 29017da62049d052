"""Registering, listing and removing passkeys.

Who a person is, the host's login says. The first passkey is registered on that word alone; another one only with a
passkey that is there, and a person's last one is removed by an operator only. So whoever steals a login can neither add
a passkey of their own beside the owner's nor clear the way for it.

Nor can two first ones be registered at once. A person's first passkeys (one, and one more after each time that an
operator removed the last) are numbered; the ticket names the number, and the registration's event spends it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, TypeGuard

from .. import audit, fingerprint, signing
from ..errors import ConfigurationError, InvalidApprovalError, NotAuthorisedError
from ..models import Principal
from ..rows import Draft, credential_record
from ..store.base import Append, DropCredential, PutCredential, Step
from .assertions import CHALLENGE_MS, Answer, library, text, unproven, verify_answer
from .credentials import Credential, Kept, Registration, of_owner, owner_of, rewritten, signed_row
from .desk import ROUNDS, Desk, busy
from .passkeys import one_of, opened, person_of, relying_party, request_options
from .rights import folded, operates

REGISTRATION_TYPE = "hitl-registration"

MAX_NAME = 100
"""Longest name of a passkey, in characters."""

MAX_PASSKEYS = 20
"""Most passkeys of one person."""

_CONFIRM = b"hitl-guard/registration/v1\0"
_TRANSPORTS = frozenset({"usb", "nfc", "ble", "smart-card", "internal", "cable", "hybrid"})


def begin(desk: Desk, principal: Principal) -> Registration:
    """Return what a browser needs to make a passkey for a person, and the ticket to hand back with it.

    Raises:
        NotAuthorisedError: a stored passkey of theirs cannot be read; ``detail`` evidence.
    """
    person, rp = person_of(principal), relying_party(desk)
    now, challenge = desk.store.now(), secrets.token_bytes(32)
    kept = _readable(desk, person, now)
    fields = {
        "challenge": text(challenge), "end": now + CHALLENGE_MS, "first": None if kept else _turn(desk, person),
        "owner": person.id, "tenant": person.tenant,
    }
    ticket = desk.signer.sign("session", REGISTRATION_TYPE, fields, now=now).decode()
    webauthn = library()
    structs = webauthn.helpers.structs
    options = webauthn.generate_registration_options(
        rp_id=rp, rp_name=desk.settings.rp_name or rp, user_name=person.id, challenge=challenge, timeout=CHALLENGE_MS,
        user_id=owner_of(person.tenant, person.id),
        authenticator_selection=structs.AuthenticatorSelectionCriteria(
            resident_key=structs.ResidentKeyRequirement.PREFERRED,
            user_verification=structs.UserVerificationRequirement.REQUIRED,
        ),
        exclude_credentials=[structs.PublicKeyCredentialDescriptor(one.credential.raw_id()) for one in kept],
    )
    confirm = request_options(rp, _confirmation(challenge), kept) if kept else None
    return Registration(ticket, webauthn.helpers.options_to_json_dict(options), confirm)


def register(
    desk: Desk, principal: Principal, *, ticket: str, response: Mapping[str, Any], name: str,
    confirm: Mapping[str, Any] | None = None,
) -> Credential:
    """Store the passkey that a browser made, once.

    Raises:
        NotAuthorisedError: ``detail`` evidence: the ticket is not this person's, too old or used, the answer does not
            fit it, or a person who has a passkey did not confirm with it; registered: this passkey was, before; limit:
            there are too many.
        InvalidApprovalError: the name is empty or too long; ``detail`` malformed.
    """
    person = person_of(principal)
    relying_party(desk)
    if type(name) is not str or not 0 < len(name) <= MAX_NAME:
        raise InvalidApprovalError(f"A passkey's name has 1 to {MAX_NAME} characters.", detail="malformed")
    for _ in range(ROUNDS):
        now = desk.store.now()
        fields = opened(desk, ticket, REGISTRATION_TYPE, person, now)
        challenge = _bytes(fields["challenge"])
        kept = _readable(desk, person, now)
        spent = _spent(person, fields.get("first"), challenge, kept)
        confirmed = _confirmed(desk, person, challenge, confirm, kept, now)
        made = _made(desk, person, challenge, response, name, now)
        row = signed_row(made, desk.signer, now)
        if desk.store.load(person.tenant, spend_key=spent).spent:
            raise unproven("This registration was completed before: start a new one.")
        record = credential_record(row.key)
        if desk.store.last_version(record):
            raise NotAuthorisedError("This passkey was registered before: make a new one.", detail="registered")
        event = Draft("credential:registered", person.tenant, now, _body(made, person), record, 1, spent)
        if desk.store.write([PutCredential(row), *confirmed, Append(event)], desk.sealer) is not None:
            return made
    raise busy()


def _body(credential: Credential, by: Principal) -> bytes:
    return audit.body(
        by=by.id, credential=credential.id, key=text(credential.key), name=credential.name, owner=credential.owner,
        rp=credential.rp,
    )


def _bytes(encoded: str) -> bytes:
    return signing.decode(encoded.encode()) or b""


def _confirmation(challenge: bytes) -> bytes:
    """Return the challenge for the passkey that is there; such a registration's one use is spent under it as well."""
    return hashlib.sha256(_CONFIRM + challenge).digest()


def _spent(person: Principal, turn: int | None, challenge: bytes, kept: tuple[Kept, ...]) -> bytes:
    """Return what a registration spends: its own use, or for a first passkey every ticket that was made for one.

    Raises:
        NotAuthorisedError: the ticket was made for a first passkey and there is one now, or the other way round.
    """
    if (turn is None) != bool(kept):
        raise unproven("Your passkeys have changed since: start a new registration.")
    return _confirmation(challenge) if turn is None else _first(person, turn)


def _first(person: Principal, turn: int) -> bytes:
    return fingerprint.place("first-passkey", person.tenant, person.id, str(turn))


def _turn(desk: Desk, person: Principal) -> int:
    """Return which first passkey of a person would be registered now, from 0. Few people ever get beyond 1."""
    turn = 0
    while desk.store.load(person.tenant, spend_key=_first(person, turn)).spent:
        turn += 1
    return turn


def _readable(desk: Desk, person: Principal, now: int) -> tuple[Kept, ...]:
    """Return the passkeys that a person has.

    Raises:
        NotAuthorisedError: one of theirs is damaged, or a key signed it that is unknown here: whoever could make it so
            would else register as if for the first time.
    """
    owned = of_owner(desk, person.tenant, person.id, now)
    if owned.damaged:
        raise unproven("A stored passkey of yours is damaged: an operator must run 'hitl-guard audit verify'.")
    if owned.foreign:
        raise unproven(
            "A stored passkey of yours was signed with a key that is not in the key ring here: an operator must give "
            "every node the same keys (one that is gone for good stays in the key ring, as destroyed)."
        )
    return owned.kept


def _confirmed(
    desk: Desk, person: Principal, challenge: bytes, unverified_confirm: Mapping[str, Any] | None,
    owned: tuple[Kept, ...], now: int,
) -> list[Step]:
    """Return the step that counts the use of the passkey with which a person adds another one; none for the first.

    Raises:
        NotAuthorisedError: a person who has one did not prove it, or has too many.
    """
    if not owned:
        return []
    if len(owned) >= MAX_PASSKEYS:
        raise NotAuthorisedError(f"A person has at most {MAX_PASSKEYS} passkeys: remove one.", detail="limit")
    answer = Answer.read(unverified_confirm, user=owner_of(person.tenant, person.id))
    kept = one_of(owned, answer.credential)
    count = verify_answer(
        answer, key=kept.credential.key, expected_challenge=_confirmation(challenge),
        expected_rp=relying_party(desk), expected_origins=desk.settings.rp_origins,
        sign_count=kept.credential.sign_count,
    )
    return [rewritten(kept, desk.signer, now, sign_count=count)]


def _made(
    desk: Desk, person: Principal, challenge: bytes, unverified_response: object, name: str, now: int
) -> Credential:
    """Return the passkey that an authenticator made, after the checks of WebAuthn (section 7.1)."""
    response = dict(unverified_response) if isinstance(unverified_response, Mapping) else {}
    inner, webauthn = response.get("response"), library()
    try:
        verified = webauthn.verify_registration_response(
            credential=response, expected_challenge=challenge, expected_rp_id=desk.settings.rp_id,
            expected_origin=list(desk.settings.rp_origins), require_user_verification=True,
        )
    except Exception as error:
        # Whatever a forged answer makes the library raise, it is refused.
        raise unproven("The passkey could not be registered: start a new registration.") from error
    hints = inner.get("transports") if isinstance(inner, Mapping) else None
    transports = sorted(_TRANSPORTS.intersection(hints)) if _texts(hints) else []
    return Credential(
        id=text(verified.credential_id), tenant=person.tenant, owner=person.id, name=name, created_at=now,
        sign_count=verified.sign_count, transports=tuple(transports), rp=desk.settings.rp_id or "",
        key=verified.credential_public_key,
    )


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def listed(desk: Desk, principal: Principal) -> tuple[Credential, ...]:
    """Return a person's passkeys that count, oldest first."""
    person = person_of(principal)
    return tuple(one.credential for one in of_owner(desk, person.tenant, person.id, desk.store.now()).kept)


def remove(desk: Desk, credential_id: str, by: Principal, owner: str | None) -> None:
    """Remove a passkey: its owner while another one is left, an operator any of another person's.

    Args:
        owner: The principal's id whose passkey it is; who acts, when None.

    Raises:
        NotAuthorisedError: ``detail`` role: this needs an operator. unknown: the person has no such passkey.
    """
    if not isinstance(by, Principal):
        raise ConfigurationError("'by' must be a Principal.")
    owner = by.id if owner is None else owner
    own = by.kind == "human" and by.id == owner
    # Nobody is an operator over passkeys of one's own: a login alone would then be enough to replace them.
    themselves = not folded(by.every_name()).isdisjoint(folded((owner,)))
    operator = operates(by, desk.settings.operator_role) and not themselves
    for _ in range(ROUNDS):
        now = desk.store.now()
        owned = of_owner(desk, by.tenant, owner, now).kept if own or operator else ()
        gone = next((one for one in owned if one.credential.id == credential_id), None)
        if gone is None:
            raise NotAuthorisedError("There is no such passkey of yours.", detail="unknown")
        others = [one for one in owned if one is not gone]
        if not operator and not others:
            raise NotAuthorisedError("Your last passkey is removed by an operator.", detail="role")
        # The one that stays is demanded unchanged: two removals at once cannot leave nothing.
        stays = [] if operator else [rewritten(others[0], desk.signer, now)]
        event = Draft(
            "credential:removed", by.tenant, now, _body(gone.credential, by), credential_record(gone.row.key), 2
        )
        steps: list[Step] = [DropCredential(gone.row.key, gone.row.body), *stays, Append(event)]
        if desk.store.write(steps, desk.sealer) is not None:
            desk.remember_removed(gone.row.key)
            return
    raise busy()
