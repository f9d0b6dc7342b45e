"""Wakes after the end of Pods: each counted in its account's budget, which may admit another job now."""

from __future__ import annotations

from collections.abc import Sequence

from models.routing import usage
from tasks.worker.runtime import Runtime


def wake_after_pods(rt: Runtime, uids: Sequence[str]) -> None:
    """Wake the pools that the end of these Pods may help: those where the accounts wait that they were charged to."""
    if uids:
        for pool_id in rt.transaction(usage.pools_after_pods, uids):
            rt.waker.wake(pool_id)
