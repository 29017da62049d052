"""``hitl-guard mcp-proxy`` between the official client and published servers: nothing is lost on the way.

``HITL_GUARD_TEST_MCP_SERVERS`` is a folder of executables: ``mcp-server-time``, ``mcp-server-git``,
``mcp-server-fetch``, ``filesystem-mcp`` and ``word_mcp_server`` (office-word-mcp-server, which has more than fifty
tools).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed here")
if [int(number) for number in version("mcp").split(".")[:2]] < [2, 3]:
    pytest.skip("the other environment has the newest MCP SDK", allow_module_level=True)

from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, ElicitResult

from tests.mcp_proxy.stage import ROOT, Stage

VARIABLE = "HITL_GUARD_TEST_MCP_SERVERS"
INBOX = "https://approvals.example"
PAGE = b"<html><body><h1>Returns</h1><p>Within thirty days.</p></body></html>"
POLICY = """\
version: 1
name: servers
default: not_applicable
rules:
  - id: writing
    tools: [git_commit, create_document, write_file]
    effect: require_approval
  - id: never
    tools: [git_reset, delete_paragraph]
    effect: deny
"""

Work = Callable[[ClientSession], Awaitable[Any]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, policy=POLICY)
    yield made
    made.close()


@pytest.fixture
def page() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/returns"
    server.shutdown()
    server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    identity = ["-c", "user.name=ana", "-c", "user.email=ana@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    (folder / "a.txt").write_text("one\n")
    subprocess.run(["git", "-C", folder, "add", "a.txt"], check=True)
    subprocess.run(["git", "-C", folder, *identity, "commit", "-q", "-m", "first"], check=True)
    subprocess.run(["git", "-C", folder, "config", "user.name", "ana"], check=True)
    subprocess.run(["git", "-C", folder, "config", "user.email", "ana@example.org"], check=True)
    return folder


def server_of(name: str) -> str:
    """Return a published server's executable: missing, it is a visible skip, and a failure in CI."""
    folder = os.environ.get(VARIABLE)
    path = Path(folder or "") / name
    if folder and path.exists():
        return str(path)
    reason = f"set {VARIABLE} to a folder with {name}"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def run(stage: Stage, command: Sequence[str], work: Work, *, guarded: bool) -> Any:
    """Do something as the official client of a server, directly or through the proxy."""
    whole = stage.command(target=["--", *command]) if guarded else list(command)

    async def connected() -> Any:
        parameters = StdioServerParameters(
            command=whole[0], args=whole[1:], env=stage.environment, cwd=str(stage.folder)
        )
        with (stage.folder / "stderr.txt").open("a") as errors:
            async with stdio_client(parameters, errlog=errors) as streams, ClientSession(*streams) as session:
                await session.initialize()
                return await work(session)

    return asyncio.run(connected())


def answers(stage: Stage, command: Sequence[str], calls: Sequence[tuple[str, dict[str, Any]]], *, guarded: bool) -> Any:
    """Return the very lines with which a server answers the handshake, its list and calls."""
    whole = stage.command(target=["--", *command]) if guarded else list(command)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    asked: list[tuple[str, dict[str, Any]]] = [("initialize", hello), ("tools/list", {})]
    asked += [("tools/call", {"name": name, "arguments": arguments}) for name, arguments in calls]
    with (
        (stage.folder / "stderr.txt").open("ab") as errors,
        subprocess.Popen(
            whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=stage.environment,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        found = []
        for number, (method, params) in enumerate(asked):
            frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(frame).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            while not line.startswith(b"{") or json.loads(line).get("id") != number:  # what the server says by itself
                line = process.stdout.readline()
            found.append(line)
            if method == "initialize":
                process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.close()
        process.stdout.read()
    return found


def both(stage: Stage, command: Sequence[str], work: Work) -> tuple[Any, Any]:
    return run(stage, command, work, guarded=False), run(stage, command, work, guarded=True)


async def listed(session: ClientSession) -> list[dict[str, Any]]:
    tools = await session.list_tools()
    return [tool.model_dump() for tool in tools.tools]


def called(name: str, arguments: dict[str, Any]) -> Work:
    async def work(session: ClientSession) -> dict[str, Any]:
        answer = await session.call_tool(name, arguments)
        found: dict[str, Any] = answer.model_dump()
        return found

    return work


SERVERS = {
    "mcp-server-time": set[str](), "mcp-server-git": {"git_reset"}, "mcp-server-fetch": set[str](),
    "word_mcp_server": {"delete_paragraph"}, "filesystem-mcp": set[str](),
}


@pytest.mark.parametrize(("name", "options", "calls"), [
    ("filesystem-mcp", ["{folder}"], [
        ("list_directory", {"path": "{folder}"}), ("read_file", {"path": "{folder}/a.txt"}),
        ("read_file", {"path": "/elsewhere/b.txt"}),
    ]),
    ("mcp-server-git", ["--repository", "{folder}"], [
        ("git_status", {"repo_path": "{folder}"}), ("git_log", {"repo_path": "{folder}"}),
    ]),
    ("mcp-server-fetch", ["--ignore-robots-txt", "--allow-private-ips"], [
        ("fetch", {"url": "{page}"}), ("fetch", {"url": "{page}", "max_length": 10}),
    ]),
    ("word_mcp_server", [], [("get_document_info", {"filename": "{folder}/none.docx"})]),
])
def test_honest_calls_are_answered_byte_for_byte_as_by_the_server_itself(
    stage: Stage, repository: Path, page: str, name: str, options: list[str], calls: Any
) -> None:
    stage.policy.write_text(POLICY.partition("  - id: never")[0])  # so that no tool is hidden
    filled = json.loads(json.dumps(calls).replace("{folder}", str(repository)).replace("{page}", page))
    command = [server_of(name), *(option.replace("{folder}", str(repository)) for option in options)]

    direct, through = (answers(stage, command, filled, guarded=guarded) for guarded in (False, True))

    assert through == direct
    assert len(direct) == len(filled) + 2


@pytest.mark.parametrize("name", SERVERS)
def test_the_tools_are_the_same_but_for_those_that_never_run(stage: Stage, name: str) -> None:
    folders = [str(stage.folder)] if name == "filesystem-mcp" else []
    direct, through = both(stage, [server_of(name), *folders], listed)

    assert through == [tool for tool in direct if tool["name"] not in SERVERS[name]]
    assert len(direct) - len(through) == len(SERVERS[name])
    if name == "word_mcp_server":
        assert len(direct) >= 50


def test_an_honest_call_of_the_time_server_has_the_same_result(stage: Stage) -> None:
    arguments = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    direct, through = both(stage, [server_of("mcp-server-time")], called("convert_time", arguments))

    assert through == direct
    assert not through["is_error"]


def test_an_error_of_the_time_server_is_the_same(stage: Stage) -> None:
    arguments = {"source_timezone": "Nowhere/Else", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    direct, through = both(stage, [server_of("mcp-server-time")], called("convert_time", arguments))

    assert through == direct
    assert through["is_error"]


def test_an_honest_call_of_the_git_server_has_the_same_result(stage: Stage, repository: Path) -> None:
    command = [server_of("mcp-server-git"), "--repository", str(repository)]
    direct, through = both(stage, command, called("git_log", {"repo_path": str(repository)}))

    assert through == direct
    assert "first" in through["content"][0]["text"]


def test_a_page_that_is_fetched_is_the_same(stage: Stage, page: str) -> None:
    command = [server_of("mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"]
    direct, through = both(stage, command, called("fetch", {"url": page}))

    assert through == direct
    assert "Within thirty days." in through["content"][0]["text"]


def test_a_commit_waits_for_its_approval_and_is_made_once(stage: Stage, repository: Path) -> None:
    command = [server_of("mcp-server-git"), "--repository", str(repository)]
    commit = called("git_commit", {"repo_path": str(repository), "message": "second"})
    (repository / "a.txt").write_text("two\n")
    subprocess.run(["git", "-C", repository, "add", "a.txt"], check=True)

    waiting = run(stage, command, commit, guarded=True)
    assert waiting["is_error"]
    assert "approval-pending" in waiting["content"][0]["text"]
    assert _messages(repository) == ["first"]
    request = stage.decide()

    assert not run(stage, command, commit, guarded=True)["is_error"]
    assert run(stage, command, commit, guarded=True)["is_error"]

    assert _messages(repository) == ["second", "first"]
    assert stage.state(request) == "succeeded"


def test_a_client_of_the_newest_version_is_shown_the_link_and_approves_nothing(
    stage: Stage, repository: Path
) -> None:
    (repository / "a.txt").write_text("two\n")
    subprocess.run(["git", "-C", repository, "add", "a.txt"], check=True)
    shown: list[Any] = []

    async def accept(context: Any, params: Any) -> ElicitResult:
        shown.append(params)
        return ElicitResult(action="accept")

    async def commit() -> tuple[str, CallToolResult]:
        whole = stage.command(
            "--inbox", INBOX, target=["--", server_of("mcp-server-git"), "--repository", str(repository)]
        )
        parameters = StdioServerParameters(
            command=whole[0], args=whole[1:], env=stage.environment, cwd=str(stage.folder)
        )
        async with Client(parameters, elicitation_callback=accept) as client:
            answer = await client.call_tool("git_commit", {"repo_path": str(repository), "message": "second"})
            return client.protocol_version, answer

    version, answer = asyncio.run(commit())
    assert version == "2026-07-28"
    assert answer.is_error
    request = stage.only()
    assert [params.url for params in shown] == [f"{INBOX}/requests/{request.id}"]
    assert _messages(repository) == ["first"]
    stage.decide()

    _, answer = asyncio.run(commit())

    assert not answer.is_error
    assert _messages(repository) == ["second", "first"]
    assert len(shown) == 1


def test_the_readmes_client_configuration_lets_a_file_be_written_once_it_is_approved(stage: Stage) -> None:
    (config,) = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    files = json.loads(config)["mcpServers"]["files"]
    work = stage.folder / "work"
    work.mkdir()
    program, folder = server_of("filesystem-mcp"), str(work)
    given = [{"filesystem-mcp": program, "/srv/work": folder}.get(arg, arg) for arg in files["args"]]
    assert {program, folder} < {*given}
    settings = {name: value.replace("/srv/guard", str(stage.folder)) for name, value in files["env"].items()}
    assert settings.items() <= stage.environment.items()
    command = [str(Path(sys.executable).with_name(files["command"])), *given]

    async def written() -> CallToolResult:
        parameters = StdioServerParameters(command=command[0], args=command[1:], env=settings)
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            return await session.call_tool("write_file", {"path": f"{folder}/note.txt", "content": "hello"})

    assert asyncio.run(written()).is_error
    assert [*work.iterdir()] == []
    assert stage.only().user == "ana"
    stage.decide()

    assert not asyncio.run(written()).is_error
    assert (work / "note.txt").read_text() == "hello"


def test_a_document_is_written_once_it_is_approved(stage: Stage) -> None:
    target = stage.folder / "offer.docx"
    create = called("create_document", {"filename": str(target), "title": "Offer"})
    command = [server_of("word_mcp_server")]
    assert run(stage, command, create, guarded=True)["is_error"]
    assert not target.exists()
    stage.decide()

    assert not run(stage, command, create, guarded=True)["is_error"]
    assert target.exists()


def _messages(repository: Path) -> list[str]:
    found = subprocess.run(
        ["git", "-C", repository, "log", "--format=%s"], check=True, capture_output=True, text=True
    )
    return found.stdout.splitlines()
