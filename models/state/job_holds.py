"""Holds of jobs: the reason and the end of a hold, and the time of the next question to GitHub about the job.

A transition can write `hold_reason`, `hold_detail`, `not_before` and `ask_after` together with the state
(`models.state.transitions`). If the state of the job does not change, only this module writes these columns.

The callers pass SQL conditions on `jobs`. If a statement must not wait for locked rows, the condition selects the ids
of the rows in a subquery with SKIP LOCKED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection

from models.db.sql import text
from rules.routing.holds import HoldReason


class Unchanged(Enum):
    """Marker for a column that a statement must not change. None cannot be the marker, because None means NULL."""

    UNCHANGED = auto()


UNCHANGED = Unchanged.UNCHANGED


def hold(
    db: Connection,
    which: str,
    *,
    reason: HoldReason,
    detail: str | Unchanged | None = UNCHANGED,
    not_before: datetime | Unchanged | None = UNCHANGED,
    asks_at_once: bool = False,
    counts_failure: bool = False,
    changed_at: datetime | None = None,
    **parameters: Any,
) -> int:
    """Hold the jobs that satisfy the condition `which`, and return how many jobs are held. The jobs keep their age.

    - `not_before`: the time before which `rematch` does not check the hold.
    - `asks_at_once`: the next tick of `unresolved_jobs` asks GitHub about the jobs.
    - `counts_failure`: the number of failures of each job is increased by one.
    - `changed_at`: the time of the change. If `changed_at` is None, the jobs keep the time of their last change.
    - `parameters`: the values that `which` refers to.
    """
    sets, values = ["hold_reason = :hold"], {"hold": reason, **parameters}
    if detail is not UNCHANGED:
        sets, values = [*sets, "hold_detail = :detail"], values | {"detail": detail}
    if not_before is not UNCHANGED:
        sets, values = [*sets, "not_before = :not_before"], values | {"not_before": not_before}
    if asks_at_once:
        sets = [*sets, "ask_after = NULL"]
    if counts_failure:
        sets = [*sets, "failures = failures + 1"]
    if changed_at is not None:
        sets, values = [*sets, "changed_at = :changed_at"], values | {"changed_at": changed_at}
    return db.execute(text(f"UPDATE jobs SET {', '.join(sets)} WHERE {which}"), values).rowcount


def hold_job(
    db: Connection, job_id: int, *, reason: HoldReason, detail: str, not_before: datetime | None, now: datetime
) -> None:
    """Hold a job, because GitHub refused its mint or because its runners failed.

    If another session has locked the job's row, this function waits for the lock.
    """
    hold(
        db,
        "id = :id AND state IN ('queued', 'claimed')",
        reason=reason,
        detail=detail,
        not_before=not_before,
        counts_failure=True,
        changed_at=now,
        id=job_id,
    )


def lift(db: Connection, which: str, *, now: datetime, **parameters: Any) -> Sequence[int]:
    """Lift the holds of the jobs that satisfy the condition `which`, and return the ids of these jobs."""
    lifted = db.execute(
        text(f"""
            UPDATE jobs SET hold_reason = NULL, hold_detail = NULL, not_before = NULL, changed_at = :now
            WHERE {which}
            RETURNING id
        """),
        {"now": now, **parameters},
    )
    return lifted.scalars().all()


def end_waits(db: Connection, which: str, *, now: datetime, **parameters: Any) -> int:
    """End the waits of held jobs that wait until `not_before`, and return the number of these jobs.

    The next tick of `rematch` checks these jobs.

    `which` is an SQL condition on a job `j`. If another session has locked the row of a job, the job's wait is not
    ended.
    """
    ended = db.execute(
        text(f"""
            UPDATE jobs SET not_before = :now WHERE id IN (
                SELECT id FROM jobs j WHERE {which} AND not_before > :now ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"now": now, **parameters},
    )
    return ended.rowcount


def explain(db: Connection, which: str, *, detail: str, **parameters: Any) -> None:
    """Set the detail of the holds of jobs that satisfy the condition `which`. Locked rows are skipped."""
    db.execute(
        text(f"""
            UPDATE jobs SET hold_detail = :detail
            WHERE id IN (SELECT id FROM jobs WHERE {which} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {"detail": detail, **parameters},
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
