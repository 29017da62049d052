"""How a call gets its permit, at once or after a wait, and how a permit starts its tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from . import clock
from .errors import ApprovalRequired, ConfigurationError
from .lifecycle import running
from .lifecycle.threads import offload
from .lifecycle.toolspec import ToolSpec, check_effect
from .models import ApprovalRequest, Permit, ToolCall
from .policy.core import Verdict
from .selfcheck import Checked
from .toolcalls import check_guarded, check_mark, check_wait, guarded_of

FIELDS = frozenset(
    {"agent", "call_id", "context", "occurrence", "request_id", "run_id", "tenant", "token", "turn", "user"}
)
"""What a context may say about a call."""

POLL_MS = 200
"""How often a blocking ``wait`` looks whether a person has decided."""


class Core(Checked, Protocol):
    """What the drop-ins need of a guard."""

    def settle(self, permit: Permit, outcome: str, detail: str | None = None) -> None:
        """See `hitl_guard.Guard.settle`."""

    def get(self, request_id: str, *, tenant: str = "default") -> ApprovalRequest:
        """See `hitl_guard.Guard.get`."""

    def evaluate(self, call: ToolCall) -> Verdict:
        """See `hitl_guard.Guard.evaluate`."""

    def request(self, call: ToolCall) -> ApprovalRequest:
        """See `hitl_guard.Guard.request`."""


def effect_of(effect: str | None, spec: ToolSpec | None) -> str:
    """Return the effect in force: the one given here, else the registered tool's, else ``opaque``."""
    if effect is not None:
        check_effect(effect)
        return effect
    return "opaque" if spec is None else spec.effect


def known(guard: Core, name: object) -> ToolSpec | None:
    """Return the registered tool of a name, if there is one."""
    return guard._desk.tools.get(name) if isinstance(name, str) else None


def prepared_run(
    guard: Core, call: ToolCall, tool: Callable[..., Any], effect: str | None, wait: float | None
) -> tuple[Callable[[Permit], Any], str]:
    """Return how to start a tool and what it promises. Whatever is wrong with it must come out before the claim.

    Raises:
        ConfigurationError: the tool cannot be called or is guarded as another one, or effect or wait are unusable.
    """
    check_wait(wait)
    check_mark(tool)
    spec, guarded = known(guard, call.tool), guarded_of(tool)
    if guarded is not None:
        check_guarded(guarded, call.tool, guard)
        tool = guarded.function
    if not callable(tool):
        raise ConfigurationError("The tool must be a function.")
    return caller(tool, spec), effect_of(effect, spec)


def caller(tool: Callable[..., Any], spec: ToolSpec | None) -> Callable[[Permit], Any]:
    """Return how a permit starts the tool."""
    argument = None if spec is None else spec.idempotency_argument
    if running.is_async(tool):
        async def start_async(permit: Permit) -> Any:
            return await tool(**running.arguments_of(permit, argument))

        return start_async
    return lambda permit: tool(**running.arguments_of(permit, argument))


def call_of(
    name: str, arguments: Any, context: Mapping[str, Any] | None, *, retry: bool = False
) -> tuple[ToolCall, dict[str, Any]]:
    """Return the call of a tool in a context, and the grant that the context names.

    Raises:
        ConfigurationError: there is no context, or a part of it is missing or unknown.
    """
    if context is None:
        raise ConfigurationError("Call guarded tools inside 'with guard.context(user=..., run_id=...)'.")
    given: dict[str, Any] = {"turn": None, **context}
    if not {"user", "run_id"} <= given.keys() or not given.keys() <= FIELDS:
        raise ConfigurationError("A context needs 'user' and 'run_id', and takes nothing unknown.")
    grant: dict[str, Any] = {key: given.pop(key) for key in ("request_id", "token") if key in given}
    call_id = given.pop("call_id", None)
    if retry or call_id is None:
        call_id, given["occurrence"] = None, 0
    return ToolCall(name, arguments, call_id=call_id, **given), grant


def awaited_permit(
    guard: Core, call: ToolCall, request_id: str | None, token: str | bytes | None, wait: float | None
) -> Permit:
    """Return the permit of a call; with ``wait`` block up to so many seconds for the decision."""
    deadline = clock.monotonic_ms() + int((wait or 0) * 1000)
    while True:
        try:
            return guard.authorize(call, request_id=request_id, token=token)
        except ApprovalRequired as pause:
            if wait is None:
                raise
            while guard.get(pause.request.id, tenant=call.tenant).state == "pending":
                if clock.monotonic_ms() >= deadline:
                    raise
                clock.sleep_ms(POLL_MS)


async def awaited_permit_async(
    guard: Core, call: ToolCall, request_id: str | None, token: str | bytes | None, wait: float | None
) -> Permit:
    """Do the same in a task: no thread is kept waiting, and a cancelled task spends nothing after that."""
    deadline = clock.monotonic_ms() + int((wait or 0) * 1000)
    while True:
        try:
            return await running.permit_async(
                lambda: guard.authorize(call, request_id=request_id, token=token), guard.settle
            )
        except ApprovalRequired as pause:
            if wait is None:
                raise
            look = partial(guard.get, pause.request.id, tenant=call.tenant)
            while (await offload(look)).state == "pending":
                if clock.monotonic_ms() >= deadline:
                    raise
                await asyncio.sleep(POLL_MS / 1000)
