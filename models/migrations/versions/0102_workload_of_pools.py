"""The workload of each pool, and the volumes of its runners.

Code of the previous release neither reads nor writes the columns. The defaults are those of the pools of that release,
which have the workload `Pod` and no volumes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "workload",
            sa.Text(),
            server_default="Pod",
            nullable=False,
            comment="kind of object that a runner is",
        ),
    )
    op.add_column(
        "pools",
        sa.Column(
            "volume_reclaim",
            sa.Text(),
            nullable=True,
            comment="spec.volumes.reclaim; NULL: the runners have no volumes",
        ),
    )
    op.add_column(
        "pools",
        sa.Column("volume_shape", sa.Text(), nullable=True, comment="digest of the claims in spec.volumes"),
    )


def downgrade() -> None:
    op.drop_column("pools", "volume_shape")
    op.drop_column("pools", "volume_reclaim")
    op.drop_column("pools", "workload")
