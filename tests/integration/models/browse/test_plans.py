"""Every list and every filter uses an index at 100,000 rows: no table is scanned whole, and nothing is sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from lab.postgres import Postgres
from models.browse.accounts import AccountFilter, account_choices, list_accounts
from models.browse.claims import ClaimFilter, list_claims
from models.browse.jobs import JobFilter, list_jobs
from models.browse.pods import PodFilter, list_pods
from models.browse.pools import PoolFilter, list_pools, pool_choices
from models.browse.repairs import RepairFilter, list_repairs
from models.browse.waits import queue_age
from models.db import client_waits
from models.db.engine import make_engine
from ostler.secrets import Secret
from rules.claims.machines import ClaimState, JobState, Purpose
from rules.routing.holds import HoldReason
from rules.sweeps.limits import Repaired

ROWS = 100_000
FEW = 1000
"""Rows that a page may check: slightly more than the live claims."""
_FILL = """
    INSERT INTO accounts SELECT n, 'account-' || n, 1, 10, 10, 10, '[]', now() FROM generate_series(1, :rows) n;
    INSERT INTO pools (uid, namespace, name, image, labels, runner_group_id, vcpu, memory, replicas, allowed_accounts,
                       allowed_repositories, routing_priority, template_hash, created_at, deleted_at)
    SELECT n, 'r', 'pool-' || n, 'i', '{linux}', 1, 1000, 1024, 1, '{}', '{}', 0, 'h', now(),
           CASE WHEN n % 10 > 0 THEN now() END
    FROM generate_series(1, :rows) n;
    INSERT INTO runner_pods (pool_id, namespace, name, uid, attempt_id, template_hash, created_at)
    SELECT 1 + n % 500, 'r', 'pod-' || n, 'pod-' || n, 'a', 'h', now() FROM generate_series(1, :rows) n;
    INSERT INTO jobs (id, account_id, repository, scope, run_id, run_attempt, name, labels, state, pool_id, hold_reason,
                      queued_at, changed_at)
    SELECT n, 1 + n % 1000, 'acme/repo-' || n % 3000, 'orgs/acme', 1, 1, 'build', '{linux}',
           CASE WHEN n % 400 = 19 THEN 'running' WHEN n % 20 < 18 THEN 'completed' ELSE 'queued' END, 1 + n % 500,
           CASE WHEN n % 400 = 18 THEN 'no_pool' END, now(), now()
    FROM generate_series(1, :rows) n;
    INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, vcpu, memory, state, created_at,
                        changed_at, ended_at)
    SELECT CASE WHEN n % 3 = 0 THEN 'retire' ELSE 'job' END, CASE WHEN n % 3 > 0 THEN n END, n, 'pod-' || n,
           1 + n % 500, CASE WHEN n % 3 > 0 THEN 1 + n % 1000 END, 1000, 1024,
           CASE WHEN n % 200 > 0 THEN 'ended' ELSE 'executing' END, now(), now(), CASE WHEN n % 200 > 0 THEN now() END
    FROM generate_series(1, :rows) n;
    INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at, ended_at)
    SELECT n, 'runner-' || n, n, 1 + n % 1000, 1000, 1024, now(), CASE WHEN n % 400 > 19 THEN now() END
    FROM generate_series(1, :rows) n;
    INSERT INTO repairs (sweep, run_id, at, what, why, witnesses, kills, dry, pod_uid, claim_id, job_id, expects,
                         outcome, verify_by)
    SELECT 'sweep-' || n % 15, n / 10, now(), 'w', 'w', '{}', false, n % 500 = 0, 'pod-' || n % 3000, n % 3000,
           n % 3000, 'own', CASE WHEN n % 500 = 0 THEN 'dry' WHEN n % 200 = 1 THEN 'failed' ELSE 'verified' END, now()
    FROM generate_series(1, :rows) n;
"""


@pytest.fixture(scope="module")
def filled(postgres: Postgres) -> Iterator[Engine]:
    """A separate database with 100,000 rows of each kind."""
    postgres.create_database("browse_plans", template="ostler_template")
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("STATEMENT", "ANSWER"):
            patch.setattr(client_waits, limit, 900.0)  # a busy machine fills the tables for longer than one may take
        engine = make_engine(Secret(postgres.url("browse_plans")), pool_size=2, application="test")
        with engine.begin() as db:
            for statement in _FILL.split(";\n"):
                if statement.strip():
                    db.execute(text(statement), {"rows": ROWS})
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(text("VACUUM ANALYZE"))
    yield engine
    engine.dispose()


def plan_of(db: Connection, listing: Callable[[Connection], Any]) -> list[dict[str, Any]]:
    """Return every node of the executed plan of the first statement that a list sends."""
    sent: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    event.listen(db, "before_cursor_execute", note)
    listing(db)
    event.remove(db, "before_cursor_execute", note)
    statement, parameters = sent[0]
    (found,) = db.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).one()
    return list(nodes(found[0]["Plan"]))


def rows_read(plan: list[dict[str, Any]]) -> float:
    """Return the number of rows of the list's own table that were checked."""
    return sum(
        float(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in plan
        if node.get("Alias") == "t"
    )


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from nodes(child)


def jobs(wanted: JobFilter, after: int | None = None) -> Callable[[Connection], Any]:
    return lambda db: list_jobs(db, wanted, after=after, limit=50)


def claims(wanted: ClaimFilter, after: int | None = None) -> Callable[[Connection], Any]:
    return lambda db: list_claims(db, wanted, after=after, limit=50)


def repairs(wanted: RepairFilter, after: int | None = None) -> Callable[[Connection], Any]:
    return lambda db: list_repairs(db, wanted, after=after, limit=50)


LISTS: dict[str, Callable[[Connection], Any]] = {
    "jobs": jobs(JobFilter()),
    "jobs, a page far behind": jobs(JobFilter(), ROWS // 2),
    **{f"jobs {state}": jobs(JobFilter(state=state)) for state in JobState},
    "jobs queued, a page far behind": jobs(JobFilter(state=JobState.QUEUED), ROWS // 2),
    "jobs by hold": jobs(JobFilter(hold_reason=HoldReason.NO_POOL)),
    "jobs held": jobs(JobFilter(held=True)),
    "jobs not held": jobs(JobFilter(held=False)),
    "jobs of an account": jobs(JobFilter(account_id=7)),
    "jobs of an account, a page far behind": jobs(JobFilter(account_id=7), ROWS // 2),
    "jobs of no account": jobs(JobFilter(account_id=ROWS * 2)),
    "jobs of a pool": jobs(JobFilter(pool_id=7)),
    "jobs of a repository": jobs(JobFilter(repository="acme/repo-7")),
    "claims": claims(ClaimFilter()),
    "claims, a page far behind": claims(ClaimFilter(), ROWS // 2),
    **{f"claims {state}": claims(ClaimFilter(state=state)) for state in ClaimState},
    "claims live": claims(ClaimFilter(live=True)),
    "claims over": claims(ClaimFilter(live=False)),
    "claims that retire": claims(ClaimFilter(purpose=Purpose.RETIRE)),
    "claims of an account": claims(ClaimFilter(account_id=7)),
    "claims of a pool": claims(ClaimFilter(pool_id=7)),
    "claims of a job": claims(ClaimFilter(job_id=7)),
    "repairs": repairs(RepairFilter()),
    "repairs, a page far behind": repairs(RepairFilter(), ROWS // 2),
    "repairs of a sweep": repairs(RepairFilter(sweep="sweep-7")),
    "repairs of no sweep": repairs(RepairFilter(sweep="none")),
    **{f"repairs {outcome}": repairs(RepairFilter(outcome=outcome)) for outcome in Repaired},
    "repairs of dry runs": repairs(RepairFilter(dry=True)),
    "repairs that were made": repairs(RepairFilter(dry=False)),
    "repairs of a claim": repairs(RepairFilter(claim_id=7)),
    "repairs of a job": repairs(RepairFilter(job_id=7)),
    "repairs of a Pod": repairs(RepairFilter(pod_uid="pod-7")),
    "repairs of a run": repairs(RepairFilter(run_id=7)),
    "repairs that delete": repairs(RepairFilter(kills=True)),
    "repairs since then": repairs(RepairFilter(since=datetime(2026, 1, 1, tzinfo=UTC))),
    "Pods": lambda db: list_pods(db, PodFilter(), limit=50),
    "Pods of a pool": lambda db: list_pods(db, PodFilter(pool_id=7), limit=50),
    "Pods of a pool that are there": lambda db: list_pods(db, PodFilter(pool_id=7, gone=False), limit=50),
    "Pods of a pool that are gone": lambda db: list_pods(db, PodFilter(pool_id=7, gone=True), limit=50),
    "pools": lambda db: list_pools(db, PoolFilter(), limit=50),
    "pools by name": lambda db: list_pools(db, PoolFilter(name="pool-7"), limit=50),
    "pools that are there": lambda db: list_pools(db, PoolFilter(deleted=False), limit=50),
    "pools that went": lambda db: list_pools(db, PoolFilter(deleted=True), limit=50),
    "pools to choose": lambda db: pool_choices(db, limit=50),
    "accounts to choose": lambda db: account_choices(db, limit=50),
    "accounts": lambda db: list_accounts(db, AccountFilter(), limit=50),
    "accounts by login": lambda db: list_accounts(db, AccountFilter(login="Account-7"), limit=50),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_scans_no_table(filled: Engine, name: str) -> None:
    with filled.connect() as db:
        plan = plan_of(db, LISTS[name])
    assert "Seq Scan" not in kinds(plan)
    assert rows_read(plan) <= FEW


def test_queue_age_of_an_hour_scans_no_table(filled: Engine) -> None:
    def ages(db: Connection) -> object:
        return queue_age(db, since=now - timedelta(hours=1), until=now)

    now = datetime.now(UTC)
    with filled.connect() as db:
        assert "Seq Scan" not in kinds(plan_of(db, ages))
    with filled.connect() as db, db.begin() as undone:
        db.execute(text("DROP INDEX ix_jobs_completed_at"))
        assert "Seq Scan" in kinds(plan_of(db, ages))
        undone.rollback()


def test_claims_of_pod_are_found_without_scan(filled: Engine) -> None:
    with filled.connect() as db:
        plan = plan_of(db, claims(ClaimFilter(pod="pod-7")))
    assert "Seq Scan" not in kinds(plan)
    assert rows_read(plan) <= 1


@pytest.mark.parametrize("name", LISTS)
def test_a_list_needs_no_sort(filled: Engine, name: str) -> None:
    """The planner may sort a few rows if this is cheaper. The index must make it possible not to sort."""
    with filled.connect() as db:
        forbid_sorting(db)
        plan = plan_of(db, LISTS[name])
    assert not kinds(plan) & {"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"}
    assert rows_read(plan) <= FEW


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ("ix_jobs_repository_id", "jobs of a repository"),
        ("ix_jobs_account_id_id", "jobs of an account"),
        ("ix_jobs_pool_id_id", "jobs of a pool"),
        ("ix_jobs_open_state_id", "jobs running"),
        ("ix_jobs_held_id", "jobs held"),
        ("ix_claims_live_id", "claims live"),
        ("ix_claims_job_id_id", "claims of a job"),
    ],
)
def test_without_its_index_a_list_is_found_out(filled: Engine, index: str, name: str) -> None:
    with filled.connect() as db, db.begin() as undone:
        db.execute(text(f"DROP INDEX {index}"))
        forbid_sorting(db)
        plan = plan_of(db, LISTS[name])
        undone.rollback()
    sorts = kinds(plan) & {"Seq Scan", "Sort", "Incremental Sort", "Bitmap Heap Scan"}
    assert sorts or rows_read(plan) > FEW


def forbid_sorting(db: Connection) -> None:
    """Make the planner use the order of an index wherever possible."""
    for name in ("enable_sort", "enable_bitmapscan", "enable_seqscan"):
        db.execute(text(f"SET {name} = off"))


def kinds(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Node Type"] for node in plan}
