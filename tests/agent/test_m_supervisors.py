"""A sub-agent's pause is told, listed and decided at the top, however deep it lies; the decision goes down again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.delegation import MAX_DEPTH
from hitl_guard.agent.tools import APPROVAL_RESUME_SCHEMA
from hitl_guard.errors import AgentError, DecisionError, UnavailableError
from tests.support import ANA, document

from .elsewhere import elsewhere
from .stage import BOB, CITY_SCHEMA, Stage, inner, label, only, read, types

ROME = {"location": "Rome"}
RECHECKED = """\
version: 1
name: rechecked
default: not_applicable
rules:
  - {id: one, tools: [delete], effect: require_approval, recheck_approvers: true}
"""
ASKS: tuple[str, str, Any] = ("inner", "weather", {})
DEPTHS = pytest.mark.parametrize("depth", [2, 3, 5])


def gated(stage: Stage, depth: int = 2) -> Agent:
    """Return a supervisor whose innermost agent calls a tool that needs an approval."""
    return stage.chain(depth, stage.tool(require_approval=True))


def asking(stage: Stage, depth: int = 2) -> Agent:
    """Return a supervisor whose innermost agent calls a tool that suspends itself."""
    return stage.chain(depth, stage.asking(), call=ASKS)


def below(agent: Agent) -> list[Agent]:
    """Return an agent's chain of agents, outermost first."""
    return [agent, *(found for sub in agent._sub_agents.values() for found in below(sub))]


def told(agent: Agent) -> list[str]:
    """Return what an agent's model was told last in place of its calls' results."""
    model: Any = agent.model
    return [message["content"] for message in model.calls[-1] if message["role"] == "tool"]


def wrapped(depth: int, *kinds: str) -> list[str]:
    """Return the labels of events from ``depth`` levels below."""
    return [f"{'tool-output<' * depth}{kind}{'>' * depth}" for kind in kinds]


def says(depth: int) -> list[str]:
    """Return the labels of the last step of an agent ``depth`` levels below."""
    return wrapped(depth, "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish")


# -- M65 -------------------------------------------------------------------------------------------------------------


async def test_m65_an_inner_request_goes_up_and_its_decision_comes_down_again(stage: Stage) -> None:
    top = gated(stage)
    stream = top.stream("go", user="ana")

    asked = only(await read(stream), "tool-call-approval")
    waits = stage.ran.copy()
    result = await top.approve_tool_call(stream.run_id, asked["toolCallId"], approver=BOB)

    assert (waits, stage.ran) == ([], [("delete", {"id": "7"})])
    assert (told(below(top)[1]), told(top)) == (['{"ok":true}'], ["level 0 done"])
    assert (result.status, result.text, stage.stored()) == ("success", "level 1 done", 0)


async def test_m65_a_declined_inner_call_never_runs_and_its_agent_is_told_why(stage: Stage) -> None:
    top = gated(stage, 3)
    paused = await top.generate("go", user="ana")

    result = await top.decline_tool_call(paused.run_id, approver=BOB, reason="not that one")

    assert (told(below(top)[2]), result.text, stage.ran) == (["not that one"], "level 2 done", [])


async def test_m65_the_same_chain_goes_on_in_another_process(stage: Stage) -> None:
    paused = await gated(stage, 3).generate("go", user="ana")

    with elsewhere(stage) as there:
        agent = there.agent("level 0 done", id="level-0", tools=[there.tool(require_approval=True)])
        for level in (1, 2):
            agent = there.agent(f"level {level} done", id=f"level-{level}", agents=[agent])
        result = await agent.approve_tool_call(paused.run_id, approver=BOB)

    assert (result.text, stage.ran, stage.stored()) == ("level 2 done", [("delete", {"id": "7"})], 0)


async def test_m65_a_sub_agent_that_is_gone_after_a_restart_is_an_error_to_its_supervisor(stage: Stage) -> None:
    paused = await gated(stage).generate("go", user="ana")

    with elsewhere(stage) as there:
        agent = there.agent("I am alone.", id="level-1")
        events = await read(agent.approve_tool_call(paused.run_id, approver=BOB))

    assert only(events, "tool-error")["error"]["name"] == "AgentNotFoundError"
    assert (stage.ran, stage.stored()) == ([], 0)


async def test_m65_a_sub_agent_whose_model_fails_is_an_error_that_its_supervisor_is_told(stage: Stage) -> None:
    sub = stage.agent(LookupError("overloaded"), id="level-0")
    top = stage.agent([("deleg-1", "agent-level-0", {"prompt": "go"})], "sorry", id="level-1", agents=[sub])

    stream = top.stream("go", user="ana")
    events = await read(stream)

    assert only(events, "tool-error")["error"] == {"message": "overloaded", "name": "LookupError"}
    assert (stream.status, told(top)) == ("success", ["overloaded"])


async def test_m65_what_the_guard_cannot_tell_inside_a_sub_agent_is_not_told_to_a_model(stage: Stage) -> None:
    class Directory:
        answers = False

        def roles_of(self, tenant: str, principal_id: str) -> Any:
            return () if self.answers else 1 / 0

    directory = Directory()
    two = Stage(stage.store, policy=document(RECHECKED), directory=directory)
    top = two.chain(2, two.tool())
    paused = await top.generate("go", user="ana")

    with pytest.raises(UnavailableError):
        await top.approve_tool_call(paused.run_id, approver=BOB)
    directory.answers = True
    result = await top.continue_generate(paused.run_id, user="ana")

    assert (result.status, result.text, two.ran) == ("success", "level 1 done", [("delete", {"id": "7"})])


# -- M66 -------------------------------------------------------------------------------------------------------------


@DEPTHS
async def test_m66_a_request_of_any_depth_surfaces_and_is_decided_at_the_top(stage: Stage, depth: int) -> None:
    top = gated(stage, depth)
    stream = top.stream("go", user="ana")
    events = await read(stream)

    (run,) = (await top.list_suspended_runs(user="ana")).runs
    result = await top.approve_tool_call(stream.run_id, approver=BOB)

    asked = only(events, "tool-call-approval")
    assert (asked["toolCallId"], asked["toolName"]) == (f"deleg-{depth - 1}", "delete")
    assert [(call.tool_call_id, call.pause_id) for call in run.tool_calls] == [
        (f"deleg-{depth - 1}", asked["approvalId"])
    ]
    assert [told(agent) for agent in below(top)] == [
        *([f"level {level} done"] for level in range(depth - 2, -1, -1)), ['{"ok":true}']
    ]
    assert (result.text, len(stage.ran), stage.stored()) == (f"level {depth - 1} done", 1, 0)


async def test_m66_agents_do_not_call_each_other_without_end(stage: Stage) -> None:
    top = stage.chain(MAX_DEPTH + 2, stage.tool())

    stream = top.stream("go", user="ana")
    events = await read(stream)

    (error,) = [inner(event)["payload"]["error"] for event in events if inner(event)["type"] == "tool-error"]
    assert (error["name"], stream.status, stage.ran) == ("AgentDepthError", "success", [])


# -- M67 -------------------------------------------------------------------------------------------------------------


@DEPTHS
async def test_m67_the_supervisor_tells_an_ordinary_approval_of_the_inner_tool_under_the_delegations_id(
    stage: Stage, depth: int
) -> None:
    events = await read(gated(stage, depth).stream("go", user="ana"))

    asked = only(events, "tool-call-approval")
    request = stage.guard.get(asked["approvalId"])
    assert asked == {
        "toolCallId": f"deleg-{depth - 1}", "toolName": "delete", "args": {"id": "7"}, "innerToolCallId": "inner",
        "resumeSchema": APPROVAL_RESUME_SCHEMA, "approvalId": request.id, "fingerprint": request.fingerprint,
        "token": request.token, "expiresAt": request.decide_by, "reason": request.reason,
    }
    assert (events[-1]["payload"], events[-1]["run_id"]) == (asked, events[0]["run_id"])


# -- M68 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approve", [True, False], ids=["approve", "decline"])
@DEPTHS
async def test_m68_it_is_decided_with_the_supervisors_run_id_and_the_chunks_call_id(
    stage: Stage, depth: int, approve: bool
) -> None:
    top = gated(stage, depth)
    stream = top.stream("go", user="ana")
    asked = (await read(stream))[-1]
    decide = top.approve_tool_call if approve else top.decline_tool_call

    with pytest.raises(DecisionError) as refused:
        await decide(asked["run_id"], asked["payload"]["toolCallId"], approver=ANA)
    result = await decide(asked["run_id"], asked["payload"]["toolCallId"], approver=BOB)

    assert (refused.value.code, refused.value.detail) == ("not-authorised", "self-approval")
    assert (result.run_id, result.status, len(stage.ran)) == (stream.run_id, "success", int(approve))


async def test_m68_two_pauses_inside_one_sub_agent_are_two_and_each_has_an_id_of_its_own(stage: Stage) -> None:
    sub = stage.agent(
        [("A", "delete", {"id": "1"}), ("B", "delete", {"id": "2"})], "both decided", id="level-0",
        tools=[stage.tool(require_approval=True)],
    )
    top = stage.agent([("deleg-1", "agent-level-0", {"prompt": "go"})], "done", id="level-1", agents=[sub])
    paused = await top.generate("go", user="ana")
    first, second = paused.pauses
    assert (first["toolCallId"], second["toolCallId"]) == ("deleg-1", "deleg-1")

    with pytest.raises(AgentError) as ambiguous:
        await top.approve_tool_call(paused.run_id, "deleg-1", approver=BOB)
    await top.decline_tool_call(paused.run_id, first["approvalId"], approver=BOB)
    await top.approve_tool_call(paused.run_id, "B", approver=BOB)

    assert (ambiguous.value.code, first["args"], second["args"]) == ("call-ambiguous", {"id": "1"}, {"id": "2"})
    assert (stage.ran, told(top)) == ([("delete", {"id": "2"})], ["both decided"])


async def test_m68_two_delegations_of_one_turn_are_decided_in_any_order(stage: Stage) -> None:
    subs = [
        stage.agent([("inner", "delete", {"id": name})], f"{name} done", id=name,
                    tools=[stage.tool(require_approval=True)])
        for name in ("x", "y")
    ]
    top = stage.agent(
        [(f"deleg-{name}", f"agent-{name}", {"prompt": "go"}) for name in ("x", "y")], "done", id="top", agents=subs
    )
    paused = await top.generate("go", user="ana")

    first = await top.approve_tool_call(paused.run_id, "deleg-y", approver=BOB)
    second = await top.approve_tool_call(paused.run_id, "deleg-x", approver=BOB)

    assert sorted(pause["toolCallId"] for pause in paused.pauses) == ["deleg-x", "deleg-y"]
    assert (first.status, second.status, stage.ran) == (
        "suspended", "success", [("delete", {"id": "y"}), ("delete", {"id": "x"})]
    )
    assert told(top) == ["x done", "y done"]


# -- M69 -------------------------------------------------------------------------------------------------------------


@DEPTHS
async def test_m69_a_suspension_goes_up_the_same_way_and_is_answered_at_the_top(stage: Stage, depth: int) -> None:
    top = asking(stage, depth)
    stream = top.stream("go", user="ana")

    asked = only(await read(stream), "tool-call-suspended")
    with pytest.raises(AgentError) as refused:
        await top.resume_generate({"location": 5}, stream.run_id, user="ana")
    result = await top.resume_generate(ROME, stream.run_id, asked["toolCallId"], user="ana")

    assert (asked["toolCallId"], asked["toolName"], asked["args"], asked["suspendPayload"]) == (
        f"deleg-{depth - 1}", f"agent-level-{depth - 2}", {"prompt": "go"}, {"question": "Which city?"}
    )
    assert json.loads(asked["resumeSchema"]) == CITY_SCHEMA
    assert (refused.value.code, result.text) == ("invalid-resume-data", f"level {depth - 1} done")
    assert stage.ran == [("weather", None), ("weather", ROME)]


# -- M70 -------------------------------------------------------------------------------------------------------------


@DEPTHS
async def test_m70_generate_names_the_tool_to_approve_and_goes_on_after_the_approval(stage: Stage, depth: int) -> None:
    top = gated(stage, depth)

    paused = await top.generate("go", user="ana")
    assert paused.suspend_payload is not None
    result = await top.approve_tool_call_generate(paused.run_id, paused.suspend_payload["toolCallId"], approver=BOB)

    assert (paused.finish_reason, paused.status) == ("suspended", "suspended")
    assert (paused.suspend_payload["toolName"], paused.suspend_payload["args"]) == ("delete", {"id": "7"})
    assert (result.finish_reason, result.text, result.suspend_payload) == ("stop", f"level {depth - 1} done", None)


@DEPTHS
async def test_m70_generate_stops_at_an_inner_question_and_goes_on_with_its_answer(stage: Stage, depth: int) -> None:
    top = asking(stage, depth)

    paused = await top.generate("go", user="ana")
    result = await top.resume_generate(ROME, paused.run_id, user="ana")

    assert (paused.finish_reason, json.loads(paused.resume_schema or "")) == ("suspended", CITY_SCHEMA)
    assert (result.finish_reason, result.text) == ("stop", f"level {depth - 1} done")


# -- M71 -------------------------------------------------------------------------------------------------------------


@DEPTHS
async def test_m71_what_happens_inside_shows_in_the_supervisors_stream(stage: Stage, depth: int) -> None:
    top = gated(stage, depth)
    stream = top.stream("go", user="ana")

    before = await read(stream)
    after = await read(top.approve_tool_call(stream.run_id, approver=BOB))

    levels = range(depth)
    assert types(before) == [
        *(kind for level in levels for kind in wrapped(level, "start", "step-start", "tool-call")),
        *(kind for level in reversed(levels) for kind in wrapped(level, "tool-call-approval")),
    ]
    results = [[*wrapped(level, "tool-result", "step-finish"), *says(level)] for level in reversed(levels)]
    assert types(after) == ["tool-call-resumed", *(kind for level in results for kind in level)]


async def test_m71_the_inner_pause_is_told_first_with_the_inner_ids(stage: Stage) -> None:
    top = gated(stage, 3)
    middle, innermost = below(top)[1:]
    stream = top.stream("go", user="ana")

    pauses = [event for event in await read(stream) if label(inner(event)) == "tool-call-approval"]

    runs = [(await agent.list_suspended_runs(user="ana")).runs[0].run_id for agent in (innermost, middle, top)]
    assert [(inner(event)["run_id"], inner(event)["payload"]["toolCallId"]) for event in pauses] == [
        (runs[0], "inner"), (runs[1], "deleg-1"), (runs[2], "deleg-2")
    ]
    assert {(event["run_id"], event["payload"]["toolCallId"]) for event in pauses} == {(stream.run_id, "deleg-2")}
    assert len({inner(event)["payload"]["approvalId"] for event in pauses}) == 1


async def test_m71_the_delegations_result_says_what_the_sub_agent_came_to(stage: Stage) -> None:
    top = gated(stage)
    paused = await top.generate("go", user="ana", resource_id="r")
    (inner_run,) = (await below(top)[1].list_suspended_runs(user="ana")).runs

    events = await read(top.approve_tool_call(paused.run_id, approver=BOB))

    assert only(events, "tool-result") == {
        "toolCallId": "deleg-1", "toolName": "agent-level-0", "args": {"prompt": "go"}, "result": {
            "text": "level 0 done", "subAgentResourceId": "r-level-0", "subAgentThreadId": inner_run.run_id,
            "subAgentToolResults": [
                {"args": {"id": "7"}, "result": {"ok": True}, "toolCallId": "inner", "toolName": "delete"}
            ],
        },
    }


# -- what a supervisor's request asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["here", "elsewhere"])
async def test_a_request_level_requirement_covers_the_sub_agents_tools_too(stage: Stage, restart: bool) -> None:
    top = stage.chain(2, stage.tool())
    first = await top.generate("go", user="ana", require_tool_approval=True)
    assert first.suspend_payload is not None

    with elsewhere(stage) as there:
        second_top = there.chain(2, there.tool()) if restart else top
        second = await second_top.approve_tool_call(first.run_id, approver=BOB)
        assert second.suspend_payload is not None
        waits = stage.ran.copy()
        await second_top.approve_tool_call(first.run_id, approver=BOB)

    assert (first.suspend_payload["toolName"], second.suspend_payload["toolName"]) == ("agent-level-0", "delete")
    assert (waits, stage.ran, second.run_id) == ([], [("delete", {"id": "7"})], first.run_id)


async def test_a_request_level_function_is_asked_about_the_sub_agents_tools_too(stage: Stage) -> None:
    seen: list[tuple[str, Any]] = []

    def only_deletes(info: Any) -> bool:
        seen.append((info.tool_name, info.args))
        return bool(info.tool_name == "delete")

    paused = await stage.chain(3, stage.tool()).generate("go", user="ana", require_tool_approval=only_deletes)

    assert paused.suspend_payload is not None
    assert (paused.suspend_payload["toolName"], stage.ran) == ("delete", [])
    assert seen == [
        ("agent-level-1", {"prompt": "go"}), ("agent-level-0", {"prompt": "go"}), ("delete", {"id": "7"})
    ]


async def test_a_client_side_tool_of_a_sub_agent_is_an_error_even_when_it_was_approved(stage: Stage) -> None:
    top = stage.chain(2, Tool("pick", require_approval=True), call=("inner", "pick", {}))
    paused = await top.generate("go", user="ana")

    events = await read(top.approve_tool_call(paused.run_id, approver=BOB))

    assert [inner(event)["payload"]["error"]["name"] for event in events if label(event).count("tool-error")] == [
        "ClientToolError"
    ]
    assert events[-1]["type"] == "finish"
