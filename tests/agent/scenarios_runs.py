"""How the recorded scenarios of whole runs are played: conversations, lists, restarts, supervisors, other packages'."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.auto import RESUME_TOOL
from hitl_guard.errors import HitlGuardError
from hitl_guard.models import Principal
from tests.support import document, until

from .recorded import find, listed, recalled
from .reference import Play, plays
from .scenarios_calls import DEL, TH, approval_of
from .stage import BOB, Event, read, types

# -- restarts --------------------------------------------------------------------------------------------------------

KEPT: dict[str, Any] = {"thread_id": "thread-123", "resource_id": "user-456"}
MINE: dict[str, Any] = {"id": "my-agent", "memory": True, "instructions": "Be brief."}
ABC = ("call-1", "del", {"id": "abc"})


def deleting(play: Play) -> Tool:
    return play.tool("del", {"deleted": True}, require_approval=True)


@plays("06_restart_libsql_approve", "06c_restart_libsql_suspend_resume")
async def _(play: Play) -> None:
    play.where, approves = KEPT, "approve" in play.name
    tool = deleting(play) if approves else play.asking(
        "ask", lambda given: {"question": given["q"]}, lambda given, data: data,
        note=lambda given, context: play.ran.append(("ask", {"resumeData": context.resume_data})),
    )
    play.agent(*play.turns(0), tools=[tool], **MINE)
    await play.starts()
    _another_process(play, tool)
    await play.shows()
    _another_process(play, tool)
    await (play.approves() if approves else play.resumes({"name": "San Francisco"}))
    _another_process(play, tool)
    if approves:
        await play.shows()


def _another_process(play: Play, *tools: Tool) -> None:
    play.restart()
    play.agent(*(play.turns(2) if len(play.scenario["steps"]) > 2 else play.turns()), "done", tools=tools, **MINE)


@plays("06b_restart_libsql_decline", "06e_restart_tool_missing")
async def _(play: Play) -> None:
    play.where = KEPT
    play.agent([ABC], tools=[deleting(play)], **MINE)
    await play.begins()
    if "decline" in play.name:
        _another_process(play, deleting(play))
        await play.declines(reason="nope")
    else:
        _another_process(play, play.tool("weather"), play.tool("ask"))
        await play.approves()


@plays("06f_restart_sendToolApproval")
async def _(play: Play) -> None:
    play.where = KEPT
    play.agent([ABC], tools=[deleting(play)], **MINE)
    await play.begins()
    _another_process(play, deleting(play))
    await play.refuses(decided(play, tool_call_id="ghost"))
    _another_process(play, deleting(play))
    await play.shows(ok=sent(await decided(play)))


# -- conversations ---------------------------------------------------------------------------------------------------


async def decided(play: Play, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {**play.where, "approved": True, "approver": BOB, "user": "ana"}
    return await play.top.send_tool_approval(**(given | options))


def sent(answer: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what is answered to a decision; its tool-call id only where that was recorded, too."""
    told = {"accepted": answer["accepted"], "runId": answer["run_id"], "toolCallId": answer["tool_call_id"]}
    return lambda wanted: {name: told[name] for name in told if name in wanted or name != "toolCallId"}


@plays("15_sendToolApproval")
async def _(play: Play) -> None:
    play.where = TH
    play.agent([DEL], "done", tools=[play.tool("del", require_approval=True)], id="a", memory=True)
    await play.begins()
    await play.refuses(decided(play, thread_id="nope"))
    await play.refuses(decided(play, tool_call_id="ghost"))
    await play.shows(result=sent(await decided(play)))
    await play.refuses(decided(play))


@plays("32b_sendToolApproval_decline_context")
async def _(play: Play) -> None:
    play.where = TH
    play.agent([DEL], "done", tools=[play.tool("del", require_approval=True)], id="a", memory=True)
    await play.begins()
    await play.shows(ok=sent(await decided(play, approved=False, reason="too risky")))


@plays("27_approve_persisted_metadata")
async def _(play: Play) -> None:
    play.where = TH
    agent = play.agent([DEL], "done", tools=[play.tool("del", require_approval=True)], id="a", memory=True)
    await play.begins()
    await agent.approve_tool_call(play.run_id, approver=BOB)
    await play.shows(messages=recalled(await agent.recall("th", user="ana", resource_id="rs")))


@plays("21_new_message_while_pending")
async def _(play: Play) -> None:
    play.where = TH
    tool = play.tool("del", require_approval=True)
    play.agent([DEL], *play.turns(), tools=[tool], memory=True, instructions="Be brief.")
    await play.begins()
    first = play.run_id
    await play.starts("hello?")
    play.run_id = first
    await play.approves()


@plays("14b_auto_resume_never_approves")
async def _(play: Play) -> None:
    play.where = TH
    tool = play.tool("del", require_approval=True)
    play.agent(tools=[tool], memory=True, auto_resume_suspended_tools=True)
    await play.starts()
    _tick(play)
    await play.reads(
        play.stream("yes"), clears=[],
        systemPromptCarriesSuspendedToolsDirective=lambda _: RESUME_TOOL in json.dumps(play.model.calls),
    )


@plays("26_request_context_persisted")
async def _(play: Play) -> None:
    saw: list[Any] = []
    tool = Tool("del", execute=lambda given, context: saw.append(context.request_context), require_approval=True)
    agent = play.agent([DEL], "done", tools=[tool], id="a")
    await play.begins(request_context={"role": "requester", "who": "alice"})
    found = agent.snapshots.load("default", play.run_id)
    assert found is not None
    await agent.approve_tool_call(play.run_id, approver=BOB)
    await play.shows(snapshotRequestContext=found.snapshot.owner.context, toolSaw=saw)


def _tick(play: Play) -> None:
    """Let the database's clock go on: lists are in the order of its milliseconds."""
    until(play.stage.store, play.stage.store.now() + 1)


DAY = 86_400_000


@plays("16_listSuspendedRuns_filters")
async def _(play: Play) -> None:
    agent = play.agent(*[[DEL]] * 3, tools=[play.tool("del", require_approval=True)], id="a", memory=True)
    now = play.stage.store.now()
    for thread, resource in (("t1", "r1"), ("t2", "r1"), ("t3", "r2")):
        await agent.stream("go", user="ana", thread_id=thread, resource_id=resource)
        _tick(play)
    filters: dict[str, dict[str, Any]] = {
        "no filter (order)": {}, "threadId t1": {"thread_id": "t1"}, "resourceId r1": {"resource_id": "r1"},
        "threadId t3 + resourceId r1": {"thread_id": "t3", "resource_id": "r1"},
        "perPage 2 page 0": {"per_page": 2, "page": 0}, "perPage 2 page 1": {"per_page": 2, "page": 1},
        "perPage 2 page 9": {"per_page": 2, "page": 9}, "perPage only (1)": {"per_page": 1},
        "page only (1)": {"page": 1}, "perPage 0": {"per_page": 0}, "perPage 1.5": {"per_page": 1.5},
        "page -1": {"page": -1}, "fromDate future": {"from_date": now + DAY}, "toDate before": {"to_date": now - DAY},
        "fromDate t0": {"from_date": now},
    }
    for step in play.scenario["steps"]:
        asked = agent.list_suspended_runs(user="ana", **filters[step["action"]])
        if "threw" in step:
            await play.refuses(asked)
            continue
        page = await asked
        await play.shows(
            total=page.total, runs=[f"{run.thread_id}/{run.resource_id}" for run in page.runs],
            suspendedAtIsDate=all(isinstance(run.suspended_at, datetime) for run in page.runs),
        )


# -- supervisors -----------------------------------------------------------------------------------------------------

INNER = [("inner-call", "findUser", {"id": "12345"})]


@plays("09_supervisor_approve_two_level")
async def _(play: Play) -> None:
    await _decided_at_the_top(play, _data_agent(play, *play.turns(inside="deleg-1")))


@plays("09_supervisor_approve_three_level")
async def _(play: Play) -> None:
    data = _data_agent(play, INNER, "inner done")
    middle = play.inner("supervisor1", *play.turns(inside="deleg-2"), recorded_as="supervisor-1", agents=[data])
    await _decided_at_the_top(play, data, middle)


def _data_agent(play: Play, *turns: Any, tool: Tool | None = None) -> Agent:
    play.where = TH
    tools = [tool or play.tool("findUser", require_approval=True)]
    return play.inner("dataAgent", *turns, recorded_as="data-agent", tools=tools)


async def _decided_at_the_top(play: Play, *inside: Agent) -> None:
    top = play.agent(agents=inside[-1:], memory=True)
    await play.starts()
    for agent in (*inside, top):
        resource = play.next["result"]["runs"][0]["resourceId"]
        await play.shows(result=await play.listing(agent, resource_id=resource))
    for call_id, asked in find(play.passes(), "pendingToolApprovals").items():
        assert {name: play.pending[call_id][name] for name in ("toolName", "args")} == {
            name: asked[name] for name in ("toolName", "args")
        }
    await play.approves()


@plays("09c_supervisor_suspend")
async def _(play: Play) -> None:
    data = _data_agent(play, *play.turns(inside="deleg-1"), tool=play.asking(
        "findUser", lambda given: {"message": f"Confirm: {given['id']}?"}, lambda given, data: {"did": given["id"]},
        note=lambda given, context: {} if context.resume_data is None else {"resumeData": context.resume_data},
    ))
    play.agent(agents=[data], memory=True)
    await play.starts()
    await play.shows(result=await play.listing(data))
    await play.shows(result=await play.listing())
    await play.resumes({"confirmed": True})


@plays("09e_supervisor_requireToolApproval_on_supervisor")
async def _(play: Play) -> None:
    step = play.at(1)
    place = next(number for number, one in enumerate(step["events"]) if find(one, "result"))
    before, after, call = step["events"][:place], step["events"][place:], step["events"][place - 1]
    inner = approval_of(call["payload"]["output"])
    outer = play.at(0)["events"][-1]
    asked = [
        call | {"payload": call["payload"] | {"output": inner}},
        outer | {"payload": inner["payload"] | {"toolCallId": outer["payload"]["toolCallId"]}},
    ]
    data = _data_agent(play, *play.turns(inside="deleg-1"), tool=play.tool("findUser"))
    play.agent(agents=[data], memory=True)
    await play.starts(require_tool_approval=True)
    play.instead(events=[*before, *asked], executed=[])
    await play.approves()
    play.adds(events=after, executed=step["executed"])
    await play.approves()


@plays("09f_supervisor_two_parallel_delegations")
async def _(play: Play) -> None:
    play.where = TH
    play.agent(memory=True, agents=[
        play.inner(
            f"a{name}", *play.turns(inside=f"deleg-{name}"),
            tools=[play.tool(f"find{name.upper()}", require_approval=True)],
        )
        for name in "xy"
    ])
    await play.reads(play.stream(), clears=[], key=lambda event: event.get("payload", {}).get("toolCallId", ""))
    await play.approves("deleg-y")
    await play.approves("deleg-x")


# -- the loop's side of other packages -------------------------------------------------------------------------------


@plays("33_ai_sdk_parts")
async def _(play: Play) -> None:
    play.differs = True  # the parts are made here
    asking = play.asking("ask", lambda given: given, lambda given, data: data)
    ask = [("call-1", "ask", {"q": "1"})]
    tools = [play.tool("del", require_approval=True), asking]
    play.agent([DEL], "done", [DEL], "done", ask, "done", tools=tools, id="a")
    await play.starts()
    await play.approves()
    await play.begins()
    await play.declines()
    await play.starts()
    await play.resumes({"a": "z"})


LEADS = """\
version: 1
name: leads
default: not_applicable
rules:
  - id: leads
    tools: [del]
    effect: require_approval
    approvers: [lead]
"""


@plays("40b_http_idor")
async def _(play: Play) -> None:
    play.restart(policy=document(LEADS))
    agent, mallory = play.agent([DEL], tools=[play.tool("del")], id="a"), Principal("mallory")
    started = agent.stream("go", user="alice")
    assert [*types(await read(started)), "data: [DONE]"] == play.passes()["types"]
    assert listed(await agent.list_suspended_runs(user="mallory")) == json.loads(play.passes()["text"])
    for attempt, code in (
        (agent.resume_stream({"approved": True}, started.run_id, user="mallory", approver=mallory), "run-not-found"),
        (agent.approve_tool_call(started.run_id, approver=mallory), "not-authorised"),
    ):
        events: list[Event] = []
        with pytest.raises(HitlGuardError) as caught:
            events += [event async for event in attempt]
        step = play.passes()
        assert (caught.value.code, types(events), len(play.ran)) == (code, step["types"], step["executed"])
    assert (await agent.list_suspended_runs(user="alice")).total == 1
