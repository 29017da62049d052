"""Leases: which process goes on with a run, or starts a suspended call again, and for how long nobody else may.

A lease stands in the stored run (``{"id", "until"}``, epoch ms of the database). It is prolonged while its process
works, and given back when that stops; a dead process's lease runs out.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..errors import AgentError, HitlGuardError
from ..lifecycle.desk import Desk
from ..lifecycle.threads import offload
from ..store.base import Step
from .snapshots import Found, Snapshots
from .state import Call, Owner, Run


class Leases(ABC):
    """The leases of one process's work on a run; a part of `hitl_guard.agent.drive.Drive`."""

    desk: Desk
    snapshots: Snapshots
    owner: Owner
    root: Any
    saved: bool
    idle: bool
    lease_id: str

    @abstractmethod
    def adopt(self, found: Found) -> None:
        """See `Drive.adopt`."""

    def lease(self, now: int) -> dict[str, Any]:
        """Return this process's lease from ``now`` on (epoch ms of the database)."""
        return {"id": self.lease_id, "until": now + self.desk.settings.run_within}

    async def keep(self) -> None:
        """Prolong this process's leases for as long as it works; cancelled in the end."""
        pause = max(self.desk.settings.run_within / 3_000, 0.05)
        while True:
            await asyncio.sleep(pause)
            if self.saved and not self.idle:
                with suppress(HitlGuardError):
                    await offload(lambda: self._change_ours(self._prolonged), must_end=True)

    def _prolonged(self, lease: dict[str, Any], now: int) -> dict[str, Any] | None:
        return lease | self.lease(now)

    async def release(self) -> None:
        """Let others go on with the run at once, as far as the store can be told."""
        if self.saved:
            with suppress(HitlGuardError):
                await offload(self._release, must_end=True)

    def _release(self) -> None:
        self._change_ours(lambda lease, now: None)

    def _change_ours(self, change: Callable[[dict[str, Any], int], dict[str, Any] | None]) -> None:
        """Change every lease of this process in the stored run, if there is one. Blocks."""
        def changed(found: Found) -> list[Step]:
            for run in found.snapshot.root.tree():
                run.lease = change(run.lease, found.now) if run.lease and self._ours(run.lease) else run.lease
                for call in run.calls:
                    taken = None if call.suspension is None else call.suspension["taken"]
                    if call.suspension is not None and taken and self._ours(taken):
                        call.suspension["taken"] = change(taken, found.now)
            return []

        found = self.snapshots.load(self.owner.tenant, self.root.run.id)
        held = [] if found is None else [
            lease for run in found.snapshot.root.tree()
            for lease in (run.lease, *((call.suspension or {}).get("taken") for call in run.calls))
        ]
        if any(self._ours(lease) for lease in held):
            self.snapshots.changed(self.owner.tenant, self.root.run.id, changed)

    def _ours(self, lease: dict[str, Any] | None) -> bool:
        return lease is not None and lease["id"] == self.lease_id

    def take_answer(self, run: Run, call: Call, said: Sequence[dict[str, Any]]) -> None:
        """Take the right to start a suspended call again with an answer. Blocks.

        Args:
            said: The user's messages that gave it.

        Raises:
            AgentError: it does not wait (any more), or another process starts it.
        """
        place = next(number for number, one in enumerate(run.calls) if one is call)

        def change(found: Found) -> list[Step]:
            stored = found.snapshot.root.find(run.id)
            twin = None if stored is None or stored.step != run.step else stored.calls[place]
            if twin is None or twin.pause_id != call.pause_id or not twin.waits or twin.suspension is None:
                raise not_suspended(call.id)
            if (twin.suspension["taken"] or {"until": 0})["until"] > found.now:
                raise not_suspended(call.id)
            twin.suspension["taken"] = self.lease(found.now) | ({"said": list(said)} if said else {})
            return []

        self.adopt(self.snapshots.changed(self.owner.tenant, self.root.run.id, change))

    def take_leases(self, run_ids: set[str]) -> set[str]:
        """Take the runs that nobody goes on with, of those that are between two turns; return whose lease is ours."""
        taken: set[str] = set()

        def change(found: Found) -> list[Step]:
            taken.clear()
            for run in found.snapshot.root.tree():
                if run.id in run_ids and run.settled and free(run, found.now):
                    run.lease = self.lease(found.now)
                    taken.add(run.id)
            return []

        self.adopt(self.snapshots.changed(self.owner.tenant, self.root.run.id, change))
        return taken


def free(run: Run, now: int) -> bool:
    """Whether nobody goes on with a run."""
    return run.lease is None or run.lease["until"] <= now


def busy(until: int | None = None) -> AgentError:
    """Return the error of a run with which another process goes on, ``until`` then at most (epoch ms)."""
    return AgentError(
        "Another process goes on with this run. If that process is gone, the run can be continued when its lease is "
        "over ('run_within' of the guard's Settings).", code="run-busy", until=until,
    )


def taken() -> AgentError:
    """Return the error of a start under the id of a suspended run."""
    return AgentError("A run of this id is suspended: every run needs an id of its own.", code="run-busy")


def not_suspended(call_id: str) -> AgentError:
    """Return the error of a call that does not wait, or not any more."""
    return AgentError("This call does not wait for an answer (any more).", code="call-not-suspended", call_id=call_id)
