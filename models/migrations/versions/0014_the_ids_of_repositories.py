"""The ids of repositories: a name may be another repository's by now."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("repository_id", sa.BigInteger(), nullable=True, comment="GitHub's; NULL: queued before it was kept"),
    )


def downgrade() -> None:
    op.drop_column("jobs", "repository_id")
