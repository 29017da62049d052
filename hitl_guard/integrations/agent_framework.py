"""Microsoft Agent Framework: a middleware, the last one of an agent, before each of its tools and around its model.

``Agent(..., middleware=[..., ApprovalMiddleware(guard)])``. A call that waits is the framework's own
``function_approval_request``; what ``to_function_approval_response`` says is a hint: the store is asked. A call that a
middleware changes later, or makes twice, does not run; what wraps a tool's function, only a seal notices
(`Guard.sealed`). Tools that a provider runs never come by here and must be named. A client whose layers are in the
wrong order calls no function middleware at all: `ApprovalMiddleware.selftest` tells.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agent_framework import (
    Agent,
    BaseAgent,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareBundle,
    MiddlewareFailure,
    MiddlewareTermination,
    ResponseStream,
)
from agent_framework._mcp import _MCP_FRAMEWORK_DENYLIST, _MCP_IS_TOOL_KEY
from agent_framework._middleware import categorize_middleware
from agent_framework._tools import _APPROVED_ARGUMENTS_CONTEXT_KEY, _argument_comparison_token

from ..aio import AsyncGuard
from ..errors import (
    ApprovalRequired,
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    ConsumedError,
    UnavailableError,
)
from ..guard import Guard
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..toolcalls import edit_notice
from .bridge import Asked, Bridge, Facts, InnerCallError, Refusal, earlier_of, plain, request_facts

_ANSWER: ContextVar[Sequence[Content]] = ContextVar("hitl_guard_answer", default=())
"""What the model has said last, in this run."""

with warnings.catch_warnings():
    # Only as a bundle do two kinds of middleware come together or not at all; the framework calls that experimental.
    warnings.simplefilter("ignore", FutureWarning)

    class _Bundle(MiddlewareBundle):
        """Middleware that belongs together."""


class ApprovalMiddleware(_Bundle):
    """Asks the guard before every function of an agent. It must be the last middleware in the list.

    A tool's own ``approval_mode="always_require"`` makes the guard ask, also where the policy would not.

    Args:
        scope: From the `FunctionInvocationContext` to the call's facts, e.g. ``lambda context: {"user":
            context.kwargs["user"]}``; nothing that a stored session holds says for whom a call is. The run id is the
            session's unless it says another.
        pause, effects: See `hitl_guard.integrations.bridge.Bridge`. A sub-agent (``as_tool``) needs ``pause="retry"``:
            the framework does not hand its approvals on.
        uncovered: Names of tools that may run without the guard, because no middleware can reach them: those that the
            provider runs (a declaration's ``type`` where it has no name), and agents as tools that have no
            `ApprovalMiddleware` of this guard.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[FunctionInvocationContext], Facts] | None = None,
        pause: str = "native", effects: Mapping[str, str] | None = None, uncovered: Iterable[str] = (),
    ) -> None:
        self.bridge = Bridge(guard, scope=scope, pause=pause, effects=effects)
        names = () if isinstance(uncovered, str) else tuple(uncovered)
        if isinstance(uncovered, str) or not all(isinstance(name, str) for name in names):
            raise ConfigurationError("'uncovered' is a list of names of tools.")
        self._uncovered = frozenset(names)
        self._functions = _Functions(self.bridge)
        super().__init__([self._functions, _Models(self.check)])

    def check(self, tools: Iterable[Any]) -> None:
        """Raise `ConfigurationError` for tools that the guard does not cover and nobody named."""
        if missed := [name for name in map(self._missed, tools) if name is not None and name not in self._uncovered]:
            raise ConfigurationError(
                f"The guard does not cover: {', '.join(sorted(missed))}. Give agents that are tools an"
                " ApprovalMiddleware; what no middleware can reach must go, or be named in uncovered=[...]."
            )

    def _missed(self, tool: Any) -> str | None:
        """Return the name of a tool that runs without the guard; None for any other."""
        if not isinstance(tool, FunctionTool):
            given = tool if isinstance(tool, Mapping) else vars(tool) if hasattr(tool, "__dict__") else {}
            return str(given.get("name") or given.get("type") or type(tool).__name__)
        agent = _agent_of(tool)
        return None if agent is None or self._guards(agent) else tool.name

    def _guards(self, agent: Any) -> bool:
        return any(isinstance(one, _Functions) and one.guard is self.bridge.guard for one in _functions_of(agent))

    async def selftest(self, agent: Agent[Any]) -> None:
        """Look whether an agent's tools are covered, and run a canary call through its middleware and its client's
        layers, with a scripted answer. Do the same with agents that are its tools.

        Raises:
            ConfigurationError: it ran, another guard answered, something is not covered, or another middleware comes
                later. Do not start.
        """
        await self._selftest(agent, set())

    async def _selftest(self, agent: Agent[Any], seen: set[int]) -> None:
        seen.add(id(agent))  # agents may be each other's tools
        tools = [*(agent.default_options.get("tools") or ())]
        self.check(tools)
        if _functions_of(agent)[-1:] != [self._functions]:
            raise ConfigurationError("The canary's call would not end here: put this ApprovalMiddleware last.")
        with self.bridge.canary() as canary:
            kind: Any = type("Probe", (_Scripted, type(agent.client)), {"tool_name": canary.name})
            client = kind.__new__(kind)
            client.__dict__ |= vars(agent.client)
            tool = FunctionTool(name=canary.name, description="A self-test's tool.", func=canary.tool)
            await Agent(client=client, tools=[tool], middleware=agent.middleware).run("canary")
        for inner in filter(None, map(_agent_of, tools)):
            for one in () if id(inner) in seen else getattr(inner, "middleware", None) or ():
                if isinstance(one, ApprovalMiddleware):
                    await one._selftest(inner, seen)


class _Models(ChatMiddleware):
    """Keeps what the model says, for the policy's rules about its turn, and looks at what it is offered."""

    def __init__(self, check: Callable[[Iterable[Any]], None]) -> None:
        self._check = check

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            self._check((context.options or {}).get("tools") or ())
        except ConfigurationError as error:
            raise MiddlewareFailure(str(error)) from error
        _ANSWER.set(())
        context.stream_result_hooks.append(_keep)
        await call_next()
        if isinstance(context.result, ChatResponse):
            _keep(context.result)


def _keep(response: ChatResponse[Any]) -> None:
    _ANSWER.set([content for message in response.messages for content in message.contents])


class _Functions(FunctionMiddleware):
    """Runs each function through the bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.guard = bridge, bridge.guard

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run a function if it may.

        Raises:
            MiddlewareFailure: nobody can tell, or the set-up is wrong; the run ends.
            MiddlewareTermination: a person must decide first.
        """
        self.bridge.know([context.function.name])
        try:
            await self._run(context, call_next)
        except InnerCallError as inner:
            raise inner.error from inner.error.__cause__  # what the tool raised, as any other
        except ApprovalRequired as pause:
            if self.bridge.pause == "native":
                context.result = _asked(context, pause.request)
                raise MiddlewareTermination("A person must decide first.") from pause
            context.result = self.bridge.told(pause)
        except Refusal as refusal:
            context.result = self.bridge.told(refusal)
        except (ConfigurationError, UnavailableError) as error:
            raise MiddlewareFailure(str(error)) from error

    async def _run(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        tool = context.function
        prepared = _prepared(context)
        call = self._call(context, prepared)
        watch = _Watch(self.guard, call, tool, _argument_comparison_token(prepared))

        async def start(permit: Permit) -> None:
            if permit.edited:  # a person's arguments, not the ones to which the framework's own approval is bound
                context.metadata.pop(_APPROVED_ARGUMENTS_CONTEXT_KEY, None)
                edited = tool._prepare_context_arguments(context, permit.arguments)
                watch.arguments = _argument_comparison_token(edited)
            with watch.over(context, permit):
                await call_next()
            if permit.edited:
                context.result = _noticed(context.result, edit_notice(permit))

        if tool.approval_mode == "always_require":  # the framework's own yes, or a rule that says it, is no person's
            await AsyncGuard(guard=self.guard).request(call)
        await self.bridge.run(call, start)

    def _call(self, context: FunctionInvocationContext, prepared: dict[str, Any]) -> ToolCall:
        tool, session = context.function, context.session
        signed = _signed(tool, prepared)
        return self.bridge.call(
            tool.name, signed, framework=context, call_id=_call_id(context),
            run_id=None if session is None else session.session_id,
            definition=ToolDefinition(tool.name, tool.description, tool.parameters()), turn=_turn(context, signed),
        )


class _Watch:
    """Compares what a tool starts with to what was permitted.

    A tool writes itself and its arguments into the context right before it runs: no middleware comes after that.
    """

    def __init__(self, guard: Guard, call: ToolCall, tool: FunctionTool, arguments: Any) -> None:
        self.guard, self.call, self.tool, self.arguments = guard, call, tool, arguments
        self.permit: Permit | None = None
        self.started = False

    @contextmanager
    def over(self, context: FunctionInvocationContext, permit: Permit) -> Iterator[None]:
        """Watch what is written into a context."""
        kind, self.permit = type(context), permit
        context.__dict__["hitl_guard_watch"] = self
        context.__class__ = type(kind.__name__, (_Watched, kind), {})
        try:
            yield
        finally:
            context.__class__ = kind
            del context.__dict__["hitl_guard_watch"]

    def check(self, name: str, value: Any) -> None:
        """Raise for another tool or other arguments than the permitted ones, and for a second start.

        Raises:
            ArgsMismatchError, ConsumedError: the tool must not start.
        """
        other = (name == "function" and value is not self.tool) or (
            name == "arguments" and _argument_comparison_token(value) != self.arguments
        )
        with self.guard._refusals(self.call):
            if other:
                assert self.permit is not None  # noqa: S101  watched
                self.permit.mismatch = True
                raise ArgsMismatchError("A tool or its arguments were exchanged after the permit.", detail="sealed")
            if name == "function" and self.started:
                raise ConsumedError("This permit has started a tool already.", detail="permit")
            self.started = self.started or name == "function"


class _Watched(FunctionInvocationContext):
    """A context that is watched."""

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["hitl_guard_watch"].check(name, value)
        super().__setattr__(name, value)


def _functions_of(agent: Any) -> list[Any]:
    """Return the function middleware of an agent and its client, as the framework runs it."""
    own = categorize_middleware(getattr(agent, "middleware", None) or ())["function"]
    return [*(getattr(getattr(agent, "client", None), "function_middleware", None) or ()), *own]


def _agent_of(tool: Any) -> Any:
    """Return the agent that a tool is (``as_tool``), or None."""
    function = getattr(tool, "func", None)
    found = inspect.getclosurevars(function).nonlocals.get("self") if inspect.isfunction(function) else None
    return found if isinstance(found, BaseAgent) else None


def _call_id(context: FunctionInvocationContext) -> str | None:
    """Return the framework's id of this very call, which it keeps over a pause; else the provider's."""
    found = context.metadata.get("function_call_occurrence_id") or context.metadata.get("call_id")
    return None if found is None else str(found)


def _turn(context: FunctionInvocationContext, signed: Mapping[str, Any]) -> list[Asked] | None:
    """Return the calls that the model made before this one in its answer; None where nobody heard it make this one.

    What a stored session says of a turn proves nothing, and a call that was changed on its way here is none of it.
    """
    own_id = context.metadata.get("function_call_occurrence_id")
    if own_id is None or "approval_response" in context.metadata:
        return None
    tools = {tool.name: tool for tool in context.tools or () if isinstance(tool, FunctionTool)}
    calls = [
        (str(one.id), one.name, _meant(tools.get(one.name), one))
        for one in _ANSWER.get() if one.type == "function_call" and one.name
    ]
    said = [(name, arguments) for call_id, name, arguments in calls if call_id == own_id]
    return earlier_of(calls, own_id) if said == [(context.function.name, signed)] else None


def _meant(tool: FunctionTool | None, call: Content) -> Any:
    """Return a call's arguments as its tool would get them; as the model wrote them where they do not fit."""
    given = call.parse_arguments() or {}
    try:
        return given if tool is None else plain(tool._prepare_arguments(given))
    except (TypeError, CanonicalizationError):
        return given


def _prepared(context: FunctionInvocationContext) -> dict[str, Any]:
    """Return the arguments that the tool is to start with, and let the framework keep them.

    What the app hands to all tools (``function_invocation_kwargs``) fills the parameters of an MCP server's tool: it
    becomes part of the call, so that it is shown and signed.

    Raises:
        CanonicalizationError: they do not fit the function.
    """
    tool, given = context.function, context.arguments
    if isinstance(given, Mapping) and (tool.additional_properties or {}).get(_MCP_IS_TOOL_KEY):
        declared = (tool.parameters().get("properties") or {}).keys() - _MCP_FRAMEWORK_DENYLIST - given.keys()
        if filled := {name: value for name, value in context.kwargs.items() if name in declared}:
            given = {**given, **filled}
            # The framework's own approval is bound to the call without them; the guard's is to all of it.
            context.metadata.pop(_APPROVED_ARGUMENTS_CONTEXT_KEY, None)
    try:
        prepared: dict[str, Any] = tool._prepare_context_arguments(context, given)
        return prepared
    except TypeError as error:
        raise CanonicalizationError("The arguments do not fit the tool.", detail="schema") from error


def _signed(tool: FunctionTool, prepared: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON arguments that stand for what the framework made of the model's.

    Raises:
        CanonicalizationError: they do not say all of it.
    """
    given: dict[str, Any] = plain(prepared)
    try:
        if tool._prepare_arguments(given) == tool._prepare_arguments(prepared):
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
