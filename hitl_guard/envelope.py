"""The wire types: what a signed request envelope and a signed decision say, field by field.

Fields never move and never change their meaning; a new meaning is a new format version. Both are signed texts
(see `hitl_guard.signing`) that also carry the common fields ``alg, epoch, issued_at, kid, type, v``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import canonical, fingerprint, signing
from .errors import CanonicalizationError, InvalidApprovalError
from .models import Binding, Scope
from .signing import COMMON_FIELDS, is_time

REQUEST_TYPE = "hitl-request"
DECISION_TYPE = "hitl-decision"
CONTROL_TYPE = "hitl-control"

_SCOPE_FIELDS = frozenset({"call_id", "occurrence", "run", "tenant", "user"})


def _refuse() -> InvalidApprovalError:
    return InvalidApprovalError("A required field is missing, unknown or of the wrong type.", detail="malformed")


def _exactly(fields: Mapping[str, Any], names: frozenset[str]) -> None:
    # What cannot be known is refused: an unknown field is never skipped.
    if fields.keys() != names | COMMON_FIELDS:
        raise _refuse()


def _text(value: object) -> str:
    if type(value) is not str or not value:
        raise _refuse()
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _time(value: object) -> int:
    if not is_time(value):
        raise _refuse()
    return value


@dataclass(slots=True)
class Envelope:
    """A signed approval request, as it travels and as it is stored.

    Attributes:
        request_id: 22 characters of base64url.
        binding: ``call`` (bound to a tool-call id) or ``retry`` (the scope's call id is None).
        fingerprint, policy_version, tool_digest, details: 64 hex digits each.
        details: Digest of the stored details (tool name, requirements, who is excluded, reason, turn).
        supersedes: ``(request id, fingerprint)`` of the request whose place this one takes after an edit, or None.
        issued_at, decide_by: Epoch milliseconds. ``execute_within``: milliseconds after the completing decision.
    """

    request_id: str
    binding: Binding
    agent: str | None
    fingerprint: str
    tool_digest: str
    policy_version: str
    details: str
    scope: Scope
    nonce: str
    issued_at: int
    decide_by: int
    execute_within: int
    supersedes: tuple[str, str] | None = None
    key_id: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Return the signed fields, without the common ones."""
        return {
            "agent": self.agent, "binding": self.binding, "decide_by": self.decide_by, "details": self.details,
            "execute_within": self.execute_within, "fingerprint": self.fingerprint, "nonce": self.nonce,
            "policy": self.policy_version, "request": self.request_id, "scope": self.scope.to_json(),
            "supersedes": None if self.supersedes is None else list(self.supersedes), "tool": self.tool_digest,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Envelope:
        """Read verified fields strictly.

        Raises:
            InvalidApprovalError: a field is missing, unknown, of the wrong type or contradicts another.
        """
        _exactly(fields, _ENVELOPE_FIELDS)
        scope = _scope(fields["scope"])
        issued_at, decide_by, within = (_time(fields[name]) for name in ("issued_at", "decide_by", "execute_within"))
        if fields["binding"] != ("retry" if scope.call_id is None else "call") or decide_by <= issued_at or within == 0:
            raise _refuse()
        return cls(
            request_id=_text(fields["request"]), binding=fields["binding"], agent=_optional_text(fields["agent"]),
            fingerprint=_text(fields["fingerprint"]), tool_digest=_text(fields["tool"]),
            policy_version=_text(fields["policy"]), details=_text(fields["details"]), scope=scope,
            nonce=_text(fields["nonce"]), issued_at=issued_at, decide_by=decide_by, execute_within=within,
            supersedes=_supersedes(fields["supersedes"]), key_id=fields["kid"],
        )


_ENVELOPE_FIELDS = frozenset({
    "agent", "binding", "decide_by", "details", "execute_within", "fingerprint", "nonce", "policy", "request", "scope",
    "supersedes", "tool",
})


def _scope(value: object) -> Scope:
    if not isinstance(value, dict) or value.keys() != _SCOPE_FIELDS:
        raise _refuse()
    occurrence = value["occurrence"]
    if type(occurrence) is not int or occurrence < 0:
        raise _refuse()
    return Scope(
        _text(value["tenant"]), _text(value["user"]), _text(value["run"]), _optional_text(value["call_id"]), occurrence
    )


def _supersedes(value: object) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise _refuse()
    return _text(value[0]), _text(value[1])


@dataclass(frozen=True, slots=True)
class Evidence:
    """A passkey's answer to a decision: everything that verifying it again needs, apart from the decision itself.

    Stored in the signed decision as canonical JSON text; byte strings in it are base64url.

    Attributes:
        at: When the decision was put to the person, epoch milliseconds; it is part of what the authenticator signed.
        credential: The passkey's id. key: Its public key (COSE, RFC 9052), as it was registered.
        rp: The relying party's id, a domain.
        authenticator, client, signature: Authenticator data, client data (JSON) and signature (WebAuthn 5.2.2).
    """

    at: int
    rp: str
    credential: bytes
    key: bytes
    authenticator: bytes
    client: bytes
    signature: bytes

    def to_text(self) -> str:
        """Return the one canonical spelling."""
        fields = {name: signing.encode(getattr(self, name)).decode() for name in _EVIDENCE_BYTES}
        return canonical.canonicalize({**fields, "at": self.at, "kind": PASSKEY, "rp": self.rp}).decode()

    @classmethod
    def from_text(cls, text: str) -> Evidence:
        """Read a verified decision's evidence strictly; raises `InvalidApprovalError` on any other shape."""
        try:
            fields = canonical.parse(text)
        except CanonicalizationError:
            raise _refuse() from None
        if not isinstance(fields, dict) or fields.keys() != {"at", "kind", "rp", *_EVIDENCE_BYTES}:
            raise _refuse()
        if fields["kind"] != PASSKEY:
            raise _refuse()
        read = cls(
            at=_time(fields["at"]), rp=_text(fields["rp"]), **{name: _bytes(fields[name]) for name in _EVIDENCE_BYTES}
        )
        if read.to_text() != text:
            raise _refuse()
        return read


PASSKEY = "passkey"
"""The kind of evidence that is verified here, as policy rules name it."""

_EVIDENCE_BYTES = ("authenticator", "client", "credential", "key", "signature")


def _bytes(value: object) -> bytes:
    data = signing.decode(_text(value).encode())
    if not data:
        raise _refuse()
    return data


@dataclass(slots=True)
class Vote:
    """A signed decision: what one approver said about exactly one fingerprint.

    A decision without evidence has the fields that it always had; one with it has one field more.

    Attributes:
        names: Every id of the approver, folded for comparison, so that two ids of one person are one vote.
        automatic: The policy itself approved; there is no person behind it.
        execute_by: End of the execution window if this decision completes the quorum, epoch milliseconds.
        response: Canonical JSON text of what a person answered for the tool (with a denial), else None.
        evidence: A passkey's answer to exactly this decision, or None.
    """

    tenant: str
    request_id: str
    fingerprint: str
    policy_version: str
    approver: str
    kind: str
    names: tuple[str, ...]
    roles: tuple[str, ...]
    channel: str
    credential: str | None
    approve: bool
    automatic: bool
    reason: str | None
    response: str | None
    nonce: str
    execute_by: int | None = None
    at: int = 0
    evidence: Evidence | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the signed fields, without the common ones."""
        fields = self._fields()
        return fields if self.evidence is None else fields | {"evidence": self.evidence.to_text()}

    def _fields(self) -> dict[str, Any]:
        return {
            "approve": self.approve, "approver": self.approver, "automatic": self.automatic, "channel": self.channel,
            "credential": self.credential, "execute_by": self.execute_by, "fingerprint": self.fingerprint,
            "kind": self.kind, "names": list(self.names), "nonce": self.nonce, "policy": self.policy_version,
            "reason": self.reason, "request": self.request_id, "response": self.response, "roles": list(self.roles),
            "tenant": self.tenant,
        }

    def challenge(self, at: int) -> bytes:
        """Return the 32 bytes that a passkey signs: the digest of every field but the evidence itself.

        Args:
            at: When the decision was put to the person, epoch milliseconds (`Evidence.at`).
        """
        return fingerprint.decision_digest(canonical.canonicalize({**self._fields(), "at": at}))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Vote:
        """Read verified fields strictly; raises `InvalidApprovalError` on any other shape."""
        proven = "evidence" in fields
        _exactly(fields, _VOTE_FIELDS | {"evidence"} if proven else _VOTE_FIELDS)
        names, roles = fields["names"], fields["roles"]
        if not (isinstance(names, list) and isinstance(roles, list)):
            raise _refuse()
        if type(fields["approve"]) is not bool or type(fields["automatic"]) is not bool:
            raise _refuse()
        execute_by = fields["execute_by"]
        return cls(
            tenant=_text(fields["tenant"]), request_id=_text(fields["request"]),
            fingerprint=_text(fields["fingerprint"]), policy_version=_text(fields["policy"]),
            approver=_text(fields["approver"]), kind=_text(fields["kind"]), names=tuple(map(_text, names)),
            roles=tuple(map(_text, roles)), channel=_text(fields["channel"]),
            credential=_optional_text(fields["credential"]), approve=fields["approve"], automatic=fields["automatic"],
            reason=_optional_text(fields["reason"]), response=_optional_text(fields["response"]),
            nonce=_text(fields["nonce"]),
            execute_by=None if execute_by is None else _time(execute_by), at=fields["issued_at"],
            evidence=Evidence.from_text(_text(fields["evidence"])) if proven else None,
        )


_VOTE_FIELDS = frozenset({
    "approve", "approver", "automatic", "channel", "credential", "execute_by", "fingerprint", "kind", "names", "nonce",
    "policy", "reason", "request", "response", "roles", "tenant",
})
