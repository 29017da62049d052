"""Microsoft Agent Framework: a function middleware, the last one of an agent, before each of its tools.

``Agent(..., middleware=[..., ApprovalMiddleware(guard)])``. A call that waits is the framework's own
``function_approval_request``; what ``to_function_approval_response`` says is a hint: the store is asked. A middleware
that comes later can still change arguments: seal the functions (`Guard.sealed`). Hosted tools never come by here, and a
client whose layers are in the wrong order calls no function middleware at all: `ApprovalMiddleware.selftest` tells.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent_framework import (
    Agent,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    ResponseStream,
)
from agent_framework._tools import _APPROVED_ARGUMENTS_CONTEXT_KEY

from ..aio import AsyncGuard
from ..errors import ApprovalRequired, CanonicalizationError, ConfigurationError, UnavailableError
from ..guard import Guard
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..toolcalls import edit_notice
from .bridge import Bridge, Facts, Refusal, plain, request_facts


class ApprovalMiddleware(FunctionMiddleware):
    """Asks the guard before every function of an agent. It must be the last middleware in the list.

    Args:
        scope: From the `FunctionInvocationContext` to the call's facts, e.g. ``lambda context: {"user":
            context.kwargs["user"]}``. The run id is the session's unless it says another.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. A sub-agent (``as_tool``) needs ``pause="retry"``:
            the framework does not hand its approvals on.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[FunctionInvocationContext], Facts] | None = None,
        pause: str = "native", effects: Mapping[str, str] | None = None,
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run a function if it may.

        Raises:
            MiddlewareFailure: nobody can tell, or the set-up is wrong; the run ends.
            MiddlewareTermination: a person must decide first.
        """
        self.bridge.know([context.function.name])

        async def start(permit: Permit) -> Any:
            context.arguments = context.function._prepare_arguments(permit.arguments)
            if permit.edited:  # a person's arguments, not the ones to which the framework's own approval is bound
                context.metadata.pop(_APPROVED_ARGUMENTS_CONTEXT_KEY, None)
            await call_next()
            if permit.edited:
                context.result = _noticed(context.result, edit_notice(permit))

        try:
            await self.bridge.run(self._call(context), start)
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                context.result = _asked(context, pause.request)
                raise MiddlewareTermination("A person must decide first.") from pause
            context.result = self.bridge.told(pause)
        except Refusal as refusal:
            context.result = self.bridge.told(refusal)
        except (ConfigurationError, UnavailableError) as error:
            raise MiddlewareFailure(str(error)) from error

    def _call(self, context: FunctionInvocationContext) -> ToolCall:
        tool, session = context.function, context.session
        return self.bridge.call(
            tool.name, _signed(tool, context.arguments), framework=context, call_id=_call_id(context),
            run_id=None if session is None else session.session_id,
            definition=ToolDefinition(tool.name, tool.description, tool.parameters()),
        )

    async def selftest(self, agent: Agent[Any]) -> None:
        """Run a canary call through this agent's middleware and its client's layers, with a scripted answer.

        Raises:
            ConfigurationError: it ran, or another guard answered. Do not start.
        """
        with self.bridge.canary() as canary:
            kind: Any = type("Probe", (_Scripted, type(agent.client)), {"tool_name": canary.name})
            client = kind.__new__(kind)
            client.__dict__ |= vars(agent.client)
            tool = FunctionTool(name=canary.name, description="A self-test's tool.", func=canary.tool)
            await Agent(client=client, tools=[tool], middleware=agent.middleware).run("canary")


def _call_id(context: FunctionInvocationContext) -> str | None:
    """Return the framework's id of this very call, which it keeps over a pause; else the provider's."""
    found = context.metadata.get("function_call_occurrence_id") or context.metadata.get("call_id")
    return None if found is None else str(found)


def _signed(tool: FunctionTool, arguments: Any) -> dict[str, Any]:
    """Return the JSON arguments that stand for what the framework made of the model's.

    Raises:
        CanonicalizationError: they do not fit the function, or do not say all of it.
    """
    given: dict[str, Any] = plain(arguments)
    try:
        if tool._prepare_arguments(given) == tool._prepare_arguments(arguments):
            return given
    except TypeError as error:
        raise CanonicalizationError("The arguments do not fit the tool.", detail="schema") from error
    raise CanonicalizationError("The arguments are not what their JSON form says.", detail="lossy")


def _asked(context: FunctionInvocationContext, request: ApprovalRequest) -> Content:
    """Return the framework's own request for an approval; its id is the call's."""
    metadata = context.metadata
    call = Content.from_function_call(
        call_id=metadata["call_id"], name=context.function.name, arguments=plain(context.arguments),
        id=metadata.get("function_call_occurrence_id"),
    )
    facts = {"hitl_guard": request_facts(request)}
    return Content.from_function_approval_request(
        id=call.id or metadata["call_id"], function_call=call, additional_properties=facts
    )


def _noticed(result: Any, notice: str) -> Any:
    """Return a result with the notice before it."""
    return [Content.from_text(notice), *(result if isinstance(result, list) else [Content.from_text(str(result))])]


class _Scripted:
    """Answers in a client's place: it asks for the canary's tool once."""

    tool_name = ""

    def _inner_get_response(self, *, messages: Any, stream: bool, **_: Any) -> Any:
        asked = any(content.type == "function_call" for message in messages for content in message.contents)
        call = Content.from_function_call(call_id="canary", name=self.tool_name, arguments="{}")
        contents = [Content.from_text("done") if asked else call]

        async def whole() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message(role="assistant", contents=contents)])

        async def streamed() -> Any:
            yield ChatResponseUpdate(role="assistant", contents=contents)

        return ResponseStream(streamed(), finalizer=ChatResponse.from_updates) if stream else whole()
