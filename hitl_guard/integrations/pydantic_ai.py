"""Pydantic AI: a capability that wraps the agent's toolset from inside, so that every hook has had its say before.

``Agent(..., capabilities=[ApprovalCapability(guard)], output_type=[str, DeferredToolRequests])`` pauses a call
natively: the run ends with `DeferredToolRequests`. Whatever ``DeferredToolResults`` says then is a hint: the store is
asked. Tools that run elsewhere (external tools, the provider's own) never come by here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_ai import Agent, RunContext, exceptions
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, Tool
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, CanonicalizationError
from ..guard import Guard
from ..models import Permit, ToolDefinition
from .bridge import Bridge, Facts, Refusal, occurrence_of, plain, request_facts


class ApprovalCapability(AbstractCapability[Any]):
    """Asks the guard before every tool of an agent.

    Args:
        scope: From the `RunContext` to the call's facts, e.g. ``lambda ctx: {"user": ctx.deps.user}``. The run id is
            the conversation's unless it says another.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. A sub-agent needs ``pause="retry"``: its own pause
            would end in its parent's tool.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[RunContext[Any]], Facts] | None = None,
        pause: str = "native", effects: Mapping[str, str] | None = None,
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)

    def get_ordering(self) -> CapabilityOrdering:
        """Return that nothing stands between this and the tools."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        """Return the agent's tools, each behind the guard."""
        return _GuardedToolset(toolset, self.bridge)

    async def selftest(self, agent: Agent[Any, Any]) -> None:
        """Run a canary call through this very agent, with a scripted model in place of its own.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
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

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools: dict[str, ToolsetTool[Any]] = await super().get_tools(ctx)
        self.bridge.know(tools)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        called = super().call_tool

        async def start(permit: Permit) -> Any:
            return await called(name, _validated(tool, permit.arguments, ctx), ctx, tool)

        try:
            call = self.bridge.call(
                name, _signed(tool, tool_args, ctx), framework=ctx, call_id=ctx.tool_call_id,
                occurrence=_occurrence(ctx), run_id=ctx.conversation_id, definition=_definition(tool),
            )
            return await self.bridge.run(call, start)
        except ApprovalRequired as pause:
            if self.bridge.pause == "retry":
                return self.bridge.told(pause)
            raise exceptions.ApprovalRequired({"hitl_guard": request_facts(pause.request)}) from pause
        except Refusal as refusal:
            return self.bridge.told(refusal)


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
    try:
        return tool.args_validator.validate_python(arguments, context=ctx.validation_context)
    except (ValidationError, ValueError) as error:
        raise CanonicalizationError("The arguments do not fit the tool.", detail="schema") from error


def _definition(tool: ToolsetTool[Any]) -> ToolDefinition:
    return ToolDefinition(tool.tool_def.name, tool.tool_def.description, tool.tool_def.parameters_json_schema)


def _occurrence(ctx: RunContext[Any]) -> int:
    turns = (
        [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        for message in ctx.messages if isinstance(message, ModelResponse)
    )
    return occurrence_of(turns, ctx.tool_call_id or "")
