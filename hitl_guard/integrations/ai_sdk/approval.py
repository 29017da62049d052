"""`tool_approval`: the SDK's ``toolApproval`` configuration as a policy, so that a TypeScript one ports line by line.

Every shape of the SDK is taken: a map from tool name to a status, an object ``{"type", "reason"}`` or a function
``(input, options)``; or one function for all tools, ``(options)``. Functions may be async. Unlike there, a status that
nobody knows is refused at the start, or asks a person where a function returns it, and so does a function that raises.

::

    guard = Guard(policy=Policy(tool_approval=tool_approval({
        "deleteFile": "user-approval",
        "pay": lambda input, options: (
            {"type": "denied", "reason": "Admins only."} if options.runtime_context.get("role") != "admin"
            else "user-approval" if input["amount"] > 1000 else None
        ),
    })), …)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import canonical
from ...errors import ConfigurationError
from ...policy.code import (
    CallInfo,
    CodePolicy,
    ToolApprovals,
    ToolsPolicy,
    check_tool_approval,
    code_policy,
    declared,
)

REQUEST_KEY = "tool_approval"
"""Where a request's own configuration stands in its context: a map of statuses and objects (see `AgentLoop`)."""

_DATA = (REQUEST_KEY, "messages", "tools_context")


@dataclass(frozen=True, slots=True)
class ToolCallInfo:
    """``toolCall`` of a function for all tools. ``dynamic``: nobody registered a definition for it."""

    tool_name: str
    tool_call_id: str | None
    input: dict[str, Any] = field(repr=False)
    dynamic: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What a function is told beside the input, from the context that the host gave the run.

    Attributes:
        tool_call: The call.
        tool_context: ``context["tools_context"][tool]``, or None. tools_context: All of them.
        runtime_context: The rest of the context.
    """

    tool_call: ToolCallInfo
    given_messages: list[Any] | None = field(repr=False)
    tools_context: dict[str, Any] = field(repr=False)
    runtime_context: dict[str, Any] = field(repr=False)

    @property
    def tool_call_id(self) -> str | None:
        """The call's id."""
        return self.tool_call.tool_call_id

    @property
    def messages(self) -> list[Any]:
        """``context["messages"]``: the host puts there what a policy is to see (``prepare_call`` of `AgentLoop`).

        Raises:
            ConfigurationError: it did not. Then the policy has no answer, and a person is asked.
        """
        if self.given_messages is None:
            raise ConfigurationError("The context has no 'messages': give them where the run is prepared.")
        return self.given_messages

    @property
    def tool_context(self) -> Any:
        """The context of this call's tool."""
        return self.tools_context.get(self.tool_call.tool_name)

    @classmethod
    def of(cls, info: CallInfo) -> Options:
        """Return the options of a call; the data is the function's own copy."""
        context = info.request_context
        messages, tools = context.get("messages"), context.get("tools_context")
        return cls(
            ToolCallInfo(info.tool_name, info.tool_call_id, info.args, info.dynamic),
            messages if type(messages) is list else None, tools if type(tools) is dict else {},
            {name: value for name, value in context.items() if name not in _DATA},
        )


def tool_approval(configuration: Any, *, per_request: bool = False) -> Any:
    """Return a ``toolApproval`` configuration as the ``tool_approval`` setting of `hitl_guard.Policy`.

    A map's entry counts in place of the tool's own default (``require_approval`` of a tool of the agent), as in the
    SDK. A function for all tools only adds to it: that it has no opinion lifts nothing. Declared functions
    (`hitl_guard.code_policy`) stay declared.

    Args:
        per_request: Whether a request may have a map of its own (``prepare_call`` of `AgentLoop`). Its entry then
            counts in place of this configuration's for each tool that it names. The host makes it, it is signed with
            every approval request, and a policy document's demands stand all the same.

    Raises:
        ConfigurationError: a status is unknown, or something is no configuration.
    """
    if isinstance(configuration, Mapping):
        entries = {tool: _for_tool(entry) if callable(entry) else entry for tool, entry in configuration.items()}
        check_tool_approval(entries)
        whole = ToolApprovals({tool: entry for tool, entry in entries.items() if entry is not None})
        return _per_request(whole, lambda info: _entry(whole, info)) if per_request else whole
    if not callable(configuration):
        raise ConfigurationError("'toolApproval' is a map from tool names, or a function (options).")
    setting = _wrapped(configuration, lambda function: lambda info: function(Options.of(info)))
    check_tool_approval(setting)
    return _per_request({"": setting}, setting, tools=()) if per_request else setting


def request_map(configuration: object) -> dict[str, Any]:
    """Return a request's own configuration as data that can be stored and signed with it.

    Raises:
        ConfigurationError: it is no map from tool names to statuses and objects.
    """
    if not isinstance(configuration, Mapping) or any(callable(entry) for entry in configuration.values()):
        raise ConfigurationError("A request's 'tool_approval' maps tool names to statuses or {type, reason} objects.")
    check_tool_approval(configuration)
    return {tool: dict(entry) if isinstance(entry, Mapping) else entry for tool, entry in configuration.items()}


def takes_requests(setting: object) -> bool:
    """Whether a policy's ``tool_approval`` looks at a request's own map."""
    return isinstance(setting, CodePolicy) and setting.name == _NAME


_NAME = "ai-sdk-tool-approval-per-request"


def _for_tool(entry: Any) -> Any:
    return _wrapped(entry, lambda function: lambda input, info: function(input, Options.of(info)))


def _per_request(
    entries: Mapping[str, Any], otherwise: Callable[[CallInfo], Any], tools: Iterable[str] | None = None
) -> CodePolicy:
    """Return one function for all tools. Its version stands for everything that has one."""
    def asked(info: CallInfo) -> Any:
        own = info.request_context.get(REQUEST_KEY, {})
        if type(own) is not dict:
            raise ConfigurationError(f"The context's '{REQUEST_KEY}' must be a map.")
        return own[info.tool_name] if info.tool_name in own else otherwise(info)

    version = hashlib.sha256(canonical.canonicalize([list(pair) for pair in declared(None, entries)])).hexdigest()[:32]
    return ToolsPolicy(asked, _NAME, version, frozenset(entries if tools is None else tools))


def _entry(entries: Mapping[str, Any], info: CallInfo) -> Any:
    entry = entries.get(info.tool_name)
    return entry(info.args, info) if callable(entry) else entry


def _wrapped(function: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return a wrapped function, declared where the given one is."""
    if isinstance(function, CodePolicy):
        return code_policy(wrap(function.function), name=function.name, version=function.version)
    return wrap(function)
