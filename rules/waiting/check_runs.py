"""Text of a job's check run at GitHub: why the job waits, that it started, or that its Pod ended before the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rules.claims.machines import JobState
from rules.claims.pod_ends import How, describe
from rules.waiting.budgets import gib
from rules.waiting.facts import JobFacts
from rules.waiting.steps import Explanation

INFRASTRUCTURE = frozenset({How.OUT_OF_MEMORY, How.DELETED, How.EVICTED, How.PREEMPTED, How.NODE, How.DEADLINE})
"""Ends of a Pod that a check run tells about. Other ends are the result of the job itself, or not known."""


@dataclass(frozen=True, slots=True)
class Told:
    """Text of a check run. There is one call for each `state` of a job, even if the text changes later."""

    state: str
    title: str
    text: str


def tell(job: JobFacts, why: Explanation, *, waited: timedelta, late: timedelta, shown: bool) -> Told | None:
    """Return what the check run of a job says now, or None if there is nothing to say.

    `waited` is the time from the queueing to now, or to the start. `late` is the least wait that is told. `shown` is
    True if the job has a check run.
    """
    if job.state is JobState.COMPLETED:
        return _ended(job, shown=shown)
    if job.state is JobState.RUNNING:
        return Told("started", f"The job started after {_minutes(waited)}", "The job runs.") if shown else None
    if waited < late or job.state is JobState.WAITING:
        return None
    cure = "" if why.cure is None else f" {why.cure}"
    return Told(f"waits:{why.waits_for}", f"Waits {_minutes(waited)}: {why.summary}", f"{why.summary}{cure}")


def _ended(job: JobFacts, *, shown: bool) -> Told | None:
    end = None if job.lost is None else job.lost.end
    if end is not None and end.how in INFRASTRUCTURE and job.conclusion in {"failure", "cancelled"}:
        said = describe(end, pod="the Pod of the job") or "the Pod of the job ended"
        limit = ""
        if end.how is How.OUT_OF_MEMORY and job.pool is not None:
            limit = f" Its pool gives each job {gib(job.pool.spec.charged_mib)} GiB."
        return Told("failed", f"The Pod of the job ended before the job: {_WORDS[end.how]}", f"{said}.{limit}")
    return Told("ended", f"The job ended: {job.conclusion or 'no conclusion'}", "The job is over.") if shown else None


_WORDS = {
    How.OUT_OF_MEMORY: "out of memory",
    How.DELETED: "it was deleted",
    How.EVICTED: "it was evicted",
    How.PREEMPTED: "it was preempted",
    How.NODE: "its node was lost, drained or shut down",
    How.DEADLINE: "the job took longer than its pool allows",
}


def _minutes(waited: timedelta) -> str:
    minutes = round(waited.total_seconds() / 60)
    return f"{minutes} min" if minutes else f"{round(waited.total_seconds())} s"
