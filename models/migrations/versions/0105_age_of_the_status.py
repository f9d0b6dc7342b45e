"""Time of the last check of a pool's status.

The previous release does not write this time. The age of a status that it wrote is the age of its last change.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0104"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "status_checked_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when a reconcile last found it to be current",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "status_checked_at")
