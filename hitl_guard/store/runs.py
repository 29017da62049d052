"""Suspended runs and conversations: what their steps do within a transaction, and how they are read.

Every statement goes by a primary key, and a run's own row comes before its nodes, so that two writers of one run meet
at that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, or_, select

from ..rows import RunNode, RunRow, Segment
from . import schema, values
from .base import AddSegment, DropRun, DropThread, PutRun, RunStep, Step
from .dialects.base import Dialect, Look, Rows
from .hot import Words

_RUNS, _NODES, _SEGMENTS = schema.runs.name, schema.run_nodes.name, schema.segments.name

_RUN_COLUMNS = ("run", "tenant", "version", "body", "signature")
_NODE_COLUMNS = ("run", "root", "run_id", "owner", "thread", "resource", "created_at")
_SEGMENT_COLUMNS = ("thread", "seq", "run", "body")


def _insert(table: str, columns: Sequence[str], words: Words) -> str:
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({marks}){words.skip}"


class RunSteps:
    """Executes the steps of runs and segments on one kind of database; the caller begins and commits."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        words, statement = dialect.words, dialect.statement
        self._first_run = statement(_insert(_RUNS, (*_RUN_COLUMNS, "mark"), words))
        self._next_run = statement(
            f"UPDATE {_RUNS} SET tenant = :tenant, version = :version, mark = :mark, body = :body, "
            "signature = :signature WHERE run = :run AND version = :replaced"
        )
        self._drop_run = statement(f"DELETE FROM {_RUNS} WHERE run = :run AND version = :version")
        self._node = statement(_insert(_NODES, _NODE_COLUMNS, words))
        self._drop_nodes = statement(f"DELETE FROM {_NODES} WHERE root = :root")
        self._segment = statement(_insert(_SEGMENTS, (*_SEGMENT_COLUMNS, "mark"), words))
        self._drop_thread = statement(f"DELETE FROM {_SEGMENTS} WHERE thread = :thread")
        self._run_mark = statement(f"SELECT mark FROM {_RUNS} WHERE run = :run")
        self._segment_mark = statement(f"SELECT mark FROM {_SEGMENTS} WHERE thread = :thread AND seq = :seq")
        self._thread_marks = statement(f"SELECT mark FROM {_SEGMENTS} WHERE thread = :thread LIMIT 1")

    def run(self, raw: Any, step: RunStep, mark: bytes) -> bool:
        """Execute one step; False: its demand is unmet, or what it inserts is there already."""
        if isinstance(step, PutRun):
            return self._put(raw, step, mark)
        change = self._dialect.change
        if isinstance(step, DropRun):
            if change(raw, self._drop_run, {"run": step.key, "version": step.version}) != 1:
                return False
            change(raw, self._drop_nodes, {"root": step.key})
            return True
        if isinstance(step, AddSegment):
            row = step.segment
            parameters = {"thread": row.thread, "seq": row.seq, "run": row.run, "body": row.body, "mark": mark}
            return change(raw, self._segment, parameters) == 1
        change(raw, self._drop_thread, {"thread": step.thread})
        return True

    def _put(self, raw: Any, step: PutRun, mark: bytes) -> bool:
        change, row = self._dialect.change, step.row
        parameters = {
            "run": row.key, "tenant": values.pack(row.tenant), "version": row.version, "body": row.body,
            "signature": row.signature, "mark": mark, "replaced": row.version - 1,
        }
        if change(raw, self._first_run if row.version == 1 else self._next_run, parameters) != 1:
            return False
        change(raw, self._drop_nodes, {"root": row.key})
        return all(change(raw, self._node, _node_parameters(node)) == 1 for node in step.nodes)

    def evidence(self, steps: Sequence[Step], mark: bytes) -> list[Look]:
        """Return what is found only if a write of nothing but runs and segments was committed (see `Steps.evidence`).

        It is the mark of the last row that the write leaves. Where it only deletes, everything must be gone: one part
        may have been gone before.
        """
        gone: dict[tuple[type[Step], bytes], Look] = {}
        for step in reversed(steps):
            if isinstance(step, DropRun):
                gone[DropRun, step.key] = self._run_mark, {"run": step.key}, None
            elif isinstance(step, DropThread):
                gone[DropThread, step.thread] = self._thread_marks, {"thread": step.thread}, None
            elif isinstance(step, PutRun) and (DropRun, step.row.key) not in gone:
                return [(self._run_mark, {"run": step.row.key}, mark)]
            elif isinstance(step, AddSegment) and (DropThread, step.segment.thread) not in gone:
                place = {"thread": step.segment.thread, "seq": step.segment.seq}
                return [(self._segment_mark, place, mark)]
        return list(gone.values())


def _node_parameters(node: RunNode) -> dict[str, Any]:
    return {
        "run": node.key, "root": node.root, "run_id": values.pack(node.run_id), "owner": node.owner,
        "thread": node.thread, "resource": node.resource, "created_at": node.created_at,
    }


def load(words: Words) -> str:
    """Return `Store.load_run` as one statement of one row: the clock, and the run's columns or NULLs."""
    columns = ", ".join(f"r.{name}" for name in _RUN_COLUMNS)
    return f"SELECT {words.clock}, {columns} FROM (SELECT 1 AS one) d LEFT JOIN {_RUNS} r ON r.run = :run"


def loaded(rows: Rows) -> tuple[int, RunRow | None]:
    """Return what `load` found."""
    now, *run = rows[0]
    return values.number(now), None if run[0] is None else _run_row(run)


_LISTED = (
    *(schema.run_nodes.c[name] for name in _NODE_COLUMNS),
    *(schema.runs.c[name] for name in _RUN_COLUMNS),
)


def listed(
    connection: Connection, owner: bytes, thread: bytes | None, resource: bytes | None, created_from: int | None,
    created_to: int | None, limit: int | None, offset: int,
) -> tuple[int, list[tuple[RunNode, RunRow]]]:
    """Return what `Store.list_runs` does."""
    node = schema.run_nodes.c
    demands = [node.owner == owner]
    if thread is not None:
        demands.append(node.thread == thread)
    if resource is not None:
        demands.append(node.resource == resource)
    if created_from is not None:
        demands.append(node.created_at >= created_from)
    if created_to is not None:
        demands.append(node.created_at <= created_to)
    tree = schema.run_nodes.join(schema.runs, schema.runs.c.run == node.root)
    total = connection.scalar(select(func.count()).select_from(tree).where(*demands))
    page = (
        select(*_LISTED)
        .select_from(tree)
        .where(*demands)
        .order_by(node.created_at.desc(), node.run, node.root)
        .limit(limit)
        .offset(offset)
    )
    split = len(_NODE_COLUMNS)
    return values.number(total), [(_node(row[:split]), _run_row(row[split:])) for row in connection.execute(page)]


def segments_of(thread: bytes, *, first: int, below: int | None, run: bytes | None) -> Select[Any]:
    """Return the query of `Store.segments`."""
    column = schema.segments.c
    query = _segments(thread).where(column.seq >= first).order_by(column.seq)
    if below is None:
        return query
    wanted = column.seq < below
    return query.where(wanted if run is None else or_(wanted, column.run == run))


def newest_segments(thread: bytes, limit: int | None) -> Select[Any]:
    """Return the query of `Store.last_segments`, newest first."""
    return _segments(thread).order_by(schema.segments.c.seq.desc()).limit(limit)


def segment(row: Sequence[Any]) -> Segment:
    """Return a stored segment."""
    thread, seq, run, body = row
    return Segment(values.raw(thread), values.number(seq), values.raw(run), values.raw(body))


def _segments(thread: bytes) -> Select[Any]:
    column = schema.segments.c
    return select(*(column[name] for name in _SEGMENT_COLUMNS)).where(column.thread == thread)


def _run_row(row: Sequence[Any]) -> RunRow:
    key, tenant, version, body, signature = row
    return RunRow(
        values.raw(key), values.text(tenant), values.number(version), values.raw(body), values.raw(signature)
    )


def _node(row: Sequence[Any]) -> RunNode:
    key, root, run_id, owner, thread, resource, created_at = row
    return RunNode(
        values.raw(key), values.raw(root), values.text(run_id), values.raw(owner), values.raw(thread),
        values.raw(resource), values.number(created_at),
    )
