"""Unresolved jobs: the verdict from GitHub's answer about a job, and the time of the next request."""

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
"""Maximum time that GitHub lets a job run, plus a day ("Usage limits for self-hosted runners")."""


class Unresolved(StrEnum):
    """Reason to ask GitHub about a job.

    - `unknown`: the job has the hold `ask_github`.
    - `waiting`: the job has waited for an environment at GitHub for a long time.
    - `set_aside`: the job has had the hold `set_aside` or `backoff` for a long time.
    - `elsewhere`: the job has been running on a foreign runner for a long time.
    - `persistent`: the job has been running on a persistent runner for a long time, and GitHub lists the runner as busy
      or offline.
    - `outlived`: GitHub reported the job as running on a runner whose claim had already ended.
    - `bug`: the job is claimed or running without a live claim. The job is repaired and counted as a bug.
    """

    UNKNOWN = "unknown"
    WAITING = "waiting"
    SET_ASIDE = "set_aside"
    ELSEWHERE = "elsewhere"
    PERSISTENT = "persistent"
    OUTLIVED = "outlived"
    BUG = "bug"


class Move(StrEnum):
    """Change of an unresolved job.

    - `keep`: the job stays unchanged, because GitHub agrees with the job's state or answered 404. GitHub is asked again
      later.
    - `ready`: the job no longer waits for an environment. The job is queued, and `rematch` finds a pool for the job.
    - `lift`: the job is queued already. The job's hold is lifted.
    - `follow`: the job takes the next step of its outcome.
    """

    KEEP = "keep"
    READY = "ready"
    LIFT = "lift"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class UnresolvedVerdict:
    """A change of the job. `job_outcome` is the outcome of the job, with the next step and the reason."""

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

    `run` is the run of the job if the run is over, else None. A 404 finishes a job only if the job cannot be queued at
    GitHub any more. This is certain if the job has `started` or if its `age` exceeds GitHub's limit. The age counts
    from the time when the job was queued or began to wait. A `persistent` job is finished only after no job of its
    age can run, because the App might merely have lost the access to its repository (law L8).
    """
    job_outcome = from_github(status=status, conclusion=conclusion, run=run)
    if status is None:
        most = LONGEST_WAITING if state is JobState.WAITING else LONGEST_QUEUED
        over = started or age > most
        if kind is Unresolved.PERSISTENT:
            over = age > LONGEST_QUEUED + LONGEST_EXECUTING
        return UnresolvedVerdict(Move.FOLLOW, NO_SUCH_JOB) if over else UnresolvedVerdict(Move.KEEP, job_outcome)
    if job_outcome.next_step is NextStep.FINISH:
        return UnresolvedVerdict(Move.FOLLOW, job_outcome)
    if job_outcome.next_step is NextStep.RUNNING:
        known = state is JobState.RUNNING and kind in {Unresolved.UNKNOWN, Unresolved.ELSEWHERE, Unresolved.PERSISTENT}
        return UnresolvedVerdict(Move.KEEP if known else Move.FOLLOW, job_outcome)
    if state is JobState.WAITING:
        return UnresolvedVerdict(Move.READY if status == "queued" else Move.KEEP, job_outcome)
    if state is JobState.QUEUED:
        return UnresolvedVerdict(Move.LIFT if kind is Unresolved.UNKNOWN else Move.KEEP, job_outcome)
    return UnresolvedVerdict(Move.FOLLOW, job_outcome)


def next_ask_after(stood: timedelta, *, least: timedelta, most: timedelta) -> timedelta:
    """Return the time until the next request about a job that has not changed its state for the time `stood`.

    The result is half of `stood`, but at least `least` and at most `most`.
    """
    return min(max(stood / 2, least), most)
