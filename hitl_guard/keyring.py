"""Keys, their states, and where they come from: an environment variable or a file.

States follow NIST SP 800-57 part 1 (section 7): pre-active, active, deactivated, compromised, destroyed. The times
are compared exactly, with the database's clock, by the signer and by the verifier. There is no skew allowance:
``activates_at`` and ``deactivates_at`` lie at least one refresh interval ahead of the change that sets them, so
every node knows a key before it is used and signs with nothing that another node already refuses.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from . import clock, keyfile
from .errors import ConfigurationError, KeyInactiveError, KeyRevokedError, KeyUnavailableError, KeyUnknownError
from .keyfile import Sealed
from .keys import Key, check_epoch, dump_ring, parse_ring, sealed_text

__all__ = ["FILE_VARIABLE", "KEYS_VARIABLE", "Key", "Keyring", "revoked", "rotated"]

KEYS_VARIABLE = "HITL_GUARD_KEYS"
FILE_VARIABLE = "HITL_GUARD_KEYS_FILE"

CLOCK_ALLOWANCE_MS = 60_000
"""How far back a key that must be active at once starts, since the database's clock may be behind this host's."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Ring:
    """One consistent set of keys. ``signers``: those that may sign, newest first."""

    keys: dict[str, Key]
    signers: tuple[Key, ...]
    epoch: int


class Keyring:
    """The keys of one installation and its restore epoch. Every look-up names the time it is made for.

    Args:
        keys: At least one key, with distinct ids and secrets.
        epoch: The restore epoch, from 1; raise it after restoring a database backup.

    Raises:
        ConfigurationError: no key, a duplicate, or two keys between which the signing key would be ambiguous.
    """

    __slots__ = (
        "__weakref__", "_digest", "_failure", "_generation", "_lock", "_next_look", "_path", "_refresh_ms", "_ring",
    )

    def __init__(self, keys: Iterable[Key], epoch: int = 1) -> None:
        self._ring = _assemble(tuple(keys), epoch)
        self._path: str | None = None
        self._refresh_ms = 0
        self._next_look = 0
        self._digest = b""
        self._failure: tuple[str, str | None] | None = None
        self._generation = 0
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Keyring:
        """Load the key ring that ``HITL_GUARD_KEYS`` (JSON) holds or ``HITL_GUARD_KEYS_FILE`` names.

        Raises:
            ConfigurationError: both or none is set, or the key ring is not usable.
        """
        environ = os.environ if environ is None else environ  # no default: a signature would show all of it
        text, path = environ.get(KEYS_VARIABLE) or None, environ.get(FILE_VARIABLE) or None
        source = None if text is None else sealed_text(text)
        del environ, text  # a traceback that prints locals must not show them
        if source is not None and path is not None:
            raise ConfigurationError(f"Set {KEYS_VARIABLE} or {FILE_VARIABLE}, not both.", detail="two-sources")
        if source is not None:
            return cls._of(_load(source))
        if path is not None:
            return cls.from_file(path)
        raise ConfigurationError(
            f"There are no keys: run `hitl-guard keys generate --out FILE` and set {FILE_VARIABLE} to that file, or "
            f"set {KEYS_VARIABLE} to what `hitl-guard keys generate` prints.",
            detail="missing",
        )

    @classmethod
    def from_json(cls, source: str | bytes) -> Keyring:
        """Load a key ring from its JSON text (the format of ``HITL_GUARD_KEYS``).

        Raises:
            ConfigurationError: it is not strict JSON, not of this format, or a key is not usable.
        """
        sealed = sealed_text(source)
        del source
        return cls._of(_load(sealed))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], refresh_s: float = 5) -> Keyring:
        """Load a key ring from a file, and again when the file's content changes.

        Args:
            refresh_s: Seconds between two looks at the file. A changed file is in use after that; one that cannot be
                used at a later look refuses everything (`KeyUnavailableError`) until it can.

        Raises:
            ConfigurationError: the file is missing, readable for others, or holds no usable key ring.
        """
        if type(refresh_s) not in (int, float) or not 0 <= refresh_s <= 3600:
            raise ConfigurationError("'refresh_s' must be a number of seconds from 0 to 3600.", detail="refresh")
        content = keyfile.read(path)
        keyring = cls._of(_load(content))
        keyring._path = os.path.abspath(path)
        keyring._refresh_ms = int(refresh_s * 1000)
        keyring._digest = hashlib.sha256(content.reveal()).digest()
        keyring._next_look = clock.monotonic_ms() + keyring._refresh_ms
        return keyring

    @classmethod
    def _of(cls, ring: _Ring) -> Keyring:
        return cls(ring.keys.values(), ring.epoch)

    def dump(self, *, indent: int | None = None) -> Sealed:
        """Return the key ring's JSON text, secrets included, sealed."""
        ring = self._current()
        return dump_ring(ring.keys.values(), ring.epoch, indent=indent)

    @property
    def epoch(self) -> int:
        """The restore epoch."""
        return self._current().epoch

    @property
    def generation(self) -> int:
        """How often the key ring was loaded anew; what is derived from its keys is kept for one generation."""
        self._current()
        return self._generation

    @property
    def keys(self) -> tuple[Key, ...]:
        """Every key, in the order of the source."""
        return tuple(self._current().keys.values())

    def signing_key(self, now: int) -> Key:
        """Return the key that signs at ``now``: the newest active one.

        Args:
            now: Epoch milliseconds of the database.

        Raises:
            KeyInactiveError: no key is active.
            KeyUnavailableError: the key file cannot be used.
        """
        for key in self._current().signers:
            if key.state_at(now) == "active":
                return key
        raise KeyInactiveError(
            "No key is active, so nothing can be signed: run `hitl-guard keys rotate`.", detail="no-active-key"
        )

    def verifying_key(self, key_id: str, *, made_at: int, now: int) -> Key:
        """Return the key with which a record of ``made_at`` is verified at ``now`` (both epoch milliseconds).

        The id may be anything that an attacker wrote: it is compared with the known ids and goes nowhere else. The
        time is the record's own and not verified yet; a MAC that does not cover it must not be accepted.

        Raises:
            KeyUnknownError: no such key.
            KeyRevokedError: the key is compromised or destroyed; ``detail`` says which.
            KeyInactiveError: the key is ``pre-active`` at ``now``, or the record was made before its period
                (``made-before``) or after it (``made-after``).
            KeyUnavailableError: the key file cannot be used.
        """
        key = self._current().keys.get(key_id) if type(key_id) is str else None
        if key is None:
            raise KeyUnknownError("The key id is not in the key ring: check that every node has the same keys.")
        state = key.state_at(now)
        if state in ("compromised", "destroyed"):
            raise KeyRevokedError(
                f"The key is {state}: nothing that it signed is accepted. Ask for a new approval.",
                detail=state, key_id=key.id,
            )
        detail: str | None = None
        if state == "pre-active":
            detail = state
        elif made_at < key.activates_at:
            detail = "made-before"
        elif key.deactivates_at is not None and made_at >= key.deactivates_at:
            detail = "made-after"
        if detail is not None:
            raise KeyInactiveError(
                "The key was not active when the record was made: ask for a new approval.", detail=detail, key_id=key.id
            )
        return key

    def _current(self) -> _Ring:
        if self._path is not None and clock.monotonic_ms() >= self._next_look:
            self._refresh(self._path)
        failure = self._failure
        if failure is not None:
            raise KeyUnavailableError(failure[0], detail=failure[1])
        return self._ring

    def look(self) -> bool:
        """Look at the key file at once; return whether the keys changed. (Without a file they never do.)

        For a key id that is unknown here and stands in a record of the store: another process may have it since.
        """
        if self._path is None:
            return False
        before, self._next_look = self._generation, 0
        self._refresh(self._path)
        return self._generation != before

    def _refresh(self, path: str) -> None:
        """Look at the file. Its content is compared, since time stamps are too coarse to show every change."""
        with self._lock:
            now = clock.monotonic_ms()
            if now < self._next_look:
                return
            try:
                content = keyfile.read(path)
                digest = hashlib.sha256(content.reveal()).digest()
                if digest != self._digest:
                    ring = _load(content)
                    _check_succession(self._ring, ring)
                    self._ring, self._digest = ring, digest
                    self._generation += 1
                self._failure = None
            except ConfigurationError as error:
                self._failure = (str(error), error.detail)
            self._next_look = now + self._refresh_ms

    def __repr__(self) -> str:
        return f"<Keyring keys={list(self._ring.keys)!r} epoch={self._ring.epoch}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A key ring cannot be pickled or copied.")


def rotated(keyring: Keyring, *, now: int, refresh_ms: int) -> tuple[Keyring, Key]:
    """Return a key ring with a new key that takes over, and that key. Nothing that was signed is lost.

    The new key activates one refresh interval ahead, when every node knows it. The keys before it are deactivated one
    more interval later: a node that is late may sign with the old key until then, and every node accepts that. When no
    key is active, the new one is active at once.

    Args:
        now: Epoch milliseconds.
        refresh_ms: The longest time until every node has loaded the new key ring, in milliseconds.
    """
    if not any(key.state_at(now) == "active" for key in keyring.keys):
        new = Key.generate(_free_time(keyring.keys, now - CLOCK_ALLOWANCE_MS))
        return Keyring((*keyring.keys, new), keyring.epoch), new
    new = Key.generate(_free_time(keyring.keys, now + refresh_ms))
    end = new.activates_at + refresh_ms
    old = (
        key.changed(deactivates_at=end)
        if key.state is None and key.deactivates_at is None and key.activates_at < end else key
        for key in keyring.keys
    )
    return Keyring((*old, new), keyring.epoch), new


def revoked(keyring: Keyring, key_id: str, *, now: int, reason: str | None = None) -> tuple[Keyring, Key | None]:
    """Return a key ring in which ``key_id`` is compromised, and the new key that was needed to have an active one.

    A key that is compromised or destroyed already stays as it is.

    Args:
        now: Epoch milliseconds.

    Raises:
        KeyUnknownError: no such key.
        ConfigurationError: the reason is too long.
    """
    if key_id not in {key.id for key in keyring.keys}:
        raise KeyUnknownError("The key id is not in the key ring: see `hitl-guard keys list`.")
    keys = tuple(
        key.changed(state="compromised", reason=reason) if key.id == key_id and key.state is None else key
        for key in keyring.keys
    )
    if any(key.state_at(now) == "active" for key in keys):
        return Keyring(keys, keyring.epoch), None
    new = Key.generate(_free_time(keys, now - CLOCK_ALLOWANCE_MS))
    return Keyring((*keys, new), keyring.epoch), new


def _free_time(keys: Iterable[Key], wanted: int) -> int:
    """Return the first time from ``wanted`` at which no key that may sign activates."""
    taken = {key.activates_at for key in keys if key.state is None}
    time = max(wanted, 0)
    while time in taken:
        time += 1
    return time


def _load(source: Sealed) -> _Ring:
    return _assemble(*parse_ring(source))


def _assemble(keys: tuple[Key, ...], epoch: int) -> _Ring:
    if not keys:
        raise ConfigurationError("The key ring holds no key: make one with `hitl-guard keys generate`.", detail="empty")
    signers = sorted((key for key in keys if key.state is None), key=lambda key: key.activates_at, reverse=True)
    if len({key.id for key in keys}) < len(keys):
        raise ConfigurationError("Two keys have the same id: remove one.", detail="duplicate-id")
    kept = [key for key in keys if key.state != "destroyed"]
    if len({key.secret() for key in kept}) < len(kept):
        raise ConfigurationError("Two keys have the same secret: make a new one instead.", detail="duplicate-secret")
    if len({key.activates_at for key in signers}) < len(signers):
        raise ConfigurationError(
            "Two keys activate at the same time, so it is ambiguous which one signs: change one.", detail="ambiguous"
        )
    return _Ring({key.id: key for key in keys}, tuple(signers), check_epoch(epoch))


def _check_succession(old: _Ring, new: _Ring) -> None:
    """Refuse a changed key file that takes something back: an old copy would revive what was void.

    A restart accepts any key ring; this catches a backup that is put back under a running process.
    """
    if new.epoch < old.epoch:
        raise ConfigurationError("The key file's epoch went back: raise it, or restart.", detail="epoch-back")
    for key in old.keys.values():
        later = new.keys.get(key.id)
        if key.state is not None and later is not None and later.state is None:
            raise ConfigurationError(
                "The key file no longer revokes a key that it revoked before: revoke it again, or restart.",
                detail="revocation-back",
            )
