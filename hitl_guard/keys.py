"""One key: its states, the rules for its secret, and the JSON of a key ring.

States follow NIST SP 800-57 part 1 (section 7): pre-active, active, deactivated, compromised, destroyed.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, NoReturn

from . import canonical
from .errors import CanonicalizationError, ConfigurationError, KeyRevokedError
from .keyfile import Sealed

MIN_SECRET_BYTES = 32
"""Shortest secret: the output length of SHA-256 (RFC 2104, section 3)."""

MIN_DISTINCT_BYTES = 17
"""Fewest byte values in a secret. 32 random bytes have about 30; a 16-byte key pasted twice has at most 16."""

MAX_NUMBER = 2**53 - 1
"""Latest time (epoch milliseconds) and highest epoch: the largest integer that every JSON reader keeps."""

MAX_REASON = 256
"""Longest reason for a revocation, in characters."""

KeyState = Literal["pre-active", "active", "deactivated", "compromised", "destroyed"]
RevokedState = Literal["compromised", "destroyed"]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RING_MEMBERS = frozenset({"epoch", "keys"})
_REQUIRED = frozenset({"id", "activates_at"})
_OPTIONAL = frozenset({"secret", "deactivates_at", "state", "reason"})


class Key:
    """One key: immutable, compared and hashed by identity, and silent about its secret.

    Attributes:
        id: 1 to 64 characters of ``A-Z a-z 0-9 . _ -``; part of every MAC's input.
        activates_at: First millisecond (epoch) at which it signs and verifies.
        deactivates_at: First millisecond at which it signs no more; what it signed before still counts. None: open.
        state: ``compromised`` or ``destroyed`` (nothing it signed counts), or None.
        reason: Why it was revoked, for `hitl-guard keys list`; None unless ``state`` is set.

    Raises:
        ConfigurationError: anything is missing, of another type, out of range, or the secret is weak.
    """

    __slots__ = ("__weakref__", "_sealed", "activates_at", "deactivates_at", "id", "reason", "state")

    id: str
    activates_at: int
    deactivates_at: int | None
    state: RevokedState | None
    reason: str | None
    _sealed: Sealed | None

    def __init__(
        self,
        id: str,
        secret: bytes | None,
        *,
        activates_at: int,
        deactivates_at: int | None = None,
        state: RevokedState | None = None,
        reason: str | None = None,
    ) -> None:
        problem = _problem(id, activates_at, deactivates_at, state, reason) or _weakness(secret, state)
        sealed = None if secret is None else Sealed(secret)
        del secret  # a traceback that prints locals must not show it
        if problem is not None:
            raise ConfigurationError(problem[1], detail=problem[0])
        for name, value in (
            ("id", id), ("activates_at", activates_at), ("deactivates_at", deactivates_at), ("state", state),
            ("reason", reason), ("_sealed", sealed),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def generate(cls, activates_at: int) -> Key:
        """Return a new random key that activates at ``activates_at`` (epoch milliseconds)."""
        return cls(f"k-{secrets.token_hex(6)}", secrets.token_bytes(MIN_SECRET_BYTES), activates_at=activates_at)

    def state_at(self, now: int) -> KeyState:
        """Return the state at ``now`` (epoch milliseconds)."""
        if self.state is not None:
            return self.state
        if now < self.activates_at:
            return "pre-active"
        if self.deactivates_at is not None and now >= self.deactivates_at:
            return "deactivated"
        return "active"

    def secret(self) -> bytes:
        """Return the secret bytes, for `hitl_guard.signing` alone.

        Raises:
            KeyRevokedError: the key was destroyed.
        """
        if self._sealed is None:
            raise KeyRevokedError("The key was destroyed and has no secret.", detail="destroyed", key_id=self.id)
        return self._sealed.reveal()

    def changed(self, **changes: Any) -> Key:
        """Return a key with the same id and secret and other times, state or reason."""
        fields: dict[str, Any] = {
            "activates_at": self.activates_at, "deactivates_at": self.deactivates_at,
            "state": self.state, "reason": self.reason,
        }
        return Key(self.id, None if self._sealed is None else self._sealed.reveal(), **(fields | changes))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("A key does not change; make a new key ring instead.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("A key does not change; make a new key ring instead.")

    def __repr__(self) -> str:
        return f"<Key id={getattr(self, 'id', None)!r} state={getattr(self, 'state', None)!r}>"  # even when half made

    def __reduce__(self) -> NoReturn:
        raise TypeError("A key cannot be pickled or copied.")


def sealed_text(source: object) -> Sealed:
    """Wrap JSON text (``str`` or ``bytes``) before it is looked at; anything else becomes empty, which is refused."""
    if isinstance(source, str):
        # An environment variable that is not UTF-8 arrives with lone surrogates; the parser refuses their bytes.
        return Sealed(source.encode("utf-8", "surrogatepass"))
    return Sealed(bytes(source) if isinstance(source, bytes | bytearray) else b"")


def parse_ring(source: Sealed) -> tuple[tuple[Key, ...], int]:
    """Return the keys and the epoch of a key ring's JSON text.

    Raises:
        ConfigurationError: it is not strict JSON, has another shape, or one of its keys is not usable.
    """
    try:
        return _parse(source)
    except CanonicalizationError as error:
        message, detail = "The key ring is not strict JSON: make it with `hitl-guard keys generate`.", error.detail
    except ConfigurationError as error:
        message, detail = str(error), error.detail
    # Raised anew and without its cause: the frames below hold key material, and some traceback printers show locals.
    raise ConfigurationError(message, detail=detail)


def dump_ring(keys: Iterable[Key], epoch: int, *, indent: int | None = None) -> Sealed:
    """Return a key ring as JSON text, secrets included."""
    return Sealed(json.dumps({"epoch": epoch, "keys": [_entry(key) for key in keys]}, indent=indent).encode() + b"\n")


def _parse(source: Sealed) -> tuple[tuple[Key, ...], int]:
    ring = canonical.parse(source.reveal())
    if type(ring) is not dict or ring.keys() != _RING_MEMBERS or type(ring["keys"]) is not list:
        raise ConfigurationError(
            'A key ring is {"epoch": number, "keys": [...]}, with no other member: make it with '
            "`hitl-guard keys generate`.",
            detail="shape",
        )
    return tuple(_key(number, entry) for number, entry in enumerate(ring["keys"])), check_epoch(ring["epoch"])


def _key(number: int, entry: Any) -> Key:
    if type(entry) is not dict or not entry.keys() >= _REQUIRED or not entry.keys() <= _REQUIRED | _OPTIONAL:
        raise ConfigurationError(
            f"keys[{number}]: a key is an object with id, secret and activates_at, and at most deactivates_at, state "
            "and reason.",
            detail="shape",
        )
    fields = dict(entry)
    secret = _decoded(fields.pop("secret")) if "secret" in fields else None
    try:
        return Key(fields.pop("id"), secret, **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"keys[{number}]: {error}", detail=error.detail) from error


def _entry(key: Key) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": key.id}
    if key.state != "destroyed":
        entry["secret"] = _encoded(key.secret())
    entry["activates_at"] = key.activates_at
    for name in ("deactivates_at", "state", "reason"):
        if getattr(key, name) is not None:
            entry[name] = getattr(key, name)
    return entry


def _decoded(text: object) -> bytes:
    """Return what ``text`` spells in base64url (RFC 4648, section 5) in its one spelling without padding."""
    if type(text) is str:
        with suppress(binascii.Error, ValueError):
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if _encoded(raw) == text:
                return raw
    raise ConfigurationError("The secret is not base64url without padding.", detail="secret-encoding")


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def check_epoch(epoch: object) -> int:
    """Return ``epoch`` if it is a restore epoch.

    Raises:
        ConfigurationError: it is not an integer from 1 to 2^53 - 1.
    """
    if type(epoch) is not int or not 1 <= epoch <= MAX_NUMBER:
        raise ConfigurationError("The epoch must be an integer, 1 or more.", detail="epoch")
    return epoch


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMBER


def _problem(id_: object, start: object, end: object, state: object, reason: object) -> tuple[str, str] | None:
    """Return (detail, message) for the first thing that is wrong with a key's public part."""
    if type(id_) is not str or not _ID.fullmatch(id_):
        return "id", "A key id is 1 to 64 characters of A-Z a-z 0-9 . _ -"
    if type(start) is not int or not _is_time(start):
        return "time", "'activates_at' must be an integer of epoch milliseconds."
    if end is not None and (type(end) is not int or not _is_time(end) or end <= start):
        return "time", "'deactivates_at' must be an integer of epoch milliseconds after 'activates_at'."
    if state is not None and (type(state) is not str or state not in ("compromised", "destroyed")):
        return "state", "'state' is 'compromised' or 'destroyed'; leave it out for any other key."
    if reason is not None and (state is None or not _is_line(reason)):
        return "reason", f"'reason' is one line of 1 to {MAX_REASON} printable characters, on a revoked key only."
    return None


def _is_line(value: object) -> bool:
    return type(value) is str and 1 <= len(value) <= MAX_REASON and value.isprintable()


def _weakness(secret: object, state: object) -> tuple[str, str] | None:
    """Return (detail, message) for the first thing that is wrong with a secret."""
    if state == "destroyed":
        return None if secret is None else ("secret-kept", "A destroyed key keeps no secret: remove it.")
    if not isinstance(secret, bytes):
        return "secret-missing", "A key needs a secret of random bytes: make one with `hitl-guard keys generate`."
    if len(secret) < MIN_SECRET_BYTES:
        return "secret-short", (
            f"The secret is shorter than {MIN_SECRET_BYTES} bytes: make one with `hitl-guard keys generate`."
        )
    if _is_text(secret) or len(set(secret)) < MIN_DISTINCT_BYTES:
        return "secret-weak", (
            "The secret is text or a pattern, not random bytes: make one with `hitl-guard keys generate`."
        )
    return None


def _is_text(secret: bytes) -> bool:
    """Whether the secret reads as text: a password, or a key in hex or base64 that was encoded twice."""
    try:
        return all(character.isprintable() or character.isspace() for character in secret.decode())
    except UnicodeDecodeError:
        return False
