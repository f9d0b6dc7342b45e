"""The oldest queued job of an account in a pool, found by one look: what a pool reserves room for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_DISPATCHABLE = sa.text("state = 'queued' AND hold_reason IS NULL")


def upgrade() -> None:
    op.create_index(
        "ix_jobs_account_pool_queued",
        "jobs",
        ["account_id", "pool_id", "queued_at", "id"],
        postgresql_where=_DISPATCHABLE,
    )
    op.drop_index("ix_jobs_account_queued", table_name="jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_account_queued", "jobs", ["account_id", "queued_at"], postgresql_where=_DISPATCHABLE)
    op.drop_index("ix_jobs_account_pool_queued", table_name="jobs")
