"""When the runner of a finished job was first seen absent or idle."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "claims",
        sa.Column(
            "runner_idle_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="first of two looks, after its job, that found its runner absent or idle",
        ),
    )


def downgrade() -> None:
    op.drop_column("claims", "runner_idle_at")
