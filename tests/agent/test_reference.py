"""Our loop does what the reference loop was recorded doing: events, results, lists, what ran, what the model was told.

Everything expected stands in the recording. How each scenario is played stands in `scenarios_calls` and
`scenarios_runs`; here stands the one table of what is other in ours, and why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hitl_guard.agent import AgentStream
from hitl_guard.agent.auto import RESUME_TOOL

from . import scenarios_calls, scenarios_runs
from .recorded import recording
from .reference import SCRIPTS, Play
from .scenarios_calls import TH
from .stage import BOB, Event, Stage, only, read, types

__all__ = ["scenarios_calls", "scenarios_runs"]

DIFFERENCES = {
    "03_decline_blank": "While a call waits, it stands in the snapshot alone (M2), not in the conversation, too.",
    "03_decline_default": "While a call waits, it stands in the snapshot alone (M2), not in the conversation, too.",
    "03_decline_reason": "While a call waits, it stands in the snapshot alone (M2), not in the conversation, too.",
    "07_parallel_two_requireApproval": "The gated calls of a turn are asked together and decided in any order.",
    "07b_parallel_mixed": "The free calls of a turn run at once, wherever they stand in it (M12).",
    "09_supervisor_approve_three_level": "While a call waits, it stands in the snapshots alone (M2).",
    "09_supervisor_approve_two_level": "While a call waits, it stands in the snapshots alone (M2).",
    "09e_supervisor_requireToolApproval_on_supervisor": "A supervisor's requirement covers inner tools (rule 13).",
    "09f_supervisor_two_parallel_delegations": "Delegations run concurrently, so the events of each are compared.",
    "11_errors": "A decision that is no real boolean, or says more, is refused and not asked again (rules 6 and 8).",
    "17_durable_function_policy": "There is one engine, without the durable one's events of its own.",
    "29_client_tool_no_execute": "A client's tool that needs an approval waits for it (M9).",
    "33_ai_sdk_parts": "Making parts of events belongs to another package; here every part can be made of one event.",
    "35_durable_function_policy_cold": "There is one engine, and it lists what waits as an approval (M58).",
    "35_evented_function_policy_cold": "There is one engine, and it lists what waits as an approval (M58).",
    "38_toolCallConcurrency_approvals": "The gated calls of a turn are asked together.",
    "40b_http_idor": "HTTP belongs to another package; here the loop refuses the same people (rule 14).",
}
"""Scenario → what is other in ours, and why. All others are the same in everything that was recorded."""


def test_every_recorded_scenario_is_played() -> None:
    assert sorted(SCRIPTS) == sorted(recording()["scenarios"])
    assert DIFFERENCES.keys() <= SCRIPTS.keys()


@pytest.mark.parametrize("name", sorted(SCRIPTS))
async def test_a_recorded_scenario_goes_the_same_way_except_where_the_table_says_so(name: str, tmp_path: Path) -> None:
    with Play(name, f"sqlite:///{tmp_path / 'approvals.db'}") as play:
        await SCRIPTS[name](play)

        play.ends()
        assert play.differs == (name in DIFFERENCES)


# -- what newer releases of the reference say about a call that goes on ----------------------------------------------

RESUMED = ["approval_approve", "approval_decline", "suspension_resume", "delegated_suspension_resume"]
ANSWERED = ["auto_resume_under_new_call_id", "fresh_call_with_model_authored_resumeData", "initial_stream"]


def sequence(name: str) -> list[str]:
    """Return what is known of a newer sequence: the first word of each line."""
    recorded = recording()["upstream_only"]["sequences"]
    assert sorted(recorded) == sorted(RESUMED + ANSWERED)
    return [line.split(" ")[0] for line in recorded[name]]


def said(event: Event) -> str:
    """Return an event's type as a newer sequence has it."""
    kind = event["payload"].get("kind")
    return str(event["type"]) if kind is None else f"{event['type']}(kind={kind})"


async def gone_on(stage: Stage, name: str) -> AgentStream:
    """Return the stream of a call that goes on as a newer sequence does."""
    agent = stage.agent([("call-1", "weather", {})], "done", tools=[stage.asking()], id="inner")
    if name == "delegated_suspension_resume":
        agent = stage.agent([("call-1", "agent-inner", {"prompt": "go"})], "done", agents=[agent])
    if name.startswith("approval"):
        tool = stage.tool(require_approval=True)
        agent = stage.agent([("call-1", "delete", {"id": "7"})], "done", tools=[tool])
    paused = await agent.generate("go", user="ana")
    if name == "approval_approve":
        return agent.approve_tool_call(paused.run_id, approver=BOB)
    if name == "approval_decline":
        return agent.decline_tool_call(paused.run_id, approver=BOB)
    return agent.resume_stream({"location": "Rome"}, paused.run_id, user="ana")


@pytest.mark.parametrize("name", RESUMED)
async def test_a_call_that_goes_on_says_so_once_and_before_its_end(name: str, stage: Stage) -> None:
    wanted = sequence(name)

    events = await read(await gone_on(stage, name))

    own = [event for event in events if event["payload"].get("toolCallId") == "call-1"]
    told = [said(event) for event in own if event["type"] != "tool-output"]
    assert [one.split("(")[0] if "(" not in want else one for one, want in zip(told, wanted, strict=True)] == wanted


async def test_an_answer_found_in_a_message_names_the_call_that_was_suspended_and_nothing_else_does(
    stage: Stage,
) -> None:
    (signal,) = sequence("auto_resume_under_new_call_id")
    answer = {"resumeData": {"location": "Rome"}}
    agent = stage.agent(
        [("call-1", "weather", {})], [("new", RESUME_TOOL, answer)], "done", [("call-2", "weather", answer)],
        tools=[stage.asking(auto_resume=True)], memory=True,
    )

    initial = await read(agent.stream("go", user="ana", **TH))
    resumed = await read(agent.stream("Rome", user="ana", **TH, auto_resume_suspended_tools=True))
    fresh = await read(agent.stream("and again", user="ana", **TH))

    assert only(resumed, signal)["toolCallId"] == only(initial, "tool-call-suspended")["toolCallId"]
    assert sequence("initial_stream") == sequence("fresh_call_with_model_authored_resumeData") == ["no"]
    assert signal not in [*types(initial), *types(fresh)]
    assert only(fresh, "tool-call-suspended")["args"] == answer
