"""The wire types: what goes in comes out, and nothing that is missing, unknown or of another type is let pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical
from hitl_guard.envelope import DECISION_TYPE, REQUEST_TYPE, Envelope, Evidence, Vote
from hitl_guard.errors import InvalidApprovalError
from hitl_guard.keyring import Keyring
from hitl_guard.models import Scope
from hitl_guard.signing import Signer

from .rings import NOW, key

SCOPE = Scope("acme", "ana", "run-1", "call-1", 2)
ENVELOPE = Envelope(
    request_id="r" * 22, binding="call", agent="bot", fingerprint="f" * 64, tool_digest="t" * 64,
    policy_version="p" * 64, details="d" * 64, scope=SCOPE, nonce="n" * 22, issued_at=NOW, decide_by=NOW + 10,
    execute_within=5, supersedes=("q" * 22, "e" * 64), key_id="k1",
)
VOTE = Vote(
    tenant="acme", request_id="r" * 22, fingerprint="f" * 64, policy_version="p" * 64, approver="bob", kind="human",
    names=("bob", "bob@example.org"), roles=("lead",), channel="inbox", credential="key-1", approve=True,
    automatic=False, reason="fine", response='{"a":1}', nonce="n" * 22, execute_by=NOW + 5, at=NOW,
)
EVIDENCE = Evidence(NOW - 1, "example.org", b"credential", b"key", b"authenticator", b"client", b"signature")
COMMON: dict[str, Any] = {"alg": "HS256", "epoch": 1, "issued_at": NOW, "kid": "k1", "v": 1}


def envelope(**changes: Any) -> dict[str, Any]:
    return ENVELOPE.to_fields() | COMMON | {"type": REQUEST_TYPE} | changes


def vote(**changes: Any) -> dict[str, Any]:
    return VOTE.to_fields() | COMMON | {"type": DECISION_TYPE} | changes


def refused(read: Callable[[dict[str, Any]], object], fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidApprovalError) as caught:
        read(fields)
    assert (caught.value.code, caught.value.detail) == ("invalid-approval", "malformed")


# -- round trips -----------------------------------------------------------------------------------------------------


def test_an_envelope_is_read_as_it_was_signed() -> None:
    signer = Signer(Keyring([key(1)]))

    for one in (
        ENVELOPE, replace(ENVELOPE, agent=None, supersedes=None),
        replace(ENVELOPE, binding="retry", scope=replace(SCOPE, call_id=None, occurrence=0)),
    ):
        token = signer.sign("request", REQUEST_TYPE, one.to_fields(), now=NOW)
        fields = signer.open(token, expected_purpose="request", expected_type=REQUEST_TYPE, now=NOW)
        assert Envelope.from_fields(fields) == one


def test_a_decision_is_read_as_it_was_signed() -> None:
    signer = Signer(Keyring([key(1)]))

    for one in (
        VOTE,
        replace(VOTE, credential=None, approve=False, automatic=True, reason=None, response=None, execute_by=None),
        replace(VOTE, names=(), roles=()),
        replace(VOTE, evidence=EVIDENCE),
    ):
        token = signer.sign("decision", DECISION_TYPE, one.to_fields(), now=NOW)
        fields = signer.open(token, expected_purpose="decision", expected_type=DECISION_TYPE, now=NOW)
        assert Vote.from_fields(fields) == one


def test_the_signed_fields_are_those_that_are_published() -> None:
    assert sorted(ENVELOPE.to_fields()) == [
        "agent", "binding", "decide_by", "details", "execute_within", "fingerprint", "nonce", "policy", "request",
        "scope", "supersedes", "tool",
    ]
    assert sorted(VOTE.to_fields()) == [
        "approve", "approver", "automatic", "channel", "credential", "execute_by", "fingerprint", "kind", "names",
        "nonce", "policy", "reason", "request", "response", "roles", "tenant",
    ]


def test_every_attribute_is_signed_or_is_one_of_the_common_fields() -> None:
    signed = canonical.canonicalize(envelope())
    for field in fields_of(ENVELOPE):
        if field.name in ("issued_at", "key_id"):
            continue
        other: dict[str, Any] = {
            "binding": "retry", "agent": None, "scope": replace(SCOPE, occurrence=3), "supersedes": None,
            "decide_by": NOW + 11, "execute_within": 6,
        }
        changed = replace(ENVELOPE, **{field.name: other.get(field.name, "x")})
        assert canonical.canonicalize(changed.to_fields() | COMMON | {"type": REQUEST_TYPE}) != signed


def test_a_decision_with_evidence_has_one_field_more_and_the_others_do_not_move() -> None:
    proven = replace(VOTE, evidence=EVIDENCE).to_fields()

    assert proven == VOTE.to_fields() | {"evidence": proven["evidence"]}
    assert proven["evidence"] == (
        f'{{"at":{NOW - 1},"authenticator":"YXV0aGVudGljYXRvcg","client":"Y2xpZW50","credential":"Y3JlZGVudGlhbA",'
        '"key":"a2V5","kind":"passkey","rp":"example.org","signature":"c2lnbmF0dXJl"}'
    )


def test_what_an_authenticator_signs_covers_every_field_but_the_evidence() -> None:
    challenge = VOTE.challenge(NOW)

    assert replace(VOTE, evidence=EVIDENCE).challenge(NOW) == challenge
    assert len(challenge) == 32
    other: dict[str, Any] = {
        "names": (), "roles": (), "credential": None, "approve": False, "automatic": True, "reason": None,
        "response": None, "execute_by": NOW,
    }
    for field in fields_of(VOTE):
        if field.name not in ("at", "evidence"):
            assert replace(VOTE, **{field.name: other.get(field.name, "x")}).challenge(NOW) != challenge
    assert VOTE.challenge(NOW + 1) != challenge


# -- strictness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(envelope()))
def test_an_envelope_without_one_of_its_fields_is_refused(name: str) -> None:
    fields = envelope()
    del fields[name]

    refused(Envelope.from_fields, fields)


@pytest.mark.parametrize("name", sorted(vote()))
def test_a_decision_without_one_of_its_fields_is_refused(name: str) -> None:
    fields = vote()
    del fields[name]

    refused(Vote.from_fields, fields)


@pytest.mark.parametrize("name", ["", "extra", "Agent", "approved", "v2", "\0"])
def test_an_unknown_field_is_never_skipped(name: str) -> None:
    refused(Envelope.from_fields, envelope(**{name: 1}))
    refused(Vote.from_fields, vote(**{name: 1}))


TEXTS = ["request", "fingerprint", "tool", "policy", "details", "nonce"]
NO_TEXT = [None, "", 7, True, ["x"], {"x": 1}, 1.5]


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_an_envelope_must_be_one(name: str, value: Any) -> None:
    refused(Envelope.from_fields, envelope(**{name: value}))


@pytest.mark.parametrize("value", NO_TEXT[1:], ids=repr)
@pytest.mark.parametrize("name", ["credential", "reason", "response"])
def test_an_optional_text_of_a_decision_is_null_or_a_text(name: str, value: Any) -> None:
    refused(Vote.from_fields, vote(**{name: value}))


@pytest.mark.parametrize("value", NO_TEXT[1:], ids=repr)
def test_an_agent_is_null_or_a_text(value: Any) -> None:
    refused(Envelope.from_fields, envelope(agent=value))


@pytest.mark.parametrize("value", [None, -1, 0.5, True, "1", 2**53, [1]], ids=repr)
@pytest.mark.parametrize("name", ["issued_at", "decide_by", "execute_within"])
def test_a_time_of_an_envelope_must_be_one(name: str, value: Any) -> None:
    refused(Envelope.from_fields, envelope(**{name: value}))


@pytest.mark.parametrize(
    "changes",
    [{"decide_by": NOW}, {"decide_by": NOW - 1}, {"decide_by": 0}, {"issued_at": NOW + 10}, {"execute_within": 0}],
    ids=repr,
)
def test_an_envelope_without_any_time_left_is_refused(changes: dict[str, int]) -> None:
    refused(Envelope.from_fields, envelope(**changes))


@pytest.mark.parametrize("binding", ["retry", "Call", "", None, True, 1, ["call"]], ids=repr)
def test_a_binding_that_contradicts_the_scope_is_refused(binding: Any) -> None:
    refused(Envelope.from_fields, envelope(binding=binding))


@pytest.mark.parametrize("binding", ["call", "other", None], ids=repr)
def test_a_scope_without_a_call_id_is_bound_for_retry_only(binding: Any) -> None:
    refused(Envelope.from_fields, envelope(scope=SCOPE.to_json() | {"call_id": None}, binding=binding))


@pytest.mark.parametrize(
    "scope",
    [
        None, [], "scope", {}, {**SCOPE.to_json(), "extra": 1},
        *({name: value for name, value in SCOPE.to_json().items() if name != gone} for gone in SCOPE.to_json()),
        *({**SCOPE.to_json(), name: value} for name in ("tenant", "user", "run") for value in NO_TEXT),
        *({**SCOPE.to_json(), "call_id": value} for value in NO_TEXT[1:]),
        *({**SCOPE.to_json(), "occurrence": value} for value in (None, -1, True, 1.0, "1", [1])),
    ],
    ids=repr,
)
def test_a_scope_of_another_shape_is_refused(scope: Any) -> None:
    refused(Envelope.from_fields, envelope(scope=scope))


@pytest.mark.parametrize(
    "value", [[], ["q"], ["q", "e", "x"], ["q", None], ["", "e"], [1, 2], "qe", {"q": "e"}, 7, False], ids=repr
)
def test_what_is_superseded_is_a_request_and_a_fingerprint(value: Any) -> None:
    refused(Envelope.from_fields, envelope(supersedes=value))


@pytest.mark.parametrize("value", [None, 0, 1, "true", "false", "", [], [True], 1.0], ids=repr)
@pytest.mark.parametrize("name", ["approve", "automatic"])
def test_only_a_boolean_is_a_verdict(name: str, value: Any) -> None:
    refused(Vote.from_fields, vote(**{name: value}))


@pytest.mark.parametrize("value", NO_TEXT, ids=repr)
@pytest.mark.parametrize("name", ["tenant", "request", "fingerprint", "policy", "approver", "kind", "channel", "nonce"])
def test_a_text_of_a_decision_must_be_one(name: str, value: Any) -> None:
    refused(Vote.from_fields, vote(**{name: value}))


@pytest.mark.parametrize("value", [None, "bob", {"bob": 1}, 7, [7], [None], [""], ["bob", ["x"]]], ids=repr)
@pytest.mark.parametrize("name", ["names", "roles"])
def test_names_and_roles_are_lists_of_texts(name: str, value: Any) -> None:
    refused(Vote.from_fields, vote(**{name: value}))


@pytest.mark.parametrize("value", [-1, 0.5, True, "1", 2**53, [1]], ids=repr)
def test_the_end_of_the_window_is_a_time_or_null(value: Any) -> None:
    refused(Vote.from_fields, vote(execute_by=value))


def evidence(**changes: Any) -> str:
    fields = canonical.parse(EVIDENCE.to_text()) | changes
    return canonical.canonicalize({name: value for name, value in fields.items() if value is not ...}).decode()


@pytest.mark.parametrize(
    "text",
    [
        None, "", 7, {}, "no json", "[]", "7", '{"at":1,"at":1}', evidence(extra=1), evidence(kind="ed25519"),
        evidence(kind=...), evidence(at=-1), evidence(at="1"), evidence(rp=""), evidence(rp=7), evidence(key=""),
        evidence(key="a2V5="), evidence(key="a2V6a"), evidence(client=None), evidence(signature=...),
        evidence(credential="\u00e4"), " " + evidence(), evidence().replace('"at"', '"\\u0061t"'),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_evidence_of_another_shape_or_spelling_is_refused(text: Any) -> None:
    refused(Vote.from_fields, vote(evidence=text))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(envelope())), JSON, st.sampled_from(sorted(vote())), JSON)
def test_any_json_in_any_field_is_read_as_it_is_or_refused(name: str, one: Any, other_name: str, other: Any) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Envelope, envelope(**{name: one})), (Vote, vote(**{other_name: other})),
    ]
    for kind, fields in cases:
        with suppress(InvalidApprovalError):
            read = kind.from_fields(fields).to_fields()
            assert canonical.canonicalize(read) == canonical.canonicalize({key: fields[key] for key in read})
