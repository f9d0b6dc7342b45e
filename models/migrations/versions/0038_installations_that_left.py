"""`installations.event_at`, `installations.left_at`: which installation of an account is the one of now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "installations",
        sa.Column(
            "event_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="GitHub's time of the last `installation` event that said that it works; NULL: known by jobs alone",
        ),
    )
    op.add_column(
        "installations",
        sa.Column(
            "left_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="GitHub does not know it (404 on its token, or `deleted`)",
        ),
    )


def downgrade() -> None:
    op.drop_column("installations", "left_at")
    op.drop_column("installations", "event_at")
