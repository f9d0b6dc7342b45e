"""Every periodic task, one line each: name, the timing that holds its period, queue. Beat's only input.

A message that waited longer than `expires` is dropped: the next one finds the same rows. `spread` is for how many
seconds at most a sweep waits before it begins, so that those of one period do not all begin at once.
"""

from __future__ import annotations

from typing import Any

MINIMUM_EXPIRES = 60.0
SPREAD = 2.0

_LINES = (
    ("resume", "resume_every", "sweeps"),
    ("pools", "pools_every", "pools"),
    ("autoscale", "autoscale_every", "pools"),
    ("epoch", "epoch_every", "sweeps"),
    ("gates", "gates_every", "sweeps"),
    ("rematch", "sweep_every", "sweeps"),
    ("stale_claims", "sweep_every", "sweeps"),
    ("unused_runners", "sweep_every", "sweeps"),
    ("missing_pods", "sweep_every", "sweeps"),
    ("missing_stamps", "sweep_every", "sweeps"),
    ("redelivery", "sweep_every", "sweeps"),
    ("unresolved_jobs", "sweep_every", "sweeps"),
    ("orphaned_stamps", "sweep_every", "sweeps"),
    ("unresponsive_pods", "sweep_every", "sweeps"),
    ("gone_nodes", "sweep_every", "sweeps"),
    ("finished_jobs", "sweep_every", "sweeps"),
    ("orphaned_runners", "slow_sweep_every", "sweeps"),
    ("orphaned_service_accounts", "slow_sweep_every", "sweeps"),
    ("prune", "prune_every", "sweeps"),
    ("unidentified_executions", "sweep_every", "sweeps"),
    ("catch_up", "catch_up_every", "sweeps"),
)

QUEUES = tuple(sorted({queue for _, _, queue in _LINES}))
"""The queues that beat sends to."""

SWEEPS = tuple(name for name, _, queue in _LINES if queue == "sweeps" and name != "epoch")
"""The sweeps that run in the frame (`tasks.sweeps.frame`)."""


def periods(timings: Any) -> dict[str, float]:
    """Return the period of each task in seconds; `timings` are `ostler.timings.Timings`."""
    return {name: getattr(timings, timing) for name, timing, _ in _LINES}


def schedule(timings: Any) -> dict[str, dict[str, Any]]:
    """Return the beat schedule; `timings` are `ostler.timings.Timings`."""
    seconds = periods(timings)
    return {
        name: {
            "task": f"ostler.{name}",
            "schedule": seconds[name],
            "kwargs": {"spread": min(SPREAD, seconds[name] / 20)} if timing.endswith("sweep_every") else {},
            "options": {"queue": queue, "expires": max(seconds[name], MINIMUM_EXPIRES)},
        }
        for name, timing, queue in _LINES
    }
