"""Columns for the Celery task that made a transition.

Code of the previous release neither reads nor writes these columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0121"
down_revision = "0120"
branch_labels = None
depends_on = None

_TABLES = ("job_events", "claim_events")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(
            table,
            sa.Column(
                "task_id", sa.Text(), nullable=True, comment="id of the Celery task of the transition, as in Flower"
            ),
        )
        op.add_column(
            table,
            sa.Column(
                "attempt",
                sa.BigInteger(),
                nullable=True,
                comment="number of the task's execution; the first one has 1",
            ),
        )


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "attempt")
        op.drop_column(table, "task_id")
