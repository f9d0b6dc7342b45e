"""`ostler.autoscale`: check all pools and set the replicas of those that are autoscaled.

Every 10 s, and at once when the matcher left jobs without Pods in such a pool. The pools are read from the cluster
first, the rows second (L8); a read that fails ends the run, and changes nothing. What is decided is noted down in the
pool's row before it is done, so that a process killed in between has at worst waited too long with a scale-down.

Two runs at once see the same and do it once: the patch names the version of the pool that was seen, and the second one
meets a `Conflict`. The reconciler creates under the pool's lock, so whatever is written here it is never one Pod too
many.
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

from k8s_adapters.events import pool_of
from k8s_adapters.nodes import needs_of
from k8s_adapters.pools import PoolSeen, get_pool, list_pools, scale_pool
from models.claims import runner_failures
from models.pools import scaling
from models.pools.scaling import PoolRow, Trust
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from ostler.reasons import words_of
from ostler.task_names import AUTOSCALE, REMATCH
from rules.claims.runner_brakes import Brake
from rules.pools.demand import Places, Queue, dispatchable
from rules.pools.fleets import Node
from rules.pools.node_sharing import Doubts, Outcome, PoolView, plan, stuck
from rules.pools.scaling import Demand, Limits, Verdict
from tasks.pools.mirror import mirror
from tasks.worker.base import SWEEP, SWEEP_LIST, SWEEP_ROW, calls, remaining, task
from tasks.worker.nodes import listed_nodes
from tasks.worker.runtime import Runtime, runtime

log = structlog.get_logger(__name__)

RESERVE = 2.0
"""Seconds of the deadline after which no further pool is begun."""

TRIES = 3
"""Writes of one pool at most, where somebody else changed something of it that does not matter here."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a pool, and why its queue says nothing of Pods that are missing, where that is so."""

    demand: Demand
    stuck: str | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """A pool with its row, what was counted for it and what became of it."""

    pool: PoolSeen
    row: PoolRow
    demand: Demand
    outcome: Outcome


@task(AUTOSCALE, policy=SWEEP)
def autoscale() -> None:
    """Decide for all pools together, since they share nodes and accounts; then act, one pool after the other."""
    rt = runtime()
    pools = list_pools(rt.kube, namespace=rt.settings.namespace, policy=calls(SWEEP_LIST))
    if not any(pool.autoscaled for pool in pools):
        return
    nodes = nodes_of(rt)
    now = utcnow()
    decided = rt.transaction(decide_all, pools, nodes, namespace=rt.settings.namespace, now=now)
    random.shuffle(decided)  # where the time does not do for all, it is not always the same that are left out (L14)
    for scaled in decided:
        if remaining() < RESERVE:
            log.info("autoscale.unfinished")
            return
        try:
            carry_out(rt, scaled)
        except (UpstreamError, DBAPIError) as error:  # one bad pool stops no other (L14)
            telemetry.SCALINGS.labels("failed").inc()
            log.warning("pool.not_scaled", pool=scaled.pool.name, error=words_of(error), detail=_detail(error))


def _detail(error: Exception) -> str | None:
    """Return what an upstream said; the text of an error of Postgres may hold the row (law L13)."""
    return str(error)[:300] if isinstance(error, UpstreamError) else None


def nodes_of(rt: Runtime) -> list[Node] | None:
    """Return the nodes; None when they cannot be had, and nobody is limited by them."""
    listed = listed_nodes(rt)
    return None if listed is None else [node.room for node in listed.values()]


def decide_all(
    db: Connection, pools: Sequence[PoolSeen], nodes: Sequence[Node] | None, *, namespace: str, now: datetime
) -> list[Scaled]:
    """Return every autoscaled pool that has a row, with what becomes of it."""
    trust = scaling.trust(db, now=now)
    rows = {row.uid: row for row in scaling.pool_rows(db, namespace=namespace, now=now)}
    found = [(pool, rows[pool.uid]) for pool in pools if pool.uid in rows]
    asked = asked_of(db, found, now=now) if trust.barred is None else {}
    views = [view_of(pool, row, asked.get(row.id, Asked(Demand(row.load, 0, 0)))) for pool, row in found]
    outcomes = plan(views, nodes=nodes, doubts=doubts_of(trust), now=now)
    return [
        Scaled(pool, row, view.demand, outcomes[row.id])
        for (pool, row), view in zip(found, views, strict=True)
        if pool.autoscaled
    ]


def doubts_of(trust: Trust) -> Doubts:
    """Return what the rows say against scaling."""
    return Doubts(barred=trust.barred, shrinking=trust.doubt)


def asked_of(db: Connection, found: Sequence[tuple[PoolSeen, PoolRow]], *, now: datetime) -> dict[int, Asked]:
    """Return what is asked of each pool; those that do not grow compete for budgets with the Pods that they have."""
    places = {row.id: places_of(pool, row) for pool, row in found}
    brakes = {each.pool_id: each.brake for each in runner_failures.brakes(db)}
    for pool_id in places.keys() & brakes.keys():
        if brakes[pool_id].account_id is None:
            places[pool_id] = replace(places[pool_id], count=min(1, places[pool_id].count))
    queues = [limited(queue, brakes.get(queue.pool_id)) for queue in scaling.queues(db, places)]
    accounts = scaling.accounts(db, sorted({queue.account_id for queue in queues}))
    queued = dispatchable(queues, accounts, places)
    scaled = [row for pool, row in found if hands_off(pool) is None]
    stale = [row.id for row in scaled if row.typical_at is None or now - row.typical_at >= scaling.USUAL_EVERY]
    usual = {row.id: row.usual or 0 for row in scaled} | scaling.count_usual(db, stale, now=now)
    oldest: dict[int, datetime] = {}
    idle = {row.id for _, row in found if row.idle}
    for queue in (each for each in queues if each.pool_id in idle):
        if dispatchable([replace(queue, jobs=1)], accounts, {queue.pool_id: places[queue.pool_id]})[queue.pool_id]:
            oldest[queue.pool_id] = min(queue.queued_at, oldest.get(queue.pool_id, queue.queued_at))
    return {
        row.id: Asked(
            Demand(load=row.load, queue=queued[row.id], usual=usual.get(row.id, 0)),
            stuck(queue=queued[row.id], idle=row.idle, oldest=oldest.get(row.id), now=now),
        )
        for _, row in found
    }


def limited(queue: Queue, brake: Brake | None) -> Queue:
    """Return a queue as far as a brake lets it be served: one job, the probe."""
    if brake is None or brake.account_id not in {None, queue.account_id}:
        return queue
    return replace(queue, jobs=min(1, queue.jobs))


def places_of(pool: PoolSeen, row: PoolRow) -> Places:
    """Return how many more jobs a pool could ever take now."""
    most = pool.max_replicas if hands_off(pool) is None else row.alive
    if pool.terminating:
        most = 0
    elif not pool.autoscaled and not pool.paused and pool.problem is None:
        most = max(pool.replicas, row.alive)
    return Places(max(0, most - row.load), pool.vcpu_millicores, pool.memory_mib)


def hands_off(pool: PoolSeen) -> str | None:
    """Return why the replicas of a pool are not the autoscaler's to set, None where they are."""
    if pool.terminating:
        return "its deletion was requested"
    if pool.paused:
        return "it is paused"
    if pool.problem is not None:
        return f"it cannot be used: {pool.problem}"
    return None if pool.autoscaled else "autoscaling.enabled is false"


def view_of(pool: PoolSeen, row: PoolRow, asked: Asked) -> PoolView:
    """Return a pool as the plan sees it."""
    needs = needs_of(pool)
    grows_by_hand = not (pool.terminating or pool.paused or pool.problem)
    return PoolView(
        pool_id=row.id,
        replicas=pool.replicas,
        limits=Limits(pool.min_warm, pool.max_replicas, pool.scale_down_delay),
        demand=asked.demand,
        size=needs.size,
        fleet=needs.fleet,
        tolerations=needs.tolerations,
        scaled_up_at=row.quiet_since,
        holds=max(pool.replicas, row.alive) if grows_by_hand else row.alive,
        hands_off=hands_off(pool),
        stuck=asked.stuck,
    )


def carry_out(rt: Runtime, scaled: Scaled) -> None:
    """Note a decision down where it is news, and write the replicas where they are to change."""
    decision, row, now = scaled.outcome.decision, scaled.row, utcnow()
    up, down = decision.verdict is Verdict.UP, decision.verdict is Verdict.DOWN
    words = told(scaled)
    if up or down or {**words, "at": None} != {**(row.scaling or {}), "at": None}:
        words["at"] = now.isoformat()
        rt.transaction(scaling.note, row.id, words, up=up, down=down, now=now)
    if not (up or down):
        telemetry.SCALINGS.labels(decision.verdict).inc()
        return
    after = write(rt, scaled.pool, replicas=decision.replicas)
    if after is None:
        telemetry.SCALINGS.labels("overtaken").inc()
        log.info("pool.scaling_overtaken", pool=scaled.pool.name)
        return
    telemetry.SCALINGS.labels(decision.verdict).inc()
    log.info("pool.scaled", pool=scaled.pool.name, **{key: value for key, value in words.items() if key != "at"})
    pool = pool_of(namespace=after.namespace, name=after.name, uid=after.uid)
    change = f"Scaled from {scaled.pool.replicas} to {decision.replicas} replicas: {decision.why}"
    rt.events.record(pool, "Normal", "ScaledUp" if up else "ScaledDown", change)
    if mirror(rt, after):  # its row was older than its spec: nobody else will find what routes jobs changed
        rt.waker.send(REMATCH)
    rt.waker.reconcile(row.id)


def write(rt: Runtime, pool: PoolSeen, *, replicas: int) -> PoolSeen | None:
    """Set the replicas of a pool that is still what was decided on; None when it is not.

    What changes beside (its status, a label) makes the write conflict and the pool be read again.
    """
    for _ in range(TRIES):
        try:
            return scale_pool(rt.kube, pool, replicas=replicas, policy=calls(SWEEP_ROW))
        except Conflict:
            found = get_pool(rt.kube, namespace=pool.namespace, name=pool.name, policy=calls(SWEEP_ROW))
        if found is None or found.uid != pool.uid:
            return None
        if found.replicas == replicas and found.generation == pool.generation + 1:
            return found  # ours: its answer was lost on the way, or another run decided the same
        if found.generation != pool.generation:
            return None
        pool = found
    return None


def told(scaled: Scaled) -> dict[str, Any]:
    """Return a decision in numbers, as it is kept and shown."""
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
        "granted": dict(granted),
        "why": decision.why,
    }
