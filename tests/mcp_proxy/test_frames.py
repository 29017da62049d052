"""Frames: what passes, byte for byte, and what no server ever sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hitl_guard.integrations.mcp_proxy import frames
from tests.mcp_proxy.server import ODD, TOOLS
from tests.mcp_proxy.stage import SERVER, Client, Stage, told
from tests.support import WAIT_S

CALL = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"note","arguments":{}}}'


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with stage.client() as made:
        yield made


def direct(*lines: bytes) -> list[bytes]:
    """Return what the small server says without a proxy."""
    command = [sys.executable, str(SERVER), "/dev/null"]
    found = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=True, timeout=WAIT_S)
    return found.stdout.splitlines()


def test_a_servers_answer_keeps_its_bytes(client: Client) -> None:
    client.say("test/odd", id="odd")

    assert client.line() == ODD % b'"odd"'


def test_an_error_of_the_server_keeps_its_bytes(client: Client) -> None:
    line = b'{"method":"prompts/get", "id":77,"jsonrpc":"2.0"}'
    client.send(line)

    assert [client.line()] == direct(line)


def test_a_list_without_hidden_tools_keeps_its_bytes(stage: Stage) -> None:
    line = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'
    stage.policy.write_text("version: 1\nname: all\ndefault: require_approval\n")
    with stage.client() as client:
        client.send(line)

        assert [client.line()] == direct(line)


def test_what_the_server_asks_and_notes_keeps_its_bytes_and_so_does_the_answer(stage: Stage, client: Client) -> None:
    client.note("test/talk")
    talk = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,  "progress":0.5}}'
    assert client.line() == talk
    assert client.line() == b'{"id":"s-1","jsonrpc":"2.0","method":"sampling/createMessage","params":{"maxTokens":5}}'
    answer = b'{"jsonrpc":"2.0" ,"id":"s-1","result":{"role":"user","x":1.0}}'
    client.send(answer)
    client.sync()

    assert answer in stage.received()


def test_what_the_client_sends_reaches_the_server_with_its_bytes(stage: Stage, client: Client) -> None:
    lines = [
        b'{ "jsonrpc":"2.0","id":50 ,"method":"x"}',
        b'{"id":"\\u00e4","method":"resources/list","jsonrpc":"2.0","params":{"n":1.50,"deep":[[{}]]}}\r',
        b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}',
        b'{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}',
    ]
    for line in lines:
        client.send(line)
    client.next(), client.next()
    client.sync()

    assert [line.rstrip(b"\r") for line in lines] == [line.rstrip(b"\r") for line in stage.received()[3:-1]]
    assert b'"deep":[[{}]]}}\r' in stage.log.read_bytes()


def test_tools_that_never_run_are_hidden_and_the_others_keep_their_bytes(client: Client) -> None:
    line = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'
    client.send(line)

    found = client.line()

    assert json.loads(found)["result"]["tools"] == [tool for tool in TOOLS if tool["name"] != "drop_database"]
    (whole,) = direct(line)
    dropped = json.dumps(next(tool for tool in TOOLS if tool["name"] == "drop_database")).encode()
    assert found.replace(b",", b", ").replace(b"  ", b" ") == whole.replace(dropped + b", ", b"")


REFUSED = {
    "a name twice": (
        b'{"jsonrpc":"2.0","id":9,"method":"ping","method":"tools/call","params":{"name":"note"}}', -32700),
    "a name twice, escaped": (
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"note","n\\u0061me":"refund"}}', -32700),
    "a name twice, deep": (
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"note","arguments":{"a":[{"b":1,"b":2}]}}}',
        -32700),
    "NaN": (CALL.replace(b"{}", b'{"n":NaN}'), -32700),
    "an endless number": (CALL.replace(b"{}", b'{"n":1e400}'), -32700),
    "half a character": (CALL.replace(b"{}", b'{"n":"\\ud800"}'), -32700),
    "no UTF-8": (CALL.replace(b"{}", b'{"n":"\xff"}'), -32700),
    "a byte order mark": (b"\xef\xbb\xbf" + CALL, -32700),
    "two values": (CALL + CALL, -32700),
    "no JSON": (b"hello", -32700),
    "a carriage return inside": (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":\r' + CALL + b"\r}", -32700),
    "a batch": (b"[" + CALL + b"]", -32600),
    "an empty batch": (b"[]", -32600),
    "a string": (b'"tools/call"', -32600),
    "no version": (CALL.replace(b'"jsonrpc":"2.0",', b""), -32600),
    "a method in other cases": (CALL.replace(b"tools/call", b"Tools/Call"), -32600),
    "a method with spaces": (CALL.replace(b"tools/call", b" tools/call"), -32600),
    "a method that is none": (CALL.replace(b'"tools/call"', b'["tools/call"]'), -32600),
    "a member in other cases": (CALL.replace(b'"method"', b'"method":"ping","Method"'), -32600),
    "a member with a long s": ('{"jsonrpc":"2.0","id":9,"method":"ping","param\u017f":{}}'.encode(), -32600),
    "a name in other cases": (CALL.replace(b'"name"', b'"name":"note","Name"'), -32602),
    "no tool": (CALL.replace(b'"name":"note",', b""), -32602),
    "a tool that is no name": (CALL.replace(b'"note"', b"5"), -32602),
    "params that are a list": (b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":["note"]}', -32600),
    "a call without an id": (CALL.replace(b'"id":9,', b""), -32600),
    "a call with an id of null": (CALL.replace(b'"id":9', b'"id":null'), -32600),
    "an id that is true": (CALL.replace(b'"id":9', b'"id":true'), -32600),
    "an id with a fraction": (CALL.replace(b'"id":9', b'"id":9.5'), -32600),
    "a call that is an answer too": (CALL.replace(b'"id":9', b'"id":9,"result":{}'), -32600),
    "too deep": (CALL.replace(b"{}", b'{"n":' + b"[" * 500 + b"]" * 500 + b"}"), -32700),
    "too large": (CALL.replace(b"{}", b'{"n":"' + b"x" * frames.CLIENT_LIMITS.max_bytes + b'"}'), -32700),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_that_could_be_read_in_two_ways_is_refused_and_the_server_sees_nothing(
    stage: Stage, client: Client, name: str
) -> None:
    line, code = REFUSED[name]
    before = stage.received()
    client.send(line)

    answer = client.next()

    assert answer["error"]["code"] == code
    assert answer["id"] is None or (type(answer["id"]), answer["id"]) == (int, 9)
    client.sync()
    assert stage.received()[len(before) :] == [stage.received()[-1]]
    assert json.loads(stage.received()[-1])["method"] == "ping"


def test_arguments_that_are_too_large_to_approve_are_refused_under_their_id(stage: Stage, client: Client) -> None:
    answer = client.call("note", {"n": "x" * 2_000_000})

    assert "too-large" in told(answer)
    assert stage.runs() == []


def test_two_open_requests_never_share_an_id(stage: Stage, client: Client) -> None:
    client.call("hold")
    stage.decide()
    client.say("tools/call", {"name": "hold", "arguments": {}}, id="same")
    assert client.method() == "test/held"

    client.say("ping", id="same")

    assert client.next() == {"jsonrpc": "2.0", "id": None, "error": {
        "code": -32600, "message": "This id is a running request's: use another."}}


def test_an_answer_of_the_server_with_two_meanings_ends_as_an_error(stage: Stage, client: Client) -> None:
    answer = client.ask("test/twice")

    assert answer["error"]["code"] == -32000
    assert "no single meaning" in answer["error"]["message"]


def test_an_error_of_the_server_that_names_no_request_is_passed_on(client: Client) -> None:
    client.say("test/nameless", id=8)
    assert client.next()["error"] == {"code": -32700, "message": "unreadable"}


def test_an_answer_that_nobody_waits_for_is_not_passed_on(client: Client) -> None:
    answer = client.ask("test/foreign", {"id": "9"})

    assert answer["result"] == {}
    client.sync()


def test_blank_lines_are_no_frames(client: Client) -> None:
    client.send(b"")
    client.send(b"  \r")
    client.sync()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_lines_are_cut_alike_however_they_arrive(size: int) -> None:
    text = b"one\n\n  \ntwo" + b"o" * 20 + b"\nthree\r\nlast"
    lines = frames.Lines(10)
    found: list[Any] = []
    for start in range(0, len(text), size):
        found += lines.feed(text[start : start + size])

    assert [*found, *lines.end()] == [b"one", None, b"three\r", b"last"]
