"""The tables, as SQLAlchemy Core describes them. Migrations create them; `hitl_guard.store.migrations` has the history.

Every text that is compared is stored as its UTF-8 bytes (BLOB, BYTEA, VARBINARY), so that no collation decides what
is equal: tenants may hold NUL, trailing spaces and any Unicode. Times are epoch milliseconds. No index is led by the
tenant: PostgreSQL's planner preferred such an index to the primary key on a fresh table, and kept that plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.types import TypeEngine

from ..errors import ConfigurationError

PREFIX = "hitl_guard_"
"""Put before every table's name: the database may be shared with the application."""

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every migration, in order. This version of the code needs the last one, exactly."""

VERSION_TABLE = PREFIX + "version"

metadata = MetaData()


def _key(length: int) -> TypeEngine[bytes]:
    """Bytes that an index holds: MariaDB needs their greatest length (bytes)."""
    kind: TypeEngine[bytes] = LargeBinary().with_variant(VARBINARY(length), "mysql")
    return kind


def _bytes() -> TypeEngine[bytes]:
    kind: TypeEngine[bytes] = LargeBinary().with_variant(LONGBLOB(), "mysql")
    return kind


_INNODB: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}

requests = Table(
    PREFIX + "requests",
    metadata,
    Column("id", _key(80), nullable=False),
    Column("tenant", _bytes(), nullable=False),
    Column("identity", _key(32), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("envelope", _bytes(), nullable=False),
    Column("arguments", _bytes(), nullable=False),
    Column("details", _bytes(), nullable=False),
    Column("listed_until", BigInteger, nullable=False),
    PrimaryKeyConstraint("id", name=PREFIX + "requests_pk"),
    UniqueConstraint("identity", "generation", name=PREFIX + "requests_identity"),
    **_INNODB,
)

events = Table(
    PREFIX + "events",
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
    PrimaryKeyConstraint("chain", "seq", name=PREFIX + "events_pk"),
    **_INNODB,
)
Index(
    PREFIX + "events_version", events.c.request_id, events.c.version, unique=True,
    sqlite_where=events.c.request_id.is_not(None), postgresql_where=events.c.request_id.is_not(None),
)
Index(
    PREFIX + "events_spend", events.c.spend_key, unique=True,
    sqlite_where=events.c.spend_key.is_not(None), postgresql_where=events.c.spend_key.is_not(None),
)

open_requests = Table(
    PREFIX + "open_requests",
    metadata,
    Column("listed_until", BigInteger, nullable=False),
    Column("request_id", _key(80), nullable=False),
    Column("tenant", _key(32), nullable=False),
    Column("run", _key(32), nullable=False),
    Column("requester", _key(32)),
    Column("desk", _key(32)),
    Column("added_at", BigInteger),
    Column("tool", _key(32)),
    PrimaryKeyConstraint("listed_until", "request_id", name=PREFIX + "open_requests_pk"),
    sqlite_with_rowid=False,
    **_INNODB,
)
"""A cache for lists, in their order, and for counting; never evidence. ``tenant`` to ``desk`` and ``tool`` are 32-byte
digests.

``listed_until`` is the request's decide-by while it is open, and below zero once it ended (see `ENDED_UNSEEN`), so that
one order serves both lists: the most urgent first, the newest first. ``desk`` stands for the approvers that the request
names: who has it on the desk; empty where the policy approved it by itself. ``added_at`` is the time of asking, epoch
milliseconds. Rows that are older than the last four columns have none of them, and those that are older than ``tool``
have a ``desk`` that does not tell whether one of several rules lets anybody decide: only ``tool`` says that it does.
"""

ENDED_UNSEEN = -(2**52)
"""A request that ended is listed under minus the time of its end; one that no person was asked about, under that plus
this, which is a range of its own: what people decided is then found without passing over what they never saw."""

_open = open_requests.c
Index(f"{open_requests.name}_tenant", _open.tenant, _open.listed_until, _open.request_id)
Index(f"{open_requests.name}_run", _open.run, _open.listed_until, _open.request_id)
STILL_OPEN = _open.listed_until > literal_column("0")
"""Literal: the partial indexes say the same word for word, so that a query that says it can use them."""
# What is only asked about open ones need not grow with the history, where an index can be partial.
_STILL_OPEN: dict[str, Any] = {"sqlite_where": STILL_OPEN, "postgresql_where": STILL_OPEN}
Index(f"{open_requests.name}_requester", _open.requester, _open.listed_until, **_STILL_OPEN)
Index(f"{open_requests.name}_desk", _open.desk, _open.listed_until, **_STILL_OPEN)
Index(f"{open_requests.name}_added", _open.added_at, **_STILL_OPEN)

control = Table(
    PREFIX + "control",
    metadata,
    Column("tenant_digest", _key(32), nullable=False),
    Column("tenant", _bytes(), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("body", _bytes(), nullable=False),
    PrimaryKeyConstraint("tenant_digest", name=PREFIX + "control_pk"),
    **_INNODB,
)

chains = Table(
    PREFIX + "chains",
    metadata,
    Column("chain", _key(32), nullable=False),
    Column("anchored_seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("chain", name=PREFIX + "chains_pk"),
    **_INNODB,
)
"""A cache of what was anchored, so that anchoring looks at chains that moved only; never evidence."""

runs = Table(
    PREFIX + "runs",
    metadata,
    Column("run", _key(32), nullable=False),
    Column("tenant", _bytes(), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("mark", _bytes(), nullable=False),
    Column("signature", _bytes(), nullable=False),
    Column("body", _bytes(), nullable=False),
    PrimaryKeyConstraint("run", name=PREFIX + "runs_pk"),
    **_INNODB,
)
"""Suspended outermost runs. ``mark``, here and in `segments`: see `hitl_guard.store.base.Written`."""

run_nodes = Table(
    PREFIX + "run_nodes",
    metadata,
    Column("root", _key(32), nullable=False),
    Column("run", _key(32), nullable=False),
    Column("owner", _key(32), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("thread", _key(32), nullable=False),
    Column("resource", _key(32), nullable=False),
    Column("run_id", _bytes(), nullable=False),
    PrimaryKeyConstraint("root", "run", name=PREFIX + "run_nodes_pk"),
    sqlite_with_rowid=False,
    **_INNODB,
)
"""A cache for lists, never evidence: every run of a suspended tree."""
Index(PREFIX + "run_nodes_owner", run_nodes.c.owner, run_nodes.c.created_at)

segments = Table(
    PREFIX + "segments",
    metadata,
    Column("thread", _key(32), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("run", _key(32), nullable=False),
    Column("mark", _bytes(), nullable=False),
    Column("body", _bytes(), nullable=False),
    PrimaryKeyConstraint("thread", "seq", name=PREFIX + "segments_pk"),
    **_INNODB,
)

credentials = Table(
    PREFIX + "credentials",
    metadata,
    Column("credential", _key(32), nullable=False),
    Column("owner", _key(32), nullable=False),
    Column("body", _bytes(), nullable=False),
    PrimaryKeyConstraint("credential", name=PREFIX + "credentials_pk"),
    **_INNODB,
)
"""The approvers' passkeys: each body is a signed text. ``credential`` and ``owner`` are digests."""
Index(PREFIX + "credentials_owner", credentials.c.owner)


def demand(found: Sequence[object]) -> None:
    """Raise `ConfigurationError` unless the version table's rows say that the schema is exactly this version's."""
    if list(found) == [REVISIONS[-1]]:
        return
    if not found or (len(found) == 1 and found[0] in REVISIONS):
        raise ConfigurationError(
            "The database's schema is older than this version of hitl_guard. Run `hitl-guard db upgrade`.",
            detail="schema-older",
        )
    raise ConfigurationError(
        "This version of hitl_guard is older than the database's schema. Install a newer hitl_guard.",
        detail="schema-newer",
    )
