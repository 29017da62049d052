"""Runs every ``bench_*.py`` here, prints the table, writes ``results.json``; exit code 1 if a bound is broken."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from ._harness import Row, table, to_json

FOLDER = Path(__file__).parent


def main() -> int:
    """Run all benchmarks and return the exit code."""
    rows: list[Row] = []
    for path in sorted(FOLDER.glob("bench_*.py")):
        rows += importlib.import_module(f"{__package__}.{path.stem}").rows()
    print(table(rows))
    (FOLDER / "results.json").write_text(json.dumps(to_json(rows), indent=1) + "\n", "utf-8")
    broken = [row.name for row in rows if not row.ok]
    for name in broken:
        print(f"Does not hold: {name}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
