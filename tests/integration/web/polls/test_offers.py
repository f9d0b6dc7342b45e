"""The offers' statement itself, under contention and with rows in odd states."""

from __future__ import annotations

import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from models import offers
from models.deliver import deliver
from models.engine import transaction
from ostler.clock import utcnow
from tests.integration.web.polls.stage import NAMESPACE, Pod, Stage

ROUNDS = 15


def polling(pod: Pod, *, poll_id: str | None = None, again: bool = False) -> offers.Polling:
    return offers.Polling(
        pod_uid=pod.uid,
        namespace=NAMESPACE,
        pod_name=pod.name,
        poll_id=poll_id or uuid.uuid4().hex,
        until=utcnow() + timedelta(seconds=50),
        again=again,
    )


def offer(stage: Stage, *polls: offers.Polling, web_id: str = "w") -> list[offers.PolledPod]:
    return transaction(stage.engine, lambda db: offers.offer(db, polls, web_id=web_id, now=utcnow()))


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
    pods += [stage.pod(pods[0].pool_id), stage.pod(pods[0].pool_id)]
    with stage.engine.begin() as db:
        db.exec_driver_sql("SELECT id FROM runner_pods ORDER BY id LIMIT 2 FOR UPDATE")

        found = {pod.pod_uid: pod for pod in offer(stage, *(polling(pod) for pod in pods))}

    assert not found[pods[0].uid].facts.bound
    assert not found[pods[0].uid].facts.offered
    assert found[pods[1].uid].facts.offered
    assert found[pods[2].uid].facts.offered


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

    def attempt(pod_uid: str, poll_id: str) -> bool:
        return (
            transaction(
                stage.engine,
                lambda db: deliver(db, claim_id=claim_id, pod_uid=pod_uid, poll_id=poll_id, now=utcnow(), who="test"),
            )
            is not None
        )

    assert not attempt(pod.uid, "older")
    assert not attempt("another", "newest")
    assert attempt(pod.uid, "newest")
    assert not attempt(pod.uid, "newest")
