"""Microsoft Agent Framework: `AgentSession.to_dict` is the state, `to_function_approval_response` its own yes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    ResponseStream,
)

from hitl_guard.integrations.agent_framework import ApprovalMiddleware
from tests.frameworks.bench import Setup, Turn
from tests.frameworks.rig import Outcome, Rig


class Answers(BaseChatClient[Any]):
    """Asks for the turn of its script that comes after those in the history, and then answers with text."""

    script: list[Turn]

    def __init__(self, *, script: list[Turn], **options: Any) -> None:
        super().__init__(**options)
        self.script = script

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        asked = sum(any(one.type == "function_call" for one in message.contents) for message in messages)
        turn = self.script[asked] if asked < len(self.script) else []
        contents = [
            Content.from_function_call(call_id=call_id, name=tool, arguments=json.dumps(arguments))
            for call_id, tool, arguments in turn
        ] or [Content.from_text("done")]

        async def whole() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message(role="assistant", contents=contents)])

        async def streamed() -> Any:
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return ResponseStream(streamed(), finalizer=ChatResponse.from_updates) if stream else whole()


class Scripted(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], Answers):
    """The layers in the order of the framework's own clients."""


def mutated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let something that stands further inside than the guard make 99 of every number."""
    @functools.wraps(function)
    async def late(**arguments: Any) -> Any:
        return await function(**(arguments | {"record": 99}))

    return late


class AgentFramework(Rig):
    """Microsoft Agent Framework."""

    name = "agent-framework"
    package = "agent-framework-core"

    def _agent(self, setup: Setup) -> tuple[Agent[Any], ApprovalMiddleware]:
        # The framework does not hand a sub-agent's approvals on.
        pause = "retry" if setup.inner else setup.pause
        guard = ApprovalMiddleware(setup.bench.guard, scope=lambda context: setup.facts(), pause=pause)
        functions = dict(setup.bench.sealed)
        if setup.late:
            functions["delete_record"] = mutated(functions["delete_record"])
        tools = [FunctionTool(name=name, description=f"{name}.", func=one) for name, one in functions.items()]
        middleware: list[Any] = [guard] if setup.guarded else []
        client = Scripted(script=setup.script)
        agent: Agent[Any] = Agent(client=client, name="worker", tools=tools, middleware=middleware)
        if not setup.inner:
            return agent, guard
        script: list[Turn] = [[("d1", "worker", {"task": "delete it"})]]
        return Agent(client=Scripted(script=script), name="boss", tools=[agent.as_tool()]), guard

    async def run(self, setup: Setup, state: str | None = None) -> Outcome:
        agent, _ = self._agent(setup)
        given: Any = "go"
        session = AgentSession(session_id="conversation")
        if state is not None:
            kept = json.loads(state)
            session = AgentSession.from_dict(kept["session"])
            asked = [Content.from_dict(one) for one in kept["asked"]]
            given = [Message(role="user", contents=[one.to_function_approval_response(True) for one in asked])]
        if setup.stream:
            stream = agent.run(given, session=session, stream=True)
            async for _update in stream:
                pass
            response = await stream.get_final_response()
        else:
            response = await agent.run(given, session=session)
        told = json.dumps([session.to_dict(), [message.to_dict() for message in response.messages]])
        asked = [one.to_dict() for one in response.user_input_requests]
        paused = json.dumps({"session": session.to_dict(), "asked": asked}) if asked else None
        return Outcome(state=paused, told=told)

    async def selftest(self, setup: Setup) -> None:
        agent, guard = self._agent(setup)
        await guard.selftest(agent)
