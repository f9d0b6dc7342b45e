"""Blame for the late start of a job: the part of its way to a runner that took most of the time.

The times come from the rows of the job, its claims and its Pod. They show where the time went, and not always why: a
pool might have had no warm Pod because an account used all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Blame(StrEnum):
    """Cause of a late start.

    - `capacity`: the pool had no Pod for the job. This includes the time before its Pod was created. Starts without a
      known claim count here: those on persistent runners and on runners that Ostler did not mint.
    - `cluster`: the Pod took long from its creation to its first poll, or ended before the job began.
    - `budget`: a warm Pod existed, and the account of the job used its whole budget.
    - `github`: GitHub registered the runner late, refused it, or began the job late on the delivered runner.
    - `ostler`: a warm Pod existed, and Ostler matched or delivered late. Holds and the turns of other accounts count
      here too.
    """

    CAPACITY = "capacity"
    CLUSTER = "cluster"
    BUDGET = "budget"
    GITHUB = "github"
    OSTLER = "ostler"


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The start of a job, as rows show it. A time is None if its row is missing.

    - `claimed_at`, `minted_at`, `delivered_at`: the times of the claim whose runner executed the job. They are None
      for a job of a persistent runner, and of a runner that Ostler did not mint.
    - `tried_at`: the creation of the first claim of the job.
    - `tried_refused`: GitHub refused a mint of an earlier claim of the job.
    - `pod_created_at`, `polled_at`: the creation and the first poll of the Pod.
    - `at_budget`: when the claim was made, the account had no budget for another Pod of this size.
    """

    queued_at: datetime
    started_at: datetime
    tried_at: datetime | None
    tried_refused: bool
    claimed_at: datetime | None
    minted_at: datetime | None
    delivered_at: datetime | None
    pod_created_at: datetime | None
    polled_at: datetime | None
    at_budget: bool


def blame_of(start: Start) -> Blame:
    """Return the cause with the most time between the queueing of the job and its start."""
    spent = spent_of(start)
    return max(spent, key=lambda each: spent[each])


def spent_of(start: Start) -> Mapping[Blame, float]:
    """Return the seconds between the queueing of the job and its start by cause. They sum to the wait of the job."""
    spent = dict.fromkeys(Blame, 0.0)
    if start.claimed_at is None:
        spent[Blame.CAPACITY] = max(0.0, (start.started_at - start.queued_at).total_seconds())
        return spent
    tried = min(start.tried_at or start.claimed_at, start.claimed_at)
    delivered = start.delivered_at or start.started_at
    minted = start.minted_at or delivered
    ends = (
        (Blame.CAPACITY, start.pod_created_at or start.queued_at, tried),
        (Blame.CLUSTER, start.polled_at or start.queued_at, tried),
        (Blame.BUDGET if start.at_budget else Blame.OSTLER, tried, tried),
        (Blame.GITHUB if start.tried_refused else Blame.CLUSTER, start.claimed_at, start.claimed_at),
        (Blame.GITHUB, minted, minted),
        (Blame.OSTLER, delivered, delivered),
        (Blame.GITHUB, start.started_at, start.started_at),
    )
    at = start.queued_at
    for blame, end, latest in ends:
        until = max(at, min(end, latest, start.started_at))
        spent[blame] += (until - at).total_seconds()
        at = until
    return spent
