"""MACs and the signed texts that carry them. The only user of ``hmac``.

A signed text is ``BASE64URL(payload) "." BASE64URL(mac)`` without padding. The payload is an RFC 8785 object that
names its ``type``, format version ``v``, algorithm ``alg``, key id ``kid``, restore ``epoch`` and ``issued_at``
(epoch milliseconds); the MAC is HMAC-SHA256 (RFC 2104) over a purpose tag and the payload, under a key derived for
that purpose alone (HKDF, RFC 5869). Each payload has exactly one accepted spelling.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from typing import Any, TypeGuard

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from . import canonical
from .errors import CanonicalizationError, InvalidApprovalError, InvalidSignatureError, KeyRevokedError
from .keyring import Key, Keyring

ALGORITHM = "HS256"
FORMAT_VERSION = 1
MAC_BYTES = 32
NONCE_BYTES = 12
MAX_TOKEN_BYTES = 262_144
MAX_TIME_MS = 2**53 - 1
PURPOSES = frozenset({
    "request", "event", "decision", "snapshot", "control", "credential", "session", "link", "cursor", "webhook",
})
"""What a key may sign, each under a derived key of its own; a MAC of one purpose never verifies as another."""

COMMON_FIELDS = frozenset({"alg", "epoch", "issued_at", "kid", "type", "v"})


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the full 32-byte HMAC-SHA256 (RFC 2104, FIPS 198-1)."""
    return hmac.digest(key, message, "sha256")


def equal(left: bytes, right: bytes) -> bool:
    """Compare two MACs in constant time; anything but two full 32-byte values is unequal."""
    return len(left) == MAC_BYTES and hmac.compare_digest(left, right)


_TO_URL = bytes.maketrans(b"+/", b"-_")
# What is not base64url becomes a character that no alphabet has, so that binascii refuses it.
_FROM_URL = bytes.maketrans(b"-_+/", b"+/!!")


def encode(data: bytes) -> bytes:
    """Return base64url without padding (RFC 4648 section 5)."""
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL)


def decode(text: bytes) -> bytes | None:
    """Return what `encode` turns into exactly ``text``, or None when nothing does."""
    try:
        data = binascii.a2b_base64(text.translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode(data) == text else None


class Signer:
    """Signs and verifies with the keys of one keyring. Safe to share between threads."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self._contexts: dict[tuple[Key, str], hmac.HMAC] = {}
        self._generation = keyring.generation

    def mac(self, key: Key, purpose: str, message: bytes) -> bytes:
        """Return the 32-byte MAC of ``message`` for ``purpose`` (one of `PURPOSES`) under ``key``."""
        if self._generation != self.keyring.generation:
            # A reloaded ring may have lost keys: nothing derived from them stays in memory.
            self._contexts, self._generation = {}, self.keyring.generation
        context = self._contexts.get((key, purpose))
        if context is None:
            context = self._contexts[key, purpose] = _derive(key, purpose)
        context = context.copy()
        context.update(message)
        return context.digest()

    def sign(self, purpose: str, kind: str, fields: dict[str, Any], *, now: int) -> bytes:
        """Return ``fields`` as a signed text of type ``kind``, issued at ``now``, under the active signing key.

        Raises:
            KeyInactiveError: no key is active at ``now``.
            CanonicalizationError: the fields have no canonical form, or the text would be longer than `open` takes.
        """
        key = self.keyring.signing_key(now)
        common = {
            "alg": ALGORITHM, "epoch": self.keyring.epoch, "issued_at": now, "kid": key.id, "type": kind,
            "v": FORMAT_VERSION,
        }
        return self.seal(purpose, key, canonical.canonicalize(fields | common))

    def seal(self, purpose: str, key: Key, payload: bytes) -> bytes:
        """Return the signed text of a payload that is complete and canonical already."""
        text = b"%b.%b" % (encode(payload), encode(self.mac(key, purpose, payload)))
        if len(text) > MAX_TOKEN_BYTES:
            raise CanonicalizationError("There is too much to sign: send less.", code="too-large", detail="bytes")
        return text

    def open(
        self, token: object, *, expected_purpose: str, expected_type: str, now: int, any_earlier_epoch: bool = False
    ) -> dict[str, Any]:
        """Verify a signed text and return its fields. Checks, in this order, before anything else is believed:

        1. size, one canonical spelling, strict parse; 2. type and format version; 3. key id and the key's state at
        ``now``; 4. algorithm label and MAC; then the restore epoch, which only the control row may have outlived.

        Raises:
            InvalidApprovalError: steps 1 and 2 (``detail`` malformed, type, version, epoch).
            KeyUnknownError, KeyInactiveError, KeyRevokedError: step 3.
            InvalidSignatureError: step 4 (``detail`` missing, malformed, mismatch).
        """
        payload, fields, mac_text = _parse(token)
        if fields.get("type") != expected_type:
            raise InvalidApprovalError("This is a signed text of another type.", detail="type")
        if fields.get("v") != FORMAT_VERSION or type(fields["v"]) is not int:
            raise InvalidApprovalError("This format version is unknown here.", detail="version")
        key_id, made_at, epoch = fields.get("kid"), fields.get("issued_at"), fields.get("epoch")
        if type(key_id) is not str or type(epoch) is not int or not is_time(made_at):
            raise InvalidApprovalError("A required field is missing or of the wrong type.", detail="malformed")
        key = self.verifying_key(key_id, made_at=made_at, now=now)
        self._check_mac(key, expected_purpose, payload, mac_text, fields.get("alg"))
        if epoch != self.keyring.epoch and not (any_earlier_epoch and epoch < self.keyring.epoch):
            raise InvalidApprovalError("This was signed in another restore epoch; ask again.", detail="epoch")
        return fields

    def hide(self, purpose: str, data: bytes, *, now: int) -> str:
        """Return ``data`` so that nobody can read it without the active signing key (AES-256-GCM, a random nonce).

        Sign it with `sign` at the same time: whom it is for, and the key that `uncover` needs, is in that text.

        Raises:
            KeyInactiveError: no key is active at ``now``.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        hidden = _cipher(self.keyring.signing_key(now), purpose).encrypt(nonce, data, None)
        return encode(nonce + hidden).decode("ascii")

    def uncover(self, purpose: str, text: str, fields: dict[str, Any], *, now: int) -> bytes:
        """Return what was hidden in a signed text, whose ``fields`` were verified by `open`.

        Raises:
            InvalidSignatureError: ``detail`` mismatch: it was not hidden for this purpose under that text's key.
        """
        key = self.verifying_key(fields["kid"], made_at=fields["issued_at"], now=now)
        data = decode(text.encode()) or b""
        try:
            return _cipher(key, purpose).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise InvalidSignatureError("What is hidden here cannot be read.", detail="mismatch") from None

    def verifying_key(self, key_id: str, *, made_at: int, now: int) -> Key:
        """See `Keyring.verifying_key`."""
        return self.keyring.verifying_key(key_id, made_at=made_at, now=now)

    def _check_mac(self, key: Key, purpose: str, payload: bytes, mac_text: bytes, algorithm: object) -> None:
        if algorithm != ALGORITHM:
            raise InvalidSignatureError("The algorithm label is not the key's.", detail="mismatch")
        if not mac_text:
            raise InvalidSignatureError("The MAC is missing.", detail="missing")
        mac = decode(mac_text)
        if mac is None or len(mac) != MAC_BYTES:
            raise InvalidSignatureError("The MAC is not 32 bytes of base64url without padding.", detail="malformed")
        if not equal(self.mac(key, purpose, payload), mac):
            raise InvalidSignatureError("The MAC does not match.", detail="mismatch")


class Examiner(Signer):
    """Verifies what a compromised key signed as well: the audit can tell what was edited without that key. Accepts
    nothing for the guard.
    """

    def verifying_key(self, key_id: str, *, made_at: int, now: int) -> Key:
        """Return a compromised key too; otherwise as `Signer`."""
        try:
            return super().verifying_key(key_id, made_at=made_at, now=now)
        except KeyRevokedError as error:
            if error.detail != "compromised":
                raise
            return next(key for key in self.keyring.keys if key.id == key_id)


def is_time(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a time as we sign it: an integer of epoch milliseconds from 0 to 2^53 - 1."""
    return type(value) is int and 0 <= value <= MAX_TIME_MS


def unverified_key_id(token: bytes) -> str:
    """Return the key id that a signed text names, unverified, to list what a key still holds.

    Raises:
        InvalidApprovalError: the text has no readable payload.
    """
    key_id = _parse(token)[1].get("kid")
    if type(key_id) is not str:
        raise InvalidApprovalError("A required field is missing or of the wrong type.", detail="malformed")
    return key_id


def _derive(key: Key, purpose: str) -> hmac.HMAC:
    if purpose not in PURPOSES:
        raise InvalidSignatureError("This purpose is unknown.", detail="purpose")
    info = b"hitl-guard/v1/" + purpose.encode()
    derived = _hkdf(key, info)
    # The tag is fed once and kept with the context: the MAC input starts with the purpose as well.
    return hmac.new(derived, info + b"\0", "sha256")


def _cipher(key: Key, purpose: str) -> AESGCM:
    return AESGCM(_hkdf(key, b"hitl-guard/v1/hidden/" + purpose.encode()))


def _hkdf(key: Key, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(key.secret())


def _parse(token: object) -> tuple[bytes, dict[str, Any], bytes]:
    """Return payload bytes, payload object and MAC text of a signed text, all unverified."""
    malformed = InvalidApprovalError("This is not a signed text of ours.", detail="malformed")
    if isinstance(token, str):
        try:
            token = token.encode("ascii")
        except UnicodeEncodeError:
            raise malformed from None
    if not isinstance(token, bytes) or len(token) > MAX_TOKEN_BYTES:
        raise malformed
    text, _, mac_text = token.partition(b".")
    payload = decode(text)
    if not payload:
        raise malformed
    try:
        fields = orjson.loads(payload)
        # The one spelling: duplicate names, white space, other escapes or number texts all differ from it here.
        if type(fields) is not dict or canonical.canonicalize(fields) != payload:
            raise malformed
    except (orjson.JSONDecodeError, CanonicalizationError):
        raise malformed from None
    return payload, fields, mac_text
