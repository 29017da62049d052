"""The AI SDK's approval signatures (``experimental_toolApprovalSecret``): verified and made with the same bytes.

They let a Python service check what a Node.js server signed, and the reverse. They are **no approval of ours, and never
allow a call by themselves**. What such a signature does not say, whoever verifies it:

- **when**: it has no time of issue and never expires;
- **how often**: it is accepted every time, there is no single use;
- **for whom**: no user, tenant, chat, run, policy or tool definition is signed;
- **what was decided**: it is made when the approval is *requested*. Approved, denied and automatically decided requests
  carry the very same signature; the answer, its reason and who gave it are unsigned.

So it proves one thing: somebody with the secret issued a request with these ids for this tool and this input. Ask the
guard for the call as well.

Formats (``packages/ai/src/generate-text/tool-approval-signature.ts``; base64url is that of RFC 4648, section 5). With
``digest`` = base64url(SHA-256(`canonical_input` of the input)), unpadded, the signature is
base64url(HMAC-SHA256(secret, payload)), unpadded. The payload of form ``v1`` (AI SDK 7) is the UTF-8 of the JSON array
``["ai-sdk-tool-approval-v1", approvalId, toolCallId, toolName, digest]`` as ``JSON.stringify`` writes it; of form
``legacy`` (AI SDK 6) that of approvalId, toolCallId, toolName and digest with a line feed between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import ConfigurationError, InvalidSignatureError
from ...keyfile import Sealed
from ...signing import decode, encode, equal, hmac_sha256
from .javascript import MAX_BYTES, canonical_input, joined, refused

MIN_SECRET_BYTES = 32
"""Bytes of a secret at least: those of the digest, as RFC 2104, section 3, advises."""

MIN_DISTINCT_BYTES = 6
"""Different bytes in a secret at least; one of fewer is a pattern."""

MAX_SECRETS = 16
"""Secrets in one list: each costs a MAC for each form."""

SIGNATURE_CHARACTERS = 43
"""Of 32 bytes as base64url without padding."""

VERSION_TAG = "ai-sdk-tool-approval-v1"
"""What the payload of form ``v1`` begins with."""

Form = Literal["v1", "legacy"]
"""Of what kind a payload is (see the module)."""


@dataclass(frozen=True, slots=True)
class VerifiedAiSdkSignature:
    """What one signature covers, and nothing more. It allows no call (see the module).

    Attributes:
        approval_id: The AI SDK's ``approvalId``.
        tool_call_id: Its ``toolCallId``.
        tool_name: Its ``toolName``.
        input_digest: Unpadded base64url of the SHA-256 of ``input_text``.
        input_text: The input exactly as it was signed, canonical JSON. Numbers are doubles here: work with this text
            and not with another parser's digits.
        secret_index: Which of the secrets made it; above 0 it is one that is to go.
        form: ``v1`` or ``legacy``.
    """

    approval_id: str
    tool_call_id: str
    tool_name: str
    input_digest: str
    input_text: str = field(repr=False)
    secret_index: int
    form: Form


def verify_ai_sdk_signature(
    *, secrets: Sequence[str | bytes], signature: object, approval_id: str, tool_call_id: str, tool_name: str,
    input: Any, legacy: bool = False, allow_weak_secrets: bool = False, max_bytes: int = MAX_BYTES,
) -> VerifiedAiSdkSignature:
    """Verify a signature of the AI SDK and return what it covers. Checks, in this order:

    1. the secrets are usable; 2. the signature is there, and is the one spelling of 32 bytes; 3. ids, name and input
    have a canonical form; 4. its MAC is that of form ``v1`` under one of the secrets; 5. or, only if ``legacy`` is set,
    that of form ``legacy``. All secrets are tried, and compared in constant time, whichever matches.

    Stricter than the AI SDK, which also accepts a signature with padding, with white space inside, in the standard
    alphabet, or with wrong trailing bits: here they are malformed. Then one approval has one signature text. (It still
    is no key against replay: nothing stops the same text from coming again.)

    **Success never allows a call by itself.** There is no expiry, scope or single use, the decision is unsigned, and a
    denied or automatic request has the same signature.

    Args:
        secrets: A list or tuple, newest first, so that a secret can be rotated with an overlap. ``str`` counts as its
            UTF-8. Each has at least 32 bytes of high entropy; an empty one is always refused.
        signature: As it came from the client; None where there was none.
        input: The tool call's input after the server's own schema and transforms, as ``json.loads`` or `json_parse`
            give it.
        legacy: Whether to accept what AI SDK 6 issues as well. It is never tried for ids or names with a line feed,
            which make its payload ambiguous, or with a lone surrogate, which it loses.
        allow_weak_secrets: Accept secrets of fewer than 32 bytes, or of fewer than 6 different ones. Whoever has one
            signature can guess such a secret.
        max_bytes: How long the input's canonical text may be, and the payload.

    Raises:
        ConfigurationError: ``detail`` secrets, secret-empty, secret-short, secret-weak or option.
        InvalidSignatureError: ``detail`` missing, malformed or mismatch.
        CanonicalizationError: an id or the name is not a string, or the input has no canonical form: see
            `canonical_input`.
    """
    sealed = _sealed(secrets, allow_weak_secrets)
    del secrets  # a traceback that prints locals must not show them
    keys = _usable(sealed)
    if type(legacy) is not bool:
        raise ConfigurationError("'legacy' must be True or False.", detail="option")
    mac = _mac(signature)
    names = _names(approval_id, tool_call_id, tool_name)
    text = canonical_input(input, max_bytes=max_bytes)
    digest = _digest(text)
    found: list[tuple[Form, int]] = []
    for form, payload in _payloads(names, digest, legacy, max_bytes):
        found += [(form, place) for place, key in enumerate(keys) if equal(hmac_sha256(key.reveal(), payload), mac)]
    if not found:
        raise InvalidSignatureError("The AI SDK's signature does not match.", detail="mismatch")
    form, place = found[0]
    return VerifiedAiSdkSignature(approval_id, tool_call_id, tool_name, digest, text.decode(), place, form)


def sign_ai_sdk_approval(
    *, secrets: Sequence[str | bytes], approval_id: str, tool_call_id: str, tool_name: str, input: Any,
    allow_weak_secrets: bool = False, max_bytes: int = MAX_BYTES,
) -> str:
    """Return the signature, form ``v1``, that an AI SDK 7 server with the newest secret puts on this approval request.

    Such a server runs the tool for whoever sends it back as approved, as often as it comes and with no end: it has no
    expiry, scope or single use, and the decision is not in it. So sign only what the guard would let pass.

    Args:
        secrets: As for `verify_ai_sdk_signature`; the first one signs.
        input: The input that the other server will see. What JavaScript cannot hold is signed as it arrives there, an
            integer beyond 2^53 rounded.
        allow_weak_secrets: As for `verify_ai_sdk_signature`.
        max_bytes: As for `verify_ai_sdk_signature`.

    Raises:
        ConfigurationError: ``detail`` secrets, secret-empty, secret-short, secret-weak or option.
        CanonicalizationError: an id or the name is not a string, or the input has no canonical form: see
            `canonical_input`.
    """
    sealed = _sealed(secrets, allow_weak_secrets)
    del secrets  # a traceback that prints locals must not show them
    keys = _usable(sealed)
    names = _names(approval_id, tool_call_id, tool_name)
    digest = _digest(canonical_input(input, max_bytes=max_bytes))
    ((_form, payload),) = _payloads(names, digest, False, max_bytes)
    return encode(hmac_sha256(keys[0].reveal(), payload)).decode("ascii")


def _sealed(secrets: object, allow_weak: object) -> list[Sealed] | str:
    """Return the secrets as bytes that never show themselves, or the slug of the first thing that is wrong."""
    if not isinstance(secrets, list | tuple) or not 1 <= len(secrets) <= MAX_SECRETS:
        return "secrets"
    keys = []
    for secret in secrets:
        key = _key_bytes(secret)
        problem = "secrets" if key is None else _weakness(key, allow_weak)
        if key is None or problem:
            return problem
        keys.append(Sealed(key))
    return keys


def _key_bytes(secret: object) -> bytes | None:
    try:
        return secret.encode() if type(secret) is str else secret if type(secret) is bytes else None
    except UnicodeEncodeError:  # it holds the secret
        return None


def _weakness(key: bytes, allow_weak: object) -> str:
    if not key:
        return "secret-empty"
    if allow_weak is True:
        return ""
    if len(key) < MIN_SECRET_BYTES:
        return "secret-short"
    return "secret-weak" if len(set(key)) < MIN_DISTINCT_BYTES else ""


_PROBLEMS = {
    "secrets": f"Give 1 to {MAX_SECRETS} secrets as a list of str or bytes, newest first.",
    "secret-empty": "A secret is empty: set every secret that is listed.",
    "secret-short": f"A secret has fewer than {MIN_SECRET_BYTES} bytes: make one with `openssl rand -hex 32`.",
    "secret-weak": "A secret is a pattern, not random: make one with `openssl rand -hex 32`.",
}


def _usable(sealed: list[Sealed] | str) -> list[Sealed]:
    if isinstance(sealed, str):
        raise ConfigurationError(_PROBLEMS[sealed], detail=sealed)
    return sealed


def _mac(signature: object) -> bytes:
    if signature is None or signature == "":
        raise InvalidSignatureError("The AI SDK's signature is missing.", detail="missing")
    fits = type(signature) is str and len(signature) == SIGNATURE_CHARACTERS and signature.isascii()
    mac = decode(str(signature).encode()) if fits else None
    if mac is None:
        raise InvalidSignatureError("The signature is not 32 bytes of base64url without padding.", detail="malformed")
    return mac


def _names(*names: object) -> list[str]:
    texts = [name for name in names if type(name) is str]
    if len(texts) != len(names):
        raise refused("type")
    return texts


def _digest(text: bytes) -> str:
    return encode(hashlib.sha256(text).digest()).decode("ascii")


def _payloads(names: list[str], digest: str, legacy: bool, max_bytes: int) -> list[tuple[Form, bytes]]:
    payloads: list[tuple[Form, bytes]] = [("v1", canonical_input([VERSION_TAG, *names, digest], max_bytes=max_bytes))]
    if legacy and not any("\n" in name for name in names):
        try:
            payloads.append(("legacy", "\n".join(map(joined, [*names, digest])).encode()))
        except UnicodeEncodeError:
            return payloads  # a lone surrogate: AI SDK 6 signs U+FFFD in its place, as for any other
    return payloads
