"""Google ADK: a plugin that puts each tool's ``run_async`` behind the guard, where no callback comes after it.

``App(..., plugins=[ApprovalPlugin(guard)])``. A call that waits is ADK's own tool confirmation; what the answer says is
a hint: the store is asked. What the model's provider runs (search, code execution) never comes by here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner, Runner
from google.adk.tools import BaseTool, FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, ConfigurationError
from ..guard import Guard
from ..models import Permit, ToolCall, ToolDefinition
from .bridge import Bridge, Facts, Refusal, occurrence_of, request_facts


class ApprovalPlugin(BasePlugin):
    """Asks the guard before every tool of a runner's agents, sub-agents and agents as tools included.

    Args:
        scope: From the `ToolContext` to the call's facts. User and run id are the session's unless it says others.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. An agent as a tool (`AgentTool`) needs
            ``pause="retry"`` and a run id from ``scope``: its session is new each time and cannot be resumed.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[ToolContext], Facts] | None = None, pause: str = "native",
        effects: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name="hitl_guard")
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Put a tool behind the guard; the callbacks that come later have their say before.

        Raises:
            ConfigurationError: the tool is another guard's, or an agent that does without the runner's plugins.
        """
        self.bridge.know([tool.name])
        if isinstance(tool, AgentTool) and not tool.include_plugins:
            raise ConfigurationError(f"The agent '{tool.name}' runs without the guard: set include_plugins=True.")
        running = tool.run_async
        if not isinstance(running, _Guarded):
            vars(tool)["run_async"] = _Guarded(self.bridge, tool, running)
        elif running.bridge.guard is not self.bridge.guard:
            raise ConfigurationError(f"The tool '{tool.name}' is behind another guard: give each its own tools.")
        return None

    async def selftest(self, runner: Runner) -> None:
        """Run a canary call through this runner's plugins.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
        with self.bridge.canary() as canary:
            async def probe() -> str:
                """Ask the self-test's question."""
                return canary.tool()

            probe.__name__ = canary.name
            agent = LlmAgent(name="canary", model=_Scripted(model=canary.name), tools=[FunctionTool(probe)])
            app = App(name="canary", root_agent=agent, plugins=[*runner.plugin_manager.plugins])
            async with InMemoryRunner(app=app) as started:
                session = await started.session_service.create_session(app_name="canary", user_id="canary")
                message = types.Content(role="user", parts=[types.Part(text="canary")])
                async for _ in started.run_async(user_id="canary", session_id=session.id, new_message=message):
                    pass


class _Guarded:
    """A tool's ``run_async``, behind the guard."""

    def __init__(self, bridge: Bridge, tool: BaseTool, inner: Callable[..., Awaitable[Any]]) -> None:
        self.bridge, self._tool, self._inner = bridge, tool, inner

    async def __call__(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        async def start(permit: Permit) -> Any:
            result = await self._inner(args=permit.arguments, tool_context=tool_context)
            if isinstance(result, dict) and result.get("error"):
                raise _ToolError(result)
            return result

        try:
            return await self.bridge.run(self._call(args, tool_context), start)
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                facts = {"hitl_guard": request_facts(pause.request)}
                tool_context.request_confirmation(hint="A person must decide first.", payload=facts)
                tool_context.actions.skip_summarization = True
            return {"error": self.bridge.told(pause)}
        except Refusal as refusal:
            answered = getattr(refusal, "response", None) is not None  # a person answered in the tool's place
            return {"result" if answered else "error": self.bridge.told(refusal)}
        except _ToolError as told:
            return told.result

    def _call(self, args: dict[str, Any], context: ToolContext) -> ToolCall:
        turns = ([call.id or "" for call in event.get_function_calls()] for event in context.session.events)
        return self.bridge.call(
            self._tool.name, args, framework=context, call_id=context.function_call_id,
            occurrence=occurrence_of(turns, context.function_call_id or ""), run_id=context.session.id,
            user=context.user_id, agent=context.agent_name, definition=_definition(self._tool),
        )


class _ToolError(Exception):
    """A tool told the model that it failed: a signal inside this module, so that the outcome is on record."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__("The tool told of an error.")
        self.result = result


def _definition(tool: BaseTool) -> ToolDefinition | None:
    declared = tool._get_declaration()
    if declared is None:
        return None
    schema = declared.parameters_json_schema
    if schema is None and declared.parameters is not None:
        schema = declared.parameters.json_schema.model_dump(mode="json", exclude_none=True)
    return ToolDefinition(tool.name, tool.description, schema)


class _Scripted(BaseLlm):
    """Asks for the tool that the model is named after, once."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        asked = any(part.function_call for content in llm_request.contents for part in content.parts or [])
        call = types.Part(function_call=types.FunctionCall(id="canary", name=self.model, args={}))
        part = types.Part(text="done") if asked else call
        yield LlmResponse(content=types.Content(role="model", parts=[part]))
