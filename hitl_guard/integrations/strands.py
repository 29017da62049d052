"""Strands Agents: a plugin that puts each tool behind the guard where no hook and no middleware comes after it.

``Agent(..., plugins=[ApprovalPlugin(guard)])``. A call that waits is an interrupt; what ``interruptResponse`` says is a
hint: the store is asked. Calls that the model makes without the agent's tools (server-side tools) never come by here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from strands import Agent, tool
from strands.hooks import AfterToolCallEvent
from strands.middleware import ExecuteToolStage
from strands.models import Model
from strands.plugins import Plugin
from strands.tools.structured_output.structured_output_tool import StructuredOutputTool
from strands.types._events import ToolInterruptEvent, ToolResultEvent, ToolStreamEvent

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, CanonicalizationError, ConfigurationError, RefusedError, UnavailableError
from ..guard import Guard
from ..models import Permit, ToolCall, ToolDefinition
from ..toolcalls import edit_notice
from .bridge import Bridge, Facts, InnerCallError, Refusal, earlier_of, occurrence_of, request_facts

_NAME = "hitl_guard"


class ApprovalPlugin(Plugin):
    """Asks the guard before every tool of an agent, in the background too.

    A sub-agent (``as_tool``) with tools needs a plugin of its own, or is refused.

    Args:
        scope: From the framework's ``ExecuteToolContext`` to the call's facts, e.g. ``lambda ctx: {"user":
            ctx.invocation_state["user"]}``. The run id is the session's where there is a session manager.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`.
    """

    name = "hitl-guard"

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[Any], Facts] | None = None, pause: str = "native",
        effects: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)

    def init_agent(self, agent: Agent) -> None:
        """Put an agent's tools behind the guard.

        Raises:
            ConfigurationError: an intervention of the agent's lets calls run when it fails.
        """
        open_ones = [one.name for one in agent._intervention_registry._handlers if one.on_error == "proceed"]
        if open_ones:
            raise ConfigurationError(
                f"These interventions let calls run when they fail: {', '.join(open_ones)}. Set on_error to 'throw'."
            )
        self.bridge.know(agent.tool_names)
        agent.add_middleware(ExecuteToolStage, self._around)
        agent.add_hook(_end_run, AfterToolCallEvent)

    async def _around(self, context: Any, call_next: Callable[[Any], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        inner = getattr(context.tool, "agent", None)  # of an agent as a tool
        if isinstance(inner, Agent) and inner.tool_names and not _is_guarded(inner):
            raise ConfigurationError(f"The sub-agent '{inner.name}' runs tools without the guard: give it the plugin.")
        # The tool itself is exchanged, so that what stands further inside still comes before the guard.
        if context.tool is not None and not isinstance(context.tool, StructuredOutputTool):  # that is the answer's form
            context = context.replace(tool=_Guarded(context, self.bridge))
        async for event in call_next(context):
            yield event

    async def selftest(self, agent: Agent) -> None:
        """Run a canary call through this very agent's middleware; its hooks come before and can keep sessions.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
        with self.bridge.canary() as canary:
            tools = [tool(name=canary.name)(canary.tool)]
            probe = Agent(model=_Script(canary.name), tools=[*tools], callback_handler=None)
            probe._middleware_registry = agent._middleware_registry
            await probe.invoke_async("canary")


def _is_guarded(agent: Agent) -> bool:
    return any(isinstance(one, ApprovalPlugin) for one in agent._plugin_registry._plugins.values())


class _Guarded:
    """One tool of the framework's, for one call."""

    def __init__(self, context: Any, bridge: Bridge) -> None:
        self._tool, self._context, self._bridge = context.tool, context, bridge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def stream(self, tool_use: Any, invocation_state: dict[str, Any], **options: Any) -> AsyncIterator[Any]:
        """Yield the tool's events, if it may run."""
        events: asyncio.Queue[Any] = asyncio.Queue()

        async def start(permit: Permit) -> Any:
            given = {**tool_use, "input": permit.arguments}
            async for event in self._tool.stream(given, invocation_state, **options):
                if isinstance(event, ToolStreamEvent):
                    events.put_nowait(event)
                    continue
                if last:  # a value of a tool without events of the framework's own: only the last one is the result
                    events.put_nowait(last.pop())
                last.append(event)
            return _succeeded(last, permit)

        last: list[Any] = []  # the framework leaves at the result, which thus waits until the outcome is on record
        task = asyncio.create_task(self._run(tool_use, start))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            told = await task
            for event in last if told is None else [ToolResultEvent(told)]:
                yield event
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _run(self, tool_use: Any, start: Callable[[Permit], Any]) -> dict[str, Any] | None:
        """Run the tool; return what the model is told in the place of a result."""
        try:
            await self._bridge.run(self._call(tool_use), start)
        except ApprovalRequired as pause:
            if self._bridge.pause == "retry":
                return self._told(tool_use, pause)
            for asked in itertools.count():  # one after the other, until one that nobody answered yet, which raises
                self._context.interrupt(f"{_NAME}:{asked}", reason={_NAME: request_facts(pause.request)})
        except Refusal as refusal:
            return self._told(tool_use, refusal)
        except _ToolError:
            pass  # the framework has its event already
        except InnerCallError as inner:
            raise inner.error from inner.error.__cause__
        return None

    def _told(
        self, tool_use: Any, error: ApprovalRequired | RefusedError | CanonicalizationError
    ) -> dict[str, Any]:
        answered = getattr(error, "response", None) is not None  # a person answered in the tool's place
        return {
            "toolUseId": tool_use["toolUseId"], "status": "success" if answered else "error",
            "content": [{"text": self._bridge.told(error)}],
        }

    def _call(self, tool_use: Any) -> ToolCall:
        agent, spec = self._context.agent, self._tool.tool_spec
        turns = [
            [part["toolUse"] for part in message["content"] if "toolUse" in part]
            for message in agent.messages if message["role"] == "assistant"
        ]
        call_id = tool_use["toolUseId"]
        held = [calls for calls in turns if any(one["toolUseId"] == call_id for one in calls)]
        schema = spec["inputSchema"]
        return self._bridge.call(
            self._tool.tool_name, tool_use["input"], framework=self._context, call_id=call_id, agent=agent.name,
            occurrence=occurrence_of(([one["toolUseId"] for one in calls] for calls in turns), call_id),
            run_id=agent.session_id if agent._session_manager else None,
            definition=ToolDefinition(spec["name"], spec["description"], schema.get("json", schema)),
            turn=earlier_of(((one["toolUseId"], one["name"], one["input"]) for one in held[-1]), call_id)
            if held else None,
        )


class _ToolError(Exception):
    """The tool told the framework that it failed: a signal inside this module."""


def _succeeded(last: list[Any], permit: Permit) -> Any:
    """Return a tool's last event, or raise where it is no success, so that its outcome is on record."""
    if not last or isinstance(last[0], ToolInterruptEvent):
        raise _ToolError
    result = last[0].tool_result if isinstance(last[0], ToolResultEvent) else last[0]
    if isinstance(result, dict):
        if permit.edited and isinstance(result.get("content"), list):
            result["content"] = [{"text": edit_notice(permit)}, *result["content"]]
        if result.get("status") == "error":
            raise _ToolError
    return last[0]


async def _end_run(event: AfterToolCallEvent[Any]) -> None:
    """End the run where nobody can tell: the framework would tell the model, and go on."""
    if isinstance(event.exception, (ConfigurationError, UnavailableError)):
        raise event.exception


class _Script(Model):
    """A model that calls one tool, and then ends."""

    def __init__(self, tool: str) -> None:
        self._tool = tool

    def update_config(self, **model_config: Any) -> None:
        """Take nothing."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        asked = any("toolUse" in part for message in messages for part in message["content"])
        yield {"messageStart": {"role": "assistant"}}
        if asked:
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": self._tool, "toolUseId": "canary"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if asked else "tool_use"}}
