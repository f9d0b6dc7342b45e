"""Target of a pool for the time from the queueing of a job to its start.

The column is not needed by code of the previous release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "start_target",
            sa.Float(),
            nullable=True,
            comment="seconds within which jobs should start, for reports; NULL: no target",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "start_target")
