"""``python -m tests.frameworks.fresh``: resume one paused run in this process; the order comes as JSON on stdin."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path

from tests.frameworks.bench import Bench, Setup


def main() -> None:
    order = json.load(sys.stdin)
    module, _, name = order["rig"].partition(":")
    rig = getattr(import_module(module), name)()
    bench = Bench(Path(order["folder"]))
    outcome = asyncio.run(rig.run(Setup(bench=bench), order["state"]))
    bench.close()
    print(json.dumps({"state": outcome.state, "told": outcome.told}))


if __name__ == "__main__":
    main()
