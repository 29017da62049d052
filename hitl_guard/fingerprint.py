"""Domain-separated digests: what stands for a call, a tool definition, a policy, a stored record.

Every digest is SHA-256 over a domain tag that ends in NUL and an injective encoding: RFC 8785 canonical JSON, or
parts with their lengths in front. Digests that people or other languages see are 64 lower-case hex digits.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Sequence

from . import canonical
from .models import Scope, ToolDefinition

_CALL = b"hitl-guard/fingerprint/v1\0"
_TOOL = b"hitl-guard/tool/v1\0"
_POLICY = b"hitl-guard/policy/v1\0"
_DETAILS = b"hitl-guard/details/v1\0"
_RECORD = b"hitl-guard/record/v1\0"
_IDENTITY = b"hitl-guard/identity/v1\0"
_RUN = b"hitl-guard/run/v1\0"
_SPEND = b"hitl-guard/spend/v1\0"
_IDEMPOTENCY = b"hitl-guard/idempotency/v1\0"
_PLACE = b"hitl-guard/place/v1\0"
_SNAPSHOT = b"hitl-guard/snapshot/v1\0"
_HISTORY = b"hitl-guard/history/v1\0"
_DECISION = b"hitl-guard/decision/v1\0"


def joined(*parts: bytes) -> bytes:
    """Join byte strings injectively: each with its length as 8 big-endian bytes in front (as DSSE's PAE does)."""
    whole: list[bytes] = []
    for part in parts:
        whole += (len(part).to_bytes(8, "big"), part)
    return b"".join(whole)


def fingerprint(tool: str, arguments: bytes) -> str:
    """Return the fingerprint of a call: SHA-256 over the tag and the canonical bytes of ``[tool, arguments]``.

    Args:
        arguments: Canonical bytes of the arguments object (see `hitl_guard.canonical.canonicalize`).
    """
    return hashlib.sha256(b"".join((_call_head(tool), arguments, b"]"))).hexdigest()


@functools.lru_cache(maxsize=256)
def _call_head(tool: str) -> bytes:
    return b"".join((_CALL, b"[", canonical.canonicalize(tool), b","))


def tool_digest(definition: ToolDefinition) -> str:
    """Return the digest of name, description, input schema and server identity."""
    if definition.input_schema is None:
        return _bare_digest(definition.name, definition.description, definition.server)
    return _digest(definition)


@functools.lru_cache(maxsize=1024)
def _bare_digest(name: str, description: str | None, server: str | None) -> str:
    return _digest(ToolDefinition(name, description, None, server))


def _digest(definition: ToolDefinition) -> str:
    return hashlib.sha256(_TOOL + canonical.canonicalize(definition.to_json())).hexdigest()


def policy_version(documents: Iterable[bytes], code: Iterable[Sequence[str]]) -> str:
    """Return the policy version: over the documents' source bytes and the ``(name, version)`` of code policies."""
    sources = [hashlib.sha256(source).hexdigest() for source in documents]
    return hashlib.sha256(_POLICY + canonical.canonicalize([sources, [list(pair) for pair in code]])).hexdigest()


def details_digest(details: bytes) -> str:
    """Return the digest by which the envelope binds the stored details."""
    return hashlib.sha256(_DETAILS + details).hexdigest()


def record_digest(envelope: bytes, arguments: bytes, details: bytes) -> str:
    """Return the digest of a whole request row; every event of the request carries it."""
    return hashlib.sha256(_RECORD + joined(envelope, arguments, details)).hexdigest()


def identity(scope: Scope, fingerprint_: str) -> bytes:
    """Return the 32-byte identity of a call: its whole scope, or scope and fingerprint for deny-and-retry."""
    if scope.call_id is None:
        head, rest = "retry", joined(fingerprint_.encode())
    else:
        head, rest = "call", joined(scope.call_id.encode(), b"%d" % scope.occurrence)
    return hashlib.sha256(_identity_head(head, scope.tenant, scope.user, scope.run) + rest).digest()


@functools.lru_cache(maxsize=1024)
def _identity_head(*parts: str) -> bytes:
    return _IDENTITY + joined(*(part.encode() for part in parts))


def run_digest(tenant: str, run: str) -> bytes:
    """Return the 32-byte digest by which a run's requests are listed."""
    return hashlib.sha256(_RUN + joined(tenant.encode(), run.encode())).digest()


def place(kind: str, *names: str) -> bytes:
    """Return the 32-byte digest by which suspended runs and conversations are found (``owner``, ``thread`` …)."""
    return hashlib.sha256(_PLACE + joined(kind.encode(), *(name.encode() for name in names))).digest()


def snapshot_digest(body: bytes) -> str:
    """Return the digest by which a snapshot's signature binds its body."""
    return hashlib.sha256(_SNAPSHOT + body).hexdigest()


def history_digest(before: str, segment: bytes) -> str:
    """Return the digest of a conversation with one more segment; ``before`` is the one without it, ``""`` at first."""
    return hashlib.sha256(_HISTORY + joined(before.encode(), segment)).hexdigest()


def decision_digest(decision: bytes) -> bytes:
    """Return the 32-byte digest of a decision: what an authenticator signs as its challenge.

    Args:
        decision: Canonical bytes of the decision's fields and the time when it was put to the person.
    """
    return hashlib.sha256(_DECISION + decision).digest()


def spend_key(scope: Scope, request_id: str) -> bytes:
    """Return the 32-byte key that only one claim can ever insert.

    It is over the identity of the call and leaves the policy version out on purpose: a policy change never lets a
    spent call be asked again. For deny-and-retry it is over the request, since the same call may ask anew.
    """
    if scope.call_id is None:
        return hashlib.sha256(_SPEND + joined(b"retry", scope.tenant.encode(), request_id.encode())).digest()
    return spend_key_of_call(identity(scope, ""))


def spend_key_of_call(identity_: bytes) -> bytes:
    """Return the spend key of a call that is bound to its tool-call id, from its identity."""
    return hashlib.sha256(_SPEND + joined(b"call", identity_)).digest()


def idempotency_key(tenant: str, request_id: str, fingerprint_: str) -> str:
    """Return the key that a tool may hand to a service: stable per approval, 43 characters of base64url."""
    digest = hashlib.sha256(_IDEMPOTENCY + joined(tenant.encode(), request_id.encode(), fingerprint_.encode())).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
