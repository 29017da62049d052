"""What the guard knows about a tool: its definition, its effect, its own policy, and how its arguments bind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from .. import canonical
from ..errors import CanonicalizationError, ConfigurationError
from ..models import EFFECTS, Effect, ToolDefinition, check_text
from ..policy.code import ToolPolicy
from . import schemas

_UNBINDABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One registered tool.

    Attributes:
        idempotency_argument: Name of the parameter that gets the idempotency key, or None.
        origin: Module and qualified name of the function, so that two functions never pass for one tool.
    """

    name: str
    definition: ToolDefinition
    effect: Effect = "opaque"
    policy: ToolPolicy | None = None
    signature: inspect.Signature | None = None
    idempotency_argument: str | None = None
    origin: str = ""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a Python call's arguments by name, defaults included, so that the approver sees what runs.

        Raises:
            TypeError: they do not fit the function, as Python itself says.
        """
        if self.signature is None:
            return dict(kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


def spec_of(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, effect: str = "opaque",
    policy: ToolPolicy | None = None, input_schema: Mapping[str, Any] | None = None, server: str | None = None,
    idempotency_argument: str | None = None,
) -> ToolSpec:
    """Return the specification of a Python function as a tool.

    Raises:
        ConfigurationError: its parameters have no names to bind by, it is a generator, or the effect is unknown.
    """
    check_effect(effect)
    check_function(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("A guarded tool needs a signature that can be read.") from error
    if any(parameter.kind in _UNBINDABLE for parameter in signature.parameters.values()):
        raise ConfigurationError("A guarded tool needs named parameters: no *args, **kwargs or positional-only ones.")
    if idempotency_argument is not None:
        if idempotency_argument not in signature.parameters:
            raise ConfigurationError("The function has no parameter of the name given as 'idempotency_argument'.")
        kept = [item for item in signature.parameters.values() if item.name != idempotency_argument]
        signature = signature.replace(parameters=kept)
    tool = check_text("name", name or getattr(function, "__name__", None))
    text = description if description is not None else inspect.getdoc(function)
    schema = _schema(signature, function) if input_schema is None else input_schema
    definition = ToolDefinition(tool, text, schema, server)
    return ToolSpec(
        tool, definition, cast(Effect, effect), policy, signature, idempotency_argument, _origin(function)
    )


def loose_spec_of(function: Callable[..., Any], name: str) -> ToolSpec:
    """Return the specification of a plain function under a given name; one without named parameters has no schema."""
    check_text("name", name)
    check_function(function)
    try:
        return spec_of(function, name=name)
    except ConfigurationError:  # no signature to read, or one that binds no names
        return ToolSpec(name, ToolDefinition(name, inspect.getdoc(function)), origin=_origin(function))


def _origin(function: object) -> str:
    """Return where a function is defined; of an object without a name of its own, where its class is."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None)}.{getattr(named, '__qualname__', None)}"


def check_function(function: object) -> None:
    """Raise `ConfigurationError` if ``function`` is a generator: its body would run after its outcome was recorded."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError("A guarded tool returns its result; a generator function cannot be one.")


def check_effect(effect: str) -> None:
    """Raise `ConfigurationError` unless ``effect`` is one that this version knows."""
    if effect not in EFFECTS:
        raise ConfigurationError(f"A tool's effect is one of: {', '.join(EFFECTS)}.")


def _schema(signature: inspect.Signature, function: Callable[..., Any]) -> dict[str, Any]:
    """Return a JSON Schema of the arguments from the annotations; what has no JSON type is left open.

    Defaults are part of it: arguments that come as JSON leave them out, and the digest of the definition binds them.
    """
    hints = inspect.get_annotations(function, eval_str=False)
    names = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
    by_text = {kind.__name__: text for kind, text in names.items()}
    properties: dict[str, Any] = {}
    for parameter in signature.parameters:
        hint = hints.get(parameter)
        kind = by_text.get(hint) if isinstance(hint, str) else names.get(hint) if isinstance(hint, type) else None
        properties[parameter] = {} if kind is None else {"type": kind}
        if kind is not None and signature.parameters[parameter].default is None:
            properties[parameter] = {"type": [kind, "null"]}  # "x: int = None", as many write it
        if signature.parameters[parameter].default is not inspect.Parameter.empty:
            properties[parameter]["default"] = _shown(signature.parameters[parameter].default)
    required = [item.name for item in signature.parameters.values() if item.default is item.empty]
    return {"additionalProperties": False, "properties": properties, "required": required, "type": "object"}


def _shown(default: Any) -> Any:
    """Return a copy of a default that is plain JSON data; of any other, the text of its type."""
    try:
        return canonical.decode(canonical.canonicalize(default))
    except CanonicalizationError:  # an object's own text may hold its address, and would differ in each process
        return repr(type(default))


def validate(definition: ToolDefinition | None, arguments: bytes) -> None:
    """Check canonical arguments against the tool's JSON Schema (see `schemas.fits`).

    Raises:
        CanonicalizationError: detail ``schema``; code ``unsupported-value``, or ``too-large`` if a check would take too
            many steps.
        ConfigurationError: the schema itself is no JSON Schema that can be applied.
    """
    if definition is None or definition.input_schema is None:
        return
    if not schemas.fits(definition.input_schema, arguments):
        raise CanonicalizationError("The arguments do not fit the tool's input schema.", detail="schema")
