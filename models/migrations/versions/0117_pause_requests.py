"""Column for requests to pause or resume a pool.

Code of the previous release does not read the column, so its workers do not carry out requests.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0117"
down_revision = "0116"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "pause_request",
            JSONB(),
            nullable=True,
            comment="request of a person to pause or resume the pool that no worker has carried out; NULL: none",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "pause_request")
