"""What could fill or run a tool of an MCP server besides the call that was approved, for both kinds of servers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed here")
if [int(number) for number in version("mcp").split(".")[:2]] < [2, 3]:
    pytest.skip("the other environment has the newest MCP SDK", allow_module_level=True)
pytest.importorskip("fastmcp", reason="FastMCP is not installed here")

import fastmcp
from fastmcp.dependencies import Depends
from fastmcp.server import create_proxy
from fastmcp.server.transforms.search import RegexSearchTransform
from fastmcp.tools import Tool
from mcp import Client
from mcp.server import mcpserver
from mcp.server.extension import Extension
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult
from pydantic import BaseModel

from hitl_guard.integrations.fastmcp import ApprovalExtension as FastmcpExtension
from hitl_guard.integrations.mcp import ApprovalExtension
from hitl_guard.models import ToolCall
from tests.frameworks.bench import Bench
from tests.frameworks.mcp_clients import CALL, Calls
from tests.frameworks.rig_fastmcp import Fastmcp
from tests.frameworks.rig_mcp import DEFAULTS, Mcp, answered, text_of

ANSWERS = {"force": {"action": "accept", "content": {"force": True}}}


class Force(BaseModel):
    """What a tool asks its client."""

    force: bool = False


async def forces(context: Any, params: Any) -> ElicitResult:
    """Answer whatever is asked with what nobody has approved."""
    return ElicitResult(action="accept", content={"force": True})


class More(Calls):
    """Collected below, once for each kind of server."""

    context: Any

    def asking(self, bench: Bench) -> Any:
        """Return a tool that asks its client in the middle."""
        async def delete_record(record: int, ctx: Any) -> str:
            answer = await ctx.elicit("Sure?", Force)
            bench.note(f"delete {record} {answer.data.force}")
            return "deleted"

        delete_record.__annotations__ = {"record": int, "ctx": self.context, "return": str}
        return delete_record

    async def approved(self, bench: Bench, server: Any, call: dict[str, Any] = CALL, **options: Any) -> Any:
        """Call, have it approved and call again; return the second result."""
        await self.call(server, **options)
        bench.approve(bench.only())
        return await self.call(server, call, **options)

    async def test_how_much_a_model_asks_for_at_once_nobody_knows_here(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.tools)

        await self.call(server, {"name": "pay", "arguments": {"amount": 20}})

        assert (bench.ran, bench.only().arguments) == ([], {"amount": 20})

    async def test_a_client_that_is_asked_in_the_middle_of_an_approved_call_says_nothing(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, {"delete_record": self.asking(bench)})

        result = await self.approved(bench, server, mode="legacy", elicitation_callback=forces)

        assert (bench.ran, result.is_error) == ([], True)
        assert "middle of an approved call" in text_of(result)
        assert bench.waiting() == []

    async def test_a_client_that_is_asked_by_a_call_that_needs_no_approval_answers(self, bench: Bench) -> None:
        ask = self.asking(bench)
        ask.__name__ = "look"
        server, _ = self.rig.served(bench.guard, {"look": ask})

        call = {"name": "look", "arguments": {"record": 1}}
        await self.call(server, call, mode="legacy", elicitation_callback=forces)

        assert bench.ran == ["delete 1 True"]

    async def test_a_tool_that_makes_do_without_an_answer_has_succeeded(self, bench: Bench) -> None:
        ask = self.asking(bench)

        async def delete_record(record: int, ctx: Any) -> str:
            try:
                return str(await ask(record, ctx))
            except MCPError:
                bench.note(f"delete {record} unasked")
                return "deleted"

        delete_record.__annotations__ = ask.__annotations__
        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})

        result = await self.approved(bench, server, mode="legacy", elicitation_callback=forces)

        assert (bench.ran, text_of(result)) == (["delete 42 unasked"], "deleted")

    @pytest.mark.parametrize("ours", [True, False])
    async def test_answers_that_come_with_an_approved_call_are_not_the_tools(self, bench: Bench, ours: bool) -> None:
        seen: list[Any] = []

        async def delete_record(record: int, ctx: Any) -> str:
            seen.append((ctx.input_responses, ctx.request_state))
            return "gone"

        delete_record.__annotations__ = {"record": int, "ctx": self.context, "return": str}
        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        paused = await self.call(server)
        bench.approve(bench.only())

        call = answered(CALL, paused) if ours else CALL
        result = await self.call(server, {**call, "input_responses": {**call.get("input_responses", {}), **ANSWERS}})

        assert (text_of(result), seen) == ("gone", [(None, None)])

    @pytest.mark.parametrize("native", [True, False])
    @pytest.mark.parametrize("inner", ["drop_database", "delete_record"])
    async def test_a_call_that_the_guard_stops_inside_a_tool_is_that_tools_failure(
        self, bench: Bench, inner: str, native: bool,
    ) -> None:
        def delete_record(record: int) -> str:
            bench.note("started")
            bench.guard.authorize(ToolCall(inner, {"record": 1}, run_id="r", call_id="inner", user="ana"))
            return "never"

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        paused = await self.call(server)
        request = bench.only()
        bench.approve(request)

        result = await self.call(server, answered(CALL, paused) if native else CALL)

        assert (bench.ran, bench.state(request)) == (["started"], "in_doubt")
        assert (result.is_error, "approval-pending" in text_of(result)) == (True, False)


class TestMcpMore(More):
    rig = Mcp()
    context = mcpserver.Context

    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_a_parameter_that_the_client_fills_in_is_filled_in_no_approved_call(
        self, bench: Bench, mode: str,
    ) -> None:
        async def ask() -> Elicit[Force]:
            return Elicit("Sure?", Force)

        async def delete_record(record: int, force: Any) -> str:
            bench.note(f"delete {record} {force.force}")
            return "deleted"

        delete_record.__annotations__ = {"record": int, "force": Annotated[Force, Resolve(ask)], "return": str}
        ask.__annotations__ = {"return": Elicit[Force]}
        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})

        result = await self.approved(bench, server, mode=mode, elicitation_callback=forces)

        assert (bench.ran, result.is_error) == ([], True)
        assert "middle of an approved call" in text_of(result)

    async def test_a_call_whose_tool_is_exchanged_meanwhile_runs_the_one_that_was_asked_for(self, bench: Bench) -> None:
        kept: list[Any] = []

        class Keeps(Extension):
            identifier = "com.example/keeps"

            async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
                kept.append(params)
                return await call_next(ctx)

        def scope(ctx: Any) -> dict[str, str]:
            kept[-1].name, kept[-1].arguments = "delete_record", {"record": 42}
            return {"user": "ana", "run_id": "r"}

        gate = ApprovalExtension(bench.guard, **(DEFAULTS | {"scope": scope}))
        server = gate.attach(MCPServer("shop", extensions=[Keeps(), gate]))
        for name, function in bench.tools.items():
            server.add_tool(function, name=name)

        await self.call(server, {"name": "look", "arguments": {"place": "attic"}})

        assert bench.ran == ["look attic"]


class TestFastmcpMore(More):
    rig = Fastmcp()
    context = fastmcp.Context

    async def test_a_client_fills_in_no_dependency(self, bench: Bench) -> None:
        def delete_record(record: int, force: bool = Depends(lambda: False)) -> str:
            bench.note(f"delete {record} {force}")
            return "deleted"

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        more = {"name": "delete_record", "arguments": {"record": 42, "force": True}}

        for _ in range(2):
            result = await self.call(server, more)
            for request in bench.waiting():
                bench.approve(request)
        assert (bench.ran, result.is_error) == ([], True)
        assert text_of(await self.approved(bench, server)) == "deleted"

        assert bench.ran == ["delete 42 False"]

    async def test_a_tool_that_is_found_by_a_search_is_asked_for_by_its_own_name(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.tools)
        server.add_transform(RegexSearchTransform())
        call = {"name": "call_tool", "arguments": CALL}

        result = await self.call(server, call)
        assert ("approval-pending" in text_of(result), bench.ran, bench.only().tool) == (True, [], "delete_record")
        bench.approve(bench.only())
        await self.call(server, call)

        assert bench.ran == ["delete 42"]

    async def test_the_tools_of_a_server_behind_a_proxy_are_asked_for(self, bench: Bench) -> None:
        behind: Any = fastmcp.FastMCP("behind")
        behind.add_tool(Tool.from_function(bench.tools["delete_record"], name="delete_record"))
        server: Any = create_proxy(behind, name="shop")
        server.add_extension(FastmcpExtension(bench.guard, **DEFAULTS))

        await self.call(server)
        assert (bench.ran, bench.only().tool) == ([], "delete_record")
        bench.approve(bench.only())
        assert text_of(await self.call(server)) == "deleted 42"

    async def test_a_tool_in_another_guise_is_asked_for_by_the_name_that_it_has_there(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, {})
        plain = Tool.from_function(bench.tools["look"], name="look")
        server.add_tool(Tool.from_tool(plain, name="delete_record"))

        async with Client(self.rig.wire(server)) as client:
            await client.call_tool("delete_record", {"place": "attic"})

        assert (bench.ran, bench.only().arguments) == ([], {"place": "attic"})
