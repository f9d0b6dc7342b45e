"""Outcome of a job whose claim ends, derived from GitHub's answer about the job (law L4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NextStep(StrEnum):
    """Next step of a job. Every outcome contains a next step, so that no job is lost."""

    REQUEUE = "requeue"
    FINISH = "finish"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The next step of a job, with the reason. `conclusion` is set only if the next step is `FINISH`."""

    next_step: NextStep
    why: str
    conclusion: str | None = None


NO_JOB = JobOutcome(NextStep.REQUEUE, "the claim had no job")
NOT_SHOWN = JobOutcome(
    NextStep.RUNNING, "GitHub answers 404, perhaps because access is missing; Ostler asks again later"
)
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
    """Return the outcome of a job from GitHub's answer. `status` is None after a 404.

    `runner` is the name of the runner that the reason mentions, or None.

    GitHub also answers 404 if the App lacks access, for example after a repository was removed from the installation. A
    404 therefore ends no job here. If GitHub continues to answer 404, `rules.sweeps.unresolved` judges the job.

    `run` is the job's run if the run is over, else None. If the run is over and the job still waits, the job will never
    start. The next step of such a job is `FINISH`. For example, a run that ends as `startup_failure` leaves its jobs
    queued.
    """
    if status in WAITS and run is not None:
        how = run.conclusion or "unknown"
        return JobOutcome(
            NextStep.FINISH, f"GitHub says that the job is {status}, and that its run is over ({how})", how
        )
    if status is None:
        return NOT_SHOWN
    if status == "completed":
        return JobOutcome(NextStep.FINISH, "GitHub says that the job is over", conclusion or "unknown")
    if status in WAITS:
        return JobOutcome(NextStep.REQUEUE, "GitHub says that the job is queued")
    on = "" if runner is None else f" on runner {runner}"
    return JobOutcome(NextStep.RUNNING, f"GitHub says that the job is {status}{on}")
