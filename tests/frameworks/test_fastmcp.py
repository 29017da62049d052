"""FastMCP's server, by the contract, by what both kinds of servers owe, and by what only it has."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="FastMCP is not installed here")

from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.middleware.error_handling import ErrorHandlingMiddleware, RetryMiddleware
from fastmcp.server.providers.addressing import TOOL_HASH_META_KEY, hash_tool, hashed_backend_name
from fastmcp.tools.base import Tool
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from mcp import Client as SDKClient
from mcp.shared.exceptions import MCPError
from mcp.types import InputRequiredResult

from hitl_guard.errors import ConfigurationError, NoEffect
from hitl_guard.integrations.fastmcp import ApprovalExtension
from tests.frameworks.bench import Bench
from tests.frameworks.contract import Contract
from tests.frameworks.mcp_clients import CALL, Clients
from tests.frameworks.mcp_states import States
from tests.frameworks.rig_fastmcp import Fastmcp
from tests.frameworks.rig_mcp import accepts, answered, over_http, text_of


class TestFastmcp(Contract):
    rig = Fastmcp()


class TestFastmcpClients(Clients):
    rig = Fastmcp()


class TestFastmcpStates(States):
    rig = Fastmcp()


class Changing(ServerExtension):
    """Edits the arguments in place, which every extension shares."""

    identifier = "com.example/changing"

    async def intercept_tool_call(self, params: Any, context: Any, call_next: Any) -> Any:
        params.arguments["record"] = 99
        return await call_next()


class Background(ServerExtension):
    """What the tasks extension is to its server."""

    identifier = TASKS_EXTENSION_ID


async def asked(server: Any, call: dict[str, Any] = CALL) -> Any:
    """Call as a client that can pause."""
    async with SDKClient(server._mcp_server, elicitation_callback=accepts) as client:
        return await client.session.call_tool(**call, allow_input_required=True)


def versions(bench: Bench, *names: str) -> list[Tool]:
    """Return a tool in several versions that look alike."""
    def made(version: str) -> Tool:
        def delete_record(record: int) -> str:
            bench.note(f"{version} {record}")
            return version

        return Tool.from_function(delete_record, version=version)

    return [made(name) for name in names]


@pytest.mark.parametrize("guarded", ["sealed", "tools"])
async def test_where_an_extension_comes_later_nothing_runs(bench: Bench, guarded: str) -> None:
    server, _ = Fastmcp().served(bench.guard, getattr(bench, guarded))
    server.add_extension(Changing())

    async with Client(server) as client:
        with pytest.raises(Exception, match="last one"):
            await client.call_tool(**CALL)

    assert (bench.ran, bench.waiting()) == ([], [])


async def test_an_earlier_extensions_change_is_what_the_approver_sees(bench: Bench) -> None:
    server = FastMCP("shop")
    server.add_tool(Tool.from_function(bench.sealed["delete_record"], name="delete_record"))
    server.add_extension(Changing())
    server.add_extension(ApprovalExtension(bench.guard, scope=lambda ctx: {"user": "ana", "run_id": "r"}))

    await asked(server)

    assert bench.only().arguments == {"record": 99}


async def test_a_middlewares_change_is_what_the_approver_sees(bench: Bench) -> None:
    class Edits(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            context.message.arguments["record"] = 99
            return await call_next(context)

    server, _ = Fastmcp().served(bench.guard, bench.sealed)
    server.add_middleware(Edits())

    await asked(server)

    assert bench.only().arguments == {"record": 99}


async def test_a_server_with_tools_in_the_background_is_refused(bench: Bench) -> None:
    server = FastMCP("shop")
    server.add_extension(Background())
    with pytest.raises(ConfigurationError, match="tasks"):
        server.add_extension(ApprovalExtension(bench.guard))

    server, _ = Fastmcp().served(bench.guard, bench.sealed)
    server.add_extension(Background())
    with pytest.raises(MCPError, match="tasks"):
        await TestFastmcpClients().call(server)
    assert bench.ran == []


async def test_an_approval_is_for_one_version_of_a_tool(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, {})
    for tool in versions(bench, "1.0", "2.0"):
        server.add_tool(tool)
    paused = await asked(server)
    bench.approve(bench.only())

    older = {**CALL, "meta": {"fastmcp": {"version": "1.0"}}}
    refused = await asked(server, {**answered(CALL, paused), "meta": older["meta"]})
    assert ("tool-changed" in text_of(refused), bench.ran) == (True, [])
    assert text_of(await asked(server, answered(CALL, paused))) == "2.0"

    assert bench.ran == ["2.0 42"]


async def test_an_older_version_that_is_called_by_name_is_what_runs(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, {})
    for tool in versions(bench, "1.0", "2.0"):
        server.add_tool(tool)
    older = {**CALL, "meta": {"fastmcp": {"version": "1.0"}}}
    paused = await asked(server, older)
    assert bench.only().definition.server == "version 1.0"  # type: ignore[union-attr]
    bench.approve(bench.only())

    await asked(server, answered(older, paused))

    assert bench.ran == ["1.0 42"]


async def test_a_call_inside_a_tool_is_told_to_that_tool_and_does_not_pause(bench: Bench) -> None:
    async def outer(ctx: Context) -> str:
        result = await ctx.fastmcp.call_tool("delete_record", {"record": 42})
        return text_of(result)

    outer.__annotations__ = {"ctx": Context, "return": str}
    server, _ = Fastmcp().served(bench.guard, {**bench.sealed, "outer": outer})
    call = {"name": "outer", "arguments": {}}

    first = await asked(server, call)
    assert ("approval-pending" in text_of(first), bench.ran) == (True, [])
    bench.approve(bench.only())
    second = await asked(server, call)

    assert (text_of(second), bench.ran) == ("deleted 42", ["delete 42"])


async def test_a_call_inside_an_approved_tool_needs_an_approval_of_its_own(bench: Bench) -> None:
    async def delete_record(record: int, ctx: Context) -> str:
        bench.note(f"delete {record}")
        return text_of(await ctx.fastmcp.call_tool("delete_record", {"record": record + 1}))

    delete_record.__annotations__ = {"record": int, "ctx": Context, "return": str}
    server, _ = Fastmcp().served(bench.guard, {"delete_record": delete_record})
    paused = await asked(server)
    bench.approve(bench.only())

    result = await asked(server, answered(CALL, paused))

    assert ("approval-pending" in text_of(result), bench.ran) == (True, ["delete 42"])
    assert bench.only().arguments == {"record": 43}


async def test_a_call_of_the_apps_own_is_guarded_too(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, bench.sealed)

    first = await server.call_tool("delete_record", {"record": 42})
    assert (first.is_error, "approval-pending" in text_of(first), bench.ran) == (True, True, [])
    bench.approve(bench.only())
    await server.call_tool("delete_record", {"record": 42})

    assert bench.ran == ["delete 42"]


async def test_a_call_without_extensions_is_refused_by_the_seal(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, bench.sealed)

    with pytest.raises(ToolError):
        await server.call_tool("delete_record", {"record": 42}, run_middleware=False)

    assert (bench.ran, bench.refusals()) == ([], [("args-mismatch", "unguarded")])


async def test_a_parents_extension_guards_mounted_tools_under_their_new_names(bench: Bench) -> None:
    child: Any = FastMCP("child")
    child.add_tool(Tool.from_function(bench.sealed["delete_record"], name="record"))
    parent, gate = Fastmcp().served(bench.guard, {})
    parent.mount(child, namespace="delete")
    assert [tool.name for tool in await parent.list_tools()] == ["delete_record"]

    paused = await asked(parent)

    assert (isinstance(paused, InputRequiredResult), bench.only().tool, bench.ran) == (True, "delete_record", [])
    await gate.selftest(parent)


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_tool_that_is_addressed_by_its_hash_is_refused(bench: Bench, guarded: bool) -> None:
    server: Any = FastMCP("shop")
    meta = {"fastmcp": {TOOL_HASH_META_KEY: hash_tool("app", "delete_record")}, "ui": {"visibility": ["app"]}}
    server.add_tool(Tool.from_function(bench.tools["delete_record"], name="delete_record", meta=meta))
    if guarded:
        server.add_extension(ApprovalExtension(bench.guard, scope=lambda ctx: {"user": "ana", "run_id": "r"}))

    await asked(server, {**CALL, "name": hashed_backend_name("app", "delete_record")})

    assert bench.ran == ([] if guarded else ["delete 42"])


async def test_a_tool_that_says_that_nothing_happened_has_failed(bench: Bench) -> None:
    async def delete_record(record: int) -> str:
        raise NoEffect("There is no such record.")

    server, _ = Fastmcp().served(bench.guard, {"delete_record": delete_record})
    paused = await asked(server)
    request = bench.only()
    bench.approve(request)

    result = await asked(server, answered(CALL, paused))

    assert (result.is_error, text_of(result)) == (True, "There is no such record.")
    assert bench.state(request) == "failed"


async def test_middleware_that_caches_retries_or_handles_errors_runs_nothing(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, bench.sealed)
    for middleware in (ErrorHandlingMiddleware(), RetryMiddleware(), ResponseCachingMiddleware()):
        server.add_middleware(middleware)

    async with Client(server) as client:
        for _ in range(2):
            first = await client.call_tool_mcp("delete_record", {"record": 42})
            assert (first.is_error, "approval-pending" in text_of(first), bench.ran) == (True, True, [])
        bench.approve(bench.only())
        assert text_of(await client.call_tool_mcp("delete_record", {"record": 42})) == "deleted 42"

    assert bench.ran == ["delete 42"]


async def test_the_run_of_an_older_client_is_its_session(bench: Bench) -> None:
    server, _ = Fastmcp().served(bench.guard, bench.sealed, scope=lambda ctx: {"user": "ana"})
    app = server.http_app(path="/mcp", json_response=True)

    async with app.lifespan(app), over_http(app) as transport, SDKClient(transport, mode="legacy") as client:
        first = await client.call_tool(**CALL)
        assert "approval-pending" in text_of(first)
        bench.approve(bench.only())
        assert text_of(await client.call_tool(**CALL)) == "deleted 42"

    assert bench.ran == ["delete 42"]


def test_an_extension_is_one_servers(bench: Bench) -> None:
    _, gate = Fastmcp().served(bench.guard, bench.sealed)
    with pytest.raises(ValueError, match="already bound"):
        FastMCP("mall").add_extension(gate)
