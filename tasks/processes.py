"""How the worker and the beat processes start: the programs behind `ostler worker` and `ostler beat`."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from celery.signals import beat_init
from redbeat.schedulers import RedBeatScheduler  # registers its own beat_init receiver first

from ostler.settings import Settings
from tasks.app import QUEUES, configure


def run_worker(settings: Settings, *, queues: Sequence[str] = QUEUES) -> None:
    """Run a worker of threads until SIGTERM; what it had begun is finished."""
    app = configure(settings)
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


@beat_init.connect  # type: ignore[untyped-decorator]
def reinstall(sender: Any, **_: Any) -> None:
    """Install the static entries again when a standby takes over.

    After a flush of Redis redbeat's winner would hold the lock over an empty schedule and tick nothing.
    """
    sender.scheduler.setup_schedule()


def run_beat(settings: Settings) -> None:
    """Run beat under redbeat; of two copies one is active and the other takes over within the lock's time-out."""
    app = configure(settings)
    app.Beat(
        scheduler_cls=RedBeatScheduler, max_interval=app.conf.beat_max_loop_interval, loglevel=settings.log_level
    ).run()
