"""How much does a signature cost? Against one copied HMAC context, the least that a MAC under a kept key can take."""

from __future__ import annotations

import hmac
import os
from typing import Any

from hitl_guard import clock
from hitl_guard.canonical import canonicalize
from hitl_guard.keyring import Key, Keyring
from hitl_guard.signing import Signer, equal

from ._harness import Row, at_most, medians

ENVELOPE: dict[str, Any] = {
    "binding": "call", "fingerprint": "9f" * 32, "policy": "1c" * 16, "request": "A" * 22, "run": "run-1",
    "user": "ana",
}


def rows() -> list[Row]:
    """Measure and return the rows."""
    signer = Signer(Keyring([Key.generate(clock.epoch_ms() - 60_000)]))
    now = clock.epoch_ms()
    payload = canonicalize(ENVELOPE)
    kept = hmac.new(os.urandom(32), b"hitl-guard/v1/request\0", "sha256")
    key = signer.keyring.signing_key(now)
    mac = signer.mac(key, "request", payload)
    text = signer.sign("request", "hitl-request", ENVELOPE, now=now)

    def floor() -> bytes:
        context = kept.copy()
        context.update(payload)
        return context.digest()

    def sign() -> bytes:
        return signer.mac(signer.keyring.signing_key(now), "request", payload)

    def verify() -> bool:
        found = signer.keyring.verifying_key(key.id, made_at=now, now=now)
        return equal(signer.mac(found, "request", payload), mac)

    def sign_text() -> bytes:
        return signer.sign("request", "hitl-request", ENVELOPE, now=now)

    def open_text() -> dict[str, Any]:
        return signer.open(text, expected_purpose="request", expected_type="hitl-request", now=now)

    measured = medians({"floor": floor, "sign": sign, "verify": verify, "text": sign_text, "open": open_text})
    size = f"{len(payload)} B"
    return [
        at_most(f"sign an envelope of {size} vs a copied HMAC context", measured["sign"], measured["floor"], 3),
        at_most(f"verify an envelope of {size} vs a copied HMAC context", measured["verify"], measured["floor"], 3),
        at_most("make a whole signed text (canonical, base64) vs the same", measured["text"], measured["floor"], None),
        at_most("open a whole signed text (strict parse) vs the same", measured["open"], measured["floor"], None),
    ]
