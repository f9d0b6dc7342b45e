"""Unresolved jobs, which no claim moves: the verdict from GitHub's answer, and the time of the next request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from rules.claims.job_outcomes import NO_SUCH_JOB, JobOutcome, NextStep, OverRun, from_github
from rules.claims.machines import JobState

LONGEST_QUEUED = timedelta(hours=48)
"""Twice the time that GitHub lets a job wait for a self-hosted runner ("Usage limits for self-hosted runners")."""

LONGEST_WAITING = timedelta(days=35)
"""Longest duration of a workflow run, including waits for an environment ("Usage limits for self-hosted runners")."""


LONGEST_EXECUTING = timedelta(days=6)
"""Longest time that a job may run, plus a day ("Usage limits for self-hosted runners")."""


class Unresolved(StrEnum):
    """Reason to ask GitHub about a job.

    - `unknown`: the job has the hold `ask_github`.
    - `waiting`: the job has waited for an environment at GitHub for a long time.
    - `set_aside`: the job has been held with a backoff for a long time.
    - `elsewhere`: the job has been running on a foreign runner for a long time.
    - `outlived`: GitHub reported the job as running on a runner whose claim had already ended.
    - `bug`: the job is claimed or running without a live claim. It is repaired and counted as a bug.
    """

    UNKNOWN = "unknown"
    WAITING = "waiting"
    SET_ASIDE = "set_aside"
    ELSEWHERE = "elsewhere"
    OUTLIVED = "outlived"
    BUG = "bug"


class Move(StrEnum):
    """Change of the job.

    - `keep`: GitHub agrees with its state. GitHub is asked again later.
    - `ready`: its environment released it. It is queued, and `rematch` finds a pool for it.
    - `lift`: it is queued already, and its hold is lifted.
    - `follow`: it takes the next step of its outcome.
    """

    KEEP = "keep"
    READY = "ready"
    LIFT = "lift"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class UnresolvedVerdict:
    """A change of the job. `job_outcome` has the next step and the reason."""

    move: Move
    job_outcome: JobOutcome


def judge_unresolved(
    *,
    kind: Unresolved,
    state: JobState,
    status: str | None,
    conclusion: str | None,
    started: bool,
    age: timedelta,
    run: OverRun | None,
) -> UnresolvedVerdict:
    """Return the change of a job that has `status` at GitHub. A `status` of None means that GitHub answered 404.

    `run` is the run of the job if the run is over, else None. A 404 finishes a job only if it cannot be queued at
    GitHub any more, because it `started` or its `age` exceeds GitHub's limit. The age counts from the time when it was
    queued or began to wait.
    """
    job_outcome = from_github(status=status, conclusion=conclusion, run=run)
    if status is None:
        most = LONGEST_WAITING if state is JobState.WAITING else LONGEST_QUEUED
        over = started or age > most
        return UnresolvedVerdict(Move.FOLLOW, NO_SUCH_JOB) if over else UnresolvedVerdict(Move.KEEP, job_outcome)
    if job_outcome.next_step is NextStep.FINISH:
        return UnresolvedVerdict(Move.FOLLOW, job_outcome)
    if job_outcome.next_step is NextStep.RUNNING:
        known = state is JobState.RUNNING and kind in {Unresolved.UNKNOWN, Unresolved.ELSEWHERE}
        return UnresolvedVerdict(Move.KEEP if known else Move.FOLLOW, job_outcome)
    if state is JobState.WAITING:
        return UnresolvedVerdict(Move.READY if status == "queued" else Move.KEEP, job_outcome)
    if state is JobState.QUEUED:
        return UnresolvedVerdict(Move.LIFT if kind is Unresolved.UNKNOWN else Move.KEEP, job_outcome)
    return UnresolvedVerdict(Move.FOLLOW, job_outcome)


def next_ask_after(stood: timedelta, *, least: timedelta, most: timedelta) -> timedelta:
    """Return the time to the next request about a job that has not moved for `stood`: half of it, within bounds."""
    return min(max(stood / 2, least), most)
