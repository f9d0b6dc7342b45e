"""A Redis that answers and refuses writes: processes wait for it, and do not end again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.contrib.testing.worker import start_worker
from structlog.testing import capture_logs

from lab.redis import Redis
from ostler.secrets import Secret
from ostler.task_names import QUEUES
from tasks.worker.app import SETTINGS, app
from tasks.worker.beat import wait_for_redis
from tests.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    """A separate Redis of the test."""
    found = Redis(tmp_path)
    found.start()
    yield found
    found.stop()


def configure(server: Redis, name: str, value: str) -> None:
    """Change a setting of the running Redis."""
    with server.client() as client:
        client.config_set(name, value)


@pytest.mark.parametrize(
    ("name", "broken", "whole", "error"),
    [
        ("maxmemory", "1", "0", "the memory of Redis is full"),
        (
            "min-replicas-to-write",
            "1",
            "0",
            "Redis refuses the command, for example because replicas are missing: check the log of Redis",
        ),
    ],
    ids=["out of memory", "without its replicas"],
)
def test_beat_waits_until_redis_takes_writes(server: Redis, name: str, broken: str, whole: str, error: str) -> None:
    configure(server, name, broken)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            configure(server, name, whole)

    with capture_logs() as logs:
        wait_for_redis(Secret(server.url), sleep=sleep)

    assert len(slept) == 2
    assert [(each["event"], each["error"]) for each in logs] == [("beat.waiting_for_redis", error)] * 2


@pytest.fixture
def worker(server: Redis) -> Iterator[None]:
    """A real worker on all queues, in threads of this process."""
    before = app.conf.broker_url
    app.conf.update({**SETTINGS, "broker_url": server.url})
    with start_worker(app, pool="threads", perform_ping_check=False, loglevel="ERROR", queues=list(QUEUES)):
        yield
    app.conf.update({**SETTINGS, "broker_url": before})
    app.close()


@pytest.mark.usefixtures("worker")
def test_worker_pauses_between_reconnects_while_redis_is_read_only(
    server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def connections() -> int:
        with server.client() as client:
            return int(client.info("stats")["total_connections_received"])

    eventually(lambda: connections() > 1, "the worker is connected")
    with caplog.at_level(logging.WARNING), capture_logs() as logs, server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        eventually(
            lambda: sum(each["event"] == "worker.redis_failed" for each in logs) >= 4, "four failures are logged"
        )
        client.execute_command("REPLICAOF", "NO", "ONE")

    failed = [each for each in logs if each["event"] == "worker.redis_failed"]
    assert failed[-1]["error"] == "Redis is a read-only replica"
    assert [each["retry_after_seconds"] for each in failed][:4] == [0.5, 1.0, 2.0, 4.0]
    assert "Frequent restarts" not in caplog.text
