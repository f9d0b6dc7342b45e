"""The fleet at a glance: the queue and the Pods of each pool, and the use and the queue of each account.

`ostler top`, the dashboard and the metrics show these rows. Pods are counted only by the reconciler, which stores the
numbers in the status of the pool (`models.pools.pool_plans`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from models.browse.accounts import Waiting
from models.claims.matching import DISPATCHABLE
from models.db.sql import text
from models.routing import usage
from rules.pools.pod_states import COUNTED_WITHIN, PodState


@dataclass(frozen=True, slots=True)
class PoolLine:
    """A pool that is not deleted.

    `queued` and `held` count queued jobs without and with a hold. `oldest_queued_at` is the queue time of the oldest
    job without a hold, and `oldest_dispatchable_at` of the oldest of these jobs whose account has budget for one more
    Pod of the pool. `pods` are the numbers that the reconciler counted at `counted_at`, or None before its first run.
    `problem` is the message of the condition that makes the pool Degraded, and `outdated` that of RunnerOutdated, or
    None.
    """

    id: int
    namespace: str
    name: str
    replicas: int
    paused: bool
    draining: bool
    queued: int
    held: int
    oldest_queued_at: datetime | None
    oldest_dispatchable_at: datetime | None
    pods: Mapping[PodState, int] | None = field(hash=False)
    counted_at: datetime | None
    problem: str | None
    outdated: str | None = None

    def is_old(self, *, now: datetime) -> bool:
        """Return True if the reconciler has not counted the Pods lately, or never."""
        return self.counted_at is None or now - self.counted_at > COUNTED_WITHIN


@dataclass(frozen=True, slots=True)
class AccountLine:
    """An account that has queued or running jobs, claims or Pods. Sizes are in millicores and MiB."""

    id: int
    login: str
    weight: int
    access: str
    budget_count: int
    budget_vcpu: int
    budget_memory: int
    used_count: int
    used_vcpu: int
    used_memory: int
    queued: int
    held: int
    running: int
    oldest_queued_at: datetime | None

    @property
    def waiting(self) -> Waiting:
        """Return the part of the line that `diagnoses.waits_for` needs."""
        return Waiting(self.id, self.access, self.oldest_queued_at)


_SEEN = "AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))"
"""SQL condition on the account of a row: the caller may see it (`:accounts`, NULL: every account)."""


def _used(only: str = "") -> str:
    return f"""
        SELECT account_id, CAST(count(*) AS bigint) AS count, CAST(sum(vcpu) AS bigint) AS vcpu,
               CAST(sum(memory) AS bigint) AS memory
        FROM ({usage.used_pods(only)}) pods GROUP BY account_id
    """


_POOLS = text(f"""
    WITH heads AS MATERIALIZED (
        SELECT pool_id, account_id, count(*) AS jobs, min(queued_at) AS queued_at FROM jobs
        WHERE {DISPATCHABLE} AND pool_id IS NOT NULL GROUP BY pool_id, account_id
    ), used AS (
        {_used()}
    ), queue AS (
        SELECT heads.pool_id, sum(heads.jobs) AS jobs, min(heads.queued_at) AS queued_at,
               min(heads.queued_at) FILTER (
                   WHERE coalesce(u.count, 0) < a.budget_count
                     AND coalesce(u.vcpu, 0) + p.vcpu <= a.budget_vcpu
                     AND coalesce(u.memory, 0) + p.memory <= a.budget_memory) AS dispatchable_at
        FROM heads JOIN pools p ON p.id = heads.pool_id JOIN accounts a ON a.id = heads.account_id
        LEFT JOIN used u ON u.account_id = a.id GROUP BY heads.pool_id
    ), held AS (
        SELECT pool_id, count(*) AS jobs FROM jobs
        WHERE state = 'queued' AND hold_reason IS NOT NULL AND pool_id IS NOT NULL GROUP BY pool_id
    )
    SELECT p.id, p.namespace, p.name, p.replicas, p.paused, p.draining,
           coalesce(queue.jobs, 0) AS queued, coalesce(held.jobs, 0) AS held, queue.queued_at, queue.dispatchable_at,
           p.status, greatest(p.status_at, p.status_checked_at) AS counted_at
    FROM pools p LEFT JOIN queue ON queue.pool_id = p.id LEFT JOIN held ON held.pool_id = p.id
    WHERE p.deleted_at IS NULL ORDER BY p.namespace, p.name
""")

_ACCOUNTS = text(f"""
    WITH waiting AS (
        SELECT account_id, count(*) FILTER (WHERE hold_reason IS NULL) AS queued,
               count(*) FILTER (WHERE hold_reason IS NOT NULL) AS held,
               min(queued_at) FILTER (WHERE hold_reason IS NULL) AS queued_at
        FROM jobs WHERE state = 'queued' {_SEEN} GROUP BY account_id
    ), running AS (
        SELECT account_id, count(*) AS jobs FROM jobs WHERE state = 'running' {_SEEN} GROUP BY account_id
    ), used AS (
        {_used(_SEEN)}
    )
    SELECT a.id, a.login, a.weight, a.access, a.budget_count, a.budget_vcpu, a.budget_memory,
           coalesce(u.count, 0) AS used_count, coalesce(u.vcpu, 0) AS used_vcpu, coalesce(u.memory, 0) AS used_memory,
           coalesce(w.queued, 0) AS queued, coalesce(w.held, 0) AS held, coalesce(r.jobs, 0) AS running, w.queued_at
    FROM accounts a LEFT JOIN waiting w ON w.account_id = a.id LEFT JOIN running r ON r.account_id = a.id
    LEFT JOIN used u ON u.account_id = a.id
    WHERE w.account_id IS NOT NULL OR r.account_id IS NOT NULL OR u.account_id IS NOT NULL ORDER BY a.login
""")


def pool_lines(db: Connection) -> Sequence[PoolLine]:
    """Return every pool that is not deleted, in the order of namespace and name."""
    return [
        PoolLine(
            id=row.id,
            namespace=row.namespace,
            name=row.name,
            replicas=row.replicas,
            paused=row.paused,
            draining=row.draining,
            queued=int(row.queued),
            held=row.held,
            oldest_queued_at=row.queued_at,
            oldest_dispatchable_at=row.dispatchable_at,
            pods=None if row.status is None else {each: row.status.get(each, 0) for each in PodState},
            counted_at=row.counted_at,
            problem=_message(row.status, "Degraded"),
            outdated=_message(row.status, "RunnerOutdated"),
        )
        for row in db.execute(_POOLS)
    ]


def account_lines(db: Connection, *, accounts: Collection[int] | None = None) -> Sequence[AccountLine]:
    """Return the accounts with jobs, claims or Pods, in the order of their logins.

    If `accounts` is given, only these accounts are returned.
    """
    rows = db.execute(_ACCOUNTS, {"accounts": None if accounts is None else list(accounts)})
    return [AccountLine(*row) for row in rows]


def idle_accounts(
    db: Connection, *, besides: Collection[int], limit: int, accounts: Collection[int] | None = None
) -> Sequence[AccountLine]:
    """Return further accounts, in the order of their logins. `besides` are the accounts that have work."""
    rows = db.execute(
        text("""
            SELECT id, login, weight, access, budget_count, budget_vcpu, budget_memory, 0, 0, 0, 0, 0, 0, NULL
            FROM accounts WHERE id <> ALL(CAST(:besides AS bigint[]))
              AND (CAST(:accounts AS bigint[]) IS NULL OR id = ANY(CAST(:accounts AS bigint[])))
            ORDER BY login, id LIMIT :limit
        """),
        {"besides": list(besides), "accounts": None if accounts is None else list(accounts), "limit": limit},
    )
    return [AccountLine(*row) for row in rows]


def _message(status: Mapping[str, object] | None, condition: str) -> str | None:
    conditions = (status or {}).get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if each.get("type") == condition and each.get("status") == "True":
            return str(each.get("message"))
    return None
