"""HMAC-SHA256 against Wycheproof's vectors: full tags are computed and judged alike, truncated ones never count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hitl_guard.errors import InvalidSignatureError
from hitl_guard.keyring import Key, Keyring
from hitl_guard.signing import MAC_BYTES, Signer, encode, equal, hmac_sha256

NOW = 1_800_000_000_000
FILE = Path(__file__).resolve().parents[3] / "shared/vectors/wycheproof/hmac_sha256_test.json"


class Vector(NamedTuple):
    """One case: 32 or 16 bytes of ``tag``; ``valid`` as Wycheproof judges them."""

    number: int
    key: bytes
    message: bytes
    tag: bytes
    valid: bool


def read(document: dict[str, Any]) -> Iterator[Vector]:
    for group in document["testGroups"]:
        for case in group["tests"]:
            key, message, tag = (bytes.fromhex(case[name]) for name in ("key", "msg", "tag"))
            assert len(tag) * 8 == group["tagSize"]
            yield Vector(case["tcId"], key, message, tag, {"valid": True, "invalid": False}[case["result"]])


@pytest.fixture(scope="module")
def vectors() -> list[Vector]:
    if not FILE.is_file():
        pytest.skip("Wycheproof's hmac_sha256_test.json is not here: put it into ../shared/vectors/wycheproof/")
    document = json.loads(FILE.read_text("utf-8"))
    assert document["algorithm"] == "HMACSHA256"
    found = list(read(document))
    assert len(found) == document["numberOfTests"]
    return found


@pytest.fixture
def signer() -> Signer:
    return Signer(Keyring([Key.generate(NOW)]))


def refusal(signer: Signer, payload: bytes, mac: bytes) -> str | None:
    """Hand our verifier a signed text with this MAC, and return why it was refused."""
    with pytest.raises(InvalidSignatureError) as caught:
        signer.open(b"%b.%b" % (payload, encode(mac)), expected_purpose="request", expected_type="t", now=NOW)
    return caught.value.detail


def test_every_full_tag_is_judged_as_wycheproof_judges_it(vectors: list[Vector]) -> None:
    full = [vector for vector in vectors if len(vector.tag) == MAC_BYTES]

    wrong = [one.number for one in full if equal(hmac_sha256(one.key, one.message), one.tag) is not one.valid]

    assert wrong == []
    assert {one.valid for one in full} == {True, False}
    assert len(full) > 80


def test_no_truncated_tag_is_equal_to_the_full_one(vectors: list[Vector]) -> None:
    truncated = [vector for vector in vectors if len(vector.tag) < MAC_BYTES]

    accepted = [
        one.number for one in truncated
        if equal(hmac_sha256(one.key, one.message), one.tag) or equal(one.tag, hmac_sha256(one.key, one.message))
    ]

    assert accepted == []
    assert any(hmac_sha256(one.key, one.message).startswith(one.tag) for one in truncated)


def test_the_verifier_refuses_every_truncated_tag_for_its_length(vectors: list[Vector], signer: Signer) -> None:
    payload = signer.sign("request", "t", {}, now=NOW).partition(b".")[0]
    truncated = [vector for vector in vectors if len(vector.tag) < MAC_BYTES]

    details = {refusal(signer, payload, one.tag) for one in truncated}

    assert details == {"malformed"}


def test_the_verifier_refuses_every_full_tag_of_other_keys(vectors: list[Vector], signer: Signer) -> None:
    payload = signer.sign("request", "t", {}, now=NOW).partition(b".")[0]

    details = {refusal(signer, payload, one.tag) for one in vectors if len(one.tag) == MAC_BYTES}

    assert details == {"mismatch"}


@pytest.mark.parametrize("length", [*range(1, MAC_BYTES), *range(MAC_BYTES + 1, 2 * MAC_BYTES + 1)])
def test_the_verifier_refuses_its_own_mac_cut_or_lengthened(signer: Signer, length: int) -> None:
    payload = signer.sign("request", "t", {}, now=NOW).partition(b".")[0]
    mac = signer.mac(signer.keyring.keys[0], "request", b"anything")

    assert refusal(signer, payload, (mac + mac)[:length]) == "malformed"


@pytest.mark.parametrize("length", [0, 1, 16, 31, 33, 64])
def test_two_equal_values_that_are_no_full_mac_are_not_equal(length: int) -> None:
    assert equal(bytes(length), bytes(length)) is False
    assert equal(bytes(MAC_BYTES), bytes(length)) is False
