"""Which values of a call a tool's schema marks secret. They are masked on every surface, and bound all the same.

A value is secret when a schema that may apply to it says ``writeOnly``, ``x-secret`` or ``format: password``. In doubt
it is secret: every branch of ``anyOf`` or ``if`` counts as applied, so does every ``patternProperties``, and a value
whose schema is elsewhere is secret if any other is.

Places are linked steps while they are looked for, and texts only where they are told: a name may be as long as the
arguments, and thousands of values may stand below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..models import ApprovalRequest

MASK = "[masked]"
"""What stands for a secret value in plain JSON data."""

MAX_STEPS = 20_000
"""Pairs of a schema and a value that are looked at; a call that takes more is masked as a whole."""

MAX_PLACES = 262_144
"""Characters of all places of a call together that are told; one with more in its secrets' is masked as a whole."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME = ("else", "extends", "if", "not", "then")
_TABLES = ("dependencies", "dependentSchemas")
_BRANCHES = ("allOf", "anyOf", "disallow", "extends", "oneOf", "type")  # the last and "extends" in draft 3
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("additionalItems", "contains", "items", "unevaluatedItems")
_ELSEWHERE = {"x-secret": True}

Place = tuple[Any, ...]
"""``()`` for the whole value, else ``(place of the object or array, name or index)``."""

Tree = dict[str, Any]
"""Steps of JSON pointers → what is below, or the pointer that ends there. See `tree`."""

_Roots = tuple[Mapping[str, Any], ...]
_Step = tuple[_Roots, Any, Any, Place]


def pointer(*steps: str | int) -> str:
    """Return a JSON pointer (RFC 6901); the whole value's is ``""``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def printed(place: Place) -> str:
    """Return a place as a JSON pointer."""
    found: list[str | int] = []
    while place:
        place, step = place
        found.append(step)
    return pointer(*reversed(found))


def steps(place: str) -> list[str]:
    """Return the steps of a JSON pointer: what `pointer` was made of, as texts."""
    return [step.replace("~1", "/").replace("~0", "~") for step in place.split("/")[1:]]


def tree(pointers: Iterable[str]) -> Tree | str:
    """Return JSON pointers as a tree, to follow them along a value step by step; the pointer itself where it ends."""
    root: Tree = {}
    for place in pointers:
        if not place:
            return place
        *above, last = steps(place)
        part: Any = root
        for step in above:
            part = part.setdefault(step, {}) if isinstance(part, dict) else part
        if isinstance(part, dict):
            part[last] = place  # whatever is below is inside
    return root


def below(part: Tree | str | None, step: str | int) -> Tree | str | None:
    """Return what a tree has below a member or an index; None: nothing."""
    return part.get(str(step)) if isinstance(part, dict) and part else None


def secrets_of(request: ApprovalRequest) -> frozenset[str]:
    """Return the JSON pointers of a request's secret arguments."""
    schema = request.input_schema
    return frozenset() if schema is None else secret_pointers(schema, request.arguments)


def secret_pointers(schema: Mapping[str, Any] | None, arguments: Any) -> frozenset[str]:
    """Return the JSON pointers of the values in ``arguments`` that ``schema`` marks secret.

    Args:
        schema: The tool's input schema as it was signed, or None.
        arguments: Plain JSON data.
    """
    if schema is None or not _any(schema, _marked):
        return frozenset()
    found: set[Place] = set()
    seen: set[tuple[int, Place]] = set()
    pending: list[_Step] = [((schema,), schema, arguments, ())]
    while pending:
        roots, part, value, place = pending.pop()
        if (id(part), place) in seen:
            continue
        seen.add((id(part), place))
        if len(seen) > MAX_STEPS:
            return frozenset({""})
        if _marked(part):
            found.add(place)
        else:
            pending.extend(step for step in _below(roots, part, value, place) if isinstance(step[1], Mapping))
    return _pointers(found)


def _pointers(places: Iterable[Place]) -> frozenset[str]:
    found: set[str] = set()
    left = MAX_PLACES
    for place in places:
        told = printed(place)
        left -= len(told)
        if left < 0:
            return frozenset({""})
        found.add(told)
    return frozenset(found)


def masked(value: Any, secrets: Collection[str], *, mask: str = MASK) -> Any:
    """Return plain JSON data in which ``mask`` stands for each secret value. What holds none is not copied."""
    return _masked(value, tree(secrets), mask)


def _masked(value: Any, part: Tree | str | None, mask: str) -> Any:
    if isinstance(part, str):
        return mask
    if part and isinstance(value, dict):
        return {name: _masked(item, below(part, name), mask) for name, item in value.items()}
    if part and isinstance(value, list):
        return [_masked(item, below(part, index), mask) for index, item in enumerate(value)]
    return value


def left_masked(schema: Mapping[str, Any] | None, arguments: Any) -> bool:
    """Whether `MASK` stands where a secret belongs, as in arguments that were copied from what was shown."""
    return _left(arguments, tree(secret_pointers(schema, arguments)))


def _left(value: Any, part: Tree | str | None) -> bool:
    if isinstance(part, str):
        return bool(value == MASK)
    if part and isinstance(value, dict):
        return any(_left(item, below(part, name)) for name, item in value.items())
    return bool(part) and isinstance(value, list) and any(
        _left(item, below(part, index)) for index, item in enumerate(value)
    )


def _marked(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("writeOnly") or schema.get("x-secret")) or schema.get("format") == "password"


def _may_mark(schema: Mapping[str, Any]) -> bool:
    return _marked(schema) or any(keyword in schema for keyword in _REFERENCES)


def _any(schema: Any, test: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether a test says yes to a schema or to anything in it."""
    pending = [schema]
    for part in pending:
        if isinstance(part, Mapping):
            if test(part):
                return True
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return False


def _below(roots: _Roots, schema: Mapping[str, Any], value: Any, place: Place) -> Iterator[_Step]:
    """Yield the schemas that may apply to a value and to its members.

    Args:
        roots: The schema that contains this one, and each schema between them with an ``$id``: where a reference may
            begin.
    """
    roots = _rooted(roots, schema)
    for keyword in _REFERENCES:
        if keyword in schema:
            for beyond, target in _targets(roots, schema[keyword]):
                yield beyond, target, value, place
    for keyword in _SAME:
        yield roots, schema.get(keyword), value, place
    for keyword in _TABLES:
        for one in _table(schema, keyword).values():
            yield roots, one, value, place
    for keyword in _BRANCHES:
        for one in _list(schema, keyword):
            yield roots, one, value, place
    if isinstance(value, dict):
        for part, name in _properties(schema, value):
            yield roots, part, value[name], (place, name)
    elif isinstance(value, list):
        for part, index in _items(schema, value):
            yield roots, part, value[index], (place, index)
    elif isinstance(value, str) and _any(schema.get("contentSchema"), _may_mark):
        yield roots, _ELSEWHERE, value, place  # it says what is secret inside of the text


def _properties(schema: Mapping[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    own, patterns = _table(schema, "properties"), _table(schema, "patternProperties").values()
    for name in value:
        others = (own[name],) if name in own else (schema.get(keyword) for keyword in _OTHERS)
        for part in (*patterns, *others):
            yield part, name


def _items(schema: Mapping[str, Any], value: list[Any]) -> Iterator[tuple[Any, int]]:
    first = _list(schema, "prefixItems") or _list(schema, "items")  # the latter in drafts before 2020-12
    for index in range(len(value)):
        for part in (*first[index:index + 1], *(schema.get(keyword) for keyword in _ITEMS)):
            yield part, index


def _table(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    table = schema.get(keyword)
    return table if isinstance(table, Mapping) else {}


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    items = schema.get(keyword)
    return items if isinstance(items, list) else []


def _rooted(roots: _Roots, part: Any) -> _Roots:
    """Return the roots with a schema of its own ``$id`` (``id`` in draft 4) among them: references begin there."""
    own = isinstance(part, Mapping) and part is not roots[-1] and any(
        isinstance(part.get(name), str) for name in ("$id", "id")
    )
    return (*roots, part) if own else roots


def _targets(roots: _Roots, reference: object) -> Iterator[tuple[_Roots, Any]]:
    """Yield what a reference may lead to; by anything but a pointer inside this schema, something secret.

    It counts from the nearest root, but drafts differ in what makes one: so from every one where it leads somewhere.
    """
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")) or "%" in reference:
        yield roots, _ELSEWHERE
        return
    names = steps(reference)
    found = [one for end in range(len(roots)) if (one := _followed(roots[:end + 1], names)) is not None]
    yield from found or [(roots, _ELSEWHERE)]


def _followed(roots: _Roots, names: Iterable[str]) -> tuple[_Roots, Any] | None:
    found: Any = roots[-1]
    for name in names:
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 6:
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
        roots = _rooted(roots, found)
    return None if found is None else (roots, found)
