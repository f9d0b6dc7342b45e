"""Runner groups by their names, and jobs of forks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pools", sa.Column("runner_group_name", sa.Text(), nullable=True))
    op.alter_column("pools", "runner_group_id", comment="0: by its name", existing_type=sa.BigInteger())
    op.add_column(
        "pools",
        sa.Column(
            "allow_forks",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="jobs of forks of public repositories too",
        ),
    )
    op.add_column(
        "jobs",
        sa.Column("public", sa.Boolean(), nullable=True, comment="its repository is; NULL: queued before it was kept"),
    )
    op.create_index("ix_jobs_run_asked", "jobs", ["run_id"], postgresql_where=sa.text("hold_reason = 'origin_unknown'"))
    op.create_table(
        "run_origins",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("origin", sa.Text(), nullable=True, comment="here or fork; NULL: not known yet"),
        sa.Column(
            "failures",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="questions in a row without an answer",
        ),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ask_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("origin IN ('here', 'fork')", name=op.f("ck_run_origins_origin_known")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_origins")),
    )
    op.create_table(
        "runner_group_lists",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("repository_id", sa.BigInteger(), autoincrement=False, nullable=False, comment="0: all groups"),
        sa.Column("groups", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("installation_id", "repository_id", name=op.f("pk_runner_group_lists")),
    )


def downgrade() -> None:
    op.drop_table("runner_group_lists")
    op.drop_table("run_origins")
    op.drop_index("ix_jobs_run_asked", table_name="jobs")
    op.drop_column("jobs", "public")
    op.drop_column("pools", "allow_forks")
    op.alter_column("pools", "runner_group_id", comment=None, existing_type=sa.BigInteger())
    op.drop_column("pools", "runner_group_name")
