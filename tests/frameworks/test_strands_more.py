"""Strands Agents: limits for a turn, and what stops a call inside a tool."""

from __future__ import annotations

import pytest

pytest.importorskip("strands")

from strands import tool

from tests.frameworks.bench import PAYING, Bench, Turn
from tests.frameworks.test_strands import LOOK, agent_of, said


async def test_calls_below_a_limit_for_the_turn_run_unasked(bench: Bench) -> None:
    agent = agent_of(bench, calls=PAYING)

    await agent.invoke_async("go")

    assert sorted(bench.ran) == ["pay 20", "pay 21"]
    assert bench.only().arguments == {"amount": 22}


async def test_calls_of_one_id_do_not_slip_under_a_limit_for_the_turn(bench: Bench) -> None:
    calls: list[Turn] = [[("p", name, arguments) for _, name, arguments in PAYING[0]]]

    await agent_of(bench, calls=calls).invoke_async("go")

    assert len(bench.ran) < len(PAYING[0])
    assert bench.waiting()


async def test_what_stops_a_call_inside_a_tool_is_no_pause_of_the_tools_own(bench: Bench) -> None:
    inner = bench.guard.tool(bench.tools["delete_record"], name="delete_record")

    @tool(name="look")
    async def look(place: str) -> str:
        """Look."""
        bench.note(f"look {place}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(await inner(record=42))

    agent = agent_of(bench, look, calls=LOOK)

    ended = await agent.invoke_async("go")

    assert (bench.ran, bench.only().tool) == (["look attic"], "delete_record")
    assert (ended.stop_reason, list(agent._interrupt_state.interrupts)) == ("end_turn", [])
    assert "error" in said(agent)
