"""Facts about a job, its pool, its claim and its lost Pod. The explanation of the job is made of these facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rules.claims.fairness import Budget, Turn, Usage
from rules.claims.machines import ClaimState, JobState, Stamp
from rules.claims.pod_ends import PodEnd
from rules.claims.runner_brakes import Brake
from rules.pools.pool_spec import PoolSpec
from rules.pools.starts import Trouble
from rules.routing.holds import HoldReason
from rules.waiting.steps import Expected


@dataclass(frozen=True, slots=True)
class RegisteredRunners:
    """The persistent runners of a pool.

    `scope` is the organisation or repository that the runners are registered in. `online` is the number of runners that
    GitHub showed as online, and `busy` the number of runners that execute a job. `failure` says why the last
    registration failed, or is None if a later one succeeded.
    """

    scope: str
    online: int
    busy: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TopAccount:
    """The account with the most live job claims in a pool, and how many jobs of it are queued there without a hold."""

    login: str
    pods: int
    queued: int

    def describe(self) -> str:
        """Return the numbers in words."""
        return f"{self.pods} of {self.login}" + (f", which has {self.queued} more queued" if self.queued else "")


@dataclass(frozen=True, slots=True)
class SupplyFacts:
    """A pool, with the facts beside its specification that decide whether its jobs get Pods.

    `warm` is the number of warm Pods that the matcher can use, and `taken` the number of Pods with a live job claim.
    `top` is None if no Pod has a job, or if the account is hidden from the reader.
    """

    id: int
    spec: PoolSpec
    taken: int
    warm: int
    silent: int = 0
    """Number of Pods whose polls are held by a web process that has sent no heartbeat. The matcher ignores them."""
    rerouting: bool = False
    """The routing fields of the pool have changed, and the pool's queued jobs will soon be routed again."""
    deleted: bool = False
    """The object of the pool is gone."""
    trouble: Trouble | None = None
    trouble_detail: str = ""
    failing: str | None = None
    """Description of the calls that create the Pods of the pool, if they keep failing, or None."""
    gated: str | None = None
    """Description of the scheduling gates, if too few Pods are available because of them, or None."""
    starting: int = 0
    """Number of Pods that start now, as the reconciler counted last."""
    starts_in: float | None = None
    """Median time from the creation of a Pod to its first poll in seconds, for the pool's newest Pods. None: unknown"""
    without_surge: bool = False
    """A rollout found no room for a surge Pod, so the rollout retires old Pods before it creates new Pods."""
    create_after: datetime | None = None
    """Time before which no Pod is created because of failed starts, or None."""
    brake: Brake | None = None
    """Brake of the pool, or None.

    While the pool is braked, one job at a time is tried, because the pool's runners never execute.
    """
    cluster_gate: str | None = None
    """Reason why the gate of Kubernetes is tripped, or None if the gate is ok.

    While the gate is tripped, the autoscaler adds no Pod.
    """
    runners: RegisteredRunners | None = None
    """The runners of a persistent pool, or None if the pool's runners run one job."""
    top: TopAccount | None = None


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """The live claim of a job.

    `last_error` is the error of the claim's present step, which is retried, or None. `postponed` is the rate limit that
    makes this step wait, or None: such a step has not failed. `due_at` is the time of the next try if the step has
    failed or waits. The other times say when the claim was made, minted and delivered. None means that it has not
    happened yet, or is not known.
    """

    id: int
    state: ClaimState
    stamp: Stamp
    pod: str
    runner: str | None
    last_error: str | None = None
    created_at: datetime | None = None
    minted_at: datetime | None = None
    delivered_at: datetime | None = None
    postponed: str | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LostPod:
    """A Pod that ended or was deleted while the job had a delivered claim on it."""

    name: str
    end: PodEnd


@dataclass(frozen=True, slots=True)
class HeldAccount:
    """An account that is not allowed. `by` and `since` are None if no operator has held it, or if this was long ago."""

    by: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Known facts about a job.

    `ahead` is the number of jobs of the same account in the same pool that come before this job. `near` is the result
    of `closest_pool`.
    """

    id: int
    state: JobState
    hold_reason: HoldReason | None
    hold_detail: str | None
    not_before: datetime | None
    labels: tuple[str, ...]
    account_id: int
    account: str
    budget: Budget
    usage: Usage
    pool: SupplyFacts | None
    ahead: int | None
    claim: ClaimFacts | None
    runner: str | None
    conclusion: str | None
    near: str | None
    turn: Turn | None = None
    """Place of a queued job in the matcher's plan, or None if the job's account is not in the plan."""
    reserved_for: str | None = None
    """The job and the pool of the reservation in `turn`, for a sentence."""
    lost: LostPod | None = None
    queued_at: datetime | None = None
    expected: Expected | None = None
    held: HeldAccount | None = None
    """Author of the hold of the account of the job, or None if the account is allowed."""
    database_older: bool = False
    """Postgres was restored to an earlier state. No job is matched until `ostler restore` has run."""
