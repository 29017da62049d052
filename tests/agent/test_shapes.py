"""What data becomes under a tool's schemas: strict on the way in, plain JSON on the way out."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_serializer

from hitl_guard import canonical
from hitl_guard.agent.shapes import Shape, plain, well_formed
from hitl_guard.agent.tools import Tool
from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.lifecycle import schemas

REFUSED = CanonicalizationError("Refused.", detail="test")
MORE_THAN_STEPS = {"type": "array", "items": {"anyOf": [{"const": number} for number in range(50)]}}


class Colour(enum.Enum):
    RED = "red"


class Inner(BaseModel):
    x: int


class Rich(BaseModel):
    """What JSON has no type for, but a text or a list of it can say."""

    when: dt.datetime
    day: dt.date
    id: uuid.UUID
    colour: Colour
    numbers: set[int]
    pair: tuple[int, str]
    amount: Decimal
    inner: Inner


RICH = {
    "when": "2026-01-02T03:04:05Z", "day": "2026-01-02", "id": "12345678-1234-5678-1234-567812345678", "colour": "red",
    "numbers": [1, 2], "pair": [1, "a"], "amount": 82, "inner": {"x": 1},
}


class Plain(BaseModel):
    model_config = ConfigDict(extra="forbid")

    whole: int = 0
    number: float = 0.0
    flag: bool = False
    text: str = ""
    some: list[int] = []
    one: Literal["a", "b", None] = None
    inner: Inner | None = None


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    note: str = ""


class Secretive(Order):
    password: str = ""


class Raising(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def never(cls, value: int) -> int:
        raise RuntimeError(f"s3cret {value}")

    @model_serializer
    def nor_out(self) -> dict[str, Any]:
        raise RuntimeError("s3cret")


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Text(str):
    __slots__ = ()


def shape(schema: Any) -> Shape:
    made = Shape.of(schema, "schema", "validation")
    assert made is not None
    return made


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# -- in --------------------------------------------------------------------------------------------------------------


def test_a_model_reads_from_texts_and_lists_what_json_has_no_type_for() -> None:
    read = shape(Rich).read(RICH, REFUSED)

    assert read == Rich.model_validate(RICH)
    assert (read.amount, read.numbers, read.inner) == (Decimal(82), {1, 2}, Inner(x=1))


@pytest.mark.parametrize(
    "wrong",
    [{"whole": "1"}, {"whole": True}, {"whole": 1.5}, {"number": "1"}, {"flag": 1}, {"flag": "true"}, {"text": 1},
     {"some": ["1"]}, {"some": {}}, {"one": "c"}, {"inner": {}}, {"inner": {"x": None}}, {"more": 1}, [], "x", None],
    ids=repr,
)
def test_a_model_coerces_nothing(wrong: Any) -> None:
    with pytest.raises(CanonicalizationError) as refused:
        shape(Plain).read(wrong, REFUSED)

    assert refused.value is REFUSED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.sampled_from(["", "1", "true", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
    max_leaves=3,
)


@given(data=st.dictionaries(st.sampled_from([*Plain.model_fields, "more"]), JSON, max_size=3))
def test_what_the_json_schema_refuses_never_passes_the_model(data: dict[str, Any]) -> None:
    made = shape(Plain)
    try:
        made.read(data, REFUSED)
    except CanonicalizationError:
        return

    assert schemas.fits(made.schema, canonical.canonicalize(data))


def test_a_validator_that_fails_oddly_refuses_and_shows_nothing() -> None:
    with pytest.raises(CanonicalizationError) as refused:
        shape(Raising).read({"x": 5}, REFUSED)

    assert refused.value is REFUSED
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)


def test_large_arguments_that_the_guard_took_are_read_too() -> None:
    text = "x" * 2_000_000

    assert shape(Plain).read({"text": text}, REFUSED) == Plain(text=text)


def test_without_a_model_a_copy_is_read() -> None:
    data = {"a": [1.0]}

    read = shape({"type": "object"}).read(data, REFUSED)

    assert read == data
    assert read["a"] is not data["a"]
    assert repr(read) == "{'a': [1.0]}"


@pytest.mark.parametrize(
    ("schema", "data", "value"),
    [
        (None, False, False),
        (None, 0, 0),
        (None, "", ""),
        (None, {"a": [1.0]}, {"a": [1.0]}),
        ({"type": "boolean"}, False, False),
        (Order, {"orderNumber": 1}, Order(orderNumber=1)),
        (Order, Order(orderNumber=1), Order(orderNumber=1)),
        (None, Order(orderNumber=1), {"orderNumber": 1, "note": ""}),
        (RootModel[bool], False, RootModel[bool](False)),
    ],
    ids=["false", "zero", "empty", "any", "schema", "model", "instance", "instance-of-any", "root"],
)
def test_m38_an_answer_that_fits_is_kept_plain_and_handed_on(schema: Any, data: Any, value: Any) -> None:
    kept, handed = Tool("book", resume_schema=schema).checked_resume(data)

    assert handed == value
    assert type(handed) is type(value)
    assert kept == (plain(data) if isinstance(data, BaseModel) else data)
    assert kept is not data or not isinstance(data, dict)
    assert handed is not kept or not isinstance(data, dict)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (None, None),
        ({"type": ["object", "null"]}, None),
        (None, object()),
        (None, {"a": (1,)}),
        (None, float("nan")),
        (None, "x" * 1_048_576),
        ({"type": "boolean"}, "true"),
        (Order, {"orderNumber": "1"}),
        (Order, {"number": 1}),
        (Raising, {"x": 1}),
        (MORE_THAN_STEPS, [100] * 5_000),
    ],
    ids=["none", "none-allowed", "object", "tuple", "nan", "large", "schema", "coerced", "name", "raising", "steps"],
)
def test_f18_an_answer_that_does_not_fit_is_refused_by_tool_and_without_values(schema: Any, data: Any) -> None:
    with pytest.raises(CanonicalizationError, match="'book'") as refused:
        Tool("book", resume_schema=schema).checked_resume(data)

    assert refused.value.detail == "resume-schema"
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__} {refused.value.__context__}"


# -- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, True, 0, 1.0, 2**70, "", "Straße 😀", [], {}, {"a": [1, {"b": 1.5}]}, 1e300], ids=repr
)
def test_json_data_stay_as_they_are(value: Any) -> None:
    result = plain(value)

    assert repr(result) == repr(value)
    assert result is not value or not isinstance(value, (dict, list)) or not value


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ((1, 2), [1, 2]),
        (Text("a"), "a"),
        ({1: "a"}, {"1": "a"}),
        (float("nan"), None),
        (Colour.RED, "red"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (Point(1, Decimal("1.50")), {"x": 1, "y": "1.50"}),
        ({"order": Order(orderNumber=1)}, {"order": {"orderNumber": 1, "note": ""}}),
        (Order(orderNumber=1), {"orderNumber": 1, "note": ""}),
        (Decimal("1.50"), "1.50"),
        ({"a": {1}}, {"a": "{1}"}),
        (b"raw", "b'raw'"),
        ("a\ud800b", "a\ufffdb"),
        ({"a": "\ud800"}, r"{'a': '\ud800'}"),
        (Unshowable(), "The tool succeeded; its result, a Unshowable, has no text."),
        (nested(100), nested(100)),
    ],
    ids=["tuple", "text", "key", "nan", "enum", "date", "dataclass", "nested-model", "model", "decimal", "set", "bytes",
         "surrogate", "nested-surrogate", "unshowable", "deep"],
)
def test_what_is_no_json_becomes_it_or_its_text(value: Any, result: Any) -> None:
    assert plain(value) == result
    assert type(plain(value)) is type(result)


def test_what_is_too_deep_for_a_snapshot_becomes_its_text() -> None:
    assert plain(nested(101)) == "[" * 101 + "1" + "]" * 101


def test_a_model_that_cannot_be_written_becomes_its_text() -> None:
    assert plain(Raising.model_construct(x=1)) == "x=1"


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    assert well_formed("a\ud83d\ude00b\udc00") == "a😀b\ufffd"


@pytest.mark.parametrize(
    ("schema", "value", "result"),
    [
        (None, (1,), [1]),
        ({"type": "array", "items": {"type": "integer"}}, (1,), [1]),
        (Order, Order(orderNumber=1), {"orderNumber": 1, "note": ""}),
        (Order, {"orderNumber": 1, "password": "s3cret"}, {"orderNumber": 1, "note": ""}),
        (Order, Secretive(orderNumber=1, password="s3cret"), {"orderNumber": 1, "note": ""}),
        (Rich, Rich.model_validate(RICH), {**RICH, "amount": "82"}),
        (Rich, RICH, {**RICH, "amount": "82"}),
    ],
    ids=["none", "schema", "instance", "dict", "subclass", "rich", "rich-dict"],
)
def test_a_result_that_fits_goes_out_with_nothing_but_the_models_fields(schema: Any, value: Any, result: Any) -> None:
    tool = Tool("look", output_schema=schema, suspend_schema=schema)

    assert tool.checked_output(value) == result
    assert tool.checked_suspend(value) == result


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, 5),
        ({"type": "object"}, None),
        (Order, {"orderNumber": "s3cret"}),
        (Order, None),
        (Raising, {"x": 1}),
        (Raising, Raising.model_construct(x=1)),
        (MORE_THAN_STEPS, [100] * 5_000),
    ],
    ids=["type", "none", "model", "no-model", "raising-in", "raising-out", "steps"],
)
def test_what_does_not_fit_does_not_go_out(schema: Any, value: Any) -> None:
    tool = Tool("look", output_schema=schema, suspend_schema=schema)

    for check, detail in ((tool.checked_output, "output-schema"), (tool.checked_suspend, "suspend-schema")):
        with pytest.raises(CanonicalizationError, match="'look'") as refused:
            check(value)
        assert refused.value.detail == detail
        assert "s3cret" not in f"{refused.value} {refused.value.__cause__} {refused.value.__context__}"


def test_a_schema_with_a_reference_that_leads_nowhere_is_a_fault_of_the_set_up() -> None:
    tool = Tool("look", output_schema={"items": {"$ref": "#/$defs/missing"}})

    with pytest.raises(ConfigurationError, match="references"):
        tool.checked_output([1])
