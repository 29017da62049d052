"""The tool gets an int unless its schema says number."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.canonical import as_numbers

from .test_canonical import VALUES

NUMBER = {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "number"}, "1.0"),
        ({"type": ["number"]}, "1.0"),
        ({"type": ["null", "number"]}, "1.0"),
        ({"type": "integer"}, "1"),
        ({"type": ["number", "integer"]}, "1"),
        ({"type": ["integer", "string"]}, "1"),
        ({"type": "string"}, "1"),
        ({}, "1"),
        (None, "1"),
        (True, "1"),
        ("number", "1"),
        ({"type": {"number": 1}}, "1"),
        ({"type": None}, "1"),
        ({"anyOf": [{"type": "number"}]}, "1"),
        (MappingProxyType({"type": "number"}), "1.0"),
        ({"type": numpy.array(["number", "x"])}, "1"),
        ({"type": [numpy.array([1, 2]), "number"]}, "1.0"),
    ],
)
def test_an_int_becomes_a_float_exactly_where_the_type_is_number(schema: object, expected: str) -> None:
    assert repr(as_numbers(1, schema)) == expected


@pytest.mark.parametrize("value", [True, False, None, "1", 1.5, 2**53 + 1, -(2**53) - 1, 10**400, [1], {"a": 1}])
def test_nothing_but_an_int_that_a_float_can_hold_is_changed(value: Any) -> None:
    assert repr(as_numbers(value, NUMBER)) == repr(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), 0])
def test_the_largest_ints_that_a_float_holds_are_changed(value: int) -> None:
    changed = as_numbers(value, NUMBER)

    assert type(changed) is float
    assert changed == value


def test_members_follow_their_own_schema_and_others_the_additional_one() -> None:
    schema = {
        "properties": {"amount": NUMBER, "count": {"type": "integer"}, "any": True},
        "additionalProperties": NUMBER,
    }

    assert repr(as_numbers({"amount": 82, "count": 3, "any": 1, "more": 4}, schema)) == repr(
        {"amount": 82.0, "count": 3, "any": 1, "more": 4.0}
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": False},
        {"properties": {"b": NUMBER}},
        {"properties": [], "items": NUMBER},
        {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": NUMBER},
    ],
)
def test_members_without_a_schema_of_their_own_stay(schema: dict[str, Any]) -> None:
    assert repr(as_numbers({"a": 1}, schema)) == "{'a': 1}"


def test_items_follow_the_schema_of_items_at_any_depth() -> None:
    schema = {"properties": {"rows": {"items": {"items": NUMBER}}}}

    assert repr(as_numbers({"rows": [[1, 2.5], [True, None], 3]}, schema)) == "{'rows': [[1.0, 2.5], [True, None], 3]}"


@pytest.mark.parametrize(
    "schema", [{"items": [NUMBER]}, {"prefixItems": [NUMBER], "items": NUMBER}, {"items": False}, NUMBER]
)
def test_items_under_a_tuple_schema_or_none_stay(schema: dict[str, Any]) -> None:
    assert repr(as_numbers([1, 2], schema)) == "[1, 2]"


LEAVES = st.sampled_from([NUMBER, {"type": ["number", "null"]}, {"type": "integer"}, None, True, "", "number"])
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "additionalProperties", "prefixItems", "a", "b"]), inner
    ),
)


@given(VALUES, SCHEMAS)
def test_any_schema_leaves_an_equal_value(value: Any, schema: Any) -> None:
    changed = as_numbers(value, schema)

    assert changed == value
    assert json.dumps(changed).replace(".0", "") == json.dumps(value).replace(".0", "")


def test_a_value_inside_itself_under_a_schema_inside_itself_stays() -> None:
    value: list[Any] = [1]
    value.append(value)
    schema: dict[str, Any] = {}
    schema["items"] = schema

    assert as_numbers(value, schema) is value
