"""What every adapter does between its framework and the guard. No framework is imported here.

An adapter finds the framework's innermost place around a tool, makes a `ToolCall` of what it finds there
(`Bridge.call`), and runs the tool through `Bridge.run` or `Bridge.run_sync`: with the signed arguments, once, with its
outcome on record.
Whatever the framework's own pause says about an approval is a hint; the store alone is asked.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..aio import AsyncGuard
from ..dropin import CONTEXT
from ..errors import (
    ApprovalRequired,
    ArgsMismatchError,
    CanonicalizationError,
    ConfigurationError,
    HitlGuardError,
    RefusedError,
)
from ..guard import Guard
from ..lifecycle import running
from ..lifecycle.control import CANARY_TOOL
from ..models import ApprovalRequest, Permit, ToolCall, ToolDefinition
from ..permits import call_of, effect_of, known
from ..selfcheck import canary_context, withdraw
from ..toolcalls import as_text, edit_notice, pending_result, refusal_result

PAUSES = ("native", "retry")

Facts = Mapping[str, Any]
"""Who calls, and in which run: ``user`` and ``run_id``, and ``tenant``, ``agent`` or ``context`` where they count."""

Asked = tuple[str, Any]
"""A call that the model made: the tool's name, and its arguments as a mapping or as raw JSON text."""

Refusal = (RefusedError, CanonicalizationError)
"""What ends one call and is told to the model. Everything else ends the run: nobody knows, or the set-up is wrong."""

class InnerCallError(Exception):
    """A tool has started, and ended because the guard stopped a call inside it: the tool's own error, in ``error``.

    It is none of what the guard says of the tool's own call. Adapters raise ``error`` where the framework hears of
    what tools raise.
    """

    def __init__(self, error: HitlGuardError) -> None:
        super().__init__(str(error))
        self.error = error


_CANARY: contextvars.ContextVar[Canary | None] = contextvars.ContextVar("hitl_guard_canary", default=None)
_NAMED = ("user", "run_id", "tenant", "agent", "context")


class Canary:
    """A self-test's call of a tool that must not run. Give the framework `tool` under the name `name`."""

    name = CANARY_TOOL

    def __init__(self) -> None:
        self.facts = {name: value for name, value in canary_context().items() if name in _NAMED}
        self.requests: list[ApprovalRequest] = []
        self.ran = False

    def tool(self) -> str:
        """Ask the self-test's question: does anything run unasked?"""
        self.ran = True
        return "ran"


class Bridge:
    """One framework's way to a guard.

    Args:
        scope: Returns the facts of a call from what the framework hands to its hooks. Those that it does not return
            come from `Guard.context` around the run, then from the framework: a run id that a resume keeps.
        pause: ``native``: the framework pauses its run. ``retry``: the model is told that the call waits and makes it
            again later (deny-and-retry).
        effects: What tools promise about their effect, by name (see `hitl_guard.models.EFFECTS`); others are opaque.

    Raises:
        ConfigurationError: one of these is none.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, *, scope: Callable[[Any], Facts] | None = None, pause: str = "native",
        effects: Mapping[str, str] | None = None,
    ) -> None:
        self.guard = guard.guard if isinstance(guard, AsyncGuard) else guard
        if not isinstance(self.guard, Guard):
            raise ConfigurationError("Give the adapter a Guard or an AsyncGuard.")
        if scope is not None and not callable(scope):
            raise ConfigurationError("'scope' is a function that returns {'user': …, 'run_id': …}.")
        if pause not in PAUSES:
            raise ConfigurationError("'pause' is 'native' (the framework's own) or 'retry' (deny and retry).")
        self.pause = pause
        self._scope = scope
        self._effects = {name: effect_of(effect, None) for name, effect in (effects or {}).items()}

    def know(self, names: Iterable[str]) -> None:
        """Note the names of the framework's tools, so that a policy that names none of them is noticed."""
        self.guard._desk.know(names)

    def call(
        self, tool: str, arguments: Any, *, framework: Any, call_id: str | None, occurrence: int = 0,
        run_id: str | None = None, user: str | None = None, agent: str | None = None,
        definition: ToolDefinition | None = None, turn: Sequence[Asked] | None = None,
    ) -> ToolCall:
        """Return the call that a hook sees.

        Args:
            arguments: A mapping, made plain here, or raw JSON text, parsed strictly by the guard.
            framework: What the framework hands to its hooks; ``scope`` gets it.
            call_id: The provider's tool-call id. None: the call is bound to its arguments, as with ``pause="retry"``.
            run_id, user, agent: What the framework itself knows; facts of the app count more.
            turn: Tool and arguments of the earlier calls of the model's turn, for the policy, as their tools get them.
                None: the framework does not tell, and rules that depend on it stop the call.

        Raises:
            ConfigurationError: nobody says for whom, or in which run.
            CanonicalizationError: the arguments are no JSON data.
        """
        given = {"run_id": run_id, "user": user, "agent": agent} | self._facts(framework)
        facts = {name: value for name, value in given.items() if value is not None}
        if missing := [name for name in ("user", "run_id") if name not in facts]:
            raise ConfigurationError(
                f"Nobody says '{missing[0]}': give the adapter scope=..., or run inside 'with guard.context(...)'."
            )
        retry = self.pause == "retry" or call_id is None
        facts |= {} if retry else {"call_id": call_id, "occurrence": occurrence}
        facts["turn"] = None if turn is None else self._earlier(turn, facts)
        made, _ = call_of(tool, _given(arguments), facts, retry=retry)
        return made if definition is None else replace(made, definition=definition)

    def _earlier(self, turn: Iterable[Asked], facts: Facts) -> tuple[ToolCall, ...] | None:
        """Return the earlier calls of a turn; None where one of them cannot be read as the guard reads calls.

        Frameworks read more leniently (duplicate names, parts that a tool does not take): such a call may have run.
        """
        earlier = []
        for tool, arguments in turn:
            try:
                raw = self.guard._desk.canonical_arguments(_given(arguments))
            except CanonicalizationError:
                return None
            earlier.append(ToolCall(tool, raw, run_id=facts["run_id"], call_id=None, user=facts["user"]))
        return tuple(earlier)

    def _facts(self, framework: Any) -> dict[str, Any]:
        canary = _CANARY.get()
        if canary is not None:
            return dict(canary.facts)
        ambient = CONTEXT.get() or {}
        facts = {name: ambient[name] for name in _NAMED if name in ambient}
        if self._scope is None:
            return facts
        own = self._scope(framework)
        if not isinstance(own, Mapping) or not own.keys() <= set(_NAMED) or None in own.values():
            raise ConfigurationError(f"'scope' returns a mapping with some of: {', '.join(_NAMED)}; none is None.")
        return facts | dict(own)

    # -- the call ------------------------------------------------------------------------------------------------

    async def run(self, call: ToolCall, start: Callable[[Permit], Awaitable[Any]]) -> Any:
        """Authorize a call, await ``start(permit)``, record its outcome and return its result.

        ``start`` runs the tool with ``permit.arguments``; where nobody edited them, what the framework made of the
        arguments that were signed will do.

        Raises:
            ApprovalRequired: a person must decide first; the tool did not run.
            RefusedError, CanonicalizationError: the call must not run.
            UnavailableError, ConfigurationError: nobody can tell; the tool did not run.
            InnerCallError: the tool ran, and a call inside it was stopped. Anything else is what the tool raised.
        """
        async def started(permit: Permit) -> Any:
            with inner_calls(permit):
                return await start(permit)

        permit = await self.permit(call)
        return noticed(permit, await running.run_async(permit, started, self._effect(call), self.guard.settle))

    async def permit(self, call: ToolCall) -> Permit:
        """Authorize a call that something else will run, with its arguments as they are in the permit. Raises as `run`.

        `hitl_guard.lifecycle.running.take` says that it starts; `outcome` and `Guard.settle` put its end on record.
        """
        with _heard():
            return await running.permit_async(lambda: self.guard.authorize(call), self.guard.settle)

    def outcome(self, call: ToolCall) -> str:
        """Return how a call that started and failed has ended: in doubt, unless its effect says otherwise."""
        return running.outcome_of(RuntimeError(), self._effect(call))

    def run_sync(self, call: ToolCall, start: Callable[[Permit], Any]) -> Any:
        """Do in this thread what `run` does in a task. Raises as `run`."""
        def started(permit: Permit) -> Any:
            with inner_calls(permit):
                return start(permit)

        with _heard():
            permit = self.guard.authorize(call)
        return noticed(permit, running.run(permit, started, self._effect(call), self.guard.settle))

    def _effect(self, call: ToolCall) -> str:
        return effect_of(self._effects.get(call.tool), known(self.guard, call.tool))

    def told(self, error: ApprovalRequired | RefusedError | CanonicalizationError) -> str:
        """Return what the model is told instead of a result: that the call waits, a person's words, or a coarse reason.
        """
        return as_text(pending_result(error.request) if isinstance(error, ApprovalRequired) else refusal_result(error))

    # -- the self-test -------------------------------------------------------------------------------------------

    @contextmanager
    def canary(self) -> Iterator[Canary]:
        """Run the canary's tool through the framework in here, by a scripted model, say. Its request is withdrawn.

        Raises:
            ConfigurationError: the call ran, or was not stopped by this guard.
        """
        self.guard.selftest()
        canary = Canary()
        self.know([canary.name])
        token = _CANARY.set(canary)
        try:
            yield canary
        finally:
            _CANARY.reset(token)
            for request in canary.requests:
                withdraw(self.guard, request.id)
        if canary.ran or not canary.requests:
            raise ConfigurationError("The self-test's canary call was not stopped by this guard: do not start.")


@contextmanager
def _heard() -> Iterator[None]:
    """Note what a self-test's call waits for."""
    try:
        yield
    except ApprovalRequired as pause:
        canary = _CANARY.get()
        if canary is not None:
            canary.requests += pause.requests
        raise


@contextmanager
def inner_calls(permit: Permit) -> Iterator[None]:
    """Tell what stops a call inside a tool from what stops the tool's own, its seal included."""
    try:
        yield
    except (ApprovalRequired, *Refusal) as error:
        if permit.mismatch and isinstance(error, ArgsMismatchError):
            raise
        raise InnerCallError(error) from error


def request_facts(request: ApprovalRequest) -> dict[str, str]:
    """Return what a framework's own pause carries about a request: where to decide it, and nothing to trust."""
    return {"fingerprint": request.fingerprint, "request_id": request.id, "tenant": request.tenant}


def _given(arguments: Any) -> Any:
    return arguments if isinstance(arguments, (str, bytes)) else plain(arguments)


def earlier_of(calls: Iterable[tuple[str, str, Any]], call_id: str | None) -> list[Asked] | None:
    """Return the calls of the model's turn before one of them; None where its id does not name one of them.

    Args:
        calls: Tool-call id, tool and arguments of each call of the turn, in order. Where several have one id, all
            before the last of them count.
    """
    turn = list(calls)
    places = [place for place, (own_id, _, _) in enumerate(turn) if own_id == call_id]
    return [(tool, arguments) for _, tool, arguments in turn[: places[-1]]] if places else None


def plain(arguments: Any) -> Any:
    """Return validated arguments (dates, models, enumerations …) as the plain JSON data that they stand for.

    Raises:
        CanonicalizationError: there is no JSON form.
    """
    try:
        return to_jsonable_python(arguments, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CanonicalizationError(
            "An argument has no JSON form, so that nobody could approve it.", code="unsupported-value"
        ) from error


def occurrence_of(turns: Iterable[Sequence[str]], call_id: str) -> int:
    """Return how many earlier calls in a run's history have this tool-call id, the latest turn with it left out.

    Args:
        turns: The tool-call ids of each model turn, in order.
    """
    counts = [number for number in (list(turn).count(call_id) for turn in turns) if number]
    return sum(counts[:-1])


def noticed(permit: Permit, result: Any) -> Any:
    """Return a tool's result; where a person changed the call, with the notice that says so."""
    if not permit.edited:
        return result
    notice = edit_notice(permit)
    return notice + result if isinstance(result, str) else {"message": notice.strip(), "result": result}
