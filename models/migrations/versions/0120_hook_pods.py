"""Columns for the hook Pods of a runner Pod, and for the node that a Pod had.

Code of the previous release neither reads nor writes these columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0120"
down_revision = "0119"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "last_node",
            sa.Text(),
            nullable=True,
            comment="node of the Pod, recorded when the Pod was gone; NULL: the watch did not see it",
        ),
    )
    op.add_column(
        "runner_pods",
        sa.Column(
            "hook_pods",
            JSONB(),
            nullable=True,
            comment="hook Pods of the Pod as the watch saw them last, for people; NULL: it saw none",
        ),
    )


def downgrade() -> None:
    op.drop_column("runner_pods", "hook_pods")
    op.drop_column("runner_pods", "last_node")
