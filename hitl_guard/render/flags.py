"""What an approver must be told about values that software may show or handle otherwise than it looks."""

from __future__ import annotations

import unicodedata

from .. import canonical

_MAX_SAFE = 2**53 - 1


def flags(data: bytes) -> tuple[str, ...]:
    """Return what an approver must be told about canonical bytes, sorted.

    These are ``big-integer``: an integer outside ±(2^53 - 1), which other JSON software may round; and ``non-nfc``:
    text that is not in Unicode's NFC form, so that it may look like another text.

    Raises:
        CanonicalizationError: The bytes are not acceptable JSON (see `canonical.parse`).
    """
    found = set()
    pending = [canonical.decode(data)]
    for item in pending:
        if type(item) is dict or type(item) is list:
            pending.extend((*item, *item.values()) if type(item) is dict else item)
        elif type(item) is int and not -_MAX_SAFE <= item <= _MAX_SAFE:
            found.add("big-integer")
        elif type(item) is str and not unicodedata.is_normalized("NFC", item):
            found.add("non-nfc")
    return tuple(sorted(found))
