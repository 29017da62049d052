"""What a host's hooks are told right before and after a tool runs, and what they may do to it."""

from __future__ import annotations

from typing import Any

import pytest

from hitl_guard.agent import Hooks

from .elsewhere import elsewhere
from .stage import BOB, Stage, only, read
from .test_m_binding import DELETE, RAN, deleting, paused, told


class Log:
    """Hooks that note what they are told, and answer what they are given."""

    def __init__(self, answer: Any = None) -> None:
        self.before: list[dict[str, Any]] = []
        self.after: list[dict[str, Any]] = []
        self.answer = answer

    def hooks(self) -> Hooks:
        async def after(info: dict[str, Any]) -> None:
            self.after.append(info)

        def before(info: dict[str, Any]) -> Any:
            self.before.append(info)
            return self.answer

        return Hooks(before, after)


@pytest.mark.parametrize("where", ["request", "agent"])
async def test_m30_a_hook_runs_right_before_the_tool_and_not_while_it_waits(stage: Stage, where: str) -> None:
    log = Log()
    given: dict[str, Any] = {"hooks": log.hooks()}
    agent = deleting(stage, **(given if where == "agent" else {}))
    run_id, _ = await paused(agent, **(given if where == "request" else {}))
    assert log.before == []

    await agent.approve_tool_call_generate(run_id, approver=BOB)

    (before,), (after,) = log.before, log.after
    assert before.keys() == {"toolName", "input", "context", "metadata"}
    assert (before["toolName"], before["input"]) == RAN
    assert (before["metadata"], before["context"].run_id) == ({"agentId": "shop", "agentName": "shop"}, run_id)
    assert (after["input"], after["output"], after.keys() - before.keys()) == ({"id": "7"}, {"ok": True}, {"output"})


async def test_m30_a_hook_is_not_called_for_a_declined_call(stage: Stage) -> None:
    log = Log()
    agent = deleting(stage, hooks=log.hooks())
    run_id, _ = await paused(agent)

    await agent.decline_tool_call_generate(run_id, approver=BOB)

    assert (log.before, log.after, stage.ran) == ([], [], [])


@pytest.mark.parametrize("gated", [False, True], ids=["free", "gated"])
async def test_m30_a_hook_may_skip_the_tool_and_give_its_result(stage: Stage, gated: bool) -> None:
    log = Log({"proceed": False, "output": {"skipped": True}})
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=gated)], hooks=log.hooks())
    stream = agent.stream("go", user="ana")
    events = await read(stream)
    if gated:
        events = await read(agent.approve_tool_call(stream.run_id, approver=BOB))

    approval = {"id": "call-1", "approvalId": stream.pauses[0]["approvalId"], "approved": True} if gated else None
    assert only(events, "tool-result") == {
        "toolCallId": "call-1", "toolName": "delete", "args": {"id": "7"}, "result": {"skipped": True},
        **({} if approval is None else {"approval": approval}),
    }
    assert (told(agent), stage.ran, log.after) == (['{"skipped":true}'], [], [])


@pytest.mark.parametrize("answer", [None, {"proceed": True}], ids=["nothing", "proceed"])
async def test_m30_a_requests_hook_replaces_the_agents(stage: Stage, answer: Any) -> None:
    own, log = Log({"proceed": False, "output": "no"}), Log(answer)
    agent = stage.agent(DELETE, "done", tools=[stage.tool()], hooks=own.hooks())

    await agent.generate("go", user="ana", hooks=log.hooks())

    assert (own.before, len(log.before), stage.ran) == ([], 1, [RAN])


def failing(info: dict[str, Any]) -> Any:
    raise LookupError("no register")


FAULTS: dict[str, Any] = {
    "raises": failing, "false": lambda info: False, "text": lambda info: "stop",
    "no-proceed": lambda info: {"output": 1}, "zero": lambda info: {"proceed": 0},
    "no": lambda info: {"proceed": "no"},
}


@pytest.mark.parametrize("gated", [False, True], ids=["free", "gated"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_m30_a_hook_that_fails_or_says_something_else_stops_the_tool(
    stage: Stage, fault: str, gated: bool
) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool(require_approval=gated)], hooks=Hooks(FAULTS[fault]))
    result = await agent.generate("go", user="ana")
    approval_id = result.pauses[0]["approvalId"] if gated else ""
    if gated:
        result = await agent.approve_tool_call_generate(result.run_id, approver=BOB)

    error = result.tool_results[0]["payload"]["error"]
    assert error["name"] == ("LookupError" if fault == "raises" else "ConfigurationError")
    assert (result.status, stage.ran) == ("success", [])
    if gated:  # nothing is in doubt: the tool did not begin
        assert stage.guard.get(approval_id).state == "failed"


async def test_m30_a_hook_cannot_change_what_runs(stage: Stage) -> None:
    agent = stage.agent(DELETE, "done", tools=[stage.tool()], hooks=Hooks(lambda info: info["input"].update(id="8")))

    await agent.generate("go", user="ana")

    assert stage.ran == [RAN]


async def test_m30_where_a_requests_hooks_are_lost_every_later_call_needs_an_approval(stage: Stage) -> None:
    log = Log()
    run_id, _ = await paused(deleting(stage), hooks=log.hooks())

    with elsewhere(stage) as there:
        agent = there.agent([("call-2", "look", {"id": "8"})], tools=[there.tool(), there.tool("look")])
        events = await read(agent.approve_tool_call(run_id, approver=BOB))

    assert only(events, "tool-call-approval")["toolName"] == "look"
    assert (log.before, stage.ran) == ([], [RAN])
