"""JSON as JavaScript reads and writes it: what the AI SDK hashes of a tool call's input.

This is no strict parser and no lossless form, and the guard decides nothing by it (that is `hitl_guard.canonical`). It
repeats what ``JSON.parse`` and ``JSON.stringify`` (ECMA-262, sections 25.5.1 and 25.5.2) make of a value, losses
included: every number becomes a double, and of two members of one name the last counts. The SDK's own function is
``packages/ai/src/util/canonical-hash.ts``. Neither function here recurses, so that deep values end in an error of ours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from ...canonical import canonicalize
from ...errors import CanonicalizationError, ConfigurationError

MAX_BYTES = 1_048_576
"""Bytes of one JSON text, read or written, unless the caller says otherwise."""

MAX_DEPTH = 2_000
"""Arrays and objects inside one another. The AI SDK itself recurses: it signs 2,000 levels and breaks at 3,000."""

_MAX_SAFE = 2**53 - 1
_WORDS = {None: b"null", True: b"true", False: b"false"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def canonical_input(value: Any, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the UTF-8 text that the AI SDK hashes for ``value``: JSON without white space, keys in UTF-16 order.

    Numbers are written as doubles: 1.0 as ``1``, -0 as ``0``, an integer beyond 2^53 rounded, one beyond the largest
    double and an infinity (what ``json.loads`` makes of ``1e400``) as ``null``. A lone surrogate is written as an
    escape, ``\\udxxx`` in lower case. Text is not normalised.

    Args:
        value: ``dict, list, str, int, float, bool, None`` of exactly these types, nested up to `MAX_DEPTH`.
        max_bytes: How long the text may become.

    Raises:
        CanonicalizationError: ``unsupported-value``, with detail ``type``, ``key`` (not a string), ``number`` (NaN) or
            ``duplicate`` (two keys that are one in JavaScript, see `joined`); or ``too-large``, with detail ``bytes``
            or ``depth``.
        ConfigurationError: ``max_bytes`` is no size.
    """
    _check_size(max_bytes)
    text = _Text(max_bytes)
    open_: list[tuple[Iterator[tuple[bytes, Any]], bytes]] = [(iter([(b"", value)]), b"")]
    while open_:
        members, end = open_[-1]
        member = next(members, None)
        if member is None:
            text.parts.append(end)
            open_.pop()
            continue
        lead, item = member
        text.parts.append(lead)
        kind = type(item)
        if kind is not dict and kind is not list:
            _write_scalar(item, text)
            continue
        if len(open_) > MAX_DEPTH:
            raise refused("depth")
        text.parts.append(b"{" if kind is dict else b"[")
        open_.append((_object(item, text), b"}") if kind is dict else (_array(item, text), b"]"))
    return b"".join(text.parts)


def _check_size(max_bytes: object) -> None:
    if type(max_bytes) is not int or max_bytes < 1:
        raise ConfigurationError("'max_bytes' must be a number of bytes from 1.", detail="option")


class _Text:
    """The parts of a text, and its size in bytes. What a container adds is counted when it is entered.

    So a structure that holds itself, or one part many times, ends before it takes time or memory.
    """

    def __init__(self, most: int) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.most = most

    def count(self, more: int) -> None:
        """Count ``more`` bytes.

        Raises:
            CanonicalizationError: that is too much.
        """
        self.size += more
        self.expect(0)

    def expect(self, more: int) -> None:
        """Refuse at once what will take ``more`` bytes or more, before work is spent on it.

        Raises:
            CanonicalizationError: that is too much.
        """
        if self.size + more > self.most:
            raise refused("bytes")


def _object(item: dict[Any, Any], text: _Text) -> Iterator[tuple[bytes, Any]]:
    """Return what stands before each member's value, and the value, in the order of JavaScript's ``sort``."""
    pairs = list(item.items())
    if any(type(name) is not str for name, _ in pairs):
        raise refused("key")
    text.expect(sum(len(name) for name, _ in pairs))
    members = {joined(name): value for name, value in pairs}
    if len(members) != len(pairs):
        raise refused("duplicate")
    names = sorted(members, key=_utf16)
    leads = [b"%b%b:" % (b"," if place else b"", _quoted(name)) for place, name in enumerate(names)]
    text.count(sum(map(len, leads)) + 2)
    return iter([(lead, members[name]) for lead, name in zip(leads, names, strict=True)])


def _array(item: list[Any], text: _Text) -> Iterator[tuple[bytes, Any]]:
    text.count(max(len(item) - 1, 0) + 2)
    return ((b"," if place else b"", value) for place, value in enumerate(item))


def _write_scalar(item: Any, text: _Text) -> None:
    kind = type(item)
    if kind is str:
        text.expect(len(item))
        written = _quoted(joined(item))
    elif kind is int or kind is float:
        written = _number(item)
    elif kind is bool or item is None:
        written = _WORDS[item]
    else:
        raise refused("type")
    text.count(len(written))
    text.parts.append(written)


def _number(number: float) -> bytes:
    if type(number) is int and -_MAX_SAFE <= number <= _MAX_SAFE:
        return b"%d" % number
    try:
        double = float(number)
    except OverflowError:
        return b"null"
    if math.isnan(double):
        raise refused("number")
    return b"null" if math.isinf(double) else canonicalize(double)


def _quoted(text: str) -> bytes:
    """Return a joined text as ``JSON.stringify`` writes it (Python's escapes are the same but for surrogates)."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted).encode()


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def joined(text: str) -> str:
    """Return ``text`` as JavaScript sees it: a high surrogate followed by a low one is one character there."""
    return _utf16(text).decode("utf-16-be", "surrogatepass") if _SURROGATE.search(text) else text


def json_parse(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return what JavaScript's ``JSON.parse`` makes of a JSON text, as plain Python data.

    Numbers become the nearest double: an ``int`` where that is whole and below 2^53, else a ``float`` (``inf`` for
    1e400). Of members of one name the last counts. Escaped lone surrogates stay. ``bytes`` must be UTF-8 without a byte
    order mark.

    Raises:
        CanonicalizationError: ``unsupported-value``, with detail ``type``, ``encoding`` or ``syntax``; or
            ``too-large``, with detail ``bytes`` or ``depth`` (more than `MAX_DEPTH`).
        ConfigurationError: ``max_bytes`` is no size.
    """
    _check_size(max_bytes)
    if type(text) is not str and type(text) is not bytes:
        raise refused("type")
    if len(text) > max_bytes:
        raise refused("bytes")
    decoded = _decoded(text)
    if decoded is None:
        raise refused("encoding")
    if len(decoded.encode("utf-8", "surrogatepass")) > max_bytes:
        raise refused("bytes")
    return _parse(decoded)


def _decoded(text: str | bytes) -> str | None:
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError:  # it holds the whole text, so it ends here
        return None


_SCALARS = frozenset({'"', "number", "word"})
_VALUES = _SCALARS | {"{", "["}
_GRAMMAR = {
    "value": _VALUES,
    "item or end": _VALUES | {"]"},
    "name or end": frozenset({'"', "}"}),
    "name": frozenset({'"'}),
    "colon": frozenset({":"}),
    "in array": frozenset({",", "]"}),
    "in object": frozenset({",", "}"}),
    "done": frozenset({"end"}),
}
"""RFC 8259 as a table: what is awaited, and the tokens that may come then."""

_TOKEN = re.compile(
    r'[ \t\n\r]*+(?:(?P<mark>[\[\]{},:"])|(?P<word>true|false|null)'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(?P<end>\Z))"
)
_LITERALS = {"true": True, "false": False, "null": None}
_STRINGS = json.JSONDecoder()


def _parse(text: str) -> Any:
    top: list[Any] = []
    open_: list[Any] = [top]
    awaited, name, place = "value", "", 0
    while True:
        kind, value, place = _token(text, place)
        if kind not in _GRAMMAR[awaited]:
            raise refused("syntax")
        if kind == "end":
            return top[0]
        if kind == '"' and awaited in ("name", "name or end"):
            awaited, name = "colon", value
        elif kind == ":":
            awaited = "value"
        elif kind == ",":
            awaited = "value" if awaited == "in array" else "name"
        elif kind in ("]", "}"):
            open_.pop()
            awaited = _after(open_)
        else:
            inner = open_[-1]
            if type(inner) is dict:
                inner[name] = value
            else:
                inner.append(value)
            awaited = _enter(kind, value, open_) if kind in ("{", "[") else _after(open_)


def _enter(mark: str, container: Any, open_: list[Any]) -> str:
    if len(open_) > MAX_DEPTH:
        raise refused("depth")
    open_.append(container)
    return "name or end" if mark == "{" else "item or end"


def _after(open_: list[Any]) -> str:
    """Return what is awaited after a value."""
    if len(open_) == 1:
        return "done"
    return "in object" if type(open_[-1]) is dict else "in array"


def _token(text: str, place: int) -> tuple[str, Any, int]:
    """Return the next token's kind, its value (an empty container for its opening mark) and where it ends."""
    found = _TOKEN.match(text, place)
    if found is None:
        raise refused("syntax")
    kind, end = found.lastgroup, found.end()
    if kind == "number":
        return "number", _double(found["number"]), end
    if kind == "word":
        return "word", _LITERALS[found["word"]], end
    if kind == "end":
        return "end", None, end
    mark = found["mark"]
    if mark == '"':
        return mark, *_string(text, end - 1)
    return mark, {} if mark == "{" else [] if mark == "[" else None, end


def _string(text: str, place: int) -> tuple[str, int]:
    try:
        value, end = _STRINGS.raw_decode(text, place)
    except json.JSONDecodeError:
        end = -1
    if end < 0:
        raise refused("syntax")  # out here: that error holds the whole text, and would stay attached to ours
    return joined(value), end


def _double(digits: str) -> float:
    number = float(digits)
    return int(number) if number.is_integer() and -_MAX_SAFE <= number <= _MAX_SAFE else number


_MESSAGES = {
    "bytes": "The text is too long: send less, or raise the limit on bytes.",
    "depth": "Arrays and objects are nested too deeply: flatten the value.",
    "duplicate": "An object has two keys that are one in JavaScript: send each name once.",
    "encoding": "The JSON text is not UTF-8: send UTF-8.",
    "key": "An object has a key that is not a string: use strings only.",
    "number": "A number is NaN, which no JSON text holds.",
    "syntax": "The text is not JSON as JavaScript reads it: send one complete JSON value.",
    "type": "This type is not supported: give plain JSON data, and JSON text as str or bytes.",
}


def refused(detail: str) -> CanonicalizationError:
    """Return the error for ``detail``, one of the slugs that the functions above name."""
    code = "too-large" if detail in ("bytes", "depth") else "unsupported-value"
    return CanonicalizationError(_MESSAGES[detail], code=code, detail=detail)
