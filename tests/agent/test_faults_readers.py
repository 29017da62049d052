"""F13, F15: whoever reads a stream stops, at any event, or is cancelled, at any step. The run can go on at once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.agent.drive import Drive
from hitl_guard.agent.stream import AgentStream
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.desk import new_id
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.lifecycle.settings import Settings
from tests.agent.faults import ONE, Script, noticed, results, segments
from tests.agent.processes import inner, pair
from tests.agent.scenes import SCENES, check, go_on, histories, start, to_the_end
from tests.agent.stage import Stage, read
from tests.support import BOB
from tests.threats.gates import LIMIT_S

MakeStage = Callable[..., Stage]
Disturb = Callable[[Stage, AgentStream, int], Any]
USES = ("load", "load_run", "segments", "last_segments", "now", "write")


async def closed(_stage: Stage, stream: AgentStream, at: int) -> bool:
    """Read up to one event and close the stream; say whether it was still going on."""
    async with aclosing(aiter(stream)) as events:
        place = 0
        async for _ in events:
            if place == at:
                return True
            place += 1
    return False


async def dropped(_stage: Stage, stream: AgentStream, at: int) -> bool:
    """Read up to one event, and let go of the stream without a word."""
    place = 0
    async for _ in stream:
        if place == at:
            break
        place += 1
    else:
        return False
    del stream
    await asyncio.sleep(0)  # the loop makes a task of the stream's end
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    return True


class _Cancelling:
    """A store that has the reading task cancelled during one of its uses."""

    def __init__(self, stage: Stage, task: asyncio.Task[Any], at: int, *, after: bool) -> None:
        self._store, self._task, self._at, self._after = stage.store, task, at, after
        self._loop, self._lock = asyncio.get_running_loop(), threading.Lock()
        self.used = 0

    def __getattr__(self, name: str) -> Any:
        really = getattr(self._store, name)
        if name not in USES:
            return really

        def use(*args: Any, **options: Any) -> Any:
            with self._lock:
                mine, self.used = self.used == self._at, self.used + 1
            if mine and not self._after:
                self._cancel()
            answer = really(*args, **options)
            if mine and self._after:
                self._cancel()
            return answer

        return use

    def _cancel(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._task.cancel()
            return
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._loop.call_soon_threadsafe(done.set)
        done.wait(LIMIT_S)


async def cancelled(stage: Stage, stream: AgentStream, at: int, *, after: bool = False) -> bool:
    """Have the task that reads cancelled while the store is used for the n-th time."""
    task = asyncio.ensure_future(read(stream))
    store = _Cancelling(stage, task, at, after=after)
    stage.guard._desk.store = store
    with suppress(asyncio.CancelledError):
        await task
    stage.guard._desk.store = stage.store
    return store.used > at


async def cancelled_after(stage: Stage, stream: AgentStream, at: int) -> bool:
    return await cancelled(stage, stream, at, after=True)


WAYS: dict[str, Disturb] = {
    "closed": closed, "dropped": dropped, "cancelled": cancelled, "cancelled-after": cancelled_after,
}


async def disturbed(stage: Stage, scene: str, way: str) -> int:
    """Disturb the reader of a new run at each place in turn; return how many places there were."""
    build, before, act, _ = SCENES[scene]
    known: set[str] = set()
    for at in itertools.count():
        stage.ran.clear()
        agent, run_id = build(stage), f"run-{new_id()}"
        for step in before:
            await step(agent, run_id)
        if not await WAYS[way](stage, act(agent, run_id), at):
            return at
        assert len(stage.guard.pending()) <= stage.stored()

        await to_the_end(stage, agent, run_id)

        found = histories(stage)
        check(stage, agent, scene, [types_ for id_, types_ in found.items() if id_ not in known])
        known.update(found)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("way", ["closed", "cancelled"])
async def test_f13_wherever_a_reader_stops_the_run_can_go_on_at_once_and_nothing_runs_twice(
    make_stage: MakeStage, way: str, scene: str
) -> None:
    await goes_on_at_once(make_stage(), way, scene)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("way", ["dropped", "cancelled-after"])
async def test_f13_wherever_a_reader_is_lost_the_run_can_go_on_at_once_and_nothing_runs_twice(
    stage: Stage, way: str, scene: str
) -> None:
    await goes_on_at_once(stage, way, scene)


async def goes_on_at_once(stage: Stage, way: str, scene: str) -> None:
    places = await disturbed(stage, scene, way)

    assert places >= 2
    assert not verify(stage.guard._desk).findings


async def test_f13_a_check_of_readers_that_stop_notices_a_lease_that_is_not_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kept(_drive: Drive) -> None:
        return

    monkeypatch.setattr(Drive, "release", kept)

    await noticed(disturbed(stage, "approve", "closed"))


@pytest.mark.parametrize("scene", [inner, pair], ids=["one-sub-agent", "two-sub-agents"])
def test_f13_a_loop_that_shuts_down_in_the_middle_of_a_run_loses_nothing(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch, scene: Callable[[Stage], Agent]
) -> None:
    """It closes every generator at once, in no order; the lease may stay then, but not the pause or the results."""
    monkeypatch.setattr(claim, "_start_by", lambda desk: None)
    stage = make_stage(settings=Settings(run_within=1))
    held: list[AgentStream] = []

    async def interrupted(run_id: str, at: int) -> str:
        agent = scene(stage)
        await start(agent, run_id)
        for request in stage.guard.pending():
            stage.world.approve(request)
        held.append(go_on(agent, run_id))
        place = 0
        async for event in held[-1]:
            if place == at:
                return str(event["type"])
            place += 1
        return "end"

    known: set[str] = set()
    for at in itertools.count():
        stage.ran.clear()
        run_id = f"run-{at}"
        last = asyncio.run(interrupted(run_id, at))
        assert stage.stored() == (last not in ("finish", "end")), last
        agent = scene(stage)
        asyncio.run(to_the_end(stage, agent, run_id))
        found = histories(stage)
        made = [types for id_, types in found.items() if id_ not in known]
        known.update(found)
        assert [types[:2] for types in made] == [["request:approved", "grant:claimed"]] * len(made)
        assert {types[2] for types in made} <= {"call:succeeded", "call:failed", "call:in_doubt"}
        assert (len(stage.ran) <= len(made), stage.stored(), segments(stage)) == (True, 0, [])
        if last == "end":
            break
        model: Any = agent.model
        assert last == "finish" or len(results(model.calls[-1])) == len(made)
    assert at > 10


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_f13_a_tool_that_runs_while_its_reader_is_cancelled_is_on_record_and_runs_once(
    make_stage: MakeStage, kind: str
) -> None:
    """A function in a thread runs to its end, and its result is kept; nobody knows how far a coroutine came."""
    stage = make_stage()
    begun, end = threading.Event(), threading.Event()

    def in_a_thread(given: Any) -> Any:
        stage.ran.append(("delete", given))
        begun.set()
        end.wait(LIMIT_S)
        return {"ok": True}

    async def in_the_loop(given: Any) -> Any:
        stage.ran.append(("delete", given))
        begun.set()
        await asyncio.Event().wait()

    model = Script([ONE], "done")
    tool = stage.tool(require_approval=True, execute=in_a_thread if kind == "sync" else in_the_loop)
    agent = Agent("shop", model=model, tools=[tool], guard=stage.guard)
    await start(agent, "r")
    reading = asyncio.create_task(read(agent.approve_tool_call("r", approver=BOB)))
    await asyncio.to_thread(begun.wait, LIMIT_S)

    reading.cancel()
    await asyncio.sleep(0)
    end.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    between = len(model.calls)
    await go_on(agent, "r")

    ending = "call:succeeded" if kind == "sync" else "call:in_doubt"
    ((_, told),) = results(model.calls[-1])
    assert (between, stage.ran) == (1, [("delete", {"id": "1"})])
    assert list(histories(stage).values()) == [["request:approved", "grant:claimed", ending]]
    assert (told == '{"ok":true}') == (kind == "sync")
    assert stage.stored() == 0
