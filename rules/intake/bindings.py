"""Binding of a started job to the claim that runs it, and the effect on claims that lose their job.

GitHub gives a job to any idle runner whose labels cover it. The runner of a started job might therefore be another one
than the runner that was minted for this job. These functions check rows and return a verdict. `models.intake.bindings`
locks the rows before the check and writes the verdict afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.claims.machines import ClaimState, JobState


@dataclass(slots=True)
class JobView:
    """A job as its locked row shows it."""

    id: int
    state: str
    account_id: int
    pool_id: int | None
    vcpu: int
    memory: int


@dataclass(slots=True)
class ClaimView:
    """A live claim for a job, as its locked row shows it. `executes` is the job of its open execution, or None."""

    id: int
    state: str
    job_id: int | None
    pool_id: int
    account_id: int
    scope: str | None
    vcpu: int
    memory: int
    runner_name: str | None
    executes: int | None = None


class Loss(StrEnum):
    """Effect on a claim whose job runs elsewhere or has ended."""

    SPARE = "spare"
    """The JIT was delivered. The claim becomes a spare, which has a registered runner and no job."""
    RELEASE = "release"
    """The JIT was never delivered. The mint is undone and the Pod is warm again."""
    FORGET = "forget"
    """The claim is in release or executes another job. Only its reference to the job is removed."""


class Runner(StrEnum):
    """Judgement of the runner that an event names."""

    OURS = "ours"
    FOREIGN = "foreign"
    """No live claim has this runner. It is not Ostler's, or its claim has ended."""
    UNDELIVERED = "undelivered"
    """The claim never delivered a JIT, so its runner cannot execute. This is an anomaly, treated as foreign."""
    TAKEN = "taken"
    """A single-use runner was reported for a second job. This is an anomaly, treated as foreign."""


def judge_runner(claim: ClaimView | None, *, runner_name: str, job_id: int) -> Runner:
    """Return whether `job_id` can run on the runner `runner_name`.

    `claim` is the live claim with this runner, or None.
    """
    if claim is None:
        return Runner.FOREIGN
    if claim.runner_name != runner_name or claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Runner.UNDELIVERED
    if claim.executes is not None and claim.executes != job_id:
        return Runner.TAKEN
    return Runner.OURS


def loss_of(claim: ClaimView) -> Loss:
    """Return the effect on `claim` if its job runs elsewhere or has ended."""
    if claim.state == ClaimState.DELIVERED:
        return Loss.SPARE
    if claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Loss.RELEASE
    return Loss.FORGET


def may_swap(winner: ClaimView, loser: ClaimView, former: JobView | None) -> bool:
    """Return whether `loser`, whose job `winner` runs, can continue with the former job of `winner`.

    `former` is this job, or None. Both claims must have the same pool, scope and account. The former job must still
    wait for its runner. The loser must not be in release and must not execute.
    """
    return (
        former is not None
        and former.state == JobState.CLAIMED
        and (winner.pool_id, winner.scope, winner.account_id) == (loser.pool_id, loser.scope, loser.account_id)
        and loser.state in {ClaimState.CLAIMED, ClaimState.MINTED, ClaimState.DELIVERED}
    )
