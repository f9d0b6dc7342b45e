"""Index for lists of all Pods of a pool, also of those that are gone, and of repairs that delete something.

Code of the previous release does not need the indexes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0109"
down_revision = "0108"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runner_pods_pool_id_id", "runner_pods", ["pool_id", "id"])
    op.create_index("ix_repairs_kills_id", "repairs", ["id"], postgresql_where=sa.text("kills"))


def downgrade() -> None:
    op.drop_index("ix_repairs_kills_id", "repairs")
    op.drop_index("ix_runner_pods_pool_id_id", "runner_pods")
