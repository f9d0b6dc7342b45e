"""Outcome of a job whose claim ends, from GitHub's answer about the job (law L4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NextStep(StrEnum):
    """Next step of a job: one of three, so that no job disappears."""

    REQUEUE = "requeue"
    FINISH = "finish"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """An outcome with its reason; `conclusion` only for `FINISH`."""

    next_step: NextStep
    why: str
    conclusion: str | None = None


NO_JOB = JobOutcome(NextStep.REQUEUE, "the claim had no job")
NOT_SHOWN = JobOutcome(NextStep.RUNNING, "GitHub answers 404, perhaps because access is missing; asked again later")
NO_SUCH_JOB = JobOutcome(NextStep.FINISH, "GitHub has no such job", "unknown")


WAITS = frozenset({"queued", "waiting", "pending", "requested"})
"""GitHub's statuses of a job that has not begun."""


@dataclass(frozen=True, slots=True)
class OverRun:
    """A run that is over, with the conclusion that GitHub reports."""

    conclusion: str | None


def from_github(
    *, status: str | None, conclusion: str | None, run: OverRun | None = None, runner: str | None = None
) -> JobOutcome:
    """Return the outcome of a job from GitHub's answer; `status` None is a 404, `runner` is named in the reason.

    GitHub also answers 404 when we have no access, for example after a repository was removed from the installation. So
    a 404 ends no job here: `rules.sweeps.unresolved` judges jobs that stay invisible. If its `run` is over, a job that
    GitHub shows as waiting will wait for ever: a run that ends as `startup_failure` leaves its jobs queued.
    """
    if status in WAITS and run is not None:
        how = run.conclusion or "unknown"
        return JobOutcome(NextStep.FINISH, f"GitHub says that it is {status}, and that its run is over ({how})", how)
    if status is None:
        return NOT_SHOWN
    if status == "completed":
        return JobOutcome(NextStep.FINISH, "GitHub says that it is over", conclusion or "unknown")
    if status in WAITS:
        return JobOutcome(NextStep.REQUEUE, "GitHub says that it is queued")
    on = "" if runner is None else f" on runner {runner}"
    return JobOutcome(NextStep.RUNNING, f"GitHub says that it is {status}{on}")
