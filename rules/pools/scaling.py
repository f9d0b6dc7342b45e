"""Replicas of an autoscaled pool: the formula, the cool-down, and the verdict with its reason.

The formula is `clamp(max(load + queue, usual / targetBusyPercent) + minWarm, 0, maxReplicas)`. `load` counts the Pods
that have a job, and Pods that had a job and are not over. A persistent runner counts while it executes a job. `queue`
counts the jobs that budgets allow to run (`rules.pools.demand`). `usual` is the number of Pods that was enough in 95 %
of the last hour's minutes.

A scale-up happens at once. A scale-down waits until the last scale-up is at least `scaleDownDelay` old. `maxReplicas`
is a hard limit: a scale-down to this limit does not wait.

Surplus Pods cost money, and missing Pods make jobs wait. If an input of the formula is unknown, the replicas therefore
stay unchanged (law L8). The reason of every verdict states the inputs in numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """The fields of a pool's `spec.autoscaling`. `scale_down_delay` is in seconds.

    `target_busy` is the percentage of the Pods that are usually busy in a pool of the right size.
    """

    min_warm: int
    max_replicas: int
    scale_down_delay: float
    target_busy: int = 100

    def for_usual(self, usual: int) -> int:
        """Return how many Pods a pool needs so that `usual` busy Pods are at most `target_busy` percent of them."""
        return math.ceil(usual * 100 / min(100, max(1, self.target_busy)))


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a pool in Pods.

    `load` counts reserved, busy and ending Pods, and `queue` counts dispatchable jobs. `usual` is the number of Pods
    that was enough in 95 % of the last hour's minutes.
    """

    load: int
    queue: int
    usual: int


@dataclass(frozen=True, slots=True)
class Parts:
    """How many Pods a pool wants or gets for each purpose. The most needed purpose comes first.

    - `real`: Pods that have jobs, and Pods for queued jobs.
    - `floor`: warm Pods for `minWarm`.
    - `headroom`: further Pods up to the result of the formula.
    """

    real: int
    floor: int
    headroom: int

    @property
    def total(self) -> int:
        """Return the sum of all parts."""
        return self.real + self.floor + self.headroom


class Verdict(StrEnum):
    """Effect on a pool's replicas.

    - `up`, `down`: the replicas are changed.
    - `steady`: the pool has the right number of replicas.
    - `cooling`: the pool needs fewer replicas, but the last scale-up is too recent.
    - `left`: an input is unknown or doubtful, so the replicas stay unchanged.
    """

    UP = "up"
    DOWN = "down"
    STEADY = "steady"
    COOLING = "cooling"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Decision:
    """The replicas of a pool, with the reason."""

    replicas: int
    verdict: Verdict
    why: str


def wanted(demand: Demand, limits: Limits) -> Parts:
    """Return the Pods that a pool wants, by purpose. The sum of the parts is the result of the module's formula."""
    most = max(0, limits.max_replicas)
    needed = max(0, demand.load + demand.queue)
    target = min(most, max(needed, limits.for_usual(demand.usual)) + max(0, limits.min_warm))
    real = min(most, needed)
    floor = min(max(0, limits.min_warm), most - real)
    return Parts(real=real, floor=floor, headroom=target - real - floor)


def decide(
    replicas: int, granted: Parts, *, limits: Limits, scaled_up_at: datetime | None, why: str, now: datetime
) -> Decision:
    """Return the decision about a pool that has `replicas` replicas. `granted` is the pool's grant.

    `why` explains the grant. `scaled_up_at` is the time of the last scale-up, or None if there was no scale-up.
    """
    target = min(granted.total, max(0, limits.max_replicas))
    if target > replicas:
        return Decision(target, Verdict.UP, why)
    if target == replicas:
        return Decision(replicas, Verdict.STEADY, why)
    if scaled_up_at is None:
        return Decision(target, Verdict.DOWN, why)
    until = scaled_up_at + timedelta(seconds=limits.scale_down_delay)
    if now >= until:
        return Decision(target, Verdict.DOWN, why)
    if replicas > limits.max_replicas:
        return Decision(
            max(0, limits.max_replicas), Verdict.DOWN, f"reduced to maxReplicas; after scaleDownDelay: {why}"
        )
    return Decision(replicas, Verdict.COOLING, f"{why}; not before {until:%H:%M:%S} UTC")


def left(replicas: int, why: str) -> Decision:
    """Return the decision to leave a pool unchanged."""
    return Decision(replicas, Verdict.LEFT, why)


def growth_only(decision: Decision, replicas: int, *, why: str) -> Decision:
    """Return `decision`, or a decision to leave the pool unchanged if `decision` is a scale-down.

    The caller uses this function if the counts might be too low.
    """
    return left(replicas, why) if decision.verdict is Verdict.DOWN else decision


def explain(demand: Demand, limits: Limits, granted: Parts, *, short_of: str | None) -> str:
    """Return one line of numbers about the grant of a pool.

    `short_of` names the resources that limited the grant. If `short_of` is None, the text names "the nodes" instead.
    """
    needed, usually = demand.load + demand.queue, limits.for_usual(demand.usual)
    usual = f", usually {demand.usual}" if usually > needed else ""
    if usual and usually > demand.usual:
        usual += f" ({usually} at {limits.target_busy} % busy)"
    asked = wanted(demand, limits)
    words = f"{demand.load} with jobs + {demand.queue} queued{usual} + {limits.min_warm} warm"
    if max(needed, usually) + limits.min_warm > limits.max_replicas:
        words += f", at most {limits.max_replicas}"
    if granted.total < asked.total:
        words += f" = {asked.total}; {granted.total} fit ({short_of or 'the nodes'})"
        return words
    return f"{words} = {granted.total}"
