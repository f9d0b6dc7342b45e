"""Unused runners: verdicts on delivered claims without an observed execution, and on spares.

The sweep `unused_runners` asks for one verdict per claim. The verdicts on the claims of a scope are based on the same
runner list. If a verdict asks for GitHub's answer about the claimed job, the sweep asks GitHub and then asks for a new
verdict. Every release of a delivered claim first deregisters the claim's runner, and stops if GitHub refuses (law L3).
The claim waits for the next run of the sweep if the runner list is not known, or if only one of two needed checks was
made (law L8). The claim also waits if GitHub does not answer about the job, unless the runner is busy or offline.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.routing.unlabelled import NOT_GIVEN

GRACE_SECONDS = 60.0

UPDATE_SECONDS = 600.0
"""Seconds after the delivery during which an offline runner might be updating its own software."""


class RunnerNow(StrEnum):
    """State of the claim's runner in the list. `unknown` means that the list failed or was incomplete."""

    BUSY = "busy"
    ONLINE_IDLE = "online_idle"
    OFFLINE = "offline"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class ClaimedJob(StrEnum):
    """GitHub's answer about the claimed job.

    - `not_asked`: GitHub was not asked yet.
    - `queued`: the job is queued.
    - `in_progress_here`: the job runs on the runner of this claim.
    - `in_progress_elsewhere`: the job runs on another runner.
    - `terminal`: the job is completed, or it is certain that GitHub has no such job.
    - `terminal_here`: the job was completed on the runner of this claim.
    - `unknown`: GitHub was asked, and gave no usable answer.
    """

    NOT_ASKED = "not_asked"
    QUEUED = "queued"
    IN_PROGRESS_HERE = "in_progress_here"
    IN_PROGRESS_ELSEWHERE = "in_progress_elsewhere"
    TERMINAL = "terminal"
    TERMINAL_HERE = "terminal_here"
    UNKNOWN = "unknown"


class UnusedAction(StrEnum):
    """Action of the sweep.

    - `wait`: do nothing in this tick, and count the reason.
    - `ask_job`: ask GitHub about the claimed job and judge the claim again.
    - `execute`: the claim becomes `executing`, bound to the claimed job.
    - `execute_unidentified`: the claim becomes `executing` without a job. Such claims are counted. The webhook that
      names the runner binds the job later.
    - `release_never_started`: release the claim. The job is queued again unless GitHub reports otherwise, and the Pod
      is retired.
    - `release_not_given`: release the claim, because GitHub gives a job without labels to no runner of the pool. The
      job is held, and the Pod is retired.
    - `finish`: the claimed job and its runner are over. End the claim and finish the job.
    - `spare`: the claimed job does not need this claim any more. The claim becomes a spare.
    - `retire_spare`: release a spare. The Pod of the spare is retired.
    """

    WAIT = "wait"
    ASK_JOB = "ask_job"
    EXECUTE = "execute"
    EXECUTE_UNBOUND = "execute_unidentified"
    RELEASE_NEVER_STARTED = "release_never_started"
    RELEASE_NOT_GIVEN = "release_not_given"
    FINISH = "finish"
    SPARE = "spare"
    RETIRE_SPARE = "retire_spare"


@dataclass(frozen=True, slots=True)
class UnusedClaim:
    """One claim as the sweep observes it.

    - `absent_before`: the runner was absent in the previous check, about a minute before.
    - `age_seconds`: age of the claim at the time of the runner list. The age counts from the time when the poller
      exited 0. If this exit is not known, the age counts from `delivered_at`. The age of a spare counts from
      `spare_since`.
    - `restarts`: the runner was online at some time, and its container still runs.
    - `unlabelled`: the job has no labels, so only GitHub knows its runner group.
    """

    runner: RunnerNow
    absent_before: bool
    job: ClaimedJob
    is_spare: bool
    age_seconds: float
    restarts: bool = False
    unlabelled: bool = False


@dataclass(frozen=True, slots=True)
class UnusedVerdict:
    """The action, with the reason. `counts` is true if the list counts as a check of the runner."""

    action: UnusedAction
    reason: str
    counts: bool = True


_IDLE = UnusedVerdict(UnusedAction.WAIT, "the runner is idle and its job is still queued")
_ONLINE = {
    ClaimedJob.NOT_ASKED: UnusedVerdict(UnusedAction.ASK_JOB, "the runner is idle"),
    ClaimedJob.QUEUED: _IDLE,
    ClaimedJob.IN_PROGRESS_ELSEWHERE: UnusedVerdict(UnusedAction.SPARE, "the job runs elsewhere"),
    ClaimedJob.TERMINAL: UnusedVerdict(UnusedAction.SPARE, "the job is over"),
}
_BUSY = {
    ClaimedJob.NOT_ASKED: UnusedVerdict(UnusedAction.ASK_JOB, "the runner is busy"),
    ClaimedJob.QUEUED: UnusedVerdict(UnusedAction.EXECUTE_UNBOUND, "the runner is busy with another job"),
    ClaimedJob.IN_PROGRESS_ELSEWHERE: UnusedVerdict(
        UnusedAction.EXECUTE_UNBOUND, "the runner is busy with another job"
    ),
    ClaimedJob.TERMINAL: UnusedVerdict(UnusedAction.EXECUTE_UNBOUND, "the runner is busy with another job"),
    # The execution of the runner is proven, although its job is unknown.
    ClaimedJob.UNKNOWN: UnusedVerdict(
        UnusedAction.EXECUTE_UNBOUND, "the runner is busy, and GitHub could not be asked about its job"
    ),
}
_ABSENT = {
    ClaimedJob.NOT_ASKED: UnusedVerdict(UnusedAction.ASK_JOB, "the runner was absent in two checks"),
    ClaimedJob.QUEUED: UnusedVerdict(
        UnusedAction.RELEASE_NEVER_STARTED, "the runner was absent in two checks and its job is still queued"
    ),
    ClaimedJob.IN_PROGRESS_ELSEWHERE: UnusedVerdict(UnusedAction.SPARE, "the job runs elsewhere"),
    ClaimedJob.TERMINAL: UnusedVerdict(UnusedAction.FINISH, "the job is over and the runner was absent in two checks"),
}
UPDATES = UnusedVerdict(UnusedAction.WAIT, "the runner was online, and might be updating itself")
_JOB_UNKNOWN = UnusedVerdict(UnusedAction.WAIT, "GitHub could not be asked about the job")


def judge_unused(claim: UnusedClaim, *, grace_seconds: float = GRACE_SECONDS) -> UnusedVerdict:
    """Return the action on a delivered claim without an execution.

    A claim whose age is below `grace_seconds` always waits.
    """
    if not claim.age_seconds >= grace_seconds:
        reason = f"at the time of the runner list, the claim was younger than {grace_seconds:g} s"
        return UnusedVerdict(UnusedAction.WAIT, reason, counts=False)
    if claim.job is ClaimedJob.IN_PROGRESS_HERE and not claim.is_spare:
        # GitHub's answer alone is proof. A runner list that does not show the execution is older than the answer.
        return UnusedVerdict(UnusedAction.EXECUTE, "GitHub runs the claimed job on this runner")
    if claim.job is ClaimedJob.TERMINAL_HERE and not claim.is_spare:
        # The runner accepts no second job. A runner that is still listed was listed before its job ended.
        return UnusedVerdict(UnusedAction.FINISH, "the job is over, and this runner executed it")
    if claim.runner is RunnerNow.UNKNOWN:
        return UnusedVerdict(UnusedAction.WAIT, "the runner list is not known", counts=False)
    if claim.runner is RunnerNow.ABSENT and not claim.absent_before:
        return UnusedVerdict(UnusedAction.WAIT, "the runner is absent, and a second check must confirm this")
    if claim.is_spare:
        return _judge_spare(claim)
    verdict = _judge_claimed(claim)
    # GitHub gives a job to an idle runner in seconds. No runner of another group ever gets it, however long it waits.
    if verdict is _IDLE and claim.unlabelled and claim.age_seconds >= 2 * grace_seconds:
        return UnusedVerdict(UnusedAction.RELEASE_NOT_GIVEN, NOT_GIVEN)
    return verdict


def _judge_spare(claim: UnusedClaim) -> UnusedVerdict:
    if claim.runner is RunnerNow.BUSY:
        return UnusedVerdict(UnusedAction.EXECUTE_UNBOUND, "the spare's runner is busy")
    return UnusedVerdict(UnusedAction.RETIRE_SPARE, "the spare got no job within `spare_after` seconds")


def _judge_claimed(claim: UnusedClaim) -> UnusedVerdict:
    if claim.runner is RunnerNow.OFFLINE and claim.restarts and claim.age_seconds < UPDATE_SECONDS:
        return UPDATES
    if claim.runner is RunnerNow.OFFLINE:
        return UnusedVerdict(UnusedAction.RELEASE_NEVER_STARTED, "the runner is offline")
    by_job = {RunnerNow.BUSY: _BUSY, RunnerNow.ONLINE_IDLE: _ONLINE, RunnerNow.ABSENT: _ABSENT}[claim.runner]
    return by_job.get(claim.job, _JOB_UNKNOWN)
