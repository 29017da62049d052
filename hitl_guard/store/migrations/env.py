"""Alembic's entry: runs the migrations on the connection that `upgrade` holds, inside its transaction."""

from __future__ import annotations

from alembic import context

from hitl_guard.store import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table=schema.VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
