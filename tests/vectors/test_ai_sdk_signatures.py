"""The AI SDK's own signatures, made by running it, and Node as a second opinion on every text and every MAC."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.errors import CanonicalizationError, ConfigurationError, HitlGuardError, InvalidSignatureError
from hitl_guard.integrations.ai_sdk import (
    VerifiedAiSdkSignature,
    canonical_input,
    json_parse,
    sign_ai_sdk_approval,
    verify_ai_sdk_signature,
)

from .oracles import node_canonical, random_double, random_text, random_values, run_node

FILE = Path(__file__).resolve().parents[3] / "shared/vectors/ai-sdk-signatures.json"

# What we say of each signature that the AI SDK's verifier was asked about: None where it counts.
VERIFIED: dict[str, str | None] = {
    "padded": "malformed",
    "whitespace-inside": "malformed",
    "non-canonical-trailing-bits": "malformed",
    "one-bit-flipped": "mismatch",
    "truncated": "malformed",
    "empty-signature": "missing",
    "illegal-characters": "malformed",
    "hex-encoding": "malformed",
    "extra-bytes": "malformed",
    "tampered-input": "mismatch",
    "input-number-as-string": "mismatch",
    "tampered-toolName": "mismatch",
    "tampered-toolCallId": "mismatch",
}
# The AI SDK accepts these: other spellings of the right bytes, so that one approval has many signature texts.
STRICTER = {"padded", "whitespace-inside", "non-canonical-trailing-bits"}

# The ids that the values which are not JSON were signed with.
NOT_JSON = {"approvalId": "approval-nj", "toolCallId": "call-nj", "toolName": "deleteFile"}

NODE_SIGN = """
const { createHash, createHmac } = require('crypto');
const canonical = (value) => {
  if (Array.isArray(value)) return '[' + value.map(canonical).join(',') + ']';
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  return '{' + Object.keys(value).sort().map((k) => JSON.stringify(k) + ':' + canonical(value[k])).join(',') + '}';
};
const calls = JSON.parse(require('fs').readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(calls.map(([secret, names, text]) => {
  const digest = createHash('sha256').update(canonical(JSON.parse(text)), 'utf8').digest('base64url');
  const mac = (payload) => createHmac('sha256', secret).update(payload, 'utf8').digest('base64url');
  const fields = [...names, digest];
  return [mac(JSON.stringify(['ai-sdk-tool-approval-v1', ...fields])), mac(fields.join('\\n'))];
})));
"""
NODE_PARSES = """
const texts = JSON.parse(require('fs').readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(texts.map((text) => {
  try { JSON.parse(text); return true; } catch { return false; }
})));
"""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    if not FILE.is_file():
        pytest.skip("The AI SDK's signatures are not here: put ai-sdk-signatures.json into ../shared/vectors/")
    document: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return document


def names_of(vector: dict[str, Any]) -> dict[str, Any]:
    return {
        "approval_id": vector["approvalId"], "tool_call_id": vector["toolCallId"], "tool_name": vector["toolName"],
    }


def verified(vector: dict[str, Any], value: Any, **options: Any) -> VerifiedAiSdkSignature:
    given = {"secrets": [vector["secret"]], "signature": vector["signature"], **names_of(vector)}
    return verify_ai_sdk_signature(**(given | options), input=value)


def refusal(vector: dict[str, Any], value: Any, **options: Any) -> str | None:
    """Return why a signature is refused, None when it counts."""
    try:
        verified(vector, value, **options)
    except InvalidSignatureError as error:
        return error.detail
    return None


def inputs(vector: dict[str, Any]) -> list[Any]:
    """Return a vector's input as we may meet it: parsed as JavaScript does, and by ``json`` where it can."""
    if vector["name"] == "empty-input-text":  # the AI SDK takes a model's empty text for an empty object
        return [vector["input"]]
    values = [json_parse(vector["inputText"]), json_parse(vector["inputText"].encode("utf-8", "surrogatepass"))]
    if vector["name"] != "deep-object-1000":
        values += [json.loads(vector["inputText"]), vector["input"]]
    return values


def test_a25_every_signature_of_the_ai_sdk_verifies(made: dict[str, Any]) -> None:
    for vector in made["vectors"]:
        for value in inputs(vector):
            found = verified(vector, value)

            assert (found.input_digest, found.form, found.secret_index) == (vector["inputDigest"], "v1", 0)
            assert found.input_text == vector.get("canonicalInput", found.input_text)
    assert len(made["vectors"]) == 42


def test_a25_our_signature_is_the_ai_sdks(made: dict[str, Any]) -> None:
    vectors = made["vectors"] + made["secretVectors"]

    differing = [
        vector["name"] for vector in vectors
        for value in (inputs(vector) if "inputText" in vector else [vector["input"]])
        if vector["signature"] != sign_ai_sdk_approval(
            secrets=[vector["secret"]], **names_of(vector), input=value, allow_weak_secrets=True
        )
    ]

    assert differing == []


def test_a25_every_canonical_text_is_the_ai_sdks(made: dict[str, Any]) -> None:
    vectors = [vector for vector in made["vectors"] if "canonicalInput" in vector]

    differing = [
        vector["name"] for vector in vectors for value in inputs(vector)
        if canonical_input(value) != vector["canonicalInput"].encode()
    ]

    assert len(vectors) > 35
    assert differing == []


def test_an_empty_text_is_no_json_for_us(made: dict[str, Any]) -> None:
    (vector,) = [vector for vector in made["vectors"] if vector["name"] == "empty-input-text"]

    with pytest.raises(CanonicalizationError):
        json_parse(vector["inputText"])


def test_a26_the_signature_of_one_vector_counts_for_no_other(made: dict[str, Any]) -> None:
    vectors = made["vectors"]

    accepted = [
        (vector["name"], other["name"]) for vector in vectors for other in vectors
        if vector is not other and refusal(vector | {"signature": other["signature"]}, inputs(vector)[0]) != "mismatch"
    ]

    assert accepted == []


def test_a28_weak_secrets_of_the_vectors_count_only_where_they_are_allowed(made: dict[str, Any]) -> None:
    details = {}
    for vector in made["secretVectors"]:
        with pytest.raises(ConfigurationError) as caught:
            verified(vector, vector["input"])
        details[vector["name"]] = caught.value.detail

        assert verified(vector, vector["input"], allow_weak_secrets=True).form == "v1"

    assert details == {
        "secret-unicode": "secret-short", "secret-one-char": "secret-short", "secret-longer-than-block": "secret-weak",
    }


def test_a28_an_empty_secret_is_refused_as_the_ai_sdk_refuses_it(made: dict[str, Any]) -> None:
    assert made["emptySecret"]["signed"] is False
    with pytest.raises(ConfigurationError) as caught:
        verified(made["vectors"][0] | {"secret": ""}, {}, allow_weak_secrets=True)
    assert caught.value.detail == "secret-empty"


def test_a26_what_is_signed_is_the_input_after_the_servers_transform(made: dict[str, Any]) -> None:
    vector = made["transformVector"]

    assert verified(vector, vector["input"]).input_text == '{"amount":12.5}'
    assert refusal(vector, vector["modelInput"]) == "mismatch"


def test_a31_the_older_form_counts_only_if_switched_on_and_never_with_a_line_feed(made: dict[str, Any]) -> None:
    accepted = {}
    for vector in made["v6Vectors"]:
        value = json_parse(vector["inputText"])
        accepted[vector["name"]] = refusal(vector, value, legacy=True) is None

        assert refusal(vector, value) == "mismatch"
        assert not accepted[vector["name"]] or verified(vector, value, legacy=True).form == "legacy"

    assert accepted == {vector["name"]: vector["acceptedByV7"] for vector in made["v6Vectors"]}
    assert set(accepted.values()) == {True, False}


def test_a31_every_verdict_is_the_ai_sdks_or_stricter(made: dict[str, Any]) -> None:
    vectors = made["verifyVectors"]

    verdicts = {vector["name"]: refusal(vector, vector["input"]) for vector in vectors}

    assert verdicts == VERIFIED
    assert {vector["name"] for vector in vectors if vector["aiSdkResult"] is True} == STRICTER


def no_json(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the signatures over values that are not JSON, with the secret and the ids that they were made with."""
    return [NOT_JSON | {"secret": made["vectors"][0]["secret"]} | vector for vector in made["nonJsonVectors"]]


def test_what_is_no_json_verifies_as_in_the_ai_sdk_after_its_way_through_json(made: dict[str, Any]) -> None:
    vectors = [vector for vector in no_json(made) if vector.get("jsonAfterTransport") is not None]

    for read in (json.loads, json_parse):
        verdicts = {vector["name"]: refusal(vector, read(vector["jsonAfterTransport"])) is None for vector in vectors}

        assert verdicts == {vector["name"]: vector["verifiesAfterJsonTransport"] for vector in vectors}
    assert len(vectors) == 18


def test_a_signature_over_no_input_at_all_counts_for_no_value(made: dict[str, Any]) -> None:
    (vector,) = [vector for vector in no_json(made) if vector["name"] == "top-level-undefined"]
    values: list[Any] = [None, {}, "", []]

    assert [refusal(vector, value) for value in values] == ["mismatch"] * 4


def test_values_that_are_one_to_the_ai_sdk_are_one_to_us(made: dict[str, Any]) -> None:
    collisions = made["nonJsonCollisions"]

    ours = {
        "{v:NaN} == {v:null}": canonical_input({"v": float("inf")}) == canonical_input({"v": None}),
        "[1,undefined,3] == [1,null,3]": canonical_input(json_parse("[1,1e400,3]")) == canonical_input([1, None, 3]),
        "-0 == 0": canonical_input(-0.0) == canonical_input(0),
        "2^53 == 2^53+1 (after JS parse)": canonical_input(2**53) == canonical_input(2**53 + 1),
        "NFC == NFD": canonical_input("\u00c5") == canonical_input("A\u030a"),
    }

    assert ours == {name: collisions[name] for name in ours}


NUMBERS = [
    "1e400", "-1e400", "-0", "-0.0", "1.0", "1E2", "0.1e-400", "9007199254740993", "9007199254740991",
    "-9007199254740992", "9" * 400, "1" + "0" * 400, "123456789012345678901234567890", "5e-324",
    "1.7976931348623159e308", "1e21", "1e-7",
]
# Texts at the edges of the grammar, some of them JSON.
EDGES = [
    "", " ", "\ufeff1", "01", "1.", ".5", "+1", "-", "1e", "--1", "-01", "1e+5", "1E-5", "0e0", "1 1", "\u0661",
    "nul", "tru e", "NaN", "Infinity", "'a'", "// x\n1", "\u00a01", "\x0b1", "\x0c1", "\ud800",
    '"\\x41"', '"\\u12g4"', '"\\u 123"', '"a\nb"', '"a', '"\ud800"', '"\\/"', '"\\a"',
    "[", "]", "[}", "[1,]", "[,1]", "[1 2]", "[[],{}]", "[1\n,\t2\r]",
    "{", "}", "{]", "{,}", "{1:2}", '{"a"}', '{"a":}', '{"a" 1}', '{"a":1,}', '{"a":1 "b":2}', ' {"a":[ ]} ', '["a":1]',
]


def hostile_text(draw: random.Random) -> str:
    """Return a short text, now and then with lone surrogates and pairs in two pieces."""
    pieces = [random_text(draw), *draw.choices(["\ud800", "\udfff", "\ud83d", "\ude00", "\n", "\x7f", "1", "01"], k=2)]
    draw.shuffle(pieces)
    return "".join(pieces[: draw.randrange(4)])


def hostile_texts(seed: int, count: int) -> list[str]:
    """Return JSON texts that a strict parser refuses and JavaScript reads: duplicates, huge numbers, surrogates."""
    draw = random.Random(seed)
    texts = [json.dumps(value, ensure_ascii=draw.random() < 0.5) for value in random_values(seed, count)]
    for _ in range(count):
        names = [hostile_text(draw) for _ in range(draw.randrange(6))]
        members = [
            f"{json.dumps(name, ensure_ascii=draw.random() < 0.5)}: {draw.choice(NUMBERS)}"
            for name in names + names[: draw.randrange(3)]
        ]
        texts.append("{" + " , ".join(members) + "}")
        texts.append(json.dumps([hostile_text(draw), random_double(draw)], ensure_ascii=draw.random() < 0.5))
    return texts


def test_node_writes_every_text_as_we_do() -> None:
    texts = hostile_texts(11, 1_500)

    theirs = [form for form, _digest in node_canonical(texts)]

    assert [canonical_input(json_parse(text)).decode() for text in texts] == theirs


def test_node_reads_exactly_the_texts_that_we_read() -> None:
    draw = random.Random(12)
    texts = list(EDGES)
    for text in hostile_texts(13, 300):
        place = draw.randrange(len(text))
        texts += [text, text[:place], text[:place] + draw.choice('[]{},:"0 .e-\\') + text[place:],
                  text[:place] + text[place + 1:]]

    theirs = json.loads(run_node(NODE_PARSES, json.dumps(texts)))

    assert [text for text, read in zip(texts, theirs, strict=True) if reads(text) is not read] == []
    assert theirs.count(False) > 300 < theirs.count(True)


def reads(text: str) -> bool:
    try:
        json_parse(text)
    except HitlGuardError:
        return False
    return True


def test_node_makes_every_signature_that_we_make_and_accept() -> None:
    draw = random.Random(14)
    calls = [
        (f"{hostile_text(draw)}-secret-0123456789-abcdefghijklmnop".encode("utf-8", "ignore").decode(),
         [hostile_text(draw) for _ in range(3)], text)
        for text in hostile_texts(15, 400)
    ]

    theirs = json.loads(run_node(NODE_SIGN, json.dumps(calls)))

    forms = set()
    for (secret, names, text), (ours_too, older) in zip(calls, theirs, strict=True):
        given = {"approval_id": names[0], "tool_call_id": names[1], "tool_name": names[2], "input": json_parse(text)}
        assert sign_ai_sdk_approval(secrets=[secret], **given) == ours_too
        assert verify_ai_sdk_signature(secrets=[secret], signature=ours_too, **given).form == "v1"
        vector = {"secret": secret, "signature": older, "approvalId": names[0], "toolCallId": names[1],
                  "toolName": names[2]}
        forms.add((older_counts(names), refusal(vector, given["input"], legacy=True)))
    assert forms == {(True, None), (False, "mismatch")}


def older_counts(names: list[str]) -> bool:
    """Whether the older payload of these names is unambiguous: no line feed, no surrogate without its other half."""
    text = "\0".join(names).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
    return "\n" not in text and "\ufffd" not in text
