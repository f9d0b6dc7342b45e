"""Plans that are committed beside other sessions: changed or locked rows are left to the next run."""

from __future__ import annotations

from typing import cast

import pytest
from sqlalchemy import Connection, text

from models.db.engine import transaction
from models.pools.pool_plans import Committed, commit_plan
from models.state.pools import Pool
from ostler.clock import utcnow
from rules.pools.pool_plan import PoolPlan, Retirement, Why
from tests.integration.tasks.conftest import Stage


@pytest.fixture
def stage(clusterless: Stage) -> Stage:
    """A stage with two rows of Pods that were never seen."""
    clusterless.rows(
        """
        INSERT INTO runner_pods (pool_id, namespace, name, attempt_id, template_hash, created_at)
        SELECT id, namespace, 'pod-' || n, 'a', 'h', now() FROM pools, generate_series(1, 2) AS n
        """
    )
    return clusterless


def commit(stage: Stage, *, give_up: bool = False) -> Committed:
    """Give up all Pods, or retire them, without a wait for a lock."""
    ids = [row.id for row in stage.rows("SELECT id FROM runner_pods ORDER BY id")]
    (pool,) = stage.rows("SELECT * FROM pools")
    plan = PoolPlan(
        give_up=tuple(ids) if give_up else (),
        retire=() if give_up else tuple(Retirement(each, Why.SURPLUS) for each in ids),
        counts={},
    )

    def write(db: Connection) -> Committed:
        db.execute(text("SET LOCAL lock_timeout = '100ms'"))
        return commit_plan(db, cast("Pool", pool), plan, names=(), due_after=10, now=utcnow(), who="test")

    return transaction(stage.rt.engine, write)


def given_up(stage: Stage) -> list[bool]:
    return [row.gone for row in stage.rows("SELECT gone_at IS NOT NULL AS gone FROM runner_pods ORDER BY id")]


def test_row_whose_pod_was_seen_meanwhile_is_not_given_up(stage: Stage) -> None:
    stage.rows("UPDATE runner_pods SET uid = 'u' WHERE name = 'pod-1'")
    commit(stage, give_up=True)
    assert given_up(stage) == [False, True]


def test_locked_row_is_given_up_by_a_later_round(stage: Stage) -> None:
    with stage.rt.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM runner_pods WHERE name = 'pod-1' FOR NO KEY UPDATE"))
        commit(stage, give_up=True)
        assert given_up(stage) == [False, True]
    commit(stage, give_up=True)
    assert given_up(stage) == [True, True]


def test_pod_whose_row_is_locked_is_retired_by_a_later_round(stage: Stage) -> None:
    stage.rows("UPDATE runner_pods SET uid = name")
    with stage.rt.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM runner_pods WHERE name = 'pod-1' FOR NO KEY UPDATE"))
        assert len(commit(stage).retired) == 1
    assert [row.pod_uid for row in stage.rows("SELECT pod_uid FROM claims")] == ["pod-2"]
    assert len(commit(stage).retired) == 1
