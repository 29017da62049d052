"""The agent for synchronous code: the same methods; streams are plain iterators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .runs import SuspendedRuns
from .stream import AgentResult, AgentStream, SyncStream, new_runner

if TYPE_CHECKING:
    from .agent import Agent


class SyncAgent:
    """An `Agent`'s synchronous twin, from `Agent.sync`. Each call runs an event loop of its own in this thread.

    Raises (every method):
        ConfigurationError: an event loop runs in this thread already; await the agent's own methods there.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __repr__(self) -> str:
        return f"<SyncAgent {self._agent.id!r}>"

    def stream(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> SyncStream:
        """See `Agent.stream`."""
        return SyncStream(self._agent.stream(messages, **options))

    def generate(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> AgentResult:
        """See `Agent.generate`."""
        return _result(self._agent.stream(messages, **options))

    def approve_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.approve_tool_call`."""
        return SyncStream(self._agent.approve_tool_call(run_id, tool_call_id, **options))

    def decline_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.decline_tool_call`."""
        return SyncStream(self._agent.decline_tool_call(run_id, tool_call_id, **options))

    def resume_stream(
        self, resume_data: Any, run_id: str, tool_call_id: str | None = None, **options: Any
    ) -> SyncStream:
        """See `Agent.resume_stream`."""
        return SyncStream(self._agent.resume_stream(resume_data, run_id, tool_call_id, **options))

    def continue_stream(self, run_id: str, **options: Any) -> SyncStream:
        """See `Agent.continue_stream`."""
        return SyncStream(self._agent.continue_stream(run_id, **options))

    def approve_tool_call_generate(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentResult:
        """See `Agent.approve_tool_call_generate`."""
        return _result(self._agent.approve_tool_call(run_id, tool_call_id, **options))

    def decline_tool_call_generate(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentResult:
        """See `Agent.decline_tool_call_generate`."""
        return _result(self._agent.decline_tool_call(run_id, tool_call_id, **options))

    def resume_generate(
        self, resume_data: Any, run_id: str, tool_call_id: str | None = None, **options: Any
    ) -> AgentResult:
        """See `Agent.resume_generate`."""
        return _result(self._agent.resume_stream(resume_data, run_id, tool_call_id, **options))

    def continue_generate(self, run_id: str, **options: Any) -> AgentResult:
        """See `Agent.continue_generate`."""
        return _result(self._agent.continue_stream(run_id, **options))

    def network(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> SyncStream:
        """See `Agent.network`."""
        return SyncStream(self._agent.network(messages, **options))

    def approve_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.approve_network_tool_call`."""
        return SyncStream(self._agent.approve_network_tool_call(run_id, tool_call_id, **options))

    def decline_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.decline_network_tool_call`."""
        return SyncStream(self._agent.decline_network_tool_call(run_id, tool_call_id, **options))

    def list_suspended_runs(self, **options: Any) -> SuspendedRuns:
        """See `Agent.list_suspended_runs`."""
        with new_runner() as runner:
            return runner.run(self._agent.list_suspended_runs(**options))

    def send_tool_approval(self, **options: Any) -> dict[str, Any]:
        """See `Agent.send_tool_approval`."""
        with new_runner() as runner:
            return runner.run(self._agent.send_tool_approval(**options))

    def recall(self, thread_id: str, **options: Any) -> list[dict[str, Any]]:
        """See `Agent.recall`."""
        with new_runner() as runner:
            return runner.run(self._agent.recall(thread_id, **options))


def _result(stream: AgentStream) -> AgentResult:
    return SyncStream(stream).result()
