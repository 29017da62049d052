"""What does `hitl-guard mcp-proxy` add to a call?

The floor is the same call of the same small server over its pipes, without the proxy. The server answers at once, as no
real one does: one that takes a few milliseconds hides most of the ratio. Measured are a request that only passes
through (``ping``) and a tool call that the policy lets run, which is bound, evaluated and looked up in the store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson

from hitl_guard import SQLStore, clock, keyfile
from hitl_guard.keyring import Key, Keyring

from ._harness import Row, at_most, medians

SERVER = """\
import json, sys
TOOLS = [{"name": "note", "description": "Read a note.", "inputSchema": {"type": "object"}}]
for line in sys.stdin.buffer:
    frame = json.loads(line)
    if "id" not in frame:
        continue
    result = {"tools/list": {"tools": TOOLS}, "tools/call": {"content": [{"type": "text", "text": "done"}]}}
    answer = {"jsonrpc": "2.0", "id": frame["id"], "result": result.get(frame["method"], {})}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n")
    sys.stdout.buffer.flush()
"""
PING = {"id": 1, "jsonrpc": "2.0", "method": "ping"}
CALL = {
    "id": 1, "jsonrpc": "2.0", "method": "tools/call",
    "params": {"arguments": {"order": "A-17", "text": "late"}, "name": "note"},
}
PASSED, CALLED = 30.0, 80.0


def rows() -> list[Row]:
    """Measure, and return a row for what passes through and one for a call that needs nobody."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = [sys.executable, "-c", SERVER]
        direct = stack.enter_context(_asking(server, {}))
        proxied = stack.enter_context(_asking(
            [sys.executable, "-c", "from hitl_guard.cli import main; main()", "mcp-proxy", "--", *server],
            _settings(Path(folder)),
        ))
        found = []
        for name, frame, hold in (
            ("a request through the MCP proxy", PING, PASSED), ("a tool call through the MCP proxy", CALL, CALLED),
        ):
            line = orjson.dumps(frame) + b"\n"
            one, other = direct(line), proxied(line)
            one(), other()
            times = medians({"direct": one, "proxied": other}, rounds=301)
            found.append(at_most(name, times["proxied"], times["direct"], hold))
        return found


def _settings(folder: Path) -> dict[str, str]:
    keyfile.create(folder / "keys.json", Keyring([Key.generate(clock.epoch_ms() - 3_600_000)]).dump())
    url = f"sqlite:///{folder / 'bench.db'}"
    store = SQLStore(url)
    store.setup()
    store.close()
    return {
        "HITL_GUARD_KEYS_FILE": str(folder / "keys.json"), "HITL_GUARD_POLICY": "not-applicable",
        "HITL_GUARD_STORE": url,
    }


@contextmanager
def _asking(command: Sequence[str], settings: dict[str, str]) -> Iterator[Callable[[bytes], Callable[[], None]]]:
    """Yield what makes an operation of a line: send it, and read the answer."""
    environment = os.environ | settings
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:  # noqa: S603
        sending, reading = process.stdin, process.stdout
        assert sending is not None
        assert reading is not None

        def operation(line: bytes) -> Callable[[], None]:
            def ask() -> None:
                sending.write(line)
                sending.flush()
                answer = reading.readline()
                assert b'"result"' in answer, answer
                assert b"isError" not in answer, answer

            return ask

        try:
            yield operation
        finally:
            process.terminate()
