"""A stage for the built-in agent: a guard on a real database, agents with scripted models, tools that count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.stream import AgentStream
from hitl_guard.store.sql import SQLStore
from hitl_guard.testing import ScriptedModel
from tests.databases import Database
from tests.support import BOB, World

ID_SCHEMA: dict[str, Any] = {
    "additionalProperties": False, "properties": {"id": {"type": "string"}}, "required": ["id"], "type": "object",
}
CITY_SCHEMA: dict[str, Any] = {
    "additionalProperties": False, "properties": {"location": {"type": "string"}}, "required": ["location"],
    "type": "object",
}
Event = dict[str, Any]


class Stage:
    """One guard, whose policy lets everything run unless an agent or tool asks, and what its agents did.

    Attributes:
        ran: ``(tool, input)`` of every start of a tool's function, in order.
    """

    def __init__(self, store: SQLStore, **options: Any) -> None:
        self.world = World(store, **({"policy": "not-applicable"} | options))
        self.guard = self.world.guard
        self.store = store
        self.ran: list[tuple[str, Any]] = []

    def tool(self, name: str = "delete", *, result: Any = None, **options: Any) -> Tool:
        """Return a tool that takes an ``id`` and says ``{"ok": True}``, unless other things are given."""
        def execute(given: Any) -> Any:
            self.ran.append((name, given))
            return {"ok": True} if result is None else result

        given: dict[str, Any] = {"execute": execute, "input_schema": ID_SCHEMA}
        return Tool(name, **(given | options))

    def asking(self, name: str = "weather", **options: Any) -> Tool:
        """Return a tool that suspends itself until it gets a location."""
        async def execute(given: Any, context: Any) -> Any:
            self.ran.append((name, context.resume_data))
            if context.resume_data is None:
                await context.suspend({"question": "Which city?"})
                return None
            return {"weather": f"{context.resume_data['location']}: sunny"}

        given: dict[str, Any] = {"execute": execute, "resume_schema": CITY_SCHEMA}
        return Tool(name, **(given | options))

    def agent(self, *turns: Any, id: str = "shop", tools: Any = (), **options: Any) -> Agent:
        """Return an agent whose model says these turns (see `hitl_guard.testing.ScriptedModel`)."""
        return Agent(id, model=ScriptedModel(*turns), tools=tools, guard=self.guard, **options)

    def chain(self, depth: int, tool: Tool, *, call: tuple[str, str, Any] = ("inner", "delete", {"id": "7"})) -> Agent:
        """Return a supervisor over ``depth - 1`` levels of agents; the innermost calls ``tool`` once."""
        agent = self.agent([call], "level 0 done", id="level-0", tools=[tool])
        for level in range(1, depth):
            agent = self.agent(
                [(f"deleg-{level}", f"agent-level-{level - 1}", {"prompt": "go"})], f"level {level} done",
                id=f"level-{level}", agents=[agent],
            )
        return agent

    def stored(self) -> int:
        """Return how many snapshots the store holds."""
        return len(self.rows())

    def rows(self) -> list[Any]:
        """Return the stored snapshots' rows, as ``(key, body)``."""
        from sqlalchemy import text

        query = text("SELECT run, body FROM hitl_guard_runs")
        return self.store._connections.query(lambda connection: list(connection.execute(query)))


async def read(stream: AgentStream) -> list[Event]:
    """Return every event of a stream."""
    return [event async for event in stream]


def inner(event: Event) -> Event:
    """Return the innermost event of a sub-agent's wrapped one."""
    return inner(event["payload"]["output"]) if event["type"] == "tool-output" else event


def label(event: Event) -> str:
    """Return an event's type; a sub-agent's as ``tool-output<…>``."""
    return f"tool-output<{label(event['payload']['output'])}>" if event["type"] == "tool-output" else str(event["type"])


def types(events: list[Event]) -> list[str]:
    """Return the types of events, in order."""
    return [label(event) for event in events]


def only(events: list[Event], kind: str) -> Event:
    """Return the payload of the one event of a type."""
    (found,) = [event for event in events if event["type"] == kind]
    payload: Event = found["payload"]
    return payload


@pytest.fixture
def stage(make_database: Callable[..., Database], tmp_path: Path) -> Iterator[Stage]:
    """A stage on a new SQLite database."""
    store = SQLStore(make_database("sqlite", folder=tmp_path).url)
    yield Stage(store)
    store.close()


@pytest.fixture
def make_stage(database: Database) -> Iterator[Callable[..., Stage]]:
    """Make stages on a new database of each kind: SQLite, PostgreSQL, MariaDB."""
    stores: list[SQLStore] = []

    def make(**options: Any) -> Stage:
        store = SQLStore(database.url)
        stores.append(store)
        return Stage(store, **options)

    yield make
    for store in stores:
        store.close()


__all__ = [
    "BOB", "CITY_SCHEMA", "ID_SCHEMA", "Stage", "inner", "label", "make_stage", "only", "read", "stage", "types",
]
