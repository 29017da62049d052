"""Key files on disk: read with care, created once, replaced whole. Knows bytes only, nothing about keys.

A key file belongs to one operating-system user. It is read only when no other user can read or write it (POSIX), it
is written to a temporary file beside it, synced and then renamed over it, so that a reader sees the old content or
the new one. Writers exclude each other with a lock file, which stays (removing it would be a race).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from . import clock
from .errors import ConfigurationError, KeyUnavailableError

MAX_BYTES = 1_048_576
"""Largest key file that is read, in bytes."""

LOCK_WAIT_MS = 10_000
"""Longest wait for another process that changes the same file, in milliseconds."""

_LOCK_POLL_MS = 20
_POSIX = os.name == "posix"


class Sealed:
    """Bytes that never show themselves: not in ``repr``, ``vars``, a pickle, a copy or a traceback that prints locals.

    They are held by a closure, since tools that print objects walk attributes and slots.
    """

    __slots__ = ("_open",)

    _open: Callable[[], bytes]

    def __init__(self, value: bytes) -> None:
        self._open = lambda: value

    def reveal(self) -> bytes:
        """Return the bytes. Keep them out of names that outlive one call."""
        return self._open()

    def __repr__(self) -> str:
        return "<sealed>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Key material cannot be pickled or copied.")


def read(path: str | os.PathLike[str]) -> Sealed:
    """Return the content of a key file.

    Raises:
        ConfigurationError: ``detail`` is ``file-missing``, ``file-unreadable``, ``file-kind`` (not a regular file),
            ``file-mode`` (others may read or write it; POSIX only) or ``file-size``.
    """
    try:
        # Non-blocking, since opening a FIFO without a writer would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        raise ConfigurationError(
            "The key file does not exist: check its path, or make one with `hitl-guard keys generate --out FILE`.",
            detail="file-missing",
        ) from error
    except (OSError, ValueError) as error:
        raise _unreadable() from error
    try:
        _check(os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            content = Sealed(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise _unreadable() from error
    finally:
        os.close(descriptor)
    if len(content.reveal()) > MAX_BYTES:
        raise ConfigurationError(f"The key file is larger than {MAX_BYTES} bytes.", detail="file-size")
    return content


def create(path: str | os.PathLike[str], content: Sealed) -> None:
    """Create a key file with mode 0600, whole or not at all.

    Raises:
        ConfigurationError: the file exists (``file-exists``) or cannot be written (``file-unwritable``).
    """
    target = os.fspath(path)
    try:
        with _temporary(target, content) as temporary:
            os.link(temporary, target)  # unlike a rename, this never replaces a file that is there
        _sync_directory(target)
    except FileExistsError as error:
        raise ConfigurationError(
            "The key file exists and is not overwritten: choose another name, or use `hitl-guard keys rotate`.",
            detail="file-exists",
        ) from error
    except (OSError, ValueError) as error:
        raise _unwritable() from error


def edit(path: str | os.PathLike[str], change: Callable[[Sealed], Sealed]) -> None:
    """Replace a key file by what ``change`` makes of it; one process at a time. Owner and group stay.

    Whatever ``change`` raises leaves the file as it was.

    Raises:
        ConfigurationError: as `read`, or the file cannot be written (``file-unwritable``).
        KeyUnavailableError: another process holds the lock for more than `LOCK_WAIT_MS`.
    """
    try:
        target = os.path.realpath(path)  # through symbolic links, so that they stay links
    except (OSError, ValueError) as error:
        raise _unreadable() from error
    read(target)  # before the lock, so that a mistyped name leaves no lock file behind
    with _locked(target):
        changed = change(read(target))
        try:
            owner = os.stat(target)
            with _temporary(target, changed) as temporary:
                # Without this, an administrator who rotates would lock out the service that owns the file.
                os.chown(temporary, owner.st_uid, owner.st_gid)
                os.replace(temporary, target)
            _sync_directory(target)
        except OSError as error:
            raise _unwritable() from error


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("The key file is not a regular file.", detail="file-kind")
    if _POSIX and status.st_mode & 0o077:
        raise ConfigurationError(
            "Other users may read or write the key file: set its mode to 0600 (chmod 600 FILE).", detail="file-mode"
        )


@contextmanager
def _temporary(target: str, content: Sealed) -> Iterator[str]:
    """Write ``content`` to a synced file of mode 0600 beside ``target``; it is gone afterwards, unless renamed."""
    descriptor, name = tempfile.mkstemp(dir=os.path.dirname(target) or ".", prefix=".hitl-guard-keys-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content.reveal())
            file.flush()
            os.fsync(descriptor)
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _sync_directory(target: str) -> None:
    """Make a new name durable. Windows has no descriptor of a directory, and no need of one."""
    if _POSIX:
        descriptor = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(target: str) -> Iterator[None]:
    """Hold the exclusive lock of ``target``. The system releases it when the process dies."""
    try:
        import fcntl
    except ImportError as error:
        raise ConfigurationError(
            "Key files can be changed on POSIX systems only: edit the key ring there.", detail="platform"
        ) from error
    try:
        descriptor = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unwritable() from error
    try:
        deadline = clock.monotonic_ms() + LOCK_WAIT_MS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if clock.monotonic_ms() >= deadline:
                    raise KeyUnavailableError(
                        "Another process is changing the key file: wait for it, then try again.", detail="locked"
                    ) from error
            clock.sleep_ms(_LOCK_POLL_MS)
        yield
    finally:
        os.close(descriptor)


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "The key file cannot be read: check its path, its owner and its mode.", detail="file-unreadable"
    )


def _unwritable() -> ConfigurationError:
    return ConfigurationError(
        "The key file cannot be written: check that its folder exists and that you may write there.",
        detail="file-unwritable",
    )
