"""Column for pools that serve jobs without labels.

Code of the previous release does not read the column, so it holds such jobs as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0119"
down_revision = "0118"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pools", sa.Column("serves_unlabelled", sa.Boolean(), nullable=False, server_default="false"))


def downgrade() -> None:
    op.drop_column("pools", "serves_unlabelled")
