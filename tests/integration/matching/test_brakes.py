"""A pool whose runners never execute gets one claim at a time, and other pools are not affected."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from models.claims import releases, runner_failures
from models.db.engine import transaction
from rules.claims.job_outcomes import JobOutcome, NextStep
from rules.claims.runner_brakes import Brake
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW

QUEUED = JobOutcome(NextStep.REQUEUE, "GitHub says that the job is queued")


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def at(seconds: float) -> datetime:
    """Return the time `seconds` after the start of the test."""
    return NOW + timedelta(seconds=seconds)


def match(stage: Stage, pool: int, *, now: datetime) -> Sequence[int]:
    """Run the matcher with a live web process, and return its claims."""
    with stage.engine.begin() as db:
        db.execute(text("UPDATE web_instances SET beat_at = :now"), {"now": now})
        db.execute(text("UPDATE offers SET until = :until"), {"until": now + timedelta(seconds=50)})
    return stage.match(pool, now=now).claims


def fail(
    stage: Stage, claims: Sequence[int], *, now: datetime, code: int = 0, job_outcome: JobOutcome = QUEUED
) -> None:
    """Let the runners of claims end without a job, as a release finds them."""
    with stage.engine.begin() as db:
        db.execute(
            text("""
                UPDATE claims SET state = 'releasing', delivered_at = created_at, release_reason = 'the Pod has ended',
                       leased_until = :now
                WHERE id = ANY(:ids)
            """),
            {"ids": list(claims), "now": now - timedelta(seconds=1)},
        )
        db.execute(
            text("""
                UPDATE runner_pods SET terminal_at = :now, runner_exit_code = :code, poller_exit_code = 0
                WHERE uid IN (SELECT pod_uid FROM claims WHERE id = ANY(:ids))
            """),
            {"ids": list(claims), "now": now, "code": code},
        )
        db.execute(text("UPDATE epochs SET trusted_until = 'infinity', trusted_server = pg_postmaster_start_time()"))
    for claim in claims:
        work = transaction(stage.engine, lambda db: releases.begin_release(db, claim, now=now))  # noqa: B023
        assert work is not None
        transaction(
            stage.engine,
            lambda db: releases.end_delivered(db, work, job_outcome, now=now, who="test", retire_due=10),  # noqa: B023
        )


def execute(stage: Stage, claim: int, *, now: datetime) -> Sequence[int]:
    """Let a claim execute."""
    return transaction(stage.engine, lambda db: runner_failures.executed(db, [claim], now=now))


def brake(stage: Stage, pool: int, template: str = "hash") -> Brake | None:
    return transaction(stage.engine, lambda db: runner_failures.read(db, pool, template))


def account_of(stage: Stage, claim: int) -> int:
    return int(stage.rows("SELECT account_id FROM claims WHERE id = :id", id=claim)[0].account_id)


def fleet(stage: Stage, *accounts: int, jobs: int = 3, pods: int = 20, age: float = 1000) -> int:
    """Return a pool with Pods, and with `jobs` jobs of each account."""
    pool = stage.pool()
    for account in accounts:
        stage.account(account)
        for number in range(jobs):
            stage.job(account, pool, age=age - number)
    for _ in range(pods):
        stage.pod(pool)
    return pool


def test_a_pool_gets_one_probe_after_runners_of_three_jobs_never_executed(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    first = match(stage, pool, now=NOW)
    assert len(first) == 6
    fail(stage, first, now=at(40))
    assert stage.rows("SELECT 1 FROM jobs WHERE state <> 'queued' OR hold_reason IS NOT NULL") == []

    assert match(stage, pool, now=at(49)) == ()
    (probe,) = match(stage, pool, now=at(51))
    assert match(stage, pool, now=at(52)) == ()

    fail(stage, [probe], now=at(90))
    assert match(stage, pool, now=at(109)) == ()
    assert len(match(stage, pool, now=at(111))) == 1
    assert match(stage, pool, now=at(400)) == ()


def test_a_claim_from_before_the_brake_is_no_probe(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    first = match(stage, pool, now=NOW)
    fail(stage, first[1:], now=at(40))

    assert len(match(stage, pool, now=at(51))) == 1


def test_two_jobs_that_fail_hold_nobody_back(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=2)
    fail(stage, match(stage, pool, now=NOW), now=at(40))

    assert len(match(stage, pool, now=at(41))) == 2


def test_an_account_whose_runners_alone_fail_is_braked_alone(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=5)
    failed = match(stage, pool, now=NOW)
    fail(stage, failed, now=at(40))
    stage.account(2)
    jobs = {stage.job(2, pool) for _ in range(3)}

    others = match(stage, pool, now=at(41))

    assert [account_of(stage, claim) for claim in others] == [2, 2, 2]
    (probe,) = match(stage, pool, now=at(60))
    assert account_of(stage, probe) == 1
    assert set(stage.claimed()) > jobs


def test_a_braked_account_takes_no_place_of_others_in_a_small_batch(database: Database) -> None:
    stage = make_stage(database, match_batch=1)
    pool = fleet(stage, 1, jobs=3)
    failed = [claim for second in range(3) for claim in match(stage, pool, now=at(second))]
    fail(stage, failed, now=at(40))
    stage.account(2)
    stage.job(2, pool, age=0)

    (claim,) = match(stage, pool, now=at(41))

    assert account_of(stage, claim) == 2


def test_the_first_execution_opens_the_pool(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    (probe,) = match(stage, pool, now=at(51))

    assert execute(stage, probe, now=at(60)) == [pool]

    assert brake(stage, pool) is None
    assert len(match(stage, pool, now=at(61))) == 5


def test_an_execution_of_another_account_opens_nothing_for_a_braked_account(stage: Stage) -> None:
    pool = fleet(stage, 1)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    stage.account(2)
    stage.job(2, pool)
    (other,) = match(stage, pool, now=at(41))

    assert execute(stage, other, now=at(42)) == []

    found = brake(stage, pool)
    assert found is not None
    assert found.account_id == 1


def test_a_new_template_opens_the_pool_at_once(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    with stage.engine.begin() as db:
        db.execute(text("UPDATE pools SET template_hash = 'mended' WHERE id = :id"), {"id": pool})

    assert len(match(stage, pool, now=at(41))) == 6


def test_pods_of_an_old_template_neither_count_nor_reset(stage: Stage) -> None:
    pool = fleet(stage, 1, 2, jobs=2)
    old = match(stage, pool, now=NOW)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE pools SET template_hash = 'mended' WHERE id = :id"), {"id": pool})
    fail(stage, old[1:], now=at(40))
    assert stage.rows("SELECT 1 FROM runner_failures") == []
    for _ in range(6):
        stage.pod(pool, template="mended")
    fail(stage, match(stage, pool, now=at(41)), now=at(80))
    assert brake(stage, pool, "mended") is not None

    assert execute(stage, old[0], now=at(81)) == []

    assert brake(stage, pool, "mended") is not None


@pytest.mark.parametrize(
    "job_outcome",
    [
        JobOutcome(NextStep.FINISH, "GitHub says that the job is over", "cancelled"),
        JobOutcome(NextStep.RUNNING, "it runs elsewhere"),
    ],
    ids=["over", "elsewhere"],
)
def test_a_runner_whose_job_is_not_queued_any_more_counts_neither_way(stage: Stage, job_outcome: JobOutcome) -> None:
    pool = fleet(stage, 1, 2)
    fail(stage, match(stage, pool, now=NOW), now=at(40), job_outcome=job_outcome)

    assert stage.rows("SELECT 1 FROM runner_failures") == []


def test_a_runner_whose_job_was_over_before_github_was_asked_does_not_count(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    claims = match(stage, pool, now=NOW)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE jobs SET state = 'completed', completed_at = now(), conclusion = 'cancelled'"))

    fail(stage, claims, now=at(40))

    assert stage.rows("SELECT 1 FROM runner_failures") == []


def test_a_pod_that_was_evicted_does_not_count(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    claims = match(stage, pool, now=NOW)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE runner_pods SET exit_reason = 'EvictionByEvictionAPI', deletion_at = now()"))

    fail(stage, claims, now=at(40))

    assert stage.rows("SELECT 1 FROM runner_failures") == []


def test_one_runner_that_is_too_old_brakes_the_pool(stage: Stage) -> None:
    pool = fleet(stage, 1, 2, jobs=1)
    (claim, *_) = match(stage, pool, now=NOW)
    fail(stage, [claim], now=at(5), code=7)
    stage.job(2, pool)

    assert match(stage, pool, now=at(6)) == ()
    found = brake(stage, pool)
    assert found is not None
    assert found.too_old


def test_a_job_is_set_aside_after_three_runners_and_tried_hourly(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=1)
    for number in range(3):
        begun = at(100 * number)
        claims = match(stage, pool, now=begun)
        assert len(claims) == 1, number
        fail(stage, claims, now=begun + timedelta(seconds=40), code=134)

    (job,) = stage.rows("SELECT hold_reason, hold_detail, not_before FROM jobs")

    assert (job.hold_reason, job.not_before) == ("set_aside", at(3840))
    assert "3 runners of pool" in job.hold_detail
    assert "container `runner` exited 134" in job.hold_detail
    assert match(stage, pool, now=at(400)) == ()


@pytest.mark.parametrize("state", ["queued", "claimed"], ids=["released", "not released yet"])
def test_job_set_aside_is_checked_at_once_when_the_pool_is_fixed(stage: Stage, state: str) -> None:
    pool = fleet(stage, 1, jobs=1)
    for number in range(3):
        fail(stage, match(stage, pool, now=at(100 * number)), now=at(100 * number + 40))
    with stage.engine.begin() as db:
        db.execute(text("UPDATE jobs SET state = :state"), {"state": state})

    mended = transaction(stage.engine, lambda db: runner_failures.clear_old_templates(db, pool, "mended", now=at(500)))

    assert mended == 3
    assert [row.not_before for row in stage.rows("SELECT not_before FROM jobs")] == [at(500)]


def test_a_braked_pool_keeps_no_budget_from_another_pool_of_its_account(stage: Stage) -> None:
    bad = fleet(stage, 1, 2)
    fail(stage, match(stage, bad, now=NOW), now=at(40))
    good = stage.pool()
    stage.pod(good)
    job = stage.job(1, good, age=0)
    with stage.engine.begin() as db:
        db.execute(text("UPDATE accounts SET budget_count = 1"))

    claims = match(stage, good, now=at(41))

    assert len(claims) == 1
    assert job in stage.claimed()


@pytest.mark.parametrize("batch", [20, 1])
def test_pool_probe_goes_to_an_account_without_failures_first(database: Database, batch: int) -> None:
    stage = make_stage(database, match_batch=batch)
    pool = fleet(stage, 1, 2)
    failed = [claim for second in range(6) for claim in match(stage, pool, now=at(second))]
    fail(stage, failed, now=at(40))
    stage.account(3)
    stage.job(3, pool, age=0)

    (probe,) = match(stage, pool, now=at(51))

    assert account_of(stage, probe) == 3


def test_pool_probes_rotate_over_the_accounts_that_fail(stage: Stage) -> None:
    pool = fleet(stage, 1, 2, 3, jobs=2, pods=30)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    probed = []
    for _ in range(6):
        found = brake(stage, pool)
        assert found is not None
        claims = match(stage, pool, now=found.probe_at)
        probed += [account_of(stage, claim) for claim in claims]
        fail(stage, claims, now=found.probe_at + timedelta(seconds=20))
        with stage.engine.begin() as db:
            db.execute(text("UPDATE jobs SET hold_reason = NULL, not_before = NULL WHERE state = 'queued'"))

    assert sorted(probed[:3]) == [1, 2, 3]
    assert probed[3:] == probed[:3]


def test_pool_probe_goes_to_another_account_when_the_first_has_no_room(stage: Stage) -> None:
    pool = fleet(stage, 1, 2)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    stage.account(3, count=1)
    stage.spare(3, pool, age=-50)
    stage.job(3, pool, age=0)

    (probe,) = match(stage, pool, now=at(52))

    assert account_of(stage, probe) in {1, 2}


def test_a_failure_of_another_account_does_not_pass_on_a_long_wait(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=20, pods=60)
    fail(stage, match(stage, pool, now=NOW), now=at(40))
    for _ in range(6):
        found = brake(stage, pool)
        assert found is not None
        fail(stage, match(stage, pool, now=found.probe_at), now=found.probe_at + timedelta(seconds=20))
    found = brake(stage, pool)
    assert found is not None
    begun = found.last_at + timedelta(seconds=30)
    stage.account(2)
    stage.job(2, pool)
    claims = match(stage, pool, now=begun)
    assert [account_of(stage, claim) for claim in claims] == [2]

    fail(stage, claims, now=begun + timedelta(seconds=40))

    found = brake(stage, pool)
    assert found is not None
    assert (found.account_id, found.probe_at) == (None, begun + timedelta(seconds=50))


def test_an_execution_of_any_account_opens_a_pool_whose_version_was_refused(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=1)
    fail(stage, match(stage, pool, now=NOW), now=at(5), code=7)
    stage.account(2)
    stage.job(2, pool)
    (probe,) = match(stage, pool, now=at(20))
    assert account_of(stage, probe) == 2

    assert execute(stage, probe, now=at(25)) == [pool]

    assert brake(stage, pool) is None


def test_one_failure_of_another_account_ends_no_reservation(stage: Stage) -> None:
    big = fleet(stage, 9, jobs=1)
    fail(stage, match(stage, big, now=NOW), now=at(10))
    stage.account(1, count=1)
    small = stage.pool()
    stage.pod(small)
    stage.job(1, big, age=4000)
    stage.job(1, small, age=1)

    assert match(stage, small, now=at(20)) == ()


def test_an_execution_lifts_a_job_set_aside_without_a_brake_once(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=1)
    for number in range(3):
        fail(stage, match(stage, pool, now=at(100 * number)), now=at(100 * number + 40))
    assert brake(stage, pool) is None
    stage.job(1, pool, age=0)
    (other,) = match(stage, pool, now=at(400))

    execute(stage, other, now=at(410))

    (aside,) = stage.rows("SELECT not_before FROM jobs WHERE hold_reason = 'set_aside'")
    assert aside.not_before == at(410)


def of_version(stage: Stage, pool: int, *, accepted_for: timedelta | None = None) -> None:
    """Let the runners of a pool report one version, which GitHub accepts for this time."""
    with stage.engine.begin() as db:
        db.execute(
            text("""
                INSERT INTO runner_versions (pool_id, version, template_hash, seen_at, ends_at)
                VALUES (:pool, '2.336.0', 'hash', :now, :ends)
            """),
            {"pool": pool, "now": NOW, "ends": None if accepted_for is None else NOW + accepted_for},
        )


def test_refusal_of_a_version_that_githubs_list_accepts_is_described_as_an_incident(stage: Stage) -> None:
    pool = fleet(stage, 1, jobs=1)
    of_version(stage, pool, accepted_for=timedelta(days=20))
    for second in (0, 100, 200):
        fail(stage, match(stage, pool, now=at(second)), now=at(second + 5), code=7)

    found = brake(stage, pool)
    assert found is not None
    assert "GitHub's own list accepts version 2.336.0 until 2026-" in found.describe()
    assert found.probe_at - found.last_at == timedelta(seconds=40)


@pytest.mark.parametrize("accepted_for", [None, timedelta(days=-1)])
def test_refusal_that_githubs_list_announced_is_no_incident(stage: Stage, accepted_for: timedelta | None) -> None:
    pool = fleet(stage, 1, jobs=1)
    of_version(stage, pool, accepted_for=accepted_for)
    fail(stage, match(stage, pool, now=NOW), now=at(5), code=7)

    found = brake(stage, pool)
    assert found is not None
    assert found.accepted is None


def test_execution_in_one_pool_opens_every_pool_whose_same_version_was_refused(stage: Stage) -> None:
    pools = [fleet(stage, 2 * number + 1, 2 * number + 2, jobs=2) for number in range(3)]
    first, second, _other = pools
    for pool in (first, second):
        of_version(stage, pool)
    claims = {pool: match(stage, pool, now=NOW) for pool in pools}
    for pool in pools:
        fail(stage, claims[pool][1:], now=at(5), code=7)

    assert execute(stage, claims[first][0], now=at(6)) == [first]  # claimed before the refusal in the second pool
    (probe, *_) = match(stage, first, now=at(20))
    assert execute(stage, probe, now=at(25)) == [second]

    assert [brake(stage, pool) is None for pool in pools] == [True, True, False]
