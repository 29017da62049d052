"""Canonical bytes (RFC 8785, JCS) and the strict JSON parser. Everything they refuse is a `CanonicalizationError`.

Only ``dict, list, str, int, float, bool, None`` of exactly these types have canonical bytes. Beyond RFC 8785's domain
there is one extension: integers outside ±(2^53 - 1) keep their exact digits; they are never rounded.

`orjson` writes the bytes. What it does otherwise than RFC 8785 is dealt with here: floats that are whole, tiny or huge
(section 3.2.2.3), the order of keys beyond U+FFFF (3.2.3), integers beyond 64 bits, and what it lets pass silently:
tuples, enums, UUIDs, its own ``Fragment``, NaN as ``null``. A small ordinary value is recognised in few steps and
written at once; any other is inspected node by node, which also finds the reason of a refusal.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from gc import get_referents
from types import MappingProxyType
from typing import Any, NoReturn

import orjson

from .errors import CanonicalizationError, ConfigurationError

_MAX_SAFE = 2**53 - 1
_EDGE = float(2**53)
_UNSORTED = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_SORTED = _UNSORTED | orjson.OPT_SORT_KEYS
_SIMPLE = frozenset({str, int, bool, type(None)})
_NOT_INTEGERS = frozenset({str, float, bool, type(None)})
_SMALL = 256
"""A value of so few nodes is small: it can't hold one string so often that writing it first takes the memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a value or a text may be. What is larger is refused as ``too-large``.

    Attributes:
        max_bytes: Bytes of the JSON text, read or written.
        max_depth: Arrays and objects inside one another; at most 200.
        max_nodes: Values of any kind, the outermost included, member names not.
        max_digits: Decimal digits of one integer: from 20 (every 64-bit integer) to 4,300 (Python's own limit).
    """

    max_bytes: int = 1_048_576
    max_depth: int = 64
    max_nodes: int = 50_000
    max_digits: int = 1_000

    def __post_init__(self) -> None:
        bounds = {"max_bytes": (1, 2**40), "max_depth": (1, 200), "max_nodes": (1, 2**31), "max_digits": (20, 4_300)}
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigurationError(f"The limit '{name}' must be an integer from {least} to {most}.")


DEFAULT_LIMITS = Limits()
_NO_LIMITS = Limits(max_bytes=2**40, max_depth=200, max_nodes=2**31, max_digits=4_300)


def canonicalize(
    value: Any, *, limits: Limits = DEFAULT_LIMITS, exact: bool = False, big_integers: bool = True
) -> bytes:
    """Return the canonical bytes of plain JSON data: RFC 8785, and exact digits for integers beyond it.

    Args:
        value: ``dict, list, str, int, float, bool, None`` of exactly these types, nested.
        exact: Whether to refuse floats of magnitude 2^53 or more too, so that no two different values share bytes
            (2^53 as a float and as an integer would). The guard always sets it. ``1`` and ``1.0`` are one number.
        big_integers: Whether integers outside ±(2^53 - 1) are written exactly; if not, they are refused.

    Raises:
        CanonicalizationError: ``unsupported-value``, with detail ``type``, ``number``, ``text`` or ``key``; or
            ``too-large``, with detail ``bytes``, ``depth``, ``nodes`` or ``digits``.
    """
    written = None
    try:
        if big_integers and (limits is DEFAULT_LIMITS or (limits.max_nodes >= _SMALL and limits.max_depth >= 16)):
            kind = type(value)
            if kind is str or (kind is dict and len(value) < _SMALL and _SIMPLE.issuperset(map(type, value.values()))):
                written = orjson.dumps(value, None, _SORTED)  # the arguments of most calls
            elif (respell := _survey(value)) is not None:
                written = orjson.dumps(_respelled(value, False) if respell else value, None, _SORTED)
    except (TypeError, RecursionError, MemoryError):  # orjson's refusals; a class without a hash; a nearly full stack
        written = None
    if written is None or (not written.isascii() and _may_misorder(written)):
        written = _write_any(value, limits, exact, big_integers)
    if len(written) > limits.max_bytes:
        raise _refused("bytes")
    return written


def _survey(value: Any) -> bool | None:
    """Return None unless a container is small and plain; else whether it has floats that must be respelled."""
    if type(value) is not dict and type(value) is not list:
        return None
    level = _members(value)
    nodes, depth, respell = len(level), 1, False
    while nodes < _SMALL and depth < 16:
        if _SIMPLE.issuperset(map(type, level)):
            return respell
        nested = []
        for item in level:
            kind = type(item)
            if kind in _SIMPLE:
                continue
            if kind is dict or kind is list:
                nested.append(item)
            elif kind is not float or not -_EDGE < item < _EDGE:
                return None
            elif item.is_integer() or -1e-5 < item < 1e-5:
                respell = True
        level = _members(*nested)
        nodes += len(level)
        depth += 1
    return None


def _members_anywhere(*containers: Any) -> list[Any]:
    """Return the items of lists and the values of dicts, of all ``containers``."""
    return [item for part in containers for item in (part.values() if type(part) is dict else part)]


# CPython's garbage collector answers the same in one call, and the whole is a third faster. (Keys that are not strings
# it adds; they are refused later.) Other implementations do not promise that.
_members = get_referents if sys.implementation.name == "cpython" else _members_anywhere


def _write_any(value: object, limits: Limits, exact: bool, big_integers: bool) -> bytes:
    """Return the canonical bytes of any value, or raise the reason why it has none."""
    try:
        tree = _respelled(value, True) if _inspect(value, limits, exact, big_integers) else value
        written = orjson.dumps(tree, option=_SORTED)
        return orjson.dumps(_reordered(tree), option=_UNSORTED) if _may_misorder(written) else written
    except TypeError as error:  # after the inspection there is one thing left that orjson refuses
        raise _refused("text") from error
    except (RecursionError, MemoryError) as error:
        raise _refused("depth" if isinstance(error, RecursionError) else "bytes") from error


def _inspect(value: Any, limits: Limits, exact: bool, big_integers: bool) -> bool:
    """Refuse what has no canonical bytes, and return whether a number must be respelled.

    Sizes are summed before anything is copied or written, so that shared or self-referential structures end here.
    """
    level, depth, nodes, size, respell = [value], 0, 1, 0, False
    while level:
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                size += len(item)
            elif kind is int:
                if not -_MAX_SAFE <= item <= _MAX_SAFE:
                    size += _count_digits(item, limits, big_integers)
                    respell = True
            elif kind is float:
                respell |= _check_float(item, exact)
            elif kind is dict or kind is list:
                nodes += len(item)
                if nodes > limits.max_nodes:
                    raise _refused("nodes")
                if depth == limits.max_depth:
                    raise _refused("depth")
                if kind is dict:
                    names = list(item)
                    if any(type(name) is not str for name in names):
                        raise _refused("key")
                    size += sum(map(len, names))
                deeper.extend(item.values() if kind is dict else item)
            elif kind is not bool and item is not None:
                raise _refused("type")
        if size > limits.max_bytes:
            raise _refused("bytes")
        level = deeper
        depth += 1
    return respell


def _count_digits(number: int, limits: Limits, big_integers: bool) -> int:
    if not big_integers:
        raise _refused("number")
    most = limits.max_digits
    try:
        # A digit is worth more than 3 bits: what is far too large is not converted, which would be slow.
        digits = len(str(abs(number))) if number.bit_length() <= 4 * most else most + 1
    except ValueError as error:  # the host lowered Python's own limit (sys.set_int_max_str_digits)
        raise _refused("digits") from error
    if digits > most:
        raise _refused("digits")
    return digits


def _check_float(number: float, exact: bool) -> bool:
    if not -_EDGE < number < _EDGE and (exact or number - number != 0):  # the difference: infinite or NaN
        raise _refused("number")
    return number.is_integer() or -1e-5 < number < 1e-5


def _respelled(value: Any, big_integers: bool) -> Any:
    """Return a copy of a value in which orjson finds floats, and big integers if asked, spelled as we want them."""
    kind = type(value)
    if kind is dict:
        return {name: _respelled(item, big_integers) for name, item in list(value.items())}
    if kind is list:
        return [_respelled(item, big_integers) for item in list(value)]
    if kind is int and big_integers and not -_MAX_SAFE <= value <= _MAX_SAFE:
        return orjson.Fragment(str(value))
    if kind is float and _check_float(value, exact=False):
        return int(value) if value.is_integer() and abs(value) < _EDGE else orjson.Fragment(_float_text(value))
    return value


def _float_text(number: float) -> str:
    """Return ECMAScript's Number::toString (RFC 8785, 3.2.2.3): Python's shortest digits, laid out by its rules."""
    if 1e-6 <= abs(number) < 1e21:
        return format(Decimal(repr(number)), "f").removesuffix(".0")
    return repr(number).replace("e-0", "e-")


def _may_misorder(written: bytes) -> bool:
    """Tell whether a text holds what sorts otherwise by UTF-8 bytes (orjson) than by UTF-16 code units (3.2.3).

    These are characters from U+E000 to U+FFFF beside characters beyond them, each known by its first byte.
    """
    leads = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
    return (b"\xee" in written or b"\xef" in written) and any(lead in written for lead in leads)


def _reordered(value: Any) -> Any:
    if type(value) is dict:
        return {name: _reordered(value[name]) for name in sorted(value, key=lambda name: name.encode("utf-16-be"))}
    return [_reordered(item) for item in value] if type(value) is list else value


def parse(data: bytes | str, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Parse one JSON text (RFC 8259) strictly into fresh plain data; integers stay exact.

    Refused are duplicate names (compared after unescaping, at any depth), invalid UTF-8, a byte order mark, anything
    after the value, NaN and infinities (also as 1e400), lone surrogates (also escaped), and what exceeds ``limits``.

    Raises:
        CanonicalizationError: ``unsupported-value``, with detail ``type``, ``encoding``, ``syntax``, ``trailing``,
            ``duplicate``, ``number`` or ``text``; or ``too-large``, with detail ``bytes``, ``depth``, ``nodes`` or
            ``digits``.
    """
    if type(data) is not bytes and type(data) is not str:
        raise _refused("type")
    if len(data) > limits.max_bytes:
        raise _refused("bytes")
    raw, text, fault = _transcoded(data)
    if fault:
        raise _refused(fault)
    if len(raw) > limits.max_bytes:
        raise _refused("bytes")
    try:
        # A text that is the canonical bytes of what orjson reads holds nothing to refuse. (Integers beyond 64 bits
        # are floats to orjson; these have no exact canonical bytes.)
        value = orjson.loads(raw)
        is_canonical = canonicalize(value, limits=limits, exact=True) == raw
    except (orjson.JSONDecodeError, CanonicalizationError):
        is_canonical = False
    return value if is_canonical else _parse_any(text, limits)


def _transcoded(data: bytes | str) -> tuple[bytes, str, str]:
    """Return bytes, text and a fault. What Python raises holds the whole text, so it ends here, not in our error."""
    try:
        raw = data.encode() if isinstance(data, str) else data
        return raw, raw.decode(), ""
    except UnicodeError as error:
        return b"", "", "text" if isinstance(error, UnicodeEncodeError) else "encoding"


def decode(data: bytes) -> Any:
    """Return fresh plain data from canonical bytes of our own: their size was checked when they were written.

    Raises:
        CanonicalizationError: they are not acceptable JSON after all (see `parse`).
    """
    return parse(data, limits=_NO_LIMITS)


def _parse_any(text: str, limits: Limits) -> Any:
    body = text.strip(" \t\n\r")
    if body.startswith("\ufeff"):
        raise _refused("encoding")
    try:
        value, end = _decoder(limits.max_digits).raw_decode(body)
        if end != len(body):
            raise _refused("trailing")
        _inspect(value, limits, exact=False, big_integers=True)
        if "\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError:
        fault = "syntax"
    except UnicodeEncodeError:
        fault = "text"
    except ValueError:  # the host lowered Python's own limit (sys.set_int_max_str_digits)
        fault = "digits"
    except (RecursionError, MemoryError) as error:
        fault = "depth" if isinstance(error, RecursionError) else "bytes"
    raise _refused(fault)  # out here: those errors hold the whole text, and would stay attached to ours


@functools.lru_cache(maxsize=8)
def _decoder(max_digits: int) -> json.JSONDecoder:
    def integer(digits: str) -> int:
        if len(digits.removeprefix("-")) > max_digits:
            raise _refused("digits")
        return int(digits)

    def constant(_name: str) -> NoReturn:
        raise _refused("number")  # NaN, Infinity, -Infinity

    return json.JSONDecoder(object_pairs_hook=_unique, parse_int=integer, parse_constant=constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _refused("duplicate")
    return members


def as_numbers(value: Any, schema: object) -> Any:
    """Return ``value`` with integers turned into floats where its JSON Schema says ``number``. Never raises.

    Canonical bytes have one spelling for 1 and 1.0: the tool gets an int unless its schema's ``type`` is ``number``, or
    a list with ``number`` and without ``integer``. Only ``properties``, ``items`` and ``additionalProperties`` are
    followed, and only integers within ±2^53, which floats hold exactly, are turned. All else stays as it is.
    """
    try:
        return _as_numbers(value, schema)
    except RecursionError:  # a value inside itself under a schema inside itself
        return value


def _as_numbers(value: Any, schema: object) -> Any:
    if not isinstance(schema, (dict, MappingProxyType)):
        return value
    if type(value) is int:
        return float(value) if -(2**53) <= value <= 2**53 and _says_number(schema.get("type")) else value
    if type(value) is dict:
        if _NOT_INTEGERS.issuperset(map(type, value.values())):  # the arguments of most calls
            return value
        return {name: _as_numbers(item, _member_schema(schema, name)) for name, item in value.items()}
    if type(value) is list and "prefixItems" not in schema:
        return [_as_numbers(item, schema.get("items")) for item in value]
    return value


def _says_number(kind: object) -> bool:
    names = [name for name in (kind if type(kind) is list else [kind]) if type(name) is str]
    return "number" in names and "integer" not in names


def _member_schema(schema: Mapping[str, Any], name: str) -> object:
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    return None if "patternProperties" in schema else schema.get("additionalProperties")


_MESSAGES = {
    "bytes": "The JSON text is too long: send less, or raise the limit on bytes.",
    "depth": "Arrays and objects are nested too deeply: flatten the value, or raise the limit on depth.",
    "digits": "An integer has too many digits: send it as a string.",
    "nodes": "There are too many values: send fewer, or raise the limit on nodes.",
    "duplicate": "An object has two members of one name: send each name once.",
    "encoding": "The JSON text is not UTF-8, or starts with a byte order mark: send UTF-8 without one.",
    "key": "An object has a key that is not a string: use strings only.",
    "number": "A number has no exact JSON form (NaN, infinite, or 2^53 and more): send it as a string.",
    "syntax": "The text is not JSON: send one complete JSON value.",
    "text": "A string holds a lone surrogate: send well-formed Unicode text.",
    "trailing": "The JSON text goes on after its value: send one value.",
    "type": "This type is not supported: give plain JSON data, or JSON text as str or bytes.",
}


def _refused(detail: str) -> CanonicalizationError:
    code = "too-large" if detail in ("bytes", "depth", "digits", "nodes") else "unsupported-value"
    return CanonicalizationError(_MESSAGES[detail], code=code, detail=detail)
