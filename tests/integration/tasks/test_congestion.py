"""A long queue: a waiting message is not lost, is not sent again, and does not make the queue longer."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import chain
from sqlalchemy import Connection

from lab.processes import free_port
from lab.redis import Redis
from models.claims.releases import insert_retire
from models.db.engine import transaction
from ostler.clock import utcnow
from ostler.secrets import Secret
from ostler.task_names import RECONCILE, RELEASE, RETIRE, STAMP
from ostler.wakes import Waker
from tasks.pools.reconcile import reconcile
from tasks.sweeps.resume import resume
from tests.integration.tasks.conftest import Stage

OLD = timedelta(seconds=60)


def test_a_queue_says_when_its_next_message_was_sent(waker: Waker, redis_server: Redis) -> None:
    assert waker.oldest("retire") is None
    before = utcnow()
    waker.send(RETIRE, claim_id=1)
    between = utcnow()
    waker.send(RETIRE, claim_id=2)
    first = waker.oldest("retire")
    assert first is not None
    assert before <= first <= between
    with redis_server.client() as client:
        client.rpop("retire")
        second = waker.oldest("retire")
        assert second is not None
        assert second >= between
        client.rpush("retire", json.dumps({"headers": {}}), "nobody's")
        assert waker.oldest("retire") == second, "those that come before it do not say"
        client.ltrim("retire", 1, -1)
        assert waker.oldest("retire") is None


def test_the_messages_of_a_chain_say_it_too(waker: Waker) -> None:
    app = waker._app
    before = utcnow()
    chain(
        app.signature(STAMP, kwargs={"claim_id": 1}, immutable=True),
        app.signature("ostler.mint", kwargs={"claim_id": 1}, immutable=True),
    ).apply_async(queue="dispatch")
    found = waker.oldest("dispatch")
    assert found is not None
    assert found >= before


def due(stage: Stage, claim_id: int) -> None:
    """Make the step of a claim overdue whose message was sent some time ago."""
    stage.rows("UPDATE claims SET due_at = :at, leased_until = NULL WHERE id = :id", at=utcnow() - OLD, id=claim_id)


def retiring(stage: Stage, pod: str) -> None:
    """Insert an old retire claim on a Pod that has made no progress for some time."""
    (row,) = stage.rows("SELECT id FROM runner_pods WHERE name = :pod", pod=pod)

    def body(db: Connection) -> int | None:
        return insert_retire(db, row.id, now=utcnow(), who="test", why="surplus", due_after=10)

    claim_id = transaction(stage.rt.engine, body)
    assert claim_id is not None
    due(stage, claim_id)


def chain_no(stage: Stage, claim_id: int) -> int:
    found: int = stage.see(claim_id).chain_no
    return found


def heads(stage: Stage, **sent: datetime | None) -> None:
    stage.outbox.heads.clear()
    stage.outbox.heads.update(sent)


def sent(stage: Stage) -> list[str]:
    return [name for name, kwargs in stage.outbox.sent if "claim_id" in kwargs]


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the chains that are sent."""
    found: list[Any] = []
    monkeypatch.setattr("tasks.sweeps.resume.start_chains", lambda ids, *, chain_no: found.append((ids, chain_no)))
    return found


@pytest.mark.parametrize("queue", ["dispatch", "github"])
def test_a_step_that_may_wait_in_its_queue_is_not_sent_again(
    stage: Stage, pod: str, chains: list[Any], queue: str
) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="claimed")
    due(stage, claim)
    heads(stage, **{queue: utcnow() - 2 * OLD})  # what was sent before it has not had its turn
    resume.run()
    assert (chains, chain_no(stage, claim)) == ([], 1), "a raised number would have the message do nothing"

    heads(stage, **{queue: utcnow()})
    resume.run()
    assert (chains, chain_no(stage, claim)) == ([([claim], 2)], 2), "it was lost"


def test_each_step_checks_the_queue_of_its_own_messages(stage: Stage, pod: str) -> None:
    stage.job(7)
    claim = stage.claim(pod, job_id=7, state="releasing")
    due(stage, claim)
    heads(stage, dispatch=utcnow() - 2 * OLD)
    resume.run()
    assert sent(stage) == []
    heads(stage, github=utcnow() - 2 * OLD, retire=utcnow() - 2 * OLD)
    resume.run()
    assert sent(stage) == [RELEASE]


def test_a_retirement_waits_in_a_queue_of_its_own(stage: Stage, pod: str) -> None:
    retiring(stage, pod)
    heads(stage, retire=utcnow() - 2 * OLD)
    resume.run()
    assert sent(stage) == []
    heads(stage, dispatch=utcnow() - 2 * OLD, github=utcnow() - 2 * OLD)
    resume.run()
    assert sent(stage) == [RETIRE]


def test_more_than_one_page_is_taken_up_by_one_tick(stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del pod
    monkeypatch.setattr("models.claims.resume.PAGE", 1)
    for name in stage.pods():
        retiring(stage, name)
    resume.run()
    assert sent(stage) == [RETIRE] * 2


def test_reconciles_of_a_large_pool_keep_a_distance_and_those_of_a_small_one_do_not(
    waker: Waker, redis_server: Redis
) -> None:
    assert all(waker.may_reconcile(1) for _ in range(3)), "of which nothing is known"
    waker.record_pod_count(1, pods=99)
    assert all(waker.may_reconcile(1) for _ in range(3))
    waker.record_pod_count(2, pods=1000)
    assert [waker.may_reconcile(2) for _ in range(3)] == [True, False, False]
    for pool_id in (1, 2):
        waker.reconcile(pool_id)
    with redis_server.client() as client:
        messages = [json.loads(each)["headers"] for each in client.lrange("pools", 0, -1)]
    small, large = sorted(messages, key=lambda each: each["eta"] is not None)
    assert small["eta"] is None
    wait = datetime.fromisoformat(large["eta"]).timestamp() - time.time()
    assert 0 < wait <= 2


def test_a_wake_is_sent_beside_a_reconcile_by_the_list_of_a_tick(waker: Waker, redis_server: Redis) -> None:
    def waiting() -> int:
        with redis_server.client() as client:
            return int(client.llen("pools"))

    for _ in range(2):
        waker.reconcile(1, shared=True)
    assert waiting() == 1
    for _ in range(2):
        waker.reconcile(1)
    assert waiting() == 2, "that list is older than what the wake tells of"
    waker.clear_reconcile(1, shared=True)
    waker.reconcile(1)
    assert waiting() == 2
    waker.reconcile(1, shared=True)
    assert waiting() == 3


def test_early_reconcile_is_postponed_and_reads_nothing(
    stage: Stage, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del pod
    monkeypatch.setattr(stage.outbox, "may_reconcile", lambda _: False)
    stage.rows("UPDATE pools SET replicas = 5")
    (pool,) = stage.rows("SELECT id FROM pools")
    reconcile.run(pool_id=pool.id)
    assert stage.outbox.take(RECONCILE) == [{"pool_id": pool.id}]
    assert len(stage.pods()) == 2


def test_without_redis_a_reconcile_waits_for_nobody() -> None:
    waker = Waker(Secret(f"redis://127.0.0.1:{free_port()}/0"))
    waker.record_pod_count(1, pods=1000)
    assert waker.may_reconcile(1)
    waker.close()
