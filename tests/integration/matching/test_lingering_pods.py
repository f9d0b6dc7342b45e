"""A Pod that outlives its job counts once in the budget of the account that it served (law L2)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from models.claims.deliver import ClaimLocked, deliver
from models.routing.usage import ending_pods, usage_of
from models.state.claim_transitions import end_completed
from models.state.transitions import move_jobs
from rules.claims.fairness import Usage
from tests.database import Database
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW

ACME, GLOBEX = 1, 2
ONE = Usage(count=1, vcpu_millicores=2000, memory_mib=4096)
NOTHING = Usage(count=0, vcpu_millicores=0, memory_mib=0)


@pytest.fixture
def stage(database: Database) -> Stage:
    return make_stage(database)


def run(stage: Stage, statement: str, **values: object) -> None:
    with stage.engine.begin() as db:
        db.execute(text(statement), values)


def deliver_all(stage: Stage) -> list[int]:
    """Deliver every claim that is in state `claimed`, and return the claims."""
    run(
        stage,
        "UPDATE claims SET state = 'minted', jit = 'x', stamp = 'on', runner_name = 'runner-' || id "
        "WHERE state = 'claimed' AND purpose = 'job'",
    )
    minted = stage.rows("SELECT id, pod_uid FROM claims WHERE state = 'minted' ORDER BY id")
    for claim in minted:
        with stage.engine.begin() as db:
            assert deliver(db, claim_id=claim.id, pod_uid=claim.pod_uid, poll_id="p", now=NOW, who="test")
    return [claim.id for claim in minted]


def complete(stage: Stage, *claim_ids: int) -> None:
    """End claims and their jobs as the webhook `completed` does. Their Pods stay."""
    for claim_id in claim_ids:
        with stage.engine.begin() as db:
            moved = end_completed(db, claim_id, now=NOW, who="test", why="the job of the claim is completed")
            assert moved is not None
            assert moved.job_id is not None
            move_jobs(db, "job_finish", [moved.job_id], now=NOW, who="test", why="completed")


def usage(stage: Stage, account: int) -> Usage:
    with stage.engine.begin() as db:
        return usage_of(db, [account])[account]


def ending(stage: Stage, account: int) -> int:
    with stage.engine.begin() as db:
        return ending_pods(db, [account])[account]


def serve(stage: Stage, account: int = ACME) -> int:
    """Deliver one job of a new account to the only free Pod of a new pool, and return its claim."""
    pool = stage.pool()
    stage.job(stage.account(account), pool)
    stage.pod(pool)
    stage.match(pool)
    (claim,) = deliver_all(stage)
    return claim


def test_one_second_jobs_never_have_more_pods_than_the_budget(stage: Stage) -> None:
    pool = stage.pool()
    stage.account(ACME, count=2)
    stage.account(GLOBEX)
    for _ in range(14):
        stage.pod(pool)
    for _ in range(12):
        stage.job(ACME, pool)
        stage.match(pool)
        complete(stage, *deliver_all(stage))

    served = stage.rows("SELECT DISTINCT pod_uid FROM claims WHERE account_id = :acme", acme=ACME)
    assert len(served) == 2
    assert usage(stage, ACME).count == ending(stage, ACME) == 2
    stage.job(GLOBEX, pool)
    assert len(stage.match(pool).claims) == 1


def test_a_delivered_claim_and_its_pod_count_once(stage: Stage) -> None:
    claim = serve(stage)
    assert usage(stage, ACME) == ONE
    assert ending(stage, ACME) == 0
    complete(stage, claim)
    assert usage(stage, ACME) == ONE
    assert ending(stage, ACME) == 1


def test_a_lingering_pod_has_the_size_of_its_claim_when_its_pool_has_changed(stage: Stage) -> None:
    claim = serve(stage)
    run(stage, "UPDATE pools SET vcpu = 64000, memory = 1")
    complete(stage, claim)
    assert usage(stage, ACME) == ONE


@pytest.mark.parametrize("end", ["terminal_at", "gone_at", "node_gone_at"])
def test_a_pod_counts_until_it_is_over_gone_or_its_node_is_gone(stage: Stage, end: str) -> None:
    complete(stage, serve(stage))
    run(stage, f"UPDATE runner_pods SET {end} = :now", now=NOW)  # noqa: S608
    assert usage(stage, ACME) == NOTHING
    assert ending(stage, ACME) == 0
    run(stage, f"UPDATE runner_pods SET {end} = NULL")  # noqa: S608
    assert usage(stage, ACME) == ONE


def test_a_pod_that_was_never_delivered_to_counts_by_its_claim_alone(stage: Stage) -> None:
    pool = stage.pool()
    stage.job(stage.account(ACME), pool)
    stage.pod(pool)
    stage.match(pool)
    assert usage(stage, ACME) == ONE
    run(stage, "UPDATE claims SET state = 'ended', end_reason = 'released', ended_at = :now", now=NOW)
    assert usage(stage, ACME) == NOTHING


def test_a_spare_counts_by_its_live_claim(stage: Stage) -> None:
    pool = stage.pool()
    stage.spare(stage.account(ACME), pool)
    assert usage(stage, ACME) == ONE
    assert ending(stage, ACME) == 0


@pytest.mark.parametrize("ended", [False, True])
def test_an_execution_without_a_claim_counts_its_pod_once(stage: Stage, *, ended: bool) -> None:
    claim = serve(stage)
    run(
        stage,
        """
        WITH attempt AS (
            INSERT INTO mint_attempts (claim_id, runner_name, outcome, created_at)
            VALUES (:claim, 'runner', 'minted', :now))
        INSERT INTO executions (job_id, runner_name, account_id, vcpu, memory, started_at)
        SELECT job_id, 'runner', account_id, vcpu, memory, :now FROM claims WHERE id = :claim
    """,
        claim=claim,
        now=NOW,
    )
    if ended:
        run(stage, "UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = :now, jit = NULL", now=NOW)
    assert usage(stage, ACME) == ONE
    run(stage, "UPDATE claims SET state = 'ended', end_reason = 'pod_gone', ended_at = :now, jit = NULL", now=NOW)
    run(stage, "UPDATE runner_pods SET gone_at = :now", now=NOW)
    assert usage(stage, ACME) == ONE  # GitHub says that it runs, wherever its Pod went
    run(stage, "UPDATE executions SET ended_at = :now", now=NOW)
    assert usage(stage, ACME) == NOTHING


def test_a_retirement_changes_nothing_until_the_pod_is_gone(stage: Stage) -> None:
    complete(stage, serve(stage))
    run(
        stage,
        """
        INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, created_at, changed_at)
        SELECT 'retire', id, uid, pool_id, 0, 0, 'claimed', :now, :now FROM runner_pods
    """,
        now=NOW,
    )
    assert usage(stage, ACME) == ONE


def test_a_delivery_waits_for_no_locked_pod_row(stage: Stage) -> None:
    pool = stage.pool()
    stage.job(stage.account(ACME), pool)
    stage.pod(pool)
    stage.match(pool)
    run(stage, "UPDATE claims SET state = 'minted', jit = 'x', stamp = 'on', runner_name = 'r'")
    (claim,) = stage.rows("SELECT id, pod_uid FROM claims")
    with stage.engine.begin() as holder, stage.engine.begin() as db:
        holder.execute(text("SELECT FROM runner_pods FOR NO KEY UPDATE"))
        db.execute(text("SET LOCAL lock_timeout = '1s'"))
        with pytest.raises(ClaimLocked):
            deliver(db, claim_id=claim.id, pod_uid=claim.pod_uid, poll_id="p", now=NOW, who="test")
    complete(stage, *deliver_all(stage))
    assert usage(stage, ACME) == ONE


def test_a_delivery_waits_for_no_locked_offer(stage: Stage) -> None:
    pool = stage.pool()
    stage.job(stage.account(ACME), pool)
    stage.pod(pool)
    stage.match(pool)
    run(stage, "UPDATE claims SET state = 'minted', jit = 'x', stamp = 'on', runner_name = 'r'")
    (claim,) = stage.rows("SELECT id, pod_uid FROM claims")
    with stage.engine.begin() as holder, stage.engine.begin() as db:
        holder.execute(text("SELECT FROM offers FOR NO KEY UPDATE"))
        db.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert deliver(db, claim_id=claim.id, pod_uid=claim.pod_uid, poll_id="p", now=NOW, who="test")
    (after,) = stage.rows("SELECT state FROM claims")
    assert after.state == "delivered"


def test_the_matcher_and_the_ledger_agree_about_a_pod_on_a_gone_node(stage: Stage) -> None:
    pool = stage.pool()
    stage.account(ACME, count=1)
    stage.job(ACME, pool)
    stage.pod(pool)
    stage.match(pool)
    deliver_all(stage)
    run(stage, "UPDATE runner_pods SET node_gone_at = :now", now=NOW)
    stage.job(ACME, pool)
    stage.pod(pool)
    assert len(stage.match(pool, now=NOW + timedelta(seconds=1)).claims) == 1
