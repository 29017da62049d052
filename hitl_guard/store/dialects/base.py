"""What the store needs to know about one kind of database."""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from sqlalchemy.engine import URL, Connection, Engine

from ...errors import ConfigurationError, HitlGuardError, StoreUnavailableError
from .. import hot
from ..base import Loaded
from ..hot import Shape, Words

Rows = Sequence[Sequence[Any]]

Look = tuple[str, dict[str, Any], bytes | None]
"""A query, its parameters, and what the first column of its one row must be (None: that there is no row)."""

MIGRATION_WAIT_S = 60
"""How long `SQLStore.setup` waits for another process that migrates."""


class Failure(enum.Enum):
    """What a driver's error means for a transaction."""

    RACE = "race"
    """A unique key was taken, or the database chose this transaction to end a deadlock: nothing was written."""
    TIMEOUT = "timeout"
    """A lock or a statement took longer than the limit: nothing was written."""
    SCHEMA = "schema"
    """A table is missing."""
    REFUSED = "refused"
    """The database answered with another error: nothing was written."""
    LOST = "lost"
    """The connection broke or its state is unknown: what was sent last may have happened."""


class Dialect(ABC):
    """One kind of database: how to connect, what its words are, what its errors mean.

    A *raw* connection is the driver's own. On a reader's, each statement is a transaction of its own.

    Attributes:
        one_statement: Whether a single append needs no BEGIN and COMMIT around it (its own text ends the race).
        most_writers: How many connections of one process may write at the same time.
        returning: Whether the append's own statement answers with the clock after its waits.
        answer: What an INSERT returns, where it returns something: the clock first.
        error: What the driver raises.
    """

    name: ClassVar[str]
    words: ClassVar[Words]
    one_statement: ClassVar[bool] = False
    most_writers: ClassVar[int] = 1_000_000
    error: ClassVar[tuple[type[Exception], ...]]
    returning: bool = True

    def __init__(self, url: URL, *, timeout_ms: int) -> None:
        self.url = url
        self.timeout_ms = timeout_ms
        self.answer = self.words.clock
        self._load_new = self.statement(hot.load_new(self.words))
        self._loads = {by: self.statement(hot.load(self.words, by=by)) for by in ("id", "identity", "")}

    @abstractmethod
    def connect(self, *, read_only: bool) -> Any:
        """Return a new driver connection with the session's settings made."""

    @abstractmethod
    def engine(self) -> Engine:
        """Return an engine for reads through SQLAlchemy, which connects when it is used first."""

    @abstractmethod
    def migrator(self) -> Engine:
        """Return an engine for migrations: no statement limit, no pool, creates a missing SQLite file."""

    @abstractmethod
    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Hold the lock under which one process at a time migrates, and commit at the end."""

    @abstractmethod
    def failure(self, error: Exception) -> Failure:
        """Say what a driver's error means."""

    @abstractmethod
    def run(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """Execute one statement and return its rows."""

    @abstractmethod
    def change(self, raw: Any, sql: str, parameters: Mapping[str, Any]) -> int:
        """Execute one statement and return how many rows it changed."""

    @abstractmethod
    def begin(self, raw: Any) -> None:
        """Start a transaction that will write."""

    @abstractmethod
    def commit(self, raw: Any) -> None:
        """Commit durably."""

    @abstractmethod
    def rollback(self, raw: Any) -> None:
        """Undo the transaction, if one is open."""

    def statement(self, text: str) -> str:
        """Return ``text`` with its ``:name`` parameters in the driver's style."""
        return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", text)

    def exclude_claims(self, raw: Any) -> None:  # noqa: B027  most databases need nothing
        """Within a transaction: make sure that a change of a control row is not starved by claims that read it."""

    def verify(self) -> None:  # noqa: B027  a server is what its address says
        """Raise `StoreRolledBackError` if the database is not the one that this process opened."""

    def load(self, raw: Any, by: str, parameters: Mapping[str, Any]) -> Loaded:
        """Read one operation's facts as of one moment (see `hot.load` for ``by``)."""
        return hot.loaded(self.run(raw, self._loads[by], parameters))

    def load_new(self, raw: Any, parameters: Mapping[str, Any]) -> Loaded | None:
        """Read the facts of a call that has no request, as of one moment; None: it has one."""
        return hot.loaded_new(self.run(raw, self._load_new, parameters))

    def clock(self, raw: Any) -> int:
        """Return the database's clock in epoch milliseconds."""
        return int(self.run(raw, f"SELECT {self.words.clock}", {})[0][0])

    def appending(self, text: str, shape: Shape, unlist: bool) -> str:
        """Return `hot.append`'s statement with what makes it answer with the clock after its waits.

        Args:
            unlist: Whether the statement also takes the request off the list (only where `one_statement`).
        """
        return f"{text} RETURNING {self.answer}" if self.returning else text

    def notify(self) -> None:
        """Let every write tell those who listen, from the next statement that is built on.

        Raises:
            ConfigurationError: this kind of database cannot.
        """
        raise ConfigurationError(
            "Only PostgreSQL tells others of changes; leave 'notify' out, and look at the database now and then.",
            detail="notify",
        )

    def listener(self) -> Any:
        """Return a new connection that hears of writes, after `notify`; before, one that hears nothing."""
        return self.connect(read_only=True)

    def heard(self, raw: Any, timeout_ms: int) -> bool:
        """Wait for a write on a `listener`; whether there was one. True at once on one that was just made.

        False at once on one that hears nothing.
        """
        return False


def translated(dialect: Dialect, error: Exception) -> HitlGuardError:
    """Return our error for a driver's. Raise it ``from`` the driver's; the message holds no parameter."""
    failure = dialect.failure(error)
    if failure is Failure.SCHEMA:
        return ConfigurationError(
            "The database has no hitl_guard tables. Run `hitl-guard db upgrade` (or SQLStore.setup()).", detail="schema"
        )
    if failure is Failure.TIMEOUT:
        return StoreUnavailableError("The database did not answer in time. Nothing was written.", detail="timeout")
    return StoreUnavailableError(
        f"The {dialect.name} database cannot be used ({type(error).__name__}). See the error's cause.",
        detail=failure.value,
    )

