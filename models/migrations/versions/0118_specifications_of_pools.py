"""Column for the specification of a pool as JSON.

The previous release writes only the older columns, so this release writes both, and reads the columns where they
differ. The next release uses these columns no more, and the release after it drops them, because the workers of two
releases run side by side during a deployment. They are those that only the mirror and `spec_of` use: scale_down_delay,
max_unavailable_percent, max_surge, max_concurrent, drain_timeout, max_job_seconds, max_runner_age, replicas_writer.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0118"
down_revision = "0117"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pools",
        sa.Column(
            "spec",
            JSONB(),
            nullable=True,
            comment="specification of the pool that can be used; NULL: written by an older release",
        ),
    )


def downgrade() -> None:
    op.drop_column("pools", "spec")
