"""Conditions: a yes, a no, or an error; and nothing that the engine would misread reaches it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import ConfigurationError
from hitl_guard.policy.conditions import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_SOURCE,
    CelCondition,
    CelEngine,
    ConditionError,
    check_values,
    totals,
    visible,
)

ENGINE = CelEngine()


def variables(**changes: Any) -> dict[str, Any]:
    return {
        "tool": "refund", "args": {"amount": 60, "path": "a/b"}, "user": "ana", "tenant": "t", "run": "r",
        "agent": None, "dynamic": False, "context": {"env": "prod"},
        "turn": [{"tool": "refund", "args": {"amount": 20}}],
        "total": {"amount": 80}, "count": 2,
    } | changes


def answer(source: str, **changes: Any) -> bool:
    return ENGINE.compile(source).evaluate(ENGINE.bind(variables(**changes)))


def failure(source: str, **changes: Any) -> str | None:
    with pytest.raises(ConditionError) as caught:
        answer(source, **changes)
    assert caught.value.code == "condition-error"
    return caught.value.detail


@pytest.mark.parametrize(
    "source",
    [
        "tool == 'refund' && user == 'ana' && tenant == 't' && run == 'r'",
        "args.amount > 50",
        "args.path.matches('^[a-z/]+$')",
        "agent == null && !dynamic",
        "context.env == 'prod'",
        "size(turn.filter(c, c.tool == 'refund' && c.args.amount >= 20)) == 1",
        "total.amount == 80 && count == 2",
        "!has(args.nothing)",
        "true || args.nothing == 1",
    ],
)
def test_a_condition_sees_the_call(source: str) -> None:
    assert answer(source) is True
    assert answer(f"!({source})") is False


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("args.nothing == 1", "missing"),
        ("args.path > 1", "type"),
        ("1 / (args.amount - 60) == 1", "invalid"),
        ("args.path.matches('(')", "invalid"),
        ("args.amount && true", "type"),
        ("timestamp(args.path) == timestamp(args.path)", "invalid"),
        ("int(9e18 * double(args.amount)) == 1", "engine"),
    ],
)
def test_an_engine_error_is_an_error_although_its_value_is_a_truthy_text(source: str, detail: str) -> None:
    assert failure(source) == detail


def test_an_evaluation_that_the_engine_gives_up_is_an_error() -> None:
    assert failure("args.items.all(x, x > 0)", args={"items": [1] * 20_000}) == "limit"
    assert failure("args.l.all(a, args.l.all(b, a == a))", args={"l": list(range(2000))}) == "limit"


def test_a_result_that_is_no_bool_is_an_error_whatever_the_expression_promised() -> None:
    class Odd:
        def eval(self, bound: object) -> Odd:
            return self

        def value(self) -> object:
            return 1

    with pytest.raises(ConditionError) as caught:
        CelCondition("odd", Odd()).evaluate(None)

    assert caught.value.detail == "engine"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "characters of CEL"),
        (" \n", "characters of CEL"),
        ("true || " * 400 + "true", "characters of CEL"),
        ("tool == 'a\0b'", "characters of CEL"),
        ("tool == '\ud800'", "characters of CEL"),
        ("((", "does not compile"),
        ("arg.amount > 1", "undeclared reference to 'arg.amount'"),
        ("nosuch(tool)", "undeclared reference to 'nosuch'"),
        ("(" * 100 + "true" + ")" * 100, "does not compile"),
        ("args.flag", "not known to be true or false"),
        ("tool", "not known to be true or false"),
        ("dynamic ? true : args.x", "not known to be true or false"),
        ("null", "not known to be true or false"),
    ],
)
def test_what_cannot_be_a_condition_is_refused_when_it_is_compiled(source: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        ENGINE.compile(source)

    assert caught.value.code == "config-error"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_longest_condition_compiles() -> None:
    source = "true" + " " * (MAX_SOURCE - 4)

    assert ENGINE.compile(source).source == source


def loop() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"deep": value}


def doubled() -> dict[str, Any]:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    return {"wide": value}


BAD = [
    ({"amount": 1 << 63}, "limit"),
    ({"amount": -(1 << 63) - 1}, "limit"),
    ({"amount": float("nan")}, "invalid"),
    ({"amount": float("inf")}, "invalid"),
    ({"path": "/safe\0/../etc"}, "invalid"),
    ({"a\0b": 1}, "invalid"),
    ({"path": "\ud800"}, "invalid"),
    ({1: 2}, "invalid"),
    ({"pair": (1, 2)}, "invalid"),
    ({"bytes": b"x"}, "invalid"),
    (loop(), "limit"),
    (nested(MAX_DEPTH), "limit"),
    (nested(100_000), "limit"),
    (doubled(), "limit"),
    ({"many": [0] * MAX_NODES}, "limit"),
]


@pytest.mark.parametrize(("args", "detail"), BAD)
def test_values_that_the_engine_would_misread_or_die_of_are_refused(args: dict[str, Any], detail: str) -> None:
    with pytest.raises(ConditionError) as caught:
        check_values([args])

    assert caught.value.detail == detail
    assert not visible([args])


@pytest.mark.parametrize(("args", "detail"), BAD)
def test_a_refused_value_leaves_conditions_that_need_it_without_an_answer(args: dict[str, Any], detail: str) -> None:
    assert failure("args.amount > 1 || args.path == '/safe'", args=args) == "limit"
    assert failure("size(turn) == 1", turn=[{"tool": "x", "args": args}]) == "limit"
    assert answer("tool == 'refund'", args=args) is True


@pytest.mark.parametrize(
    "value", [(1 << 63) - 1, -(1 << 63), 0.5, "naïve 😀", None, True, [], {}, nested(MAX_DEPTH - 3)]
)
def test_values_within_the_limits_are_accepted(value: Any) -> None:
    assert visible([{"value": value}])
    assert answer("args.value == args.value", args={"value": value}) is True


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
))
def test_whatever_the_arguments_hold_the_answer_is_a_bool_or_an_error(value: Any) -> None:
    condition = ENGINE.compile("args.value == 'x' || args.value > 3 || args.value.a.b == args.value")

    try:
        result: object = condition.evaluate(ENGINE.bind(variables(args={"value": value})))
    except ConditionError as error:
        result = error.detail

    assert result in (True, False) or result in {"missing", "type", "invalid", "limit", "engine"}


def test_texts_are_compared_whole_and_exactly() -> None:
    assert answer("args.path == 'naïve 😀'", args={"path": "naïve 😀"}) is True
    assert answer("args.path == 'x'", args={"path": "X"}) is False


def test_null_arguments_do_not_wear_out_none() -> None:
    condition = ENGINE.compile("args.a == null && agent == null && args.l.all(x, x == null)")
    before = sys.getrefcount(None)

    for _ in range(5_000):
        assert condition.evaluate(ENGINE.bind(variables(args={"a": None, "l": [None]}))) is True

    assert sys.getrefcount(None) > before - 1_000


def test_many_threads_share_conditions() -> None:
    conditions = [ENGINE.compile(f"args.amount > {limit}") for limit in range(20)]
    wrong: list[tuple[int, int]] = []

    def ask(amount: int) -> None:
        for _ in range(30):
            bound = ENGINE.bind(variables(args={"amount": amount}))
            wrong.extend((amount, n) for n, one in enumerate(conditions) if one.evaluate(bound) is not (amount > n))

    threads = [threading.Thread(target=ask, args=(amount,)) for amount in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_totals_add_up_numbers_in_the_shape_of_the_arguments() -> None:
    own = {"amount": 10, "fee": {"fixed": 1, "note": "x"}, "order": "A-1", "items": [1, 2], "flag": True}
    earlier: list[dict[str, Any]] = [{"amount": 20.5, "fee": {"fixed": 2}}, {"order": "A-2"}]

    assert totals(own, earlier) == {"amount": 30.5, "fee": {"fixed": 3}}


def test_totals_of_fractions_are_correctly_rounded_and_of_whole_numbers_exact() -> None:
    assert totals({"a": 0.1}, [{"a": 0.1}] * 9) == {"a": 1.0}
    assert totals({"a": 1}, [{"a": 1 << 60}]) == {"a": (1 << 60) + 1}


def test_an_earlier_number_below_zero_makes_no_room() -> None:
    assert totals({"amount": 60}, [{"amount": -1000}, {"amount": 5}]) == {"amount": 65}


@pytest.mark.parametrize("other", ["1000", True, None, [1000], {"eur": 1000}])
def test_an_earlier_value_that_is_no_number_leaves_the_total_out(other: Any) -> None:
    assert totals({"amount": 60}, [{"amount": other}]) == {}
    assert totals({"fee": {"fixed": 1}}, [{"fee": other if not isinstance(other, dict) else 3}]) == {}


def test_a_total_beyond_the_engines_numbers_has_no_answer() -> None:
    assert failure("total.a > 1", total=totals({"a": 1 << 62}, [{"a": 1 << 62}])) == "limit"
    assert failure("total.a > 1.0", total=totals({"a": 1.7e308}, [{"a": 1.7e308}])) == "limit"
