"""Pods of nodes that are gone, and retire claims whose Pod may be deleted without its kubelet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ON_GONE_NODES = sa.text("node_gone_at IS NOT NULL AND gone_at IS NULL")


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "node_gone_at", sa.DateTime(timezone=True), comment="its node was found gone; NULL again when it is back"
        ),
    )
    op.create_index("ix_runner_pods_node_gone", "runner_pods", ["id"], postgresql_where=ON_GONE_NODES)
    op.add_column(
        "claims",
        sa.Column("force_deleted_at", sa.DateTime(timezone=True), comment="its Pod may be deleted without its kubelet"),
    )


def downgrade() -> None:
    op.drop_column("claims", "force_deleted_at")
    op.drop_index("ix_runner_pods_node_gone", table_name="runner_pods", postgresql_where=ON_GONE_NODES)
    op.drop_column("runner_pods", "node_gone_at")
