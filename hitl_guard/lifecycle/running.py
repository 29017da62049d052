"""Running a permitted tool: with the arguments that were signed, once, and with an outcome on record."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from typing import Any

from .. import clock
from ..errors import (
    AuditUnavailableError,
    ConfigurationError,
    ConsumedError,
    ExpiredError,
    HitlGuardError,
    NoEffect,
)
from ..models import Permit
from .threads import offload

CURRENT: contextvars.ContextVar[Permit | None] = contextvars.ContextVar("hitl_guard_permit", default=None)
"""The permit under which the running tool was started; what `sealed` functions compare themselves with."""

KNOWN_EFFECTS = frozenset({"none", "idempotent"})
"""Effects for which an exception leaves nothing in doubt."""

Settle = Callable[[Permit, str, str | None], None]


def current_permit() -> Permit | None:
    """Return the permit under which the current tool runs (its ``idempotency_key`` is stable per approval), or None."""
    return CURRENT.get()


def take(permit: Permit) -> None:
    """Mark a permit as started. A permit starts one tool, once.

    Raises:
        ConsumedError: it was started before.
        ExpiredError: it lay too long since the claim; it starts nothing any more.
    """
    with permit.lock:
        if permit.ran:
            raise ConsumedError("This permit has started a tool already.", detail="permit")
        permit.ran = True
    if permit.start_by is not None and clock.monotonic_ms() >= permit.start_by:
        raise ExpiredError("The call was claimed too long ago to start now; ask again.", detail="run-by")


def outcome_of(error: BaseException, effect: str) -> str:
    """Return how a failed call ended: in doubt, unless the tool's effect or `NoEffect` says otherwise."""
    return "failed" if isinstance(error, NoEffect) or effect in KNOWN_EFFECTS else "in_doubt"


def arguments_of(permit: Permit, idempotency_argument: str | None) -> dict[str, Any]:
    """Return the tool's keyword arguments: the signed ones and, where the tool wants it, the idempotency key."""
    arguments = permit.arguments
    if idempotency_argument is not None:
        arguments[idempotency_argument] = permit.idempotency_key
    return arguments


@contextmanager
def _current(permit: Permit) -> Any:
    token = CURRENT.set(permit)
    try:
        yield
    finally:
        CURRENT.reset(token)


def run(permit: Permit, tool: Callable[[Permit], Any], effect: str, settle: Settle) -> Any:
    """Start ``tool(permit)`` and settle its outcome.

    Raises:
        ConfigurationError: the tool returned something to await, for which there is nobody here.
        AuditUnavailableError: the tool ran but its outcome could not be recorded; ``result`` holds what it returned,
            and the call reads as in doubt.
    """
    result = _start(permit, tool, effect, settle)
    if inspect.isawaitable(result):
        error = ConfigurationError("The tool returned something to await. Use AsyncGuard for asynchronous tools.")
        _abandon(settle, permit, effect, result, error)
        raise error
    return result


def _start(permit: Permit, tool: Callable[[Permit], Any], effect: str, settle: Settle) -> Any:
    """Start a tool in this thread and settle it, unless what it returned must be awaited first."""
    try:
        take(permit)
    except ExpiredError as error:
        _record(settle, permit, "failed", error)
        raise
    try:
        with _current(permit):
            result = tool(permit)
        check_result(result)
    except BaseException as error:
        _record(settle, permit, outcome_of(error, effect), error)
        raise
    if not inspect.isawaitable(result):
        receipt(settle, permit, result)
    return result


def check_result(result: object) -> None:
    """Raise `ConfigurationError` for a generator: its body has not run, and would run after the outcome is recorded."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError("The tool returned a generator; let it return its result itself.")


def _abandon(settle: Settle, permit: Permit, effect: str, result: Any, error: BaseException) -> None:
    """Record that nobody will await what a tool returned, and let go of it."""
    if inspect.iscoroutine(result):
        result.close()
    _record(settle, permit, outcome_of(error, effect), error)


async def permit_async(authorize: Callable[[], Permit], settle: Settle) -> Permit:
    """Authorize from a task. If the task is cancelled meanwhile and the grant was spent, that is put on record.

    A cancelled task never starts the tool, so its call is known to have failed without effect.
    """
    return await offload(authorize, undo=lambda permit: settle(permit, "failed", "cancelled"))


async def run_async(permit: Permit, tool: Callable[[Permit], Any], effect: str, settle: Settle) -> Any:
    """Do the same for a tool that may be asynchronous.

    A synchronous one runs in a worker thread, to its end and on record, also if the task is cancelled meanwhile; one
    that is still queued then never starts.
    """
    if is_async(tool):
        try:
            take(permit)
        except ExpiredError as error:
            late = error
            await offload(lambda: _record(settle, permit, "failed", late), must_end=True)
            raise
        return await _awaited(permit, tool(permit), effect, settle)

    def abandon(result: Any) -> None:
        if inspect.isawaitable(result):
            _abandon(settle, permit, effect, result, asyncio.CancelledError())

    try:
        result = await offload(lambda: _start(permit, tool, effect, settle), undo=abandon, tool=True)
    except asyncio.CancelledError as error:
        if not permit.ran:
            with suppress(ExpiredError):
                take(permit)
            cancelled = error
            await offload(lambda: _record(settle, permit, "failed", cancelled), must_end=True)
        raise
    return await _awaited(permit, result, effect, settle) if inspect.isawaitable(result) else result


async def run_free(permit: Permit, work: Callable[[Permit], Awaitable[Any]]) -> Any:
    """Run under a permit that spent nothing: there is no outcome to record."""
    take(permit)
    with _current(permit):
        result = await work(permit)
    check_result(result)
    return result


async def _awaited(permit: Permit, work: Awaitable[Any], effect: str, settle: Settle) -> Any:
    try:
        with _current(permit):
            result = await work
        check_result(result)
    except GeneratorExit as error:  # the loop is gone, so nothing can be awaited any more
        _record(settle, permit, outcome_of(error, effect), error)
        raise
    except BaseException as error:
        raised = error
        await offload(lambda: _record(settle, permit, outcome_of(raised, effect), raised), must_end=True)
        raise
    await offload(lambda: receipt(settle, permit, result), must_end=True)
    return result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def receipt(settle: Settle, permit: Permit, result: Any) -> None:
    """Record success; a result is never lost because its receipt could not be written.

    Raises:
        AuditUnavailableError: ``detail`` is ``receipt``, or ``late`` when the call was settled by others before.
    """
    try:
        settle(permit, "succeeded", None)
    except ConsumedError as error:
        raise AuditUnavailableError(
            "The tool ran, but so late that its outcome was recorded without it. The result is in 'result'.",
            detail="late", result=result,
        ) from error
    except HitlGuardError as error:
        raise AuditUnavailableError(
            "The tool ran, but its outcome could not be recorded; it reads as in doubt. The result is in 'result'.",
            detail="receipt", result=result,
        ) from error


def _record(settle: Settle, permit: Permit, outcome: str, error: BaseException) -> None:
    """Record how a failed call ended. What the tool raised matters more than a receipt that cannot be written."""
    try:
        settle(permit, outcome, type(error).__name__[:64])
    except HitlGuardError as refusal:
        error.add_note(f"hitl_guard: the outcome was not recorded ({refusal.code}); look at the request's state.")
