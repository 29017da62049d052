"""Another process on a stage's database: one that is nothing but new objects, and a real one.

``python -m tests.agent.elsewhere`` reads one job as JSON on its standard input, goes on with the suspended run that it
finds there, and prints what happened.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hitl_guard.keyring import Keyring
from hitl_guard.policy.code import CallInfo, code_policy
from hitl_guard.store.sql import SQLStore
from tests.agent.stage import Stage, read, types
from tests.support import BOB

ROOT = Path(__file__).resolve().parents[2]


def asks_for_delete(info: CallInfo) -> bool:
    """Ask a person for ``delete``, and for nothing else."""
    return info.tool_name == "delete"


DECLARED = code_policy(asks_for_delete, name="deletes", version="1")


def url_of(stage: Stage) -> str:
    """Return the URL of a stage's database."""
    return stage.store._dialect.url.render_as_string(hide_password=False)


@contextmanager
def elsewhere(stage: Stage, **options: Any) -> Iterator[Stage]:
    """Give a stage as another process has it: its own store, guard and agents; runs of tools are counted together."""
    store = SQLStore(url_of(stage))
    there = Stage(store, **({"keyring": stage.world.keyring} | options))
    there.ran = stage.ran
    try:
        yield there
    finally:
        store.close()


def in_another_process(stage: Stage, *turns: Any, declared: bool = False) -> dict[str, Any]:
    """Let a real process find the one suspended run, approve its call and go on; return what it saw.

    Args:
        turns: What its model says. declared: Whether its agent has the function policy `DECLARED`.
    """
    keys = stage.world.keyring.dump().reveal().decode()
    job = {"declared": declared, "keys": keys, "turns": turns, "url": url_of(stage)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.elsewhere"], cwd=ROOT, input=json.dumps(job), stdout=subprocess.PIPE,
        text=True, check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def _going_on(job: dict[str, Any]) -> dict[str, Any]:
    stage = Stage(SQLStore(job["url"]), keyring=Keyring.from_json(job["keys"]))
    agent = stage.agent(
        *job["turns"], tools=[stage.tool("delete"), stage.tool("look")], policies=[DECLARED] if job["declared"] else [],
    )
    (found,) = (await agent.list_suspended_runs(user="ana")).runs
    stream = agent.approve_tool_call(found.run_id, approver=BOB)
    events = await read(stream)
    stage.store.close()
    return {
        "asked": [event["payload"]["toolName"] for event in events if event["type"] == "tool-call-approval"],
        "listed": [call.tool_name for call in found.tool_calls], "ran": stage.ran, "run_id": found.run_id,
        "status": stream.status, "types": types(events),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_going_on(json.load(sys.stdin)))))
