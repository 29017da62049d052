"""Agents in real processes, for races and sudden deaths (see `tests.threats.processes`, which forks them).

Every process builds the agent of a scene anew. What a scene's model says follows from the conversation alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from hitl_guard.agent import Agent
from hitl_guard.agent.stream import AgentStream
from hitl_guard.errors import HitlGuardError
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import Principal
from hitl_guard.store.sql import SQLStore
from tests.agent.faults import ONE, TWO, Script
from tests.agent.stage import Stage, types
from tests.threats import processes
from tests.threats.processes import Line, Processes

Reach = Callable[[str], object]


def nowhere(_point: str) -> None:
    """Reach a point, and go on."""


class _Model(Script):
    """A script that reaches the point ``name`` whenever it is asked for a turn after its first."""

    def __init__(self, reach: Reach, name: str, *turns: Any) -> None:
        super().__init__(*turns)
        self._reach, self._name = reach, name

    async def __call__(self, messages: list[dict[str, Any]], tools: Any, settings: Any) -> Any:
        if any(message["role"] == "tool" for message in messages):
            self._reach(self._name)
        return await super().__call__(messages, tools, settings)


def one(stage: Stage, reach: Reach = nowhere) -> Agent:
    """An agent that makes one gated call. Points: ``tool`` (it has started), ``effect``, ``model`` (its next turn)."""
    return Agent(
        "shop", model=_Model(reach, "model", [ONE], "done"), tools=[_gated(stage, reach)], guard=stage.guard
    )


def two(stage: Stage, reach: Reach = nowhere) -> Agent:
    """An agent that makes two gated calls in one turn."""
    return Agent(
        "shop", model=_Model(reach, "model", [ONE, TWO], "done"), tools=[_gated(stage, reach)], guard=stage.guard
    )


def inner(stage: Stage, reach: Reach = nowhere) -> Agent:
    """A supervisor whose sub-agent makes one gated call. Point ``inner``: the sub-agent's model is asked again."""
    sub = Agent(
        "clerk", model=_Model(reach, "inner", [ONE], "inner done"), tools=[_gated(stage, reach)], guard=stage.guard
    )
    model = _Model(reach, "model", [("d1", "agent-clerk", {"prompt": "go"})], "done")
    return Agent("shop", model=model, agents=[sub], guard=stage.guard)


def pair(stage: Stage, reach: Reach = nowhere) -> Agent:
    """A supervisor over two sub-agents that go on side by side; each makes one gated call."""
    tool = _gated(stage, reach)
    subs = [
        Agent(name, model=Script([(f"i-{name}", "delete", {"id": id_})], f"{name} done"), tools=[tool],
              guard=stage.guard)
        for name, id_ in (("one", "1"), ("two", "2"))
    ]
    calls = [("d1", "agent-one", {"prompt": "go"}), ("d2", "agent-two", {"prompt": "go"})]
    return Agent("shop", model=_Model(reach, "model", calls, "all done"), agents=subs, guard=stage.guard)


def asking(stage: Stage, reach: Reach = nowhere) -> Agent:
    """An agent whose tool suspends itself; nobody has to approve it."""
    async def execute(given: Any, context: Any) -> Any:
        stage.ran.append(("weather", context.resume_data))
        if context.resume_data is None:
            await context.suspend({"question": "Which city?"})
            return None
        reach("tool")
        return {"weather": f"{context.resume_data['location']}: sunny"}

    model = _Model(reach, "model", [("c1", "weather", {"id": "1"})], "done")
    return Agent("shop", model=model, tools=[stage.asking(execute=execute)], guard=stage.guard)


def gated_asking(stage: Stage, reach: Reach = nowhere) -> Agent:
    """An agent whose tool must be approved, and then suspends itself. Points: ``tool``, ``effect`` when resumed."""
    async def execute(given: Any, context: Any) -> Any:
        if context.resume_data is None:
            await context.suspend({"question": "Which city?"})
            return None
        reach("tool")
        stage.ran.append(("weather", context.resume_data))
        reach("effect")
        return {"weather": "sunny"}

    tool = stage.asking(execute=execute, require_approval=True)
    model = _Model(reach, "model", [("c1", "weather", {"id": "1"})], "done")
    return Agent("shop", model=model, tools=[tool], guard=stage.guard)


def _gated(stage: Stage, reach: Reach) -> Any:
    def execute(given: Any) -> Any:
        reach("tool")
        stage.ran.append(("delete", given))
        reach("effect")
        return {"ok": True}

    return stage.tool(require_approval=True, execute=execute)


SCENES: dict[str, Callable[..., Agent]] = {
    "one": one, "two": two, "inner": inner, "pair": pair, "asking": asking, "gated-asking": gated_asking,
}


def models(agent: Agent) -> int:
    """Return how often the models of an agent and its sub-agents were called."""
    own: Any = agent.model
    return len(own.calls) + sum(map(models, agent._sub_agents.values()))


def started() -> Iterator[Processes]:
    """Make it a fixture, as `tests.threats.processes.started`."""
    children = Processes("tests.agent.processes")
    yield children
    children.close()


# -- in the children ---------------------------------------------------------------------------------------------------


def play(line: Line, job: dict[str, Any]) -> None:
    """Start, decide, answer or go on with a run; say what became of it. Stops at the point that the job names.

    Points beside those of the scenes: ``read`` (the suspended run was read), ``claim`` (everything was checked, and
    nothing is spent yet) and ``told`` (the first pause was told).
    With ``brief`` everything that it holds counts as overdue for others at once.
    """
    def reach(point: str) -> None:
        if point == job.get("stop"):
            line.say(point)
            line.hear()

    vars(claim)["_start_by"] = lambda desk: None  # that what it holds is overdue at once must not stop its tools
    real = claim.claim

    def claimed(*args: Any) -> Any:
        reach("claim")
        return real(*args)

    vars(claim)["claim"] = claimed
    settings = Settings(run_within=1) if job.get("brief") else Settings()
    stage = Stage(SQLStore(job["url"], pool_size=2), keyring=Keyring.from_json(job["keys"]), settings=settings)
    agent = SCENES[job["scene"]](stage, reach)
    _stop_after_reading(stage, reach)
    told = asyncio.run(_read(_stream(agent, job), reach))
    line.say({"told": told[0], "types": types(told[1]), "ran": stage.ran, "models": models(agent)})
    stage.store.close()


def _stop_after_reading(stage: Stage, reach: Reach) -> None:
    real = stage.store.load_run
    seen: list[bool] = []

    def load_run(key: bytes) -> Any:
        found = real(key)
        if not seen:
            seen.append(True)
            reach("read")
        return found

    stage.store.load_run = load_run  # type: ignore[method-assign]


def _stream(agent: Agent, job: dict[str, Any]) -> AgentStream:
    run_id, call = job["run_id"], job.get("call")
    who = Principal(job.get("by", "bob"))
    if job["do"] == "start":
        return agent.stream("go", user="ana", run_id=run_id)
    if job["do"] == "approve":
        return agent.approve_tool_call(run_id, call, approver=who)
    if job["do"] == "decline":
        return agent.decline_tool_call(run_id, call, approver=who)
    if job["do"] == "resume":
        return agent.resume_stream(job["data"], run_id, call, user="ana")
    return agent.continue_stream(run_id, user="ana")


async def _read(stream: AgentStream, reach: Reach) -> tuple[str, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    try:
        async for event in stream:
            told.append(event)
            if event["type"] in ("tool-call-approval", "tool-call-suspended"):
                reach("told")
    except HitlGuardError as error:
        return error.code, told
    return stream.status, told


processes.JOBS["play"] = play

if __name__ == "__main__":
    processes.main()
