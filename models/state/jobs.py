"""Tables of jobs and of the jobs' events. The table of jobs is the only queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import CheckConstraint, Connection, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, GitHubId, Serial
from models.db.sql import text
from rules.claims.machines import JobState


class Job(Base):
    """One `workflow_job` of GitHub."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("state IN (" + ", ".join(f"'{state}'" for state in JobState) + ")", name="state_known"),
        Index(
            "ix_jobs_dispatchable",
            "pool_id",
            "account_id",
            text("priority DESC"),
            "queued_at",
            "id",
            postgresql_where=text("state = 'queued' AND hold_reason IS NULL"),
        ),
        Index(
            "ix_jobs_account_pool_queued",
            "account_id",
            "pool_id",
            "queued_at",
            "id",
            postgresql_where=text("state = 'queued' AND hold_reason IS NULL"),
        ),
        Index("ix_jobs_held", "hold_reason", "id", postgresql_where=text("hold_reason IS NOT NULL")),
        Index(
            "ix_jobs_run_asked",
            "run_id",
            postgresql_where=text("hold_reason = 'origin_unknown'"),
        ),
        Index("ix_jobs_open", "state", "changed_at", postgresql_where=text("state <> 'completed'")),
        Index("ix_jobs_queued_account", "account_id", "id", postgresql_where=text("state = 'queued'")),
        # Indexes for the lists of the API and of the CLI, newest first (models.browse).
        Index("ix_jobs_open_state_id", "state", "id", postgresql_where=text("state <> 'completed'")),
        Index("ix_jobs_held_id", "id", postgresql_where=text("hold_reason IS NOT NULL")),
        Index("ix_jobs_account_id_id", "account_id", "id"),
        Index("ix_jobs_pool_id_id", "pool_id", "id"),
        Index("ix_jobs_repository_id", "repository", "id"),
        Index("ix_jobs_completed_at", "completed_at", postgresql_where=text("state = 'completed'")),
    )

    id: Mapped[GitHubId]
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    installation_id: Mapped[int | None]
    repository: Mapped[str] = mapped_column(comment="owner/name")
    repository_id: Mapped[int | None] = mapped_column(
        comment="GitHub id of the repository; NULL: queued before Ostler stored it"
    )
    public: Mapped[bool | None] = mapped_column(
        comment="whether the repository is public; NULL: queued before Ostler stored it"
    )
    scope: Mapped[str] = mapped_column(
        comment="scope in which the runner is registered: orgs/LOGIN or repos/OWNER/NAME"
    )
    run_id: Mapped[int]
    run_attempt: Mapped[int]
    name: Mapped[str]
    workflow_name: Mapped[str | None]
    head_branch: Mapped[str | None]
    head_sha: Mapped[str | None] = mapped_column(comment="commit of the job, for its check run")
    check_id: Mapped[int | None] = mapped_column(comment="check run of GitHub that tells about the job; NULL: none")
    check_said: Mapped[list[str] | None] = mapped_column(
        comment="states of the job that a call for the check run was made for; each state has one call at most"
    )
    check_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the job was last examined for its check run; NULL: never"
    )
    labels: Mapped[list[str]]
    state: Mapped[str]
    conclusion: Mapped[str | None]
    pool_id: Mapped[int | None] = mapped_column(ForeignKey("pools.id"))
    hold_reason: Mapped[str | None]
    hold_detail: Mapped[str | None]
    not_before: Mapped[datetime | None]
    ask_after: Mapped[datetime | None] = mapped_column(
        comment="time before which sweep `unresolved_jobs` does not ask GitHub about the job; NULL: no limit"
    )
    failures: Mapped[int] = mapped_column(
        server_default="0", comment="number of holds after a refused mint or after failed runners; never reset"
    )
    # 0 for each job. The order of jobs keeps the column for one release, so that it is the same in old and new workers.
    priority: Mapped[int] = mapped_column(server_default="0")
    queued_at: Mapped[datetime] = mapped_column(
        comment="time at which the job was queued; a release does not change it"
    )
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    changed_at: Mapped[datetime]


class JobEvent(Base):
    """One transition of a job: its actor, its reason, and the time that the job spent in the previous state."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id_id", "job_id", "id"), Index("ix_job_events_at", "at"))

    id: Mapped[Serial]
    job_id: Mapped[int]
    at: Mapped[datetime]
    transition: Mapped[str]
    from_state: Mapped[str | None]
    to_state: Mapped[str]
    who: Mapped[str]
    why: Mapped[str]
    task_id: Mapped[str | None] = mapped_column(comment="id of the Celery task of the transition, as in Flower")
    attempt: Mapped[int | None] = mapped_column(comment="number of the task's execution; the first one has 1")
    latency_ms: Mapped[int | None]


def delete(db: Connection, ids: Sequence[int]) -> int:
    """Delete old completed jobs. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM jobs WHERE id = ANY(:ids)"), {"ids": ids}).rowcount


def delete_events(db: Connection, ids: Sequence[int]) -> int:
    """Delete old events of completed jobs. Return how many were deleted. The caller has locked the rows."""
    return db.execute(text("DELETE FROM job_events WHERE id = ANY(:ids)"), {"ids": ids}).rowcount
