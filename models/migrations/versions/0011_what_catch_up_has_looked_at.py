"""What `catch_up` has looked at, and what it may still ask."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "catch_up_repositories",
        sa.Column("repository", sa.Text(), nullable=False, comment="owner/name"),
        sa.Column("due_at", _TIME, nullable=False, comment="the last tick that was to look at it"),
        sa.Column("tried_at", _TIME, nullable=True, comment="the last tick that came to it"),
        sa.Column("checked_at", _TIME, nullable=True, comment="when the last look that came to its end began"),
        sa.Column("began_at", _TIME, nullable=True, comment="when the look under way began"),
        sa.Column("next_run", sa.BigInteger(), nullable=True, comment="of the look under way: older runs were seen"),
        sa.Column("failures", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("not_before", _TIME, nullable=True),
        sa.Column(
            "lists",
            postgresql.JSONB(),
            server_default="{}",
            nullable=False,
            comment="runs by status as last listed, with the etag",
        ),
        sa.Column(
            "settled",
            postgresql.JSONB(),
            server_default="{}",
            nullable=False,
            comment="etag of the jobs of each run that needed nothing",
        ),
        sa.PrimaryKeyConstraint("repository", name=op.f("pk_catch_up_repositories")),
    )
    op.create_table(
        "catch_up_quotas",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("calls", sa.Double(), nullable=False, comment="that may still be made, as of `at`"),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("quota", sa.BigInteger(), nullable=False, comment="what GitHub allows it an hour"),
        sa.PrimaryKeyConstraint("installation_id", name=op.f("pk_catch_up_quotas")),
    )


def downgrade() -> None:
    op.drop_table("catch_up_quotas")
    op.drop_table("catch_up_repositories")
