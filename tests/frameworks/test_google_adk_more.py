"""Google ADK: limits for a turn, ADK's own confirmations, and how calls end."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.tools import FunctionTool
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from hitl_guard.errors import ApprovalRequired
from tests.frameworks.bench import ONE, PAYING, Bench, Turn
from tests.frameworks.test_google_adk import Chat

LOOK: list[Turn] = [[("c1", "look", {"place": "attic"})]]


async def test_calls_below_a_limit_for_the_turn_run_unasked(bench: Bench) -> None:
    chat = Chat(bench, FunctionTool(bench.sealed["pay"]), calls=PAYING)

    await chat.say()

    assert sorted(bench.ran) == ["pay 20", "pay 21"]
    assert bench.only().arguments == {"amount": 22}


async def test_calls_of_one_id_do_not_slip_under_a_limit_for_the_turn(bench: Bench) -> None:
    calls: list[Turn] = [[("p", name, arguments) for _, name, arguments in PAYING[0]]]

    await Chat(bench, FunctionTool(bench.sealed["pay"]), calls=calls).say()

    assert len(bench.ran) < len(PAYING[0])
    assert bench.waiting()


async def test_a_tool_that_wants_a_confirmation_needs_an_approval_of_the_guard(bench: Bench) -> None:
    chat = Chat(bench, FunctionTool(bench.sealed["look"], require_confirmation=True), calls=LOOK)
    await chat.say()
    assert (bench.ran, bench.only().tool) == ([], "look")

    bench.approve(bench.only())
    told = await chat.say(*chat.yes())
    assert bench.ran == ["look attic"]
    assert "seen: attic" in told


async def test_adks_own_yes_to_a_tool_that_wants_a_confirmation_runs_nothing(bench: Bench) -> None:
    chat = Chat(bench, FunctionTool(bench.sealed["look"], require_confirmation=True), calls=LOOK)
    await chat.say()

    await chat.say(*chat.yes())

    assert (bench.ran, bench.only().state) == ([], "pending")


class FromServer(BaseTool):
    """Answers as a tool of an MCP server does."""

    def __init__(self, member: str) -> None:
        super().__init__(name="delete_record", description="Delete a record.")
        self.member = member

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description=self.description)

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return {"content": [{"type": "text", "text": "nothing deleted"}], self.member: True}


@pytest.mark.parametrize(
    ("member", "state"), [("isError", "in_doubt"), ("is_error", "in_doubt"), ("fine", "succeeded")]
)
async def test_an_error_that_a_server_tells_is_no_success(bench: Bench, member: str, state: str) -> None:
    chat = Chat(bench, FromServer(member), calls=ONE)
    await chat.say()
    request = bench.only()
    bench.approve(request)

    told = await chat.say(*chat.yes())

    assert bench.state(request) == state
    assert "nothing deleted" in told


async def test_an_edited_call_that_fails_tells_that_a_person_changed_it(bench: Bench) -> None:
    async def delete_record(record: int) -> dict[str, str]:
        """Delete a record."""
        return {"error": f"there is no {record}"}

    chat = Chat(bench, FunctionTool(delete_record), calls=ONE)
    await chat.say()
    bench.approve(bench.only(), arguments={"record": 43})

    told = await chat.say(*chat.yes())

    assert "there is no 43" in told
    assert "A person changed this call" in told


async def test_what_stops_a_call_inside_a_tool_is_no_pause_of_the_tools_own(bench: Bench) -> None:
    inner = bench.guard.tool(bench.tools["delete_record"], name="delete_record")

    async def look(place: str) -> str:
        """Look."""
        bench.note(f"look {place}")
        with bench.guard.context(user="ana", run_id="inner"):
            return str(await inner(record=42))

    chat = Chat(bench, FunctionTool(look), calls=LOOK)

    with pytest.raises(ApprovalRequired):
        await chat.say()
    assert (bench.ran, bench.only().tool) == (["look attic"], "delete_record")
