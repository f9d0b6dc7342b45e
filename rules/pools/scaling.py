"""How many Pods an autoscaled pool is to keep: the formula, the cool-down, and the verdict with its reason.

`clamp(max(load + queue, usual) + minWarm, 0, maxReplicas)`: `load` are the Pods that have a job or had one and are not
over yet, `queue` the jobs that budgets allow to run (`rules.pools.demand`), `usual` what was needed at a time in all
but 5 % of the last hour's minutes. Up at once; down when the last scale-up is `scaleDownDelay` old. Above `maxReplicas`
nothing stays: that is a bound, not a wish.

Pods that are kept beyond what is needed cost money, Pods that are missing cost waiting. So whatever is not known leaves
the replicas as they are (law L8), and every verdict says in numbers what it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pool's `spec.autoscaling` says; the delay in seconds."""

    min_warm: int
    max_replicas: int
    scale_down_delay: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a pool, in Pods. `load`: reserved, busy and ending ones; `queue`: dispatchable jobs."""

    load: int
    queue: int
    usual: int


@dataclass(frozen=True, slots=True)
class Parts:
    """A number of Pods by what they are for, the most needed first."""

    real: int
    floor: int
    headroom: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.real + self.floor + self.headroom


class Verdict(StrEnum):
    """What becomes of a pool's replicas.

    - `up`, `down`: they are set.
    - `steady`: they are what they are to be.
    - `cooling`: fewer would do, but the last scale-up is not old enough.
    - `left`: something is not known, or must not be concluded now; they stay.
    """

    UP = "up"
    DOWN = "down"
    STEADY = "steady"
    COOLING = "cooling"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas a pool gets, and why."""

    replicas: int
    verdict: Verdict
    why: str


def wanted(demand: Demand, limits: Limits) -> Parts:
    """Return what a pool wants, by what it is for; all of it together is the formula above."""
    most = max(0, limits.max_replicas)
    needed = max(0, demand.load + demand.queue)
    target = min(most, max(needed, demand.usual) + max(0, limits.min_warm))
    real = min(most, needed)
    floor = min(max(0, limits.min_warm), most - real)
    return Parts(real=real, floor=floor, headroom=target - real - floor)


def decide(
    replicas: int, granted: Parts, *, limits: Limits, scaled_up_at: datetime | None, why: str, now: datetime
) -> Decision:
    """Return what becomes of the `replicas` of a pool that was granted so much; `why` says where that came from.

    `scaled_up_at` is when it was last scaled up; None where it never was.
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
        return Decision(max(0, limits.max_replicas), Verdict.DOWN, f"maxReplicas; after the delay: {why}")
    return Decision(replicas, Verdict.COOLING, f"{why}; not before {until:%H:%M:%S} UTC")


def left(replicas: int, why: str) -> Decision:
    """Return the decision to leave a pool as it is."""
    return Decision(replicas, Verdict.LEFT, why)


def growth_only(decision: Decision, replicas: int, *, why: str) -> Decision:
    """Return a decision without its scale-down: for when what is counted may be too little."""
    return left(replicas, why) if decision.verdict is Verdict.DOWN else decision


def explain(demand: Demand, limits: Limits, granted: Parts, *, short_of: str | None) -> str:
    """Return in one line of numbers what a pool was granted; `short_of` names what there was too little of."""
    needed = demand.load + demand.queue
    usual = f", usually {demand.usual}" if demand.usual > needed else ""
    asked = wanted(demand, limits)
    words = f"{demand.load} with jobs + {demand.queue} queued{usual} + {limits.min_warm} warm"
    if max(needed, demand.usual) + limits.min_warm > limits.max_replicas:
        words += f", at most {limits.max_replicas}"
    if granted.total < asked.total:
        words += f" = {asked.total}; {granted.total} fit ({short_of or 'the nodes'})"
        return words
    return f"{words} = {granted.total}"
