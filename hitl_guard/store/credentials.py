"""Passkeys: what their steps do within a transaction, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from ..rows import CredentialRow, credential_record
from . import schema, values
from .base import CredentialStep, PutCredential
from .dialects.base import Dialect

_TABLE = schema.credentials.name
_EVENTS = schema.events.c
_PAGE = 500


class CredentialSteps:
    """Executes the steps of passkeys on one kind of database; the caller begins and commits."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._add = dialect.statement(
            f"INSERT INTO {_TABLE} (credential, owner, body) VALUES (:credential, :owner, :body){dialect.words.skip}"
        )
        self._replace = dialect.statement(
            f"UPDATE {_TABLE} SET owner = :owner, body = :body WHERE credential = :credential AND body = :replaced"
        )
        self._drop = dialect.statement(f"DELETE FROM {_TABLE} WHERE credential = :credential AND body = :body")

    def run(self, raw: Any, step: CredentialStep) -> bool:
        """Execute one step; False: its demand is unmet, or what it inserts is there already."""
        if not isinstance(step, PutCredential):
            return self._dialect.change(raw, self._drop, {"credential": step.key, "body": step.body}) == 1
        parameters = {"credential": step.row.key, "owner": step.row.owner, "body": step.row.body}
        if step.replaced is None:
            return self._dialect.change(raw, self._add, parameters) == 1
        return self._dialect.change(raw, self._replace, {**parameters, "replaced": step.replaced}) == 1


def listed(connection: Connection, owner: bytes | None, key: bytes | None) -> list[tuple[CredentialRow, int]]:
    """Return what `Store.credentials` does."""
    column = schema.credentials.c
    query = select(column.credential, column.owner, column.body).order_by(column.credential)
    if owner is not None:
        query = query.where(column.owner == owner)
    if key is not None:
        query = query.where(column.credential == key)
    rows = [CredentialRow(*map(values.raw, row)) for row in connection.execute(query)]
    found = versions(connection, [credential_record(row.key) for row in rows])
    return [(row, found[credential_record(row.key)]) for row in rows]


def versions(connection: Connection, records: Sequence[str]) -> dict[str, int]:
    """Return each record's last version, 0 for one without events."""
    found = dict.fromkeys(records, 0)
    for start in range(0, len(records), _PAGE):
        page = [values.pack(record) for record in records[start : start + _PAGE]]
        last = (
            select(_EVENTS.request_id, func.max(_EVENTS.version))
            .where(_EVENTS.request_id.in_(page))
            .group_by(_EVENTS.request_id)
        )
        found |= {values.text(record): values.number(version) for record, version in connection.execute(last)}
    return found
