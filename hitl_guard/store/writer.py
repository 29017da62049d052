"""How steps become one durable transaction on a writer's connection, at the end of that writer's chain.

A chain lives with its connection. Its head is in this process's memory, and every insert demands that the head is
still in the database. A connection whose transaction ended in an unknown way is discarded together with its chain;
the next chain of this process is opened only where the heads of those that it left are still found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import HitlGuardError, StoreRolledBackError, StoreUnavailableError
from ..rows import Seal
from . import hot, values
from .anchors import Anchors, Chain
from .base import Append, Step, Written
from .connections import Connections
from .dialects.base import Dialect, Failure, Look, translated
from .pool import Lease
from .steps import Steps


class _UnknownCommit(Exception):  # noqa: N818  a signal inside this module
    """The reply to COMMIT was lost: ``written`` may or may not be in the database."""

    def __init__(self, written: Written, cause: Exception) -> None:
        super().__init__()
        self.written = written
        self.cause = cause


class Writer:
    """Commits steps; each call is one transaction."""

    def __init__(self, dialect: Dialect, connections: Connections) -> None:
        self._dialect = dialect
        self._connections = connections
        self._steps = Steps(dialect)
        self._anchors = Anchors(dialect)
        self._head, self._last = dialect.statement(hot.PREDECESSOR), dialect.statement(hot.LAST)
        self._rolled_back = False

    def write(self, steps: Sequence[Step], seal: Seal) -> Written | None:
        """Commit all steps or nothing; see `Store.write`."""
        if self._rolled_back:
            raise _gone()
        limit = None
        for step in steps:
            if type(step) is Append and step.before is not None and (limit is None or step.before < limit):
                limit = step.before
        lease = self._connections.writer()
        pool = self._connections.writers
        try:
            written = self._write(lease, steps, seal, limit)
            if written is None:
                self._demand_head(lease)
            return written
        except _UnknownCommit as unknown:
            doubt = unknown
        except StoreRolledBackError:
            # For good: what was lost stays lost, and the other writers' heads may happen to be older than the loss.
            self._rolled_back = True
            raise
        finally:
            if lease.dirty:
                pool.discard(lease)
            else:
                pool.give_back(lease)
        return self._resolve(doubt, steps, limit)

    def _write(self, lease: Lease, steps: Sequence[Step], seal: Seal, limit: int | None) -> Written | None:
        chain = lease.chain or Chain.new()
        for step in steps:
            if type(step) is Append:
                if chain.due(step.draft.at):
                    anchored = self._anchored(lease, chain, seal)
                    if anchored is None:
                        return None
                    chain = anchored
                break
        if self._dialect.one_statement and len(steps) == 1:
            written = self._alone(lease, chain, steps[0], seal)
        else:
            written = self._transact(lease, lambda raw: self._steps.run(raw, chain, steps, seal, limit))
        if written is not None and written.events:
            lease.chain = chain.after(written.events[-1])
        return written

    def _alone(self, lease: Lease, chain: Chain, step: Step, seal: Seal) -> Written | None:
        """Run one step as one statement that is its own transaction, where the dialect can."""
        whole = self._steps.whole(chain, step, seal)
        if whole is None:
            return self._transact(lease, lambda raw: self._steps.run(raw, chain, [step], seal, None))
        text, parameters, events = whole
        lease.dirty = True
        try:
            rows = self._dialect.run(lease.raw, text, parameters)
        except self._dialect.error as error:
            failure = self._undo(lease, error)
            if failure is Failure.RACE:
                return None
            if failure is Failure.LOST:
                raise _UnknownCommit(Written(0, events), error) from error
            raise translated(self._dialect, error) from error
        lease.dirty = False
        return Written(int(rows[0][0]), events) if rows else None

    def _transact(self, lease: Lease, apply: Callable[[Any], Written | None]) -> Written | None:
        """Run ``apply`` in a transaction and commit it, unless it returns None or raises."""
        dialect, raw = self._dialect, lease.raw
        lease.dirty = True
        try:
            dialect.begin(raw)
            written = apply(raw)
            if written is None:
                dialect.rollback(raw)
                lease.dirty = False
                return None
        except dialect.error as error:
            if self._undo(lease, error) is Failure.RACE:
                return None
            raise translated(dialect, error) from error
        except HitlGuardError:
            self._undo(lease, None)
            raise
        try:
            dialect.commit(raw)
        except dialect.error as error:
            raise _UnknownCommit(written, error) from error
        lease.dirty = False
        dialect.verify()
        return written

    def _undo(self, lease: Lease, error: Exception | None) -> Failure:
        """Roll back after ``error`` (None: one of ours) and say what it means. The lease stays dirty if that fails."""
        failure = Failure.REFUSED if error is None else self._connections.heed(error)
        if failure is Failure.LOST:
            return failure
        try:
            self._dialect.rollback(lease.raw)
        except self._dialect.error:
            return failure
        lease.dirty = False
        return failure

    def _anchored(self, lease: Lease, chain: Chain, seal: Seal) -> Chain | None:
        """Open or anchor ``chain`` in a transaction of its own. None: a race was lost; nothing was written."""
        left = self._connections.writers.left()

        def apply(raw: Any) -> Written | None:
            for gone in left:
                self._demand(raw, gone)
            return self._anchors.write(raw, chain, seal)

        try:
            written = self._transact(lease, apply)
        except _UnknownCommit as unknown:
            # What the caller asked for is not in that transaction, so it is known that it did not happen.
            raise translated(self._dialect, unknown.cause) from unknown.cause
        if written is None:
            return None
        self._connections.writers.found(left)
        lease.chain = chain.after_anchor(written.events[0])
        return lease.chain

    def _demand_head(self, lease: Lease) -> None:
        """Nothing was written: raise if that is so because our chain does not end where we left it."""
        chain = lease.chain
        if chain is None or lease.dirty:
            return
        lease.dirty = True
        try:
            self._demand(lease.raw, chain)
            taken = self._dialect.run(lease.raw, self._last, {"chain": chain.id.encode(), "seq": chain.seq})
            self._dialect.rollback(lease.raw)
        except self._dialect.error as error:
            self._undo(lease, error)
            raise translated(self._dialect, error) from error
        lease.dirty = False
        if taken:
            raise _gone()

    def _demand(self, raw: Any, chain: Chain) -> None:
        parameters = {"chain": chain.id.encode(), "head": chain.seq - 1, "previous": chain.mac}
        if not self._dialect.run(raw, self._head, parameters):
            raise _gone()

    def _resolve(self, doubt: _UnknownCommit, steps: Sequence[Step], limit: int | None) -> Written:
        """The reply to COMMIT was lost: look on another connection whether it happened."""
        written = doubt.written
        looks = self._steps.evidence(written, steps)
        try:
            happened, now = self._connections.read(
                lambda raw: (all(self._seen(raw, look) for look in looks), self._dialect.clock(raw))
            )
        except HitlGuardError as error:
            raise _unknown() from error
        # A claim that was committed in time but is known of too late is not granted: it stays to be resolved.
        if not happened or (limit is not None and now >= limit):
            raise _unknown() from doubt.cause
        return Written(now, written.events, written.mark)

    def _seen(self, raw: Any, look: Look) -> bool:
        text, parameters, expected = look
        rows = self._dialect.run(raw, text, parameters)
        return (values.raw(rows[0][0]) if rows else None) == expected


def _gone() -> StoreRolledBackError:
    return StoreRolledBackError(
        "The database lost an event that this process wrote. Find out why (`hitl-guard audit verify`), then restart.",
        detail="chain",
    )


def _unknown() -> StoreUnavailableError:
    return StoreUnavailableError(
        "The connection broke at COMMIT and the outcome is unknown; nothing was started. Read again, then try again.",
        detail="commit-unknown",
    )
