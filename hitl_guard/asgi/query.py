"""Query strings, read strictly: an unknown name, a name given twice or another type is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from ..errors import DecisionError
from ..lifecycle.state import STATES
from ..signing import MAX_TIME_MS
from .lists import MAX_LIMIT

SCHEMAS: dict[str, dict[str, Any]] = {
    "count": {"type": "integer", "minimum": 1, "maximum": 1_000},
    "cursor": {"type": "string", "minLength": 1, "maxLength": 4_096},
    "flag": {"type": "boolean"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    "number": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    "state": {"type": "string", "enum": sorted(STATES)},
    "text": {"type": "string", "minLength": 1, "maxLength": 128},
    "time": {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS, "description": "Epoch milliseconds."},
}
"""Kind of a parameter → JSON Schema; `read_query` enforces just these."""


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter: what the operation calls it, what the query string calls it, its kind and what it is for."""

    name: str
    key: str
    kind: str
    about: str
    many: bool = False
    default: Any = None


def read_query(request: Request, known: tuple[Query, ...]) -> dict[str, Any]:
    """Return the parameters by the operation's names.

    Raises:
        DecisionError: ``invalid-approval``, detail ``malformed``.
    """
    given = request.query_params
    unknown = set(given) - {one.key for one in known}
    if unknown:
        raise _malformed("there is a parameter that is unknown here")
    found: dict[str, Any] = {}
    for one in known:
        texts = given.getlist(one.key)
        if len(texts) > 1 and not one.many:
            raise _malformed(f"'{one.key}' is given twice")
        values = [_value(one, text) for text in texts]
        found[one.name] = (values or None) if one.many else values[0] if values else one.default
    return found


def _value(parameter: Query, text: str) -> Any:
    schema = SCHEMAS[parameter.kind]
    if schema["type"] == "boolean":
        if text in ("true", "false"):
            return text == "true"
    elif schema["type"] == "integer":
        if text.isascii() and text.isdigit() and len(text) < 18 and schema["minimum"] <= int(text) <= schema["maximum"]:
            return int(text)
    elif "enum" in schema:
        if text in schema["enum"]:
            return text
    elif schema["minLength"] <= len(text) <= schema["maxLength"]:
        return text
    raise _malformed(f"'{parameter.key}' cannot be used")


def _malformed(what: str) -> DecisionError:
    return DecisionError(f"The query was not accepted: {what}.", detail="malformed")
