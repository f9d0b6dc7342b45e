"""Explanations of a Pod's end use observed facts only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rules.claims.pod_ends import How, PodEnd, describe
from rules.claims.pod_events import PodEvent

AT = datetime(2026, 11, 23, 12, 3, 4, tzinfo=UTC)


AUDIT = "by a client other than Ostler; the audit log of the API server names the client"
TIME = "2026-11-23 12:03:04 UTC"
UNKNOWN = f"the Pod was deleted at {TIME}"
DELETED = f"{UNKNOWN}, "
ENDED = "the Pod has ended, and "
COLLECTOR = (
    "by the garbage collector of Kubernetes or another client, while its pool was being deleted; the audit log of the "
    "API server names the client"
)
DRAINED = "evicted through the eviction API, as `kubectl drain` does; container `runner` exited 143; reason "
KILLED = "the Pod was killed for lack of memory: raise the memory limit of its pool; container `runner` exited 137; "
KILLED_FIRST = "the Pod was killed for lack of memory: raise the memory limit of its pool, and Ostler deleted it at"
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
        (PodEnd(gone=True, ours=True), How.UNKNOWN, "the Pod is gone, deleted by Ostler"),
        (PodEnd(deletion_at=AT, deleted_first=True, gone=True), How.DELETED, DELETED + AUDIT),
        (PodEnd(deletion_at=AT, deleted_first=True, event=SCALED), How.DELETED, DELETED + OTHERS),
        (
            PodEnd(deletion_at=AT, deleted_first=True, event=KILLED_BY),
            How.DELETED,
            DELETED + AUDIT + "; event Killing by kubelet",
        ),
        (PodEnd(deletion_at=AT, deleted_first=True, of_deleted_pool=True), How.DELETED, DELETED + COLLECTOR),
        (PodEnd(deletion_at=AT, gone=True), How.DELETED, UNKNOWN),
        (PodEnd(deletion_at=AT, over=True, runner_exit_code=1), How.DELETED, f"{UNKNOWN}; container `runner` exited 1"),
        (PodEnd(deletion_at=AT, deleted_first=False, over=True), How.COMPLETED, ENDED + "was deleted at " + TIME),
        (
            PodEnd(deletion_at=AT, deleted_first=False, over=True, ours=True),
            How.COMPLETED,
            f"{ENDED}Ostler deleted it at {TIME}",
        ),
        (
            PodEnd(deletion_at=AT, deleted_first=False, runner_exit_code=1, of_deleted_pool=True),
            How.FAILED,
            f"{ENDED}was deleted at {TIME}; container `runner` exited 1",
        ),
        (
            PodEnd(deletion_at=AT, deleted_first=False, ours=True, reason="OOMKilled (9)", runner_exit_code=137),
            How.OUT_OF_MEMORY,
            f"{KILLED_FIRST} {TIME}; container `runner` exited 137; reason OOMKilled (9)",
        ),
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


@pytest.mark.parametrize(
    ("end", "seconds", "cut"),
    [
        (PodEnd(), 60, False),
        (PodEnd(deletion_at=AT, deleted_first=True), 60, True),
        (PodEnd(deletion_at=AT, deleted_first=True), 0, True),
        (PodEnd(deletion_at=AT, deleted_first=True), -1, False),
        (PodEnd(deletion_at=AT, deleted_first=True), None, True),
        (PodEnd(deletion_at=AT), 1, True),
        (PodEnd(deletion_at=AT), 0, False),
        (PodEnd(deletion_at=AT), None, True),
        (PodEnd(deletion_at=AT, deleted_first=False), 60, False),
        (PodEnd(deletion_at=AT, deleted_first=False), None, False),
        (PodEnd(deletion_at=AT, deleted_first=True, ours=True), 60, False),
    ],
)
def test_deletion_in_the_second_of_the_jobs_end_is_no_evidence(end: PodEnd, seconds: int | None, cut: bool) -> None:
    over_at = None if seconds is None else AT + timedelta(seconds=seconds)
    assert end.cut_job(over_at=over_at) is cut
