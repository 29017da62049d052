"""The kill switch for one viewer: what is paused and muted, in the tenant and in all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import DecisionError, NotAuthorisedError
from ..guard import Guard
from ..lifecycle.rights import operates
from ..lifecycle.threads import offload
from .identity import Viewer

if TYPE_CHECKING:
    from ..lifecycle.control import Control


class Operators:
    """What operators do; a part of `service.Inbox`."""

    guard: Guard

    def is_global_operator(self, viewer: Viewer) -> bool:
        """Return whether a viewer may pause and resume in all tenants."""
        return operates(viewer.principal, self.guard.settings.global_operator_role)

    async def control(self, viewer: Viewer) -> Control:
        """Return what is paused and muted. Whoever operates all tenants but not this one does not see its mutes.

        Raises:
            NotAuthorisedError: this is for operators.
        """
        if not viewer.operator and not self.is_global_operator(viewer):
            raise NotAuthorisedError("This is for operators.", detail="role")
        found = await offload(lambda: self.guard.control(viewer.tenant))
        return found if viewer.operator else replace(found, mutes=())

    async def pause(
        self, viewer: Viewer, *, tool: str | None = None, agent: str | None = None, everything: bool = False,
        everywhere: bool = False, reason: str | None = None,
    ) -> None:
        """Stop exactly one of a tool, an agent, or everything; see `hitl_guard.Guard.pause`.

        Raises:
            DecisionError: none or several of them are named (``detail`` malformed), or no right to it.
        """
        target = _target(tool, agent, everything)
        await offload(
            lambda: self.guard.pause(by=viewer.principal, **target, reason=reason, everywhere=everywhere),
            must_end=True,
        )

    async def unpause(
        self, viewer: Viewer, *, tool: str | None = None, agent: str | None = None, everything: bool = False,
        everywhere: bool = False, reason: str | None = None,
    ) -> None:
        """Take one pause away; see `hitl_guard.Guard.resume`. Raises as `pause` does."""
        target = _target(tool, agent, everything)
        await offload(
            lambda: self.guard.resume(by=viewer.principal, **target, reason=reason, everywhere=everywhere),
            must_end=True,
        )

    async def unmute(self, viewer: Viewer, *, user: str, tool: str, reason: str | None = None) -> None:
        """Take a mute away; see `hitl_guard.Guard.unmute`."""
        await offload(
            lambda: self.guard.unmute(by=viewer.principal, user=user, tool=tool, reason=reason), must_end=True
        )


def _target(tool: str | None, agent: str | None, everything: bool) -> dict[str, Any]:
    """Return what `hitl_guard.Guard.pause` takes. There naming nothing means everything; here that must be said."""
    if (tool is not None) + (agent is not None) + (everything is True) != 1:
        raise DecisionError("Name a tool or an agent, or say that everything is meant: just one.", detail="malformed")
    return {"agent": agent, "tool": tool}
