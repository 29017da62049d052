"""From the events of a run (`hitl_guard.agent.events`) to chunks of the UI message stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from ...agent.events import Event
from ...asgi.logs import failed
from ...errors import AgentError
from ...models import ApprovalRequest, Scope
from ...protocols.ui_messages import AUTOMATIC
from .chunks import Chunk, UIMessageStream
from .parts import part_id

RequestOf = Callable[[str], Awaitable[ApprovalRequest | None]]
"""Reads a request by its id, verified; None where there is none that counts."""

FAILED = "The run failed."
"""All that a client is told of a run that failed; why stands in the log."""

_OVER = "The agent that asked for this has ended without it."
_UNREADABLE = "A call waits for a decision that cannot be made here: its request cannot be read."

_SUB = re.compile(r"\.sub\.[A-Za-z0-9_-]{22}\Z")


def call_id_of(scope: Scope) -> str | None:
    """Return how the client of a chat knows the call of a request's scope; None for deny-and-retry.

    A sub-agent's run is told by its id (see `hitl_guard.agent.agent.SUB`).
    """
    if scope.call_id is None:
        return None
    return part_id(scope.call_id, scope.occurrence, scope.run if _SUB.search(scope.run) else None)


def error_text_of(error: Mapping[str, Any]) -> str:
    """Return what a client is told of a call that failed: what kind of failure, never the exception's own words.

    Args:
        error: ``{"name", "message"}`` and, of the guard's own, ``code``.
    """
    code = error.get("code")
    if code == "in-doubt":
        return "Nobody knows whether this call had an effect."
    if code is not None:
        return f"The call was not run ({code})."
    return f"The call failed ({str(error.get('name', 'Error'))[:100]})."


async def chunks_of(
    events: AsyncIterator[Event], stream: UIMessageStream, *, request_of: RequestOf,
    error_text: Callable[[Mapping[str, Any]], str] = error_text_of,
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a run's events, as they come. `UIMessageStream.end` then ends the message.

    A sub-agent's call that waits is shown as a dynamic tool part of its own, with the inner tool's name and arguments.
    Of its other calls and of its text nothing is told: they are its supervisor's, and come as that call's result.
    A tool that the client runs itself is shown when it may run, not before.

    Args:
        events: As `hitl_guard.agent.Agent.stream` and its kin give them, or another loop's of the same form. Closed at
            the end. What they raise is logged; the client gets an error chunk with a fixed text.
        stream: The message. It may be started already, and go on afterwards.
        request_of: Reads a request for what is told with it.
        error_text: From a failed call's error to what the client is told.
    """
    telling = _Telling(stream, request_of, error_text)
    try:
        async with aclosing(with_withheld(events)) as source:
            async for event in source:
                for chunk in await telling.of(event):
                    yield chunk
    except Exception as error:  # noqa: BLE001  whatever it was: the client must be told, and no details
        if isinstance(error, AgentError) and error.code == "run-busy":
            return  # another process is at it: what becomes of the call is told by its state
        failed("A run of a chat failed", error)
        for chunk in stream.error(FAILED):
            yield chunk
        return
    stream.reason = telling.reason


async def with_withheld(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Yield the events, and at a pause what has ended beside it: the client waits for each call by itself.

    Closes them at the end.
    """
    try:
        async for event in events:
            yield event
        for event in getattr(events, "withheld", ()):
            yield event
    finally:
        if hasattr(events, "aclose"):
            await events.aclose()


class _Telling:
    """The events of one run so far.

    Attributes:
        reason: The finish reason; a run that has not finished waits for somebody.
    """

    def __init__(
        self, stream: UIMessageStream, request_of: RequestOf, error_text: Callable[[Mapping[str, Any]], str]
    ) -> None:
        self.reason: str | None = "tool-calls"
        self._stream = stream
        self._request_of = request_of
        self._error_text = error_text
        self._clients: set[str] = set()

    async def of(self, event: Event) -> list[Chunk]:
        """Return the chunks of one event."""
        root, inner = event["run_id"], False
        while event["type"] == "tool-output":
            event, inner = event["payload"]["output"], True
        kind, payload = event["type"], event["payload"]
        id_ = ""
        if "toolCallId" in payload:
            id_ = part_id(payload["toolCallId"], payload.get("occurrence", 0), event["run_id"] if inner else None)
        if kind in ("tool-call-approval", "tool-call-suspended"):
            if "innerToolCallId" in payload:
                return []  # told by the run that waits itself
            return await self._approval(id_, payload) if kind == "tool-call-approval" else self._question(
                id_, root, payload
            )
        if kind in ("tool-result", "tool-error", "tool-output-denied"):
            decided = (payload.get("approval") or {}).get("approvalId")
            told = not inner or self._stream.knows(id_, decided)
            return await self._ended(kind, id_, payload) if told else []
        return [] if inner else await self._outer(kind, id_, root, payload)

    async def _outer(self, kind: str, id_: str, root: str, payload: dict[str, Any]) -> list[Chunk]:
        stream = self._stream
        if kind == "start":
            return stream.start(payload["messageId"])
        if kind == "step-start":
            return stream.start_step()
        if kind == "text-delta":
            return stream.text(payload["id"], payload["text"])
        if kind == "text-end":
            return stream.end_text()
        if kind == "tool-call":
            if payload.get("clientSide") is True:
                self._clients.add(id_)  # a browser runs it when it is shown: not before it may
                return []
            return self._shown(id_, payload, quiet=False)
        if kind == "tool-call-resumed":
            return self._resumed(id_, root, payload)
        if kind == "finish":
            return await self._finished(payload)
        return stream.error(FAILED) if kind == "error" else []

    def _shown(self, id_: str, payload: Mapping[str, Any], *, quiet: bool) -> list[Chunk]:
        if self._stream.knows(id_):
            return []
        dynamic = payload.get("dynamic") is True
        return self._stream.tool_call(id_, payload["toolName"], payload["args"], dynamic=dynamic, quiet=quiet)

    async def _approval(self, id_: str, payload: Mapping[str, Any]) -> list[Chunk]:
        request = await self._request_of(payload["approvalId"])
        if request is None:
            return [*self._stream.text(f"unreadable-{id_}", _UNREADABLE), *self._stream.end_text()]
        return self._stream.approval(request, call_id=id_, quiet=id_ in self._clients)

    def _question(self, id_: str, root: str, payload: Mapping[str, Any]) -> list[Chunk]:
        return self._stream.suspended(
            id_, payload["suspendPayload"], suspension_id=payload["suspensionId"], run_id=root,
            tool=payload["toolName"], resume_schema=payload["resumeSchema"],
        )

    def _resumed(self, id_: str, root: str, payload: Mapping[str, Any]) -> list[Chunk]:
        if payload["kind"] == "approval":
            return self._stream.signal(id_, "approval", payload["approvalId"])
        return self._stream.resumed(
            id_, payload["suspendPayload"], suspension_id=payload["suspensionId"], run_id=root,
            tool=payload["toolName"], resume_schema=payload["resumeSchema"],
        )

    async def _ended(self, kind: str, id_: str, payload: Mapping[str, Any]) -> list[Chunk]:
        """Return how a call ended, after what is on record about its approval."""
        stream, approval = self._stream, payload.get("approval") or {}
        chunks = self._shown(id_, payload, quiet=True)
        chunks += await self._on_record(id_, approval.get("approvalId") or stream.approval_of(id_))
        if kind == "tool-result":
            return [*chunks, *stream.output(id_, payload["result"])]
        if kind == "tool-error":
            return [*chunks, *stream.output_error(id_, self._error_text(payload["error"]))]
        if stream.approval_of(id_) is None:
            reason = approval.get("reason")
            chunks += stream.automatic(id_, f"{AUTOMATIC}{id_}", approved=False, reason=reason)
        elif stream.answer_of(id_) is not False:
            # It was not denied by anybody: nobody decided in time, or the policy forbids now what a person allowed.
            return [*chunks, *stream.output_error(id_, str(approval.get("reason") or "The call was not run."))]
        return [*chunks, *stream.denied(id_)]

    async def _on_record(self, id_: str, approval_id: str | None) -> list[Chunk]:
        if approval_id is None or approval_id.startswith(AUTOMATIC):
            return []
        request = await self._request_of(approval_id)
        return [] if request is None else self._stream.decision(request, call_id=id_)

    async def _finished(self, payload: Mapping[str, Any]) -> list[Chunk]:
        """Show the calls that the client runs now, and end what a sub-agent left."""
        self.reason, stream = payload["stepResult"]["reason"], self._stream
        chunks: list[Chunk] = []
        calls = {
            part_id(call["toolCallId"], call.get("occurrence", 0)): call
            for call in payload.get("output", {}).get("toolCalls", ())
        }
        # First those that the client has: a new one begins a step, and what is above that can be changed no more.
        for id_ in sorted(calls, key=lambda id_: not stream.knows(id_)):
            chunks += stream.runs_now(id_, calls[id_]["toolName"], calls[id_]["args"])
        for id_ in stream.open_inside():
            chunks += stream.output_error(id_, _OVER)
        return chunks
