"""`ix_jobs_queued_account`: the queued jobs of one account. `api_tokens.accounts`: tokens of some accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_jobs_queued_account", "jobs", ["account_id", "id"], postgresql_where=sa.text("state = 'queued'")
    )
    op.add_column(
        "api_tokens",
        sa.Column(
            "accounts",
            sa.ARRAY(sa.BigInteger()),
            nullable=True,
            comment="GitHub's ids of the accounts it may see; NULL: all",
        ),
    )
    op.create_check_constraint("accounts_named", "api_tokens", "accounts IS NULL OR cardinality(accounts) > 0")
    op.create_check_constraint("limited_reads", "api_tokens", "accounts IS NULL OR scopes = ARRAY['read']")


def downgrade() -> None:
    op.drop_constraint("limited_reads", "api_tokens", type_="check")
    op.drop_constraint("accounts_named", "api_tokens", type_="check")
    op.drop_column("api_tokens", "accounts")
    op.drop_index("ix_jobs_queued_account", "jobs")
