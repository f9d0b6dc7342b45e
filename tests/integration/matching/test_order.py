"""Order of jobs in real tables: accounts, weights, priorities, reservations, and jobs that need not be read."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from models.routing.accounts import set_access
from rules.routing.access import Access
from tests.database import Database
from tests.integration.concurrency.points import DEADLINE, start, stopped
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW
from tests.rows import author


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def test_the_account_that_uses_least_comes_first(stage: Stage) -> None:
    pool, other = stage.pool(), stage.pool()
    busy, idle = stage.account(1, count=10), stage.account(2, count=10)
    stage.job(busy, other)
    stage.pod(other)
    stage.match(other)
    older, younger = stage.job(busy, pool, age=900), stage.job(idle, pool, age=5)
    stage.pod(pool)
    stage.match(pool)
    assert younger in stage.claimed()
    assert older not in stage.claimed()


def test_two_accounts_share_a_batch_in_turns(stage: Stage) -> None:
    pool = stage.pool()
    first, second = stage.account(1), stage.account(2)
    of_first = [stage.job(first, pool, age=900 - n) for n in range(4)]
    of_second = [stage.job(second, pool, age=100 - n) for n in range(4)]
    for _ in range(4):
        stage.pod(pool)
    stage.match(pool)
    assert set(stage.claimed()) == {*of_first[:2], *of_second[:2]}


def test_a_heavier_account_gets_its_weights_part(stage: Stage) -> None:
    pool = stage.pool()
    light, heavy = stage.account(1), stage.account(2, weight=3)
    for _ in range(8):
        stage.job(light, pool, age=900)
        stage.job(heavy, pool, age=100)
        stage.pod(pool)
    stage.match(pool)
    by_account = {
        row.account_id: row.n
        for row in stage.rows("SELECT account_id, count(*) AS n FROM claims WHERE ended_at IS NULL GROUP BY 1")
    }
    assert by_account == {light: 2, heavy: 6}


def test_within_an_account_priority_comes_before_age(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    oldest = stage.job(account, pool, age=900)
    urgent = stage.job(account, pool, age=10, priority=5)
    stage.job(account, pool, age=500)
    for _ in range(2):
        stage.pod(pool)
    stage.match(pool)
    assert sorted(stage.claimed()) == sorted([urgent, oldest])


@pytest.mark.parametrize("budget", [{"count": 2}, {"vcpu": 4}, {"memory": 8}])
def test_every_part_of_a_budget_admits_what_fits_and_no_more(stage: Stage, budget: dict[str, int]) -> None:
    pool, account = stage.pool(vcpu=2, memory=4), stage.account(1, **budget)
    for _ in range(3):
        stage.job(account, pool)
        stage.pod(pool)
    stage.match(pool)
    assert len(stage.claimed()) == 2
    stage.match(pool)
    assert len(stage.claimed()) == 2


def test_a_spare_counts_in_its_accounts_budget(stage: Stage) -> None:
    pool, other, account = stage.pool(), stage.pool(), stage.account(1, count=1)
    stage.spare(account, other)
    stage.job(account, pool)
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == []


def test_a_job_that_waited_long_reserves_its_size_against_other_pools(stage: Stage) -> None:
    small, large = stage.pool(vcpu=2), stage.pool(vcpu=8)
    account = stage.account(1, vcpu=10)
    stage.job(account, large, age=stage.settings.timings.reserve_after + 60)
    for _ in range(3):
        stage.job(account, small, age=10)
        stage.pod(small)
    stage.pod(large)
    stage.match(small)
    assert len(stage.claimed()) == 1, "8 of 10 vCPU are kept for the job that waits for the large pool"
    stage.match(large)
    assert len(stage.claimed()) == 2


def test_held_jobs_are_neither_read_nor_claimed(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    held = [stage.job(account, pool, age=900, hold="backoff", priority=9) for _ in range(5)]
    free = stage.job(account, pool, age=5)
    for _ in range(6):
        stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [free]
    states = stage.rows("SELECT DISTINCT state, hold_reason FROM jobs WHERE id = ANY(:ids)", ids=held)
    assert [tuple(row) for row in states] == [("queued", "backoff")]


def test_an_account_without_room_does_not_fill_the_page_of_others(stage: Stage) -> None:
    pool = stage.pool()
    for account in range(1, 21):
        stage.account(account, count=0)
        stage.job(account, pool, age=900)
    wanted = stage.job(stage.account(99), pool, age=1)
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [wanted]


def test_no_statement_of_the_matcher_returns_more_than_twice_its_batch(database: Database) -> None:
    stage = make_stage(database, match_batch=3)
    pool = stage.pool()
    for account in range(1, 6):
        stage.account(account)
        for age in range(20):
            stage.job(account, pool, age=age)
    for _ in range(10):
        stage.pod(pool)
    most: list[int] = []
    event.listen(stage.engine, "after_cursor_execute", lambda _db, cursor, *_rest: most.append(cursor.rowcount))
    matched = stage.match(pool)
    assert len(matched.claims) == 3
    assert matched.again, "a full batch is followed by another"
    assert max(most) <= 2 * 3


def test_a_held_account_gets_no_new_claim_and_keeps_its_claims(stage: Stage) -> None:
    pool = stage.pool()
    held, other = stage.account(1), stage.account(2)
    running = stage.job(held, pool, age=900)
    stage.pod(pool)
    stage.match(pool)
    waiting, wanted = stage.job(held, pool, age=800), stage.job(other, pool, age=5)
    for _ in range(2):
        stage.pod(pool)
    hold(stage, held)
    stage.match(pool)
    assert stage.claimed() == [running, wanted]
    with stage.engine.begin() as db:
        set_access(db, held, Access.ALLOWED, by=author())
    stage.match(pool)
    assert stage.claimed() == [running, wanted, waiting]


def test_an_account_that_is_held_after_its_jobs_were_read_gets_no_claim(stage: Stage) -> None:
    pool, account, other = stage.pool(), stage.account(1), stage.account(2)
    stage.job(account, pool, age=900)
    wanted = stage.job(other, pool, age=5)
    for _ in range(2):
        stage.pod(pool)
    with stopped(stage.engine, "FROM accounts WHERE id = ANY", thread="matcher") as locking:
        matcher = start("matcher", lambda: stage.match(pool))
        locking.wait()
        hold(stage, account)
    matcher.result(DEADLINE)
    assert stage.claimed() == [wanted]


def test_a_spare_of_a_held_account_gets_no_job(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    first = stage.job(account, pool)
    stage.pod(pool)
    stage.match(pool)
    stage.change(
        "UPDATE claims SET state = 'delivered', delivered_at = :now, spare_since = :now, job_id = NULL", now=NOW
    )
    stage.change("UPDATE jobs SET state = 'completed', completed_at = :now WHERE id = :id", now=NOW, id=first)
    job = stage.job(account, pool)
    hold(stage, account)
    stage.match(pool)
    assert stage.claimed() == []
    with stage.engine.begin() as db:
        set_access(db, account, Access.ALLOWED, by=author())
    stage.match(pool)
    assert stage.claimed() == [job]


def hold(stage: Stage, account: int) -> None:
    with stage.engine.begin() as db:
        assert set_access(db, account, Access.HELD, by=author())
