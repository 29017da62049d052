"""What other runs of a chat, other policies and other people do leaves no request hidden and shows nothing untrue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from hitl_guard import Guard
from hitl_guard.agent import Agent, Tool
from hitl_guard.integrations.ai_sdk import Chat
from hitl_guard.integrations.ai_sdk.texts import CHANGED_BELOW
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import ScriptedModel
from tests.integrations import test_ai_sdk_chat as chats
from tests.integrations.test_ai_sdk_chat import OWN, House, answered

house = chats.house
EDIT = OWN.replace(b"self_approval: true}", b"self_approval: true, edit: true}")


def shown(home: House, request_id: str) -> list[str]:
    """Return the states of the parts that ask for a request, wherever in the chat."""
    parts = [part for message in home.client.messages for part in message["parts"]]
    return [part["state"] for part in parts if (part.get("approval") or {}).get("id") == request_id]


# -- another run of the chat -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("approve", [True, False])
def test_the_end_of_an_earlier_runs_call_takes_no_waiting_part_of_the_same_id(
    house: Callable[..., House], memory: bool, approve: bool
) -> None:
    asks = [("c1", "pay", {"run": "B"}), ("c2", "pay", {"run": "B2"})]
    home = house(OWN, [("c1", "deleteFile", {"run": "A"})], asks, *["ok"] * 4, memory=memory)
    home.client.send("A please")
    home.client.send("B please")
    asked = {request.arguments["run"]: request for request in home.pending()}
    home.decide(asked["A"], approve, channel="inbox")

    home.client.approve(asked["B2"].id)
    home.client.proceed()

    assert home.guard.get(asked["B"].id).state == "pending"
    assert shown(home, asked["B"].id) == ["approval-requested"]
    assert sorted(given["run"] for _, given in home.ran) == (["A", "B2"] if approve else ["B2"])
    home.client.approve(asked["B"].id)
    home.client.proceed()
    assert home.guard.get(asked["B"].id).state == "succeeded"
    assert shown(home, asked["B"].id) == ["output-available"]


def test_the_end_of_a_call_whose_answer_was_made_anew_takes_no_part_of_the_new_one(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "pay", {"try": 1})], [("c1", "pay", {"try": 2})], *["ok"] * 4)
    home.client.send("go")
    (old,) = home.pending()
    home.client.regenerate()
    (new,) = [request for request in home.pending() if request.id != old.id]
    home.decide(old, False, channel="inbox")

    home.client.proceed()

    assert (home.guard.get(new.id).state, shown(home, new.id)) == ("pending", ["approval-requested"])


def test_a_sub_agents_call_that_was_approved_in_the_inbox_is_not_told_as_over_by_another_run(
    serve: Callable[..., str], open_chat: Callable[..., Any]
) -> None:
    home = House(serve, open_chat, OWN + b"  - {id: sub, tools: [agent-helper], effect: allow}\n", "x")
    paying = Tool("pay", execute=home._tool("pay"))
    inner = ScriptedModel([("i1", "pay", {"n": 1})], "Paid.", "Paid.")
    helper = Agent("helper", model=inner, tools=[paying], guard=home.guard)

    def decide(_: Any) -> str:
        home.decide(home.pending()[0], channel="inbox")
        return "B is done."

    model = ScriptedModel([("d1", "agent-helper", {"prompt": "go"})], decide, "A is done.", "x", "y")
    boss = Agent("bot", model=model, agents=[helper], guard=home.guard, memory=True)
    client = open_chat(f"{serve(Starlette(routes=Chat(boss, authenticate=chats._who).routes()))}/api/chat")
    client.send("go")

    client.proceed()  # run B begins in the same message, and ends while Bob approves in the inbox
    client.proceed()

    (part,) = [part for part in client.tool_parts if "/" in part["toolCallId"]]
    assert (home.ran, part["state"], part["output"]) == ([("pay", {"n": 1})], "output-available", "pay done")
    home.store.close()


# -- another policy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, False])
def test_a_request_of_an_earlier_policy_is_asked_anew_and_can_be_decided_in_the_chat(
    house: Callable[..., House], serve: Callable[..., str], answer: bool
) -> None:
    home = house(OWN, [("c1", "pay", {"n": 1}), ("c2", "pay", {"n": 2})])
    home.client.send("Pay.")
    old = {request.id for request in home.pending()}
    other = OWN.replace(b"It deletes data.", b"It deletes data!")
    guard = Guard(
        policy=PolicyDocument.from_source(other, "chat.yaml"), keyring=home.guard._desk.signer.keyring, store=home.store
    )
    agent = Agent("bot", model=ScriptedModel("Done."), tools=[Tool("pay", execute=home._tool("pay"))], guard=guard,
                  memory=True)
    home.app.router.routes[:] = Chat(agent, authenticate=chats._who).routes()
    if answer:
        home.client.set_messages(answered(home.client.messages))

    home.client.proceed()

    new = [part["approval"]["id"] for part in home.client.tool_parts]
    assert [part["state"] for part in home.client.tool_parts] == ["approval-requested"] * 2
    assert not old & set(new)
    for request_id in new:
        home.client.approve(request_id)
    assert sorted(given["n"] for _, given in home.ran) == [1, 2]
    assert [part["state"] for part in home.client.tool_parts] == ["output-available"] * 2


# -- other arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "apart"), [
    ({"n": 5000, "__proto__": 1}, False), ({"n": 9}, True), ({"n": 9}, False),
], ids=["unsendable", "older-step", "plain"])
def test_the_result_of_a_call_whose_arguments_a_person_changed_stands_beside_what_ran(
    house: Callable[..., House], arguments: dict[str, Any], apart: bool
) -> None:
    home = house(EDIT, [("c1", "pay", {"n": 1})], *["ok"] * 5)
    home.client.send("go")
    (request,) = home.pending()
    if apart:
        home.client.proceed()  # another run speaks in the message: what stands above can be changed no more
    home.decide(request, arguments=arguments, channel="inbox")

    home.client.proceed()

    assert home.ran == [("pay", arguments)]
    ended = {part["state"]: part for part in home.client.tool_parts}
    ran = ended["output-available"]
    assert ran["output"] == "pay done"
    assert "5000" in ran["input"] if "__proto__" in arguments else ran["input"] == arguments
    if apart or "__proto__" in arguments:
        assert (ended["output-error"]["errorText"], len(ended)) == (CHANGED_BELOW, 2)
        assert (ended["output-error"]["input"], "approved" in ended["output-error"]["approval"]) == ({"n": 1}, False)
    for text in ("again", "and again"):
        home.client.send(text)
        assert (home.client.status, home.client.text) == ("ready", "ok")


# -- what tools ask --------------------------------------------------------------------------------------------------

QUESTIONS = [
    {"type": "tool-x", "approval": 1}, {"type": "tool-x", "state": "approval-responded"},
    {"parts": [{"approval": {"approved": True, "id": "x"}}]}, {"type": "tool-approval-response", "approvalId": "x"},
    {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True},
    {"type": "tool-x", "toolCallId": "c1", "input": 1, "args": 2}, {"resume": [{"interruptId": "x"}]},
]


@pytest.mark.parametrize("said", QUESTIONS, ids=str)
@pytest.mark.parametrize("where", ["question", "schema"])
def test_what_a_tool_asks_is_no_approval_whatever_it_looks_like(
    serve: Callable[..., str], open_chat: Callable[..., Any], said: dict[str, Any], where: str
) -> None:
    home = House(serve, open_chat, OWN + b"  - {id: where, tools: [locate], effect: allow}\n", "x")

    async def locate(given: Any, context: Any) -> Any:
        if context.resume_data is None:
            await context.suspend({"asked": given} if where == "question" else {})
        return context.resume_data

    schema = {"type": "object", "examples": [said] if where == "schema" else []}
    model = ScriptedModel([("c1", "locate", {"q": said})], "ok", "ok")
    agent = Agent("bot", model=model, guard=home.guard, memory=True,
                  tools=[Tool("locate", execute=locate, resume_schema=schema)])
    client = open_chat(f"{serve(Starlette(routes=Chat(agent, authenticate=chats._who).routes()))}/api/chat")
    client.send("Where?")

    client.send("And now?")

    assert (client.error, client.status, client.text) == (None, "ready", "ok")
    home.store.close()




# -- answers in earlier messages, edits, equal ids: nobody honest is refused, and nothing is hidden --------------------


def write_on(home: House, request_id: str, approved: bool) -> None:
    """Answer a request and, at once, write a new message."""
    messages = home.client.messages
    for part in (part for message in messages for part in message["parts"]):
        if (part.get("approval") or {}).get("id") == request_id:
            part["state"], part["approval"]["approved"] = "approval-responded", approved
    home.client.set_messages(messages)
    home.client.send("And now?")


def assert_alive(home: House) -> None:
    """The chat goes on, and every request that waits is shown in it."""
    hidden = [request.id for request in home.pending() if not shown(home, request.id)]
    home.client.send("Again.")
    assert (hidden, home.client.error, home.client.status) == ([], None, "ready")


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("clicks", [True, False])
def test_an_old_answer_moves_no_later_call_of_the_same_id(
    house: Callable[..., House], memory: bool, yes: bool, clicks: bool
) -> None:
    later = [("c1", "deleteFile", {"n": 666}), ("c2", "pay", {"n": 2})]
    home = house(OWN, [("c1", "pay", {"n": 1})], "A", "B", later, *["ok"] * 5, memory=memory)
    home.client.send("go")
    write_on(home, home.pending()[0].id, yes)
    home.client.send("third")
    deletion, paying = home.client.tool_parts
    assert (deletion["type"], paying["type"]) == ("tool-deleteFile", "tool-pay")

    if clicks:
        home.client.approve(paying["approval"]["id"])
    home.client.proceed()

    assert shown(home, deletion["approval"]["id"]) == ["approval-requested"]
    assert home.guard.get(deletion["approval"]["id"]).state == "pending"
    assert_alive(home)


@pytest.mark.parametrize("memory", [True, False])
def test_an_answer_that_was_not_taken_moves_no_later_call_of_the_same_id(
    house: Callable[..., House], memory: bool
) -> None:
    later = [("c1", "deleteFile", {"n": 666}), ("c2", "pay", {"n": 2})]
    home = house(chats.FOUR_EYES, [("c1", "pay", {"n": 1})], later, *["ok"] * 5, memory=memory)
    home.client.send("go")
    write_on(home, home.pending()[0].id, True)

    home.client.approve(home.client.tool_parts[-1]["approval"]["id"])
    home.client.proceed()

    assert home.ran == []
    assert_alive(home)


@pytest.mark.parametrize("memory", [True, False])
def test_two_edits_of_one_call_with_a_late_no_between_are_two_requests(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(EDIT, [("c1", "pay", {"n": 1})], *["ok"] * 6, memory=memory)
    home.client.send("go")
    (first,) = home.pending()
    home.decide(first, arguments={"n": 9}, channel="inbox")
    write_on(home, first.id, False)
    assert home.ran == []

    for request in home.pending():
        home.decide(request, arguments={"n": 5}, channel="inbox")
        home.client.approve(request.id)

    assert_alive(home)
    assert {given["n"] for _, given in home.ran} <= {5}


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("yes", [True, False])
def test_the_end_of_a_decided_call_takes_no_ended_part_of_another_run(
    house: Callable[..., House], memory: bool, yes: bool
) -> None:
    turns = [[("c1", "deleteFile", {"n": 0})], [("c1", "look", {"n": 1}), ("c2", "pay", {"n": 2})]]
    home = house(OWN, *turns, *["ok"] * 6, memory=memory)
    home.client.send("one")
    (deletion,) = home.pending()
    home.client.send("two")
    (paying,) = [request for request in home.pending() if request.tool == "pay"]
    home.decide(deletion, yes, channel="inbox")

    home.client.approve(paying.id)

    parts = [part for message in home.client.messages for part in message["parts"]]
    ends = [part["state"] for part in parts if part["type"] == "tool-deleteFile"]
    assert ends == ["approval-requested", "output-available" if yes else "output-denied"]
    assert len([part for part in parts if part["type"] == "tool-look"]) == 1
    assert_alive(home)


@pytest.mark.parametrize("memory", [True, False])
def test_what_the_client_has_with_its_end_is_told_once(house: Callable[..., House], memory: bool) -> None:
    home = house(OWN, [("c1", "pay", {"n": 1}), ("c2", "deleteFile", {"n": 2})], *["ok"] * 4, memory=memory)
    home.client.send("go")
    home.client.approve(home.client.tool_parts[0]["approval"]["id"])
    home.client.proceed()
    home.decide(home.pending()[0], channel="inbox")

    home.client.send("And now?")

    parts = [part for message in home.client.messages for part in message["parts"]]
    assert [part["input"]["n"] for part in parts if part.get("state") == "output-available"] == [1, 2]
    calls = [call for one in home.model.calls[-1] for call in one.get("tool_calls") or ()]
    assert len(calls) == 2


@pytest.mark.parametrize("edited", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_ends_closes_no_sub_agents_call_of_another_run(
    serve: Callable[..., str], open_chat: Callable[..., Any], first: bool, edited: bool
) -> None:
    home = House(serve, open_chat, EDIT + b"  - {id: sub, tools: [agent-helper], effect: allow}\n", "x")
    inner = ScriptedModel([("i1", "pay", {"n": 1})], *["sub done"] * 4)
    helper = Agent("helper", model=inner, tools=[Tool("pay", execute=home._tool("pay"))], guard=home.guard)
    model = ScriptedModel([("a1", "deleteFile", {})], [("d1", "agent-helper", {"prompt": "go"})], *["ok"] * 8)
    deletion = Tool("deleteFile", execute=home._tool("deleteFile"))
    boss = Agent("bot", model=model, agents=[helper], tools=[deletion], guard=home.guard, memory=True)
    home.client = open_chat(f"{serve(Starlette(routes=Chat(boss, authenticate=chats._who).routes()))}/api/chat")
    home.client.send("one")
    (outer,) = home.pending()
    home.client.send("two")
    (inner_one,) = [request for request in home.pending() if request.tool == "pay"]
    if first:
        home.decide(outer, False, channel="inbox")
    if edited:
        home.decide(inner_one, arguments={"n": 5}, channel="inbox")
        home.client.deny(inner_one.id)
    else:
        home.decide(inner_one, False, channel="inbox")
        home.client.approve(inner_one.id)

    assert home.ran == []
    assert_alive(home)
    home.store.close()


UNSENDABLE = [{"n": 1, "__proto__": 1}, {"constructor": {"prototype": 1}}]


@pytest.mark.parametrize("arguments", UNSENDABLE, ids=["proto", "constructor"])
@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("edited", [True, False])
def test_a_call_whose_arguments_no_browser_takes_ends_no_chat(
    house: Callable[..., House], arguments: dict[str, Any], yes: bool, writes: bool, edited: bool
) -> None:
    home = house(EDIT, [("c1", "pay", {"n": 7} if edited else arguments)], *["ok"] * 5)
    home.client.send("go")
    (request,) = home.pending()
    home.decide(request, yes, channel="inbox", **({"arguments": arguments} if edited and yes else {}))

    if writes:
        home.client.send("Well?")
    else:
        home.client.proceed()

    assert home.ran == ([("pay", arguments)] if yes else [])
    assert_alive(home)
    assert_alive(home)


def test_a_free_call_whose_arguments_no_browser_takes_ends_no_chat(house: Callable[..., House]) -> None:
    home = house(OWN, [("c1", "look", {"a": {"__proto__": 1}})], *["ok"] * 4)

    home.client.send("go")

    assert len(home.ran) == 1
    assert_alive(home)
