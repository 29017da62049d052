"""What every framework's tests share: a guard on a database file, and tools that write down what they really did."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hitl_guard import clock
from hitl_guard.errors import StoreUnavailableError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Key, Keyring
from hitl_guard.models import ApprovalRequest, Principal
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.store.sql import SQLStore

POLICY = """\
version: 1
name: frameworks
default: not_applicable
rules:
  - id: deletions
    tools: [delete_record]
    effect: require_approval
    edit: true
  - id: payments
    tools: [pay]
    when: total.amount > 50
    effect: require_approval
  - id: nobody
    tools: [drop_database]
    effect: deny
    reason: Never.
"""
BOB = Principal("bob")

Turn = Sequence[tuple[str, str, dict[str, Any]]]
"""The tool calls of one answer of the model: tool-call id, tool, arguments."""

ONE: list[Turn] = [[("c1", "delete_record", {"record": 42})]]
MIXED: list[Turn] = [[
    ("c1", "delete_record", {"record": 42}), ("c2", "delete_record", {"record": 7}), ("c3", "look", {"place": "attic"}),
]]

PAYING: list[Turn] = [[(f"p{number}", "pay", {"amount": 20 + number}) for number in range(3)]]
"""The policy lets 50 of a turn go unasked."""


class Bench:
    """A guard and its tools on the files of one folder; another process makes the same from the same folder.

    Attributes:
        tools: Tool name → plain function, sync or async. `sealed`: the same functions, sealed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        keys = folder / "keys.json"
        if not keys.exists():
            keys.touch(0o600)
            keys.write_bytes(Keyring([Key.generate(clock.epoch_ms() - 3_600_000)]).dump().reveal())
        self.store = SQLStore(f"sqlite:///{folder / 'approvals.db'}")
        self.store.setup()
        policy = Policy.of(PolicyDocument.from_source(POLICY.encode(), "frameworks.yaml"))
        self.guard = Guard(policy=policy, keyring=Keyring.from_file(keys), store=self.store)

        async def delete_record(record: int) -> str:
            """Delete a record.

            Args:
                record: Its number.
            """
            self.note(f"delete {record}")
            return f"deleted {record}"

        def look(place: str) -> str:
            """Look somewhere.

            Args:
                place: Where.
            """
            self.note(f"look {place}")
            return f"seen: {place}"

        def pay(amount: int) -> str:
            """Pay.

            Args:
                amount: How much.
            """
            self.note(f"pay {amount}")
            return f"paid {amount}"

        self.tools: dict[str, Callable[..., Any]] = {"delete_record": delete_record, "look": look, "pay": pay}
        self.sealed = {name: self.guard.sealed(function) for name, function in self.tools.items()}

    def note(self, line: str) -> None:
        """Append to the journal, which outlives this process."""
        with open(self.folder / "journal", "a") as journal:
            journal.write(line + "\n")
            journal.flush()
            os.fsync(journal.fileno())

    @property
    def ran(self) -> list[str]:
        """What the tools really did so far, in any process."""
        journal = self.folder / "journal"
        return journal.read_text().splitlines() if journal.exists() else []

    def waiting(self) -> list[ApprovalRequest]:
        """Return the open requests, oldest first."""
        return sorted(self.guard.pending().requests, key=lambda request: (request.issued_at, str(request.call_id)))

    def only(self) -> ApprovalRequest:
        """Return the one open request."""
        (request,) = self.waiting()
        return request

    def approve(self, request: ApprovalRequest, **options: Any) -> None:
        self.guard.decide(request.id, approver=BOB, approve=True, fingerprint=request.fingerprint, **options)

    def deny(self, request: ApprovalRequest, reason: str) -> None:
        self.guard.decide(request.id, approver=BOB, approve=False, fingerprint=request.fingerprint, reason=reason)

    def state(self, request: ApprovalRequest) -> str:
        return self.guard.get(request.id).state

    def refusals(self) -> list[tuple[str, str | None]]:
        """Return code and detail of every refused call in the audit log."""
        bodies = [
            json.loads(event.body) for chain in self.store.chains()
            for event in self.store.chain_events(chain, limit=10_000) if event.type == "call:refused"
        ]
        return [(body["code"], body.get("detail")) for body in bodies]

    def fail(self) -> None:
        """Let every later look at the store fail, as a database that is down does."""
        def down(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("The store does not answer.")

        self.store.load = down  # type: ignore[method-assign]
        self.store.load_new = down  # type: ignore[method-assign]

    def close(self) -> None:
        self.guard.close()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a rig is to be built.

    Attributes:
        script: What the model asks for, one turn after the other; then it answers with plain text.
        pause: The adapter's way to pause.
        late: Another hook stands after the guard's (or inside of it), and makes 99 of 42.
        broken: The adapter's ``scope`` raises `BrokenError`.
        stream: The run is streamed. inner: The tools belong to a sub-agent, which the outer agent's model calls.
        guarded: Whether the adapter is there at all.
    """

    bench: Bench
    script: list[Turn] = field(default_factory=lambda: ONE)
    pause: str = "native"
    late: bool = False
    broken: bool = False
    stream: bool = False
    inner: bool = False
    guarded: bool = True

    def facts(self, run_id: str | None = None) -> dict[str, Any]:
        """Return what the adapter's ``scope`` says: the user and, where the framework has none, the run.

        A call that is made again later, or by a sub-agent, is in the run that the app names.
        """
        if self.broken:
            raise BrokenError("the hook is broken")
        named = run_id or ("conversation" if self.inner or self.pause == "retry" else None)
        return {"user": "ana"} | ({} if named is None else {"run_id": named})


class BrokenError(Exception):
    """What a hook raises that does not work."""
