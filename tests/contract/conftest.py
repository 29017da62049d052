"""A connection that breaks when it matters most."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest

from hitl_guard.store.sql import SQLStore


class Breaking:
    """A driver connection that breaks at the end of the next transaction, before or after the server has done it."""

    def __init__(self, raw: Any, plan: dict[str, Any]) -> None:
        self._raw = raw
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def execute(self, sql: Any, *rest: Any, **options: Any) -> Any:
        one_statement = isinstance(self._raw, psycopg.Connection) and self._raw.info.transaction_status == 0
        if not (sql == "COMMIT" or (one_statement and str(sql).startswith(("INSERT", "WITH")))):
            return self._raw.execute(sql, *rest, **options)
        error: type[Exception] = sqlite3.OperationalError
        if isinstance(self._raw, psycopg.Connection):
            error = psycopg.OperationalError
        return self._end(lambda: self._raw.execute(sql, *rest, **options), error("connection lost"))

    def commit(self) -> None:
        self._end(self._raw.commit, pymysql.err.OperationalError(2013, "Lost connection"))

    def _end(self, commit: Callable[[], Any], error: Exception) -> Any:
        if not self._plan["broken"]:
            return commit()
        if self._plan["applied"]:
            commit()
        else:
            self._raw.rollback()  # as the server does once the connection is gone
        self._plan["broken"] = False
        then = self._plan.get("then")
        if then:
            then()
        raise error


@pytest.fixture
def plan(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """``plan["broken"] = True`` breaks the next COMMIT; ``plan["applied"]`` says on which side of it."""
    plan: dict[str, Any] = {"broken": False, "applied": False}
    connect = store._dialect.connect

    def breaking(*, read_only: bool) -> Any:
        raw = connect(read_only=read_only)
        return raw if read_only else Breaking(raw, plan)

    monkeypatch.setattr(store._dialect, "connect", breaking)
    return plan
