"""Real processes for races and sudden deaths: one that is warm already forks children, each with a line to the test.

``python -m tests.threats.processes PORT`` reads job lines on its standard input. For each it forks a child, which
connects to ``PORT`` of 127.0.0.1 and runs the function of `JOBS` that the job names.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hitl_guard.errors import HitlGuardError
from hitl_guard.keyring import Keyring
from hitl_guard.lifecycle import claim
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ToolCall
from hitl_guard.store.sql import SQLStore
from tests.support import World, document
from tests.threats.gates import LIMIT_S, GatedStore, at_once, told

ROOT = Path(__file__).resolve().parents[2]
WRITERS = 2
"""Connections of each kind per child, so that eight children leave a server room for others."""


class Line:
    """One JSON value per line, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT_S)
        self._connection = connection
        self._reader = connection.makefile("rb")

    def say(self, value: Any) -> None:
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def hear(self) -> Any:
        """Return what the other end says next, or None when it is gone."""
        try:
            text = self._reader.readline()
        except ConnectionResetError:
            return None
        return json.loads(text) if text else None

    def close(self) -> None:
        self._reader.close()
        self._connection.close()


class Child:
    """One forked child, seen from the test."""

    def __init__(self, connection: socket.socket) -> None:
        self._line = Line(connection)
        self.pid: int = self._line.hear()

    def say(self, value: Any) -> None:
        self._line.say(value)

    def hear(self) -> Any:
        return self._line.hear()

    def kill(self) -> None:
        """Kill it with SIGKILL and return when it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        while self._line.hear() is not None:
            pass

    def close(self) -> None:
        self._line.close()


class Processes:
    """The warm process and the children that it forks.

    Args:
        module: What it runs: this module, or one that has added jobs of its own to `JOBS`.
    """

    def __init__(self, module: str = "tests.threats.processes") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LIMIT_S)
        port = self._listener.getsockname()[1]
        self._parent = subprocess.Popen(
            [sys.executable, "-m", module, str(port)], cwd=ROOT, stdin=subprocess.PIPE
        )
        self._children: list[Child] = []

    def start(self, job: str, world: World, url: str, **facts: Any) -> Child:
        """Start ``job`` in a child with the world's keys and policy on the database ``url``."""
        order = {
            "job": job, "url": url, "keys": world.keyring.dump().reveal().decode(),
            "policy": [document.source.decode() for document in world.policy.documents], **facts,
        }
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(order).encode() + b"\n")
        self._parent.stdin.flush()
        connection, _ = self._listener.accept()
        self._children.append(Child(connection))
        return self._children[-1]

    def close(self) -> None:
        for child in self._children:
            child.close()
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(LIMIT_S)
        self._listener.close()


def started() -> Iterator[Processes]:
    """Make it a fixture: ``processes = pytest.fixture(scope="module")(started)``."""
    processes = Processes()
    yield processes
    processes.close()


# -- in the children ---------------------------------------------------------------------------------------------------


def facts_of(call: ToolCall) -> dict[str, Any]:
    """Return a call as it goes to a child."""
    return {name: getattr(call, name) for name in ("tool", "arguments", "run_id", "call_id", "user")}


def opened(job: dict[str, Any], *, gate: Callable[[], object] | None = None, **settings: Any) -> World:
    """Return a guard of this process's own on the job's database, with the test's keys and policy."""
    store: Any = SQLStore(job["url"], pool_size=WRITERS)
    if gate is not None:
        store = GatedStore(store, gate)
    return World(
        store, keyring=Keyring.from_json(job["keys"]),
        policy=[document(text) for text in job["policy"]], settings=Settings(**settings),
    )


def race(line: Line, job: dict[str, Any]) -> None:
    """Spend one grant in several threads; say what each was told, and how often the tool ran here."""
    def meet() -> None:
        line.say("ready")
        line.hear()

    barrier = threading.Barrier(job["threads"], action=meet)
    gated = job["gated"]
    world = opened(job, gate=(lambda: barrier.wait(LIMIT_S)) if gated else None)
    call = ToolCall(**job["call"])

    def claim() -> str:
        if not gated:
            barrier.wait(LIMIT_S)
        return told(lambda: world.run(call, request_id=job["request"]))

    line.say([at_once([claim] * job["threads"]), len(world.effects)])


def die(line: Line, job: dict[str, Any]) -> None:
    """Run one call up to a point, say so, and wait there to be killed. Says ``effect`` when the tool has its effect."""
    def stop() -> None:
        line.say(job["point"])
        line.hear()

    def reach(point: str) -> None:
        if job["point"] == point:
            stop()

    # It reads as in doubt at once; that must not keep the tool from starting here.
    vars(claim)["_start_by"] = lambda desk: None
    world = opened(job, gate=lambda: reach("read"), run_within=1)
    call = ToolCall(**job["call"])

    def tool(**_: Any) -> None:
        reach("started")
        line.say("effect")
        reach("done")
        # A settling guard reads nothing but the time: there it stops, with the tool behind it and no receipt.
        settling: Any = GatedStore(world.store, lambda: reach("settling"), after="now")
        world.guard._desk.store = settling

    if job["point"] == "claimed":
        world.guard.authorize(call, request_id=job["request"])
        stop()
    world.guard.run(call, tool, request_id=job["request"])


def fork(line: Line, job: dict[str, Any]) -> None:
    """Use a guard, fork, and spend in both: a grant each, and one that both want. Says what each was told."""
    world = opened(job)
    first, mine, others, shared = (ToolCall(**call) for call in job["calls"])
    before = told(lambda: world.run(first))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        codes = [told(partial(world.run, call)) for call in (others, shared)]
        os.write(writer, json.dumps(codes).encode())
        os._exit(0)
    codes = [told(partial(world.run, call)) for call in (mine, shared)]
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        inherited = json.loads(pipe.read())
    os.waitpid(pid, 0)
    findings = [finding.code for finding in verify(world.guard._desk).findings]
    line.say({"before": before, "parent": codes, "child": inherited, "findings": findings})


JOBS: dict[str, Callable[[Line, dict[str, Any]], None]] = {"race": race, "die": die, "fork": fork}


def _child(job: dict[str, Any], port: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line = Line(socket.create_connection(("127.0.0.1", port)))
    line.say(os.getpid())
    try:
        JOBS[job["job"]](line, job)
    except HitlGuardError as error:
        line.say(f"error: {error.code} {error.detail}: {error}")
        raise
    line.close()


def main() -> None:
    """Fork a child per job line until the test closes the pipe."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children; the kernel takes them away
    port = int(sys.argv[1])
    for text in sys.stdin.buffer:
        if os.fork() == 0:
            _child(json.loads(text), port)
            os._exit(0)


if __name__ == "__main__":
    main()
