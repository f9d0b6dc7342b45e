"""A name of a Pod may come again: unique among those that are not known to be gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

PRESENT = sa.text("gone_at IS NULL")


def upgrade() -> None:
    op.create_index(
        "uq_runner_pods_present_name", "runner_pods", ["namespace", "name"], unique=True, postgresql_where=PRESENT
    )
    op.create_index("ix_runner_pods_name", "runner_pods", ["namespace", "name"])
    op.drop_index("uq_runner_pods_namespace_name", table_name="runner_pods")


def downgrade() -> None:
    op.create_index("uq_runner_pods_namespace_name", "runner_pods", ["namespace", "name"], unique=True)
    op.drop_index("ix_runner_pods_name", table_name="runner_pods")
    op.drop_index("uq_runner_pods_present_name", table_name="runner_pods", postgresql_where=PRESENT)
