"""`pools.max_job_seconds`: the longest job of a pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "max_job_seconds", sa.Double(), nullable=True, comment="a job that takes longer is ended; NULL: no limit"
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "max_job_seconds")
