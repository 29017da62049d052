"""Somebody who can read and write the database, and what travels, but has no key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hitl_guard import canonical, signing
from hitl_guard.lifecycle import ledger
from hitl_guard.rows import EventRow
from hitl_guard.store import hot
from tests.databases import Database
from tests.support import World

Row = dict[str, Any]

REQUESTS, EVENTS, CONTROL, OPEN = "requests", "events", "control", "open_requests"
_COLUMNS = {
    REQUESTS: "id, tenant, identity, generation, envelope, arguments, details, listed_until",
    EVENTS: ", ".join(hot.EVENT_COLUMNS),
    CONTROL: "tenant_digest, tenant, version, body",
    OPEN: "listed_until, request_id, tenant, run",
}


class Attacker:
    """Writes whatever the database takes. Rows are dicts from column to value; texts are bytes, as they are stored."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def rows(self, table: str, **where: Any) -> list[Row]:
        """Return the rows whose columns have these values (None: NULL), in no promised order."""
        names = _COLUMNS[table].split(", ")
        condition, parameters = _where(where)
        found = self.database.execute(f"SELECT {_COLUMNS[table]} FROM hitl_guard_{table}{condition}", parameters)
        return [dict(zip(names, row, strict=True)) for row in found]

    def row(self, table: str, **where: Any) -> Row:
        """Return the only row with these values."""
        (found,) = self.rows(table, **where)
        return found

    def set(self, table: str, changes: Mapping[str, Any], **where: Any) -> None:
        """Change exactly one row."""
        assert len(self.rows(table, **where)) == 1
        condition, parameters = _where(where)
        values = ", ".join(f"{name} = :new_{name}" for name in changes)
        parameters |= {f"new_{name}": value for name, value in changes.items()}
        self.database.execute(f"UPDATE hitl_guard_{table} SET {values}{condition}", parameters)

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        self.database.execute(f"INSERT INTO hitl_guard_{table} ({names}) VALUES ({values})", row)

    def insert_event(self, event: EventRow) -> None:
        """Store an event as the guard itself would have."""
        values = ((name, getattr(event, name)) for name in hot.EVENT_COLUMNS)
        self.insert(EVENTS, {name: value.encode() if isinstance(value, str) else value for name, value in values})

    def delete(self, table: str, **where: Any) -> list[Row]:
        """Delete the rows with these values, at least one, and return them."""
        gone = self.rows(table, **where)
        assert gone
        condition, parameters = _where(where)
        self.database.execute(f"DELETE FROM hitl_guard_{table}{condition}", parameters)
        return gone

    @contextmanager
    def edited(self, table: str, changes: Mapping[str, Any], **where: Any) -> Iterator[None]:
        """Have one row changed for as long as the block lasts."""
        old = self.row(table, **where)
        self.set(table, changes, **where)
        yield
        self.set(table, {name: old[name] for name in changes}, **{**where, **_known(changes, where)})

    def swap(self, table: str, columns: tuple[str, ...], one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        """Exchange some columns of two rows."""
        first, second = self.row(table, **one), self.row(table, **other)
        # By way of values that nobody has: unique keys are checked after each statement.
        self.set(table, {name: _free(first[name]) for name in columns}, **one)
        self.set(table, {name: first[name] for name in columns}, **other)
        moved = {name: _free(first[name]) for name in columns if name in one}
        self.set(table, {name: second[name] for name in columns}, **{**one, **moved})


def _known(changes: Mapping[str, Any], where: Mapping[str, Any]) -> Row:
    return {name: value for name, value in changes.items() if name in where}


def _free(value: Any) -> Any:
    return value + 1_000_000 if isinstance(value, int) else b"free" + bytes(value or b"")[:16]


def _where(where: Mapping[str, Any]) -> tuple[str, Row]:
    parts = [f"{name} IS NULL" if value is None else f"{name} = :{name}" for name, value in where.items()]
    parameters = {name: value for name, value in where.items() if value is not None}
    return (f" WHERE {' AND '.join(parts)}" if parts else ""), parameters


def opened(token: str) -> tuple[Row, str]:
    """Return the fields of a signed text and the text of its MAC."""
    payload, _, mac = token.partition(".")
    raw = signing.decode(payload.encode())
    assert raw is not None
    fields: Row = json.loads(raw)
    return fields, mac


def reworded(token: str, change: Callable[[Row], object]) -> str:
    """Return a signed text that says something else under the MAC that it had."""
    fields, mac = opened(token)
    change(fields)
    return f"{signing.encode(canonical.canonicalize(fields)).decode()}.{mac}"


def flipped(data: bytes, place: int) -> bytes:
    """Return ``data`` with one bit of one byte changed."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def findings(world: World) -> list[str]:
    """Return the codes of what `audit verify` finds."""
    return [finding.code for finding in ledger.verify(world.guard._desk).findings]
