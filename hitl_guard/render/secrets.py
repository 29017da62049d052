"""Which values of a call a tool's schema marks secret. They are masked on every surface, and bound all the same.

A value is secret when a schema that may apply to it says ``writeOnly``, ``x-secret`` or ``format: password``. In doubt
it is secret: every branch of ``anyOf`` or ``if`` counts as applied, so does every ``patternProperties``, and a value
whose schema is elsewhere is secret if any other is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

MASK = "[masked]"
"""What stands for a secret value in plain JSON data."""

MAX_STEPS = 20_000
"""Pairs of a schema and a value that are looked at; a call that takes more is masked as a whole."""

_SAME = ("dependentSchemas", "else", "if", "not", "then")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("additionalItems", "contains", "items", "unevaluatedItems")
_ELSEWHERE = {"x-secret": True}

_Step = tuple[Any, Any, str]


def pointer(*steps: str | int) -> str:
    """Return a JSON pointer (RFC 6901); the whole value's is ``""``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def secret_pointers(schema: Mapping[str, Any] | None, arguments: Any) -> frozenset[str]:
    """Return the JSON pointers of the values in ``arguments`` that ``schema`` marks secret.

    Args:
        schema: The tool's input schema as it was signed, or None.
        arguments: Plain JSON data.
    """
    if schema is None or not _marks_any(schema):
        return frozenset()
    found: set[str] = set()
    seen: set[tuple[int, str]] = set()
    pending: list[_Step] = [(schema, arguments, "")]
    while pending:
        part, value, place = pending.pop()
        if not isinstance(part, Mapping) or (id(part), place) in seen:
            continue
        seen.add((id(part), place))
        if len(seen) > MAX_STEPS:
            return frozenset({""})
        if _marked(part):
            found.add(place)
        else:
            pending.extend(_below(schema, part, value, place))
    return frozenset(found)


def masked(value: Any, secrets: Collection[str], *, place: str = "") -> Any:
    """Return a copy of plain JSON data in which `MASK` stands for each secret value."""
    if place in secrets:
        return MASK
    if isinstance(value, dict):
        return {name: masked(item, secrets, place=place + pointer(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item, secrets, place=place + pointer(index)) for index, item in enumerate(value)]
    return value


def _marked(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("writeOnly") or schema.get("x-secret")) or schema.get("format") == "password"


def _marks_any(schema: Any) -> bool:
    pending = [schema]
    for part in pending:
        if isinstance(part, Mapping):
            if _marked(part):
                return True
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return False


def _below(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, place: str) -> Iterator[_Step]:
    """Yield the schemas that may apply to a value and to its members."""
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            yield _target(root, schema[keyword]), value, place
    for keyword in _SAME:
        part = schema.get(keyword)
        for one in part.values() if keyword == "dependentSchemas" and isinstance(part, Mapping) else (part,):
            yield one, value, place
    for keyword in _BRANCHES:
        for one in _list(schema, keyword):
            yield one, value, place
    if isinstance(value, dict):
        yield from _properties(schema, value, place)
    elif isinstance(value, list):
        yield from _items(schema, value, place)


def _properties(schema: Mapping[str, Any], value: dict[str, Any], place: str) -> Iterator[_Step]:
    own, patterns = _table(schema, "properties"), _table(schema, "patternProperties").values()
    for name, item in value.items():
        below = place + pointer(name)
        others = (own[name],) if name in own else (schema.get(keyword) for keyword in _OTHERS)
        for part in (*patterns, *others):
            yield part, item, below


def _items(schema: Mapping[str, Any], value: list[Any], place: str) -> Iterator[_Step]:
    first = _list(schema, "prefixItems") or _list(schema, "items")  # the latter in drafts before 2020-12
    for index, item in enumerate(value):
        below = place + pointer(index)
        for part in (*first[index:index + 1], *(schema.get(keyword) for keyword in _ITEMS)):
            yield part, item, below


def _table(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    table = schema.get(keyword)
    return table if isinstance(table, Mapping) else {}


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    items = schema.get(keyword)
    return items if isinstance(items, list) else []


def _target(root: Mapping[str, Any], reference: object) -> Any:
    """Return what a reference leads to; by anything but a pointer inside this schema, something secret."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")) or "%" in reference:
        return _ELSEWHERE
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name, _ELSEWHERE)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 6:
            found = (found[int(name):] or [_ELSEWHERE])[0]
        else:
            return _ELSEWHERE
    return found
