"""What a caller holds while a run goes on: its events, and at the end its result."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError
from .events import Event, Events

_PAUSES = ("tool-call-approval", "tool-call-suspended")


@dataclass(slots=True)
class AgentResult:
    """What a run came to, up to its end or its next pause.

    Attributes:
        status: ``success``, ``suspended`` or ``failed``.
        finish_reason: ``stop``, ``tool-calls`` (a client must run tools), ``max-steps``, ``suspended`` …
        suspend_payload: Of the most recent pause: what the event carried; None when nothing waits.
        pauses: The payloads of every pause of this part of the run, in order.
        text: What the model wrote, of a resumed turn from its beginning.
        tool_calls, tool_results: The events of these types; the calls of a resumed turn, too. messages: New messages of
            the run.
    """

    run_id: str
    status: str
    finish_reason: str | None
    text: str
    suspend_payload: dict[str, Any] | None
    pauses: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[Event] = field(default_factory=list)
    tool_results: list[Event] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    @property
    def resume_schema(self) -> str | None:
        """JSON Schema (text) of the answer that is waited for, or None."""
        return None if self.suspend_payload is None else self.suspend_payload.get("resumeSchema")


class AgentStream:
    """The events of a run, in order: an async iterator, to be read once. Nothing happens before it is read.

    Await it instead to read it to its end and get the `AgentResult`.

    Attributes:
        run_id: The run's id. status: ``running`` until the end, then as in `AgentResult`.
    """

    def __init__(self, run_id: str, source: Callable[[AgentStream], Events]) -> None:
        self.run_id = run_id
        self.status = "running"
        self.finish_reason: str | None = None
        self.text = ""
        self.pauses: list[dict[str, Any]] = []
        self.tool_calls: list[Event] = []
        self.tool_results: list[Event] = []
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
    def suspend_payload(self) -> dict[str, Any] | None:
        """What the most recent pause told; None when nothing waits."""
        return self.pauses[-1] if self.pauses and self.status == "suspended" else None

    def __aiter__(self) -> Events:
        if self._events is None:
            self._started = True
            self._events = self._read()
        return self._events

    async def __anext__(self) -> Event:
        return await anext(self.__aiter__())

    def __await__(self) -> Generator[Any, None, AgentResult]:
        return self.result().__await__()

    async def aclose(self) -> None:
        """Stop reading: the run does not go on here. What tools did is on record, and a stored pause stays."""
        self._started = True
        if self._events is not None:
            with suppress(AttributeError):
                await self._events.aclose()

    async def result(self) -> AgentResult:
        """Read to the end; return what the run came to."""
        async for _ in self:
            pass
        return AgentResult(
            self.run_id, self.status, self.finish_reason, self.text, self.suspend_payload, self.pauses,
            self.tool_calls, self.tool_results, self.messages, self.usage, self.steps,
        )

    async def _read(self) -> Events:
        source = self._source(self)
        try:
            async for event in source:
                self._note(event)
                yield event
        except BaseException:
            self.status, self.finish_reason = "failed", "error"
            raise
        finally:
            await source.aclose()
        if self.status == "running":
            self.status, self.finish_reason = "suspended", "suspended"

    def _note(self, event: Event) -> None:
        kind, payload = event["type"], event["payload"]
        if kind == "text-delta":
            self.text += payload["text"]
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
            self.usage = payload["output"]["usage"]


class SyncStream:
    """The same for synchronous code: an iterator of events. ``result()`` reads to the end."""

    def __init__(self, stream: AgentStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Event]:
        self._stream._started = True  # who may not read it here is told so, and by an error
        runner = new_runner()
        try:
            while True:
                try:
                    event = runner.run(anext_of(self._stream))
                except StopAsyncIteration:
                    return
                yield event
        finally:
            runner.run(self._stream.aclose())
            runner.close()

    def result(self) -> AgentResult:
        """Read to the end; return what the run came to."""
        self._stream._started = True
        with new_runner() as runner:
            return runner.run(self._stream.result())


async def anext_of(stream: AgentStream) -> Event:
    """Return a stream's next event."""
    return await anext(stream)


def new_runner() -> asyncio.Runner:
    """Return a runner for synchronous code.

    Raises:
        ConfigurationError: this thread has a running event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.Runner()
    raise ConfigurationError("An event loop runs in this thread: await the agent's own methods instead.")
