"""Races of the matcher with itself and with retirements, each halted at the same point in every run.

`seed` installs a bug. With the bug the same test must fail, or the test would prove nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from models.claims import matching, releases
from models.db.engine import transaction
from models.routing.usage import usage_of
from models.state.pools import Pool
from rules.claims.fairness import AccountView, Budget, Usage
from tests.database import Database
from tests.integration.concurrency.points import DEADLINE, hook, start, stopped, waiting_for_locks
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW
from tests.rows import mark_problem, mirror_pool, pool_spec
from tests.waiting import eventually

MATCHERS = 8
INSERT = "INSERT INTO claims"
LOCK_ACCOUNTS = "FROM accounts WHERE id = ANY"


@pytest.fixture
def stage(database: Database, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(matching, "POOL_LOCK_WITHIN", "60s")  # who is stopped here holds it for longer than in earnest
    return make_stage(database)


def _count_in_the_locking_statement(db: Connection, accounts: Mapping[int, AccountView]) -> dict[int, AccountView]:
    """Lock and count in one statement, whose snapshot is older than the lock."""
    rows = db.execute(
        text("""
            WITH locked AS (
                SELECT * FROM accounts WHERE id = ANY (:ids) ORDER BY id FOR NO KEY UPDATE
            )
            SELECT locked.*, (SELECT count(*) FROM claims c WHERE c.account_id = locked.id AND c.ended_at IS NULL) used
            FROM locked
        """),
        {"ids": list(accounts)},
    ).all()
    return {
        row.id: AccountView(
            account_id=row.id,
            weight=row.weight,
            budget=Budget(count=row.budget_count, vcpu_millicores=row.budget_vcpu, memory_mib=row.budget_memory),
            usage=Usage(count=row.used, vcpu_millicores=0, memory_mib=0),
        )
        for row in rows
    }


@pytest.mark.parametrize("seed", [None, "count and insert in one statement"])
def test_eight_matchers_fill_a_budget_of_two_exactly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: str | None
) -> None:
    account = stage.account(1, count=2)
    pools = [stage.pool() for _ in range(MATCHERS)]
    for pool in pools:
        stage.job(account, pool)
        stage.pod(pool)
    if seed is not None:
        monkeypatch.setattr(matching, "lock_accounts", _count_in_the_locking_statement)
    together = threading.Barrier(MATCHERS)
    over: list[int] = []

    def meet(statement: str) -> None:
        """Let all threads reach the account. The one that has the lock inserts only when the others are blocked."""
        flat = " ".join(statement.split())
        if LOCK_ACCOUNTS in flat and "FOR NO KEY UPDATE" in flat:
            together.wait(DEADLINE)
        elif INSERT in flat:
            eventually(
                lambda: len(over) + waiting_for_locks(stage.engine) >= MATCHERS - 1,
                "the others end or wait",
            )

    def run(pool: int) -> None:
        try:
            stage.match(pool)
        finally:
            over.append(pool)

    with hook(stage.engine, "before", meet):
        runs = [start(f"matcher-{pool}", partial(run, pool)) for pool in pools]
        for each in runs:
            each.result(DEADLINE)
    after_the_race = len(stage.claimed())
    if seed is not None:
        assert after_the_race > 2
        return
    assert after_the_race == 1
    for pool in pools:
        stage.match(pool)
    assert len(stage.claimed()) == 2
    assert usage_of_account(stage, account) == 2


def usage_of_account(stage: Stage, account: int) -> int:
    return transaction(stage.engine, lambda db: usage_of(db, [account])[account].count)


@pytest.mark.parametrize("seed", [None, "the index is dropped"])
def test_two_claims_of_one_pod_never_both_commit(stage: Stage, seed: str | None) -> None:
    pool, account = stage.pool(), stage.account(1)
    jobs = [stage.job(account, pool) for _ in range(2)]
    uid = stage.pod(pool)
    if seed is not None:
        with stage.engine.begin() as db:
            db.execute(text("DROP INDEX uq_claims_live_pod"))
    pod_id = stage.rows("SELECT id FROM runner_pods WHERE uid = :uid", uid=uid)[0].id
    shape = Pool(id=pool, vcpu=2000, memory=4096, template_hash="hash", allowed_accounts=[])

    def claim(job: int) -> Sequence[matching.Made]:
        # Both looked before either inserted, and neither holds the Pod's row: only the index is left (L1).
        pair = (job, matching.FreePod(pod_id, uid))
        return transaction(stage.engine, lambda db: matching.insert_claims(db, shape, [pair], due_after=10, now=NOW))

    with stopped(stage.engine, INSERT, thread="first", when="after") as inserted:
        first = start("first", lambda: claim(jobs[0]))
        inserted.wait()
        second = start("second", lambda: claim(jobs[1]))
        eventually(lambda: second.done() or waiting_for_locks(stage.engine) == 1, "the second waits for the index")
    first.result(DEADLINE)
    error = second.exception(DEADLINE)
    assert isinstance(error, IntegrityError) is (seed is None)
    assert len(stage.claimed()) == (1 if seed is None else 2)


@pytest.mark.parametrize("seed", [None, "the key is deleted before the lock is held"])
def test_one_matcher_runs_and_one_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: str | None) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool)
    stage.pod(pool)
    keys = stage.wake_keys
    if seed is not None:
        lock_pool = matching.lock_pool

        def early(db: Connection, pool_id: int) -> Pool | None:
            keys.clear_wake(pool_id)
            return lock_pool(db, pool_id)

        monkeypatch.setattr(matching, "lock_pool", early)
    assert keys.wake(pool)
    with stopped(stage.engine, INSERT, thread="running") as inserting:
        running = start("running", lambda: stage.match(pool))
        inserting.wait()
        assert keys.wake(pool), "the running matcher has read: what comes now needs another"
        waiting = start("waiting", lambda: stage.match(pool))
        eventually(lambda: waiting_for_locks(stage.engine) == 1, "the second matcher waits for the pool's lock")
        late = stage.job(account, pool)
        assert keys.wake(pool) is (seed is not None)
        stage.pod(pool)
    running.result(DEADLINE)
    waiting.result(DEADLINE)
    # Whoever found the key set had committed before this read.
    assert late in stage.claimed()


@pytest.mark.parametrize("seed", [None, "the Pod's row is not locked"])
def test_a_wait_for_a_unique_index_never_holds_an_accounts_lock(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: str | None
) -> None:
    account = stage.account(1)
    contended, free = stage.pool(), stage.pool()
    for pool in (contended, free):
        stage.job(account, pool)
        stage.pod(pool)
    pod_id = stage.rows("SELECT id FROM runner_pods WHERE pool_id = :pool", pool=contended)[0].id
    if seed is not None:
        monkeypatch.setattr(matching, "lock_pods", _look_without_lock)
    with stopped(stage.engine, INSERT, thread="retiring", when="after") as inserted:
        retiring = start("retiring", lambda: _retire(stage, pod_id))
        inserted.wait()
        matcher = start("matcher", lambda: stage.match(contended))
        eventually(lambda: matcher.done() or waiting_for_locks(stage.engine) == 1, "the matcher ends or waits")
        assert matcher.done() is (seed is None)
        other = stage.match(free)
        assert len(other.claims) == (1 if seed is None else 0)
    assert retiring.result(DEADLINE) is not None
    assert matcher.exception(DEADLINE) is None or seed is not None


def _look_without_lock(db: Connection, pool: Pool, *, limit: int, now: datetime) -> list[matching.FreePod]:
    del limit, now
    rows = db.execute(text("SELECT id, uid FROM runner_pods WHERE pool_id = :id"), {"id": pool.id})
    return [matching.FreePod(row.id, row.uid) for row in rows]


def _retire(stage: Stage, pod_id: int) -> int | None:
    return transaction(
        stage.engine,
        lambda db: releases.insert_retire(db, pod_id, now=NOW, who="test", why="too many", due_after=10),
    )


def test_a_busy_account_and_a_busy_job_delay_no_other(stage: Stage) -> None:
    pool = stage.pool()
    busy, idle = stage.account(1), stage.account(2)
    stage.job(busy, pool, age=500)
    locked, wanted = stage.job(idle, pool, age=400), stage.job(idle, pool, age=300)
    for _ in range(3):
        stage.pod(pool)
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM accounts WHERE id = 1 FOR UPDATE"))
        holder.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": locked})
        matched = stage.match(pool)
        assert stage.claimed() == [wanted]
        assert matched.again, "the skipped account is checked again"
        holder.rollback()
    stage.match(pool)
    assert len(stage.claimed()) == 3


@pytest.mark.parametrize("winner", ["the job claim", "the retirement"])
def test_a_retirement_and_a_job_claim_on_one_pod_have_one_winner(stage: Stage, winner: str) -> None:
    pool, account = stage.pool(), stage.account(1)
    stage.job(account, pool)
    uid = stage.pod(pool)
    pod_id = stage.rows("SELECT id FROM runner_pods WHERE uid = :uid", uid=uid)[0].id
    bodies: dict[str, Any] = {
        "the job claim": lambda: stage.match(pool),
        "the retirement": lambda: _retire(stage, pod_id),
    }
    loser = next(name for name in bodies if name != winner)
    with stopped(stage.engine, INSERT, thread=winner) as inserting:
        first = start(winner, bodies[winner])
        inserting.wait()
        second = start(loser, bodies[loser])
        eventually(
            lambda: second.done() or waiting_for_locks(stage.engine) == 1,
            "the loser ends or waits for the Pod",
        )
    first.result(DEADLINE)
    lost = second.result(DEADLINE)
    assert lost is None or not lost.claims
    purposes = [row.purpose for row in stage.rows("SELECT purpose FROM claims WHERE ended_at IS NULL")]
    assert purposes == ["job" if winner == "the job claim" else "retire"]


NEW_POOL = pool_spec()


@pytest.mark.parametrize("look", [mirror_pool, partial(mark_problem, problem="bad")], ids=["good", "unusable"])
def test_pool_that_another_list_just_created_is_not_taken_for_a_deleted_one(
    database: Database, look: Callable[..., object]
) -> None:
    see = partial(look, pool=NEW_POOL, now=NOW)
    with stopped(database.engine, "SELECT id FROM pools WHERE namespace", thread="second") as looking:
        second = start("second", lambda: transaction(database.engine, see))
        looking.wait()
        transaction(database.engine, partial(mirror_pool, pool=NEW_POOL, now=NOW))
    second.result(DEADLINE)
    rows = transaction(database.engine, lambda db: db.execute(text("SELECT uid, deleted_at FROM pools")).all())
    assert rows == [("pool-1", None)]


def test_pool_replaced_under_its_name_between_two_lists_is_ended(database: Database) -> None:
    for uid in ("pool-1", "pool-2"):
        transaction(database.engine, partial(mirror_pool, pool=replace(NEW_POOL, uid=uid), now=NOW))
    rows = transaction(
        database.engine, lambda db: db.execute(text("SELECT uid, deleted_at FROM pools ORDER BY id")).all()
    )
    assert rows == [("pool-1", NOW), ("pool-2", None)]


def test_two_lists_with_a_new_pool_make_one_row(database: Database) -> None:
    see = partial(mirror_pool, pool=NEW_POOL, now=NOW)
    with database.engine.begin() as first:
        assert see(first)
        second = start("second", lambda: transaction(database.engine, see))
        eventually(lambda: waiting_for_locks(database.engine) == 1, "the second waits for the index")
    assert second.result(DEADLINE) is False
    assert transaction(database.engine, lambda db: db.execute(text("SELECT count(*) FROM pools")).scalar_one()) == 1
