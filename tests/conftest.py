"""What every test gets: real databases as fixtures, an environment without our settings, no limit on time."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.databases", "tests.support"]

# A property may take as long as a busy machine needs; CI draws the same examples every time.
settings.register_profile(
    "project", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own keys, store and policy; the addresses of test databases stay."""
    for name in list(os.environ):
        if name.startswith("HITL_GUARD_") and not name.startswith("HITL_GUARD_TEST_"):
            monkeypatch.delenv(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from run to run: parallel workers could not agree on the tests."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: give the parameters ids of their own")
