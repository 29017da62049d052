"""The strict parser: what it reads, and everything that it refuses (threats AT-17, AT-20, I-60, I-66)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hitl_guard.canonical import Limits, canonicalize, decode, parse
from hitl_guard.errors import CanonicalizationError

from .test_canonical import VALUES, refusal

STYLES: list[dict[str, Any]] = [{"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"sort_keys": True}]


@given(VALUES, st.sampled_from(STYLES))
def test_it_reads_what_python_s_own_parser_reads(value: Any, style: dict[str, Any]) -> None:
    text = json.dumps(value, **style)

    assert repr(parse(text)) == repr(json.loads(text))
    assert repr(parse(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "1"), ("1.0", "1.0"), ("-0", "0"), ("-0.0", "-0.0"), ("1e2", "100.0"), ("9007199254740993",) * 2,
        ("18446744073709551616",) * 2, ("100000000000000000000",) * 2,
        ("1e400", None), ('"\\ud83d\\ude02"', "'😂'"), (" \t\r\n[1]\n ", "[1]"), ("1e-400", "0.0"),
        ('{"a":1}', "{'a': 1}"), ("[1e16]", "[1e+16]"), ("10000000000000000", "10000000000000000"),
        ('["\\\\ud800"]', "['\\\\ud800']"),
    ],
)  # fmt: skip
def test_numbers_keep_their_kind_and_their_digits(text: str, expected: str | None) -> None:
    if expected is None:
        assert refusal(lambda: parse(text)) == ("unsupported-value", "number")
    else:
        assert repr(parse(text)) == expected


def inside(member: str, depth: int) -> str:
    return '{"k":[' * depth + member + "]}" * depth


@pytest.mark.parametrize("depth", [0, 1, 5, 20])
@pytest.mark.parametrize(
    "member",
    [
        '{"a":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '{"\\ud83d\\ude02":1,"😂":2}', '{"":1,"b":2,"":3}',
        '{"a":{},"b":0,"a":[]}',
    ],
)  # fmt: skip
def test_at17_and_i60_duplicate_names_are_refused_at_any_depth(member: str, depth: int) -> None:
    text = inside(member, depth)

    assert refusal(lambda: parse(text)) == ("unsupported-value", "duplicate")
    assert refusal(lambda: parse(text.encode())) == ("unsupported-value", "duplicate")


def test_at17_names_that_only_look_alike_are_no_duplicates() -> None:
    assert parse('{"Å":1,"A\\u030a":2,"a":{"a":3}}') == {"Å": 1, "A\u030a": 2, "a": {"a": 3}}


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"\xef\xbb\xbf{}", "encoding"),
        ("\ufeff{}", "encoding"),
        (" \ufeff{}", "encoding"),
        (b"\xff", "encoding"),
        (b'"\xc0\xaf"', "encoding"),
        (b'"\xed\xa0\x80"', "encoding"),
        (b'"\xf4\x90\x80\x80"', "encoding"),
        ("{}".encode("utf-16"), "encoding"),
        ("[1]".encode("utf-16-le"), "syntax"),
        ("{} {}", "trailing"),
        ("1,", "trailing"),
        ("[]x", "trailing"),
        ("nullnull", "trailing"),
        ("[1]\x00", "trailing"),
        ("[1]\u00a0", "trailing"),
        ('"\ud800"', "text"),
        ('"\\ud800"', "text"),
        ('{"\\uDC00":1}', "text"),
        ('["\\ude02\\ud83d"]', "text"),
        ('["\\ud83d", "\\ude02"]', "text"),
        ("NaN", "number"),
        ("[Infinity]", "number"),
        ('{"a":-Infinity}', "number"),
        ("[1e400]", "number"),
        ("-1E400", "number"),
        ("", "syntax"),
        (" ", "syntax"),
        ("{", "syntax"),
        ("[1,]", "syntax"),
        ('{"a":1,}', "syntax"),
        ("{a:1}", "syntax"),
        ("['a']", "syntax"),
        ("01", "trailing"),
        ("+1", "syntax"),
        (".5", "syntax"),
        ("1.", "trailing"),
        ("0x10", "trailing"),
        ('"\n"', "syntax"),
        ('"\\x41"', "syntax"),
        ('"a', "syntax"),
        ("// no\n1", "syntax"),
        ("True", "syntax"),
        ("\u0661", "syntax"),
    ],
)
def test_at20_and_i66_what_is_not_strict_json_is_refused(data: bytes | str, detail: str) -> None:
    assert refusal(lambda: parse(data)) == ("unsupported-value", detail)


@pytest.mark.parametrize("data", [None, 1, {}, [], bytearray(b"1"), memoryview(b"1"), object()])
def test_only_bytes_and_str_are_read(data: Any) -> None:
    assert refusal(lambda: parse(data)) == ("unsupported-value", "type")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("[" * 65 + "]" * 65, "depth"),
        ("[" * 100_000, "depth"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "depth"),
        ("[" * 100_000 + "]" * 100_000, "depth"),
        ("[" + "1," * 50_000 + "1]", "nodes"),
        ("1" * 5_000, "digits"),
        ("-" + "1" * 1_001, "digits"),
        ('{"id":[' + "9" * 100_000 + "]}", "digits"),
        ('"' + "x" * 1_048_576 + '"', "bytes"),
        ('"' + "é" * 600_000 + '"', "bytes"),
        (" " * 1_048_576 + "1", "bytes"),
    ],
    ids=lambda text: str(text)[:12],
)
def test_i66_what_is_beyond_a_limit_is_too_large(text: str, detail: str) -> None:
    assert refusal(lambda: parse(text)) == ("too-large", detail)
    assert refusal(lambda: parse(text.encode())) == ("too-large", detail)


def test_limits_count_the_text_and_the_value() -> None:
    limits = Limits(max_bytes=9, max_depth=2, max_nodes=3, max_digits=20)

    assert parse("[[1]]", limits=limits) == [[1]]
    assert parse("    [1]  ", limits=limits) == [1]
    assert refusal(lambda: parse("     [1]  ", limits=limits)) == ("too-large", "bytes")
    assert refusal(lambda: parse("[[[]]]", limits=limits)) == ("too-large", "depth")
    assert refusal(lambda: parse("[1,2,3]", limits=limits)) == ("too-large", "nodes")
    assert parse("1" * 1_000) == int("1" * 1_000)
    assert parse("-" + "1" * 1_000) == -int("1" * 1_000)


def test_canonical_bytes_of_our_own_are_decoded_whatever_their_size() -> None:
    value = {"text": "x" * 1_200_000, "id": 10**2_000}
    written = canonicalize(value, limits=Limits(max_bytes=2_000_000, max_digits=4_000))

    assert refusal(lambda: parse(written)) == ("too-large", "bytes")
    assert decode(written) == value
    assert refusal(lambda: decode(b'{"a":1,"a":1}')) == ("unsupported-value", "duplicate")


def test_values_are_fresh_at_each_call() -> None:
    first, second = parse(b'{"a":[1]}'), parse(b'{"a":[1]}')

    first["a"].append(2)

    assert second == {"a": [1]}


def reference(data: bytes) -> Any:
    """Parse with Python's own parser and refuse duplicates; raise ValueError for what must be refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("duplicate")
        return dict(pairs)

    value = json.loads(data.decode(), object_pairs_hook=unique)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


# Bytes that are nearly JSON: pieces of it in any order.
PIECES = st.lists(
    st.sampled_from([
        b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b"\\", b"\\ud800", b"0", b"-", b"1", b".", b"e9", b"99",
        b"null", b"true", b"NaN", b" ", b"\n", b"\xc3\xa9", b"\xff", b'{"a":1}', b'"\\u0061"',
    ]),
    max_size=12,
).map(b"".join)  # fmt: skip


@given(st.binary() | PIECES | st.text().map(str.encode))
@example(b'{"a":1,"a":1}')
@example(b"1e999")
def test_any_bytes_are_read_exactly_when_a_plain_reference_reads_them(data: bytes) -> None:
    try:
        expected = reference(data)
    except ValueError:
        with pytest.raises(CanonicalizationError):
            parse(data)
    else:
        assert repr(parse(data)) == repr(expected)


@given(st.text(st.characters()))
def test_any_text_ends_in_a_value_or_in_our_error(text: str) -> None:
    try:
        value = parse(text)
    except CanonicalizationError:
        return
    assert canonicalize(parse(canonicalize(value))) == canonicalize(value)
