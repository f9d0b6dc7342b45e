"""Jobs that nothing of ours moves any more: what GitHub's answer makes of one, and when it is asked again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from rules.claims.job_outcomes import NO_SUCH_JOB, JobOutcome, NextStep, OverRun, from_github
from rules.claims.machines import JobState

LONGEST_QUEUED = timedelta(hours=48)
"""Twice what GitHub lets a job wait for a self-hosted runner ("Usage limits for self-hosted runners")."""

LONGEST_WAITING = timedelta(days=35)
"""What GitHub lets a workflow run last, its waits for an environment included (same page)."""


LONGEST_EXECUTING = timedelta(days=6)
"""A day more than GitHub lets a job run on a self-hosted runner (same page)."""


class Unresolved(StrEnum):
    """Why a job is asked about.

    - `unknown`: it has the hold `ask_github`.
    - `waiting`: GitHub has held it for an environment for long.
    - `set_aside`: it has been held with a backoff for long.
    - `elsewhere`: it runs on a runner that is not ours, for long.
    - `outlived`: it runs on a runner of ours whose claim had ended when GitHub told of it.
    - `bug`: it is claimed or running and no claim is live; repaired and counted as a bug.
    """

    UNKNOWN = "unknown"
    WAITING = "waiting"
    SET_ASIDE = "set_aside"
    ELSEWHERE = "elsewhere"
    OUTLIVED = "outlived"
    BUG = "bug"


class Move(StrEnum):
    """What becomes of the job.

    - `keep`: it stands where GitHub says that it stands; asked again later.
    - `ready`: its environment let it go; it is queued, for `rematch` to find it a pool.
    - `lift`: it is queued already and its hold goes.
    - `follow`: it goes where its outcome says.
    """

    KEEP = "keep"
    READY = "ready"
    LIFT = "lift"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class UnresolvedVerdict:
    """A move; `job_outcome` says where to and why."""

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
    """Return what becomes of a job of which GitHub says `status`; None is a 404. `run`: its run, if that is over.

    A 404 finishes only what no longer can be queued there: a job that `started`, or one whose `age` (since it was
    queued, or began to wait) is more than GitHub allows.
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
    """Return the time to the next ask about a job that has stood where it is for `stood`: half of that, in bounds."""
    return min(max(stood / 2, least), most)
