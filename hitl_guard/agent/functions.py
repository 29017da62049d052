"""The function behind a tool: which can be one, how it is called, where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from ..errors import ConfigurationError
from ..lifecycle.running import is_async
from ..lifecycle.threads import offload
from ..lifecycle.toolspec import check_function
from ..toolcalls import SEALED, check_mark, guarded_of

Function = Callable[..., Any]


def takes_context(tool: str, execute: object) -> bool:
    """Check the function that a tool is to run, and tell whether it wants the context beside its input.

    It does if it has a second positional parameter that is required or is named ``context``, or takes any number.

    Raises:
        ConfigurationError: it cannot be called with ``(input)`` or ``(input, context)``, is a generator, or is guarded.
    """
    if not callable(execute):
        raise ConfigurationError(f"'execute' of the tool '{tool}' must be a function, or None.")
    check_function(execute)
    check_unguarded(execute)
    if inspect.isfunction(execute) and execute in SEALED:
        raise ConfigurationError("The function is sealed, for arguments by name. Give the plain function.")
    parameters = parameters_of(execute).values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(positional) > 1:
        takes = positional[1].default is inspect.Parameter.empty or positional[1].name == "context"
    else:
        takes = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    try:
        inspect.signature(execute).bind(*range(2 if takes else 1))
    except TypeError as error:
        raise ConfigurationError(f"'execute' of the tool '{tool}' must take (input) or (input, context).") from error
    return takes


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters; raises `ConfigurationError` when they cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigurationError("A tool needs a function whose signature can be read.") from error


def model_of(function: Function, name: str, *, without: str) -> type[Any]:
    """Return a pydantic model of a function's parameters, by their annotations and defaults.

    Args:
        without: A parameter that is left out.

    Raises:
        ConfigurationError: pydantic cannot make one.
    """
    from pydantic import ConfigDict, create_model  # slow to import

    parameters = parameters_of(function)
    try:
        hints = get_type_hints(function, include_extras=True)
        fields: Any = {
            each: (hints.get(each, Any), ... if one.default is one.empty else one.default)
            for each, one in parameters.items() if each != without
        }
        made: type[Any] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        return made
    except Exception as error:  # of pydantic, or of an annotation that cannot be read
        raise ConfigurationError(
            f"The parameters of the tool '{name}' have no schema: give 'input_schema', or other annotations."
        ) from error


def check_unguarded(function: object) -> None:
    """Raise `ConfigurationError` for a guarded function, or one that wraps one: it would ask a second time."""
    check_mark(function)
    if guarded_of(function) is not None:
        raise ConfigurationError("The function is guarded already; the loop asks by itself. Give the plain function.")


async def start(execute: Function, arguments: tuple[Any, ...], late: Callable[[Any], None] | None = None) -> Any:
    """Run a function: await an async one, run a sync one in a worker thread, to its end.

    Args:
        late: Gets what a sync one returns after this task was cancelled.
    """
    if is_async(execute):
        return await execute(*arguments)

    def undo(result: Any) -> None:
        if inspect.isawaitable(result) or late is None:
            _let_go(result)
        else:
            late(result)

    result = await offload(lambda: execute(*arguments), undo=undo, tool=True)
    return await result if inspect.isawaitable(result) else result


def _let_go(result: Any) -> None:
    """Close what nobody will await, because the task was cancelled."""
    if inspect.iscoroutine(result):
        result.close()
