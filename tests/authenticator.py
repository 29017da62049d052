"""A software authenticator: an ES256 key, and hand-built WebAuthn answers that a test can bend in every place."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cbor2 import dumps
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from hitl_guard.signing import decode, encode

RP = "example.org"
ORIGIN = "https://approvals.example.org"
UP, UV, AT = 0x01, 0x04, 0x40


def b64(data: bytes) -> str:
    return encode(data).decode()


def unb64(text: str) -> bytes:
    data = decode(text.encode())
    assert data is not None
    return data


@dataclass
class Authenticator:
    """One passkey.

    Attributes:
        counts: Whether it counts its signatures. flags: What it says about the person at each signature.
    """

    counts: bool = False
    flags: int = UP | UV
    origin: str = ORIGIN
    rp: str = RP
    count: int = 0
    id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def create(self, options: Mapping[str, Any], **bent: Any) -> dict[str, Any]:
        """Return what ``navigator.credentials.create`` gives for these options."""
        numbers = self.key.public_key().public_numbers()
        cose = dumps({1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")})
        attested = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + cose
        data = self._data(self.flags | AT) + attested
        client = self._client("webauthn.create", unb64(options["challenge"]), bent)
        attestation = dumps({"fmt": "none", "attStmt": {}, "authData": data})
        response = {
            "clientDataJSON": b64(client), "attestationObject": b64(attestation), "transports": ["internal", "usb"],
        }
        return {"id": b64(self.id), "rawId": b64(self.id), "type": "public-key", "response": response}

    def get(
        self, options: Mapping[str, Any], *, sign: Callable[[bytes], bytes] | None = None, user: bytes | None = None,
        **bent: Any,
    ) -> dict[str, Any]:
        """Return what ``navigator.credentials.get`` gives: members of the client data can be bent by name."""
        self.count += self.counts
        data, client = self._data(self.flags), self._client("webauthn.get", unb64(options["challenge"]), bent)
        signed = data + hashlib.sha256(client).digest()
        signature = sign(signed) if sign else self.key.sign(signed, ec.ECDSA(SHA256()))
        response: dict[str, Any] = {
            "authenticatorData": b64(data), "clientDataJSON": b64(client), "signature": b64(signature),
            "userHandle": None if user is None else b64(user),
        }
        return {
            "id": b64(self.id), "rawId": b64(self.id), "type": "public-key", "response": response,
            "authenticatorAttachment": "platform", "clientExtensionResults": {},
        }

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.rp.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, challenge: bytes, bent: Mapping[str, Any]) -> bytes:
        said = {"type": kind, "challenge": b64(challenge), "origin": self.origin, "crossOrigin": False}
        return json.dumps(said | dict(bent)).encode()
