"""Indexes by which what is over for long is found, and deleted without looking at everything that may point at it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_job_events_at", "job_events", "at", None),
    ("ix_claim_events_at", "claim_events", "at", None),
    ("ix_claims_ended_at", "claims", "ended_at", "ended_at IS NOT NULL"),
    ("ix_claims_runner_pod_id", "claims", "runner_pod_id", None),
    ("ix_jobs_completed_at", "jobs", "completed_at", "state = 'completed'"),
    ("ix_runner_pods_gone_at", "runner_pods", "gone_at", "gone_at IS NOT NULL"),
)


def upgrade() -> None:
    for name, table, column, where in _INDEXES:
        op.create_index(name, table, [column], postgresql_where=None if where is None else sa.text(where))


def downgrade() -> None:
    for name, table, _, _ in reversed(_INDEXES):
        op.drop_index(name, table_name=table)
