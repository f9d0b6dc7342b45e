"""Scenarios that reach each transition: the necessary work, and the fault that makes the transition happen.

`SCENARIOS` has one scenario for every entry of the transition table. A transition without a scenario fails the
kill-point test. A scenario is a context manager: at its start it causes the transition, and at its end it removes its
faults. It creates `Stage.copies` jobs. With two jobs, the kills before and after a commit can affect two different
jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from lab.faults import Fault
from rules.claims.machines import TRANSITIONS
from tests.faults.stage import POOL, Stage

SIDES = ("before_commit", "after_commit")
POINTS = [f"{name}.{side}" for name in TRANSITIONS for side in SIDES]
"""Points at which a process can be halted: before and after the commit of every transition."""

Scenario = Callable[[Stage], AbstractContextManager[list[int]]]
"""A context manager that returns the jobs it created."""


@contextmanager
def a_job(stage: Stage) -> Iterator[list[int]]:
    """Jobs that take the normal path."""
    yield stage.send(stage.copies)


@contextmanager
def a_long_job(stage: Stage) -> Iterator[list[int]]:
    """Jobs that run for longer than it takes to delete their Pods."""
    yield stage.send(stage.copies, seconds=30)


@contextmanager
def an_approved_job(stage: Stage) -> Iterator[list[int]]:
    """Jobs that wait for an environment, which then approves them."""
    jobs = stage.send(stage.copies, waiting=True)
    stage.until(lambda: len(stage.job_states(jobs)) == len(jobs), what="rows of the waiting jobs")
    for job in jobs:
        stage.system.lab("POST", f"/jobs/{job}/approve")
    yield jobs


@contextmanager
def a_cancelled_job(stage: Stage) -> Iterator[list[int]]:
    """Jobs that are cancelled while their claims wait for a JIT."""
    with stage.mints_held(then=stage.copies):
        jobs = stage.send(stage.copies)
        for claim in stage.each_claim_in(jobs, {"claimed"}):
            stage.cancel(claim.job_id)
    try:
        yield jobs
    finally:
        stage.no_faults()


@contextmanager
def a_pod_deleted_too_early(stage: Stage) -> Iterator[list[int]]:
    """Pods that are deleted while their claims wait for a JIT."""
    with stage.mints_held(then=stage.copies):
        jobs = stage.send(stage.copies)
        for claim in stage.each_claim_in(jobs, {"claimed"}):
            stage.delete_pod(claim.pod_name, claim.pod_uid)
    try:
        yield jobs
    finally:
        stage.no_faults()


@contextmanager
def a_pod_deleted_while_it_runs(stage: Stage) -> Iterator[list[int]]:
    """Pods that are deleted while Ostler knows that they execute: their jobs fail."""
    jobs = stage.send(stage.copies, seconds=120)
    stage.claims_in(jobs, {"executing"})
    stage.until(lambda: len(stage.started(jobs)) == len(jobs), what="the kubelet's word for it")
    for name, uid in stage.started(jobs).values():
        stage.delete_pod(name, uid)
    yield jobs


@contextmanager
def a_pod_deleted_while_it_runs_unseen(stage: Stage) -> Iterator[list[int]]:
    """Pods that are deleted while they run a job without a webhook `in_progress`.

    GitHub shows their runners as busy for a while.
    """
    with stage.mints_held():
        jobs = stage.send(stage.copies, seconds=120)
        stage.until(lambda: len(stage.job_states(jobs)) == len(jobs), what="rows of the jobs")
        stage.system.lab("POST", "/webhooks", {"drop_rate": 1})  # before the first runner can be minted
    with stage.webhooks_lost():
        stage.until(lambda: len(stage.started(jobs)) == len(jobs), what="the start of the jobs")
        for name, uid in stage.started(jobs).values():
            stage.delete_pod(name, uid)
        yield jobs


@contextmanager
def a_spent_pod_without_its_webhook(stage: Stage) -> Iterator[list[int]]:
    """Pods that end their jobs while GitHub loses every webhook `completed`."""
    with stage.webhooks_lost("completed"):
        yield stage.send(stage.copies, seconds=1)


@contextmanager
def a_surplus_pod(stage: Stage) -> Iterator[list[int]]:
    """A pool that is made smaller, then larger again."""
    stage.until(lambda: stage.offered() >= POOL.replicas, what="a pool of warm Pods")
    stage.scale(POOL.replicas - stage.copies)
    try:
        yield []
    finally:
        stage.scale(POOL.replicas)


@contextmanager
def a_refused_stamp(stage: Stage) -> Iterator[list[int]]:
    """An API server that refuses to patch Pods."""
    stage.api.add(Fault(kind="status", method_regex="PATCH", path_regex=r"/api/v1/namespaces/[^/]+/pods/.*"))
    try:
        yield stage.send(stage.copies)
    finally:
        stage.api.clear()


@contextmanager
def a_pod_that_cannot_reach_us(stage: Stage) -> Iterator[list[int]]:
    """Pods that lose the connection to web between their claim and its JIT."""
    with stage.mints_held():
        jobs = stage.send(stage.copies)
        list(stage.each_claim_in(jobs, {"claimed"}))
        stage.line.cut()
    try:
        yield jobs
    finally:
        stage.line.mend()


@contextmanager
def a_pod_that_reaches_us_again(stage: Stage) -> Iterator[list[int]]:
    """Pods that lose the connection between claim and JIT, and poll again while their stamps cannot be removed."""
    with stage.mints_held():
        jobs = stage.send(stage.copies)
        list(stage.each_claim_in(jobs, {"claimed"}))
        stage.line.cut()
    stage.api.add(Fault(kind="status", method_regex="PATCH", path_regex=r"/api/v1/namespaces/[^/]+/pods/.*"))
    try:
        try:
            stage.until(
                lambda: any(claim.stamp == "removing" for claim in stage.claims(jobs)), what="an un-stamp that fails"
            )
        finally:
            stage.line.mend()
        yield jobs
    finally:
        stage.api.clear()


SCENARIOS: Mapping[str, Scenario] = {
    "claim": a_job,
    "mint": a_job,
    "deliver": a_job,
    "execute": a_job,
    "begin_release": a_cancelled_job,
    "refuse_release": a_pod_deleted_while_it_runs_unseen,
    "end_released": a_cancelled_job,
    "end_completed": a_job,
    "end_pod_gone": a_pod_deleted_while_it_runs,
    "end_pod_spent": a_spent_pod_without_its_webhook,
    "retire": a_surplus_pod,
    "end_retired": a_surplus_pod,
    "job_seen": a_job,
    "job_ready": an_approved_job,
    "job_claim": a_job,
    "job_run": a_job,
    "job_requeue": a_pod_deleted_too_early,
    "job_finish": a_job,
    "stamp_on": a_job,
    "stamp_gave_up": a_refused_stamp,
    "stamp_removing": a_pod_that_cannot_reach_us,
    "stamp_off": a_pod_that_cannot_reach_us,
    "cancel_unstamp": a_pod_that_reaches_us_again,
    "lease_stamp": a_job,
    "lease_mint": a_job,
    "lease_unstamp": a_pod_that_cannot_reach_us,
    "lease_release": a_cancelled_job,
    "lease_retire": a_surplus_pod,
}
