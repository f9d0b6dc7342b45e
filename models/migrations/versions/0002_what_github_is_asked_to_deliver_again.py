"""What GitHub is asked to deliver again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "redelivery_progress",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("checkpoint", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scan_began", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scan_cursor", sa.Text(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True, comment="GitHub asked to wait until then"),
        sa.Column("lease_no", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_redelivery_progress_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_redelivery_progress")),
    )
    op.create_table(
        "redeliveries",
        sa.Column("guid", sa.Text(), nullable=False),
        sa.Column("delivery_id", sa.BigInteger(), nullable=False),
        sa.Column("first_failed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asks", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("guid", name=op.f("pk_redeliveries")),
    )
    op.create_index("ix_redeliveries_due_at", "redeliveries", ["due_at"], unique=False)
    op.create_index("ix_redeliveries_first_failed_at", "redeliveries", ["first_failed_at"], unique=False)


def downgrade() -> None:
    op.drop_table("redeliveries")
    op.drop_table("redelivery_progress")
