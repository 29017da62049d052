"""Google ADK: a plugin that puts each tool's ``run_async`` behind the guard, where no callback comes after it.

``App(..., plugins=[ApprovalPlugin(guard)])``. A call that waits is ADK's own tool confirmation; what the answer says is
a hint: the store is asked. What the model's provider runs (search, code execution) never comes by here and is refused,
unless you name it. A function as a workflow's node, or a task for an agent in ``mode="task"``, is no call of a tool:
seal such functions; the tools of that agent are guarded.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from types import MethodType
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner, Runner
from google.adk.tools import BaseTool, FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.set_model_response_tool import SetModelResponseTool
from google.genai import types

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, ConfigurationError
from ..guard import Guard
from ..models import Permit, ToolCall, ToolDefinition
from ..toolcalls import edit_notice
from .bridge import Bridge, Facts, InnerCallError, Refusal, earlier_of, occurrence_of, request_facts

_OUTER: ContextVar[str | None] = ContextVar("hitl_guard_outer_session", default=None)
"""The session in which a tool runs, for the sessions that it starts itself, as `AgentTool` does."""

_ERRORS = ("error", "isError", "is_error")
"""What a tool's answer has that tells of a failure; the latter two are MCP's."""

_COVERED = {"function_declarations", "computer_use"}  # the calls of both come back, to tools of the agent


class ApprovalPlugin(BasePlugin):
    """Asks the guard before every tool of a runner's agents, sub-agents and agents as tools included.

    Args:
        scope: From the `ToolContext` to the call's facts. User and run id are the session's unless it says others.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. Calls of an agent as a tool (`AgentTool`) and of
            live sessions need ``pause="retry"``: ADK cannot resume them. The former's run is the session outside.
        uncovered: What may run without the guard, because no wrapper can reach it, as `google.genai.types.Tool` names
            it: ``google_search``, ``url_context``, ``code_execution`` (any ``code_executor``) … In live sessions ADK
            shows what the provider runs to nobody.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[ToolContext], Facts] | None = None, pause: str = "native",
        effects: Mapping[str, str] | None = None, uncovered: Iterable[str] = (),
    ) -> None:
        super().__init__(name="hitl_guard")
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)
        self._uncovered = frozenset(() if isinstance(uncovered, str) else uncovered)
        if isinstance(uncovered, str) or not all(isinstance(name, str) for name in self._uncovered):
            raise ConfigurationError("'uncovered' is a list of names.")

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Refuse an agent that runs the code that its model writes.

        Raises:
            ConfigurationError: it does, and nobody named it.
        """
        if getattr(agent, "code_executor", None) is not None:
            self._refuse({"code_execution"})

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Refuse tools that the model's provider runs.

        Raises:
            ConfigurationError: there are some that nobody named.
        """
        for tool in llm_request.config.tools or ():
            kinds = {name for name, value in tool if value is not None} if isinstance(tool, types.Tool) else {"other"}
            self._refuse(kinds - _COVERED)

    def _refuse(self, kinds: set[str]) -> None:
        if unnamed := sorted(kinds - self._uncovered):
            raise ConfigurationError(f"These run without the guard: {', '.join(unnamed)}. See 'uncovered'.")

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Put a tool behind the guard; the callbacks that come later have their say before.

        Raises:
            ConfigurationError: the tool is another guard's, an agent that does without the runner's plugins, or goes on
                streaming in a live session after its outcome is on record.
        """
        if type(tool) is SetModelResponseTool:  # that is the answer's form
            return None
        self.bridge.know([tool.name])
        if isinstance(tool, AgentTool) and not tool.include_plugins:
            raise ConfigurationError(f"The agent '{tool.name}' runs without the guard: set include_plugins=True.")
        if _is_live(tool_context) and inspect.isasyncgenfunction(getattr(tool, "func", None)):
            raise ConfigurationError(f"The streaming tool '{tool.name}' cannot be guarded in a live session.")
        running: Any = tool.run_async
        if not isinstance(running, _Guarded):
            _put_behind(self.bridge, tool, running, tool.check_require_confirmation)
        elif running.bridge.guard is not self.bridge.guard:
            raise ConfigurationError(f"The tool '{tool.name}' is behind another guard: give each its own tools.")
        elif running.tool is not tool:  # a copy under another name, as toolsets with a prefix make them
            own = (MethodType(method, tool) for method in (type(tool).run_async, type(tool).check_require_confirmation))
            _put_behind(self.bridge, tool, *own)
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


def _put_behind(
    bridge: Bridge, tool: BaseTool, inner: Callable[..., Awaitable[Any]], wants: Callable[..., Awaitable[bool]]
) -> None:
    vars(tool)["run_async"] = _Guarded(bridge, tool, inner, wants)
    vars(tool)["check_require_confirmation"] = _never  # what the tool wants is asked of a person, by the guard


async def _never(args: dict[str, Any], tool_context: ToolContext) -> bool:
    return False


class _Guarded:
    """A tool's ``run_async``, behind the guard."""

    def __init__(
        self, bridge: Bridge, tool: BaseTool, inner: Callable[..., Awaitable[Any]],
        wants: Callable[..., Awaitable[bool]],
    ) -> None:
        self.bridge, self.tool, self._inner, self._wants = bridge, tool, inner, wants

    async def __call__(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        outer = _OUTER.get() or tool_context.session.id

        async def start(permit: Permit) -> Any:
            token = _OUTER.set(outer)
            try:
                result = await self._inner(args=permit.arguments, tool_context=tool_context)
            finally:
                _OUTER.reset(token)
            if isinstance(result, dict) and any(result.get(name) for name in _ERRORS):
                raise _ToolError({**result, "notice": edit_notice(permit).strip()} if permit.edited else result)
            return result

        try:
            call = self._call(args, tool_context, outer)
            if await self._wants(args, tool_context):
                await AsyncGuard(guard=self.bridge.guard).request(call)
            return await self.bridge.run(call, start)
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                _pause(pause, tool_context, inside=outer != tool_context.session.id)
            return {"error": self.bridge.told(pause)}
        except Refusal as refusal:
            answered = getattr(refusal, "response", None) is not None  # a person answered in the tool's place
            return {"result" if answered else "error": self.bridge.told(refusal)}
        except _ToolError as told:
            return told.result
        except InnerCallError as inner:
            raise inner.error from inner.error.__cause__

    def _call(self, args: dict[str, Any], context: ToolContext, run_id: str) -> ToolCall:
        turns = [event.get_function_calls() for event in context.session.events]
        call_id = context.function_call_id
        held = [calls for calls in turns if any(one.id == call_id for one in calls)]
        asked = [(one.id or "", one.name or "", one.args or {}) for one in held[-1]] if held else []
        turn = earlier_of(asked, call_id)
        if run_id != context.session.id or context.node is not None:
            call_id = None  # a session that is new each time; a workflow's node makes a new id each time
        return self.bridge.call(
            self.tool.name, args, framework=context, call_id=call_id,
            occurrence=occurrence_of(([one.id or "" for one in calls] for calls in turns), call_id or ""),
            run_id=run_id, user=context.user_id, agent=context.agent_name, definition=_definition(self.tool), turn=turn,
        )


def _pause(pause: ApprovalRequired, context: ToolContext, *, inside: bool) -> None:
    """Pause the framework's run, where it can resume it."""
    if inside or _is_live(context):
        raise ConfigurationError("An agent as a tool, or a live session, cannot resume: use pause='retry'.") from pause
    facts = {"hitl_guard": request_facts(pause.request)}
    context.request_confirmation(hint="A person must decide first.", payload=facts)
    context.actions.skip_summarization = True


def _is_live(context: ToolContext) -> bool:
    return context.get_invocation_context().live_request_queue is not None


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
