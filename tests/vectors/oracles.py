"""Independent implementations to compare with (`rfc8785`, Node), and the random values to compare on."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

MAX_SAFE = 2**53 - 1

# What a number's bits must be written as: one line in (16 hex digits), one line out.
NODE_NUMBERS = """
const view = new DataView(new ArrayBuffer(8));
const lines = require('fs').readFileSync(0, 'utf8').trim().split('\\n');
process.stdout.write(lines.map((line) => {
  view.setBigUint64(0, BigInt('0x' + line));
  return JSON.stringify(view.getFloat64(0));
}).join('\\n'));
"""

# A list of JSON texts in; for each its RFC 8785 form, and the SHA-256 of `tag` and that form.
NODE_CANONICAL = """
const { createHash } = require('crypto');
const canonical = (value) => {
  if (Array.isArray(value)) return '[' + value.map(canonical).join(',') + ']';
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const member = (name) => JSON.stringify(name) + ':' + canonical(value[name]);
  return '{' + Object.keys(value).sort().map(member).join(',') + '}';
};
const { tag, texts } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(texts.map((text) => {
  const form = canonical(JSON.parse(text));
  return [form, createHash('sha256').update(tag + form, 'utf8').digest('hex')];
})));
"""


def run_node(script: str, data: str) -> str:
    """Run a script with Node; skip the test where there is none, but fail it in CI."""
    node = shutil.which("node")
    if node is None and "CI" in os.environ:
        pytest.fail("Node is missing: CI compares numbers with it.")
    if node is None:
        pytest.skip("Node is not installed: numbers are not compared with it.")
    done = subprocess.run([node, "-e", script], input=data.encode(), capture_output=True, check=True)
    return done.stdout.decode()


def node_numbers(numbers: Sequence[float]) -> list[str]:
    """Return how Node writes each double."""
    return run_node(NODE_NUMBERS, "\n".join(struct.pack(">d", number).hex() for number in numbers)).split("\n")


def node_canonical(texts: Sequence[str], tag: str = "") -> list[tuple[str, str]]:
    """Return Node's RFC 8785 form of each JSON text, and the SHA-256 of ``tag`` and the form."""
    answer = json.loads(run_node(NODE_CANONICAL, json.dumps({"tag": tag, "texts": list(texts)})))
    return [(form, digest) for form, digest in answer]


def random_double(draw: random.Random) -> float:
    """Return a finite double of any kind: random bits, whole, decimal, and near the edges of the number formats."""
    kind = draw.randrange(6)
    if kind == 0:
        while True:
            number: float = struct.unpack(">d", draw.randbytes(8))[0]
            if number - number == 0:
                return number
    if kind == 1:
        return float(draw.randrange(-(10 ** draw.randrange(1, 23)), 10 ** draw.randrange(1, 23)))
    if kind == 2:
        return round(draw.uniform(-1000, 1000), draw.randrange(4))
    if kind == 3:
        return draw.choice((-1, 1)) * draw.random() * 10.0 ** draw.randrange(-9, 24)
    if kind == 4:
        return draw.choice((0.0, -0.0, 1e15, 1e22, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308))
    edge = draw.choice((1e-7, 1e-6, 1e-5, 2.0**53, 1e16, 1e20, 1e21))
    bits = struct.unpack(">q", struct.pack(">d", edge))[0] + draw.randrange(-3, 4)
    near: float = struct.unpack(">d", struct.pack(">q", bits))[0]
    return near * draw.choice((-1, 1))


_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz_",
    "aZ0 .,:{}[]\"\\/\b\f\n\r\t\x00\x1f\x7f",
    "aéß€\u2028\ud7ff",
    "a\ue000\uf8ff\ufb33\uffff\U00010000\U0001f602\U0010ffff",
)


def random_text(draw: random.Random) -> str:
    """Return a short string; often with escapes, and with characters whose order differs in UTF-16."""
    alphabet = draw.choice(_ALPHABETS)
    return "".join(draw.choices(alphabet, k=draw.randrange(6)))


def random_value(draw: random.Random, depth: int, kinds: Sequence[str]) -> Any:
    """Return a random value of RFC 8785's domain of one of the ``kinds``; at ``depth`` 0 a scalar."""
    kind = draw.choice(kinds)
    if kind == "float":
        return random_double(draw)
    if kind == "int":
        return draw.choice((draw.randrange(-9, 100), draw.randrange(-MAX_SAFE, MAX_SAFE + 1), MAX_SAFE, -MAX_SAFE, 0))
    if kind == "word":
        return draw.choice((True, False, None))
    if kind == "text":
        return random_text(draw)
    inner = SCALARS if depth <= 1 else KINDS
    if kind == "list":
        return [random_value(draw, depth - 1, inner) for _ in range(draw.randrange(5))]
    return {random_text(draw): random_value(draw, depth - 1, inner) for _ in range(draw.randrange(6))}


SCALARS = ("float", "int", "word", "text", "text")
KINDS = (*SCALARS, "list", "object")


def random_values(seed: int, count: int) -> Iterator[Any]:
    """Yield ``count`` random values: small lists and objects, and one in a thousand of some hundred members."""
    draw = random.Random(seed)
    for number in range(count):
        if number % 1000 == 0:
            yield [random_value(draw, 2, KINDS) for _ in range(draw.randrange(100, 400))]
        else:
            yield random_value(draw, 3, ("list", "object"))
