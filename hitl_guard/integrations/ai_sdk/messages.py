"""What ``useChat`` posts: ``{id, messages, trigger, messageId?, …}``, read strictly; nothing of it is evidence.

The whole conversation comes from the client each time. Its text is what the user says. What it says about approvals
are claims (`hitl_guard.protocols`), and what it says about results of tools is its own word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ... import fingerprint
from ...errors import CanonicalizationError
from ...lifecycle.desk import new_id
from ...lifecycle.refusals import DEFAULT_DENIAL
from ...models import MAX_FIELD_BYTES, Principal
from ...protocols import Claim, claims_in
from ...protocols.ui_messages import FORMAT
from ...toolcalls import as_text
from .parts import ENDED

MAX_MESSAGES = 2_000
"""Messages in one post."""

MAX_PARTS = 20_000
"""Parts of one message."""

MAX_LIVE = 200
"""Answers in one post to requests that wait still, or of which the client does not know what came of them."""

MAX_WAITING = 1_000
"""Calls that wait in the message that goes on; each is a look into the store."""

MAX_CLAIMS = 10_000
"""Answered approvals in one post, old ones included; each is a look into the store."""

MAX_ID = 256
"""Characters of a chat's or a message's id."""

_TRIGGERS = frozenset({"submit-message", "regenerate-message"})
_PART = re.compile(r"/messages/\d+/parts/\d+")


@dataclass(frozen=True, slots=True)
class ChatId:
    """A chat of one person: what the client calls it, whose it is by the host's login, and the loop's name.

    Every run of a chat has an id that begins with a digest of both, and is signed into each request as its run. So an
    approval of one chat, or of one person, answers nothing in another.
    """

    id: str
    user: Principal
    loop: str = ""

    @property
    def prefix(self) -> str:
        """What the ids of this chat's runs begin with."""
        return fingerprint.place("chat", self.user.tenant, self.user.id, self.id, self.loop).hex()[:32] + "."

    def new_run(self) -> str:
        """Return the id of a new run in this chat."""
        return self.prefix + new_id()

    def owns(self, run_id: str) -> bool:
        """Whether a run is one of this chat's."""
        return run_id.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Post:
    """One post, read.

    Attributes:
        chat: The chat's id, as the client says.
        messages: The UI messages, each ``{id, role, parts}``.
        continued: The assistant's message that this continues, or None: a new one begins.
        claims: The answered approvals in it.
        resume: ``(run id, tool-call or suspension id, data)``: the answer to a tool's own question, or None.
        regenerates: Whether the last answer is to be made anew.
    """

    chat: str
    messages: tuple[dict[str, Any], ...] = field(repr=False)
    continued: dict[str, Any] | None = field(repr=False)
    claims: tuple[Claim, ...] = field(repr=False)
    resume: tuple[str, str | None, Any] | None = field(default=None, repr=False)
    regenerates: bool = False

    @property
    def message_id(self) -> str | None:
        """The id of the message that this continues, or None."""
        return None if self.continued is None else str(self.continued["id"])

    @property
    def known(self) -> Sequence[Mapping[str, Any]]:
        """The parts of the message that this continues: the only ones that the client can still move."""
        return () if self.continued is None else self.continued["parts"]

    @property
    def held(self) -> set[str]:
        """The ids of requests and questions that the client has, wherever in its history."""
        found: set[str] = set()
        for part in (part for message in self.messages for part in message["parts"]):
            approval = part.get("approval")
            named = approval.get("id") if type(approval) is dict else part.get("id")
            found |= {named} if type(named) is str else set()
        return found

    @property
    def shown(self) -> set[tuple[str, str]]:
        """The tool calls of the message that this continues, each with the request that is shown for it."""
        return {(part["toolCallId"], asked) for part in self.known if (asked := _asked(part)) is not None}

    @property
    def ended(self) -> set[tuple[str, str, str | None]]:
        """The calls that the client has with their end, wherever: call id, tool, and the request that allowed it."""
        parts = (part for message in self.messages for part in message["parts"])
        return {(part["toolCallId"], _tool(part), _asked(part)) for part in parts if _is_ended(part)}

    @property
    def new(self) -> list[dict[str, Any]]:
        """What was said since the assistant's last message, in the chat format: what a stored conversation lacks."""
        last = max((place for place, one in enumerate(self.messages) if one["role"] == "assistant"), default=-1)
        return [*chat_messages(self.messages[last + 1 :])]


def read_post(body: Any) -> Post:
    """Return what a body says that was read as strict JSON.

    Raises:
        CanonicalizationError: it is no post of ``useChat`` (``unsupported-value``, detail ``post``), or has too many
            messages, parts or approvals (``too-large``).
        InvalidApprovalError: an answered approval in it is malformed.
    """
    if type(body) is not dict:
        _no("it must be an object")
    chat, messages = _id(body, "id"), body.get("messages")
    trigger = body.get("trigger", "submit-message")
    if type(trigger) is not str or trigger not in _TRIGGERS:
        _no("'trigger' is none that is known here")
    if type(messages) is not list or not messages:
        _no("'messages' must be a list, and not empty")
    if len(messages) > MAX_MESSAGES:
        raise CanonicalizationError("There are too many messages: begin a new chat.", code="too-large", detail="post")
    for message in messages:
        _check_message(message)
    continued = _continued(body, messages)
    waiting = [] if continued is None else [
        part for part in continued["parts"] if _asked(part) is not None and not _is_ended(part)
    ]
    if len(waiting) > MAX_WAITING:
        raise CanonicalizationError("Too many calls wait in one message.", code="too-large", detail="post")
    claims, _ = claims_in({"messages": [_looked_at(message) for message in messages]}, most=MAX_CLAIMS)
    if any(claim.format != FORMAT for claim in claims):
        _no("an approval in it is of another format")
    # Models and tools write what stands inside a part: nothing there is a person's answer.
    claims = [claim for claim in claims if _PART.fullmatch(claim.path)]
    return Post(
        chat, tuple(messages), continued, tuple(claims), _resume(body),
        regenerates=trigger == "regenerate-message",
    )


def _continued(body: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the assistant's message that a post continues: the one that it names, else the last, if that is one.

    An answer may be given in any message, and the client goes on there.
    """
    own = [message for message in messages if message["role"] == "assistant"]
    named = [message for message in own if message["id"] == body.get("messageId")]
    return named[-1] if named else own[-1] if own and own[-1] is messages[-1] else None


def _check_message(message: Any) -> None:
    if type(message) is not dict or message.get("role") not in ("user", "assistant"):
        _no("a message is an object whose 'role' is user or assistant")  # the system's messages are the server's
    _id(message, "id")
    parts = message.get("parts")
    if type(parts) is not list or not all(type(part) is dict and type(part.get("type")) is str for part in parts):
        _no("the 'parts' of a message are objects with a 'type'")
    if len(parts) > MAX_PARTS:
        raise CanonicalizationError("A message has too many parts.", code="too-large", detail="post")
    if message["role"] == "user" and any("approval" in part or "toolCallId" in part for part in parts):
        _no("a message of the user has no tool parts")


def _asked(part: Mapping[str, Any]) -> str | None:
    """Return the id of the request that a tool part shows, or None."""
    approval = part.get("approval")
    named = approval.get("id") if type(approval) is dict else None
    return named if type(named) is str and type(part.get("toolCallId")) is str else None


def _looked_at(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without its data parts and metadata: what a tool asked stands there, and looks like anything."""
    parts = [part for part in message["parts"] if not part["type"].startswith("data-")]
    return {name: value for name, value in message.items() if name != "metadata"} | {"parts": parts}


def _resume(body: Mapping[str, Any]) -> tuple[str, str | None, Any] | None:
    if "resumeData" not in body:
        return None
    call = body.get("toolCallId")
    if call is not None and (type(call) is not str or not call):
        _no("'toolCallId' must be a non-empty string")
    return _id(body, "runId"), call, body["resumeData"]


def _id(node: Mapping[str, Any], name: str) -> str:
    value = node.get(name)
    if type(value) is not str or not 0 < len(value) <= MAX_ID:
        _no(f"'{name}' must be a string of 1 to {MAX_ID} characters")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        _no(f"'{name}' holds half a character")
    if len(value.encode()) > MAX_FIELD_BYTES:
        _no(f"'{name}' is longer than {MAX_FIELD_BYTES} bytes")
    return value


def _no(what: str) -> NoReturn:
    raise CanonicalizationError(f"This is no post of a chat: {what}.", detail="post")


# -- for a loop that keeps no conversation ---------------------------------------------------------------------------


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield UI messages in the chat format (roles user, assistant and tool), for a model.

    A tool call without an end is left out, as the SDK does: a later message of the user passed over it. Results are the
    client's word.
    """
    for message in messages:
        if message["role"] == "user":
            yield {"content": _text(message["parts"]), "role": "user"}
        else:
            for step in _steps(message["parts"]):
                yield from _of_step(step)


def _steps(parts: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    step: list[Mapping[str, Any]] = []
    for part in parts:
        if part["type"] == "step-start":
            yield step
            step = []
        else:
            step.append(part)
    yield step


def _of_step(parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    ended = [part for part in parts if _is_ended(part)]
    text = _text(parts)
    said: dict[str, Any] = {"content": text or None, "role": "assistant"}
    if ended:
        said["tool_calls"] = [
            {
                "function": {"arguments": _json(part.get("input")), "name": _tool(part)}, "id": part["toolCallId"],
                "type": "function",
            }
            for part in ended
        ]
    if text or ended:
        yield said
    for part in ended:
        yield {"content": _result(part), "role": "tool", "tool_call_id": part["toolCallId"]}


def told_results(parts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str | None]]:
    """Return ``(part id, result as the model reads it)`` of tool parts, in order. None: it has not ended."""
    return [
        (part["toolCallId"], _result(part) if _is_ended(part) else None) for part in parts
        if type(part.get("toolCallId")) is str
    ]


def _is_ended(part: Mapping[str, Any]) -> bool:
    kind, state = part["type"], part.get("state")
    named = kind.startswith("tool-") or (kind == "dynamic-tool" and type(part.get("toolName")) is str)
    return named and type(state) is str and state in ENDED and type(part.get("toolCallId")) is str


def _tool(part: Mapping[str, Any]) -> str:
    return str(part["toolName"] if part["type"] == "dynamic-tool" else part["type"][5:])


def _result(part: Mapping[str, Any]) -> str:
    if part["state"] == "output-available":
        return as_text(part.get("output"))
    if part["state"] == "output-error":
        return f"Error: {as_text(part.get('errorText'))}"
    approval = part.get("approval")
    reason = approval.get("reason") if type(approval) is dict else None
    return reason if type(reason) is str and reason else DEFAULT_DENIAL


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(map(_said, parts))


def _said(part: Mapping[str, Any]) -> str:
    if part["type"] == "file":
        name = part.get("filename")
        return f"[A file was attached{f': {name}' if type(name) is str else ''}. It is not passed on.]"
    return part["text"] if part["type"] == "text" and type(part.get("text")) is str else ""


def _json(value: Any) -> str:
    # Nothing is signed here: what a browser made of a number is what the model reads.
    return json.dumps(value if type(value) is dict else {}, ensure_ascii=False, separators=(",", ":"))
