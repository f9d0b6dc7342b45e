"""Binding of a started job to the claim that runs the job, and the effect on claims that lose their job.

GitHub gives a job to any idle runner whose labels cover the job. A job might therefore start on a runner that was
minted for another job. The functions of this module judge rows and return a verdict. `models.intake.bindings` locks the
rows before the judgement and writes the verdict afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
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
    queued_at: datetime


@dataclass(slots=True)
class ClaimView:
    """A live claim, as its locked row shows it.

    `executes` is the job of the claim's open execution, or None. `persistent` is True if the claim registered a
    persistent runner. Such a claim never has a job of its own, and its runner executes one job after the other. `pool`
    is the namespace and the name of the claim's pool.
    """

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
    persistent: bool = False
    pool: tuple[str, str] = ("", "")


class Loss(StrEnum):
    """Effect on a claim whose job runs on another runner or has ended."""

    SPARE = "spare"
    """The JIT was delivered. The claim becomes a spare, which has a registered runner and no job."""
    RELEASE = "release"
    """The JIT was never delivered. The claim is released: its mint is undone, and its Pod becomes warm again."""
    FORGET = "forget"
    """The claim is being released or executes another job. Only the claim's reference to the lost job is removed."""


class Runner(StrEnum):
    """Judgement of the runner that an event names."""

    OURS = "ours"
    FOREIGN = "foreign"
    """No live claim has this runner. Either the runner is not Ostler's, or its claim has ended."""
    UNDELIVERED = "undelivered"
    """The JIT of this runner was never delivered, so the runner cannot execute.

    This should be impossible. The runner counts as foreign.
    """
    TAKEN = "taken"
    """The runner was reported for a second job, although a runner executes one job at most.

    This should be impossible. The runner counts as foreign.
    """


def judge_runner(claim: ClaimView | None, *, runner_name: str, job_id: int) -> Runner:
    """Return whether `job_id` can run on the runner `runner_name`.

    `claim` is the live claim with this runner, or None.
    """
    if claim is None:
        return Runner.FOREIGN
    if claim.runner_name != runner_name or claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Runner.UNDELIVERED
    if claim.executes is not None and claim.executes != job_id and not claim.persistent:
        return Runner.TAKEN
    return Runner.OURS


def loss_of(claim: ClaimView) -> Loss:
    """Return the effect on `claim` if the claim's job runs on another runner or has ended."""
    if claim.state == ClaimState.DELIVERED:
        return Loss.SPARE
    if claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Loss.RELEASE
    return Loss.FORGET


def may_swap(winner: ClaimView, loser: ClaimView, former: JobView | None) -> bool:
    """Return whether `loser` can continue with the former job of `winner`. `winner` runs the job of `loser`.

    `former` is the former job of `winner`, or None. Both claims must have the same pool, scope and account. The former
    job must still be in the state `claimed`. `loser` must not be in release and must not execute.
    """
    return (
        former is not None
        and former.state == JobState.CLAIMED
        and (winner.pool_id, winner.scope, winner.account_id) == (loser.pool_id, loser.scope, loser.account_id)
        and loser.state in {ClaimState.CLAIMED, ClaimState.MINTED, ClaimState.DELIVERED}
    )
