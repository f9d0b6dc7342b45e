"""A Redis that answers and takes no writes: processes wait for it instead of ending ever again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from structlog.testing import capture_logs

from lab.redis import Redis
from ostler.secrets import Secret
from tasks.processes import wait_for_redis

ROOT = Path(__file__).parents[3]


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
        ("maxmemory", "1", "0", "OutOfMemoryError"),
        ("min-replicas-to-write", "1", "0", "ResponseError"),
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


@pytest.mark.parametrize("standby", [False, True], ids=["active", "standby"])
def test_a_beat_whose_redis_takes_no_writes_any_more_ends_with_one_line(
    server: Redis, tmp_path: Path, *, standby: bool
) -> None:
    if standby:
        with server.client() as client:
            client.set("redbeat::lock", "another's", px=60_000)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "PYTEST"))}
    environment |= {
        "OSTLER_DATABASE_URL": "postgresql+psycopg2://nobody@127.0.0.1:1/none",
        "OSTLER_REDIS_URL": server.url,
        "OSTLER_GITHUB_APP_ID": "1",
        "OSTLER_GITHUB_PRIVATE_KEY": "unused",
        "OSTLER_WEBHOOK_SECRETS": "unused",
        "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    }
    log = tmp_path / "beat.log"
    with log.open("wb") as output:
        beat = subprocess.Popen(
            [sys.executable, "-m", "ostler", "beat"], env=environment, cwd=ROOT, stdout=output, stderr=output
        )
    try:
        with server.client() as client:
            if standby:
                # Ours above, the probe, and the first try to get the lock.
                until(lambda: client.info("commandstats").get("cmdstat_set", {}).get("calls", 0) >= 3)
            else:
                until(lambda: bool(client.exists("redbeat::lock")))
        configure(server, "maxmemory", "1")
        until(lambda: beat.poll() is not None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            beat.send_signal(signal.SIGKILL)
        beat.wait()
    assert beat.returncode == 1, log.read_text()
    assert '"event": "beat.lost_redis"' in log.read_text().splitlines()[-1]
    assert ("the lock could not be had" if standby else "OutOfMemoryError") in log.read_text().splitlines()[-1]


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
