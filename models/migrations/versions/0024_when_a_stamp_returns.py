"""When a stamp may return after a delivery without it, and when a Pod's poller was seen to have ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "claims",
        sa.Column(
            "stamp_after",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="no stamp is put on before; NULL: any time",
        ),
    )
    op.add_column(
        "runner_pods",
        sa.Column(
            "poller_ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its poller was first seen to have ended",
        ),
    )


def downgrade() -> None:
    op.drop_column("runner_pods", "poller_ended_at")
    op.drop_column("claims", "stamp_after")
