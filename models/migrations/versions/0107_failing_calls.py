"""Calls to the API server that keep failing for a pool. The status of the pool shows them.

The column is not needed by code of the previous release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0107"
down_revision = "0106"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "failing_calls",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="writes to the API server that failed in the last runs, with their number, times and texts",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "failing_calls")
