"""The table of tasks: the name of each task and the queue of its messages.

A sender names a task by its constant, and `Waker.send`, `@task` and `beat_schedule.py` find the queue here. The names
are stable, because other programs send them too (docs/operations/waking.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NewType

TaskName = NewType("TaskName", str)
"""Name of a task as Celery sends it: `ostler.` and the short name that logs, metrics and the ledger of sweeps use."""

_PREFIX: Final = "ostler."

DISPATCH: Final = TaskName("ostler.dispatch")
STAMP: Final = TaskName("ostler.stamp")
UNSTAMP: Final = TaskName("ostler.unstamp")
RELEASE: Final = TaskName("ostler.release")
PODS_CHANGED: Final = TaskName("ostler.pods_changed")
POD_GONE: Final = TaskName("ostler.pod_gone")
POD_EXECUTES: Final = TaskName("ostler.pod_executes")
POLLER_ENDED: Final = TaskName("ostler.poller_ended")
MINT: Final = TaskName("ostler.mint")
ASK_RUN: Final = TaskName("ostler.ask_run")
ASK_OWNER: Final = TaskName("ostler.ask_owner")
POOLS: Final = TaskName("ostler.pools")
POOL_CHANGED: Final = TaskName("ostler.pool_changed")
RECONCILE: Final = TaskName("ostler.reconcile")
AUTOSCALE: Final = TaskName("ostler.autoscale")
RETIRE: Final = TaskName("ostler.retire")
POD_EVENTS: Final = TaskName("ostler.pod_events")
EPOCH: Final = TaskName("ostler.epoch")

RESUME: Final = TaskName("ostler.resume")
GATES: Final = TaskName("ostler.gates")
REMATCH: Final = TaskName("ostler.rematch")
STALE_CLAIMS: Final = TaskName("ostler.stale_claims")
UNUSED_RUNNERS: Final = TaskName("ostler.unused_runners")
MISSING_PODS: Final = TaskName("ostler.missing_pods")
MISSING_STAMPS: Final = TaskName("ostler.missing_stamps")
REDELIVERY: Final = TaskName("ostler.redelivery")
UNRESOLVED_JOBS: Final = TaskName("ostler.unresolved_jobs")
ORPHANED_STAMPS: Final = TaskName("ostler.orphaned_stamps")
UNRESPONSIVE_PODS: Final = TaskName("ostler.unresponsive_pods")
GONE_NODES: Final = TaskName("ostler.gone_nodes")
FINISHED_JOBS: Final = TaskName("ostler.finished_jobs")
ORPHANED_RUNNERS: Final = TaskName("ostler.orphaned_runners")
ORPHANED_SERVICE_ACCOUNTS: Final = TaskName("ostler.orphaned_service_accounts")
PRUNE: Final = TaskName("ostler.prune")
PERSISTENT_RUNNERS: Final = TaskName("ostler.persistent_runners")
UNIDENTIFIED_EXECUTIONS: Final = TaskName("ostler.unidentified_executions")
CATCH_UP: Final = TaskName("ostler.catch_up")
CHECK_RUNS: Final = TaskName("ostler.check_runs")

QUEUE_OF: Final[Mapping[TaskName, str]] = MappingProxyType(
    {
        DISPATCH: "dispatch",
        STAMP: "dispatch",
        UNSTAMP: "dispatch",
        RELEASE: "dispatch",
        PODS_CHANGED: "dispatch",
        POD_GONE: "dispatch",
        POD_EXECUTES: "dispatch",
        POLLER_ENDED: "dispatch",
        MINT: "github",
        ASK_RUN: "github",
        ASK_OWNER: "github",
        POOLS: "pools",
        POOL_CHANGED: "pools",
        RECONCILE: "pools",
        AUTOSCALE: "pools",
        RETIRE: "retire",
        POD_EVENTS: "sweeps",
        EPOCH: "sweeps",
        RESUME: "sweeps",
        GATES: "sweeps",
        REMATCH: "sweeps",
        STALE_CLAIMS: "sweeps",
        UNUSED_RUNNERS: "sweeps",
        MISSING_PODS: "sweeps",
        MISSING_STAMPS: "sweeps",
        REDELIVERY: "sweeps",
        UNRESOLVED_JOBS: "sweeps",
        ORPHANED_STAMPS: "sweeps",
        UNRESPONSIVE_PODS: "sweeps",
        GONE_NODES: "sweeps",
        FINISHED_JOBS: "sweeps",
        ORPHANED_RUNNERS: "sweeps",
        ORPHANED_SERVICE_ACCOUNTS: "sweeps",
        PRUNE: "sweeps",
        PERSISTENT_RUNNERS: "sweeps",
        UNIDENTIFIED_EXECUTIONS: "sweeps",
        CATCH_UP: "sweeps",
        CHECK_RUNS: "sweeps",
    }
)
"""The queue of each task. A task that is not in this table cannot be registered, scheduled or sent."""

QUEUES: Final = tuple(dict.fromkeys(QUEUE_OF.values()))
"""All queues, each once. A worker without `--queues` reads all of them."""

ROUTES: Final = {name: {"queue": queue} for name, queue in QUEUE_OF.items() if queue != "sweeps"} | {
    f"{_PREFIX}*": {"queue": "sweeps"}
}
"""`task_routes` for Celery. Celery uses the first entry that matches the name of a task.

The last entry matches every task and names the queue `sweeps`.
"""

HINTS: Final = frozenset(
    {
        RECONCILE,
        AUTOSCALE,
        POOLS,
        MISSING_PODS,
        PODS_CHANGED,
        POD_GONE,
        POD_EXECUTES,
        POLLER_ENDED,
        POOL_CHANGED,
        POD_EVENTS,
    }
)
"""Tasks with messages that expire after `EXPIRES` seconds.

A later run would be useless, because by then a sweep or another periodic task has done the work. The exception is
`pod_events`, which no other task repeats. The result of `pod_events` is only shown to people, so Ostler works without
it.
"""

EXPIRES: Final = 60
"""Seconds after which Celery drops a hint that no worker has received."""

WATCH_QUEUES: Final = tuple(sorted({QUEUE_OF[name] for name in (POOLS, MISSING_PODS, POOL_CHANGED, PODS_CHANGED)}))
"""Names of the queues that receive the tasks of the watch (`watch.hints`)."""


def queue_of(name: TaskName) -> str:
    """Return the queue of a task. Raises `LookupError` if the table has no such task."""
    if (queue := QUEUE_OF.get(name)) is None:
        raise LookupError(f"{name}: the table of tasks has no such name; add it to ostler/task_names.py")
    return queue


def short_name(name: TaskName) -> str:
    """Return the name of a task without `ostler.`. Logs, metrics and the ledger of sweeps use this short name."""
    return name.removeprefix(_PREFIX)


def task_of(short: str) -> TaskName:
    """Return the full name of the task with a short name. Raises `LookupError` if the table has no such task."""
    name = TaskName(f"{_PREFIX}{short}")
    queue_of(name)
    return name


SWEEPS: Final = tuple(
    short_name(name)
    for name, queue in QUEUE_OF.items()
    if queue == "sweeps" and name not in {POD_EVENTS, EPOCH, CHECK_RUNS}
)
"""Short names of the sweeps that run in the frame (`tasks.sweeps.frame.sweep`)."""
