"""Readiness: 503 for what makes the process useless, 200 for what it can do without."""

from __future__ import annotations

from ostler.secrets import Secret
from tests.integration.web.polls.stage import Stage, eventually


def test_a_process_that_works_is_alive_and_ready(stage: Stage) -> None:
    web = stage.start_web()
    assert web.get("/healthz").status_code == 200
    response = web.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert body["checks"] == {"postgres": True, "migrations": True, "listener": True, "not_stopping": True}
    assert body["redis"] is True
    assert body["beat_lock_seconds"] is None


def test_redis_being_away_is_told_and_no_reason_to_send_pods_elsewhere(stage: Stage) -> None:
    web = stage.start_web(redis_url=Secret("redis://127.0.0.1:1/0"))
    response = web.get("/readyz")
    assert response.status_code == 200
    assert response.json()["redis"] is False


def test_an_older_schema_is_not_ready_and_a_newer_one_is(stage: Stage) -> None:
    web = stage.start_web()
    stage.execute("UPDATE alembic_version SET version_num = 'of_a_later_version'")
    assert web.get("/readyz").status_code == 200
    stage.execute("DELETE FROM alembic_version")
    assert web.get("/readyz").status_code == 503


def test_a_stopping_process_is_not_ready_and_holds_nothing(stage: Stage) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    web.web.stopping = True
    assert web.get("/readyz").status_code == 503
    web.web.polls.end_all()
    assert web.poll(pod.token).status_code == 204
    assert not stage.is_offered(pod)
    eventually(lambda: web.web.polls.held == 0)
