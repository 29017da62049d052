"""`Inbox`: every operation that the API and the pages share, each for one authenticated viewer.

Blocking calls of the guard run in worker threads. What a viewer may not see answers exactly like an unknown id, also
where the guard itself would say "not authorised": its audit log still has the exact code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection

from ..aio import AsyncGuard
from ..errors import ConfigurationError, DecisionError, HitlGuardError, RefusedError, StoreRolledBackError
from ..guard import Guard
from ..lifecycle.bound import canonical_arguments
from ..lifecycle.revealing import at
from ..lifecycle.threads import offload
from ..models import ApprovalRequest, Decision
from ..render.secrets import MASK, secrets_of
from . import lists
from .events import Hub, Pace
from .identity import Authenticate, Doorkeeper, Viewer
from .lists import Filters, Listing
from .operators import Operators
from .runs import Runs
from .sessions import Sessions
from .visibility import visible

if TYPE_CHECKING:
    from ..agent import Agent
    from ..lifecycle.credentials import Assertion, Challenge, Credential, Registration
    from ..lifecycle.dossier import Dossier

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person hands in for a request; see `hitl_guard.Guard.decide`.

    Attributes:
        fingerprint: The one that was shown.
        mute: With a denial: milliseconds for which calls of this tool for this requester are refused unasked.
        evidence: A passkey's answer to a challenge.
    """

    approve: bool
    fingerprint: str
    reason: str | None = None
    arguments: Any = None
    respond: Any = None
    execute_within: int | None = None
    mute: int | None = None
    evidence: Assertion | None = None
    channel: str = "inbox"


class Inbox(Runs, Operators):
    """The operations of one app, and what its parts share.

    Attributes:
        sessions: Tokens against other sites. hub: The live events. login_path: Where to log in, relative to the mount,
            or None where that is the host's business.
    """

    def __init__(
        self, guard: Guard | AsyncGuard, authenticate: Authenticate | None, *, agents: Iterable[Agent] = (),
        origins: Iterable[str] = (), pace: Pace | None = None,
    ) -> None:
        if not isinstance(guard, (Guard, AsyncGuard)):
            raise ConfigurationError("The inbox needs a Guard or an AsyncGuard.")
        self.guard = guard.guard if isinstance(guard, AsyncGuard) else guard
        self.agents = self._checked(agents)
        self.login_path: str | None = getattr(authenticate, "login_path", None)
        self.sessions = Sessions(self.guard, origins=origins)
        self._door = Doorkeeper(self.guard, authenticate)
        self.hub = Hub(self.guard, self.viewer, pace)

    async def viewer(self, request: HTTPConnection) -> Viewer | None:
        """Return who is looking, or None for nobody. Raises `UnavailableError` where that cannot be told."""
        return await self._door.viewer(request)

    async def close(self) -> None:
        """End the live streams. A host that mounts the app calls it at its own shutdown."""
        await self.hub.close()

    # -- looking -------------------------------------------------------------------------------------------------

    async def list(
        self, viewer: Viewer, *, states: Sequence[str] | None = None, tool: str | None = None,
        requester: str | None = None, run: str | None = None, mine: bool = False, text: str | None = None,
        limit: int = 50, cursor: str | None = None,
    ) -> Listing:
        """Return one page of what a viewer sees (see `lists.Listing`); ``states=None``: all of them."""
        filters = Filters(
            None if states is None else frozenset(states), tool or None, requester or None, run or None, mine,
            text or None,
        )
        return await offload(lambda: lists.listed(self.guard, viewer, filters, limit=limit, cursor=cursor))

    async def get(self, viewer: Viewer, request_id: str) -> ApprovalRequest:
        """Return one request.

        Raises:
            InvalidApprovalError: ``detail`` unknown: there is none that this viewer may see.
            InvalidSignatureError and its kin: it does not verify; operators alone are told.
        """
        return await offload(lambda: self._get(viewer, request_id))

    async def show(self, viewer: Viewer, request_id: str) -> Dossier:
        """Return everything about one request; raises as `get` does."""
        return await offload(lambda: self._show(viewer, request_id))

    def _show(self, viewer: Viewer, request_id: str) -> Dossier:
        self._get(viewer, request_id)
        dossier = self.guard.dossier(request_id, tenant=viewer.tenant)
        if dossier.previous is not None and not visible(dossier.previous, viewer):
            dossier = replace(dossier, previous=None)
        return dossier

    def _get(self, viewer: Viewer, request_id: str) -> ApprovalRequest:
        if _ID.fullmatch(request_id) is None:
            raise unseen()
        try:
            request = self.guard.get(request_id, tenant=viewer.tenant)
        except (RefusedError, StoreRolledBackError) as error:
            if viewer.operator:
                raise
            raise unseen() from error
        if not visible(request, viewer):
            raise unseen()
        return request

    async def reveal(self, viewer: Viewer, request_id: str, place: str) -> Any:
        """Return one secret argument, after that was written to the audit log.

        Args:
            place: Its JSON pointer.

        Raises:
            DecisionError: ``invalid-approval``, detail unknown: there is no such secret that this viewer may see.
            UnavailableError: it could not be written to the audit log; nothing is told then.
        """
        return await self._act(
            viewer, request_id, lambda: self.guard.reveal(request_id, place, by=viewer.principal)
        )

    # -- deciding ------------------------------------------------------------------------------------------------

    async def decide(self, viewer: Viewer, request_id: str, answer: Answer) -> Decision:
        """Record a decision; see `hitl_guard.Guard.decide`, whose errors these are."""
        return await self._act(viewer, request_id, lambda: self._decide(viewer, request_id, answer))

    def _decide(self, viewer: Viewer, request_id: str, answer: Answer) -> Decision:
        self._check_edit(viewer, request_id, answer)
        return self.guard.decide(
            request_id, approver=viewer.principal, approve=answer.approve, fingerprint=answer.fingerprint,
            reason=answer.reason, arguments=answer.arguments, respond=answer.respond, channel=answer.channel,
            execute_within=answer.execute_within, mute=answer.mute, evidence=answer.evidence,
        )

    async def challenge(self, viewer: Viewer, request_id: str, answer: Answer) -> Challenge:
        """Return what a passkey must sign for exactly this answer; see `hitl_guard.Guard.challenge`."""
        self._with_passkeys()

        def made() -> Challenge:
            self._check_edit(viewer, request_id, answer)
            return self.guard.challenge(
                request_id, approver=viewer.principal, approve=answer.approve, fingerprint=answer.fingerprint,
                reason=answer.reason, arguments=answer.arguments, respond=answer.respond, channel=answer.channel,
                execute_within=answer.execute_within, mute=answer.mute,
            )

        return await self._act(viewer, request_id, made)

    def _check_edit(self, viewer: Viewer, request_id: str, answer: Answer) -> None:
        """Refuse edited arguments in which a mask stands where the secret was: it would run as the value."""
        if not isinstance(answer.arguments, dict):
            return
        try:
            raw = canonical_arguments(answer.arguments, self.guard.settings)
            edited = replace(self._get(viewer, request_id), canonical=raw)
        except HitlGuardError:
            return  # the guard will say, and audit, what is wrong
        for place in secrets_of(edited):
            if at(answer.arguments, place) == MASK:
                raise DecisionError(
                    "The edited arguments hold a mask where the secret was: reveal it first, or leave it out.",
                    code="unsupported-value", detail="masked",
                )

    async def revoke(self, viewer: Viewer, request_id: str, reason: str | None = None) -> None:
        """Withdraw a request; see `hitl_guard.Guard.revoke`."""
        await self._act(
            viewer, request_id, lambda: self.guard.revoke(request_id, by=viewer.principal, reason=reason)
        )

    async def resolve(
        self, viewer: Viewer, request_id: str, outcome: str, reason: str, *, force: bool = False
    ) -> str:
        """Close an in-doubt call as an operator; see `hitl_guard.Guard.resolve`."""
        return await self._act(
            viewer, request_id,
            lambda: self.guard.resolve(request_id, outcome, by=viewer.principal, reason=reason, force=force),
        )

    async def _act(self, viewer: Viewer, request_id: str, action: Callable[[], T]) -> T:
        """Run an action to its end. What it refuses about a request that the viewer does not see says nothing of it."""
        def acted() -> T:
            seen = True
            try:
                self._get(viewer, request_id)
            except (DecisionError, RefusedError):
                seen = viewer.operator
            if _ID.fullmatch(request_id) is None:
                raise unseen()
            try:
                return action()
            except (DecisionError, RefusedError) as error:
                if seen or error.detail == "malformed":
                    raise
                raise unseen() from error

        return await offload(acted, must_end=True)

    # -- passkeys ------------------------------------------------------------------------------------------------

    async def passkeys(self, viewer: Viewer) -> Sequence[Credential]:
        """Return the viewer's own passkeys."""
        self._with_passkeys()
        return await offload(lambda: self.guard.passkeys(viewer.principal))

    async def passkey_options(self, viewer: Viewer) -> Registration:
        """Return what the viewer's browser needs to make a passkey."""
        self._with_passkeys()
        return await offload(lambda: self.guard.passkey_registration(viewer.principal))

    async def register_passkey(
        self, viewer: Viewer, *, ticket: str, response: Any, name: str, confirm: Any = None
    ) -> Credential:
        """Keep a new passkey of the viewer; see `hitl_guard.Guard.register_passkey`."""
        self._with_passkeys()
        return await offload(
            lambda: self.guard.register_passkey(
                viewer.principal, ticket=ticket, response=response, name=name, confirm=confirm
            ),
            must_end=True,
        )

    async def remove_passkey(self, viewer: Viewer, credential_id: str) -> None:
        """Remove one of the viewer's passkeys."""
        self._with_passkeys()
        await offload(lambda: self.guard.remove_passkey(credential_id, by=viewer.principal), must_end=True)

    def _with_passkeys(self) -> None:
        if self.guard.settings.rp_id is None:
            raise unseen()  # the guard's settings name no relying party: there are no passkeys here


def unseen() -> DecisionError:
    """Return the error for what is unknown, another tenant's, or not for this viewer: nobody can tell them apart."""
    return DecisionError("There is no such request; look at the list again.", detail="unknown")
