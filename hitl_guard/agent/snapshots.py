"""Snapshots of suspended runs: signed, compared-and-set, deleted when the run ends.

A snapshot holds what resuming needs and nothing else. Its row carries a signed text (purpose ``snapshot``) over a
digest of the body, the run's key and the version, so that a row cannot be edited or moved; an older one that is put
back finds its grants spent. Two processes that change one run at once are both kept: each reads, changes its part and
writes if nobody wrote in between, else it begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from .. import canonical, fingerprint
from ..errors import AgentError, CanonicalizationError, HitlGuardError, InvalidApprovalError, InvalidSignatureError
from ..lifecycle.ask import stored_bytes
from ..lifecycle.desk import ROUNDS, Desk, busy
from ..models import check_text
from ..rows import RunNode, RunRow
from ..store.base import DropRun, DropThread, PutRun, Step
from .state import Owner, Run, Snapshot

T = TypeVar("T")

SNAPSHOT_TYPE = "hitl-snapshot"


@dataclass(slots=True)
class Found:
    """A verified snapshot, the version of its row, and the database's clock when it was read (epoch ms)."""

    snapshot: Snapshot
    version: int
    now: int


Change = Callable[[Found], list[Step]]
"""Changes a snapshot in place and returns further steps to be committed with it."""


def run_key(tenant: str, run_id: str) -> bytes:
    """Return the 32-byte key of a run."""
    return fingerprint.place("run", tenant, run_id)


def owner_key(tenant: str, agent: str, user: str) -> bytes:
    """Return the digest by which the runs of one agent for one user are listed."""
    return fingerprint.place("owner", tenant, agent, user)


def thread_key(tenant: str, resource_id: str, thread_id: str) -> bytes:
    """Return the key of a conversation. Another resource with an equal thread id has another conversation."""
    return fingerprint.place("thread", tenant, resource_id, thread_id)


def private_key(tenant: str, run_id: str) -> bytes:
    """Return the key of the conversation of a run that has none of the host's."""
    return fingerprint.place("private", tenant, run_id)


class Snapshots:
    """Reads and writes the snapshots of one guard's store."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def load(self, tenant: str, run_id: str) -> Found | None:
        """Return a verified snapshot, or None where there is none.

        Raises:
            InvalidSignatureError, KeyRevokedError …: it is not what was signed; the run cannot go on.
        """
        try:
            check_text("run_id", run_id)
        except HitlGuardError:
            return None
        now, row = self._desk.store.load_run(run_key(tenant, run_id))
        return None if row is None else Found(self.verified(row, tenant, now), row.version, now)

    def verified(self, row: RunRow, tenant: str, now: int) -> Snapshot:
        """Return what a row holds after its signature was checked."""
        fields = self._desk.signer.open(
            row.signature, expected_purpose="snapshot", expected_type=SNAPSHOT_TYPE, now=now
        )
        signed = {name: fields.get(name) for name in ("digest", "run", "tenant", "version")}
        if signed != _signed(row) or row.tenant != tenant:
            raise InvalidSignatureError("A suspended run is not what was signed.", detail="mismatch")
        try:
            return Snapshot.from_json(canonical.decode(row.body))
        except (CanonicalizationError, KeyError, TypeError) as error:
            raise InvalidApprovalError("A suspended run has another layout.", detail="version") from error

    def put(self, snapshot: Snapshot, version: int, now: int) -> PutRun:
        """Return the step that stores a snapshot as ``version``, in the place of the version before it."""
        tenant, root = snapshot.owner.tenant, snapshot.root
        pauses = [way[-1][1].pause_id or "" for way in root.waiting()]
        snapshot.since = {pause: snapshot.since.get(pause, version) for pause in pauses}
        row = RunRow(run_key(tenant, root.id), tenant, version, stored_bytes(snapshot.to_json()), b"")
        row.signature = self._desk.signer.sign("snapshot", SNAPSHOT_TYPE, _signed(row), now=now)
        return PutRun(row, tuple(self._nodes(snapshot, row.key)))

    @staticmethod
    def _nodes(snapshot: Snapshot, key: bytes) -> Iterator[RunNode]:
        owner = snapshot.owner
        for run, resource in snapshot.root.placed(owner.resource_id):
            yield RunNode(
                run_key(owner.tenant, run.id), key, run.id, owner_key(owner.tenant, run.agent, owner.user.id),
                fingerprint.place("listed-thread", owner.tenant, owner.thread_id or ""),
                fingerprint.place("listed-resource", owner.tenant, resource), snapshot.created_at,
            )

    def change(self, tenant: str, run_id: str, change: Change) -> tuple[list[Step], Found]:
        """Return the steps that change a snapshot as it is now; they are committed by the caller, or not at all.

        Raises:
            AgentError: the run has ended.
        """
        found = self.load(tenant, run_id)
        if found is None:
            raise gone(run_id)
        more = change(found)
        return [*more, self.put(found.snapshot, found.version + 1, found.now)], found

    def changed(self, tenant: str, run_id: str, change: Change) -> Found:
        """Change a snapshot and commit that, beginning again as often as somebody else was faster."""
        return self.write(lambda: self.change(tenant, run_id, change))

    def write(self, steps: Callable[[], tuple[list[Step], T]]) -> T:
        """Commit steps, asked for anew on each attempt."""
        for _ in range(ROUNDS):
            wanted, found = steps()
            if self._desk.store.write(wanted, self._desk.sealer) is not None:
                return found
        raise busy()

    @staticmethod
    def dropped(owner: Owner, root: Run, version: int) -> list[Step]:
        """Return the steps that delete a snapshot and every conversation that belongs to its runs alone."""
        threads: list[Step] = [DropThread(bytes.fromhex(run.thread)) for run in root.tree() if run.private]
        return [*threads, DropRun(run_key(owner.tenant, root.id), version)]


def gone(run_id: str) -> AgentError:
    """Return the error of a run that is not there (any more), or is another user's: nobody can tell them apart."""
    return AgentError(
        "There is no suspended run of this id for this agent and user: it ended, was never suspended, or is another's.",
        run_id=run_id if isinstance(run_id, str) else None,
    )


def code_of(error: HitlGuardError) -> str:
    """Return an error's code with its detail, for lists."""
    return error.code if error.detail is None else f"{error.code} ({error.detail})"


def _signed(row: RunRow) -> dict[str, object]:
    return {
        "digest": fingerprint.snapshot_digest(row.body), "run": row.key.hex(), "tenant": row.tenant,
        "version": row.version,
    }
