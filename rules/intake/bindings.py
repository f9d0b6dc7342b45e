"""Binding of a started job to the claim that runs it, and the outcome for those that it displaces.

GitHub gives a job to any idle runner whose labels cover it, so the runner that reports a job might not be the one that
was minted for it. These functions check rows and return a verdict; `models.intake.bindings` locks the rows before and
writes the verdict afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.claims.machines import ClaimState, JobState


@dataclass(slots=True)
class JobView:
    """A job as its locked row shows it. `execution` is the open or ended execution, if there is one."""

    id: int
    state: str
    account_id: int
    pool_id: int | None
    vcpu: int
    memory: int


@dataclass(slots=True)
class ClaimView:
    """A live claim for a job, as its locked row shows it. `executes` is the job of its open execution."""

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
    """Effect on a claim whose job went elsewhere."""

    SPARE = "spare"
    """Delivered: a registered runner without a job of its own."""
    RELEASE = "release"
    """Never delivered: its mint is undone and its Pod is warm again."""
    FORGET = "forget"
    """In release or executing another job: it only stops naming the job."""


class Runner(StrEnum):
    """Judgement of the runner that an event names."""

    OURS = "ours"
    FOREIGN = "foreign"
    """No live claim has this runner: it is not Ostler's, or its claim has ended."""
    UNDELIVERED = "undelivered"
    """Its claim never delivered a JIT, so this is impossible: an anomaly, treated as foreign."""
    TAKEN = "taken"
    """A single-use runner reported for a second job: an anomaly, treated as foreign."""


def judge_runner(claim: ClaimView | None, *, runner_name: str, job_id: int) -> Runner:
    """Return whether `job_id` can be executing on the runner of `claim`, the live claim found by its name."""
    if claim is None:
        return Runner.FOREIGN
    if claim.runner_name != runner_name or claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Runner.UNDELIVERED
    if claim.executes is not None and claim.executes != job_id:
        return Runner.TAKEN
    return Runner.OURS


def loss_of(claim: ClaimView) -> Loss:
    """Return the effect on `claim` when its job goes elsewhere."""
    if claim.state == ClaimState.DELIVERED:
        return Loss.SPARE
    if claim.state in {ClaimState.CLAIMED, ClaimState.MINTED}:
        return Loss.RELEASE
    return Loss.FORGET


def may_swap(winner: ClaimView, loser: ClaimView, former: JobView | None) -> bool:
    """Return whether `loser`, whose job `winner` took, can continue with the job of `winner` instead.

    The swap is allowed only within one pool, scope and account, and only for a job that still waits for its runner. The
    loser must be on its way to a free runner: not in release, not executing.
    """
    return (
        former is not None
        and former.state == JobState.CLAIMED
        and (winner.pool_id, winner.scope, winner.account_id) == (loser.pool_id, loser.scope, loser.account_id)
        and loser.state in {ClaimState.CLAIMED, ClaimState.MINTED, ClaimState.DELIVERED}
    )
