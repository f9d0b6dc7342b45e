"""API tokens, and the indexes that the lists of jobs, claims, pools and accounts are read by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_OPEN = sa.text("state <> 'completed'")
_LIVE = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False, comment="the public part of the token; finds the row"),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the secret part"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True, comment="refreshed at most once a minute"),
        sa.CheckConstraint(
            "scopes <@ ARRAY['read', 'write'] AND cardinality(scopes) > 0", name=op.f("ck_api_tokens_scopes_known")
        ),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_api_tokens_digest_is_sha256")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("key_id", name=op.f("uq_api_tokens_key_id")),
    )
    op.create_index("ix_accounts_login_id", "accounts", [sa.literal_column("lower(login)"), "id"])
    op.create_index("ix_pools_name_id", "pools", ["name", "id"])
    op.create_index("ix_jobs_open_state_id", "jobs", ["state", "id"], postgresql_where=_OPEN)
    op.create_index("ix_jobs_held_id", "jobs", ["id"], postgresql_where=sa.text("hold_reason IS NOT NULL"))
    op.create_index("ix_jobs_account_id_id", "jobs", ["account_id", "id"])
    op.create_index("ix_jobs_pool_id_id", "jobs", ["pool_id", "id"])
    op.create_index("ix_jobs_repository_id", "jobs", ["repository", "id"])
    op.create_index("ix_claims_live_id", "claims", ["id"], postgresql_where=_LIVE)
    op.create_index(
        "ix_claims_account_id_id", "claims", ["account_id", "id"], postgresql_where=sa.text("account_id IS NOT NULL")
    )
    op.create_index("ix_claims_pool_id_id", "claims", ["pool_id", "id"])
    op.create_index("ix_claims_job_id_id", "claims", ["job_id", "id"], postgresql_where=sa.text("job_id IS NOT NULL"))


def downgrade() -> None:
    for index in ("job_id_id", "pool_id_id", "account_id_id", "live_id"):
        op.drop_index(f"ix_claims_{index}", table_name="claims")
    for index in ("repository_id", "pool_id_id", "account_id_id", "held_id", "open_state_id"):
        op.drop_index(f"ix_jobs_{index}", table_name="jobs")
    op.drop_index("ix_pools_name_id", table_name="pools")
    op.drop_index("ix_accounts_login_id", table_name="accounts")
    op.drop_table("api_tokens")
