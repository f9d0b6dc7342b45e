"""`runner_failures`: delivered Pods that ended without an execution."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runner_failures",
        sa.Column("claim_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("account_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True, comment="of container `runner`"),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column(
            "cleared_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when a runner of the pool or the account executed",
        ),
        sa.PrimaryKeyConstraint("claim_id", name="pk_runner_failures"),
    )
    op.create_index(
        "ix_runner_failures_pool_id_at",
        "runner_failures",
        ["pool_id", "at"],
        postgresql_where=sa.text("cleared_at IS NULL"),
    )
    op.create_index("ix_runner_failures_job_id", "runner_failures", ["job_id"])
    op.create_index("ix_runner_failures_at", "runner_failures", ["at"])


def downgrade() -> None:
    op.drop_table("runner_failures")
