"""F15: after any pause the events are complete, each comes once, and in the published order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from tests.agent.faults import ONE, TWO, Script
from tests.agent.processes import asking, gated_asking, inner, one, pair, two
from tests.agent.stage import Stage, read
from tests.support import BOB

MakeStage = Callable[..., Stage]
Events = list[dict[str, Any]]
OSLO = {"location": "Oslo"}

LETTERS = {
    "start": "S", "step-start": "s", "text-start": "t", "text-delta": "t", "text-end": "t", "tool-call": "c",
    "tool-output": "o", "tool-call-approval": "p", "tool-call-suspended": "p", "tool-call-resumed": "r",
    "tool-result": "e", "tool-error": "e", "tool-output-denied": "e", "step-finish": "f", "finish": "F",
}
STEPS = "(st*c+o*e+f)*(st*c+o*p[op]*|st*fF)"
"""Turns whose calls all ended at once; then one that pauses (nothing follows its pauses), or the last one."""

NEW, RESUMED = re.compile(f"S{STEPS}"), re.compile(f"[rop]*(e+f{STEPS})?")
PAUSE_IDS = ("approvalId", "suspensionId")


def check_run(streams: list[Events], *, outermost: bool = True) -> None:
    """Check the events of one run that has ended: all its streams, in the order in which they were read."""
    for number, events in enumerate(streams):
        word = "".join(LETTERS[event["type"]] for event in events)
        assert (RESUMED if number else NEW).fullmatch(word), word
    events = [event for stream in streams for event in stream]
    assert all(event.keys() == {"type", "run_id", "from", "payload"} for event in events)
    assert len({event["run_id"] for event in events}) == 1
    assert Counter(event["type"] for event in events)["finish"] == 1
    _check_calls(events, outermost)
    for call_id in {event["payload"]["toolCallId"] for event in events if event["type"] == "tool-output"}:
        inside = [
            [event["payload"]["output"] for event in stream
             if event["type"] == "tool-output" and event["payload"]["toolCallId"] == call_id]
            for stream in streams
        ]
        check_run([stream for stream in inside if stream], outermost=False)


def _check_calls(events: Events, outermost: bool) -> None:
    calls: list[str] = []
    ends: list[str] = []
    open_pauses: dict[Any, str] = {}
    told: set[Any] = set()
    for event in events:
        letter, payload = LETTERS[event["type"]], event["payload"]
        call_id, pause = payload.get("toolCallId"), next((payload[name] for name in PAUSE_IDS if name in payload), None)
        if letter == "c":
            assert call_id not in calls
            calls.append(call_id)
        elif letter == "p":
            assert (call_id in calls, call_id in ends, pause in told) == (True, False, False)
            assert not outermost or call_id not in open_pauses.values()  # here no delegation has two pauses at once
            told.add(pause)
            open_pauses[pause] = call_id
        elif letter == "r":
            assert open_pauses.pop(pause, None) == call_id
        elif letter == "e":
            assert (call_id in calls, call_id in ends) == (True, False)
            assert not outermost or call_id not in open_pauses.values()
            ends.append(call_id)
    assert calls == ends
    assert not outermost or not open_pauses


async def answered(agent: Agent, *answers: Callable[[], Any]) -> list[Events]:
    """Return the events of a run's streams: its start, and each answer in turn."""
    streams = [await read(agent.stream("go", user="ana", run_id="r"))]
    for answer in answers:
        streams.append(await read(answer()))
    return streams


def approve(agent: Agent, call: str | None = None) -> Callable[[], Any]:
    return lambda: agent.approve_tool_call("r", call, approver=BOB)


def decline(agent: Agent, call: str | None = None) -> Callable[[], Any]:
    return lambda: agent.decline_tool_call("r", call, approver=BOB)


def resume(agent: Agent) -> Callable[[], Any]:
    return lambda: agent.resume_stream(OSLO, "r", user="ana")


def all_from_the_inbox(stage: Stage, agent: Agent) -> Callable[[], Any]:
    def go_on() -> Any:
        for request in stage.guard.pending():
            stage.world.approve(request)
        return agent.continue_stream("r", user="ana")

    return go_on


def talkative(stage: Stage) -> Agent:
    """An agent that speaks in each turn, makes free calls beside gated ones, and pauses in two turns."""
    call = {"type": "function", "function": {"name": "look", "arguments": '{"id": "9"}'}}
    gated = {"type": "function", "function": {"name": "delete", "arguments": '{"id": "1"}'}}
    turns = [
        {"content": "First I look.", "tool_calls": [call | {"id": "f1"}]},
        {"content": "Then I delete.", "tool_calls": [gated | {"id": "c1"}, call | {"id": "f2"}, gated | {"id": "c2"}]},
        {"content": "And again.", "tool_calls": [gated | {"id": "c3"}]},
        {"content": "That was all.", "tool_calls": []},
    ]
    tools = [stage.tool(require_approval=True), stage.tool("look")]
    return Agent("shop", model=Script(*turns), tools=tools, guard=stage.guard)


def deep(stage: Stage) -> Agent:
    """Three runs in one another; the innermost makes two gated calls, one after the other."""
    low = Agent(
        "low", model=Script([ONE], [TWO], "low done"), tools=[stage.tool(require_approval=True)], guard=stage.guard
    )
    middle = Script([("m1", "agent-low", {"prompt": "go"})], "mid done")
    top = Script([("d1", "agent-mid", {"prompt": "go"})], "done")
    mid = Agent("mid", model=middle, agents=[low], guard=stage.guard)
    return Agent("shop", model=top, agents=[mid], guard=stage.guard)


Play = Callable[[Stage], Awaitable[list[Events]]]


def _play(scene: Callable[[Stage], Agent], *ways: Callable[[Stage, Agent], Callable[[], Any]]) -> Play:
    async def play(stage: Stage) -> list[Events]:
        agent = scene(stage)
        return await answered(agent, *(way(stage, agent) for way in ways))

    return play


def _to(act: Callable[..., Callable[[], Any]], *names: str) -> Callable[[Stage, Agent], Callable[[], Any]]:
    return lambda stage, agent: act(agent, *names)


PLAYS: dict[str, Play] = {
    "approved": _play(one, _to(approve)),
    "declined": _play(one, _to(decline)),
    "inbox": _play(one, all_from_the_inbox),
    "two-in-order": _play(two, _to(approve, "c1"), _to(decline, "c2")),
    "two-last-first": _play(two, _to(decline, "c2"), _to(approve, "c1")),
    "two-inbox": _play(two, all_from_the_inbox),
    "sub-agent": _play(inner, _to(approve)),
    "sub-agent-declined": _play(inner, _to(decline)),
    "two-sub-agents": _play(pair, _to(approve, "d2"), _to(decline, "d1")),
    "two-sub-agents-inbox": _play(pair, all_from_the_inbox),
    "deep": _play(deep, _to(approve), _to(approve)),
    "suspended": _play(asking, _to(resume)),
    "approved-then-suspended": _play(gated_asking, _to(approve), _to(resume)),
    "talkative": _play(talkative, _to(approve, "c2"), _to(approve, "c1"), _to(decline)),
}


@pytest.mark.parametrize("play", PLAYS)
async def test_f15_events_are_complete_unique_and_in_order_over_all_streams_of_a_run(
    make_stage: MakeStage, play: str
) -> None:
    check_run(await PLAYS[play](make_stage()))


@pytest.mark.parametrize("play", PLAYS)
async def test_f15_a_check_of_events_notices_each_that_is_missing_doubled_or_out_of_place(
    stage: Stage, play: str
) -> None:
    streams = await PLAYS[play](stage)
    unnoticed = []

    for number, events in enumerate(streams):
        for place, event in enumerate(events):
            if LETTERS[event["type"]] in "to":
                continue  # of texts any number may come; what a sub-agent does is checked as a run of its own
            following = events[place + 1 : place + 2]
            changed = {
                "missing": [*events[:place], *events[place + 1 :]],
                "doubled": [*events[: place + 1], event, *events[place + 1 :]],
            }
            letters = [LETTERS[one_["type"]] for one_ in (event, *following)]
            if letters[1:] not in ([], ["o"]) and letters not in (["r", "r"], ["p", "p"]):
                changed["swapped"] = [*events[:place], *following, event, *events[place + 2 :]]
            unnoticed += [
                (how, number, event["type"]) for how, bad in changed.items()
                if _passes([*streams[:number], bad, *streams[number + 1 :]])
            ]

    assert unnoticed == []


def _passes(streams: list[Events]) -> bool:
    try:
        check_run(streams)
    except AssertionError:
        return False
    return True
