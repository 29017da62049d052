"""Pydantic AI: the agent's history is the state, `DeferredToolResults` its own yes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset

from hitl_guard.integrations.pydantic_ai import ApprovalCapability
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig


@dataclass
class _Late(WrapperToolset[Any]):
    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        return await super().call_tool(name, {"record": 99}, ctx, tool)


class _LateCapability(AbstractCapability[Any]):
    """Stands further inside than the guard, as a second innermost one may."""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _Late(toolset)


def _model(script: list[Turn]) -> FunctionModel:
    def turn(messages: list[ModelMessage]) -> Turn:
        asked = sum(
            any(isinstance(part, ToolCallPart) for part in message.parts)
            for message in messages if isinstance(message, ModelResponse)
        )
        return script[asked] if asked < len(script) else []

    def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = [ToolCallPart(tool, dict(arguments), call_id) for call_id, tool, arguments in turn(messages)]
        return ModelResponse(calls or [TextPart("done")])

    async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        calls = turn(messages)
        for place, (call_id, tool, arguments) in enumerate(calls):
            yield {place: DeltaToolCall(tool, json.dumps(arguments), tool_call_id=call_id)}
        if not calls:
            yield "done"

    return FunctionModel(whole, stream_function=streamed)


def _parent(child: Agent[Any, Any]) -> Agent[Any, Any]:
    async def delegate(task: str) -> str:
        ended = await child.run(task)
        return "\n".join(
            str(part.content) for message in ended.all_messages() for part in message.parts
            if isinstance(part, ToolReturnPart)
        )

    model = _model([[("d1", "delegate", {"task": "delete it"})]])
    return Agent(model, tools=[delegate], output_type=[str, DeferredToolRequests])


class PydanticAI(Rig):
    """Pydantic AI."""

    name = "pydantic-ai"
    package = "pydantic-ai-slim"

    def _agent(self, setup: Setup) -> tuple[Agent[Any, Any], ApprovalCapability]:
        # A sub-agent's own pause would end in its parent's tool.
        pause = "retry" if setup.inner else setup.pause
        guard = ApprovalCapability(setup.bench.guard, scope=lambda ctx: setup.facts(), pause=pause)
        # A second innermost capability stands further inside when it comes later.
        more = [_LateCapability()] if setup.late else []
        tools = [Tool(function, name=name) for name, function in setup.bench.sealed.items()]
        agent = Agent(
            _model(setup.script), tools=tools, output_type=[str, DeferredToolRequests],
            capabilities=[guard, *more] if setup.guarded else [],
        )
        return (_parent(agent), guard) if setup.inner else (agent, guard)

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        agent, _ = self._agent(setup)
        if state is None:
            options: dict[str, Any] = {"user_prompt": "go"}
        else:
            history = ModelMessagesTypeAdapter.validate_json(state)
            (last,) = [message for message in history[-2:] if isinstance(message, ModelResponse)]
            told = {part.tool_call_id for part in history[-1].parts if isinstance(part, ToolReturnPart)}
            waits = [part.tool_call_id for part in last.parts if isinstance(part, ToolCallPart)]
            yes = DeferredToolResults(approvals={call_id: True for call_id in waits if call_id not in told})
            options = {"message_history": history, "deferred_tool_results": yes}
        if setup.stream:
            async with agent.run_stream(**options) as stream:
                result: Any = await stream.get_output()
                messages, raw = stream.all_messages(), stream.all_messages_json()
        else:
            ended = await agent.run(**options)
            result, messages, raw = ended.output, ended.all_messages(), ended.all_messages_json()
        parts = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        paused = isinstance(result, DeferredToolRequests)
        return Outcome(state=raw.decode() if paused else None, told="\n".join(map(str, [*parts, result])))

    async def selftest(self, setup: Setup) -> None:
        agent, guard = self._agent(setup)
        await guard.selftest(agent)
