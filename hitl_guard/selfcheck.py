"""Start-up checks: which tools are not covered, and a canary call that must be refused."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isfunction
from typing import Any, Protocol

from .errors import ApprovalRequired, ConfigurationError, DecisionError, HitlGuardError, RefusedError, UnavailableError
from .lifecycle import control as controls
from .lifecycle.control import CANARY_TENANT, CANARY_TOOL
from .lifecycle.desk import Desk
from .lifecycle.running import is_async
from .models import Permit, Principal, ToolCall
from .toolcalls import SEALED, guarded_of, pending_result

_OPERATOR = "hitl-guard selftest"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Names of tools that are guarded (sealed ones included), and of those that run without any check."""

    guarded: tuple[str, ...]
    unguarded: tuple[str, ...]


class GuardedLoop(ABC):
    """A loop that asks a guard before every call; `hitl_guard.agent.Agent` is one."""

    @abstractmethod
    def covered_tools(self) -> list[str]:
        """Return the names of the tools that only run through the guard."""

    @abstractmethod
    def canary(self, guard: Any) -> None:
        """Run the canary call through the real loop, and withdraw its request.

        Raises:
            ConfigurationError: the call ran, or the loop has another guard.
        """


class Checked(Protocol):
    """What a self-test needs of a guard."""

    _desk: Desk

    def authorize(
        self, call: ToolCall, *, request_id: str | None = None, token: str | bytes | None = None
    ) -> Permit:
        """See `hitl_guard.Guard.authorize`."""

    def revoke(self, request_id: str, *, by: Principal, reason: str | None = None) -> None:
        """See `hitl_guard.Guard.revoke`."""


def coverage(tools: Any) -> Coverage:
    """Return which tools are guarded: of a mapping, a list, or an agent with a ``tools`` attribute.

    Raises:
        ConfigurationError: no tools can be found in what was given.
    """
    if isinstance(tools, GuardedLoop):
        return Coverage(tuple(sorted(tools.covered_tools())), ())
    found = getattr(tools, "tools", tools)
    if isinstance(found, Mapping):
        pairs = [(str(name), tool) for name, tool in found.items()]
    elif isinstance(found, (list, tuple, set, frozenset)):
        pairs = [(str(getattr(tool, "name", None) or getattr(tool, "__name__", repr(tool))), tool) for tool in found]
    else:
        raise ConfigurationError("Give the tools as a mapping or a list, or an agent that has them in '.tools'.")
    good = tuple(sorted(name for name, tool in pairs if is_covered(tool)))
    return Coverage(good, tuple(sorted(name for name, tool in pairs if not is_covered(tool))))


def is_covered(tool: Any) -> bool:
    """Whether a tool asks the guard by itself, or is sealed and refuses without it."""
    # Frameworks' tool objects need not be hashable; a sealed function is.
    return guarded_of(tool) is not None or (isfunction(tool) and tool in SEALED)


def selftest(guard: Checked, agent: Any = None) -> None:
    """Run a canary call through the guard, and through ``agent``; raise unless it is refused everywhere.

    Args:
        agent: A dispatcher ``(name, args, context)`` made by `wrap`, an `hitl_guard.agent.Agent`, or the tools
            themselves (all must be guarded).

    Raises:
        ConfigurationError: something ran, or could run, ungated.
        UnavailableError: the store does not answer.
    """
    guard._desk.store.check()
    guard._desk.check_names()
    _canary(guard)
    if agent is None:
        return
    if isinstance(agent, GuardedLoop):
        agent.canary(guard)
        return
    if callable(agent) and not is_covered(agent):
        _dispatcher(guard, agent)
        return
    report = coverage([agent] if callable(agent) else agent)
    if report.unguarded or not report.guarded:
        names = ", ".join(report.unguarded) or "none at all"
        raise ConfigurationError(f"These tools are not guarded: {names}. Guard them, or leave them out of the list.")


def _canary(guard: Checked) -> None:
    if guard._desk.read(CANARY_TENANT).control.restored:
        # The canary's tenant is nobody's: after a restored backup no operator would think of it.
        guard._desk.change_control(CANARY_TENANT, controls.resumed("all", ""), by=_OPERATOR, reason="selftest")
    run = secrets.token_urlsafe(16)
    call = ToolCall(CANARY_TOOL, {}, run_id=run, call_id="canary", user=_OPERATOR, tenant=CANARY_TENANT)
    request = None
    try:
        guard.authorize(call)
    except ApprovalRequired as pause:
        request = pause.request
    if request is None:
        raise ConfigurationError("The self-test's canary call ran without an approval. Do not start.")
    forged = request.token[:-4] + ("AAAA" if request.token[-4:] != "AAAA" else "BBBB")
    # Any refusal will do, but an answer there must be.
    for options in ({"request_id": request.id}, {"token": forged}, {"request_id": secrets.token_urlsafe(16)}):
        _must_refuse(partial(guard.authorize, call, **options))
    withdraw(guard, request.id)


def _must_refuse(action: Callable[[], Any]) -> None:
    try:
        action()
    except UnavailableError:
        raise
    except HitlGuardError:
        return
    raise ConfigurationError("The self-test's canary call ran without an approval. Do not start.")


def _dispatcher(guard: Checked, execute: Callable[..., Any]) -> None:
    if is_async(execute):
        raise ConfigurationError("Test an asynchronous dispatcher with AsyncGuard.selftest.")
    with dispatched() as ended:
        ended.append(execute(CANARY_TOOL, {}, canary_context()))
    withdraw(guard, request_of(ended[0]))


@contextmanager
def dispatched() -> Iterator[list[Any]]:
    """Call a dispatcher in here and put its result in the list; what it raises for a pause is put there as well."""
    ended: list[Any] = []
    try:
        yield ended
    except ApprovalRequired as pause:
        ended.append(pending_result(pause.request))
    except (UnavailableError, RefusedError):
        raise  # the guard itself answered: it is paused, say
    except Exception as error:
        raise _ungated() from error


def canary_context() -> dict[str, Any]:
    """Return the context in which the canary is called."""
    return {
        "call_id": "canary", "run_id": secrets.token_urlsafe(16), "tenant": CANARY_TENANT, "user": _OPERATOR,
    }


def request_of(result: Any) -> str:
    """Return the id of the request that the canary call waits for; raise if the dispatcher's result names none."""
    request_id = result.get("request_id") if isinstance(result, dict) else None
    if not isinstance(request_id, str) or result.get("status") != "approval-pending":
        raise _ungated()
    return request_id


def withdraw(guard: Checked, request_id: str) -> None:
    """Withdraw the canary's request, so that it does not stay in the list; raise if this guard does not know it."""
    by = Principal(_OPERATOR, kind="service", tenant=CANARY_TENANT)
    try:
        guard.revoke(request_id, by=by, reason="selftest")
    except DecisionError as error:
        raise ConfigurationError("This dispatcher is guarded by another guard, or by none.") from error


def _ungated() -> ConfigurationError:
    return ConfigurationError("The canary call reached the tools: this dispatcher is not guarded.")
