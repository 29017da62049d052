"""HTML forms: what a page posts, read strictly, and a form for a call's arguments made from its tool's JSON Schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

from .. import canonical
from ..errors import CanonicalizationError, DecisionError
from ..render import arguments as layout
from ..render.characters import is_hidden
from ..render.secrets import pointer

MAX_BYTES = 4_194_304
"""How large a posted form may be: a megabyte of arguments, each byte of them written as three."""

MAX_FIELDS = 1_000
MAX_PROPERTIES = 100
"""Beyond so many properties the arguments are edited as one JSON text."""

_NUMBERS: dict[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "Write a whole number in digits."),
    "number": ((int, float), "Write a number, with a point for decimals."),
}


class Form:
    """A posted form. A name that comes twice is refused wherever one value is meant."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            # A browser sends every line break of a text as two characters.
            self._values.setdefault(name, []).append(value.replace("\r\n", "\n"))

    def one(self, name: str, default: str = "") -> str:
        """Return the value of a name, or ``default`` without one.

        Raises:
            DecisionError: ``invalid-approval``, detail ``malformed``: there are several.
        """
        values = self._values.get(name, [default])
        if len(values) != 1:
            raise malformed()
        return values[0]

    def first(self, name: str) -> str:
        """Return the first value of a name, or "": for what is only shown again."""
        return (self._values.get(name) or [""])[0]

    def every(self, name: str) -> list[str]:
        """Return all values of a name, in the order of the page."""
        return list(self._values.get(name, ()))

    def all(self) -> list[tuple[str, str]]:
        """Return every name with each of its values, so that a page can post the same once more."""
        return [(name, value) for name, values in self._values.items() for value in values]


def parse(body: bytes) -> Form:
    """Read an ``application/x-www-form-urlencoded`` body.

    Raises:
        DecisionError: ``invalid-approval``, detail ``malformed``.
    """
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise malformed() from None
    return Form(pairs)


def malformed(message: str = "The form cannot be read: load the page again.") -> DecisionError:
    """Return the error of a form that no page of ours posts."""
    return DecisionError(message, detail="malformed")


@dataclass(frozen=True, slots=True)
class Field:
    """One argument in the form.

    Attributes:
        key: What the form calls it: its number, since a property may have any name.
        name: The property; None for all arguments as one JSON text.
        kind: ``text``, ``number``, ``integer``, ``choice``, ``json``, or ``secret`` (its value is not in the page).
        states: What may be chosen: ``value``, ``null``, ``absent``. state: What is.
        text: What stands in the form; after a mistake what the person wrote.
        choices: Of a choice, the JSON texts.
        about: The tool's description of it, or None. It is the tool's text, not ours.
        error: What is wrong with what the person wrote, or None.
    """

    key: str
    name: str | None
    kind: str
    states: tuple[str, ...] = ("value",)
    text: str = ""
    choices: tuple[str, ...] = ()
    about: str | None = None
    state: str = "value"
    error: str | None = None

    @property
    def lines(self) -> int:
        """Rows of the text area that the text wants; 0 where one line is enough."""
        if self.kind == "text" and "\n" not in self.text and len(self.text) <= 60:
            return 0
        return min(16, max(2, self.text.count("\n") + 1 + len(self.text) // 80)) if self.kind in ("text", "json") else 0


@dataclass(frozen=True, slots=True)
class Edited:
    """What a person made of the arguments.

    Attributes:
        arguments: None where a field is wrong.
        typed: Of each secret that the person set, its property and what was typed (or ``null``, ``absent``): the values
            that were there before are not in it.
    """

    fields: tuple[Field, ...]
    arguments: dict[str, Any] | None
    typed: tuple[tuple[str, list[str]], ...] = dataclasses.field(default=(), repr=False)


def fields(
    schema: Mapping[str, Any] | None, arguments: Mapping[str, Any], secrets: Collection[str] = frozenset()
) -> tuple[Field, ...]:
    """Return the form's fields: one for each property that the schema or the call has.

    Args:
        schema: The tool's input schema, or None; one without plain properties gives a single JSON text.
        secrets: JSON pointers of secret values (see `hitl_guard.render.secrets`). They are never put into a form.
    """
    properties = {} if schema is None else schema.get("properties")
    if "" in secrets:
        return ()
    names = [] if not isinstance(properties, Mapping) else [*properties, *(n for n in arguments if n not in properties)]
    if not isinstance(properties, Mapping) or not properties or len(names) > MAX_PROPERTIES:
        if secrets:
            return ()
        return (Field("all", None, "json", text=_json(dict(arguments))),)
    required = (schema or {}).get("required")
    needed = set(required) if isinstance(required, list) else set()
    return tuple(
        _field(str(number), name, properties.get(name, {}), arguments, name in needed, secrets)
        for number, name in enumerate(names)
    )


def _field(
    key: str, name: str, schema: Any, arguments: Mapping[str, Any], needed: bool, secrets: Collection[str]
) -> Field:
    schema = schema if isinstance(schema, Mapping) else {}
    kind, nullable, choices = _kind(schema)
    state = "absent" if name not in arguments else "null" if arguments[name] is None and nullable else "value"
    others = [one for one, allowed in (("null", nullable), ("absent", not needed or state == "absent")) if allowed]
    about = schema.get("description") if isinstance(schema.get("description"), str) else None
    made = Field(
        key, name, kind, states=("value", *others), choices=choices, about=about, state=state,
    )
    place = pointer(name)
    inside = place + "/"
    if any(secret == place or secret.startswith(inside) for secret in secrets):
        # Not whether it is null either: that is its value.
        return replace(made, kind="secret", choices=(), state="value" if name in arguments else "absent")
    if state != "value":
        return made
    text = _text(kind, arguments[name], choices)
    return replace(made, kind="json", choices=(), text=_json(arguments[name])) if text is None else replace(
        made, text=text
    )


def _kind(schema: Mapping[str, Any]) -> tuple[str, bool, tuple[str, ...]]:
    """Return how a property is edited, whether it may be null, and its choices."""
    given = schema.get("type")
    types = [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]
    rest = [one for one in types if one != "null"]
    nullable = "null" in types
    options = schema.get("enum")
    if isinstance(options, list) and options:
        try:
            return "choice", False, tuple(canonical.canonicalize(one).decode() for one in options)
        except CanonicalizationError:
            return "json", False, ()
    if rest == ["boolean"]:
        return "choice", nullable, ("true", "false")
    if rest in (["string"], ["integer"], ["number"]):
        return {"string": "text"}.get(rest[0], rest[0]), nullable, ()
    return "json", False, ()


def _text(kind: str, value: Any, choices: tuple[str, ...]) -> str | None:
    """Return how a value stands in a field of a kind; None where only JSON can show it as it is."""
    if kind == "text":
        # A page would obey or hide other characters, and would change line breaks that are not plain ones.
        plain = type(value) is str and not any(one != "\n" and is_hidden(one) for one in set(value))
        return value if plain else None
    if kind == "choice":
        written = canonical.canonicalize(value).decode()
        return written if written in choices else None
    types, _ = _NUMBERS.get(kind, ((), ""))
    return canonical.canonicalize(value).decode() if type(value) in types else None


def _json(value: Any) -> str:
    return layout(canonical.canonicalize(value))


def edited(
    made: tuple[Field, ...], arguments: Mapping[str, Any], form: Form,
    limits: canonical.Limits = canonical.DEFAULT_LIMITS,
) -> Edited:
    """Read the form back. What was not touched keeps its signed value, whatever a browser does to texts.

    Args:
        made: The fields as `fields` returns them for the same schema, arguments and secrets.
    """
    result = dict(arguments)
    after, typed = [], []
    for field in made:
        state = form.one(f"state.{field.key}", field.state)
        posted = form.one(f"value.{field.key}", field.text)
        shown = replace(field, state=state, text="" if field.kind == "secret" else posted)
        if field.kind == "secret" and (posted or state != field.state):
            typed.append((field.name or "", [state, posted]))
        try:
            _put(result, field, state, posted, limits)
        except _WrongError as wrong:
            shown = replace(shown, error=str(wrong))
        after.append(shown)
    good = all(field.error is None for field in after)
    return Edited(tuple(after), result if good else None, tuple(typed))


class _WrongError(Exception):
    """What a person wrote into a field does not fit; the message is for the person."""


def _put(result: dict[str, Any], field: Field, state: str, posted: str, limits: canonical.Limits) -> None:
    if state not in field.states:
        raise _WrongError("Choose one of the possibilities.")
    if state != "value" and posted.strip() and posted != field.text:
        raise _WrongError("Say that there is a value, or leave the text empty.")
    if field.name is None:
        if posted != field.text:
            value = _parsed(posted, limits)
            if type(value) is not dict:
                raise _WrongError("The arguments are a JSON object.")
            result.clear()
            result.update(value)
    elif state == "absent":
        result.pop(field.name, None)
    elif state == "null":
        result[field.name] = None
    elif field.kind == "secret":
        if posted or field.state != "value":
            result[field.name] = posted
    elif posted != field.text or field.state != "value":
        result[field.name] = _value(field, posted, limits)


def _value(field: Field, posted: str, limits: canonical.Limits) -> Any:
    if field.kind == "text":
        return posted
    if field.kind == "choice" and posted not in field.choices:
        raise _WrongError("Choose one of the possibilities.")
    if field.kind not in _NUMBERS:
        return _parsed(posted.strip(), limits)
    types, wrong = _NUMBERS[field.kind]
    try:
        value = canonical.parse(posted.strip(), limits=limits)
    except CanonicalizationError:
        raise _WrongError(wrong) from None
    if type(value) not in types:
        raise _WrongError(wrong)
    return value


def _parsed(posted: str, limits: canonical.Limits) -> Any:
    try:
        return canonical.parse(posted, limits=limits)
    except CanonicalizationError as error:
        raise _WrongError(f"This is no strict JSON: {error}") from None
