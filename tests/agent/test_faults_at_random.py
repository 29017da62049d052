"""F3, F4 by chance: people, processes and impatient readers at work on one tree of runs, in a thousand orders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.stream import AgentStream
from hitl_guard.errors import HitlGuardError
from hitl_guard.lifecycle.ledger import verify
from tests.agent.faults import Script, code_of
from tests.agent.stage import Stage
from tests.support import BOB, CAROL

MakeStage = Callable[..., Stage]
TOLD = {"ok", "run-busy", "run-not-found", "already-decided", "call-not-suspended"}


async def others_go_on(turns: int) -> None:
    """Let everybody else go on for so many turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Crowd:
    """Everybody who is at work on run ``r``. Each has an agent object of his own, as each process would."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.chance = stage, random.Random(seed)
        turns = self.chance.randrange(20)
        self._tools = [
            Tool("delete", require_approval=True, execute=self._slow(turns) if seed % 2 else self._quick),
            Tool("ask", require_approval=seed % 3 == 0, execute=self._ask),
        ]

    def _quick(self, given: Any) -> Any:
        self.stage.ran.append(("delete", given))
        return {"ok": True}

    def _slow(self, turns: int) -> Callable[..., Any]:
        async def slow(given: Any) -> Any:
            self.stage.ran.append(("delete", given))
            await others_go_on(turns)
            return {"ok": True}

        return slow

    async def _ask(self, given: Any, context: Any) -> Any:
        if context.resume_data is None:
            await context.suspend({"question": "Which city?"})
            return None
        self.stage.ran.append(("ask", given))
        return {"ok": True}

    def agent(self) -> Agent:
        def made(name: str, *calls: tuple[str, str, Any], **options: Any) -> Agent:
            model = Script(list(calls), "done")
            return Agent(name, model=model, tools=self._tools, guard=self.stage.guard, **options)

        subs = [
            made(name, (f"i-{name}", "delete", {"id": name}), (f"j-{name}", "ask", {"id": f"{name}-ask"}))
            for name in ("one", "two")
        ]
        delegations = [(f"d-{name}", f"agent-{name}", {"prompt": "go"}) for name in ("one", "two")]
        return made("shop", *delegations, ("c3", "delete", {"id": "own"}), agents=subs)

    async def act(self) -> str:
        """Do something that somebody might do now; return what he was told."""
        await others_go_on(self.chance.randrange(200))
        try:
            stream = await self._stream(self.agent())
        except HitlGuardError as error:
            return error.code
        if self.chance.random() > 0.3:
            return await code_of(stream.result())
        return await code_of(self._leave(stream, self.chance.randrange(6)))

    async def _stream(self, agent: Agent) -> AgentStream:
        runs = (await agent.list_suspended_runs(user="ana")).runs
        calls = runs[0].tool_calls if runs else ()
        if not calls or self.chance.random() < 0.3:
            return agent.continue_stream("r", user="ana")
        call = self.chance.choice(calls)
        if call.requires_approval:
            return agent.approve_tool_call("r", call.pause_id, approver=self.chance.choice([BOB, CAROL]))
        return agent.resume_stream({"location": "Oslo"}, "r", call.pause_id, user="ana")

    @staticmethod
    async def _leave(stream: AgentStream, after: int) -> None:
        async with aclosing(aiter(stream)) as events:
            async for _ in events:
                after -= 1
                if after < 0:
                    return


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
async def test_f04_whoever_acts_when_each_tool_starts_once_and_the_run_ends(make_stage: MakeStage, seed: int) -> None:
    stage = make_stage()
    crowd = Crowd(stage, seed)
    await crowd.agent().generate("go", user="ana", run_id="r")
    told: list[str] = []

    for _ in range(30):
        if not stage.stored():
            break
        told += await asyncio.gather(*(crowd.act() for _ in range(5)))

    starts = [given["id"] for _, given in stage.ran]
    assert stage.stored() == 0, told
    assert len(starts) == len(set(starts)), told
    assert set(told) <= TOLD
    assert not verify(stage.guard._desk).findings
