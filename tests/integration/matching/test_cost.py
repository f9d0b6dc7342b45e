"""Cost of a matcher run for Postgres: statements, plans and read rows are counted, and no time is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from models.claims.matching import lock_pool
from models.claims.queue_heads import read_queue_heads
from models.routing.usage import usage_of
from models.state.pools import Pool
from tests.database import Database
from tests.integration.matching.stage import PLENTY, Stage, make_stage
from tests.integration.models.webhook_rows import NOW

DEEP = 3000
STATEMENTS = 10
"""Statements of a run that pairs jobs and finds neither spares nor failing installations."""


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a node of a plan and all nodes below it."""
    yield node
    for child in node.get("Plans", []):
        yield from nodes(child)


def deep_queue(stage: Stage, account: int, pool: int, *, age: int) -> None:
    """Queue many jobs of an account in a pool, all older than `age` seconds."""
    first = stage.job(account, pool, age=age)
    with stage.engine.begin() as db:
        db.execute(
            text("""
                INSERT INTO jobs (id, account_id, installation_id, repository, scope, run_id, run_attempt, name, labels,
                                  state, pool_id, priority, queued_at, changed_at)
                SELECT 1000000 * :pool + n, account_id, 1, repository, scope, 1, 1, name, labels, 'queued', pool_id, 0,
                       queued_at - n * interval '1 second', changed_at
                FROM jobs, generate_series(1, :count) n WHERE jobs.id = :first
            """),
            {"first": first, "count": DEEP, "pool": pool},
        )


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("second_pool", [False, True], ids=["one pool", "deep in two pools"])
def test_no_deep_queue_is_walked(stage: Stage, plan: str, second_pool: bool) -> None:
    account, pool, other = stage.account(1), stage.pool(), stage.pool()
    # The other pool's jobs are the younger: whoever looks for them by age alone meets all of this pool's first.
    deep_queue(stage, account, pool, age=100_000)
    stage.pod(pool)
    if second_pool:
        deep_queue(stage, account, other, age=10_000)
        stage.pod(other)
    with stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("VACUUM ANALYZE jobs, offers, pools, accounts"))
    with stage.engine.connect() as db:
        db.execute(text("SELECT set_config('plan_cache_mode', :plan, true)"), {"plan": plan})
        row = Pool(id=pool, vcpu=2000, memory=4096, template_hash="hash", allowed_accounts=[])
        heads, read = _plan_of_heads(db, row)
    assert len(heads.jobs) == 2
    assert (1 in heads.reservations) is second_pool
    assert read < 20, f"{read} rows of jobs were read for {len(heads.jobs)} heads"


@pytest.mark.parametrize("seed", [None, "a plan may rest on a table being small"])
def test_a_plan_made_while_the_tables_were_empty_walks_no_queue_either(stage: Stage, seed: str | None) -> None:
    account, pool = stage.account(1), stage.pool()
    with stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("VACUUM ANALYZE jobs, offers, pools, accounts, claims"))
    with stage.engine.connect() as db:
        shape = lock_pool(db, pool)
        assert shape is not None
        if seed is not None:
            db.execute(text("SET LOCAL enable_seqscan = on"))
        db.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        read_queue_heads(db, shape, batch=1, spare_after=60, reserve_after=300, now=NOW)
        deep_queue(stage, account, pool, age=100_000)
        _, read = _plan_of_heads(db, shape)
    assert (read < 20) is (seed is None), f"{read} rows of jobs were read"


def _plan_of_heads(db: Connection, pool: Pool) -> tuple[Any, float]:
    """Return the heads, and the number of rows of `jobs` that were checked for them."""
    heads, plan = _explained(
        db, lambda: read_queue_heads(db, pool, batch=1, spare_after=60, reserve_after=300, now=NOW)
    )
    return heads, sum(
        float(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in nodes(plan)
        if node.get("Relation Name") == "jobs"
    )


@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("accounts", [1, 100])
def test_usage_reads_ending_pods_from_partial_indexes(stage: Stage, plan: str, accounts: int) -> None:
    pool = stage.pool()
    for account in range(1, accounts + 1):
        stage.account(account, count=DEEP + PLENTY, vcpu=DEEP + PLENTY, memory=DEEP + PLENTY)
    stage.job(1, pool)
    stage.pod(pool)
    with stage.engine.begin() as db:
        db.execute(
            text("""
                INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at,
                                         terminal_at, charged_account_id, charged_vcpu, charged_memory)
                SELECT :pool, 'n', 'ending-' || n, 'ending-' || n, 'a', 'h', :now,
                       CASE WHEN n > :ending THEN CAST(:now AS timestamptz) END, 1 + n % :accounts, 1000, 1024
                FROM generate_series(1, 5 * :ending) n
            """),
            {"pool": pool, "now": NOW, "ending": DEEP, "accounts": accounts},
        )
    with stage.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        db.execute(text("VACUUM ANALYZE runner_pods, claims, executions, mint_attempts"))
    with stage.engine.connect() as db:
        shape = lock_pool(db, pool)
        assert shape is not None
        db.execute(text("SELECT set_config('plan_cache_mode', :plan, true)"), {"plan": plan})
        for ask in (
            lambda: usage_of(db, list(range(1, accounts + 1))),
            lambda: read_queue_heads(db, shape, batch=1, spare_after=60, reserve_after=300, now=NOW),
        ):
            found, explained = _explained(db, ask)
            scans = [each for each in nodes(explained) if each.get("Relation Name") in {"runner_pods", "executions"}]
            scans += [each for each in nodes(explained) if each.get("Index Name") == "ix_claims_live_account"]
            assert not [each for each in scans if each["Node Type"] == "Seq Scan"]
            read = sum(each["Actual Loops"] * each["Actual Rows"] for each in scans)
            assert read <= DEEP + 10, f"{read} rows for {DEEP} Pods that count"
            assert {each.get("Index Name") for each in nodes(explained)} >= {"ix_runner_pods_charged"}
            used = found if isinstance(found, dict) else {k: v.usage for k, v in found.accounts.items()}
            assert used[1].count == DEEP // accounts


def _explained(db: Connection, ask: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the result of the last statement of `ask`, and its plan with the rows that it read."""
    sent: list[tuple[str, Any]] = []
    event.listen(db, "before_cursor_execute", lambda _db, _cur, sql, values, *_: sent.append((sql, values)))
    found = ask()
    statement, values = sent[-1]
    (plan,) = db.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).one()
    return found, plan[0]["Plan"]


def test_a_run_is_few_statements_and_the_second_on_a_connection_plans_none_of_them(stage: Stage) -> None:
    account, pool = stage.account(1), stage.pool()
    for _ in range(3):
        stage.job(account, pool)
        stage.pod(pool)
    sent: list[str] = []
    stage.engine.pool.dispose()
    stage.settings.timings.__dict__["match_batch"] = 1
    event.listen(stage.engine, "before_cursor_execute", lambda _db, _cur, sql, *_: sent.append(sql))
    assert len(stage.match(pool).claims) == 1
    assert [sql for sql in sent if sql.startswith("PREPARE ")]
    sent.clear()
    assert len(stage.match(pool, now=NOW + timedelta(seconds=1)).claims) == 1
    assert not [sql for sql in sent if sql.startswith("PREPARE ")]
    assert len(sent) <= STATEMENTS, sent
