"""F6: however a tool is registered, however its run is started, resumed or read, it asks before it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard.agent import Agent, Hooks, Tool, tool
from hitl_guard.agent.gate import Gate
from hitl_guard.lifecycle import claim
from hitl_guard.models import Permit
from hitl_guard.policy.code import CallInfo
from hitl_guard.testing import ScriptedModel
from tests.agent.elsewhere import elsewhere
from tests.agent.faults import ONE, Script, assert_over, noticed, results, trail
from tests.agent.stage import ID_SCHEMA, Stage
from tests.support import BOB, document

MakeStage = Callable[..., Stage]
Build = Callable[[Stage], dict[str, Any]]
RULE = """\
version: 1
name: gates
default: not_applicable
rules:
  - id: deletes
    tools: [delete]
    effect: require_approval
"""


class Id(BaseModel):
    id: str


def _run(stage: Stage) -> Callable[[Any], Any]:
    def delete(given: Any) -> Any:
        """Delete."""
        stage.ran.append(("delete", given if isinstance(given, dict) else given.model_dump()))
        return {"ok": True}

    return delete


def flagged(stage: Stage) -> dict[str, Any]:
    return {"tools": [stage.tool(require_approval=True)]}


def by_function(stage: Stage) -> dict[str, Any]:
    return {"tools": [stage.tool(require_approval=lambda arguments, info: True)]}


def plain_function(stage: Stage) -> dict[str, Any]:
    def delete(id: str) -> dict[str, bool]:
        """Delete."""
        stage.ran.append(("delete", {"id": id}))
        return {"ok": True}

    return {"tools": [delete], "require_tool_approval": True}


def async_function(stage: Stage) -> dict[str, Any]:
    async def delete(id: str) -> dict[str, bool]:
        """Delete."""
        stage.ran.append(("delete", {"id": id}))
        return {"ok": True}

    return {"tools": [tool(delete, require_approval=True)]}


def decorated(stage: Stage) -> dict[str, Any]:
    @tool(name="delete", require_approval=True)
    def anything(id: str, context: Any) -> dict[str, bool]:
        """Delete."""
        stage.ran.append(("delete", {"id": id}))
        return {"ok": True}

    return {"tools": [anything]}


def pydantic_model(stage: Stage) -> dict[str, Any]:
    return {"tools": [Tool("delete", execute=_run(stage), input_schema=Id, require_approval=True)]}


def without_schema(stage: Stage) -> dict[str, Any]:
    return {"tools": [Tool("delete", execute=_run(stage), require_approval=True)]}


def harmless_effect(stage: Stage) -> dict[str, Any]:
    return {"tools": [stage.tool(require_approval=True, effect="none")]}


def by_the_agent(stage: Stage) -> dict[str, Any]:
    return {"tools": [stage.tool(require_approval=False)], "require_tool_approval": True}


def by_the_agents_function(stage: Stage) -> dict[str, Any]:
    def asks(info: CallInfo) -> bool:
        return info.tool_name == "delete"

    return {"tools": [stage.tool()], "require_tool_approval": asks}


def by_a_function_that_fails(stage: Stage) -> dict[str, Any]:
    def fails(info: CallInfo) -> bool:
        raise RuntimeError(info.tool_name)

    return {"tools": [stage.tool()], "require_tool_approval": fails}


def with_hooks(stage: Stage) -> dict[str, Any]:
    def before(info: dict[str, Any]) -> dict[str, Any]:
        return {"proceed": True, "input": {"id": "other"}}

    return {"tools": [stage.tool(require_approval=True)], "hooks": Hooks(before_tool_call=before)}


def with_memory(stage: Stage) -> dict[str, Any]:
    return {"tools": [stage.tool(require_approval=True)], "memory": True}


REGISTRATIONS: dict[str, Build] = {one.__name__: one for one in (
    flagged, by_function, plain_function, async_function, decorated, pydantic_model, without_schema, harmless_effect,
    by_the_agent, by_the_agents_function, by_a_function_that_fails, with_hooks, with_memory,
)}


async def asks_first(stage: Stage, options: dict[str, Any], **request: Any) -> None:
    """Run one call: it waits for a person, runs once after a yes, and a second equal call asks again."""
    model = Script([ONE], [("c2", "delete", {"id": "1"})], "done")
    agent = Agent("shop", model=model, guard=stage.guard, **options)

    first = await agent.generate("go", user="ana", run_id="r", **request)
    waiting = stage.guard.pending()
    assert (first.status, stage.ran, [one.state for one in waiting]) == ("suspended", [], ["pending"])
    second = await agent.approve_tool_call("r", approver=BOB)
    again = stage.guard.pending()
    assert (second.status, stage.ran) == ("suspended", [("delete", {"id": "1"})])
    assert [one.id == waiting[0].id for one in again] == [False]
    last = await agent.decline_tool_call("r", approver=BOB)

    assert (last.status, stage.ran) == ("success", [("delete", {"id": "1"})])
    assert sorted(trail(stage)) == ["call:succeeded", "grant:claimed", "request:approved", "request:denied"]
    assert_over(stage)


@pytest.mark.parametrize("registration", REGISTRATIONS)
async def test_f06_a_check_of_gates_notices_one_that_is_lost_at_any_registration(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, registration: str
) -> None:
    def open_(gate: Gate, _call: Any, asked: Any, _tool: Any) -> Permit:
        return claim.free_permit(gate.guard._desk.bind(asked))

    monkeypatch.setattr(Gate, "permit", open_)

    await noticed(asks_first(stage, REGISTRATIONS[registration](stage)))

    assert stage.ran[:1] == [("delete", {"id": "1"})]


@pytest.mark.parametrize("registration", REGISTRATIONS)
async def test_f06_a_gate_holds_at_every_registration(make_stage: MakeStage, registration: str) -> None:
    stage = make_stage()

    await asks_first(stage, REGISTRATIONS[registration](stage))


async def test_f06_a_gate_of_the_guards_policy_holds_without_any_setting_here(make_stage: MakeStage) -> None:
    stage = make_stage(policy=document(RULE))

    await asks_first(stage, {"tools": [stage.tool()]})


@pytest.mark.parametrize("need", [True, lambda info: True], ids=["boolean", "function"])
async def test_f06_a_gate_of_the_request_holds_over_every_resumption(make_stage: MakeStage, need: Any) -> None:
    stage = make_stage()

    await asks_first(stage, {"tools": [stage.tool()]}, require_tool_approval=need)


Start = Callable[[Agent], Awaitable[str]]


async def generated(agent: Agent) -> str:
    return (await agent.generate("go", user="ana", run_id="r")).status


async def as_network(agent: Agent) -> str:
    return (await agent.network("go", user="ana", run_id="r")).status


async def split(agent: Agent) -> str:
    agent.model = ScriptedModel([ONE], "done", split=True)
    return (await agent.generate("go", user="ana", run_id="r")).status


async def with_client_calls(agent: Agent) -> str:
    agent.model = Script([ONE, ("c3", "ask_client", {}), ("c4", "unknown", {})], "done")
    return (await agent.generate("go", user="ana", run_id="r")).status


@pytest.mark.parametrize("start", [generated, as_network, split, with_client_calls])
async def test_f06_a_gate_holds_however_a_run_is_started(make_stage: MakeStage, start: Start) -> None:
    stage = make_stage()
    agent = Agent(
        "shop", model=Script([ONE], "done"), tools=[stage.tool(require_approval=True), Tool("ask_client")],
        guard=stage.guard,
    )

    status = await start(agent)

    assert (status, stage.ran, len(stage.guard.pending())) == ("suspended", [], 1)
    await agent.approve_tool_call("r", approver=BOB)
    assert stage.ran == [("delete", {"id": "1"})]


def test_f06_a_gate_holds_in_synchronous_code(make_stage: MakeStage) -> None:
    stage = make_stage()
    agent = Agent("shop", model=Script([ONE], "done"), tools=[stage.tool(require_approval=True)], guard=stage.guard)

    paused = agent.sync.generate("go", user="ana", run_id="r")
    before = list(stage.ran)
    done = agent.sync.approve_tool_call_generate("r", approver=BOB)

    assert (paused.status, before, done.status) == ("suspended", [], "success")
    assert stage.ran == [("delete", {"id": "1"})]


@pytest.mark.parametrize("name", ["Delete", "delete ", "de\u200blete", "ｄelete", "__class__", "delete\n", "DELETE"])
async def test_f06_a_tool_is_called_by_its_exact_name_or_not_at_all(make_stage: MakeStage, name: str) -> None:
    stage = make_stage()
    model = Script([("c1", name, {"id": "1"})], "done")
    agent = Agent("shop", model=model, tools=[stage.tool(require_approval=True)], guard=stage.guard)

    result = await agent.generate("go", user="ana")

    assert (result.status, stage.ran, len(stage.guard.pending())) == ("success", [], 0)
    assert results(model.calls[-1])[0][1].startswith('Tool "')


async def test_f06_an_approved_tool_that_suspends_itself_stays_gated_for_its_next_call(make_stage: MakeStage) -> None:
    stage = make_stage()
    turns: list[Any] = [[("c1", "weather", {})], [("c2", "weather", {})], "done"]
    agent = Agent(
        "shop", model=Script(*turns), tools=[stage.asking(require_approval=True)], guard=stage.guard
    )
    await agent.generate("go", user="ana", run_id="r")

    asked = await agent.approve_tool_call("r", approver=BOB)
    second = await agent.resume_stream({"location": "Oslo"}, "r", user="ana")

    assert (asked.suspend_payload or {}).get("suspendPayload") == {"question": "Which city?"}
    assert (second.suspend_payload or {}).get("approvalId") == stage.guard.pending()[0].id
    assert stage.ran == [("weather", None), ("weather", {"location": "Oslo"})]


async def test_f06_a_run_that_goes_on_elsewhere_asks_there_too(make_stage: MakeStage) -> None:
    stage = make_stage()
    turns = [[ONE], [("c2", "delete", {"id": "2"})], "done"]
    here = Agent("shop", model=Script(*turns), tools=[stage.tool(input_schema=ID_SCHEMA)], guard=stage.guard)
    await here.generate("go", user="ana", run_id="r", require_tool_approval=lambda info: True)

    with elsewhere(stage) as there:
        other = Agent("shop", model=Script(*turns), tools=[there.tool()], guard=there.guard)
        result = await other.approve_tool_call("r", approver=BOB)

    assert (result.status, stage.ran) == ("suspended", [("delete", {"id": "1"})])
    assert [request.call_id for request in stage.guard.pending()] == ["c2"]


async def test_f06_a_sub_agents_tool_asks_on_every_way_to_it(make_stage: MakeStage) -> None:
    stage = make_stage()
    sub = Agent("clerk", model=Script([ONE], "inner done"), tools=[stage.tool()], guard=stage.guard)
    calls = [("d1", "agent-clerk", {"prompt": "go"})]
    agent = Agent("shop", model=Script(calls, "done"), agents=[sub], guard=stage.guard)

    first = await agent.generate("go", user="ana", run_id="r", require_tool_approval=True)
    delegation = stage.guard.pending()
    second = await agent.approve_tool_call("r", approver=BOB)
    inner = stage.guard.pending()

    assert (first.status, [one.tool for one in delegation]) == ("suspended", ["agent-clerk"])
    assert (second.status, [one.tool for one in inner], stage.ran) == ("suspended", ["delete"], [])
    assert (await agent.approve_tool_call("r", approver=BOB)).status == "success"
    assert stage.ran == [("delete", {"id": "1"})]
    assert_over(stage)
