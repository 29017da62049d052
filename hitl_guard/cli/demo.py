"""``hitl-guard demo``: the whole story on a temporary SQLite database. Exit code 0 only if every line holds."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .demo_chat import chat

_POLICY = b"""\
version: 1
name: demo
default: deny
rules:
  - id: refunds
    tools: [refund, transfer]
    effect: require_approval
    reason: Money leaves the house.
"""

# As a provider sends it: the arguments are a raw JSON string that the model wrote.
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Order A-17 arrived broken. I want my 82 euros back."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{
            "id": "call_1",
            "type": "function",
            "function": {"name": "refund", "arguments": '{"order": "A-17", "amount": 82.00}'},
        }],
    },
]

_OWN_TOOL = """
Try it on your own tool:

    hitl-guard keys generate --out keys.json && export HITL_GUARD_KEYS_FILE=$PWD/keys.json

    from hitl_guard import Guard, Principal, SQLStore, Keyring, ApprovalRequired
    store = SQLStore("sqlite:///approvals.db"); store.setup()
    guard = Guard(policy="user-approval", keyring=Keyring.from_env(), store=store)

    @guard.tool
    def delete_order(order: str): ...

    with guard.context(user="ana", run_id="chat-1"):
        delete_order(order="A-17")        # raises ApprovalRequired; README.md shows the rest
"""


class Story:
    """Prints one line per step and remembers whether each held."""

    def __init__(self) -> None:
        self.failed = 0
        self.steps = 0

    def check(self, text: str, held: bool, shown: str) -> None:
        """Print a step and what was seen."""
        self.steps += 1
        self.failed += not held
        click.echo(f"{'ok  ' if held else 'FAIL'}  {text:<58} {shown}")

    def refused(self, text: str, code: str, detail: str | None, action: Callable[[], Any]) -> None:
        """Run an attack; it must end in our error with exactly this code (and detail, unless None)."""
        from ..errors import HitlGuardError

        try:
            result = action()
        except HitlGuardError as error:
            shown = error.code if error.detail is None else f"{error.code} ({error.detail})"
            self.check(text, error.code == code and detail in (None, error.detail), shown)
        else:
            self.check(text, False, f"NOT refused: {result!r}")


class World:
    """One guard, one tool that counts what it really did, and the people around it."""

    def __init__(self, folder: Path) -> None:
        from .. import clock
        from ..guard import Guard
        from ..keyring import Keyring
        from ..keys import Key
        from ..models import Principal
        from ..policy.documents import PolicyDocument
        from ..store import SQLStore

        self.path = folder / "approvals.db"
        self.store = SQLStore(f"sqlite:///{self.path}")
        self.store.setup()
        self.keyring = Keyring([Key.generate(clock.epoch_ms() - 60_000)])
        self.document = PolicyDocument.from_source(_POLICY, "demo.yaml")
        self.guard = Guard(policy=self.document, keyring=self.keyring, store=self.store)
        self.ana, self.bob = Principal("ana"), Principal("bob", roles=("support-lead",))
        self.refunds: list[tuple[str, Any]] = []
        self.count = 1

    def refund(self, order: str, amount: float) -> str:
        """Pay money back for an order."""
        self.refunds.append((order, amount))
        return f"refunded {amount:.2f} for {order}"

    def call(self, arguments: Any = None, *, tool: str = "refund", call_id: str, **scope: Any) -> Any:
        """Return a tool call as a loop would build it."""
        from ..models import ToolCall

        raw = '{"order": "A-17", "amount": 82.00}' if arguments is None else arguments
        where = {"user": "ana", "run_id": "run-1", "call_id": call_id, "agent": "support-bot", **scope}
        return ToolCall(tool, raw, **where)

    def approved(self, **decision: Any) -> tuple[str, str]:
        """Return the call id and the request id of a fresh grant: asked by ana's agent, approved by bob."""
        self.count += 1
        call_id = f"call_{self.count}"
        request = self.guard.request(self.call(call_id=call_id))
        self.guard.decide(request.id, approver=self.bob, approve=True, fingerprint=request.fingerprint, **decision)
        return call_id, request.id

    def attack(self, arguments: Any = None, *, guard: Any = None, **changed: Any) -> Callable[[], Any]:
        """Return the attempt to run a changed call on a fresh grant, named by its request id."""
        call_id, request_id = self.approved()
        call = self.call(arguments, **{"call_id": call_id, **changed})
        return lambda: (guard or self.guard).run(call, self.refund, request_id=request_id)

    def sql(self, statement: str, *values: Any, path: Path | None = None) -> None:
        """Write to the database behind the guard's back, as somebody with its password could."""
        connection = sqlite3.connect(path or self.path)
        with connection:
            connection.execute(statement, values)
        connection.close()


@click.group(invoke_without_command=True)
@click.pass_context
def demo(context: click.Context) -> None:
    """Tell the whole story on a temporary SQLite database: ask, approve, run once, refuse everything else."""
    if context.invoked_subcommand is None:
        _tell()


demo.add_command(chat)


def _tell() -> None:
    folder = Path(tempfile.mkdtemp(prefix="hitl-guard-demo-"))
    story = Story()
    try:
        world = World(folder)
        _approve_once(story, world)
        _attacks(story, world)
        _time_and_policy(story, world)
        _database(story, world, folder)
        _keys(story, world)
        story.check("in the end, money was paid", len(world.refunds) == 2, f"{len(world.refunds)} times, as approved")
        world.store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(f"\n{story.steps - story.failed} of {story.steps} lines held.")
    if story.failed:
        raise SystemExit(1)
    click.echo(_OWN_TOOL)


def _approve_once(story: Story, world: World) -> None:
    from ..errors import ApprovalRequired

    tools: dict[str, Any] = {"refund": world.refund}
    scope: dict[str, Any] = {"user": "ana", "run_id": "run-1", "agent": "support-bot"}
    messages = list(_CONVERSATION)
    click.echo("The model asks for refund " + messages[-1]["tool_calls"][0]["function"]["arguments"])
    request = None
    try:
        world.guard.run_tool_calls(messages, tools, **scope)
    except ApprovalRequired as pause:
        request = pause.request
    if request is None:
        story.check("the call waits for a person", False, "it did not wait")
        return
    story.check("the call waits for a person; nothing was paid", not world.refunds, request.id)
    story.refused("ana, who asked, approves it herself", "not-authorised", "self-approval",
                  lambda: world.guard.decide(request.id, approver=world.ana, approve=True,
                                             fingerprint=request.fingerprint))
    decision = world.guard.decide(request.id, approver=world.bob, approve=True, fingerprint=request.fingerprint)
    story.check("bob, another person, approves what he was shown", decision.state == "approved", decision.state)
    messages += world.guard.run_tool_calls(messages, tools, **scope)
    paid = world.refunds == [("A-17", 82.0)]
    story.check("the same loop goes on: it runs, with 82.00", paid, messages[-1]["content"])
    call = world.call(call_id="call_1")
    story.refused("the same approval once more", "consumed", None,
                  lambda: world.guard.run(call, world.refund, request_id=request.id))


def _attacks(story: Story, world: World) -> None:
    click.echo("\nEach of these has a fresh approval of refund 82.00, and names it:")
    story.refused("820.00 instead of 82.00", "args-mismatch", None, world.attack('{"order": "A-17", "amount": 820.00}'))
    story.refused("another tool with the same arguments", "args-mismatch", None, world.attack(tool="transfer"))
    story.refused("another user", "scope-mismatch", None, world.attack(user="mallory"))
    story.refused("another run", "scope-mismatch", None, world.attack(run_id="run-2"))
    story.refused("a JSON key twice", "unsupported-value", "duplicate",
                  world.attack('{"order": "A-17", "amount": 820, "amount": 82.00}'))


def _time_and_policy(story: Story, world: World) -> None:
    from .. import clock
    from ..guard import Guard
    from ..policy.documents import PolicyDocument

    changed = PolicyDocument.from_source(_POLICY + b"# one byte more is another policy\n", "demo.yaml")
    other = Guard(policy=changed, keyring=world.keyring, store=world.store)
    story.refused("the policy changed since it was approved", "policy-changed", None, world.attack(guard=other))
    call_id, request_id = world.approved(execute_within=50)
    clock.sleep_ms(80)
    call = world.call(call_id=call_id)
    story.refused("too late: the time to run it is over", "expired", None,
                  lambda: world.guard.run(call, world.refund, request_id=request_id))


def _database(story: Story, world: World, folder: Path) -> None:
    from ..lifecycle.ledger import verify

    click.echo("\nSomebody writes to the database itself, without a key:")
    request = world.guard.request(world.call(call_id="call_forged"))
    row = world.store.load("default", request_id=world.approved()[1]).events[-1]
    chain, seq = row.chain.encode(), row.seq
    world.sql(
        "INSERT INTO hitl_guard_events SELECT CAST('forged' AS BLOB), 0, ?, 1, type, tenant, at, body, NULL, previous,"
        " epoch, key_id, mac FROM hitl_guard_events WHERE chain = ? AND seq = ?", request.id.encode(), chain, seq,
    )
    forged = world.call(call_id="call_forged")
    story.refused("an approval copied to another request", "invalid-signature", "mismatch",
                  lambda: world.guard.run(forged, world.refund, request_id=request.id))
    world.sql("DELETE FROM hitl_guard_events WHERE chain = CAST('forged' AS BLOB)")
    report = verify(world.guard._desk)
    story.check("with the forged row gone, the audit holds", not report.findings, f"{report.events} events verified")
    copy = folder / "tampered.db"
    world.sql("VACUUM INTO ?", str(copy))
    world.sql("DELETE FROM hitl_guard_events WHERE chain = ? AND seq = ?", chain, seq, path=copy)
    finding = _audit_of(world, copy)
    story.check("one event deleted: 'audit verify' names it", bool(finding), finding or "nothing found")


def _audit_of(world: World, path: Path) -> str:
    from ..guard import Guard
    from ..lifecycle.ledger import verify
    from ..store import SQLStore

    store = SQLStore(f"sqlite:///{path}")
    report = verify(Guard(policy=world.document, keyring=world.keyring, store=store)._desk)
    store.close()
    return f"{report.findings[0].code}: {report.findings[0].message}" if report.findings else ""


def _keys(story: Story, world: World) -> None:
    from .. import clock
    from ..guard import Guard
    from ..keyring import revoked, rotated

    click.echo("\nAn operator rotates the key while an approval is pending, then revokes the old one:")
    request = world.guard.request(world.call(call_id="call_rotated"))
    last_id, last_request = world.approved()
    ring, new = rotated(world.keyring, now=clock.epoch_ms() - 2_000, refresh_ms=1_000)
    guard = Guard(policy=world.document, keyring=ring, store=world.store)
    guard.decide(request.id, approver=world.bob, approve=True, fingerprint=request.fingerprint)
    call = world.call(call_id="call_rotated")
    result = guard.run(call, world.refund, request_id=request.id)
    story.check("rotated: the pending approval still works", len(world.refunds) == 2, f"new key {new.id}; {result}")
    ring, _ = revoked(ring, request.key_id, now=clock.epoch_ms())
    guard = Guard(policy=world.document, keyring=ring, store=world.store)
    late = world.call(call_id=last_id)
    story.refused("revoked: what the old key signed is void", "key-revoked", None,
                  lambda: guard.run(late, world.refund, request_id=last_request))
