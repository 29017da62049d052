"""One schema of a tool, given as a pydantic model or as JSON Schema, and what data becomes under it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from .. import canonical
from ..errors import CanonicalizationError, ConfigurationError
from ..lifecycle import schemas
from ..toolcalls import as_text

Schema = type[Any] | Mapping[str, Any] | None
"""What a tool's schema may be: a pydantic model class, a JSON Schema, or nothing."""

WIDE = canonical.Limits(max_bytes=2**40, max_depth=200, max_nodes=2**31, max_digits=4_300)
"""For arguments: the guard has applied its own limits to them."""

_KEPT = canonical.Limits(max_bytes=2**40, max_depth=100, max_nodes=2**31, max_digits=4_300)
"""For what a tool gives out: a snapshot must have room to hold it inside other values."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A usable schema.

    Attributes:
        schema: The JSON Schema, a copy of our own.
        model: The pydantic model that it was made of, or None.
    """

    schema: dict[str, Any]
    model: Any = None

    @classmethod
    def of(cls, given: object, where: str, mode: Literal["validation", "serialization"]) -> Shape | None:
        """Return the shape that ``given`` describes, None for None.

        Args:
            where: Whose schema it is, for the message.
            mode: ``validation`` for what comes in, ``serialization`` for what goes out.

        Raises:
            ConfigurationError: it is neither a pydantic model nor a JSON Schema that can be applied.
        """
        if given is None:
            return None
        model = given if _is_model(given) else None
        if model is None and not isinstance(given, Mapping):
            raise ConfigurationError(f"The {where} must be a pydantic model class or a JSON Schema (a mapping).")
        try:
            found: Any = dict(given) if isinstance(given, Mapping) else _schema_of(model, mode)
            canonical.canonicalize(found, limits=schemas.SCHEMA_LIMITS)
            schemas.fits(found, b"null")
        except (CanonicalizationError, ConfigurationError) as error:
            raise ConfigurationError(f"The {where} cannot be applied: {error}") from error
        return cls(copied(found), model)

    def text(self) -> str:
        """Return the JSON Schema as text; equal schemas have equal texts."""
        return canonical.canonicalize(self.schema).decode()

    def mentions(self, name: str) -> bool:
        """Tell whether a property may have this name, or a value be it, anywhere in the schema."""
        models = () if self.model is None else (self.model.model_json_schema(by_alias=False),)
        return any(_mentions(schema, name) for schema in (self.schema, *models))

    def read(self, data: Any, refusal: CanonicalizationError) -> Any:
        """Return plain data as a tool gets it: an instance of the pydantic model, else a copy of the data.

        The model reads JSON strictly: ``"1"`` is no integer to it, a text may be a date.

        Raises:
            CanonicalizationError: ``refusal``; what pydantic raises would show the values.
        """
        if self.model is None:
            return copied(data)
        with suppress(Exception):
            return self.model.model_validate_json(canonical.canonicalize(data, limits=WIDE), strict=True)
        raise refusal

    def demand(self, data: Any, refusal: CanonicalizationError) -> None:
        """Raise ``refusal`` unless plain data fits the JSON Schema.

        Raises:
            ConfigurationError: the schema has references that lead nowhere.
        """
        fits = False
        with suppress(CanonicalizationError):
            fits = schemas.fits(self.schema, canonical.canonicalize(data, limits=WIDE))
        if not fits:
            raise refusal

    def sent(self, value: Any, refusal: CanonicalizationError) -> Any:
        """Return what a tool gives out as plain data that fits; of more than the model's fields, only these.

        Raises:
            CanonicalizationError: ``refusal``.
        """
        if self.model is not None and type(value) is not self.model:
            value = self.read(plain(value), refusal)
        data = plain(value)
        self.demand(data, refusal)
        return data


def plain(value: Any) -> Any:
    """Return any value as fresh plain JSON data.

    What JSON has stays as it is, pydantic models and what `orjson` knows are written in their JSON form; anything else
    becomes its text, as in a tool message (`hitl_guard.toolcalls.as_text`).
    """
    with suppress(CanonicalizationError):
        canonical.canonicalize(value, limits=_KEPT)
        return copied(value)
    with suppress(Exception):
        written = json.loads(orjson.dumps(value, default=_dumped, option=orjson.OPT_NON_STR_KEYS))
        canonical.canonicalize(written, limits=_KEPT)
        return written
    return well_formed(as_text(value))


def copied(data: Any) -> Any:
    """Return a copy of plain JSON data. (Unlike canonical bytes, it keeps ``1.0`` a float.)"""
    return json.loads(json.dumps(data))


def well_formed(text: str) -> str:
    """Return a text with U+FFFD in the place of lone surrogates, so that every store and client can hold it."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_model_instance(value: object) -> bool:
    """Tell whether a value is an instance of a pydantic model."""
    return _is_model(type(value))


def _dumped(value: Any) -> Any:
    if is_model_instance(value):
        with suppress(Exception):
            return value.model_dump(mode="json", by_alias=True)
    return str(value)


def _is_model(candidate: object) -> bool:
    if not isinstance(candidate, type):
        return False
    from pydantic import BaseModel  # slow to import, and many tools are described by JSON Schema

    return issubclass(candidate, BaseModel)


def _schema_of(model: Any, mode: Literal["validation", "serialization"]) -> Any:
    try:
        return model.model_json_schema(mode=mode)
    except Exception as error:  # of pydantic or of the model's own hooks
        raise ConfigurationError("the pydantic model has no JSON Schema.") from error


def _mentions(node: Any, name: str) -> bool:
    if isinstance(node, dict):
        return name in node or any(_mentions(item, name) for item in node.values())
    return any(_mentions(item, name) for item in node) if isinstance(node, list) else bool(node == name)
