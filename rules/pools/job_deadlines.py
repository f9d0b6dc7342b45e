"""Longest duration of a pool's jobs (`maxJobDuration`), as the deadline of a Pod that executes one.

Kubernetes counts `spec.activeDeadlineSeconds` of a Pod from `status.startTime`. A runner Pod can be warm for any time
before its job, so its deadline is the Pod's age plus the duration. The Pod's template can therefore not contain it.
"""

from __future__ import annotations

import math
from datetime import datetime

MARGIN = 60.0
"""Seconds that a node's clock may be ahead of Ostler's. The node's clock sets the start time of its Pods."""


def active_deadline(*, started_at: datetime, now: datetime, max_job_seconds: float) -> int:
    """Return the deadline, in seconds since the start of a Pod, for the job that the Pod runs now.

    The job began before `now`, so the job gets a little more than its time. The job gets less only if the clock of its
    node is ahead by more than `MARGIN` (law L3).
    """
    age = (now - started_at).total_seconds() + MARGIN
    return math.ceil(max(0.0, age) + max_job_seconds)
