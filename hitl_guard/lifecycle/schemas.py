"""Whether arguments fit a JSON Schema, in bounded time: the arguments are a model's, the schema may be a stranger's.

`jsonschema` does the work. What in it can take for ever is replaced or counted here:

- Regular expressions run in RE2, which never backtracks, not in Python's ``re``.
- Every keyword that is evaluated is a step, larger values and texts are more of them, and steps are limited.
- ``uniqueItems`` compares texts in a set, not each item with each other.
- An error message shows no arrays and objects: thousands of these texts would be written just to be thrown away.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from .. import canonical
from ..errors import CanonicalizationError, ConfigurationError

SCHEMA_LIMITS = canonical.Limits(max_bytes=262_144, max_depth=64, max_nodes=20_000)
"""How large a schema may be."""

MAX_STEPS = 100_000
"""Steps of one check of arguments: about a second."""

MAX_SCHEMA_STEPS = 200_000
"""Steps of one check of a schema, which is itself checked against a (large) schema."""

MAX_LEVELS = 200
"""Keywords inside one another: about 600 frames of Python's stack. At its end, libraries in Rust would panic."""

_Keyword = Callable[[Any, Any, Any, Any], Any]


@dataclass(slots=True)
class _Budget:
    """Steps that are left to one check, and the keywords that are being evaluated inside one another."""

    left: int
    levels: int = 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise CanonicalizationError(
                "The arguments take too many steps to compare with the tool's input schema: send less.",
                code="too-large", detail="schema",
            )


# Compiled validators are shared between threads; each check, in its own context, has a budget of its own.
_BUDGET: ContextVar[_Budget] = ContextVar("_BUDGET")


class _Object(dict[str, Any]):
    def __repr__(self) -> str:
        return "an object"


class _Array(list[Any]):
    def __repr__(self) -> str:
        return "an array"


def fits(schema: Mapping[str, Any], arguments: bytes) -> bool:
    """Tell whether canonical arguments fit a JSON Schema (draft 2020-12 unless it names another).

    Raises:
        CanonicalizationError: code ``too-large``, detail ``schema``: it would take more than `MAX_STEPS` steps. Or the
            schema exceeds `SCHEMA_LIMITS` (as `canonical.canonicalize` says) or is no JSON data.
        ConfigurationError: the schema takes too many steps to check, is no JSON Schema, has a regular expression that
            RE2 does not know, or cannot be applied.
    """
    try:
        text = canonical.canonicalize(dict(schema), limits=SCHEMA_LIMITS)
    except CanonicalizationError as error:
        if error.code != "too-large":
            raise
        raise CanonicalizationError(
            "A tool's input schema is too large or too deep: make it smaller.", code="too-large", detail=error.detail
        ) from error
    check = _validator(text)
    try:
        return _limited(MAX_STEPS, lambda: check.is_valid(_quiet(canonical.decode(arguments))))
    except (CanonicalizationError, ConfigurationError):
        raise
    except OverflowError:  # an integer beyond every float, with a 'multipleOf' that is one
        return False
    except Exception as error:  # a reference that leads nowhere or in a circle: refuse
        raise ConfigurationError("A tool's input schema cannot be applied: check its references.") from error


@functools.lru_cache(maxsize=512)
def _validator(text: bytes) -> Any:
    # jsonschema is slow to import, and many tools have no schema.
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    schema = json.loads(text)
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        meta = _bounded(kind)(kind.META_SCHEMA, format_checker=_regex_format())
        valid = _limited(MAX_SCHEMA_STEPS, lambda: meta.is_valid(_quiet(schema)))
    except ConfigurationError:
        raise
    except (CanonicalizationError, RecursionError) as error:
        raise ConfigurationError("A tool's input schema is too large to be checked: make it smaller.") from error
    except Exception as error:  # whatever a hostile '$schema' provokes
        raise ConfigurationError("A tool's input schema is not a valid JSON Schema.") from error
    if not valid:
        raise ConfigurationError("A tool's input schema is not a valid JSON Schema.")
    if b'"patternProperties":' in text and b'"unevaluatedProperties":' in text:
        # jsonschema would match the patterns by 're' where it looks for what is evaluated.
        raise ConfigurationError(
            "A tool's input schema has both 'patternProperties' and 'unevaluatedProperties': use "
            "'additionalProperties' instead of the latter."
        )
    # An empty registry: a schema may come from a foreign server, and its references must not make us fetch anything.
    return _bounded(kind)(schema, registry=Registry())


def _limited(steps: int, check: Callable[[], bool]) -> bool:
    token = _BUDGET.set(_Budget(steps))
    try:
        return check()
    finally:
        _BUDGET.reset(token)


def _quiet(value: Any) -> Any:
    """Return a copy whose arrays and objects have short texts."""
    if isinstance(value, dict):
        return _Object({name: _quiet(item) for name, item in value.items()})
    return _Array(map(_quiet, value)) if isinstance(value, list) else value


@functools.cache
def _bounded(kind: Any) -> Any:
    """Return a draft's validator class with our keywords, all of them counted."""
    from attrs import fields
    from jsonschema.validators import extend, validator_for

    ours = {
        "additionalProperties": _additional_properties, "pattern": _pattern, "patternProperties": _pattern_properties,
        "uniqueItems": _unique_items,
    }
    known: dict[str, _Keyword] = {**kind.VALIDATORS, **ours}
    bounded = cast(Any, extend)(kind, {name: _counted(name, rule) for name, rule in known.items()})
    names = [(one.name, one.alias) for one in fields(bounded) if one.init]
    is_type = bounded.is_type

    def evolve(self: Any, **changes: Any) -> Any:
        # The library's own would go over to its own classes wherever a part of a schema has a '$schema'.
        given = {alias: getattr(self, name) for name, alias in names} | changes
        return _bounded(validator_for(given["schema"], default=kind))(**given)

    def counted_type(self: Any, instance: Any, type: str) -> bool:
        if type == "boolean":  # asked of every schema that is searched for what it evaluates
            _BUDGET.get().spend(1)
        return cast(bool, is_type(self, instance, type))

    bounded.evolve = evolve
    bounded.is_type = counted_type
    return bounded


def _counted(name: str, rule: _Keyword) -> _Keyword:
    squares = name.startswith("unevaluated")  # looks each member up in a list of those that are evaluated

    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        budget, size = _BUDGET.get(), _size(instance)
        members = size * size // 1024 if squares else size // 32
        budget.spend(1 + _size(value) // 64 + (size // 256 if isinstance(instance, str) else members))
        budget.levels += 1
        if budget.levels > MAX_LEVELS:
            raise RecursionError
        try:
            for error in rule(validator, value, instance, schema) or ():
                budget.spend(1)
                yield error
        finally:
            budget.levels -= 1

    return keyword


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, dict)) else 0


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, dict):
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in instance.items():
            if name in properties or any(_matches(pattern, name) for pattern in patterns):
                continue
            if allowed is False:
                yield ValidationError("The object has an additional member.")
                return
            yield from validator.descend(item, allowed, path=name)


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, item in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _pattern(_validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("The text does not match the pattern.")


def _unique_items(_validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if unique and isinstance(instance, list):
        seen = set()
        for item in instance:
            # Read from canonical bytes, equal numbers are of one type and have one spelling.
            text = json.dumps(item, sort_keys=True)
            _BUDGET.get().spend(len(text) // 1024)
            if text in seen:
                yield ValidationError("The array has two equal items.")
                return
            seen.add(text)


def _matches(pattern: str, text: str) -> bool:
    compiled, size = _compiled(pattern)
    raw = text.encode()
    # RE2's worst case: each byte of the text times each instruction of the program.
    _BUDGET.get().spend(len(raw) * size // 2048)
    return compiled.search(raw) is not None


@functools.lru_cache(maxsize=128)
def _compiled(pattern: str) -> tuple[Any, int]:
    """Return RE2's program of a regular expression and its size in instructions."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors, options.max_mem, options.never_capture = False, 2**20, True
    # JSON Schema writes regular expressions as ECMA-262 does; RE2 writes \u00e9 as \x{00e9}.
    # (Halves of a pair stay as they are, and are refused.)
    escape = r"\\(?:u((?![dD][89a-fA-F])[0-9a-fA-F]{4})|.)"
    spelled = re.sub(escape, lambda one: f"\\x{{{one[1]}}}" if one[1] else one[0], pattern)
    try:
        compiled = re2.compile(spelled, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ConfigurationError(
            "A tool's input schema has a regular expression that RE2 does not know (no look-around, no "
            "back-references, at most 1,000 repetitions): write it otherwise."
        ) from error
    _BUDGET.get().spend(compiled.programsize // 4)
    return compiled, compiled.programsize


def _regex_format() -> Any:
    """Return a format checker that compiles the regular expressions of a schema, and knows no other format."""
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())

    @checker.checks("regex")
    def known(value: object) -> bool:
        return not isinstance(value, str) or _compiled(value) is not None

    return checker
