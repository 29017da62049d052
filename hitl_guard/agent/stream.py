"""What a caller holds while a run goes on: its events, and at the end its result."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from .events import Event, Events

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end from synchronous code."""

_NOTED = frozenset({
    "client_calls", "finish_reason", "messages", "pauses", "run_id", "status", "steps", "suspend_payload", "text",
    "tool_calls", "tool_results", "usage", "withheld",
})

_PAUSES = ("tool-call-approval", "tool-call-suspended")


@dataclass(slots=True, repr=False)
class AgentResult:
    """What a run came to, up to its end or its next pause.

    Attributes:
        status: ``success``, ``suspended`` or ``failed``.
        finish_reason: ``stop``, ``tool-calls`` (a client must run tools), ``max-steps``, ``suspended`` …
        text: What the model wrote in the whole run.
        suspend_payload: What the most recent pause's event carried; None when nothing waits.
        pauses: The payloads of everything that waits, the most recent last.
        tool_calls: The events of the calls of this part of the run, of a resumed turn too.
        tool_results: The events of how they ended.
        client_calls: ``{"toolCallId", "toolName", "args"}`` of calls that the client must run now.
        messages: New messages of this part of the run.
    """

    run_id: str
    status: str
    finish_reason: str | None
    text: str
    suspend_payload: dict[str, Any] | None
    pauses: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[Event] = field(default_factory=list)
    tool_results: list[Event] = field(default_factory=list)
    client_calls: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def __repr__(self) -> str:
        waits = f" waiting={len(self.pauses)}" if self.pauses else ""
        return f"<AgentResult run_id={self.run_id!r} {self.finish_reason}{waits} text={self.text[:60]!r}>"

    @property
    def resume_schema(self) -> str | None:
        """JSON Schema (text) of the answer that is waited for, or None."""
        return None if self.suspend_payload is None else self.suspend_payload.get("resumeSchema")


class AgentStream:
    """The events of a run, in order: an async iterator, to be read once. Nothing happens before it is read.

    Await it instead to read it to its end and get the `AgentResult`. Leave it early inside ``async with``, or by
    `aclose`: then the run does not go on here, and a run that is stored can be continued at once::

        async with agent.stream("…", user="ana") as stream:
            async for event in stream:
                break

    Attributes:
        run_id: The run's id; where a message answered a waiting run, that one's, once the stream is read.
        status: ``running`` until the end, then as in `AgentResult`; ``closed`` when it was left early.
        withheld: Once it has paused: the events of calls that have ended beside what waits. The model gets their
            results, and a stream tells of them, when the whole turn has ended; a page may show them now.
    """

    def __init__(self, run_id: str, source: Callable[[AgentStream], Events]) -> None:
        self.run_id = run_id
        self.status = "running"
        self.finish_reason: str | None = None
        self._texts: list[str] = []
        self.pauses: list[dict[str, Any]] = []
        self.withheld: list[Event] = []
        self.tool_calls: list[Event] = []
        self.tool_results: list[Event] = []
        self.client_calls: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = {}
        self.steps = 0
        self._source = source
        self._started = False
        self._events: Events | None = None

    def __repr__(self) -> str:
        return f"<AgentStream run_id={self.run_id!r} status={self.status!r}>"

    def __del__(self) -> None:
        if not self.__dict__.get("_started", True):
            warnings.warn("A stream of the agent was never read: nothing has happened.", RuntimeWarning, stacklevel=2)

    @property
    def text(self) -> str:
        """What the model has written so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return "".join(self._texts)

    @text.setter
    def text(self, text: str) -> None:
        self._texts = [text]

    @property
    def suspend_payload(self) -> dict[str, Any] | None:
        """What the most recent pause told; None when nothing waits."""
        return self.pauses[-1] if self.pauses and self.status in ("suspended", "closed") else None

    def __aiter__(self) -> AgentStream:
        return self

    async def __aenter__(self) -> AgentStream:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    async def __anext__(self) -> Event:
        if self.status == "closed":
            raise StopAsyncIteration
        if self._events is None:
            self._started = True
            # Weak, so that a stream which nobody holds any more ends at once and in order: this generator first.
            self._events = _read(weakref.proxy(self), self._source)
        return await anext(self._events)

    def __await__(self) -> Generator[Any, None, AgentResult]:
        return self.result().__await__()

    async def aclose(self) -> None:
        """Stop reading: the run does not go on here. What tools did is on record, and a stored pause stays."""
        self._started = True
        if self.status == "running":
            self.status = "closed"
        if self._events is not None:
            await self._events.aclose()

    async def result(self) -> AgentResult:
        """Read to the end; return what the run came to."""
        async for _ in self:
            pass
        return AgentResult(
            self.run_id, self.status, self.finish_reason, self.text, self.suspend_payload, self.pauses,
            self.tool_calls, self.tool_results, self.client_calls, self.messages, self.usage, self.steps,
        )

    def unread(self) -> None:
        """Note that something else reads, or leaves, what this stream stands for: it may go without a warning."""
        self._started = True

    def take_over(self, other: AgentStream) -> None:
        """Take over what another stream of the same run has noted."""
        for name in ("run_id", "status", "finish_reason", "text", "pauses", "tool_calls", "tool_results",
                     "client_calls", "messages", "usage", "steps", "withheld"):
            setattr(self, name, getattr(other, name))

    def _note(self, event: Event) -> None:
        kind, payload = event["type"], event["payload"]
        if kind == "text-delta":
            self._texts.append(payload["text"])
        elif kind in _PAUSES:
            self.pauses.append(payload)
        elif kind == "tool-call":
            self.tool_calls.append(event)
        elif kind in ("tool-result", "tool-error", "tool-output-denied"):
            self.tool_results.append(event)
        elif kind == "step-finish":
            self.steps += 1
            self.messages += payload["messages"]
        elif kind == "finish":
            self.status, self.finish_reason = "success", payload["stepResult"]["reason"]
            self.usage, self.client_calls = payload["output"]["usage"], payload["output"]["toolCalls"]


async def _read(stream: AgentStream, source_of: Callable[[AgentStream], Events]) -> Events:
    """Yield a stream's events and note on it what they tell, as long as somebody holds it."""
    source = source_of(stream)
    try:
        async for event in source:
            stream._note(event)
            yield event
    except GeneratorExit:
        raise  # it was left early
    except BaseException:
        with suppress(ReferenceError):
            stream.status, stream.finish_reason = "failed", "error"
        raise
    finally:
        await source.aclose()
    if stream.status == "running":
        stream.status, stream.finish_reason = "suspended", "suspended"


class SyncStream:
    """The same for synchronous code: an iterator of events. ``result()`` reads to the end; ``close()`` leaves early."""

    def __init__(self, stream: AgentStream, run: Run) -> None:
        self._stream = stream
        self._run = run
        stream.unread()  # who may not read it here is told so, and by an error

    def __getattr__(self, name: str) -> Any:
        if name not in _NOTED:
            raise AttributeError(name)
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Event]:
        try:
            while True:
                try:
                    event = self._run(_next_of(self._stream))
                except StopAsyncIteration:
                    return
                yield event
        finally:
            self.close()

    def result(self) -> AgentResult:
        """Read to the end; return what the run came to."""
        result: AgentResult = self._run(self._stream.result())
        return result

    def close(self) -> None:
        """Stop reading; see `AgentStream.aclose`."""
        self._run(self._stream.aclose())


async def _next_of(stream: AgentStream) -> Event:
    return await anext(stream)
