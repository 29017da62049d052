"""What the AI SDK's client demands of a stream: the fields of each chunk, their order, and its strict parser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hitl_guard.integrations.ai_sdk.response import UIMessageStreamResponse, encoded

Chunk = dict[str, Any]
ANY = object

FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "start": ({}, {"messageId": str, "messageMetadata": ANY}),
    "start-step": ({}, {}),
    "finish-step": ({}, {}),
    "text-start": ({"id": str}, {}),
    "text-delta": ({"id": str, "delta": str}, {}),
    "text-end": ({"id": str}, {}),
    "reasoning-start": ({"id": str}, {}),
    "reasoning-delta": ({"id": str, "delta": str}, {}),
    "reasoning-end": ({"id": str}, {}),
    "tool-input-start": ({"toolCallId": str, "toolName": str}, {"dynamic": bool, "title": str}),
    "tool-input-delta": ({"toolCallId": str, "inputTextDelta": str}, {}),
    "tool-input-available": ({"toolCallId": str, "toolName": str, "input": ANY}, {"dynamic": bool, "title": str}),
    "tool-approval-request": (
        {"approvalId": str, "toolCallId": str},
        {"reason": str, "isAutomatic": bool, "signature": str, "approvalDescriptor": ANY},
    ),
    "tool-approval-response": ({"approvalId": str, "approved": bool}, {"reason": str}),
    "tool-output-available": ({"toolCallId": str, "output": ANY}, {}),
    "tool-output-error": ({"toolCallId": str, "errorText": str}, {}),
    "tool-output-denied": ({"toolCallId": str}, {}),
    "error": ({"errorText": str}, {}),
    "abort": ({}, {"reason": str}),
    "finish": ({}, {"finishReason": str, "messageMetadata": ANY}),
    "source-url": ({"sourceId": str, "url": str}, {"title": str}),
    "source-document": ({"sourceId": str, "mediaType": str, "title": str}, {"filename": str}),
    "file": ({"url": str, "mediaType": str}, {"filename": str}),
    "reasoning-file": ({"url": str, "mediaType": str}, {}),
}
"""Type → required and optional fields (of those that we send)."""

REASONS = {"stop", "length", "content-filter", "tool-calls", "error", "other"}
ENDS = {"finish", "error", "abort"}
OUTPUTS = {"tool-output-available", "tool-output-error", "tool-output-denied"}


def parsed(chunk: Chunk) -> Chunk:
    """Return a chunk as the client's parser gets it, or fail as that would."""
    line = encoded(chunk).decode()
    assert line.startswith("data: ")
    assert line.endswith("\n\n")
    assert "\n" not in line[:-2]
    found: Chunk = json.loads(line[6:-2], parse_constant=lambda text: _no(f"{text} is no JSON"))
    pending: list[Any] = [found]
    for item in pending:
        if isinstance(item, dict):
            assert "__proto__" not in item
            inner = item.get("constructor")
            assert not (isinstance(inner, dict) and "prototype" in inner)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return found


def _no(why: str) -> None:
    raise AssertionError(why)


def checked(chunks: Iterable[Chunk], *, known: Iterable[str] = (), whole: bool = True) -> list[Chunk]:
    """Return the chunks of one stream after every check of fields and order.

    Args:
        known: Tool-call ids that the client has already. whole: Whether the stream has come to its end.
    """
    found = [parsed(chunk) for chunk in chunks]
    for chunk in found:
        _check_fields(chunk)
    order = _Order(known)
    for place, chunk in enumerate(found):
        order.take(place, chunk)
    assert not whole or order.ended
    return found


def _check_fields(chunk: Chunk) -> None:
    kind = chunk["type"]
    if kind.startswith("data-"):
        required, optional = {"data": ANY}, {"id": str, "transient": bool}
    else:
        required, optional = FIELDS[kind]
    assert {"type", *required} <= chunk.keys() <= {"type", *required, *optional}, chunk
    for name, wanted in {**required, **optional}.items():
        assert name not in chunk or isinstance(chunk[name], wanted), (name, chunk)
    assert kind != "finish" or chunk["finishReason"] in REASONS


class _Order:
    def __init__(self, known: Iterable[str]) -> None:
        self.step = self.ended = False
        self.text: tuple[str, str] | None = None
        self.calls = dict.fromkeys(known, False)  # id → whether it has ended in this stream

    def take(self, place: int, chunk: Chunk) -> None:
        """Check one chunk after those before it."""
        kind = chunk["type"]
        assert (kind == "start") == (place == 0)
        assert not self.ended
        if kind == "start-step":
            assert not self.step
            self.step = True
        elif kind == "finish-step":
            assert self.step
            assert self.text is None
            self.step = False
        elif kind in ENDS:
            assert not self.step
            self.ended = True
        elif kind.startswith(("text-", "reasoning-")):
            self._text(kind.partition("-")[0], kind.partition("-")[2], chunk["id"])
        elif kind.startswith("tool-") and kind != "tool-approval-response":
            self._call(kind, chunk["toolCallId"])

    def _text(self, kind: str, what: str, id_: str) -> None:
        assert self.step
        assert self.text == (None if what == "start" else (kind, id_))
        if what != "delta":
            self.text = (kind, id_) if what == "start" else None

    def _call(self, kind: str, id_: str) -> None:
        if kind in ("tool-input-start", "tool-input-available"):
            assert self.step or id_ in self.calls
            assert self.text is None
            self.calls.setdefault(id_, False)
        assert self.calls[id_] is False, "something was said of a call after its end"
        self.calls[id_] = kind in OUTPUTS


def kinds(chunks: Iterable[Chunk]) -> list[str]:
    """Return the types of chunks, without those of the message and its steps."""
    left_out = {"start", "start-step", "finish-step", "finish"}
    return [chunk["type"] for chunk in chunks if chunk["type"] not in left_out]


def one(chunks: Iterable[Chunk], kind: str) -> Chunk:
    """Return the only chunk of a type."""
    (found,) = [chunk for chunk in chunks if chunk["type"] == kind]
    return found


def app_of(*answers: Any) -> Starlette:
    """Return an app that answers each post with the next of ``answers``: chunks, or a function of the posted body."""
    left = list(answers)

    async def chat(request: Request) -> Response:
        answer = left.pop(0)
        chunks = answer(json.loads(await request.body())) if callable(answer) else answer

        async def source() -> AsyncIterator[Chunk]:
            for chunk in chunks:
                yield chunk

        return UIMessageStreamResponse(source())

    return Starlette(routes=[Route("/api/chat", chat, methods=["POST"])])


def applied(chunks: Iterable[Chunk], parts: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return a message's parts after a stream, as the SDK's client makes them; ``parts``: those it had before."""
    message = [json.loads(json.dumps(part)) for part in parts]
    for chunk in chunks:
        kind = chunk["type"]
        if kind == "start-step":
            message.append({"type": "step-start"})
        elif kind == "text-delta":
            message.append({"type": "text", "text": chunk["delta"]})
        elif kind.startswith("data-") and not chunk.get("transient"):
            same = [part for part in message if (part["type"], part.get("id")) == (kind, chunk["id"])]
            if not same:
                message.append({"type": kind, "id": chunk["id"]})
            (same or message)[-1]["data"] = chunk["data"]
        elif kind in ("tool-input-start", "tool-input-available"):
            _call_shown(message, chunk)
        elif kind == "tool-approval-response":
            (part,) = [one for one in message if one.get("approval", {}).get("id") == chunk["approvalId"]]
            part["state"] = "approval-responded"
            part["approval"] |= {name: chunk[name] for name in ("approved", "reason") if name in chunk}
        elif kind.startswith("tool-"):
            _call_moved([one for one in message if one.get("toolCallId") == chunk["toolCallId"]][-1], chunk)
    return message


def _call_shown(message: list[dict[str, Any]], chunk: Chunk) -> None:
    kind = "dynamic-tool" if chunk.get("dynamic") else f"tool-{chunk['toolName']}"
    step = max((place for place, part in enumerate(message) if part["type"] == "step-start"), default=0)
    dynamic = kind == "dynamic-tool"
    found = [
        part for part in message[step:] if part.get("toolCallId") == chunk["toolCallId"]
        and (part["type"] == "dynamic-tool") is dynamic
    ]
    if not found:
        message.append({"toolCallId": chunk["toolCallId"]})
    part = (found or message)[-1]
    part |= {"type": kind, "state": "input-available", "input": chunk.get("input")}
    if dynamic:
        part["toolName"] = chunk["toolName"]


def _call_moved(part: dict[str, Any], chunk: Chunk) -> None:
    kind = chunk["type"]
    if kind == "tool-input-delta":
        part["input"] = json.loads(chunk["inputTextDelta"])
    elif kind == "tool-approval-request":
        names = {"approvalId": "id", "approvalDescriptor": "descriptor", "reason": "requestReason",
                 "isAutomatic": "isAutomatic", "signature": "signature"}
        part["state"] = "approval-requested"
        part["approval"] = {mine: chunk[name] for name, mine in names.items() if name in chunk}
    else:
        part["state"] = kind.removeprefix("tool-")
        part |= {name: chunk[name] for name in ("output", "errorText") if name in chunk}


def part_of(parts: Iterable[dict[str, Any]], call_id: str) -> dict[str, Any]:
    """Return the only part of a call."""
    (found,) = [part for part in parts if part.get("toolCallId") == call_id]
    return found
