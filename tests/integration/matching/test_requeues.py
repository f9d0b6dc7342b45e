"""A person queues a job again: what waits is cleared, and no job is claimed or delivered twice."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from models.claims import deliver as deliveries
from models.claims import matching
from models.claims.deliver import ClaimLocked
from models.db.engine import transaction
from models.sweeps.requeues import Requeued, requeue
from models.upstream import backoffs
from rules.changes import Author, Via
from rules.claims.requeues import Requeue
from tests.database import Database
from tests.integration.concurrency.points import DEADLINE, start, stopped, waiting_for_locks
from tests.integration.matching.stage import Stage, make_stage
from tests.integration.models.webhook_rows import NOW
from tests.waiting import eventually

BY = Author("alice", Via.SHELL, NOW)


@pytest.fixture
def stage(database: Database, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(matching, "POOL_LOCK_WITHIN", "60s")
    return make_stage(database)


def queue(stage: Stage, account: int, pool: int, *, hold: str | None = None) -> int:
    """Insert a queued job that its pool serves."""
    job = stage.job(account, pool, hold=hold)
    stage.change("UPDATE jobs j SET labels = p.labels FROM pools p WHERE p.id = j.pool_id AND j.id = :id", id=job)
    return job


def ask(stage: Stage, job_id: int) -> Requeued:
    done = transaction(stage.engine, partial(requeue, job_id=job_id, by=BY))
    assert done is not None
    return done


def held(stage: Stage, job_id: int) -> Any:
    (row,) = stage.rows("SELECT hold_reason, not_before, state FROM jobs WHERE id = :id", id=job_id)
    return row.hold_reason, row.not_before, row.state


def test_backoff_of_a_job_is_cleared_for_this_job_alone(stage: Stage) -> None:
    account, pool = stage.account(1), stage.pool()
    first, second = queue(stage, account, pool), queue(stage, account, pool)
    with stage.engine.begin() as db:
        backoffs.record_failure(db, kind="installation", key="1", reason="503", now=NOW)
    assert [held(stage, each)[0] for each in (first, second)] == ["backoff", "backoff"]
    done = ask(stage, second)
    assert (done.action, done.wakes) == (Requeue.ROUTE, pool)
    assert held(stage, second) == (None, None, "queued")
    assert held(stage, first)[0] == "backoff"
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [second]
    # The job is the probe, so its failure makes the wait longer.
    with stage.engine.begin() as db:
        until = backoffs.record_failure(
            db, kind="installation", key="1", reason="503", job_id=second, now=NOW + timedelta(seconds=1)
        )
    assert until == NOW + timedelta(seconds=21)


def test_second_job_replaces_no_probe_under_way(stage: Stage) -> None:
    account, pool = stage.account(1), stage.pool()
    first, second = queue(stage, account, pool), queue(stage, account, pool)
    with stage.engine.begin() as db:
        backoffs.record_failure(db, kind="installation", key="1", reason="503", now=NOW)
    for each in (first, second):
        assert ask(stage, each).action is Requeue.ROUTE
    (probe,) = stage.rows("SELECT probe_job_id FROM backoffs")
    assert probe.probe_job_id == first


@pytest.mark.parametrize(
    ("change", "hold"),
    [
        ("UPDATE accounts SET access = 'held'", "unknown_account"),
        ("UPDATE accounts SET budget_count = 0", "budget_zero"),
        ("UPDATE pools SET labels = '{other}'", "no_pool"),
        ("UPDATE pools SET allowed_accounts = '{99}'", "not_allowed"),
    ],
)
def test_hold_whose_reason_still_applies_stays(stage: Stage, change: str, hold: str) -> None:
    job = queue(stage, stage.account(1), stage.pool(), hold="set_aside")
    stage.change(change)
    done = ask(stage, job)
    assert (done.wakes, held(stage, job)[0]) == (None, hold)
    assert hold in done.message


def test_question_to_github_is_asked_at_once_and_the_hold_stays(stage: Stage) -> None:
    job = queue(stage, stage.account(1), stage.pool(), hold="ask_github")
    stage.change("UPDATE jobs SET ask_after = :later", later=NOW + timedelta(hours=1))
    assert ask(stage, job).action is Requeue.ASK
    assert held(stage, job)[0] == "ask_github"
    assert stage.rows("SELECT ask_after FROM jobs") == [(NOW,)]


@pytest.mark.parametrize("state", ["claimed", "minted", "delivered"])
def test_claim_that_executes_nothing_begins_its_release_and_stays_live(stage: Stage, state: str) -> None:
    job = claimed(stage)
    stage.change("UPDATE claims SET state = :state", state=state)
    done = ask(stage, job)
    (claim,) = stage.rows("SELECT id, state, ended_at, release_reason FROM claims")
    assert (done.action, done.releases) == (Requeue.RELEASE, claim.id)
    assert (claim.state, claim.ended_at) == ("releasing", None)
    assert claim.release_reason == "alice (shell) asked to queue the job again"
    assert held(stage, job)[2] == "claimed"
    assert ask(stage, job).action is Requeue.RELEASES
    changes = stage.rows("SELECT name, who, old, new FROM changes WHERE kind = 'job'")
    assert [(each.who, each.old, each.new) for each in changes] == [("alice", {"claim": state}, {"claim": "releasing"})]


@pytest.mark.parametrize(
    ("job_state", "claim_state", "refused"),
    [
        ("running", "executing", Requeue.EXECUTES),
        ("claimed", "executing", Requeue.EXECUTES),
        ("completed", None, Requeue.OVER),
        ("waiting", None, Requeue.WAITS),
    ],
)
def test_request_is_refused_without_a_change(
    stage: Stage, job_state: str, claim_state: str | None, refused: Requeue
) -> None:
    job = queue(stage, stage.account(1), stage.pool()) if claim_state is None else claimed(stage)
    stage.change("UPDATE claims SET state = :state", state=claim_state or "claimed")
    stage.change(
        "UPDATE jobs SET state = :state, completed_at = CASE WHEN :state = 'completed' THEN queued_at END",
        state=job_state,
    )
    before = rows(stage)
    done = ask(stage, job)
    assert (done.action, done.action.refused) == (refused, True)
    assert rows(stage) == before
    assert stage.rows("SELECT * FROM changes WHERE kind = 'job'") == []


def rows(stage: Stage) -> list[Any]:
    return [stage.rows("SELECT * FROM claims"), stage.rows("SELECT * FROM jobs")]


def claimed(stage: Stage) -> int:
    pool = stage.pool()
    job = queue(stage, stage.account(1), pool)
    stage.pod(pool)
    stage.match(pool)
    assert stage.claimed() == [job]
    return job


def minted(stage: Stage) -> tuple[int, Any]:
    """Return a job and its claim, which the next poll of its Pod gets."""
    job = claimed(stage)
    stage.change("UPDATE claims SET state = 'minted', jit = 'x', minted_at = :now, runner_name = 'r'", now=NOW)
    (claim,) = stage.rows("SELECT id, pod_uid FROM claims")
    return job, claim


def deliver(stage: Stage, claim: Any) -> object:
    (offer,) = stage.rows("SELECT poll_id FROM offers WHERE pod_uid = :uid", uid=claim.pod_uid)
    return transaction(
        stage.engine,
        lambda db: deliveries.deliver(
            db, claim_id=claim.id, pod_uid=claim.pod_uid, poll_id=offer.poll_id, now=NOW, who="web"
        ),
    )


def test_delivery_after_a_request_delivers_nothing(stage: Stage) -> None:
    job, claim = minted(stage)
    with stopped(stage.engine, "UPDATE claims", thread="request", when="after") as begun:
        request = start("request", lambda: ask(stage, job))
        begun.wait()
        with pytest.raises(ClaimLocked):
            deliver(stage, claim)
    assert request.result(DEADLINE).action is Requeue.RELEASE
    assert deliver(stage, claim) is None
    assert stage.rows("SELECT state, delivered_at FROM claims") == [("releasing", None)]


def test_request_after_a_delivery_asks_for_the_release_of_a_delivered_claim(stage: Stage) -> None:
    job, claim = minted(stage)
    with stopped(stage.engine, "UPDATE claims", thread="delivery", when="after") as delivering:
        delivery = start("delivery", lambda: deliver(stage, claim))
        delivering.wait()
        request = start("request", lambda: ask(stage, job))
        eventually(lambda: waiting_for_locks(stage.engine) == 1, "the request waits for the delivery")
    assert delivery.result(DEADLINE) is not None
    assert request.result(DEADLINE).action is Requeue.RELEASE
    (row,) = stage.rows("SELECT state, delivered_at, ended_at FROM claims")
    # It is released as a delivered claim, so GitHub's proof comes first.
    assert (row.state, row.delivered_at, row.ended_at) == ("releasing", NOW, None)


def test_matcher_and_request_make_one_claim(stage: Stage) -> None:
    pool = stage.pool()
    job = queue(stage, stage.account(1), pool, hold="set_aside")
    for _ in range(2):
        stage.pod(pool)
    with stopped(stage.engine, "UPDATE jobs", thread="request", when="after") as routing:
        request = start("request", lambda: ask(stage, job))
        routing.wait()
        stage.match(pool)
        assert stage.claimed() == [], "the matcher skips the locked job"
    assert request.result(DEADLINE).wakes == pool
    stage.match(pool)
    assert ask(stage, job).action is Requeue.RELEASE
    stage.match(pool)
    assert stage.claimed() == [job]
