"""A run that fails, a key that one node does not have yet, a late No: none of them ends a chat or lets a call run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from hitl_guard import Guard, Policy, clock
from hitl_guard.agent import Agent, Tool
from hitl_guard.integrations.ai_sdk import Chat, tool_approval
from hitl_guard.integrations.ai_sdk.texts import RUN_FAILED
from hitl_guard.keyring import Keyring, revoked
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import ScriptedModel, UnsafeKeyring
from tests.integrations import test_ai_sdk_chat as chats
from tests.integrations.test_ai_sdk_chat import OWN, House, answered
from tests.integrations.test_ai_sdk_other_runs import write_on

house = chats.house
QUORUM = OWN.replace(b"self_approval: true", b"self_approval: true, edit: true, quorum: 2")


@pytest.mark.parametrize("memory", [True, False])
def test_a_no_to_an_edited_call_counts_although_its_first_arguments_had_a_yes(
    house: Callable[..., House], memory: bool
) -> None:
    home = house(QUORUM, [("c1", "pay", {"n": 1})], *["ok"] * 6, memory=memory)
    home.client.send("go")
    (first,) = home.pending()
    write_on(home, first.id, True)
    home.decide(first, arguments={"n": 9}, channel="inbox")
    home.client.send("And?")
    (edited,) = home.pending()

    home.client.deny(edited.id)
    home.client.proceed()

    assert (home.client.error, home.client.status) == (None, "ready")
    assert (home.guard.get(edited.id).state, home.ran) == ("denied", [])
    home.client.send("Again.")
    assert (home.client.error, home.ran) == (None, [])


def two_nodes(
    house: Callable[..., House], serve: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> tuple[House, str]:
    """Return a chat whose server has a new key, and the address of another server that has not looked at it yet."""
    path = folder / "keys.json"

    def write(ring: Keyring) -> None:
        path.write_bytes(ring.dump().reveal())
        path.chmod(0o600)

    write(UnsafeKeyring())
    early, late = Keyring.from_file(path, refresh_s=0), Keyring.from_file(path, refresh_s=3600)
    monkeypatch.setattr(chats, "UnsafeKeyring", lambda: early)
    home = house(OWN, [("c1", "pay", {"n": 1})], *["ok"] * 4, memory=memory)
    guard = Guard(policy=PolicyDocument.from_source(OWN, "chat.yaml"), keyring=late, store=home.store)
    agent = Agent("bot", model=ScriptedModel(*["ok"] * 4), tools=[Tool("pay", execute=home._tool("pay"))], guard=guard,
                  memory=memory)
    write(revoked(early, early.keys[0].id, now=clock.epoch_ms())[0])
    return home, f"{serve(Starlette(routes=Chat(agent, authenticate=chats._who).routes()))}/api/chat"


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("yes", [True, False])
def test_an_answer_counts_on_a_node_that_does_not_know_the_new_key_yet(
    house: Callable[..., House], serve: Callable[..., str], open_chat: Callable[..., Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, yes: bool, memory: bool,
) -> None:
    home, other = two_nodes(house, serve, tmp_path, monkeypatch, memory)
    home.client.send("go")
    (request,) = home.pending()
    messages = answered(home.client.messages, approved=yes)
    body = {"id": home.client.id, "messages": messages, "messageId": messages[-1]["id"]}

    told = open_chat(other).post(body)

    assert told.status == 200
    assert "its key is gone" not in told.text
    assert home.guard.get(request.id).state == ("succeeded" if yes else "denied")
    assert home.ran == ([("pay", {"n": 1})] if yes else [])


def test_a_run_that_cannot_go_on_silences_no_other_answer(house: Callable[..., House]) -> None:
    large: Any = lambda input, _: "user-approval" if input["amount"] > 1000 else None  # noqa: E731
    policy = Policy(documents=PolicyDocument.from_source(OWN, "chat.yaml"), tool_approval=tool_approval({"pay": large}))
    home = house(policy, [("c1", "pay", {"amount": "x"})], [("d1", "deleteFile", {"n": 1})], *["ok"] * 4)
    home.client.send("go")
    home.client.approve(home.pending()[0].id)  # it can be approved, and the policy fails again when it would run
    assert (home.client.error or {})["message"] == RUN_FAILED
    home.client.send("Delete.")
    (deletion,) = [part for part in home.client.tool_parts if part["type"] == "tool-deleteFile"]

    home.client.approve(deletion["approval"]["id"])

    assert home.ran == [("deleteFile", {"n": 1})]
    (deletion,) = [part for part in home.client.tool_parts if part["type"] == "tool-deleteFile"]
    assert (deletion["state"], (home.client.error or {})["message"]) == ("output-available", RUN_FAILED)
    assert home.client.text == "ok"


