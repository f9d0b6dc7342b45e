"""Descriptions of how a Pod ended: only observed facts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rules.claims.pod_ends import How, PodEnd, describe
from rules.claims.pod_events import PodEvent

AT = datetime(2026, 11, 23, 12, 3, 4, tzinfo=UTC)


AUDIT = "by a client other than Ostler; the audit log of the API server names the client"
DELETED = "the Pod was deleted at 2026-11-23 12:03:04 UTC, "
DRAINED = "evicted through the eviction API, as `kubectl drain` does; container `runner` exited 143; reason "
KILLED = "the Pod was killed for lack of memory: raise the memory limit of its pool; container `runner` exited 137; "
KILLED_IN = "a process in the Pod was killed for lack of memory: raise the memory limit of its pool; reason OOMKilled"
TAINTED = "the Pod was evicted for a taint of its node; reason DeletionByTaintManager"
SCALED = PodEvent("ScaleDown", "cluster-autoscaler", "deleting pod for node scale down")
KILLED_BY = PodEvent("Killing", "kubelet", "")
OTHERS = "by a client other than Ostler; event ScaleDown by cluster-autoscaler: deleting pod for node scale down"
TOO_LONG = (
    "the Pod was ended by the kubelet: its job took longer than maxJobDuration of its pool; "
    "container `runner` exited 143; reason DeadlineExceeded"
)


@pytest.mark.parametrize(
    ("end", "how", "words"),
    [
        (PodEnd(), How.UNKNOWN, None),
        (PodEnd(gone=True), How.UNKNOWN, "the Pod is gone, and no report of its end was received"),
        (PodEnd(gone=True, ours=True), How.UNKNOWN, "the Pod is gone, retired by Ostler"),
        (PodEnd(deletion_at=AT, gone=True), How.DELETED, DELETED + AUDIT),
        (PodEnd(deletion_at=AT, event=SCALED, gone=True), How.DELETED, DELETED + OTHERS),
        (PodEnd(deletion_at=AT, event=KILLED_BY), How.DELETED, DELETED + AUDIT + "; event Killing by kubelet"),
        (PodEnd(gone=True, event=KILLED_BY), How.UNKNOWN, "the Pod is gone; event Killing by kubelet"),
        (PodEnd(deletion_at=AT, ours=True, gone=True), How.DELETED, DELETED + "by Ostler, which retired it"),
        (
            PodEnd(deletion_at=AT, reason="EvictionByEvictionAPI", runner_exit_code=143),
            How.EVICTED,
            DELETED + DRAINED + "EvictionByEvictionAPI",
        ),
        (
            PodEnd(reason="OOMKilled (9)", runner_exit_code=137, poller_exit_code=0, over=True),
            How.OUT_OF_MEMORY,
            KILLED + "reason OOMKilled (9)",
        ),
        (PodEnd(reason="OOMKilled", runner_exit_code=0, over=True), How.OUT_OF_MEMORY, KILLED_IN),
        (PodEnd(reason="Completed", runner_exit_code=0, over=True), How.COMPLETED, "the Pod has ended"),
        (
            PodEnd(reason="Error", runner_exit_code=2, over=True),
            How.FAILED,
            "the Pod has ended; container `runner` exited 2; reason Error",
        ),
        (PodEnd(over=True), How.COMPLETED, "the Pod has ended"),
        (PodEnd(runner_exit_code=0), How.COMPLETED, "the Pod has ended"),
        (PodEnd(over=True, poller_exit_code=3), How.COMPLETED, "the Pod has ended; container `poller` exited 3"),
        (PodEnd(reason="DeletionByTaintManager"), How.NODE, TAINTED),
        (
            PodEnd(reason="Unknown", runner_exit_code=255, over=True),
            How.FAILED,
            "the Pod has ended; container `runner` exited 255; reason Unknown",
        ),
        (PodEnd(reason="DeadlineExceeded", runner_exit_code=143, over=True), How.DEADLINE, TOO_LONG),
    ],
)
def test_end_is_told_as_it_was_seen(end: PodEnd, how: How, words: str | None) -> None:
    assert (end.how, describe(end)) == (how, words)
