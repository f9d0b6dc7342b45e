"""Start of the worker process, for `ostler worker`."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery.signals import heartbeat_sent, worker_ready

from models.upstream.reporter import Reporter
from ostler import telemetry
from ostler.settings import Settings
from ostler.task_names import EXPIRES, POOLS, QUEUES
from ostler.transport import reading
from tasks.worker.app import configure
from tasks.worker.runtime import Runtime, install

READS_WITHIN = 30.0
"""Seconds since the last read of its queues during which a worker counts as alive.

One read waits one second for a message. After a silent loss of the network connection, a worker reads again within 21
seconds.
"""


def run_worker(settings: Settings, *, queues: Sequence[str] = QUEUES) -> None:
    """Run a worker of threads until SIGTERM. After SIGTERM, the worker first finishes its running tasks.

    Before the worker takes a message, raises `ConfigurationError` if a setting cannot be used, and the errors of
    `models.db.connections.admit`.
    """
    app = configure(settings)
    telemetry.serve(settings.metrics_port)
    rt = Runtime(settings, queues=queues)
    install(rt)
    Reporter(rt.engine).start()
    if settings.alive_file is not None:
        leave_signs_of_life(Path(settings.alive_file))
    group = "all" if tuple(queues) == QUEUES else "+".join(queues)
    app.worker_main(
        [
            "worker",
            "--pool=threads",
            f"--concurrency={settings.worker_threads}",
            f"--queues={','.join(queues)}",
            f"--hostname={group}-{os.getpid()}@{socket.gethostname()}",
            "--without-gossip",
            "--without-mingle",
            f"--loglevel={settings.log_level}",
        ]
    )


@worker_ready.connect  # type: ignore[untyped-decorator]
def reconcile_at_start(sender: Any, **_: Any) -> None:
    """Send the task `pools`, so that after a deploy no pool has to wait until beat sends this task."""
    with sender.app.connection_for_write() as connection:
        sender.app.send_task(POOLS, expires=EXPIRES, ignore_result=True, connection=connection)


def leave_signs_of_life(file: Path) -> None:
    """Touch a file with each heartbeat of this worker, every 2 s, while it reads its queues.

    A worker sends heartbeats only while it reaches Redis. A worker that reaches Redis but reads no queue is not alive.
    """
    file.unlink(missing_ok=True)

    def touch(**_: Any) -> None:
        if reading.is_fresh(within=READS_WITHIN):
            file.touch()

    heartbeat_sent.connect(touch, weak=False)
