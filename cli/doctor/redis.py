"""Checks of Redis: it answers, accepts writes, and does not evict the keys of beat and Celery."""

from __future__ import annotations

from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, warning
from ostler.errors import ConfigurationError, StoreUnreachable

OLDEST = (6, 2)
"""Oldest version of Redis that the tests use."""

FULL = 0.8


def redis(context: Context) -> Verdict:
    """Check that Redis answers and accepts writes."""
    try:
        found = context.redis_info
    except StoreUnreachable as error:
        return failed(str(error), "check OSTLER_REDIS_URL, and that Redis runs there")
    except ConfigurationError as error:
        return failed(str(error), "set it as described in docs/configuration.md")
    version = str(found.get("redis_version", "?"))
    if found.get("role") == "slave":
        return failed(f"Redis {version} is a read-only replica", "name the primary in OSTLER_REDIS_URL")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < OLDEST:
        return warning(f"Redis {version} answers", f"the tests run on {'.'.join(map(str, OLDEST))}; upgrade Redis")
    return ok(f"Redis {version} answers")


def options(context: Context) -> Verdict:
    """Check that Redis evicts no keys when it is full, and that it has free memory."""
    found = context.redis_info
    policy = str(found.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        cause = f"maxmemory-policy is {policy}: a full Redis then evicts queues, bindings and the schedule"
        return failed(cause, "set `maxmemory-policy noeviction`: writes then fail and are retried")
    most, used = int(found.get("maxmemory", 0)), int(found.get("used_memory", 0))
    told = f"maxmemory-policy is noeviction, and {used / 2**20:.0f} MiB are used" + (
        f" of {most / 2**20:.0f}" if most else ""
    )
    if most and used > FULL * most:
        return warning(told, "raise maxmemory, or find out what fills it: `ostler flower`, and `redis-cli --bigkeys`")
    return ok(told)
