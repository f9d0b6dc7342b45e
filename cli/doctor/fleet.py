"""Checks of beat, workers, web and sweeps, which must always run, and of incoming webhooks."""

from __future__ import annotations

from datetime import timedelta

from beat_schedule import periods
from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from cli.output import age
from ostler.clock import utcnow
from ostler.errors import ConfigurationError, StoreUnreachable
from rules.sweeps.limits import is_late, switched_off

TICK_WITHIN = timedelta(seconds=60)
"""Maximum age of the latest tick while beat and a worker run. The sweep `resume` runs every five seconds."""

MESSAGES_WITHIN = 30.0
"""Seconds that a message can wait for a worker before the check fails."""

BEATS_WITHIN = timedelta(seconds=15)
QUIET_FOR = timedelta(hours=24)
"""Age of the last webhook above which the check warns.

The check does not fail, because some repositories run no jobs on weekends.
"""


def beats(context: Context) -> Verdict:
    """Check that beat schedules the sweeps and that a worker runs them."""
    found = context.rows
    told = "never" if found.last_tick is None else f"{age(found.last_tick, now=found.now)} ago"
    if found.last_tick is not None and found.now - found.last_tick < TICK_WITHIN:
        return ok(f"a sweep began {told}")
    cause = f"a sweep last began {told}"
    try:
        held = context.redis_info["lock"]
    except (StoreUnreachable, ConfigurationError):
        return failed(
            f"{cause}; Redis is not configured or did not answer",
            "check that Redis, `ostler beat` and a worker on the queue `sweeps` run",
        )
    if not held:
        return failed(f"{cause}; no beat holds the lock in Redis", "start two processes of `ostler beat`")
    return failed(f"{cause}, although a beat holds the lock in Redis", "check that a worker runs on the queue `sweeps`")


def web(context: Context) -> Verdict:
    """Check that a web process writes heartbeats.

    A web process writes them only while it receives notices from Postgres.
    """
    found = context.rows
    alive = [beat for beat in found.web_beats if found.now - beat < BEATS_WITHIN]
    if alive:
        return ok(f"{len(alive)} web {'process sends' if len(alive) == 1 else 'processes send'} heartbeats")
    if found.web_beats:
        cause = f"the last heartbeat of a web process was {age(found.web_beats[0], now=found.now)} ago"
    else:
        cause = "no web process has sent a heartbeat for an hour"
    return failed(cause, "start `ostler web`; if one runs, GET /readyz shows why it sends no heartbeat")


def messages(context: Context) -> Verdict:
    """Check that no message waits longer than `MESSAGES_WITHIN` seconds for a worker."""
    heads, now = context.redis_info["heads"], utcnow()
    waits = {queue: (now - head).total_seconds() for queue, head in heads.items() if head is not None}
    late = [f"{queue}: {seconds:.0f} s" for queue, seconds in waits.items() if seconds > MESSAGES_WITHIN]
    if late:
        cure = "check that workers run on these queues; if they are busy, add replicas or cores"
        return failed(f"messages wait too long, {', '.join(late)}", cure)
    return ok(f"the oldest message has waited {max(waits.values(), default=0):.0f} s")


def sweeps(context: Context) -> Verdict:
    """Check that every sweep has run within three of its periods, and warn about paused sweeps.

    After a restore of Postgres, the check counts the periods only from the time at which the restore was detected.
    """
    found = context.rows
    if not found.sweeps:
        return unknown("the database lacks the table of the sweeps", "run `ostler migrate`")
    every, off = periods(context.settings.timings), context.settings.sweeps_paused
    paused = [
        each.name for each in found.sweeps if each.paused_at is not None or switched_off(each.name, by_setting=off)
    ]
    none_runs = len(paused) == len(found.sweeps)
    began = min(
        (each.began_at for each in found.sweeps if each.began_at is not None), default=found.now if none_runs else None
    )
    if began is None:
        return unknown("no sweep has run yet", "check the result of `beat`")
    since = began if found.lost is None else max(began, found.lost.until)
    late = [
        each.name
        for each in found.sweeps
        if is_late(
            last=each.succeeded_at or since,
            since=since,
            period=every[each.name],
            paused=each.name in paused,
            now=found.now,
        )
    ]
    if late:
        cure = (
            "`ostler sweep list` shows how the last run of each sweep ended; the log line `sweep.ended` of a worker "
            "shows why"
        )
        return failed(f"sweeps missed three periods: {', '.join(late)}", cure)
    if paused:
        cure = "`ostler sweep resume NAME` ends a pause"
        if off:
            cure = f"{cure}; to resume a sweep in OSTLER_SWEEPS_PAUSED, change the setting and restart the processes"
        return warning(f"sweeps are paused: {', '.join(paused)}", cure)
    return ok(f"{len(found.sweeps)} sweeps are on time")


def webhooks(context: Context) -> Verdict:
    """Check that web has recently accepted webhooks."""
    found = context.rows
    if found.last_delivery is None:
        return warning("no webhook was ever accepted", "`ostler setup ping` shows the cause")
    told = f"the last webhook was accepted {age(found.last_delivery, now=found.now)} ago"
    if found.now - found.last_delivery > QUIET_FOR:
        return warning(told, "if jobs ran since then, `ostler setup ping` shows the cause")
    return ok(told)
