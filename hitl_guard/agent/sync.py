"""The agent for synchronous code: the same methods; streams are plain iterators."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Coroutine, Mapping, Sequence
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError
from .runs import SuspendedRuns
from .stream import AgentResult, AgentStream, SyncStream

if TYPE_CHECKING:
    from .agent import Agent


T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own, one for the process: clients of models keep their connections in it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        atexit.register(self.stop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; one that this thread gives up (Ctrl-C) is cancelled.

        Raises:
            ConfigurationError: this thread has a running event loop, which would stand still meanwhile.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            future = asyncio.run_coroutine_threadsafe(work, self._started())
        else:
            work.close()
            raise ConfigurationError("An event loop runs in this thread: await the agent's own methods instead.")
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has none of its parent's threads.
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name="hitl-guard-agent", daemon=True)
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """Stop the loop at the process's end."""
        with self._lock:
            if self._loop is not None and self._thread is not None and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(1)
                if not self._loop.is_running():
                    self._loop.close()
            self._loop = self._thread = None


_LOOP = _Loop()


class SyncAgent:
    """An `Agent`'s synchronous twin, from `Agent.sync`. Everything runs in one event loop, in a thread of its own.

    Raises (every method):
        ConfigurationError: an event loop runs in this thread already; await the agent's own methods there.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __repr__(self) -> str:
        return f"<SyncAgent {self._agent.id!r}>"

    def _read(self, stream: AgentStream) -> SyncStream:
        return SyncStream(stream, _LOOP.run)

    def stream(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> SyncStream:
        """See `Agent.stream`."""
        return self._read(self._agent.stream(messages, **options))

    def generate(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> AgentResult:
        """See `Agent.generate`."""
        return self._read(self._agent.stream(messages, **options)).result()

    def approve_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.approve_tool_call`."""
        return self._read(self._agent.approve_tool_call(run_id, tool_call_id, **options))

    def decline_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.decline_tool_call`."""
        return self._read(self._agent.decline_tool_call(run_id, tool_call_id, **options))

    def resume_stream(
        self, resume_data: Any, run_id: str, tool_call_id: str | None = None, **options: Any
    ) -> SyncStream:
        """See `Agent.resume_stream`."""
        return self._read(self._agent.resume_stream(resume_data, run_id, tool_call_id, **options))

    def continue_stream(self, run_id: str, **options: Any) -> SyncStream:
        """See `Agent.continue_stream`."""
        return self._read(self._agent.continue_stream(run_id, **options))

    def approve_tool_call_generate(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentResult:
        """See `Agent.approve_tool_call_generate`."""
        return self._read(self._agent.approve_tool_call(run_id, tool_call_id, **options)).result()

    def decline_tool_call_generate(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> AgentResult:
        """See `Agent.decline_tool_call_generate`."""
        return self._read(self._agent.decline_tool_call(run_id, tool_call_id, **options)).result()

    def resume_generate(
        self, resume_data: Any, run_id: str, tool_call_id: str | None = None, **options: Any
    ) -> AgentResult:
        """See `Agent.resume_generate`."""
        return self._read(self._agent.resume_stream(resume_data, run_id, tool_call_id, **options)).result()

    def continue_generate(self, run_id: str, **options: Any) -> AgentResult:
        """See `Agent.continue_generate`."""
        return self._read(self._agent.continue_stream(run_id, **options)).result()

    def network(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> SyncStream:
        """See `Agent.network`."""
        return self._read(self._agent.network(messages, **options))

    def approve_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.approve_network_tool_call`."""
        return self._read(self._agent.approve_network_tool_call(run_id, tool_call_id, **options))

    def decline_network_tool_call(self, run_id: str, tool_call_id: str | None = None, **options: Any) -> SyncStream:
        """See `Agent.decline_network_tool_call`."""
        return self._read(self._agent.decline_network_tool_call(run_id, tool_call_id, **options))

    def list_suspended_runs(self, **options: Any) -> SuspendedRuns:
        """See `Agent.list_suspended_runs`."""
        return _LOOP.run(self._agent.list_suspended_runs(**options))

    def send_tool_approval(self, **options: Any) -> dict[str, Any]:
        """See `Agent.send_tool_approval`."""
        return _LOOP.run(self._agent.send_tool_approval(**options))

    def recall(self, thread_id: str, **options: Any) -> list[dict[str, Any]]:
        """See `Agent.recall`."""
        return _LOOP.run(self._agent.recall(thread_id, **options))
