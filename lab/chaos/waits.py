"""Timings of a chaos run: only the waits for an expected event are divided by 20.

Call deadlines, leases, holds, the distance between two checks, caches and redbeat's lock keep their length. No wait is
shortened to less than 3 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.timings import timings
from ostler.settings import Settings
from ostler.timings import Timings

SCALE = 20
FLOOR = 3.0

WAITS = (
    "due_after",
    "stale_claim_after",
    "unused_after",
    "spare_after",
    "unstamp_after",
    "missing_stamp_after",
    "stamp_returns_after",
    "cut_off_after",
    "requeue_after",
    "unused_polling_after",
    "spent_after",
    "unresolved_after",
    "unresolved_late_after",
    "probe_every",
    "reserve_after",
    "redelivery_again_after",
    "orphaned_stamp_after",
    "finished_job_after",
    "lingering_after",
    "orphaned_runner_after",
    "orphaned_account_after",
    "repair_settle_after",
    "catch_up_after",
    "catch_up_over_after",
    "resume_every",
    "pools_every",
    "autoscale_every",
    "gates_every",
    "sweep_every",
    "slow_sweep_every",
    "catch_up_every",
)
"""Timings that are waits for an expected event. The setting `start_timeout` is such a wait too."""

BUDGET = {"OSTLER_DEFAULT_BUDGET_COUNT": "8"}
"""A budget that is small enough to take effect. Three accounts may use 8 Pods each, and the pools have 20 Pods."""


REAL_STARTS = {**timings(unused_after=20), "OSTLER_START_TIMEOUT": "60"}
"""Environment for real nodes, whose containers start more slowly than the processes of the lab's kubelet."""


def scaled() -> Mapping[str, str]:
    """Return the environment of Ostler's processes in a chaos run."""
    waits = {name: _scaled(Timings.model_fields[name].default) for name in WAITS}
    start = _scaled(Settings.model_fields["start_timeout"].default)
    return {**timings(**waits), "OSTLER_START_TIMEOUT": f"{start:g}", **BUDGET}


def _scaled(seconds: float) -> float:
    return min(seconds, max(FLOOR, seconds / SCALE))
