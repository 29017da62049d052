"""How much does single use cost? Against the least that stores a request and burns it, by the bare driver.

The floor is what a package does that keeps approvals in a table: one INSERT of ``json.dumps`` and an HMAC, and one
guarded UPDATE, each committed. Ours writes a signed request and a chained claim event; ``authorize`` adds the reading
and every check. Rows whose database or folder is missing are left out, visibly.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hitl_guard import Guard, Principal, SQLStore, ToolCall, audit, clock
from hitl_guard.canonical import canonicalize
from hitl_guard.fingerprint import fingerprint, record_digest
from hitl_guard.keyring import Key, Keyring
from hitl_guard.rows import Draft, RequestRow
from hitl_guard.signing import Signer
from hitl_guard.store.base import AddRequest, Append

from ._harness import Row, at_most, medians

ARGUMENTS: dict[str, Any] = {"account": "4711", "amount": 8200, "currency": "EUR", "order": "A-17"}
OPERATIONS = 400
HERE = 2
"""The rows below hold twice their final bound until claims are committed in groups."""

Statement = Callable[[str, tuple[Any, ...]], int]


def rows() -> list[Row]:
    """Measure and return the rows."""
    found: list[Row] = []
    for label, folder, holds in _folders():
        with _sqlite(folder) as (url, statement):
            found += _rows(f"SQLite, {label}", url, statement, holds)
    with _postgresql() as server:
        if server is not None:
            found += _rows("PostgreSQL", *server, (1.7 * HERE, 2 * HERE))
    return found


def _folders() -> Iterator[tuple[str, str, tuple[float | None, float | None]]]:
    memory = Path("/dev/shm")  # noqa: S108  a tmpfs, where committing costs no disk
    if memory.is_dir() and os.access(memory, os.W_OK):
        yield "tmpfs", str(memory), (2.5 * HERE, None)
    else:
        print("left out: there is no tmpfs here", file=sys.stderr)
    yield "disk", tempfile.gettempdir(), (1.7 * HERE, 2 * HERE)


@contextmanager
def _sqlite(parent: str) -> Iterator[tuple[str, Statement]]:
    folder = tempfile.mkdtemp(dir=parent)
    bare = sqlite3.connect(f"{folder}/floor.db", isolation_level=None)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    bare.execute("CREATE TABLE approvals (id TEXT PRIMARY KEY, payload TEXT, mac TEXT, state TEXT, until INTEGER)")

    def statement(sql: str, values: tuple[Any, ...]) -> int:
        bare.execute("BEGIN IMMEDIATE")
        changed = bare.execute(sql, values).rowcount
        bare.execute("COMMIT")
        return changed

    try:
        yield f"sqlite:///{folder}/ours.db", statement
    finally:
        bare.close()
        shutil.rmtree(folder)


@contextmanager
def _postgresql() -> Iterator[tuple[str, Statement] | None]:
    server = os.environ.get("HITL_GUARD_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
    try:
        import psycopg

        admin = psycopg.connect(server, autocommit=True)
    except (ImportError, OSError, Exception) as error:  # noqa: BLE001  whatever the driver raises: the row is left out
        print(f"left out: PostgreSQL ({type(error).__name__})", file=sys.stderr)
        yield None
        return
    name = f"hitl_guard_bench_{secrets.token_hex(6)}"
    admin.execute(f"CREATE DATABASE {name}")
    url = server.rsplit("/", 1)[0] + "/" + name
    bare = psycopg.connect(url, autocommit=True)
    bare.execute("CREATE TABLE approvals (id text PRIMARY KEY, payload text, mac text, state text, until bigint)")

    def statement(sql: str, values: tuple[Any, ...]) -> int:
        return bare.execute(sql.replace("?", "%s"), values).rowcount

    try:
        yield url, statement
    finally:
        bare.close()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.close()


def _rows(label: str, url: str, statement: Statement, holds: tuple[float | None, float | None]) -> list[Row]:
    keyring = Keyring([Key.generate(clock.epoch_ms() - 3_600_000)])
    store = SQLStore(url)
    store.setup()
    try:
        whole = medians(
            {"floor": _floor(statement), "ours": _stored(store, keyring)}, rounds=OPERATIONS, repeats=1
        )
        calls = _grants(store, keyring)
        spent = medians(
            {"floor": _update(statement), "ours": _authorize(store, keyring, calls)}, rounds=OPERATIONS, repeats=1
        )
    finally:
        store.close()
    return [
        at_most(f"stored request + claim vs INSERT + UPDATE, {label}", whole["ours"], whole["floor"], holds[0]),
        at_most(f"authorize() vs one guarded UPDATE, {label}", spent["ours"], spent["floor"], holds[1]),
    ]


_INSERT = "INSERT INTO approvals VALUES (?, ?, ?, 'approved', ?)"
_BURN = "UPDATE approvals SET state = 'spent' WHERE id = ? AND state = 'approved' AND until > ?"


def _insert(statement: Statement, key: bytes) -> str:
    name = secrets.token_urlsafe(16)
    payload = json.dumps({"id": name, "tool": "pay", "args": ARGUMENTS, "user": "ana", "run": "run-1"}, sort_keys=True)
    statement(_INSERT, (name, payload, hmac.new(key, payload.encode(), "sha256").hexdigest(), 2**52))
    return name


def _floor(statement: Statement) -> Callable[[], None]:
    key = os.urandom(32)

    def operation() -> None:
        assert statement(_BURN, (_insert(statement, key), clock.epoch_ms())) == 1

    return operation


def _update(statement: Statement) -> Callable[[], None]:
    names = [_insert(statement, b"k" * 32) for _ in range(OPERATIONS)]

    def operation() -> None:
        assert statement(_BURN, (names.pop(), clock.epoch_ms())) == 1

    return operation


def _stored(store: SQLStore, keyring: Keyring) -> Callable[[], None]:
    """Return: make the signed request, store it, claim it with every demand that the guard makes of the database."""
    signer = Signer(keyring)
    sealer = audit.Sealer(signer)
    guard = Guard(policy="user-approval", keyring=keyring, store=store)
    guard.request(ToolCall("pay", ARGUMENTS, user="ana", run_id="warm", call_id="warm"))  # makes the control row

    def operation() -> None:
        name, now = secrets.token_urlsafe(16), store.now()
        arguments = canonicalize(ARGUMENTS, exact=True)
        fields = {"fingerprint": fingerprint("pay", arguments), "request": name, "run": "run-1", "user": "ana"}
        envelope = signer.sign("request", "hitl-request", fields, now=now)
        identity = hashlib.sha256(name.encode()).digest()
        row = RequestRow(name, "default", identity, 0, envelope, arguments, b"{}")
        assert store.write([AddRequest(row, identity, now + 1000)], sealer) is not None
        body = audit.body(claim=name, request=record_digest(envelope, arguments, b"{}"))
        draft = Draft("grant:claimed", "default", now, body, name, 1, identity)
        claim = Append(draft, before=now + 60_000, control=("default", 1))
        assert store.write([claim], sealer) is not None

    return operation


def _grants(store: SQLStore, keyring: Keyring) -> list[tuple[ToolCall, str]]:
    guard, bob = Guard(policy="user-approval", keyring=keyring, store=store), Principal("bob")
    grants = []
    for number in range(OPERATIONS):
        call = ToolCall("pay", ARGUMENTS, user="ana", run_id=f"run-{number}", call_id="call")
        request = guard.request(call)
        guard.decide(request.id, approver=bob, approve=True, fingerprint=request.fingerprint)
        grants.append((call, request.id))
    return grants


def _authorize(store: SQLStore, keyring: Keyring, grants: list[tuple[ToolCall, str]]) -> Callable[[], None]:
    guard = Guard(policy="user-approval", keyring=keyring, store=store)

    def operation() -> None:
        call, request_id = grants.pop()
        guard.authorize(call, request_id=request_id)

    return operation
