"""`AgentLoop`: the built-in agent in a chat. How to bring another loop stands in `own_loop`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ...agent import Agent
from ...agent.events import Event
from ...agent.runs import SuspendedRun
from ...errors import ConfigurationError, RefusedError
from ...guard import Guard
from ...lifecycle.threads import offload
from .approval import REQUEST_KEY, request_map, takes_requests
from .messages import ChatId
from .own_loop import Turn

_OF_THE_CHAT = frozenset({"messages", "run_id", "tenant", "thread_id", "user"})


class AgentLoop:
    """The built-in agent in a chat. With ``memory`` the server keeps the conversation, and the client's is not read.

    Args:
        agent: Its tools, sub-agents, guard and memory.
        prepare_call: A function from a `Turn` to options for its run, or None for no options; sync or async. Options
            are those of `hitl_guard.agent.Agent.stream` that the chat does not set itself (``require_tool_approval``,
            ``request_context`` …) and ``tool_approval``, the request's own map (the guard's policy must be made with
            ``tool_approval(…, per_request=True)``).

    Raises:
        ConfigurationError: there is no agent.
    """

    def __init__(self, agent: Agent, *, prepare_call: Callable[[Turn], Any] | None = None) -> None:
        if not isinstance(agent, Agent):
            raise ConfigurationError("Give the chat a hitl_guard.agent.Agent, or a Loop of your own.")
        self.agent = agent
        self._prepare = prepare_call

    @property
    def guard(self) -> Guard:
        """The agent's guard."""
        return self.agent.guard

    @property
    def id(self) -> str:
        """The agent's id."""
        return self.agent.id

    async def start(self, turn: Turn) -> AsyncIterator[Event]:
        """Begin a run.

        Raises:
            ConfigurationError: the options of ``prepare_call`` cannot be used.
        """
        options = await self._options(turn)
        kept = self.agent.memory is not None
        said = [*turn.new] or await self._results(turn) if kept else turn.messages
        stream = self.agent.stream(
            said, user=turn.chat.user, tenant=turn.chat.user.tenant, run_id=turn.run_id,
            thread_id=turn.chat.id if kept else None, **options,
        )
        async with aclosing(stream):
            async for event in stream:
                yield event
            for event in stream.withheld:
                yield event

    async def _options(self, turn: Turn) -> dict[str, Any]:
        given = None if self._prepare is None else self._prepare(turn)
        options = _checked(await given if inspect.isawaitable(given) else given)
        context = {**(turn.context or {}), **(options.pop("request_context", None) or {})}
        if REQUEST_KEY in context:
            # It would count as the host's word on what needs approval, and a context may come from the client.
            raise ConfigurationError(f"'{REQUEST_KEY}' is no part of a context: return it from 'prepare_call'.")
        if "tool_approval" in options:
            if not takes_requests(self.guard._desk.policy.tool_approval):
                raise ConfigurationError("Make the guard's policy with tool_approval(…, per_request=True).")
            context[REQUEST_KEY] = own = request_map(options.pop("tool_approval"))
            if unknown := sorted(set(own) - set(self.agent.covered_tools())):
                raise ConfigurationError(f"The request's 'tool_approval' names unknown tools: {', '.join(unknown)}.")
        return options | ({"request_context": context} if context else {})

    async def _results(self, turn: Turn) -> list[Mapping[str, Any]]:
        """Return the client's results of the calls that the stored conversation lacks: those that the client ran."""
        stored = await self.agent.recall(turn.chat.id, user=turn.chat.user, tenant=turn.chat.user.tenant)
        called = {call["id"] for one in stored for call in one.get("tool_calls") or ()}
        open_ = called - {one.get("tool_call_id") for one in stored if one["role"] == "tool"}
        return [one for one in turn.messages if one["role"] == "tool" and one["tool_call_id"] in open_]

    def go_on(self, chat: ChatId, run_id: str) -> AsyncIterator[Event]:
        """Go on with a run after decisions."""
        return self.agent.continue_stream(run_id, user=chat.user, tenant=chat.user.tenant)

    def answer(self, chat: ChatId, run_id: str, call_id: str | None, data: Any) -> AsyncIterator[Event]:
        """Answer a call that suspended itself. A pause that waits for an approval is not answered so."""
        return self.agent.resume_stream(data, run_id, call_id, user=chat.user, tenant=chat.user.tenant)

    async def ready(self, chat: ChatId) -> Sequence[str]:
        """Return the chat's runs that can go on."""
        found = await self.agent.list_suspended_runs(user=chat.user, tenant=chat.user.tenant)
        own = [run for run in reversed(found.runs) if chat.owns(run.run_id)]
        return await offload(lambda: [run.run_id for run in own if self._can_go_on(run, chat.user.tenant)])

    def _can_go_on(self, run: SuspendedRun, tenant: str) -> bool:
        asked = [call.pause_id for call in run.tool_calls if call.requires_approval]
        return run.status == "interrupted" or any(not self._is_pending(one, tenant) for one in asked)

    def _is_pending(self, request_id: str, tenant: str) -> bool:
        try:
            request = self.guard.get(request_id, tenant=tenant)
        except RefusedError:
            return False  # its key is gone, say: the run asks anew
        # Under another policy nobody can decide it: the run asks anew, too.
        return request.state == "pending" and request.policy_version == self.guard.policy_version


def _checked(options: object) -> dict[str, Any]:
    """Return the options of a run as a new dict, empty for None.

    Raises:
        ConfigurationError: they are no mapping, or set what the chat sets.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError("'prepare_call' returns a mapping of options for the run, or None.")
    found = dict(options or {})
    if own := sorted(_OF_THE_CHAT & found.keys()):
        raise ConfigurationError(f"'prepare_call' cannot set {', '.join(own)}: the chat does that.")
    return found
