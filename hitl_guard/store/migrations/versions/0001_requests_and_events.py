"""Requests, events, the list of open requests, control rows, chains.

A migration describes the tables as they were when it was written; it never imports the schema, which goes on.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, PrimaryKeyConstraint, Table, UniqueConstraint
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
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
        "hitl_guard_requests",
        metadata,
        Column("id", _key(80), nullable=False),
        Column("tenant", _bytes(), nullable=False),
        Column("identity", _key(32), nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("envelope", _bytes(), nullable=False),
        Column("arguments", _bytes(), nullable=False),
        Column("details", _bytes(), nullable=False),
        Column("listed_until", BigInteger, nullable=False),
        PrimaryKeyConstraint("id", name="hitl_guard_requests_pk"),
        UniqueConstraint("identity", "generation", name="hitl_guard_requests_identity"),
        **innodb,
    )
    events = Table(
        "hitl_guard_events",
        metadata,
        Column("chain", _key(32), nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("request_id", _key(80)),
        Column("version", BigInteger),
        Column("type", _bytes(), nullable=False),
        Column("tenant", _bytes(), nullable=False),
        Column("at", BigInteger, nullable=False),
        Column("body", _bytes(), nullable=False),
        Column("spend_key", _key(32)),
        Column("previous", _bytes(), nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("key_id", _bytes(), nullable=False),
        Column("mac", _bytes(), nullable=False),
        PrimaryKeyConstraint("chain", "seq", name="hitl_guard_events_pk"),
        **innodb,
    )
    Index(
        "hitl_guard_events_version", events.c.request_id, events.c.version, unique=True,
        sqlite_where=events.c.request_id.is_not(None), postgresql_where=events.c.request_id.is_not(None),
    )
    Index(
        "hitl_guard_events_spend", events.c.spend_key, unique=True,
        sqlite_where=events.c.spend_key.is_not(None), postgresql_where=events.c.spend_key.is_not(None),
    )
    Table(
        "hitl_guard_open_requests",
        metadata,
        Column("listed_until", BigInteger, nullable=False),
        Column("request_id", _key(80), nullable=False),
        Column("tenant", _key(32), nullable=False),
        Column("run", _key(32), nullable=False),
        PrimaryKeyConstraint("listed_until", "request_id", name="hitl_guard_open_requests_pk"),
        sqlite_with_rowid=False,
        **innodb,
    )
    Table(
        "hitl_guard_control",
        metadata,
        Column("tenant_digest", _key(32), nullable=False),
        Column("tenant", _bytes(), nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("body", _bytes(), nullable=False),
        PrimaryKeyConstraint("tenant_digest", name="hitl_guard_control_pk"),
        **innodb,
    )
    Table(
        "hitl_guard_chains",
        metadata,
        Column("chain", _key(32), nullable=False),
        Column("anchored_seq", BigInteger, nullable=False),
        PrimaryKeyConstraint("chain", name="hitl_guard_chains_pk"),
        **innodb,
    )
    return metadata
