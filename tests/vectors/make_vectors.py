"""Writes the project's own vectors: ``python -m tests.vectors.make_vectors``. A test compares them with the files.

Another implementation can be checked against the files; SECURITY.md describes the formats. ``text`` is a JSON text as
received, ``canonical`` what it must become. ``beyond_rfc8785`` marks the one extension, exact integers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hitl_guard import fingerprint
from hitl_guard.canonical import canonicalize, parse
from hitl_guard.errors import CanonicalizationError
from hitl_guard.models import ToolDefinition

FOLDER = Path(__file__).parent

ACCEPTED: Mapping[str, str] = {
    "empty object": " { } ",
    "empty array": "[\n]",
    "empty string": '""',
    "literals": "[null,true , false]",
    "AT-14 other text for one value": '{"b": 1.0, "a": 1E2, "c": "\\u0041\\/"}',
    "AT-15 one": "[1]",
    "AT-15 true": "[true]",
    "AT-15 text": '["1"]',
    "AT-15 nested": "[[1]]",
    "AT-16 null": '{"a":null}',
    "AT-16 empty text": '{"a":""}',
    "AT-16 empty object": '{"a":{}}',
    "AT-16 empty array": '{"a":[]}',
    "AT-21 composed": '"\\u00c5"',
    "AT-21 decomposed": '"A\\u030a"',
    "AT-22 order of keys beyond U+FFFF": '{"\\ufb33":1,"\\ud83d\\ude02":2,"\\ue000":3,"\\u00e9":4,"z":5}',
    "keys that begin alike": '{"ab":1,"a":2,"":3,"a b":4,"A":5}',
    "escapes": '"\\u0000\\u0008\\u0009\\u000a\\u000b\\u000c\\u000d\\u001f\\u0022\\u005c\\u002f\\u007f\\u0080\\u2028"',
    "point zero inside text": '["v2.0,x", 2.0, "1.0]", {"3.0}": 3.0}]',
    "money": '{"amount": 82.00, "fee": 0.10, "rate": 1.0875}',
    "zeros": "[0, -0, 0.0, -0.0, 0e9, 1e-400]",
    "small numbers": "[0.00001, 0.00000999, 0.000001, 0.00000099, 1e-7, 5e-324, 2.2250738585072014e-308]",
    "large numbers": "[1e15, 1e16, 123456789012345680.0, 1e20, 999999999999999900000.0, 1e21, 1.5e300, -1e23]",
    "halves and thirds": "[0.5, -2.25, 0.3333333333333333, 9007199254740991, -9007199254740991, 4503599627370496.5]",
    "nested": '{"c":[{"z":1,"y":[[],{}]}],"b":{"b":{"b":{}}},"a":"x"}',
}
EXACT_INTEGERS: Mapping[str, str] = {
    "AT-19 2^53": "9007199254740992",
    "AT-19 2^53 + 1": "9007199254740993",
    "AT-19 -(2^53)": "-9007199254740992",
    "64-bit id": '{"id":18446744073709551615}',
    "beyond 64 bits": "[18446744073709551616,-9223372036854775809,100000000000000000000]",
}
REFUSED: Mapping[str, bytes] = {
    "AT-17 duplicate name": b'{"a":1,"a":2}',
    "AT-17 duplicate name, escaped": b'{"a":1,"\\u0061":2}',
    "AT-17 duplicate name, nested": b'[[[[{"a":{"b":1,"b":1}}]]]]',
    "AT-18 NaN": b"[NaN]",
    "AT-18 infinity": b"[-Infinity]",
    "AT-18 overflow": b"[1e400]",
    "AT-20 lone surrogate": b'"\\ud800"',
    "AT-20 lone surrogate in a name": b'{"\\udfff":1}',
    "AT-20 surrogates in the wrong order": b'"\\ude02\\ud83d"',
    "AT-20 invalid UTF-8": b'"\xff"',
    "AT-20 surrogate in UTF-8": b'"\xed\xa0\x80"',
    "AT-20 overlong UTF-8": b'"\xc0\xaf"',
    "AT-20 byte order mark": b"\xef\xbb\xbf1",
    "AT-20 trailing data": b"1 2",
    "trailing comma": b"[1,]",
    "single quotes": b"['a']",
    "leading zero": b"[01]",
    "control character": b'"\n"',
    "nothing": b"",
    "5,000 digits": b"1" * 5000,
    "65 arrays inside one another": b"[" * 65 + b"]" * 65,
}
CALLS: Mapping[str, tuple[str, str]] = {
    "no arguments": ("ping", "{}"),
    "refund": ("refund", '{"order": "A-17", "amount": 82.00}'),
    "refund of another amount": ("refund", '{"order": "A-17", "amount": 820.00}'),
    "another tool": ("transfer", '{"order": "A-17", "amount": 82.00}'),
    "name that needs escapes": ('a"\\b', '{"x":[1,true,"1",null]}'),
    "names beyond ASCII": ("überweisen", '{"\\ufb33":1,"\\ud83d\\ude02":2}'),
}
DEFINITIONS: Mapping[str, ToolDefinition] = {
    "name only": ToolDefinition("ping"),
    "whole": ToolDefinition(
        "refund", "Pay money back.", {"type": "object", "properties": {"amount": {"type": "number"}}}, "mcp://billing"
    ),
}


def canonical_vectors() -> dict[str, Any]:
    """Return what belongs into ``canonical.json``."""
    accepted = [
        {"name": name, "text": text, "canonical": canonicalize(parse(text)).decode(), "beyond_rfc8785": beyond}
        for beyond, group in ((False, ACCEPTED), (True, EXACT_INTEGERS))
        for name, text in group.items()
    ]
    return {"accepted": accepted, "refused": [_refusal(name, data) for name, data in REFUSED.items()]}


def _refusal(name: str, data: bytes) -> dict[str, Any]:
    try:
        parse(data)
    except CanonicalizationError as error:
        return {"name": name, "text_hex": data.hex(), "code": error.code, "detail": error.detail}
    raise SystemExit(f"'{name}' is not refused any more.")


def fingerprint_vectors() -> dict[str, Any]:
    """Return what belongs into ``fingerprint.json``."""
    calls = []
    for name, (tool, text) in CALLS.items():
        arguments = canonicalize(parse(text), exact=True)
        digest = fingerprint.fingerprint(tool, arguments)
        calls.append({"name": name, "tool": tool, "text": text, "canonical": arguments.decode(), "fingerprint": digest})
    tools = [
        {"name": name, "definition": definition.to_json(), "digest": fingerprint.tool_digest(definition)}
        for name, definition in DEFINITIONS.items()
    ]
    documents, code = [b"version: 1\n", b""], [("amounts", "3")]
    policy = {
        "documents_sha256": [hashlib.sha256(document).hexdigest() for document in documents],
        "code": [list(pair) for pair in code],
        "version": fingerprint.policy_version(documents, code),
    }
    return {"calls": calls, "tools": tools, "policies": [policy]}


def files() -> dict[Path, str]:
    """Return the text of every file; ASCII, so that no editor and no git setting can change it."""
    made = {"canonical.json": canonical_vectors(), "fingerprint.json": fingerprint_vectors()}
    return {FOLDER / name: json.dumps(content, indent=1, ensure_ascii=True) + "\n" for name, content in made.items()}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, "ascii", newline="\n")
