"""The stage as a fixture for every test of the agent; and how much of the large matrices an ordinary run takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .stage import make_stage, stage

MATRIX = 4
"""From so many cases on, a test that runs on every database is a matrix."""

KEPT = 1
"""Cases of a matrix that an ordinary run takes on each database server; on SQLite it takes all of them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of each matrix on the servers to `make test-slow`: what differs there is the store, not the loop."""
    ours = [
        item for item in items
        if isinstance(item, pytest.Function) and Path(__file__).parent in item.path.parents
        and hasattr(item, "callspec")
    ]
    cases = Counter((item.path, item.originalname) for item in ours)
    seen: Counter[tuple[object, ...]] = Counter()
    for item in ours:
        kind = item.callspec.params.get("database")
        if kind in ("postgresql", "mariadb") and cases[item.path, item.originalname] >= MATRIX:
            seen[item.path, item.originalname, kind] += 1
            if seen[item.path, item.originalname, kind] > KEPT:
                item.add_marker(pytest.mark.slow)


__all__ = ["make_stage", "stage"]
