"""For tests of your own code. Nothing in here keeps anything safe, and every name says so."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL

from . import clock
from .keyring import Key, Keyring
from .store.sql import SQLStore

__all__ = ["UnsafeKeyring", "UnsafeMemoryStore"]


class UnsafeMemoryStore(SQLStore):
    """A real store that forgets everything: a SQLite file in a private temporary folder, deleted by `close`.

    Only for tests: what is approved in it is gone when the process ends. It is ready to use, and a context manager::

        with UnsafeMemoryStore() as store:
            guard = Guard(policy="user-approval", keyring=UnsafeKeyring(), store=store)
    """

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="hitl-guard-unsafe-"))
        # Also when nobody closes it; a forked child must not delete its parent's file.
        self._delete = weakref.finalize(self, _delete, folder, os.getpid())
        super().__init__(URL.create("sqlite", database=str(folder / "approvals.db")).render_as_string())
        self.setup()

    def __repr__(self) -> str:
        return "<UnsafeMemoryStore>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release every connection and delete the file."""
        super().close()
        self._delete()


class UnsafeKeyring(Keyring):
    """A key ring with one new key that nobody keeps. Only for tests: what it signed cannot be verified afterwards."""

    __slots__ = ()

    def __init__(self, *, epoch: int = 1) -> None:
        super().__init__([Key.generate(clock.epoch_ms() - 3_600_000)], epoch)


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
