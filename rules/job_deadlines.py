"""The longest job of a pool (`maxJobDuration`), as the deadline of a Pod that executes one.

Kubernetes counts `spec.activeDeadlineSeconds` of a Pod from `status.startTime`. A runner Pod is warm before its job,
for as long as no job comes, so the deadline is the Pod's age plus the duration. It cannot be in the Pod's template.
"""

from __future__ import annotations

import math
from datetime import datetime


def active_deadline(*, started_at: datetime, now: datetime, max_job_seconds: float) -> int:
    """Return the seconds from the start of a Pod after which its job, which is running now, has had its time.

    The job began before `now`, so it gets a little more than its time and never less.
    """
    age = (now - started_at).total_seconds()
    return max(1, math.ceil(max(0.0, age) + max_job_seconds))
