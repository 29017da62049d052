"""Reading a post in which a text holds half a character: JavaScript can cut an emoji in two, and sends what is left.

The whole conversation is posted each time, so one such text would end a chat. In text for the model (what was said,
results, names of files) and in a person's reason each half becomes U+FFFD, as JavaScript's ``toWellFormed`` does.
Everywhere else, in arguments, what is approved, ids and what a host reads, it is refused as before: there nothing may
change on its way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ... import canonical
from ...asgi.body import strict_json
from ...errors import CanonicalizationError

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
"""An escape in a JSON text: a pair of halves, or one alone (the group), or any other."""

_TOOL = frozenset({"errorText", "output"})
_TEXTS: Mapping[Any, frozenset[str]] = {
    "dynamic-tool": _TOOL, "file": frozenset({"filename"}), "reasoning": frozenset({"text"}),
    "text": frozenset({"text"}),
}


def read_json(raw: bytes, limits: canonical.Limits) -> object:
    """Return what a post says, read strictly but for halves of characters in text for the model.

    Raises:
        CanonicalizationError: as `hitl_guard.asgi.body.strict_json`.
    """
    try:
        return strict_json(raw, limits)
    except CanonicalizationError as error:
        if error.detail != "text":
            raise
        mended = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], raw)
        value = canonical.parse(mended, limits=limits)
        if not _is_sound(raw):
            raise
        return value


def _is_sound(raw: bytes) -> bool:
    """Whether every half of a character stands in text for the model; ``raw`` was read strictly without them."""
    body = json.loads(raw.decode(), parse_int=len, parse_float=len)  # its numbers do not matter
    try:
        json.dumps(_without_texts(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_texts(body: Any) -> Any:
    if type(body) is not dict or type(body.get("messages")) is not list:
        return body
    return body | {"messages": [_message(one) for one in body["messages"]]}


def _message(message: Any) -> Any:
    if type(message) is not dict or type(message.get("parts")) is not list:
        return message
    return message | {"parts": [_part(one) for one in message["parts"]]}


def _part(part: Any) -> Any:
    kind = part.get("type") if type(part) is dict else None
    if type(kind) is not str:
        return part
    texts = _TEXTS.get(kind, _TOOL if kind.startswith("tool-") else frozenset())
    left = {name: value for name, value in part.items() if name not in texts}
    if texts is _TOOL and type(left.get("approval")) is dict:
        left["approval"] = {name: value for name, value in left["approval"].items() if name != "reason"}
    return left
