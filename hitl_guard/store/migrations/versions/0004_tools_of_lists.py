"""The tool that a request is listed for, so that a list can be narrowed to it.

A migration describes the tables as they were when it was written; it never imports the schema, which goes on.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, LargeBinary, inspect
from sqlalchemy.dialects.mysql import VARBINARY

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OPEN = "hitl_guard_open_requests"


def upgrade() -> None:
    """Add what is missing: MariaDB commits each change by itself, so an interrupted run is taken up again."""
    columns = {column["name"] for column in inspect(op.get_bind()).get_columns(_OPEN)}
    if "tool" not in columns:
        op.add_column(_OPEN, Column("tool", LargeBinary().with_variant(VARBINARY(32), "mysql")))
