"""Wakes of matchers after Pods have ended.

A Pod that has ended no longer counts in the budget of its account. Another job of the account might then be matched.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.routing import usage
from tasks.worker.runtime import Runtime


def wake_after_pods(rt: Runtime, uids: Sequence[str]) -> None:
    """Wake the matchers of the accounts that were charged for the given Pods.

    The matcher of each pool with queued jobs of one of these accounts is woken.
    """
    if uids:
        for pool_id in rt.transaction(usage.pools_after_pods, uids):
            rt.waker.wake(pool_id)
