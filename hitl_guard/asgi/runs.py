"""Suspended runs over HTTP: found by their owner or an operator, answered by their owner, continued by both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import AgentError, ConfigurationError, NotAuthorisedError
from ..guard import Guard
from ..lifecycle.threads import offload
from ..render.secrets import masked, secret_pointers
from .identity import Viewer

if TYPE_CHECKING:
    from ..agent import Agent
    from ..agent.runs import PendingCall, SuspendedRun
    from ..agent.stream import AgentResult


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """Suspended runs of several agents, each with its agent's id; secret arguments are masked.

    Attributes:
        total: How many there are before paging.
        damaged: ``(run id, error code)`` of stored runs that do not verify.
    """

    runs: tuple[tuple[str, SuspendedRun], ...]
    total: int
    damaged: tuple[tuple[str, str], ...]


class Runs:
    """What the inbox knows about runs that wait; a part of `service.Inbox`."""

    guard: Guard
    agents: dict[str, Agent]

    def _checked(self, agents: Iterable[Agent]) -> dict[str, Agent]:
        """Return the agents by id.

        Raises:
            ConfigurationError: one is no agent, has another guard, or two have one id.
        """
        found: dict[str, Agent] = {}
        for agent in agents:
            if getattr(agent, "guard", None) is not self.guard:
                raise ConfigurationError("'agents' are Agent objects with the inbox's own guard.")
            if agent.id in found:
                raise ConfigurationError("Two agents have the same id.")
            found[agent.id] = agent
        return found

    async def runs(
        self, viewer: Viewer, *, agent: str | None = None, user: str | None = None, thread_id: str | None = None,
        resource_id: str | None = None, from_date: int | None = None, to_date: int | None = None,
        per_page: int | None = None, page: int | None = None,
    ) -> WaitingRuns:
        """Return suspended runs, the newest first within each agent; see `hitl_guard.agent.Agent.list_suspended_runs`.

        Args:
            agent: Of one agent only; it must be known here.
            user: Whose runs; the viewer's own when omitted. Other people's are for operators.

        Raises:
            AgentError: the agent is unknown here, or a page or date cannot be used.
            NotAuthorisedError: these are another person's runs.
        """
        owner = self._owner(viewer, user)
        found: list[tuple[str, SuspendedRun]] = []
        damaged: list[tuple[str, str]] = []
        total = 0
        for one in self.agents.values() if agent is None else (self._agent(agent),):
            part = await one.list_suspended_runs(
                user=owner, tenant=viewer.tenant, thread_id=thread_id, resource_id=resource_id, from_date=from_date,
                to_date=to_date, per_page=per_page, page=page,
            )
            found += await offload(partial(_all_masked, one, part.runs))
            damaged += part.damaged
            total += part.total
        return WaitingRuns(tuple(found), total, tuple(damaged))

    async def resume(
        self, viewer: Viewer, run_id: str, *, agent: str | None = None, user: str | None = None,
        tool_call_id: str | None = None, data: tuple[Any, ...] = (),
    ) -> AgentResult:
        """Go on with a run to its next pause or its end.

        Args:
            user: Whose run it is; the viewer's own when omitted. Operators may continue another person's.
            tool_call_id: Which suspended call ``data`` answers; the most recent pause when omitted.
            data: The answer in a tuple; empty to go on with what was decided, expired or left by a dead process.

        Raises:
            AgentError: there is no such run, nothing of it waits, or another process is at it.
            NotAuthorisedError: it is another person's run: nobody answers a tool's question in somebody's name.
        """
        owner = self._owner(viewer, user)
        chosen = self._agent(agent)
        if not data:
            return await chosen.continue_generate(run_id, user=owner, tenant=viewer.tenant)
        if owner != viewer.principal.id:
            raise NotAuthorisedError("A tool's question is answered by the run's own user.", detail="owner")
        return await chosen.resume_generate(
            data[0], run_id, tool_call_id, user=owner, tenant=viewer.tenant, approver=viewer.principal
        )

    @staticmethod
    def _owner(viewer: Viewer, user: str | None) -> str:
        if user not in (None, viewer.principal.id) and not viewer.operator:
            raise NotAuthorisedError("Other people's runs are for operators.", detail="role")
        return user or viewer.principal.id

    def _agent(self, agent: str | None) -> Agent:
        if agent is None and len(self.agents) == 1:
            return next(iter(self.agents.values()))
        if agent is None:
            raise AgentError("There are several agents here: name one.", code="call-ambiguous", detail="agent")
        if agent not in self.agents:
            raise AgentError("There is no such agent here.", detail="agent")
        return self.agents[agent]


def _all_masked(agent: Agent, runs: Iterable[SuspendedRun]) -> list[tuple[str, SuspendedRun]]:
    return [(agent.id, _masked(agent, run)) for run in runs]


def _masked(agent: Agent, run: SuspendedRun) -> SuspendedRun:
    return replace(run, tool_calls=tuple(_masked_call(agent, call) for call in run.tool_calls))


def _masked_call(agent: Agent, call: PendingCall) -> PendingCall:
    schemas = _schemas(agent, call.tool_name)
    secrets = frozenset[str]().union(*(secret_pointers(schema, call.args) for schema in schemas))
    return replace(call, args=masked(call.args, secrets) if "" not in secrets else {}) if secrets else call


def _schemas(agent: Agent, name: str) -> list[Any]:
    """Return the input schemas of every tool of this name, sub-agents' included."""
    tools = [tool for tool in (agent.tool(name),) if tool is not None]
    own = [tool.definition.input_schema for tool in tools if tool.definition.input_schema is not None]
    return own + [schema for sub in agent._sub_agents.values() for schema in _schemas(sub, name)]
