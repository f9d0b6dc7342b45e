"""How a pool stands: how its starts go, what is wrong with its spec, and the status that was written last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column("failed_starts", sa.BigInteger(), server_default="0", nullable=False, comment="rounds in a row"),
    )
    op.add_column("pools", sa.Column("failed_at", sa.DateTime(timezone=True), comment="the last was counted"))
    op.add_column("pools", sa.Column("create_after", sa.DateTime(timezone=True), comment="no Pod before this"))
    op.add_column("pools", sa.Column("start_trouble", sa.Text(), comment="why no Pod comes to poll"))
    op.add_column("pools", sa.Column("start_detail", sa.Text(), comment="the same in words"))
    op.add_column("pools", sa.Column("tick_at", sa.DateTime(timezone=True), comment="its budget of retirements began"))
    op.add_column(
        "pools",
        sa.Column("tick_retired", sa.BigInteger(), server_default="0", nullable=False, comment="of that budget"),
    )
    op.add_column("pools", sa.Column("problem", sa.Text(), comment="why its spec cannot be used"))
    op.add_column("pools", sa.Column("status", postgresql.JSONB(), comment="as written to the object last"))
    op.add_column("pools", sa.Column("status_at", sa.DateTime(timezone=True), comment="when that was"))


def downgrade() -> None:
    for name in (
        "status_at",
        "status",
        "problem",
        "tick_retired",
        "tick_at",
        "start_detail",
        "start_trouble",
        "create_after",
        "failed_at",
        "failed_starts",
    ):
        op.drop_column("pools", name)
