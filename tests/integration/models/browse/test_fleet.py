"""The overview of the fleet: queued, used and counted work by pool and account, and the waits of jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.browse.fleet import account_lines, idle_accounts, pool_lines
from models.browse.usage import used
from models.browse.waits import By, queue_age, waits
from models.db.engine import transaction
from rules.pools.pod_states import PodState
from tests.database import Database
from tests.rows import insert_account, insert_job, insert_pool, run_sql

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LATER = NOON + 24 * 60 * MINUTE


class Rows:
    """Rows that a test inserts."""

    def __init__(self, database: Database) -> None:
        self.engine = database.engine
        insert_account(self.engine)
        insert_account(self.engine, 8, "beta", count=0)
        self.pool = insert_pool(self.engine, "small", labels=["linux"], vcpu=2000, memory=4096, replicas=3)

    def job(self, number: int, *, account: int = 7, after: int = 0, **columns: Any) -> None:
        at = NOON + after * MINUTE
        insert_job(self.engine, number, account_id=account, pool_id=self.pool, queued_at=at, **columns)

    def ran(self, number: int, *, waited: int, ran: int, account: int = 7, over: bool = True) -> None:
        """Insert a job that was queued at noon and executed after `waited` minutes."""
        started, ended = NOON + waited * MINUTE, NOON + (waited + ran) * MINUTE
        done = {"state": "completed", "completed_at": ended} if over else {"state": "running"}
        self.job(number, account=account, **done)
        run_sql(
            self.engine,
            """
            INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at, ended_at)
            VALUES (:job, 'r', :account, 2000, 4096, :started, :ended)
            """,
            job=number,
            account=account,
            started=started,
            ended=ended if over else None,
        )


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


def test_pools_show_their_queue_and_the_numbers_of_the_reconciler(rows: Rows) -> None:
    rows.job(1, account=8)
    rows.job(2, after=1)
    rows.job(3, after=2)
    rows.job(4, hold_reason="backoff")
    status = '{"warm": 2, "busy": 1, "conditions": [{"type": "Degraded", "status": "True", "message": "no image"}]}'
    run_sql(rows.engine, "UPDATE pools SET status = CAST(:s AS jsonb), status_at = :at", s=status, at=NOON)
    insert_pool(rows.engine, "gone", labels=["gone"], vcpu=1, memory=1, replicas=1)
    run_sql(rows.engine, "UPDATE pools SET deleted_at = now() WHERE name = 'gone'")

    (pool,) = transaction(rows.engine, pool_lines)

    assert (pool.name, pool.queued, pool.held) == ("small", 3, 1)
    assert pool.oldest_queued_at == NOON
    assert pool.oldest_dispatchable_at == NOON + MINUTE  # the budget of the account of the oldest job is 0
    assert pool.pods is not None
    assert (pool.pods[PodState.WARM], pool.pods[PodState.BUSY], pool.pods[PodState.STARTING]) == (2, 1, 0)
    assert (pool.counted_at, pool.problem) == (NOON, "no image")


def test_pool_that_nobody_counted_yet_shows_no_pods(rows: Rows) -> None:
    (pool,) = transaction(rows.engine, pool_lines)
    assert (pool.pods, pool.counted_at, pool.queued, pool.oldest_dispatchable_at) == (None, None, 0, None)


def test_accounts_show_their_queue_and_their_use_and_idle_accounts_are_left_out(rows: Rows) -> None:
    rows.job(1, after=1)
    rows.job(2, hold_reason="backoff")
    rows.ran(3, waited=1, ran=1, over=False)

    (account,) = transaction(rows.engine, account_lines)

    assert (account.login, account.queued, account.held, account.running) == ("acme", 1, 1, 1)
    assert account.oldest_queued_at == NOON + MINUTE
    assert transaction(rows.engine, lambda db: account_lines(db, accounts=[8])) == []


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (By.POOL, ["small"]),
        (By.ACCOUNT, ["acme", "beta"]),
        (By.REPOSITORY, ["acme/shop"]),
        (By.HOUR, ["2026-11-28 12:00", "2026-11-28 13:00"]),
        (By.DAY, ["2026-11-28"]),
    ],
)
def test_waits_are_grouped(rows: Rows, by: By, names: list[str]) -> None:
    rows.ran(1, waited=1, ran=2)
    rows.ran(2, waited=61, ran=2, account=8)
    found = transaction(rows.engine, lambda db: waits(db, since=NOON, until=NOON + 120 * MINUTE, by=by, now=LATER))
    assert [each.name for each in found] == [*names, None]
    assert sum(each.jobs for each in found[:-1]) == found[-1].jobs == 2


def test_waits_are_those_of_jobs_that_began_in_the_span(rows: Rows) -> None:
    for number, waited in enumerate((1, 2, 3, 4)):
        rows.ran(number, waited=waited, ran=10)
    rows.ran(5, waited=5, ran=10, over=False)
    rows.ran(6, waited=20, ran=1)  # after the span

    *_, every = transaction(
        rows.engine, lambda db: waits(db, since=NOON + 2 * MINUTE, until=NOON + 10 * MINUTE, by=By.DAY, now=LATER)
    )

    assert (every.jobs, every.p50, every.most) == (4, 210.0, 300.0)
    assert every.run_seconds == 60.0 * (8 + 7 + 6 + 5)  # until the end of the span


def test_a_job_that_is_executed_now_counts_until_now_in_a_span_that_has_not_ended(rows: Rows) -> None:
    rows.ran(1, waited=1, ran=5, over=False)
    *_, every = transaction(
        rows.engine,
        lambda db: waits(db, since=NOON, until=NOON + 600 * MINUTE, by=By.DAY, now=NOON + 3 * MINUTE),
    )
    assert every.run_seconds == 120.0


def test_pools_of_the_same_name_are_two_groups(rows: Rows) -> None:
    rows.ran(1, waited=1, ran=1)
    other = insert_pool(rows.engine, "small", uid="other", namespace="elevated", labels=["root"], vcpu=1, memory=1)
    rows.ran(2, waited=3, ran=1)
    run_sql(rows.engine, "UPDATE jobs SET pool_id = :pool WHERE id = 2", pool=other)
    found = transaction(rows.engine, lambda db: waits(db, since=NOON, until=LATER, by=By.POOL, now=LATER))
    assert sorted(each.p50 for each in found[:-1]) == [60.0, 180.0]


def test_waits_of_other_accounts_are_not_shown(rows: Rows) -> None:
    rows.ran(1, waited=1, ran=2)
    until = NOON + 120 * MINUTE
    assert (
        transaction(rows.engine, lambda db: waits(db, since=NOON, until=until, by=By.DAY, now=LATER, accounts=[8]))
        == []
    )


def test_use_of_a_span_leaves_out_jobs_that_ended_a_week_after_it(rows: Rows) -> None:
    """No job runs for a week. Without this limit, an old month would read the jobs of all months after it."""
    rows.ran(1, waited=1, ran=5 * 24 * 60)
    rows.ran(2, waited=1, ran=8 * 24 * 60)

    (found,) = transaction(
        rows.engine, lambda db: used(db, since=NOON, until=NOON + 60 * MINUTE, now=LATER + 9 * 24 * 60 * MINUTE)
    )

    assert (found.jobs, found.run_seconds) == (1, 59 * 60)


def ages(rows: Rows, *, minutes: int, accounts: list[int] | None = None) -> list[float]:
    """Return the age of the queue in minutes, at noon and at each minute after it."""
    until = NOON + minutes * MINUTE
    found = transaction(rows.engine, lambda db: queue_age(db, since=NOON, until=until, accounts=accounts))
    return [each / 60 for each in found]


def test_queue_age_is_that_of_the_oldest_job_that_had_not_begun_at_each_minute(rows: Rows) -> None:
    assert ages(rows, minutes=2) == [0, 0, 0]
    rows.ran(1, waited=3, ran=90, over=False)
    rows.ran(2, waited=1, ran=5)
    rows.job(3, after=2)
    assert ages(rows, minutes=6) == [0, 1, 2, 3, 2, 3, 4]


def test_queue_age_counts_jobs_that_were_queued_before_and_that_never_began(rows: Rows) -> None:
    rows.job(1, after=-30, state="completed", completed_at=NOON + 2 * MINUTE)
    rows.job(2, after=-90, state="completed", completed_at=NOON - MINUTE)
    rows.job(3, after=4, state="claimed")
    assert ages(rows, minutes=6) == [30, 31, 32, 0, 0, 1, 2]


def test_queue_age_leaves_out_held_jobs_and_jobs_of_other_accounts(rows: Rows) -> None:
    rows.job(1, after=-9, hold_reason="budget")
    rows.job(2, after=-8, account=8)
    rows.job(3, after=-7, state="waiting")
    rows.job(4, after=-1)
    assert ages(rows, minutes=1) == [8, 9]
    assert ages(rows, minutes=1, accounts=[7]) == [1, 2]


def test_accounts_without_work_come_in_the_order_of_their_logins(rows: Rows) -> None:
    insert_account(rows.engine, 9, "zeta")

    def found(**how: Any) -> list[str]:
        lines = transaction(rows.engine, lambda db: idle_accounts(db, **{"besides": [], "limit": 9, **how}))
        assert {each.queued + each.used_count for each in lines} <= {0}
        return [each.login for each in lines]

    assert found() == ["acme", "beta", "zeta"]
    assert found(besides=[8], limit=1) == ["acme"]
    assert found(accounts=[8, 9]) == ["beta", "zeta"]
