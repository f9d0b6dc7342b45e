"""`pools.max_surge` and `pools.replicas_writer`: Pods above replicas in a roll, and who else writes replicas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column("max_surge", sa.BigInteger(), nullable=True, comment="Pods above replicas in a roll; NULL: default"),
    )
    op.add_column(
        "pools",
        sa.Column(
            "replicas_writer", sa.Text(), nullable=True, comment="who else writes spec.replicas of an autoscaled pool"
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "replicas_writer")
    op.drop_column("pools", "max_surge")
