"""Order of a Pod's deletion and its end, and Ostler's own requests to delete Pods, for explanations.

Code of the previous release does not need the columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0106"
down_revision = "0105"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "deleted_first",
            sa.Boolean(),
            nullable=True,
            comment="whether the watch saw its deletion before the end of poller and runner; only shown; NULL: unknown",
        ),
    )
    op.add_column(
        "runner_pods",
        sa.Column(
            "deletion_sent_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when Ostler first asked for its deletion, unless another client had asked before; only shown",
        ),
    )


def downgrade() -> None:
    op.drop_column("runner_pods", "deletion_sent_at")
    op.drop_column("runner_pods", "deleted_first")
