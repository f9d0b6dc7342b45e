"""Polls whose rows another transaction has locked: each is refused alone, or held and tried again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.state import offers
from tests.integration.web.polls.stage import Pod, Stage, WebProcess
from tests.integration.web.polls.test_stop import open_poll
from tests.waiting import eventually
from web.runners import offering

INSERT = """
    INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
    VALUES (:uid, :pool, 'other', 'x', now() + interval '1 min')
"""


def pods_of(stage: Stage, count: int) -> list[Pod]:
    pool = stage.pool()
    return [stage.pod(pool) for _ in range(count)]


def hear(web: WebProcess) -> None:
    web.web.listener._loop.call_soon_threadsafe(web.web.polls.hearing)


def test_only_the_pod_whose_offer_is_being_inserted_elsewhere_is_turned_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "HALVING_WITHIN", 60.0)  # whatever this machine does meanwhile
    stuck, *others = pods_of(stage, 6)
    web = stage.start_web()
    web.web.polls.deaf()
    with stage.engine.begin() as holder:
        holder.execute(text(INSERT), {"uid": stuck.uid, "pool": stuck.pool_id})
        turned_away, *held = [web.begin_poll(pod.token) for pod in (stuck, *others)]
        eventually(lambda: web.web.polls.held == 6)
        hear(web)

        assert turned_away.result(90).status_code == 503
        eventually(lambda: all(stage.is_offered(pod, web) for pod in others))
        assert not any(poll.done() for poll in held)
        assert web.web.counts["offers.failed"] == 0
        holder.rollback()


def test_polls_that_cannot_be_halved_in_time_are_offered_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "HALVING_WITHIN", 0.0)
    monkeypatch.setattr(offering, "_FRESH_TRIES", 1000)
    stuck, *others = pods_of(stage, 6)
    web = stage.start_web()
    web.web.polls.deaf()
    with stage.engine.begin() as holder:
        holder.execute(text(INSERT), {"uid": stuck.uid, "pool": stuck.pool_id})
        polls = [web.begin_poll(pod.token) for pod in (stuck, *others)]
        eventually(lambda: web.web.polls.held == 6)
        hear(web)
        eventually(lambda: web.web.counts["offers.locked"] >= 6)
        holder.rollback()

    eventually(lambda: all(stage.is_offered(pod, web) for pod in (stuck, *others)))
    assert not any(poll.done() for poll in polls)


def test_a_poll_whose_offer_is_locked_for_a_moment_is_held_and_offered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "_FRESH_TRIES", 1000)
    (pod,) = pods_of(stage, 1)
    web = stage.start_web()
    stage.execute(INSERT, uid=pod.uid, pool=pod.pool_id)
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM offers FOR UPDATE")
        poll = web.begin_poll(pod.token)
        eventually(lambda: web.web.counts["offers.locked"] >= 2)
        assert not stage.is_offered(pod, web)

    eventually(lambda: stage.is_offered(pod, web))
    assert not poll.done()


def test_held_pods_are_offered_again_after_a_statement_that_failed_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = pods_of(stage, 4)
    web = stage.start_web()
    polls = [web.begin_poll(pod.token) for pod in pods]
    eventually(lambda: all(stage.is_offered(pod, web) for pod in pods))
    stage.execute("DELETE FROM offers")  # as a crash of Postgres does
    real = offers.offer
    failed = threading.Event()

    def offer(*arguments: Any, **named: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise OperationalError("INSERT INTO offers", {}, Exception("the connection was lost"))
        return real(*arguments, **named)

    monkeypatch.setattr(offers, "offer", offer)
    hear(web)

    eventually(failed.is_set)
    eventually(lambda: all(stage.is_offered(pod, web) for pod in pods))
    assert web.web.counts["offers.failed"] == 1
    assert not any(poll.done() for poll in polls)


def test_an_offer_that_was_locked_is_withdrawn_later(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = offers.withdraw
    left: list[tuple[str, str]] = []

    def withdraw(*arguments: Any) -> Any:
        found = real(*arguments)
        left.extend(found)
        return found

    monkeypatch.setattr(offers, "withdraw", withdraw)
    (pod,) = pods_of(stage, 1)
    web = stage.start_web()
    connection = open_poll(web, pod.token)
    eventually(lambda: stage.is_offered(pod, web))
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM offers FOR UPDATE")
        connection.close()
        eventually(lambda: [uid for uid, _ in left[:1]] == [pod.uid])

    eventually(lambda: not stage.is_offered(pod))


def test_a_jit_whose_claim_was_locked_is_delivered_to_the_same_poll_after_one_review(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering.Offering, "tick", lambda _self: None)  # the listener's question would find it, too
    (pod,) = pods_of(stage, 1)
    web = stage.start_web()
    poll = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod, web))
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id, notify=False)
    with stage.engine.begin() as holder:
        holder.exec_driver_sql("SELECT FROM claims FOR NO KEY UPDATE")
        stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim_id} {pod.uid}")
        eventually(lambda: web.web.counts["delivery.locked"] >= 3)
        assert not poll.done()

    assert poll.result(90).json()["claim_id"] == claim_id
    assert stage.state(claim_id) == "delivered"
    assert stage.cluster.reviewed == [pod.uid]
