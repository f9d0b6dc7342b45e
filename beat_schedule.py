"""Periodic tasks: each line names a task and the field of `ostler.timings.Timings` that has the task's period.

Beat sends only the tasks of this list. `ostler/task_names.py` has the queue of each task. A message that waited longer
than `expires` seconds is dropped, because the next message of the same task finds the same rows. The sweeps with the
periods `sweep_every` and `slow_sweep_every` get a `spread`: the longest random delay in seconds before the sweep
begins. Sweeps with the same period therefore do not begin together.
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
    (task_names.PERSISTENT_RUNNERS, "sweep_every"),
    (task_names.UNIDENTIFIED_EXECUTIONS, "sweep_every"),
    (task_names.CATCH_UP, "catch_up_every"),
    (task_names.CHECK_RUNS, "sweep_every"),
)

QUEUES = tuple(sorted({QUEUE_OF[name] for name, _ in _LINES}))
"""The queues that receive messages of beat."""


def periods(timings: Any) -> dict[str, float]:
    """Return the period of each periodic task in seconds, by the short name of the task.

    `timings` is an `ostler.timings.Timings`.
    """
    return {short_name(name): getattr(timings, timing) for name, timing in _LINES}


def schedule(timings: Any) -> dict[str, dict[str, Any]]:
    """Return the value of Celery's setting `beat_schedule`.

    `timings` is an `ostler.timings.Timings`.
    """
    return {short_name(name): _line(name, timing, getattr(timings, timing)) for name, timing in _LINES}


def _line(name: TaskName, timing: str, seconds: float) -> dict[str, Any]:
    return {
        "task": name,
        "schedule": seconds,
        "kwargs": {"spread": min(SPREAD, seconds / 20)} if timing.endswith("sweep_every") else {},
        "options": {"queue": QUEUE_OF[name], "expires": max(seconds, MINIMUM_EXPIRES)},
    }
