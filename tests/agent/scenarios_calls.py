"""How the recorded scenarios of single calls are played: approved, declined, suspended, under policies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from hitl_guard.agent import Hooks, Tool
from hitl_guard.errors import DecisionError
from hitl_guard.models import Principal

from .recorded import recalled, recording
from .reference import Play, plays
from .stage import BOB, read

TH: dict[str, Any] = {"thread_id": "th", "resource_id": "rs"}
DEL = ("call-1", "del", {"id": "1"})


def approval_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the approval of a recorded call as the reference would tell it."""
    payload = call["payload"] | {"resumeSchema": "<APPROVAL_RESUME_SCHEMA>"}
    return call | {"type": "tool-call-approval", "payloadKeys": list(payload), "payload": payload}


# -- approvals -------------------------------------------------------------------------------------------------------


@plays("01_tool_requireApproval_approve_stream")
async def _(play: Play) -> None:
    play.agent(tools=[play.tool("deleteTool", require_approval=True)])
    await play.starts()
    await play.shows(result=await play.listing())
    await play.approves()


@plays("02_agent_level_requireToolApproval_true", "02b_agent_level_requireToolApproval_repassed")
async def _(play: Play) -> None:
    play.agent(tools=[play.tool("weather")])
    await play.starts(require_tool_approval=True)
    await play.approves()
    if "repassed" in play.name:
        await play.approves("call-2")


@plays("03_decline_blank", "03_decline_default", "03_decline_reason")
async def _(play: Play) -> None:
    play.where = TH
    agent = play.agent(tools=[play.tool("readUser", require_approval=True)], memory=True)
    reason = json.loads(play.scenario["description"].removeprefix("declineToolCall with ")).get("reason")
    await play.starts("read u1")
    play.instead(messages=play.next["messages"][:1])
    await play.shows(messages=recalled(await agent.recall("th", user="ana", resource_id="rs")))
    await play.declines(reason=reason)
    await play.shows(messages=recalled(await agent.recall("th", user="ana", resource_id="rs")))


@plays("05_generate_approve")
async def _(play: Play) -> None:
    agent = play.agent([("call-1", "findUser", {"id": "John"})], "John found", tools=[play.tool("findUser")])
    paused = await play.generates(agent.generate("go", user="ana", require_tool_approval=True))
    await play.generates(agent.approve_tool_call_generate(paused.run_id, approver=BOB))


@plays("07_parallel_two_requireApproval")
async def _(play: Play) -> None:
    asked, run = play.at(0)["events"] + play.at(2)["events"], play.at(0)["list"]["runs"][0]
    calls = run["toolCalls"] + play.at(2)["list"]["runs"][0]["toolCalls"]
    play.agent(tools=[play.tool(name, require_approval=True) for name in ("delA", "delB")])
    play.instead(
        events=asked, end=play.next["end"] | {"suspendPayload": asked[-1]["payload"]},
        list=play.next["list"] | {"runs": [run | {"toolCalls": calls}]},
    )
    await play.starts()
    assert play.passes()["threw"]["details"]["toolCallId"] in play.pending
    play.instead(events=[])
    await play.approves("call-A")
    await play.declines("call-B", reason="not B")


@plays("07b_parallel_mixed")
async def _(play: Play) -> None:
    play.agent(tools=[play.tool("delA", require_approval=True), play.tool("freeB")])
    play.instead(executed=play.next["executed"] | {"B": play.at(1)["executed"]["B"]})
    await play.starts()
    await play.approves("call-A")


@plays("25_approve_inside_loop")
async def _(play: Play) -> None:
    order: list[str] = []
    agent = play.agent([DEL], "done", tools=[play.tool("del", require_approval=True)])
    outer = play.stream()
    async for event in outer:
        order.append(f"outer:{event['type']}")
        if event["type"] == "tool-call-approval":
            play.pending["call-1"] = event["payload"]
            inner = play.resumed(await read(agent.approve_tool_call(outer.run_id, approver=BOB)), ["call-1"])
            order += [f"inner:{one['type']}" for one in inner]
    await play.shows(order=order, outerStatus=outer.status, outerFinishReason=outer.finish_reason)


@plays("29_client_tool_no_execute")
async def _(play: Play) -> None:
    *asked, ended, finished = play.next["events"]
    play.agent(tools=[Tool("client", require_approval=True)])
    play.instead(events=[*asked, approval_of(asked[-1])], snapshots=["one"])
    await play.starts()
    play.adds(events=[ended, finished], snapshots=[])
    await play.approves()


@plays("38_toolCallConcurrency_approvals")
async def _(play: Play) -> None:
    events, run = play.next["events"], play.next["list"]["runs"][0]
    call = events[3]["payload"] | {"requiresApproval": True}
    play.agent(tools=[play.tool("a"), play.tool("b")])
    play.instead(
        events=[*events, approval_of(events[3])],
        list=play.next["list"] | {"runs": [run | {"toolCalls": [*run["toolCalls"], call]}]},
    )
    await play.starts(require_tool_approval=lambda info: True)


@plays("11_errors")
async def _(play: Play) -> None:
    agent = play.agent([DEL], *play.turns(), tools=[play.tool("del", require_approval=True)], id="a")
    await play.begins()
    await play.refuses(agent.approve_tool_call("nope", approver=BOB))
    await play.refuses(agent.approve_tool_call("", approver=BOB))
    await play.refuses(agent.approve_tool_call(play.run_id, "ghost", approver=BOB))
    await play.shows()
    for data in ({"approved": "yes"}, {}, None):
        assert [event["type"] for event in play.passes()["ok"]] == ["tool-call-approval"]
        await _malformed(play, data)
    await play.shows()
    await _malformed(play, {"approved": True, "extra": 1})
    await play.resumes({"approved": True}, approver=BOB)
    await play.shows()
    await play.refuses(agent.approve_tool_call(play.run_id, approver=BOB))
    await play.refuses(agent.approve_tool_call(play.run_id, "call-1", approver=BOB))


async def _malformed(play: Play, data: Any) -> None:
    with pytest.raises(DecisionError) as caught:
        await play.top.resume_stream(data, play.run_id, user="ana", approver=BOB)
    assert (caught.value.code, caught.value.detail) == ("invalid-approval", "malformed")
    assert (await play.listing())["total"] == 1


@plays("13_hook_binding")
async def _(play: Play) -> None:
    def before(info: dict[str, Any]) -> None:
        called = {"toolCallId": info["context"].tool_call_id}
        play.log.append({name: info[name] for name in ("toolName", "input")} | called)

    refund = play.tool("issue_refund", require_approval=True)
    play.agent(tools=[refund], hooks=Hooks(before_tool_call=before))
    await play.starts()
    await play.approves()


@plays("22_unknown_tool_and_active_tools")
async def _(play: Play) -> None:
    play.agent(tools=[play.tool("del")])
    await play.starts(require_tool_approval=True)


# -- suspensions -----------------------------------------------------------------------------------------------------


def weather(play: Play) -> Tool:
    return play.asking(
        "weather", lambda given: {"question": "Which city?"},
        lambda given, data: {"weather": f"{data['location']}: sunny"},
    )


@plays("04_suspend_resume_stream")
async def _(play: Play) -> None:
    play.agent(tools=[weather(play)])
    await play.starts()
    await play.shows(result=await play.listing())
    await play.resumes({"location": "Paris"})


@plays("04d_suspend_via_approve")
async def _(play: Play) -> None:
    play.agent(tools=[play.asking(
        "b", lambda given: {"reason": "Approval required."}, lambda given, data: {"weather": "sunny"},
        note=lambda given, context: context.resume_data or {}, enough=lambda data: bool(data and data["approved"]),
    )])
    user = Principal("ana")  # a suspension is his to answer
    await play.starts()
    await play.declines(approver=user)
    await play.approves(approver=user)


@plays("05c_generate_suspend_resume")
async def _(play: Play) -> None:
    agent = play.agent([("call-1", "weather", {})], "done", tools=[weather(play)])
    paused = await play.generates(agent.generate("go", user="ana"))
    await play.generates(agent.resume_generate({"location": "Rome"}, paused.run_id, user="ana"))


@plays("08_parallel_two_suspended_concurrently_in_order", "08b_parallel_two_suspended_reverse")
async def _(play: Play) -> None:
    play.agent(tools=[weather(play)])
    await play.starts()
    for call in ("call-B", "call-A") if "reverse" in play.name else ("call-A", "call-B"):
        play.log.clear()
        await play.resumes({"location": f"city-for-{call}"}, call)
    await play.shows()


@plays("37_generate_parallel_pending")
async def _(play: Play) -> None:
    asking = play.asking("ask", lambda given: given, lambda given, data: data)
    agent = play.agent([("call-A", "ask", {"q": "A"}), ("call-B", "ask", {"q": "B"})], tools=[asking], id="a")
    await play.generates(agent.generate("go", user="ana"))


# -- policies --------------------------------------------------------------------------------------------------------


def _raises(*_: Any) -> bool:
    raise RuntimeError("no policy today")


async def _later_true(*_: Any) -> bool:
    return True


async def _later_false(*_: Any) -> bool:
    return False


SETTINGS: dict[str, Any] = {
    "none": None, "true": True, "false": False, "fnTrue": lambda *_: True, "fnFalse": lambda *_: False,
    "fnThrow": _raises, "fnAsyncTrue": _later_true, "fnAsyncFalse": _later_false, "fnUndefined": lambda *_: None,
    "fnTruthyString": lambda *_: "yes",
}


@plays("10_policy_matrix")
async def _(play: Play) -> None:
    table = []
    for row in play.next["table"]:
        play.ran.clear()
        agent = play.agent([DEL], "done", tools=[play.tool("del", require_approval=SETTINGS[row["tool"]])], id="a")
        result = await agent.generate("go", user="ana", require_tool_approval=SETTINGS[row["request"]])
        table.append(row | {"paused": result.status == "suspended", "executed": len(play.ran)})
    await play.shows(table=table)


class _Input(BaseModel):
    id: str
    n: int = 7


@plays("10b_policy_function_args")
async def _(play: Play) -> None:
    infos: list[Any] = []
    own: list[Any] = []
    tools = [
        play.tool("tKey", input_schema=_Input),
        play.tool("tOwn", input_schema=_Input, require_approval=lambda args, info: own.append((args, info))),
    ]
    agent = play.agent([("call-1", "tKey", {"id": "1"}), ("call-2", "tOwn", {"id": "1"})], "done", tools=tools, id="a")
    await agent.generate("go", user="ana", request_context={"role": "admin"}, require_tool_approval=infos.append)
    told, (args, info) = infos[0], own[0]
    seen = {
        "toolName": told.tool_name, "args": told.args, "requestContext": told.request_context,
        "workspace": told.workspace,
    }
    context = {"args": info.args, "requestContext": info.request_context, "workspace": info.workspace}
    await play.shows(
        request={"keys": list(seen), **seen},
        tool={"input": args, "ctxKeys": list(context), "requestContext": context["requestContext"]},
        execInput=dict(play.ran)["tKey"].model_dump(), requestPolicyEvaluations=len(infos),
    )


@plays("24b_policy_mutates_args", "24c_policy_mutates_args_then_approve")
async def _(play: Play) -> None:
    asks = "approve" in play.name

    def spoils(info: Any) -> bool:
        info.args["id"] = "everything"
        return asks

    play.agent(tools=[play.tool("pay")])
    await play.starts(require_tool_approval=spoils)
    if asks:
        await play.approves()


@plays("17_durable_function_policy")
async def _(play: Play) -> None:
    for setting in (lambda info: False, lambda info: True, True, False):
        play.ran.clear()
        play.agent([DEL], "done", tools=[play.tool("del")], id="a")
        persisted = {one["persistedOption"] for one in play.next["snapshots"]}
        play.instead(types=[kind for kind in play.next["types"] if kind != "response-metadata"])
        await play.starts(require_tool_approval=setting)
        found = play.top.snapshots.load("default", play.run_id)
        assert persisted == ({found.snapshot.options.require_approval} if found else set())


@plays("35_durable_function_policy_cold", "35_evented_function_policy_cold")
async def _(play: Play) -> None:
    play.where = TH
    options: dict[str, Any] = {"tools": [play.tool("safe"), play.tool("danger")], "id": "a", "memory": True}
    run, asked = play.at(1)["list"]["runs"][0], play.at(0)["events"][-1]["payload"]
    call = run["toolCalls"][0] | {"args": asked["args"], "requiresApproval": True}
    play.agent(*play.turns(0), **options)
    play.instead(events=_of_one_engine(play.next["events"]))
    await play.starts(require_tool_approval=lambda info: info.tool_name == "danger")
    play.restart()
    play.agent(*play.turns(2), **options)
    play.instead(list=play.next["list"] | {"runs": [run | {"toolCalls": [call]}]})
    await play.shows()
    play.instead(ok=_of_one_engine(play.next["ok"]))
    await play.approves("call-1")


def _of_one_engine(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return recorded events of the durable engine as the ordinary one has them."""
    ordinary = recording()["scenarios"]["01_tool_requireApproval_approve_stream"]["steps"]
    steps = {one["type"]: one["payloadKeys"] for one in ordinary[2]["events"] if one["type"].startswith("step-")}
    schema = {"resumeSchema": "<APPROVAL_RESUME_SCHEMA>"}
    return [
        one | {"payloadKeys": steps.get(one["type"], one["payloadKeys"])}
        | ({"payload": one["payload"] | schema} if "resumeSchema" in one["payloadKeys"] else {})
        for one in events if one["type"] != "response-metadata"
    ]
