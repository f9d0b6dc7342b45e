"""When GitHub is asked about a job again that nothing moves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "ask_after", sa.DateTime(timezone=True), nullable=True, comment="`unresolved_jobs` asks GitHub no earlier"
        ),
    )


def downgrade() -> None:
    op.drop_column("jobs", "ask_after")
