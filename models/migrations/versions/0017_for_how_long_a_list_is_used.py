"""For how long a list of runners is used: longer where it took longer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_lists",
        sa.Column("used_for", sa.Double(), server_default="0", nullable=False, comment="seconds since taken_at"),
    )


def downgrade() -> None:
    op.drop_column("runner_lists", "used_for")
