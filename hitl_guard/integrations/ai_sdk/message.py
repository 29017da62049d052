"""One assistant message as chunks of the UI message stream: start, steps, texts, questions of tools, end."""

from __future__ import annotations

from typing import Any

from ...agent.shapes import well_formed
from .parts import Chunk, usable
from .texts import STREAM_FAILED
from .values import bounded, sendable

_REASONS = {
    "content-filter": "content-filter", "content_filter": "content-filter", "end_turn": "stop", "error": "error",
    "failed": "error", "function_call": "tool-calls", "length": "length", "max_tokens": "length", "stop": "stop",
    "stop_sequence": "stop", "suspended": "tool-calls", "tool-calls": "tool-calls", "tool_calls": "tool-calls",
    "tool_use": "tool-calls",
}

_SUSPENDED = "data-tool-call-suspended"


def finish_reason(reason: str | None) -> str:
    """Return a model's or a loop's finish reason as the SDK knows it; ``other`` for any that it does not know."""
    return _REASONS.get(reason or "", "other")


class MessageChunks:
    """What the chunks of any message have in common. After its end nothing more is said of it.

    Attributes:
        reason: With which finish reason `end` ends the message.
        fails_last: Whether `fail` lets the message go on, and `end` ends it with the error. failures: How often it did.
    """

    def __init__(self) -> None:
        self.reason: str | None = "stop"
        self.fails_last, self.failures = False, 0
        self._failure: str | None = None
        self._started = self._ended = self._step = False
        self._open: tuple[str, str] | None = None
        self._newest: dict[str, str] = {}
        self._data: dict[str, Any] = {}

    # -- the message and its steps -------------------------------------------------------------------------------

    def start(self, message_id: str | None = None, metadata: Any = None) -> list[Chunk]:
        """Start the message; nothing if it was started.

        Args:
            message_id: The message's id. Where one goes on: its own, or None.
            metadata: JSON data for the message, or None.
        """
        if self._started or self._ended:
            return []
        self._started = True
        return [{
            "type": "start", **({} if message_id is None else {"messageId": well_formed(message_id)}),
            **({} if metadata is None else {"messageMetadata": sendable(metadata)}),
        }]

    def start_step(self) -> list[Chunk]:
        """Start a step: one turn of the model."""
        if self._ended:
            return []
        chunks = [*self.start(), *self.finish_step(), {"type": "start-step"}]
        self._step = True
        return chunks

    def finish_step(self) -> list[Chunk]:
        """Finish the step, if there is one."""
        chunks = self._closed()
        if self._step:
            self._step = False
            chunks.append({"type": "finish-step"})
        return chunks

    def finish(self, reason: str | None = "stop") -> list[Chunk]:
        """End the message; ``tool-calls`` where a call waits."""
        return self._last({"type": "finish", "finishReason": finish_reason(reason)})

    def end(self) -> list[Chunk]:
        """End the message with `reason`, or with the error of a run that failed, unless it has ended."""
        return self.finish(self.reason) if self._failure is None else self.error(self._failure)

    def fail(self, text: str) -> list[Chunk]:
        """Note that a run failed: end the stream with an error, now or (`fails_last`) when the message ends."""
        if not self.fails_last:
            return self.error(text)
        self._failure, self.failures = text, self.failures + 1
        return self._closed()

    def error(self, text: str = STREAM_FAILED) -> list[Chunk]:
        """End the stream with an error, and the client's chat with it. ``text`` is shown: no secrets, no details."""
        return self._last({"type": "error", "errorText": well_formed(text)})

    def abort(self, reason: str | None = None) -> list[Chunk]:
        """End the stream because somebody stopped it."""
        return self._last({"type": "abort"} | ({} if reason is None else {"reason": well_formed(reason)}))

    def _last(self, chunk: Chunk) -> list[Chunk]:
        chunks = [*self.start(), *self.finish_step(), chunk] if not self._ended else []
        self._ended = True
        return chunks

    def _say(self, *chunks: Chunk, step: bool = False) -> list[Chunk]:
        if self._ended or not chunks:
            return []
        return [*(self.start_step() if step and not self._step else self.start()), *chunks]

    # -- texts ---------------------------------------------------------------------------------------------------

    def text(self, text_id: str, delta: str) -> list[Chunk]:
        """Add to a text; one with a new id begins a new part."""
        return self._added("text", text_id, delta)

    def reasoning(self, reasoning_id: str, delta: str) -> list[Chunk]:
        """Add to the model's reasoning, as `text`."""
        return self._added("reasoning", reasoning_id, delta)

    def end_text(self) -> list[Chunk]:
        """End the text or reasoning that is open, if any; whatever follows does it too."""
        return self._closed()

    def _added(self, kind: str, id_: str, delta: str) -> list[Chunk]:
        if self._ended:
            return []
        chunks: list[Chunk] = []
        own = well_formed(id_)
        if self._open != (kind, own):
            chunks = [*self._closed(), *self._say({"type": f"{kind}-start", "id": own}, step=True)]
            self._open = kind, own
        return [*chunks, {"type": f"{kind}-delta", "id": own, "delta": well_formed(delta)}]

    def _closed(self) -> list[Chunk]:
        if self._open is None or self._ended:
            return []
        (kind, id_), self._open = self._open, None
        return [{"type": f"{kind}-end", "id": id_}]

    # -- questions of tools --------------------------------------------------------------------------------------

    def suspended(
        self, call_id: str, payload: Any, *, suspension_id: str, run_id: str, tool: str, resume_schema: Any = None
    ) -> list[Chunk]:
        """Tell that a tool waits for an answer: a data part ``data-tool-call-suspended`` with the question.

        The page answers with ``resumeData``, ``runId`` and ``toolCallId`` (the suspension's id, which is exact) in the
        body of a post. It marks the question answered by `resumed`'s signal, never by the shape of a tool's output.

        Args:
            payload: What the tool asks. resume_schema: JSON Schema of the answer, or None.
            suspension_id: Names the question. run_id: The outermost run. tool: The tool that asks.
        """
        question = self._question(call_id, payload, suspension_id, run_id, tool, resume_schema)
        return self._asking(suspension_id, question | {"resumed": False})

    def resumed(
        self, call_id: str, payload: Any, *, suspension_id: str, run_id: str, tool: str, resume_schema: Any = None
    ) -> list[Chunk]:
        """Tell that a question is answered: its data part as it was, with ``resumed: true``, and the signal.

        The signal is a transient part ``data-tool-call-resumed``: ``onData`` gets it, the message does not keep it.
        """
        question = self._data.get(f"{_SUSPENDED}:{suspension_id}")
        if type(question) is not dict:
            question = self._question(call_id, payload, suspension_id, run_id, tool, resume_schema)
        told = self._asking(suspension_id, question | {"resumed": True})
        return [*told, *self.signal(call_id, "suspension", suspension_id)]

    def signal(self, call_id: str, kind: str, pause_id: str) -> list[Chunk]:
        """Tell that a pause is over. ``kind``: ``approval`` or ``suspension``; ``pause_id``: its id."""
        data = {"kind": kind, "pauseId": well_formed(pause_id), "toolCallId": self._id(call_id)}
        return self._say({"type": "data-tool-call-resumed", "data": data, "transient": True})

    def _question(
        self, call_id: str, payload: Any, suspension_id: str, run_id: str, tool: str, schema: Any
    ) -> dict[str, Any]:
        return {
            "resumeSchema": bounded(schema), "runId": well_formed(run_id), "suspendPayload": bounded(payload),
            "suspensionId": well_formed(suspension_id), "toolCallId": self._id(call_id), "toolName": well_formed(tool),
        }

    def _asking(self, suspension_id: str, data: dict[str, Any]) -> list[Chunk]:
        self._data[f"{_SUSPENDED}:{suspension_id}"] = data
        return self._say({"type": _SUSPENDED, "id": well_formed(suspension_id), "data": sendable(data)})

    def _id(self, call_id: str) -> str:
        """Return how the client knows a call that a loop names so."""
        own = usable(call_id)
        return self._newest.get(own, own)
