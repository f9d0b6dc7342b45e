"""`ostler healthy`: health check of a container's process. It reads the settings of that process."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from enum import StrEnum
from pathlib import Path

from ostler.reasons import endpoint, reason_and_cure, reason_of
from ostler.settings import load, load_beat, load_flower
from watch.settings import load_watch

BEAT_LOCK = "redbeat::lock"
WITHIN = 5.0
"""Maximum seconds to wait for an answer of the process or of Redis."""

ALIVE_FOR = 30.0
"""Seconds after its last heartbeat during which a process counts as alive.

A process writes a heartbeat about every two seconds.
"""


class Process(StrEnum):
    """Process with a health check."""

    WEB = "web"
    WORKER = "worker"
    BEAT = "beat"
    WATCH = "watch"
    FLOWER = "flower"


def problem_of(process: Process) -> str | None:
    """Return the problem of a process, or None if the process is healthy.

    Raises `ConfigurationError` if a setting is missing or malformed.
    """
    match process:
        case Process.WEB:
            return _answers(f"http://127.0.0.1:{load().web_private_port}/readyz")
        case Process.FLOWER:
            return _answers(f"http://127.0.0.1:{load_flower().flower_port}/healthcheck")
        case Process.WORKER:
            return _beats(load().alive_file, never="the worker never reached Redis")
        case Process.WATCH:
            return _beats(load_watch().alive_file, never="the watch never reached the cluster")
        case Process.BEAT:
            return _is_locked(load_beat().redis_url.reveal())


def _answers(url: str) -> str | None:
    try:
        # The address is local. A proxy in the environment is only for outside addresses.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=WITHIN):
            return None
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}"
    except OSError as error:
        return f"{url} does not answer: {reason_of(error)}"


def _beats(alive_file: str | None, *, never: str) -> str | None:
    if alive_file is None:
        return "OSTLER_ALIVE_FILE is not set, so the process writes no heartbeat; set it to the path of a file"
    try:
        age = time.time() - Path(alive_file).stat().st_mtime
    except FileNotFoundError:
        return f"there is no {alive_file}: {never}"
    return None if age < ALIVE_FOR else f"its last heartbeat is {age:.0f} s old"


def holds_lock(redis_url: str) -> bool:
    """Return whether a beat process holds the lock of beat in Redis. Every exception of redis is passed on."""
    from redis import Redis

    with Redis.from_url(redis_url, socket_timeout=WITHIN, socket_connect_timeout=WITHIN) as redis:
        return bool(redis.exists(BEAT_LOCK))


def _is_locked(redis_url: str) -> str | None:
    from redis.exceptions import RedisError

    try:
        held = holds_lock(redis_url)
    except RedisError as error:
        return f"Redis at {endpoint(redis_url)} does not answer: {reason_and_cure(error)}"
    return None if held else "no beat is active: no beat holds the lock in Redis"
