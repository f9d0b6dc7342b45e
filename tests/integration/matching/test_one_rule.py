"""Rules that stand in SQL as well as in Python: both languages decide the same for random rows.

The query of the queue heads reads the accounts in the order of `rules.claims.fairness`, and reserves nothing in a pool
that `rules.claims.runner_brakes` brakes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from models.claims import runner_failures
from models.claims.queue_heads import QueueHeads, read_queue_heads
from models.db.engine import transaction
from models.routing.usage import usage_of
from models.state.pools import Pool
from rules.claims.fairness import AccountView, Budget, JobHead, plan_batch, refusal
from rules.claims.runner_brakes import TOO_OLD
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW

TABLES = "accounts, pools, jobs, claims, runner_pods, offers, runner_failures, web_instances"
VCPU, MEMORY = 2, 1
SPARE_AFTER = 300.0
OLD = 400.0
LATER = 3600.0

RANDOM = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

ACCOUNT = st.fixed_dictionaries(
    {
        "count": st.sampled_from([0, 2, 4, 6]),
        "vcpu": st.sampled_from([3, 8, 12]),
        "memory": st.sampled_from([2, 4, 6]),
        "weight": st.sampled_from([0.25, 1.0, 3.0]),
    }
)
QUEUE = st.lists(st.tuples(st.sampled_from([5.0, 60.0, 120.0]), st.integers(0, 1)), min_size=1, max_size=3)


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def heads_of(db: Connection, pool: int, *, batch: int, last: Sequence[int] = ()) -> QueueHeads:
    shape = Pool(id=pool, vcpu=VCPU * 1000, memory=MEMORY * 1024, template_hash="hash", allowed_accounts=[])
    return read_queue_heads(db, shape, batch=batch, spare_after=SPARE_AFTER, reserve_after=OLD - 1, last=last, now=NOW)


@RANDOM
@given(
    accounts=st.lists(st.tuples(ACCOUNT, QUEUE, st.integers(0, 2)), min_size=2, max_size=5),
    batch=st.integers(1, 3),
    last=st.lists(st.integers(1, 5), unique=True, max_size=2),
)
def test_query_reads_the_accounts_that_the_fairness_rule_prefers(
    stage: Stage,
    accounts: list[tuple[Mapping[str, Any], list[tuple[float, int]], int]],
    batch: int,
    last: list[int],
) -> None:
    stage.change(f"TRUNCATE {TABLES} CASCADE")
    pool = stage.pool(vcpu=VCPU, memory=MEMORY)
    jobs: list[JobHead] = []
    views: dict[int, AccountView] = {}
    for number, (shape, queue, used) in enumerate(accounts, start=1):
        stage.account(number, **shape)
        for _ in range(used):
            stage.spare(number, pool, age=LATER)  # too old to get a job, and still in use
        jobs += [
            JobHead(
                job_id=stage.job(number, pool, age=age, priority=priority),
                account_id=number,
                priority=priority,
                queued_at=NOW - timedelta(seconds=age),
                vcpu_millicores=VCPU * 1000,
                memory_mib=MEMORY * 1024,
                pool_id=pool,
            )
            for age, priority in queue
        ]
        views[number] = AccountView(
            account_id=number,
            weight=shape["weight"],
            budget=Budget(shape["count"], shape["vcpu"] * 1000, shape["memory"] * 1024),
            usage=transaction(stage.engine, partial(usage_of, account_ids=[number]))[number],
        )
    totals = Budget(
        count=sum(each.budget.count for each in views.values()),
        vcpu_millicores=sum(each.budget.vcpu_millicores for each in views.values()),
        memory_mib=sum(each.budget.memory_mib for each in views.values()),
    )

    found = transaction(stage.engine, lambda db: heads_of(db, pool, batch=batch, last=last))

    admitted = [job for job in jobs if refusal(job, views[job.account_id]) is None]
    wanted: list[int] = []  # the accounts in the order in which the rule gives each of them its first job
    while left := [job for job in admitted if job.account_id not in wanted]:
        places = {account: place for place, account in enumerate(last, start=1)}
        wanted.append(plan_batch(left, views, totals=totals, slots=1, last=places).picks[0].account_id)
    assert {job.account_id for job in found.jobs} == set(wanted[:batch])


FAILURE = st.fixed_dictionaries(
    {
        "account": st.sampled_from([1, 1, 2, 2, 3]),
        "job": st.integers(1, 4),
        "uid": st.integers(1, 4).map("failed-{}".format),
        "code": st.sampled_from([None] * 10 + [1, TOO_OLD]),
        "template": st.sampled_from(["hash"] * 8 + ["older"]),
        "cleared": st.integers(0, 9).map(lambda n: n == 9),
    }
)


@RANDOM
@given(failures=st.lists(FAILURE, min_size=2, max_size=6))
def test_query_reserves_nothing_in_a_pool_that_the_rule_brakes(stage: Stage, failures: list[Mapping[str, Any]]) -> None:
    stage.change(f"TRUNCATE {TABLES} CASCADE")
    stage.beats("web-1")
    pool, other = stage.pool(vcpu=VCPU, memory=MEMORY), stage.pool(vcpu=VCPU, memory=MEMORY)
    stage.pod(other)
    for account in (1, 2, 3):
        stage.account(account)
        stage.job(account, pool, age=5)
        stage.job(account, other, age=OLD)
    for number, failure in enumerate(failures):
        stage.change(
            """
            INSERT INTO runner_failures (claim_id, pool_id, template_hash, account_id, job_id, pod_uid, claimed_at, at,
                                         exit_code, why, cleared_at)
            VALUES (:id, :pool, :template, :account, :job, :uid, :at, :at, :code, 'ended',
                    CASE WHEN :cleared THEN CAST(:at AS timestamptz) END)
            """,
            id=number,
            pool=other,
            at=NOW + timedelta(seconds=number),
            **failure,
        )

    def read(db: Connection) -> tuple[set[int], set[int]]:
        brake = runner_failures.read(db, other, "hash")
        free = {1, 2, 3} if brake is None else set() if brake.account_id is None else {1, 2, 3} - {brake.account_id}
        return free, set(heads_of(db, pool, batch=10).reservations)

    by_rule, by_query = transaction(stage.engine, read)
    assert by_query == by_rule
