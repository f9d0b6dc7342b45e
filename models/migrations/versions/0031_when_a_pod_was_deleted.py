"""When the deletion of a Pod was asked for, as the watch saw it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "deletion_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its deletion was asked for, as the watch saw it; only shown",
        ),
    )


def downgrade() -> None:
    op.drop_column("runner_pods", "deletion_at")
