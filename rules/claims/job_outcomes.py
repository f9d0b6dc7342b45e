"""What becomes of a job whose claim ends: decided from what GitHub says of it (law L4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NextStep(StrEnum):
    """The three ways on; a job never just disappears."""

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
"""GitHub's words for a job that has not begun."""


@dataclass(frozen=True, slots=True)
class OverRun:
    """A run that is over, with GitHub's word for how it ended."""

    conclusion: str | None


def from_github(
    *, status: str | None, conclusion: str | None, run: OverRun | None = None, runner: str | None = None
) -> JobOutcome:
    """Return the outcome of a job from GitHub's answer; `status` None is a 404, `runner` is named in the reason.

    GitHub answers that also where it does not let us look (a repository taken from the installation, say), so it
    ends no job: `rules.sweeps.unresolved` judges what stays unseen. With its `run` over, a job that GitHub shows as
    waiting will wait for ever: a run that ends as `startup_failure` leaves its jobs queued.
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
