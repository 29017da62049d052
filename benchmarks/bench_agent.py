"""What does the guard cost a loop whose tools need nobody?

The floor is the same loop of 1,000 turns, with the same model and tool, whose calls get their permit without the guard:
their arguments are only compared with the tool's schema, as any loop does. (There is no public way to leave the guard
out, so the floor reaches inside.) One row for a loop that keeps its conversation in the store, as a server does.
One for a loop that keeps nothing and whose model answers at once: there the checks are most of what is measured.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import orjson

from hitl_guard import Guard, SQLStore, ToolCall
from hitl_guard.agent import Agent, Tool
from hitl_guard.agent.gate import Gate
from hitl_guard.agent.state import Call
from hitl_guard.lifecycle.schemas import fits
from hitl_guard.models import Permit, Scope
from hitl_guard.testing import UnsafeKeyring

from ._harness import Row, at_most, medians

TURNS = 1_000
SCHEMA = {
    "additionalProperties": False, "properties": {"id": {"type": "string"}}, "required": ["id"], "type": "object",
}


def rows() -> list[Row]:
    """Measure, and return a row for a kept conversation and one for none."""
    with tempfile.TemporaryDirectory() as folder, closing(SQLStore(f"sqlite:///{Path(folder) / 'bench.db'}")) as store:
        store.setup()
        guard = Guard(policy="not-applicable", keyring=UnsafeKeyring(), store=store)
        return [
            _row("agent, 1,000 turns, conversation kept vs no guard", guard, memory=True, rounds=9),
            _row("agent, 1,000 turns, nothing kept vs no guard", guard, memory=False, rounds=31),
        ]


def _row(name: str, guard: Guard, *, memory: bool, rounds: int) -> Row:
    loop = asyncio.new_event_loop()
    threads = iter(range(10_000))

    def run() -> None:
        agent = Agent("bench", model=_model(), tools=[_tool()], guard=guard, memory=memory, max_steps=TURNS + 1)
        where: dict[str, Any] = {"thread_id": f"thread-{next(threads)}"} if memory else {}
        result = loop.run_until_complete(agent.generate("go", user="ana", **where))
        assert (result.status, result.steps) == ("success", TURNS + 1)

    def unguarded() -> None:
        with mock.patch.object(Gate, "free", _open):
            run()

    try:
        times = medians({"guarded": run, "bare": unguarded}, rounds=rounds, repeats=1)
    finally:
        loop.close()
    return at_most(name, times["guarded"] / TURNS, times["bare"] / TURNS, 1.3)


def _open(gate: Gate, call: Call, asked: ToolCall, tool: Tool) -> Permit:
    """Return a permit without a word to the guard: arguments that fit the tool's schema are all that is asked for."""
    arguments = orjson.dumps(call.args)
    assert fits(SCHEMA, arguments)
    return Permit(
        tool=call.name, canonical=arguments, fingerprint="", scope=Scope("default", "ana", "bench", call.id, 0)
    )


def _tool() -> Tool:
    async def execute(given: dict[str, Any]) -> dict[str, Any]:
        return {"ok": given["id"]}

    return Tool("look_up", input_schema=SCHEMA, execute=execute, effect="none")


def _model() -> Callable[..., Any]:
    turn = iter(range(TURNS))

    async def model(messages: Any, tools: Any, settings: Any) -> dict[str, Any]:
        number = next(turn, None)
        if number is None:
            return {"content": "done"}
        function = {"arguments": '{"id":"A-17"}', "name": "look_up"}
        return {"content": None, "tool_calls": [{"function": function, "id": f"call-{number}", "type": "function"}]}

    return model
