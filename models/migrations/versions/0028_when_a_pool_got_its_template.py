"""`pools.template_at`: old and new workers of a deployment do not replace each other's template hash by turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "template_at", sa.DateTime(timezone=True), nullable=True, comment="when the row got `recorded_template`"
        ),
    )
    op.add_column(
        "pools",
        sa.Column(
            "recorded_template",
            sa.Text(),
            nullable=True,
            comment="stands for two minutes; a version without such holds wrote another template_hash",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "recorded_template")
    op.drop_column("pools", "template_at")
