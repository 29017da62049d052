"""Whose, for whom and since when a request is listed, so that floods can be counted; and the approvers' passkeys.

A migration describes the tables as they were when it was written; it never imports the schema, which goes on.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, PrimaryKeyConstraint, Table, inspect, text
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.types import TypeEngine

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OPEN = "hitl_guard_open_requests"
_INDEXES = {  # name: its columns, and whether it is about open requests only
    "tenant": (["tenant", "listed_until", "request_id"], False),
    "run": (["run", "listed_until", "request_id"], False),
    "requester": (["requester", "listed_until"], True),
    "desk": (["desk", "listed_until"], True),
    "added": (["added_at"], True),
}


def upgrade() -> None:
    """Add what is missing: MariaDB commits each change by itself, so an interrupted run is taken up again."""
    bind = op.get_bind()
    columns = {column["name"] for column in inspect(bind).get_columns(_OPEN)}
    for name, kind in (("requester", _key(32)), ("desk", _key(32)), ("added_at", BigInteger())):
        if name not in columns:
            op.add_column(_OPEN, Column(name, kind))
    indexes = {index["name"] for index in inspect(bind).get_indexes(_OPEN)}
    for name, (of, partial) in _INDEXES.items():
        if f"{_OPEN}_{name}" not in indexes:
            where = text("listed_until > 0") if partial else None
            op.create_index(f"{_OPEN}_{name}", _OPEN, of, sqlite_where=where, postgresql_where=where)
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
    credentials = Table(
        "hitl_guard_credentials",
        metadata,
        Column("credential", _key(32), nullable=False),
        Column("owner", _key(32), nullable=False),
        Column("body", _bytes(), nullable=False),
        PrimaryKeyConstraint("credential", name="hitl_guard_credentials_pk"),
        **innodb,
    )
    Index("hitl_guard_credentials_owner", credentials.c.owner)
    return metadata
