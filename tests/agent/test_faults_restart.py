"""F7: after a restart a waiting run is found, with all that it needs. F8: what is visible can be decided at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool, snapshots
from hitl_guard.agent.state import Call
from hitl_guard.errors import ConfigurationError, StoreUnavailableError
from hitl_guard.store.base import AddRequest, AddSegment, PutRun
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, Failing, Script, approvals, assert_over, code_of, noticed, results
from tests.agent.processes import inner, one
from tests.agent.stage import Stage, only, read, types
from tests.support import BOB

MakeStage = Callable[..., Stage]
ARGS: dict[str, Any] = {
    "text": "a\u0000b \u202e ünï 😀 \"q\" \\ </script>", "big": 2**70, "small": -0.0, "float": 1.5, "none": None,
    "nested": {"list": [[], {}, [1, 2.25, "x"]], "": "empty key"}, "yes": True, "zero": 0,
}
IDS = ["r", "r" * 64, "läuft/../#1 'x'; DROP TABLE runs; --", "\u202e\U0001f600", " ", "r\n\t\x00"]


async def comes_back(stage: Stage, *, run_id: str = "r", args: Any = None) -> None:
    """Start a run, forget everything about it but the database, and go on with it."""
    given = {"id": "1"} if args is None else args
    context = {"shop": "nord", "nested": [1, {"a": None}]}
    seen: list[Any] = []

    def build(here: Stage) -> Agent:
        def execute(taken: Any, info: Any) -> str:
            seen.append((taken, info.request_context, info.user, info.tenant, info.tool_call_id))
            return "deleted"

        tool = Tool("delete", execute=execute, require_approval=True)
        return Agent("shop", model=Script([("c1", "delete", given)], "done"), tools=[tool], guard=here.guard)

    await build(stage).generate(
        [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], user="ana", run_id=run_id,
        request_context=context, settings={"temperature": 0.5},
    )
    with elsewhere(stage) as there:
        agent = build(there)
        model: Any = agent.model
        runs = (await agent.list_suspended_runs(user="ana")).runs
        assert [(found.run_id, [call.args for call in found.tool_calls]) for found in runs] == [(run_id, [given])]
        code = await code_of(agent.approve_tool_call(run_id, approver=BOB).result())

    assert code == "ok"
    assert seen == [(given, context, "ana", "default", "c1")]
    assert [message["content"] for message in model.calls[-1] if message["role"] == "user"] == ["one", "two"]
    assert results(model.calls[-1]) == [("c1", "deleted")]
    assert_over(stage)


async def test_f07_a_check_of_restarts_notices_arguments_that_are_not_restored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Call.to_json
    monkeypatch.setattr(Call, "to_json", lambda call: real(call) | {"args": {}})

    await noticed(comes_back(stage))


async def test_f07_a_check_of_restarts_notices_runs_whose_ids_cannot_be_looked_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = snapshots.Snapshots.load
    monkeypatch.setattr(
        snapshots.Snapshots, "load",
        lambda here, tenant, run_id: None if len(run_id) > 32 else real(here, tenant, run_id),
    )

    await noticed(comes_back(stage, run_id=IDS[1]))


async def test_f07_a_run_comes_back_with_its_arguments_its_context_and_its_conversation(make_stage: MakeStage) -> None:
    await comes_back(make_stage(), args=ARGS)


@pytest.mark.parametrize("run_id", IDS, ids=["short", "longest", "hostile", "bidi", "blank", "control"])
async def test_f07_a_run_that_could_be_started_can_be_found_again(make_stage: MakeStage, run_id: str) -> None:
    await comes_back(make_stage(), run_id=run_id)


async def test_f07_a_run_that_could_not_be_found_again_is_not_started(stage: Stage) -> None:
    with pytest.raises(ConfigurationError):
        one(stage).stream("go", user="ana", run_id="r" * 65)


@pytest.mark.parametrize("run_id", ["", "r" * 513, "\ud800", None, 7, b"r"])
async def test_f07_what_is_no_run_id_is_no_run(stage: Stage, run_id: Any) -> None:
    agent = one(stage)

    assert await code_of(agent.continue_stream(run_id, user="ana").result()) == "run-not-found"
    assert await code_of(agent.approve_tool_call(run_id, approver=BOB).result()) == "run-not-found"


async def test_f07_a_tool_that_is_gone_after_a_restart_is_a_tool_error_and_the_run_goes_on(
    make_stage: MakeStage
) -> None:
    stage = make_stage()
    await one(stage).generate("go", user="ana", run_id="r")

    with elsewhere(stage) as there:
        model = Script([ONE], "done")
        agent = Agent("shop", model=model, tools=[there.tool("other")], guard=there.guard)
        (listed,) = (await agent.list_suspended_runs(user="ana")).runs
        events = await read(agent.approve_tool_call("r", approver=BOB))

    assert listed.tool_calls[0].args == {"id": "1"}
    error = only(events, "tool-error")["error"]
    assert error["name"] == "ToolNotFoundError"
    assert error["message"].startswith('Tool "delete" not found. Available tools: other.')
    assert (types(events)[-1], stage.ran, len(model.calls)) == ("finish", [], 1)
    assert stage.stored() == 0


async def test_f07_a_sub_agent_that_is_gone_after_a_restart_is_a_tool_error_and_the_run_goes_on(
    make_stage: MakeStage
) -> None:
    stage = make_stage()
    await inner(stage).generate("go", user="ana", run_id="r")

    with elsewhere(stage) as there:
        model = Script([("d1", "agent-clerk", {"prompt": "go"})], "done")
        agent = Agent("shop", model=model, guard=there.guard)
        (listed,) = (await agent.list_suspended_runs(user="ana")).runs
        events = await read(agent.decline_tool_call("r", approver=BOB))

    assert listed.tool_calls[0].tool_name == "delete"
    assert only(events, "tool-error")["error"]["name"] in ("AgentNotFoundError", "ToolNotFoundError")
    assert (types(events)[-1], stage.ran) == ("finish", [])


@pytest.mark.parametrize("scene", [one, inner], ids=["own", "sub-agent"])
async def test_f07_a_run_is_listed_by_its_user_its_thread_and_its_resource_from_anywhere(
    make_stage: MakeStage, scene: Callable[[Stage], Agent]
) -> None:
    stage = make_stage()
    base = scene(stage)
    agent = Agent(
        "shop", model=base.model, tools=base.tools, agents=base._sub_agents.values(), guard=stage.guard, memory=True
    )
    await agent.generate("go", user="ana", run_id="r", thread_id="t\u0000", resource_id="house/7")

    with elsewhere(stage) as there:
        other = scene(there)
        filters: list[dict[str, Any]] = [
            {}, {"thread_id": "t\u0000"}, {"resource_id": "house/7"}, {"thread_id": "t"}, {"resource_id": "ana"},
        ]
        found = [
            [run.run_id for run in (await other.list_suspended_runs(user="ana", **one_)).runs] for one_ in filters
        ]

    assert found == [["r"], ["r"], ["r"], [], []]


# -- F8 ----------------------------------------------------------------------------------------------------------------


class _Watching:
    """A store on which somebody decides the moment that a request is in the database, before its writer knows."""

    def __init__(self, stage: Stage, *, in_two: bool) -> None:
        self._stage, self._store, self._in_two = stage, stage.store, in_two
        self.code = ""
        stage.guard._desk.store = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, steps: Any, seal: Any) -> Any:
        asks = [step for step in steps if isinstance(step, AddRequest)]
        if not asks or self.code:
            return self._store.write(steps, seal)
        first = [step for step in steps if not (self._in_two and isinstance(step, (PutRun, AddSegment)))]
        written = self._store.write(first, seal)
        self.code = asyncio.run(self._decide(asks[0].row.id))
        if self._in_two:
            self._store.write([step for step in steps if step not in first], seal)
        return written

    async def _decide(self, request_id: str) -> str:
        with elsewhere(self._stage) as there:
            assert [request.id for request in there.guard.pending()] == [request_id]
            return await code_of(one(there).approve_tool_call("r", request_id, approver=BOB).result())


async def can_be_decided_at_once(stage: Stage, *, in_two: bool = False) -> None:
    watching = _Watching(stage, in_two=in_two)

    events = await read(one(stage).stream("go", user="ana", run_id="r"))
    told = approvals(events)
    stage.guard._desk.store = stage.store

    assert watching.code == "ok"
    assert [ask["toolCallId"] for ask in told] == ["c1"]
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f08_a_check_of_early_decisions_notices_a_request_that_is_stored_before_its_run(stage: Stage) -> None:
    await noticed(can_be_decided_at_once(stage, in_two=True))


async def test_f08_a_request_can_be_decided_as_soon_as_it_is_visible_anywhere(make_stage: MakeStage) -> None:
    await can_be_decided_at_once(make_stage())


async def test_f08_nobody_is_told_of_a_pause_that_is_not_on_record(make_stage: MakeStage) -> None:
    stage = make_stage()
    failing = Failing(stage, "write", at=0, stays=True)
    told: list[dict[str, Any]] = []

    async def reading() -> None:
        async for event in one(stage).stream("go", user="ana"):
            told.append(event)

    with pytest.raises(StoreUnavailableError):
        await reading()

    failing.mend()
    assert types(told)[-1] == "tool-call"
    assert (len(stage.guard.pending()), stage.stored(), stage.ran) == (0, 0, [])


async def test_f08_a_decision_from_inside_the_reading_loop_is_accepted(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = one(stage)
    seen: list[str] = []

    async for event in agent.stream("go", user="ana", run_id="r"):
        seen.append(event["type"])
        if event["type"] == "tool-call-approval":
            seen += types(await read(agent.approve_tool_call("r", event["payload"]["approvalId"], approver=BOB)))

    assert seen[-1] == "finish"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)
