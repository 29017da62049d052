"""Sealed functions: the last look at the arguments, inside the tool itself, where no hook comes after it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from .errors import ArgsMismatchError, CanonicalizationError, ConfigurationError
from .lifecycle import running
from .lifecycle.desk import Desk
from .lifecycle.toolspec import ToolSpec
from .models import Permit

_INJECTED = frozenset({
    "agent_framework.FunctionInvocationContext", "agents.RunContextWrapper", "agents.ToolContext", "fastmcp.Context",
    "google.Context", "google.ToolContext", "langchain.ToolRuntime", "langchain_core.InjectedToolArg",
    "langchain_core.InjectedToolCallId", "langchain_core.RunnableConfig", "langgraph.InjectedState",
    "langgraph.InjectedStore", "langgraph.ToolRuntime", "mcp.Context", "pydantic_ai.RunContext", "strands.ToolContext",
})
"""Types, as first package and class, of parameters that a framework fills in and shows to no model."""


class Seal:
    """Compares what a sealed function really gets with what was signed.

    Args:
        function: The plain function. injected: See `Guard.sealed`.

    Raises:
        ConfigurationError: ``injected`` names a parameter that the function does not have.
    """

    def __init__(self, desk: Desk, spec: ToolSpec, function: Callable[..., Any], injected: Sequence[str]) -> None:
        assert spec.signature is not None  # noqa: S101  `spec_of` reads it or raises
        if isinstance(injected, str) or not set(injected) <= spec.signature.parameters.keys():
            raise ConfigurationError("'injected' is a list of names of the function's parameters.")
        hints = _hints(function)
        self._desk, self._spec, self._full = desk, spec, spec.signature
        self._injected = {*injected, *(name for name, hint in hints.items() if _is_injected(hint))}
        kept = [one for one in spec.signature.parameters.values() if one.name not in self._injected]
        self._signed = spec.signature.replace(parameters=kept)
        self._adapters = {one.name: _adapter(hints[one.name]) for one in kept if one.name in hints}

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Return if this call is the one that the current permit is for, and the first one under it.

        Raises:
            ArgsMismatchError: no permit (``detail`` unguarded), another tool, or other arguments (``sealed``).
        """
        permit, name = running.CURRENT.get(), self._spec.name
        with self._desk.refusals("call:refused", tenant="" if permit is None else permit.scope.tenant, tool=name):
            if permit is None or permit.tool != name or not _opened(permit):
                raise ArgsMismatchError("A sealed tool was called around the guard.", detail="unguarded")
            registered = self._desk.tools.get(name)
            signed = running.arguments_of(permit, None if registered is None else registered.idempotency_argument)
            permit.mismatch = True  # until they are found to be the same
            if not self._same(self._given(args, kwargs), signed):
                raise ArgsMismatchError("A sealed tool got other arguments than the approved ones.", detail="sealed")
            permit.mismatch = False

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = _bound(self._full, args, kwargs)
        return {name: value for name, value in given.items() if name not in self._injected}

    def _same(self, given: dict[str, Any], signed: dict[str, Any]) -> bool:
        signed = self._by_parameter(signed)
        approved = _bound(self._signed, (), signed)
        try:
            plain = self._desk.canonical_value(given)
        except CanonicalizationError:  # the framework made objects of the JSON data: only the other way can tell
            plain = None
        if plain is not None and plain == self._desk.canonical_value(approved):
            return True
        # The same coercion that the framework applied, and both sides written as JSON again.
        made = {name: self._made(name, value) if name in signed else value for name, value in approved.items()}
        return self._written(given) == self._written(made) and bool(given == made)

    def _by_parameter(self, signed: dict[str, Any]) -> dict[str, Any]:
        """Return the signed arguments by the function's parameters.

        Some frameworks show a function whose one parameter is a model as a tool that takes the model's members.
        """
        names = list(self._signed.parameters)
        return {names[0]: signed} if len(names) == 1 and signed and names[0] not in signed else signed

    def _made(self, name: str, value: Any) -> Any:
        adapter = self._adapters.get(name)
        try:
            return value if adapter is None else adapter.validate_python(value)
        except ValueError:  # what does not fit the annotation was made of nothing that was signed
            raise _unfit() from None

    def _written(self, arguments: dict[str, Any]) -> bytes:
        """Return arguments as canonical bytes, each with its types: what reads alike but is another type differs."""
        try:
            typed = {name: [_types(value), to_jsonable_python(value)] for name, value in arguments.items()}
            return self._desk.canonical_value(typed)
        except (ValueError, CanonicalizationError):
            raise _unfit() from None


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _unfit() from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _unfit() -> ArgsMismatchError:
    return ArgsMismatchError(
        "A sealed tool got arguments that do not fit it. Name those that the framework fills in: sealed(injected=…).",
        detail="sealed",
    )


def _types(value: Any) -> Any:
    """Return what kinds of values these are, inside lists and mappings too; a set has no order to compare in."""
    if isinstance(value, Mapping):
        return {str(key): _types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_types(item) for item in value]
    return "number" if type(value) in (int, float) else f"{type(value).__module__}.{type(value).__qualname__}"


def _opened(permit: Permit) -> bool:
    """Open the seal of a permit: True for the first who does."""
    with permit.lock:
        first, permit.sealed = not permit.sealed, True
    return first


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters' types, or none of them where an annotation cannot be read."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}
    return {name: hint for name, hint in hints.items() if name != "return"}


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(hint)
    except Exception:  # noqa: BLE001  a type that pydantic does not know was coerced by nobody
        return None


def _is_injected(hint: Any) -> bool:
    """Whether a type, or one of its notes, is a framework's own: each member of a union but None."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        notes = hint.__metadata__
        return _is_injected(hint.__origin__) or any({_named(one), _named(type(one))} & _INJECTED for one in notes)
    if origin in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(hint) if one is not type(None)]
        return all(_is_injected(one) for one in members)
    return _named(origin or hint) in _INJECTED


def _named(kind: Any) -> str:
    return f"{str(getattr(kind, '__module__', '')).split('.')[0]}.{getattr(kind, '__name__', '')}"
