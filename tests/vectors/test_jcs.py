"""The reference files of RFC 8785's authors, where they are at hand (outside this repository)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hitl_guard.canonical import canonicalize, parse

JCS = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "jcs"
NAMES = ("arrays", "french", "structures", "unicode", "values", "weird")


@pytest.fixture
def files() -> Path:
    if not JCS.is_dir():
        pytest.skip("The JCS reference files are not at ../shared/vectors/jcs.")
    return JCS


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_file_has_the_reference_bytes(files: Path, name: str) -> None:
    received = (files / "input" / f"{name}.json").read_bytes()
    expected = bytes.fromhex((files / "outhex" / f"{name}.txt").read_text("ascii"))

    written = canonicalize(parse(received))

    assert written == expected
    assert written == (files / "output" / f"{name}.json").read_bytes()


def test_at22_the_bytes_of_weird_json_have_keys_in_utf16_order(files: Path) -> None:
    written = canonicalize(parse((files / "input" / "weird.json").read_bytes()))

    assert written.index("\U0001f602".encode()) < written.index("\ufb33".encode())


def test_every_reference_file_has_a_test(files: Path) -> None:
    assert sorted(path.stem for path in (files / "input").iterdir()) == sorted(NAMES)


def test_the_first_ten_thousand_reference_numbers_are_written_alike(files: Path) -> None:
    lines = (files / "es6-numbers-first-10000.txt").read_text("ascii").split()
    pairs = [line.split(",") for line in lines]

    differing = [
        (bits, expected)
        for bits, expected in pairs
        if canonicalize(struct.unpack(">d", bytes.fromhex(bits.zfill(16)))[0]).decode() != expected
    ]

    assert len(pairs) == 10_000
    assert differing == []
