"""Use of runners in a span: runner time by account, pool and repository, idle time, and starts against a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from models.browse.waits import BEGAN, idle
from models.db.sql import text
from rules.waiting.blame import Blame, Start, blame_of

MOST_LATE = 5000
"""Maximum number of late starts whose blame is computed. The latest ones count."""


@dataclass(frozen=True, slots=True)
class Used:
    """Use of runners in a span: by one account and repository in one pool, or by nobody.

    `account` and `repository` are None for the idle time of warm Pods, which belongs to no account. `jobs` ran in the
    span, completely or in part. Times are in seconds, and lie within the span. `vcpu_seconds` are both times multiplied
    by the vCPU of the Pod: of each job as it was claimed, and of the pool now for idle time.
    """

    account: str | None
    pool: str | None
    repository: str | None
    jobs: int
    run_seconds: float
    idle_seconds: float
    vcpu_seconds: float


def used(
    db: Connection, *, since: datetime, until: datetime, now: datetime, accounts: Collection[int] | None = None
) -> Sequence[Used]:
    """Return the use of runners in this span, in the order of account, pool and repository. Idle time comes last.

    If `accounts` is given, only jobs of these accounts count, and idle time is left out.
    """
    rows = db.execute(
        text(f"""
            SELECT a.login AS account, p.name AS pool, b.repository, count(*) AS jobs,
                   CAST(sum(ran) AS float8) AS run_seconds, CAST(sum(ran * b.vcpu) / 1000 AS float8) AS vcpu_seconds
            FROM ({BEGAN}) b JOIN accounts a ON a.id = b.account_id LEFT JOIN pools p ON p.id = b.pool_id
            CROSS JOIN LATERAL (
                SELECT greatest(0, extract(epoch FROM least(coalesce(b.ended_at, :now), :until)
                                                      - greatest(b.started_at, :since))) AS ran
            ) r
            WHERE coalesce(b.ended_at, :now) > :since AND b.started_at < :now
            GROUP BY a.login, a.id, p.name, p.id, b.repository ORDER BY a.login, a.id, p.name, p.id, b.repository
        """),
        {"since": since, "until": until, "now": now, "accounts": None if accounts is None else list(accounts)},
    )
    busy = [
        Used(row.account, row.pool, row.repository, row.jobs, row.run_seconds, 0.0, row.vcpu_seconds) for row in rows
    ]
    if accounts is not None:
        return busy
    unused = idle(db, since=since, until=until, now=now)
    return [
        *busy,
        *(Used(None, each.pool, None, 0, 0.0, each.seconds, each.seconds * each.millicores / 1000) for each in unused),
    ]


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts of jobs of one pool in a span, compared with the target of the pool.

    `target` is in seconds. `late` jobs waited longer. `blamed` counts late jobs by cause, at most the latest
    `MOST_LATE` of all pools together.
    """

    pool: str
    target: float
    jobs: int
    late: int
    blamed: Mapping[Blame, int]


def starts(
    db: Connection, *, since: datetime, until: datetime, accounts: Collection[int] | None = None
) -> Sequence[Starts]:
    """Return the starts of jobs in this span of each pool with a target, in the order of the names of the pools.

    Pools without such a start are left out. If `accounts` is given, only jobs of these accounts count.
    """
    given = {"since": since, "until": until, "accounts": None if accounts is None else list(accounts)}
    pools = db.execute(
        text(f"""
            SELECT p.id, p.name, p.start_target, count(*) AS jobs,
                   count(*) FILTER (WHERE extract(epoch FROM b.started_at - b.queued_at) > p.start_target) AS late
            FROM ({BEGAN}) b JOIN pools p ON p.id = b.pool_id AND p.start_target IS NOT NULL
            WHERE b.started_at >= :since GROUP BY p.id ORDER BY p.name, p.id
        """),
        given,
    ).all()
    blamed: dict[int, Counter[Blame]] = {}
    for pool_id, start in _late_starts(db, given) if any(row.late for row in pools) else ():
        blamed.setdefault(pool_id, Counter())[blame_of(start)] += 1
    return [
        Starts(
            row.name,
            row.start_target,
            row.jobs,
            row.late,
            {each: blamed.get(row.id, Counter())[each] for each in Blame},
        )
        for row in pools
    ]


def _late_starts(db: Connection, given: Mapping[str, object]) -> Sequence[tuple[int, Start]]:
    """Return the latest late starts, each with the id of its pool.

    The use of an account at a claim is counted from the claims of the span, with the present budget of the account.
    """
    rows = db.execute(
        text(f"""
            WITH late AS (
                SELECT b.*, p.id AS of_pool FROM ({BEGAN}) b
                JOIN pools p ON p.id = b.pool_id AND extract(epoch FROM b.started_at - b.queued_at) > p.start_target
                WHERE b.started_at >= :since ORDER BY b.started_at DESC LIMIT :most
            ), lives AS (
                SELECT id, account_id, vcpu, memory, created_at, ended_at FROM claims
                WHERE purpose = 'job' AND account_id IN (SELECT account_id FROM late) AND created_at < :until
                  AND (ended_at IS NULL OR ended_at >= :since)
            ), changes AS (
                SELECT id, account_id, created_at AS at, 1 AS pods, vcpu, memory FROM lives
                UNION ALL
                SELECT NULL, account_id, ended_at, -1, -vcpu, -memory FROM lives WHERE ended_at IS NOT NULL
            ), uses AS (
                SELECT id, sum(pods) OVER course AS pods, sum(vcpu) OVER course + vcpu AS vcpu,
                       sum(memory) OVER course + memory AS memory
                FROM changes WINDOW course AS (PARTITION BY account_id ORDER BY at, pods ROWS UNBOUNDED PRECEDING)
            )
            SELECT late.of_pool, late.queued_at, late.started_at, c.created_at AS claimed_at, c.minted_at,
                   c.delivered_at, r.created_at AS pod_created_at, r.first_polled_at AS polled_at,
                   tries.tried_at, coalesce(tries.refused, false) AS tried_refused,
                   coalesce(u.pods >= a.budget_count OR u.vcpu > a.budget_vcpu OR u.memory > a.budget_memory, false)
                       AS at_budget
            FROM late JOIN accounts a ON a.id = late.account_id
            LEFT JOIN claims c ON c.id = late.claim_id AND c.purpose = 'job'
            LEFT JOIN runner_pods r ON r.id = c.runner_pod_id
            LEFT JOIN uses u ON u.id = c.id
            LEFT JOIN LATERAL (
                SELECT min(o.created_at) AS tried_at,
                       bool_or(EXISTS (SELECT FROM mint_attempts m WHERE m.claim_id = o.id AND m.outcome = 'refused'))
                           FILTER (WHERE o.id <> c.id) AS refused
                FROM claims o WHERE o.job_id = late.id AND o.created_at <= c.created_at
            ) tries ON true
        """),
        {**given, "most": MOST_LATE},
    )
    return [(row["of_pool"], Start(**{name: row[name] for name in Start.__slots__})) for row in rows.mappings()]


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of runners and starts of jobs in a span.

    `rows_since` is the end of the oldest job of the accounts that is still stored: work before that time might be
    missing. It is None if no completed job of them is stored.
    """

    since: datetime
    until: datetime
    rows_since: datetime | None
    used: Sequence[Used]
    starts: Sequence[Starts]

    @property
    def by_account(self) -> Sequence[Used]:
        """Return the sums over pools and repositories by account, in the order of the logins. Idle time comes last."""
        return [
            Used(
                account,
                None,
                None,
                sum(each.jobs for each in rows),
                sum(each.run_seconds for each in rows),
                sum(each.idle_seconds for each in rows),
                sum(each.vcpu_seconds for each in rows),
            )
            for account, group in groupby(self.used, key=lambda each: each.account)
            for rows in [list(group)]
        ]


def usage_of(
    db: Connection, *, since: datetime, until: datetime, now: datetime, accounts: Collection[int] | None = None
) -> Usage:
    """Return the use of runners and the starts of jobs in a span. If `accounts` is given, only their jobs count."""
    oldest: datetime | None = db.execute(
        text("""
            SELECT min(completed_at) FROM jobs
            WHERE state = 'completed'
              AND (CAST(:accounts AS bigint[]) IS NULL OR account_id = ANY(CAST(:accounts AS bigint[])))
        """),
        {"accounts": None if accounts is None else list(accounts)},
    ).scalar_one_or_none()
    return Usage(
        since=since,
        until=until,
        rows_since=oldest,
        used=used(db, since=since, until=until, now=now, accounts=accounts),
        starts=starts(db, since=since, until=until, accounts=accounts),
    )


def month_of(given: str | None, *, now: datetime) -> tuple[datetime, datetime]:
    """Return begin and end of a month such as 2026-11, or of the present month, which ends `now`.

    Raises ValueError if the text is no month, or if a date cannot express its end.
    """
    first = datetime.strptime(given or f"{now:%Y-%m}", "%Y-%m").replace(tzinfo=UTC)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return first, now if first <= now < after else after


def told(usage: Usage) -> dict[str, Any]:
    """Return a usage as the commands and the API show it."""
    return {
        "since_at": usage.since,
        "until_at": usage.until,
        "rows_since_at": usage.rows_since,
        "accounts": [_told_minutes(each) | {"account": each.account} for each in usage.by_account],
        "items": [
            {"account": each.account, "pool": each.pool, "repository": each.repository} | _told_minutes(each)
            for each in usage.used
        ],
        "starts": [told_starts(each) for each in usage.starts],
    }


def _told_minutes(used: Used) -> dict[str, Any]:
    return {
        "jobs": used.jobs,
        "runner_minutes": used.run_seconds / 60,
        "idle_minutes": used.idle_seconds / 60,
        "vcpu_minutes": used.vcpu_seconds / 60,
    }


def told_starts(found: Starts) -> dict[str, Any]:
    """Return the starts of a pool as the commands and the API show them."""
    return {
        "pool": found.pool,
        "target_seconds": found.target,
        "jobs": found.jobs,
        "late": found.late,
        "blamed": dict(found.blamed),
    }
