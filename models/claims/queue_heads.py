"""Candidates of the matcher: the first jobs of each account's queue in one pool, and their order.

Nothing is locked here. The matcher locks the chosen jobs and counts the usage again (`models.claims.matching`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.claims.matching import QUEUED
from models.claims.runner_failures import Held
from models.db.prepared import Prepared
from models.routing.usage import used_pods
from models.state.pools import Pool
from ostler.timings import Timings
from rules.claims.fairness import AccountView, Budget, JobHead, Reservation, Usage
from rules.claims.runner_brakes import FEWEST_JOBS, FEWEST_PODS, TOO_OLD


@dataclass(frozen=True, slots=True)
class QueueHeads:
    """The first jobs of the accounts' queues, with the data that the fairness rule needs to order these jobs.

    `reservations` maps an account to the part of its budget that is reserved for a job that has waited long. `totals`
    is the sum of the budgets of all accounts.
    """

    jobs: tuple[JobHead, ...]
    accounts: Mapping[int, AccountView]
    reservations: Mapping[int, Reservation]
    totals: Budget
    last: Mapping[int, int] = field(default_factory=dict)
    """The accounts that come after all others. Each is mapped to its place among these accounts, counted from 1."""


_HEADS = Prepared(
    "heads",
    f"""
    WITH RECURSIVE walk AS (
        -- One entry of the index for each account: the first job of its queue.
        (SELECT account_id, queued_at, id FROM jobs WHERE {QUEUED}
         AND NOT EXISTS (SELECT FROM pools WHERE id = :pool_id AND rerouting_since IS NOT NULL)
         ORDER BY account_id, priority DESC, queued_at, id LIMIT 1)
        UNION ALL
        SELECT head.* FROM walk CROSS JOIN LATERAL (
            SELECT account_id, queued_at, id FROM jobs WHERE {QUEUED} AND account_id > walk.account_id
            ORDER BY account_id, priority DESC, queued_at, id LIMIT 1) head
    ), used AS (
        SELECT account_id, count(*) AS count, sum(vcpu) AS vcpu, sum(memory) AS memory
        FROM ({used_pods()}) pods
        GROUP BY account_id
    ), totals AS (
        SELECT sum(budget_count) AS count, sum(budget_vcpu) AS vcpu, sum(budget_memory) AS memory FROM accounts
    ), ranked AS (
        SELECT a.id AS account_id, a.weight, a.budget_count, a.budget_vcpu, a.budget_memory,
               coalesce(u.count, 0) AS used_count, coalesce(u.vcpu, 0) AS used_vcpu,
               coalesce(u.memory, 0) AS used_memory,
               t.count AS total_count, t.vcpu AS total_vcpu, t.memory AS total_memory
        FROM walk
        JOIN accounts a ON a.id = walk.account_id
        CROSS JOIN totals t
        LEFT JOIN used u ON u.account_id = a.id
        WHERE a.id <> :braked AND a.access = 'allowed' AND ((coalesce(u.count, 0) < a.budget_count
               AND coalesce(u.vcpu, 0) + :vcpu <= a.budget_vcpu
               AND coalesce(u.memory, 0) + :memory <= a.budget_memory)
           OR EXISTS (SELECT FROM claims s WHERE s.ended_at IS NULL AND s.pool_id = :pool_id
                      AND s.account_id = a.id AND s.spare_since > :spare_before))
        ORDER BY coalesce(array_position(:last, a.id), 0),
                 greatest(coalesce(u.count, 0) / nullif(t.count, 0)::float,
                          coalesce(u.vcpu, 0) / nullif(t.vcpu, 0)::float,
                          coalesce(u.memory, 0) / nullif(t.memory, 0)::float) / a.weight NULLS FIRST,
                 walk.queued_at, walk.id
        LIMIT :batch
    ), braked AS MATERIALIZED (
        -- The same rule as `rules.claims.runner_brakes.brake_of`. `account_id` is NULL if the whole pool is braked.
        SELECT f.pool_id, CASE WHEN bool_or(f.exit_code IS NOT DISTINCT FROM {TOO_OLD})
                                 OR count(DISTINCT f.account_id) > 1 THEN NULL ELSE min(f.account_id) END AS account_id
        FROM runner_failures f JOIN pools p ON p.id = f.pool_id AND p.template_hash = f.template_hash
        WHERE f.cleared_at IS NULL
        GROUP BY f.pool_id
        HAVING bool_or(f.exit_code IS NOT DISTINCT FROM {TOO_OLD})
            OR (count(DISTINCT f.job_id) >= {FEWEST_JOBS} AND count(DISTINCT f.pod_uid) >= {FEWEST_PODS})
    ), other AS MATERIALIZED (
        SELECT p.id, p.vcpu, p.memory FROM pools p
        CROSS JOIN LATERAL (SELECT FROM offers o WHERE o.pool_id = p.id AND o.until > :now LIMIT 1) offered
        WHERE p.id <> :pool_id
    ), reserved AS MATERIALIZED (
        -- This reads one index entry per account and pool, and never scans a queue.
        SELECT DISTINCT ON (ranked.account_id) ranked.account_id, other.id AS other_pool_id, other.vcpu AS other_vcpu,
               other.memory AS other_memory, oldest.queued_at AS other_queued_at, oldest.id AS other_job_id
        FROM ranked CROSS JOIN other
        CROSS JOIN LATERAL (
            SELECT j.queued_at, j.id FROM jobs j
            WHERE j.account_id = ranked.account_id AND j.pool_id = other.id AND j.state = 'queued'
              AND j.hold_reason IS NULL AND j.queued_at < :reserve_before
            ORDER BY j.queued_at, j.id LIMIT 1) oldest
        -- Nothing is reserved for jobs whose runners do not start, because these jobs might wait for hours.
        WHERE NOT EXISTS (SELECT FROM braked b WHERE b.pool_id = other.id
                          AND (b.account_id IS NULL OR b.account_id = ranked.account_id))
        ORDER BY ranked.account_id, oldest.queued_at, oldest.id
    )
    SELECT ranked.account_id, ranked.weight, ranked.budget_count, ranked.budget_vcpu, ranked.budget_memory,
           ranked.used_count, ranked.used_vcpu, ranked.used_memory,
           ranked.total_count, ranked.total_vcpu, ranked.total_memory,
           job.id AS job_id, job.priority, job.queued_at,
           reserved.other_pool_id, reserved.other_vcpu, reserved.other_memory, reserved.other_queued_at,
           reserved.other_job_id
    FROM ranked
    CROSS JOIN LATERAL (
        SELECT id, priority, queued_at FROM jobs WHERE {QUEUED} AND account_id = ranked.account_id
        AND id <> ALL ((SELECT rerouting_jobs FROM pools WHERE id = :pool_id)::bigint[])
        ORDER BY priority DESC, queued_at, id
        LIMIT (SELECT ceil(2.0 * :batch / count(*)) FROM ranked)) job
    LEFT JOIN reserved ON reserved.account_id = ranked.account_id
    ORDER BY job.priority DESC, job.queued_at, job.id
    """,
    pool_id="bigint",
    vcpu="bigint",
    memory="bigint",
    batch="bigint",
    now="timestamptz",
    spare_before="timestamptz",
    reserve_before="timestamptz",
    braked="bigint",
    last="bigint[]",
)


NOBODY = -1
"""An id that no account has."""


def read_queue_heads(
    db: Connection,
    pool: Pool,
    *,
    batch: int,
    spare_after: float,
    reserve_after: float,
    braked: int = NOBODY,
    last: Sequence[int] = (),
    now: datetime,
) -> QueueHeads:
    """Return the first queued jobs of the accounts that the fairness rule prefers: about twice `batch` jobs at most.

    A held account is skipped. An account without room in its budget is skipped unless the account has a spare. The
    query walks the index on dispatchable jobs account by account, so its cost depends neither on held jobs nor on the
    length of a queue.

    After a change of the pool's labels or access rules, the next reconcile takes the queued jobs out of the pool. The
    sweep `rematch` then routes these jobs again. No job is returned until the reconcile has read all these jobs. If the
    reconcile skipped a locked job, this job is left out until a later reconcile has taken it out of the pool.

    - `spare_after`: a claim counts as a spare for this number of seconds.
    - `reserve_after`: an account gets a reservation if a job of the account has waited in another pool for this number
      of seconds. The other pool must have an offered Pod, and must not be braked for this account.
    - `braked`: no job of this account is returned. `NOBODY` excludes no account.
    - `last`: these accounts come after all others, in this order.
    """
    rows = _HEADS.execute(
        db,
        pool_id=pool.id,
        vcpu=pool.vcpu,
        memory=pool.memory,
        batch=batch,
        now=now,
        spare_before=now - timedelta(seconds=spare_after),
        reserve_before=now - timedelta(seconds=reserve_after),
        braked=braked,
        last=list(last),
    ).all()
    accounts: dict[int, AccountView] = {}
    reservations: dict[int, Reservation] = {}
    totals = Budget(count=0, vcpu_millicores=0, memory_mib=0)
    for row in rows:
        totals = Budget(
            count=int(row.total_count), vcpu_millicores=int(row.total_vcpu), memory_mib=int(row.total_memory)
        )
        accounts[row.account_id] = AccountView(
            account_id=row.account_id,
            weight=row.weight,
            budget=Budget(count=row.budget_count, vcpu_millicores=row.budget_vcpu, memory_mib=row.budget_memory),
            usage=Usage(count=int(row.used_count), vcpu_millicores=int(row.used_vcpu), memory_mib=int(row.used_memory)),
        )
        if row.other_pool_id is not None:
            reservations[row.account_id] = Reservation(
                pool_id=row.other_pool_id,
                count=1,
                vcpu_millicores=row.other_vcpu,
                memory_mib=row.other_memory,
                queued_at=row.other_queued_at,
                job_id=row.other_job_id,
            )
    jobs = tuple(
        JobHead(
            job_id=row.job_id,
            account_id=row.account_id,
            priority=row.priority,
            queued_at=row.queued_at,
            vcpu_millicores=pool.vcpu,
            memory_mib=pool.memory,
            pool_id=pool.id,
        )
        for row in rows
    )
    places = {account: place for place, account in enumerate(last, start=1)}
    return QueueHeads(jobs=jobs, accounts=accounts, reservations=reservations, totals=totals, last=places)


def heads_beside(db: Connection, pool: Pool, held: Held | None, timings: Timings, *, now: datetime) -> QueueHeads:
    """Read the queue heads of a pool: the first jobs of the queue of each account.

    If the pool's brake stops one account, the jobs of this account are left out.

    `held` is the state of the brake, or None if the pool is not braked.
    """
    return read_queue_heads(
        db,
        pool,
        batch=timings.match_batch,
        spare_after=timings.spare_after,
        reserve_after=timings.reserve_after,
        braked=NOBODY if held is None or held.slots or held.account_id is None else held.account_id,
        last=() if held is None else held.last,
        now=now,
    )


def one_of(heads: QueueHeads, account_id: int) -> tuple[QueueHeads, bool]:
    """Remove all jobs of an account from the queue heads except its first job. Jobs of other accounts are not removed.

    The first job tests whether the brake of the account can be released. Return the remaining heads, and True if any
    job was removed.
    """
    own = [job for job in heads.jobs if job.account_id == account_id]
    jobs = tuple(job for job in heads.jobs if job.account_id != account_id or job is own[0])
    return replace(heads, jobs=jobs), len(own) > 1
