"""The Pod Security level of each pool.

Code of the release before does not read or write the column. The default is the level of its pools. The column
`allow_forks` is false for a pool above `restricted` that does not admit forks twice, so that code of the release before
routes no job of a fork to such a pool either.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "pod_security",
            sa.Text(),
            server_default="restricted",
            nullable=False,
            comment="Pod Security level that the pool asks for",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "pod_security")
