"""F16: what was reviewed is what runs. Arguments or a tool that changed since do not run under that approval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field

from hitl_guard.agent import Agent, Hooks, Tool
from hitl_guard.guard import Guard
from hitl_guard.lifecycle import claim
from hitl_guard.models import Permit
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, Script, approvals, assert_over, code_of, noticed, paused, results
from tests.agent.stage import ID_SCHEMA, Stage, only, read, types
from tests.support import BOB, CAROL, document

MakeStage = Callable[..., Stage]
EDITABLE = """\
version: 1
name: arguments
default: not_applicable
rules:
  - id: deletes
    tools: [delete]
    effect: require_approval
    edit: {edit}
"""
WIDER: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}, "force": {"type": "boolean"}}}


def redefined(stage: Stage, **changes: Any) -> Agent:
    """Return the agent after a deployment that changed its tool."""
    options: dict[str, Any] = {"require_approval": True} | changes
    return Agent("shop", model=Script([ONE], "done"), tools=[stage.tool(**options)], guard=stage.guard)


async def is_asked_anew(stage: Stage, **changes: Any) -> None:
    """Somebody approves a call whose tool became another one since it was shown."""
    await paused(redefined(stage), run_id="r")
    (shown,) = stage.guard.pending()
    agent = redefined(stage, **changes)

    events = await read(agent.approve_tool_call("r", shown.id, approver=BOB))

    assert stage.ran == []
    (asked,) = approvals(events)
    assert (asked["approvalId"] != shown.id, types(events)[-1]) == (True, "tool-call-approval")
    assert stage.guard.get(shown.id).state == "superseded"
    assert await code_of(agent.approve_tool_call("r", shown.id, approver=CAROL).result()) == "call-not-suspended"
    assert (await agent.approve_tool_call("r", asked["approvalId"], approver=CAROL)).status == "success"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)


async def test_f16_a_check_of_definitions_notices_a_tool_that_runs_under_the_old_approval(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "_outdated", lambda *_: None)

    await noticed(is_asked_anew(stage, description="Deletes for good."))

    assert stage.ran == [("delete", {"id": "1"})]


@pytest.mark.parametrize("changes", [
    {"description": "Deletes for good."}, {"input_schema": WIDER}, {"input_schema": None},
], ids=["description", "schema", "no-schema"])
async def test_f16_a_tool_that_was_redefined_since_is_asked_for_anew(
    make_stage: MakeStage, changes: dict[str, Any]
) -> None:
    await is_asked_anew(make_stage(), **changes)


async def test_f16_arguments_that_the_new_schema_refuses_end_the_call(make_stage: MakeStage) -> None:
    stage = make_stage()
    await paused(redefined(stage), run_id="r")
    numbers = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}

    events = await read(redefined(stage, input_schema=numbers).approve_tool_call("r", approver=BOB))

    assert only(events, "tool-error")["error"]["name"] == "RefusedError"
    assert (types(events)[-1], stage.ran) == ("finish", [])


class Account(BaseModel):
    id: str = Field(default="everything")


async def gets_what_was_signed(stage: Stage) -> None:
    """Whatever holds the arguments on the way is changed after they were shown."""
    given: dict[str, Any] = {"id": "1", "nested": {"list": [1]}}
    seen: list[Any] = []

    def execute(taken: Any, context: Any) -> str:
        seen.append(taken)
        taken["nested"]["list"].append("by the tool")
        return "ok"

    def before(info: dict[str, Any]) -> None:
        info["input"]["id"] = "by a hook"
        info["input"]["nested"]["list"].append("by a hook")

    tool = Tool("delete", execute=execute, require_approval=True)
    turn = {"content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "delete", "arguments": given}},
    ]}
    agent = Agent(
        "shop", model=Script(turn, "done"), tools=[tool], guard=stage.guard, hooks=Hooks(before_tool_call=before)
    )
    events = await read(agent.stream("go", user="ana", run_id="r"))
    (shown,) = stage.guard.pending()
    approvals(events)[0]["args"]["id"] = "by a client"
    given["id"] = "by the model's host"

    done = await agent.approve_tool_call("r", approver=BOB)

    assert shown.arguments == {"id": "1", "nested": {"list": [1]}}
    assert seen == [{"id": "1", "nested": {"list": [1, "by the tool"]}}]
    assert done.tool_results[0]["payload"]["args"] == {"id": "1", "nested": {"list": [1]}}
    assert_over(stage)


async def test_f16_a_check_of_arguments_notices_a_permit_for_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = claim.claim

    def drifting(*given: Any) -> Permit | None:
        permit = real(*given)
        if permit is not None:
            permit.canonical = permit.canonical.replace(b'"1"', b'"9"')
        return permit

    monkeypatch.setattr(claim, "claim", drifting)

    await noticed(gets_what_was_signed(stage))


async def test_f16_the_tool_gets_the_arguments_that_were_signed_whoever_changes_his_copy(
    make_stage: MakeStage
) -> None:
    await gets_what_was_signed(make_stage())


async def test_f16_what_the_model_left_out_is_shown_as_it_was_and_filled_in_by_the_tools_own_model(
    make_stage: MakeStage
) -> None:
    stage = make_stage()
    tool = Tool(
        "delete", input_schema=Account, require_approval=True, execute=lambda given: stage.ran.append(("x", given.id))
    )
    agent = Agent("shop", model=Script([("c1", "delete", {})], "done"), tools=[tool], guard=stage.guard)
    await paused(agent, run_id="r")
    (shown,) = stage.guard.pending()

    await agent.approve_tool_call("r", approver=BOB)

    assert (shown.arguments, stage.ran) == ({}, [("x", "everything")])


async def test_f16_an_edit_needs_the_rule_that_allows_it_and_changes_nothing_without(make_stage: MakeStage) -> None:
    stage = make_stage(policy=document(EDITABLE.format(edit="false")))
    agent = Agent("shop", model=Script([ONE], "done"), tools=[stage.tool()], guard=stage.guard)
    await paused(agent, run_id="r")

    code = await code_of(agent.approve_tool_call("r", approver=BOB, arguments={"id": "2"}).result())

    assert (code, stage.ran, len(stage.guard.pending())) == ("not-authorised", [], 1)


async def test_f16_edited_arguments_run_and_never_the_ones_before_and_the_model_is_told(
    make_stage: MakeStage
) -> None:
    stage = make_stage(policy=document(EDITABLE.format(edit="true")))
    model = Script([ONE], "done")
    agent = Agent("shop", model=model, tools=[stage.tool()], guard=stage.guard)
    await paused(agent, run_id="r")

    refused = await code_of(agent.approve_tool_call("r", approver=BOB, arguments={"id": 7}).result())
    events = await read(agent.approve_tool_call("r", approver=BOB, arguments={"id": "2"}))

    assert refused in ("schema", "unsupported-value")
    assert only(events, "tool-result")["args"] == {"id": "2"}
    assert stage.ran == [("delete", {"id": "2"})]
    assert "A person changed this call's arguments" in results(model.calls[-1])[0][1]
    assert_over(stage)


@pytest.mark.parametrize("arguments", ['{"id": "1", "id": "2"}', '{"id": NaN}', "[1]", '{"id": "1"', "null", '"x"'])
async def test_f16_arguments_that_mean_two_things_or_nothing_are_never_shown_nor_run(
    make_stage: MakeStage, arguments: str
) -> None:
    stage = make_stage()
    model = Script([("c1", "delete", arguments)], "done")
    agent = Agent("shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard)

    result = await agent.generate("go", user="ana")

    assert (result.status, stage.ran, len(stage.guard.pending())) == ("success", [], 0)
    assert len(results(model.calls[-1])) == 1


async def test_f16_a_change_of_the_schema_elsewhere_asks_anew_there_and_not_here(make_stage: MakeStage) -> None:
    """Two versions of a service run side by side; each runs only what was asked for with its own tool."""
    stage = make_stage()
    await paused(redefined(stage), run_id="r")

    with elsewhere(stage) as there:
        newer = redefined(there, input_schema=ID_SCHEMA | {"title": "New"})
        first = await newer.approve_tool_call("r", approver=BOB)
    back = await redefined(stage).approve_tool_call("r", approver=CAROL)
    last = await redefined(stage).approve_tool_call("r", approver=BOB)

    assert [one.status for one in (first, back, last)] == ["suspended", "suspended", "success"]
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)
