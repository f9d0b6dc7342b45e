"""Notifications to a web process, and its recovery after missed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, Row

from lab.postgres import Postgres
from models.state import offers
from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually
from web.runners import listener

KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ostler-listener'"


def unsaid(*_arguments: Any, **_named: Any) -> None:
    """Replace the sending of a notice, so that no process receives it."""


def test_a_killed_listener_comes_back_and_offers_its_pods_again(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    stage.execute("DELETE FROM offers")

    stage.execute(f"{KILL} AND datname = current_database()")

    eventually(lambda: web.web.listener.connects >= 2)
    eventually(lambda: stage.is_offered(pod))
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id)
    assert answer.result(90).json()["claim_id"] == claim_id


def test_a_mint_that_was_notified_while_we_were_deaf_is_delivered_on_return(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    claim_id = stage.claim(pod, state="claimed")
    stage.mint(claim_id, notify=False)

    stage.execute(f"{KILL} AND datname = current_database()")

    assert answer.result(90).json()["claim_id"] == claim_id


def test_a_lost_notice_is_found_by_asking(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BEAT_EVERY", 0.1)
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))
    claim_id = stage.claim(pod, state="claimed")

    stage.mint(claim_id, notify=False)

    assert answer.result(90).json()["claim_id"] == claim_id


def test_a_held_pod_that_gets_a_retire_claim_is_told_410(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BEAT_EVERY", 0.1)
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    answer = web.begin_poll(pod.token)
    eventually(lambda: stage.is_offered(pod))

    stage.claim(pod, state="claimed", purpose="retire")

    assert answer.result(90).status_code == 410


def test_a_deaf_process_offers_nothing_and_does_not_beat(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    heard = stage.pod(pod.pool_id)
    web.web.polls.deaf()
    web.begin_poll(pod.token)
    eventually(lambda: web.web.polls.held == 1)
    statements = web.web.counts["offers.statements"]

    eventually(lambda: not web.web.offering._changed.is_set())
    assert web.web.counts["offers.statements"] == statements
    assert not stage.is_offered(pod)

    web.web.listener._loop.call_soon_threadsafe(web.web.polls.hearing)
    eventually(lambda: stage.is_offered(pod))
    web.begin_poll(heard.token)
    eventually(lambda: stage.is_offered(heard))


def test_the_heartbeat_is_written_only_when_our_own_notice_came_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BEAT_EVERY", 0.1)
    web = stage.start_web()
    beat = "SELECT beat_at FROM web_instances WHERE id = :id"
    first = stage.scalar(beat, id=web.web.id)
    assert first is not None
    eventually(lambda: stage.scalar(beat, id=web.web.id) > first)

    # Notices are still sent, and go where nobody listens.
    monkeypatch.setattr(offers, "notify_beat", unsaid)
    sent = web.web.listener._number
    eventually(lambda: web.web.listener._number > sent + 1)
    last = stage.scalar(beat, id=web.web.id)
    sent = web.web.listener._number
    eventually(lambda: web.web.listener._number > sent + 3)
    assert stage.scalar(beat, id=web.web.id) == last


def test_a_process_that_hears_nothing_connects_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BEAT_EVERY", 0.1)
    monkeypatch.setattr(listener, "DEAF_AFTER", 0.5)
    web = stage.start_web()
    with monkeypatch.context() as mute:
        mute.setattr(offers, "notify_beat", unsaid)
        eventually(lambda: not web.web.listener.is_hearing)
        assert web.get("/readyz").status_code == 503
    eventually(lambda: web.web.listener.is_hearing)
    assert web.web.listener.connects > 1


def test_postgres_that_crashes_and_forgets_all_offers_is_told_them_again(
    stage: Stage, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    real = offers.offer

    def offer(db: Connection, polls: Sequence[offers.Polling], **arguments: Any) -> list[offers.PolledPod]:
        offered = real(db, polls, **arguments)
        batches.append(len(polls))  # before the commit, so no reader sees an offer that is not counted
        return offered

    monkeypatch.setattr(offers, "offer", offer)
    pods = [stage.pod(stage.pool())]
    pods += [stage.pod(pods[0].pool_id) for _ in range(4)]
    web = stage.start_web()
    answers = [web.begin_poll(pod.token) for pod in pods]
    eventually(lambda: all(stage.is_offered(pod) for pod in pods))
    batches.clear()
    # A crash empties unlogged tables; the restart of this server is not always one.
    stage.execute("TRUNCATE offers")

    postgres.restart()
    stage.engine.dispose()  # this test's own connections; web has to find out by itself

    eventually(lambda: all(stage.is_offered(pod, web) for pod in pods))
    assert batches == [len(pods)]
    claim_id = stage.claim(pods[0], state="claimed")
    stage.mint(claim_id)
    assert answers[0].result(90).json()["claim_id"] == claim_id
    assert not any(answer.done() for answer in answers[1:])


def test_one_pod_with_an_unreadable_row_does_not_keep_others_from_being_offered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [stage.pod(stage.pool())]
    pods += [stage.pod(pods[0].pool_id) for _ in range(4)]
    bad = pods[2]
    real = offers._polled

    def polled(row: Row[Any], *, arrived: bool) -> offers.PolledPod:
        if row.pod_uid == bad.uid:
            raise ValueError("a state of a later version")
        return real(row, arrived=arrived)

    monkeypatch.setattr(offers, "_polled", polled)
    web = stage.start_web()
    web.web.polls.deaf()
    answers = {pod.uid: web.begin_poll(pod.token) for pod in pods}
    eventually(lambda: web.web.polls.held == len(pods))

    web.web.listener._loop.call_soon_threadsafe(web.web.polls.hearing)

    assert answers[bad.uid].result(90).status_code == 503
    eventually(lambda: all(stage.is_offered(pod) for pod in pods if pod is not bad))
