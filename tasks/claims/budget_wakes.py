"""Wakes after the end of Pods.

A Pod that ends frees part of its account's budget, so that another job of the account might be matched.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.routing import usage
from tasks.worker.runtime import Runtime


def wake_after_pods(rt: Runtime, uids: Sequence[str]) -> None:
    """Wake the pools in which jobs wait whose accounts were charged for these Pods."""
    if uids:
        for pool_id in rt.transaction(usage.pools_after_pods, uids):
            rt.waker.wake(pool_id)
