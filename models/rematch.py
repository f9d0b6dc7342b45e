"""Held jobs, matched again: what was held for want of a pool, a budget or a wait may go on now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.pools import routes
from models.sql import text
from rules.holds import HoldReason
from rules.labels import choose_pool

_LIFTED_HERE = [
    HoldReason.NO_POOL, HoldReason.TWO_POOLS, HoldReason.BUDGET_ZERO, HoldReason.BACKOFF, HoldReason.SET_ASIDE,
]  # fmt: skip


RECENTLY = timedelta(minutes=5)
"""A job routed by what a pool said until a moment before it changed is found within this time."""


@dataclass(frozen=True, slots=True)
class Lifted:
    """A job that was held and is not any more."""

    job_id: int
    hold: str
    pool_id: int


@dataclass(frozen=True, slots=True)
class Rematched:
    """One page: where to go on (None at the end), the pools that got jobs, and the jobs that were held."""

    next_id: int | None
    pools: frozenset[int]
    lifted: tuple[Lifted, ...]


def unroute(db: Connection, pool_id: int, *, now: datetime) -> None:
    """Take a pool's jobs from it: its labels changed or it went. `rematch` finds the queued ones a pool.

    A claimed job keeps its claim; when that is released the job is queued without a pool.
    """
    db.execute(
        text("""
            UPDATE jobs SET pool_id = NULL, changed_at = :now,
                   hold_reason = CASE WHEN state = 'queued' THEN coalesce(hold_reason, :hold) ELSE hold_reason END,
                   hold_detail = CASE WHEN state = 'queued' THEN 'its pool changed' ELSE hold_detail END
            WHERE id IN (SELECT id FROM jobs WHERE pool_id = :pool_id AND state IN ('queued', 'claimed')
                         ORDER BY id FOR NO KEY UPDATE)
        """),
        {"pool_id": pool_id, "hold": HoldReason.NO_POOL, "now": now},
    )


def rematch_page(db: Connection, *, after_id: int, limit: int, now: datetime) -> Rematched:
    """Match one page of jobs again, by id: the held ones, and those whose pool went or changed.

    A job that still cannot go keeps the reason of today.
    """
    rows = db.execute(
        text("""
            SELECT j.id, j.labels, j.account_id, j.repository, j.hold_reason, a.budget_count,
                   (SELECT max(b.not_before) FROM backoffs b WHERE b.not_before > :now
                    AND ((b.kind = 'installation' AND b.key = j.installation_id::text)
                      OR (b.kind = 'account' AND b.key = j.account_id::text)
                      OR (b.kind = 'repository' AND b.key = j.repository))) AS backed_off
            FROM jobs j JOIN accounts a ON a.id = j.account_id
            WHERE j.state = 'queued' AND j.id > :after
              AND (j.hold_reason = ANY(:holds)
                   OR (j.hold_reason IS NULL AND j.pool_id IN (
                        SELECT p.id FROM pools p
                        WHERE p.deleted_at IS NOT NULL OR p.draining OR p.routed_at > :recently)))
              AND (j.not_before IS NULL OR j.not_before <= :now)
            ORDER BY j.id LIMIT :limit FOR NO KEY UPDATE OF j SKIP LOCKED
        """),
        {"holds": [str(hold) for hold in _LIFTED_HERE], "after": after_id, "limit": limit, "now": now,
         "recently": now - RECENTLY},
    ).all()  # fmt: skip
    pools = routes(db)
    woken: set[int] = set()
    lifted: list[Lifted] = []
    for row in rows:
        choice = choose_pool(pools, labels=row.labels, account_id=row.account_id, repository=row.repository)
        hold: HoldReason | None = choice.hold_reason
        if hold is None and row.budget_count == 0:
            hold = HoldReason.BUDGET_ZERO
        if hold is None and row.backed_off is not None:
            hold = HoldReason.BACKOFF
        db.execute(
            text("""
                UPDATE jobs SET pool_id = :pool_id, hold_reason = :hold, not_before = :not_before,
                       hold_detail = CASE WHEN CAST(:hold AS text) IS NULL THEN NULL ELSE hold_detail END,
                       changed_at = CASE WHEN hold_reason IS DISTINCT FROM :hold THEN CAST(:now AS timestamptz)
                                         ELSE changed_at END
                WHERE id = :id
                  AND (pool_id, hold_reason, not_before) IS DISTINCT FROM
                      (CAST(:pool_id AS bigint), CAST(:hold AS text), CAST(:not_before AS timestamptz))
            """),
            {
                "id": row.id,
                "pool_id": choice.pool_id,
                "hold": hold,
                "not_before": row.backed_off if hold is HoldReason.BACKOFF else None,
                "now": now,
            },
        )
        if hold is None and choice.pool_id is not None:
            woken.add(choice.pool_id)
            if row.hold_reason is not None:
                lifted.append(Lifted(row.id, row.hold_reason, choice.pool_id))
    return Rematched(next_id=rows[-1].id if len(rows) == limit else None, pools=frozenset(woken), lifted=tuple(lifted))
