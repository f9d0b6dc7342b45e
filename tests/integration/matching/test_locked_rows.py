"""One locked Pod, job or account does not keep a pool with free Pods from its other jobs (law L14)."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage

STARVES = pytest.mark.xfail(
    strict=True, reason="the matcher chooses before it locks, so one locked row starves a pool that has free Pods"
)


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


@STARVES
def test_matcher_claims_another_job_when_the_oldest_job_is_locked(stage: Stage) -> None:
    pool = stage.pool()
    locked = stage.job(stage.account(1), pool, age=500)
    wanted = stage.job(stage.account(2), pool, age=300)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        stage.match(pool)
        assert stage.claimed() == [wanted]


@pytest.mark.xfail(strict=True, reason="a locked job is not counted as skipped, so no wake-up follows")
def test_matcher_reports_a_locked_job_as_skipped(stage: Stage) -> None:
    pool = stage.pool()
    locked = stage.job(stage.account(1), pool, age=500)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        for _ in range(2):
            matched = stage.match(pool)
            assert matched.again or matched.skipped


@STARVES
def test_matcher_claims_a_job_of_another_account_when_an_account_is_locked(stage: Stage) -> None:
    pool = stage.pool()
    stage.job(stage.account(1), pool, age=500)
    wanted = stage.job(stage.account(2), pool, age=300)
    stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE"))
        stage.match(pool)
        assert stage.claimed() == [wanted]


@STARVES
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
