"""A whole set-up on disk (keys, database, policy) with an agent's host in it, for tests of the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hitl_guard import clock, keyfile
from hitl_guard.cli import main
from hitl_guard.errors import ApprovalRequired
from hitl_guard.guard import Guard
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Permit, ToolCall
from hitl_guard.store.sql import SQLStore

POLICY = """\
version: 1
name: tests
default: require_approval
rules:
  - id: refunds
    tools: [refund]
    effect: require_approval
    reason: Money leaves the house.
  - id: leads
    tools: [close_account]
    effect: require_approval
    approvers: [lead]
  - id: two-people
    tools: [wire]
    effect: require_approval
    quorum: 2
  - id: editable
    tools: [mail]
    effect: require_approval
    edit: true
"""


class Site:
    """Keys, database and policy in one folder; the command line finds them by its environment variables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "approvals.db"
        self.keys = folder / "keys.json"
        self.policy = folder / "policy.yaml"
        self.url = f"sqlite:///{self.database}"
        self.policy.write_text(POLICY)
        self.policy.chmod(0o644)
        self.write_keys(Keyring([Key.generate(clock.epoch_ms() - 3_600_000)]))
        self.store = SQLStore(self.url)
        self.store.setup()
        self.calls = 0

    def write_keys(self, keyring: Keyring) -> None:
        """Put a key ring in the place of the one that is there."""
        self.keys.unlink(missing_ok=True)
        keyfile.create(self.keys, keyring.dump())

    def guard(self, policy: Any = None, **settings: Any) -> Guard:
        """Return the agent's guard."""
        return Guard(
            policy=policy or self.policy, store=self.store, keyring=Keyring.from_file(self.keys),
            settings=Settings(**settings),
        )

    def call(self, tool: str = "refund", arguments: Any = None, **scope: Any) -> ToolCall:
        self.calls += 1
        given = {"amount": 82} if arguments is None else arguments
        return ToolCall(tool, given, **{"user": "ana", "run_id": "run-1", "call_id": f"call-{self.calls}", **scope})

    def ask(self, call: ToolCall | None = None, *, guard: Guard | None = None) -> ApprovalRequest:
        """Return the request of a call that waits for a person."""
        with pytest.raises(ApprovalRequired) as pause:
            (guard or self.guard()).authorize(call or self.call())
        request: ApprovalRequest = pause.value.request
        return request

    def claim(self, call: ToolCall | None = None) -> tuple[ApprovalRequest, Permit]:
        """Return a request that was approved and spent, with its permit; nobody has settled it."""
        call = call or self.call()
        request = self.ask(call)
        assert self.run("requests", "approve", request.id, "--fingerprint", request.fingerprint).exit_code == 0
        return request, self.guard().authorize(call)

    def get(self, request: ApprovalRequest) -> ApprovalRequest:
        return self.guard().get(request.id, tenant=request.tenant)

    def tamper(self, sql: str, *parameters: Any) -> None:
        """Change the database as somebody who has no key."""
        connection = sqlite3.connect(self.database)
        with connection:
            assert connection.execute(sql, parameters).rowcount
        connection.close()

    def run(self, *arguments: str, input: str | bytes | None = None, **environ: str | None) -> Result:
        """Run the command line as bob."""
        given = {
            "HITL_GUARD_STORE": self.url, "HITL_GUARD_KEYS_FILE": str(self.keys), "HITL_GUARD_POLICY": str(self.policy),
            "HITL_GUARD_AS": "bob",
        }
        result = CliRunner().invoke(main, arguments, input=input, env=given | environ, prog_name="hitl-guard")
        assert result.exception is None or isinstance(result.exception, SystemExit), "no traceback reaches a person"
        return result


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


def refusal(result: Result) -> str:
    """Return the slugs of the one error line, after checking that the command failed with it."""
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    return lines[0].rpartition("[")[2].removesuffix("]")
