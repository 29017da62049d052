"""How much does a fingerprint cost? Against `rfc8785`, and against bytes that are merely sorted, both with SHA-256.

The three sizes are calls as agents make them: a flat one (most calls), one with a list of records, one with a long
text. Two more rows only inform: calls that are not recognised at once, because floats are whole (82.00) or are many.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import orjson
import rfc8785

from hitl_guard.canonical import canonicalize, parse
from hitl_guard.fingerprint import fingerprint

from ._harness import Row, at_least, at_most, medians

TOOL = "issue_refund"
TAG = b"hitl-guard/fingerprint/v1\0"

FLAT: dict[str, Any] = {
    "account": 48213, "amount": 8200, "city": "Berlin", "country": "DE", "currency": "EUR", "express": False, "fee": 35,
    "gift": False, "items": 2, "lang": "de", "note": None, "notify": True, "order": "8f3a2c71", "reason": "damaged",
    "stage": 3, "ticket": 5521, "vat": 19,
}  # fmt: skip
RECORDS: dict[str, Any] = {
    "table": "customers",
    "total": 1234.5,
    "rows": [
        {"id": 48213 + number, "name": f"Customer {number}", "city": "Berlin", "zip": f"{10115 + number}",
         "cents": 1995 + number, "orders": number, "active": number % 2 == 0}
        for number in range(21)
    ],
}  # fmt: skip
TEXT: dict[str, Any] = {
    "path": "reports/q3.md",
    "mode": "overwrite",
    "labels": ["finance", "q3"],
    "content": 'The quarterly report shows that revenue grew by 4 % in "Europe" and fell elsewhere.\n' * 740,
}
HOLDS = (("220 B", FLAT, 10, 2), ("2 KB", RECORDS, 15, 3), ("64 KB", TEXT, 10, 1.25))
INFORMATION = (
    ("220 B with a whole float", FLAT | {"amount": 82.0}),
    ("2 KB of floats", {"points": [[number + 0.25, number * 1.1 + 0.01] for number in range(130)]}),
)


def rows() -> list[Row]:
    """Measure and return the rows."""
    found: list[Row] = []
    for size, arguments, times_faster, times_floor in HOLDS:
        found += _rows(size, arguments, times_faster, times_floor)
    for size, arguments in INFORMATION:
        found += _rows(size, arguments, None, None)
    return [*found, *_parse_rows()]


def _rows(size: str, arguments: dict[str, Any], times_faster: float | None, times_floor: float | None) -> list[Row]:
    def ours() -> str:
        return fingerprint(TOOL, canonicalize(arguments, exact=True))

    def other() -> str:
        return hashlib.sha256(TAG + rfc8785.dumps([TOOL, arguments])).hexdigest()

    def floor() -> str:
        return hashlib.sha256(TAG + orjson.dumps([TOOL, arguments], option=orjson.OPT_SORT_KEYS)).hexdigest()

    if ours() != other():
        raise SystemExit(f"{size}: the fingerprint is not that of RFC 8785.")
    took = medians({"ours": ours, "other": other, "floor": floor})
    return [
        at_least(f"fingerprint vs rfc8785 + sha256, {size}", took["ours"], took["other"], times_faster),
        at_most(f"fingerprint vs orjson sorted + sha256, {size}", took["ours"], took["floor"], times_floor),
    ]


def _parse_rows() -> list[Row]:
    found = []
    for size, arguments, *_holds in HOLDS:
        data = canonicalize(arguments)
        took = medians({"ours": functools.partial(parse, data), "floor": functools.partial(orjson.loads, data)})
        found.append(at_most(f"strict parse vs orjson.loads, {size}", took["ours"], took["floor"], None))
    return found
