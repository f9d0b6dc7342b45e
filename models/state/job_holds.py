"""Holds of jobs: the reason and the end of a hold, and the time of the next question to GitHub about the job.

A transition can write `hold_reason`, `hold_detail`, `not_before` and `ask_after` together with the state
(`models.state.transitions`). If the state of the job does not change, only this module writes these columns.

A caller that selects jobs by rows of another room locks the selected jobs and passes their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from models.db.sql import text
from rules.routing.holds import HoldReason


def hold(
    db: Connection,
    job_ids: Sequence[int],
    *,
    reason: HoldReason,
    detail: str | None,
    not_before: datetime,
    now: datetime,
) -> int:
    """Hold these jobs until `rematch` checks the hold after `not_before`. Return how many jobs are held.

    The caller must hold the locks of the rows. The jobs keep their age.
    """
    return db.execute(
        text("""
            UPDATE jobs SET hold_reason = :hold, hold_detail = :detail, not_before = :not_before, changed_at = :now
            WHERE id = ANY(:ids)
        """),
        {"ids": list(job_ids), "hold": reason, "detail": detail, "not_before": not_before, "now": now},
    ).rowcount


def hold_job(
    db: Connection, job_id: int, *, reason: HoldReason, detail: str, not_before: datetime | None, now: datetime
) -> None:
    """Hold a job, because GitHub refused its mint or because its runners failed.

    If another session has locked the job's row, this function waits for the lock.
    """
    db.execute(
        text("""
            UPDATE jobs SET hold_reason = :hold, hold_detail = :detail, not_before = :not_before, changed_at = :now,
                   failures = failures + 1
            WHERE id = :id AND state IN ('queued', 'claimed')
        """),
        {"id": job_id, "hold": reason, "detail": detail, "not_before": not_before, "now": now},
    )


def hold_running(db: Connection, job_id: int, *, now: datetime) -> None:
    """Hold a running job that lost its claim, until GitHub reports its result.

    The next tick of `unresolved_jobs` asks GitHub.
    """
    db.execute(
        text("""
            UPDATE jobs SET hold_reason = :hold, ask_after = NULL, changed_at = :now
            WHERE id = :id AND state = 'running'
        """),
        {"id": job_id, "hold": HoldReason.ASK_GITHUB, "now": now},
    )


def hold_restored(db: Connection, job_ids: Sequence[int], *, detail: str) -> int:
    """Hold the restored jobs that are not completed, until GitHub reports their state. Return how many jobs are held.

    The next tick of `unresolved_jobs` asks GitHub. This function waits for rows that another session has locked.
    """
    return db.execute(
        text("""
            UPDATE jobs SET hold_reason = :hold, hold_detail = :detail, ask_after = NULL
            WHERE id IN (SELECT id FROM jobs WHERE id = ANY(:ids) AND state <> 'completed'
                         ORDER BY id FOR NO KEY UPDATE)
        """),
        {"ids": list(job_ids), "hold": HoldReason.ASK_GITHUB, "detail": detail},
    ).rowcount


def lift(db: Connection, job_id: int, *, now: datetime) -> None:
    """Lift the hold of a job. The caller must hold the lock of the job's row."""
    db.execute(
        text("""
            UPDATE jobs SET hold_reason = NULL, hold_detail = NULL, not_before = NULL, changed_at = :now WHERE id = :id
        """),
        {"id": job_id, "now": now},
    )


def end_waits(db: Connection, job_ids: Sequence[int], *, now: datetime) -> int:
    """End the waits of held jobs that wait until `not_before`, and return the number of these jobs.

    The next tick of `rematch` checks these jobs. The caller must hold the locks of the rows.
    """
    return db.execute(
        text("UPDATE jobs SET not_before = :now WHERE id = ANY(:ids) AND not_before > :now"),
        {"ids": list(job_ids), "now": now},
    ).rowcount


def explain_run(db: Connection, run_id: int, *, reason: HoldReason, detail: str) -> None:
    """Set the detail of this hold of the queued jobs of a run. Locked rows are skipped."""
    db.execute(
        text("""
            UPDATE jobs SET hold_detail = :detail
            WHERE id IN (SELECT id FROM jobs WHERE run_id = :run AND hold_reason = :hold AND state = 'queued'
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"run": run_id, "hold": reason, "detail": detail},
    )


def ask_later(db: Connection, job_ids: Sequence[int], *, ask_after: datetime) -> None:
    """Postpone the questions to GitHub about these jobs until `ask_after`. See `ask_each_later`."""
    ask_each_later(db, dict.fromkeys(job_ids, ask_after))


def ask_each_later(db: Connection, ask_after: Mapping[int, datetime]) -> None:
    """Postpone the questions to GitHub about these jobs. `ask_after` maps each job id to the time of the next question.

    Locked rows are skipped. `changed_at` of the jobs is kept, because the jobs themselves have not changed.
    """
    db.execute(
        text("""
            UPDATE jobs j SET ask_after = t.ask_after
            FROM unnest(CAST(:ids AS bigint[]), CAST(:times AS timestamptz[])) AS t (id, ask_after)
            WHERE j.id = t.id
              AND j.id IN (SELECT id FROM jobs WHERE id = ANY(:ids) AND state <> 'completed'
                           ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"ids": list(ask_after), "times": list(ask_after.values())},
    )


def end_question(db: Connection, job_id: int) -> None:
    """Record that GitHub has answered the question about a job, and lift the hold `ask_github`.

    If a queued job was taken out of its pool in the meantime, the hold `no_pool` replaces the hold `ask_github`.
    """
    db.execute(
        text("""
            UPDATE jobs SET ask_after = NULL,
                   hold_reason = CASE WHEN hold_reason <> :ask_github THEN hold_reason
                                      WHEN state = 'queued' AND pool_id IS NULL THEN :no_pool END
            WHERE id = :id
        """),
        {"id": job_id, "ask_github": HoldReason.ASK_GITHUB, "no_pool": HoldReason.NO_POOL},
    )


def route(
    db: Connection,
    job_id: int,
    *,
    pool_id: int | None,
    reason: HoldReason | None,
    detail: str | None,
    not_before: datetime | None,
    now: datetime,
) -> None:
    """Write the pool and the hold of a job that is routed again. If `reason` is None, the job is not held.

    The caller must hold the lock of the job's row.
    """
    db.execute(
        text("""
            UPDATE jobs SET pool_id = :pool_id, hold_reason = :hold, not_before = :not_before,
                   hold_detail = :detail,
                   changed_at = CASE WHEN hold_reason IS DISTINCT FROM :hold THEN CAST(:now AS timestamptz)
                                     ELSE changed_at END
            WHERE id = :id
        """),
        {
            "id": job_id,
            "pool_id": pool_id,
            "hold": reason,
            "not_before": not_before,
            "detail": detail,
            "now": now,
        },
    )


_UNROUTE = """
    UPDATE jobs SET pool_id = NULL, changed_at = :now,
           hold_reason = CASE WHEN state <> 'queued' THEN hold_reason
                              WHEN hold_reason = ANY(:asked) THEN :hold ELSE coalesce(hold_reason, :hold) END,
           not_before = CASE WHEN state = 'queued' AND hold_reason = ANY(:asked) THEN NULL ELSE not_before END,
           hold_detail = CASE WHEN state = 'queued' THEN 'its pool changed' ELSE hold_detail END
    WHERE id IN (SELECT id FROM jobs WHERE id = ANY(:ids) AND pool_id = :pool_id AND state IN ('queued', 'claimed')
                 ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING id
"""


def unroute(db: Connection, pool_id: int, job_ids: Sequence[int], *, now: datetime) -> int:
    """Take these jobs out of a pool, and return how many jobs were taken out.

    Jobs that are no longer in the pool and jobs with locked rows are skipped.
    """
    moved = db.execute(
        text(_UNROUTE),
        {
            "pool_id": pool_id,
            "ids": list(job_ids),
            "hold": HoldReason.NO_POOL,
            # GitHub's answer concerned the settings of the old pool. If the hold still applies, the sweep `rematch`
            # sets the hold again.
            "asked": [str(HoldReason.RUNNER_GROUP), str(HoldReason.BACKOFF)],
            "now": now,
        },
    )
    return len(moved.all())
