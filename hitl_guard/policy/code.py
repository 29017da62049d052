"""Code policies: Python functions, booleans, statuses and maps that say whether a person is needed.

Two families, named after what the settings are called:

``require_approval``
    A bool, or a function that returns one: True asks a person, False and None leave the call alone. It never approves
    or denies by itself.
``tool_approval``
    One of the four statuses, a function that returns one, or a map from tool name to either. A result is a status, an
    object ``{"type": status, "reason": text}``, or None for ``not-applicable``.

Functions may be async. One that raises, takes longer than the time-out or returns anything else asks a person
(``user-approval``) and is listed in `Verdict.errors`. A *synchronous* function cannot be interrupted: while one hangs,
the tool simply does not run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import ConfigurationError
from .core import PolicyInput, Status, Verdict

Resolve = Callable[[Awaitable[Any], float], Any]
"""Runs an awaitable to its end from synchronous code, for at most the given seconds, else raises `TimeoutError`."""

Function = Callable[..., Any]

MAX_REASON: Final = 2_000
"""Longest reason that a function may give, in characters."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STATUSES = ", ".join(f"'{status}'" for status in Status)
_KNOWN = frozenset(Status)


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What a function policy is told about a call. The arguments are its own copy.

    Attributes:
        args: The arguments as the model gave them.
        request_context: The host's data (``ToolCall.context``), empty when there is none.
        turn: ``(tool, arguments)`` of the earlier calls of the same model turn.
        dynamic: Whether the tool has no registered definition.
    """

    tool_name: str
    args: dict[str, Any]
    request_context: dict[str, Any]
    user: str
    tenant: str
    run_id: str
    tool_call_id: str | None
    agent: str | None
    turn: tuple[tuple[str, dict[str, Any]], ...] | None
    dynamic: bool

    @property
    def workspace(self) -> Any:
        """The host's ``workspace`` from the request context, or None."""
        return self.request_context.get("workspace")

    @classmethod
    def of(cls, call: PolicyInput) -> CallInfo:
        """Return the info for one function; no two functions share mutable data."""
        return cls(
            tool_name=call.tool,
            args=_copied(call.arguments),
            request_context=_copied(dict(call.context or {})),
            user=call.user,
            tenant=call.tenant,
            run_id=call.run_id,
            tool_call_id=call.call_id,
            agent=call.agent,
            turn=None if call.turn is None else tuple((tool, _copied(arguments)) for tool, arguments in call.turn),
            dynamic=call.dynamic,
        )


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """A function policy with a declared name and version, which enter the policy version (see `code_policy`)."""

    function: Function
    name: str
    version: str

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments)


class ToolApprovals(dict[str, Any]):
    """A ``tool_approval`` map whose entries replace the tools' own defaults, instead of adding to them."""


@dataclass(frozen=True, slots=True)
class ToolsPolicy(CodePolicy):
    """One function for all tools that stands for such a map. ``tools``: those that the map names."""

    tools: frozenset[str] = frozenset()


def code_policy(function: Function, *, name: str, version: str) -> CodePolicy:
    """Declare a function policy's name and version.

    A function has no digest: change ``version`` whenever its behaviour changes, and approvals given under the old one
    no longer count (``policy-changed``). Undeclared functions do not enter the policy version.

    Args:
        name: 1 to 64 letters, digits, dots, hyphens and underscores; ``version`` likewise.

    Raises:
        ConfigurationError: the function cannot be called, or name or version are unusable.
    """
    if not callable(function) or isinstance(function, CodePolicy):
        raise ConfigurationError("code_policy() takes a plain function.")
    for label, text in (("name", name), ("version", version)):
        if type(text) is not str or not _NAME.fullmatch(text):
            raise ConfigurationError(
                f"A code policy's {label} is 1 to 64 letters, digits, dots, hyphens and underscores. Correct it."
            )
    return CodePolicy(function, name, version)


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """A tool's own setting.

    Attributes:
        require_approval: True asks a person for every call; False and None add nothing (and lift nothing). A function
            ``(arguments, info: CallInfo) -> bool`` is authoritative: it replaces the policy's ``require_approval`` for
            this tool. A ``tool_approval`` setting for the tool replaces either.
    """

    require_approval: bool | Function | None = None

    def __post_init__(self) -> None:
        check_require_approval(self.require_approval, parameters=2)


@dataclass(frozen=True, slots=True)
class Runner:
    """How functions are run: who runs awaitables, and for how many seconds at most."""

    resolve: Resolve | None
    timeout_s: float

    def run(self, function: Function, *arguments: Any) -> Any:
        """Return what a sync or async function returns, or raise what it raises."""
        result = function(*arguments)
        if not inspect.isawaitable(result):
            return result
        if self.resolve is None:
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigurationError("An async policy function needs a caller that can run it.")
        return self.resolve(result, self.timeout_s)


# -- checks at start-up ----------------------------------------------------------------------------------------------


def check_require_approval(setting: object, *, parameters: int) -> None:
    """Check a ``require_approval`` setting.

    Raises:
        ConfigurationError: it is neither a bool, nor None, nor a function of so many parameters.
    """
    if setting is None or type(setting) is bool:
        return
    if not callable(setting):
        raise ConfigurationError("'require_approval' is True, False or a function. Correct the setting.")
    _check_parameters("require_approval", setting, parameters)


def check_tool_approval(setting: object) -> None:
    """Check a ``tool_approval`` setting.

    Raises:
        ConfigurationError: a status is unknown, a map holds something else (a bool, for example), or a function has the
            wrong parameters.
    """
    if isinstance(setting, Mapping):
        for tool, entry in setting.items():
            if type(tool) is not str or not tool:
                raise ConfigurationError("A tool_approval map has tool names as keys. Correct the map.")
            if callable(entry):
                _check_parameters(f"tool_approval for '{tool}'", entry, 2)
            elif entry is not None and _verdict(entry, "") is None:
                raise ConfigurationError(
                    f"tool_approval for '{tool}' is {_STATUSES}, an object with such a 'type' and a 'reason', or a "
                    "function. Correct the map."
                )
    elif callable(setting):
        _check_parameters("tool_approval", setting, 1)
    elif setting is not None and (not isinstance(setting, str) or _verdict(setting, "") is None):
        raise ConfigurationError(f"'tool_approval' is {_STATUSES}, a map of tool names, or a function. Correct it.")


def _check_parameters(where: str, function: Function, count: int) -> None:
    target = function.function if isinstance(function, CodePolicy) else function
    try:
        inspect.signature(target).bind(*range(count))
    except ValueError:  # a builtin without a signature: its first call will tell
        return
    except TypeError as error:
        takes = "(info)" if count == 1 else "(arguments, info)"
        raise ConfigurationError(f"The function for {where} must take {takes}. Correct its parameters.") from error


def declared(require_approval: object, tool_approval: object) -> list[tuple[str, str]]:
    """Return what these settings add to the policy version, as sorted pairs of where a setting stands and what it is.

    A declared function is its name and version, a static setting what it says. Undeclared functions add nothing.
    """
    settings = [("require_approval:", require_approval)]
    settings += [(f"tool_approval:{tool}", entry) for tool, entry in _flat(tool_approval)]
    return sorted((where, text) for where, setting in settings if (text := _declaration(setting)) is not None)


def functions(require_approval: object, tool_approval: object) -> Iterator[CodePolicy]:
    """Yield the declared functions among these settings."""
    for candidate in (require_approval, *(entry for _, entry in _flat(tool_approval))):
        if isinstance(candidate, CodePolicy):
            yield candidate


def _flat(tool_approval: object) -> list[tuple[str, object]]:
    return list(tool_approval.items()) if isinstance(tool_approval, Mapping) else [("", tool_approval)]


def _declaration(setting: object) -> str | None:
    if isinstance(setting, CodePolicy):
        return f"{setting.name}@{setting.version}"
    if setting is None or callable(setting):
        return None
    verdict = _verdict_of_bool(setting, "") or _verdict(setting, "")
    return None if verdict is None else f"{verdict.status}:{verdict.reason or ''}"


# -- verdicts --------------------------------------------------------------------------------------------------------


def verdicts_of(
    call: PolicyInput, *, require_approval: Any, tool_approval: Any, tool_policy: ToolPolicy | None, runner: Runner
) -> list[Verdict]:
    """Return what code says about a call; an empty list where nothing is set for it.

    A ``tool_approval`` setting for the tool replaces the tool's own setting. Without one, a tool's own function
    replaces ``require_approval``, and a tool's own bool is combined with it by OR. Between the two families the
    strictest wins.
    """
    per_tool = isinstance(tool_approval, Mapping)
    setting = tool_approval.get(call.tool) if per_tool else tool_approval
    own = None if tool_policy is None or setting is not None else tool_policy.require_approval
    parts: list[Verdict] = []
    if setting is not None:
        parts.append(_asked(setting, call, "tool_approval", per_tool, _verdict, runner))
    if own is not None:
        parts.append(_asked(own, call, "tool", True, _verdict_of_bool, runner))
    if require_approval is not None and not callable(own):
        parts.append(_asked(require_approval, call, "require_approval", False, _verdict_of_bool, runner))
    return parts


def _asked(
    setting: Any, call: PolicyInput, label: str, per_tool: bool, read: Callable[[Any, str], Verdict | None],
    runner: Runner,
) -> Verdict:
    """Return the verdict of one setting. Whatever goes wrong in a function asks a person."""
    rule = f"code:{setting.name if isinstance(setting, CodePolicy) else label}"
    try:
        value = setting
        if callable(setting):
            info = CallInfo.of(call)
            value = runner.run(setting, *((info.args, info) if per_tool else (info,)))
        verdict = read(value, rule)
    except Exception:  # noqa: BLE001  foreign code may raise anything, and none of it may let a tool run
        verdict = None
    return Verdict(Status.USER_APPROVAL, rules=(rule,), errors=(rule,)) if verdict is None else verdict


def _verdict_of_bool(value: Any, rule: str) -> Verdict | None:
    """Read a ``require_approval`` result; None when it is nothing we know."""
    if value is True:
        return Verdict(Status.USER_APPROVAL, rules=(rule,))
    return Verdict(Status.NOT_APPLICABLE) if value is False or value is None else None


def _verdict(value: Any, rule: str) -> Verdict | None:
    """Read a ``tool_approval`` setting or result; None when it is nothing we know."""
    status, reason = value, None
    if isinstance(value, Mapping):
        if not set(value) <= {"type", "reason"}:
            return None
        status, reason = value.get("type"), value.get("reason")
    elif value is None:
        return Verdict(Status.NOT_APPLICABLE)
    if not isinstance(status, str) or status not in _KNOWN or not _usable(reason):
        return None
    return Verdict(Status(status), (reason or "").strip() or None, rules=(rule,))


def _usable(reason: Any) -> bool:
    if not isinstance(reason, str):
        return reason is None
    return len(reason) <= MAX_REASON and not any(0xD800 <= ord(ch) <= 0xDFFF for ch in reason)
