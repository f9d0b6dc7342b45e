"""Autoscaler of all pools: share the fleets, decide for each pool, and leave doubtful pools unchanged.

Pools that are deleted, paused or invalid stay unchanged. All pools stay unchanged while the gate of GitHub or of
Kubernetes is tripped. While an upstream fails, jobs accumulate, and more Pods do not help them. Existing Pods might
also seem to be missing (decision 0013). No pool shrinks while the rows might be older than the cluster.

If a pool would shrink because a node is not Ready, the node still counts for `scaleDownDelay`. The node might become
Ready again, and the loss of the node must not delete healthy Pods on other nodes. A pool does not grow if its jobs wait
long although the pool has idle Pods, because these jobs do not lack Pods (compare
actions/actions-runner-controller#4397).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rules.pools.fleets import NOTHING, Fleet, Member, Node, Size, Toleration, capacity, share
from rules.pools.scaling import Decision, Demand, Limits, Parts, Verdict, decide, explain, growth_only, left, wanted

STUCK_AFTER = timedelta(seconds=60)
"""Time after which a queued job of a pool with an idle Pod is stuck.

The matcher normally claims an idle Pod within milliseconds.

A stuck job does not wait for a Pod, so a further Pod would not help.
"""


def stuck(*, queue: int, idle: bool, oldest: datetime | None, now: datetime) -> str | None:
    """Return why a queue must not trigger a scale-up, or None if it may.

    `queue` is the number of dispatchable jobs of the pool. `idle` is true if the pool has an idle Pod. `oldest` is the
    earliest queue time of the first jobs of the pool's accounts. Only jobs that the account's budget admits count.
    """
    if not queue or not idle or oldest is None or now - oldest < STUCK_AFTER:
        return None
    return f"jobs have waited since {oldest:%H:%M:%S} UTC, although Pods are idle"


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool at one evaluation.

    `hands_off` explains why the autoscaler leaves the pool unchanged, or is None if the autoscaler may change the pool.
    `holds` is the number of Pods that an unchanged pool has, or will have, on its nodes. `scaled_up_at` is None if the
    pool was never scaled up.
    """

    pool_id: int
    replicas: int
    limits: Limits
    demand: Demand
    size: Size
    fleet: Fleet
    tolerations: tuple[Toleration, ...]
    scaled_up_at: datetime | None
    holds: int
    hands_off: str | None = None
    stuck: str | None = None
    """Reason why the pool's queue must not trigger a scale-up, or None if it may."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Doubts that stop the autoscaler. A value of None means that there is no doubt.

    `barred` stops every change. `shrinking` stops scale-downs.
    """

    barred: str | None = None
    shrinking: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision about a pool, and the pool's grant."""

    decision: Decision
    granted: Parts


def plan(
    views: Sequence[PoolView], *, nodes: Sequence[Node] | None, doubts: Doubts, now: datetime
) -> dict[int, Outcome]:
    """Return the outcome of each pool. `nodes` is None if the nodes could not be read."""
    outcomes: dict[int, Outcome] = {}
    for fleet in {view.fleet for view in views}:
        shared = [view for view in views if view.fleet == fleet]
        scaled = [view for view in shared if view.hands_off is None]
        tolerations = [each for view in shared for each in view.tolerations]
        room = None if nodes is None else capacity(fleet, nodes, tolerations)
        others = sum((view.size.times(view.holds) for view in shared if view.hands_off is not None), start=NOTHING)
        members = [Member(view.pool_id, wanted(view.demand, view.limits), view.size) for view in scaled]
        granted = share(members, room=room, taken=others)
        for view in scaled:
            hoped = granted
            if nodes is not None and any(node.not_ready for node in nodes):
                lost_before = now - timedelta(seconds=view.limits.scale_down_delay)
                room_again = capacity(fleet, nodes, tolerations, lost_before=lost_before)
                hoped = share(members, room=room_again, taken=others)
            outcomes[view.pool_id] = _outcome(
                view, granted[view.pool_id], room, hoped=hoped[view.pool_id], doubts=doubts, now=now
            )
    for view in views:
        if view.hands_off is not None:
            outcomes[view.pool_id] = Outcome(left(view.replicas, view.hands_off), Parts(0, 0, 0))
    return outcomes


def _outcome(
    view: PoolView, granted: Parts, room: Size | None, *, hoped: Parts, doubts: Doubts, now: datetime
) -> Outcome:
    """Return the outcome of a pool.

    `hoped` is the grant that the pool would have if the nodes that are not Ready became Ready again.
    """
    if doubts.barred is not None:
        return Outcome(left(view.replicas, doubts.barred), granted)
    short_of = None if room is None else f"{view.fleet}: {room.vcpu / 1000:g} vCPU, {room.memory / 1024:.1f} GiB"
    why = explain(view.demand, view.limits, granted, short_of=short_of)
    decision = decide(view.replicas, granted, limits=view.limits, scaled_up_at=view.scaled_up_at, why=why, now=now)
    if decision.verdict is Verdict.DOWN and hoped.total > granted.total:
        why = f"{why}; but a node that is not Ready counts until scaleDownDelay has passed"
        decision = decide(view.replicas, hoped, limits=view.limits, scaled_up_at=view.scaled_up_at, why=why, now=now)
        if decision.verdict is not Verdict.DOWN:
            decision = left(view.replicas, why)
    if view.stuck is not None and decision.verdict is Verdict.UP:
        decision = left(view.replicas, f"{why}; but {view.stuck}")
    if doubts.shrinking is not None:
        decision = growth_only(decision, view.replicas, why=f"{why}; but {doubts.shrinking}")
    return Outcome(decision, granted)
