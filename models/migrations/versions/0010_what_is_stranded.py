"""What is stranded, since when, and for how long what was served had been."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SINCE = "only a repair moves it on since then; none once it did"


def upgrade() -> None:
    op.add_column("claims", sa.Column("stalled_at", _TIME, nullable=True, comment=_SINCE))
    op.add_column("claims", sa.Column("stalled_cause", sa.Text(), nullable=True))
    op.add_column("claims", sa.Column("stalled_found_by", sa.Text(), nullable=True))
    op.add_column(
        "pools",
        sa.Column("listed_at", _TIME, nullable=True, comment="the last list that left no missing Pod unmarked"),
    )
    op.create_table(
        "stalls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("found_by", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("served_at", _TIME, nullable=False),
        sa.CheckConstraint(
            "cause IN ('message_lost', 'pod_gone', 'pod_spent', 'runner_unused', 'webhook_lost')",
            name=op.f("ck_stalls_cause_known"),
        ),
        sa.CheckConstraint(
            "found_by IN ('resume', 'watch', 'lists', 'unused_runners', 'redelivery', 'catch_up')",
            name=op.f("ck_stalls_found_by_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stalls")),
    )
    op.create_index("ix_stalls_served_at", "stalls", ["served_at"])


def downgrade() -> None:
    op.drop_table("stalls")
    op.drop_column("pools", "listed_at")
    for column in ("stalled_found_by", "stalled_cause", "stalled_at"):
        op.drop_column("claims", column)
