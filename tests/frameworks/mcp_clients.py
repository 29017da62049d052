"""What clients meet at both kinds of MCP servers: the official SDK's and FastMCP's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from mcp import Client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, InputRequiredResult

from hitl_guard.errors import ConfigurationError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.models import Principal
from hitl_guard.policy.combined import Policy
from tests.frameworks.bench import BOB, Bench
from tests.frameworks.rig_mcp import INBOX, accepts, answered, text_of

CALL: dict[str, Any] = {"name": "delete_record", "arguments": {"record": 42}}
OPERATOR = Principal("ops", roles=("operator",))


class Calls:
    """How a client calls a server of the ``rig``."""

    rig: ClassVar[Any]

    def client(self, server: Any, **options: Any) -> Client:
        return Client(self.rig.wire(server), **({"elicitation_callback": accepts} | options))

    async def call(self, server: Any, call: dict[str, Any] = CALL, **options: Any) -> Any:
        async with self.client(server, **options) as client:
            try:
                result, failed = await client.session.call_tool(**call, allow_input_required=True), None
            except MCPError as error:  # raised in here, it would come out in groups
                result, failed = None, error
        if failed is not None:
            raise failed
        return result


class Clients(Calls):
    """Collected in each server's test module, with a ``rig``."""

    async def test_an_agent_that_accepts_whatever_it_is_asked_runs_nothing(self, bench: Bench) -> None:
        shown: list[Any] = []

        async def accept(context: Any, params: Any) -> ElicitResult:
            shown.append(params)
            return ElicitResult(action="accept", content={"approve": True})

        server, _ = self.rig.served(bench.guard, bench.sealed)
        async with self.client(server, elicitation_callback=accept) as client:
            first = await client.call_tool(**CALL)
            assert (first.is_error, "approval-pending" in text_of(first)) == (True, True)
            again = await client.call_tool(**CALL)
            assert "approval-pending" in text_of(again)
            assert (bench.ran, bench.only().state) == ([], "pending")
            request = bench.only()
            bench.approve(request)
            last = await client.call_tool(**CALL)

        assert (text_of(last), bench.ran) == ("deleted 42", ["delete 42"])
        assert [params.url for params in shown] == [f"{INBOX}/requests/{request.id}"]

    @pytest.mark.parametrize("action", ["decline", "cancel"])
    async def test_a_client_that_declines_the_link_decides_nothing(self, bench: Bench, action: Any) -> None:
        async def declines(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action=action)

        server, _ = self.rig.served(bench.guard, bench.sealed)
        async with self.client(server, elicitation_callback=declines) as client:
            answer = await client.call_tool(**CALL)

        assert ("approval-pending" in text_of(answer), bench.ran, bench.only().state) == (True, [], "pending")

    async def test_answers_and_a_state_that_nobody_asked_for_run_nothing(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        yes = {"hitl-guard:x": {"action": "accept"}}

        result = await self.call(server, {**CALL, "input_responses": yes})

        assert (isinstance(result, InputRequiredResult), bench.ran) == (True, [])
        with pytest.raises(MCPError, match="requestState"):
            await self.call(server, {**CALL, "input_responses": yes, "request_state": "hitl-guard:x"})
        assert bench.ran == []

    @pytest.mark.parametrize(
        "options", [{"mode": "legacy"}, {"elicitation_callback": None}], ids=["older client", "no links"]
    )
    async def test_a_client_without_pauses_is_told_and_calls_again(self, bench: Bench, options: Any) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)

        first = await self.call(server, **options)
        assert first.is_error
        assert '"approval-pending"' in text_of(first)
        assert f"{INBOX}/requests/{bench.only().id}" in text_of(first)
        bench.approve(bench.only())
        second = await self.call(server, **options)
        third = await self.call(server, **options)

        assert (text_of(second), bench.ran) == ("deleted 42", ["delete 42"])
        assert "approval-pending" in text_of(third)

    async def test_without_an_inbox_there_is_no_link_to_show(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed, inbox=None)

        result = await self.call(server)

        assert (result.is_error, "link" in text_of(result), bench.ran) == (True, False, [])

    async def test_a_pause_that_another_process_cannot_open_is_no_loss(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        bench.approve(bench.only())

        with pytest.raises(MCPError):
            await self.call(server, {**answered(CALL, paused), "request_state": "v1.AAAA"})
        assert text_of(await self.call(server)) == "deleted 42"

    async def test_what_the_policy_denies_is_never_asked_for(self, bench: Bench) -> None:
        def drop_database() -> str:
            bench.note("dropped")
            return "dropped"

        server, _ = self.rig.served(bench.guard, {**bench.sealed, "drop_database": drop_database})

        result = await self.call(server, {"name": "drop_database", "arguments": {}})

        assert (result.is_error, text_of(result), bench.ran, bench.waiting()) == (True, "Never.", [], [])

    async def test_a_map_of_tools_is_checked_against_all_that_the_server_has(self, bench: Bench) -> None:
        look = {"name": "look", "arguments": {"place": "attic"}}
        keys = Keyring.from_file(bench.folder / "keys.json")
        for name, runs in (("delete_record", True), ("delete_recrod", False)):
            policy = Policy(tool_approval={name: "denied", "look": "approved"})
            guard = Guard(policy=policy, keyring=keys, store=bench.store)
            server, _ = self.rig.served(guard, bench.tools)
            if runs:
                await self.call(server, look)
                assert (await self.call(server)).is_error
            else:
                with pytest.raises(MCPError, match="delete_recrod"):
                    await self.call(server, look)

        assert bench.ran == ["look attic"]

    async def test_a_tool_that_is_not_there_is_refused(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)

        result = await self.call(server, {"name": "delete_Record", "arguments": {"record": 42}})

        assert (result.is_error, text_of(result)) == (True, "Refused: there is no such tool.")

    async def test_arguments_that_would_be_coerced_are_refused(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)

        result = await self.call(server, {**CALL, "arguments": {"record": "42"}})

        assert (result.is_error, bench.ran, bench.waiting()) == (True, [], [])
        assert "42" not in text_of(result)

    async def test_a_tool_that_changed_after_its_approval_does_not_run(self, bench: Bench) -> None:
        def delete_record(record: int, everywhere: bool = True) -> str:
            bench.note("changed")
            return "changed"

        server, _ = self.rig.served(bench.guard, bench.tools)
        paused = await self.call(server)
        bench.approve(bench.only())
        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})

        result = await self.call(server, answered(CALL, paused))

        assert ("tool-changed" in text_of(result), bench.ran) == (True, [])

    @pytest.mark.parametrize("response", ["kept", {"result": "kept"}], ids=["text", "object"])
    async def test_a_persons_answer_takes_the_results_place(self, bench: Bench, response: Any) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        paused = await self.call(server)
        request = bench.only()
        bench.guard.decide(
            request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, respond=response
        )

        result = await self.call(server, answered(CALL, paused))

        assert (result.is_error, result.structured_content, bench.ran) == (False, {"result": "kept"}, [])

    async def test_a_sync_tool_runs_sealed(self, bench: Bench) -> None:
        def delete_record(record: int) -> str:
            bench.note(f"sync {record}")
            return "gone"

        server, _ = self.rig.served(bench.guard, {"delete_record": bench.guard.sealed(delete_record)})
        paused = await self.call(server)
        bench.approve(bench.only())

        result = await self.call(server, answered(CALL, paused))

        assert (text_of(result), bench.ran) == ("gone", ["sync 42"])

    async def test_a_tool_that_fails_leaves_its_request_in_doubt(self, bench: Bench) -> None:
        async def delete_record(record: int) -> str:
            raise RuntimeError("gone")

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        paused = await self.call(server)
        request = bench.only()
        bench.approve(request)

        result = await self.call(server, answered(CALL, paused))

        assert (result.is_error, bench.state(request)) == (True, "in_doubt")

    async def test_a_failure_of_a_tool_that_only_reads_is_no_doubt(self, bench: Bench) -> None:
        async def delete_record(record: int) -> str:
            raise RuntimeError("gone")

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record}, effects={"delete_record": "none"})
        paused = await self.call(server)
        request = bench.only()
        bench.approve(request)

        await self.call(server, answered(CALL, paused))

        assert bench.state(request) == "failed"

    async def test_a_result_is_not_lost_when_its_receipt_cannot_be_written(self, bench: Bench) -> None:
        async def delete_record(record: int) -> str:
            bench.guard.resolve(request.id, "failed", by=OPERATOR, reason="hangs", force=True)
            return "deleted"

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        paused = await self.call(server)
        request = bench.only()
        bench.approve(request)

        assert text_of(await self.call(server, answered(CALL, paused))) == "deleted"

    async def test_a_tool_that_asks_its_client_in_an_approved_call_is_ended(self, bench: Bench) -> None:
        async def delete_record(record: int) -> InputRequiredResult:
            return InputRequiredResult(request_state="mine")

        server, _ = self.rig.served(bench.guard, {"delete_record": delete_record})
        paused = await self.call(server)
        request = bench.only()
        bench.approve(request)

        result = await self.call(server, answered(CALL, paused))

        assert (result.is_error, bench.state(request)) == (True, "in_doubt")

    async def test_a_tool_that_needs_no_approval_asks_its_client_as_ever(self, bench: Bench) -> None:
        async def ask() -> InputRequiredResult:
            return InputRequiredResult(request_state="mine")

        server, _ = self.rig.served(bench.guard, {**bench.sealed, "ask": ask})

        result = await self.call(server, {"name": "ask", "arguments": {}})

        assert isinstance(result, InputRequiredResult)

    async def test_who_is_not_named_runs_nothing(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed, scope=None)
        with pytest.raises(MCPError, match="Nobody says 'user'"):
            await self.call(server)
        with bench.guard.context(user="ana", run_id="r"):
            await self.call(server)

        assert (bench.ran, bench.only().user, bench.only().run_id) == ([], "ana", "r")

    async def test_the_user_is_the_access_tokens_subject(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed, scope=lambda ctx: {"run_id": "r"})
        with signed_in("ana"):
            await self.call(server)
        assert bench.only().user == "ana"

        with signed_in(None), pytest.raises(MCPError, match="Nobody says 'user'"):
            await self.call(server)

    async def test_a_signed_in_client_of_the_newest_version_has_no_run_of_its_own(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed, scope=None)

        with signed_in("ana"), pytest.raises(MCPError, match="Nobody says 'run_id'"):
            await self.call(server)

        assert bench.ran == []

    async def test_what_an_app_raises_is_told_to_no_client(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        def scope(context: Any) -> Any:
            raise RuntimeError("secret")

        server, _ = self.rig.served(bench.guard, bench.sealed, scope=scope)
        with caplog.at_level(logging.ERROR, "hitl_guard"), pytest.raises(MCPError) as caught:
            await self.call(server)

        assert "secret" not in str(caught.value)
        said = [record.getMessage() for record in caplog.records if record.name.startswith("hitl_guard")]
        assert said == ["A call ended by RuntimeError before its tool ran."]

    async def test_when_the_store_is_down_the_client_hears_that_nobody_can_tell(self, bench: Bench) -> None:
        server, _ = self.rig.served(bench.guard, bench.sealed)
        bench.fail()

        with pytest.raises(MCPError, match="store-unavailable"):
            await self.call(server)

        assert bench.ran == []

    async def test_links_are_shown_again_once_many_others_were(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hitl_guard.integrations.mcp_gate.MAX_SHOWN", 1)
        server, _ = self.rig.served(bench.guard, bench.sealed)
        pauses = [await self.call(server, {**CALL, "arguments": {"record": record}}) for record in (1, 1, 2, 1)]

        assert [isinstance(pause, InputRequiredResult) for pause in pauses] == [True, False, True, True]

    @pytest.mark.parametrize("options", [{"pause": "never"}, {"inbox": "approvals.example"}, {"scope": "ana"}])
    def test_a_setting_that_is_none_is_refused(self, bench: Bench, options: Any) -> None:
        with pytest.raises(ConfigurationError):
            self.rig.served(bench.guard, bench.sealed, **options)


@contextmanager
def signed_in(subject: str | None) -> Iterator[None]:
    user = AuthenticatedUser(AccessToken(token="t", client_id="desktop", scopes=[], subject=subject))
    token = auth_context_var.set(user)
    try:
        yield
    finally:
        auth_context_var.reset(token)
