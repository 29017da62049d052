"""Posted forms, read strictly, and the form for a call's arguments: what was not touched stays as it was signed."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical
from hitl_guard.asgi.forms import MAX_FIELDS, MAX_PROPERTIES, Field, Form, edited, fields, parse
from hitl_guard.errors import DecisionError

SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["name", "count", "on", "where"],
    "properties": {
        "name": {"type": "string", "description": "Who."}, "count": {"type": "integer"}, "on": {"type": "boolean"},
        "where": {"enum": ["here", "there", 3]}, "rate": {"type": ["number", "null"]}, "tags": {"type": "array"},
    },
}
VALUES: dict[str, Any] = {"name": "ana", "count": 2**70, "on": False, "where": 3, "rate": None, "tags": ["a", {"b": 1}]}


def browser(made: tuple[Field, ...], **changed: str) -> Form:
    """Return what a browser posts for a form, some fields changed by property name (``state_NAME`` for the choice)."""
    pairs = []
    for field in made:
        name = field.name or "all"
        pairs.append((f"value.{field.key}", changed.get(name, field.text).replace("\n", "\r\n")))
        if len(field.states) > 1:
            pairs.append((f"state.{field.key}", changed.get(f"state_{name}", field.state)))
    return parse(urlencode(pairs).encode())


def change(schema: Any, values: dict[str, Any], secrets: Any = frozenset(), **changed: str) -> Any:
    made = fields(schema, values, secrets)
    result = edited(made, values, browser(made, **changed))
    wrong = {field.name: field.error for field in result.fields if field.error}
    return wrong if result.arguments is None else result.arguments


def kinds(schema: Any, values: dict[str, Any], secrets: Any = frozenset()) -> dict[str | None, str]:
    return {field.name: field.kind for field in fields(schema, values, secrets)}


# Posted forms


def test_a_form_has_names_and_values() -> None:
    form = parse(b"a=1&b=%C3%A9+x&pick=1&pick=2&empty=")

    assert (form.one("a"), form.one("b"), form.one("empty"), form.one("none", "x")) == ("1", "\xe9 x", "", "x")
    assert (form.every("pick"), form.every("none")) == (["1", "2"], [])
    assert form.all() == [("a", "1"), ("b", "\xe9 x"), ("pick", "1"), ("pick", "2"), ("empty", "")]


@pytest.mark.parametrize("body", [
    b"a", b"a=%FF", b"\xff=1", b"a=1&&b=2", b"&".join([b"a=1"] * (MAX_FIELDS + 1)), b"a=%ED%A0%80",
], ids=range(6))
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(DecisionError) as caught:
        parse(body)

    assert (caught.value.code, caught.value.detail) == ("invalid-approval", "malformed")


def test_one_value_that_comes_twice_is_refused() -> None:
    with pytest.raises(DecisionError):
        parse(b"fingerprint=a&fingerprint=b").one("fingerprint")


def test_a_browsers_line_breaks_are_one_character_again() -> None:
    assert parse(b"reason=a%0D%0Ab%0Dc%0A").one("reason") == "a\nb\rc\n"


# The form for the arguments


def test_each_property_has_a_field_of_its_kind() -> None:
    assert kinds(SCHEMA, VALUES) == {
        "name": "text", "count": "integer", "on": "choice", "where": "choice", "rate": "number", "tags": "json",
    }
    name, count, on, where, rate, tags = fields(SCHEMA, VALUES)
    assert (name.about, name.states, name.lines) == ("Who.", ("value",), 0)
    assert count.text == "1180591620717411303424"
    assert (on.choices, on.text) == (("true", "false"), "false")
    assert (where.choices, where.text) == (('"here"', '"there"', "3"), "3")
    assert (rate.state, rate.states, rate.text) == ("null", ("value", "null", "absent"), "")
    assert tags.lines > 2


def test_what_is_posted_unchanged_is_unchanged() -> None:
    assert change(SCHEMA, VALUES) == VALUES


@given(st.dictionaries(
    st.sampled_from([*SCHEMA["properties"], "other", ""]),
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(-1e9, 1e9) | st.text()
    | st.lists(st.text(), max_size=2),
))
def test_whatever_the_values_are_a_form_that_nobody_touched_changes_nothing(values: dict[str, Any]) -> None:
    for schema in (SCHEMA, None):
        assert canonical.canonicalize(change(schema, values)) == canonical.canonicalize(values)


def test_changes_are_read_by_kind_and_exactly() -> None:
    after = change(
        SCHEMA, VALUES, name="kim\nlee", count=" 12345678901234567890 ", on="true", where='"here"', rate="1.5",
        state_rate="value", tags='[{"b":2}]',
    )

    assert after == {
        "name": "kim\nlee", "count": 12345678901234567890, "on": True, "where": "here", "rate": 1.5,
        "tags": [{"b": 2}],
    }
    assert type(after["on"]) is bool


def test_a_value_is_left_out_or_set_to_null_where_the_schema_allows() -> None:
    assert "tags" not in change(SCHEMA, VALUES, state_tags="absent", tags="")
    assert change(SCHEMA, VALUES | {"rate": 2}, state_rate="null", rate="2")["rate"] is None
    without = {name: value for name, value in VALUES.items() if name != "tags"}
    assert change(SCHEMA, without, state_tags="value", tags="[]") == without | {"tags": []}


@pytest.mark.parametrize(("changed", "wrong"), [
    ({"count": "1.0"}, "count"), ({"count": "two"}, "count"), ({"count": ""}, "count"), ({"count": "true"}, "count"),
    ({"count": "1" * 1001}, "count"), ({"rate": "NaN", "state_rate": "value"}, "rate"),
    ({"rate": '"1"', "state_rate": "value"}, "rate"), ({"rate": "1"}, "rate"), ({"on": "yes"}, "on"),
    ({"where": '"nowhere"'}, "where"), ({"tags": '{"a":1,"a":2}'}, "tags"), ({"tags": "["}, "tags"),
    ({"state_tags": "null"}, "tags"), ({"state_tags": "absent", "tags": "[1]"}, "tags"),
], ids=str)
def test_what_does_not_fit_is_told_at_its_field(changed: dict[str, str], wrong: str) -> None:
    assert list(change(SCHEMA, VALUES, **changed)) == [wrong]


def test_a_text_with_characters_that_a_page_would_hide_is_edited_as_json() -> None:
    for text in ("a\u202eb", "a\r\nb", "tab\t", "\u200b"):
        (field,) = fields({"properties": {"a": {"type": "string"}}}, {"a": text})
        assert field.kind == "json"
        assert field.text.isascii()
        assert canonical.parse(field.text) == text


def test_a_value_of_another_type_than_the_schema_says_is_edited_as_json() -> None:
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"enum": [1]}, "d": {"enum": [{}]}},
    }

    assert set(kinds(schema, {"a": 1, "b": 1.5, "c": 2, "d": []}).values()) == {"json"}
    assert kinds({"properties": {"a": True, "b": {"enum": [object()]}}}, {"a": 1}) == {"a": "json", "b": "json"}


def test_what_the_schema_does_not_name_has_a_field_too() -> None:
    assert change({"properties": {"a": {}}}, {"a": 1, "b": [2]}, b="[3]") == {"a": 1, "b": [3]}


@pytest.mark.parametrize("schema", [
    None, {}, {"properties": {}}, {"properties": []}, {"properties": {str(n): {} for n in range(MAX_PROPERTIES + 1)}},
], ids=range(5))
def test_without_plain_properties_the_arguments_are_one_text(schema: Any) -> None:
    assert kinds(schema, {"a": 1}) == {None: "json"}
    assert change(schema, {"a": 1}, all='{"b": 2}') == {"b": 2}
    assert list(change(schema, {"a": 1}, all="[1]")) == [None]
    assert fields(schema, {"a": 1}, {"/a"}) == ()


def test_at67_a_secret_is_never_in_the_form_and_is_kept_unless_a_new_one_is_given() -> None:
    values = VALUES | {"tags": {"token": "t-1"}}
    made = fields(SCHEMA, values, {"/name", "/tags/token"})

    assert [field.kind for field in made if field.name in ("name", "tags")] == ["secret", "secret"]
    assert "ana" not in str(made)
    assert "t-1" not in str(made)
    assert change(SCHEMA, values, {"/name", "/tags/token"}) == values
    assert change(SCHEMA, values, {"/name"}, name="kim")["name"] == "kim"
    assert fields(SCHEMA, VALUES, {""}) == ()
    again = edited(made, values, browser(made, name="kim"))
    assert "kim" not in str(again.fields)
