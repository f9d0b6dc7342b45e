"""Origins of runs. GitHub is asked about a run until it answers, and the answer is stored.

The origin of a run says whether the run comes from a fork. A job is held with the reason `origin_unknown` until the
origin of its run is known. The job is not held if every origin would lead to the same pool. So GitHub is asked about
runs of public repositories, and about runs of private ones that a pool with retained volumes would serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, GitHubId
from models.db.sql import text
from models.state import job_holds
from rules.routing.forks import Origin
from rules.routing.holds import HoldReason

LEASE = timedelta(seconds=25)
"""Time during which only one task asks about a run. This time is longer than the time limit of the task."""

FIRST_WAIT = 15.0
LONGEST_WAIT = 3600.0
"""Longest wait in seconds after an unanswered question. The first wait is `FIRST_WAIT`, and each failure doubles it."""


class RunOrigin(Base):
    """A run about which GitHub was asked. `origin` is NULL until GitHub answers.

    The row is deleted with the jobs of the run (`models.sweeps.prune`).
    """

    __tablename__ = "run_origins"
    __table_args__ = (CheckConstraint("origin IN ('here', 'fork')", name="origin_known"),)

    run_id: Mapped[GitHubId]
    origin: Mapped[str | None] = mapped_column(comment="origin of the run: here or fork; NULL: unknown")
    failures: Mapped[int] = mapped_column(server_default="0", comment="failed questions in a row")
    leased_until: Mapped[datetime | None]
    ask_after: Mapped[datetime | None]
    changed_at: Mapped[datetime]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the origin of a run.

    `repository` is the id of the run's repository, or its name if the id is not known. `answered` is True if the origin
    is known already. In this case, the waiting jobs only need to be matched. `failures` counts the questions in a row
    whose failure postponed the next question.
    """

    run_id: int
    installation_id: int | None
    repository: str | int
    answered: bool
    failures: int = 0


def known(db: Connection, run_ids: Collection[int]) -> Mapping[int, Origin]:
    """Return the origins of these runs. A run without a known origin is missing from the result."""
    if not run_ids:
        return {}
    rows = db.execute(
        text("SELECT run_id, origin FROM run_origins WHERE run_id = ANY(:ids) AND origin IS NOT NULL"),
        {"ids": sorted(run_ids)},
    )
    return {row.run_id: Origin(row.origin) for row in rows}


def begin(db: Connection, run_id: int, *, now: datetime) -> Question | None:
    """Acquire the lease for asking GitHub about the origin of a run, and return what to ask.

    Returns None if no queued job waits for the answer, if another task has the lease, or if the wait after an earlier
    question is not over.
    """
    job = db.execute(
        text("""
            SELECT installation_id, repository, repository_id FROM jobs
            WHERE run_id = :run AND hold_reason = :hold AND state = 'queued' ORDER BY id LIMIT 1
        """),
        {"run": run_id, "hold": HoldReason.ORIGIN_UNKNOWN},
    ).one_or_none()
    if job is None:
        return None
    if known(db, [run_id]):
        return Question(run_id, job.installation_id, job.repository, answered=True)
    taken = db.execute(
        text("""
            INSERT INTO run_origins (run_id, leased_until, changed_at) VALUES (:run, :until, :now)
            ON CONFLICT (run_id) DO UPDATE SET leased_until = :until
            WHERE run_origins.origin IS NULL
              AND (run_origins.leased_until IS NULL OR run_origins.leased_until < :now)
              AND (run_origins.ask_after IS NULL OR run_origins.ask_after <= :now)
            RETURNING failures
        """),
        {"run": run_id, "until": now + LEASE, "now": now},
    ).scalar_one_or_none()
    if taken is None:
        return None
    return Question(run_id, job.installation_id, job.repository_id or job.repository, answered=False, failures=taken)


def record(db: Connection, run_id: int, origin: Origin, *, now: datetime) -> None:
    """Store the origin of a run. A stored origin is never changed, because the origin of a run is final."""
    db.execute(
        text("""
            INSERT INTO run_origins (run_id, origin, changed_at) VALUES (:run, :origin, :now)
            ON CONFLICT (run_id) DO UPDATE SET
                origin = :origin, failures = 0, leased_until = NULL, ask_after = NULL, changed_at = :now
            WHERE run_origins.origin IS NULL
        """),
        {"run": run_id, "origin": origin, "now": now},
    )


def postpone(db: Connection, run_id: int, *, why: str, after: float | None, now: datetime) -> float:
    """Postpone the question about a run, and record `why` in the holds of its jobs. Return the wait in seconds.

    `after` is the wait in seconds until Celery repeats the question, or the wait that GitHub or Ostler's own rate limit
    requested. Such a wait does not count as a failure. `after` is None if the question failed and Celery does not
    repeat it. The wait then doubles with each failure.
    """
    failures: int = db.execute(
        text("SELECT failures FROM run_origins WHERE run_id = :run"), {"run": run_id}
    ).scalar_one()
    wait = min(FIRST_WAIT * 2 ** min(failures, 16), LONGEST_WAIT) if after is None else after
    db.execute(
        text("""
            UPDATE run_origins SET failures = :failures, leased_until = NULL, ask_after = :ask_after, changed_at = :now
            WHERE run_id = :run AND origin IS NULL
        """),
        {
            "run": run_id,
            "failures": failures + (after is None),
            "ask_after": now + timedelta(seconds=wait),
            "now": now,
        },
    )
    detail = f"it is not known whether the run of the job comes from a fork ({why})"
    job_holds.explain_run(db, run_id, reason=HoldReason.ORIGIN_UNKNOWN, detail=detail)
    return wait


def delete_of_jobs(db: Connection, job_ids: Sequence[int]) -> None:
    """Delete the origins of the runs of jobs that are about to be deleted."""
    db.execute(
        text("DELETE FROM run_origins WHERE run_id IN (SELECT run_id FROM jobs WHERE id = ANY(:ids))"),
        {"ids": job_ids},
    )
