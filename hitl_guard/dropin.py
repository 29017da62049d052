"""Dropping the guard into any loop: decorated functions, a wrapped dispatcher, provider-style calls, sealed tools."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast, overload

from .errors import ApprovalRequired, CanonicalizationError, ConfigurationError, RefusedError
from .lifecycle import running
from .lifecycle.desk import Desk
from .lifecycle.toolspec import ToolSpec, check_effect, spec_of
from .models import Permit, Principal, ToolCall
from .permits import (
    FIELDS,
    Core,
    awaited_permit,
    awaited_permit_async,
    call_of,
    caller,
    effect_of,
    known,
    prepared_run,
)
from .policy.code import ToolPolicy
from .seals import Seal
from .selfcheck import Coverage, coverage, selftest
from .toolcalls import (
    SEALED,
    Guarded,
    Turn,
    check_pause,
    check_wait,
    edit_notice,
    pending_result,
    refusal_result,
)

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar("hitl_guard_context", default=None)


class DropIn:
    """How calls reach the guard; a part of `hitl_guard.Guard`."""

    @staticmethod
    @contextmanager
    def context(
        *, user: str | Principal, run_id: str, tenant: str = "default", call_id: str | None = None, **more: Any
    ) -> Iterator[None]:
        """Say for whom and in which run the decorated tools inside are called.

        Without ``call_id`` a call is bound to its arguments (deny-and-retry): the same call again spends the grant.
        ``more``: ``agent, occurrence, context, turn, request_id, token``, as in `ToolCall` and `Guard.authorize`.
        """
        unknown = set(more) - FIELDS
        if unknown:
            raise ConfigurationError(f"Unknown part of the context: {', '.join(sorted(unknown))}.")
        token = CONTEXT.set({"user": user, "run_id": run_id, "tenant": tenant, "call_id": call_id, **more})
        try:
            yield
        finally:
            CONTEXT.reset(token)

    def run(
        self: Core, call: ToolCall, tool: Callable[..., Any], *, effect: str | None = None,
        request_id: str | None = None, token: str | bytes | None = None, wait: float | None = None,
    ) -> Any:
        """Authorize a call, run ``tool(**arguments)`` with the signed arguments, and record the outcome.

        Args:
            effect: What the tool promises (`hitl_guard.models.EFFECTS`); the registered tool's when omitted.
            wait: Seconds to block for a decision, for scripts. None: raise `ApprovalRequired` at once.

        Raises:
            ApprovalRequired, RefusedError, UnavailableError: the tool did not run.
        """
        start, promised = prepared_run(self, call, tool, effect, wait)
        if running.is_async(start):
            raise ConfigurationError("An asynchronous tool needs AsyncGuard.run.")
        permit = awaited_permit(self, call, request_id, token, wait)
        return running.run(permit, start, promised, self.settle)

    @overload
    def tool(
        self: Core, function: F, *, name: str | None = ..., description: str | None = ..., effect: str = ...,
        require_approval: Any = ..., input_schema: Mapping[str, Any] | None = ..., server: str | None = ...,
        idempotency_argument: str | None = ..., pause: str = ..., wait: float | None = ...,
    ) -> F: ...

    @overload
    def tool(
        self: Core, function: None = None, *, name: str | None = ..., description: str | None = ..., effect: str = ...,
        require_approval: Any = ..., input_schema: Mapping[str, Any] | None = ..., server: str | None = ...,
        idempotency_argument: str | None = ..., pause: str = ..., wait: float | None = ...,
    ) -> Callable[[F], F]: ...

    def tool(
        self: Core, function: Any = None, *, name: str | None = None, description: str | None = None,
        effect: str = "opaque", require_approval: Any = None, input_schema: Mapping[str, Any] | None = None,
        server: str | None = None, idempotency_argument: str | None = None, pause: str = "raise",
        wait: float | None = None,
    ) -> Any:
        """Make a sync or async function a guarded tool. Call it inside `context`.

        Args:
            require_approval: True, or a function of the call, to ask even where the policy would not (see
                `hitl_guard.policy.code`).
            pause: ``raise``: `ApprovalRequired` is raised. ``result``: the call returns that it is pending.
            idempotency_argument: The parameter that gets the approval's idempotency key.
        """
        if function is None:
            options = {key: value for key, value in locals().items() if key not in ("self", "function")}
            return lambda wrapped: DropIn.tool(self, wrapped, **options)
        check_pause(pause)
        check_wait(wait)
        if getattr(function, "__hitl_guard__", None) is not None:
            raise ConfigurationError("This function is guarded already, or wraps one that is.")
        policy = None if require_approval is None else ToolPolicy(require_approval=require_approval)
        spec = spec_of(
            function, name=name, description=description, effect=effect, policy=policy, input_schema=input_schema,
            server=server, idempotency_argument=idempotency_argument,
        )
        register(self._desk, spec)
        return _guarded(self, spec, function, pause, wait)

    def wrap(self: Core, execute: Callable[..., Any], *, pause: str = "raise", effect: str | None = None) -> Any:
        """Wrap a dispatcher ``(name, args, context) -> result``, sync or async, so that every call goes through.

        ``context`` is a mapping with at least ``user`` and ``run_id`` (see `context` for the rest), or None inside a
        `context` block.
        """
        check_pause(pause)
        check_effect(effect or "opaque")

        def prepared(name: str, args: Any, context: Mapping[str, Any] | None) -> tuple[ToolCall, dict[str, Any]]:
            return call_of(name, args, CONTEXT.get() if context is None else context, retry=pause == "result")

        if running.is_async(execute):
            @functools.wraps(execute)
            async def wrapped_async(name: str, args: Any, context: Mapping[str, Any] | None = None) -> Any:
                async def start(permit: Permit) -> Any:
                    return await execute(permit.tool, permit.arguments, context)

                call, grant = prepared(name, args, context)
                return await _paused_async(self, call, grant, pause, effect_of(effect, known(self, name)), None, start)

            return wrapped_async

        @functools.wraps(execute)
        def wrapped(name: str, args: Any, context: Mapping[str, Any] | None = None) -> Any:
            call, grant = prepared(name, args, context)
            return _paused(self, call, grant, pause, effect_of(effect, known(self, name)), None,
                           lambda permit: execute(permit.tool, permit.arguments, context))

        return wrapped

    def run_tool_calls(
        self: Core, messages: Sequence[Mapping[str, Any]], tools: Mapping[str, Callable[..., Any]], *,
        user: str | Principal, run_id: str, tenant: str = "default", agent: str | Principal | None = None,
        context: Mapping[str, Any] | None = None, pause: str = "raise",
    ) -> list[dict[str, Any]]:
        """Run the open tool calls of the last assistant message and return their tool messages, in order.

        Arguments are raw JSON strings, parsed strictly. Calls that may run do; with ``pause="raise"`` those that wait
        for a person end in one `ApprovalRequired` that holds all requests and, in ``messages``, every answer so far.

        Raises:
            ApprovalRequired, ConfigurationError, UnavailableError: ``messages`` holds the answers so far.
        """
        turn = Turn(self, messages, tools, user, run_id, tenant, agent, context, pause)
        if any(running.is_async(tool) for tool in tools.values()):
            raise ConfigurationError("Asynchronous tools need AsyncGuard.run_tool_calls.")
        self._desk.know(tools)
        self._desk.check_names()
        for item in turn.items():
            start = caller(item.function, item.spec)
            with turn.answering(item) as result:
                if not turn.held(item):
                    permit = self.authorize(item.call)
                    result.append(permit)
                    result.append(running.run(permit, start, item.spec.effect, self.settle))
        return turn.finish()

    def sealed(self: Core, function: F, *, name: str | None = None, injected: Sequence[str] = ()) -> F:
        """Return the function sealed: it runs only under a permit of this tool with exactly the signed arguments.

        Frameworks' hooks can change arguments after the guard has seen them; a sealed function notices. What a
        framework made of the signed arguments by the function's annotations (a date, a model) is made here too, and
        compared.

        Args:
            injected: Parameters that the framework fills in by itself, so that no model and no approver sees them.
                Those whose type says so (``RunContext``, ``ToolRuntime``, ``Context`` …) are known.

        Raises:
            ConfigurationError: the function has no such parameter, or none that can be bound by name.
        """
        spec = spec_of(function, name=name)
        seal = Seal(self._desk, spec, function, injected)
        sealed: Any

        if running.is_async(function):
            @functools.wraps(function)
            async def sealed_async(*args: Any, **kwargs: Any) -> Any:
                seal.check(args, kwargs)
                return await function(*args, **kwargs)

            sealed = sealed_async
        else:
            @functools.wraps(function)
            def sealed_sync(*args: Any, **kwargs: Any) -> Any:
                seal.check(args, kwargs)
                return function(*args, **kwargs)

            sealed = sealed_sync
        SEALED.add(sealed)
        return cast(F, sealed)

    def coverage(self, tools: Any) -> Coverage:
        """Return which of an agent's tools are guarded and which are *not* (a mapping, a list, or ``.tools``)."""
        return coverage(tools)

    def selftest(self: Core, agent: Any = None) -> None:
        """Prove at start-up that the set-up gates: a canary call must be refused everywhere. See `selfcheck.selftest`.

        Raises:
            ConfigurationError: a call ran ungated, or a tool is not covered. Do not start.
        """
        selftest(self, agent)


def register(desk: Desk, spec: ToolSpec) -> None:
    """Register a tool by its exact name; raises `ConfigurationError` when another one has it.

    The same tool may be registered again, e.g. by a module that is loaded anew, but not with other settings: the later
    ones would count for both.
    """
    if desk.tools.get(spec.name, spec) != spec:
        raise ConfigurationError(f"Two different tools are named '{spec.name}'.")
    desk.tools[spec.name] = spec
    desk.know([spec.name])


def _guarded(guard: Core, spec: ToolSpec, function: Callable[..., Any], pause: str, wait: float | None) -> Any:
    def prepared(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ToolCall, dict[str, Any]]:
        call, grant = call_of(spec.name, spec.bind(args, kwargs), CONTEXT.get(), retry=pause == "result")
        return replace(call, definition=spec.definition), grant

    if running.is_async(function):
        @functools.wraps(function)
        async def guarded_async(*args: Any, **kwargs: Any) -> Any:
            call, grant = prepared(args, kwargs)
            return await _paused_async(guard, call, grant, pause, spec.effect, wait, caller(function, spec))

        result: Any = guarded_async
    else:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            call, grant = prepared(args, kwargs)
            return _paused(guard, call, grant, pause, spec.effect, wait, caller(function, spec))

        result = guarded
    result.__hitl_guard__ = Guarded(spec, function, guard, result)
    return result


def _paused(
    guard: Core, call: ToolCall, grant: dict[str, Any], pause: str, effect: str, wait: float | None,
    start: Callable[[Permit], Any],
) -> Any:
    try:
        permit = awaited_permit(guard, call, grant.get("request_id"), grant.get("token"), wait)
    except (ApprovalRequired, RefusedError, CanonicalizationError) as error:
        return _told(error, pause)
    return _reported(permit, running.run(permit, start, effect, guard.settle), pause)


def _reported(permit: Permit, result: Any, pause: str) -> Any:
    """Return a tool's result; where it goes straight to the model, with the notice that a person changed the call."""
    return {"message": edit_notice(permit).strip(), "result": result} if permit.edited and pause == "result" else result


def _told(error: ApprovalRequired | RefusedError | CanonicalizationError, pause: str) -> Any:
    """Raise the error again, or return what the model is told instead (deny-and-retry)."""
    if pause == "raise":
        raise error
    return pending_result(error.request) if isinstance(error, ApprovalRequired) else refusal_result(error)


async def _paused_async(
    guard: Core, call: ToolCall, grant: dict[str, Any], pause: str, effect: str, wait: float | None,
    start: Callable[[Permit], Any],
) -> Any:
    try:
        permit = await awaited_permit_async(guard, call, grant.get("request_id"), grant.get("token"), wait)
    except (ApprovalRequired, RefusedError, CanonicalizationError) as error:
        return _told(error, pause)
    return _reported(permit, await running.run_async(permit, start, effect, guard.settle), pause)
