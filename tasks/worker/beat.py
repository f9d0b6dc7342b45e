"""The program behind `ostler beat`: redbeat, of which one copy is active and every other stands by.

A beat that lost its lock (Redis was emptied, or the process was stopped for longer than the lock lives) or its Redis
does not end: it stands by again. The lock expires after 12 s and a standby tries to take it every 2 s
(`tasks.worker.app`), so the sweeps go on within 15 s and one period, whatever happens to Redis or to the active beat,
and nobody has to start anything again. Whoever becomes active installs the schedule anew.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import redis
import structlog
from celery import Celery
from celery.beat import Service
from celery.signals import beat_init
from redbeat.schedulers import RedBeatScheduler, get_redis  # registers its own beat_init receiver first
from redis.exceptions import LockNotOwnedError, RedisError

from ostler.reasons import reason_of
from ostler.secrets import Secret
from ostler.settings import BeatSettings
from tasks.worker.app import configure

PAUSE = 2.0
"""Seconds before another try to reach Redis, or to stand by."""

SOCKET_TIMEOUT = 30.0
"""Seconds, where a client brings none of its own."""

log = structlog.get_logger(__name__)


class LockNotHad(BaseException):
    """Redis failed while this beat waited for the lock. Celery swallows any `Exception` there and goes on without."""


class Scheduler(RedBeatScheduler):  # type: ignore[misc]
    """Redbeat's, which sees at each tick whether its entries are still there: without them it would tick nothing."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due, and return the seconds until the next tick."""
        wait: float = super().tick(*args, **kwargs)
        conf = self.app.redbeat_conf
        if get_redis(self.app).zcard(conf.schedule_key) < len(conf.schedule):
            log.warning("beat.schedule_lost")
            self.setup_schedule()
        return wait


@beat_init.connect  # type: ignore[untyped-decorator]
def reinstall(sender: Any, **_: Any) -> None:
    """Install the static entries again when a standby takes over.

    After a flush of Redis redbeat's winner would hold the lock over an empty schedule and tick nothing. And where Redis
    failed while it waited for the lock it would go on without one, and break at its first tick.
    """
    if sender.scheduler.lock_key and sender.scheduler.lock is None:
        raise LockNotHad
    log.info("beat.active")
    sender.scheduler.setup_schedule()


def wait_for_redis(url: Secret, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return once Redis takes writes."""
    with redis.Redis.from_url(url.reveal(), socket_timeout=5, socket_connect_timeout=5) as client:
        while True:
            try:
                client.set("ostler:beat:writable", "1", ex=60)
            except RedisError as error:
                log.warning("beat.waiting_for_redis", error=reason_of(error))
                sleep(PAUSE)
            else:
                return


def run_beat(settings: BeatSettings) -> None:
    """Run beat under redbeat until SIGTERM or SIGINT; of two copies one is active."""
    app = configure(settings)
    # Not for workers: Flower shows their settings, and Celery hides a password in `broker_url` only.
    app.conf.redbeat_redis_url = settings.redis_url.reveal()
    socket.setdefaulttimeout(SOCKET_TIMEOUT)
    app.finalize()  # the tasks' modules stay out: beat sends by name, to the queue that the schedule says
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    while True:
        wait_for_redis(settings.redis_url)
        if _beat(app):
            return
        time.sleep(PAUSE)


def _end(*_: object) -> None:
    raise SystemExit(0)


def _beat(app: Celery) -> bool:
    """Stand by, then be the active one; return whether the process was told to end, else why is in the log."""
    service = Service(app=app, max_interval=app.conf.beat_max_loop_interval, scheduler_cls=Scheduler)
    try:
        service.start()
    except LockNotOwnedError:
        log.warning("beat.lock_lost")
        return False
    except LockNotHad:
        log.warning("beat.redis_lost", error="the lock could not be acquired")
        return False
    except RedisError as error:
        log.warning("beat.redis_lost", error=reason_of(error))
        return False
    return True
