"""Canonical bytes: what has them, what has none, and why (threats AT-14 to AT-22, I-60 to I-66)."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical
from hitl_guard.canonical import DEFAULT_LIMITS, Limits, canonicalize, parse
from hitl_guard.errors import CanonicalizationError, ConfigurationError
from hitl_guard.render.flags import flags

MAX_SAFE = 2**53 - 1
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers(-MAX_SAFE, MAX_SAFE) | st.text() | FLOATS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40)
# No quick way for small values: everything is inspected node by node.
CAREFULLY = Limits(max_nodes=255)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Items(list[Any]):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class Odd(metaclass=Unhashable):
    pass


NO_JSON: dict[str, Any] = {
    "tuple": (1,),
    "set": {1},
    "frozenset": frozenset(),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "complex": 1j,
    "Decimal": decimal.Decimal("82.00"),
    "datetime": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2024, 1, 1),
    "time": datetime.time(1),
    "Enum": Colour.RED,
    "IntEnum": Level.LOW,
    "StrEnum": Word.YES,
    "UUID": uuid.UUID(int=1),
    "Fragment": orjson.Fragment(b'{"a":1}'),
    "dataclass": Point(),
    "numpy integer": numpy.int64(1),
    "numpy float": numpy.float64(1.5),
    "numpy bool": numpy.bool_(True),
    "numpy string": numpy.str_("a"),
    "numpy array": numpy.array([1]),
    "str subclass": Text("a"),
    "int subclass": Whole(1),
    "float subclass": Real(1.5),
    "list subclass": Items(),
    "dict subclass": OrderedDict(a=1),
    "function": len,
    "class": dict,
    "Ellipsis": ...,
    "instance of a class without a hash": Odd(),
    "iterator": iter([]),
}
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "in a list": lambda value: ["a", value],
    "in an object": lambda value: {"a": value},
    "deep inside": lambda value: {"a": [1, {"b": [[value]]}], "c": 1.5},
    "among many": lambda value: [0] * 500 + [{"a": value}],
}


def refusal(call: Callable[[], Any]) -> tuple[str, str | None]:
    """Return code and detail of the refusal that ``call`` must end in."""
    with pytest.raises(CanonicalizationError) as refused:
        call()
    assert str(refused.value)
    return refused.value.code, refused.value.detail


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.fixture(params=["as CPython does", "as any Python does"])
def _both_walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as any Python does":
        monkeypatch.setattr(canonical, "_members", canonical._members_anywhere)


@pytest.fixture
def _few_digits() -> Iterator[None]:
    """Python's own limit on integers as text, lowered by the host."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(before)


@given(VALUES)
def test_bytes_are_those_of_rfc8785_on_its_whole_domain(value: Any) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)
    assert canonicalize(value, limits=CAREFULLY) == rfc8785.dumps(value)


@given(FLOATS)
def test_a_float_is_written_as_rfc8785_writes_it(number: float) -> None:
    assert canonicalize([number]) == rfc8785.dumps([number])


@given(st.dictionaries(st.text(st.characters(min_codepoint=0xD000, exclude_categories=["Cs"]), max_size=3), st.none()))
def test_at22_keys_are_in_the_order_of_their_utf16_units(value: dict[str, None]) -> None:
    names = list(parse(canonicalize(value)))

    assert names == sorted(value, key=lambda name: name.encode("utf-16-be"))


def test_i64_the_order_is_right_inside_lists_too_and_beside_respelled_numbers() -> None:
    value = [{"\ufb33": 1.0, "\U0001f602": [{"\ue000": 2**70, "\U00010000": "\uffff"}]}]

    expected = '[{"\U0001f602":[{"\U00010000":"\uffff","\ue000":1180591620717411303424}],"\ufb33":1}]'
    assert canonicalize(value) == expected.encode()


def test_text_beyond_ascii_that_cannot_be_misordered_is_written_raw() -> None:
    assert canonicalize({"ü": "😂", "é": "\x7f\u0080\u2028"}) == '{"é":"\x7f\u0080\u2028","ü":"😂"}'.encode()


@pytest.mark.parametrize(
    "text", ['{"b":1.0,"a":100}', ' { "a" : 1E2, "b" : 1 } ', '{"\\u0061":100.0,"\\u0062":10e-1}', '{"b":1,\n"a":1e+2}']
)
def test_at14_one_value_has_one_form_whatever_its_text(text: str) -> None:
    assert canonicalize(parse(text)) == b'{"a":100,"b":1}'


def test_at15_and_at16_values_that_look_alike_have_different_bytes() -> None:
    values = [1, True, "1", [1], {"0": 1}, None, "", {}, [], 0, False, "null", {"a": None}, [None], 0.5, "0.5"]

    assert len({canonicalize(value, exact=True) for value in values}) == len(values)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", NO_JSON)
@pytest.mark.usefixtures("_both_walks")
def test_at18_what_is_not_plain_json_is_refused(kind: str, place: str) -> None:
    value = PLACES[place](NO_JSON[kind])

    assert refusal(lambda: canonicalize(value)) == ("unsupported-value", "type")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.usefixtures("_both_walks")
def test_at18_numbers_that_json_does_not_have_are_refused(number: float, place: str) -> None:
    value = PLACES[place](number)

    assert refusal(lambda: canonicalize(value)) == ("unsupported-value", "number")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", [1, None, True, 1.5, b"a", (1,), Text("a"), Word.YES, Colour.RED])
@pytest.mark.usefixtures("_both_walks")
def test_at18_and_i62_keys_that_are_not_strings_are_refused(key: Any, place: str) -> None:
    value = PLACES[place]({"b": 1, key: 2})

    assert refusal(lambda: canonicalize(value)) == ("unsupported-value", "key")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ude02\ud83d"])
def test_at20_lone_surrogates_are_refused_in_texts_and_in_keys(text: str, place: str) -> None:
    assert refusal(lambda: canonicalize(PLACES[place](text))) == ("unsupported-value", "text")
    assert refusal(lambda: canonicalize(PLACES[place]({text: 1}))) == ("unsupported-value", "text")


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53), 10**20, 2**64, -(2**63) - 1, 10**21, 10**999])
def test_at19_and_i63_integers_beyond_2_53_keep_every_digit(number: int) -> None:
    written = canonicalize({"id": number}, exact=True)

    assert written == b'{"id":%d}' % number
    assert parse(written) == {"id": number}
    assert canonicalize({"id": number + 1}, exact=True) != written


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**64, 10**30])
def test_i63_one_setting_refuses_them(number: int) -> None:
    refused = refusal(lambda: canonicalize([1, {"id": number}], big_integers=False))

    assert refused == ("unsupported-value", "number")
    assert canonicalize([MAX_SAFE, -MAX_SAFE], big_integers=False) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize("number", [2.0**53, -(2.0**53), 1e16, 1e20, 1e21, 1.7e308])
def test_floats_that_share_digits_with_an_integer_are_refused_when_bytes_must_be_exact(number: float) -> None:
    assert canonicalize(number) == rfc8785.dumps(number)

    assert refusal(lambda: canonicalize({"a": [number]}, exact=True)) == ("unsupported-value", "number")


def normal(value: Any) -> Any:
    """Return what must be equal for bytes to be equal: 1 and 1.0 are one number, everything else is apart."""
    if isinstance(value, dict):
        return frozenset((name, normal(item)) for name, item in value.items())
    if isinstance(value, list):
        return ("list", *(normal(item) for item in value))
    return ("number" if type(value) in (int, float) else type(value).__name__, value)


# Few different leaves, so that equal values turn up.
CROWDED = st.recursive(
    st.sampled_from([0, 1, 1.0, -0.0, True, False, None, "", "1", "é", "e\u0301", 2**53, 2**53 + 1, 0.1, 1e-7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
)


@given(CROWDED, CROWDED)
def test_bytes_are_equal_exactly_when_values_are(one: Any, other: Any) -> None:
    same_bytes = canonicalize(one, exact=True) == canonicalize(other, exact=True)

    assert same_bytes == (normal(one) == normal(other))


@given(VALUES)
def test_what_was_written_is_read_back(value: Any) -> None:
    written = canonicalize(value)

    assert canonicalize(parse(written)) == written
    assert canonicalize(parse(written.decode())) == written


PECULIAR = st.sampled_from([*NO_JSON.values(), 10**999, 10**1000, -(10**1000), 2**64, 1e300, 82.0])
ANYTHING = st.recursive(
    SCALARS | st.floats() | st.integers() | st.text(st.characters()) | PECULIAR,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=20,
)


@given(ANYTHING, st.booleans(), st.booleans())
def test_any_value_ends_in_bytes_or_in_our_error(value: Any, exact: bool, big_integers: bool) -> None:
    try:
        written = canonicalize(value, exact=exact, big_integers=big_integers)
    except CanonicalizationError:
        return
    assert canonicalize(parse(written)) == written


def outcome(value: Any, limits: Limits, exact: bool) -> bytes | tuple[str, str | None]:
    try:
        return canonicalize(value, limits=limits, exact=exact)
    except CanonicalizationError as error:
        return error.code, error.detail


@given(ANYTHING, st.booleans())
def test_small_values_end_as_they_do_when_inspected_node_by_node(value: Any, exact: bool) -> None:
    assert outcome(value, DEFAULT_LIMITS, exact) == outcome(value, CAREFULLY, exact)


def test_the_value_itself_is_left_as_it_was() -> None:
    value = {"b": [1.0, {"\ufb33": 2**70, "\U0001f602": 2}], "a": -0.0}

    canonicalize(value)

    assert repr(value) == repr({"b": [1.0, {"\ufb33": 2**70, "\U0001f602": 2}], "a": -0.0})


# --- limits


def test_values_at_a_limit_pass_and_beyond_it_are_too_large() -> None:
    limits = Limits(max_bytes=20, max_depth=3, max_nodes=5, max_digits=20)

    assert canonicalize("x" * 18, limits=limits) == b'"' + b"x" * 18 + b'"'
    assert refusal(lambda: canonicalize("x" * 19, limits=limits)) == ("too-large", "bytes")
    assert canonicalize(nested(3), limits=limits) == b"[[[]]]"
    assert refusal(lambda: canonicalize(nested(4), limits=limits)) == ("too-large", "depth")
    assert canonicalize([1, [2, 3]], limits=limits) == b"[1,[2,3]]"
    assert refusal(lambda: canonicalize([1, [2, 3, 4]], limits=limits)) == ("too-large", "nodes")
    assert canonicalize(10**19, limits=limits) == b"1" + b"0" * 19
    assert refusal(lambda: canonicalize(10**20, limits=limits)) == ("too-large", "digits")


def test_each_limit_holds_for_itself() -> None:
    assert refusal(lambda: canonicalize([[[[]]]], limits=Limits(max_depth=3))) == ("too-large", "depth")
    assert refusal(lambda: canonicalize({"a": [1, 2, 3]}, limits=Limits(max_nodes=4))) == ("too-large", "nodes")
    assert refusal(lambda: canonicalize({"a": "1234"}, limits=Limits(max_bytes=11))) == ("too-large", "bytes")
    assert refusal(lambda: canonicalize({"a": -(10**20)}, limits=Limits(max_digits=20))) == ("too-large", "digits")


def test_the_usual_limits_are_those_of_the_design() -> None:
    assert Limits(max_bytes=1_048_576, max_depth=64, max_nodes=50_000, max_digits=1_000) == DEFAULT_LIMITS
    assert canonicalize(nested(64)) == b"[" * 64 + b"]" * 64
    assert refusal(lambda: canonicalize(nested(65))) == ("too-large", "depth")
    assert len(canonicalize([0] * 49_999)) == 99_999
    assert refusal(lambda: canonicalize([0] * 50_000)) == ("too-large", "nodes")
    assert refusal(lambda: canonicalize({str(number): 0 for number in range(50_000)})) == ("too-large", "nodes")
    assert len(canonicalize(-(10**999))) == 1_001
    assert refusal(lambda: canonicalize(10**1000)) == ("too-large", "digits")
    assert refusal(lambda: canonicalize([1.0, {"a": 10**1000}])) == ("too-large", "digits")
    assert refusal(lambda: canonicalize("x" * 1_048_575)) == ("too-large", "bytes")
    assert refusal(lambda: canonicalize(["x" * 600_000, {"y" * 600_000: 1}])) == ("too-large", "bytes")


def test_limits_are_checked_before_anything_large_is_made() -> None:
    shared_text, shared_list = "x" * 1_000_000, [0] * 40_000

    assert refusal(lambda: canonicalize([shared_text] * 40_000)) == ("too-large", "bytes")
    assert refusal(lambda: canonicalize([{shared_text: 1}] * 20_000)) == ("too-large", "bytes")
    assert refusal(lambda: canonicalize([shared_list] * 40_000)) == ("too-large", "nodes")
    assert refusal(lambda: canonicalize([10**999] * 40_000)) == ("too-large", "bytes")
    assert refusal(lambda: canonicalize(1 << 10_000_000)) == ("too-large", "digits")


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.usefixtures("_both_walks")
def test_a_value_inside_itself_is_too_large(width: int) -> None:
    items: list[Any] = []
    items.extend([items] * width)
    members: dict[str, Any] = {}
    members.update({str(number): [members] for number in range(width)})

    assert refusal(lambda: canonicalize(items))[0] == "too-large"
    assert refusal(lambda: canonicalize(members))[0] == "too-large"


@pytest.mark.parametrize("depth", [15, 16, 17, 18])
@pytest.mark.usefixtures("_both_walks")
def test_depth_beyond_what_counts_as_small_is_written_alike(depth: int) -> None:
    assert canonicalize(nested(depth)) == b"[" * depth + b"]" * depth


@pytest.mark.parametrize("count", [254, 255, 256, 257])
@pytest.mark.usefixtures("_both_walks")
def test_sizes_around_what_counts_as_small_are_written_alike(count: int) -> None:
    values: list[Any] = [list(range(count)), [list(range(count))], {str(number): number for number in range(count)}]

    assert [canonicalize(value) for value in values] == [rfc8785.dumps(value) for value in values]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": 0}, {"max_bytes": 1.5}, {"max_depth": 201}, {"max_depth": True}, {"max_nodes": -1},
        {"max_digits": 19}, {"max_digits": 4301},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        Limits(**limits)


@pytest.mark.usefixtures("_few_digits")
def test_python_s_own_limit_on_digits_never_surfaces() -> None:
    assert refusal(lambda: canonicalize(10**700)) == ("too-large", "digits")
    assert refusal(lambda: canonicalize([1.0, -(10**700)])) == ("too-large", "digits")
    assert refusal(lambda: parse("[1" + "0" * 700 + "]")) == ("too-large", "digits")


@pytest.mark.parametrize(("depth", "frames"), [(14, 14), (60, 50)])
def test_a_stack_that_is_nearly_full_ends_in_our_error(depth: int, frames: int) -> None:
    value: Any = 1.0
    for _ in range(depth):
        value = [value]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        ended = outcome(value, DEFAULT_LIMITS, False)
    finally:
        sys.setrecursionlimit(before)

    assert ended == ("too-large", "depth")


@pytest.mark.parametrize("value", ["text", {"a": 1}, [1.0], 1])
def test_memory_that_runs_out_ends_in_our_error(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_values: Any, **_options: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(orjson, "dumps", exhausted)

    assert refusal(lambda: canonicalize(value)) == ("too-large", "bytes")


# --- what the approver is told


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, "x", None, True, 0.5]}, ()),
        ({"id": 2**53}, ("big-integer",)),
        ([[-(2**53)]], ("big-integer",)),
        ([MAX_SAFE, -MAX_SAFE], ()),
        ("Å", ()),
        ("A\u030a", ("non-nfc",)),
        ({"e\u0301": 1}, ("non-nfc",)),
        ({"a": {"e\u0301": [2**64]}}, ("big-integer", "non-nfc")),
        ("\n\u0303", ()),  # an escaped line break and a tilde do not make an "ñ"
    ],
)
def test_at21_and_i65_flags_name_large_integers_and_text_that_is_not_nfc(value: Any, expected: tuple[str, ...]) -> None:
    assert flags(canonicalize(value)) == expected


def test_at21_composed_and_decomposed_text_stay_apart() -> None:
    assert canonicalize("Å") != canonicalize("A\u030a")


def test_flags_of_what_is_not_json_are_refused() -> None:
    assert refusal(lambda: flags(b"{")) == ("unsupported-value", "syntax")
