"""State of the sweep `catch_up`: the repositories to check, the progress of each check, and the quota of calls.

GitHub's lists are stored with their etags, so that an unchanged list costs no quota. For the job list of a workflow
run, only the etag is stored, and only if no job of the run needed a repair. Without a stored etag, the next check reads
the whole job list again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Double
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.claims.releases import apply_job_outcome, lock_job
from models.db.base import Base
from models.db.sql import text
from rules.claims.job_outcomes import NO_SUCH_JOB
from rules.claims.machines import JobState
from rules.routing.holds import HoldReason
from rules.sweeps.catch_up import Allowance, spend

LIMIT = 500
"""Maximum number of overdue jobs of one repository per check."""

KEPT = timedelta(days=7)
"""Time until the progress of a repository is deleted.

The time begins with the last tick that had to check the repository.
"""

COVERED_WITHIN = timedelta(minutes=15)
"""A repository is covered if its last complete check began within this time (three default intervals of the sweep)."""


class CatchUpRepository(Base):
    """A repository with jobs in Ostler, and the progress of its check."""

    __tablename__ = "catch_up_repositories"

    repository: Mapped[str] = mapped_column(primary_key=True, comment="owner/name")
    due_at: Mapped[datetime] = mapped_column(comment="time of the last tick that had to check the repository")
    tried_at: Mapped[datetime | None] = mapped_column(comment="time at which the last check began or stopped")
    checked_at: Mapped[datetime | None] = mapped_column(comment="start of the last complete check")
    began_at: Mapped[datetime | None] = mapped_column(
        comment="start of the check in progress; NULL: no check is in progress"
    )
    next_run: Mapped[int | None] = mapped_column(comment="next run of the check in progress; NULL: the first run")
    failures: Mapped[int] = mapped_column(server_default="0")
    not_before: Mapped[datetime | None]
    lists: Mapped[dict[str, Any]] = mapped_column(
        JSONB,
        server_default="{}",
        comment="last list of runs by status, with its etag; the next page of an unfinished job list",
    )
    settled: Mapped[dict[str, str]] = mapped_column(
        JSONB, server_default="{}", comment="etag of the job list of each run in which no job needed a repair"
    )


class CatchUpAllowance(Base):
    """The remaining calls of the sweep for one installation."""

    __tablename__ = "catch_up_quotas"

    installation_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    calls: Mapped[float] = mapped_column(Double, comment="calls that the sweep may still make, as of `at`")
    at: Mapped[datetime]
    quota: Mapped[int] = mapped_column(comment="calls per hour that GitHub allows the installation")


@dataclass(slots=True)
class Place:
    """A repository to check, with its stored progress.

    `account_id` is the account of the repository's newest job. `installation_id` is the newest installation of that
    account, because the installation that is stored with the job might be gone.
    """

    repository: str
    account_id: int
    installation_id: int
    failures: int
    began_at: datetime | None
    next_run: int | None
    lists: dict[str, Any]
    settled: dict[str, str]


# Only the newest job of each repository is read. The recursive walk over the names needs one index lookup per name.
_SEEN = """
    WITH RECURSIVE names AS (
        (SELECT repository FROM jobs ORDER BY repository LIMIT 1)
        UNION ALL
        SELECT (SELECT j.repository FROM jobs j WHERE j.repository > n.repository ORDER BY j.repository LIMIT 1)
        FROM names n WHERE n.repository IS NOT NULL
    ), seen AS (
        SELECT n.repository, j.account_id,
               coalesce((SELECT i.id FROM installations i WHERE i.account_id = j.account_id AND i.left_at IS NULL
                         ORDER BY i.event_at DESC NULLS LAST, i.id DESC LIMIT 1), j.installation_id) AS installation_id
        FROM names n CROSS JOIN LATERAL (
            SELECT account_id, installation_id, queued_at, changed_at FROM jobs
            WHERE repository = n.repository ORDER BY id DESC LIMIT 1
        ) j
        WHERE j.installation_id IS NOT NULL
          AND (greatest(j.queued_at, j.changed_at) >= :since
               OR n.repository IN (SELECT repository FROM jobs WHERE state <> 'completed'))
    )
"""
_NOTE_DUE = text(f"""
    {_SEEN}, free AS MATERIALIZED (
        SELECT repository FROM catch_up_repositories WHERE repository IN (SELECT repository FROM seen)
        ORDER BY repository FOR NO KEY UPDATE SKIP LOCKED
    )
    INSERT INTO catch_up_repositories (repository, due_at)
    SELECT repository, :now FROM seen s
    WHERE EXISTS (SELECT FROM free WHERE free.repository = s.repository)
       OR NOT EXISTS (SELECT FROM catch_up_repositories c WHERE c.repository = s.repository)
    ON CONFLICT (repository) DO UPDATE SET due_at = :now
""")
_PLACES = text(f"""
    {_SEEN}
    SELECT s.repository, s.account_id, s.installation_id, coalesce(c.failures, 0), c.began_at, c.next_run,
           coalesce(c.lists, '{{}}'), coalesce(c.settled, '{{}}')
    FROM seen s LEFT JOIN catch_up_repositories c ON c.repository = s.repository
    WHERE (c.not_before IS NULL OR c.not_before <= :now)
      AND NOT EXISTS (SELECT FROM installations i WHERE i.id = s.installation_id AND i.left_at IS NOT NULL)
    ORDER BY c.tried_at NULLS FIRST, s.repository
""")


def places(db: Connection, *, seen_within: timedelta, note: bool, now: datetime) -> Sequence[Place]:
    """Return the repositories to check. The repository whose check was tried least recently comes first.

    A repository is checked if its newest job was queued or changed within `seen_within`, or if one of its jobs is not
    completed. A repository is left out while its check is postponed (`put_off`), or if the installation of its newest
    job is missing or removed.

    If `note` is True, `due_at` of the repositories is set to `now`, even of repositories that are left out. The
    progress of repositories that were last due more than `KEPT` ago is then deleted.
    """
    times = {"since": now - seen_within, "now": now}
    if note:
        db.execute(_NOTE_DUE, times)
        db.execute(
            text("""
                DELETE FROM catch_up_repositories WHERE repository IN (
                    SELECT repository FROM catch_up_repositories WHERE due_at < :before
                    ORDER BY repository FOR UPDATE SKIP LOCKED)
            """),
            {"before": now - KEPT},
        )
    return [Place(*row) for row in db.execute(_PLACES, times)]


def begin(db: Connection, repository: str, *, tried_at: datetime) -> None:
    """Record that the check of a repository begins."""
    db.execute(
        text("UPDATE catch_up_repositories SET tried_at = :tried_at WHERE repository = :repository"),
        {"tried_at": tried_at, "repository": repository},
    )


def record_visit(
    db: Connection, lease_no: int, place: Place, *, tried_at: datetime, checked_at: datetime | None
) -> bool:
    """Record the progress of a repository's check.

    If the check is complete, `checked_at` is the time at which the check began. Otherwise `checked_at` is None. Return
    False without a change if another tick has taken the sweep's lease.
    """
    mine = db.execute(
        text("""
            UPDATE catch_up_repositories SET tried_at = :tried_at, began_at = CAST(:began_at AS timestamptz),
                   next_run = CAST(:next_run AS bigint), lists = CAST(:lists AS jsonb),
                   settled = CAST(:settled AS jsonb), checked_at = coalesce(CAST(:checked_at AS timestamptz),
                   checked_at), failures = CASE WHEN CAST(:checked_at AS timestamptz) IS NULL THEN failures ELSE 0 END
            WHERE repository = :repository AND (SELECT lease_no FROM sweeps WHERE name = 'catch_up') = :lease_no
            RETURNING repository
        """),
        {
            "repository": place.repository,
            "lease_no": lease_no,
            "tried_at": tried_at,
            "checked_at": checked_at,
            "began_at": place.began_at,
            "next_run": place.next_run,
            "lists": json.dumps(place.lists),
            "settled": json.dumps(place.settled),
        },
    ).one_or_none()
    return mine is not None


def put_off(db: Connection, repositories: Sequence[str], *, not_before: datetime) -> None:
    """Postpone the checks of these repositories until `not_before`.

    Before this time, GitHub would probably refuse the calls of these checks again.
    """
    db.execute(
        text("""
            UPDATE catch_up_repositories SET failures = failures + 1, not_before = :not_before
            WHERE repository IN (SELECT repository FROM catch_up_repositories WHERE repository = ANY(:repositories)
                                 ORDER BY repository FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"repositories": list(repositories), "not_before": not_before},
    )


def pay(db: Connection, installation_id: int, *, percent: float, now: datetime) -> Allowance | None:
    """Take one call from the sweep's quota for an installation.

    Return the remaining quota, or None if no call was left. `percent` is the percentage of GitHub's hourly limit that
    the sweep may use.
    """
    new = Allowance.new(percent=percent, now=now)
    db.execute(
        text("""
            INSERT INTO catch_up_quotas (installation_id, calls, at, quota) VALUES (:id, :calls, :at, :quota)
            ON CONFLICT (installation_id) DO NOTHING
        """),
        {"id": installation_id, "calls": new.calls, "at": new.at, "quota": new.quota},
    )
    row = db.execute(
        text("SELECT calls, at, quota FROM catch_up_quotas WHERE installation_id = :id FOR NO KEY UPDATE"),
        {"id": installation_id},
    ).one()
    left = spend(Allowance(*row), percent=percent, now=now)
    if left is not None:
        db.execute(
            text("UPDATE catch_up_quotas SET calls = :calls, at = greatest(at, :at) WHERE installation_id = :id"),
            {"id": installation_id, "calls": left.calls, "at": left.at},
        )
    return left


def give_back(db: Connection, installation_id: int, *, calls: int, quota: int) -> None:
    """Correct the sweep's quota for an installation after a call, and store GitHub's hourly limit (`quota`).

    `calls` is added to the remaining calls. `pay` has already taken one call. `calls` is 1 if the call cost nothing,
    and negative if the call cost more than one call. The remaining calls are not overwritten, because other processes
    might have used calls in the meantime.
    """
    db.execute(
        text("UPDATE catch_up_quotas SET calls = calls + :calls, quota = :quota WHERE installation_id = :id"),
        {"id": installation_id, "calls": calls, "quota": quota},
    )


def states_of(db: Connection, job_ids: Sequence[int]) -> Mapping[int, JobState]:
    """Return the state of each job by its id. A job without a row is missing from the result."""
    rows = db.execute(text("SELECT id, state FROM jobs WHERE id = ANY(:ids)"), {"ids": list(job_ids)})
    return {row.id: JobState(row.state) for row in rows}


@dataclass(frozen=True, slots=True)
class Overdue:
    """A job that has not been completed for a long time.

    `ready_at` is the latest of the times at which the job was queued, its row was inserted, and its GitHub environment
    allowed it to run.
    """

    id: int
    state: JobState
    run_id: int
    run_attempt: int
    ready_at: datetime


_READY_AT = """
    greatest(j.queued_at, (SELECT max(at) FROM job_events e
                           WHERE e.job_id = j.id AND e.transition IN ('job_seen', 'job_ready')))
"""


def overdue(
    db: Connection, repository: str, *, active: Collection[int], older_than: timedelta, now: datetime
) -> Sequence[Overdue]:
    """Return the overdue jobs of a repository.

    A job is overdue if all these conditions are true:

    - The job was queued more than `older_than` ago.
    - The job is queued, or the job is running and has a live claim.
    - The run of the job is not in `active`, the ids of the runs that GitHub lists as not completed.
    - The sweep `unresolved_jobs` does not ask GitHub about the job.

    Normally the Pod of a running job shows that the job has ended. If the Pod hangs, this query finds the job. At most
    `LIMIT` jobs are returned.
    """
    rows = db.execute(
        text(f"""
            SELECT j.id, j.state, j.run_id, j.run_attempt, {_READY_AT} FROM jobs j
            WHERE j.repository = :repository AND j.state IN ('queued', 'running') AND j.queued_at < :before
              AND (j.state = 'queued' OR EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL))
              AND (j.hold_reason IS NULL OR j.hold_reason <> ALL(:others))
              AND (j.ask_after IS NULL OR j.ask_after <= :now)
              AND j.run_id <> ALL(CAST(:active AS bigint[]))
            ORDER BY j.run_id, j.id LIMIT :limit
        """),
        {
            "repository": repository,
            "before": now - older_than,
            "others": [str(each) for each in (HoldReason.SET_ASIDE, HoldReason.BACKOFF, HoldReason.ASK_GITHUB)],
            "now": now,
            "active": list(active),
            "limit": LIMIT,
        },
    )
    return [Overdue(row[0], JobState(row[1]), *row[2:]) for row in rows]


def give_up(db: Connection, job_id: int, *, now: datetime, who: str) -> bool:
    """Complete a job that GitHub does not know any more. Return False if the job is no longer queued."""
    lock_job(db, job_id)
    if states_of(db, [job_id]).get(job_id) is not JobState.QUEUED:
        return False
    apply_job_outcome(db, job_id, NO_SUCH_JOB, now=now, who=who)
    return True


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of the repositories that the last tick had to check (`due`) and of the covered ones (`checked_at`)."""

    due: int
    checked_at: int


def coverage(db: Connection, *, now: datetime) -> Coverage:
    """Return how many repositories the last tick had to check, and how many of these repositories are covered.

    `COVERED_WITHIN` explains when a repository is covered.
    """
    row = db.execute(
        text("""
            SELECT count(*) AS due, count(*) FILTER (WHERE checked_at >= :since) AS checked_at FROM
            catch_up_repositories WHERE due_at = (SELECT max(due_at) FROM catch_up_repositories)
        """),
        {"since": now - COVERED_WITHIN},
    ).one()
    return Coverage(row.due, row.checked_at)
