"""A server behind a URL: the same promises, over Streamable HTTP."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from hitl_guard.integrations.mcp_proxy.events import Events
from tests.mcp_proxy.server import ODD, TOOLS
from tests.mcp_proxy.site import SESSION, Site, serving
from tests.mcp_proxy.stage import Client, Stage, text_of, told

REFUND = {"amount": 82, "order": "A-17"}


@pytest.fixture(params=["json", "sse"])
def site(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Site]:
    with serving(stage.log, request.param) as made:
        yield made


def listened(client: Client, site: Site) -> None:
    if site.kind == "sse":  # the server's own message; its text has a line separator, which ends no line
        assert client.next()["params"] == {"data": "\u2028"}


def test_a_call_waits_and_runs_once_after_its_approval(stage: Stage, site: Site) -> None:
    with stage.client("--url", site.url, target=["--"], sync=False) as client:
        listened(client, site)
        assert "approval-pending" in told(client.call("refund", REFUND))
        request = stage.decide()

        assert text_of(client.call("refund", REFUND)) == 'refund {"amount": 82, "order": "A-17"}'
        assert "approval-pending" in told(client.call("refund", REFUND))

        assert len(stage.runs()) == 1
        assert stage.state(request) == "succeeded"


def test_answers_lists_and_errors_come_as_they_are(stage: Stage, site: Site) -> None:
    with stage.client("--url", site.url, target=["--"], sync=False) as client:
        listened(client, site)
        client.say("test/odd", id="odd")
        assert client.line().replace(b" ", b"") == (ODD % b'"odd"').replace(b" ", b"")
        names = [tool["name"] for tool in client.ask("tools/list")["result"]["tools"]]
        assert names == [tool["name"] for tool in TOOLS if tool["name"] != "drop_database"]
        assert client.ask("prompts/get")["error"]["data"] == {"of": "server"}


def test_session_version_and_authorization_travel_with_every_request(stage: Stage, site: Site) -> None:
    secret = {"HITL_GUARD_MCP_AUTHORIZATION": "Bearer t-1"}
    with stage.client("--url", site.url, target=["--"], environment=secret, sync=False) as client:
        listened(client, site)
        client.ask("tools/list")
        assert client.end() == 0

    (_, first), *later = site.heads
    assert "mcp-session-id" not in first
    assert {head["authorization"] for _, head in site.heads} == {"Bearer t-1"}
    assert {(head["mcp-session-id"], head["mcp-protocol-version"]) for _, head in later} == {(SESSION, "2025-11-25")}
    assert site.heads[-1][0] == "DELETE"


def test_a_request_of_2026_07_28_names_its_method_and_tool_in_headers(stage: Stage, site: Site) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    with stage.client("--url", site.url, target=["--"], sync=False) as client:
        listened(client, site)
        text_of(client.call("note", _meta=meta))

    head = site.heads[-1][1] if site.heads[-1][0] == "POST" else site.heads[-2][1]
    assert (head["mcp-method"], head["mcp-name"]) == ("tools/call", "note")
    assert head["mcp-protocol-version"] == "2026-07-28"


def test_what_the_server_refuses_by_its_status_ends_as_an_error(stage: Stage, site: Site) -> None:
    with stage.client("--url", site.url, target=["--"], sync=False) as client:
        listened(client, site)
        assert client.ask("test/refused")["error"] == {"code": -32001, "message": "no"}
        assert "503" in client.ask("test/down")["error"]["message"]
        assert "401" in client.ask("test/login")["error"]["message"]


def test_a_stream_that_ends_without_an_answer_leaves_the_call_in_doubt(stage: Stage) -> None:
    with (
        serving(stage.log, "broken") as site,
        stage.client("--url", site.url, target=["--"], sync=False) as client,
    ):
        client.call("refund", REFUND)
        request = stage.decide()

        assert "unknown" in client.call("refund", REFUND)["error"]["message"]

        assert stage.state(request) == "in_doubt"
        assert len(stage.runs()) == 1


def test_a_stream_that_can_be_taken_up_again_is(stage: Stage) -> None:
    with (
        serving(stage.log, "resumed") as site,
        stage.client("--url", site.url, target=["--"], sync=False) as client,
    ):
        client.call("refund", REFUND)
        request = stage.decide()

        text_of(client.call("refund", REFUND))

        assert stage.state(request) == "succeeded"
        assert len(stage.runs()) == 1
        assert site.heads[-1][1]["last-event-id"] == "e-1"


def test_a_server_that_is_not_there_is_said(stage: Stage) -> None:
    with serving(stage.log, "json") as site:
        url = site.url
    with stage.client("--url", url, target=["--"], sync=False) as client:
        assert "cannot be reached" in client.ask("tools/list")["error"]["message"]


def test_a_credential_never_travels_in_the_clear(stage: Stage) -> None:
    command = stage.command("--url", "http://mcp.example/mcp", target=["--"])
    environment = stage.environment | {"HITL_GUARD_MCP_AUTHORIZATION": "Bearer t-1"}
    found = subprocess.run(command, capture_output=True, env=environment, check=False)

    assert found.returncode == 1
    assert b"https" in found.stderr
    assert b"t-1" not in found.stderr


STREAM = b'\xef: x\n\n:c\nid: 1\ndata: {"a":1,\r\ndata:"b":2}\r\n\r\nevent: other\ndata: no\n\nretry: 250\nretry: x\n' \
         b'data\ndata: y\n\nid: \xff\ndata: z\n\n'


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_are_read_alike_however_they_arrive(size: int) -> None:
    events = Events(1000)
    found: list[bytes | None] = []
    for start in range(0, len(STREAM), size):
        found += events.feed(STREAM[start : start + size])

    assert found == [b'{"a":1,\n"b":2}', b"\ny", b"z"]
    assert (events.last_id, events.retry_ms) == ("1", 250)


def test_an_event_that_is_too_long_ends_the_stream() -> None:
    assert list(Events(10).feed(b"data: " + b"x" * 20)) == [None]
