"""The Pod Security level of each pool.

Code of the previous release neither reads nor writes the column. The default is the level of the pools of that release.
A pool above `restricted` admits forks only if two fields of its spec allow them. Otherwise the column `allow_forks` is
false, so that code of the previous release routes no job of a fork to the pool either.
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
