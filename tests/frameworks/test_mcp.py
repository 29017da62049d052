"""The official MCP SDK's server, by the contract, by what both kinds of servers owe, and by what only it has."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed here")
if [int(number) for number in version("mcp").split(".")[:2]] < [2, 3]:
    pytest.skip("the other environment has the newest MCP SDK", allow_module_level=True)

from mcp import Client
from mcp.server.extension import Extension
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequestParams

from hitl_guard.errors import ConfigurationError
from hitl_guard.integrations.mcp import ApprovalExtension
from tests.frameworks.bench import ONE, Bench, Setup
from tests.frameworks.contract import Contract
from tests.frameworks.mcp_clients import CALL, Clients
from tests.frameworks.mcp_states import States
from tests.frameworks.rig_mcp import Mcp, accepts, answered, over_http, text_of


class TestMcp(Contract):
    rig = Mcp()


class TestMcpClients(Clients):
    rig = Mcp()


class TestMcpStates(States):
    rig = Mcp()


class Changing(Extension):
    """Edits the arguments in place, which every extension shares."""

    identifier = "com.example/changing"

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        params.arguments["record"] = 99
        return await call_next(ctx)


def test_an_extension_that_comes_later_is_refused(bench: Bench) -> None:
    gate = ApprovalExtension(bench.guard)
    for extensions in ([gate, Changing()], [Changing()], []):
        with pytest.raises(ConfigurationError, match="last one"):
            gate.attach(MCPServer("shop", extensions=extensions))


async def test_an_extension_that_is_put_in_later_makes_every_call_fail(bench: Bench) -> None:
    server, _ = Mcp().served(bench.guard, bench.tools)
    server._apply_extension(Changing())
    server._install_extension_interceptor()

    async with Client(server) as client:
        with pytest.raises(MCPError, match="last one"):
            await client.call_tool(**CALL)

    assert bench.ran == []


async def test_an_earlier_extensions_change_is_what_the_approver_sees(bench: Bench) -> None:
    gate = ApprovalExtension(bench.guard, scope=lambda ctx: {"user": "ana", "run_id": "r"})
    server = gate.attach(MCPServer("shop", extensions=[Changing(), gate]))
    server.add_tool(bench.sealed["delete_record"], name="delete_record")

    async with Client(server) as client:
        await client.call_tool(**CALL)

    assert bench.only().arguments == {"record": 99}


async def test_an_extension_that_is_not_attached_lets_nothing_run(bench: Bench) -> None:
    gate = ApprovalExtension(bench.guard, scope=lambda ctx: {"user": "ana", "run_id": "r"})
    server = MCPServer("shop", extensions=[gate])
    server.add_tool(bench.tools["look"], name="look")

    async with Client(server) as client:
        with pytest.raises(MCPError, match="Attach"):
            await client.call_tool("look", {"place": "attic"})
    with pytest.raises(ConfigurationError, match="not attached"):
        await gate.selftest(server)

    assert bench.ran == []


def test_an_extension_is_one_servers(bench: Bench) -> None:
    gate = ApprovalExtension(bench.guard)
    first = gate.attach(MCPServer("shop", extensions=[gate]))
    assert gate.attach(first) is first
    with pytest.raises(ConfigurationError, match="each server"):
        gate.attach(MCPServer("mall", extensions=[gate]))


async def test_a_handler_that_takes_the_extensions_place_fails_the_self_test(bench: Bench) -> None:
    server, gate = Mcp().served(bench.guard, bench.sealed)
    await gate.selftest(server)
    server._lowlevel_server.add_request_handler("tools/call", CallToolRequestParams, server._handle_call_tool)

    with pytest.raises(ConfigurationError, match="not stopped"):
        await gate.selftest(server)
    assert [tool.name for tool in await server.list_tools()] == list(bench.tools)


async def test_a_call_past_the_clients_is_refused_by_the_seal(bench: Bench) -> None:
    server, _ = Mcp().served(bench.guard, bench.sealed)

    with pytest.raises(Exception, match="delete_record"):
        await server.call_tool("delete_record", {"record": 42})

    assert (bench.ran, bench.refusals()) == ([], [("args-mismatch", "unguarded")])


async def test_a_tool_with_questions_of_its_own_does_not_get_the_answer_to_ours(bench: Bench) -> None:
    seen: list[Any] = []

    async def delete_record(record: int, ctx: Context) -> str:
        seen.append((ctx.input_responses, ctx.request_state))
        return "gone"

    delete_record.__annotations__ = {"record": int, "ctx": Context, "return": str}
    server, _ = Mcp().served(bench.guard, {"delete_record": bench.guard.sealed(delete_record)})
    async with Client(server, elicitation_callback=accepts) as client:
        paused = await client.session.call_tool(**CALL, allow_input_required=True)
        bench.approve(bench.only())
        await client.session.call_tool(**answered(CALL, paused), allow_input_required=True)

    assert seen == [(None, None)]


async def test_the_run_of_an_older_client_is_its_session(bench: Bench) -> None:
    server, _ = Mcp().served(bench.guard, bench.sealed, scope=lambda ctx: {"user": "ana"})
    app = server.streamable_http_app(json_response=True)

    async with (
        server.session_manager.run(), over_http(app) as transport, Client(transport, mode="legacy") as client
    ):
        first = await client.call_tool(**CALL)
        assert "approval-pending" in text_of(first)
        bench.approve(bench.only())
        assert text_of(await client.call_tool(**CALL)) == "deleted 42"

    assert bench.ran == ["delete 42"]


async def test_a_stateless_server_has_no_run(bench: Bench) -> None:
    server, _ = Mcp().served(bench.guard, bench.sealed, scope=lambda ctx: {"user": "ana"})
    app = server.streamable_http_app(json_response=True, stateless_http=True)

    async with (
        server.session_manager.run(), over_http(app) as transport, Client(transport, mode="legacy") as client
    ):
        with pytest.raises(MCPError, match="Nobody says 'run_id'"):
            await client.call_tool(**CALL)

    assert bench.ran == []


async def test_two_equal_calls_at_once_wait_for_one_approval_and_one_of_them_runs(bench: Bench) -> None:
    setup = Setup(bench=bench, script=[[*ONE[0], *ONE[0]]])
    outcome = await Mcp().run(setup)
    assert outcome.state is not None
    bench.approve(bench.only())

    await Mcp().run(setup, outcome.state)

    assert bench.ran == ["delete 42"]
