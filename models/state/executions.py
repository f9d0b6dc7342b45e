"""Table of executions. A row says that GitHub runs or ran a job on a runner.

The evidence is a webhook `in_progress` or `completed`, a runner list, or GitHub's answer about the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, Serial
from models.db.sql import text


class Execution(Base):
    """One job on one runner.

    `claim_id` is None if the runner's claim is not known, was deleted, or ended before the job. An open execution
    without a claim still counts against the budget of its account.
    """

    __tablename__ = "executions"
    __table_args__ = (
        Index("ix_executions_open_account", "account_id", postgresql_where=text("ended_at IS NULL")),
        Index("ix_executions_claim_id", "claim_id"),
        Index("ix_executions_open_claim", "claim_id", postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[Serial]
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    runner_name: Mapped[str]
    claim_id: Mapped[int | None] = mapped_column(ForeignKey("claims.id"))
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    vcpu: Mapped[int]
    memory: Mapped[int]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


_INSERT = text("""
    INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
    VALUES (:job, :runner, :claim, :account, :vcpu, :memory, :started)
    ON CONFLICT (job_id) DO NOTHING
""")


def insert(
    db: Connection,
    *,
    job_id: int,
    runner_name: str,
    claim_id: int | None,
    account_id: int,
    vcpu: int,
    memory: int,
    started: datetime,
) -> None:
    """Record that a job executes on a runner. If the job already has an execution, nothing changes.

    `vcpu` is in millicores and `memory` is in MiB.
    """
    db.execute(
        _INSERT,
        {
            "job": job_id,
            "runner": runner_name,
            "claim": claim_id,
            "account": account_id,
            "vcpu": vcpu,
            "memory": memory,
            "started": started,
        },
    )


def insert_for_claim(db: Connection, claim_id: int, *, job_id: int, now: datetime) -> None:
    """Record that a job executes on the runner of a claim. If the job already has an execution, nothing changes."""
    db.execute(
        text("""
            INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at)
            SELECT :job_id, runner_name, id, account_id, vcpu, memory, :now FROM claims WHERE id = :id
            ON CONFLICT (job_id) DO NOTHING
        """),
        {"job_id": job_id, "id": claim_id, "now": now},
    )


def end(db: Connection, job_id: int, *, ended: datetime) -> None:
    """End the open execution of a job, if it has one."""
    db.execute(
        text("UPDATE executions SET ended_at = :ended WHERE job_id = :job AND ended_at IS NULL"),
        {"ended": ended, "job": job_id},
    )


def delete_open(db: Connection, job_id: int) -> None:
    """Delete the open execution of a job that is queued again."""
    db.execute(text("DELETE FROM executions WHERE job_id = :id AND ended_at IS NULL"), {"id": job_id})


def part_from_claim(db: Connection, job_id: int) -> None:
    """Set the claim of a job's open execution to NULL, because the claim has ended but the job still runs."""
    db.execute(text("UPDATE executions SET claim_id = NULL WHERE job_id = :id AND ended_at IS NULL"), {"id": job_id})


def part_from_claims(db: Connection, claim_ids: Sequence[int]) -> None:
    """Set the claim of executions to NULL before these claims are deleted.

    An execution is kept as long as its job.
    """
    db.execute(text("UPDATE executions SET claim_id = NULL WHERE claim_id = ANY(:ids)"), {"ids": claim_ids})


def delete_of_jobs(db: Connection, job_ids: Sequence[int]) -> None:
    """Delete the executions of jobs that will be deleted."""
    db.execute(text("DELETE FROM executions WHERE job_id = ANY(:ids)"), {"ids": job_ids})


@dataclass(frozen=True, slots=True)
class Running:
    """A job that GitHub runs on a Pod. The names come from GitHub's users."""

    job_id: int
    repository: str
    workflow: str
    name: str


def running_on_pods(db: Connection, pool_id: int) -> dict[str, Running]:
    """Return the job that runs on each Pod of a pool, by the UID of the Pod."""
    rows = db.execute(
        text("""
            SELECT c.pod_uid, j.id, j.repository, coalesce(j.workflow_name, '') AS workflow,
                   coalesce(j.name, '') AS name
            FROM claims c JOIN executions x ON x.claim_id = c.id AND x.ended_at IS NULL JOIN jobs j ON j.id = x.job_id
            WHERE c.pool_id = :id AND c.ended_at IS NULL AND c.state IN ('delivered', 'executing', 'releasing')
        """),
        {"id": pool_id},
    )
    return {row.pod_uid: Running(row.id, row.repository, row.workflow, row.name) for row in rows}
