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

from rules.pools.fleets import NOTHING, Member, Needs, Node, Size, capacity, share
from rules.pools.pool_spec import PoolSpec
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


def hands_off(pool: PoolSpec) -> str | None:
    """Return why the autoscaler must not set the replicas of a pool, or None if it may set them."""
    if pool.terminating:
        return "the deletion of the pool was requested"
    if pool.paused:
        return "the pool is paused"
    if pool.problem is not None:
        return f"the pool cannot be used: {pool.problem}"
    return None if pool.autoscaled else "autoscaling.enabled is false"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One pool at one evaluation, with the id of its row, its demand, and the number of its Pods that are `alive`.

    `scaled_up_at` is None if the pool was never scaled up.
    """

    id: int
    pool: PoolSpec
    needs: Needs
    demand: Demand
    alive: int
    scaled_up_at: datetime | None
    stuck: str | None = None
    """Reason why the pool's queue must not trigger a scale-up, or None if it may."""

    @property
    def limits(self) -> Limits:
        """Return the limits of the autoscaler for the pool."""
        pool = self.pool
        return Limits(pool.min_warm, pool.max_replicas, pool.scale_down_delay, pool.target_busy_percent)

    @property
    def holds(self) -> Size:
        """Return what the Pods of an unchanged pool use, or will use, of its nodes."""
        grows_by_hand = not (self.pool.terminating or self.pool.paused or self.pool.problem)
        return self.needs.size.times(max(self.pool.replicas, self.alive) if grows_by_hand else self.alive)


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
    contenders: Sequence[Contender], *, nodes: Sequence[Node] | None, doubts: Doubts, now: datetime
) -> dict[int, Outcome]:
    """Return the outcome of each pool. `nodes` is None if the nodes could not be read."""
    outcomes: dict[int, Outcome] = {}
    for fleet in {each.needs.fleet for each in contenders}:
        shared = [each for each in contenders if each.needs.fleet == fleet]
        scaled = [each for each in shared if hands_off(each.pool) is None]
        tolerations = [toleration for each in shared for toleration in each.needs.tolerations]
        room = None if nodes is None else capacity(fleet, nodes, tolerations)
        others = sum((each.holds for each in shared if hands_off(each.pool) is not None), start=NOTHING)
        members = [Member(each.id, wanted(each.demand, each.limits), each.needs.size) for each in scaled]
        granted = share(members, room=room, taken=others)
        for each in scaled:
            hoped = granted
            if nodes is not None and any(node.not_ready for node in nodes):
                lost_before = now - timedelta(seconds=each.pool.scale_down_delay)
                room_again = capacity(fleet, nodes, tolerations, lost_before=lost_before)
                hoped = share(members, room=room_again, taken=others)
            outcomes[each.id] = _outcome(each, granted[each.id], room, hoped=hoped[each.id], doubts=doubts, now=now)
    for each in contenders:
        if (why := hands_off(each.pool)) is not None:
            outcomes[each.id] = Outcome(left(each.pool.replicas, why), Parts(0, 0, 0))
    return outcomes


def _outcome(
    contender: Contender, granted: Parts, room: Size | None, *, hoped: Parts, doubts: Doubts, now: datetime
) -> Outcome:
    """Return the outcome of a pool.

    `hoped` is the grant that the pool would have if the nodes that are not Ready became Ready again.
    """
    replicas, limits, since = contender.pool.replicas, contender.limits, contender.scaled_up_at
    if doubts.barred is not None:
        return Outcome(left(replicas, doubts.barred), granted)
    fleet = contender.needs.fleet
    short_of = None if room is None else f"{fleet}: {room.vcpu / 1000:g} vCPU, {room.memory / 1024:.1f} GiB"
    why = explain(contender.demand, limits, granted, short_of=short_of)
    decision = decide(replicas, granted, limits=limits, scaled_up_at=since, why=why, now=now)
    if decision.verdict is Verdict.DOWN and hoped.total > granted.total:
        why = f"{why}; but a node that is not Ready counts until scaleDownDelay has passed"
        decision = decide(replicas, hoped, limits=limits, scaled_up_at=since, why=why, now=now)
        if decision.verdict is not Verdict.DOWN:
            decision = left(replicas, why)
    if contender.stuck is not None and decision.verdict is Verdict.UP:
        decision = left(replicas, f"{why}; but {contender.stuck}")
    if doubts.shrinking is not None:
        decision = growth_only(decision, replicas, why=f"{why}; but {doubts.shrinking}")
    return Outcome(decision, granted)
