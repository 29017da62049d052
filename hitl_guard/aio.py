"""AsyncGuard: the same methods, awaited. The order of checks is not written again: the one in `guard` runs in a thread.

A cancelled task never leaves it unknown whether a grant was spent, and never starts the tool afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, overload

from .errors import ConfigurationError
from .guard import Guard
from .lifecycle import running
from .lifecycle.control import CANARY_TOOL, Control
from .lifecycle.credentials import Assertion, Challenge, Credential, Registration
from .lifecycle.dossier import Dossier
from .lifecycle.listing import Page
from .lifecycle.settings import Settings
from .lifecycle.threads import offload
from .models import ApprovalRequest, Decision, Permit, Principal, ToolCall
from .permits import awaited_permit_async, caller, prepared_run
from .policy.core import Verdict
from .selfcheck import Coverage, canary_context, dispatched, is_covered, request_of, withdraw
from .toolcalls import Turn

F = TypeVar("F", bound=Callable[..., Any])


class AsyncGuard:
    """A `Guard` for asynchronous servers. Takes the same arguments, or a guard: ``AsyncGuard(guard=...)``."""

    def __init__(self, *, guard: Guard | None = None, **options: Any) -> None:
        if guard is not None and options:
            raise ConfigurationError("Give AsyncGuard a guard, or a guard's arguments, not both.")
        self.guard = Guard(**options) if guard is None else guard

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, settings: Settings | None = None) -> AsyncGuard:
        """See `Guard.from_env`."""
        return cls(guard=Guard.from_env(environ, settings=settings))

    async def close(self) -> None:
        """See `Guard.close`."""
        await offload(self.guard.close)

    @property
    def policy_version(self) -> str:
        """See `Guard.policy_version`."""
        return self.guard.policy_version

    @property
    def settings(self) -> Settings:
        """See `Guard.settings`."""
        return self.guard.settings

    async def evaluate(self, call: ToolCall) -> Verdict:
        """See `Guard.evaluate`."""
        return await offload(lambda: self.guard.evaluate(call))

    async def request(self, call: ToolCall) -> ApprovalRequest:
        """See `Guard.request`."""
        return await offload(lambda: self.guard.request(call))

    async def authorize(
        self, call: ToolCall, *, request_id: str | None = None, token: str | bytes | None = None
    ) -> Permit:
        """See `Guard.authorize`. Cancelled after the claim: the call is recorded as failed, nothing was started."""
        return await running.permit_async(
            lambda: self.guard.authorize(call, request_id=request_id, token=token), self.guard.settle
        )

    async def run(
        self, call: ToolCall, tool: Callable[..., Any], *, effect: str | None = None, request_id: str | None = None,
        token: str | bytes | None = None, wait: float | None = None,
    ) -> Any:
        """See `Guard.run`. ``tool`` may be async; a synchronous one runs in a worker thread."""
        start, promised = prepared_run(self.guard, call, tool, effect, wait)
        permit = await awaited_permit_async(self.guard, call, request_id, token, wait)
        return await running.run_async(permit, start, promised, self.guard.settle)

    async def settle(self, permit: Permit, outcome: str, detail: str | None = None) -> None:
        """See `Guard.settle`."""
        await offload(lambda: self.guard.settle(permit, outcome, detail), must_end=True)

    async def decide(
        self, request_id: str, *, approver: Principal, approve: bool, fingerprint: str, reason: str | None = None,
        arguments: Any = None, respond: Any = None, channel: str = "api", credential: str | None = None,
        execute_within: int | None = None, evidence: Assertion | None = None, mute: int | None = None,
    ) -> Decision:
        """See `Guard.decide`."""
        return await offload(lambda: self.guard.decide(
            request_id, approver=approver, approve=approve, fingerprint=fingerprint, reason=reason,
            arguments=arguments, respond=respond, channel=channel, credential=credential, execute_within=execute_within,
            evidence=evidence, mute=mute,
        ))

    async def challenge(
        self, request_id: str, *, approver: Principal, approve: bool, fingerprint: str, reason: str | None = None,
        arguments: Any = None, respond: Any = None, channel: str = "inbox", execute_within: int | None = None,
        mute: int | None = None,
    ) -> Challenge:
        """See `Guard.challenge`."""
        return await offload(lambda: self.guard.challenge(
            request_id, approver=approver, approve=approve, fingerprint=fingerprint, reason=reason,
            arguments=arguments, respond=respond, channel=channel, execute_within=execute_within, mute=mute,
        ))

    async def passkey_registration(self, principal: Principal) -> Registration:
        """See `Guard.passkey_registration`."""
        return await offload(lambda: self.guard.passkey_registration(principal))

    async def register_passkey(
        self, principal: Principal, *, ticket: str, response: Mapping[str, Any], name: str,
        confirm: Mapping[str, Any] | None = None,
    ) -> Credential:
        """See `Guard.register_passkey`."""
        return await offload(lambda: self.guard.register_passkey(
            principal, ticket=ticket, response=response, name=name, confirm=confirm
        ))

    async def passkeys(self, principal: Principal) -> tuple[Credential, ...]:
        """See `Guard.passkeys`."""
        return await offload(lambda: self.guard.passkeys(principal))

    async def remove_passkey(self, credential_id: str, *, by: Principal, owner: str | None = None) -> None:
        """See `Guard.remove_passkey`."""
        await offload(lambda: self.guard.remove_passkey(credential_id, by=by, owner=owner))

    async def revoke(self, request_id: str, *, by: Principal, reason: str | None = None) -> None:
        """See `Guard.revoke`."""
        await offload(lambda: self.guard.revoke(request_id, by=by, reason=reason))

    async def resolve(self, request_id: str, outcome: str, *, by: Principal, reason: str, force: bool = False) -> str:
        """See `Guard.resolve`."""
        return await offload(lambda: self.guard.resolve(request_id, outcome, by=by, reason=reason, force=force))

    async def pending(
        self, *, tenant: str | None = "default", run_id: str | None = None, states: Sequence[str] = ("pending",),
        limit: int = 50, after: str | None = None,
    ) -> Page:
        """See `Guard.pending`."""
        return await offload(
            lambda: self.guard.pending(tenant=tenant, run_id=run_id, states=states, limit=limit, after=after)
        )

    async def ended(
        self, *, tenant: str, run_id: str | None = None, limit: int = 50, after: str | None = None
    ) -> Page:
        """See `Guard.ended`."""
        return await offload(lambda: self.guard.ended(tenant=tenant, run_id=run_id, limit=limit, after=after))

    async def dossier(self, request_id: str, *, tenant: str = "default") -> Dossier:
        """See `Guard.dossier`."""
        return await offload(lambda: self.guard.dossier(request_id, tenant=tenant))

    async def get(self, request_id: str, *, tenant: str = "default") -> ApprovalRequest:
        """See `Guard.get`."""
        return await offload(lambda: self.guard.get(request_id, tenant=tenant))

    async def reveal(self, request_id: str, pointer: str, *, by: Principal) -> Any:
        """See `Guard.reveal`."""
        return await offload(lambda: self.guard.reveal(request_id, pointer, by=by))

    async def control(self, tenant: str = "default") -> Control:
        """See `Guard.control`."""
        return await offload(lambda: self.guard.control(tenant))

    async def unmute(self, *, by: Principal, user: str, tool: str, reason: str | None = None) -> None:
        """See `Guard.unmute`."""
        await offload(lambda: self.guard.unmute(by=by, user=user, tool=tool, reason=reason))

    async def pause(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None,
        everywhere: bool = False,
    ) -> None:
        """See `Guard.pause`."""
        await offload(lambda: self.guard.pause(by=by, tool=tool, agent=agent, reason=reason, everywhere=everywhere))

    async def resume(
        self, *, by: Principal, tool: str | None = None, agent: str | None = None, reason: str | None = None,
        everywhere: bool = False,
    ) -> None:
        """See `Guard.resume`."""
        await offload(lambda: self.guard.resume(by=by, tool=tool, agent=agent, reason=reason, everywhere=everywhere))

    async def activate_policy(self, version: str | None, *, by: Principal, reason: str | None = None) -> None:
        """See `Guard.activate_policy`."""
        await offload(lambda: self.guard.activate_policy(version, by=by, reason=reason))

    async def sweep(self, *, limit: int = 1000) -> int:
        """See `Guard.sweep`."""
        return await offload(lambda: self.guard.sweep(limit=limit))

    @staticmethod
    def context(
        *, user: str | Principal, run_id: str, tenant: str = "default", call_id: str | None = None, **more: Any
    ) -> AbstractContextManager[None]:
        """See `Guard.context`."""
        return Guard.context(user=user, run_id=run_id, tenant=tenant, call_id=call_id, **more)

    @overload
    def tool(self, function: F, **options: Any) -> F: ...

    @overload
    def tool(self, function: None = None, **options: Any) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, **options: Any) -> Any:
        """See `Guard.tool`."""
        return self.guard.tool(function, **options)

    def wrap(self, execute: Callable[..., Any], *, pause: str = "raise", effect: str | None = None) -> Any:
        """See `Guard.wrap`."""
        return self.guard.wrap(execute, pause=pause, effect=effect)

    def sealed(self, function: F, *, name: str | None = None, injected: Sequence[str] = ()) -> F:
        """See `Guard.sealed`."""
        return self.guard.sealed(function, name=name, injected=injected)

    def coverage(self, tools: Any) -> Coverage:
        """See `Guard.coverage`."""
        return self.guard.coverage(tools)

    async def run_tool_calls(
        self, messages: Sequence[Mapping[str, Any]], tools: Mapping[str, Callable[..., Any]], *,
        user: str | Principal, run_id: str, tenant: str = "default", agent: str | Principal | None = None,
        context: Mapping[str, Any] | None = None, pause: str = "raise",
    ) -> list[dict[str, Any]]:
        """See `Guard.run_tool_calls`; tools may be async."""
        turn = Turn(self.guard, messages, tools, user, run_id, tenant, agent, context, pause)
        self.guard._desk.know(tools)
        self.guard._desk.check_names()
        for item in turn.items():
            start = caller(item.function, item.spec)
            with turn.answering(item) as result:
                if not await offload(partial(turn.held, item)):
                    permit = await self.authorize(item.call)
                    result.append(permit)
                    result.append(await running.run_async(permit, start, item.spec.effect, self.guard.settle))
        return turn.finish()

    async def selftest(self, agent: Any = None) -> None:
        """See `Guard.selftest`; ``agent`` may be an asynchronous dispatcher."""
        if not (callable(agent) and running.is_async(agent)) or is_covered(agent):
            await offload(lambda: self.guard.selftest(agent))
            return
        await offload(self.guard.selftest)
        with dispatched() as ended:
            ended.append(await agent(CANARY_TOOL, {}, canary_context()))
        await offload(lambda: withdraw(self.guard, request_of(ended[0])))
