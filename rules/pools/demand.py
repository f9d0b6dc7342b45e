"""Demand of pools: how many queued jobs lack only a Pod, because the budgets of their accounts admit them.

A job that its account's budget does not admit needs no Pod. If such a job counted, the autoscaler would add a Pod that
stays idle. On shared nodes, the idle Pod would also use the capacity that a Pod for another job needs.

The free part of an account's budget is given to the account's pools one job at a time. The pool with the most urgent
first job comes first. An account whose jobs wait in several pools therefore gets no more Pods than its budget allows,
and each pool gets a part of the budget. (This module only counts. `rules.claims.fairness` decides which job the matcher
claims.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rules.claims.fairness import AccountView, JobHead, refusal


@dataclass(frozen=True, slots=True)
class Queue:
    """Queued jobs of one account in one pool that are not held.

    `priority` and `queued_at` are those of the first job. `jobs` might be limited to the number of Pods in the pool's
    `Places`, or to the number of jobs that the account's budget allows.
    """

    pool_id: int
    account_id: int
    jobs: int
    priority: int
    queued_at: datetime


@dataclass(frozen=True, slots=True)
class Places:
    """How many Pods of a pool can still get a job, and the size of one Pod.

    Pods that the pool may still create count too.
    """

    count: int
    vcpu_millicores: int
    memory_mib: int


def dispatchable(
    queues: Sequence[Queue], accounts: Mapping[int, AccountView], pools: Mapping[int, Places]
) -> dict[int, int]:
    """Return, by pool, how many queued jobs the budgets of their accounts admit.

    The number is at most the number of Pods in the pool's `Places`.

    If an account or a pool was not read, its queues count as empty.
    """
    by_account: dict[int, list[Queue]] = {}
    for queue in queues:
        if queue.pool_id in pools and queue.account_id in accounts:
            by_account.setdefault(queue.account_id, []).append(queue)
    admitted = dict.fromkeys(pools, 0)
    for account_id, own in by_account.items():
        for pool_id, jobs in _admitted(own, accounts[account_id], pools).items():
            admitted[pool_id] += jobs
    return {pool_id: min(jobs, max(0, pools[pool_id].count)) for pool_id, jobs in admitted.items()}


def _admitted(queues: Sequence[Queue], account: AccountView, pools: Mapping[int, Places]) -> dict[int, int]:
    """Return, by pool, how many jobs of one account the account's budget admits. The pools take turns."""
    ordered = sorted(queues, key=lambda queue: (-queue.priority, queue.queued_at, queue.pool_id))
    left = {queue.pool_id: min(queue.jobs, max(0, pools[queue.pool_id].count)) for queue in ordered}
    admitted = dict.fromkeys(left, 0)
    while left:
        for queue in ordered:
            if queue.pool_id not in left:
                continue
            size = pools[queue.pool_id]
            head = JobHead(
                job_id=0,
                account_id=queue.account_id,
                priority=queue.priority,
                queued_at=queue.queued_at,
                vcpu_millicores=size.vcpu_millicores,
                memory_mib=size.memory_mib,
                pool_id=queue.pool_id,
            )
            if left[queue.pool_id] <= 0 or refusal(head, account) is not None:
                del left[queue.pool_id]  # no later job fits, because the rest of the budget only shrinks
                continue
            left[queue.pool_id] -= 1
            admitted[queue.pool_id] += 1
            usage = account.usage
            account = replace(
                account,
                usage=replace(
                    usage,
                    count=usage.count + 1,
                    vcpu_millicores=usage.vcpu_millicores + size.vcpu_millicores,
                    memory_mib=usage.memory_mib + size.memory_mib,
                ),
            )
    return admitted
