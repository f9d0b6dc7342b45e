"""Sweeps with their leases and pauses, their runs, and the ledger of what they repaired."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_COUNTS = ("listed", "found", "repaired", "overflow", "moved_on", "skipped")
_OPEN = sa.text("outcome IN ('begun', 'done')")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "lease_no",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="raised by each taking; fences what came before",
        ),
        sa.Column("lease_holder", sa.Text(), nullable=True),
        sa.Column("leased_until", _TIME, nullable=True),
        sa.Column(
            "rerun_requested", sa.Boolean(), server_default="false", nullable=False, comment="asked for while it ran"
        ),
        sa.Column("paused_at", _TIME, nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("paused_why", sa.Text(), nullable=True),
        sa.Column("began_at", _TIME, nullable=True, comment="its last tick, dry ones apart"),
        sa.Column("succeeded_at", _TIME, nullable=True, comment="end of the last tick that counts as having run"),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.CheckConstraint("(paused_at IS NULL) = (paused_by IS NULL)", name=op.f("ck_sweeps_pause_has_its_author")),
        sa.CheckConstraint(
            "(leased_until IS NULL) = (lease_holder IS NULL)", name=op.f("ck_sweeps_lease_has_its_holder")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sweeps")),
    )
    op.create_table(
        "sweep_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=False),
        sa.Column("lease_no", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=True, comment="names the request of an operator who waits for it"),
        sa.Column("dry", sa.Boolean(), nullable=False),
        sa.Column("began_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        *(sa.Column(name, sa.BigInteger(), server_default="0", nullable=False) for name in _COUNTS),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweep_runs")),
    )
    op.create_index("ix_sweep_runs_sweep_id", "sweep_runs", ["sweep", "id"])
    op.create_index("ix_sweep_runs_open", "sweep_runs", ["sweep"], postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_sweep_runs_asked", "sweep_runs", ["asked"], postgresql_where=sa.text("asked IS NOT NULL"))
    op.create_index("ix_sweep_runs_began_at", "sweep_runs", ["began_at"])
    op.create_table(
        "repairs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("sweep", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("witnesses", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("kills", sa.Boolean(), nullable=False),
        sa.Column("dry", sa.Boolean(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=True),
        sa.Column("claim_id", sa.BigInteger(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("runner_name", sa.Text(), nullable=True),
        sa.Column(
            "subject", sa.Text(), nullable=True, comment="what is none of these: a webhook's GUID, a ServiceAccount"
        ),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("expects", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("verify_by", _TIME, nullable=False, comment="failed when it was not verified by then"),
        sa.Column("verified_at", _TIME, nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('begun', 'done', 'verified', 'failed', 'moved_on', 'dry')",
            name=op.f("ck_repairs_outcome_known"),
        ),
        sa.CheckConstraint(
            "expects IN ('nothing', 'claim_moved', 'claim_ended', 'stamped', 'unstamped', 'pod_gone', 'accepted',"
            " 'own')",
            name=op.f("ck_repairs_expects_known"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repairs")),
    )
    op.create_index("ix_repairs_sweep_id", "repairs", ["sweep", "id"])
    op.create_index("ix_repairs_open", "repairs", ["sweep", "id"], postgresql_where=_OPEN)
    for column in ("claim_id", "job_id", "pod_uid"):
        op.create_index(
            f"ix_repairs_{column}_id", "repairs", [column, "id"], postgresql_where=sa.text(f"{column} IS NOT NULL")
        )
    op.create_index("ix_repairs_run_id_id", "repairs", ["run_id", "id"])
    op.create_index("ix_repairs_outcome_id", "repairs", ["outcome", "id"])
    op.create_index("ix_repairs_dry_id", "repairs", ["id"], postgresql_where=sa.text("dry"))
    op.create_index("ix_repairs_at", "repairs", ["at"])
    for column in ("lease_no", "leased_until"):
        op.drop_column("redelivery_progress", column)


def downgrade() -> None:
    op.add_column("redelivery_progress", sa.Column("lease_no", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("redelivery_progress", sa.Column("leased_until", _TIME, nullable=True))
    op.drop_table("repairs")
    op.drop_table("sweep_runs")
    op.drop_table("sweeps")
