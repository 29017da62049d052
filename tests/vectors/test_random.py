"""Random values and numbers against `rfc8785` and Node: a sample of what `make test-slow` compares by the million."""

from __future__ import annotations

import random

import pytest
import rfc8785

from hitl_guard import canonical
from hitl_guard.canonical import Limits, canonicalize, parse

from .oracles import node_numbers, random_double, random_values

COUNT = 20_000


def test_twenty_thousand_random_values_have_the_bytes_of_rfc8785() -> None:
    differing = [value for value in random_values(1, COUNT) if canonicalize(value) != rfc8785.dumps(value)]

    assert differing == []


def test_the_portable_walk_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "_members", canonical._members_anywhere)

    differing = [value for value in random_values(2, 2_000) if canonicalize(value) != rfc8785.dumps(value)]

    assert differing == []


def test_the_careful_way_writes_the_same() -> None:
    no_short_cut = Limits(max_depth=8)

    differing = [v for v in random_values(3, 2_000) if canonicalize(v, limits=no_short_cut) != rfc8785.dumps(v)]

    assert differing == []


def test_what_was_written_is_read_back_to_the_same_bytes() -> None:
    for value in random_values(4, 2_000):
        written = canonicalize(value)

        assert canonicalize(parse(written)) == written
        assert parse(written) == parse(b" " + written)  # recognised at once, and parsed strictly


def test_two_thousand_numbers_are_written_as_node_writes_them() -> None:
    draw = random.Random(5)
    numbers = [random_double(draw) for _ in range(2_000)]

    written = [canonicalize(number).decode() for number in numbers]

    assert written == node_numbers(numbers)
