"""One process's work on one run: from its start or resumption to its next pause or its end.

Several processes may work on one suspended run at once, on different calls of it. What each of them finishes is merged
into the stored snapshot together with the call's receipt, in one transaction. Who finishes the last call of a turn gets
the lease in that transaction and goes on with the model; nobody else does while the lease lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import AgentError, HitlGuardError
from ..guard import Guard
from ..lifecycle import settle
from ..lifecycle.ask import stored_bytes
from ..lifecycle.desk import new_id
from ..lifecycle.threads import offload
from ..models import ApprovalRequest, Permit
from ..store.base import Step
from . import gate, history
from .events import Event
from .leases import Leases, busy, taken
from .snapshots import Found, Snapshots, run_key
from .state import Call, Options, Owner, Run, Snapshot

if TYPE_CHECKING:
    from .work import Node

Apply = Callable[[Call], None]
"""Writes into a call how it ended, or that it suspended itself."""


@dataclass(slots=True)
class Landed:
    """What became of a call's end in the store.

    Attributes:
        stored: Whether it was to be merged into the snapshot. found: The snapshot with it; None where others went on.
        ours: Whether the call was still open there.
    """

    stored: bool
    ours: bool
    found: Found | None = None


class Drive(Leases):
    """What all runs of one tree share while this process works on them.

    Attributes:
        saved: Whether the run has a snapshot in the store.
        lease_id: Names this process's work in leases.
        cleared: Ids of the requests that are decided, or over: their calls may go on.
        answers: Suspension id → ``(plain data, value for the tool)``.
        said: As in `Snapshot`.
        asking: Calls for which a person must be asked, not asked yet. told: Pauses that clients were not told of yet.
        held: The last refusal that left a call waiting.
        lost: Whether what the request asked for was lost with the process: then every start of a tool needs a person.
        idle: Whether the reader of the stream is at work, and nothing happens here.
        since: As in `Snapshot`.
        outdated: Ids of open requests under another policy: the call must be asked for anew.
        overtaken: Whether another process works on a call that was to go on here. worked: Whether this one stored
            anything.
        suspended: Claims of calls that suspended themselves before the run had a snapshot; recorded with it.
        signals: Pause id → the event that tells that it is over, for the pauses that were decided or answered.
    """

    def __init__(
        self, guard: Guard, owner: Owner, options: Options, *, require: gate.RequireApproval, hooks: Any,
        created_at: int, saved: bool,
    ) -> None:
        self.guard = guard
        self.desk = guard._desk
        self.snapshots = Snapshots(guard._desk)
        self.owner = owner
        self.options = options
        self.require = require
        self.hooks = hooks
        self.created_at = created_at
        self.saved = saved
        self.lease_id = new_id()
        self.cleared: set[str] = set()
        self.answers: dict[str, tuple[Any, Any]] = {}
        self.said: list[dict[str, Any]] = []
        self.asking: list[tuple[Node, Call, gate.Asked]] = []
        self.told: dict[str, dict[str, Any]] = {}
        self.held: HitlGuardError | None = None
        self.since: dict[str, int] = {}
        self.signals: dict[str | None, Event] = {}
        self.outdated: set[str] = set()
        self.overtaken = self.worked = False
        self._latest: Found | None = None
        self._adopted = 0
        self.idle = self.lost = False
        self.suspended: list[Permit] = []
        self.root: Node

    # -- what ends -----------------------------------------------------------------------------------------------

    def settled(
        self, node: Node, call: Call, permit: Permit | None, outcome: str, detail: str | None, apply: Apply, *,
        also: Callable[[], list[Step]] = list,
    ) -> Landed:
        """Record how a call ended: its receipt and its place in the snapshot, in one transaction. Blocks.

        Nothing in memory is changed: that is for `land`, in the event loop.

        Args:
            permit: What it ran under, or None for a call that did not run.
            apply: Writes it into the call.
            also: Returns further steps of the same transaction; asked anew on each attempt.
        """
        if not node.stored:
            if permit is not None:
                settle.settle(self.desk, permit, outcome, detail)
            return Landed(stored=False, ours=True)
        landed = Landed(stored=True, ours=False)

        def merge(now: Found) -> list[Step]:
            landed.ours = self._merged(now, node.run, call, apply)
            return []

        def steps() -> list[Step]:
            further, landed.found = also(), None
            try:
                merged, landed.found = self.snapshots.change(self.owner.tenant, self.root.run.id, merge)
            except AgentError:  # others have gone on with this run, or ended it
                if permit is None:
                    raise
                return []  # they gave this call up: its receipt is all that is left to write
            return [*further, *merged]

        with suppress(AgentError):
            if permit is not None:
                settle.settle(self.desk, permit, outcome, detail, steps)
            else:
                self.snapshots.write(lambda: (steps(), None))
        return landed

    def land(self, node: Node, call: Call, apply: Apply, landed: Landed) -> None:
        """Take over in memory what `settled` stored."""
        if not landed.stored:
            apply(call)
            return
        if landed.found is None:
            self.overtaken, node.run.lease = True, None  # what this process does elsewhere in the tree goes on
            return
        if landed.ours:
            apply(call)
        self.worked, self.overtaken = self.worked or landed.ours, self.overtaken or not landed.ours
        self.adopt(landed.found)

    def _merged(self, found: Found, run: Run, call: Call, apply: Apply) -> bool:
        """Write into the stored call how it ended, unless others did something with it; say whether that was done."""
        stored = found.snapshot.root.find(run.id)
        if stored is None or stored.step != run.step:
            raise busy()
        twin = stored.calls[next(place for place, one in enumerate(run.calls) if one is call)]
        ours = twin.outcome is None and twin.pause_id == call.pause_id
        if ours:
            taken = (twin.suspension or {}).get("taken") or {}
            found.snapshot.said += taken.get("said", ())
            apply(twin)
        if stored.settled and stored.lease is None:
            stored.lease = self.lease(found.now)
        return ours

    def adopt(self, found: Found) -> None:
        """Take over what other processes did to the stored parts of the tree; an older reading is passed over."""
        if found.version < self._adopted:
            return
        self._adopted, self.since = found.version, found.snapshot.since
        if self.root.stored:
            self.said = list(found.snapshot.said)
        for node in self.root.tree():
            if node.stored:
                node.adopt(found.snapshot.root.find(node.run.id))

    # -- pauses --------------------------------------------------------------------------------------------------

    def dirty(self) -> bool:
        """Whether the store lacks something of the paused run."""
        return bool(self.asking) or not self.saved or any(not node.stored for node in self.root.tree())

    async def commit(self) -> bool:
        """Store the paused run together with its new requests; say whether something can go on at once."""
        asking, self.asking = self.asking, []
        waited = [call.request_id for _, call, _ in asking]
        asked = await offload(
            lambda: self.guard._request_together(
                [(one.call, one.own) for _, _, one in asking], lambda answers: self._steps(asking, waited, answers)
            ),
            must_end=True,
        )
        if not self.saved and self.root.run.settled:
            return True
        self.saved, self.worked, self.suspended = True, True, []
        for node in self.root.tree():
            node.committed()
        if self._latest is not None:
            self.adopt(self._latest)
        again = any(node.run.settled for node in self.root.tree())
        for (_, call, _), old, answer in zip(asking, waited, asked, strict=True):
            if old is not None and (held := _later(answer)) is not None:
                self.held = held
                self.cleared.discard(old)
            if isinstance(answer, ApprovalRequest) and answer.state == "pending":
                self.told[answer.id] = _details(answer)
            elif isinstance(answer, ApprovalRequest):
                self.cleared.add(answer.id)
            again = again or call.request_id in self.cleared
        return again

    def _steps(
        self, asking: list[tuple[Node, Call, gate.Asked]], waited: list[str | None],
        answers: list[ApprovalRequest | HitlGuardError],
    ) -> list[Step]:
        for (_, call, _), old, answer in zip(asking, waited, answers, strict=True):
            if old is not None and _later(answer) is not None:
                call.request_id, call.outcome = old, None
            elif isinstance(answer, ApprovalRequest):
                call.request_id, call.fingerprint, call.outcome = answer.id, answer.fingerprint, None
                call.edited = None if answer.canonical == stored_bytes(call.args) else answer.arguments
            else:
                call.request_id, call.outcome = None, gate.refused(call, answer)
        if not self.saved and self.root.run.settled:
            return []  # nobody is waited for after all
        now = self.desk.store.now()
        receipts = [settle.receipt(permit, "suspended", None, now) for permit in self.suspended]
        flushed = [step for node in self.root.tree() if not node.stored for step in node.flush()]
        for node in self.root.tree():
            if not node.stored:
                node.run.lease = self.lease(now) if node.run.settled else None
        if not self.saved:
            if self.desk.store.load_run(self.key(self.root.run))[1] is not None:
                raise taken()
            snapshot = Snapshot(self.root.run, self.owner, self.options, self.created_at, now)
            return [*receipts, *flushed, self.snapshots.put(snapshot, 1, now)]
        asked = {id(call) for _, call, _ in asking}
        changes, self._latest = self.snapshots.change(
            self.owner.tenant, self.root.run.id, lambda found: self._replaced(found, asked)
        )
        return [*receipts, *flushed, *changes]

    def _replaced(self, found: Found, asked: set[int]) -> list[Step]:
        """Put this process's runs, and the calls it ``asked`` for, into the stored tree; the rest stays as it is."""
        found.snapshot.suspended_at = found.now
        for node in self.root.tree():
            if node.parent is not None and not node.parent.stored:
                continue  # it is inside one that is put as a whole
            twin = found.snapshot.root.find(node.run.id)
            if twin is None or not (node.stored or self._ours(twin.lease)):
                raise busy()
            if not node.stored:
                found.snapshot.put(node.run)
                found.snapshot.said = found.snapshot.said if node.parent else self.said
                continue
            if twin.step != node.run.step:
                raise busy()
            for mine, theirs in zip(node.run.calls, twin.calls, strict=True):
                if id(mine) in asked and theirs.outcome is None and theirs.child is None:
                    theirs.request_id, theirs.fingerprint, theirs.asked = mine.request_id, mine.fingerprint, mine.asked
                    theirs.suspension, theirs.edited, theirs.outcome = mine.suspension, mine.edited, mine.outcome
            if twin.settled and twin.lease is None:
                twin.lease = self.lease(found.now)
        return []

    def over(self) -> list[Event]:
        """Return the signals of the pauses that are over by now, each once; a call that must still wait gives none."""
        if not self.signals:
            return []
        waiting = {way[-1][1].pause_id for way in self.root.run.waiting()}
        return [self.signals.pop(pause) for pause in list(self.signals) if pause not in waiting]

    # -- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Store what the run said and delete its snapshot. Blocks.

        Raises:
            AgentError: another process took the run over (``run-busy``).
        """
        def steps() -> tuple[list[Step], Found | None]:
            kept = [] if self.root.run.private else self.root.flush()
            if not self.saved:
                return kept, None
            found = self.snapshots.load(self.owner.tenant, self.root.run.id)
            if found is None or not self._ours(found.snapshot.root.lease):
                raise busy()
            return [*kept, *self.snapshots.dropped(self.owner, found.snapshot.root, found.version)], found

        if self.saved or not (self.root.run.private or not self.root.history.unsaved):
            self.snapshots.write(steps)
            self.root.committed()

    def key(self, run: Run) -> bytes:
        """Return the key of a run."""
        return run_key(self.owner.tenant, run.id)

    def next_seq(self, run: Run) -> int:
        """Return the place of the next segment of a run's conversation."""
        return run.stored if run.private else history.next_seq(self.desk.store, bytes.fromhex(run.thread))


def _details(request: ApprovalRequest) -> dict[str, Any]:
    return {
        "approvalId": request.id, "expiresAt": request.decide_by, "fingerprint": request.fingerprint,
        "reason": request.reason, "token": request.token,
    }


def _later(answer: ApprovalRequest | HitlGuardError) -> HitlGuardError | None:
    """Return a refusal that may be over later: a call that waited before then goes on waiting."""
    return answer if isinstance(answer, HitlGuardError) and gate.stays(answer) else None
