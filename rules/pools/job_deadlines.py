"""Longest duration of a pool's jobs (`maxJobDuration`), as the deadline of a Pod that executes a job.

Kubernetes counts `spec.activeDeadlineSeconds` of a Pod from `status.startTime`. A runner Pod can be warm for any time
before its job. Ostler therefore sets the deadline after the job has begun: the Pod's age plus the duration. The Pod's
template cannot contain the deadline, because this age is not known in advance.
"""

from __future__ import annotations

import math
from datetime import datetime

MARGIN = 60.0
"""Seconds by which a node's clock may be ahead of Ostler's clock.

The node's clock sets the start time of the node's Pods.
"""


def active_deadline(*, started_at: datetime, now: datetime, max_job_seconds: float) -> int:
    """Return the deadline, in seconds since the start of a Pod, for the job that the Pod runs now.

    The job began before `now`, so the job gets a little more time than `max_job_seconds`. The job gets less time only
    if the node's clock is ahead of Ostler's clock by more than `MARGIN` (law L3).
    """
    age = (now - started_at).total_seconds() + MARGIN
    return math.ceil(max(0.0, age) + max_job_seconds)
