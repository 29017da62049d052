"""How the proxy starts and ends, what it refuses to start without, and how a client is shown the link."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hitl_guard import models
from hitl_guard.cli.mcp_proxy import EFFECTS, _identity
from hitl_guard.errors import UnavailableError
from hitl_guard.integrations.mcp_proxy.relay import Relay
from tests.mcp_proxy.stage import SERVER, Stage, text_of, told
from tests.support import WAIT_S

INBOX = "https://approvals.example"
URLS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": URLS,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
}


def started(
    stage: Stage, *options: str, target: Sequence[str] = (), environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Start a proxy that must not start; return its exit code and what it said."""
    command = stage.command(*options, target=target)
    found = subprocess.run(
        command, input=b"", capture_output=True, env=stage.environment | (environment or {}),
        timeout=WAIT_S, check=False,
    )
    assert found.stdout == b""
    return found.returncode, found.stderr.decode()


def test_the_proxy_ends_with_the_servers_exit_code(stage: Stage) -> None:
    with stage.client() as client:
        client.note("test/exit", code=3)

        assert client.line() == b""
        assert client.process.wait(WAIT_S) == 3


def test_a_client_that_leaves_ends_the_server(stage: Stage) -> None:
    with stage.client() as client:
        assert client.end() == 0
    assert "the small server runs" in (stage.folder / "stderr.txt").read_text()


def test_a_server_that_does_not_end_is_ended(stage: Stage) -> None:
    deaf = "import sys,signal,threading; sys.stdin.readline(); print('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}', " \
           "flush=True); threading.Event().wait()"
    with stage.client(target=["--", sys.executable, "-c", deaf], sync=False) as client:
        client.process.send_signal(signal.SIGTERM)

        assert client.process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_a_call_that_runs_when_the_client_leaves_gets_its_outcome(stage: Stage) -> None:
    with stage.client() as client:
        client.call("hold")
        request = stage.decide()
        client.say("tools/call", {"name": "hold", "arguments": {}})
        assert client.method() == "test/held"

        assert client.end() == 0

    assert stage.state(request) == "in_doubt"


def test_the_server_sees_none_of_the_guards_settings(stage: Stage) -> None:
    with stage.client() as client:
        assert client.ask("test/environment")["result"] == {"names": []}


@pytest.mark.parametrize(("options", "told_"), [
    (("--effect", "refund=fine"), "--effect"), (("--inbox", "approvals"), "--inbox"), (("--url", "x:y"), "--url"),
    (("--url", "https://mcp.example"), "--url URL"), (("--authorization", "Bearer t"), "--authorization"),
])
def test_wrong_options_are_wrong_usage(stage: Stage, options: tuple[str, ...], told_: str) -> None:
    code, said = started(stage, *options)

    assert code == 2
    assert told_ in said


def test_a_command_or_a_url_is_needed(stage: Stage) -> None:
    assert started(stage, target=["--"])[0] == 2


@pytest.mark.parametrize(("missing", "code"), [
    ("HITL_GUARD_KEYS_FILE", "config-error"), ("HITL_GUARD_STORE", "--store"), ("HITL_GUARD_POLICY", "--policy"),
])
def test_nothing_starts_without_keys_store_and_policy(stage: Stage, missing: str, code: str) -> None:
    exit_code, said = started(stage, environment={missing: ""})

    assert exit_code in (1, 2)
    assert code in said
    assert stage.received() == []


def test_nothing_starts_on_a_store_without_a_schema(stage: Stage) -> None:
    code, said = started(stage, environment={"HITL_GUARD_STORE": f"sqlite:///{stage.folder / 'other.db'}"})

    assert code == 1
    assert "hitl-guard db" in said
    assert stage.received() == []


def test_a_server_that_cannot_be_started_is_said(stage: Stage) -> None:
    code, said = started(stage, target=["--", "/no/such/server"])

    assert code == 1
    assert "[config-error]" in said
    assert "Traceback" not in said


def test_a_secret_in_the_servers_command_is_in_no_request(stage: Stage) -> None:
    secret = "k-5e2d"
    command = ["--", sys.executable, str(SERVER), str(stage.log), secret]
    with stage.client(target=command) as client:
        told(client.call("refund", {"amount": 1}))
        request = stage.only()

        assert request.run_id.startswith("mcp:python")
        assert request.definition is not None
        assert secret not in repr((request.run_id, request.definition, request.token))


def test_what_a_server_is_called_tells_nothing_of_its_address_but_the_host() -> None:
    address = "https://ana:k-5e2d@mcp.example:8443/s/{key}/mcp?x={key}"
    first, second = (_identity((), address.format(key=key)) for key in ("k-1", "k-2"))

    assert first.startswith("https://mcp.example:8443#")
    assert not {"k-5e2d", "k-1"} & set(first.replace("#", "/").split("/"))
    assert first != second


def test_the_effects_are_those_of_the_guard() -> None:
    assert EFFECTS == models.EFFECTS


def test_without_an_inbox_the_client_gets_text_alone(stage: Stage) -> None:
    with stage.client(greet=URLS) as client:
        assert "link" not in json.loads(told(client.call("refund")))


def test_a_client_that_shows_no_links_gets_the_link_as_text(stage: Stage) -> None:
    with stage.client("--inbox", INBOX + "/", greet={"elicitation": {}}) as client:
        facts = json.loads(told(client.call("refund")))

        assert facts["link"] == f"{INBOX}/requests/{stage.only().id}"


def test_a_client_of_2025_11_25_is_shown_the_link_once(stage: Stage) -> None:
    with stage.client("--inbox", INBOX, greet=URLS) as client:
        error = client.call("refund")["error"]

        request = stage.only()
        assert error["code"] == -32042
        (asked,) = error["data"]["elicitations"]
        assert (asked["mode"], asked["elicitationId"]) == ("url", request.id)
        assert asked["url"] == f"{INBOX}/requests/{request.id}"
        assert "approval-pending" in told(client.call("refund"))
        stage.decide()
        assert text_of(client.call("refund")) == "refund {}"


def test_a_client_of_2026_07_28_is_shown_the_link_and_its_answer_approves_nothing(stage: Stage) -> None:
    with stage.client("--inbox", INBOX) as client:
        result = client.call("refund", _meta=MODERN)["result"]
        request = stage.only()
        (key,) = result["inputRequests"]
        asked = result["inputRequests"][key]
        assert (result["resultType"], asked["method"]) == ("input_required", "elicitation/create")
        assert asked["params"]["url"] == f"{INBOX}/requests/{request.id}"
        again: dict[str, Any] = {"requestState": result["requestState"], "inputResponses": {key: {"action": "accept"}}}

        answer = client.call("refund", _meta=MODERN, **again)

        assert "approval-pending" in told(answer)
        assert answer["result"]["resultType"] == "complete"
        assert stage.runs() == []
        stage.decide()
        text_of(client.call("refund", _meta=MODERN, **again))
        (sent,) = stage.runs()
        assert json.loads(sent)["params"] == {"name": "refund", "arguments": {}, "_meta": MODERN}


def test_a_client_that_reads_no_more_does_not_keep_the_proxy_from_its_end() -> None:
    async def never(line: bytes) -> None:
        await asyncio.Event().wait()

    async def sent(frame: Any) -> None:
        """Take it."""

    async def ended() -> BaseException | None:
        nothing: Any = SimpleNamespace(send=sent, hang_up=lambda: None)
        relay = Relay(nothing, nothing, nothing, nothing, never)
        await relay.from_client(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        asked = asyncio.create_task(relay.ask("tools/list", {}))
        await asyncio.sleep(0)
        await relay.end(patience_s=0.01)
        return (await asyncio.gather(asked, return_exceptions=True))[0]  # type: ignore[return-value]

    assert isinstance(asyncio.run(ended()), UnavailableError)
