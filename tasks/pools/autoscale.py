"""`ostler.autoscale`: check all pools, and set the replicas of the pools that are autoscaled.

The task runs every 10 s, and also at once when the matcher left jobs of an autoscaled pool without Pods. The pools of
both namespaces are read from the cluster first and the rows second (law L8). If the pools of one namespace cannot be
read, the run changes only pools of the other namespace. The Pods and jobs of the unread pools then count neither in the
shares of the nodes nor in the shares of the budgets. A pool might therefore get more Pods than the nodes have room for,
up to its `maxReplicas`. If the rows cannot be read, the run ends and changes nothing. If only the nodes cannot be read,
the run continues without them. A decision is recorded in the pool's row before the replicas are written. If the process
is killed before it writes the replicas, the only effect is a later scale-down.

If two runs overlap, they see the same pools, but only one of them scales a pool. The patch names the version of the
pool that was read, so the second run gets a `Conflict`. The reconciler plans new Pods under the pool's lock.
Overlapping runs therefore never cause a surplus Pod.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from k8s_adapters.calls.writes import recorded
from k8s_adapters.cluster.nodes import needs_of
from k8s_adapters.pools.pools import get_pool, list_pools, scale_pool
from k8s_adapters.runners.events import pool_of
from models.claims import runner_failures
from models.pools import scaling
from models.pools.scaling import Load, Trust
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from ostler.reasons import words_of
from ostler.task_names import AUTOSCALE, REMATCH
from rules.claims.runner_brakes import Brake
from rules.pools import node_sharing
from rules.pools.demand import Places, Queue, dispatchable
from rules.pools.fleets import Node
from rules.pools.node_sharing import Contender, Doubts, Outcome, hands_off, stuck
from rules.pools.pool_spec import PoolSpec
from rules.pools.scaling import Demand, Verdict
from tasks.pools.facts import problem_of
from tasks.pools.mirror_pools import mirror_pool
from tasks.worker.base import SWEEP, SWEEP_LIST, SWEEP_ROW, calls, remaining, task
from tasks.worker.failing_calls import record_writes
from tasks.worker.nodes import listed_nodes
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

RESERVE = 2.0
"""Seconds of the task's deadline that must be left before the task scales another pool."""

TRIES = 3
"""Upper bound on attempts to write one pool while other writers change other fields of the same object."""

_LOGGED = {
    "from": "replicas_before",
    "replicas": "replicas_after",
    "load": "pods_in_use",
    "queue": "jobs_waiting",
    "usual": "usual_pods_needed",
    "granted": "pods_granted",
}
"""Names of log fields for the figures of `describe` whose own names are not clear in a log line."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A pool with its row, its demand, and the outcome of the autoscaler for it."""

    pool: PoolSpec
    row: Load
    demand: Demand
    outcome: Outcome


@task(AUTOSCALE, policy=SWEEP)
def autoscale() -> None:
    """Decide for all pools together, because they share nodes and accounts. Then scale one pool after the other.

    If a namespace cannot be read, its pools are not scaled and get no share in this run (L14), and no other pool is
    reduced. The error of the namespace is raised at the end.
    """
    rt = runtime()
    pools: list[PoolSpec] = []
    failed: UpstreamError | None = None
    for namespace in rt.settings.namespaces:
        try:
            seen = list_pools(rt.kube, namespace=namespace, policy=calls(SWEEP_LIST))
        except UpstreamError as error:
            log.warning("autoscale.namespace_not_read", namespace=namespace, error=words_of(error))
            failed = error
        else:
            pools += [replace(pool, problem=problem_of(rt, pool)) for pool in seen]
    scale(rt, pools, unread=None if failed is None else "the pools of a namespace cannot be read")
    if failed is not None:
        raise failed


def scale(rt: Runtime, pools: Sequence[PoolSpec], *, unread: str | None) -> None:
    """Decide for the given pools, and carry out the decisions in a random order.

    `unread`: why pools are missing from `pools`, or None. In this case no pool is reduced, because the tolerations of
    the missing pools might make further nodes usable (L8).
    """
    if not any(pool.autoscaled for pool in pools):
        return
    nodes = nodes_of(rt)
    now = utcnow()
    decided = rt.transaction(decide_all, pools, nodes, namespaces=rt.settings.namespaces, unread=unread, now=now)
    random.shuffle(decided)  # so that a run without enough time does not always skip the same pools (L14)
    for scaled in decided:
        if remaining() < RESERVE:
            log.info("autoscale.ran_out_of_time")
            return
        began, pool = utcnow(), scaled.pool
        with recorded() as writes:
            try:
                carry_out(rt, scaled)
            except (UpstreamError, DBAPIError) as error:  # an error of one pool must not stop the others (L14)
                telemetry.SCALINGS.labels("failed").inc()
                log.warning(
                    "pool.scaling_failed",
                    namespace=pool.namespace,
                    pool=pool.name,
                    error=words_of(error),
                    detail=_detail(error),
                )
        if writes.outcomes:
            record_writes(
                rt, namespace=pool.namespace, pool=pool.name, uid=pool.uid, outcomes=writes.outcomes, began=began
            )


def _detail(error: Exception) -> str | None:
    """Return the error text of an upstream, or None for an error of Postgres.

    The text of a Postgres error might contain values of the row (law L13).
    """
    return str(error)[:300] if isinstance(error, UpstreamError) else None


def nodes_of(rt: Runtime) -> list[Node] | None:
    """Return the nodes, or None if they cannot be read. Without nodes, the autoscaler limits no pool by free nodes."""
    listed = listed_nodes(rt)
    return None if listed is None else [node.room for node in listed.values()]


def decide_all(
    db: Connection,
    pools: Sequence[PoolSpec],
    nodes: Sequence[Node] | None,
    *,
    namespaces: Sequence[str],
    unread: str | None = None,
    now: datetime,
) -> list[Scaled]:
    """Decide for all pools together. Return each autoscaled pool that has a row, with the outcome for the pool."""
    trust = scaling.trust(db, now=now)
    rows = {row.uid: row for namespace in namespaces for row in scaling.pool_rows(db, namespace=namespace, now=now)}
    found = [(pool, rows[pool.uid]) for pool in pools if pool.uid in rows]
    asked = asked_of(db, found, now=now) if trust.barred is None else {}
    contenders = []
    for pool, row in found:
        demand, why_stuck = asked.get(row.id, (Demand(row.load, 0, 0), None))
        contenders.append(
            Contender(
                id=row.id,
                pool=pool,
                needs=needs_of(pool),
                demand=demand,
                alive=row.alive,
                scaled_up_at=row.quiet_since,
                stuck=why_stuck,
            )
        )
    outcomes = node_sharing.plan(contenders, nodes=nodes, doubts=doubts_of(trust, unread=unread), now=now)
    return [
        Scaled(pool, row, each.demand, outcomes[row.id])
        for (pool, row), each in zip(found, contenders, strict=True)
        if pool.autoscaled
    ]


def doubts_of(trust: Trust, *, unread: str | None) -> Doubts:
    """Return the doubts of the autoscaler: one reason against all changes of replicas, and one against scale-downs.

    Each is None if there is no such reason.
    """
    return Doubts(barred=trust.barred, shrinking=trust.doubt or unread)


def asked_of(
    db: Connection, found: Sequence[tuple[PoolSpec, Load]], *, now: datetime
) -> dict[int, tuple[Demand, str | None]]:
    """Return the demand of each pool, by the id of the pool's row, and why its queue must not trigger a scale-up.

    All pools compete for the budgets of the accounts. A pool that cannot grow competes only with the Pods that it
    already has.
    """
    places = {row.id: places_of(pool, row) for pool, row in found}
    brakes = {each.pool_id: each.brake for each in runner_failures.brakes(db)}
    for pool_id in places.keys() & brakes.keys():
        if brakes[pool_id].account_id is None:
            places[pool_id] = replace(places[pool_id], count=min(1, places[pool_id].count))
    queues = [limited(queue, brakes.get(queue.pool_id)) for queue in scaling.queues(db, places)]
    accounts = scaling.accounts(db, sorted({queue.account_id for queue in queues}))
    queued = dispatchable(queues, accounts, places)
    usual = usual_of(db, [row for pool, row in found if hands_off(pool) is None], now=now)
    oldest: dict[int, datetime] = {}
    idle = {row.id for _, row in found if row.idle}
    for queue in (each for each in queues if each.pool_id in idle):
        if dispatchable([replace(queue, jobs=1)], accounts, {queue.pool_id: places[queue.pool_id]})[queue.pool_id]:
            oldest[queue.pool_id] = min(queue.queued_at, oldest.get(queue.pool_id, queue.queued_at))
    return {
        row.id: (
            Demand(load=row.load, queue=queued[row.id], usual=usual.get(row.id, 0)),
            stuck(queue=queued[row.id], idle=row.idle, oldest=oldest.get(row.id), now=now),
        )
        for _, row in found
    }


def usual_of(db: Connection, rows: Sequence[Load], *, now: datetime) -> dict[int, int]:
    """Return the usual load of pools by the ids of their rows. A load that is too old is counted again."""
    stale = [row.id for row in rows if row.typical_at is None or now - row.typical_at >= scaling.USUAL_EVERY]
    return {row.id: row.usual or 0 for row in rows} | scaling.count_usual(db, stale, now=now)


def limited(queue: Queue, brake: Brake | None) -> Queue:
    """Return a queue with one job at most if the brake applies to the queue. Otherwise return the queue unchanged.

    The one job tests whether the cause of the brake is gone.
    """
    if brake is None or brake.account_id not in {None, queue.account_id}:
        return queue
    return replace(queue, jobs=min(1, queue.jobs))


def places_of(pool: PoolSpec, row: Load) -> Places:
    """Return how many further jobs a pool could take at its largest possible size, and the vCPU and memory of one job.

    An autoscaled pool can grow to its maximum, and any other usable pool to its replicas. A job uses this amount of
    vCPU and memory of its account's budget.
    """
    most = pool.max_replicas if hands_off(pool) is None else row.alive
    if pool.terminating:
        most = 0
    elif not pool.autoscaled and not pool.paused and pool.problem is None:
        most = max(pool.replicas, row.alive)
    return Places(max(0, most - row.load), pool.charged_millicores, pool.charged_mib)


def carry_out(rt: Runtime, scaled: Scaled) -> None:
    """Record a decision if it is new, and write the replicas if they change."""
    decision, row, now = scaled.outcome.decision, scaled.row, utcnow()
    up, down = decision.verdict is Verdict.UP, decision.verdict is Verdict.DOWN
    words = describe(scaled)
    if up or down or {**words, "at": None} != {**(row.scaling or {}), "at": None}:
        words["at"] = now.isoformat()
        rt.transaction(scaling.record_decision, row.id, words, up=up, down=down, now=now)
    if not (up or down):
        telemetry.SCALINGS.labels(decision.verdict).inc()
        return
    after = write(rt, scaled.pool, replicas=decision.replicas)
    if after is None:
        telemetry.SCALINGS.labels("overtaken").inc()
        log.info("pool.not_scaled_because_it_changed", namespace=scaled.pool.namespace, pool=scaled.pool.name)
        return
    telemetry.SCALINGS.labels(decision.verdict).inc()
    log.info(
        "pool.scaled",
        namespace=scaled.pool.namespace,
        pool=scaled.pool.name,
        **{_LOGGED.get(key, key): words[key] for key in words if key != "at"},
    )
    pool = pool_of(namespace=after.namespace, name=after.name, uid=after.uid)
    change = f"Scaled from {scaled.pool.replicas} to {decision.replicas} replicas: {decision.why}"
    rt.events.record(pool, "Normal", "ScaledUp" if up else "ScaledDown", change)
    if mirror_pool(rt, after):  # the row was older than the spec, and only this run sees the change
        rt.waker.send(REMATCH)
    rt.waker.reconcile(row.id)


def write(rt: Runtime, pool: PoolSpec, *, replicas: int) -> PoolSpec | None:
    """Set the replicas of a pool.

    Return the pool as it was written, or None if the pool changed so that the decision no longer fits. If another
    writer changed other fields of the object (its status, a label), the write gets a `Conflict`. The pool is then read
    again, and the write is repeated. After `TRIES` conflicts, the result is None too.
    """
    for _ in range(TRIES):
        try:
            return scale_pool(rt.kube, pool, replicas=replicas, policy=calls(SWEEP_ROW))
        except Conflict:
            found = get_pool(rt.kube, namespace=pool.namespace, name=pool.name, policy=calls(SWEEP_ROW))
        if found is None or found.uid != pool.uid:
            return None
        if found.replicas == replicas and found.generation == pool.generation + 1:
            return found  # this run lost the answer to its write, or another run wrote the same number
        if found.generation != pool.generation:
            return None
        pool = found
    return None


def describe(scaled: Scaled) -> dict[str, Any]:
    """Return the figures of a decision in the form that the pool's row stores and commands show."""
    decision, demand = scaled.outcome.decision, scaled.demand
    granted: Mapping[str, int] = asdict(scaled.outcome.granted)
    return {
        "verdict": str(decision.verdict),
        "from": scaled.pool.replicas,
        "replicas": decision.replicas,
        "load": demand.load,
        "queue": demand.queue,
        "usual": demand.usual,
        "min_warm": scaled.pool.min_warm,
        "max_replicas": scaled.pool.max_replicas,
        "target_busy_percent": scaled.pool.target_busy_percent,
        "granted": dict(granted),
        "why": decision.why,
    }
