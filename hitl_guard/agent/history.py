"""The conversation of a run: chat messages in memory, immutable segments in the store, one digest over all of them.

A message is kept in the chat format. What only hosts need (how a call ended, who approved it) stands beside it under
``state`` and ``approval`` and is left out of what the model gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import fingerprint
from ..canonical import decode
from ..errors import CanonicalizationError, ConfigurationError, InvalidSignatureError
from ..lifecycle.ask import stored_bytes
from ..rows import Segment
from ..store.base import AddSegment, Step, Store
from .shapes import copied
from .state import Call, Run

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
UNANSWERED = "No result: the user went on without it."
"""What the model is told of a call that the client was to run, where the conversation went on."""

_OURS = ("approval", "args", "json", "state", "value")


class History:
    """The conversation as one run sees it.

    Attributes:
        messages: All of it, in order. unsaved: The run's newest messages, which the store does not have yet.
        seen: How often the run has used each tool-call id.
    """

    def __init__(self, before: Iterable[dict[str, Any]] = ()) -> None:
        self.messages: list[dict[str, Any]] = list(before)
        self.chat: list[dict[str, Any]] = []
        self._unanswered: list[str] = []
        for message in self.messages:
            self._tell(message)
        self.unsaved: list[dict[str, Any]] = []
        self._before = len(self.messages)
        self.seen: Counter[str] = Counter()

    def add(self, *messages: dict[str, Any], saved: bool = False) -> None:
        """Append messages of this run."""
        for message in messages:
            self.messages.append(message)
            self._tell(message)
            if message["role"] == "assistant":
                self.seen.update(_ids(message.get("tool_calls")))
        if not saved:
            self.unsaved += messages

    def _tell(self, message: dict[str, Any]) -> None:
        """Add a message to what the model reads. Calls of the client's tools that a message passes over end before it:
        providers refuse a conversation in which a call has no answer.
        """
        if message["role"] == "tool":
            with suppress(ValueError):
                self._unanswered.remove(message.get("tool_call_id", ""))
        else:
            self.chat += [{"content": UNANSWERED, "role": "tool", "tool_call_id": id_} for id_ in self._unanswered]
            self._unanswered = [*_ids(message.get("tool_calls"))] if message["role"] == "assistant" else []
        # What a model's adapter does to what it gets reaches neither the store nor what the run looks at.
        self.chat.append(copied(_for_model(message)))

    def written(self) -> str:
        """Return what the model wrote in this run, as one text."""
        own = (one.get("content") for one in self.messages[self._before :] if one["role"] == "assistant")
        return "".join(one for one in own if isinstance(one, str))

    def results(self) -> list[dict[str, Any]]:
        """Return what the calls of this run came to, in order: ``args, result, toolCallId, toolName``."""
        found: list[dict[str, Any]] = []
        functions: Iterator[dict[str, Any]] = iter(())
        for message in self.messages[self._before :]:
            if message["role"] == "assistant":
                calls = message.get("tool_calls")
                functions = iter(calls if isinstance(calls, list) else ())
            elif "state" in message:  # ours: it follows its calls, in their order
                call = next(one for one in functions if one["id"] == message["tool_call_id"])
                if message["state"] == "result":
                    args = message.get("args") or decode(call["function"]["arguments"].encode())
                    found.append({
                        "args": args, "result": _value(message), "toolCallId": call["id"],
                        "toolName": call["function"]["name"],
                    })
        return found

    def steps(self, run: Run, key: bytes, seq: int) -> tuple[list[Step], str]:
        """Return the step that stores the unsaved messages, and the digest of the conversation with them."""
        if not self.unsaved:
            return [], run.digest
        body = stored_bytes(self.unsaved)
        segment = Segment(bytes.fromhex(run.thread), seq, key, body)
        return [AddSegment(segment)], fingerprint.history_digest(run.digest, body)


def _value(message: dict[str, Any]) -> Any:
    """Return the result that a tool message of ours tells."""
    if "value" in message:
        return message["value"]
    if message.get("json"):
        with suppress(CanonicalizationError):
            return decode(message["content"].encode())
    return message["content"]


def _ids(calls: object) -> list[str]:
    """Return the tool-call ids of a message that anybody may have written."""
    found = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    return [one for one in found if isinstance(one, str)]


def begun(store: Store, run: Run, *, last_messages: int | None) -> History:
    """Return a conversation as a new run finds it, and note in the run what that was."""
    segments = store.last_segments(bytes.fromhex(run.thread), last_messages)
    run.digest, messages = _folded(segments)
    run.first, run.base = (segments[0].seq, segments[-1].seq + 1) if segments else (0, 0)
    run.skipped = 0 if last_messages is None else _skipped(messages, last_messages)
    return History(messages[run.skipped :])


def restored(store: Store, run: Run, key: bytes) -> History:
    """Return the conversation of a suspended run, exactly as it was.

    Raises:
        InvalidSignatureError: it is not what was signed: messages were changed, added, removed or reordered.
    """
    thread = bytes.fromhex(run.thread)
    segments = store.segments(thread, first=run.first, below=run.base, run=key)
    before = [segment for segment in segments if segment.seq < run.base]
    own = [segment for segment in segments if segment.seq >= run.base]
    digest, messages = _folded([*before, *own])
    if digest != run.digest or len(own) != run.stored:
        raise InvalidSignatureError(
            "The stored conversation is not the one that was suspended; start a new run.", detail="history"
        )
    count = len(messages) - sum(len(_messages(segment)) for segment in own)
    history = History(messages[run.skipped : count])
    history.add(*messages[count:], saved=True)
    return history


def next_seq(store: Store, thread: bytes) -> int:
    """Return the place of a conversation's next segment."""
    last = store.last_segments(thread, 1)
    return last[-1].seq + 1 if last else 0


def recalled(store: Store, thread: bytes) -> list[dict[str, Any]]:
    """Return every stored message of a conversation, in order."""
    return _folded(store.last_segments(thread, None))[1]


def _folded(segments: Sequence[Segment]) -> tuple[str, list[dict[str, Any]]]:
    digest, messages = "", []
    for segment in segments:
        digest = fingerprint.history_digest(digest, segment.body)
        messages += _messages(segment)
    return digest, messages


def _messages(segment: Segment) -> list[dict[str, Any]]:
    unreadable = InvalidSignatureError("A stored message cannot be read.", detail="history")
    try:
        found = decode(segment.body)
    except CanonicalizationError as error:
        raise unreadable from error
    if not isinstance(found, list) or not all(map(_is_message, found)):
        raise unreadable
    return found


def _is_message(given: object) -> bool:
    role = given.get("role") if isinstance(given, Mapping) else None
    return isinstance(role, str) and role in _ROLES


def _skipped(messages: list[dict[str, Any]], count: int) -> int:
    """Return how many to leave out for the last ``count``: no turn's results stand without the calls they answer."""
    start = max(0, len(messages) - count)
    while start < len(messages) and messages[start]["role"] == "tool":
        start += 1
    return start


def _for_model(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in _OURS}


def given(messages: object) -> list[dict[str, Any]]:
    """Return what a host passes as messages in the chat format: a text is one message of the user.

    Raises:
        ConfigurationError: it is neither a text nor a list of chat messages.
        CanonicalizationError: a message cannot be stored.
    """
    if isinstance(messages, str):
        messages = [{"content": messages, "role": "user"}]
    if not isinstance(messages, (list, tuple)) or not all(map(_is_message, messages)):
        raise ConfigurationError("Messages are a text, or a list of chat messages with 'role' and 'content'.")
    plain: list[dict[str, Any]] = decode(stored_bytes([dict(one) for one in messages]))
    return [_for_model(message) for message in plain]


def of_turn(run: Run) -> list[dict[str, Any]]:
    """Return the messages of a turn that has ended: what the model wrote, and an answer to each call."""
    if not run.calls:
        return [{"content": run.text, "role": "assistant"}] if run.text else []
    said: dict[str, Any] = {"content": run.text or None, "role": "assistant"}
    said["tool_calls"] = [_chat_call(call) for call in run.calls]
    return [said, *(answered(call) for call in run.calls if call.outcome is not None and call.outcome.kind != "client")]


def answered(call: Call) -> dict[str, Any]:
    """Return the tool message of a call that has ended."""
    outcome = call.outcome
    if outcome is None:
        raise ConfigurationError("A call that has not ended has no answer.")
    state = {"denied": "output-denied", "error": "output-error"}.get(outcome.kind, "result")
    message: dict[str, Any] = {"content": outcome.told, "role": "tool", "state": state, "tool_call_id": call.id}
    if state == "result" and outcome.said is not None:
        message["value"] = outcome.value
    elif state == "result" and not isinstance(outcome.value, str):
        message["json"] = True
    if outcome.args is not None:
        message["args"] = outcome.args
    return message if outcome.approval is None else message | {"approval": outcome.approval}


def _chat_call(call: Call) -> dict[str, Any]:
    changed = call.outcome is not None and call.outcome.kind == "client" and call.outcome.args
    arguments = stored_bytes(changed or call.args or {}).decode()  # a client runs what stands here
    return {"function": {"arguments": arguments, "name": call.name}, "id": call.id, "type": "function"}
