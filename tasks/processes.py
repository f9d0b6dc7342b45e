"""How the worker and the beat processes start: the programs behind `ostler worker` and `ostler beat`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis
import structlog
from celery.signals import beat_init, heartbeat_sent, worker_ready
from redbeat.schedulers import RedBeatScheduler  # registers its own beat_init receiver first
from redis.exceptions import LockNotOwnedError, RedisError

from ostler import telemetry
from ostler.secrets import Secret
from ostler.settings import Settings
from ostler.wakes import EXPIRES, POOLS
from tasks.app import QUEUES, configure
from tasks.runtime import Runtime, install

PAUSE = 2.0

log = structlog.get_logger(__name__)


def run_worker(settings: Settings, *, queues: Sequence[str] = QUEUES) -> None:
    """Run a worker of threads until SIGTERM; what it had begun is finished.

    Raises what `models.connections.admit` raises, before a message is taken.
    """
    app = configure(settings)
    telemetry.serve(settings.metrics_port)
    install(Runtime(settings, queues=queues))
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
def look_at_the_pools(sender: Any, **_: Any) -> None:
    """Have the pools reconciled as soon as somebody can: after a deploy they need not wait for beat's first tick."""
    with sender.app.connection_for_write() as connection:
        sender.app.send_task(POOLS, queue="pools", expires=EXPIRES, ignore_result=True, connection=connection)


def leave_signs_of_life(file: Path) -> None:
    """Touch a file with each heartbeat of this worker, every 2 s, which it sends only while it has Redis."""
    file.unlink(missing_ok=True)

    def touch(**_: Any) -> None:
        file.touch()

    heartbeat_sent.connect(touch, weak=False)


@beat_init.connect  # type: ignore[untyped-decorator]
def reinstall(sender: Any, **_: Any) -> None:
    """Install the static entries again when a standby takes over.

    After a flush of Redis redbeat's winner would hold the lock over an empty schedule and tick nothing. And where Redis
    failed while it waited for the lock (Celery swallows that) it would go on without one, and break at its first tick.
    """
    if sender.scheduler.lock_key and sender.scheduler.lock is None:
        log.warning("beat.lost_redis", error="the lock could not be had")
        raise SystemExit(1)
    sender.scheduler.setup_schedule()


def wait_for_redis(url: Secret, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once Redis takes writes: a beat that ended without it would be started again ever later."""
    with redis.Redis.from_url(url.reveal(), socket_timeout=5, socket_connect_timeout=5) as client:
        while True:
            try:
                client.set("ostler:beat:writable", "1", ex=60)
            except RedisError as error:
                log.warning("beat.waiting_for_redis", error=type(error).__name__)
                sleep(PAUSE)
            else:
                return


def run_beat(settings: Settings) -> int:
    """Run beat under redbeat and return its exit status; of two copies one is active.

    When the active one loses its lock (Redis was emptied, or it was stopped for longer than the lock lives), or Redis
    does not let it keep that, it ends with status 1, to be started again as the standby of the other.
    """
    app = configure(settings)
    wait_for_redis(settings.redis_url)
    # Not for workers: Flower shows their settings, and Celery hides a password in `broker_url` only.
    app.conf.redbeat_redis_url = settings.redis_url.reveal()
    try:
        app.Beat(
            scheduler_cls=RedBeatScheduler, max_interval=app.conf.beat_max_loop_interval, loglevel=settings.log_level
        ).run()
    except LockNotOwnedError:
        log.warning("beat.lost_its_lock")
        return 1
    except RedisError as error:
        log.warning("beat.lost_redis", error=type(error).__name__)
        return 1
    return 0
