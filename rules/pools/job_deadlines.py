"""The longest job of a pool (`maxJobDuration`), as the deadline of a Pod that executes one.

Kubernetes counts `spec.activeDeadlineSeconds` of a Pod from `status.startTime`. A runner Pod is warm before its job,
for as long as no job comes, so the deadline is the Pod's age plus the duration. It cannot be in the Pod's template.
"""

from __future__ import annotations

import math
from datetime import datetime

MARGIN = 60.0
"""Seconds by which the clock of a node may be ahead of ours. The start of a Pod is by the clock of its node."""


def active_deadline(*, started_at: datetime, now: datetime, max_job_seconds: float) -> int:
    """Return the seconds from the start of a Pod after which its job, which is running now, has had its time.

    The job began before `now`, so it gets a little more than its time. It gets less only if the clock of its node is
    ahead by more than `MARGIN` (law L3).
    """
    age = (now - started_at).total_seconds() + MARGIN
    return math.ceil(max(0.0, age) + max_job_seconds)
