"""Every periodic task, one line each: name, and the timing that holds its period. Beat's only input.

`ostler/task_names.py` has the queue of each task. A message that waited longer than `expires` is dropped: the next one
finds the same rows. `spread` is for how many seconds at most a sweep waits before it begins, so that those of one
period do not all begin at once.
"""

from __future__ import annotations

from typing import Any

from ostler import task_names
from ostler.task_names import QUEUE_OF, TaskName, short_name

MINIMUM_EXPIRES = 60.0
SPREAD = 2.0

_LINES = (
    (task_names.RESUME, "resume_every"),
    (task_names.POOLS, "pools_every"),
    (task_names.AUTOSCALE, "autoscale_every"),
    (task_names.EPOCH, "epoch_every"),
    (task_names.GATES, "gates_every"),
    (task_names.REMATCH, "sweep_every"),
    (task_names.STALE_CLAIMS, "sweep_every"),
    (task_names.UNUSED_RUNNERS, "sweep_every"),
    (task_names.MISSING_PODS, "sweep_every"),
    (task_names.MISSING_STAMPS, "sweep_every"),
    (task_names.REDELIVERY, "sweep_every"),
    (task_names.UNRESOLVED_JOBS, "sweep_every"),
    (task_names.ORPHANED_STAMPS, "sweep_every"),
    (task_names.UNRESPONSIVE_PODS, "sweep_every"),
    (task_names.GONE_NODES, "sweep_every"),
    (task_names.FINISHED_JOBS, "sweep_every"),
    (task_names.ORPHANED_RUNNERS, "slow_sweep_every"),
    (task_names.ORPHANED_SERVICE_ACCOUNTS, "slow_sweep_every"),
    (task_names.PRUNE, "prune_every"),
    (task_names.UNIDENTIFIED_EXECUTIONS, "sweep_every"),
    (task_names.CATCH_UP, "catch_up_every"),
)

QUEUES = tuple(sorted({QUEUE_OF[name] for name, _ in _LINES}))
"""The queues that beat sends to."""


def periods(timings: Any) -> dict[str, float]:
    """Return the period of each task in seconds, by its short name; `timings` are `ostler.timings.Timings`."""
    return {short_name(name): getattr(timings, timing) for name, timing in _LINES}


def schedule(timings: Any) -> dict[str, dict[str, Any]]:
    """Return the beat schedule; `timings` are `ostler.timings.Timings`."""
    return {short_name(name): _line(name, timing, getattr(timings, timing)) for name, timing in _LINES}


def _line(name: TaskName, timing: str, seconds: float) -> dict[str, Any]:
    return {
        "task": name,
        "schedule": seconds,
        "kwargs": {"spread": min(SPREAD, seconds / 20)} if timing.endswith("sweep_every") else {},
        "options": {"queue": QUEUE_OF[name], "expires": max(seconds, MINIMUM_EXPIRES)},
    }
