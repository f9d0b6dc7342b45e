"""How the worker and the beat processes start: the programs behind `ostler worker` and `ostler beat`."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import structlog
from celery.signals import beat_init
from redbeat.schedulers import RedBeatScheduler  # registers its own beat_init receiver first
from redis.exceptions import LockNotOwnedError

from ostler.settings import Settings
from tasks.app import QUEUES, configure

log = structlog.get_logger(__name__)


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


def run_beat(settings: Settings) -> int:
    """Run beat under redbeat and return its exit status; of two copies one is active.

    When the active one loses its lock (Redis was emptied, or it was stopped for longer than the lock lives) it
    ends with status 1, to be started again as the standby of the other.
    """
    app = configure(settings)
    try:
        app.Beat(
            scheduler_cls=RedBeatScheduler, max_interval=app.conf.beat_max_loop_interval, loglevel=settings.log_level
        ).run()
    except LockNotOwnedError:
        log.warning("beat.lost_its_lock")
        return 1
    return 0
