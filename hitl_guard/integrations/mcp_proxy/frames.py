"""JSON-RPC frames as bytes: read strictly, told apart, and changed in one place while all other bytes stay.

A guard and a server that read one frame differently are the way past a guard, so a frame goes on only when every
parser must read it alike: no duplicate names, also none that differ in case alone (some servers' parsers do not mind
case), and no carriage return inside (some servers take it for the end of a line).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import orjson

from ... import canonical
from ...errors import CanonicalizationError

CLIENT_LIMITS = canonical.Limits(max_bytes=16_777_216, max_depth=128, max_nodes=500_000)
"""How large a client's frame may be. The guard's own limits on a call's arguments are narrower."""

SERVER_LIMITS = canonical.Limits(max_bytes=67_108_864, max_depth=200, max_nodes=4_000_000, max_digits=4_300)
"""How large a server's frame may be: results hold files and pictures."""

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, UNAVAILABLE = -32700, -32600, -32602, -32000
CALL, LIST = "tools/call", "tools/list"

Id = int | str
Key = tuple[type, Id]
"""A request's id with its type: 1 and "1" are two ids."""

_NAMES = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_PARAMS = frozenset({"name", "arguments", "_meta", "task", "inputResponses", "requestState"})
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a frame goes no further: a JSON-RPC error."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. ``line`` has the bytes that came, without the line feed."""

    line: bytes
    kind: Literal["request", "notification", "response"]
    data: Mapping[str, Any]

    @property
    def id(self) -> Id:
        """The id of a request or a response."""
        found: Id = self.data["id"]
        return found

    @property
    def key(self) -> Key:
        """The id, as it is compared."""
        return key_of(self.id)

    @property
    def method(self) -> str:
        """The method; empty for a response."""
        found: str = self.data.get("method", "")
        return found

    @property
    def params(self) -> Mapping[str, Any]:
        """The params; empty where there are none."""
        return _object(self.data.get("params"))

    @property
    def result(self) -> Mapping[str, Any]:
        """A response's result; empty for an error."""
        return _object(self.data.get("result"))

    @property
    def meta(self) -> Mapping[str, Any]:
        """What a request says about itself (``params._meta``)."""
        return _object(self.params.get("_meta"))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def key_of(request_id: Id) -> Key:
    """Return an id as it is compared."""
    return type(request_id), request_id


def is_id(value: object) -> TypeGuard[Id]:
    """Whether a value may be a request's id."""
    return type(value) is int or type(value) is str


def read(line: bytes, limits: canonical.Limits) -> Frame | Fault:
    """Read one frame strictly."""
    body = line.removesuffix(b"\r")
    if b"\r" in body:
        return Fault(PARSE_ERROR, "A frame holds a carriage return: send one frame a line, without line ends inside.")
    try:
        data = canonical.parse(body, limits=limits)
    except CanonicalizationError as error:
        return Fault(PARSE_ERROR, f"The frame was refused. {error}")
    if type(data) is list:
        return Fault(INVALID_REQUEST, "Batches are not taken: send each frame by itself.")
    if type(data) is not dict:
        return Fault(INVALID_REQUEST, "A frame is one JSON object.")
    return _told_apart(line, data)


def _told_apart(line: bytes, data: dict[str, Any]) -> Frame | Fault:
    if odd := misspelt(data, _NAMES):
        return Fault(INVALID_REQUEST, f"A frame's member is spelt '{odd}', not otherwise.")
    if data.get("jsonrpc") != "2.0":
        return Fault(INVALID_REQUEST, 'A frame says "jsonrpc": "2.0".')
    if "id" in data and not is_id(data["id"]) and not (data["id"] is None and "error" in data):
        return Fault(INVALID_REQUEST, "An id is a string or a whole number.")
    if "method" not in data:
        if "id" not in data or ("result" in data) == ("error" in data) or "params" in data:
            return Fault(INVALID_REQUEST, "A frame has a method, or it answers one with a result or an error.")
        return Frame(line, "response", data)
    if "result" in data or "error" in data or type(data["method"]) is not str:
        return Fault(INVALID_REQUEST, "A frame's method is a string, and it has no result or error then.")
    if "params" in data and type(data["params"]) is not dict:
        return Fault(INVALID_REQUEST, "A frame's params are an object.")
    if "id" in data and data["id"] is None:
        return Fault(INVALID_REQUEST, "An id is a string or a whole number.")
    return _checked_call(Frame(line, "request" if "id" in data else "notification", data))


def _checked_call(frame: Frame) -> Frame | Fault:
    """Return the frame, unless it may be a tool call to one reader and something else to another."""
    if frame.method != CALL:
        same = frame.method.strip().casefold() == CALL
        return Fault(INVALID_REQUEST, f"The method is spelt '{CALL}', not otherwise.") if same else frame
    if odd := misspelt(frame.params, _PARAMS):
        return Fault(INVALID_PARAMS, f"A call's member is spelt '{odd}', not otherwise.")
    if frame.kind != "request":
        return Fault(INVALID_REQUEST, "A tool call needs an id.")
    if type(frame.params.get("name")) is not str or not frame.params["name"]:
        return Fault(INVALID_PARAMS, "A tool call names its tool: params.name is missing.")
    return frame


def misspelt(data: Mapping[str, Any], names: frozenset[str]) -> str | None:
    """Return one of ``names`` that ``data`` spells with other cases; None where there is none."""
    folded = {name.casefold(): name for name in names}
    return next((folded[name.casefold()] for name in data if name not in names and name.casefold() in folded), None)


def guessed_id(line: bytes) -> Id | None:
    """Return the id of a frame that was refused, for the answer that says so; None where it cannot be told."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    found = data.get("id") if isinstance(data, dict) else None
    return found if is_id(found) else None


# -- our own frames --------------------------------------------------------------------------------------------------


def request(request_id: Id, method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request of our own."""
    return _line({"id": request_id, "jsonrpc": "2.0", "method": method, "params": dict(params)})


def answer(request_id: Id, result: Mapping[str, Any]) -> bytes:
    """Return a result."""
    return _line({"id": request_id, "jsonrpc": "2.0", "result": dict(result)})


def error(request_id: Id | None, code: int, message: str, data: Mapping[str, Any] | None = None) -> bytes:
    """Return an error."""
    told: dict[str, Any] = {"code": code, "message": message} | ({} if data is None else {"data": dict(data)})
    return _line({"error": told, "id": request_id, "jsonrpc": "2.0"})


def _line(data: dict[str, Any]) -> bytes:
    return canonical.canonicalize(data, limits=SERVER_LIMITS)


# -- changing one place ----------------------------------------------------------------------------------------------


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too


def members(text: str, at: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, start, start of the value and end of each member of the object at ``text[at]``, read before."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        name, end = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield name, at, value, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each item of the array at ``text[at]``, read before."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def span(text: str, *path: str) -> tuple[int, int] | None:
    """Return start and end of the value at a path of member names; None where there is none."""
    start, end = _skip(text, 0), len(text)
    for step in path:
        if text[start] != "{":
            return None
        found = [(value, stop) for name, _, value, stop in members(text, start) if name == step]
        if not found:
            return None
        start, end = found[0]
    return start, end


def changed(line: bytes, path: str, new: Mapping[str, str | None]) -> bytes:
    """Return a frame with members of the object at top-level ``path`` replaced, added, or left out (None)."""
    text = line.decode()
    place = span(text, path)
    if place is None:
        raise CanonicalizationError("The frame has no such part.", detail="type")
    kept, left = [], dict(new)
    for name, at, _, end in members(text, place[0]):
        value = left.pop(name) if name in left else text[at:end]
        if value is not None:
            kept.append(text[at:end] if name not in new else f"{json.dumps(name)}:{value}")
    kept += [f"{json.dumps(name)}:{value}" for name, value in left.items() if value is not None]
    return _spliced(text, place, "{" + ",".join(kept) + "}")


def without(line: bytes, path: Sequence[str], dropped: frozenset[int]) -> bytes:
    """Return a frame without some items of the array at ``path``; the others keep their bytes."""
    text = line.decode()
    place = span(text, *path)
    if place is None:
        raise CanonicalizationError("The frame has no such part.", detail="type")
    kept = [text[at:end] for number, (at, end) in enumerate(items(text, place[0])) if number not in dropped]
    return _spliced(text, place, "[" + ",".join(kept) + "]")


def _spliced(text: str, place: tuple[int, int], new: str) -> bytes:
    return (text[: place[0]] + new + text[place[1] :]).encode()


class Lines:
    """Cuts a stream of bytes into lines, none longer than ``most``. Empty lines are left out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield each line that ends in this chunk; None for one that was too long and is lost."""
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._add(part)
            yield from self.end()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._skipping |= self._size > self._most
        if self._skipping:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def end(self) -> Iterator[bytes | None]:
        """Yield the line that ends here."""
        line, lost = b"".join(self._parts), self._skipping
        self._parts, self._size, self._skipping = [], 0, False
        if lost:
            yield None
        elif line.strip(b" \t\r"):
            yield line
