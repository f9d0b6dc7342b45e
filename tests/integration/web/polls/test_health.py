"""Readiness: 503 if the process cannot work, 200 if it can work without the missing part."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from lab.redis import Redis
from models.db import migrate
from ostler.secrets import Secret
from ostler.task_names import SWEEPS
from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually
from web.health import health


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loaded machine answer later than the product waits. Tests of these limits set their own values."""
    for limit in ("_POSTGRES_WITHIN", "_REDIS_WITHIN", "_REDIS_TIMEOUT"):
        monkeypatch.setattr(health, limit, 30.0)


def test_a_process_that_works_is_alive_and_ready(stage: Stage) -> None:
    web = stage.start_web()
    assert web.get("/healthz").status_code == 200
    response = web.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert body["checks"] == {"postgres": True, "migrations": True, "listener": True, "not_stopping": True}
    assert body["redis"] is True
    assert body["beat_lock_seconds"] is None
    assert body["oldest_message_seconds"] == 0
    assert (body["sweeps_late"], body["sweeps_paused"]) == ([], [])


def test_a_process_says_for_how_long_messages_wait(stage: Stage, redis_server: Redis) -> None:
    web = stage.start_web()
    message = {"headers": {"sent_at": time.time() - 70}}
    with redis_server.client() as client:
        client.lpush("pools", json.dumps(message))
    eventually(lambda: 70 <= web.get("/readyz").json()["oldest_message_seconds"] < 130)


def test_a_process_stays_ready_and_names_the_sweeps_that_are_late_or_paused(stage: Stage) -> None:
    web = stage.start_web()
    with stage.engine.begin() as db:
        db.execute(text("INSERT INTO sweeps (name, succeeded_at) VALUES ('resume', now() - interval '1 h')"))
        db.execute(text("INSERT INTO sweeps (name, paused_at, paused_by) VALUES ('redelivery', now(), 'bo')"))
    web.web.watchdog._since -= timedelta(seconds=30)
    response = web.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert (body["sweeps_late"], body["sweeps_paused"]) == (["resume"], ["redelivery"])


def test_readyz_names_a_sweep_of_the_setting_as_paused_and_not_as_late(stage: Stage) -> None:
    web = stage.start_web(sweeps_paused=("redelivery",))
    web.web.watchdog._since -= timedelta(days=30)
    body = web.get("/readyz").json()
    assert body["sweeps_paused"] == ["redelivery"]
    assert set(body["sweeps_late"]) == set(SWEEPS) - {"redelivery"}


def test_a_process_stays_ready_and_says_which_gate_is_closed_since_when_and_why(stage: Stage) -> None:
    web = stage.start_web()
    with stage.engine.begin() as db:
        db.execute(text("INSERT INTO gates (upstream, closed_at, why) VALUES ('github', '2026-11-21', 'the story')"))
        db.execute(text("INSERT INTO sweeps (name, began_at) VALUES ('resume', now() - interval '100 s')"))
    response = web.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert body["last_tick_seconds"] >= 100
    assert body["gates"]["kubernetes"] == {"state": "ok", "open": True}
    github = body["gates"]["github"]
    assert (github["open"], github["closed_at"][:10], github["why"]) == (False, "2026-11-21", "the story")


def test_readiness_tells_anybody_nothing_of_the_fleet(stage: Stage) -> None:
    web = stage.start_web()
    assert set(web.get("/readyz").json()) == {
        "status",
        "checks",
        "redis",
        "beat_lock_seconds",
        "oldest_message_seconds",
        "sweeps_late",
        "sweeps_paused",
        "gates",
        "last_tick_seconds",
        "epoch",
        "epoch_confirmed_at",
        "database_older",
        "nothing_is_killed",
    }


def test_many_who_ask_for_readiness_cost_postgres_one_question_a_second(stage: Stage) -> None:
    web = stage.start_web()
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "alembic_version.version_num" in statement:
            asked.append(statement)

    event.listen(web.web.engine, "before_cursor_execute", note)
    began = time.monotonic()
    with ThreadPoolExecutor(16) as clients:
        statuses = set(clients.map(lambda _: web.get("/readyz").status_code, range(200)))

    assert statuses == {200}
    seconds = (time.monotonic() - began) / health.KEPT
    assert 1 <= len(asked) <= seconds + 2


def test_a_postgres_that_does_not_answer_is_asked_by_one_thread_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "KEPT", 0)
    monkeypatch.setattr(health, "_POSTGRES_WITHIN", 0.5)
    web = stage.start_web()
    asked, answer, current = threading.Semaphore(0), threading.Event(), migrate.current

    def silent(engine: Engine) -> str | None:
        asked.release()
        answer.wait(120)
        return current(engine)

    monkeypatch.setattr(migrate, "current", silent)
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda _: web.get("/readyz"), range(24)))
    assert {each.status_code for each in found} == {503}
    assert {each.json()["checks"]["postgres"] for each in found} == {False}
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)

    answer.set()
    eventually(lambda: web.get("/readyz").status_code == 200)


def test_redis_being_away_is_told_and_no_reason_to_send_pods_elsewhere(stage: Stage) -> None:
    web = stage.start_web(redis_url=Secret("redis://127.0.0.1:1/0"))
    response = web.get("/readyz")
    assert response.status_code == 200
    assert response.json()["redis"] is False


def test_readyz_reports_redis_false_while_redis_refuses_writes(stage: Stage, redis_session: Redis) -> None:
    web = stage.start_web(redis_url=Secret(redis_session.url_of("web")))
    assert web.get("/readyz").json()["redis"] is True

    with redis_session.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            eventually(lambda: web.get("/readyz").json()["redis"] is False)
            assert web.get("/readyz").status_code == 200
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")

    eventually(lambda: web.get("/readyz").json()["redis"] is True)


def test_a_redis_that_says_nothing_does_not_make_readiness_late(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_REDIS_WITHIN", 0.3)
    monkeypatch.setattr(health, "_REDIS_TIMEOUT", 3600.0)  # an answer that waited for Redis would not come
    with socket.create_server(("127.0.0.1", 0)) as silent:
        web = stage.start_web(redis_url=Secret(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        for _ in range(3):
            response = web.get("/readyz")
            assert response.status_code == 200
            assert response.json()["redis"] is False


def test_an_older_schema_is_not_ready_and_a_newer_one_is(stage: Stage) -> None:
    web = stage.start_web()
    assert web.get("/readyz").status_code == 200
    stage.execute("UPDATE alembic_version SET version_num = 'of_a_later_version'")
    time.sleep(health.KEPT)
    assert web.get("/readyz").status_code == 200
    stage.execute("DELETE FROM alembic_version")
    eventually(lambda: web.get("/readyz").status_code == 503)


def test_a_stopping_process_is_not_ready_and_holds_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    web.web.stopping = True
    assert web.get("/readyz").status_code == 503
    web.web.polls.end_all()
    assert web.poll(pod.token).status_code == 204
    assert not stage.is_offered(pod)
    eventually(lambda: web.web.polls.held == 0)
