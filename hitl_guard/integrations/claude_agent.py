"""Claude Agent SDK: hooks before and after each tool, and the tools of your own servers from inside.

``Approvals(guard, ...)`` makes the server of your own tools and the options for the client. The program is another
process. It may let another hook change the arguments after ours, and pauses at most one call of a turn: so a call that
waits is told to the model, which makes it again (deny-and-retry). Your own tools are authorized in their handler,
where nothing comes after. Built-in tools and other servers' are authorized in the hook: there a change by a later hook
goes unnoticed, and therefore other hooks are refused unless you trust them. What switches hooks off is always refused.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from claude_agent_sdk import (
    CanUseTool,
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    SdkMcpTool,
    create_sdk_mcp_server,
)
from claude_agent_sdk import _build_input_schema as _schema

from ..aio import AsyncGuard
from ..errors import (
    ApprovalDeniedError,
    ApprovalRequired,
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    RefusedError,
)
from ..guard import Guard
from ..lifecycle import running
from ..models import Permit, ToolCall, ToolDefinition
from ..toolcalls import edit_notice
from .bridge import Bridge, Facts, InnerCallError, Refusal

KEPT = 1_000
"""Calls that the program was told about and has not made or ended yet; older ones are forgotten, and then refused."""

TIMEOUT_S = 60.0
"""How long a hook may take. Then the call is blocked."""

CALL_ID_KEY = "claudecode/toolUseId"
"""Where the program names the model's call in the ``_meta`` of ``tools/call``."""

BARE = "CLAUDE_CODE_SIMPLE"
"""The variable that makes the program start without any hook, as ``--bare`` does."""

BYPASSING = frozenset({"allow-dangerously-skip-permissions", "bare", "dangerously-skip-permissions"})
HARMLESS = frozenset({
    "autocompact", "debug", "debug-file", "debug-to-stderr", "disable-slash-commands", "name", "no-chrome",
    "no-session-persistence", "replay-user-messages", "strict-mcp-config", "verbose",
})
"""The program's further arguments (``extra_args``) that bring neither hooks nor settings."""

_CALL_ID: ContextVar[str | None] = ContextVar("hitl_guard_tool_use_id", default=None)


class Approvals:
    """One client's way to a guard.

    Args:
        scope: From a hook's input (``session_id``, ``tool_name``, ``agent_id`` …) to the call's facts, e.g. ``lambda
            call: {"user": "ana"}``. The run id is the session's, which a resume keeps.
        effects: See `hitl_guard.integrations.bridge.Bridge`.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[Mapping[str, Any]], Facts] | None = None,
        effects: Mapping[str, str] | None = None,
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause="retry", effects=effects)
        self._own: dict[str, tuple[Any, ToolDefinition]] = {}  # tool → its server's instance, its definition
        self._announced: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._started: OrderedDict[str, tuple[ToolCall, Permit]] = OrderedDict()

    def server(self, name: str, tools: Sequence[SdkMcpTool[Any]], version: str = "1.0.0") -> Any:
        """Return an in-process MCP server, as `create_sdk_mcp_server` does, whose tools run through the guard only.

        The policy knows them by their own names, other servers' tools as ``mcp__SERVER__TOOL``.

        Raises:
            ConfigurationError: another server of yours has a tool of the same name.
        """
        if twice := {tool.name for tool in tools} & self._own.keys():
            raise ConfigurationError(f"Two servers have a tool of the same name: {', '.join(sorted(twice))}.")
        made = create_sdk_mcp_server(name, version, [replace(tool, handler=self._handler(tool)) for tool in tools])
        _name_calls(made["instance"])
        for tool in tools:
            self._own[tool.name] = made["instance"], ToolDefinition(tool.name, tool.description, _schema(tool))
        self.bridge.know(self._own)
        return made

    def options(self, options: ClaudeAgentOptions, *, trust_hooks: bool = False) -> ClaudeAgentOptions:
        """Return the client's options with our hooks.

        Args:
            trust_hooks: Other hooks, of these options, of settings files and of plugins, ``can_use_tool`` and other
                ``extra_args`` may change a call too. Whatever changes the arguments of a built-in tool after our hook
                runs unapproved. Without it ``can_use_tool`` may say yes or no, and no more.

        Raises:
            ConfigurationError: permissions are bypassed, hooks are switched off, or other hooks may run.
        """
        _check(options, trust_hooks=trust_hooks)
        hooks = dict(options.hooks or {})
        servers = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
        before = _Before(self, {key: config.get("instance") for key, config in servers.items()}, trust_hooks)
        ours = {"PreToolUse": before, "PostToolUse": self._after, "PostToolUseFailure": self._after_failure}
        for event, hook in ours.items():
            # Last, and "block": a hook that raises or takes too long lets nothing run.
            block = HookMatcher(hooks=[hook], timeout=TIMEOUT_S, on_failure="block")
            hooks[event] = [*hooks.get(event, ()), block]
        ask = options.can_use_tool
        return replace(
            options, hooks=hooks, env={**options.env, BARE: ""},
            can_use_tool=ask if ask is None or trust_hooks else self._unchanging(ask),
        )

    async def selftest(self, options: ClaudeAgentOptions) -> None:
        """Look at a client's options again, and send a canary call to their hooks. No model is asked, and the program
        does not start.

        Raises:
            ConfigurationError: it was not stopped by this guard, or something could let calls past it. Do not start.
        """
        with self.bridge.canary() as canary:
            for matcher in (options.hooks or {}).get("PreToolUse", ()):
                for hook in matcher.hooks:
                    if matcher.matcher is None and matcher.on_failure == "block" and isinstance(hook, _Before):
                        _check(options, trust_hooks=hook.trust_hooks)
                        call: Any = {"tool_name": canary.name, "tool_input": {}, "tool_use_id": "canary"}
                        await hook(call | {"session_id": "canary"}, "canary", {"signal": None})

    def _unchanging(self, ask: CanUseTool) -> CanUseTool:
        """Return a permission callback whose yes is to the call as it was shown. A no ends what was to start."""
        async def asked(tool: str, given: dict[str, Any], context: Any) -> PermissionResultAllow | PermissionResultDeny:
            shown = copy.deepcopy(given)
            answer = await ask(tool, given, context)
            if isinstance(answer, PermissionResultAllow) and given == shown and answer.updated_input in (None, shown):
                return answer
            if (started := self._started.pop(context.tool_use_id, None)) is not None:
                await asyncio.to_thread(self.bridge.guard.settle, started[1], "failed", "not-permitted")
            if isinstance(answer, PermissionResultAllow):
                return PermissionResultDeny(message="The call was changed after it was approved.")
            return answer

        return asked

    # -- your own tools ------------------------------------------------------------------------------------------

    def _handler(self, tool: SdkMcpTool[Any]) -> Callable[[Any], Any]:
        async def handler(arguments: Any) -> dict[str, Any]:
            async def start(permit: Permit) -> Any:
                kept.append(_noticed(await tool.handler(permit.arguments), permit))
                if kept[0].get("is_error") or kept[0].get("isError"):
                    raise _ToolError
                return kept[0]

            kept: list[dict[str, Any]] = []
            try:
                await self.bridge.run(self._announced_call(tool, arguments), start)
            except InnerCallError as inner:
                raise inner.error from inner.error.__cause__  # what the tool raised, as any other
            except (ApprovalRequired, *Refusal) as error:
                return self._told(error)
            except _ToolError:
                pass
            return kept[0]

        return handler

    def _announced_call(self, tool: SdkMcpTool[Any], arguments: Any) -> ToolCall:
        """Return the call, if the hook has seen it with these arguments.

        Raises:
            ArgsMismatchError: another hook changed them later.
            ConfigurationError: the hook has not seen it.
        """
        given = self._announced.pop(_CALL_ID.get() or "", None)
        if given is None:
            raise ConfigurationError("A tool was called without the hook: use the options that 'Approvals' returned.")
        call = self._call({**given, "tool_input": arguments}, tool.name)
        with self.bridge.guard._refusals(call):
            if given["tool"] != tool.name or given["tool_input"] != arguments:
                raise ArgsMismatchError("A tool got other arguments than the hook saw.", detail="sealed")
        return call

    def _told(self, error: ApprovalRequired | RefusedError | CanonicalizationError) -> dict[str, Any]:
        answered = isinstance(error, ApprovalDeniedError) and error.response is not None
        return {"content": [{"type": "text", "text": self.bridge.told(error)}], "is_error": not answered}

    # -- the program's tools -------------------------------------------------------------------------------------

    def _call(self, given: Mapping[str, Any], name: str) -> ToolCall:
        _, definition = self._own[name] if "tool" in given else (None, None)
        return self.bridge.call(
            name, given["tool_input"], framework=given, call_id=given["tool_use_id"], run_id=given["session_id"],
            definition=definition,
        )

    async def _after(self, given: Any, call_id: str | None, context: Any) -> dict[str, Any]:
        """Put on record that a tool of the program's has succeeded, or how much is known of one in the background."""
        if (started := self._started.pop(given["tool_use_id"], None)) is not None:
            ended = ("in_doubt", "background") if _in_background(given) else ("succeeded", None)
            await asyncio.to_thread(self.bridge.guard.settle, started[1], *ended)
        return {}

    async def _after_failure(self, given: Any, call_id: str | None, context: Any) -> dict[str, Any]:
        if (started := self._started.pop(given["tool_use_id"], None)) is not None:
            call, permit = started
            await asyncio.to_thread(self.bridge.guard.settle, permit, self.bridge.outcome(call), "tool-error")
        return {}


class _Before:
    """The hook before each tool."""

    def __init__(self, approvals: Approvals, servers: Mapping[str, Any], trust_hooks: bool) -> None:
        self._approvals, self._servers, self.trust_hooks = approvals, servers, trust_hooks

    async def __call__(self, given: Any, call_id: str | None, context: Any) -> dict[str, Any]:
        approvals = self._approvals
        if given.get("permission_mode") == "bypassPermissions":
            raise ConfigurationError("Permissions are bypassed: choose another permission mode.")
        own = self._own_tool(given)
        if own is not None:  # its handler asks
            before = approvals._announced.get(given["tool_use_id"])
            if before is not None and before["session_id"] != given["session_id"]:  # for whom is the next call of it?
                return _decision("deny", permissionDecisionReason="Another session uses this tool-call id.")
            _keep(approvals._announced, given["tool_use_id"], {**given, "tool": own})
            return {}
        call = approvals._call(given, given["tool_name"])
        approvals.bridge.know([call.tool])
        try:
            permit = await approvals.bridge.permit(call)
        except (ApprovalRequired, *Refusal) as error:
            return _decision("deny", permissionDecisionReason=approvals.bridge.told(error))
        running.take(permit)
        if permit.request_id is None:
            return {}  # the program's own rules say
        _keep(approvals._started, given["tool_use_id"], (call, permit))
        return _decision("allow", updatedInput=permit.arguments)

    def _own_tool(self, given: Mapping[str, Any]) -> str | None:
        """Return the name of one of our own servers' tools. Nothing but what runs in this process is ours."""
        if (given.get("mcp_server") or {}).get("source") != "sdk":
            return None
        for key, instance in self._servers.items():
            name = str(given["tool_name"]).removeprefix(f"mcp__{key}__")
            if name != given["tool_name"] and self._approvals._own.get(name, (None,))[0] is instance is not None:
                return name
        return None


class _ToolError(Exception):
    """A tool told the model that it failed: a signal inside this module, so that the outcome is on record."""


def _check(options: ClaudeAgentOptions, *, trust_hooks: bool) -> None:
    """Raise `ConfigurationError` for options that could let calls past our hook, or change them after it."""
    # The program reads "--flag=value" too, and a value that looks like a flag as one.
    written = [f"--{key}" for key in options.extra_args] + [str(value) for value in options.extra_args.values()]
    words = [word.partition("=") for word in written]
    given = {word.lstrip("-") for word, _, _ in words if word.startswith("-")}
    modes = {options.permission_mode, *(value or word for word, _, value in words)}
    modes |= {agent.permissionMode for agent in (options.agents or {}).values()}
    if "bypassPermissions" in modes or given & BYPASSING:
        raise ConfigurationError("Permissions are bypassed, or hooks are off: choose another permission_mode.")
    if options.env.get(BARE):
        raise ConfigurationError(f"Hooks are off: leave {BARE} out of the environment.")
    hooks = [one for event in ("PreToolUse", "PermissionRequest") for one in (options.hooks or {}).get(event, ())]
    foreign = any(not isinstance(hook, _Before) for matcher in hooks for hook in matcher.hooks)
    files = options.setting_sources != [] or options.settings is not None or options.plugins or given - HARMLESS
    if not trust_hooks and (foreign or files or options.permission_prompt_tool_name is not None):
        raise ConfigurationError(
            "Other hooks could change a call after it was approved: leave PreToolUse and PermissionRequest hooks,"
            " settings, plugins, permission_prompt_tool_name and extra_args out and set setting_sources=[], or say"
            " trust_hooks=True."
        )


def _in_background(given: Mapping[str, Any]) -> bool:
    """Whether a tool has only started: its end is told to the model, and to no hook."""
    response, asked = given.get("tool_response"), given.get("tool_input")
    named = isinstance(response, Mapping) and response.get("backgroundTaskId") is not None
    return named or (isinstance(asked, Mapping) and asked.get("run_in_background") is True)


def _name_calls(server: Any) -> None:
    """Let a server's handlers know which call of the model's they answer: the program says it beside the arguments.

    Raises:
        ConfigurationError: the installed MCP SDK cannot tell.
    """
    find = getattr(server, "get_request_handler", None)
    if find is None:
        raise ConfigurationError("Tools of your own need the MCP SDK 2 or newer: update 'mcp'.")
    entry = find("tools/call")

    async def named(context: Any, params: Any) -> Any:
        call_id = (params.meta or {}).get(CALL_ID_KEY)
        token = _CALL_ID.set(call_id if isinstance(call_id, str) else None)
        try:
            return await entry.handler(context, params)
        finally:
            _CALL_ID.reset(token)

    server.add_request_handler("tools/call", entry.params_type, named)


def _decision(decision: str, **more: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": decision, **more}}


def _keep(kept: OrderedDict[str, Any], call_id: str, value: Any) -> None:
    kept[call_id] = value
    while len(kept) > KEPT:
        kept.popitem(last=False)


def _noticed(result: dict[str, Any], permit: Permit) -> dict[str, Any]:
    """Return a tool's result; where a person changed the call, with the notice that says so."""
    if not permit.edited:
        return result
    return {**result, "content": [{"type": "text", "text": edit_notice(permit)}, *result.get("content", [])]}
