"""One run of one agent in this process: the model is called, its calls go as far as they can, their results go back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from .. import canonical, clock
from ..errors import CanonicalizationError, ConfigurationError, RefusedError
from ..lifecycle.threads import offload
from ..models import Permit
from . import events, gate
from .attempt import ModelFailed, cancelled, run_tool
from .delegation import delegate, inside
from .drive import Drive, Landed
from .events import Event, Events
from .history import History, of_turn, restored
from .shapes import copied, well_formed
from .state import Call, Outcome, Run
from .tools import Tool
from .turns import MAX_CALLS, Proposed, Turn, deltas, merge_usage

if TYPE_CHECKING:
    from .agent import Agent


class Node:
    """One run and the agent that makes it.

    Attributes:
        stored: Whether the turn at hand is the one in the store; then what ends is merged into that at once.
        finished: Whether the run has come to its end, with ``reason`` (``stop``, ``tool-calls``, ``max-steps`` …).
        text: What the model wrote in the whole run. clients: Calls of the last turn that the client runs.
    """

    def __init__(
        self, drive: Drive, agent: Agent, run: Run, history: History, *, parent: Node | None = None,
        stored: bool = False,
    ) -> None:
        self.drive = drive
        self.agent = agent
        self.run = run
        self.history = history
        self.parent = parent
        self.stored = stored
        self.finished = False
        self.reason = ""
        self.text = ""
        self.clients: list[dict[str, Any]] = []
        self.children: dict[int, Node] = {}
        self._digest, self._stored = run.digest, run.stored
        around = [] if parent is None else [*parent.agents()]
        self.gate = gate.Gate(
            drive.guard, drive.owner, agent.principal(drive.owner.tenant, around), run.id, drive.require,
            agent.require, drive.lost,
            drive.options.hooks and drive.hooks is None,
        )

    # -- the tree ------------------------------------------------------------------------------------------------

    def tree(self) -> Iterator[Node]:
        """Yield this node and every one inside it, outermost first."""
        yield self
        for call in self.run.calls:
            child = self.children.get(id(call))
            if child is not None and call.child is not None:
                yield from child.tree()

    def agents(self) -> list[Agent]:
        """Return the agents from the outermost to this node's own."""
        return [*([] if self.parent is None else self.parent.agents()), self.agent]

    def path(self) -> list[tuple[Run, Call]]:
        """Return ``(run, delegation)`` from the outermost run to the one around this."""
        if self.parent is None:
            return []
        call = next(one for one in self.parent.run.calls if one.child is self.run)
        return [*self.parent.path(), (self.parent.run, call)]

    @classmethod
    def restored(cls, drive: Drive, agent: Agent, run: Run, parent: Node | None = None) -> Node:
        """Return a stored run with everything inside it. Blocks."""
        node = cls(drive, agent, run, restored(drive.desk.store, run, drive.key(run)), parent=parent, stored=True)
        node.text = node.history.written() + run.text
        for call in run.calls:
            sub = None if call.child is None else agent.sub_agent(call.name)
            if call.child is not None and sub is not None and sub.id == call.child.agent:
                node.children[id(call)] = cls.restored(drive, sub, call.child, node)
        return node

    @property
    def mine(self) -> bool:
        """Whether this process goes on with the run once its turn has ended."""
        return not self.stored or (self.run.lease or {}).get("id") == self.drive.lease_id

    def adopt(self, stored: Run | None) -> None:
        """Take over how calls ended that other processes had."""
        if stored is None or stored.step != self.run.step:
            self.run.lease = None  # others have gone on with it: nothing is left to do here
            return
        self.run.lease = stored.lease
        for mine, theirs in zip(self.run.calls, stored.calls, strict=True):
            if mine.outcome is None and theirs.outcome is not None:
                mine.outcome, mine.child = theirs.outcome, None

    def flush(self) -> list[Any]:
        """Return the steps that store the unsaved messages; called anew on each attempt, `committed` after success."""
        self.run.digest, self.run.stored = self._digest, self._stored
        if not self.history.unsaved:
            return []
        seq = self.run.base + self._stored if self.run.private else self.drive.next_seq(self.run)
        steps, self.run.digest = self.history.steps(self.run, self.drive.key(self.run), seq)
        self.run.stored += 1
        return steps

    def committed(self) -> None:
        """Note that what is in memory is in the store."""
        self.stored = True
        self.history.unsaved = []
        self._digest, self._stored = self.run.digest, self.run.stored

    # -- the loop ------------------------------------------------------------------------------------------------

    async def loop(self) -> Events:
        """Go on until the run ends (`finished`) or every open call waits for somebody."""
        while not self.finished:
            if not self.run.calls:
                if not self.mine:
                    return
                async with aclosing(self._step()) as step:
                    async for one in step:
                        yield one
                if self.finished:
                    return
            async with aclosing(self._work()) as work:
                async for one in work:
                    yield one
            if not self.run.settled or not self.mine:
                return
            messages = of_turn(self.run)
            for one in self._results(messages):
                yield one
            await self._turn_over(messages)

    async def _step(self) -> Events:
        """Call the model once."""
        run = self.run
        self.stored = False
        run.step += 1
        request = {"agent": self.agent.id, "messages": len(self.history.chat), "step": run.step}
        yield events.step_started(run, request, clock.epoch_ms())
        turn, text_id = None, None
        async with aclosing(self._modelled()) as parts:
            async for part in parts:
                if isinstance(part, Turn):
                    turn = part
                    continue
                if text_id is None:
                    text_id = f"txt-{run.step}"
                    yield events.event(run, "text-start", id=text_id)
                yield events.event(run, "text-delta", id=text_id, text=well_formed(part))
        if text_id is not None:
            yield events.event(run, "text-end", id=text_id, type="text-end")
        if turn is None:
            raise ModelFailed(ConfigurationError("The model ended without a turn.", detail="model"))
        run.text, run.usage = well_formed(turn.text), merge_usage(run.usage, turn.usage)
        self.text += run.text
        self._propose(turn.calls)
        for call in run.calls:
            yield events.called(run, call, self.agent.tool(call.name))
        if not run.calls:
            yield await self._ended(turn.finish_reason or "stop")

    async def _modelled(self) -> AsyncGenerator[str | Turn, None]:
        """Call the model; whatever it raises is its own failure, and told apart from everything else."""
        messages = [*self.agent.instructions(), *self.history.chat]
        settings = copied(self.drive.options.settings)
        try:
            async with aclosing(deltas(self.agent.model, messages, self.agent.chat(), settings)) as parts:
                async for part in parts:
                    yield part
        except asyncio.CancelledError as error:
            if cancelled():
                raise
            raise ModelFailed(RuntimeError("The model cancelled itself.")) from error
        except Exception as error:
            raise ModelFailed(error) from error

    def _propose(self, proposed: tuple[Proposed, ...]) -> None:
        """Take the model's calls as the calls of this turn. What is no JSON object has no arguments."""
        seen = self.history.seen.copy()
        self.run.calls = []
        for place, one in enumerate(proposed):
            args = None
            with suppress(CanonicalizationError):
                args = canonical.parse(one.arguments, limits=self.drive.desk.settings.limits)
            self.run.calls.append(Call(one.id, one.name, args if type(args) is dict else None, seen[one.id]))
            seen[one.id] += 1
            if place >= MAX_CALLS:
                message = f"A turn has at most {MAX_CALLS} calls. This and all after it were dropped; make them later."
                self.run.calls[-1].outcome = gate.failed("TooManyCallsError", message)

    def _results(self, messages: list[dict[str, Any]]) -> Iterator[Event]:
        """Yield what the calls of the turn came to, in their order, and the end of the step."""
        for call in self.run.calls:
            told = events.ended(self.run, call)
            if told is not None:
                yield told
        yield self._step_finished("tool-calls", messages)

    def _step_finished(self, reason: str, messages: list[dict[str, Any]]) -> Event:
        output = {"text": self.run.text, "usage": self.run.usage}
        return events.step_finished(self.run, "step-finish", reason, messages, output)

    async def _turn_over(self, messages: list[dict[str, Any]]) -> None:
        """Put the turn into the conversation; the next one begins, or the run ends here."""
        self.clients = [events.named(call) for call in self.run.calls if call.outcome and call.outcome.kind == "client"]
        self.history.add(*messages)
        if self.parent is None:
            self.history.add(*self.drive.said)
            self.drive.said = []
        self.stored = False
        self.run.calls, self.run.text, self.children = [], "", {}
        if self.clients:
            self.finished, self.reason = True, "tool-calls"
        elif self.run.step >= self.drive.options.max_steps:
            self.finished, self.reason = True, "max-steps"
        if not (self.run.private or self.drive.saved or self.finished):
            await offload(self._save, must_end=True)

    async def _ended(self, reason: str) -> Event:
        """End the run with a turn that has no calls."""
        messages = of_turn(self.run)
        self.history.add(*messages)
        self.finished, self.reason = True, reason
        return self._step_finished(reason, messages)

    def _save(self) -> None:
        self.drive.snapshots.write(lambda: (self.flush(), None))
        self.committed()
        self.stored = False

    # -- the calls of a turn -------------------------------------------------------------------------------------

    async def _work(self) -> Events:
        """Let every call of the turn go as far as it can; several at once."""
        ready = [call for call in self.run.calls if call.outcome is None and self._may_go(call)]
        if len(ready) == 1:
            async with aclosing(self._advance(ready[0])) as inner:
                async for one in inner:
                    yield one
            return
        queue: asyncio.Queue[Event | None] = asyncio.Queue()

        async def pump(call: Call) -> None:
            try:
                async with aclosing(self._advance(call)) as inner:
                    async for one in inner:
                        queue.put_nowait(one)
            finally:
                queue.put_nowait(None)

        tasks = [asyncio.create_task(pump(call)) for call in ready]
        try:
            left = len(tasks)
            while left:
                told = await queue.get()
                if told is None:
                    left -= 1
                else:
                    yield told
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _may_go(self, call: Call) -> bool:
        if call.child is not None:
            return True
        if call.suspension is not None:
            return call.suspension["id"] in self.drive.answers
        return call.request_id is None or call.request_id in self.drive.cleared

    async def _advance(self, call: Call) -> Events:
        tool = self.agent.tool(call.name)
        if call.child is None:
            permit = await self._permitted(call, tool)
            if permit is None or tool is None:
                return
            if self.agent.sub_agent(call.name) is None:
                await run_tool(self, call, tool, permit)
                return
            await delegate(self, call, permit)
            if call.child is None:
                return
        child = self.children.get(id(call))
        if child is None and call.child is not None and not self._addressed(call.child):
            return  # its agent is not known here; another process may have it
        if child is None:
            await self.end(call, gate.failed("AgentNotFoundError", "The sub-agent of this call is not there any more."))
            return
        async with aclosing(inside(self, call, child)) as inner:
            async for one in inner:
                yield one

    def _addressed(self, run: Run) -> bool:
        """Whether something inside a run was decided or answered."""
        pauses = {way[-1][1].pause_id for way in run.waiting()}
        return not pauses or not pauses.isdisjoint({*self.drive.cleared, *self.drive.answers})

    async def _permitted(self, call: Call, tool: Tool | None) -> Permit | None:
        """Return the permit of a call; else None: it has ended, or must wait."""
        if tool is None:
            await self.end(call, gate.failed("ToolNotFoundError", self._not_found(call.name)))
            return None
        if call.args is None:
            await self.end(call, gate.failed("InvalidArgumentsError", "The arguments are no JSON object."))
            return None
        args = call.args
        asked = self.gate.tool_call(call, self.run.calls[: self._place(call)], tool)

        def undo(result: Permit | gate.Asked) -> None:
            if isinstance(result, Permit):
                self.drive.guard.settle(result, "failed", "cancelled")

        try:
            tool.checked_input(args)
            result: Permit | gate.Asked | None = self.gate.free(call, asked, tool)
            if call.request_id in self.drive.outdated:
                result = gate.Asked(asked, self.gate.demanded())
            if result is None:
                result = await offload(lambda: self.gate.permit(call, asked, tool), undo=undo)
        except (RefusedError, CanonicalizationError) as error:
            if call.waits and gate.stays(error):
                self.drive.held = error
            elif call.waits and gate.runs_elsewhere(error):
                self.drive.overtaken = True
            else:
                await self.end(call, gate.refused(call, error))
            return None
        if isinstance(result, gate.Asked):
            call.asked, call.suspension = True, None  # once approved it starts anew, without the answer it was given
            self.drive.asking.append((self, call, result))
            return None
        return result

    def _place(self, call: Call) -> int:
        return next(place for place, one in enumerate(self.run.calls) if one is call)

    def _not_found(self, name: str) -> str:
        known = ", ".join(self.agent.tool_names()) or "none"
        return (
            f'Tool "{name}" not found. Available tools: {known}. Call tools by their exact name only — never add '
            "prefixes, namespaces, or colons."
        )

    async def end(self, call: Call, outcome: Outcome, permit: Permit | None = None, told: str = "failed") -> None:
        """End a call that does not run here; a permit that it has is settled as ``told``."""
        def apply(twin: Call) -> None:
            twin.outcome, twin.child = outcome, None

        landed = Landed(stored=False, ours=True)
        if self.stored or permit is not None:
            landed = await offload(
                lambda: self.drive.settled(self, call, permit, told, None, apply), must_end=True
            )
        self.drive.land(self, call, apply, landed)

    def final(self) -> Event:
        """Return the last event of a run that has ended."""
        output = {
            "text": self.text, "toolCalls": self.clients, "toolResults": self.history.results(),
            "usage": self.run.usage,
        }
        return events.step_finished(self.run, "finish", self.reason, list(self.history.messages), output)
