"""`pools.rerouting_jobs`: the jobs of a changed pool that another session holds locked keep no other from matching."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "rerouting_jobs",
            postgresql.ARRAY(sa.BigInteger()),
            server_default="{}",
            nullable=False,
            comment="jobs that were locked when the others were moved: not matched until they are moved too",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "rerouting_jobs")
