"""F4, F7: a process is killed between two steps. What was started is never started again; what waits still waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.errors import AgentError
from tests.agent import processes
from tests.agent.faults import assert_over, code_of, paused, results, trail
from tests.agent.processes import SCENES
from tests.agent.stage import Stage, only, read, types
from tests.databases import Database
from tests.support import BOB, OPERATOR, until
from tests.threats.processes import Child, Processes

MakeStage = Callable[..., Stage]
OSLO = {"location": "Oslo"}
IN_DOUBT = "Refused (in-doubt): the call was started before, and nobody knows here what became of it."

children = pytest.fixture(scope="module")(processes.started)


class Scene:
    """A run of one scene, as this process and its dying children see it."""

    def __init__(self, stage: Stage, url: str, children: Processes, scene: str) -> None:
        self.stage, self._url, self._children, self.scene = stage, url, children, scene
        self.agent: Agent = SCENES[scene](stage)

    def child(self, do: str, stop: str, **facts: Any) -> Child:
        """Start a child that does something with run ``r``, and return it when it is at the point ``stop``."""
        one = self._children.start(
            "play", self.stage.world, self._url, scene=self.scene, do=do, run_id="r", stop=stop, **facts
        )
        assert one.hear() == stop
        return one

    def overdue(self) -> None:
        """Wait until what a ``brief`` child holds is overdue, by the database's clock."""
        until(self.stage.store, self.stage.store.now() + 2)

    def states(self) -> list[str]:
        states = ["pending", "approved", "executing", "suspended", "in_doubt"]
        return [request.state for request in self.stage.guard.pending(states=states)]

    async def listed(self) -> list[str]:
        return [run.status for run in (await self.agent.list_suspended_runs(user="ana")).runs]

    async def go_on(self) -> list[dict[str, Any]]:
        return await read(self.agent.continue_stream("r", user="ana"))


@pytest.fixture
def scene(make_stage: MakeStage, database: Database, children: Processes) -> Callable[[str], Scene]:
    """Make the scene of a name on a database of each kind."""
    return lambda name: Scene(make_stage(), database.url, children, name)


async def test_f07_after_a_kill_right_after_the_pause_another_process_finds_decides_and_goes_on(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    here.child("start", "told").kill()

    (run,) = (await here.agent.list_suspended_runs(user="ana")).runs
    (request,) = here.stage.guard.pending()
    events = await read(here.agent.approve_tool_call(run.run_id, run.tool_calls[0].tool_call_id, approver=BOB))

    assert (run.run_id, run.tool_calls[0].args, request.arguments) == ("r", {"id": "1"}, {"id": "1"})
    assert here.stage.ran == [("delete", {"id": "1"})]
    assert types(events)[-1] == "finish"
    assert_over(here.stage)


async def test_f07_after_a_kill_right_after_the_pause_a_decision_from_the_inbox_is_enough(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    here.child("start", "told").kill()
    (request,) = here.stage.guard.pending()
    here.stage.world.deny(request, reason="not today")

    events = await here.go_on()

    assert only(events, "tool-output-denied")["approval"]["reason"] == "not today"
    assert here.stage.ran == []
    assert_over(here.stage)


async def test_f04_after_a_kill_between_decision_and_claim_the_tool_runs_once(scene: Callable[[str], Scene]) -> None:
    here = scene("one")
    await paused(here.agent, run_id="r")
    here.child("approve", "claim").kill()
    assert (here.states(), trail(here.stage)) == (["approved"], ["request:approved"])

    events = await here.go_on()

    assert only(events, "tool-result")["result"] == {"ok": True}
    assert here.stage.ran == [("delete", {"id": "1"})]
    assert_over(here.stage)


@pytest.mark.parametrize("point", ["tool", "effect"])
async def test_f04_a_call_whose_process_was_killed_is_in_doubt_and_never_runs_again(
    scene: Callable[[str], Scene], point: str
) -> None:
    here = scene("one")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    here.child("approve", point, brief=True).kill()
    here.overdue()
    assert (here.states(), await here.listed()) == (["in_doubt"], ["suspended"])
    assert trail(here.stage) == ["request:approved", "grant:claimed"]

    events = await here.go_on()
    later = await code_of(here.agent.approve_tool_call("r", approver=BOB).result())

    assert only(events, "tool-error")["error"] == {"code": "in-doubt", "message": IN_DOUBT, "name": "RefusedError"}
    assert results(model.calls[-1]) == [("c1", IN_DOUBT)]
    assert (types(events)[-1], later) == ("finish", "run-not-found")
    assert (here.stage.ran, here.states()) == ([], ["in_doubt"])
    (request,) = here.stage.guard.pending(states=["in_doubt"])
    here.stage.guard.resolve(request.id, "abandoned", by=OPERATOR, reason="looked")
    assert_over(here.stage)


async def test_f04_before_its_window_ends_nobody_takes_over_a_call_whose_process_was_killed(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    await paused(here.agent, run_id="r")
    here.child("approve", "tool").kill()
    assert here.states() == ["executing"]

    codes = [
        await code_of(here.go_on()), await code_of(here.agent.approve_tool_call("r", approver=BOB).result()),
        await code_of(here.agent.decline_tool_call("r", approver=BOB).result()),
    ]

    assert codes == ["run-busy", "already-decided", "already-decided"]
    assert (here.stage.ran, here.stage.stored(), here.states()) == ([], 1, ["executing"])


@pytest.mark.parametrize("point", ["tool", "effect"])
async def test_f04_a_resumed_start_whose_process_was_killed_is_in_doubt_and_never_starts_again(
    scene: Callable[[str], Scene], point: str
) -> None:
    here = scene("gated-asking")
    await paused(here.agent, run_id="r")
    asked = await here.agent.approve_tool_call("r", approver=BOB)
    here.child("resume", point, brief=True, data=OSLO).kill()
    here.overdue()
    assert (asked.status, here.states()) == ("suspended", ["in_doubt"])

    events = await read(here.agent.resume_stream(OSLO, "r", user="ana"))

    assert only(events, "tool-error")["error"]["code"] == "in-doubt"
    assert here.stage.ran == []
    assert trail(here.stage) == ["request:approved", "grant:claimed", "call:suspended", "grant:resumed"]


async def test_f03_an_ungated_question_whose_answer_died_with_its_process_can_be_answered_again(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("asking")
    await paused(here.agent, run_id="r")
    here.child("resume", "tool", data=OSLO, brief=True).kill()
    here.overdue()
    assert await here.listed() == ["suspended"]

    events = await read(here.agent.resume_stream(OSLO, "r", user="ana"))

    assert only(events, "tool-result")["result"] == {"weather": "Oslo: sunny"}
    assert here.stage.ran == [("weather", None), ("weather", OSLO)]
    assert_over(here.stage)


async def test_f04_while_a_killed_process_may_still_be_at_an_answer_nobody_else_answers(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("asking")
    await paused(here.agent, run_id="r")
    here.child("resume", "tool", data=OSLO).kill()

    code = await code_of(here.agent.resume_stream(OSLO, "r", user="ana").result())

    assert (code, here.stage.ran, here.stage.stored()) == ("call-not-suspended", [("weather", None)], 1)


async def test_f04_after_a_kill_between_the_last_result_and_the_model_another_process_goes_on(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    here.child("approve", "model", brief=True).kill()
    here.overdue()
    assert (here.states(), here.stage.stored(), await here.listed()) == ([], 1, ["interrupted"])

    events = await here.go_on()

    assert [kind for kind in types(events) if kind.startswith("tool-")] == ["tool-result"]
    assert (types(events)[-1], len(model.calls), results(model.calls[-1])) == ("finish", 2, [("c1", '{"ok":true}')])
    assert here.stage.ran == []
    assert trail(here.stage) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert_over(here.stage)


async def test_f04_while_the_lease_of_a_killed_process_lasts_nobody_else_asks_the_model(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    here.child("approve", "model").kill()

    with pytest.raises(AgentError) as caught:
        await here.go_on()

    assert caught.value.code == "run-busy"
    assert (len(model.calls), here.stage.stored(), await here.listed()) == (1, 1, [])


@pytest.mark.parametrize("point", ["inner", "model"])
async def test_f10_after_a_kill_while_a_sub_agent_goes_on_another_process_goes_on_with_it(
    scene: Callable[[str], Scene], point: str
) -> None:
    here = scene("inner")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    here.child("approve", point, brief=True).kill()
    here.overdue()
    assert (here.states(), await here.listed()) == ([], ["interrupted"])

    events = await here.go_on()

    assert results(model.calls[-1]) == [("d1", "inner done")]
    assert (types(events)[-1], len(model.calls)) == ("finish", 2)
    assert here.stage.ran == []
    assert trail(here.stage) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert_over(here.stage)


async def test_f10_a_sub_agents_call_whose_process_was_killed_is_in_doubt(scene: Callable[[str], Scene]) -> None:
    here = scene("inner")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    here.child("approve", "tool", brief=True).kill()
    here.overdue()

    events = await here.go_on()

    assert results(model.calls[-1]) == [("d1", "inner done")]
    assert types(events).count("tool-output<tool-error>") == 1
    assert (here.stage.ran, here.states()) == ([], ["in_doubt"])


async def test_f04_a_process_that_wakes_up_late_records_its_result_and_changes_nothing_else(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    model: Any = here.agent.model
    await paused(here.agent, run_id="r")
    late = here.child("approve", "effect", brief=True)
    here.overdue()
    await here.go_on()
    assert (here.states(), results(model.calls[-1])) == (["in_doubt"], [("c1", IN_DOUBT)])

    late.say("go")
    told = late.hear()

    assert (told["told"], told["models"], told["ran"]) == ("run-busy", 0, [["delete", {"id": "1"}]])
    assert trail(here.stage) == ["request:approved", "grant:claimed", "call:succeeded"]
    assert (here.stage.ran, len(model.calls)) == ([], 2)
    assert_over(here.stage)


async def test_f04_a_process_that_wakes_up_after_its_lease_does_not_end_the_run_a_second_time(
    scene: Callable[[str], Scene]
) -> None:
    here = scene("one")
    await paused(here.agent, run_id="r")
    late = here.child("approve", "model", brief=True)
    here.overdue()
    await here.go_on()

    late.say("go")
    told = late.hear()

    assert told["told"] in ("run-busy", "run-not-found")
    assert "finish" not in told["types"]
    assert_over(here.stage)
