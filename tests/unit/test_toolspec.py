"""What the guard knows about a tool: definition, effect, how arguments bind, and whether they fit its schema."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

import pytest

from hitl_guard import canonical, fingerprint
from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.lifecycle.toolspec import check_effect, loose_spec_of, spec_of, validate
from hitl_guard.models import EFFECTS, ToolDefinition


def refund(order: str, amount: float = 10, *, notify: bool = False) -> str:
    """Refund an order.

    Twice indented text keeps its form.
    """
    return f"{order} {amount} {notify}"


# -- specification ----------------------------------------------------------------------------------------------------


def test_a_functions_name_docstring_and_annotations_become_its_definition() -> None:
    spec = spec_of(refund)

    assert (spec.name, spec.effect, spec.policy, spec.idempotency_argument) == ("refund", "opaque", None, None)
    assert spec.definition.description == "Refund an order.\n\nTwice indented text keeps its form."
    assert spec.definition.input_schema == {
        "additionalProperties": False,
        "properties": {
            "order": {"type": "string"},
            "amount": {"type": "number", "default": 10},
            "notify": {"type": "boolean", "default": False},
        },
        "required": ["order"],
        "type": "object",
    }


def test_what_is_given_counts_more_than_what_is_found() -> None:
    schema = {"type": "object"}

    spec = spec_of(
        refund, name="pay", description="", effect="probeable", input_schema=schema, server="shop.example"
    )

    assert spec.definition == ToolDefinition("pay", "", schema, "shop.example")
    assert spec.effect == "probeable"


def named(annotation: Any) -> Callable[..., Any]:
    def tool(value: Any) -> None:
        """Do nothing."""

    tool.__annotations__ = {"value": annotation}
    return tool


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (str, "string"), ("str", "string"), (int, "integer"), (float, "number"), (bool, "boolean"), (dict, "object"),
        ("dict", "object"), (list, "array"), (bytes, None), ("list[str]", None), (list[str], None), (Any, None),
        (int | None, None), ([], None), ({"unhashable": 1}, None), (None, None),
    ],
    ids=str,
)
def test_an_annotation_without_a_json_type_is_left_open(annotation: Any, kind: str | None) -> None:
    schema = spec_of(named(annotation)).definition.input_schema

    assert schema is not None
    assert schema["properties"]["value"] == ({} if kind is None else {"type": kind})


def positional_only(order: str, /) -> None:
    """Do nothing."""


def generator(order: str) -> Any:
    yield order


async def async_generator(order: str) -> Any:
    yield order


class Tool:
    def __call__(self, order: str) -> str:
        return order


@pytest.mark.parametrize(
    "function",
    [
        lambda *orders: None, lambda **orders: None, positional_only, generator, async_generator, print, dict, 7, None,
        functools.partial(refund, "A-1"), Tool(),
    ],
    ids=[
        "args", "kwargs", "positional", "generator", "async generator", "print", "dict", "number", "none", "partial",
        "object",
    ],
)
def test_what_has_no_name_or_no_named_parameters_is_no_tool(function: Any) -> None:
    with pytest.raises(ConfigurationError):
        spec_of(function)


@pytest.mark.parametrize("function", [functools.partial(refund, amount=1), Tool()], ids=["partial", "object"])
def test_what_has_no_name_of_its_own_may_be_given_one(function: Any) -> None:
    spec = spec_of(function, name="named")

    assert spec.name == "named"
    assert spec.bind((), {"order": "A-1"})["order"] == "A-1"


@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_of_this_version_is_known(effect: str) -> None:
    check_effect(effect)

    assert spec_of(refund, effect=effect).effect == effect


@pytest.mark.parametrize("effect", ["transactional", "", "None", "OPAQUE", None, 7, ["none"]], ids=str)
def test_an_unknown_effect_is_refused(effect: Any) -> None:
    with pytest.raises(ConfigurationError, match="effect"):
        check_effect(effect)
    with pytest.raises(ConfigurationError, match="effect"):
        spec_of(refund, effect=effect)


@pytest.mark.parametrize("name", [7, b"refund"], ids=str)
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        spec_of(refund, name=name)


# -- defaults ---------------------------------------------------------------------------------------------------------


def defaulting(default: Any) -> Callable[..., Any]:
    def tool(value: Any = default) -> None:
        """Do nothing."""

    return tool


@pytest.mark.parametrize("default", [None, 10, 1.5, "text", [1, {"a": None}], {}], ids=str)
def test_a_default_that_is_plain_data_is_part_of_the_schema(default: Any) -> None:
    schema = spec_of(defaulting(default)).definition.input_schema

    assert schema is not None
    assert schema["properties"]["value"] == {"default": default}


NO_PLAIN_DATA = [datetime.date(2026, 1, 1), object(), (1, 2), float("nan"), b"x"]


@pytest.mark.parametrize("default", NO_PLAIN_DATA, ids=lambda value: type(value).__name__)
def test_a_default_that_is_no_plain_data_is_shown_by_its_type(default: Any) -> None:
    schema = spec_of(defaulting(default)).definition.input_schema

    assert schema is not None
    assert schema["properties"]["value"] == {"default": repr(type(default))}


def test_t13_a_changed_default_changes_the_tools_digest() -> None:
    """Arguments that come as JSON leave defaults out: nothing else would tell that the tool now does more."""
    digests = {
        fingerprint.tool_digest(spec_of(defaulting(default)).definition)
        for default in (10, 10_000_000, "10", None, [10], object(), (10,))
    }

    assert len(digests) == 7


def test_a_default_that_changes_later_does_not_change_the_definition() -> None:
    default = [1]
    spec = spec_of(defaulting(default))

    default.append(2)

    assert spec.definition.input_schema is not None
    assert spec.definition.input_schema["properties"]["value"] == {"default": [1]}


# -- which function it is ---------------------------------------------------------------------------------------------


def twin_a() -> Callable[..., Any]:
    def send(to: str) -> None:
        """Send."""

    return send


def twin_b() -> Callable[..., Any]:
    def send(to: str) -> None:
        """Send."""

    return send


def test_t13_two_functions_that_look_alike_are_two_tools() -> None:
    first, second = spec_of(twin_a()), spec_of(twin_b())

    assert (first.name, first.definition, first.signature) == (second.name, second.definition, second.signature)
    assert first != second


def test_the_same_function_of_a_module_that_is_loaded_anew_is_one_tool() -> None:
    assert spec_of(twin_a()) == spec_of(twin_a())


@pytest.mark.parametrize(
    ("function", "origin"),
    [
        (refund, f"{__name__}.refund"), (Tool(), f"{__name__}.Tool"),
        (functools.partial(refund, amount=1), "functools.partial"), (print, "builtins.print"),
    ],
    ids=["function", "object", "partial", "built-in"],
)
def test_a_tools_origin_is_where_it_is_defined(function: Any, origin: str) -> None:
    assert loose_spec_of(function, "named").origin == origin


# -- definitions that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [True, False, [1], [], "abc", "", 7], ids=repr)
def test_t13_an_input_schema_that_is_no_object_is_a_configuration_error(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="input schema"):
        ToolDefinition("tool", None, schema)
    with pytest.raises(ConfigurationError, match="input schema"):
        spec_of(refund, input_schema=schema)


def test_an_empty_schema_is_one_that_anything_fits() -> None:
    assert spec_of(refund, input_schema={}).definition.input_schema == {}


@pytest.mark.parametrize(
    ("given", "word"),
    [({"name": 7}, "name"), ({"name": None}, "name"), ({"description": 5}, "descr"), ({"server": b"x"}, "server")],
    ids=str,
)
def test_a_definitions_texts_are_texts(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        ToolDefinition(**({"name": "tool"} | given))


# -- plain functions of a host ----------------------------------------------------------------------------------------


def test_a_plain_function_has_the_specification_of_the_name_it_goes_by() -> None:
    assert loose_spec_of(refund, "pay") == spec_of(refund, name="pay")


@pytest.mark.parametrize(
    "function", [lambda **arguments: None, print, dict, functools.partial(print), positional_only],
    ids=["kwargs", "print", "dict", "partial", "positional"],
)
def test_a_plain_function_without_named_parameters_takes_any_arguments(function: Any) -> None:
    spec = loose_spec_of(function, "anything")

    assert (spec.name, spec.definition.input_schema, spec.signature) == ("anything", None, None)
    assert spec.bind((), {"whatever": 1}) == {"whatever": 1}


@pytest.mark.parametrize("function", [generator, async_generator], ids=["generator", "async generator"])
def test_a_generator_is_no_tool_either_way(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="generator"):
        loose_spec_of(function, "anything")


@pytest.mark.parametrize("name", ["", None, 7], ids=str)
def test_a_plain_function_needs_a_usable_name(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        loose_spec_of(refund, name)


# -- binding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("A-1",), {}), ((), {"order": "A-1"}), (("A-1", 10), {}), (("A-1",), {"notify": False}),
        (("A-1", 10), {"notify": False}),
    ],
    ids=str,
)
def test_a_call_is_the_same_however_it_is_written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert spec_of(refund).bind(args, kwargs) == {"order": "A-1", "amount": 10, "notify": False}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("A-1", 10, True), {}), (("A-1",), {"order": "A-2"}), (("A-1",), {"to": "me"})],
    ids=str,
)
def test_arguments_that_do_not_fit_are_pythons_own_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        spec_of(refund).bind(args, kwargs)


def test_the_parameter_for_the_key_is_not_the_models_to_fill() -> None:
    def pay(order: str, key: str) -> None:
        """Do nothing."""

    spec = spec_of(pay, idempotency_argument="key")

    assert spec.definition.input_schema is not None
    assert list(spec.definition.input_schema["properties"]) == ["order"]
    assert spec.bind(("A-1",), {}) == {"order": "A-1"}
    with pytest.raises(TypeError):
        spec.bind(("A-1",), {"key": "mine"})
    with pytest.raises(ConfigurationError, match="idempotency_argument"):
        spec_of(pay, idempotency_argument="nope")


# -- schemas ----------------------------------------------------------------------------------------------------------


def check(schema: Any, arguments: Any) -> None:
    validate(ToolDefinition("tool", None, schema), canonical.canonicalize(arguments))


def test_without_a_schema_anything_fits() -> None:
    validate(None, b'{"a":1}')
    validate(ToolDefinition("tool"), b'{"a":1}')


@pytest.mark.parametrize(
    "arguments",
    [{"order": "A-1"}, {"order": "A-1", "amount": 1}, {"order": "A-1", "amount": 1.5, "notify": True}],
    ids=str,
)
def test_arguments_that_fit_are_let_through(arguments: Any) -> None:
    validate(spec_of(refund).definition, canonical.canonicalize(arguments))


@pytest.mark.parametrize(
    "arguments",
    [{}, {"order": 1}, {"order": "A-1", "amount": "1"}, {"order": "A-1", "amount": True}, {"order": "A", "to": 1}],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(arguments: Any) -> None:
    with pytest.raises(CanonicalizationError) as caught:
        validate(spec_of(refund).definition, canonical.canonicalize(arguments))

    assert (caught.value.code, caught.value.detail) == ("unsupported-value", "schema")


def test_the_draft_that_a_schema_names_is_the_one_that_counts() -> None:
    """``items`` as a list is a tuple in draft 7; draft 2020-12 knows no such thing and refuses the schema."""
    schema = {"properties": {"a": {"items": [{"type": "string"}]}}}
    older = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}

    check(older, {"a": ["x"]})
    with pytest.raises(CanonicalizationError):
        check(older, {"a": [1]})
    with pytest.raises(ConfigurationError):
        check(schema, {"a": ["x"]})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7}, {"type": "texts"}, {"properties": []}, {"$schema": []}, {"$schema": 7}, {"required": "order"},
        {"pattern": "("}, {"properties": {"a": {"pattern": "("}}},
    ],
    ids=str,
)
def test_a_schema_that_is_none_is_a_configuration_error(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        check(schema, {"a": "x"})


@pytest.mark.parametrize(
    "reference", ["#/$defs/missing", "https://schemas.example/other.json", "file:///etc/hostname", "#anchor"]
)
def test_a_reference_that_leads_nowhere_or_outside_is_not_followed(reference: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be applied"):
        check({"properties": {"a": {"$ref": reference}}}, {"a": "x"})


def test_a_reference_inside_the_schema_is_followed() -> None:
    schema = {"$defs": {"order": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/order"}}}

    check(schema, {"a": "x"})
    with pytest.raises(CanonicalizationError):
        check(schema, {"a": 1})


def test_a_refusal_does_not_repeat_what_was_given() -> None:
    with pytest.raises(CanonicalizationError) as caught:
        check({"properties": {"pin": {"type": "integer"}}}, {"pin": "hunter2"})

    assert "hunter2" not in str(caught.value)


def test_a_default_of_none_is_allowed_by_the_schema() -> None:
    def search(query: str, limit: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
        """Search."""

    spec = spec_of(search)

    validate(spec.definition, canonical.canonicalize(spec.bind((), {"query": "x"})))
    assert spec.definition.input_schema is not None
    assert spec.definition.input_schema["properties"]["limit"] == {"type": ["integer", "null"], "default": None}
