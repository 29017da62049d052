"""The AI SDK's own signatures: what counts, what is refused and why, and that nothing but our errors comes out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard.errors import CanonicalizationError, ConfigurationError, HitlGuardError, InvalidSignatureError
from hitl_guard.integrations.ai_sdk import (
    VerifiedAiSdkSignature,
    canonical_input,
    json_parse,
    sign_ai_sdk_approval,
    verify_ai_sdk_signature,
)
from hitl_guard.integrations.ai_sdk.javascript import MAX_BYTES, MAX_DEPTH
from hitl_guard.signing import decode, encode, hmac_sha256
from tests.test_shape import FRAMEWORKS, loaded_after

from .rings import secret
from .test_canonical import Items, Real, Text, Whole
from .test_keyring_secrets import frames, shows_nothing

NEW, OLD = secret(1), secret(2)
CALL: dict[str, Any] = {
    "approval_id": "aitxt-1", "tool_call_id": "call-1", "tool_name": "refund", "input": {"order": "A-17", "amount": 82},
}
# JavaScript's strings may hold half of a surrogate pair, and its numbers no NaN in JSON.
STRINGS = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | STRINGS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


def sign(**changes: Any) -> str:
    return sign_ai_sdk_approval(**({"secrets": [NEW], **CALL} | changes))


def verify(signature: object, **changes: Any) -> VerifiedAiSdkSignature:
    return verify_ai_sdk_signature(**({"secrets": [NEW], "signature": signature, **CALL} | changes))


def refusal(signature: object, **changes: Any) -> tuple[type[HitlGuardError], str, str | None]:
    with pytest.raises(HitlGuardError) as caught:
        verify(signature, **changes)
    return type(caught.value), caught.value.code, caught.value.detail


def older(**changes: Any) -> str:
    """Return what AI SDK 6 signs: the same fields with a line feed between them."""
    call = CALL | changes
    names = [call["approval_id"], call["tool_call_id"], call["tool_name"]]
    text = "\n".join([*names, verify(sign(**changes), **changes).input_digest])
    payload = text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace").encode()  # as TextEncoder does
    return encode(hmac_sha256(NEW, payload)).decode()


MISMATCH = (InvalidSignatureError, "invalid-signature", "mismatch")
MALFORMED = (InvalidSignatureError, "invalid-signature", "malformed")
MISSING = (InvalidSignatureError, "invalid-signature", "missing")


def test_a25_a_signature_verifies_and_the_answer_says_what_it_covers() -> None:
    found = verify(sign())

    assert found == VerifiedAiSdkSignature(
        approval_id="aitxt-1", tool_call_id="call-1", tool_name="refund", input_text='{"amount":82,"order":"A-17"}',
        input_digest="OD7noGGGx-WAhD1IN5VyoePolQPOuT8aYGpzABTydl0", secret_index=0, form="v1",
    )


def test_a25_the_bytes_that_are_signed_are_those_of_the_format() -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(b'{"amount":82,"order":"A-17"}').digest()).rstrip(b"=")
    payload = b'["ai-sdk-tool-approval-v1","aitxt-1","call-1","refund","%b"]' % digest

    mac = hmac.digest(NEW, payload, "sha256")

    assert sign() == base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def test_a25_the_answer_does_not_show_the_input() -> None:
    assert "A-17" not in repr(verify(sign()))


def test_a25_what_an_honest_client_does_to_numbers_changes_nothing() -> None:
    ours = {"a": 1.0, "b": -0.0, "c": 2**53 + 1, "d": 10**400, "e": math.inf, "f": 1e21, "\ud83d\ude00": "\ud83d\ude00"}
    theirs = json_parse('{"f":1e21,"a":1,"b":0,"c":9007199254740992,"d":null,"e":null,"😀":"😀"}')

    assert verify(sign(input=ours), input=theirs).input_text == verify(sign(input=theirs), input=ours).input_text


CHANGES: dict[str, Any] = {
    "approval_id": "aitxt-2", "tool_call_id": "call-2", "tool_name": "refund_all",
    "input": {"order": "A-17", "amount": 820},
}


@pytest.mark.parametrize("field", CHANGES)
def test_a26_a_changed_field_does_not_match(field: str) -> None:
    assert refusal(sign(), **{field: CHANGES[field]}) == MISMATCH


@pytest.mark.parametrize(
    "value",
    [{"order": "A-17", "amount": "82"}, {"order": "A-17"}, {"order": "A-17", "amount": 82, "note": None},
     [{"order": "A-17", "amount": 82}], None, '{"amount":82,"order":"A-17"}', {"order": "a-17", "amount": 82}],
)
def test_a26_an_input_of_another_type_or_with_another_member_does_not_match(value: Any) -> None:
    assert refusal(sign(), input=value) == MISMATCH


def test_a26_fields_cannot_be_moved_into_one_another() -> None:
    signature = sign(approval_id='a","b', tool_call_id="c")

    assert refusal(signature, approval_id="a", tool_call_id='b","c') == MISMATCH


@given(VALUES, STRINGS, STRINGS, STRINGS)
def test_a25_any_json_value_verifies_its_own_signature_also_after_its_way_through_json(
    value: Any, approval_id: str, tool_call_id: str, tool_name: str
) -> None:
    given = {"approval_id": approval_id, "tool_call_id": tool_call_id, "tool_name": tool_name, "input": value}
    signature = sign(**given)

    found = verify(signature, **given)

    again = json_parse(found.input_text)
    assert verify(signature, **(given | {"input": again})) == found
    assert canonical_input(again) == found.input_text.encode()


@given(VALUES, VALUES, STRINGS, STRINGS)
def test_a26_no_other_value_verifies(value: Any, other: Any, name: str, other_name: str) -> None:
    signature = sign(input=value, tool_name=name)
    matches = canonical_input(value) == canonical_input(other)

    for field in ("approval_id", "tool_call_id", "tool_name"):
        if canonical_input(other_name) != canonical_input(name if field == "tool_name" else CALL[field]):
            assert refusal(signature, **({"input": value, "tool_name": name} | {field: other_name})) == MISMATCH
    if not matches:
        assert refusal(signature, input=other, tool_name=name) == MISMATCH


@pytest.mark.parametrize("weak", [b"k", b"x" * 31, "é" * 15])
def test_a28_a_secret_of_fewer_than_32_bytes_is_refused(weak: Any) -> None:
    assert refusal(sign(), secrets=[weak]) == (ConfigurationError, "config-error", "secret-short")
    assert refusal(sign(), secrets=[NEW, weak])[2] == "secret-short"


def test_a28_a_secret_that_is_a_pattern_is_refused() -> None:
    assert refusal(sign(), secrets=["password" * 3 + "12345678"])[2] is not None
    assert refusal(sign(), secrets=["abcde" * 20]) == (ConfigurationError, "config-error", "secret-weak")


def test_a28_a_weak_secret_counts_where_it_is_allowed_in_so_many_words() -> None:
    signature = sign(secrets=["k"], allow_weak_secrets=True)

    assert verify(signature, secrets=["k"], allow_weak_secrets=True).form == "v1"
    assert refusal(signature, secrets=["k"], allow_weak_secrets="yes")[2] == "secret-short"


@pytest.mark.parametrize("empty", ["", b""])
def test_a28_an_empty_secret_is_always_refused(empty: Any) -> None:
    for secrets in ([empty], [NEW, empty], [empty, NEW]):
        assert refusal(sign(), secrets=secrets, allow_weak_secrets=True)[2] == "secret-empty"
        with pytest.raises(ConfigurationError):
            sign(secrets=secrets, allow_weak_secrets=True)


@pytest.mark.parametrize(
    "secrets",
    [[], (), None, NEW, NEW.hex(), {NEW}, iter([NEW]), [None], [bytearray(NEW)], [[NEW]], [12], ["\ud800" * 40],
     [NEW] * 17],
    ids=range(13),
)
def test_a28_what_is_no_list_of_secrets_is_refused(secrets: Any) -> None:
    assert refusal(sign(), secrets=secrets) == (ConfigurationError, "config-error", "secrets")


def test_a28_text_and_its_bytes_are_one_secret() -> None:
    text = NEW.hex() + "é"

    assert sign(secrets=[text]) == sign(secrets=[text.encode()])


@pytest.mark.parametrize("act", [
    lambda: verify("x" * 43, secrets=[NEW.decode("latin-1"), OLD]),
    lambda: verify(None, secrets=(NEW, OLD)),
    lambda: verify(sign(), secrets=[NEW, OLD[:31]]),
    lambda: verify(sign(), secrets=[NEW, "\ud800"]),
    lambda: verify(sign(), secrets=[NEW, OLD], legacy=1),
    lambda: verify(sign(), secrets=[NEW, OLD], input={1: 2}),
    lambda: sign(secrets=[NEW, OLD[:31]]),
    lambda: sign(secrets=[NEW, OLD], input=math.nan),
], ids=range(8))
def test_no_error_and_no_frame_of_ours_shows_a_secret(act: Any) -> None:
    with pytest.raises(HitlGuardError) as caught:
        act()

    shown = list(frames(caught.value))

    assert len(shown) > 1
    assert [line for line in shown if not shows_nothing(line)] == []


def test_a31_a_secret_can_be_rotated_with_an_overlap() -> None:
    before = sign(secrets=[OLD])

    assert refusal(before) == MISMATCH
    assert verify(before, secrets=[NEW, OLD]).secret_index == 1
    assert verify(sign(secrets=[NEW, OLD]), secrets=[NEW]).secret_index == 0
    assert verify(sign(), secrets=[NEW, OLD, NEW]).secret_index == 0


@pytest.mark.parametrize("signature", [None, ""])
def test_a31_a_missing_signature_is_told_as_missing(signature: Any) -> None:
    assert refusal(signature) == MISSING


def spellings() -> dict[str, Any]:
    signature = sign()
    mac = decode(signature.encode()) or b""
    return {
        "padded": signature + "=", "space before": " " + signature, "space after": signature + "\n",
        "space inside": signature[:9] + " " + signature[9:], "short": signature[:-1], "long": signature + "A",
        "standard alphabet": "+" * 42 + "A", "no alphabet": "é" * 43, "hex": mac.hex(), "bytes": signature.encode(),
        "subclass": Text(signature), "number": 1, "list": [signature], "object": object(),
        "lone surrogate": "\ud800" * 43, "huge": "A" * 5_000_000, "true": True, "zero": 0, "empty list": [],
        "trailing bits": signature[:-1] + chr(ord(signature[-1]) + 1),
    }


@pytest.mark.parametrize("name", spellings())
def test_a31_a_signature_has_one_spelling(name: str) -> None:
    assert refusal(spellings()[name]) == MALFORMED


def test_a31_no_bit_of_a_signature_can_be_changed() -> None:
    mac = int.from_bytes(decode(sign().encode()) or b"", "big")

    details = {refusal(encode((mac ^ 1 << bit).to_bytes(32, "big")).decode()) for bit in range(256)}

    assert details == {MISMATCH}


def test_the_older_form_counts_only_if_switched_on() -> None:
    assert refusal(older()) == MISMATCH
    assert verify(older(), legacy=True).form == "legacy"
    assert verify(sign(), legacy=True).form == "v1"
    assert verify(older(), secrets=[OLD, NEW], legacy=True).secret_index == 1


@pytest.mark.parametrize("name", ["a\nb", "\n", "\ud800"])
@pytest.mark.parametrize("field", ["approval_id", "tool_call_id", "tool_name"])
def test_the_older_form_never_counts_where_its_payload_is_ambiguous(field: str, name: str) -> None:
    assert refusal(older(**{field: name}), **{field: name}, legacy=True) == MISMATCH
    assert verify(sign(**{field: name}), **{field: name}, legacy=True).form == "v1"


def test_the_older_form_takes_a_character_in_two_halves_as_one() -> None:
    assert verify(older(tool_name="😀"), tool_name="\ud83d\ude00", legacy=True).form == "legacy"


@pytest.mark.parametrize("legacy", [1, "false", None, object()])
def test_the_switch_for_the_older_form_is_a_boolean(legacy: Any) -> None:
    assert refusal(sign(), legacy=legacy) == (ConfigurationError, "config-error", "option")


@pytest.mark.parametrize("name", [None, 1, b"refund", True, ["refund"], Text("refund")])
@pytest.mark.parametrize("field", ["approval_id", "tool_call_id", "tool_name"])
def test_an_id_or_name_that_is_no_string_has_no_canonical_form(field: str, name: Any) -> None:
    expected = (CanonicalizationError, "unsupported-value", "type")

    assert refusal(sign(), **{field: name}) == expected
    with pytest.raises(CanonicalizationError):
        sign(**{field: name})


def test_the_first_fault_in_the_order_of_checks_is_the_one_that_is_told() -> None:
    faults: list[tuple[dict[str, Any], str]] = [
        ({"secrets": []}, "secrets"), ({"legacy": 1}, "option"), ({"signature": None}, "missing"),
        ({"tool_name": None}, "type"), ({"input": {1: 2}}, "key"), ({"input": {}}, "mismatch"),
    ]

    for first in range(len(faults)):
        wrong: dict[str, Any] = {}
        for change, _ in reversed(faults[first:]):
            wrong |= change

        assert refusal(**({"signature": sign()} | wrong))[2] == faults[first][1]


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "nan": (math.nan, "number"), "nan inside": ([{"a": math.nan}], "number"), "tuple": ((1,), "type"),
    "bytes": (b"a", "type"), "set": ({1}, "type"), "object": (object(), "type"), "text subclass": (Text("a"), "type"),
    "int subclass": (Whole(1), "type"), "float subclass": (Real(1), "type"), "list subclass": (Items(), "type"),
    "dict subclass": (OrderedDict(), "type"), "complex": (1j, "type"), "number as key": ({1: 1}, "key"),
    "null as key": ({None: 1}, "key"), "text subclass as key": ({Text("a"): 1}, "key"),
    "two keys that are one": ({"😀": 1, "\ud83d\ude00": 2}, "duplicate"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_value_that_json_does_not_give_is_refused(name: str) -> None:
    value, detail = UNSUPPORTED[name]

    assert refusal(sign(), input=value) == (CanonicalizationError, "unsupported-value", detail)


def nested(levels: int, inner: Any = 1) -> Any:
    for level in range(levels):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


def test_two_thousand_levels_are_signed_and_more_are_refused() -> None:
    deep = nested(MAX_DEPTH)

    assert MAX_DEPTH == 2_000
    assert verify(sign(input=deep), input=json_parse(canonical_input(deep))).form == "v1"
    assert refusal(sign(), input=[deep]) == (CanonicalizationError, "too-large", "depth")
    assert parse_refusal("[" * 2_001) == parse_refusal('{"a":' * 2_001) == ("too-large", "depth")
    assert parse_refusal("[" * 2_000) == ("unsupported-value", "syntax")


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def wide_cycle(kind: type) -> Any:
    value: Any = ["x"] * 100_000 if kind is list else {f"k{place}": "x" for place in range(100_000)}
    value[0 if kind is list else "a"] = value
    return value


def doubled(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value, value]
    return value


HUGE: dict[str, tuple[Any, str]] = {
    "itself": (cycle(), "depth"), "itself in a long list": (wide_cycle(list), "bytes"),
    "itself in a wide object": (wide_cycle(dict), "bytes"), "one part many times": (doubled(60), "bytes"),
    "one text many times": (["x" * 100_000] * 100_000, "bytes"), "long text": ("é" * (MAX_BYTES // 2), "bytes"),
    "long key": ({"a" * MAX_BYTES: 1}, "bytes"), "many escapes": ("\0" * (MAX_BYTES // 6 + 1), "bytes"),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_value_that_is_too_large_is_refused(name: str) -> None:
    value, detail = HUGE[name]

    assert refusal(sign(), input=value) == (CanonicalizationError, "too-large", detail)


def test_the_limit_on_bytes_is_exact_and_can_be_raised() -> None:
    for value in ("é" * 50, {"a": ["x", 1.5, None, {}], "b\n": []}, [[], {}, "\ud800", 10**30], nested(9)):
        size = len(canonical_input(value))

        assert canonical_input(value, max_bytes=size) == canonical_input(value)
        with pytest.raises(CanonicalizationError):
            canonical_input(value, max_bytes=size - 1)
    large = "x" * MAX_BYTES
    assert verify(sign(input=large, max_bytes=2 * MAX_BYTES), input=large, max_bytes=2 * MAX_BYTES).form == "v1"


def test_a_name_that_is_too_long_is_refused() -> None:
    assert refusal(sign(), tool_name="x" * MAX_BYTES) == (CanonicalizationError, "too-large", "bytes")


@pytest.mark.parametrize("most", [0, -1, None, "9", 1.5, True, math.inf])
def test_a_limit_that_is_no_size_is_refused(most: Any) -> None:
    assert refusal(sign(), max_bytes=most) == (ConfigurationError, "config-error", "option")
    with pytest.raises(ConfigurationError):
        json_parse("1", max_bytes=most)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
        ('{"\\ud83d\\ude00":1,"😀":2}', {"😀": 2}),
        ('["\\ud83d\ude00", "\\ud800"]', ["😀", "\ud800"]),
        (" [ 1.0 , -0 , 1e2 , 1.5 ] ", [1, 0, 100, 1.5]),
        ("[9007199254740991,9007199254740993]", [9007199254740991, 9007199254740992.0]),
        ("-1e400", -math.inf),
        ("1" * 5_000, math.inf),
        ('{"__proto__":{"a":[]}}', {"__proto__": {"a": []}}),
        (b'"\xc3\xa9"', "é"),
        ("null", None),
    ],
    ids=range(10),
)
def test_a_text_is_read_as_javascript_reads_it(text: Any, value: Any) -> None:
    read = json_parse(text)

    assert read == value
    assert repr(read) == repr(value)


def parse_refusal(text: Any, **options: Any) -> tuple[str, str | None]:
    with pytest.raises(CanonicalizationError) as caught:
        json_parse(text, **options)
    assert caught.value.__context__ is None
    return caught.value.code, caught.value.detail


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "syntax"), ("{", "syntax"), ("NaN", "syntax"), ("[1] 2", "syntax"), ('{"a":1,}', "syntax"),
        ('"a', "syntax"), ('"\n"', "syntax"), (b"\xef\xbb\xbf1", "syntax"), (b'"\xff"', "encoding"),
        (b'"\xed\xa0\x80"', "encoding"), (bytearray(b"1"), "type"), (None, "type"), (1, "type"), (Text("1"), "type"),
    ],
)
def test_what_is_no_json_text_is_refused_with_its_reason(text: Any, detail: str) -> None:
    assert parse_refusal(text) == ("unsupported-value", detail)


def test_a_text_of_the_greatest_size_is_read_and_a_longer_one_is_not() -> None:
    assert json_parse('"éa"', max_bytes=5) == json_parse('"éa"'.encode(), max_bytes=5) == "éa"
    assert parse_refusal('"éa"', max_bytes=4) == parse_refusal('"éaaa"', max_bytes=6) == ("too-large", "bytes")
    assert parse_refusal('"éa"'.encode(), max_bytes=4) == ("too-large", "bytes")


@given(VALUES)
def test_what_python_writes_is_read_as_what_it_was(value: Any) -> None:
    finite = json_parse(canonical_input(value))

    assert canonical_input(json_parse(json.dumps(finite))) == canonical_input(value)
    assert canonical_input(json_parse(json.dumps(finite, ensure_ascii=False))) == canonical_input(value)


ANYTHING = (
    VALUES | st.binary(max_size=50) | st.complex_numbers() | st.tuples(SCALARS) | st.sets(st.integers())
    | st.dictionaries(st.integers() | st.none() | STRINGS, SCALARS)
    | st.lists(st.binary(min_size=32) | STRINGS)
)


@given(st.dictionaries(
    st.sampled_from(["secrets", "signature", *CALL, "legacy", "allow_weak_secrets", "max_bytes"]), ANYTHING, min_size=1
))
def test_whatever_is_passed_nothing_but_our_errors_comes_out(changes: dict[str, Any]) -> None:
    given = {"signature": sign()} | changes

    try:
        found = verify(**given)
    except HitlGuardError:
        return
    assert found.form == "v1"


@given(STRINGS | st.binary() | st.text('[]{}",:0 e-.\\u'))
def test_whatever_is_read_nothing_but_our_errors_comes_out(text: Any) -> None:
    try:
        value = json_parse(text)
    except CanonicalizationError:
        return
    assert canonical_input(value)


def test_the_package_needs_no_framework() -> None:
    assert loaded_after("import hitl_guard.integrations.ai_sdk") & FRAMEWORKS == set()
