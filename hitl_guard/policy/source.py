"""Strict YAML: what a policy file may look like before its meaning is asked for.

The accepted language is a small part of YAML 1.2: mappings with distinct string keys, lists, strings, whole and decimal
numbers, ``true``, ``false`` and ``null``. Aliases, tags, merge keys, several documents and YAML 1.1's surprises (``no``
as a boolean, ``12:30`` as a number, dates) are refused or plain strings. Every problem is a `ConfigurationError` that
names the file and the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ..errors import ConfigurationError

MAX_BYTES: Final = 262_144
"""Longest accepted file."""
MAX_DEPTH: Final = 32
"""Deepest accepted nesting."""
MAX_DIGITS: Final = 100
"""Longest accepted number, in characters."""
_MAX_SHOWN = 5

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None, "~": None, "": None}

Place = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


def problem(file: str, message: str, *, place: Place = (), line: int | None = None) -> ConfigurationError:
    """Return the error for one problem in a policy file: file, line, place in the document, what to do."""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    at = file if line is None else f"{file}:{line}"
    return ConfigurationError(f"{at}: {where}: {message}" if where else f"{at}: {message}", file=file, line=line)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed policy file.

    Attributes:
        file: Its name, for messages.
        data: Plain Python data.
        lines: Line number of every place in the document.
    """

    file: str
    data: Any
    lines: dict[Place, int]

    def problem(self, message: str, place: Place = ()) -> ConfigurationError:
        """Return the error for a problem at a place, with the line of the nearest place that has one."""
        for length in range(len(place), -1, -1):
            line = self.lines.get(place[:length])
            if line is not None:
                return problem(self.file, message, place=place, line=line)
        return problem(self.file, message, place=place)

    def validated(self, model: type[Model]) -> Model:
        """Return the data as a pydantic model.

        Raises:
            ConfigurationError: it does not fit; the first problem's place, and what is wrong at up to five places.
        """
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            first, *others = (self.problem(_worded(item["type"], item["msg"]), _place(item["loc"])) for item in found)
            more = "".join(f"; {other}" for other in others[: _MAX_SHOWN - 1])
            raise ConfigurationError(f"{first}{more}", file=self.file, line=getattr(first, "line", None)) from None


def _place(loc: Sequence[str | int]) -> Place:
    return tuple(loc)


def _worded(kind: str, message: str) -> str:
    """Pydantic's words, with what to do where they do not say it."""
    return {
        "extra_forbidden": "this key is unknown; correct its spelling or remove it.",
        "missing": "this key is required; add it.",
        "string_type": "this must be a text; put it in quotes.",
        "string_pattern_mismatch": "this text has a form that is not allowed here; see policies/README.md.",
    }.get(kind, message.removeprefix("Value error, ") + ("" if message.endswith(".") else "."))


def read_bytes(path: str | Path) -> bytes:
    """Return a policy file's bytes.

    Raises:
        ConfigurationError: it cannot be read, or is longer than 256 KiB.
    """
    file = str(path)
    try:
        with Path(path).open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a usable path"
        raise problem(file, f"the policy file cannot be read ({why}). Give the path of a readable file.") from error
    if len(data) > MAX_BYTES:
        raise problem(file, f"the file is longer than {MAX_BYTES} bytes. Split it into several documents.")
    return data


def parse(data: bytes, file: str) -> Source:
    """Parse one strict YAML document.

    Raises:
        ConfigurationError: anything that is not exactly one document of the accepted language.
    """
    if len(data) > MAX_BYTES:
        raise problem(file, f"the file is longer than {MAX_BYTES} bytes. Split it into several documents.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise problem(file, "the file is not UTF-8. Save it as UTF-8.") from error
    if text.startswith("\ufeff"):
        raise problem(file, "the file starts with a byte order mark. Save it as UTF-8 without one.", line=1)
    reader = _Reader(file, {})
    try:
        value = reader.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise problem(file, f"this is not valid YAML ({error.problem}). Correct it.", line=line) from error
    except yaml.YAMLError as error:
        raise problem(file, "the file holds characters that YAML does not allow. Remove them.") from error
    return Source(file, value, reader.lines)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Builds values from the parser's events, which keeps aliases, tags and deep nesting out."""

    file: str
    lines: dict[Place, int]

    def document(self, events: Iterator[Any]) -> Any:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            raise problem(self.file, "the file is empty. See policies/README.md for what belongs in it.")
        value = self._node(next(events), events, ())
        next(events)  # the end of the document
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise problem(self.file, "the file holds more than one YAML document. Keep one per file.")
        return value

    def _node(self, event: Any, events: Iterator[Any], place: Place) -> Any:
        line = self.lines[place] = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise self._problem("aliases (*name) are not allowed. Write the value out.", place)
        if event.tag is not None:
            raise self._problem("tags (!name) are not allowed. Remove the tag.", place)
        if len(place) > MAX_DEPTH:
            raise problem(self.file, f"the nesting is deeper than {MAX_DEPTH}. Flatten it.", line=line)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, place)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, place)
        return self._scalar(event, place)

    def _sequence(self, events: Iterator[Any], place: Place) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, (*place, len(items))))
        return items

    def _mapping(self, events: Iterator[Any], place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        line = self.lines[place]
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, place) if isinstance(event, yaml.ScalarEvent) else None
            if type(key) is not str:
                raise self._problem("a key must be a string. Put it in quotes.", place)
            if key in result:
                raise self._problem(f"the key '{key}' stands here twice. Keep one.", place)
            result[key] = self._node(next(events), events, (*place, key))
        self.lines[place] = line
        return result

    def _scalar(self, event: Any, place: Place) -> str | int | float | bool | None:
        text: str = event.value
        if event.implicit[0]:  # written without quotes
            if text in _WORDS:
                return _WORDS[text]
            if _DECIMAL.fullmatch(text):
                number = math.inf if len(text) > MAX_DIGITS else float(text)
                if not math.isfinite(number):
                    raise self._problem("this number is too long or too large. Shorten it.", place)
                return int(text) if _WHOLE.fullmatch(text) else number
        if any(0xD800 <= ord(ch) <= 0xDFFF for ch in text):
            raise self._problem("a text holds half of a surrogate pair. Remove it.", place)
        return text

    def _problem(self, message: str, place: Place) -> ConfigurationError:
        return problem(self.file, message, place=place, line=self.lines[place])
