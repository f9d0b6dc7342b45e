"""Time at which a Pod was last seen with a scheduling gate. The time limit of its start begins there.

The column is not needed by code of the previous release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0108"
down_revision = "0107"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "gated_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it was last seen with a scheduling gate, refreshed at most twice a minute",
        ),
    )


def downgrade() -> None:
    op.drop_column("runner_pods", "gated_at")
