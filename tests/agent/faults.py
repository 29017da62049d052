"""What the tests of faults share: checks that must notice a fault, races at a reading, a store that fails."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from hitl_guard.agent import Agent
from hitl_guard.errors import HitlGuardError, StoreUnavailableError
from hitl_guard.lifecycle.ledger import verify
from hitl_guard.testing import ScriptedModel
from tests.agent.stage import Stage
from tests.threats.gates import LIMIT_S

ONE = ("c1", "delete", {"id": "1"})
TWO = ("c2", "delete", {"id": "2"})
ALL_STATES = ("pending", "approved", "executing", "suspended", "in_doubt")


class Script:
    """A model of which several processes may have one each: the conversation alone says which turn it is at.

    Args:
        after: How many turns of assistants the conversation has before its first.

    Attributes:
        calls: The messages of each call, copied.
    """

    def __init__(self, *turns: Any, after: int = 0) -> None:
        self._turns, self._after = turns, after
        self.calls: list[list[dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, Any]], tools: Any, settings: Any) -> Any:
        self.calls.append(copy.deepcopy(messages))
        said = sum(message["role"] == "assistant" for message in messages)
        return await ScriptedModel(self._turns[said - self._after])(messages, tools, settings)


async def noticed(check: Awaitable[object], *, error: type[Exception] = AssertionError) -> None:
    """Demand that a check fails: it was run against a deliberate fault, and would not see one otherwise."""
    with pytest.raises(error):
        await check


async def code_of(work: Awaitable[object]) -> str:
    """Return ``ok``, or the code of the refusal."""
    try:
        await work
    except HitlGuardError as error:
        return error.code
    return "ok"


async def paused(agent: Agent, **options: Any) -> str:
    """Start a run for ana, and return its id when it waits."""
    result = await agent.generate("go", user="ana", **options)
    assert result.status == "suspended"
    return result.run_id


async def codes_of(*works: Awaitable[object]) -> list[str]:
    """Do several things at once; return each one's code, in order."""
    return list(await asyncio.gather(*map(code_of, works)))


def segments(stage: Stage) -> list[bytes]:
    """Return the bodies of all stored pieces of conversations."""
    from sqlalchemy import text

    query = text("SELECT body FROM hitl_guard_segments ORDER BY seq")
    return stage.store._connections.query(lambda connection: [bytes(row[0]) for row in connection.execute(query)])


def trail(stage: Stage, request_id: str | None = None) -> list[str]:
    """Return the types of the events of one request (of each, when omitted), by version."""
    found = [
        event.type for row, _, events in stage.store.request_histories() for event in events
        if row is not None and request_id in (None, row.id)
    ]
    return found


def assert_over(stage: Stage) -> None:
    """Demand that nothing of any run is left but its audit trail, and that this one verifies."""
    assert stage.stored() == 0
    assert segments(stage) == []
    assert [request.state for request in stage.guard.pending(states=ALL_STATES)] == []
    assert not verify(stage.guard._desk).findings


def results(messages: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return ``(tool-call id, text)`` of the tool messages of a conversation, in order."""
    return [(one["tool_call_id"], one["content"]) for one in messages if one["role"] == "tool"]


def approvals(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the payloads of the approvals that a stream's own run tells."""
    return [event["payload"] for event in events if event["type"] == "tool-call-approval"]


class Meeting:
    """A store at whose reads a race is provoked: readers wait for one another, two by two.

    Args:
        methods: Which reads: ``load_run`` (a suspended run), ``load`` (a request). rounds: How many pairs wait.

    Attributes:
        versions: The versions of the suspended run that the readers read, in pairs.
    """

    def __init__(self, stage: Stage, *methods: str, rounds: int = 1) -> None:
        self._store, self._lock = stage.store, threading.Lock()
        self._left = dict.fromkeys(methods or ("load_run",), 2 * rounds)
        self._barriers = {method: threading.Barrier(2) for method in self._left}
        self.versions: list[int] = []
        stage.guard._desk.store = self

    def __getattr__(self, name: str) -> Any:
        really = getattr(self._store, name)
        return partial(self._meet, name, really) if name in self._left else really

    def _meet(self, name: str, really: Callable[..., Any], *args: Any, **options: Any) -> Any:
        found = really(*args, **options)
        with self._lock:
            meets, self._left[name] = self._left[name] > 0, self._left[name] - 1
            if meets and name == "load_run" and found[1] is not None:
                self.versions.append(found[1].version)
        if meets:
            self._barriers[name].wait(LIMIT_S)
        return found


class Failing:
    """A store that fails at one chosen use, once or from then on.

    Args:
        methods: Which methods are counted. at: Which use of them fails, from 0; None: none does. after: Whether the
            write is committed all the same, and only the reply is lost. stays: Whether it is down from then on.

    Attributes:
        used: The methods that were used, in order.
    """

    def __init__(
        self, stage: Stage, *methods: str, at: int | None = None, after: bool = False, stays: bool = False
    ) -> None:
        self._store, self._methods = stage.store, methods
        self._at, self._after, self._stays = at, after, stays
        self._stage, self._lock = stage, threading.Lock()
        self.used: list[str] = []
        stage.guard._desk.store = self

    def mend(self) -> None:
        """Put the real store back."""
        self._stage.guard._desk.store = self._store

    def __getattr__(self, name: str) -> Any:
        really = getattr(self._store, name)
        return self._counted(name, really) if name in self._methods else really

    def _counted(self, name: str, really: Callable[..., Any]) -> Callable[..., Any]:
        def use(*args: Any, **options: Any) -> Any:
            with self._lock:
                place = len(self.used)
                self.used.append(name)
            fails = self._at is not None and (place >= self._at if self._stays else place == self._at)
            if fails and not (self._after and place == self._at):
                raise StoreUnavailableError("The database is gone.", detail="lost")
            answer = really(*args, **options)
            if fails:
                raise StoreUnavailableError("The reply is lost.", detail="commit-unknown")
            return answer

        return use
