"""Explanations of jobs that the matcher left, although Pods of their pool are free.

An explanation is true if its cure works: the test removes only the cause that the explanation names, and runs the
matcher again, until the job is matched or no Pod of its pool is free. A cause that the explanation cannot name ends the
test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.browse.jobs import job_story
from models.claims import matching
from models.db.engine import transaction
from rules.waiting.jobs import explain
from rules.waiting.steps import Explanation, WaitsFor
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW

TABLES = "accounts, pools, jobs, claims, runner_pods, offers, runner_failures, web_instances"
OLD = 400
"""Seconds after which a job gets a reservation: more than the setting `reserve_after`."""
CURES = 12
"""Upper bound on the causes of one job: each cure removes one."""


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def told(stage: Stage, job: int) -> Explanation:
    """Return the explanation of a job."""
    timings = stage.settings.timings
    story = transaction(stage.engine, lambda db: job_story(db, job, timings=timings, now=NOW))
    assert story is not None
    return explain(story.facts)


def free(stage: Stage, pool: int) -> int:
    """Return the number of Pods of a pool that the matcher can use."""
    return transaction(stage.engine, lambda db: matching.offered(db, pool, now=NOW)).free


def match_all(stage: Stage, pools: list[int]) -> None:
    """Run the matcher of every pool until no run makes a claim."""
    while sum(len(stage.match(pool).claims) for pool in pools):
        pass


def fail_runners(stage: Stage, pool: int, accounts: list[int]) -> None:
    """Record enough failures of runners to brake the pool, or its only account, while no probe is due."""
    for number, account in enumerate(accounts * 3):
        stage.change(
            """
            INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                         why)
            VALUES (:id, :pool, 'hash', :account, :id, :uid, :now, :now, 'ended')
            """,
            id=pool * 1000 + number,
            pool=pool,
            account=account,
            uid=f"failed-{pool}-{number}",
            now=NOW,
        )


def cure(stage: Stage, job: int, found: Explanation) -> None:
    """Remove the cause that an explanation names, and no other."""
    row = stage.rows("SELECT account_id, pool_id FROM jobs WHERE id = :id", id=job)[0]
    reserved = re.search(r"reserved for its older job (\d+) of org/app in pool", found.summary)
    where = {"pool": row.pool_id, "account": row.account_id}
    if found.waits_for is WaitsFor.BUDGET and reserved is not None:
        done = "UPDATE jobs SET state = 'completed' WHERE id = :id"
        assert stage.change(done, id=int(reserved[1])) == 1
    elif found.waits_for is WaitsFor.BUDGET:
        assert "has no room in its budget" in found.summary
        raised = "UPDATE accounts SET budget_count = 99, budget_vcpu = 99000, budget_memory = 999999 WHERE id = :id"
        stage.change(raised, id=row.account_id)
    elif "takes no new jobs" in found.summary:
        stage.change("UPDATE pools SET draining = false WHERE id = :pool", pool=row.pool_id)
    elif "is routing the jobs of the pool again" in found.summary:
        routed = "UPDATE pools SET rerouting_since = NULL, rerouting_jobs = '{}' WHERE id = :pool"
        stage.change(routed, pool=row.pool_id)
    elif "do not start" in found.summary:
        whole = "The runners of pool" in found.summary
        cleared = """
            UPDATE runner_failures SET cleared_at = now()
            WHERE pool_id = :pool AND (:whole OR account_id = :account)
        """
        assert stage.change(cleared, whole=whole, **where) > 0
    elif found.waits_for is WaitsFor.RESTORE:
        stage.change("UPDATE epochs SET older_since = NULL")
    else:
        pytest.fail(f"the matcher left job {job}, and the explanation names no rule: {found}")


size = st.sampled_from([1, 2, 4])
POOLS = st.lists(
    st.fixed_dictionaries(
        {
            "vcpu": size,
            "pods": st.integers(0, 3),
            "draining": st.integers(0, 5).map(lambda n: n == 0),
            "rerouting": st.integers(0, 5).map(lambda n: n == 0),
            "braked": st.sampled_from([(), (), (), (1,), (1, 2)]),
        }
    ),
    min_size=1,
    max_size=3,
)
ACCOUNTS = st.fixed_dictionaries(
    {"count": st.integers(0, 4), "vcpu": st.integers(0, 8), "weight": st.sampled_from([0.5, 1, 3])}
)
JOBS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 2), st.sampled_from([5, 60, OLD, OLD + 60]), st.integers(0, 1)),
    min_size=1,
    max_size=7,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(pools=POOLS, accounts=st.tuples(ACCOUNTS, ACCOUNTS), jobs=JOBS, older=st.integers(0, 9).map(lambda n: n == 0))
def test_explanation_of_a_job_that_was_left_names_the_rule_that_left_it(
    stage: Stage,
    pools: list[Mapping[str, Any]],
    accounts: tuple[Mapping[str, Any], ...],
    jobs: list[tuple[int, int, int, int]],
    *,
    older: bool,
) -> None:
    stage.change(f"TRUNCATE {TABLES} CASCADE")
    stage.beats("web-1")
    ids = [stage.pool(vcpu=pool["vcpu"], memory=1) for pool in pools]
    for number, account in enumerate(accounts, start=1):
        stage.account(number, **account)
    left = [
        stage.job(account, ids[pool % len(ids)], age=age, priority=priority) for account, pool, age, priority in jobs
    ]
    for pool, spec in zip(ids, pools, strict=True):
        for _ in range(spec["pods"]):
            stage.pod(pool)
        fail_runners(stage, pool, list(spec["braked"]))
        stage.change(
            """
            UPDATE pools SET draining = :draining, rerouting_since = CASE WHEN :rerouting THEN now() END
            WHERE id = :id
            """,
            id=pool,
            draining=spec["draining"],
            rerouting=spec["rerouting"],
        )
    stage.change("UPDATE epochs SET older_since = CASE WHEN :older THEN now() END", older=older)

    match_all(stage, ids)
    for job in left:
        for _ in range(CURES):
            (row,) = stage.rows("SELECT state, pool_id FROM jobs WHERE id = :id", id=job)
            if row.state != "queued" or not free(stage, row.pool_id):
                break
            cure(stage, job, told(stage, job))
            match_all(stage, ids)
        else:
            pytest.fail(f"job {job} waits after {CURES} cures: {told(stage, job)}")


def test_job_is_told_of_the_older_job_that_its_budget_is_reserved_for(stage: Stage) -> None:
    small, large = stage.pool(vcpu=2), stage.pool(vcpu=8)
    account = stage.account(1, vcpu=9)
    older = stage.job(account, large, age=OLD)
    job = stage.job(account, small, age=10)
    behind = stage.job(account, small, age=5)
    stage.pod(small)
    stage.pod(large)
    stage.match(small)
    assert stage.claimed() == []

    (name,) = stage.rows("SELECT name FROM pools WHERE id = :id", id=large)
    for each in (job, behind):
        found = told(stage, each)
        assert found.waits_for is WaitsFor.BUDGET
        assert f"reserved for its older job {older} of org/app in pool {name.name}, which waits since" in found.summary
        assert "8 vCPU and 4 GiB for 1 job" in found.summary
        assert "less of their share" not in found.summary
    assert told(stage, older).summary.endswith("the next run of the matcher gives it a Pod.")


def test_job_is_told_of_pods_whose_web_process_is_silent(stage: Stage) -> None:
    pool = stage.pool()
    job = stage.job(stage.account(1), pool)
    stage.pod(pool)
    stage.change("UPDATE web_instances SET beat_at = beat_at - interval '16 s'")
    stage.match(pool)
    found = told(stage, job)
    assert found.waits_for is WaitsFor.POD
    assert "1 of its Pods poll a web process that has sent no heartbeat" in found.summary


def test_job_behind_other_accounts_is_told_so(stage: Stage) -> None:
    pool = stage.pool()
    first, second = stage.job(stage.account(1), pool, age=60), stage.job(stage.account(2), pool, age=5)
    stage.pod(pool)
    assert "the next run of the matcher" in told(stage, first).summary
    assert "1 warm Pod for jobs that come first: those of accounts that use less" in told(stage, second).summary
