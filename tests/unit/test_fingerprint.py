"""Digests: exact values, one domain each, and no two inputs that share one by moving text about."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical, fingerprint
from hitl_guard.errors import CanonicalizationError
from hitl_guard.fingerprint import joined
from hitl_guard.models import Scope, ToolDefinition

SCOPE = Scope("acme", "ana", "run-1", "call-1", 0)
RETRY = replace(SCOPE, call_id=None)
PRINT = "f" * 64


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def length(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big")


# -- exact values ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_over_the_tag_and_the_canonical_array_of_tool_and_arguments() -> None:
    arguments = canonical.canonicalize({"order": "A-17", "amount": 82.0})

    found = fingerprint.fingerprint("refund", arguments)

    assert found == sha256(b"hitl-guard/fingerprint/v1\0", b'["refund",{"amount":82,"order":"A-17"}]')
    whole = canonical.canonicalize(["refund", {"order": "A-17", "amount": 82}])
    assert found == sha256(b"hitl-guard/fingerprint/v1\0", whole)


def test_every_other_digest_is_over_its_tag_and_an_injective_encoding() -> None:
    definition = ToolDefinition("refund", "Pays.", {"type": "object"}, "mcp://a")
    parts = [b"acme", b"ana", b"run-1", b"call-1", b"0"]
    spelled = b"".join(length(part) + part for part in [b"call", *parts])
    identity = hashlib.sha256(b"hitl-guard/identity/v1\0" + spelled).digest()

    assert fingerprint.tool_digest(definition) == sha256(
        b"hitl-guard/tool/v1\0",
        b'{"description":"Pays.","input_schema":{"type":"object"},"name":"refund","server":"mcp://a"}',
    )
    assert fingerprint.policy_version([b"a", b"b"], [("n", "v")]) == sha256(
        b"hitl-guard/policy/v1\0", f'[["{sha256(b"a")}","{sha256(b"b")}"],[["n","v"]]]'.encode()
    )
    assert fingerprint.details_digest(b"{}") == sha256(b"hitl-guard/details/v1\0", b"{}")
    assert fingerprint.record_digest(b"e", b"a", b"d") == sha256(
        b"hitl-guard/record/v1\0", *(length(part) + part for part in (b"e", b"a", b"d"))
    )
    assert fingerprint.identity(SCOPE, PRINT) == identity
    assert fingerprint.run_digest("acme", "run-1").hex() == sha256(
        b"hitl-guard/run/v1\0", *(length(part) + part for part in (b"acme", b"run-1"))
    )
    assert fingerprint.spend_key(SCOPE, "r").hex() == sha256(
        b"hitl-guard/spend/v1\0", *(length(part) + part for part in (b"call", identity))
    )
    assert fingerprint.spend_key(RETRY, "r").hex() == sha256(
        b"hitl-guard/spend/v1\0", *(length(part) + part for part in (b"retry", b"acme", b"r"))
    )


def test_the_idempotency_key_is_43_characters_and_stable_per_approval() -> None:
    found = fingerprint.idempotency_key("acme", "r1", PRINT)

    digest = hashlib.sha256(b"hitl-guard/idempotency/v1\0" + joined(b"acme", b"r1", PRINT.encode())).digest()
    assert found == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert len(found) == 43
    others = [("acmE", "r1", PRINT), ("acme", "r2", PRINT), ("acme", "r1", "e" * 64), ("acmer", "1", PRINT)]
    assert found not in {fingerprint.idempotency_key(*other) for other in others}


# -- what is told apart ----------------------------------------------------------------------------------------------


def test_no_digest_of_one_domain_is_one_of_another() -> None:
    digests = [
        fingerprint.details_digest(b""), fingerprint.record_digest(b"", b"", b""), sha256(b""), sha256(b"{}"),
        fingerprint.run_digest("", "").hex(), fingerprint.identity(SCOPE, "").hex(),
        fingerprint.spend_key(SCOPE, "").hex(), fingerprint.policy_version([], []),
        fingerprint.fingerprint("", b"{}"), fingerprint.tool_digest(ToolDefinition("")),
    ]

    assert len(set(digests)) == len(digests)


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_joined_parts_are_equal_only_when_every_part_is(one: list[bytes], other: list[bytes]) -> None:
    assert (joined(*one) == joined(*other)) is (one == other)


TEXTS = st.sampled_from(["a", "b", "ab", "a\n", "a|b", 'a"', "a,", "\\", "\0", "a\0b", ":", "]", "ä", "a ", " a", "A"])
SCOPES = st.builds(
    Scope, TEXTS, TEXTS, TEXTS, st.none() | TEXTS, st.sampled_from([0, 1, 10, 11])
)


@given(SCOPES, SCOPES)
def test_two_calls_share_an_identity_only_when_their_whole_scope_is_equal(one: Scope, other: Scope) -> None:
    same = fingerprint.identity(one, PRINT) == fingerprint.identity(other, PRINT)

    if one.call_id is None and other.call_id is None:
        assert same is (replace(one, occurrence=0) == replace(other, occurrence=0))
    else:
        assert same is (one == other)


@given(SCOPES, SCOPES, TEXTS, TEXTS)
def test_two_claims_share_a_spend_key_only_for_one_call_or_one_retry_request(
    one: Scope, other: Scope, first: str, second: str
) -> None:
    same = fingerprint.spend_key(one, first) == fingerprint.spend_key(other, second)

    if one.call_id is None and other.call_id is None:
        assert same is ((one.tenant, first) == (other.tenant, second))
    else:
        assert same is (one == other)


def test_a_calls_identity_leaves_its_arguments_out_and_a_retrys_has_them() -> None:
    assert fingerprint.identity(SCOPE, PRINT) == fingerprint.identity(SCOPE, "e" * 64)
    assert fingerprint.identity(RETRY, PRINT) != fingerprint.identity(RETRY, "e" * 64)


def test_a_call_is_spent_once_whatever_request_and_policy_it_was_approved_under() -> None:
    assert fingerprint.spend_key(SCOPE, "r1") == fingerprint.spend_key(SCOPE, "r2")
    assert fingerprint.spend_key(RETRY, "r1") != fingerprint.spend_key(RETRY, "r2")


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, "", "0", "1", "true", "null", [], {}, [1], [[1]], [None], {"a": None}, {"a": ""},
    {"a": []}, {"a": {}}, {"0": 1}, 0.5, 2**53, 2**53 + 1, 2**53 + 2, 10**20, 10**20 + 1, "\u00e5", "a\u030a", "\ufb33",
    "\U0001f602", "a\0", "a\\u0000",
]


def test_arguments_that_differ_have_fingerprints_that_differ() -> None:
    prints = [fingerprint.fingerprint("t", canonical.canonicalize({"x": value}, exact=True)) for value in VALUES]
    prints.append(fingerprint.fingerprint("t", b"{}"))

    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (100, 1e2), (0, -0.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1})], ids=repr
)
def test_equal_values_have_one_fingerprint(one: Any, other: Any) -> None:
    first, second = (fingerprint.fingerprint("t", canonical.canonicalize({"x": value})) for value in (one, other))

    assert first == second


@pytest.mark.parametrize("name", ["Refund", "refund ", "refund\0", 'refund",{', "rеfund", "refund\u200b", ""])
def test_a_tools_name_is_taken_exactly(name: str) -> None:
    assert fingerprint.fingerprint(name, b"{}") != fingerprint.fingerprint("refund", b"{}")


def test_a_name_that_is_no_text_has_no_fingerprint() -> None:
    with pytest.raises(CanonicalizationError):
        fingerprint.fingerprint("\ud800", b"{}")


@pytest.mark.parametrize(
    "changes",
    [{"name": "refund2"}, {"description": "Pays!"}, {"description": None}, {"input_schema": {"type": "array"}},
     {"input_schema": None}, {"input_schema": {}}, {"server": "mcp://b"}, {"server": None}],
    ids=repr,
)
def test_every_part_of_a_tools_definition_is_in_its_digest(changes: dict[str, Any]) -> None:
    definition = ToolDefinition("refund", "Pays.", {"type": "object"}, "mcp://a")

    assert fingerprint.tool_digest(replace(definition, **changes)) != fingerprint.tool_digest(definition)


def test_the_policy_version_has_every_byte_order_and_declared_version_in_it() -> None:
    versions = [
        fingerprint.policy_version(documents, code)
        for documents, code in (
            ([b"a", b"b"], []), ([b"b", b"a"], []), ([b"ab"], []), ([b"a", b"b "], []), ([b"a"], []), ([], []),
            ([b"a", b"b"], [("n", "1")]), ([b"a", b"b"], [("n", "2")]), ([b"a", b"b"], [("n", "1"), ("n", "1")]),
            ([b"a", b"b"], [("n1", "")]), ([b"a", b"b"], [("", "n1")]),
        )
    ]

    assert len(set(versions)) == len(versions)


def test_bytes_cannot_be_moved_between_the_parts_of_a_record() -> None:
    split = [(b"ab", b"c", b"d"), (b"a", b"bc", b"d"), (b"a", b"b", b"cd"), (b"abcd", b"", b""), (b"", b"", b"abcd")]

    digests = {fingerprint.record_digest(*parts) for parts in split}

    assert len(digests) == len(split)


def test_a_runs_digest_tells_tenants_and_runs_apart() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", "BC")]

    assert len({fingerprint.run_digest(*pair) for pair in pairs}) == len(pairs)
