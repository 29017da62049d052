"""Tool parts of a UI message as the client has them: how it knows a call, and what it holds of it.

What comes from the client is its own word. It only says what must be sent for its message to tell the truth.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...agent.shapes import well_formed
from .values import obstacle, sendable

Chunk = dict[str, Any]

ENDED = frozenset({"output-available", "output-error", "output-denied"})
"""The states of a tool part whose call has ended."""

UNKNOWN: Any = object()
"""What nobody here knows of a part; no JSON value is this."""

_NUMBERED = re.compile(r"~[0-9]+\Z")
_FRESH = re.compile(r"[A-Za-z0-9_-]{22}")
_PREFIXED = re.compile(r"(?:~?[A-Za-z0-9_-]{22}|\.)/")


def part_id(call_id: str, occurrence: int = 0, run_id: str | None = None) -> str:
    """Return the tool-call id by which the client knows a call: the call's own, wherever that is unique.

    Different calls have different ids, and a call has the same one in every stream, so that a part is found again.

    Args:
        call_id: The tool-call id as the model or its provider wrote it, the empty one too.
        occurrence: The call's index among calls of its run with an equal id.
        run_id: The run of a sub-agent; None for the chat's own runs.
    """
    own = _own(call_id, occurrence)
    if run_id is not None:
        return f"{_short(run_id)}/{own}"
    return f"./{own}" if _PREFIXED.match(own) else own


def repeated_id(call_id: str, occurrence: int, run_id: str) -> str:
    """Return the id of a call of one of the chat's own runs where a call of another run has the plain one.

    One message may hold several runs, and models repeat ids. It names the run, so that the way back is exact.
    """
    return f"~{_short(run_id)}/{_own(call_id, occurrence)}"


def named_call(id_: str) -> str:
    """Return the tool-call id of the call that a part's id stands for (well-formed)."""
    own = id_ if _PREFIXED.match(id_) is None else id_.partition("/")[2]
    return _NUMBERED.sub("", own)


def _own(call_id: str, occurrence: int) -> str:
    own = well_formed(call_id)
    return f"{own}~{occurrence}" if occurrence or not own or _NUMBERED.search(own) else own


def _short(run_id: str) -> str:
    """Return 22 characters that stand for a run: the random end of its id, where that is one of ours."""
    fresh = run_id.rpartition(".")[2]
    if _FRESH.fullmatch(fresh):
        return fresh
    return base64.urlsafe_b64encode(hashlib.sha256(well_formed(run_id).encode()).digest()[:16]).decode().rstrip("=")


def usable(call_id: str) -> str:
    """Return a tool-call id as the client can have it: itself, unless it is empty or no well-formed text."""
    return call_id if call_id and well_formed(call_id) == call_id else part_id(call_id)


def is_inner(id_: str) -> bool:
    """Whether a part is a sub-agent's call (see `part_id`)."""
    return _PREFIXED.match(id_) is not None and not id_.startswith(("./", "~"))


def call_chunks(
    id_: str, name: str, value: Any, *, dynamic: bool = False, title: str | None = None, quiet: bool = False
) -> list[Chunk]:
    """Return the chunks that show a call.

    Args:
        id_: See `part_id`. value: Its arguments; they must be sendable.
        quiet: Show it without the client's ``onToolCall``, by which a browser runs the tools that are its own.
    """
    call: Chunk = {"toolCallId": id_, "toolName": name}
    call |= ({"dynamic": True} if dynamic else {}) | ({} if title is None else {"title": title})
    if quiet:
        delta = {"type": "tool-input-delta", "toolCallId": id_, "inputTextDelta": json.dumps(value, ensure_ascii=False)}
        return [{"type": "tool-input-start", **call}, delta]
    return [{"type": "tool-input-available", **call, "input": value}]


@dataclass(slots=True)
class Part:
    """One tool part, as the client has it by now.

    Attributes:
        name, input, dynamic: The call as it is shown; `UNKNOWN` where only the part's id is known.
        approval_id: Of its approval; None without one. approved: The answer in that, None without one.
        fresh: Whether it stands in the client's last step: only there its arguments can still be replaced.
        waiting: Whether somebody is asked in this stream. ended: Whether it has an output, an error or a denial.
        moved: Whether this stream did anything that keeps the client from posting its answer again.
        shown: Whether the client has it. Else it is kept back: its arguments cannot be sent as they are.
        ours: Whether this stream began it.
    """

    name: Any = UNKNOWN
    input: Any = UNKNOWN
    dynamic: Any = UNKNOWN
    title: str | None = None
    approval_id: Any = None
    approved: Any = None
    fresh: bool = True
    waiting: bool = False
    ended: bool = False
    moved: bool = False
    shown: bool = True
    ours: bool = False


def read_parts(known: Iterable[str | Mapping[str, Any]]) -> tuple[dict[str, Part], dict[str, Any]]:
    """Return the tool parts, and the data of the data parts by type and id, that a client has.

    Args:
        known: All parts of the message that is continued, in order, as the client posted them; or tool-call ids alone.
    """
    found: dict[str, Part] = {}
    data: dict[str, Any] = {}
    for one in known:
        if isinstance(one, str):
            found[one] = Part(approval_id=UNKNOWN, approved=UNKNOWN)
            continue
        kind, call_id = one.get("type"), one.get("toolCallId")
        if kind == "step-start":
            for part in found.values():
                part.fresh = False
        elif type(kind) is str and kind.startswith("data-") and type(one.get("id")) is str:
            data[f"{kind}:{one['id']}"] = one.get("data")
        elif type(kind) is str and type(call_id) is str and (name := _name(one)) is not None:
            found[call_id] = _part(one, name)
    return found, data


def _name(part: Mapping[str, Any]) -> str | None:
    kind, name = part["type"], part.get("toolName")
    if kind == "dynamic-tool":
        return name if type(name) is str else None
    return str(kind[5:]) if kind.startswith("tool-") else None


def _part(part: Mapping[str, Any], name: str) -> Part:
    given = part.get("approval")
    approval = given if type(given) is dict else {}
    return Part(
        name, part.get("input"), part["type"] == "dynamic-tool", approval_id=approval.get("id"),
        approved=approval.get("approved"),
        ended=type(part.get("state")) is str and part["state"] in ENDED,
    )


# -- a message again -------------------------------------------------------------------------------------------------

_PASSED = frozenset({"file", "reasoning-file", "source-document", "source-url"})
_FIELDS = ("filename", "mediaType", "sourceId", "title", "url")


def rebuilt(parts: Iterable[Mapping[str, Any]]) -> list[Chunk]:
    """Return the chunks that make these parts again, in an empty message.

    A client that reconnects replays a stream into an empty message. A stream that continues one needs these before it
    (``before`` of `hitl_guard.integrations.ai_sdk.Streams.begin`), or what it says of earlier calls leads nowhere.

    Args:
        parts: All parts of the message that is continued, as the client posted them.
    """
    return [chunk for place, part in enumerate(parts) for chunk in _again(part, f"again-{place}")]


def _again(part: Mapping[str, Any], id_: str) -> Iterator[Chunk]:
    kind, text = part.get("type"), part.get("text")
    if kind == "step-start":
        yield {"type": "start-step"}
    elif kind in ("text", "reasoning") and type(text) is str:
        yield {"type": f"{kind}-start", "id": id_}
        yield {"type": f"{kind}-delta", "id": id_, "delta": well_formed(text)}
        yield {"type": f"{kind}-end", "id": id_}
    elif kind in _PASSED:
        kept = {name: part[name] for name in _FIELDS if type(part.get(name)) is str}
        needed = {"source-document": {"sourceId", "mediaType", "title"}, "source-url": {"sourceId", "url"}}
        if needed.get(str(kind), {"mediaType", "url"}) <= kept.keys():
            yield {"type": kind} | kept
    elif type(kind) is str and kind.startswith("data-"):
        own = {"id": part["id"]} if type(part.get("id")) is str else {}
        yield {"type": kind, "data": sendable(part.get("data")), **own}
    elif type(kind) is str and type(part.get("toolCallId")) is str and (name := _name(part)) is not None:
        yield from _tool_again(part, name)


def _tool_again(part: Mapping[str, Any], name: str) -> Iterator[Chunk]:
    call = {"toolCallId": part["toolCallId"]}
    title = part["title"] if type(part.get("title")) is str else None
    # A client runs its own tools when their input becomes available: not again where that has happened.
    quiet = part.get("state") not in ("input-available", "input-streaming")
    yield from call_chunks(
        part["toolCallId"], name, sendable(part.get("input")), dynamic=part["type"] == "dynamic-tool", title=title,
        quiet=quiet,
    )
    approval = part.get("approval")
    if type(approval) is dict and type(approval.get("id")) is str:
        yield from _approval_again(approval, call)
    if part.get("state") == "output-available":
        yield {"type": "tool-output-available", **call, "output": sendable(part.get("output"))}
    elif part.get("state") == "output-error":
        error = part.get("errorText")
        yield {"type": "tool-output-error", **call, "errorText": error if type(error) is str else "The call failed."}
    elif part.get("state") == "output-denied":
        yield {"type": "tool-output-denied", **call}


def _approval_again(approval: Mapping[str, Any], call: Chunk) -> Iterator[Chunk]:
    asked: Chunk = {"type": "tool-approval-request", "approvalId": approval["id"], **call}
    for name, mine in (("requestReason", "reason"), ("signature", "signature")):
        if type(approval.get(name)) is str:
            asked[mine] = approval[name]
    if approval.get("isAutomatic") is True:
        asked["isAutomatic"] = True
    if "descriptor" in approval and obstacle(approval["descriptor"]) is None:
        asked["approvalDescriptor"] = approval["descriptor"]
    yield asked
    if type(approval.get("approved")) is bool:
        reason = {"reason": approval["reason"]} if type(approval.get("reason")) is str else {}
        yield {
            "type": "tool-approval-response", "approvalId": approval["id"], "approved": approval["approved"], **reason,
        }
