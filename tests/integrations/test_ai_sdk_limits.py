"""No chat is ended by the size of what a model, a tool or a person says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from hitl_guard.agent import Agent, turns
from hitl_guard.cli.demo_chat import ChatDemo
from hitl_guard.integrations.ai_sdk import answers, messages
from hitl_guard.integrations.ai_sdk.values import MAX_SHOWN, MAX_VALUES, TOO_LARGE, bounded
from tests.chat.client import ChatClient
from tests.integrations import test_ai_sdk_chat as chats
from tests.integrations.test_ai_sdk_chat import OWN, House, answered, asked

house, demo, chat, api = chats.house, chats.demo, chats.chat, chats.api


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def shared(levels: int) -> list[Any]:
    """A list that is small in memory and has 2 ** levels values."""
    value: list[Any] = [1]
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [
    "x" * MAX_SHOWN, ["é" * (MAX_SHOWN // 2)], [0] * (MAX_VALUES + 1), shared(60),
], ids=["text", "bytes", "values", "shared"])
def test_a_result_that_is_too_large_is_told_as_that(value: Any) -> None:
    assert bounded(value) == TOO_LARGE


def test_a_result_that_is_not_too_large_goes_out_as_it_is() -> None:
    fine: dict[str, Any] = {"text": "x" * (MAX_SHOWN - 100), "list": [0] * 10, "none": None}

    assert bounded(fine) is fine
    assert bounded({"day": date(2026, 1, 2)}) == {"day": "2026-01-02"}


@pytest.mark.parametrize("result", [[0] * 210_000, "x" * 900_000, nested(185)], ids=["values", "bytes", "levels"])
@pytest.mark.parametrize("memory", [True, False])
def test_a_chat_goes_on_after_results_that_no_post_could_hold(
    house: Callable[..., House], result: Any, memory: bool
) -> None:
    calls: list[Any] = [[(f"c{turn}-{number}", "look", {}) for number in range(5)] for turn in range(2)]
    home = house(OWN, *calls, "That is much.", "Bye.", memory=memory, results={"look": result})

    home.client.send("Look.")
    home.client.send("Thanks.")

    assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_a_chat_goes_on_after_more_calls_than_a_turn_may_have(house: Callable[..., House]) -> None:
    home = house(OWN, [(f"c{number}", "look", {}) for number in range(2_100)], "Too many.", "Bye.")

    home.client.send("Look.")
    assert len(home.client.tool_parts) == 129
    home.client.send("Thanks.")

    assert (home.client.status, home.client.text) == ("ready", "Bye.")


def test_the_longest_run_of_the_most_calls_fits_into_a_message_of_a_post() -> None:
    steps = inspect.signature(Agent).parameters["max_steps"].default
    calls = turns.MAX_CALLS + 1  # one more is told as too many

    assert steps * (calls + 2) <= messages.MAX_PARTS  # with the begin of the step, and a text
    assert steps * calls <= messages.MAX_CLAIMS


def test_a_message_of_thousands_of_calls_is_read(house: Callable[..., House]) -> None:
    home = house(OWN, "So many.", memory=False)
    parts = [
        {"type": "tool-look", "toolCallId": f"c{number}", "state": "output-available", "input": {}, "output": number}
        for number in range(6_000)
    ]

    answer = home.client.post({"id": "c", "messages": [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Look."}]},
        {"id": "a", "role": "assistant", "parts": parts},
        {"id": "v", "role": "user", "parts": [{"type": "text", "text": "And?"}]},
    ]})

    assert (answer.status, "So many." in answer.text) == (200, True)
    assert [one["role"] for one in home.model.calls[0]].count("tool") == 6_000


@pytest.mark.parametrize("approved", [True, False])
def test_half_an_emoji_in_a_persons_reason_ends_no_chat(demo: ChatDemo, chat: ChatClient, approved: bool) -> None:
    approval_id = asked(chat)

    def reasoned(part: dict[str, Any]) -> None:
        part["approval"] |= {"approved": approved, "reason": "Fine \ud83d"}

    chat.set_messages(answered(chat.messages, reasoned))
    chat.proceed()

    assert (chat.status, len(demo.deleted)) == ("ready", int(approved))
    assert demo.guard.get(approval_id).state == ("succeeded" if approved else "denied")
    chat.send("And now /b")
    assert chat.status == "ready"


def test_a_chat_goes_on_after_more_answers_in_its_history_than_a_post_may_give(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_LIVE", 5)
    asks: list[Any] = [[(f"c{turn}-{number}", "pay", {"n": number}) for number in range(4)] for turn in range(5)]
    home = house(OWN, *[one for turn in asks for one in (turn, "Paid.")], *["ok"] * 8)

    for turn in range(5):  # each time the answers come with the next message
        home.client.send(f"Pay {turn}.")
        home.client.set_messages(every_answer(home.client.messages))
    home.client.send("Thanks.")
    home.client.send("Bye.")

    assert (home.client.status, len(home.ran)) == ("ready", 20)


def test_more_answers_at_once_than_a_post_may_give_are_refused_and_decide_nothing(
    house: Callable[..., House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_LIVE", 1)
    home = house(OWN, [("c1", "pay", {"n": 1}), ("c2", "pay", {"n": 2})], "Paid.")
    home.client.send("Pay.")
    home.client.set_messages(every_answer(home.client.messages))

    home.client.proceed()

    assert ((home.client.error or {})["statusCode"], home.ran, len(home.pending())) == (413, [], 2)


def every_answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for part in messages[-1]["parts"]:
        if part.get("state") == "approval-requested":
            part["state"], part["approval"]["approved"] = "approval-responded", True
    return messages


def test_a_chat_id_that_no_run_could_have_is_refused_at_the_door(chat: ChatClient) -> None:
    answer = chat.post({"id": "\U0001f600" * 200, "messages": [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hello."}]},
    ]})

    assert (answer.status, "longer than 512 bytes" in answer.text) == (400, True)
