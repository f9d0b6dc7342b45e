"""Every periodic task, one line each: name, period in seconds, queue. Beat's only input.

A message that waited longer than `expires` is dropped: the next one finds the same rows.
"""

from __future__ import annotations

from typing import Any

MINIMUM_EXPIRES = 60.0


def schedule(*, resume_every: float, pools_every: float, sweep_every: float) -> dict[str, dict[str, Any]]:
    """Return the beat schedule; the periods are settings, so that a fault test need not wait for minutes."""
    lines = (
        ("resume", resume_every, "sweeps"),
        ("pools", pools_every, "pools"),
        ("rematch", sweep_every, "sweeps"),
        ("stale_claims", sweep_every, "sweeps"),
        ("unused_runners", sweep_every, "sweeps"),
        ("missing_pods", sweep_every, "sweeps"),
        ("missing_stamps", sweep_every, "sweeps"),
        ("redelivery", sweep_every, "sweeps"),
        ("adrift_jobs", sweep_every, "sweeps"),
    )
    return {
        name: {
            "task": f"ostler.{name}",
            "schedule": every,
            "options": {"queue": queue, "expires": max(every, MINIMUM_EXPIRES)},
        }
        for name, every, queue in lines
    }
