"""A guard on a real database, the people around it, and an attacker one can edit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from hitl_guard import clock
from hitl_guard.errors import ApprovalRequired, HitlGuardError
from hitl_guard.guard import Guard
from hitl_guard.keyring import Key, Keyring
from hitl_guard.lifecycle.settings import Settings
from hitl_guard.models import ApprovalRequest, Permit, Principal, ToolCall
from hitl_guard.policy.combined import Policy
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.store.sql import SQLStore
from tests.databases import Database

POLICY = """\
version: 1
name: tests
default: not_applicable
rules:
  - id: refunds
    tools: [refund, transfer]
    effect: require_approval
    reason: Money leaves the house.
  - id: two-people
    tools: [wire]
    effect: require_approval
    quorum: 2
  - id: leads
    tools: [close_account]
    effect: require_approval
    approvers: [lead]
  - id: editable
    tools: [mail]
    effect: require_approval
    edit: true
  - id: nobody
    tools: [drop_database]
    effect: deny
    reason: Never.
  - id: small
    tools: [ping]
    effect: allow
"""

ANA = Principal("ana", aliases=("ana@example.org",))
BOB = Principal("bob", roles=("lead",))
CAROL = Principal("carol")
OPERATOR = Principal("olga", roles=("operator",))
GLOBAL = Principal("gina", roles=("global-operator",))
ARGUMENTS: dict[str, Any] = {"order": "A-17", "amount": 82}
WAIT_S = 20
"""How long anything is waited for that must come, in seconds."""


def ring(*, age: int = 3_600_000) -> Keyring:
    """Return a key ring with one key that has been active for ``age`` milliseconds."""
    return Keyring([Key.generate(clock.epoch_ms() - age)])


@cache
def document(text: str = POLICY) -> PolicyDocument:
    return PolicyDocument.from_source(text.encode(), "tests.yaml")


class World:
    """A guard on one database, and a tool that counts what it really did.

    Attributes:
        effects: The arguments of every real run, in order.
    """

    def __init__(self, store: SQLStore, *, policy: Any = None, keyring: Keyring | None = None, **options: Any) -> None:
        self.store = store
        self.keyring = keyring or ring()
        self.policy = Policy.of(document() if policy is None else policy)
        self.guard = Guard(policy=self.policy, keyring=self.keyring, store=store, **options)
        self.effects: list[dict[str, Any]] = []
        self.calls = 0

    def another(self, **changed: Any) -> World:
        """Return another node on the same database; its effects are counted together with ours."""
        store = changed.pop("store", self.store)
        options: dict[str, Any] = {"policy": self.policy, "keyring": self.keyring} | changed
        node = World(store, **options)
        node.effects = self.effects
        return node

    def tool(self, **arguments: Any) -> str:
        self.effects.append(arguments)
        return "done"

    def call(self, tool: str = "refund", arguments: Any = None, **scope: Any) -> ToolCall:
        given = ARGUMENTS if arguments is None else arguments
        self.calls += "call_id" not in scope
        return ToolCall(tool, given, **{"user": "ana", "run_id": "run-1", "call_id": f"call-{self.calls}", **scope})

    def approve(self, request: ApprovalRequest, by: Principal = BOB, **options: Any) -> Any:
        return self.guard.decide(request.id, approver=by, approve=True, fingerprint=request.fingerprint, **options)

    def deny(self, request: ApprovalRequest, by: Principal = BOB, **options: Any) -> Any:
        return self.guard.decide(request.id, approver=by, approve=False, fingerprint=request.fingerprint, **options)

    def grant(self, call: ToolCall | None = None, **options: Any) -> tuple[ToolCall, ApprovalRequest]:
        """Return a call and its valid grant: asked, shown, approved by an entitled second person, unspent."""
        call = self.call() if call is None else call
        request = self.guard.request(call)
        self.approve(request, **options)
        return call, self.guard.get(request.id, tenant=call.tenant)

    def run(self, call: ToolCall, **grant: Any) -> Any:
        return self.guard.run(call, self.tool, **grant)

    def ask(self, call: ToolCall) -> ApprovalRequest:
        """Authorize a call that must wait for a person, and return its request."""
        with pytest.raises(ApprovalRequired) as pause:
            self.guard.authorize(call)
        request: ApprovalRequest = pause.value.request
        return request

    def audited(self, kind: str = "call:refused") -> list[dict[str, Any]]:
        """Return the bodies of all audit events of one type, oldest first per chain."""
        return list(self._trail(kind).values())

    def _trail(self, kind: str) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the events of one type by their place; several writers have several chains."""
        return {
            (chain, event.seq): json.loads(event.body)
            for chain in self.store.chains()
            for event in self.store.chain_events(chain, limit=100_000)
            if event.type == kind
        }

    def confirm(self) -> None:
        """Go on after a restore or a revocation: the operators of the tenant and of all tenants look, and resume."""
        self.guard.resume(by=OPERATOR)
        self.guard.resume(by=GLOBAL, everywhere=True)

    def state(self, request: ApprovalRequest) -> str:
        return self.guard.get(request.id, tenant=request.tenant).state

    @contextmanager
    def refused(self, code: str, detail: str | None = None, *, kind: str = "call:refused") -> Iterator[None]:
        """Demand that the block is refused with exactly this code, runs no tool, and leaves one audit event with it."""
        ran, before = len(self.effects), self._trail(kind)
        with pytest.raises(HitlGuardError) as caught:
            yield
        assert (caught.value.code, detail or caught.value.detail) == (code, caught.value.detail)
        assert len(self.effects) == ran
        assert [event["code"] for place, event in self._trail(kind).items() if place not in before] == [code]


async def eventually(holds: Callable[[], bool]) -> None:
    """Return once something holds. Whatever else goes on here goes on meanwhile; it fails after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0)


def until(store: SQLStore, moment: int) -> None:
    """Return when the *database's* clock has reached ``moment``; nothing else is waited for."""
    while store.now() < moment:
        pass


@pytest.fixture
def world(make_database: Callable[..., Database]) -> Iterator[World]:
    """A guard on a new SQLite database."""
    store = SQLStore(make_database("sqlite").url)
    yield World(store)
    store.close()


@pytest.fixture
def make_world(database: Database) -> Iterator[Callable[..., World]]:
    """Make guards on a new database of each kind: SQLite, PostgreSQL, MariaDB."""
    stores: list[SQLStore] = []

    def make(**options: Any) -> World:
        store = SQLStore(database.url)
        stores.append(store)
        return World(store, **options)

    yield make
    for store in stores:
        store.close()


__all__ = [
    "ANA", "ARGUMENTS", "BOB", "CAROL", "GLOBAL", "OPERATOR", "Permit", "Settings", "World", "document", "make_world",
    "ring", "until", "world",
]
