"""A bench for each test, and the table of what held, printed at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.bench import Bench
from tests.frameworks.contract import ROOT, Contract, row_of
from tests.frameworks.table import FOLDER, rows_of

_KEY = pytest.StashKey[dict[str, dict[str, str]]]()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A guard, its tools and its database in a folder of their own."""
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HITL_GUARD_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    owner = getattr(item, "cls", None)
    if owner is not None and issubclass(owner, Contract) and (call.when == "call" or report.outcome != "passed"):
        report.user_properties.append(("row", [
            f"{owner.rig.name} {version(owner.rig.package)}", row_of(item.name), report.outcome,
        ]))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    found: dict[str, dict[str, str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "row":
                    framework, row, outcome = value
                    held = found.setdefault(framework, {}).get(row, "passed")
                    found[framework][row] = outcome if held == "passed" else held
    if not found:
        return
    folder = ROOT / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for framework, rows in found.items():
        (folder / f"{framework.split()[0]}.json").write_text(json.dumps({framework: rows}))
    terminalreporter.write_line("\n".join(["", *rows_of(found)]))
