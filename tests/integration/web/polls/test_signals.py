"""SIGTERM to a real process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx

from lab.processes import free_port
from lab.redis import Redis
from tests.database import Database
from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually


def test_sigterm_ends_held_polls_with_204_and_then_the_process(
    stage: Stage, database: Database, redis_server: Redis
) -> None:
    pod = stage.pod(stage.pool())
    port = free_port()
    program = [
        sys.executable,
        "-m",
        "tests.integration.web.polls.process",
        database.url.reveal(),
        redis_server.url,
        str(port),
        pod.name,
        pod.uid,
    ]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process, ThreadPoolExecutor(1) as threads:
        try:
            eventually(lambda: answers(port))
            held = threads.submit(
                httpx.post,
                f"http://127.0.0.1:{port}/runners/v1/dispatch",
                headers={"Authorization": "Bearer token"},
                timeout=240,
            )
            eventually(lambda: stage.is_offered(pod))

            process.send_signal(signal.SIGTERM)

            assert held.result(90).status_code == 204
            _, errors = process.communicate(timeout=90)
        finally:
            process.kill()
    # Uvicorn gives the signal that ended it back to the process once all is stopped.
    assert process.returncode in {0, -signal.SIGTERM}, errors
    assert '"event": "web.stopped"' in errors
    assert "Traceback" not in errors
    assert not stage.is_offered(pod)


def answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=30).status_code == 200
    return False
