"""A claim: what one answered approval in a posted body says. It is checked against the store, and never believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NoReturn

from ..errors import InvalidApprovalError

Path = tuple[Any, ...]
"""Where something stands: ``()`` for the whole body, else ``(path of the container, index or name)``."""

Outcome = Literal["none", "output", "error"]
"""What the history around a claim says of its call: nothing yet, a result, or an error in place of one."""

MISSING: Any = object()
"""What `member` returns for a member that is not there; no JSON value is this."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One answered approval, as posted. Every field is the client's word.

    Attributes:
        format: ``ai-sdk-ui``, ``ai-sdk-model``, ``openai-responses`` or ``ag-ui``.
        path: JSON pointer (RFC 6901) to where it stands.
        approved: The decision that is claimed.
        request_id: The approval that is named, or None where the format names the tool-call id alone.
        token: The request's signed envelope, if it came back with the answer.
        call_id, tool: The tool call, or None where the format does not say.
        arguments: The call's arguments as posted; None without ``tool`` where the format does not say.
        reason: What is claimed to be the person's reason. It is not compared with anything; use the stored one.
        outcome: ``none``: nothing is said to have come of it yet, the claim is live. Else it is history.
    """

    format: str
    path: str
    approved: bool
    request_id: str | None = None
    token: str | None = field(default=None, repr=False)
    call_id: str | None = None
    tool: str | None = None
    arguments: Any = field(default=None, repr=False)
    reason: str | None = field(default=None, repr=False)
    outcome: Outcome = "none"


def malformed(what: str) -> NoReturn:
    """Refuse an answered approval that is not exactly what its format demands."""
    raise InvalidApprovalError(f"An approval in the request is malformed: {what}.", detail="malformed")


def member(node: Mapping[str, Any], name: str) -> Any:
    """Return a member by its camelCase name, or by the snake_case one that Python servers accept too, or `MISSING`.

    Raises:
        InvalidApprovalError: it is there in both spellings, so that two readers would see two values.
    """
    snake = _snake(name)
    if snake == name or snake not in node:
        return node.get(name, MISSING)
    if name in node:
        malformed(f"'{name}' is there twice")
    return node[snake]


@lru_cache(maxsize=64)
def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def text(node: Mapping[str, Any], name: str) -> str:
    """Return a member that must be a non-empty string."""
    value = member(node, name)
    if type(value) is not str or not value:
        malformed(f"'{name}' must be a non-empty string")
    return value


def optional_text(node: Mapping[str, Any], name: str, *, nullable: bool = False) -> str | None:
    """Return a member that must be a string where it is there."""
    value = member(node, name)
    if value is MISSING or (nullable and value is None):
        return None
    if type(value) is not str:
        malformed(f"'{name}' must be a string")
    return value


def boolean(node: Mapping[str, Any], name: str) -> bool:
    """Return a member that must be ``true`` or ``false``: nothing else is ever a yes."""
    value = member(node, name)
    if type(value) is not bool:
        malformed(f"'{name}' must be true or false")
    return value


def pointer(path: Path) -> str:
    """Return a path as a JSON pointer (RFC 6901)."""
    steps: list[str] = []
    while path:
        path, step = path
        steps.append(str(step).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{step}" for step in reversed(steps))
