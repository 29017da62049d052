"""Finding suspended runs: in the store, from any process, without anything in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .. import fingerprint
from ..errors import AgentError, InvalidApprovalError, InvalidSignatureError
from ..rows import RunNode, RunRow
from . import events
from .leases import free
from .snapshots import code_of, owner_key
from .state import Snapshot, Way

if TYPE_CHECKING:
    from .agent import Agent


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One call that waits.

    Attributes:
        tool_call_id, tool_name, args: As the events say it: for a call inside a sub-agent the delegation's id.
        requires_approval: True: approve or decline it. False: resume it with data.
        pause_id: The request's or the suspension's own id; it names this call and no other.
        fingerprint: Of an approval: stands for tool and arguments; hand it back with the decision.
        suspend_payload: What the tool suspended itself with.
    """

    tool_call_id: str
    tool_name: str
    args: dict[str, Any] = field(repr=False)
    requires_approval: bool
    pause_id: str
    suspend_payload: Any = field(default=None, repr=False)
    resume_schema: str | None = field(default=None, repr=False)
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """A run that waits.

    Attributes:
        status: ``suspended``; ``interrupted`` if the process that went on with it is gone (continue it).
        suspended_at: By the database's clock.
    """

    run_id: str
    status: str
    thread_id: str | None
    resource_id: str
    suspended_at: datetime
    tool_calls: tuple[PendingCall, ...]


@dataclass(frozen=True, slots=True)
class SuspendedRuns:
    """One page of suspended runs, the newest first.

    Attributes:
        total: How many there are before paging.
        damaged: ``(run id, error code)`` of stored runs that do not verify; they cannot go on.
    """

    runs: tuple[SuspendedRun, ...]
    total: int
    damaged: tuple[tuple[str, str], ...] = ()


def listed(
    agent: Agent, *, user: str, tenant: str, thread_id: str | None, resource_id: str | None,
    from_date: datetime | int | None, to_date: datetime | int | None, per_page: int | None, page: int | None,
) -> SuspendedRuns:
    """Return the suspended runs of one agent for one user. Blocks.

    Raises:
        AgentError: ``invalid-page``: the page or its size cannot be used.
    """
    _check_page(per_page, page)
    thread = None if thread_id is None else fingerprint.place("listed-thread", tenant, thread_id)
    resource = None if resource_id is None else fingerprint.place("listed-resource", tenant, resource_id)
    store = agent.guard._desk.store
    _, rows = store.list_runs(
        owner_key(tenant, agent.id, user), thread=thread, resource=resource, created_from=_ms(from_date),
        created_to=_ms(to_date),
    )
    now = store.now()
    good: list[SuspendedRun] = []
    damaged: list[tuple[str, str]] = []
    for node, row in rows:
        try:
            found = _run(agent, node, row, tenant, user, now)
        except (InvalidSignatureError, InvalidApprovalError) as error:
            damaged.append((node.run_id, code_of(error)))
            continue
        # The list is a cache that somebody may have edited: what was signed says whose run it is.
        if found is not None and thread_id in (None, found.thread_id) and resource_id in (None, found.resource_id):
            good.append(found)
    shown = good if per_page is None or page is None else good[page * per_page : (page + 1) * per_page]
    return SuspendedRuns(tuple(shown), len(good), tuple(damaged))


def _check_page(per_page: object, page: object) -> None:
    if per_page is not None and (type(per_page) is not int or per_page < 1):
        raise AgentError("'per_page' must be a positive integer.", code="invalid-page", detail="per-page")
    if page is not None and (type(page) is not int or page < 0):
        raise AgentError("'page' must be an integer from 0.", code="invalid-page", detail="page")


def _ms(date: datetime | int | None) -> int | None:
    """Return a date as epoch milliseconds."""
    if isinstance(date, datetime):
        return int(date.timestamp() * 1000)
    if date is not None and type(date) is not int:
        raise AgentError("Dates are datetime objects, or epoch milliseconds.", code="invalid-page", detail="date")
    return date


def _run(agent: Agent, node: RunNode, row: RunRow, tenant: str, user: str, now: int) -> SuspendedRun | None:
    snapshot: Snapshot = agent.snapshots.verified(row, tenant, now)
    placed = snapshot.root.placed(snapshot.owner.resource_id)
    run, resource = next((found for found in placed if found[0].id == node.run_id), (None, ""))
    if run is None or run.agent != agent.id or snapshot.owner.user.id != user:
        return None
    calls = tuple(_calls(agent, snapshot.waiting(run)))
    if not calls and any(inner.settled and not free(inner, now) for inner in run.tree()):
        return None  # it is not suspended: a process goes on with it
    return SuspendedRun(
        run.id, "suspended" if calls else "interrupted", snapshot.owner.thread_id if run is snapshot.root else None,
        resource, datetime.fromtimestamp(snapshot.suspended_at / 1000, UTC), calls,
    )


def _calls(agent: Agent, ways: list[Way]) -> list[PendingCall]:
    from .sessions import tool_of

    calls = []
    for way in ways:
        told = events.outward(way, 0, events.asks(way[-1][1], tool_of(agent, way)))
        calls.append(PendingCall(
            tool_call_id=told["toolCallId"], tool_name=told["toolName"], args=told["args"],
            requires_approval="suspendPayload" not in told, pause_id=way[-1][1].pause_id or "",
            suspend_payload=told.get("suspendPayload"), resume_schema=told["resumeSchema"],
            fingerprint=None if "suspendPayload" in told else way[-1][1].fingerprint,
        ))
    return calls


def meant(found: tuple[SuspendedRun, ...], tool_call_id: str | None) -> tuple[SuspendedRun, PendingCall]:
    """Return the one call that waits for an approval, or has the given id.

    Raises:
        AgentError: none does (``run-not-found``), or several do (``call-ambiguous``).
    """
    waiting = [(run, call) for run in found for call in run.tool_calls]
    if tool_call_id is not None:
        exact = [pair for pair in waiting if pair[1].pause_id == tool_call_id]
        waiting = exact or [pair for pair in waiting if pair[1].tool_call_id == tool_call_id]
    if not waiting:
        raise AgentError("No run of this conversation waits for that.", detail="thread")
    if len(waiting) > 1 and (tool_call_id is not None or len({run.run_id for run, _ in waiting}) > 1):
        raise AgentError("Several calls of this conversation wait: name one.", code="call-ambiguous")
    return waiting[-1]
