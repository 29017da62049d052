"""From the events of a run (`hitl_guard.agent.events`) to chunks of the UI message stream."""

from __future__ import annotations

import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any

from ...agent.events import Event
from ...agent.shapes import well_formed
from ...asgi.logs import failed, refused
from ...errors import AgentError, ConfigurationError, InvalidApprovalError
from ...lifecycle.refusals import DEFAULT_DENIAL
from ...models import ApprovalRequest, Scope
from ...protocols.ui_messages import AUTOMATIC
from .chunks import Chunk, UIMessageStream
from .event_forms import with_withheld
from .parts import part_id, repeated_id
from .texts import RUN_FAILED

RequestOf = Callable[[str], Awaitable[ApprovalRequest | None]]
"""Reads a request by its id, verified; None where there is none that counts."""

Differs = Callable[[ApprovalRequest, str], str | None]
"""What of a request is not the chat's (its run, say), given it and how the client knows its call; None for nothing."""

_OVER = "The agent that asked for this has ended without it."
_UNREADABLE = "A call waits for a decision that cannot be made here: its request cannot be read."
_FOREIGN = "A call waits for a decision that cannot be made here: its request is not one of this chat's."

_WAITING = frozenset({"tool-call-approval", "tool-call-suspended"})
_ENDS = frozenset({"tool-result", "tool-error", "tool-output-denied"})
_TOLD_LATER = _ENDS | {"step-start", "text-delta", "text-end"}

_SUB = re.compile(r"\.sub\.[A-Za-z0-9_-]{22}\Z")


def call_id_of(scope: Scope, part: str | None = None) -> str | None:
    """Return how the client of a chat knows the call of a request's scope; None for deny-and-retry.

    A sub-agent's run is told by its id (see `hitl_guard.agent.agent.SUB`).

    Args:
        part: The id that a client names. A call of the chat's own run has two, and this one counts if it is the second:
            the one that it has in a message where another run's call has the plain id.
    """
    if scope.call_id is None:
        return None
    if _SUB.search(scope.run):
        return part_id(scope.call_id, scope.occurrence, scope.run)
    second = repeated_id(scope.call_id, scope.occurrence, scope.run)
    return second if part == second else part_id(scope.call_id, scope.occurrence)


def asks(event: Event, held: Container[str] = ()) -> bool:
    """Whether an event of a run that nobody reads must reach the client later: it says that somebody is waited for.

    A call of the client's own tool is one too: the request for it is told by it.

    Args:
        held: Ids of requests and questions that the client has.
    """
    while event["type"] == "tool-output":
        event = event["payload"]["output"]
    payload = event["payload"]
    waits = event["type"] in _WAITING and (payload.get("approvalId") or payload["suspensionId"]) not in held
    return waits or payload.get("clientSide") is True


def tells(event: Event, ended: Container[tuple[str, str, str | None]] = ()) -> bool:
    """Whether an event of a run that nobody read says what came of it: how a call ended, what the model said.

    Args:
        ended: What the client has (see `messages.Post.ended`): a run tells some ends twice.
    """
    kind, payload = event["type"], event["payload"]
    if kind not in _ENDS:
        return kind in _TOLD_LATER
    named = payload["toolCallId"], payload.get("occurrence", 0)
    allowed = (payload.get("approval") or {}).get("approvalId")
    ids = part_id(*named), repeated_id(*named, event["run_id"])
    return not any((id_, well_formed(payload["toolName"]), allowed) in ended for id_ in ids)


def parts_told(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the parts of a UI message that says what events tell (see `tells`), for a model's conversation."""
    parts: list[dict[str, Any]] = []
    for event in events:
        kind, payload = event["type"], event["payload"]
        if kind == "text-delta":
            parts.append({"text": payload["text"], "type": "text"})
        elif kind == "step-start":
            parts.append({"type": "step-start"})
        elif kind in _ENDS:
            part = {
                "input": payload["args"], "toolCallId": payload["toolCallId"], "toolName": payload["toolName"],
                "type": "dynamic-tool",
            }
            if kind == "tool-result":
                part |= {"output": payload["result"], "state": "output-available"}
            elif kind == "tool-error":
                part |= {"errorText": error_text_of(payload["error"]), "state": "output-error"}
            else:
                part |= {"approval": payload.get("approval"), "state": "output-denied"}
            parts.append(part)
    return parts


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
    error_text: Callable[[Mapping[str, Any]], str] = error_text_of, before: Sequence[Event] = (),
    after: Sequence[Event] = (), differs: Differs = lambda request, call_id: None,
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
        before: What became of another run of the chat unseen (see `tells`). It is told first.
        after: What that run asked for (see `asks`). It is told in the last step, where an answer counts for the
            client, and before an error ends the stream.
        differs: Says of a request what keeps an answer to it from counting here. Then it is not offered, and the log
            says what is wrong with the loop.
    """
    telling = _Telling(stream, request_of, error_text, differs)
    first, left = [*before], [*after]
    try:
        async with aclosing(with_withheld(events)) as source:
            async for event in source:
                if event["type"] == "error":
                    for chunk in await telling.all_of(first, left):
                        yield chunk
                for chunk in await telling.of(event):
                    yield chunk
                if event["type"] == "start":
                    for chunk in await telling.all_of(first):
                        yield chunk
    except Exception as error:  # noqa: BLE001  whatever it was: the client must be told, and no details
        for chunk in await telling.all_of(first, left):
            yield chunk
        if isinstance(error, AgentError) and error.code == "run-busy":
            return  # another process is at it: what becomes of the call is told by its state
        failed("A run of a chat failed", error)
        for chunk in stream.fail(RUN_FAILED):
            yield chunk
        return
    stream.reason = "tool-calls" if left else telling.reason
    for chunk in await telling.all_of(first, left):
        yield chunk


class _Telling:
    """The events of one run so far.

    Attributes:
        reason: The finish reason; a run that has not finished waits for somebody.
    """

    def __init__(
        self, stream: UIMessageStream, request_of: RequestOf, error_text: Callable[[Mapping[str, Any]], str],
        differs: Differs,
    ) -> None:
        self.reason: str | None = "tool-calls"
        self._stream = stream
        self._request_of = request_of
        self._error_text = error_text
        self._differs = differs
        self._clients: set[str] = set()

    async def all_of(self, *lists: list[Event]) -> list[Chunk]:
        """Return the chunks of events, and empty their lists: each is told once."""
        chunks: list[Chunk] = []
        for events in lists:
            while events:
                chunks += await self.of(events.pop(0))
        return chunks

    async def of(self, event: Event) -> list[Chunk]:
        """Return the chunks of one event."""
        root, inner = event["run_id"], False
        while event["type"] == "tool-output":
            event, inner = event["payload"]["output"], True
        kind, payload = event["type"], event["payload"]
        id_ = "" if "toolCallId" not in payload else self._id(kind, event["run_id"], payload, inner=inner)
        if kind in ("tool-call-approval", "tool-call-suspended"):
            if "innerToolCallId" in payload:
                return []  # told by the run that waits itself
            return await self._approval(id_, payload) if kind == "tool-call-approval" else self._question(
                id_, root, payload
            )
        if kind in _ENDS:
            decided = (payload.get("approval") or {}).get("approvalId")
            told = not inner or self._stream.knows(id_, decided)
            return await self._ended(kind, id_, payload) if told else []
        return [] if inner else await self._outer(kind, id_, root, payload)

    def _id(self, kind: str, run_id: str, payload: Mapping[str, Any], *, inner: bool = False) -> str:
        """Return the id by which this message knows a call: the plain one, unless another run's call has that."""
        call_id, occurrence = payload["toolCallId"], payload.get("occurrence", 0)
        if inner:
            return part_id(call_id, occurrence, run_id)
        plain, second = part_id(call_id, occurrence), repeated_id(call_id, occurrence, run_id)
        new, open_ = kind == "tool-call", kind in _WAITING or kind in ("finish", "tool-call-resumed")
        decided = (payload.get("approval") or {}).get("approvalId") if kind in _ENDS else None
        own = not self._stream.named(second) and self._stream.takes(
            plain, run_id, new=new, open_=open_, approval_id=decided
        )
        if not own:
            self._stream.takes(second, run_id)
        return plain if own else second

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
            return await self._finished(root, payload)
        return stream.fail(RUN_FAILED) if kind == "error" else []

    def _shown(self, id_: str, payload: Mapping[str, Any], *, quiet: bool) -> list[Chunk]:
        if self._stream.knows(id_):
            return []
        dynamic = payload.get("dynamic") is True
        return self._stream.tool_call(id_, payload["toolName"], payload["args"], dynamic=dynamic, quiet=quiet)

    async def _approval(self, id_: str, payload: Mapping[str, Any]) -> list[Chunk]:
        request = await self._request_of(payload["approvalId"])
        if request is None:
            unreadable = InvalidApprovalError("There is no such request that counts.", detail="unknown")
            refused(unreadable, "a call that waits in a chat", request=payload["approvalId"])
            return [*self._stream.text(f"unreadable-{id_}", _UNREADABLE), *self._stream.end_text()]
        if self._is_foreign(request, id_):
            return [*self._stream.text(f"foreign-{id_}", _FOREIGN), *self._stream.end_text()]
        return self._stream.approval(request, call_id=id_, quiet=id_ in self._clients)

    def _is_foreign(self, request: ApprovalRequest, id_: str, *, by_loop: bool = True) -> bool:
        """Whether an answer to a request would be refused here; where the loop named it, the log says what is wrong."""
        what = self._differs(request, id_)
        if what is not None and by_loop:
            failed("A request cannot be decided in the chat that it is told in", ConfigurationError(
                f"The loop asked the guard with another {what} than its events have: see rule 1 of "
                "hitl_guard.integrations.ai_sdk.own_loop."
            ))
        return what is not None

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
        # Of a call that was not announced the client makes a whole part from this, and its 'onToolCall' is not told.
        chunks = self._shown(id_, payload, quiet=True)
        chunks += await self._on_record(id_, approval.get("approvalId"))
        if kind == "tool-result":
            return [*chunks, *stream.output(id_, payload["result"])]
        if kind == "tool-error":
            return [*chunks, *stream.output_error(id_, self._error_text(payload["error"]))]
        if stream.approval_of(id_) is None and not str(approval.get("approvalId") or AUTOMATIC).startswith(AUTOMATIC):
            # Its arguments cannot be shown as they are: so it has no approval that the client could send back.
            return [*chunks, *stream.output_error(id_, str(approval.get("reason") or DEFAULT_DENIAL))]
        if stream.approval_of(id_) is None:
            reason = approval.get("reason")
            chunks += stream.automatic(id_, f"{AUTOMATIC}{id_}", approved=False, reason=reason)
        elif stream.answer_of(id_) is not False:
            # It was not denied by anybody: nobody decided in time, or the policy forbids now what a person allowed.
            return [*chunks, *stream.output_error(id_, str(approval.get("reason") or "The call was not run."))]
        return [*chunks, *stream.denied(id_)]

    async def _on_record(self, id_: str, named: str | None) -> list[Chunk]:
        """Return what is on record of a call's approval. ``named``: its id as the loop says, else the client's counts.

        Either may be wrong, and the record of somebody else's request is nobody's business here.
        """
        approval_id = named or self._stream.approval_of(id_)
        if approval_id is None or approval_id.startswith(AUTOMATIC):
            return []
        request = await self._request_of(approval_id)
        if request is None or self._is_foreign(request, id_, by_loop=named is not None):
            return []
        return self._stream.decision(request, call_id=id_)

    async def _finished(self, root: str, payload: Mapping[str, Any]) -> list[Chunk]:
        """Show the calls that the client runs now, and end what a sub-agent left."""
        self.reason, stream = payload["stepResult"]["reason"], self._stream
        chunks: list[Chunk] = []
        calls = {
            self._id("finish", root, call): call
            for call in payload.get("output", {}).get("toolCalls", ())
        }
        # First those that the client has: a new one begins a step, and what is above that can be changed no more.
        for id_ in sorted(calls, key=lambda id_: not stream.knows(id_)):
            chunks += stream.runs_now(id_, calls[id_]["toolName"], calls[id_]["args"])
        for id_ in stream.open_inside():
            chunks += await self._over_inside(root, id_)
        return chunks

    async def _over_inside(self, root: str, id_: str) -> list[Chunk]:
        """End a call that a sub-agent of this run left; nothing where it can run still, or is another run's."""
        approval_id = self._stream.approval_of(id_)
        if approval_id is None:
            return self._stream.output_error(id_, _OVER)  # nobody was asked for it
        request = await self._request_of(approval_id)
        if request is None or not request.run_id.startswith(f"{root}."):
            return []
        if request.state in ("pending", "approved", "executing"):
            return []
        decided = self._stream.decision(request, call_id=id_)
        if request.state == "denied":
            return [*decided, *self._stream.denied(id_)]
        return [*decided, *self._stream.output_error(id_, _OVER)]
