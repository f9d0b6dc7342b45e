"""Persistent runners: where each pool registers them, and their claims.

Code of the previous release neither reads nor writes the columns, and knows no claim with the purpose `register`. The
defaults are those of the pools of that release. Delete persistent pools before you go back to it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None

_PURPOSES = {"0102": "'job', 'retire'", "0103": "'job', 'register', 'retire'"}


def _replace_checks(purposes: str, *, owner: str) -> None:
    """Replace the two constraints on the purpose of a claim."""
    for name, condition in (("purpose_known", f"purpose IN ({purposes})"), ("retire_is_nobodys", owner)):
        op.drop_constraint(name, "claims", type_="check")
        op.create_check_constraint(name, "claims", condition)


def upgrade() -> None:
    _replace_checks(
        _PURPOSES["0103"],
        owner="purpose = 'job' OR (job_id IS NULL AND (purpose = 'register' OR account_id IS NULL))",
    )
    op.add_column("claims", sa.Column("runner_seen", sa.Text(), nullable=True, comment="of a persistent runner"))
    op.add_column("claims", sa.Column("runner_seen_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("claims", sa.Column("online_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "pools",
        sa.Column("registers_in", sa.Text(), nullable=True, comment="scope of persistent runners; NULL: ephemeral"),
    )
    op.add_column("pools", sa.Column("max_runner_age", sa.Double(), nullable=True, comment="seconds"))


def downgrade() -> None:
    for column in ("max_runner_age", "registers_in"):
        op.drop_column("pools", column)
    for column in ("online_at", "runner_seen_at", "runner_seen"):
        op.drop_column("claims", column)
    op.execute("DELETE FROM mint_attempts WHERE claim_id IN (SELECT id FROM claims WHERE purpose = 'register')")
    op.execute(
        "UPDATE executions SET claim_id = NULL WHERE claim_id IN (SELECT id FROM claims WHERE purpose = 'register')"
    )
    op.execute("DELETE FROM claims WHERE purpose = 'register'")
    _replace_checks(_PURPOSES["0102"], owner="purpose = 'job' OR (job_id IS NULL AND account_id IS NULL)")
