"""One locked Pod, job or account does not prevent the other jobs of a pool from getting its free Pods (law L14)."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.database import Database
from tests.integration.concurrency.points import DEADLINE, start, stopped
from tests.integration.matching.stage import Stage, make_stage


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def test_matcher_claims_another_job_when_the_oldest_job_is_locked(stage: Stage) -> None:
    pool = stage.pool()
    locked = stage.job(stage.account(1), pool, age=500)
    wanted = stage.job(stage.account(2), pool, age=300)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        stage.match(pool)
        assert stage.claimed() == [wanted]


def test_matcher_reports_a_locked_job_as_skipped(stage: Stage) -> None:
    pool = stage.pool()
    locked = stage.job(stage.account(1), pool, age=500)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        for _ in range(2):
            matched = stage.match(pool)
            assert matched.again or matched.skipped


def test_matcher_claims_a_job_of_another_account_when_an_account_is_locked(stage: Stage) -> None:
    pool = stage.pool()
    stage.job(stage.account(1), pool, age=500)
    wanted = stage.job(stage.account(2), pool, age=300)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE"))
        stage.match(pool)
        assert stage.claimed() == [wanted]


def test_matcher_claims_another_pod_when_the_first_pod_is_locked(stage: Stage) -> None:
    pool = stage.pool()
    wanted = stage.job(stage.account(1), pool, age=500)
    first = stage.pod(pool)
    stage.pod(pool)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM runner_pods WHERE uid = :u FOR UPDATE"), {"u": first})
        stage.match(pool)
        assert stage.claimed() == [wanted]


def test_matcher_claims_the_next_job_of_an_account_when_its_first_job_is_locked(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    locked = stage.job(account, pool, age=100, priority=5)
    older, younger = stage.job(account, pool, age=400), stage.job(account, pool, age=300)
    stage.pod(pool)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        assert stage.match(pool).again
        assert stage.claimed() == [older, younger]
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [older, younger, locked]


def test_matcher_keeps_a_reservation_when_the_job_that_is_older_than_it_is_locked(stage: Stage) -> None:
    large, small = stage.pool(vcpu=4), stage.pool(vcpu=2)
    account = stage.account(1, vcpu=4)
    older = stage.job(account, small, age=900)
    stage.job(account, large, age=600)
    stage.job(account, small, age=500)
    stage.pod(small)
    stage.pod(large)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": older})
        stage.match(small)
        assert stage.claimed() == [], "the younger job leaves the room to the job of the other pool"
    stage.match(small)
    assert stage.claimed() == [older]


def test_matcher_never_exceeds_a_budget_when_rows_are_locked(stage: Stage) -> None:
    pool = stage.pool()
    narrow, locked_account = stage.account(1, count=1), stage.account(2)
    locked = stage.job(narrow, pool, age=900)
    wanted = stage.job(narrow, pool, age=800)
    stage.job(narrow, pool, age=700)
    stage.job(locked_account, pool, age=600)
    for _ in range(4):
        stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        holder.execute(text("SELECT 1 FROM accounts WHERE id = 2 FOR UPDATE"))
        assert stage.match(pool).skipped
        stage.match(pool)
        assert stage.claimed() == [wanted]


def test_matchers_of_two_pools_share_an_account_without_waiting_for_each_other(stage: Stage) -> None:
    first, second = stage.pool(), stage.pool()
    shared, other = stage.account(1), stage.account(2)
    jobs = [stage.job(shared, first, age=900), stage.job(shared, second, age=800), stage.job(other, second, age=700)]
    for pool in (first, second):
        stage.pod(pool)
    with stopped(stage.engine, "INSERT INTO claims", thread="first") as inserting:
        matcher = start("first", lambda: stage.match(first))
        inserting.wait()
        beside = stage.match(second)
        assert beside.again, "the skipped account is checked again"
        assert stage.claimed() == [jobs[2]]
        assert not matcher.done()
    matcher.result(DEADLINE)
    stage.pod(second)
    stage.match(second)
    assert sorted(stage.claimed()) == sorted(jobs)


def test_matcher_claims_when_the_row_of_its_pool_is_locked(stage: Stage) -> None:
    pool, account = stage.pool(), stage.account(1)
    wanted = stage.job(account, pool, age=900)
    stage.job(account, pool, age=800)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM pools WHERE id = :id FOR NO KEY UPDATE"), {"id": pool})
        stage.match(pool)
        assert stage.claimed() == [wanted]
    stage.match(pool)
    (row,) = stage.rows("SELECT wants_pods FROM pools WHERE id = :id", id=pool)
    assert row.wants_pods, "it is written by the next run"


@pytest.mark.parametrize(
    "moved",
    ["state = 'completed', completed_at = now()", "hold_reason = 'no_pool', pool_id = NULL"],
    ids=["completed", "held"],
)
def test_matcher_claims_no_job_that_moved_after_it_was_read(stage: Stage, moved: str) -> None:
    pool = stage.pool()
    job = stage.job(stage.account(1), pool)
    stage.pod(pool)
    with stopped(stage.engine, "SELECT id FROM jobs WHERE id = ANY", thread="matcher") as locking:
        matcher = start("matcher", lambda: stage.match(pool))
        locking.wait()
        with stage.engine.begin() as db:
            db.execute(text(f"UPDATE jobs SET {moved} WHERE id = :id"), {"id": job})  # noqa: S608
    matcher.result(DEADLINE)
    assert stage.rows("SELECT id FROM claims") == []
