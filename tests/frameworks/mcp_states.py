"""What the state of a paused call may do at both kinds of MCP servers: name a request, which the store then checks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.server.mcpserver import RequestStateBoundary

from tests.frameworks.bench import Bench
from tests.frameworks.mcp_clients import CALL, Calls
from tests.frameworks.rig_mcp import answered, text_of


class States(Calls):
    """Collected in each server's test module, with a ``rig``."""

    @pytest.mark.parametrize(("change", "scope", "code"), [
        ({"arguments": {"record": 99}}, {}, "args-mismatch"),
        ({"name": "look", "arguments": {"place": "attic"}}, {}, "args-mismatch"),
        ({}, {"user": "eve"}, "scope-mismatch"),
        ({}, {"run_id": "another"}, "scope-mismatch"),
        ({}, {"tenant": "other"}, "invalid-approval"),
        ({"request_state": "hitl-guard:nothing"}, {}, "invalid-approval"),
        ({"request_state": "hitl-guard:"}, {}, "invalid-approval"),
    ])
    async def test_the_store_refuses_a_forged_state_by_itself(
        self, bench: Bench, change: Any, scope: Any, code: str
    ) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        unsealed(self.rig.wire(server))
        paused = await self.call(server)
        request = bench.only()
        assert paused.request_state == f"hitl-guard:{request.id}"
        bench.approve(request)
        facts = {"user": "ana", "run_id": "conversation"} | scope
        other, _ = self.rig.served(bench.guard, bench.sealed, scope=lambda ctx: facts)
        unsealed(self.rig.wire(other))

        result = await self.call(other, answered(CALL, paused) | change)

        assert (result.is_error, code in text_of(result), bench.ran) == (True, True, [])
        assert bench.state(request) == "approved"
        assert code in [refused for refused, _ in bench.refusals()]

    async def test_a_strangers_waiting_request_is_not_told_of(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        other, _ = self.rig.served(bench.guard, bench.sealed, scope=lambda ctx: {"user": "eve", "run_id": "x"})
        unsealed(self.rig.wire(other))

        state = f"hitl-guard:{bench.only().id}"
        result = await self.call(other, {**answered(CALL, paused), "request_state": state})

        assert (bench.only().id in text_of(result), "invalid-approval" in text_of(result)) == (False, True)

    async def test_a_state_sent_twice_runs_once_and_asks_nobody_again(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        bench.approve(bench.only())

        results = await asyncio.gather(*(self.call(server, answered(CALL, paused)) for _ in range(4)))

        assert (bench.ran, bench.waiting()) == (["delete 42"], [])
        assert sum(not result.is_error for result in results) == 1

    async def test_an_edited_call_sent_twice_runs_once_and_asks_nobody_again(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        bench.approve(bench.only(), arguments={"record": 43})

        first = await self.call(server, answered(CALL, paused))
        second = await self.call(server, answered(CALL, paused))

        assert (bench.ran, bench.waiting(), first.is_error, second.is_error) == (["delete 43"], [], False, True)

    async def test_a_pause_whose_state_comes_back_undecided_still_waits(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        another, _ = self.rig.served(bench.guard, bench.sealed)  # which has shown no link yet

        result = await self.call(another, answered(CALL, paused))

        assert ("approval-pending" in text_of(result), bench.refusals()) == (True, [])
        bench.approve(bench.only())
        assert text_of(await self.call(server, answered(CALL, paused))) == "deleted 42"


def unsealed(server: Any) -> None:
    """Take the SDK's own protection of states from a server: what the client says is then what the guard gets."""
    server.middleware[:] = [one for one in server.middleware if not isinstance(one, RequestStateBoundary)]
