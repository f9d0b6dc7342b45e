"""Status of a pool: counts, and the conditions Ready, Draining, Degraded and RunnerOutdated with their reasons.

A condition's `lastTransitionTime` changes only when the condition's status changes. If an evaluation has the same
result as the evaluation before, the pool's status does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from rules.claims.runner_brakes import Brake
from rules.pools.blocked_mints import BlockedMints
from rules.pools.draining import DrainReport
from rules.pools.failing_calls import FailingCall, lasting
from rules.pools.pod_security import is_refusal
from rules.pools.pod_states import PodState
from rules.pools.pool_plan import PoolPlan, share_of
from rules.pools.pool_spec import PoolSpec
from rules.pools.starts import Starts, Trouble
from rules.pools.volumes import UNBOUND_AFTER, VolumePlan

Json = dict[str, Any]

REPEATED = 2
"""Consecutive failed starts after which a pool is Degraded.

A problem with the image, or a refusal of the API server, makes the pool Degraded at once.
"""


CONTAINERS_DISABLED = (
    "spec.containers is set, but container jobs are not enabled: set runners.containers.enabled of the chart, or "
    "OSTLER_HOOKS_IMAGE of the workers, or remove spec.containers"
)
"""Problem of a pool with container jobs while the workers have no image for the sidecar."""

NOT_ALLOWED = "PodSecurityNotAllowed"
"""Reason of the conditions Ready and Degraded if the cluster does not allow the pool's Pod Security level."""

_BUILDER_DISABLED = "the workers have no image for spec.containers.mode"


def builder_disabled(mode: str) -> str:
    """Return the problem of a pool that builds images while the workers have no image for its sidecar."""
    return (
        f"{_BUILDER_DISABLED} {mode}: set runners.{mode}.image of the chart, or OSTLER_{mode.upper()}_IMAGE of the "
        "workers, or remove spec.containers"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusFacts:
    """A pool, with the facts beside its specification and its plan that the status needs.

    - `drain`: report on the drain of a deleted pool, or None.
    - `brake`: brake of a pool whose runners never execute, or None.
    - `blocked_mints`: the backoff that blocks mints for jobs of the pool, or None.
    - `failing_calls`: the writes to the API server that fail.
    - `gated`: the Pods with a scheduling gate, or None.
    - `held`: the deleted Pods that a finalizer of another program keeps, or None.
    - `registration`: why the last registration of a persistent runner failed, or None if no runner is missing.
    """

    pool: PoolSpec
    selector: str
    drain: DrainReport | None = None
    scaled_up_at: datetime | None = None
    scaled_down_at: datetime | None = None
    brake: Brake | None = None
    blocked_mints: BlockedMints | None = None
    registration: str | None = None
    version: str | None = None
    """Warning about the version of the pool's runner, or None."""
    failing_calls: tuple[FailingCall, ...] = ()
    gated: WaitingPods | None = None
    held: WaitingPods | None = None
    volumes: VolumePlan | None = None
    """Volumes of the pool's runners, or None if the runners have none."""


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """Pods that wait for another program: `count` of them, the oldest since `since`.

    `names` has the names of the gates or finalizers of these Pods, separated by commas.
    """

    count: int
    names: str
    since: datetime

    def __str__(self) -> str:
        pods = "1 Pod" if self.count == 1 else f"{self.count} Pods"
        return f"{pods}, the oldest since {written(self.since)}: {self.names}"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without its transition time."""

    type: str
    status: Literal["True", "False"]
    reason: str
    message: str


def status_of(facts: StatusFacts, plan: PoolPlan, *, before: Mapping[str, Any] | None, now: datetime) -> Json:
    """Return the whole status. `before` is the previous status, or None if there is none."""
    pool = facts.pool
    status: Json = {
        "observedGeneration": pool.generation,
        "replicas": plan.alive,
        "selector": facts.selector,
        **{str(state): plan.counts.get(state, 0) for state in PodState},
        "stale": plan.stale,
        "lost": plan.lost,
        "conditions": dated(conditions_of(facts, plan, now=now), before=before, generation=pool.generation, now=now),
    }
    if facts.volumes is not None:
        status["volumes"] = {"inUse": facts.volumes.in_use, "free": facts.volumes.free, "lost": facts.volumes.lost}
    for name, at in (("lastScaleUpTime", facts.scaled_up_at), ("lastScaleDownTime", facts.scaled_down_at)):
        if at is not None:
            status[name] = written(at)
    return status


def dated(
    conditions: Iterable[Condition], *, before: Mapping[str, Any] | None, generation: int, now: datetime
) -> list[Json]:
    """Return the conditions in their written form, each with the time at which its status last changed."""
    known = {each["type"]: each for each in (before or {}).get("conditions") or ()}
    found = []
    for each in conditions:
        last = known.get(each.type)
        same = last is not None and last["status"] == each.status
        found.append(
            {
                "type": each.type,
                "status": each.status,
                "reason": each.reason,
                "message": each.message,
                "observedGeneration": generation,
                "lastTransitionTime": last["lastTransitionTime"] if last is not None and same else written(now),
            }
        )
    return found


def conditions_of(facts: StatusFacts, plan: PoolPlan, *, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions Ready, Draining and Degraded of a pool.

    If GitHub refuses the version of the runner now or soon, return RunnerOutdated too.
    """
    found = _ready(facts, plan), _draining(facts), _degraded(facts, plan, now=now)
    if facts.version is None:
        return found
    return *found, Condition("RunnerOutdated", "True", "VersionExpires", facts.version)


def _word(holds: bool) -> Literal["True", "False"]:
    return "True" if holds else "False"


def _ready(facts: StatusFacts, plan: PoolPlan) -> Condition:
    pool = facts.pool
    served = plan.available > 0 or (plan.wanted == 0 and pool.problem is None)
    holds = served and plan.available >= plan.wanted - share_of(pool)
    if pool.terminating:
        return Condition("Ready", "False", "Deleted", "The pool is being deleted")
    if pool.forbidden:
        return Condition(
            "Ready",
            "False",
            NOT_ALLOWED,
            "The pool gets no Pods, because the cluster does not allow its Pod Security level",
        )
    if plan.starts.trouble is Trouble.QUOTA and plan.available < plan.wanted:
        return Condition("Ready", _word(holds), "QuotaExceeded", plan.starts.detail)
    if pool.paused:
        return Condition("Ready", _word(holds), "Paused", "The pool is paused, and its Pods are not changed")
    if holds:
        return Condition("Ready", "True", "PodsAvailable", "Enough Pods are available")
    creates = not any(each.creates for each in lasting(facts.failing_calls))
    starts = plan.starts.trouble is None or plan.starts.without_surge
    if pool.problem is None and plan.hopeless is None and creates and starts:
        if facts.gated is not None:
            return Condition("Ready", "False", "PodsGated", _tell_gated(facts.gated))
        return Condition(
            "Ready", "False", "PodsStarting", "Pods are starting, and more Pods are unavailable than the pool allows"
        )
    return Condition("Ready", "False", "PodsMissing", "Fewer Pods are available than the pool needs")


def _tell_gated(pods: WaitingPods) -> str:
    return f"Pods wait until another program removes their scheduling gates ({pods})"


def _draining(facts: StatusFacts) -> Condition:
    if facts.drain is None:
        return Condition("Draining", "False", "NotDeleted", "The pool is not being deleted")
    return Condition("Draining", "True", facts.drain.reason, facts.drain.message)


def _degraded(facts: StatusFacts, plan: PoolPlan, *, now: datetime) -> Condition:
    """Return the condition Degraded. Its message names every call that keeps failing, also beside another problem."""
    found, calls = _of_pool(facts, plan, now=now), lasting(facts.failing_calls)
    if not calls:
        return found
    told = "; ".join(each.describe() for each in calls)
    if found.status == "False":
        return Condition("Degraded", "True", calls[0].reason, told)
    return replace(found, message=f"{found.message}; {told}")


def _of_pool(facts: StatusFacts, plan: PoolPlan, *, now: datetime) -> Condition:
    """Return the condition Degraded without the calls that keep failing."""
    if facts.pool.problem is not None:
        return Condition("Degraded", "True", _reason_of(facts.pool.problem), facts.pool.problem)
    if plan.hopeless is not None:
        return Condition(
            "Degraded", "True", plan.hopeless, f"The kubelet cannot use the image of a new Pod: {plan.hopeless}"
        )
    # The first poll of another runner resets the failures. The storage of one runner can fail all the same.
    of_starts = _of_starts(plan.starts, repeated=REPEATED if facts.volumes is None else 1)
    if of_starts.status == "True":
        return of_starts
    gated = None if facts.gated is None else Condition("Degraded", "False", "PodsGated", _tell_gated(facts.gated))
    return _of_running(facts, plan, now=now) or gated or of_starts


def _reason_of(problem: str) -> str:
    """Return the reason of the condition Degraded for a pool that cannot be used."""
    if is_refusal(problem):
        return NOT_ALLOWED
    if problem.startswith(_BUILDER_DISABLED):
        return "BuilderDisabled"
    return "ContainerJobsDisabled" if problem == CONTAINERS_DISABLED else "InvalidSpec"


def _of_running(facts: StatusFacts, plan: PoolPlan, *, now: datetime) -> Condition | None:
    """Return the condition Degraded for a problem of a pool whose Pods start, or None if there is no problem."""
    if facts.brake is not None:
        return _of_runners(facts.brake)
    if facts.blocked_mints is not None:
        told = facts.blocked_mints.describe(busy=plan.counts.get(PodState.BUSY, 0), now=now)
        return Condition("Degraded", "True", facts.blocked_mints.reason, told)
    if facts.registration is not None:
        return Condition(
            "Degraded", "True", "RunnersNotRegistered", f"Runners are not registered: {facts.registration}"
        )
    if facts.volumes is not None and facts.volumes.unbound:
        told = (
            f"Volumes without storage for {UNBOUND_AFTER:.0f} s or longer: {facts.volumes.unbound}; `kubectl describe "
            "pvc` has the cause, for example a storage class without room"
        )
        return Condition("Degraded", "True", "VolumesNotBound", told)
    if plan.lost:
        return Condition("Degraded", "True", "NodeLost", f"Pods on gone nodes: {plan.lost}")
    if facts.held is not None:
        told = (
            f"Deleted Pods stay because of finalizers of another program ({facts.held}): repair this program, or "
            "remove the finalizers"
        )
        return Condition("Degraded", "True", "FinalizersRemain", told)
    if facts.pool.replicas_writer is not None:
        return Condition(
            "Degraded",
            "True",
            "ReplicasConflict",
            f"Autoscaling is enabled, and {facts.pool.replicas_writer} also sets spec.replicas: "
            "remove replicas from the manifest of the pool",
        )
    return None


def _of_runners(brake: Brake) -> Condition:
    """Return the condition of a braked pool. If a cure is known, the condition's message names the cure."""
    whom = "" if brake.account_id is None else f" for jobs of account {brake.account_id}"
    cure = "; use an image with a newer runner" if brake.too_old and brake.accepted is None else ""
    return Condition("Degraded", "True", "RunnersDoNotStart", f"Runners do not start{whom}: {brake.describe()}{cure}")


def _of_starts(starts: Starts, *, repeated: int) -> Condition:
    if starts.without_surge:
        return Condition(
            "Degraded",
            "False",
            "NoRoomToSurge",
            f"Rolling without surge: {starts.detail}; an old Pod is retired before a new one is created",
        )
    match starts.trouble:
        case Trouble.REFUSED:
            return Condition("Degraded", "True", "PodRefused", f"The API server refuses the Pods: {starts.detail}")
        case Trouble.IMAGE:
            reason, _, cure = starts.detail.partition(": ")
            told = f"The image cannot be used: {cure}" if cure else f"Pods do not start: {reason}"
            return Condition("Degraded", "True", reason, told)
        case Trouble() as trouble if trouble is not Trouble.QUOTA and starts.failures >= repeated:
            return Condition("Degraded", "True", "PodsDoNotStart", f"Pods do not start: {starts.detail}")
    return Condition("Degraded", "False", "AsExpected", "No problem detected")


def written(at: datetime) -> str:
    """Return a time in the format of Kubernetes, in whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
