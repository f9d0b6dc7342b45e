"""Time that jobs waited until a runner began to execute them, and idle time of Pods, by pool, account or time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection

from models.db.sql import text
from rules.waiting.steps import Expected

_MOST_EXPECTED = 500
_MINUTE = timedelta(minutes=1)
_OF_ACCOUNTS = "AND (CAST(:accounts AS bigint[]) IS NULL OR j.account_id = ANY(CAST(:accounts AS bigint[])))"

BEGAN = f"""
    SELECT j.id, j.account_id, j.repository, j.pool_id, j.queued_at, e.claim_id, e.started_at, e.ended_at, e.vcpu
    FROM (
        SELECT id, account_id, repository, pool_id, queued_at FROM jobs
        WHERE state = 'completed' AND completed_at >= :since
          AND completed_at < CAST(:until AS timestamptz) + interval '7 days'
        UNION ALL
        SELECT id, account_id, repository, pool_id, queued_at FROM jobs WHERE state = 'running'
    ) j JOIN executions e ON e.job_id = j.id
    WHERE e.started_at < :until
      {_OF_ACCOUNTS}
"""
"""SQL query of jobs with their executions that began before `:until` and did not end before `:since`.

GitHub ends a job after 5 days. A job that began before `:until` was therefore completed within 7 days after it, and
the query of an old month does not read the jobs of all months after it.
"""


class By(StrEnum):
    """Grouping of the waits. The name of a group of time is its begin in UTC."""

    POOL = "pool"
    ACCOUNT = "account"
    REPOSITORY = "repository"
    FIVE_MINUTES = "5min"
    HOUR = "hour"
    DAY = "day"


_NAMES = {
    By.POOL: "coalesce(p.name, '-')",
    By.ACCOUNT: "a.login",
    By.REPOSITORY: "b.repository",
    By.FIVE_MINUTES: (
        "to_char(date_bin('5 min', b.started_at, '2000-01-01 UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')"
    ),
    By.HOUR: "to_char(date_trunc('hour', b.started_at, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
    By.DAY: "to_char(date_trunc('day', b.started_at, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
}


_ALSO = {By.POOL: ", p.id", By.ACCOUNT: ", a.id"}
"""Further columns of the groups, because pools of two namespaces can have the same name, and so can two accounts."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of the jobs of one group, in seconds from their queue time to the begin of their execution.

    `name` is None for the waits of all jobs.
    """

    name: str | None
    jobs: int
    p50: float
    p95: float
    most: float
    run_seconds: float
    """Sum of the execution times of these jobs, in seconds. A running job counts until `now`."""


def waits(
    db: Connection,
    *,
    since: datetime,
    until: datetime,
    by: By,
    now: datetime,
    accounts: Collection[int] | None = None,
) -> Sequence[Waits]:
    """Return the waits of the jobs whose execution began in this span: of each group by name, and of all jobs last.

    The result is empty if no job began. If `accounts` is given, only jobs of these accounts count. Jobs whose rows were
    pruned are missing.
    """
    rows = db.execute(
        text(f"""
            SELECT {_NAMES[by]} AS name, count(*) AS jobs,
                   percentile_cont(0.5) WITHIN GROUP (ORDER BY waited) AS p50,
                   percentile_cont(0.95) WITHIN GROUP (ORDER BY waited) AS p95, max(waited) AS most,
                   CAST(sum(greatest(0, extract(epoch FROM least(coalesce(b.ended_at, :now), :until) - b.started_at)))
                        AS float8) AS run_seconds
            FROM ({BEGAN}) b
            JOIN accounts a ON a.id = b.account_id
            LEFT JOIN pools p ON p.id = b.pool_id
            CROSS JOIN LATERAL (
                SELECT greatest(0, CAST(extract(epoch FROM b.started_at - b.queued_at) AS float8)) AS waited
            ) w
            WHERE b.started_at >= :since
            GROUP BY GROUPING SETS ((1{_ALSO.get(by, "")}), ()) HAVING count(*) > 0
            ORDER BY grouping({_NAMES[by]}), 1
        """),
        {"since": since, "until": until, "now": now, "accounts": None if accounts is None else list(accounts)},
    )
    return [Waits(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Jobs of one group that have not begun, how many of them are held, and the queue time of the oldest.

    A group of time contains the jobs that were queued then.
    """

    name: str
    jobs: int
    held: int
    oldest_queued_at: datetime


def still_waiting(
    db: Connection, *, until: datetime, by: By, accounts: Collection[int] | None = None
) -> Sequence[StillWaiting]:
    """Return the jobs that were queued before a time and have not begun until now: of each group, by name.

    `waits` does not count these jobs. If `accounts` is given, only jobs of these accounts count.
    """
    rows = db.execute(
        text(f"""
            SELECT {_NAMES[by]} AS name, count(*) AS jobs, count(b.hold_reason) AS held, min(b.queued_at) AS queued_at
            FROM (
                SELECT j.account_id, j.repository, j.pool_id, j.hold_reason, j.queued_at, j.queued_at AS started_at
                FROM jobs j WHERE j.state IN ('queued', 'claimed') AND j.queued_at < :until {_OF_ACCOUNTS}
            ) b
            JOIN accounts a ON a.id = b.account_id
            LEFT JOIN pools p ON p.id = b.pool_id
            GROUP BY 1{_ALSO.get(by, "")} ORDER BY 1
        """),
        {"until": until, "accounts": None if accounts is None else list(accounts)},
    )
    return [StillWaiting(*row) for row in rows]


def queue_age(
    db: Connection, *, since: datetime, until: datetime, accounts: Collection[int] | None = None
) -> Sequence[float]:
    """Return the age in seconds of the oldest waiting job, at `since` and at each full minute after it.

    The last age is that at `until`, less than a minute before now. A job waits from its queue time until it begins or
    ends. Jobs that are held now are left out, because Ostler decided to let them wait. If `accounts` is given, only
    jobs of these accounts count.
    """
    last = int((until - since) / _MINUTE)
    rows = db.execute(
        text(f"""
            WITH seen AS (
                SELECT j.queued_at, coalesce(e.started_at, j.completed_at) AS ended FROM jobs j
                LEFT JOIN executions e ON e.job_id = j.id
                WHERE j.state = 'completed' AND j.completed_at >= :since {_OF_ACCOUNTS}
                UNION ALL
                SELECT j.queued_at, e.started_at FROM jobs j JOIN executions e ON e.job_id = j.id
                WHERE j.state = 'running' {_OF_ACCOUNTS}
                UNION ALL
                SELECT min(j.queued_at), CAST(:until AS timestamptz) FROM jobs j
                WHERE j.state IN ('queued', 'claimed') AND j.hold_reason IS NULL {_OF_ACCOUNTS}
            )
            SELECT least(CAST(floor(extract(epoch FROM ended - :since) / 60) AS integer), :last) AS minute,
                   min(queued_at) AS queued_at
            FROM seen WHERE ended >= :since GROUP BY 1
        """),
        {"since": since, "until": until, "last": last, "accounts": None if accounts is None else list(accounts)},
    )
    oldest = {row.minute: row.queued_at for row in rows if row.queued_at is not None}
    ages = []
    earliest = until
    # All jobs that waited until this minute or longer waited then, unless they were queued later.
    for minute in range(last, -1, -1):
        earliest = min(earliest, oldest.get(minute, earliest))
        ages.append(max(0.0, (since + minute * _MINUTE - earliest).total_seconds()))
    return ages[::-1]


def expected(db: Connection, pool_id: int, *, since: datetime, accounts: Collection[int] | None = None) -> Expected:
    """Return the waits of the jobs of a pool that were completed after `since`. At most the newest 500 jobs count.

    If `accounts` is given, only jobs of these accounts count.
    """
    row = db.execute(
        text("""
            SELECT count(*) AS jobs, percentile_cont(0.5) WITHIN GROUP (ORDER BY waited) AS p50,
                   percentile_cont(0.9) WITHIN GROUP (ORDER BY waited) AS p90
            FROM (SELECT id, queued_at FROM jobs
                  WHERE state = 'completed' AND completed_at >= :since AND pool_id = :pool
                    AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
                  ORDER BY completed_at DESC LIMIT :most) j
            JOIN executions e ON e.job_id = j.id
            CROSS JOIN LATERAL (
                SELECT greatest(0, CAST(extract(epoch FROM e.started_at - j.queued_at) AS float8)) AS waited
            ) w
        """),
        {
            "pool": pool_id,
            "since": since,
            "most": _MOST_EXPECTED,
            "accounts": None if accounts is None else list(accounts),
        },
    ).one()
    return Expected.of(row.jobs, row.p50, row.p90)


@dataclass(frozen=True, slots=True)
class Idle:
    """Time that the Pods of a pool were warm without a job in a span, in seconds, and the number of these Pods.

    `millicores` is the present size of one Pod.
    """

    pool: str
    pods: int
    seconds: float
    millicores: int


def idle(db: Connection, *, since: datetime, until: datetime, now: datetime) -> Sequence[Idle]:
    """Return the idle time of each pool in this span, in the order of the names of the pools.

    A Pod is idle from its first poll until its first claim or its end. Persistent runners are left out, because they
    are idle between jobs too.
    """
    rows = db.execute(
        text("""
            SELECT pools.name AS pool, count(*) AS pods,
                   CAST(sum(extract(epoch FROM least(i.ends_at, :until) - greatest(r.first_polled_at, :since)))
                        AS float8) AS seconds,
                   pools.vcpu
            FROM runner_pods r JOIN pools ON pools.id = r.pool_id AND pools.registers_in IS NULL
            CROSS JOIN LATERAL (
                SELECT least((SELECT min(created_at) FROM claims WHERE pod_uid = r.uid), r.terminal_at, r.gone_at, :now)
                       AS ends_at
            ) i
            WHERE r.first_polled_at < :until AND (r.gone_at IS NULL OR r.gone_at > :since)
              AND i.ends_at > greatest(r.first_polled_at, :since)
            GROUP BY pools.id, pools.name ORDER BY pools.name, pools.id
        """),
        {"since": since, "until": until, "now": now},
    )
    return [Idle(*row) for row in rows]
