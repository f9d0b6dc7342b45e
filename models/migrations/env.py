"""Alembic environment. It migrates online only, on the connection that `models.db.migrate` passes in."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from models.schema import metadata

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
