"""Remember that jobs have to be taken from a pool whose routing changed, until a reconcile has moved them in pages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "rerouting_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="its routing changed: no job is matched until those routed before were moved",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "rerouting_since")
