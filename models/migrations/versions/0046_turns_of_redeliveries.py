"""`redeliveries.installation_id`: whose turn it is. `redeliveries.malformed`: what is not asked for again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "redeliveries",
        sa.Column(
            "installation_id",
            sa.BigInteger(),
            nullable=True,
            comment="installations take turns; NULL: none, or not known",
        ),
    )
    op.add_column(
        "redeliveries",
        sa.Column(
            "malformed",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="web refused its payload: sent again it would be refused again",
        ),
    )


def downgrade() -> None:
    op.drop_column("redeliveries", "malformed")
    op.drop_column("redeliveries", "installation_id")
