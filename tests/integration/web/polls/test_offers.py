"""The statement that writes offers, under contention and with rows in unusual states."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest
from sqlalchemy import Connection, text

from models.claims.deliver import ClaimLocked, Delivery, deliver, delivered_before
from models.db.engine import transaction
from models.state import offers
from ostler.clock import utcnow
from tests.integration.concurrency.points import DEADLINE, start, stopped
from tests.integration.web.polls.stage import NAMESPACE, Pod, Stage
from tests.rows import insert_job

ROUNDS = 15
T = TypeVar("T")


def polling(pod: Pod, *, poll_id: str | None = None, again: bool = False) -> offers.Polling:
    return offers.Polling(
        pod_uid=pod.uid,
        namespace=NAMESPACE,
        pod_name=pod.name,
        poll_id=poll_id or uuid.uuid4().hex,
        until=utcnow() + timedelta(seconds=50),
        again=again,
    )


def briefly(stage: Stage, body: Callable[[Connection], T], *, within_ms: int = 1) -> T:
    """Run a transaction that fails if it must wait for a lock."""

    def bounded(db: Connection) -> T:
        db.exec_driver_sql(f"SET LOCAL lock_timeout = {within_ms}")
        return body(db)

    return transaction(stage.engine, bounded)


def offer(stage: Stage, *polls: offers.Polling, web_id: str = "w", within_ms: int = 60_000) -> list[offers.PolledPod]:
    return briefly(stage, lambda db: offers.offer(db, polls, web_id=web_id, now=utcnow()), within_ms=within_ms)


def test_processes_that_offer_the_same_pods_in_any_order_never_deadlock(stage: Stage) -> None:
    pods = [stage.pod(stage.pool(), bound=False)]
    pods += [stage.pod(pods[0].pool_id, bound=False) for _ in range(60)]

    def process(number: int) -> int:
        dice = random.Random(number)  # noqa: S311  the same order in each run
        offered = 0
        for _ in range(ROUNDS):
            chosen = [polling(pod) for pod in dice.sample(pods, 40)]
            offered += sum(pod.facts.offered for pod in offer(stage, *chosen, web_id=f"w{number}"))
            given_up = [(poll.pod_uid, poll.poll_id) for poll in dice.sample(chosen, 20)]
            transaction(stage.engine, lambda db, polls=given_up: offers.withdraw(db, polls))  # type: ignore[misc]
        transaction(stage.engine, lambda db: offers.leave(db, web_id=f"w{number}"))
        return offered

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(process, range(6)))

    assert stage.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert stage.scalar("SELECT count(*) FROM offers") == 0
    assert stage.scalar("SELECT count(*) FROM runner_pods WHERE uid IS NULL") == 0


def test_offering_again_does_not_displace_a_newer_poll(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    older, newer = polling(pod, poll_id="older"), polling(pod, poll_id="newer")
    offer(stage, older, web_id="first")
    offer(stage, newer, web_id="second")

    (found,) = offer(stage, polling(pod, poll_id="older", again=True), web_id="first")

    assert not found.facts.offered
    assert stage.scalar("SELECT poll_id FROM offers") == "newer"
    stage.execute("UPDATE offers SET until = now() - interval '1 s'")
    (found,) = offer(stage, polling(pod, poll_id="older", again=True), web_id="first")
    assert found.facts.offered


def test_a_row_that_another_transaction_holds_delays_nobody(stage: Stage) -> None:
    pods = [stage.pod(stage.pool(), bound=False)]
    pods += [stage.pod(pods[0].pool_id) for _ in range(3)]
    offer(stage, polling(pods[2]))
    with stage.engine.begin() as db:
        db.exec_driver_sql("SELECT id FROM runner_pods ORDER BY id LIMIT 3 FOR UPDATE")

        found = {pod.pod_uid: pod.facts for pod in offer(stage, *(polling(pod) for pod in pods))}

    assert not found[pods[0].uid].bound
    assert [found[pod.uid].offered for pod in pods] == [False, False, True, True]
    assert [found[pod.uid].locked for pod in pods[1:]] == [True, False, False]


@pytest.mark.parametrize("rows", ["offers", "pools"])
def test_pods_are_offered_without_a_wait_when_a_row_of_another_pod_is_locked(stage: Stage, rows: str) -> None:
    stuck, free = stage.pod(stage.pool()), stage.pod(stage.pool("other"))
    if rows == "offers":
        offer(stage, polling(stuck))
    with stage.engine.begin() as holder:
        holder.exec_driver_sql(f"SELECT * FROM {rows} ORDER BY 1 LIMIT 1 FOR UPDATE")  # noqa: S608  a literal of this test

        found = {pod.pod_uid: pod.facts for pod in offer(stage, polling(stuck), polling(free), within_ms=1)}

    assert (found[stuck.uid].offered, found[stuck.uid].locked) == (False, True)
    assert (found[free.uid].offered, found[free.uid].locked) == (True, False)


@pytest.mark.parametrize("polled_before", [False, True])
def test_pods_that_another_process_is_about_to_offer_are_skipped_without_a_wait(
    stage: Stage, polled_before: bool
) -> None:
    frozen = [stage.pod(stage.pool())]
    frozen += [stage.pod(frozen[0].pool_id) for _ in range(50)]
    free = stage.pod(frozen[0].pool_id)
    if polled_before:
        stage.execute("UPDATE runner_pods SET polled_at = now()")
    with stage.engine.begin() as holder:
        offers.offer(holder, [polling(pod) for pod in frozen], web_id="frozen", now=utcnow())

        found = {
            pod.pod_uid: pod.facts for pod in offer(stage, *(polling(pod) for pod in (*frozen, free)), within_ms=1)
        }

        assert all(found[pod.uid].locked and not found[pod.uid].offered for pod in frozen)
        assert found[free.uid].offered
        holder.rollback()


def test_a_poll_that_has_its_offer_keeps_it_when_the_offer_is_locked(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    poll = polling(pod)
    offer(stage, poll)
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM offers FOR UPDATE")

        (found,) = offer(stage, replace(poll, again=True), within_ms=1)

    assert (found.facts.offered, found.facts.locked) == (True, False)


def test_a_locked_offer_is_left_and_the_others_are_withdrawn(stage: Stage) -> None:
    stuck, free = stage.pod(stage.pool()), stage.pod(stage.pool("other"))
    offer(stage, polling(stuck, poll_id="stuck"), polling(free, poll_id="free"))
    pairs = [(stuck.uid, "stuck"), (free.uid, "free")]
    with stage.engine.begin() as holder:
        holder.execute(text("SELECT FROM offers WHERE pod_uid = :uid FOR UPDATE"), {"uid": stuck.uid})

        left = briefly(stage, lambda db: offers.withdraw(db, pairs))

        assert left == [(stuck.uid, "stuck")]
        assert not stage.is_offered(free)
    assert briefly(stage, lambda db: offers.withdraw(db, left)) == []
    assert not stage.is_offered(stuck)


def test_locked_rows_of_web_processes_delay_no_beat_and_no_departure(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    offer(stage, polling(pod), web_id="w")
    earlier = utcnow() - timedelta(hours=2)
    for web_id in ("w", "dead"):
        transaction(stage.engine, lambda db, web_id=web_id: offers.beat(db, web_id=web_id, now=earlier))  # type: ignore[misc]
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM web_instances FOR UPDATE")
        holder.exec_driver_sql("SELECT FROM offers FOR UPDATE")

        briefly(stage, lambda db: offers.beat(db, web_id="w", now=utcnow()))
        briefly(stage, lambda db: offers.delete_dead_offers(db, now=utcnow()))
        briefly(stage, lambda db: offers.leave(db, web_id="w"))

        assert stage.scalar("SELECT count(*) FROM web_instances WHERE beat_at = :earlier", earlier=earlier) == 2
    briefly(stage, lambda db: offers.leave(db, web_id="w"))
    assert not stage.is_offered(pod)
    assert stage.scalar("SELECT id FROM web_instances") == "dead"


def test_a_delivery_does_not_wait_for_a_locked_claim_or_offer(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    offer(stage, polling(pod, poll_id="p"))
    claim_id = stage.claim(pod)

    def attempt(db: Connection) -> object:
        return deliver(db, claim_id=claim_id, pod_uid=pod.uid, poll_id="p", now=utcnow(), who="test")

    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM claims FOR NO KEY UPDATE")
        with pytest.raises(ClaimLocked):
            briefly(stage, attempt)
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM offers FOR UPDATE")
        assert briefly(stage, attempt) is not None
    assert stage.state(claim_id) == "delivered"
    assert not offer(stage, polling(pod, poll_id="newer"))[0].facts.offered


def test_a_pod_of_a_name_that_another_uid_has_is_unknown(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    successor = Pod(pod.id, str(uuid.uuid4()), pod.name, pod.pool_id)
    (found,) = offer(stage, polling(successor))
    assert not found.facts.known
    assert stage.scalar("SELECT uid FROM runner_pods") == pod.uid


def test_only_the_newest_poll_of_the_right_pod_can_deliver(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    offer(stage, polling(pod, poll_id="newest"))
    claim_id = stage.claim(pod)
    insert_job(stage.engine, 5, state="claimed")
    stage.execute("UPDATE claims SET job_id = 5")

    def attempt(pod_uid: str, poll_id: str) -> Delivery | None:
        return transaction(
            stage.engine,
            lambda db: deliver(db, claim_id=claim_id, pod_uid=pod_uid, poll_id=poll_id, now=utcnow(), who="test"),
        )

    assert attempt(pod.uid, "older") is None
    assert attempt("another", "newest") is None
    delivery = attempt(pod.uid, "newest")
    assert delivery is not None
    assert delivery.queued is not None
    assert delivery.queued[1] == (NAMESPACE, stage.scalar("SELECT name FROM pools"))
    assert attempt(pod.uid, "newest") is None


@pytest.mark.parametrize("moved", ["state = 'executing', jit = NULL", "stamp = 'on'"], ids=["executing", "stamped"])
def test_repeated_answer_schedules_no_stamp_when_its_claim_moved_meanwhile(stage: Stage, moved: str) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod, state="delivered", stamp="off")
    stage.execute("UPDATE claims SET due_at = NULL, stamp_after = NULL")

    def answer() -> object:
        return transaction(
            stage.engine,
            lambda db: delivered_before(db, claim_id=claim_id, pod_uid=pod.uid, now=utcnow(), who="test"),
        )

    with stopped(stage.engine, "SELECT 1 FROM claims", thread="poll") as asking:
        poll = start("poll", answer)
        asking.wait()
        stage.execute(f"UPDATE claims SET {moved} WHERE id = :id", id=claim_id)  # noqa: S608
    assert poll.result(DEADLINE) is not None
    assert stage.scalar("SELECT count(*) FROM claims WHERE due_at IS NOT NULL OR stamp_after IS NOT NULL") == 0


def test_only_offers_long_past_their_time_are_forgotten(stage: Stage) -> None:
    young, old = (stage.pod(stage.pool(name)) for name in ("small", "large"))
    offer(stage, polling(young), polling(old))
    stage.execute("UPDATE offers SET until = now() - interval '2 hours' WHERE pod_uid = :uid", uid=old.uid)
    transaction(stage.engine, lambda db: offers.delete_dead_offers(db, now=utcnow()))
    assert [row.pod_uid for row in stage.execute("SELECT pod_uid FROM offers")] == [young.uid]
