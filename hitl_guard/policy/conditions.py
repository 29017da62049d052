"""Conditions: small yes-or-no expressions over one call.

The engine is CEL (https://cel.dev, the C++ runtime through ``cel-expr-python``), behind a protocol of three methods so
that another one can take its place. A condition either answers True or False, or raises `ConditionError`; what an error
means is the rule's business (see `hitl_guard.policy.documents`).

What the engine does badly is kept away from it: strings are cut at NUL, nesting deeper than a few thousand ends the
process, an error's value is a truthy string, and reading a null result lowers the reference count of None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from cel_expr_python import cel  # type: ignore[import-untyped]  # the library ships no py.typed

from ..errors import ConfigurationError, HitlGuardError

MAX_SOURCE: Final = 2_000
"""Longest condition, in characters."""
MAX_DEPTH: Final = 100
"""Deepest nesting of a value that a condition may see."""
MAX_NODES: Final = 200_000
"""Most values that a condition may see."""

_INT64 = 1 << 63


class ConditionError(HitlGuardError):
    """A condition could not be answered. It never leaves the policy: rules turn it into a match or no match.

    ``detail`` says why: ``missing``, ``type``, ``invalid``, ``limit``, ``turn`` or ``engine``.
    """

    default_code = "condition-error"


class TurnUnknownError(ConditionError):
    """The condition depends on the other calls of the model's turn, and nobody said which there are."""


class Condition(Protocol):
    """One compiled condition."""

    @property
    def source(self) -> str:
        """The text that was compiled."""

    def evaluate(self, bound: Any) -> bool:
        """Answer for the variables that the same engine bound.

        Raises:
            ConditionError: there is no answer, or it is neither true nor false.
        """


class ConditionEngine(Protocol):
    """Compiles conditions and binds variables. One engine serves many threads."""

    def compile(self, source: str) -> Condition:
        """Compile a condition.

        Raises:
            ConfigurationError: it does not compile, names an unknown variable, or cannot be true or false.
        """

    def bind(self, variables: Mapping[str, Any]) -> Any:
        """Make variables ready for `Condition.evaluate`, once for many conditions.

        A value that `check_values` refuses is left out: conditions that need it then have no answer, others do.
        """


def check_values(values: Iterable[Any]) -> None:
    """Refuse what the engine would misread or die of.

    Accepted are ``dict`` with string keys, ``list``, ``str`` without NUL, whole numbers of 64 bits, finite floats,
    bools and None, at most 100 deep and 200,000 in number. The walk goes level by level, so that a value that holds
    itself ends at the limit.

    Raises:
        ConditionError: a value is of another kind (``invalid``) or beyond a limit (``limit``).
    """
    level, depth, seen = list(values), 0, 0
    while level:
        depth += 1
        seen += len(level)
        if depth > MAX_DEPTH or seen > MAX_NODES:
            raise ConditionError("A value is nested too deeply or holds too much.", detail="limit")
        level = _checked(level)


def _checked(level: list[Any]) -> list[Any]:
    """Check the values of one level; return those inside them."""
    deeper: list[Any] = []
    for value in level:
        kind = type(value)
        if kind is str:
            _check_text(value)
        elif kind is dict:
            for key in value:
                _check_text(key)
            deeper.extend(value.values())
        elif kind is list:
            deeper.extend(value)
        elif kind is int:
            if not -_INT64 <= value < _INT64:
                raise ConditionError("A number needs more than 64 bits.", detail="limit")
        elif kind is float:
            if not math.isfinite(value):
                raise ConditionError("A number is not finite.", detail="invalid")
        elif kind is not bool and value is not None:
            raise ConditionError("A value is not plain JSON data.", detail="invalid")
    return deeper


def visible(values: Iterable[Any]) -> bool:
    """Return whether `check_values` accepts the values."""
    try:
        check_values(values)
    except ConditionError:
        return False
    return True


def _check_text(text: Any) -> None:
    if type(text) is not str or "\0" in text:
        raise ConditionError("A key is not a string, or a text holds NUL.", detail="invalid")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConditionError("A text is not well-formed Unicode.", detail="invalid") from error


_TYPE = cel.Type
_JSON_OBJECT = _TYPE.Map(_TYPE.STRING, _TYPE.DYN)

VARIABLES: Final[Mapping[str, Any]] = {
    "tool": _TYPE.STRING,
    "args": _JSON_OBJECT,
    "user": _TYPE.STRING,
    "tenant": _TYPE.STRING,
    "run": _TYPE.STRING,
    "agent": _TYPE.DYN,
    "dynamic": _TYPE.BOOL,
    "context": _JSON_OBJECT,
    "turn": _TYPE.List(_JSON_OBJECT),
    "turn_known": _TYPE.BOOL,
    "total": _JSON_OBJECT,
    "count": _TYPE.INT,
}
"""What a condition may name, with its CEL type (see policies/README.md)."""

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class CelEngine:
    """CEL conditions, type-checked when they are compiled.

    Args:
        variables: Names and CEL types that a condition may use.
    """

    def __init__(self, variables: Mapping[str, Any] = VARIABLES) -> None:
        self._env = cel.NewEnv(variables=dict(variables))

    def compile(self, source: str) -> CelCondition:
        """Compile a condition (see `ConditionEngine.compile`)."""
        if not source.strip() or len(source) > MAX_SOURCE or _FORBIDDEN.search(source):
            raise ConfigurationError(
                f"a condition is 1 to {MAX_SOURCE} characters of CEL without control characters. Rewrite it."
            )
        try:
            expression = self._env.compile(source)
        except Exception as error:
            raise ConfigurationError(f"the condition does not compile ({_first_line(error)}). Correct it.") from error
        if expression.return_type() != _TYPE.BOOL:
            raise ConfigurationError(
                "the condition is not known to be true or false. Compare its value, for example 'args.flag == true'."
            )
        return CelCondition(source, expression)

    def bind(self, variables: Mapping[str, Any]) -> Any:
        """Make variables ready (see `ConditionEngine.bind`). Each is converted once, at its first use."""
        return self._env.Activation({name: value for name, value in variables.items() if visible([value])})


class CelCondition:
    """A compiled CEL expression whose checked type is bool, so that its result is a bool or an error, never null."""

    __slots__ = ("_expression", "source")

    def __init__(self, source: str, expression: Any) -> None:
        self.source = source
        self._expression = expression

    def evaluate(self, bound: Any) -> bool:
        """Answer (see `Condition.evaluate`). An error's value is its text, hence the comparison with ``is``."""
        try:
            value = self._expression.eval(bound).value()
        except Exception as error:
            raise ConditionError("The condition's evaluation was given up.", detail="limit") from error
        if value is True:
            return True
        if value is False:
            return False
        raise ConditionError("The condition has no answer for this call.", detail=_detail(value))


def _first_line(error: Exception) -> str:
    """Return what the engine said, without its prefixes and its drawing of the place."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^(?:[A-Z_]+: )*(?:<input>:)?|\s*\[[A-Z_]+\]$", "", line)[:200]


def _detail(value: object) -> str:
    """Return a slug for an error's text. The text itself may hold arguments, so it goes no further."""
    text = value if type(value) is str else ""
    if text.startswith("NOT_FOUND"):
        return "missing"
    if "found in Activation" in text:
        return "limit"
    if "overload" in text:
        return "type"
    return "invalid" if text.startswith("INVALID_ARGUMENT") else "engine"


def totals(arguments: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the numbers of this call's arguments and those of earlier calls, in the shape of ``arguments``.

    Earlier numbers below zero add nothing, so that a call cannot make room for the next one, and a call without the
    argument adds nothing. A key is left out where this call has no number, or an earlier call has something that is no
    number: a condition that needs it then has no answer.

    Args:
        arguments: Checked by `check_values`, like each of ``earlier``.
    """
    result: dict[str, Any] = {}
    for key, own in arguments.items():
        others = [call[key] for call in earlier if key in call]
        if type(own) is dict and all(type(other) is dict for other in others):
            result[key] = totals(own, others)
        elif _is_number(own) and all(_is_number(other) for other in others):
            result[key] = _sum([own, *(max(other, 0) for other in others)])
    return result


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _sum(numbers: list[int | float]) -> int | float:
    """Return the exact sum of whole numbers, or the correctly rounded sum where one is a fraction."""
    if all(type(number) is int for number in numbers):
        return sum(numbers)
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf  # refused when it is bound
