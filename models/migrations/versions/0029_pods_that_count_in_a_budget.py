"""Pods count in the budget of the account whose JIT they were given until they end, not until their job does."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

COUNTS = sa.text("charged_account_id IS NOT NULL AND gone_at IS NULL AND terminal_at IS NULL AND node_gone_at IS NULL")


def upgrade() -> None:
    op.add_column(
        "runner_pods",
        sa.Column(
            "charged_account_id",
            sa.BigInteger(),
            comment="whose JIT it was given: it counts in the budget of this account until it ends or its node is gone",
        ),
    )
    op.add_column(
        "runner_pods",
        sa.Column("charged_vcpu", sa.BigInteger(), comment="millicores, those of the delivered claim"),
    )
    op.add_column(
        "runner_pods",
        sa.Column("charged_memory", sa.BigInteger(), comment="MiB, those of the delivered claim"),
    )
    op.execute("""
        UPDATE runner_pods p SET charged_account_id = c.account_id, charged_vcpu = c.vcpu, charged_memory = c.memory
        FROM runner_pods open
        CROSS JOIN LATERAL (
            SELECT account_id, vcpu, memory FROM claims
            WHERE runner_pod_id = open.id AND purpose = 'job' AND delivered_at IS NOT NULL ORDER BY id DESC LIMIT 1) c
        WHERE p.id = open.id AND open.gone_at IS NULL AND open.terminal_at IS NULL
    """)
    op.create_index(
        "ix_runner_pods_charged",
        "runner_pods",
        ["charged_account_id"],
        postgresql_include=["id", "charged_vcpu", "charged_memory"],
        postgresql_where=COUNTS,
    )


def downgrade() -> None:
    op.drop_index("ix_runner_pods_charged", table_name="runner_pods", postgresql_where=COUNTS)
    op.drop_column("runner_pods", "charged_memory")
    op.drop_column("runner_pods", "charged_vcpu")
    op.drop_column("runner_pods", "charged_account_id")
