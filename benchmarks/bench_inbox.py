"""How does the inbox carry 10,000 pending requests, and 500 open event streams?

Server time of one page, from the request's arrival at the app to its last byte, without a network: authenticated, read
from SQLite, verified, rendered. Two people look: an operator who sees everything, and an approver who sees 60 among the
others. Each page is held against 100 ms, and set beside the same page where 50 requests are pending.

For the streams, in one process: the time from the commit of a change until the last of them was handed the event.
The database is asked for changes every few milliseconds here, so that it is not the interval that is measured.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hitl_guard import Guard, Principal, SQLStore, ToolCall
from hitl_guard.asgi import create_app
from hitl_guard.asgi.events import Pace
from hitl_guard.lifecycle import ask
from hitl_guard.testing import UnsafeKeyring

from ._harness import Row, at_most, medians

MANY, FEW = 10_000, 50
PAGE_S = 0.1
STREAMS = 500
TOLD_S = 2.0
BATCH = 1_000
POLICY = b"""\
version: 1
name: bench
default: not_applicable
rules:
  - id: leads
    tools: [close_account]
    effect: require_approval
    approvers: [lead]
  - id: anybody
    tools: [refund]
    effect: require_approval
"""
PEOPLE = {one.id: one for one in (Principal("olga", roles=("operator",)), Principal("carol"))}
PAGES = {
    "list page, HTML, operator": ("olga", "/"), "list page, HTML, sees 60 of them": ("carol", "/"),
    "list page, JSON, operator": ("olga", "/api/requests"),
    "list page, JSON, sees 60 of them": ("carol", "/api/requests"),
}


def rows() -> list[Row]:
    """Measure, and return two rows for each page and one for the streams."""
    with _inbox(MANY) as many, _inbox(FEW) as few, asyncio.Runner() as runner:
        found: list[Row] = []
        for name, (who, path) in PAGES.items():
            times = medians(
                {
                    "many": lambda who=who, path=path: runner.run(_get(many, who, path)),  # type: ignore[misc]
                    "few": lambda who=who, path=path: runner.run(_get(few, who, path)),  # type: ignore[misc]
                },
                rounds=41, repeats=1,
            )
            found.append(at_most(f"{name}, {MANY} pending (floor: 100 ms)", times["many"], PAGE_S, 1.0))
            found.append(at_most(f"{name}, {MANY} pending (floor: {FEW} pending)", times["many"], times["few"], None))
        told = statistics.median(runner.run(_told(few)))
    found.append(at_most(f"one change told to {STREAMS} streams (floor: 2 s)", told, TOLD_S, 1.0))
    return found


@contextmanager
def _inbox(number: int) -> Iterator[Any]:
    """Yield an app in front of so many pending requests; the last 60 of them (or all) anybody may decide."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "bench.yaml"
        policy.write_bytes(POLICY)
        store = SQLStore(f"sqlite:///{Path(folder) / 'bench.db'}")
        store.setup()
        guard = Guard(policy=policy, keyring=UnsafeKeyring(), store=store)
        _ask(guard, number)
        yield create_app(
            guard, authenticate=lambda request: PEOPLE.get(request.headers.get("authorization", "")),
            pace=Pace(poll_ms=5, beat_ms=60_000, own_streams=STREAMS),
        )
        store.close()


def _ask(guard: Guard, number: int) -> None:
    """Sign and store the requests by the thousand; each by itself would wait for the disk."""
    desk, steps = guard._desk, []
    reading = desk.read("default")
    for which in range(number):
        tool = "close_account" if which < number - 60 else "refund"
        arguments = {"order": which, "amount": 82, "note": "The order was late, so the customer asks for it back."}
        bound = desk.bind(ToolCall(tool, arguments, run_id=f"run-{which % 500}", call_id=f"c{which}", user="ana"))
        envelope, details = ask.envelope_of(desk, bound, desk.evaluate(bound), reading)
        steps.append(ask.sign(desk, envelope, details, bound, reading))
    for first in range(0, number, BATCH):
        assert desk.store.write(steps[first:first + BATCH], desk.sealer) is not None


async def _get(app: Any, who: str, path: str) -> bytes:
    body: list[bytes] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        body.append(message.get("body", b""))

    await app(_scope(who, path), receive, send)
    return b"".join(body)


def _scope(who: str, path: str) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "query_string": b"", "root_path": "", "scheme": "https",
        "headers": [(b"authorization", who.encode()), (b"host", b"bench")], "server": ("bench", 443),
        "http_version": "1.1", "client": ("127.0.0.1", 1),
    }


async def _told(app: Any) -> list[float]:
    """Return for several changes how long it took until all streams had them."""
    hub = app.state.inbox.hub
    lines = [_Line(app) for _ in range(STREAMS)]
    for line in lines:
        await line.began.wait()
    assert hub.open_streams == STREAMS
    guard, found = app.state.inbox.guard, []
    for which in range(7):
        call = ToolCall("refund", {"order": which}, run_id="told", call_id=f"told-{which}", user="ana")
        await asyncio.to_thread(guard.request, call)
        committed = time.perf_counter()
        found.append(max([await line.told.get() for line in lines]) - committed)
    await app.state.inbox.close()
    await asyncio.gather(*(line.task for line in lines))
    return found


class _Line:
    """One open stream, as the server's side of a connection; ``told`` gets the times of its events."""

    def __init__(self, app: Any) -> None:
        self.began = asyncio.Event()
        self.told: asyncio.Queue[float] = asyncio.Queue()
        self.task = asyncio.create_task(app(_scope("olga", "/api/events"), self._receive, self._send))

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        body = message.get("body", b"")
        if body.startswith(b": alive"):
            self.began.set()
        elif body.startswith(b"event: change"):
            self.told.put_nowait(time.perf_counter())
