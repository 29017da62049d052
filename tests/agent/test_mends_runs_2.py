"""What a run that waits keeps: messages once, what still waits, leases of those at work, calls it cannot go on with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.auto import RESUME_TOOL
from hitl_guard.agent.history import UNANSWERED
from hitl_guard.errors import PausedError, StoreUnavailableError
from hitl_guard.lifecycle.settings import Settings
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ALL_STATES, ONE, TWO, Failing, Script, assert_over, code_of, paused, results
from tests.agent.stage import Stage, only, read, types
from tests.support import BOB, CAROL, OPERATOR, document, eventually, until

ASK: list[tuple[str, str, Any]] = [("c1", "weather", {})]
ROME = {"location": "Rome"}
ANSWER = [("answer", RESUME_TOOL, {"resumeData": ROME})]
LEASE = 600
"""Of these tests, in milliseconds: long enough to be prolonged on a busy machine."""


async def passes(stage: Stage, ms: int) -> None:
    """Return when that much time has passed by the database's clock; whatever else goes on here goes on."""
    end = stage.store.now() + ms
    await eventually(lambda: stage.store.now() >= end)


def gated(stage: Stage, *turns: Any, **options: Any) -> Agent:
    """Return an agent that makes two calls which a person must approve."""
    return Agent("shop", model=Script([ONE, TWO], *turns), tools=[stage.tool(require_approval=True, **options)],
                 guard=stage.guard)


def waiting(result: Any) -> tuple[str | None, list[str]]:
    """Return the call that a result names, and all that wait."""
    return (result.suspend_payload or {}).get("toolCallId"), [pause["toolCallId"] for pause in result.pauses]


# -- messages that answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["Rome, please.", "Rome, I said."], ids=["same-words", "other-words"])
async def test_a_message_that_was_refused_while_its_tool_is_paused_is_not_kept_and_the_one_that_answers_stands_once(
    stage: Stage, again: str
) -> None:
    agent = stage.agent(
        ASK, ANSWER, ANSWER, "Sunny.", tools=[stage.asking(auto_resume=True)], memory=True,
        auto_resume_suspended_tools=True,
    )
    run_id = (await agent.generate("go", user="ana", thread_id="t")).run_id
    stage.guard.pause(by=OPERATOR, tool="weather")
    with pytest.raises(PausedError):
        await agent.generate("Rome, please.", user="ana", thread_id="t")
    stage.guard.resume(by=OPERATOR, tool="weather")

    end = await agent.generate(again, user="ana", thread_id="t")

    assert (end.run_id, end.status, stage.ran) == (run_id, "success", [("weather", None), ("weather", ROME)])
    assert [(one["role"], one["content"]) for one in await agent.recall("t", user="ana")] == [
        ("user", "go"), ("assistant", None), ("tool", '{"weather":"Rome: sunny"}'), ("user", again),
        ("assistant", "Sunny."),
    ]


# -- what still waits ------------------------------------------------------------------------------------------------


async def test_after_one_of_two_decisions_the_result_tells_what_still_waits(stage: Stage) -> None:
    agent = gated(stage, "done")
    first = await agent.generate("go", user="ana")

    nothing = await agent.continue_generate(first.run_id, user="ana")
    decided = await agent.approve_tool_call_generate(first.run_id, "c2", approver=BOB)
    still = await agent.continue_generate(first.run_id, user="ana")
    end = await agent.approve_tool_call_generate(first.run_id, approver=BOB)

    assert [waiting(one) for one in (first, nothing)] == [("c2", ["c1", "c2"])] * 2
    assert [waiting(one) for one in (decided, still)] == [("c1", ["c1"])] * 2
    assert [one.status for one in (nothing, decided, still)] == ["suspended"] * 3
    assert (still.suspend_payload or {})["approvalId"] == first.pauses[0]["approvalId"]
    assert (waiting(end), end.status) == ((None, []), "success")


async def test_after_the_first_of_two_people_the_result_tells_that_the_call_still_waits(stage: Stage) -> None:
    there = Stage(stage.store, policy=document())
    agent = there.agent([("c1", "wire", {"id": "1"})], "done", tools=[there.tool("wire")])
    first = await agent.generate("go", user="ana")

    half = await agent.approve_tool_call_generate(first.run_id, approver=BOB)
    still = await agent.continue_generate(first.run_id, user="ana")
    end = await agent.approve_tool_call_generate(first.run_id, approver=CAROL)

    assert [(one.status, waiting(one)) for one in (half, still)] == [("suspended", ("c1", ["c1"]))] * 2
    assert {one.pauses[0]["approvalId"] for one in (half, still)} == {first.pauses[0]["approvalId"]}
    assert (end.status, end.pauses, there.ran) == ("success", [], [("wire", {"id": "1"})])


# -- leaving early, and leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["tool-call-resumed", "tool-result", "step-start", "text-delta"])
async def test_a_stream_that_is_left_early_is_closed_and_another_process_goes_on_at_once(stage: Stage, at: str) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool(require_approval=True)])
    model: Any = agent.model
    run_id = await paused(agent)

    async with agent.approve_tool_call(run_id, approver=BOB) as stream:
        async for event in stream:
            if event["type"] == at:
                break
    with elsewhere(stage) as there:
        other = Agent("shop", model=Script([ONE], "elsewhere"), tools=[there.tool(require_approval=True)],
                      guard=there.guard)
        end = await other.continue_generate(run_id, user="ana")

    asked = len(model.calls)
    assert (stream.status, await read(stream), (await stream.result()).status) == ("closed", [], "closed")
    assert len(model.calls) == asked
    assert (end.status, end.text, stage.ran) == ("success", "elsewhere", [("delete", {"id": "1"})])
    assert_over(stage)


async def test_a_new_run_that_is_left_early_starts_nothing_more(stage: Stage) -> None:
    agent = stage.agent([ONE], "done", tools=[stage.tool()])
    model: Any = agent.model

    async with agent.stream("go", user="ana") as stream:
        assert (await anext(stream))["type"] == "start"

    assert (stream.status, await read(stream)) == ("closed", [])
    assert (model.calls, stage.ran, stage.stored()) == ([], [], 0)


class Slow:
    """An agent in whose resumed run something takes three times a lease, and then does ``meanwhile``.

    Args:
        where: What takes so long: the ``model``, a ``tool`` that needs nobody, or one that goes on with an ``answer``.
    """

    def __init__(self, stage: Stage, where: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._stage, self._where, self._meanwhile = stage, where, meanwhile
        turns: list[Any] = ["done"] if where == "model" else [[("l1", "look", {"id": "1"})], "done"]
        self._script = Script(ASK if where == "answer" else [ONE], *(turns[-1:] if where == "answer" else turns))
        self.agent = Agent("shop", model=self._model, guard=stage.guard, tools=[
            stage.tool(require_approval=True), Tool("look", execute=self._look), stage.asking(execute=self._asks),
        ])

    async def _wait(self) -> None:
        await passes(self._stage, 3 * LEASE)
        await self._meanwhile()

    async def _model(self, messages: Any, tools: Any, settings: Any) -> Any:
        if self._where == "model" and messages[-1]["role"] == "tool":
            await self._wait()
        return await self._script(messages, tools, settings)

    async def _look(self, _: Any) -> str:
        await self._wait()
        return "seen"

    async def _asks(self, _: Any, context: Any) -> str:
        if context.resume_data is None:
            context.suspend()
            return ""
        await self._wait()
        return "sunny"


@pytest.mark.parametrize("where", ["model", "tool", "answer"])
async def test_whoever_is_at_work_in_a_resumed_run_keeps_its_lease_however_long_that_takes(
    stage: Stage, where: str
) -> None:
    codes: list[str] = []
    with elsewhere(stage, settings=Settings(run_within=LEASE)) as here, elsewhere(stage) as there:
        async def meanwhile() -> None:
            if where == "answer":
                codes.append(await code_of(other.resume_generate(ROME, "r", user="ana")))
            else:
                codes.append(await code_of(other.continue_generate("r", user="ana")))

        other = Slow(there, "", meanwhile).agent
        agent = Slow(here, where, meanwhile).agent
        await paused(agent, run_id="r")

        if where == "answer":
            end = await agent.resume_generate(ROME, "r", user="ana")
        else:
            end = await agent.approve_tool_call_generate("r", approver=BOB)

    assert codes == ["call-not-suspended" if where == "answer" else "run-busy"]
    assert (end.status, end.text) == ("success", "done")
    assert_over(stage)


async def test_a_reader_that_does_not_come_back_keeps_the_run_no_longer_than_its_lease(stage: Stage) -> None:
    with elsewhere(stage, settings=Settings(run_within=LEASE)) as here, elsewhere(stage) as there:
        agents = [
            Agent("shop", model=Script([ONE], text), tools=[one.tool(require_approval=True)], guard=one.guard)
            for one, text in ((here, "late"), (there, "in time"))
        ]
        await paused(agents[0], run_id="r")
        stream = agents[0].approve_tool_call("r", approver=BOB)
        while (await anext(stream))["type"] != "tool-result":
            pass

        await passes(here, 3 * LEASE)
        end = await agents[1].continue_generate("r", user="ana")
        late = await code_of(stream.result())

    assert (end.status, end.text, late) == ("success", "in time", "run-busy")
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


# -- what cannot be stored, and what cannot go on --------------------------------------------------------------------


async def test_a_call_that_the_policy_approved_and_that_suspends_unstored_is_in_doubt_and_not_suspended_for_ever(
    stage: Stage
) -> None:
    there = Stage(stage.store, policy="approved", settings=Settings(run_within=LEASE))
    agent = there.agent(ASK, tools=[there.asking()])
    store = Failing(there, "write", at=2)  # after the control row and the claim

    with pytest.raises(StoreUnavailableError):
        await agent.generate("go", user="ana")
    store.mend()

    (request,) = there.guard.pending(states=ALL_STATES)
    assert (len(store.used), there.ran, there.stored()) == (3, [("weather", None)], 0)
    assert request.state in ("executing", "in_doubt")
    until(stage.store, stage.store.now() + LEASE + 1)
    assert there.guard.get(request.id).state == "in_doubt"


def delegating(stage: Stage, *, clerk: bool = True) -> Agent:
    """Return a supervisor that delegates to a clerk, who makes one gated call, and makes another such call itself."""
    tools = [stage.tool(require_approval=True)]
    agents = [Agent("clerk", model=Script([ONE], "inner done"), tools=tools, guard=stage.guard)] if clerk else []
    model = Script([("d1", "agent-clerk", {"prompt": "go"}), TWO], "all done")
    return Agent("shop", model=model, tools=tools, agents=agents, guard=stage.guard)


async def test_what_waits_inside_a_sub_agent_that_is_missing_here_goes_on_waiting_when_a_sibling_is_approved(
    stage: Stage
) -> None:
    agent = delegating(stage)
    model: Any = agent.model
    first = await agent.generate("go", user="ana")
    pauses = {pause["toolCallId"]: pause["approvalId"] for pause in first.pauses}

    with elsewhere(stage) as there:
        decided = await delegating(there, clerk=False).approve_tool_call(first.run_id, pauses["c2"], approver=BOB)
    state = stage.guard.get(pauses["d1"]).state
    end = await agent.approve_tool_call(first.run_id, pauses["d1"], approver=BOB)

    assert (decided.status, waiting(decided), state) == ("suspended", ("d1", ["d1"]), "pending")
    assert (end.status, end.text) == ("success", "all done")
    assert stage.ran == [("delete", {"id": "2"}), ("delete", {"id": "1"})]
    assert results(model.calls[-1]) == [("d1", "inner done"), ("c2", '{"ok":true}')]
    assert_over(stage)


async def test_what_is_addressed_inside_a_sub_agent_that_is_missing_here_ends_as_an_error(stage: Stage) -> None:
    first = await delegating(stage).generate("go", user="ana")
    pauses = {pause["toolCallId"]: pause["approvalId"] for pause in first.pauses}

    with elsewhere(stage) as there:
        alone = delegating(there, clerk=False)
        addressed = await alone.approve_tool_call(first.run_id, pauses["d1"], approver=BOB)
        events = await read(alone.approve_tool_call(first.run_id, pauses["c2"], approver=BOB))

    assert waiting(addressed) == ("c2", ["c2"])
    assert only(events, "tool-error")["error"]["name"] == "AgentNotFoundError"
    assert (types(events)[-1], stage.ran, stage.stored()) == ("finish", [("delete", {"id": "2"})], 0)


# -- calls of a client's tools that nobody answered --------------------------------------------------------------------


async def test_a_call_of_the_clients_tool_that_the_user_passed_over_has_an_answer_in_what_the_model_reads(
    stage: Stage
) -> None:
    calls: list[Any] = [("c1", "look", {"id": "1"}), ("c2", "look", {"id": "1"})]
    agent = stage.agent(calls, "Well.", "Bye.", tools=[stage.tool("look", execute=None)], memory=True)
    model: Any = agent.model
    await agent.generate("go", user="ana", thread_id="t")

    await agent.generate(
        [{"content": "seen", "role": "tool", "tool_call_id": "c2"}, {"content": "And?", "role": "user"}],
        user="ana", thread_id="t",
    )
    await agent.generate("Bye.", user="ana", thread_id="t")

    for asked in model.calls[1:]:
        assert [(one["role"], one.get("tool_call_id")) for one in asked[:5]] == [
            ("user", None), ("assistant", None), ("tool", "c2"), ("tool", "c1"), ("user", None),
        ]
        assert asked[3]["content"] == UNANSWERED
    assert [one["role"] for one in await agent.recall("t", user="ana")].count("tool") == 1


async def test_a_call_of_the_clients_tool_that_was_answered_gets_no_second_answer(stage: Stage) -> None:
    agent = stage.agent([("c1", "look", {"id": "1"})], "Fine.", tools=[stage.tool("look", execute=None)], memory=True)
    model: Any = agent.model
    await agent.generate("go", user="ana", thread_id="t")

    await agent.generate([{"content": "seen", "role": "tool", "tool_call_id": "c1"}], user="ana", thread_id="t")

    assert [(one["role"], one["content"]) for one in model.calls[1]] == [
        ("user", "go"), ("assistant", None), ("tool", "seen"),
    ]
