"""Registration claims: each gives a Pod of a persistent pool its runner, and lives as long as the runner.

The matcher inserts these claims for offered Pods. No job and no budget is involved, because GitHub gives a persistent
runner its jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.claims.matching import WHO, lock_pods
from models.claims.names import INSTALLATION_NOW, SCOPE_NOW, RunnerClaim
from models.db.engine import record_point
from models.db.sql import text
from models.state import claim_inserts
from models.state.pools import Pool
from rules.claims.machines import allowed
from rules.claims.registrations import slots, why_not_allowed
from rules.waiting.facts import RegisteredRunners

MOST = 20
"""Maximum number of registration claims that one run of the matcher inserts for a pool."""

SEARCHED_JOBS = 10_000
"""Number of an account's newest jobs among which the id of a repository is searched."""


@dataclass(frozen=True, slots=True)
class Home:
    """Account, installation and repository that a pool's runners are registered with.

    `repository_id` is None if the runners are registered in an organisation.
    """

    account_id: int
    installation_id: int
    repository_id: int | None


def home_of(db: Connection, scope: str) -> Home | None:
    """Return the home of the runners of `scope`, or None if no delivery of a webhook has named it yet.

    `scope` is `orgs/<login>` or `repos/<login>/<name>`. The home is also None if the App is not installed there any
    more.
    """
    kind, login, *_ = scope.split("/")
    row = db.execute(
        text("""
            SELECT a.id AS account_id, i.id AS installation_id
            FROM accounts a JOIN installations i ON i.account_id = a.id AND i.left_at IS NULL
            WHERE lower(a.login) = lower(:login) ORDER BY i.event_at DESC NULLS LAST, i.id DESC LIMIT 1
        """),
        {"login": login},
    ).one_or_none()
    if row is None:
        return None
    if kind == "orgs":
        return Home(row.account_id, row.installation_id, None)
    job = _newest_job(db, row.account_id, scope.removeprefix("repos/"))
    return None if job is None else Home(row.account_id, row.installation_id, job.repository_id)


def is_public(db: Connection, *, account_id: int, repository: str) -> bool:
    """Return True if the newest known job of a repository (`owner/name`) says that the repository is public."""
    found = _newest_job(db, account_id, repository)
    return found is not None and bool(found.public)


def _newest_job(db: Connection, account_id: int, repository: str) -> Row[Any] | None:
    """Return `repository_id` and `public` of a repository's newest job among the account's last `SEARCHED_JOBS`."""
    return db.execute(
        text("""
            SELECT j.repository_id, j.public FROM (
                SELECT id, repository, repository_id, public FROM jobs
                WHERE account_id = :account ORDER BY id DESC LIMIT :most
            ) j
            WHERE lower(j.repository) = lower(:repository) AND j.repository_id IS NOT NULL ORDER BY j.id DESC LIMIT 1
        """),
        {"account": account_id, "repository": repository, "most": SEARCHED_JOBS},
    ).one_or_none()


def scopes_without_home(db: Connection) -> list[str]:
    """Return the scopes of persistent pools whose owner has no installation that Ostler knows."""
    rows = db.execute(
        text("SELECT DISTINCT registers_in FROM pools WHERE registers_in IS NOT NULL AND deleted_at IS NULL")
    )
    return [
        scope
        for scope in rows.scalars().all()
        if not db.execute(
            text("""
                SELECT 1 FROM accounts a JOIN installations i ON i.account_id = a.id AND i.left_at IS NULL
                WHERE lower(a.login) = lower(:login) LIMIT 1
            """),
            {"login": scope.split("/")[1]},
        ).one_or_none()
    ]


def insert_for_offers(db: Connection, pool: Pool, *, due_after: float, now: datetime) -> list[int]:
    """Insert registration claims for offered Pods of a persistent pool, and return the ids of the claims.

    The caller holds the lock of the pool. After failed registrations, fewer or no claims are inserted
    (`rules.claims.registrations`).
    """
    if pool.registers_in is None or (home := home_of(db, pool.registers_in)) is None:
        return []
    if why_not_allowed(home.account_id, pool.allowed_accounts) is not None:
        return []
    found = db.execute(
        text("""
            SELECT count(*) FILTER (WHERE ended_at IS NULL) AS open,
                   count(*) FILTER (WHERE ended_at IS NOT NULL AND latest.id > coalesce(good.id, 0)) AS failures,
                   max(ended_at) FILTER (WHERE latest.id > coalesce(good.id, 0)) AS failed_at
            FROM (SELECT id, ended_at FROM claims WHERE pool_id = :id AND purpose = 'register'
                  AND online_at IS NULL ORDER BY id DESC LIMIT 100) latest
            CROSS JOIN (SELECT max(id) AS id FROM claims WHERE pool_id = :id AND purpose = 'register'
                        AND online_at IS NOT NULL) good
        """),
        {"id": pool.id},
    ).one()
    most = min(MOST, slots(failures=found.failures, failed_at=found.failed_at, open_claims=found.open, now=now))
    pods = lock_pods(db, pool, limit=most, now=now) if most else []
    if not pods:
        return []
    made = claim_inserts.insert_registrations(
        db,
        [(pod.id, pod.uid) for pod in pods],
        pool_id=pool.id,
        account_id=home.account_id,
        installation_id=home.installation_id,
        scope=pool.registers_in,
        repository_id=home.repository_id,
        due=now + timedelta(seconds=due_after),
        now=now,
        who=WHO,
    )
    record_point(db, "claim", machine=allowed("claim").machine, rows=len(made))
    return list(made)


def runners_of_pool(db: Connection, pool_id: int) -> RegisteredRunners | None:
    """Return the persistent runners of a pool, or None if the pool's runners run one job.

    A registration failed if its claim was released before GitHub showed the runner as online.
    """
    row = db.execute(
        text("""
            SELECT p.registers_in, p.allowed_accounts,
                   count(c.id) FILTER (WHERE c.online_at IS NOT NULL AND c.runner_absent_at IS NULL
                                         AND c.runner_seen IN ('online', 'busy')) AS online,
                   count(c.id) FILTER (WHERE EXISTS (
                       SELECT FROM executions e WHERE e.claim_id = c.id AND e.ended_at IS NULL)) AS busy,
                   (SELECT CASE WHEN l.online_at IS NULL THEN l.release_reason END
                    FROM claims l WHERE l.pool_id = p.id AND l.purpose = 'register'
                      AND (l.online_at IS NOT NULL OR l.release_reason IS NOT NULL)
                    ORDER BY l.id DESC LIMIT 1) AS failure
            FROM pools p LEFT JOIN claims c ON c.pool_id = p.id AND c.ended_at IS NULL AND c.purpose = 'register'
            WHERE p.id = :id AND p.registers_in IS NOT NULL GROUP BY p.id
        """),
        {"id": pool_id},
    ).one_or_none()
    if row is None:
        return None
    failure = why_no_home(db, row.registers_in, allowed=row.allowed_accounts) or row.failure
    return RegisteredRunners(scope=row.registers_in, online=row.online, busy=row.busy, failure=failure)


def why_no_home(db: Connection, scope: str, *, allowed: Collection[int]) -> str | None:
    """Return why no runner can be registered in `scope`, or None if runners can be registered there.

    `allowed`: the accounts that may use the pool, or nothing if all accounts may use the pool.
    """
    home = home_of(db, scope)
    if home is not None:
        return why_not_allowed(home.account_id, allowed)
    kind, login, *_ = scope.split("/")
    if kind == "repos" and home_of(db, f"orgs/{login}") is not None:
        name = scope.removeprefix("repos/")
        return f"Ostler learns the numeric id of {name} from the first job of the repository; no job was queued yet"
    return f"the App is not installed in {scope}, or Ostler does not know the installation yet"


def unused(db: Connection, *, since: datetime) -> list[tuple[str, int]]:
    """Return the pools with persistent runners that have been online since `since` without a job.

    Each pool comes with the number of these runners.
    """
    rows = db.execute(
        text("""
            SELECT p.name, count(*) AS runners FROM claims c JOIN pools p ON p.id = c.pool_id AND p.deleted_at IS NULL
            WHERE c.ended_at IS NULL AND c.purpose = 'register' AND c.state = 'delivered'
              AND c.runner_seen = 'online' AND c.online_at < :since
              AND NOT EXISTS (SELECT FROM executions e
                              WHERE e.claim_id = c.id AND (e.ended_at IS NULL OR e.ended_at > :since))
            GROUP BY p.id, p.name ORDER BY p.name
        """),
        {"since": since},
    )
    return [(row.name, row.runners) for row in rows]


def scopes(db: Connection) -> frozenset[str]:
    """Return the scopes of the persistent pools, in lower case."""
    rows = db.execute(
        text("SELECT lower(registers_in) FROM pools WHERE registers_in IS NOT NULL AND deleted_at IS NULL")
    )
    return frozenset(rows.scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredClaim(RunnerClaim):
    """The claim of a persistent runner, with the settings of its pool.

    `last_job_ended_at` is the end of the runner's last known job, if GitHub has shown the runner as busy without a
    break for long enough; otherwise it is None. `stale`: the Pod was made from an earlier template of its pool.
    """

    account_id: int
    allowed_accounts: Sequence[int]
    volume_reclaim: str | None
    allow_forks: bool
    runner_group_id: int
    runner_group_name: str | None
    delivered_at: datetime
    online_at: datetime | None
    runner_absent_at: datetime | None
    runner_seen: str | None
    runner_seen_at: datetime | None
    node_gone: bool
    executes_since: datetime | None
    last_job_ended_at: datetime | None
    stale: bool


def registered(db: Connection, *, busy_since: datetime) -> list[RegisteredClaim]:
    """Return the delivered registration claims that are not being released, in random order (law L14).

    `last_job_ended_at` is set only for runners that GitHub has shown as busy since `busy_since`. Claims without an
    installation are left out.
    """
    rows = db.execute(
        text(f"""
            SELECT c.id, c.pod_uid, c.pool_id, c.runner_name, {INSTALLATION_NOW} AS installation_id,
                   {SCOPE_NOW} AS scope, c.account_id, l.allowed_accounts, l.volume_reclaim, l.allow_forks,
                   l.runner_group_id, l.runner_group_name, c.delivered_at, c.online_at, c.runner_absent_at,
                   c.runner_seen, c.runner_seen_at, p.node_gone_at IS NOT NULL AS node_gone,
                   (SELECT min(e.started_at) FROM executions e WHERE e.claim_id = c.id AND e.ended_at IS NULL)
                   AS executes_since,
                   CASE WHEN c.runner_seen = 'busy' AND c.runner_seen_at <= :busy_since THEN
                       (SELECT max(e.ended_at) FROM executions e WHERE e.claim_id = c.id) END AS last_job_ended_at,
                   p.template_hash <> l.template_hash AS stale
            FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id JOIN pools l ON l.id = c.pool_id
            WHERE c.ended_at IS NULL AND c.purpose = 'register' AND c.state = 'delivered'
              AND p.terminal_at IS NULL AND p.gone_at IS NULL
            ORDER BY random() LIMIT 1000
        """),
        {"busy_since": busy_since},
    ).mappings()
    return [RegisteredClaim(**row) for row in rows if row["installation_id"] is not None]
