"""Signed texts: one spelling, one purpose, one type; checked in one order; under keys that count."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from hitl_guard import canonical, signing
from hitl_guard.errors import (
    CanonicalizationError,
    HitlGuardError,
    InvalidApprovalError,
    InvalidSignatureError,
    KeyInactiveError,
    KeyRevokedError,
    KeyUnknownError,
)
from hitl_guard.keyring import Key, Keyring
from hitl_guard.signing import Examiner, Signer, decode, encode

from .rings import MINUTE, NOW, entry, key, ring, secret, write

COMMON = {"alg": "HS256", "epoch": 1, "issued_at": NOW, "kid": "k1", "type": "t", "v": 1}


@pytest.fixture
def signer() -> Signer:
    return Signer(Keyring([key(1)]))


def opened(signer: Signer, token: Any, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"expected_purpose": "request", "expected_type": "t", "now": NOW} | changes
    return signer.open(token, **options)


def sealed(signer: Signer, fields: Any, purpose: str = "request") -> bytes:
    return signer.seal(purpose, signer.keyring.keys[0], canonical.canonicalize(fields))


def refusal(signer: Signer, token: Any, **changes: Any) -> tuple[str, str | None]:
    with pytest.raises(HitlGuardError) as caught:
        opened(signer, token, **changes)
    return caught.value.code, caught.value.detail


def hkdf(secret_: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt, one block."""
    extracted = hmac.digest(bytes(32), secret_, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


# -- what is signed --------------------------------------------------------------------------------------------------


def test_a_signed_text_is_exactly_payload_dot_mac(signer: Signer) -> None:
    token = signer.sign("request", "t", {"b": 1, "a": "\u00e9"}, now=NOW)

    payload = f'{{"a":"\u00e9","alg":"HS256","b":1,"epoch":1,"issued_at":{NOW},"kid":"k1","type":"t","v":1}}'.encode()
    derived = hkdf(secret(1), b"hitl-guard/v1/request")
    mac = hmac.digest(derived, b"hitl-guard/v1/request\0" + payload, "sha256")
    assert token == base64.urlsafe_b64encode(payload).rstrip(b"=") + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


def test_what_was_signed_is_read_back_from_bytes_and_from_text(signer: Signer) -> None:
    token = signer.sign("request", "t", {"b": [1, None, {"x": "y"}]}, now=NOW)

    assert opened(signer, token) == {"b": [1, None, {"x": "y"}]} | COMMON
    assert opened(signer, token.decode()) == opened(signer, token)


def test_the_common_fields_cannot_be_set_by_the_caller(signer: Signer) -> None:
    token = signer.sign("request", "t", {"alg": "none", "kid": "k2", "type": "u", "v": 2, "epoch": 9}, now=NOW)

    assert opened(signer, token) == COMMON


def test_a_text_for_one_purpose_counts_for_no_other() -> None:
    signer = Signer(Keyring([key(1)]))

    for purpose in signing.PURPOSES:
        token = signer.sign(purpose, "t", {}, now=NOW)
        assert opened(signer, token, expected_purpose=purpose) == COMMON
        for other in signing.PURPOSES - {purpose}:
            assert refusal(signer, token, expected_purpose=other) == ("invalid-signature", "mismatch")


def test_the_macs_of_all_purposes_and_keys_differ() -> None:
    signer = Signer(Keyring([key(1), key(2)]))

    macs = {signer.mac(one, purpose, b"x") for one in signer.keyring.keys for purpose in signing.PURPOSES}

    assert len(macs) == 2 * len(signing.PURPOSES)
    assert {len(mac) for mac in macs} == {32}


@pytest.mark.parametrize("purpose", ["", "Request", "requests", "request\0", "event/../request"])
def test_an_unknown_purpose_signs_and_verifies_nothing(signer: Signer, purpose: str) -> None:
    with pytest.raises(InvalidSignatureError) as caught:
        signer.sign(purpose, "t", {}, now=NOW)
    assert caught.value.detail == "purpose"

    assert refusal(signer, sealed(signer, COMMON), expected_purpose=purpose) == ("invalid-signature", "purpose")


def test_a_mac_does_not_change_because_others_were_made_in_between(signer: Signer) -> None:
    one = signer.keyring.keys[0]
    first = signer.mac(one, "event", b"a")

    signer.mac(one, "event", b"b")

    assert signer.mac(one, "event", b"a") == first


def test_no_key_signs_while_none_is_active(signer: Signer) -> None:
    with pytest.raises(KeyInactiveError) as caught:
        signer.sign("request", "t", {}, now=NOW - 1)

    assert (caught.value.code, caught.value.detail) == ("key-inactive", "no-active-key")


@pytest.mark.parametrize("fields", [{"a": float("nan")}, {"a": {1}}, {1: "a"}, {"a": "\ud800"}], ids=repr)
def test_what_has_no_canonical_form_is_not_signed(signer: Signer, fields: Any) -> None:
    with pytest.raises(CanonicalizationError):
        signer.sign("request", "t", fields, now=NOW)


def test_a_text_that_nobody_could_open_again_is_not_signed(signer: Signer) -> None:
    def text(length: int) -> bytes:
        return signer.sign("request", "t", {"a": "x" * length}, now=NOW)

    room = (signing.MAX_TOKEN_BYTES - len(text(0))) // 4 * 3

    assert opened(signer, text(room - 3))["a"] == "x" * (room - 3)
    with pytest.raises(CanonicalizationError) as caught:
        text(room + 4)
    assert (caught.value.code, caught.value.detail) == ("too-large", "bytes")


# -- one spelling ----------------------------------------------------------------------------------------------------


def parts(signer: Signer) -> tuple[bytes, bytes]:
    payload, _, mac = signer.sign("request", "t", {"a": "e\u00e9", "n": 10}, now=NOW).partition(b".")
    return payload, mac


def respelled(signer: Signer, payload: bytes) -> bytes:
    """Return a text whose MAC is right for exactly these payload bytes: only its spelling is wrong."""
    return signer.seal("request", signer.keyring.keys[0], payload)


PLAIN = canonical.canonicalize(COMMON | {"a": "e\u00e9", "n": 10})
SPELLINGS: dict[str, bytes] = {
    "white space": PLAIN.replace(b'"n":10', b'"n": 10'),
    "a line end": PLAIN + b"\n",
    "another order": b'{"n":10,' + PLAIN[1:].replace(b',"n":10', b""),
    "an escaped letter": PLAIN.replace(b'"a":"e', b'"a":"\\u0065'),
    "an escaped name": PLAIN.replace(b'"n":10', b'"\\u006e":10'),
    "an escaped accent": PLAIN.replace("\u00e9".encode(), b"\\u00e9"),
    "another number": PLAIN.replace(b'"n":10', b'"n":1e1'),
    "a float": PLAIN.replace(b'"n":10', b'"n":10.0'),
    "minus zero": PLAIN.replace(b'"n":10', b'"n":-0'),
    "a duplicate": PLAIN.replace(b'"n":10', b'"n":10,"n":10'),
    "an escaped duplicate": PLAIN.replace(b'"n":10', b'"\\u006e":9,"n":10'),
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "invalid UTF-8": PLAIN.replace("\u00e9".encode(), b"\xe9"),
    "a lone surrogate": PLAIN.replace("\u00e9".encode(), b"\\ud800"),
    "NaN": PLAIN.replace(b'"n":10', b'"n":NaN'),
    "infinite": PLAIN.replace(b'"n":10', b'"n":1e999'),
    "two values": PLAIN + PLAIN,
    "an array": b"[" + PLAIN + b"]",
    "a text": b'"' + b"x" * 20 + b'"',
    "null": b"null",
    "a number": b"7",
    "nothing": b"",
    "white space alone": b" ",
    "no JSON": b"{alg:HS256}",
    "too deep": b"[" * 5000 + b"]" * 5000,
    "too deep for the canonical form": b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
}


@pytest.mark.parametrize("payload", SPELLINGS.values(), ids=SPELLINGS)
def test_a_payload_in_another_spelling_is_refused_though_its_mac_is_right(signer: Signer, payload: bytes) -> None:
    assert payload != PLAIN
    assert refusal(signer, respelled(signer, payload)) == ("invalid-approval", "malformed")


def test_the_payload_that_the_spellings_vary_is_accepted(signer: Signer) -> None:
    assert opened(signer, respelled(signer, PLAIN)) == json.loads(PLAIN)


@pytest.mark.parametrize(
    "token",
    [
        None, 7, True, [], {}, b"", "", b".", b"..", "a", "\u00e9.\u00e9", "\ud800", bytearray(b"e30.AA"),
        b"e30", b"e30.", b"!!!!.AAAA", b"e30=.AAAA", "x" * 300_000, b"\0" * 10, b"\xff.\xff",
    ],
    ids=lambda token: f"{token!r:.30}",
)
def test_what_is_no_signed_text_is_malformed(signer: Signer, token: Any) -> None:
    assert refusal(signer, token)[0] == "invalid-approval"


def test_a_text_of_the_greatest_size_is_looked_at_and_a_longer_one_is_not(signer: Signer) -> None:
    token = signer.sign("request", "t", {}, now=NOW)
    filled = token + b"A" * (signing.MAX_TOKEN_BYTES - len(token))

    assert refusal(signer, filled) == ("invalid-signature", "malformed")
    assert refusal(signer, filled + b"A") == ("invalid-approval", "malformed")


def test_the_payload_has_one_base64url_spelling(signer: Signer) -> None:
    payload, mac = parts(signer)
    raw = decode(payload)
    assert raw is not None
    others = [
        payload + b"=", payload + b"==", payload + b"\n", b" " + payload, payload[:-1], b"*" + payload,
        payload[:-2] + b"\r\n" + payload[-2:], base64.b64encode(raw + b"\xff\xfe"), base64.b64encode(raw),
        raw.hex().encode(), base64.b16encode(raw),
    ]

    for other in others:
        if other != payload:
            assert refusal(signer, other + b"." + mac) == ("invalid-approval", "malformed")


def test_the_mac_has_one_base64url_spelling(signer: Signer) -> None:
    payload, mac = parts(signer)
    raw = decode(mac)
    assert raw is not None
    last = mac[-1:]
    twin = next(bytes([one]) for one in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
                if bytes([one]) != last and base64.urlsafe_b64decode(mac[:-1] + bytes([one]) + b"=") == raw)
    others = [
        mac + b"=", mac + b"==", mac + b"\n", b" " + mac, mac[:-1] + twin, raw.hex().encode(), mac + b".", b"=",
        mac + b"." + mac, base64.b64encode(raw), encode(raw[:16]), encode(raw + b"\0"), b"null", b"-", raw,
    ]

    assert opened(signer, payload + b"." + mac)
    for other in others:
        assert refusal(signer, payload + b"." + other) == ("invalid-signature", "malformed")
    assert refusal(signer, payload + b".") == ("invalid-signature", "missing")
    assert refusal(signer, payload) == ("invalid-signature", "missing")


@given(st.binary(max_size=200))
def test_base64url_has_one_spelling_for_every_value(data: bytes) -> None:
    text = encode(data)

    assert decode(text) == data
    assert not set(text) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(st.binary(max_size=60))
def test_whatever_decodes_is_what_encoding_gives(text: bytes) -> None:
    data = decode(text)

    assert data is None or encode(data) == text


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_bit_of_a_signed_text_can_be_changed(place: int, bit: int) -> None:
    signer = Signer(Keyring([key(1)]))
    token = bytearray(signer.sign("request", "t", {"a": [1, "x"]}, now=NOW))
    token[place % len(token)] ^= 1 << bit

    with pytest.raises(HitlGuardError) as caught:
        opened(signer, bytes(token))

    assert isinstance(caught.value, (InvalidApprovalError, InvalidSignatureError))


@given(st.one_of(st.text(), st.binary()))
def test_any_text_or_bytes_as_a_token_is_refused_by_one_of_our_errors(token: str | bytes) -> None:
    assert refusal(Signer(Keyring([key(1)])), token)[0] in ("invalid-approval", "invalid-signature")


# -- the order of checks ---------------------------------------------------------------------------------------------

FAULTS: list[tuple[str, dict[str, Any], tuple[str, str | None]]] = [
    # each row has the faults of all rows below it as well; the first one decides
    ("type", {"type": "u"}, ("invalid-approval", "type")),
    ("version", {"v": 2}, ("invalid-approval", "version")),
    ("shape", {"kid": 7}, ("invalid-approval", "malformed")),
    ("key", {"kid": "k9"}, ("key-unknown", None)),
    ("algorithm", {"alg": "none"}, ("invalid-signature", "mismatch")),
    ("epoch", {"epoch": 2}, ("invalid-approval", "epoch")),
]


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[name for name, _, _ in FAULTS])
def test_the_first_fault_in_the_order_of_checks_is_the_one_that_is_told(signer: Signer, first: int) -> None:
    fields = dict(COMMON)
    for _, change, _ in reversed(FAULTS[first:]):
        fields |= change

    token = sealed(signer, fields)

    assert refusal(signer, token) == FAULTS[first][2]
    if FAULTS[first][0] != "epoch":
        assert refusal(signer, token.partition(b".")[0] + b".AAAA") == FAULTS[first][2]


@pytest.mark.parametrize("name", ["type", "v", "kid", "issued_at", "epoch", "alg"])
@pytest.mark.parametrize("value", ["missing", None, "", 0.5, True, [], {}, "HS256 ", -1], ids=repr)
def test_a_common_field_of_another_shape_is_refused(signer: Signer, name: str, value: Any) -> None:
    fields = COMMON | {name: value}
    if value == "missing":
        del fields[name]

    code, _ = refusal(signer, sealed(signer, fields))

    assert code in ("invalid-approval", "invalid-signature", "key-unknown")


@pytest.mark.parametrize("version", [0, 2, -1, 1.5, "1", None, [1], 10**15], ids=repr)
def test_an_unknown_version_is_refused(signer: Signer, version: Any) -> None:
    assert refusal(signer, sealed(signer, COMMON | {"v": version})) == ("invalid-approval", "version")


def test_true_is_no_version(signer: Signer) -> None:
    assert refusal(signer, sealed(signer, COMMON | {"v": True})) == ("invalid-approval", "version")


@pytest.mark.parametrize("time", [-1, 2**53, 10**18, 0.5, 1e300, "1", None, True, [NOW]], ids=repr)
def test_a_time_that_is_none_is_refused(signer: Signer, time: Any) -> None:
    assert refusal(signer, sealed(signer, COMMON | {"issued_at": time})) == ("invalid-approval", "malformed")


@pytest.mark.parametrize(
    ("value", "answer"),
    [(0, True), (NOW, True), (2**53 - 1, True), (2**53, False), (-1, False), (True, False), (1.0, False), ("1", False)],
)
def test_a_time_is_an_integer_of_milliseconds_that_every_json_reader_keeps(value: object, answer: bool) -> None:
    assert signing.is_time(value) is answer


# -- keys and epochs -------------------------------------------------------------------------------------------------


def test_a_text_is_verified_under_the_keys_state_of_now() -> None:
    old = key(1)
    token = Signer(Keyring([old])).sign("request", "t", {}, now=NOW)

    def other(*keys: Key) -> Signer:
        return Signer(Keyring(keys))

    assert opened(other(old.changed(deactivates_at=NOW + 1)), token, now=NOW + MINUTE) == COMMON
    assert refusal(other(old.changed(activates_at=NOW + 1)), token) == ("key-inactive", "pre-active")
    assert refusal(other(old.changed(activates_at=NOW + 1)), token, now=NOW + 1) == ("key-inactive", "made-before")
    assert refusal(
        other(old.changed(activates_at=NOW - 9, deactivates_at=NOW)), token, now=NOW
    ) == ("key-inactive", "made-after")
    assert refusal(other(old.changed(state="compromised")), token) == ("key-revoked", "compromised")
    assert refusal(other(Key("k1", None, activates_at=NOW, state="destroyed")), token) == ("key-revoked", "destroyed")
    assert refusal(other(key(2)), token) == ("key-unknown", None)


def test_the_right_id_with_another_secret_does_not_verify() -> None:
    token = Signer(Keyring([key(1)])).sign("request", "t", {}, now=NOW)
    impostor = Signer(Keyring([Key("k1", secret(2), activates_at=NOW)]))

    assert refusal(impostor, token) == ("invalid-signature", "mismatch")


@pytest.mark.parametrize(
    ("signed_in", "read_in", "earlier", "detail"),
    [(1, 1, False, None), (1, 2, False, "epoch"), (2, 1, False, "epoch"), (1, 1, True, None), (1, 2, True, None),
     (1, 9, True, None), (2, 1, True, "epoch")],
)
def test_another_epoch_is_refused_and_only_an_earlier_one_can_be_let_through(
    signed_in: int, read_in: int, earlier: bool, detail: str | None
) -> None:
    token = Signer(Keyring([key(1)], signed_in)).sign("request", "t", {}, now=NOW)
    reader = Signer(Keyring([key(1)], read_in))

    if detail is None:
        assert opened(reader, token, any_earlier_epoch=earlier)["epoch"] == signed_in
    else:
        assert refusal(reader, token, any_earlier_epoch=earlier) == ("invalid-approval", detail)


def test_a_reloaded_key_ring_leaves_nothing_of_the_old_keys_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, ring(entry(1, activates_at=NOW)))
    signer = Signer(Keyring.from_file(path, refresh_s=0))
    token = signer.sign("request", "t", {}, now=NOW)
    assert {one.id for one, _ in signer._contexts} == {"k1"}

    write(path, ring(entry(2, activates_at=NOW)))

    assert opened(signer, signer.sign("request", "t", {}, now=NOW))["kid"] == "k2"
    assert {one.id for one, _ in signer._contexts} == {"k2"}
    assert refusal(signer, token) == ("key-unknown", None)


def test_a_key_that_a_reload_revokes_counts_no_more(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write(path, ring(entry(1), entry(2)))
    signer = Signer(Keyring.from_file(path, refresh_s=0))
    token = signer.seal("request", signer.keyring.keys[0], canonical.canonicalize(COMMON | {"issued_at": NOW + 1}))
    assert opened(signer, token, now=NOW + 5)["kid"] == "k1"

    write(path, ring(entry(1, state="compromised"), entry(2)))

    assert refusal(signer, token, now=NOW + 5) == ("key-revoked", "compromised")


# -- examining and showing -------------------------------------------------------------------------------------------


def test_the_audit_can_tell_an_edited_text_of_a_compromised_key_from_an_unedited_one() -> None:
    old = key(1)
    token = Signer(Keyring([old])).sign("request", "t", {"a": 1}, now=NOW)
    mac = token.rpartition(b".")[2]
    forged = encode(canonical.canonicalize(COMMON | {"a": 2})) + b"." + mac
    examiner = Examiner(Keyring([old.changed(state="compromised"), key(2)]))

    assert opened(examiner, token)["a"] == 1
    assert refusal(examiner, forged) == ("invalid-signature", "mismatch")


def test_the_audit_cannot_examine_what_a_destroyed_or_unknown_key_signed() -> None:
    token = Signer(Keyring([key(1)])).sign("request", "t", {}, now=NOW)
    gone = Examiner(Keyring([Key("k1", None, activates_at=NOW, state="destroyed"), key(2)]))

    with pytest.raises(KeyRevokedError):
        opened(gone, token)
    with pytest.raises(KeyUnknownError):
        opened(Examiner(Keyring([key(2)])), token)


def test_a_texts_key_id_can_be_shown_unverified() -> None:
    token = Signer(Keyring([key(1)])).sign("request", "t", {"a": 1}, now=NOW)
    payload = token.partition(b".")[0]

    assert signing.unverified_key_id(payload) == "k1"


@pytest.mark.parametrize("token", [b"", b"x", b".AAAA", encode(b"[]"), encode(b"{} ")])
def test_nothing_can_be_shown_of_what_is_no_signed_text(token: bytes) -> None:
    with pytest.raises(InvalidApprovalError) as caught:
        signing.unverified_key_id(token)

    assert caught.value.detail == "malformed"


@pytest.mark.parametrize("fields", [{}, {"kid": 7}, {"kid": None}])
def test_a_text_without_a_key_id_shows_none(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidApprovalError):
        signing.unverified_key_id(encode(canonical.canonicalize(fields)))


def test_hmac_sha256_is_rfc_2104_over_the_whole_key_and_message() -> None:
    mac = signing.hmac_sha256(b"Jefe", b"what do ya want for nothing?")

    assert mac.hex() == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"  # RFC 4231, case 2
    assert mac == hmac.new(b"Jefe", b"what do ya want for nothing?", hashlib.sha256).digest()


# -- what is hidden --------------------------------------------------------------------------------------------------


def test_x10_what_is_hidden_is_aes_gcm_under_a_key_of_its_own(signer: Signer) -> None:
    hidden = decode(signer.hide("cursor", b"a place", now=NOW).encode())
    assert hidden is not None

    own = hkdf(signer.keyring.keys[0].secret(), b"hitl-guard/v1/hidden/cursor")
    assert AESGCM(own).decrypt(hidden[:12], hidden[12:], None) == b"a place"
    assert len(hidden) == 12 + len(b"a place") + 16


def test_x10_what_is_hidden_is_uncovered_for_its_purpose_and_key_alone(signer: Signer) -> None:
    text = signer.hide("cursor", b"a place", now=NOW)
    fields = {"kid": "k1", "issued_at": NOW}

    assert signer.uncover("cursor", text, fields, now=NOW) == b"a place"
    assert signer.hide("cursor", b"a place", now=NOW) != text
    other = Signer(Keyring([Key("k1", secret(2), activates_at=NOW)]))
    changed = ("A" if text[20] != "A" else "B").join((text[:20], text[21:]))
    attempts = [
        (signer, "session", text), (other, "cursor", text), (signer, "cursor", changed), (signer, "cursor", ""),
        (signer, "cursor", text[:-8]), (signer, "cursor", "not base64"),
    ]
    for who, purpose, attempt in attempts:
        with pytest.raises(InvalidSignatureError) as caught:
            who.uncover(purpose, attempt, fields, now=NOW)
        assert caught.value.detail == "mismatch"
