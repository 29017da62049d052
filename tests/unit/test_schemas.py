"""Arguments are compared with a JSON Schema in bounded time, whoever wrote either.

What never ends with a backtracking matcher, or takes a power of the size, would hang these tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hitl_guard import canonical
from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.lifecycle import schemas

DRAFTS = {
    "3": "http://json-schema.org/draft-03/schema#",
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}
MAIL = (
    r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}"
    r"(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$"
)
NAMES = [f"k{one}" for one in range(900)]
every_draft = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)


def fits(schema: Any, arguments: Any) -> bool:
    return schemas.fits(schema, canonical.canonicalize(arguments))


def of_x(**schema: Any) -> dict[str, Any]:
    return {"properties": {"x": schema}}


def nested(levels: int, last: Any) -> dict[str, Any]:
    """Return a schema in which each definition applies the one before twice: 2^levels evaluations."""
    definitions: dict[str, Any] = {"a0": last}
    for level in range(1, levels + 1):
        definitions[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/a{levels}"}


def assert_too_many_steps(check: Callable[[], object]) -> None:
    with pytest.raises(CanonicalizationError, match="steps") as caught:
        check()
    assert (caught.value.code, caught.value.detail) == ("too-large", "schema")


# -- regular expressions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)+$", "^(a|aa)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", MAIL])
def test_t13_a_pattern_that_backtracks_for_ever_in_re_ends(pattern: str) -> None:
    assert not fits(of_x(pattern=pattern), {"x": "a" * 5_000 + "!"})


@every_draft
def test_t13_pattern_properties_and_what_they_leave_over_do_not_backtrack(draft: str) -> None:
    schema = {"$schema": draft, "patternProperties": {"^(a|a)+$": {"type": "integer"}}, "additionalProperties": False}

    assert not fits(schema, {"a" * 5_000 + "!": 1})
    assert not fits(schema, {"a": "text"})
    assert fits(schema, {"aa": 1})


@every_draft
def test_t13_a_reference_to_a_schema_with_a_dialect_does_not_go_over_to_re(draft: str) -> None:
    schema = {"$schema": draft, "properties": {"x": {"pattern": "^(a+)+$"}, "y": {"$ref": "#"}}}

    assert not fits(schema, {"y": {"x": "a" * 5_000 + "!"}})


def test_t13_a_part_with_another_dialect_does_not_go_over_to_re() -> None:
    schema = of_x(**{"$schema": DRAFTS["7"], "pattern": "^(a+)+$"})

    assert not fits(schema, {"x": "a" * 5_000 + "!"})
    assert fits(schema, {"x": "aa"})


@pytest.mark.parametrize(
    "pattern", ["(?=a)a", "(?<!a)b", r"(a)\1", "a{1,2000}", "(", r"\uD83D\uDE00", "((a{100}){100}){100}"]
)
def test_a_pattern_that_re2_does_not_know_is_a_configuration_error(pattern: str) -> None:
    schemas_with_it: list[Any] = [of_x(pattern=pattern), {"patternProperties": {pattern: {}}}]
    for schema in schemas_with_it:
        with pytest.raises(ConfigurationError, match="RE2"):
            fits(schema, {})


def test_a_pattern_that_a_draft_does_not_declare_is_refused_when_it_is_used() -> None:
    """Draft 4 does not say that the names of ``patternProperties`` are regular expressions."""
    with pytest.raises(ConfigurationError, match="RE2"):
        fits({"$schema": DRAFTS["4"], "patternProperties": {"(?=a)": {}}}, {"a": 1})


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("b", "abc", True), ("^b", "abc", False), (r"^\d+$", "123", True), (r"^\d+$", "123\n", False),
        (r"^[\u00e0-\u00ff]$", "é", True), (r"^[\u00e0-\u00ff]$", "e", False), (r"^\\u0041$", "\\u0041", True),
        (r"^\p{L}+$", "Grüße", True), (r"^\/\-$", "/-", True), ("^.$", "😀", True),
    ],
)
def test_a_pattern_means_what_json_schema_says(pattern: str, text: str, expected: bool) -> None:
    assert fits(of_x(pattern=pattern), {"x": text}) is expected


def test_a_pattern_says_nothing_about_what_is_no_text_and_names_say_nothing_about_what_is_no_object() -> None:
    schema = of_x(pattern="^a$", patternProperties={"a": False}, additionalProperties=False, uniqueItems=True)

    assert fits(schema, {"x": 7})


def test_t13_a_long_text_for_a_large_program_is_too_many_steps() -> None:
    schema = of_x(pattern="([ab]*)a[ab]{900}c")

    assert not fits(schema, {"x": "ab" * 100})
    assert_too_many_steps(lambda: fits(schema, {"x": "ab" * 450_000}))


def test_patterns_together_with_unevaluated_properties_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="additionalProperties"):
        fits({"allOf": [{"patternProperties": {"^(a+)+$": {}}}], "unevaluatedProperties": False}, {"a": 1})


# -- additional members -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "arguments", "expected"),
    [
        (False, {"a": 1, "x-1": 1}, True), (False, {"b": 1}, False), (True, {"b": 1}, True),
        ({"type": "integer"}, {"b": 1}, True), ({"type": "integer"}, {"b": "text"}, False),
        ({"type": "string"}, {"a": 1, "x-1": 1}, True),
    ],
    ids=str,
)
def test_additional_members_are_those_that_no_name_and_no_pattern_covers(
    allowed: Any, arguments: Any, expected: bool
) -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {}}, "additionalProperties": allowed}

    assert fits(schema, arguments) is expected


# -- steps ------------------------------------------------------------------------------------------------------------


def test_t13_a_schema_that_doubles_with_each_level_is_too_many_steps() -> None:
    assert fits(nested(5, {"type": "object"}), {"x": 1})
    assert_too_many_steps(lambda: fits(nested(39, {"type": "object"}), {"x": 1}))


def test_t13_a_search_for_what_is_evaluated_is_counted_too() -> None:
    schema = nested(39, {}) | {"unevaluatedProperties": False}
    schema["$defs"] = {
        name: {"dependentSchemas": {"x": part, "y": part}} if (part := one.get("allOf", [None])[0]) else one
        for name, one in schema["$defs"].items()
    }

    assert_too_many_steps(lambda: fits(schema, {"x": 1, "y": 1}))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"unevaluatedItems": False, "prefixItems": [{}]}, list(range(40_000))),
        ({"unevaluatedProperties": False, "additionalProperties": True}, {f"k{one}": one for one in range(40_000)}),
        ({"allOf": [{"items": True}] * 900}, [None] * 40_000),
        ({"anyOf": [{"type": "integer"}] * 900}, "a" * 1_000_000),
        ({"$defs": {"r": {"required": NAMES}}, "oneOf": [{"$ref": "#/properties/x/$defs/r"}] * 900}, {}),
    ],
    ids=["items", "members", "loops", "texts", "errors"],
)
def test_t13_what_a_keyword_does_with_large_values_counts_as_steps(schema: Any, value: Any) -> None:
    assert_too_many_steps(lambda: fits(of_x(**schema), {"x": value}))


def test_large_ordinary_arguments_are_within_the_steps() -> None:
    schema = of_x(type="array", items={"type": "integer"})

    assert fits(schema, {"x": list(range(45_000))})
    assert fits(of_x(type="string", maxLength=1_000_000, pattern="^[^\\n]*$"), {"x": "a" * 1_000_000})
    assert fits(of_x(unevaluatedItems=False, items={}), {"x": list(range(5_000))})
    assert fits({"unevaluatedProperties": {"pattern": "^a"}, "properties": {"n": {}}}, {"x": "a" * 1_000, "n": 1})


def test_each_check_has_steps_of_its_own_on_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, arguments = of_x(items={"type": "integer"}), {"x": list(range(500))}
    monkeypatch.setattr(schemas, "MAX_STEPS", 600)
    together = threading.Barrier(4)

    def check(_number: int) -> bool:
        together.wait(60)
        return all(fits(schema, arguments) for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(4)))
    monkeypatch.setattr(schemas, "MAX_STEPS", 400)
    assert_too_many_steps(lambda: fits(schema, arguments))


def test_an_error_text_does_not_write_out_the_value() -> None:
    quiet = schemas._quiet({"a": [1, {"b": 2}], "c": "text"})

    assert quiet == {"a": [1, {"b": 2}], "c": "text"}
    assert (repr(quiet), repr(quiet["a"])) == ("an object", "an array")


def test_an_integer_beyond_floats_is_no_multiple_of_a_fraction() -> None:
    assert not fits(of_x(multipleOf=0.5), {"x": 10**900})


# -- unique items -----------------------------------------------------------------------------------------------------


@every_draft
def test_t13_unique_items_are_found_in_one_pass(draft: str) -> None:
    """9,000 objects cannot be sorted; each with each other would be 40 million comparisons."""
    schema = {"$schema": draft} | of_x(uniqueItems=True)
    items = [{"a": one} for one in range(9_000)]

    assert fits(schema, {"x": items})
    assert not fits(schema, {"x": [*items, {"a": 0}]})


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1, True, "1", [1], {"a": 1}, 0, False, None, ""], True), ([1, 1.0], False), ([0.5, 0.5], False),
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], False), ([[1, 2], [2, 1]], True), ([10**30, 10**30], False),
        ([], True),
    ],
    ids=str,
)
def test_items_are_equal_as_json_values_are(items: Any, expected: bool) -> None:
    assert fits(of_x(uniqueItems=True), {"x": items}) is expected
    assert fits(of_x(uniqueItems=False), {"x": items})


def test_t13_comparing_much_text_again_and_again_is_too_many_steps() -> None:
    schema = of_x(allOf=[{"uniqueItems": True}] * 900)

    assert_too_many_steps(lambda: fits(schema, {"x": ["a" * 900_000]}))


@pytest.mark.parametrize(
    ("one", "value"), [({"uniqueItems": True}, [1, 1]), ({"additionalProperties": False}, {"a": 1})], ids=str
)
def test_a_value_that_misses_one_choice_may_fit_another(one: Any, value: Any) -> None:
    assert fits(of_x(anyOf=[one, {"minItems": 2}]), {"x": value})
    assert not fits(of_x(anyOf=[one, False]), {"x": value})


# -- the schema itself ------------------------------------------------------------------------------------------------


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "limit"),
    [({"enum": ["x" * 100] * 9_000}, "bytes"), (deep(100), "depth"), ({"enum": list(range(30_000))}, "nodes")],
    ids=["bytes", "depth", "nodes"],
)
def test_t13_a_schema_that_is_too_large_is_refused(schema: Any, limit: str) -> None:
    with pytest.raises(CanonicalizationError, match="input schema is too large") as caught:
        fits(schema, {})

    assert (caught.value.code, caught.value.detail) == ("too-large", limit)


def test_t13_a_schema_that_is_nested_too_deeply_to_be_checked_is_a_configuration_error() -> None:
    assert not fits(deep(31), {})
    with pytest.raises(ConfigurationError, match="too large to be checked"):
        fits(deep(62), {})


def test_a_tree_of_the_greatest_depth_is_within_the_levels() -> None:
    node = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    tree: dict[str, Any] = {}
    for _ in range(62):
        tree = {"c": tree}

    assert fits({"$defs": {"n": node}, "$ref": "#/$defs/n"}, tree)


def test_t13_a_schema_that_takes_too_long_to_check_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_SCHEMA_STEPS", 500)

    with pytest.raises(ConfigurationError, match="too large to be checked"):
        fits({"properties": {f"only-here-{one}": {"type": "string"} for one in range(100)}}, {})


def test_t13_programs_of_many_patterns_count_as_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_SCHEMA_STEPS", 2_000)

    with pytest.raises(ConfigurationError, match="too large to be checked"):
        fits({"allOf": [{"pattern": f"{one}([ab]{{30}}){{30}}"} for one in range(10)]}, {})


@pytest.mark.parametrize("schema", [{"a": object()}, {1: 2}, {"a": float("nan")}], ids=["type", "key", "number"])
def test_a_schema_that_is_no_json_is_refused_as_such(schema: Any) -> None:
    with pytest.raises(CanonicalizationError) as caught:
        fits(schema, {})

    assert caught.value.code == "unsupported-value"


@every_draft
def test_a_schema_is_checked_by_its_own_draft(draft: str) -> None:
    with pytest.raises(ConfigurationError, match="not a valid JSON Schema"):
        fits({"$schema": draft, "properties": {"x": {"minLength": "long"}}}, {})


@pytest.mark.parametrize("schema", [{"pattern": 7}, {"$schema": []}, {"$schema": 7}, {"type": "texts"}], ids=str)
def test_what_is_no_schema_is_a_configuration_error(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a valid JSON Schema"):
        fits(schema, {"x": 1})


@pytest.mark.parametrize("reference", ["#", "#/$defs/missing", "https://schemas.example/a.json", "file:///etc/hostname"])
def test_a_reference_that_leads_nowhere_outside_or_round_is_not_followed(reference: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be applied"):
        fits({"$ref": reference}, {"x": 1})
