"""Check runs of jobs: which jobs to examine, and the record of each call.

A call is recorded before it is made. A job therefore has one call for each of its states at most, even if the process
dies during the call. No statement waits for a row that another session has locked: such a job is left to the next run,
and the record of a call that has ended is lost. The next call then makes another check run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.db.sql import text

LIMIT = 50
"""Maximum number of jobs of each kind that one run examines."""
AGAIN = timedelta(minutes=1)
SETTLED = timedelta(seconds=30)
"""Time after the end of a job until it is examined. The end of its Pod is observed in this time."""
RECENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Checked:
    """A job to examine. `said` are the states that a call was made for. `check_id` is None without a check run."""

    id: int
    account_id: int
    installation_id: int
    repository: str
    name: str
    head_sha: str
    queued_at: datetime
    started_at: datetime | None
    check_id: int | None
    said: frozenset[str]


def due(db: Connection, *, after: timedelta, now: datetime) -> Sequence[Checked]:
    """Return jobs that wait longer than `after`, jobs with a check run that started, and jobs that ended lately."""
    rows = db.execute(
        text("""
            SELECT j.id, j.account_id, j.installation_id, j.repository, j.name, j.head_sha, j.queued_at, j.started_at,
                   j.check_id, j.check_said AS said
            FROM (
                (SELECT id FROM jobs
                 WHERE state IN ('queued', 'claimed') AND queued_at < :late AND (check_at IS NULL OR check_at < :again)
                   AND head_sha IS NOT NULL AND installation_id IS NOT NULL
                 ORDER BY check_at NULLS FIRST, id LIMIT :limit)
                UNION ALL
                (SELECT id FROM jobs
                 WHERE state = 'running' AND check_id IS NOT NULL AND (check_at IS NULL OR check_at < :again)
                   AND NOT check_said @> '{started}' ORDER BY check_at, id LIMIT :limit)
                UNION ALL
                (SELECT id FROM jobs
                 WHERE state = 'completed' AND completed_at > :recent AND completed_at < :settled
                   AND (check_at IS NULL OR check_at < completed_at + :rest)
                   AND (check_id IS NOT NULL OR conclusion IN ('failure', 'cancelled'))
                   AND head_sha IS NOT NULL AND installation_id IS NOT NULL
                 ORDER BY completed_at LIMIT :limit)
            ) f JOIN jobs j ON j.id = f.id
        """),
        {
            "late": now - after,
            "again": now - AGAIN,
            "recent": now - RECENT,
            "settled": now - SETTLED,
            "rest": SETTLED,
            "limit": LIMIT,
        },
    )
    return [Checked(**{**row, "said": frozenset(row["said"] or ())}) for row in rows.mappings()]


def look(db: Connection, job_id: int, *, now: datetime) -> None:
    """Record that a job was examined."""
    db.execute(text(f"UPDATE jobs SET check_at = :now WHERE {_FREE}"), {"id": job_id, "now": now})


def begin(db: Connection, job_id: int, *, state: str) -> bool:
    """Record a call for a state of a job. Return False if the call was made before, or if the row is locked."""
    done = db.execute(
        text(f"""
            UPDATE jobs SET check_said = array_append(coalesce(check_said, '{{}}'), CAST(:state AS text))
            WHERE {_FREE} AND NOT coalesce(check_said, '{{}}') @> ARRAY[CAST(:state AS text)]
        """),
        {"id": job_id, "state": state},
    )
    return done.rowcount == 1


def undo(db: Connection, job_id: int, *, state: str) -> None:
    """Remove the record of a call that was not made."""
    db.execute(
        text(f"UPDATE jobs SET check_said = array_remove(check_said, CAST(:state AS text)) WHERE {_FREE}"),
        {"id": job_id, "state": state},
    )


def record(db: Connection, job_id: int, *, check_id: int) -> None:
    """Record the check run of a job."""
    db.execute(text(f"UPDATE jobs SET check_id = :check WHERE {_FREE}"), {"id": job_id, "check": check_id})


_FREE = "id IN (SELECT id FROM jobs WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED)"
