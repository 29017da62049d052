"""Deciding, resuming and finding paused runs; a part of `hitl_guard.agent.Agent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigurationError, DecisionError
from ..guard import Guard
from ..lifecycle.threads import offload
from ..models import Principal, check_optional, check_text
from . import history, network, runs, sessions
from .sessions import Answer
from .snapshots import thread_key
from .stream import AgentResult, AgentStream

if TYPE_CHECKING:
    from .agent import Agent



class Resuming:
    """What hosts do with runs that wait."""

    guard: Guard

    @property
    def _agent(self) -> Agent:
        return cast("Agent", self)

    # -- deciding and resuming -----------------------------------------------------------------------------------

    def approve_tool_call(
        self, run_id: str, tool_call_id: str | None = None, *, approver: Principal, fingerprint: str | None = None,
        reason: str | None = None, arguments: Mapping[str, Any] | None = None, channel: str = "api",
    ) -> AgentStream:
        """Approve a call that waits, run it, and go on; return the events. Nothing happens before they are read.

        Args:
            tool_call_id: A tool-call id, or the pause's own id (``approvalId``, ``suspensionId``); the most recent
                pause of the run when omitted.
            approver: Who decides, as your login says. A tool's own question is answered so by the run's user alone (the
                tool gets ``{"approved": True}``).
            fingerprint: The one that was shown: then nothing else can be meant. The stored one when omitted.
            reason: Kept with the decision.
            arguments: Approve these instead (see `hitl_guard.Guard.decide`).
            channel: Where the decision came from.

        Raises:
            DecisionError: nobody is named; or, when read, the decision was not accepted (``code`` says why).
            AgentError: when read: there is no such pause, or another process is at it.
        """
        return self._answered(run_id, Answer(
            tool_call_id=tool_call_id, tenant=tenant_of(approver), approver=approver, approve=True, reason=reason,
            fingerprint=fingerprint, arguments=arguments, channel=channel,
        ))

    def decline_tool_call(
        self, run_id: str, tool_call_id: str | None = None, *, approver: Principal, reason: str | None = None,
        fingerprint: str | None = None, channel: str = "api",
    ) -> AgentStream:
        """Decline a call that waits and go on: the tool never runs, the model gets the reason."""
        return self._answered(run_id, Answer(
            tool_call_id=tool_call_id, tenant=tenant_of(approver), approver=approver, approve=False, reason=reason,
            fingerprint=fingerprint, channel=channel,
        ))

    def resume_stream(
        self, resume_data: Any, run_id: str, tool_call_id: str | None = None, *, user: str | Principal,
        tenant: str = "default", approver: Principal | None = None,
    ) -> AgentStream:
        """Answer a call that suspended itself: its tool runs again from the top, with ``resume_data``.

        Args:
            user: For whom the run works; another user's run is not found.
            approver: Who decides, where the pause is an approval and ``resume_data`` is ``{"approved": bool}``.
        """
        return self._answered(run_id, Answer(
            tool_call_id, tenant, approver, user=name_of(user, tenant), data=(resume_data,),
        ))

    def continue_stream(self, run_id: str, *, user: str | Principal, tenant: str = "default") -> AgentStream:
        """Go on with what was decided elsewhere (inbox, command line), expired, or was left by a dead process."""
        return self._answered(run_id, Answer(tenant=tenant, user=name_of(user, tenant)))

    def _answered(self, run_id: str, answer: Answer) -> AgentStream:
        return AgentStream(
            run_id, lambda stream: sessions.answered(self._agent, run_id, answer, stream)
        )

    async def approve_tool_call_generate(self, *args: Any, **options: Any) -> AgentResult:
        """See `approve_tool_call`; returns the result."""
        return await self.approve_tool_call(*args, **options)

    async def decline_tool_call_generate(self, *args: Any, **options: Any) -> AgentResult:
        """See `decline_tool_call`; returns the result."""
        return await self.decline_tool_call(*args, **options)

    async def resume_generate(self, *args: Any, **options: Any) -> AgentResult:
        """See `resume_stream`; returns the result."""
        return await self.resume_stream(*args, **options)

    async def continue_generate(self, *args: Any, **options: Any) -> AgentResult:
        """See `continue_stream`; returns the result."""
        return await self.continue_stream(*args, **options)

    # -- finding -------------------------------------------------------------------------------------------------

    async def list_suspended_runs(
        self, *, user: str | Principal, tenant: str = "default", thread_id: str | None = None,
        resource_id: str | None = None, from_date: datetime | int | None = None,
        to_date: datetime | int | None = None, per_page: int | None = None, page: int | None = None,
    ) -> runs.SuspendedRuns:
        """Return the runs of this agent for a user that wait, the newest first, from any process.

        Args:
            from_date, to_date: When the run began. per_page, page: Only together; pages count from 0.
        """
        check_optional("thread_id", thread_id)
        check_optional("resource_id", resource_id)
        return await offload(lambda: runs.listed(
            self._agent, user=name_of(user, tenant), tenant=tenant, thread_id=thread_id, resource_id=resource_id,
            from_date=from_date, to_date=to_date, per_page=per_page, page=page,
        ))

    async def send_tool_approval(
        self, *, thread_id: str, user: str | Principal, approved: bool, approver: Principal,
        tool_call_id: str | None = None, resource_id: str | None = None, reason: str | None = None,
        fingerprint: str | None = None,
    ) -> dict[str, Any]:
        """Decide a call by its conversation, and go on with the run to its next pause or end.

        Args:
            fingerprint: The one that was shown: then nothing else can be meant. The stored one when omitted.

        Returns:
            ``{"accepted": True, "run_id", "tool_call_id", "result": AgentResult}``.

        Raises:
            AgentError: no run of the conversation waits (``run-not-found``), or several do (``call-ambiguous``).
        """
        if type(approved) is not bool:
            raise DecisionError("The decision was not accepted: 'approved' must be true or false.", detail="malformed")
        found = await self.list_suspended_runs(
            user=user, tenant=tenant_of(approver), thread_id=check_text("thread_id", thread_id), resource_id=resource_id
        )
        run, call = runs.meant(found.runs, tool_call_id)
        result = await self._answered(run.run_id, Answer(
            tool_call_id=call.pause_id, tenant=approver.tenant, approver=approver, approve=approved, reason=reason,
            fingerprint=fingerprint, user=name_of(user, approver.tenant),
        ))
        return {"accepted": True, "result": result, "run_id": run.run_id, "tool_call_id": call.tool_call_id}

    async def recall(
        self, thread_id: str, *, user: str | Principal, tenant: str = "default", resource_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Return a conversation's messages in the chat format, with ``state`` and ``approval`` beside tool results.

        Args:
            resource_id: Whose conversation it is, as your login says: whoever names it reads it. The user's id when
                omitted.
        """
        owner = name_of(user, tenant)
        check_text("thread_id", thread_id)
        check_optional("resource_id", resource_id)
        thread = thread_key(tenant, owner if resource_id is None else resource_id, thread_id)
        return await offload(lambda: history.recalled(self.guard._desk.store, thread))

    # -- networks ------------------------------------------------------------------------------------------------

    def network(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> AgentStream:
        """Start a run as `stream` does, with the events of a network of agents (see `network`)."""
        return network.translated(self._agent.stream(messages, **options), self._agent)

    def approve_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentStream:
        """See `approve_tool_call`; the events are those of a network."""
        return network.translated(self.approve_tool_call(run_id, tool_call_id, **options), self._agent)

    def decline_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentStream:
        """See `decline_tool_call`; the events are those of a network."""
        return network.translated(self.decline_tool_call(run_id, tool_call_id, **options), self._agent)


def name_of(user: str | Principal, tenant: str) -> str:
    """Return a user's id.

    Raises:
        ConfigurationError: there is none, or no tenant, or the principal is of another tenant.
    """
    check_text("tenant", tenant)
    if not isinstance(user, Principal):
        return check_text("user", user)
    if user.tenant != tenant:
        raise ConfigurationError("User and run are of different tenants.")
    return user.id


def tenant_of(approver: object) -> str:
    """Return an approver's tenant.

    Raises:
        DecisionError: nobody is named.
    """
    if not isinstance(approver, Principal):
        raise DecisionError("The decision was not accepted: 'approver' must be a Principal.", detail="malformed")
    return approver.tenant
