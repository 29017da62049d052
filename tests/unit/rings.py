"""Keys and key-ring texts for the tests of keys."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from hitl_guard.keyring import Key

NOW = 1_800_000_000_000
MINUTE = 60_000


def secret(number: int) -> bytes:
    """Return 32 bytes that are neither text nor a pattern, different for each number."""
    return bytes((number + 37 * place + 129) % 256 for place in range(32))


def text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def entry(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"id": f"k{number}", "secret": text(secret(number)), "activates_at": NOW + number} | changes


def ring(*entries: dict[str, Any], **changes: Any) -> str:
    return json.dumps({"epoch": 1, "keys": list(entries)} | changes)


def key(number: int = 1, **fields: Any) -> Key:
    """Return a key that is active at NOW: number 1 since NOW, each further one since a millisecond earlier."""
    return Key(f"k{number}", secret(number), **({"activates_at": NOW + 1 - number} | fields))


def write(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o600)
