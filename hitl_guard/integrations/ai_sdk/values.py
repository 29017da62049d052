"""What the SDK's client can be sent: its JSON parser refuses some values, and one of them ends the whole stream.

Refused are an own key ``__proto__``, ``constructor`` that holds ``prototype``, and what is no JSON (NaN, infinities).
Such a value goes out as text that says so. What a person decides on is never shown as something else: a call whose
arguments cannot be sent is not offered in the chat (see `chunks`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ...agent.shapes import plain, well_formed
from ...render.secrets import Place, printed
from ...toolcalls import as_text

MAX_DEPTH = 180
"""Arrays and objects inside one another that are sent; what is deeper goes out as text. (A post adds some, of 200.)"""

MAX_SHOWN = 262_144
"""Bytes of a result that is sent. The client posts everything again each time, and a post has a limit."""

MAX_VALUES = 10_000
"""JSON values in a result that is sent."""

_MAX_SAFE = 2**53 - 1
_SCALARS = frozenset({bool, int, type(None)})
TOO_LARGE = "(This is too large to be shown here.)"
"""What is shown of a result, or of what a tool asks, that is larger."""

_NO_JSON = "a value that is no JSON"
_TOO_MANY = "too many values"


def obstacle(value: Any, *, most: int | None = None) -> str | None:
    """Return why a value cannot be sent as it is, in words; None where it can.

    Integers beyond 2^53 - 1 can: the digits go out exactly, whatever the browser makes of them.

    Args:
        value: Anything; only exact JSON types can be sent, and no subclass of one.
        most: The most JSON values that are looked at; more are an obstacle.
    """
    level, depth, seen = [value], 0, 0
    while level:
        seen += len(level)
        if most is not None and seen > most:
            return _TOO_MANY
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            why = None
            if kind is dict:
                why = _of_object(item)
                deeper += item.values()
            elif kind is list:
                deeper += item
            elif kind is str:
                why = None if _is_well_formed(item) else "a text with half a character"
            elif kind is float:
                why = None if math.isfinite(item) else "a number that is none"
            elif kind not in _SCALARS:
                why = _NO_JSON
            if why is not None:
                return why
        level, depth = deeper, depth + 1
        if level and depth >= MAX_DEPTH:
            return "too many levels"
    return None


def _of_object(item: dict[Any, Any]) -> str | None:
    if any(type(name) is not str for name in item):
        return "a key that is no text"
    if not all(map(_is_well_formed, item)):
        return "a key with half a character"
    if "__proto__" in item:
        return "the key '__proto__'"
    inner = item.get("constructor")
    return "the keys 'constructor' and 'prototype'" if type(inner) is dict and "prototype" in inner else None


def _is_well_formed(text: str) -> bool:
    return text.isascii() or well_formed(text) == text


def sendable(value: Any) -> Any:
    """Return a result or another value for display: itself, its JSON form, or a text that says why it is one.

    A pydantic model, a date or another object that JSON lacks goes out as it would reach the model.
    """
    why = obstacle(value)
    if why == _NO_JSON:
        value = plain(value)
        why = obstacle(value)
    return value if why is None else f"(Shown as text, since it holds {why}.) {text_of(value)}"


def bounded(value: Any) -> Any:
    """Return a result as `sendable` does, or a text in its place where it is too large to be posted again each time.

    Such a result would end the chat: every later post would be refused. The model has seen all of it when it came.
    """
    value = plain(value) if obstacle(value, most=MAX_VALUES) == _NO_JSON else value
    if obstacle(value, most=MAX_VALUES) != _TOO_MANY:
        value = sendable(value)
        if len(text_of(value).encode()) <= MAX_SHOWN:
            return value
    return TOO_LARGE


def text_of(value: Any) -> str:
    """Return any value as well-formed text: as JSON, NaN and half characters included, where it has that form."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        return text if _is_well_formed(text) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return well_formed(as_text(value))


def exact_integers(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the integers outside ±(2^53 - 1) in plain JSON data, each with its JSON pointer (RFC 6901), in order.

    A browser rounds them: it shows others than will run.
    """
    pending: list[tuple[Place, Any]] = [((), value)]
    while pending:
        place, item = pending.pop()
        if type(item) is dict:
            pending += [((place, name), one) for name, one in reversed(item.items())]
        elif type(item) is list:
            pending += [((place, index), item[index]) for index in range(len(item) - 1, -1, -1)]
        elif type(item) is int and not -_MAX_SAFE <= item <= _MAX_SAFE:
            yield printed(place), item
