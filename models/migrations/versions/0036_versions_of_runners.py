"""`runner_lists.versions` and `runner_versions`: which version of the runner each pool starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_lists",
        sa.Column(
            "versions",
            sa.LargeBinary(),
            nullable=True,
            comment="deflated JSON: the ids of the runners that have connected, by version",
        ),
    )
    op.create_table(
        "runner_versions",
        sa.Column("pool_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True, comment="when GitHub begins to refuse it"),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=True, comment="when GitHub was asked for that"),
        sa.PrimaryKeyConstraint("pool_id", "version", name="pk_runner_versions"),
    )


def downgrade() -> None:
    op.drop_table("runner_versions")
    op.drop_column("runner_lists", "versions")
