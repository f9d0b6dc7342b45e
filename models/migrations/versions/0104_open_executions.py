"""Index on the open executions of claims: the claim of a persistent runner has thousands of executions.

The index is not needed by code of the previous release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0104"
down_revision = "0103"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_executions_open_claim",
        "executions",
        ["claim_id"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_executions_open_claim", table_name="executions")
