"""The README's table of frameworks: made of what the tests found, and compared with what the README says.

``python -m tests.frameworks.table`` prints it from the results of the last runs and fails where the README has another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path("build/frameworks")
ROWS = (
    "pause", "approve", "deny", "edit", "fresh process", "42→99", "replay", "own yes", "late hook", "parallel",
    "turn", "sub-agent", "streaming", "raising", "retry", "self-test",
)
SIGNS = {"passed": "✓", "skipped": "–", "failed": "FAILED"}


def rows_of(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the lines of the table: one framework a line, its package's version with it."""
    lines = ["| framework | " + " | ".join(ROWS) + " |", "| --- |" + " :-: |" * len(ROWS)]
    for framework in sorted(found, key=str.lower):
        signs = [SIGNS[found[framework].get(row, "failed")] for row in ROWS]
        lines.append(f"| {framework} | " + " | ".join(signs) + " |")
    return lines


def main() -> int:
    found: dict[str, dict[str, str]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        found |= json.loads(path.read_text())
    lines = rows_of(found)
    print("\n".join(lines))
    readme = Path("README.md").read_text()
    says = readme.partition(f"{lines[0]}\n")[2].partition("\n\n")[0].splitlines()
    odd = sorted({*lines[1:]} ^ {*says})
    for line in odd:
        print(f"README.md says another: {line}" if line in says else f"README.md does not say: {line}", file=sys.stderr)
    return bool(odd) or any("FAILED" in line for line in lines)


if __name__ == "__main__":
    sys.exit(main())
