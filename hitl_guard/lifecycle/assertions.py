"""What a passkey proves: a person, verified by the authenticator, signed exactly this decision on one of our pages.

The checks of WebAuthn itself (section 7.2) are the library's; here stands what is expected, and that nothing else
passes. Everything that an authenticator or a browser says is unverified until then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .. import signing
from ..envelope import Evidence, Vote
from ..errors import ConfigurationError, NotAuthorisedError

CHALLENGE_MS = 300_000
"""How long a challenge may be answered, in milliseconds."""

_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]{1,253})(?::[0-9]{1,5})?")

MAX_PART = 16_384
"""Longest part of an authenticator's answer, in characters of base64url; a post-quantum signature has 6,200."""


def library() -> ModuleType:
    """Return the `webauthn` package, loaded when it is first needed.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import webauthn
        import webauthn.helpers
    except ImportError as error:
        raise ConfigurationError(
            "Passkeys need the package 'webauthn': install hitl-guard[passkey].", detail="webauthn"
        ) from error
    return webauthn


def unproven(message: str = "The passkey does not prove this decision: look at the request and try again.") -> (
    NotAuthorisedError
):
    """Return the error for a decision whose evidence does not hold."""
    return NotAuthorisedError(message, detail="evidence")


@dataclass(frozen=True, slots=True)
class Answer:
    """The parts of an authenticator's answer to a challenge, decoded and not verified."""

    credential: bytes
    authenticator: bytes
    client: bytes
    signature: bytes

    @classmethod
    def read(cls, unverified_response: object, *, user: bytes) -> Answer:
        """Return the parts of what ``PublicKeyCredential.toJSON()`` gave; members that are not needed are dropped.

        Args:
            user: The person's handle, which the answer may name.

        Raises:
            NotAuthorisedError: a part is missing, too long or not in its one spelling, or it names another person.
        """
        outer = _object(unverified_response)
        inner = _object(outer.get("response"))
        credential = _part(outer.get("id"))
        if outer.get("rawId") != outer["id"] or outer.get("type") != "public-key":
            raise unproven()
        handle = inner.get("userHandle")
        if handle is not None and _part(handle) != user:
            raise unproven("This passkey belongs to another person.")
        return cls(
            credential, _part(inner.get("authenticatorData")), _part(inner.get("clientDataJSON")),
            _part(inner.get("signature")),
        )


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise unproven()
    return value


def _part(value: object) -> bytes:
    data = None
    if type(value) is str and value.isascii() and len(value) <= MAX_PART:
        data = signing.decode(value.encode())
    if not data:
        raise unproven()
    return data


def text(data: bytes) -> str:
    """Return base64url, the only spelling that is read."""
    return signing.encode(data).decode()


def verify_answer(
    answer: Answer, *, key: bytes, expected_challenge: bytes, expected_rp: str, expected_origins: Sequence[str],
    sign_count: int,
) -> int:
    """Verify an authenticator's answer and return the count of signatures that it tells (0: it does not count).

    Args:
        key: The passkey's public key, as registered. sign_count: What it told the last time.

    Raises:
        NotAuthorisedError: another challenge, origin, relying party or key; the person was not verified; the page was
            embedded in a foreign one; or the count went back, as a copied authenticator's does.
        ConfigurationError: the library is missing.
    """
    webauthn = library()
    id_ = text(answer.credential)
    response = {
        "authenticatorData": text(answer.authenticator), "clientDataJSON": text(answer.client),
        "signature": text(answer.signature),
    }
    try:
        embedded = webauthn.helpers.parse_client_data_json(answer.client).cross_origin
        verified = webauthn.verify_authentication_response(
            credential={"id": id_, "rawId": id_, "type": "public-key", "response": response},
            expected_challenge=expected_challenge, expected_rp_id=expected_rp, expected_origin=list(expected_origins),
            credential_public_key=key, credential_current_sign_count=sign_count, require_user_verification=True,
        )
    except Exception as error:
        # Whatever a forged answer makes the library raise, it is refused.
        raise unproven() from error
    if embedded:
        raise unproven("The page was embedded in another site's: open the request by itself.")
    return int(verified.new_sign_count)


def verify(vote: Vote, *, expected_rp: str, expected_origins: Sequence[str], sign_count: int = 0) -> int:
    """Verify a decision's evidence against the decision itself and return the authenticator's count.

    The challenge is worked out again from the decision, so that evidence of any other one is refused. The public key
    is the evidence's own; whoever records it takes it from the registered passkey.

    Raises:
        NotAuthorisedError, ConfigurationError: as `verify_answer`; or there is no evidence, or it was too old.
    """
    evidence = vote.evidence
    if evidence is None or evidence.rp != expected_rp or not 0 <= vote.at - evidence.at < CHALLENGE_MS:
        raise unproven()
    answer = Answer(evidence.credential, evidence.authenticator, evidence.client, evidence.signature)
    return verify_answer(
        answer, key=evidence.key, expected_challenge=vote.challenge(evidence.at), expected_rp=expected_rp,
        expected_origins=expected_origins, sign_count=sign_count,
    )


def own_origin(evidence: Evidence) -> tuple[str, ...]:
    """Return the origin that evidence names, if it is one of its relying party's, for those who know no other.

    Raises:
        NotAuthorisedError: the client data cannot be read.
        ConfigurationError: the library is missing.
    """
    helpers = library().helpers
    try:
        origin = helpers.parse_client_data_json(evidence.client).origin
    except Exception as error:
        raise unproven() from error
    return (origin,) if belongs(origin, evidence.rp) else ()


def belongs(origin: object, rp: str) -> bool:
    """Whether a page of ``origin`` may use passkeys of ``rp``: its host is that domain or below it, over HTTPS.

    ``http`` is let pass for localhost alone, which browsers trust as well.
    """
    match = _ORIGIN.fullmatch(origin) if isinstance(origin, str) else None
    if match is None or (match["scheme"] == "http" and match["host"] != "localhost"):
        return False
    return match["host"] == rp or match["host"].endswith(f".{rp}")
