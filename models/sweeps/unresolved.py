"""Unresolved jobs: the query that finds them, and the changes that GitHub's answers require."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.names import SCOPE_NOW
from models.claims.releases import Registration, apply_job_outcome, lock_job
from models.db.sql import text
from models.state import job_holds, job_transitions
from rules.claims.machines import EndReason, JobState
from rules.routing.holds import HoldReason
from rules.sweeps.unresolved import Move, Unresolved, UnresolvedVerdict

LIMIT = 200


@dataclass(frozen=True, slots=True)
class UnresolvedJob:
    """A job to ask GitHub about.

    - `changed_at`: the time of the last change of the job's state or hold.
    - `ready_at`: the latest of the times at which the job was queued, its row was inserted, and its GitHub environment
      allowed it to run.
    - `runner_name`: the runner of the job's open execution, or None if the job has no open execution.
    """

    id: int
    kind: Unresolved
    state: JobState
    installation_id: int | None
    repository: str
    pool_id: int | None
    changed_at: datetime
    ready_at: datetime
    runner_name: str | None


_FIND = text("""
    WITH found AS (
        SELECT id, 'unknown' AS kind FROM jobs j
        WHERE hold_reason = :ask_github AND state <> 'completed' AND changed_at < :soon
          AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
        UNION ALL
        SELECT id, 'set_aside' FROM jobs
        WHERE hold_reason = ANY(:aside) AND state = 'queued' AND queued_at < :late
        UNION ALL
        SELECT id, 'waiting' FROM jobs WHERE state = 'waiting' AND changed_at < :late
        UNION ALL
        SELECT j.id, CASE WHEN e.persistent THEN 'persistent' WHEN e.elsewhere THEN 'elsewhere'
                          WHEN e.outlived THEN 'outlived' ELSE 'bug' END
        FROM jobs j
        LEFT JOIN LATERAL (
            SELECT m.id IS NULL OR coalesce(c.purpose = 'register', false) AS elsewhere,
                   c.purpose = 'register' AND c.ended_at IS NULL AND c.runner_absent_at IS NULL
                   AND c.runner_seen IS DISTINCT FROM 'online' AS persistent,
                   x.claim_id IS NULL AND c.ended_at <= j.changed_at AS outlived
            FROM executions x
            LEFT JOIN mint_attempts m ON m.runner_name = x.runner_name LEFT JOIN claims c ON c.id = m.claim_id
            WHERE x.job_id = j.id AND x.ended_at IS NULL AND j.state = 'running'
        ) e ON true
        WHERE j.state IN ('claimed', 'running') AND j.hold_reason IS DISTINCT FROM :ask_github
          AND j.changed_at < CASE WHEN e.elsewhere THEN CAST(:late AS timestamptz) ELSE :soon END
          AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
    )
    SELECT j.id, f.kind, j.state, j.installation_id, j.repository, j.pool_id, j.changed_at,
           greatest(j.queued_at, (SELECT max(at) FROM job_events e
                                  WHERE e.job_id = j.id AND e.transition IN ('job_seen', 'job_ready'))),
           x.runner_name
    FROM found f JOIN jobs j ON j.id = f.id LEFT JOIN executions x ON x.job_id = j.id AND x.ended_at IS NULL
    WHERE j.ask_after IS NULL OR j.ask_after <= :now
    ORDER BY coalesce(j.ask_after, j.changed_at), j.id LIMIT :limit
""")


def unresolved_jobs(db: Connection, *, soon: timedelta, late: timedelta, now: datetime) -> Sequence[UnresolvedJob]:
    """Return the unresolved jobs that GitHub has to be asked about.

    The job whose question has been due for the longest time comes first.

    A job is returned only if its state is old enough. `soon` is the minimum age if the job's state is unknown, or if
    only a bug can cause the state. `late` is the minimum age if the state can be normal for a long time.
    """
    rows = db.execute(
        _FIND,
        {
            "ask_github": HoldReason.ASK_GITHUB,
            "aside": [str(HoldReason.SET_ASIDE), str(HoldReason.BACKOFF)],
            "soon": now - soon,
            "late": now - late,
            "now": now,
            "limit": LIMIT,
        },
    )
    return [UnresolvedJob(row[0], Unresolved(row[1]), JobState(row[2]), *row[3:]) for row in rows]


def left_runners(db: Connection, job_id: int) -> list[Registration]:
    """Return the runners of a job's earlier claims that might still be registered on GitHub.

    Only claims that ended because their Pods were spent or gone are searched. Each runner is returned with the present
    installation of the job. The installation of the claim might be gone, if the App was installed again in the
    meantime.
    """
    rows = db.execute(
        text(f"""
            SELECT m.id, m.runner_name, m.runner_id, j.installation_id, {SCOPE_NOW}, true
            FROM claims c JOIN mint_attempts m ON m.claim_id = c.id JOIN jobs j ON j.id = c.job_id
            WHERE c.job_id = :id AND c.end_reason = ANY(:ends) AND m.outcome IN ('open', 'minted')
              AND j.installation_id IS NOT NULL ORDER BY m.id
        """),
        {"id": job_id, "ends": [str(EndReason.POD_SPENT), str(EndReason.POD_GONE)]},
    )
    return [Registration(*row) for row in rows]


def apply_verdict(db: Connection, job: UnresolvedJob, verdict: UnresolvedVerdict, *, now: datetime, who: str) -> bool:
    """Apply the verdict on a job.

    Return False without a change if the job has changed, started or been claimed since `job` was read.
    """
    lock_job(db, job.id)
    still = db.execute(
        text("""
            SELECT 1 FROM jobs j WHERE j.id = :id AND j.state = :state AND j.changed_at = :changed_at
              AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
              AND (SELECT x.runner_name FROM executions x WHERE x.job_id = j.id AND x.ended_at IS NULL)
                  IS NOT DISTINCT FROM CAST(:runner_name AS text)
        """),
        {"id": job.id, "state": job.state, "changed_at": job.changed_at, "runner_name": job.runner_name},
    ).one_or_none()
    if still is None:
        return False
    job_holds.end_question(db, job.id)
    match verdict.move:
        case Move.READY:
            job_transitions.make_ready_without_pool(db, job.id, now=now, who=who, why=verdict.job_outcome.why)
        case Move.FOLLOW:
            apply_job_outcome(db, job.id, verdict.job_outcome, now=now, who=who)
        case Move.LIFT | Move.KEEP:
            pass
    return True
