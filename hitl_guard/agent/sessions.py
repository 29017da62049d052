"""From a start or an answer to the next pause or the end: what a stream of the agent does, in order."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import (
    AgentError,
    CanonicalizationError,
    ConfigurationError,
    DecisionError,
    HitlGuardError,
    InvalidSignatureError,
    RefusedError,
)
from ..guard import Guard
from ..lifecycle.desk import ROUNDS
from ..lifecycle.threads import offload
from ..models import Decision, Principal
from . import events
from .attempt import ModelFailed, error_text
from .drive import Drive
from .events import Events
from .leases import busy, free, not_suspended
from .snapshots import Found, gone
from .state import Call, Snapshot, Way, by_age
from .tools import Tool

if TYPE_CHECKING:
    from .agent import Agent
    from .stream import AgentStream


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody hands in for a paused run; nothing of it is believed but the principal.

    Attributes:
        tool_call_id: Which call is meant: a tool-call id, or the id of the pause itself; None: the most recent one.
        approver: Who decides, for an approval. user: For whom the run works, for everything else.
        data: The answer to a suspension, in a tuple; empty for a decision, and for going on with what is decided.
    """

    tool_call_id: str | None = None
    tenant: str = "default"
    approver: Principal | None = None
    approve: Any = None
    reason: str | None = None
    fingerprint: str | None = None
    arguments: Any = None
    channel: str = "api"
    user: str | None = None
    data: tuple[Any, ...] = ()
    said: tuple[dict[str, Any], ...] = ()


async def played(drive: Drive, stream: AgentStream) -> Events:
    """Work on the run until it pauses or ends; whatever happens, nothing that was stored is lost."""
    keeping = asyncio.create_task(drive.keep())
    try:
        async with events.closing(_played(drive, stream)) as play:
            async for one in play:
                drive.idle = True  # a reader that never comes back must not hold the run for ever
                yield one
                drive.idle = False
    except ModelFailed as failed:
        with suppress(HitlGuardError):
            await offload(drive.finish, must_end=True)
        drive.root.agent.forget(drive.root.run)
        told = {"message": error_text(failed.error), "name": type(failed.error).__name__}
        yield events.event(drive.root.run, "error", error=told)
        raise failed.error from failed.__cause__
    except BaseException:
        if not drive.saved:
            drive.root.agent.forget(drive.root.run)  # as far as is known, it is stored nowhere
        await drive.release()
        raise
    finally:
        keeping.cancel()


async def _played(drive: Drive, stream: AgentStream) -> Events:
    told = {way[-1][1].pause_id for way in drive.root.run.waiting()}
    while True:
        async with aclosing(drive.root.loop()) as loop:
            async for one in loop:
                for signal in drive.over():
                    yield signal
                yield one
        if drive.root.finished:
            await offload(drive.finish, must_end=True)
            drive.root.agent.forget(drive.root.run)
            yield drive.root.final()
            return
        again = await drive.commit() if drive.dirty() else False
        for signal in drive.over():
            yield signal
        for way in by_age(drive.root.run.waiting(), drive.since):
            pause = way[-1][1].pause_id
            if pause in told or pause in drive.cleared:
                continue
            told.add(pause)
            payload = events.asks(way[-1][1], tool_of(drive.root.agent, way), drive.told.get(pause or ""))
            for one in events.bubbled(way, payload):
                yield one
        if not again:
            break
    _left_waiting(drive, stream)
    if drive.held is not None:
        raise drive.held
    if drive.overtaken and not drive.worked:
        raise busy()


def _left_waiting(drive: Drive, stream: AgentStream) -> None:
    """Note on the stream everything that waits now, the most recent pause last, and what has ended beside it."""
    stream.withheld = events.withheld(drive.root.run)
    told = {payload.get("suspensionId") or payload.get("approvalId"): payload for payload in stream.pauses}
    stream.pauses = [
        told.get(way[-1][1].pause_id)
        or events.outward(way, 0, events.asks(way[-1][1], tool_of(drive.root.agent, way)))
        for way in by_age(drive.root.run.waiting(), drive.since)
    ]


async def answered(agent: Agent, run_id: str, answer: Answer, stream: AgentStream) -> Events:
    """Resume a run with a decision or an answer, or go on with what was decided elsewhere.

    Raises:
        AgentError, DecisionError, RefusedError, UnavailableError: nothing changed; the pause is still there.
    """
    found, drive = await offload(lambda: _opened(agent, run_id, answer))
    try:
        cleared = await _cleared(drive, found, answer)
        # Only now is it known that the caller may know.
        stream.text = drive.root.text
        stream.tool_calls = [events.called(drive.root.run, call) for call in drive.root.run.calls]
        for way in cleared or ():
            payload = events.outward(way, 0, events.asks(way[-1][1], tool_of(agent, way)))
            drive.signals[way[-1][1].pause_id] = events.resumed(drive.root.run, payload)
    except BaseException:
        await drive.release()
        raise
    if cleared is None:
        _left_waiting(drive, stream)
        return
    async with aclosing(played(drive, stream)) as play:
        async for one in play:
            yield one


async def _cleared(drive: Drive, found: Found, answer: Answer) -> list[Way] | None:
    """Hand in an answer; return the ways to the calls that may go on now, or None if nothing may."""
    cleared: list[Way] = []
    if answer.approver is not None or answer.data:
        way = picked(found.snapshot, answer.tool_call_id)
        call = way[-1][1]
        if call.suspension is not None:
            await _answer(drive, way, answer)
            cleared.append(way)
        elif not await _decide(drive, call, answer):
            return None
    cleared += await offload(lambda: _decided(drive, cleared))
    if not cleared and not await offload(lambda: _left_behind(drive, found)):
        _told_why(drive, found, answer)
        return None
    return cleared


def _opened(agent: Agent, run_id: str, answer: Answer) -> tuple[Found, Drive]:
    """Return a suspended run and the work on it, both as of one version. Blocks."""
    for _ in range(ROUNDS):
        found = loaded(agent, run_id, answer.tenant, answer.user)
        try:
            return found, agent.drive_of(found)
        except InvalidSignatureError:
            # Others went on with the run, or ended it, before its conversation was read.
            now = agent.snapshots.load(answer.tenant, run_id)
            if now is None:
                _too_late(agent, found, answer)
                raise gone(run_id) from None
            if now.version == found.version:
                raise
    raise busy()


def _too_late(agent: Agent, found: Found, answer: Answer) -> None:
    """Hand in a decision on a call whose run has ended since it was read: the guard says who was first. Blocks."""
    if answer.approver is not None:
        call = picked(found.snapshot, answer.tool_call_id)[-1][1]
        if call.suspension is None:
            _handed_in(agent.guard, call, answer)


def loaded(agent: Agent, run_id: str, tenant: str, user: str | None) -> Found:
    """Return a suspended run of this agent, of this user where one is named. Blocks.

    Raises:
        AgentError: there is none, or it is another agent's or user's.
    """
    found = agent.snapshots.load(tenant, run_id)
    if found is None or found.snapshot.root.agent != agent.id or user not in (None, found.snapshot.owner.user.id):
        raise gone(run_id)
    return found


def picked(snapshot: Snapshot, tool_call_id: str | None) -> Way:
    """Return the way to the pause that is meant.

    Raises:
        AgentError: none is (``call-not-suspended``), or several are (``call-ambiguous``).
    """
    waiting = snapshot.waiting()
    if tool_call_id is None:
        if not waiting:
            raise not_suspended("")
        return waiting[-1]
    exact = [way for way in waiting if way[-1][1].pause_id == tool_call_id]
    named = exact or [way for way in waiting if tool_call_id in [call.id for _, call in way]]
    if not named:
        raise not_suspended(tool_call_id)
    if len(named) > 1:
        raise AgentError(
            "Several pauses have this tool-call id: give the 'approvalId' or 'suspensionId' of one.",
            code="call-ambiguous", call_id=tool_call_id,
        )
    return named[0]


def tool_of(agent: Agent, way: Way) -> Tool | None:
    """Return the tool of the call at the end of a way, if its agent still has it."""
    for _, call in way[:-1]:
        sub = agent.sub_agent(call.name)
        if sub is None:
            return None
        agent = sub
    return agent.tool(way[-1][1].name)


async def _decide(drive: Drive, call: Call, answer: Answer) -> bool:
    """Hand a decision to the guard; say whether the call may go on: to run, to end, or to wait for another request."""
    decision = await offload(lambda: _handed_in(drive.guard, call, answer), must_end=True)
    if decision.state == "pending":
        return decision.request_id != call.request_id  # it was edited, and others must still approve that
    return True


def _handed_in(guard: Guard, call: Call, answer: Answer) -> Decision:
    """Return what a decision came to. Blocks.

    Raises:
        DecisionError: it was not accepted, or somebody was first (``already-decided``).
    """
    approve, reason = answer.approve, answer.reason
    if answer.data:
        approve, reason = _decision(answer.data[0])
    if answer.approver is None:
        raise ConfigurationError("This call waits for an approval: name the approver who decides.")
    shown = call.fingerprint if answer.fingerprint is None else answer.fingerprint
    decision = guard.decide(
        call.request_id or "", approver=answer.approver, approve=approve, fingerprint=shown or "", reason=reason,
        arguments=answer.arguments, channel=answer.channel,
    )
    if decision.state not in ("pending", "approved", "denied"):
        raise DecisionError(
            "This was decided already.", code="already-decided", detail=decision.state, decided_by=decision.approver
        )
    return decision


def _decision(data: Any) -> tuple[Any, str | None]:
    """Read an approval's answer as it may come in a resumption: exactly ``approved``, and perhaps ``reason``."""
    if not isinstance(data, dict) or not {"approved"} <= set(data) <= {"approved", "reason"}:
        raise DecisionError("The decision was not accepted: it needs 'approved'.", detail="malformed")
    return data["approved"], data.get("reason")


async def _answer(drive: Drive, way: Way, answer: Answer) -> None:
    """Take the right to start the suspended call again with a valid answer."""
    owner = drive.owner.user
    if not answer.data and answer.approver is not None and answer.approver.id not in (owner.id, *owner.aliases):
        raise gone(drive.root.run.id)  # no policy says who else may answer what the run's user was asked
    run, call = way[-1]
    data = answer.data[0] if answer.data else _as_data(answer)
    tool = tool_of(drive.root.agent, way)
    try:
        checked = (data, data) if tool is None else tool.checked_resume(data)
    except CanonicalizationError as error:
        raise AgentError(str(error), code="invalid-resume-data", detail=error.detail) from error
    await offload(lambda: drive.take_answer(run, call, answer.said), must_end=True)
    drive.answers[str(call.pause_id)] = checked


def _as_data(answer: Answer) -> dict[str, Any]:
    if type(answer.approve) is not bool:
        raise DecisionError("The decision was not accepted: 'approve' must be true or false.", detail="malformed")
    return {"approved": answer.approve} | ({} if answer.reason is None else {"reason": answer.reason})


def _decided(drive: Drive, answered_: list[Way]) -> list[Way]:
    """Return the ways to calls whose request is decided, or over, wherever that happened. Blocks."""
    cleared = []
    for way in drive.root.run.waiting():
        call = way[-1][1]
        if call.suspension is not None or call.request_id is None or way in answered_:
            continue
        try:
            request = drive.guard.get(call.request_id, tenant=drive.owner.tenant)
            state = request.state
        except RefusedError:
            state = "damaged"  # the guard will say why, when the call asks for its permit
        drive.overtaken = drive.overtaken or state == "executing"
        if state == "pending" and request.policy_version != drive.guard.policy_version:
            drive.outdated.add(call.request_id)  # nobody can decide it any more
            state = "outdated"
        if state not in ("pending", "executing", "suspended"):
            drive.cleared.add(call.request_id)
            cleared.append(way)
    return cleared


def _left_behind(drive: Drive, found: Found) -> bool:
    """Take over what a process left between two turns; say whether there was anything. Blocks."""
    idle = {run.id for run in drive.root.run.tree() if run.settled and free(run, found.now)}
    if idle and not drive.take_leases(idle):
        raise busy()
    return bool(idle)


def _told_why(drive: Drive, found: Found, answer: Answer) -> None:
    """Raise if the caller must know why nothing happened."""
    leases = [
        run.lease["until"] for run in found.snapshot.root.tree()
        if run.settled and run.lease is not None and not free(run, found.now)
    ]
    if leases or drive.overtaken or answer.approver is not None:
        raise busy(max(leases, default=None))
