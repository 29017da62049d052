"""Suspended runs, the runs of their trees, and segments of conversations.

A migration describes the tables as they were when it was written; it never imports the schema, which goes on.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, PrimaryKeyConstraint, Table
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create what is missing: MariaDB commits each table by itself, so an interrupted run is taken up again."""
    bind = op.get_bind()
    for table in _tables().sorted_tables:
        table.create(bind, checkfirst=True)
        for index in table.indexes:
            index.create(bind, checkfirst=True)


def _key(length: int) -> TypeEngine[bytes]:
    kind: TypeEngine[bytes] = LargeBinary().with_variant(VARBINARY(length), "mysql")
    return kind


def _bytes() -> TypeEngine[bytes]:
    kind: TypeEngine[bytes] = LargeBinary().with_variant(LONGBLOB(), "mysql")
    return kind


def _tables() -> MetaData:
    metadata = MetaData()
    innodb: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
    Table(
        "hitl_guard_runs",
        metadata,
        Column("run", _key(32), nullable=False),
        Column("tenant", _bytes(), nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("mark", _bytes(), nullable=False),
        Column("signature", _bytes(), nullable=False),
        Column("body", _bytes(), nullable=False),
        PrimaryKeyConstraint("run", name="hitl_guard_runs_pk"),
        **innodb,
    )
    nodes = Table(
        "hitl_guard_run_nodes",
        metadata,
        Column("root", _key(32), nullable=False),
        Column("run", _key(32), nullable=False),
        Column("owner", _key(32), nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("thread", _key(32), nullable=False),
        Column("resource", _key(32), nullable=False),
        Column("run_id", _bytes(), nullable=False),
        PrimaryKeyConstraint("root", "run", name="hitl_guard_run_nodes_pk"),
        sqlite_with_rowid=False,
        **innodb,
    )
    Index("hitl_guard_run_nodes_owner", nodes.c.owner, nodes.c.created_at)
    Table(
        "hitl_guard_segments",
        metadata,
        Column("thread", _key(32), nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("run", _key(32), nullable=False),
        Column("mark", _bytes(), nullable=False),
        Column("body", _bytes(), nullable=False),
        PrimaryKeyConstraint("thread", "seq", name="hitl_guard_segments_pk"),
        **innodb,
    )
    return metadata
