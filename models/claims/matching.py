"""The matcher's queries: pair queued jobs with free Pods, under the pool's lock and in the common lock order.

The lock order is pool, jobs by id, runner_pods by id, accounts by id, claims by id. Every count is made in a statement
that starts after the locks are held. A single statement that locks, counts and inserts could overspend a budget (law
L2).

The matcher waits only for the pool's lock. All rows are locked with `SKIP LOCKED`, so a locked row never prevents other
jobs from getting the free Pods (law L14). If an account is locked, the run can continue with the jobs of other
accounts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import Connection

from models.db import epochs
from models.db.engine import record_point
from models.db.prepared import Prepared
from models.db.sql import text
from models.routing.usage import usage_of
from models.state import claim_inserts, claim_jobs, job_transitions
from models.state.claim_inserts import REGISTERED_REPOSITORY
from models.state.pools import Pool
from rules.claims.fairness import AccountView, Budget, JobHead
from rules.claims.machines import allowed

WHO = "dispatch"

WEB_ALIVE = timedelta(seconds=15)
"""Time since the last heartbeat of a web process after which the matcher ignores the offers of this process."""

POOL_LOCK_WITHIN = "500ms"
"""Longest time that a matcher waits for another matcher of the same pool, in the syntax of `lock_timeout`."""

_OFFERED = """
    JOIN runner_pods p ON p.uid = o.pod_uid
    WHERE o.pool_id = :pool_id AND o.until > :now AND p.gone_at IS NULL AND p.terminal_at IS NULL
      AND NOT EXISTS (
        SELECT FROM claims c
        WHERE c.pod_uid = o.pod_uid AND (c.ended_at IS NULL OR c.delivered_at IS NOT NULL))
"""

_FREE_PODS = f"FROM offers o JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive {_OFFERED}"

_SPARE = """
    ended_at IS NULL AND pool_id = :pool_id AND state = 'delivered' AND job_id IS NULL AND spare_since > :spare_before
"""

DISPATCHABLE = "state = 'queued' AND hold_reason IS NULL"
"""SQL condition on a job: it is queued and not held."""

QUEUED = f"pool_id = :pool_id AND {DISPATCHABLE}"
"""SQL condition on a job: it can be dispatched in the pool `:pool_id`."""


@dataclass(frozen=True, slots=True)
class FreePod:
    """A Pod that is offered, has no live claim, and never got a JIT. Its row is locked."""

    id: int
    uid: str


@dataclass(frozen=True, slots=True)
class Made:
    """A job claim that was inserted."""

    claim_id: int
    job_id: int
    pod_uid: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """Conditions that a run of the matcher finds.

    - `free`: number of free Pods, counted up to the batch size.
    - `probes`: True if the mints of an installation fail, so that a probe might be due. A probe is the one held job
      that is tried before the other jobs of the backoff.
    - `spares`: True if the pool has spares.
    - `failures`: True if the pool has runner failures that are not cleared, so that the pool might be braked.
    """

    free: int
    probes: bool
    spares: bool
    failures: bool = False


def lock_pool(db: Connection, pool_id: int) -> Pool | None:
    """Take the pool's lock for this transaction and return the pool, or None if the pool accepts no new jobs.

    The row has the columns of the class `Pool` that a run of the matcher needs.

    A deleted or draining pool accepts no new jobs. No pool accepts new jobs while Postgres is known to be older than
    the cluster, because a job with the state `queued` in its row might already run.

    Raises the lock error of Postgres if another session holds the lock for more than `POOL_LOCK_WITHIN`.
    """
    # The client sends the statements in one message. The last statement takes its snapshot after the lock is acquired.
    # Sequential scans are off. Otherwise, a plan that was prepared for a small table would be used for the grown table.
    row = db.execute(
        text(f"""
            SET LOCAL lock_timeout = '{POOL_LOCK_WITHIN}';
            SET LOCAL enable_seqscan = off;
            SELECT pg_advisory_xact_lock(:pool_id);
            SELECT id, vcpu, memory, template_hash, wants_pods, autoscaled, registers_in, allowed_accounts
            FROM pools
            WHERE id = :pool_id AND deleted_at IS NULL AND NOT draining AND {epochs.CURRENT}
        """),
        {"pool_id": pool_id},
    ).one_or_none()
    return None if row is None else cast("Pool", row)


def has_queued_job(db: Connection, pool: Pool) -> bool:
    """Return True if a job of the pool is queued and not held."""
    return bool(db.execute(text(f"SELECT EXISTS (SELECT FROM jobs WHERE {QUEUED})"), {"pool_id": pool.id}).scalar())


def outlook(db: Connection, pool: Pool, *, batch: int, spare_after: float, now: datetime) -> Outlook:
    """Return the conditions of this run.

    Most runs find no backoff and no spare, and therefore skip the queries about probes and spares. A claim counts as a
    spare for `spare_after` seconds.
    """
    # This statement is not prepared, because its best plan depends on how many Pods are offered now.
    row = db.execute(
        text(f"""
            SELECT (SELECT count(*) FROM (SELECT 1 {_FREE_PODS} LIMIT :batch) free) AS free,
                   EXISTS (SELECT FROM backoffs WHERE kind = 'installation' AND failures > 0) AS probes,
                   EXISTS (SELECT FROM claims WHERE {_SPARE}) AS spares,
                   EXISTS (SELECT FROM runner_failures
                           WHERE pool_id = :pool_id AND cleared_at IS NULL) AS failures
        """),
        {
            "pool_id": pool.id,
            "batch": batch,
            "now": now,
            "web_alive": now - WEB_ALIVE,
            "spare_before": now - timedelta(seconds=spare_after),
        },
    ).one()
    return Outlook(free=row.free, probes=row.probes, spares=row.spares, failures=row.failures)


@dataclass(frozen=True, slots=True)
class Offered:
    """Offered Pods of a pool without a claim.

    - `free`: number of Pods that the matcher can use.
    - `silent`: number of Pods whose web process has sent no heartbeat for `WEB_ALIVE`. The matcher ignores them.
    """

    free: int
    silent: int


def offered(db: Connection, pool_id: int, *, now: datetime) -> Offered:
    """Return how many Pods of a pool are offered, for an explanation."""
    row = db.execute(
        text(f"""
            SELECT (SELECT count(*) {_FREE_PODS}) AS free,
                   (SELECT count(*) FROM offers o
                    LEFT JOIN web_instances w ON w.id = o.web_id AND w.beat_at > :web_alive
                    {_OFFERED} AND w.id IS NULL) AS silent
        """),
        {"pool_id": pool_id, "now": now, "web_alive": now - WEB_ALIVE},
    ).one()
    return Offered(free=row.free, silent=row.silent)


_LOCK_JOBS = Prepared(
    "lock_jobs",
    f"SELECT id FROM jobs WHERE id = ANY(:ids) AND {QUEUED} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED",
    ids="bigint[]",
    pool_id="bigint",
)


def lock_jobs(db: Connection, pool: Pool, job_ids: Sequence[int]) -> frozenset[int]:
    """Lock and return the given jobs that are still dispatchable. Jobs that another session has locked are skipped."""
    rows = _LOCK_JOBS.execute(db, ids=list(job_ids), pool_id=pool.id)
    return frozenset(rows.scalars())


_TAKEN = Prepared(
    "taken",
    "SELECT pod_uid FROM claims WHERE pod_uid = ANY(:uids) AND (ended_at IS NULL OR delivered_at IS NOT NULL)",
    uids="text[]",
)


def lock_pods(db: Connection, pool: Pool, *, limit: int, now: datetime) -> list[FreePod]:
    """Lock and return up to `limit` free Pods, Pods of the current template first. Locked Pods are skipped.

    Every session that inserts a claim first locks the row of the Pod. After this function has the locks, it queries the
    claims of the Pods again. This second query finds the claims that were committed before the locks were acquired. No
    other session can insert a claim for these Pods until this transaction ends.
    """
    rows = db.execute(
        text(f"""
            SELECT p.id, p.uid {_FREE_PODS}
            ORDER BY p.template_hash <> :template_hash, p.id LIMIT :limit
            FOR NO KEY UPDATE OF p SKIP LOCKED
        """),
        {
            "pool_id": pool.id,
            "now": now,
            "web_alive": now - WEB_ALIVE,
            "limit": limit,
            "template_hash": pool.template_hash,
        },
    ).all()
    taken = set(_TAKEN.execute(db, uids=[row.uid for row in rows]).scalars()) if rows else set()
    return [FreePod(row.id, row.uid) for row in rows if row.uid not in taken]


_LOCK_ACCOUNTS = Prepared(
    "lock_accounts",
    """
    SELECT id, weight, budget_count, budget_vcpu, budget_memory FROM accounts
    WHERE id = ANY(:ids) AND access = 'allowed' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """,
    ids="bigint[]",
)


def lock_accounts(db: Connection, account_ids: Collection[int]) -> dict[int, AccountView]:
    """Lock the given accounts, and return the locked accounts with their usage.

    The usage is counted after the lock. Accounts that another session has locked are skipped, and so are accounts that
    an operator has held since their jobs were read.
    """
    rows = _LOCK_ACCOUNTS.execute(db, ids=list(account_ids)).all()
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
    db: Connection, pool: Pool, job_ids: Sequence[int], *, spare_after: float, now: datetime
) -> dict[int, int]:
    """Give jobs to spares of the same pool, account and scope. Return the claim id of each job that was given.

    The registered runner of a spare waits at GitHub, so a job that is given to a spare needs no Pod, no mint and no
    further budget. A spare in the scope of a repository gets only jobs with the same repository id, because another
    repository might have the same name by now. A claim counts as a spare for `spare_after` seconds.
    """
    if not job_ids:
        return {}
    spares = db.execute(
        text(f"""
            SELECT id, account_id, scope, repository_id FROM claims
            WHERE {_SPARE}
              AND account_id IN (SELECT account_id FROM jobs WHERE id = ANY(:job_ids))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"pool_id": pool.id, "job_ids": list(job_ids), "spare_before": now - timedelta(seconds=spare_after)},
    ).all()
    if not spares:
        return {}
    waiting: dict[tuple[int, str, int | None], list[int]] = {}
    for row in spares:
        waiting.setdefault((row.account_id, row.scope, row.repository_id), []).append(row.id)
    jobs = db.execute(
        text(
            f"SELECT id, account_id, scope, {REGISTERED_REPOSITORY} AS repository_id FROM jobs j WHERE id = ANY(:ids)"
        ),
        {"ids": list(job_ids)},
    )
    by_id = {row.id: (row.account_id, row.scope, row.repository_id) for row in jobs}
    given: dict[int, int] = {}
    for job_id in job_ids:
        claims = waiting.get(by_id[job_id])
        if claims:
            given[job_id] = claims.pop(0)
    if given:
        claim_jobs.give_to_spares(db, given, now=now)
        job_transitions.claim(db, list(given), now=now, who=WHO, why="the job was given to a spare")
    return given


def insert_claims(
    db: Connection, pool: Pool, pairs: Sequence[tuple[int, FreePod]], *, due_after: float, now: datetime
) -> list[Made]:
    """Insert one job claim with an event for each pair of job and Pod, and return the claims.

    The jobs get the state `claimed`. The caller has locked the rows of the jobs, the Pods and the accounts. The first
    step of a claim is due after `due_after` seconds.
    """
    if not pairs:
        return []
    rows = claim_inserts.insert_matched(
        db,
        [(job_id, pod.id, pod.uid) for job_id, pod in pairs],
        pool_id=pool.id,
        vcpu=pool.vcpu,
        memory=pool.memory,
        due=now + timedelta(seconds=due_after),
        now=now,
        who=WHO,
    )
    made = [Made(row.id, row.job_id, row.pod_uid) for row in rows]
    record_point(db, "claim", machine=allowed("claim").machine, rows=len(made))
    job_transitions.claim(db, [job_id for job_id, _ in pairs], now=now, who=WHO, why="matched")
    return made


def spare_candidates(
    db: Connection, pool: Pool, heads: Sequence[JobHead], *, spare_after: float, now: datetime
) -> frozenset[int]:
    """Return the queue heads that might be given to a spare of their account.

    For each account, the result has at most as many jobs as the account has spares.
    """
    rows = db.execute(
        text(f"""
            SELECT account_id, count(*) AS spares FROM claims
            WHERE {_SPARE}
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
