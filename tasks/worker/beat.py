"""The program of `ostler beat`: redbeat with one active copy, while every other copy stands by.

A beat that loses Redis or its lock does not exit, but stands by again. A beat loses its lock if Redis was flushed, or
if its process was stopped for longer than the lock is valid. The lock expires after 12 s, and a standby tries to take
the lock every 2 s (`tasks.worker.app`). The sweeps therefore continue within 15 s and one period, without an operator.
The beat that becomes active installs the schedule again.
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
"""Seconds before the next attempt to reach Redis or to stand by."""

SOCKET_TIMEOUT = 30.0
"""Default socket timeout in seconds for clients that set none of their own."""

log = structlog.get_logger(__name__)


class LockNotHad(BaseException):
    """Redis failed while this beat waited for the lock.

    This class does not derive from `Exception`, because Celery catches every `Exception` of a signal receiver. Beat
    would then run without the lock.
    """


class Scheduler(RedBeatScheduler):  # type: ignore[misc]
    """Scheduler of redbeat that installs its entries again if Redis lost them.

    Without entries, beat would send nothing.
    """

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the tasks that are due, and return the seconds until the next tick."""
        wait: float = super().tick(*args, **kwargs)
        conf = self.app.redbeat_conf
        if get_redis(self.app).zcard(conf.schedule_key) < len(conf.schedule):
            log.warning("beat.lost_schedule_installed_again")
            self.setup_schedule()
        return wait


@beat_init.connect  # type: ignore[untyped-decorator]
def reinstall(sender: Any, **_: Any) -> None:
    """Install the static entries again when a standby takes over.

    After a flush of Redis, the beat that takes the lock would otherwise have an empty schedule and send nothing. If
    Redis failed during the wait for the lock, redbeat would run without a lock and fail at its first tick. `LockNotHad`
    prevents such a run.
    """
    if sender.scheduler.lock_key and sender.scheduler.lock is None:
        raise LockNotHad
    log.info("beat.lock_acquired")
    sender.scheduler.setup_schedule()


def wait_for_redis(url: Secret, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until Redis accepts writes."""
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
    """Run beat under redbeat until SIGTERM or SIGINT. If several copies run, only one of them is active."""
    app = configure(settings)
    # Workers do not get this setting, because Flower shows their settings. Celery masks a password in `broker_url`
    # only.
    app.conf.redbeat_redis_url = settings.redis_url.reveal()
    socket.setdefaulttimeout(SOCKET_TIMEOUT)
    app.finalize()  # without importing the task modules: beat sends tasks by name, to the queue of the schedule
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    while True:
        wait_for_redis(settings.redis_url)
        if _beat(app):
            return
        # The name of a failed server might lead to another server by now.
        get_redis(app).connection_pool.disconnect()
        time.sleep(PAUSE)


def _end(*_: object) -> None:
    raise SystemExit(0)


def _beat(app: Celery) -> bool:
    """Stand by, then be the active beat.

    Return True if the process was asked to stop; False if it lost Redis or the lock. The log then shows the cause.
    """
    service = Service(app=app, max_interval=app.conf.beat_max_loop_interval, scheduler_cls=Scheduler)
    try:
        service.start()
    except LockNotOwnedError:
        log.warning("beat.lock_lost")
        return False
    except LockNotHad:
        log.warning("beat.redis_failed", error="the lock could not be acquired")
        return False
    except RedisError as error:
        log.warning("beat.redis_failed", error=reason_of(error))
        return False
    return True
