"""Columns for the check run that tells a developer why a job waits.

The columns are not needed by code of the previous release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0114"
down_revision = "0113"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("head_sha", sa.Text(), comment="commit of the job, for its check run"))
    op.add_column(
        "jobs",
        sa.Column("check_id", sa.BigInteger(), comment="check run of GitHub that tells about the job; NULL: none"),
    )
    op.add_column(
        "jobs",
        sa.Column(
            "check_said",
            postgresql.ARRAY(sa.Text()),
            comment="states of the job that a call for the check run was made for; each state has one call at most",
        ),
    )
    op.add_column(
        "jobs",
        sa.Column(
            "check_at",
            sa.DateTime(timezone=True),
            comment="time at which the job was last examined for its check run; NULL: never",
        ),
    )


def downgrade() -> None:
    for name in ("check_at", "check_said", "check_id", "head_sha"):
        op.drop_column("jobs", name)
