"""Pydantic AI: a capability that wraps the agent's toolset from inside, so that every hook has had its say before.

``Agent(..., capabilities=[ApprovalCapability(guard)], output_type=[str, DeferredToolRequests])`` pauses a call
natively: the run ends with `DeferredToolRequests`. Whatever ``DeferredToolResults`` says then is a hint: the store is
asked. Whatever the framework itself lets wait for an approval waits for one of the guard's. External tools, which run
elsewhere, never come by here.
"""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, TextOutput, ToolOutput, ToolReturn, exceptions
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.native_tools._tool_search import ToolSearchTool
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import DeferredToolRequests, Tool
from pydantic_ai.tools import ToolDefinition as FrameworkDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets._deferred_capability_loader import DeferredCapabilityLoaderToolset
from pydantic_ai.toolsets._tool_search import ToolSearchToolset
from pydantic_core import to_json

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, CanonicalizationError, ConfigurationError, NoEffect
from ..guard import Guard
from ..models import Permit, ToolCall, ToolDefinition
from .bridge import Bridge, Facts, InnerCallError, Refusal, earlier_of, occurrence_of, plain, request_facts

_SHOWING = (ToolSearchToolset, DeferredCapabilityLoaderToolset)
"""The framework's own toolsets whose tools do nothing but show the model other tools."""


class ApprovalCapability(AbstractCapability[Any]):
    """Asks the guard before every tool of an agent.

    Args:
        scope: From the `RunContext` to the call's facts, e.g. ``lambda ctx: {"user": ctx.deps.user}``. The run id is
            the conversation's unless it says another.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. A sub-agent needs ``pause="retry"``: its own pause
            would end in its parent's tool.
        uncovered: What may run without the guard, because no wrapper can reach it: output functions by the function's
            or the output tool's name (``output function`` too where several share a `NativeOutput` or
            `PromptedOutput`), tools that another capability's wrapper adds, and what the model's provider runs by its
            kind (``web_search``, ``code_execution`` …).

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[RunContext[Any]], Facts] | None = None,
        pause: str = "native", effects: Mapping[str, str] | None = None, uncovered: Iterable[str] = (),
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)
        self._uncovered = frozenset(() if isinstance(uncovered, str) else uncovered)
        if isinstance(uncovered, str) or not all(isinstance(name, str) for name in self._uncovered):
            raise ConfigurationError("'uncovered' is a list of names.")
        self._given: dict[str, ToolsetTool[Any]] = {}

    async def for_run(self, ctx: RunContext[Any]) -> ApprovalCapability:
        """Return the capability for one run, which knows the tools of that run only."""
        own = copy.copy(self)
        own._given = {}
        return own

    def get_ordering(self) -> CapabilityOrdering:
        """Return that nothing stands between this and the tools."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Return the agent's tools, each behind the guard."""
        return _GuardedToolset(toolset, self.bridge, self._given)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Refuse tools that the model's provider runs.

        Raises:
            ConfigurationError: there are some that nobody named.
        """
        tools = request_context.model_request_parameters.native_tools
        kinds = {tool.kind for tool in tools if not isinstance(tool, ToolSearchTool)}
        for settings in (request_context.model.settings, request_context.model_settings):
            raw = dict(settings or {}).get("openai_native_tools")
            kinds |= {str(tool.get("type")) for tool in typing.cast(Iterable[Mapping[str, Any]], raw or ())}
        self._refuse(kinds)
        return request_context

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Refuse them again for each model that is tried: other capabilities may have added some since.

        Raises:
            ConfigurationError: there are some that nobody named.
        """
        return await self.before_model_request(ctx, request_context)

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: FrameworkDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Refuse a tool that did not come by the guard, since another capability's wrapper has added it.

        Raises:
            ConfigurationError: it did not, and nobody named it.
        """
        tools = (ctx.tool_manager.tools if ctx.tool_manager is not None else None) or {}
        tool, ours = tools.get(tool_def.name), self._given.get(tool_def.name)
        if tool is None or (
            not isinstance(tool.toolset, _SHOWING)
            and (ours is None or ours.args_validator is not tool.args_validator)
        ):
            self._refuse({tool_def.name})
        return args

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Callable[[Any], Any]
    ) -> Any:
        """Refuse an output function: the model chooses its arguments, and no toolset stands around it.

        Raises:
            ConfigurationError: nobody named it.
        """
        if output_context.has_function:
            tool = None if output_context.tool_def is None else output_context.tool_def.name
            if tool not in self._uncovered:
                self._refuse({output_context.function_name or tool or "output function"})
        return await handler(output)

    def _refuse(self, names: set[str]) -> None:
        if unnamed := sorted(names - self._uncovered):
            raise ConfigurationError(
                f"These run without the guard: {', '.join(unnamed)}. Make them tools of the agent, or name them in"
                " 'uncovered'."
            )

    async def selftest(self, agent: Agent[Any, Any]) -> None:
        """Run a canary call through this very agent, with a scripted model in place of its own.

        Raises:
            ConfigurationError: it ran, another guard answered, or the agent has output functions that nobody named. Do
                not start.
        """
        self._refuse({name for names in _functions(agent.output_type) if not names & self._uncovered for name in names})
        with self.bridge.canary() as canary:
            def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
                asked = any(isinstance(part, ToolCallPart) for message in messages for part in message.parts)
                return ModelResponse([TextPart("done") if asked else ToolCallPart(canary.name, {}, "canary")])

            tools = [Tool(canary.tool, takes_ctx=False, name=canary.name)]
            with agent.override(model=FunctionModel(script), tools=tools, toolsets=[]):
                await agent.run("canary", output_type=[str, DeferredToolRequests])


@dataclass
class _GuardedToolset(WrapperToolset[Any]):
    bridge: Bridge
    given: dict[str, ToolsetTool[Any]]

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools: dict[str, ToolsetTool[Any]] = await super().get_tools(ctx)
        self.bridge.know(tools)
        self.given.clear()
        self.given.update(tools)
        # What the framework would let wait by itself waits in `call_tool`, where there is a request to decide.
        return {name: _made(tool, "function") if _demands(tool) else tool for name, tool in tools.items()}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        called, own = super().call_tool, self.given.get(name, tool)
        demanded = _demands(own) or ctx.tool_call_approved

        whole: list[ToolReturn[Any]] = []

        async def start(permit: Permit) -> Any:
            result = await called(name, await _taken(tool, permit, ctx), ctx, _made(tool, own.tool_def.kind))
            _no_pause(result)
            if isinstance(result, ToolReturn):  # a notice of an edit belongs to what the model is told
                whole.append(result)
                return result.return_value
            return result

        try:
            call = self._call(name, tool_args, ctx, tool)
            if demanded:  # the framework's own yes is none of a person's
                await AsyncGuard(guard=self.bridge.guard).request(call)
            result = await self.bridge.run(call, start)
            return replace(whole[0], return_value=result) if whole else result
        except ApprovalRequired as pause:
            if self.bridge.pause == "retry":
                return self.bridge.told(pause)
            raise exceptions.ApprovalRequired({"hitl_guard": request_facts(pause.request)}) from pause
        except Refusal as refusal:
            told = self.bridge.told(refusal)
            if getattr(refusal, "response", None) is None:
                raise exceptions.ToolFailed(told) from refusal
            return told  # a person answered in the tool's place
        except InnerCallError as inner:
            stopped = inner.error
        except NoEffect as error:
            raise exceptions.ToolFailed(str(error)) from error
        raise stopped

    def _call(self, name: str, arguments: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> ToolCall:
        turns = [[part for part in message.parts if isinstance(part, ToolCallPart)]
                 for message in ctx.messages if isinstance(message, ModelResponse)]
        call_id = ctx.tool_call_id or ""
        held = [turn for turn in turns if any(part.tool_call_id == call_id for part in turn)]
        own = held[-1] if held else []
        earlier = earlier_of(((part.tool_call_id, part.tool_name, self._meant(part, ctx)) for part in own), call_id)
        # What another tool calls under its own id is none of the calls that the model asked for.
        asked = any((part.tool_call_id, part.tool_name) == (call_id, name) for part in own)
        return self.bridge.call(
            name, _signed(tool, arguments, ctx), framework=ctx, call_id=ctx.tool_call_id,
            occurrence=occurrence_of(([part.tool_call_id for part in turn] for turn in turns), call_id),
            run_id=ctx.conversation_id, definition=_definition(tool),
            turn=earlier if asked else None,
        )

    def _meant(self, part: ToolCallPart, ctx: RunContext[Any]) -> Any:
        """Return a call's arguments as its tool gets them, defaults included; as the model wrote them where that fails.
        """
        tool, given = self.given.get(part.tool_name), part.args or {}
        if tool is None:
            return given
        try:
            text = isinstance(given, str)
            read = tool.args_validator.validate_json if text else tool.args_validator.validate_python
            return _signed(tool, read(given, context=ctx.validation_context), ctx)
        except (ValueError, CanonicalizationError):
            return given


def _demands(tool: ToolsetTool[Any]) -> bool:
    """Whether the tool itself wants an approval of each call."""
    return bool(tool.tool_def.kind == "unapproved")


async def _taken(tool: ToolsetTool[Any], permit: Permit, ctx: RunContext[Any]) -> dict[str, Any]:
    """Return what a tool gets. Its own check has seen the model's arguments only; it sees a person's here.

    Raises:
        NoEffect: the tool does not take them.
    """
    try:
        arguments: dict[str, Any] = _validated(tool, permit.arguments, ctx)
        if permit.edited and tool.args_validator_func is not None:
            checked = tool.args_validator_func(ctx, **arguments)
            if inspect.isawaitable(checked):
                await checked
    except (CanonicalizationError, exceptions.ModelRetry, exceptions.ToolFailed) as error:
        raise NoEffect("The tool does not take the arguments that a person gave it.") from error
    return arguments


def _no_pause(result: Any) -> None:
    """Stop where a sub-agent's pause is a tool's result: nobody would ever resume it.

    Raises:
        ConfigurationError: it is.
    """
    output = getattr(result, "output", result)
    if isinstance(output, DeferredToolRequests) and any("hitl_guard" in facts for facts in output.metadata.values()):
        raise ConfigurationError("A sub-agent's own pause ends in its parent's tool: guard it with pause='retry'.")


def _made(tool: ToolsetTool[Any], kind: Any) -> ToolsetTool[Any]:
    return tool if tool.tool_def.kind == kind else replace(tool, tool_def=replace(tool.tool_def, kind=kind))


def _functions(output: Any) -> Iterator[set[str]]:
    """Yield the names of each output function in an agent's ``output_type``."""
    if isinstance(output, (list, tuple)):
        for one in output:
            yield from _functions(one)
    elif isinstance(output, (NativeOutput, PromptedOutput)):
        yield from _functions(output.outputs)
    elif isinstance(output, ToolOutput):
        yield from ({*names, *([output.name] if output.name else ())} for names in _functions(output.output))
    elif isinstance(output, TextOutput):
        yield from _functions(output.output_function)
    elif callable(output) and not isinstance(output, type) and typing.get_origin(output) is None:
        yield {getattr(output, "__name__", "output function")}


def _signed(tool: ToolsetTool[Any], arguments: dict[str, Any], ctx: RunContext[Any]) -> dict[str, Any]:
    """Return the JSON arguments that stand for validated ones: what hides a part of itself cannot be approved.

    A tool with one parameter, a model, takes the model's members; else the parameters by name.
    """
    by_name = plain(arguments)
    members = next(iter(by_name.values())) if len(by_name) == 1 else None
    for candidate in (members, by_name):
        with suppress(CanonicalizationError):
            if isinstance(candidate, dict) and _validated(tool, candidate, ctx) == arguments:
                return candidate
    raise CanonicalizationError("The arguments are not what their JSON form says.", detail="lossy")


def _validated(tool: ToolsetTool[Any], arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
    """Return what the framework makes of JSON arguments. The tool runs with this, made of the signed ones."""
    with suppress(ValidationError, ValueError):
        return tool.args_validator.validate_python(arguments, context=ctx.validation_context)
    try:  # strict types take some things (tuples, dates …) from JSON text only
        return tool.args_validator.validate_json(to_json(arguments), context=ctx.validation_context)
    except (ValidationError, ValueError) as error:
        raise CanonicalizationError("The arguments do not fit the tool.", detail="schema") from error


def _definition(tool: ToolsetTool[Any]) -> ToolDefinition:
    return ToolDefinition(tool.tool_def.name, tool.tool_def.description, tool.tool_def.parameters_json_schema)
