"""A client that speaks frames, the proxy as a real process, and the approver at the same database."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hitl_guard import keyfile
from hitl_guard.guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.models import ApprovalRequest, Principal
from hitl_guard.store.sql import SQLStore
from tests.support import WAIT_S, ring

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("server.py")
BOB = Principal("bob")
POLICY = """\
version: 1
name: proxy
default: require_approval
rules:
  - id: reading
    tools: [note]
    effect: allow
  - id: mails
    tools: [mail]
    effect: require_approval
    edit: true
  - id: never
    tools: [drop_database]
    effect: deny
    reason: Never.
  - id: small
    tools: [purge]
    effect: deny
    when: size(args) > 0
"""
HOST = """\
import os
from dataclasses import replace

from hitl_guard import Guard
from hitl_guard.keyring import Keyring
from hitl_guard.store.sql import SQLStore


class Later:
    def __init__(self, store):
        self._store = store

    def load(self, *args, **options):
        found = self._store.load(*args, **options)
        return replace(found, now=found.now + 1_200_000)

    def __getattr__(self, name):
        return getattr(self._store, name)


def guard():
    store = Later(SQLStore(os.environ["HITL_GUARD_STORE"]))
    keyring = Keyring.from_file(os.environ["HITL_GUARD_KEYS_FILE"])
    return Guard(policy=os.environ["HITL_GUARD_POLICY"], store=store, keyring=keyring)
"""
"""A host's own guard, which looks at calls twenty minutes later than they are made."""


class Client:
    """One proxy and what came out of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._ids = iter(range(1, 10_000))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self._lines.put(line)
        self._lines.put(b"")

    def close(self) -> None:
        """Close the pipes of a proxy that has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._thread.join(WAIT_S)
        self.process.stdout.close()
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def line(self) -> bytes:
        """Return the next line, without its line feed; empty at the end."""
        return self._lines.get(timeout=WAIT_S).removesuffix(b"\n")

    def next(self) -> Any:
        return json.loads(self.line())

    def method(self) -> str:
        """Return the method of the next line, which is no answer."""
        line = self.next()
        assert "method" in line, line
        method: str = line["method"]
        return method

    def say(self, method: str, params: Any = None, **more: Any) -> Any:
        """Send a request and return its id."""
        request_id = more.pop("id", None) or next(self._ids)
        given = {} if params is None else {"params": params}
        self.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, **given}).encode())
        return request_id

    def note(self, method: str, **params: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def ask(self, method: str, params: Any = None) -> Any:
        """Send a request and return its answer, which must be the next line."""
        request_id = self.say(method, params)
        answer = self.next()
        assert answer["id"] == request_id
        return answer

    def call(self, tool: str, arguments: Any = None, **params: Any) -> Any:
        return self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    def sync(self) -> None:
        """Return when the server has taken all that was sent to it."""
        assert self.ask("ping")["result"] == {}

    def end(self) -> int:
        """Close the proxy's input and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)


class Stage:
    """Keys, database, policy and the server's log in one folder."""

    def __init__(self, folder: Path, *, policy: str = POLICY) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.keys = folder / "keys.json"
        self.policy = folder / "policy.yaml"
        self.policy.write_text(policy)
        self.policy.chmod(0o644)
        keyfile.create(self.keys, ring().dump())
        self.url = f"sqlite:///{folder / 'approvals.db'}"
        self.store = SQLStore(self.url)
        self.store.setup()
        self.guard = Guard(policy=self.policy, store=self.store, keyring=Keyring.from_file(self.keys))
        (folder / "host.py").write_text(HOST)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HITL_GUARD_")}
        return kept | {
            "HITL_GUARD_KEYS_FILE": str(self.keys), "HITL_GUARD_POLICY": str(self.policy),
            "HITL_GUARD_STORE": self.url, "HITL_GUARD_MCP_USER": "ana", "PYTHONPATH": str(ROOT),
        }

    def command(self, *options: str, target: Sequence[str] = ()) -> list[str]:
        server = list(target) or ["--", sys.executable, str(SERVER), str(self.log)]
        start = "from hitl_guard.cli import main; main()"
        return [sys.executable, "-c", start, "mcp-proxy", *options, *server]

    @contextmanager
    def client(
        self, *options: str, target: Sequence[str] = (), environment: Mapping[str, str] | None = None,
        greet: dict[str, Any] | None = None, sync: bool = True,
    ) -> Iterator[Client]:
        """Start a proxy with a client that has greeted the server, and (``sync``) that the server has taken in."""
        with (self.folder / "stderr.txt").open("ab") as errors:
            process = subprocess.Popen(
                self.command(*options, target=target), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=self.environment | dict(environment or {}), cwd=self.folder,
            )
        client = Client(process)
        try:
            version, capabilities = "2025-11-25", greet or {}
            client.ask("initialize", {"protocolVersion": version, "capabilities": capabilities})
            client.note("notifications/initialized")
            if sync:
                client.sync()
            yield client
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            client.close()

    def received(self) -> list[bytes]:
        """Return every line that the server got."""
        return self.log.read_bytes().splitlines() if self.log.exists() else []

    def runs(self, tool: str = "") -> list[bytes]:
        """Return the calls that the server got, of one tool or of any."""
        calls = [line for line in self.received() if json.loads(line).get("method") == "tools/call"]
        return [line for line in calls if not tool or json.loads(line)["params"]["name"] == tool]

    def pending(self) -> list[ApprovalRequest]:
        return list(self.guard.pending())

    def only(self) -> ApprovalRequest:
        (request,) = self.pending()
        return request

    def decide(self, *, approve: bool = True, **options: Any) -> ApprovalRequest:
        request = self.only()
        self.guard.decide(request.id, approver=BOB, approve=approve, fingerprint=request.fingerprint, **options)
        return request

    def state(self, request: ApprovalRequest) -> str:
        return self.guard.get(request.id).state

    def close(self) -> None:
        self.store.close()


def told(answer: Any) -> str:
    """Return the text of an answer that says that the call did not run."""
    assert answer["result"]["isError"] is True, answer
    text: str = answer["result"]["content"][0]["text"]
    return text


def text_of(answer: Any) -> str:
    """Return the text of a result."""
    assert not answer["result"].get("isError"), answer
    text: str = answer["result"]["content"][0]["text"]
    return text
