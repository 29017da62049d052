"""What a model writes gets a definite form, whatever it writes; nothing of it is believed here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from hitl_guard import canonical
from hitl_guard.agent import turns
from hitl_guard.agent.turns import Proposed, Turn, deltas, merge_usage
from hitl_guard.errors import CanonicalizationError, ConfigurationError

CALL = {"id": "a", "type": "function", "function": {"name": "refund", "arguments": '{"x":1}'}}
MESSAGE = {"content": "Hello.", "tool_calls": [CALL], "finish_reason": "tool_calls", "usage": {"total_tokens": 3}}
TURN = Turn("Hello.", (Proposed("a", "refund", '{"x":1}'),), "tool_calls", {"total_tokens": 3})


async def told(model: Any) -> list[str | Turn]:
    return [piece async for piece in deltas(model, [{"role": "user", "content": "hi"}], [], {})]


async def turn_of(*pieces: Any) -> Turn:
    """Return the turn that streamed deltas come to."""
    async def streaming(*_: Any) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    turn = (await told(streaming))[-1]
    assert isinstance(turn, Turn)
    return turn


async def call_of(call: Any) -> Proposed:
    """Return one call of a whole turn."""
    turn = (await told(lambda *_: {"tool_calls": [call]}))[-1]
    assert isinstance(turn, Turn)
    (proposed,) = turn.calls
    return proposed


def streamed(index: Any, **parts: Any) -> dict[str, Any]:
    function = {name: parts.pop(name) for name in ("name", "arguments") if name in parts}
    return {"tool_calls": [{"index": index, "function": function, **parts}]}


# -- what a model may be ---------------------------------------------------------------------------------------------


async def awaited(*_: Any) -> Any:
    return MESSAGE


async def generating(*_: Any) -> AsyncIterator[Any]:
    yield MESSAGE


async def awaited_stream(*_: Any) -> Any:
    return generating()


class Stream:
    """An async iterator that cannot be closed."""

    def __init__(self, *_: Any) -> None:
        self.left = [MESSAGE]

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


@pytest.mark.parametrize("model", [awaited, generating, awaited_stream, Stream, lambda *_: MESSAGE])
async def test_a_turn_comes_whole_or_in_deltas_awaited_or_not(model: Any) -> None:
    assert await told(model) == ["Hello.", TURN]


async def test_a_model_is_asked_with_messages_tools_and_settings() -> None:
    asked: list[Any] = []

    def model(*given: Any) -> Any:
        asked.extend(given)
        return MESSAGE

    given = ([{"role": "user"}], [{"type": "function"}], {"temperature": 0})
    async with aclosing(deltas(model, *given)) as pieces:
        async for _ in pieces:
            pass

    assert [one is other for one, other in zip(asked, given, strict=True)] == [True, True, True]


@pytest.mark.parametrize(
    "answer", [None, "text", 5, [MESSAGE], {}, {"error": "overloaded"}, {"role": "assistant"}], ids=repr
)
async def test_what_is_no_turn_at_all_is_a_fault_of_the_set_up(answer: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await told(lambda *_: answer)

    assert refused.value.detail == "model"


async def test_a_delta_that_is_no_mapping_is_a_fault_of_the_set_up() -> None:
    with pytest.raises(ConfigurationError, match="mapping") as refused:
        await turn_of({"content": "a"}, "b")

    assert refused.value.detail == "model"


async def test_what_a_model_raises_goes_through_as_it_is() -> None:
    async def failing(*_: Any) -> AsyncIterator[Any]:
        yield {"content": "a"}
        raise LookupError("overloaded")

    with pytest.raises(LookupError, match="overloaded"):
        await told(failing)


async def test_a_consumer_that_stops_closes_the_models_stream() -> None:
    ended: list[str] = []

    async def endless(*_: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield {"content": "more"}
        finally:
            ended.append("closed")

    async with aclosing(deltas(endless, [], [], {})) as pieces:
        async for piece in pieces:
            assert (piece, ended) == ("more", [])
            break

    assert ended == ["closed"]


# -- deltas ----------------------------------------------------------------------------------------------------------


async def test_text_is_yielded_piece_by_piece_and_kept_whole() -> None:
    async def streaming(*_: Any) -> AsyncIterator[Any]:
        for content in ("Hel", "", None, "lo.", 5):
            yield {"content": content}

    assert await told(streaming) == ["Hel", "lo.", Turn("Hello.", (), None, {})]


async def test_split_calls_are_put_together_by_their_index() -> None:
    turn = await turn_of(
        streamed(0, id="a", name="ref", arguments=""), streamed(1, id="b", name="wire", arguments="{"),
        streamed(0, name="und", arguments='{"x"'), streamed(1, arguments="}"), streamed(0, arguments=":1}"),
        {"finish_reason": "tool_calls"}, {"finish_reason": None, "usage": {"total_tokens": 1}},
        {"usage": {"total_tokens": 7}}, {"usage": None},
    )

    calls = (Proposed("a", "refund", '{"x":1}'), Proposed("b", "wire", "{}"))
    assert turn == Turn("", calls, "tool_calls", {"total_tokens": 7})


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([streamed(0, id="a", name="x", arguments="{}"), streamed(0, id="b", name="y", arguments="{}")],
         [("a", "x", "{}"), ("b", "y", "{}")]),
        ([streamed(0, id="a", name="x", arguments="{"), streamed(0, id="a", arguments="}")], [("a", "x", "{}")]),
        ([streamed(None, id="a", name="x", arguments="{"), streamed(None, arguments="}")], [("a", "x", "{}")]),
        ([streamed(None, name="x"), streamed(None, name="y")], [("call_0", "x", "{}"), ("call_1", "y", "{}")]),
        ([streamed(True, name="x"), streamed("0", name="y")], [("call_0", "x", "{}"), ("call_1", "y", "{}")]),
        ([streamed(10**12, id="z", name="x")], [("z", "x", "{}")]),
        ([streamed(0, name="x"), streamed(0, id="late")], [("late", "x", "{}")]),
    ],
    ids=["one-index-for-all", "repeated-id", "no-index", "no-index-no-id", "no-integer", "far", "late-id"],
)
async def test_calls_of_odd_providers_are_kept_apart(pieces: list[Any], calls: list[Any]) -> None:
    assert [(one.id, one.name, one.arguments) for one in (await turn_of(*pieces)).calls] == calls


async def test_a_stream_of_nothing_is_an_empty_turn() -> None:
    assert await turn_of() == Turn("", (), None, {})


# -- what is untrusted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id_", [None, "", 5, "\ud800", "x" * 513, "é" * 257], ids=["none", "empty", "number", "surrogate", "long", "bytes"]
)
async def test_an_id_that_nobody_can_store_is_minted_anew(id_: Any) -> None:
    turn = (await told(lambda *_: {"tool_calls": [CALL, {**CALL, "id": id_}]}))[-1]

    assert isinstance(turn, Turn)
    assert [call.id for call in turn.calls] == ["a", "call_1"]


async def test_equal_ids_of_a_whole_turn_stay_two_calls() -> None:
    turn = (await told(lambda *_: {"tool_calls": [CALL, CALL, {"id": "a"}]}))[-1]

    assert isinstance(turn, Turn)
    assert [(call.id, call.name) for call in turn.calls] == [("a", "refund"), ("a", "refund"), ("a", "")]


@pytest.mark.parametrize(
    ("function", "name"),
    [(None, ""), ("refund", ""), ({}, ""), ({"name": 5}, ""), ({"name": "a\ud800"}, "a\ufffd")],
    ids=["none", "text", "empty", "number", "surrogate"],
)
async def test_a_name_that_is_none_is_empty(function: Any, name: str) -> None:
    assert await call_of({"id": "a", "function": function}) == Proposed("a", name, "{}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, "{}"),
        ("", "{}"),
        (" \n", "{}"),
        ('{"x": 1, "x": 2}', '{"x": 1, "x": 2}'),
        ("not json", "not json"),
        ({"x": 1.0, "y": None}, '{"x": 1.0, "y": null}'),
    ],
    ids=["none", "empty", "blank", "text", "no-json", "mapping"],
)
async def test_arguments_are_raw_text_as_the_model_wrote_it(arguments: Any, text: str) -> None:
    assert (await call_of({"function": {"name": "x", "arguments": arguments}})).arguments == text


@pytest.mark.parametrize(
    "arguments",
    [[1], 5, True, '{"x": "\ud800"}', {"x": "\ud800"}, {"x": float("nan")}, {"x": object()}, {1: 1, "1": 2},
     {("a",): 1}],
    ids=["list", "number", "bool", "surrogate-text", "surrogate", "nan", "object", "twice", "key"],
)
async def test_arguments_that_are_no_json_object_reach_the_guard_as_text_that_it_refuses(arguments: Any) -> None:
    call = await call_of({"function": {"name": "x", "arguments": arguments}})

    json.dumps(call.arguments, ensure_ascii=False).encode()
    try:
        parsed = canonical.parse(call.arguments)
    except CanonicalizationError:
        parsed = None
    assert not isinstance(parsed, dict)


async def test_arguments_inside_themselves_are_refused_text_too() -> None:
    round_: dict[str, Any] = {}
    round_["x"] = round_

    assert (await call_of({"function": {"name": "x", "arguments": round_}})).arguments == "null"


@pytest.mark.parametrize(
    ("given", "turn"),
    [
        ({"content": ["text"]}, Turn("", (), None, {})),
        ({"content": "a\ud800"}, Turn("a\ufffd", (), None, {})),
        ({"content": "a", "tool_calls": "refund"}, Turn("a", (), None, {})),
        ({"content": "a", "tool_calls": ["refund", None]}, Turn("a", (), None, {})),
        ({"content": "a", "finish_reason": 5, "usage": [1]}, Turn("a", (), None, {})),
        ({"content": "a", "finish_reason": "\ud800", "more": 1}, Turn("a", (), "\ufffd", {})),
        ({"content": "a", "tool_calls": (CALL,)}, Turn("a", TURN.calls, None, {})),
    ],
    ids=["content", "surrogate", "calls", "items", "rest", "unknown-key", "tuple"],
)
async def test_wrong_types_are_passed_over(given: Any, turn: Turn) -> None:
    assert (await told(lambda *_: given))[-1] == turn


def test_a_turn_shows_no_text_and_no_arguments() -> None:
    assert repr(TURN) == (
        "Turn(calls=(Proposed(id='a', name='refund'),), finish_reason='tool_calls', usage={'total_tokens': 3})"
    )


def test_usages_are_added_by_name_and_what_is_no_count_is_left_out() -> None:
    odd: Any = {"a": 1, "b": 2, "c": True, "d": 1.5, "e": {"x": 1}, "f": -1, "g": 2**53, "\ud800": 1, 5: 1}

    assert merge_usage({"a": 3, "z": 0}, odd) == {"a": 4, "z": 0, "b": 2}
    assert merge_usage({}, {}) == {}


# -- what is too much ------------------------------------------------------------------------------------------------


async def test_a_model_that_writes_without_end_is_stopped_and_its_calls_do_not_count(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_WRITTEN", 20)
    closed: list[bool] = []

    async def endless(*_: Any) -> AsyncIterator[Any]:
        try:
            yield streamed(0, id="a", name="refund", arguments='{"x":1}')
            while True:
                yield {"content": "word "}
        finally:
            closed.append(True)

    *texts, turn = await told(endless)

    assert ("".join(map(str, texts)), closed) == ("word w", [True])
    assert turn == Turn("word w", (), "length", {})


async def test_arguments_count_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WRITTEN", 20)

    turn = await turn_of({"content": "Hi."}, streamed(0, id="a", name="refund", arguments='{"x":"' + "y" * 20))

    assert turn == Turn("Hi.", (), "length", {})


async def test_calls_beyond_the_most_are_dropped_and_grow_no_other_call() -> None:
    many = [streamed(0, id=f"c{number}", name="refund", arguments="{}") for number in range(200)]

    turn = await turn_of(*many, streamed(0, arguments='{"more":1}'), streamed(7, id="late", name="refund"))

    assert [call.id for call in turn.calls] == [f"c{number}" for number in range(turns.MAX_CALLS + 1)]
    assert {call.arguments for call in turn.calls} == {"{}"}
