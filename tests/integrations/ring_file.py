"""A key ring in a file, as an operator changes it under a running server."""

from __future__ import annotations

from pathlib import Path

from hitl_guard import clock
from hitl_guard.keyring import Keyring, revoked
from hitl_guard.keys import Key
from hitl_guard.testing import UnsafeKeyring


class RingFile:
    """A file with one key, and the ring that is loaded from it, anew at every look.

    Attributes:
        keyring: Give it to a guard.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.json"
        self._write(UnsafeKeyring())
        self.keyring = Keyring.from_file(self._path, refresh_s=0)

    def restore(self) -> None:
        """Raise the epoch, as after a backup was put back."""
        self._write(Keyring(self.keyring.keys, self.keyring.epoch + 1))

    def revoke(self) -> None:
        """Mark the first key as compromised; a new one signs."""
        self._write(revoked(self.keyring, self.keyring.keys[0].id, now=clock.epoch_ms())[0])

    def forget(self) -> None:
        """Put a new key in the place of all others."""
        self._write(Keyring([Key.generate(clock.epoch_ms() - 60_000)], self.keyring.epoch))

    def _write(self, keyring: Keyring) -> None:
        self._path.write_bytes(keyring.dump().reveal())
        self._path.chmod(0o600)
