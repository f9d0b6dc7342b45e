"""The list of Pods of a tick, which all pools share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "pod_lists",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False, comment="its name, as in the label of its Pods"),
        sa.Column("taken_at", _TIME, nullable=False, comment="when the first page was asked for"),
        sa.Column("whole_at", _TIME, nullable=False, comment="when the last page was there"),
        sa.Column(
            "pods", sa.LargeBinary(), nullable=False, comment="deflated JSON: names of fields, and a row per Pod"
        ),
        sa.PrimaryKeyConstraint("namespace", "pool", name=op.f("pk_pod_lists")),
        prefixes=["UNLOGGED"],
    )


def downgrade() -> None:
    op.drop_table("pod_lists")
