"""Functions that say whether a call needs a person: what they are told, what they may say, where they are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard import Policy
from hitl_guard.agent import Agent, Tool, classifier_policy
from hitl_guard.policy.code import CallInfo, code_policy
from tests.support import document

from .elsewhere import DECLARED, asks_for_delete, elsewhere, in_another_process
from .stage import BOB, Event, Stage, only, read, types

MakeStage = Callable[..., Stage]
DELETE = [("call-1", "delete", {"id": "7"})]
LOOK = [("call-2", "look", {"id": "8"})]
WHERE = ("request", "agent")


def asked(events: list[Event]) -> list[str]:
    """Return the names of the tools of the approvals among events."""
    return [event["payload"]["toolName"] for event in events if event["type"] == "tool-call-approval"]


async def begun(stage: Stage, policy: Any, *turns: Any, where: str = "request", **options: Any) -> tuple[Agent, Any]:
    """Start a run under a function policy of the request or of the agent; return the agent and the first result."""
    settings = {} if policy is None else {"require_tool_approval": policy}
    tools = options.pop("tools", None) or [stage.tool(), stage.tool("look")]
    agent = stage.agent(*turns, tools=tools, **(settings if where == "agent" else {}))
    return agent, await agent.generate("go", user="ana", **(settings if where == "request" else {}), **options)


def names(result: Any) -> list[str]:
    """Return the names of the tools that wait for an approval."""
    return [pause["toolName"] for pause in result.pauses]


# -- M20 to M23 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_m20_a_function_is_evaluated_once_for_each_call(stage: Stage, where: str, kind: str) -> None:
    seen: list[str | None] = []

    def policy(info: CallInfo) -> bool:
        seen.append(info.tool_call_id)
        return info.tool_name == "delete"

    async def awaited(info: CallInfo) -> bool:
        await asyncio.sleep(0)
        return policy(info)

    agent, paused = await begun(stage, policy if kind == "sync" else awaited, LOOK, DELETE,
                                [("call-3", "look", {"id": "9"})], "done", where=where)
    assert (names(paused), seen) == (["delete"], ["call-2", "call-1"])
    ended = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert (ended.status, seen) == ("success", ["call-2", "call-1", "call-3"])
    assert [given["id"] for _, given in stage.ran] == ["8", "7", "9"]


@pytest.mark.parametrize("where", WHERE)
async def test_m20_a_policy_object_that_reads_as_empty_is_asked_all_the_same(stage: Stage, where: str) -> None:
    class Rules(dict[str, bool]):
        def __call__(self, *_: Any) -> bool:
            return self.get("default", True)

    _, paused = await begun(stage, Rules(), DELETE, where=where)
    _, by_tool = await begun(stage, None, DELETE, tools=[stage.tool(require_approval=Rules())])

    assert (names(paused), names(by_tool), stage.ran) == (["delete"], ["delete"], [])


class Order(BaseModel):
    id: str
    copies: int = 7


async def test_m21_functions_get_name_arguments_context_and_workspace_of_their_own(stage: Stage) -> None:
    told: list[Any] = []

    def request(info: CallInfo) -> bool:
        told.append((info.tool_name, dict(info.args), dict(info.request_context), info.workspace))
        info.args["id"] = info.request_context["role"] = "changed"
        return False

    def tool(arguments: dict[str, Any], info: CallInfo) -> bool:
        told.append((dict(arguments), dict(info.args), dict(info.request_context), info.workspace))
        arguments["id"] = "changed"
        return True

    context = {"role": "admin", "workspace": "north"}
    tools = [stage.tool("print", input_schema=Order), stage.tool("send", input_schema=Order, require_approval=tool)]
    calls = [("call-1", "print", {"id": "1"}), ("call-2", "send", {"id": "2"})]
    agent, paused = await begun(stage, request, calls, "done", tools=tools, request_context=context)
    await agent.approve_tool_call_generate(paused.run_id, approver=BOB)
    await begun(stage, request, [calls[0]], "done", tools=tools)

    assert sorted(told, key=str) == sorted([
        ("print", {"id": "1"}, context, "north"), ({"id": "2"}, {"id": "2"}, context, "north"),
        ("print", {"id": "1"}, {}, None),
    ], key=str)
    assert {"tool_name", "args", "request_context"} <= {one.name for one in fields(CallInfo)}
    assert paused.pauses[0]["args"] == {"id": "2"}
    assert [given for _, given in stage.ran] == [Order(id="1"), Order(id="2"), Order(id="1")]


async def test_m21_an_answer_to_a_suspension_is_not_among_the_arguments(stage: Stage) -> None:
    told: list[dict[str, Any]] = []

    def policy(info: CallInfo) -> bool:
        told.append(info.args)
        return info.tool_name != "weather"

    calls = [("call-1", "weather", {"unit": "C"})]
    agent, paused = await begun(stage, policy, calls, "done", tools=[stage.asking()])
    ended = await agent.resume_generate({"location": "Rome"}, paused.run_id, user="ana")

    assert (ended.status, stage.ran[-1]) == ("success", ("weather", {"location": "Rome"}))
    assert all(args == {"unit": "C"} for args in told)


@pytest.mark.parametrize(("answer", "asks"), [(True, True), (False, False), (None, False)], ids=repr)
async def test_m22_true_asks_false_lets_run_and_nothing_else_is_decided(stage: Stage, answer: Any, asks: bool) -> None:
    agent, result = await begun(stage, lambda info: answer, DELETE, "done")

    assert (names(result), len(stage.ran)) == ((["delete"], 0) if asks else ([], 1))
    if asks:
        assert stage.guard.get(result.pauses[0]["approvalId"]).votes == ()
        await agent.approve_tool_call_generate(result.run_id, approver=BOB)
    assert len(stage.ran) == 1


@pytest.mark.parametrize("status", ["user-approval", "denied"])
async def test_m22_false_lifts_nothing_that_the_guards_policy_demands(make_stage: MakeStage, status: str) -> None:
    effect = "deny" if status == "denied" else "require_approval"
    rule = f"  - id: strict\n    tools: [delete]\n    effect: {effect}\n"
    stage = make_stage(policy=document(f"version: 1\nname: strict\ndefault: not_applicable\nrules:\n{rule}"))

    _, result = await begun(
        stage, lambda info: False, DELETE, "done", tools=[stage.tool(require_approval=lambda arguments, info: False)]
    )

    assert (names(result), stage.ran) == (["delete"] if status == "user-approval" else [], [])
    assert result.status == ("suspended" if status == "user-approval" else "success")


async def raising_async(info: CallInfo) -> bool:
    raise LookupError("no answer")


async def endless(info: CallInfo) -> bool:
    await asyncio.Event().wait()
    return False


async def cancelled(info: CallInfo) -> bool:
    raise asyncio.CancelledError


FAULTS: dict[str, Callable[[CallInfo], Any]] = {
    "raises": lambda info: 1 / 0, "raises-async": raising_async, "time-out": endless, "cancelled": cancelled,
    "one": lambda info: 1, "zero": lambda info: 0, "text": lambda info: "no", "empty": lambda info: "",
    "status": lambda info: "approved", "list": lambda info: [], "type": lambda info: bool,
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fault", FAULTS)
async def test_m23_a_function_that_fails_or_answers_anything_else_asks_a_person(
    stage: Stage, fault: str, where: str
) -> None:
    stage = Stage(stage.store, policy=Policy(tool_approval="not-applicable", timeout_s=0.01))

    agent, paused = await begun(stage, FAULTS[fault], DELETE, "done", where=where)

    assert (names(paused), stage.ran) == (["delete"], [])
    ended = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)
    assert (ended.status, len(stage.ran)) == ("success", 1)


# -- M24, M25 --------------------------------------------------------------------------------------------------------


async def says_true(*_: Any) -> bool:
    return True


async def says_false(*_: Any) -> bool:
    return False


SETTINGS: dict[str, Any] = {
    "none": None, "true": True, "false": False, "fn-true": lambda info: True, "fn-false": lambda info: False,
    "fn-raises": lambda info: 1 / 0, "fn-async-true": lambda info: says_true(), "fn-text": lambda info: "yes",
    "fn-none": lambda info: None,
}
TOOLS: dict[str, Any] = {
    "none": None, "true": True, "false": False, "fn-true": lambda arguments, info: True,
    "fn-false": lambda arguments, info: False, "fn-raises": lambda arguments, info: 1 / 0,
    "fn-async-false": lambda arguments, info: says_false(), "fn-none": lambda arguments, info: None,
}
ASKS = {  # one column for each of TOOLS
    "none": ".x.x.x..", "true": "xxxx.x..", "false": ".x.x.x..", "fn-true": "xxxx.x..", "fn-false": ".x.x.x..",
    "fn-raises": "xxxx.x..", "fn-async-true": "xxxx.x..", "fn-text": "xxxx.x..", "fn-none": ".x.x.x..",
}


def every_tool(stage: Stage) -> list[Tool]:
    return [stage.tool(f"tool-{name}", require_approval=setting) for name, setting in TOOLS.items()]


def expected(setting: str, *, booleans: bool) -> dict[str, bool]:
    """Return which tools ask under a setting of the request, of those with a boolean or of those with a function."""
    return {
        f"tool-{name}": mark == "x" for name, mark in zip(TOOLS, ASKS[setting], strict=True)
        if name.startswith("fn") is not booleans
    }


async def outcomes(stage: Stage, setting: str, where: str) -> dict[str, bool]:
    """Return which of the tools asked, each called in a run of its own; no tool did both, or neither."""
    found: dict[str, bool] = {}
    for tool in every_tool(stage):
        stage.ran.clear()
        calls = [("call-1", tool.name, {"id": "1"})]
        _, result = await begun(stage, SETTINGS[setting], calls, "done", tools=[tool], where=where)
        assert (names(result) == [tool.name]) is not bool(stage.ran)
        found[tool.name] = not stage.ran
    return found


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("setting", SETTINGS)
async def test_m24_the_verdict_is_combined_with_the_tools_boolean_by_or(stage: Stage, setting: str, where: str) -> None:
    found = await outcomes(stage, setting, where)

    assert expected(setting, booleans=True).items() <= found.items()


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("setting", SETTINGS)
async def test_m25_a_tools_own_function_replaces_the_combined_verdict(stage: Stage, setting: str, where: str) -> None:
    found = await outcomes(stage, setting, where)

    assert expected(setting, booleans=False).items() <= found.items()


async def test_m25_in_one_batch_each_tools_function_decides_for_that_tool_alone(stage: Stage) -> None:
    tools = every_tool(stage)
    agent = stage.agent([(one.name, one.name, {"id": "1"}) for one in tools], "done", tools=tools)

    paused = await agent.generate("go", user="ana", require_tool_approval=True)

    asks = {name for name, mark in zip((one.name for one in tools), ASKS["true"], strict=True) if mark == "x"}
    assert set(names(paused)) == asks
    assert {name for name, _ in stage.ran} == {one.name for one in tools} - asks


# -- M26 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("answer", "asks"), [(0.69, False), (0.7, True), ({"probability": 0.1}, False), ({}, True), (None, True)], ids=repr
)
async def test_m26_a_classifier_is_asked_with_names_and_from_the_threshold_on_a_person(
    stage: Stage, answer: Any, asks: bool, where: str
) -> None:
    questions: list[Any] = []

    async def classify(question: dict[str, Any]) -> Any:
        questions.append(question)
        return answer

    agent, result = await begun(stage, classifier_policy(classify), DELETE, "done", where=where)

    assert questions == [{"tool_name": "delete", "argument_names": ["id"]}]
    assert (names(result), len(stage.ran)) == ((["delete"], 0) if asks else ([], 1))
    if asks:
        assert (await agent.approve_tool_call_generate(result.run_id, approver=BOB)).status == "success"


# -- M27 -------------------------------------------------------------------------------------------------------------


async def cold(stage: Stage, run_id: str, **options: Any) -> tuple[list[Event], str]:
    """Approve the call of a run in another process, where the model calls ``look`` next; return what happened."""
    with elsewhere(stage) as there:
        agent = there.agent(LOOK, "done", tools=[there.tool(), there.tool("look")], **options)
        stream = agent.approve_tool_call(run_id, approver=BOB)
        return await read(stream), stream.status


async def test_m27_a_warm_resume_evaluates_the_function(stage: Stage) -> None:
    agent, paused = await begun(stage, asks_for_delete, DELETE, LOOK, DELETE, "done")

    again = await agent.approve_tool_call_generate(paused.run_id, approver=BOB)

    assert (names(again), [name for name, _ in stage.ran]) == (["delete"], ["delete", "look"])


async def test_m27_after_a_cold_resume_every_later_call_needs_an_approval(make_stage: MakeStage) -> None:
    stage = make_stage()
    _, paused = await begun(stage, asks_for_delete, DELETE)

    events, status = await cold(stage, paused.run_id)

    assert (asked(events), status) == (["look"], "suspended")
    assert [name for name, _ in stage.ran] == ["delete"]


@pytest.mark.parametrize("tool", [True, False], ids=["tool-true", "tool-false"])
async def test_m27_a_boolean_survives_a_cold_resume(stage: Stage, tool: bool) -> None:
    _, paused = await begun(stage, not tool, DELETE, tools=[stage.tool(require_approval=tool), stage.tool("look")])

    events, status = await cold(stage, paused.run_id)

    assert (asked(events), status) == (([], "success") if tool else (["look"], "suspended"))


async def test_m27_a_registered_policy_goes_on_under_the_function(stage: Stage) -> None:
    _, paused = await begun(stage, DECLARED, DELETE)

    events, status = await cold(stage, paused.run_id, policies=[DECLARED])

    assert (asked(events), status) == ([], "success")
    assert [name for name, _ in stage.ran] == ["delete", "look"]


@pytest.mark.parametrize(("name", "version"), [("deletes", "2"), ("other", "1")], ids=["version", "name"])
async def test_m27_another_version_or_name_is_not_that_policy(stage: Stage, name: str, version: str) -> None:
    _, paused = await begun(stage, DECLARED, DELETE)
    other = code_policy(lambda info: False, name=name, version=version)

    events, status = await cold(stage, paused.run_id, policies=[other])

    assert (asked(events), status) == (["look"], "suspended")


@pytest.mark.parametrize("declared", [False, True], ids=["unknown-there", "registered-there"])
async def test_m27_holds_in_a_second_real_process(stage: Stage, declared: bool) -> None:
    _, paused = await begun(stage, DECLARED, DELETE)

    told = in_another_process(stage, LOOK, "done", declared=declared)

    assert (told["run_id"], told["listed"]) == (paused.run_id, ["delete"])
    assert (told["asked"], told["status"]) == (([], "success") if declared else (["look"], "suspended"))
    assert [name for name, _ in told["ran"]] == (["delete", "look"] if declared else ["delete"])


async def test_m27_an_agents_own_function_is_there_in_every_process(stage: Stage) -> None:
    _, paused = await begun(stage, asks_for_delete, DELETE, where="agent")

    events, status = await cold(stage, paused.run_id, require_tool_approval=asks_for_delete)

    assert (asked(events), status) == ([], "success")


async def test_m27_a_call_that_had_started_goes_on_with_its_answer_after_a_cold_resume(stage: Stage) -> None:
    _, paused = await begun(stage, asks_for_delete, [("call-1", "weather", {})], tools=[stage.asking()])

    with elsewhere(stage) as there:
        agent = there.agent(LOOK, "done", tools=[there.asking(), there.tool("look")])
        events = await read(agent.resume_stream({"location": "Rome"}, paused.run_id, user="ana"))

    assert only(events, "tool-result")["result"] == {"weather": "Rome: sunny"}
    assert (asked(events), stage.ran[-1]) == (["look"], ("weather", {"location": "Rome"}))


async def test_m27_a_started_call_for_which_the_guard_asks_by_now_is_asked_for_and_starts_anew(stage: Stage) -> None:
    _, paused = await begun(stage, None, [("call-1", "weather", {})], tools=[stage.asking()])

    with elsewhere(stage, policy={"weather": "user-approval"}) as there:
        agent = there.agent("done", tools=[there.asking()])
        events = await read(agent.resume_stream({"location": "Rome"}, paused.run_id, user="ana"))
        assert (types(events), stage.ran) == (["tool-call-resumed", "tool-call-approval"], [("weather", None)])
        (found,) = (await agent.list_suspended_runs(user="ana")).runs
        assert [call.requires_approval for call in found.tool_calls] == [True]
        again = await read(agent.approve_tool_call(paused.run_id, approver=BOB))
        ended = await agent.resume_generate({"location": "Oslo"}, paused.run_id, user="ana")

    assert types(again) == ["tool-call-resumed", "tool-call-suspended"]
    assert (ended.status, stage.ran[1:]) == ("success", [("weather", None), ("weather", {"location": "Oslo"})])


def test_m27_undeclared_functions_are_no_part_of_the_policy_version(stage: Stage) -> None:
    before = stage.guard.policy_version
    tools = [stage.tool(require_approval=lambda arguments, info: True)]

    agent = stage.agent(tools=tools, require_tool_approval=asks_for_delete)

    assert agent.guard.policy_version == before
