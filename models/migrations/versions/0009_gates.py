"""Gates of the upstreams, and the counts that they are judged by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "upstream_calls",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("errors <= calls", name=op.f("ck_upstream_calls_errors_are_calls")),
        sa.PrimaryKeyConstraint("upstream", "since", name=op.f("pk_upstream_calls")),
    )
    op.create_table(
        "gates",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("closed_at", _TIME, nullable=True, comment="NULL: it is open"),
        sa.Column("opened_at", _TIME, nullable=True, comment="when it last opened"),
        sa.Column("why", sa.Text(), nullable=True, comment="of its last closing"),
        sa.Column("healthy_checks", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "needs",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="good looks that open it, drawn when it closed",
        ),
        sa.Column("checked_at", _TIME, nullable=True),
        sa.Column("calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("errors", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("upstream", name=op.f("pk_gates")),
    )


def downgrade() -> None:
    op.drop_table("gates")
    op.drop_table("upstream_calls")
