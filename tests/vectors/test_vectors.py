"""Our own vectors: the files are what the script makes, and `rfc8785` and Node, who know nothing of us, agree."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import rfc8785

from hitl_guard.canonical import canonicalize, parse
from hitl_guard.errors import CanonicalizationError

from . import make_vectors
from .oracles import node_canonical

CANONICAL: dict[str, Any] = json.loads((make_vectors.FOLDER / "canonical.json").read_bytes())
FINGERPRINT: dict[str, Any] = json.loads((make_vectors.FOLDER / "fingerprint.json").read_bytes())
TAG = "hitl-guard/fingerprint/v1\0"


def test_the_files_are_what_the_script_makes() -> None:
    stale = [path.name for path, text in make_vectors.files().items() if path.read_bytes() != text.encode()]

    assert stale == []  # otherwise run: python -m tests.vectors.make_vectors


@pytest.mark.parametrize("vector", CANONICAL["accepted"], ids=lambda vector: vector["name"])
def test_an_accepted_text_becomes_its_canonical_bytes(vector: dict[str, Any]) -> None:
    written = canonicalize(parse(vector["text"]))

    assert written == vector["canonical"].encode()
    assert canonicalize(parse(written)) == written


@pytest.mark.parametrize("vector", CANONICAL["refused"], ids=lambda vector: vector["name"])
def test_a_refused_text_is_refused_with_its_reason(vector: dict[str, Any]) -> None:
    with pytest.raises(CanonicalizationError) as refusal:
        parse(bytes.fromhex(vector["text_hex"]))

    assert (refusal.value.code, refusal.value.detail) == (vector["code"], vector["detail"])


def test_rfc8785_agrees_with_every_vector_of_its_domain() -> None:
    vectors = [vector for vector in CANONICAL["accepted"] if not vector["beyond_rfc8785"]]

    assert len(vectors) > 20
    assert [v["name"] for v in vectors if rfc8785.dumps(json.loads(v["text"])) != v["canonical"].encode()] == []


def test_node_agrees_with_every_vector_of_its_domain() -> None:
    vectors = [vector for vector in CANONICAL["accepted"] if not vector["beyond_rfc8785"]]

    forms = [form for form, _digest in node_canonical([vector["text"] for vector in vectors])]

    assert forms == [vector["canonical"] for vector in vectors]


def test_rfc8785_and_hashlib_agree_with_every_fingerprint() -> None:
    for call in FINGERPRINT["calls"]:
        form = rfc8785.dumps([call["tool"], json.loads(call["text"])])

        assert hashlib.sha256(TAG.encode() + form).hexdigest() == call["fingerprint"]


def test_node_agrees_with_every_fingerprint() -> None:
    texts = [f"[{json.dumps(call['tool'])}, {call['text']}]" for call in FINGERPRINT["calls"]]

    digests = [digest for _form, digest in node_canonical(texts, TAG)]

    assert digests == [call["fingerprint"] for call in FINGERPRINT["calls"]]


def test_rfc8785_and_hashlib_agree_with_every_tool_digest_and_policy_version() -> None:
    for tool in FINGERPRINT["tools"]:
        form = rfc8785.dumps(tool["definition"])

        assert hashlib.sha256(b"hitl-guard/tool/v1\0" + form).hexdigest() == tool["digest"]
    for policy in FINGERPRINT["policies"]:
        form = rfc8785.dumps([policy["documents_sha256"], policy["code"]])

        assert hashlib.sha256(b"hitl-guard/policy/v1\0" + form).hexdigest() == policy["version"]


def test_calls_that_differ_have_fingerprints_that_differ() -> None:
    digests = [call["fingerprint"] for call in FINGERPRINT["calls"]]

    assert len(set(digests)) == len(digests) > 5
