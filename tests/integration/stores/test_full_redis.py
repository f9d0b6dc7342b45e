"""A Redis that answers and takes no writes: processes wait for it instead of ending ever again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lab.redis import Redis
from ostler.secrets import Secret
from tasks.worker.beat import wait_for_redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    """A Redis of the test's own."""
    found = Redis(tmp_path)
    found.start()
    yield found
    found.stop()


def configure(server: Redis, name: str, value: str) -> None:
    """Change a setting of the running server."""
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
