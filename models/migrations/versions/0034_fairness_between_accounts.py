"""`ix_jobs_queued_account`: the queued jobs of one account."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_jobs_queued_account", "jobs", ["account_id", "id"], postgresql_where=sa.text("state = 'queued'")
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_queued_account", "jobs")
