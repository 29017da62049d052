"""Runs of one call that is to be approved, declined or answered, however they are disturbed: their acts, their end.

What is demanded of a call that a person approved: it starts once at most, and only with its claim on record; the model
is told its result, or what is known. A tool that suspended itself without an approval may be answered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hitl_guard.agent import Agent
from hitl_guard.agent.stream import AgentStream
from tests.agent.faults import code_of, results, segments
from tests.agent.processes import asking, gated_asking, inner, one
from tests.agent.stage import Stage
from tests.support import BOB, until

Act = Callable[[Agent, str], AgentStream]
Before = Callable[[Agent, str], Awaitable[object]]
OSLO = {"location": "Oslo"}
RESULTS = ('{"ok":true}', '{"weather":"sunny"}', '{"weather":"Oslo: sunny"}')
DECLINED = "Tool call was not approved by the user"
UNKNOWN = "Refused (in-doubt): the call was started before, and nobody knows here what became of it."
STOPPED = "Refused (consumed): the call was stopped before it had an effect."


def start(agent: Agent, run_id: str) -> AgentStream:
    return agent.stream("go", user="ana", run_id=run_id)


def approve(agent: Agent, run_id: str) -> AgentStream:
    return agent.approve_tool_call(run_id, approver=BOB)


def decline(agent: Agent, run_id: str) -> AgentStream:
    return agent.decline_tool_call(run_id, approver=BOB)


def resume(agent: Agent, run_id: str) -> AgentStream:
    return agent.resume_stream(OSLO, run_id, user="ana")


def go_on(agent: Agent, run_id: str) -> AgentStream:
    return agent.continue_stream(run_id, user="ana")


async def from_the_inbox(agent: Agent, run_id: str) -> None:
    (request,) = agent.guard.pending()
    agent.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint)


def remembering(stage: Stage) -> Agent:
    """The scene ``one`` with a conversation that is kept."""
    agent = one(stage)
    return Agent("shop", model=agent.model, tools=agent.tools, guard=stage.guard, memory=True)


def start_thread(agent: Agent, run_id: str) -> AgentStream:
    return agent.stream("go", user="ana", run_id=run_id, thread_id=run_id)


SCENES: dict[str, tuple[Callable[[Stage], Agent], tuple[Before, ...], Act, int]] = {
    "start": (one, (), start, 1),
    "start-inside": (inner, (), start, 1),
    "start-thread": (remembering, (), start_thread, 1),
    "approve": (one, (start,), approve, 4),
    "approve-thread": (remembering, (start_thread,), approve, 4),
    "approve-inside": (inner, (start,), approve, 5),
    "approve-and-be-asked": (gated_asking, (start,), approve, 3),
    "decline": (one, (start,), decline, 3),
    "go-on": (one, (start, from_the_inbox), go_on, 3),
    "resume": (asking, (start,), resume, 3),
    "resume-approved": (gated_asking, (start, approve), resume, 4),
}
"""Name → the agent, what happens before, what is disturbed, and the fewest commits that this makes."""


async def to_the_end(stage: Stage, agent: Agent, run_id: str) -> None:
    """Answer whatever waits, and go on with whatever was left, until the run is over."""
    for _ in range(8):
        until(stage.store, stage.store.now() + 2)
        found = (await agent.list_suspended_runs(user="ana")).runs
        if not found:
            return
        calls = found[0].tool_calls
        act = go_on if not calls else approve if calls[0].requires_approval else resume
        if await code_of(act(agent, run_id)) == "already-decided":
            await code_of(go_on(agent, run_id))
    raise AssertionError("The run does not come to its end.")


def histories(stage: Stage) -> dict[str, list[str]]:
    """Return the types of the events of each request."""
    return {
        id_: [event.type for event in events] for row, id_, events in stage.store.request_histories() if row is not None
    }


def check(stage: Stage, agent: Agent, scene: str, events: list[list[str]]) -> None:
    """Check what became of a run whose one call was to be approved, declined or answered."""
    model: Any = agent.model if not agent._sub_agents else next(iter(agent._sub_agents.values())).model
    told = [text for _, text in results(model.calls[-1] if model.calls else [])]
    starts = [given for name, given in stage.ran if given is not None]
    assert told or not SCENES[scene][1]  # a run that was on record when it was disturbed is not lost
    types = [kind for one_ in events for kind in one_]
    assert stage.stored() == 0
    assert scene.endswith("thread") or segments(stage) == []
    if scene == "resume":
        assert told in ([], [RESULTS[2]])
        return
    assert len(starts) <= 1
    assert types.count("grant:claimed") == 1 or not starts
    assert types.count("grant:claimed") <= 1
    if told in ([RESULTS[0]], [RESULTS[1]]):
        assert starts
        assert types[-1] == "call:succeeded"
    else:
        assert told in ([], [DECLINED], [UNKNOWN], [STOPPED])
        assert (told == [UNKNOWN]) == (types[-1:] in (["grant:claimed"], ["grant:resumed"]))
        assert told != [STOPPED] or not starts
