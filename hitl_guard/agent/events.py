"""The events of a stream: ``{"type", "run_id", "from", "payload"}``. Types and payload keys are the published ones.

What a consumer does to an event changes nothing of the run: events hold copies.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from .shapes import copied
from .state import Call, Run
from .tools import APPROVAL_RESUME_SCHEMA, Tool

Event = dict[str, Any]
Events = AsyncGenerator[Event, None]


class closing(aclosing[Events]):  # noqa: N801  named as `contextlib.aclosing`
    """Closes a generator at the end of a block; that others close it already is no failure of what it did.

    An event loop that shuts down closes all generators at once, inner ones before outer ones too.
    """

    async def __aexit__(self, *raised: object) -> None:
        with suppress(RuntimeError):
            await super().__aexit__(*raised)


def event(run: Run, kind: str, /, **payload: Any) -> Event:
    """Return one event of a run."""
    return {"type": kind, "run_id": run.id, "from": "AGENT", "payload": payload}


def started(run: Run) -> Event:
    """Return the first event of a new run; a resumed one has none."""
    return event(run, "start", id=run.agent, messageId=run.message_id)


def step_started(run: Run, request: dict[str, Any], now: int) -> Event:
    """Return the event before the model is called. ``now``: epoch milliseconds of this process's clock."""
    return event(run, "step-start", messageId=run.message_id, request=request, startedAt=now, warnings=[])


def step_finished(run: Run, kind: str, reason: str, messages: list[dict[str, Any]], output: dict[str, Any]) -> Event:
    """Return ``step-finish`` or ``finish``. ``messages`` are those of the step; there are no processors to retry."""
    result = {"isContinued": kind == "step-finish" and reason == "tool-calls", "reason": reason}
    return event(
        run, kind, messageId=run.message_id, messages=copied(messages), metadata={"step": run.step},
        output=copied(output), processorRetryCount=0, stepResult=result,
    )


def called(run: Run, call: Call, tool: Tool | None = None) -> Event:
    """Return the event of a call that the model proposes. ``clientSide``: the client runs it, once it may."""
    told = {"toolCallId": call.id, "toolName": call.name, "args": _args(call), **_numbered(call)}
    return event(run, "tool-call", **told, **({"clientSide": True} if tool is not None and tool.is_client else {}))


def ended(run: Run, call: Call) -> Event | None:
    """Return the event of a call that has ended; None for one that the client runs."""
    outcome = call.outcome
    if outcome is None or outcome.kind == "client":
        return None
    told = named(call)
    if outcome.kind == "denied":
        return event(run, "tool-output-denied", **told, approval=copied(outcome.approval))
    if outcome.kind == "error":
        return event(run, "tool-error", **told, error=copied(outcome.value))
    result = event(run, "tool-result", **told, result=copied(outcome.value))
    if outcome.approval is not None:
        result["payload"]["approval"] = copied(outcome.approval)
    if outcome.hook is not None:
        result["payload"]["hookError"] = dict(outcome.hook)
    return result


def withheld(run: Run) -> list[Event]:
    """Return the events of calls that have ended in turns that have not, as they will show in this run's stream."""
    found: list[Event] = []
    for call in run.calls:
        if call.child is not None:
            found += [inside(run, call, inner) for inner in withheld(call.child)]
        elif not run.settled and (told := ended(run, call)) is not None:
            found.append(told)
    return found


def named(call: Call) -> dict[str, Any]:
    """Return a call by its id, its tool and the arguments that ran, or that a client is to run it with."""
    changed = None if call.outcome is None else call.outcome.args
    args = _args(call) if changed is None else copied(changed)
    return {"toolCallId": call.id, "toolName": call.name, "args": args, **_numbered(call)}


def inside(run: Run, call: Call, inner: Event) -> Event:
    """Return a sub-agent's event as it shows in its supervisor's stream."""
    return event(run, "tool-output", toolCallId=call.id, toolName=call.name, output=inner)


def asks(call: Call, tool: Tool | None, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the payload of what a call waits for, as the run itself tells it.

    Args:
        details: Of a new request: ``approvalId, fingerprint, token, expiresAt, reason``.
    """
    args = _args(call) if call.edited is None else copied(call.edited)
    payload: dict[str, Any] = {"toolCallId": call.id, "toolName": call.name, "args": args, **_numbered(call)}
    if call.suspension is None:
        return payload | {"resumeSchema": APPROVAL_RESUME_SCHEMA, "approvalId": call.request_id} | (details or {})
    schema = None if tool is None else tool.resume_schema_json
    return payload | {
        "resumeSchema": schema, "suspendPayload": copied(call.suspension["payload"]),
        "suspensionId": call.suspension["id"],
    }


def bubbled(path: list[tuple[Run, Call]], payload: dict[str, Any]) -> list[Event]:
    """Return the events by which a pause is told from the inside out: each run tells it in its supervisor's stream.

    The outer ones carry the delegation's tool-call id. An approval keeps the inner tool's name and arguments, since
    these are what is decided; a suspension has the delegation's.

    Args:
        path: ``(run, call)`` from the outermost to the one that waits.
    """
    kind = "tool-call-suspended" if "suspendPayload" in payload else "tool-call-approval"
    events = []
    for depth in range(len(path) - 1, -1, -1):
        inner = event(path[depth][0], kind, **outward(path, depth, payload))
        for outer_run, outer_call in reversed(path[:depth]):
            inner = inside(outer_run, outer_call, inner)
        events.append(inner)
    return events


def outward(path: list[tuple[Run, Call]], depth: int, payload: dict[str, Any]) -> dict[str, Any]:
    """Return a pause's payload as the run at ``depth`` of ``path`` tells it."""
    call = path[depth][1]
    if depth == len(path) - 1:
        return payload
    told = {name: value for name, value in payload.items() if name != "occurrence"}
    told |= {"toolCallId": call.id, "innerToolCallId": payload["toolCallId"], **_numbered(call)}
    return told | {"toolName": call.name, "args": _args(call)} if "suspendPayload" in payload else told


def resumed(run: Run, payload: dict[str, Any]) -> Event:
    """Return the event of a pause that is over, from the payload by which it was told."""
    kind = "suspension" if "suspendPayload" in payload else "approval"
    kept = (
        "toolCallId", "toolName", "args", "suspendPayload", "resumeSchema", "approvalId", "suspensionId", "occurrence",
    )
    return event(run, "tool-call-resumed", kind=kind, **{name: payload[name] for name in kept if name in payload})


def _numbered(call: Call) -> dict[str, int]:
    """Return the call's index among calls with its id, where it is not the first: providers repeat ids."""
    return {"occurrence": call.occurrence} if call.occurrence else {}


def _args(call: Call) -> dict[str, Any]:
    args: dict[str, Any] = copied(call.args or {})
    return args
