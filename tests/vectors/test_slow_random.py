"""The long comparison with `rfc8785` and Node; `test_random` runs a sample of it."""

from __future__ import annotations

import random

import pytest
import rfc8785

from hitl_guard.canonical import canonicalize

from .oracles import node_numbers, random_double, random_values

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(10))
def test_a_million_random_values_have_the_bytes_of_rfc8785(seed: int) -> None:
    compared = 0
    for value in random_values(1_000 + seed, 100_000):
        compared += 1

        assert canonicalize(value) == rfc8785.dumps(value)
    assert compared == 100_000


@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_thousand_numbers_are_written_as_node_writes_them(seed: int) -> None:
    draw = random.Random(2_000 + seed)
    numbers = [random_double(draw) for _ in range(10_000)]

    written = [canonicalize(number).decode() for number in numbers]

    assert written == node_numbers(numbers)
