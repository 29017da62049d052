"""Reading a request's body: bounded, in one piece, and as strict JSON only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from .. import canonical
from ..errors import CanonicalizationError

Headers = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI has them."""

BODY_TIMEOUT_S = 60.0
"""How long a client may take to send its body, in seconds."""

SMALL_BODY = 32_768
"""Bytes of a body that is parsed where the request is served; a larger one is parsed in a thread."""

_JSON_TYPE = re.compile(
    rb"[ \t]*application/(?:json|[a-z0-9!#$&^_.+-]+\+json)[ \t]*"
    rb"(?:;[ \t]*(?:charset[ \t]*=[ \t]*(?:utf-?8|\"utf-?8\")[ \t]*)?)?",
    re.IGNORECASE,
)


async def read_body(
    receive: Receive, *, limit: int, headers: Headers = (), timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """Return the whole body, of at most ``limit`` bytes.

    Args:
        headers: The request's. A ``content-length`` beyond the limit is refused before a byte is read.

    Raises:
        CanonicalizationError: it is longer (``too-large``), its stated length is none or not its own
            (``unsupported-value``, detail ``length``), or it takes longer than ``timeout_s`` to come (detail
            ``timeout``).
        starlette.requests.ClientDisconnect: the client is gone; there is nobody to answer.
    """
    if (stated := _stated_length(headers)) is not None and stated > limit:
        raise _too_large()
    try:
        async with asyncio.timeout(timeout_s):
            body = await _whole(receive, limit)
    except TimeoutError:
        raise CanonicalizationError("The body came too slowly; send it again.", detail="timeout") from None
    if stated not in (None, len(body)):
        raise CanonicalizationError("The body is not as long as its content-length says.", detail="length")
    return body


async def _whole(receive: Receive, limit: int) -> bytes:
    body: bytes | bytearray = b""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk, more = message.get("body", b""), message.get("more_body", False)
        if len(body) + len(chunk) > limit:
            raise _too_large()
        if more or body:
            body = bytearray(body) if type(body) is bytes else body
            body += chunk
        else:
            body = chunk  # in one piece, as nearly every server hands it over: not copied
    return bytes(body)


def _stated_length(headers: Headers) -> int | None:
    stated = {value.strip() for name, value in headers if name.lower() == b"content-length"}
    if not stated:
        return None
    (text, *others) = stated
    if others or not text.isdigit() or len(text) > 20:
        raise CanonicalizationError("The content-length is not one number of bytes.", detail="length")
    return int(text)


def _too_large() -> CanonicalizationError:
    return CanonicalizationError("The body is too long: send less, or raise the limit.", code="too-large",
                                 detail="bytes")


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON in UTF-8, as it is: one ``content-type``, no ``content-encoding``.

    Frameworks parse a body as JSON whatever its type is, guess at UTF-16, or decode it as the type's ``charset`` says,
    each with its own idea of how that is spelled. So nothing else is let through: of parameters one plain ``charset``.
    """
    types = [value for name, value in headers if name.lower() == b"content-type"]
    encodings = {value.strip().lower() for name, value in headers if name.lower() == b"content-encoding"}
    return len(types) == 1 and encodings <= {b"", b"identity"} and _JSON_TYPE.fullmatch(types[0]) is not None


def strict_json(raw: bytes, limits: canonical.Limits) -> object:
    """Return what a JSON text says, as `canonical.parse` does.

    Most bodies are what a browser's ``JSON.stringify`` writes. Where orjson writes the very same bytes again, nothing
    was lost in reading: no second member of a name, no odd number, no other spelling.

    Raises:
        CanonicalizationError: as `canonical.parse`.
    """
    try:
        value = orjson.loads(raw)
        exact = orjson.dumps(value) == raw
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        exact = False
    if exact and _fits(value, limits) and len(raw) <= limits.max_bytes:
        return value
    return canonical.parse(raw, limits=limits)


def _fits(value: object, limits: canonical.Limits) -> bool:
    level, nodes, depth = [value], 1, 0
    while level := [item for item in level if type(item) is dict or type(item) is list]:
        level = [part for item in level for part in (item.values() if type(item) is dict else item)]
        nodes, depth = nodes + len(level), depth + 1
        if nodes > limits.max_nodes or depth > limits.max_depth:
            return False
    return True
