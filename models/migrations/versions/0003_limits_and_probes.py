"""Limits of GitHub that outlive Redis, and probes past a backoff."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_backoffs_kind_known"), "backoffs", type_="check")
    op.create_check_constraint(
        op.f("ck_backoffs_kind_known"), "backoffs", "kind IN ('installation', 'account', 'repository', 'limit')"
    )
    op.alter_column(
        "backoffs",
        "key",
        comment="an id, a repository's full name, or of a limit installation/quota",
        existing_comment="an id, or a repository's full name",
    )
    op.add_column(
        "backoffs",
        sa.Column("probed_at", sa.DateTime(timezone=True), nullable=True, comment="when a job was last let past it"),
    )
    op.add_column("backoffs", sa.Column("probe_job_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("backoffs", "probe_job_id")
    op.drop_column("backoffs", "probed_at")
    op.execute("DELETE FROM backoffs WHERE kind = 'limit'")
    op.alter_column(
        "backoffs",
        "key",
        comment="an id, or a repository's full name",
        existing_comment="an id, a repository's full name, or of a limit installation/quota",
    )
    op.drop_constraint(op.f("ck_backoffs_kind_known"), "backoffs", type_="check")
    op.create_check_constraint(
        op.f("ck_backoffs_kind_known"), "backoffs", "kind IN ('installation', 'account', 'repository')"
    )
