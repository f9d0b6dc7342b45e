"""A name of a Pod may come again: unique among those that are not known to be gone.

The index goes before others come: the other way round a transaction that has read the table and then writes to it would
meet this one in a deadlock.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

PRESENT = sa.text("gone_at IS NULL OR uid IS NULL")


def upgrade() -> None:
    op.drop_index("uq_runner_pods_namespace_name", table_name="runner_pods")
    op.create_index(
        "uq_runner_pods_present_name", "runner_pods", ["namespace", "name"], unique=True, postgresql_where=PRESENT
    )
    op.create_index("ix_runner_pods_name", "runner_pods", ["namespace", "name"])


def downgrade() -> None:
    op.drop_index("ix_runner_pods_name", table_name="runner_pods")
    op.drop_index("uq_runner_pods_present_name", table_name="runner_pods", postgresql_where=PRESENT)
    op.execute("""
        UPDATE runner_pods p SET name = p.name || '.' || p.id
        WHERE EXISTS (SELECT FROM runner_pods later
                      WHERE later.namespace = p.namespace AND later.name = p.name AND later.id > p.id)
    """)
    op.create_index("uq_runner_pods_namespace_name", "runner_pods", ["namespace", "name"], unique=True)
