"""Column for the specification of a pool as JSON.

The previous release writes only the older columns, so this release writes both, and reads the columns where they
differ. The next release drops the columns that no query needs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "spec",
            JSONB(),
            nullable=True,
            comment="specification of the pool that can be used; NULL: written by an older release",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "spec")
