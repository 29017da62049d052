"""`tool_approval`: the SDK's ``toolApproval`` configuration as a policy, so that a TypeScript one ports line by line.

Every shape of the SDK (``ToolApprovalConfiguration``) is taken: a map from tool name to a status, an object ``{"type",
"reason"}`` or a function ``(input, options)``; or one function for all tools, ``(options)``. Functions may be async.
Unlike there, a status that nobody knows is refused at the start; where a function returns it, or raises, a person is
asked.

::

    guard = Guard(policy=Policy(tool_approval=tool_approval({
        "deleteFile": "user-approval",
        "pay": lambda input, options: (
            {"type": "denied", "reason": "Admins only."} if options.runtime_context.get("role") != "admin"
            else "user-approval" if input["amount"] > 1000 else None
        ),
    })), …)

What a function is told (`Options`), for those who know the JavaScript names:

=========================================  ===========================================================================
``toolCall.toolName, toolCallId, input``   ``options.tool_call.tool_name, tool_call_id, input``
``toolCall.dynamic``                       ``options.tool_call.dynamic``
``toolCallId``                             ``options.tool_call_id``
``tools``                                  ``options.tools``: ``tool_approval(…, tools=[…])`` says which there are
``messages``                               ``options.messages``: the context's ``messages``
``toolContext, toolsContext``              ``options.tool_context, tools_context``: the context's ``tools_context``
``runtimeContext``                         ``options.runtime_context``: the rest of the context
=========================================  ===========================================================================

The context is ``request_context`` of a run, ``context_of`` of `Chat`, ``context`` of a `hitl_guard.ToolCall`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from ... import canonical
from ...agent import Tool
from ...errors import ConfigurationError
from ...models import ToolDefinition
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

_NAME = "ai-sdk-tool-approval-per-request"
_NOT_RUNTIME = (REQUEST_KEY, "messages", "tools_context")

Tools = Mapping[str, ToolDefinition]


@dataclass(frozen=True, slots=True)
class ToolCallInfo:
    """The SDK's ``toolCall``.

    Attributes:
        tool_name: As the model wrote it. input: The arguments, the function's own copy.
        tool_call_id: The provider's id, or None for a call without one (deny-and-retry).
        dynamic: Whether nobody registered a definition for the tool.
    """

    tool_name: str
    tool_call_id: str | None
    input: dict[str, Any] = field(repr=False)
    dynamic: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What a function is told beside the input: the call, the tools, and the context that the host gave the run.

    Attributes:
        tool_call: The call.
        given_messages, given_tools: `messages` and `tools`, or None where the host gave none.
        tools_context: Tool name → ``context["tools_context"][tool]``.
        runtime_context: The rest of the context.
    """

    tool_call: ToolCallInfo
    given_messages: list[Any] | None = field(repr=False)
    given_tools: Tools | None = field(repr=False)
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
    def tools(self) -> dict[str, ToolDefinition]:
        """Tool name → definition of the tools that `tool_approval` was given; each time a copy.

        Raises:
            ConfigurationError: it was given none. Then the policy has no answer, and a person is asked.
        """
        if self.given_tools is None:
            raise ConfigurationError("The policy knows no tools: make it with tool_approval(…, tools=[…]).")
        return {
            name: replace(one, input_schema=deepcopy(one.input_schema)) for name, one in self.given_tools.items()
        }

    @property
    def tool_context(self) -> Any:
        """The context of this call's tool; None where it has none."""
        return self.tools_context.get(self.tool_call.tool_name)

    @classmethod
    def of(cls, info: CallInfo, tools: Tools | None = None) -> Options:
        """Return the options of a call; the data is the function's own copy."""
        context = info.request_context
        messages, contexts = context.get("messages"), context.get("tools_context")
        return cls(
            ToolCallInfo(info.tool_name, info.tool_call_id, info.args, info.dynamic),
            messages if type(messages) is list else None, tools, contexts if type(contexts) is dict else {},
            {name: value for name, value in context.items() if name not in _NOT_RUNTIME},
        )


def tool_approval(
    configuration: Any, *, per_request: bool = False, tools: Iterable[Tool | ToolDefinition] | None = None
) -> Any:
    """Return a ``toolApproval`` configuration as the ``tool_approval`` setting of `hitl_guard.Policy`.

    A map's entry counts in place of the tool's own default (``require_approval`` of a tool of the agent), as in the
    SDK. A function for all tools only adds to it: that it has no opinion lifts nothing. Declared functions
    (`hitl_guard.code_policy`) stay declared.

    Args:
        configuration: A map or a function, as the module says.
        per_request: Whether a request may have a map of its own (``prepare_call`` of `AgentLoop`). Its entry then
            counts in place of this configuration's for each tool that it names. The host makes it, it is signed with
            every approval request, and a policy document's demands stand all the same.
        tools: What functions find in ``options.tools``: the tools that the model can call, as the agent's own tools or
            as definitions. They are no part of the policy version; the called tool's definition is bound by itself.

    Raises:
        ConfigurationError: a status is unknown, or something is no configuration or no tool.
    """
    known = None if tools is None else _by_name(tools)

    def told(info: CallInfo) -> Options:
        return Options.of(info, known)

    if isinstance(configuration, Mapping):
        entries = {
            tool: _wrapped(entry, lambda function: lambda input, info: function(input, told(info)))
            if callable(entry) else entry for tool, entry in configuration.items()
        }
        check_tool_approval(entries)
        whole = ToolApprovals({tool: entry for tool, entry in entries.items() if entry is not None})
        return _per_request(whole, lambda info: _entry(whole, info)) if per_request else whole
    if not callable(configuration):
        raise ConfigurationError("'toolApproval' is a map from tool names, or a function (options).")
    setting = _wrapped(configuration, lambda function: lambda info: function(told(info)))
    check_tool_approval(setting)
    return _per_request({"": setting}, setting, tools=()) if per_request else setting


def _by_name(tools: Iterable[Tool | ToolDefinition]) -> Tools:
    """Return tools' definitions by name.

    Raises:
        ConfigurationError: something is no tool, or two have one name.
    """
    given = [*tools] if isinstance(tools, Iterable) else [tools]
    found = [one.definition if isinstance(one, Tool) else one for one in given]
    by_name = {one.name: one for one in found if isinstance(one, ToolDefinition)}
    if len(by_name) != len(found):
        raise ConfigurationError("'tools' is a list of an agent's tools or of ToolDefinitions, each name once.")
    return by_name


def request_map(configuration: object) -> dict[str, Any]:
    """Return a request's own configuration as data that can be stored and signed with it.

    None names no tool, as in the configuration itself: what that says of the tool counts.

    Raises:
        ConfigurationError: it is no map from tool names to statuses and objects.
    """
    if not isinstance(configuration, Mapping) or any(callable(entry) for entry in configuration.values()):
        raise ConfigurationError("A request's 'tool_approval' maps tool names to statuses or {type, reason} objects.")
    check_tool_approval(configuration)
    return {
        tool: dict(entry) if isinstance(entry, Mapping) else entry
        for tool, entry in configuration.items() if entry is not None
    }


def takes_requests(setting: object) -> bool:
    """Whether a policy's ``tool_approval`` looks at a request's own map (see `tool_approval`, ``per_request``)."""
    return isinstance(setting, ToolsPolicy) and setting.name == _NAME


def _per_request(
    entries: Mapping[str, Any], otherwise: Callable[[CallInfo], Any], tools: Iterable[str] | None = None
) -> CodePolicy:
    """Return one function for all tools. Its version stands for everything that has one.

    Args:
        entries: Tool name → setting; one function for all tools under the empty name.
        otherwise: What counts for a tool that the request does not name.
        tools: The tools that the configuration names; all of ``entries`` when omitted.
    """
    def asked(info: CallInfo) -> Any:
        own = info.request_context.get(REQUEST_KEY, {})
        if type(own) is not dict:
            raise ConfigurationError(f"The context's '{REQUEST_KEY}' must be a map.")
        entry = own.get(info.tool_name)
        return otherwise(info) if entry is None else entry

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
