"""The matcher's queries: free Pods for queued jobs, under the pool's lock and in the one lock order.

Pool → jobs by id → runner_pods by id → accounts by id → claims by id. Everything that is counted is
counted in a statement after the locks are held; locking, counting and inserting in one overspends (L2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from models.accounts import usage_of
from models.transitions import insert_events, move_jobs
from rules.fairness import AccountView, Budget, JobHead, Reservation, Usage
from rules.machines import ClaimState

WHO = "dispatch"

WEB_ALIVE = timedelta(seconds=15)
"""A web process that has not beaten for this long has no offers."""

POOL_LOCK_WITHIN = "2s"
"""How long a matcher waits for another of its pool; a duration of Postgres."""

_FREE_PODS = """
    FROM offers o
    JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive
    JOIN runner_pods p ON p.uid = o.pod_uid
    WHERE o.pool_id = :pool_id AND o.until > :now AND p.gone_at IS NULL AND p.terminal_at IS NULL
      AND NOT EXISTS (
        SELECT FROM claims c
        WHERE c.pod_uid = o.pod_uid AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
"""

_QUEUED = "pool_id = :pool_id AND state = 'queued' AND hold_reason IS NULL"


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The pool that is matched; sizes in millicores and MiB."""

    id: int
    vcpu: int
    memory: int
    template_hash: str
    wants_pods: bool


@dataclass(frozen=True, slots=True)
class FreePod:
    """A Pod that is offered, has no live claim and was never given a JIT; its row is locked."""

    id: int
    uid: str


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of the accounts' queues, and what the fairness rule needs to order them."""

    jobs: tuple[JobHead, ...]
    accounts: Mapping[int, AccountView]
    reservations: Mapping[int, Reservation]
    totals: Budget


def lock_pool(db: Connection, pool_id: int) -> PoolShape | None:
    """Take the pool's lock for this transaction; None when it takes no new jobs.

    Raises what Postgres raises when another matcher holds the lock for more than 2 s.
    """
    db.execute(text(f"SET LOCAL lock_timeout = '{POOL_LOCK_WITHIN}'"))
    db.execute(text("SELECT pg_advisory_xact_lock(:pool_id)"), {"pool_id": pool_id})
    row = db.execute(
        text("""
            SELECT id, vcpu, memory, template_hash, wants_pods FROM pools
            WHERE id = :pool_id AND deleted_at IS NULL AND NOT draining
        """),
        {"pool_id": pool_id},
    ).one_or_none()
    return None if row is None else PoolShape(*row)


def free_pods(db: Connection, pool: PoolShape, *, limit: int, now: datetime) -> int:
    """Return how many Pods of the pool could be claimed now, up to `limit`."""
    found: int = db.execute(
        text(f"SELECT count(*) FROM (SELECT 1 {_FREE_PODS} LIMIT :limit) free"),  # noqa: S608
        {"pool_id": pool.id, "now": now, "web_alive": now - WEB_ALIVE, "limit": limit},
    ).scalar_one()
    return found


def read_heads(db: Connection, pool: PoolShape, *, batch: int, spare_after: float, reserve_after: float,
               now: datetime) -> Heads:  # fmt: skip
    """Return at most about twice `batch` jobs: the heads of the accounts that come first and have room.

    The index on dispatchable jobs is walked account by account, so held jobs and deep queues cost nothing.
    """
    rows = db.execute(
        text(f"""
            WITH RECURSIVE walk AS (
                (SELECT account_id FROM jobs WHERE {_QUEUED} ORDER BY account_id LIMIT 1)
                UNION ALL
                SELECT (SELECT account_id FROM jobs WHERE {_QUEUED} AND account_id > walk.account_id
                        ORDER BY account_id LIMIT 1)
                FROM walk WHERE walk.account_id IS NOT NULL
            ), used AS (
                SELECT account_id, count(*) AS count, sum(vcpu) AS vcpu, sum(memory) AS memory
                FROM (SELECT account_id, vcpu, memory FROM claims WHERE ended_at IS NULL AND purpose = 'job'
                      UNION ALL
                      SELECT account_id, vcpu, memory FROM executions WHERE ended_at IS NULL AND claim_id IS NULL
                      AND EXISTS (SELECT FROM mint_attempts m WHERE m.runner_name = executions.runner_name)) u
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
                CROSS JOIN LATERAL (
                    SELECT queued_at FROM jobs WHERE {_QUEUED} AND account_id = a.id
                    ORDER BY priority DESC, queued_at, id LIMIT 1) head
                WHERE (coalesce(u.count, 0) < a.budget_count
                       AND coalesce(u.vcpu, 0) + :vcpu <= a.budget_vcpu
                       AND coalesce(u.memory, 0) + :memory <= a.budget_memory)
                   OR EXISTS (SELECT FROM claims s WHERE s.ended_at IS NULL AND s.pool_id = :pool_id
                              AND s.account_id = a.id AND s.spare_since > :spare_before)
                ORDER BY greatest(coalesce(u.count, 0) / nullif(t.count, 0)::float,
                                  coalesce(u.vcpu, 0) / nullif(t.vcpu, 0)::float,
                                  coalesce(u.memory, 0) / nullif(t.memory, 0)::float) / a.weight NULLS FIRST,
                         head.queued_at, a.id
                LIMIT :batch
            )
            SELECT ranked.*, job.id AS job_id, job.priority, job.queued_at, reserved.*
            FROM ranked
            CROSS JOIN LATERAL (
                SELECT id, priority, queued_at FROM jobs WHERE {_QUEUED} AND account_id = ranked.account_id
                ORDER BY priority DESC, queued_at, id
                LIMIT (SELECT ceil(2.0 * :batch / count(*)) FROM ranked)) job
            LEFT JOIN LATERAL (
                SELECT p.id AS other_pool_id, p.vcpu AS other_vcpu, p.memory AS other_memory,
                       j.queued_at AS other_queued_at, j.id AS other_job_id
                FROM jobs j JOIN pools p ON p.id = j.pool_id
                WHERE j.account_id = ranked.account_id AND p.id <> :pool_id AND j.state = 'queued'
                  AND j.hold_reason IS NULL AND j.queued_at < :reserve_before
                  AND EXISTS (SELECT FROM offers o WHERE o.pool_id = j.pool_id AND o.until > :now)
                ORDER BY j.queued_at, j.id LIMIT 1) reserved ON true
            ORDER BY job.priority DESC, job.queued_at, job.id
        """),  # noqa: S608
        {
            "pool_id": pool.id,
            "vcpu": pool.vcpu,
            "memory": pool.memory,
            "batch": batch,
            "now": now,
            "spare_before": now - timedelta(seconds=spare_after),
            "reserve_before": now - timedelta(seconds=reserve_after),
        },
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
            job_id=row.job_id, account_id=row.account_id, priority=row.priority, queued_at=row.queued_at,
            vcpu_millicores=pool.vcpu, memory_mib=pool.memory, pool_id=pool.id,
        )
        for row in rows
    )  # fmt: skip
    return Heads(jobs=jobs, accounts=accounts, reservations=reservations, totals=totals)


def lock_jobs(db: Connection, pool: PoolShape, job_ids: Sequence[int]) -> frozenset[int]:
    """Lock those of the jobs that are still dispatchable and that nobody else has locked."""
    rows = db.execute(
        text(f"SELECT id FROM jobs WHERE id = ANY(:ids) AND {_QUEUED} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),  # noqa: S608
        {"ids": list(job_ids), "pool_id": pool.id},
    )
    return frozenset(rows.scalars())


def lock_pods(db: Connection, pool: PoolShape, *, limit: int, now: datetime) -> list[FreePod]:
    """Lock up to `limit` free Pods, those of the current template first.

    The locks are taken in order of id; whoever inserts a claim holds the Pod's row, so the second look,
    which sees all that was committed before the lock, is final.
    """
    rows = db.execute(
        text(f"""
            WITH chosen AS (
                SELECT p.id {_FREE_PODS}
                ORDER BY p.template_hash <> :template_hash, p.id LIMIT :limit)
            SELECT id, uid FROM runner_pods WHERE id IN (SELECT id FROM chosen)
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),  # noqa: S608
        {
            "pool_id": pool.id, "now": now, "web_alive": now - WEB_ALIVE, "limit": limit,
            "template_hash": pool.template_hash,
        },
    ).all()  # fmt: skip
    taken = set(
        db.execute(
            text("""
                SELECT pod_uid FROM claims
                WHERE pod_uid = ANY(:uids) AND (ended_at IS NULL OR delivered_at IS NOT NULL)
            """),
            {"uids": [row.uid for row in rows]},
        ).scalars()
    )
    return [FreePod(row.id, row.uid) for row in rows if row.uid not in taken]


def lock_accounts(db: Connection, accounts: Mapping[int, AccountView]) -> dict[int, AccountView]:
    """Lock those of the accounts that nobody else has locked, and count what they use after that."""
    rows = db.execute(
        text("""
            SELECT id, weight, budget_count, budget_vcpu, budget_memory FROM accounts
            WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"ids": list(accounts)},
    ).all()
    usage = usage_of(db, [row.id for row in rows])
    return {
        row.id: AccountView(
            account_id=row.id,
            weight=row.weight,
            budget=Budget(count=row.budget_count, vcpu_millicores=row.budget_vcpu, memory_mib=row.budget_memory),
            usage=usage[row.id],
        )
        for row in rows
    }


def give_to_spares(
    db: Connection, pool: PoolShape, job_ids: Sequence[int], *, spare_after: float, now: datetime
) -> dict[int, int]:
    """Give jobs to spares of the same pool, account and scope; return job id → claim id.

    A spare is a registered runner that waits at GitHub: the job needs no Pod, no mint and no further budget.
    """
    spares = db.execute(
        text("""
            SELECT id, account_id, scope FROM claims
            WHERE ended_at IS NULL AND pool_id = :pool_id AND state = 'delivered' AND job_id IS NULL
              AND spare_since > :spare_before
              AND account_id IN (SELECT account_id FROM jobs WHERE id = ANY(:job_ids))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"pool_id": pool.id, "job_ids": list(job_ids), "spare_before": now - timedelta(seconds=spare_after)},
    ).all()
    if not spares:
        return {}
    waiting: dict[tuple[int, str], list[int]] = {}
    for row in spares:
        waiting.setdefault((row.account_id, row.scope), []).append(row.id)
    jobs = db.execute(text("SELECT id, account_id, scope FROM jobs WHERE id = ANY(:ids)"), {"ids": list(job_ids)})
    by_id = {row.id: (row.account_id, row.scope) for row in jobs}
    given: dict[int, int] = {}
    for job_id in job_ids:
        claims = waiting.get(by_id[job_id])
        if claims:
            given[job_id] = claims.pop(0)
    if given:
        db.execute(
            text("""
                UPDATE claims c SET job_id = pair.job_id, spare_since = NULL, delivered_at = :now, changed_at = :now
                FROM unnest(CAST(:claims AS bigint[]), CAST(:jobs AS bigint[])) AS pair (claim_id, job_id)
                WHERE c.id = pair.claim_id
            """),
            {"claims": list(given.values()), "jobs": list(given), "now": now},
        )
        move_jobs(db, "job_claim", list(given), now=now, who=WHO, why="given to a spare")
    return given


def insert_claims(
    db: Connection, pool: PoolShape, pairs: Sequence[tuple[int, FreePod]], *, due_after: float, now: datetime
) -> list[int]:
    """Insert one job claim per (job, Pod) and move the jobs; return the claims' ids.

    The caller holds the rows of the jobs, the Pods and the accounts.
    """
    if not pairs:
        return []
    rows = db.execute(
        text("""
            INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                                vcpu, memory, state, created_at, changed_at, due_at)
            SELECT 'job', j.id, pair.pod_id, pair.uid, :pool_id, j.account_id, j.installation_id, j.scope,
                   :vcpu, :memory, :state, :now, :now, :due
            FROM unnest(CAST(:jobs AS bigint[]), CAST(:pods AS bigint[]), CAST(:uids AS text[]))
                 AS pair (job_id, pod_id, uid)
            JOIN jobs j ON j.id = pair.job_id
            RETURNING id
        """),
        {
            "jobs": [job_id for job_id, _ in pairs],
            "pods": [pod.id for _, pod in pairs],
            "uids": [pod.uid for _, pod in pairs],
            "pool_id": pool.id,
            "vcpu": pool.vcpu,
            "memory": pool.memory,
            "state": ClaimState.CLAIMED,
            "now": now,
            "due": now + timedelta(seconds=due_after),
        },
    )
    ids = list(rows.scalars())
    insert_events(db, "claim", ids, name="claim", state=ClaimState.CLAIMED, now=now, who=WHO, why="matched")
    move_jobs(db, "job_claim", [job_id for job_id, _ in pairs], now=now, who=WHO, why="matched")
    return ids


def set_wants_pods(db: Connection, pool: PoolShape, *, wants: bool) -> bool:
    """Say whether jobs were left without Pods; return whether that is news."""
    if pool.wants_pods == wants:
        return False
    db.execute(text("UPDATE pools SET wants_pods = :wants WHERE id = :id"), {"wants": wants, "id": pool.id})
    return True


def spare_candidates(
    db: Connection, pool: PoolShape, heads: Sequence[JobHead], *, spare_after: float, now: datetime
) -> frozenset[int]:
    """Return the jobs that spares of their accounts could take, as many as there are spares."""
    rows = db.execute(
        text("""
            SELECT account_id, count(*) AS spares FROM claims
            WHERE ended_at IS NULL AND pool_id = :pool_id AND state = 'delivered' AND job_id IS NULL
              AND spare_since > :spare_before
            GROUP BY account_id
        """),
        {"pool_id": pool.id, "spare_before": now - timedelta(seconds=spare_after)},
    )
    left = {row.account_id: row.spares for row in rows}
    chosen: set[int] = set()
    for job in sorted(heads, key=lambda head: (-head.priority, head.queued_at, head.job_id)):
        if left.get(job.account_id, 0) > 0:
            left[job.account_id] -= 1
            chosen.add(job.job_id)
    return frozenset(chosen)
