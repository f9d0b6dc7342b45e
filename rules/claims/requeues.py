"""Decision about the request of a person to queue a job again.

A request never ends a claim. It clears the waits of a queued job, or it asks for the release of the claim of a claimed
job. The release needs the same proof as every other release (laws L3 and L8).
"""

from __future__ import annotations

from enum import StrEnum

from rules.claims.machines import ClaimState, JobState
from rules.routing.holds import HoldReason


class Requeue(StrEnum):
    """Action after a request to queue a job again.

    - `route`: the job is queued and held. It is routed again at once, without regard to its backoffs.
    - `ask`: GitHub is asked for the result of the job at the next tick of `unresolved_jobs`. A claimed job without a
      live claim also gets this answer.
    - `release`: the job has a claim whose runner is not known to execute. Its release begins.
    - `free`: the job is queued without a hold. Nothing is changed.
    - `releases`: the release of its claim has begun before. Nothing is changed.
    - `executes`, `waits`, `over`: a runner executes the job, GitHub has not queued it yet, or it is completed. The
      request is refused.
    """

    ROUTE = "route"
    ASK = "ask"
    RELEASE = "release"
    FREE = "free"
    RELEASES = "releases"
    EXECUTES = "executes"
    WAITS = "waits"
    OVER = "over"

    @property
    def refused(self) -> bool:
        """Return True if the request is refused."""
        return self in {Requeue.EXECUTES, Requeue.WAITS, Requeue.OVER}


def judge(state: JobState, *, hold: HoldReason | None, claim: ClaimState | None) -> Requeue:
    """Return what a request does. `claim` is the state of the job's live claim, or None without a live claim."""
    match state:
        case JobState.COMPLETED:
            return Requeue.OVER
        case JobState.WAITING:
            return Requeue.WAITS
        case JobState.RUNNING:
            return Requeue.EXECUTES
        case JobState.QUEUED if hold is None:
            return Requeue.FREE
        case JobState.QUEUED:
            return Requeue.ASK if hold is HoldReason.ASK_GITHUB else Requeue.ROUTE
    match claim:
        case ClaimState.CLAIMED | ClaimState.MINTED | ClaimState.DELIVERED:
            return Requeue.RELEASE
        case ClaimState.EXECUTING:
            return Requeue.EXECUTES
        case None:
            return Requeue.ASK
        case _:
            return Requeue.RELEASES


def sentence(found: Requeue, *, hold: HoldReason | None) -> str:
    """Return what a request did. `hold` is the hold of the job after the request."""
    match found:
        case Requeue.ROUTE if hold is None:
            return "The hold of the job is cleared. It gets the next free Pod of its turn."
        case Requeue.ROUTE:
            return f"The job is routed again, and its hold {hold} still applies."
        case Requeue.ASK:
            return "The sweep unresolved_jobs asks GitHub for the result of the job within a minute."
        case Requeue.RELEASE:
            return (
                "The release of its claim has begun. The job is queued again when the claim has ended. If GitHub "
                "does not remove the runner because it is busy, the claim stays and the job goes on."
            )
        case Requeue.FREE:
            return "The job is queued, and nothing holds it."
        case Requeue.RELEASES:
            return "Its claim is being released. The job is queued again when the claim has ended."
        case Requeue.EXECUTES:
            return "A runner executes the job. Only GitHub can end it: cancel the job there."
        case Requeue.WAITS:
            return "GitHub has not queued the job yet."
        case Requeue.OVER:
            return "The job is completed. Only GitHub can run it again."
