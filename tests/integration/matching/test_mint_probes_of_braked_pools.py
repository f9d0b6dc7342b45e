"""A probe of a failing installation never uses a job that the runner brake of its pool holds back."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from models.upstream import backoffs
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.matching.test_brakes import account_of, at, fail, fleet, match
from tests.integration.models.webhook_rows import NOW

DUE = 70
"""Seconds after the start at which a probe of the installation is due, and none of a braked pool's runner."""


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def brake_until(stage: Stage, pool: int, *, runner_probe: datetime) -> None:
    """Brake a pool for its jobs, so that its next runner is probed at `runner_probe`."""
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    with stage.engine.begin() as db:
        db.execute(text("UPDATE runner_failures SET at = :at"), {"at": runner_probe - timedelta(seconds=10)})


def refuse_mints(stage: Stage) -> None:
    """Let mints of the installation fail in the past: all queued jobs are held, and a probe is due."""
    with stage.engine.begin() as db:
        backoffs.record_failure(db, kind="installation", key="1", reason="mints fail", now=at(45))
        db.execute(text("UPDATE backoffs SET not_before = :until"), {"until": at(300)})
        db.execute(text("UPDATE jobs SET not_before = :until WHERE hold_reason = 'backoff'"), {"until": at(300)})


def probe(stage: Stage) -> int | None:
    """Return the job that passed the backoff as a probe, or None."""
    found: int | None = stage.rows("SELECT probe_job_id FROM backoffs WHERE kind = 'installation'")[0].probe_job_id
    return found


def test_braked_pool_leaves_the_mint_probe_to_a_pool_that_can_run_it(stage: Stage) -> None:
    braked = fleet(stage, 1, 2)
    brake_until(stage, braked, runner_probe=at(200))
    healthy = stage.pool()
    stage.pod(healthy)
    job = stage.job(2, healthy, age=0)
    refuse_mints(stage)

    assert match(stage, braked, now=at(DUE)) == ()
    assert probe(stage) is None

    assert len(match(stage, healthy, now=at(DUE))) == 1
    assert probe(stage) == job


def test_mint_probe_is_no_job_of_an_account_that_is_braked_alone(stage: Stage) -> None:
    pool = fleet(stage, 1)
    brake_until(stage, pool, runner_probe=at(200))
    stage.account(2)
    job = stage.job(2, pool, age=0)
    refuse_mints(stage)

    (claim,) = match(stage, pool, now=at(DUE))

    assert account_of(stage, claim) == 2
    assert probe(stage) == job


def test_mint_probe_waits_while_another_job_is_the_probe_of_the_runners(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    brake_until(stage, pool, runner_probe=at(60))
    refuse_mints(stage)
    stage.account(3)
    free = stage.job(3, pool, age=0)

    match(stage, pool, now=at(DUE))

    assert stage.claimed() == [free]
    assert probe(stage) is None


def test_mint_probe_of_a_braked_account_waits_while_another_job_probes_the_runners(stage: Stage) -> None:
    pool = fleet(stage, 1)
    brake_until(stage, pool, runner_probe=at(60))
    refuse_mints(stage)
    free = stage.job(1, pool, age=5000)

    match(stage, pool, now=at(DUE))

    assert stage.claimed() == [free]
    assert probe(stage) is None


@pytest.mark.parametrize("accounts", [(1,), (1, 2)], ids=["account", "pool"])
def test_one_job_is_the_probe_of_mints_and_runners_where_no_other_may_go(
    stage: Stage, accounts: tuple[int, ...]
) -> None:
    pool = fleet(stage, *accounts)
    brake_until(stage, pool, runner_probe=at(60))
    refuse_mints(stage)

    match(stage, pool, now=at(DUE))

    assert stage.claimed() == [probe(stage)]
