"""What an Event says of who ended a Pod."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "events_read_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when Kubernetes was asked for Events about its end",
        ),
    )
    op.add_column(
        "runner_pods",
        sa.Column(
            "event_reason",
            sa.Text(),
            nullable=True,
            comment="of the Event that says best who ended it; only shown, as the next two",
        ),
    )
    op.add_column(
        "runner_pods", sa.Column("event_by", sa.Text(), nullable=True, comment="the component that wrote the Event")
    )
    op.add_column(
        "runner_pods",
        sa.Column("event_message", sa.Text(), nullable=True, comment="its message: one line, 200 characters at most"),
    )
    op.create_index(
        "ix_runner_pods_events_read_at",
        "runner_pods",
        ["events_read_at"],
        postgresql_where=sa.text("events_read_at IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_runner_pods_events_read_at", "runner_pods")
    for column in ("event_message", "event_by", "event_reason", "events_read_at"):
        op.drop_column("runner_pods", column)
