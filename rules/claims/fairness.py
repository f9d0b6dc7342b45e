"""Fair order of accounts, and the jobs of one batch.

The account with the smallest weighted dominant share comes first. An account has three shares: one for the number of
jobs, one for vCPU and one for memory. Each share is the account's usage over all pools divided by the sum of all
budgets. The dominant share is the largest of the three. The weighted dominant share is the dominant share divided by
the account's weight. In a tie, the account with the older first job comes first. (Dominant Resource Fairness, Ghodsi et
al., NSDI 2011.) Each selected job raises the share of its account at once. The result therefore does not depend on the
size of the batch.

Within an account the job with the higher priority comes first, then the older job, then the job with the lower id. A
job that does not fit blocks the later jobs of its account in the same pool. All jobs of a pool need a Pod of the same
size, so a later job would only overtake the blocked job. The job does not block other accounts (law L14). The job
blocks other pools of its account only through a reservation.

The plan only selects jobs. Before the matcher inserts a claim, it locks the accounts and counts their usage again from
rows (law L2).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum number of jobs, millicores and MiB that an account may use at once over all pools."""

    count: int
    vcpu_millicores: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of jobs, millicores and MiB that an account uses now over all pools."""

    count: int
    vcpu_millicores: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class AccountView:
    """One account in a batch. A weight that is not a positive finite number counts as 1."""

    account_id: int
    weight: float
    budget: Budget
    usage: Usage


@dataclass(frozen=True, slots=True)
class JobHead:
    """A dispatchable job at the front of its account's queue, with the size of a Pod of the job's pool."""

    job_id: int
    account_id: int
    priority: int
    queued_at: datetime
    vcpu_millicores: int
    memory_mib: int
    pool_id: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Part of an account's budget that is reserved for a job of `pool_id`, because the job has waited long for budget.

    Jobs of this pool may use the reserved part. Jobs of the account's other pools may use the reserved part only if
    they are older than the job with the reservation. Otherwise, if the budget is enough for only one job, two pools of
    the account would wait for each other forever.

    A reservation lasts for the whole batch, even after a job of this pool was selected. The caller must check whether
    the selected job was the job with the reservation.
    """

    vcpu_millicores: int
    memory_mib: int
    count: int
    pool_id: int
    queued_at: datetime
    job_id: int


class SkipReason(StrEnum):
    """Reason why an account did not get a job in this batch.

    - `budget_zero`: the account's budget allows no job at all. Only a change of the budget helps.
    - `over_budget`: the account's next job does not fit into the rest of the budget.
    - `reserved`: the account's next job fits only into the part of the budget that is reserved for another pool.
    - `not_read`: the account was not read, for example because another matcher holds the lock of the account.
    """

    BUDGET_ZERO = "budget_zero"
    OVER_BUDGET = "over_budget"
    RESERVED = "reserved"
    NOT_READ = "not_read"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The jobs to claim, in order, and the accounts with a job that was skipped for a reason in `SkipReason`.

    An account in `skipped` might also have jobs in `picks`. These jobs were selected before the account's budget was
    full. If the slots were used up before the turn of an account, the account is not in `skipped`. An account that was
    not read is always in `skipped`.
    """

    picks: tuple[JobHead, ...]
    skipped: Mapping[int, SkipReason]


_Rank = tuple[int, float, datetime, int, int]


def plan_batch(
    heads: Sequence[JobHead],
    accounts: Mapping[int, AccountView],
    *,
    totals: Budget,
    slots: int,
    reservations: Mapping[int, Reservation] | None = None,
    last: Mapping[int, int] | None = None,
) -> BatchPlan:
    """Return the jobs of `heads` to claim, at most `slots`, in O((n + slots) log n).

    `heads` may be in any order. `totals` is the sum of the budgets of all accounts. `reservations` has at most one
    reservation per account id. `last` maps ids of accounts to positive numbers. The accounts in `last` come after all
    other accounts, even if their usage is lower. Among the accounts in `last`, the account with the smallest number
    comes first.
    """
    reserved = reservations or {}
    places = last or {}
    queues = _queues(heads)
    views = {account_id: accounts[account_id] for account_id in queues if account_id in accounts}
    skipped = {account_id: SkipReason.NOT_READ for account_id in queues if account_id not in accounts}
    blocked: dict[int, set[int]] = {account_id: set() for account_id in views}
    picks: list[JobHead] = []
    order = [_rank(view, queues[account_id][0], totals, places) for account_id, view in views.items()]
    heapify(order)
    while order and len(picks) < slots:
        account_id = heappop(order)[-1]
        queue = queues[account_id]
        head = queue.popleft()
        reason = refusal(head, views[account_id], reserved.get(account_id))
        if reason is None:
            picks.append(head)
            views[account_id] = _charged(views[account_id], head)
        else:
            skipped.setdefault(account_id, reason)
            blocked[account_id].add(head.pool_id)
        while queue and queue[0].pool_id in blocked[account_id]:
            queue.popleft()
        if queue:
            heappush(order, _rank(views[account_id], queue[0], totals, places))
    return BatchPlan(picks=tuple(picks), skipped=skipped)


def refusal(head: JobHead, account: AccountView, reservation: Reservation | None = None) -> SkipReason | None:
    """Return the reason why the account's budget does not admit this job now, or None if the budget admits the job."""
    budget = account.budget
    if budget.count <= 0:
        return SkipReason.BUDGET_ZERO
    left = Usage(
        count=budget.count - account.usage.count - 1,
        vcpu_millicores=budget.vcpu_millicores - account.usage.vcpu_millicores - head.vcpu_millicores,
        memory_mib=budget.memory_mib - account.usage.memory_mib - head.memory_mib,
    )
    if min(left.count, left.vcpu_millicores, left.memory_mib) < 0:
        return SkipReason.OVER_BUDGET
    if reservation is None or reservation.pool_id == head.pool_id:
        return None
    if (head.queued_at, head.job_id) <= (reservation.queued_at, reservation.job_id):
        return None
    leaves_it = (
        left.count >= reservation.count
        and left.vcpu_millicores >= reservation.vcpu_millicores
        and left.memory_mib >= reservation.memory_mib
    )
    return None if leaves_it else SkipReason.RESERVED


@dataclass(frozen=True, slots=True)
class Turn:
    """Place of a job in the matcher's plan of its pool.

    `first` is the first dispatchable job of the job's account in the pool: if this job is refused, the later jobs of
    the account wait behind it. `reservation` is the reservation of the account. `picked` is True if the plan has the
    job.
    """

    first: JobHead
    account: AccountView
    reservation: Reservation | None
    picked: bool

    @property
    def refused(self) -> SkipReason | None:
        """Return why the account's budget does not admit the first job now, or None if the budget admits it."""
        return refusal(self.first, self.account, self.reservation)


def turn_of(
    job_id: int,
    account_id: int,
    heads: Sequence[JobHead],
    accounts: Mapping[int, AccountView],
    *,
    totals: Budget,
    slots: int,
    reservations: Mapping[int, Reservation],
    last: Mapping[int, int],
) -> Turn | None:
    """Return the turn of a job in the plan that `plan_batch` makes of these values.

    Return None if no job of the account is in the plan, because the account has no room in its budget or comes after
    more accounts than the matcher reads at once.
    """
    own = sorted(
        (head for head in heads if head.account_id == account_id),
        key=lambda head: (-head.priority, head.queued_at, head.job_id),
    )
    if not own or account_id not in accounts:
        return None
    plan = plan_batch(heads, accounts, totals=totals, slots=slots, reservations=reservations, last=last)
    return Turn(
        first=own[0],
        account=accounts[account_id],
        reservation=reservations.get(account_id),
        picked=any(head.job_id == job_id for head in plan.picks),
    )


def dominant_share(usage: Usage, totals: Budget) -> float:
    """Return the largest share of a resource of `totals` that is in use. A resource whose total is 0 is left out."""
    return max(
        usage.count / totals.count if totals.count > 0 else 0.0,
        usage.vcpu_millicores / totals.vcpu_millicores if totals.vcpu_millicores > 0 else 0.0,
        usage.memory_mib / totals.memory_mib if totals.memory_mib > 0 else 0.0,
    )


def weighted_share(account: AccountView, totals: Budget) -> float:
    """Return the account's weighted dominant share. The account with the smallest share comes first."""
    # NaN and infinity pass the column's CHECK (weight > 0), but would break the order of all accounts (law L14).
    weight = account.weight if math.isfinite(account.weight) and account.weight > 0 else 1.0
    return dominant_share(account.usage, totals) / weight


def _queues(heads: Sequence[JobHead]) -> dict[int, deque[JobHead]]:
    queues: dict[int, deque[JobHead]] = {}
    for head in sorted(heads, key=lambda head: (-head.priority, head.queued_at, head.job_id)):
        queues.setdefault(head.account_id, deque()).append(head)
    return queues


def _rank(account: AccountView, head: JobHead, totals: Budget, places: Mapping[int, int]) -> _Rank:
    place = places.get(head.account_id, 0)
    return place, weighted_share(account, totals), head.queued_at, head.job_id, head.account_id


def _charged(account: AccountView, head: JobHead) -> AccountView:
    usage = account.usage
    return replace(
        account,
        usage=Usage(
            count=usage.count + 1,
            vcpu_millicores=usage.vcpu_millicores + head.vcpu_millicores,
            memory_mib=usage.memory_mib + head.memory_mib,
        ),
    )
