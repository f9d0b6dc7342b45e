"""Step 2 of a reconcile, plan: lock the pool, read the rows of its Pods, and commit a plan for them.

The rows are read after the list (law L8) and under the pool's lock. If two reconcilers serve one pool, the second
reconciler plans from the rows that the first reconciler committed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.pools import pod_rows, pool_mirror, pool_plans
from models.pools.pod_rows import PodRow
from models.state import pod_facts
from models.state.pools import Pool
from models.sweeps import unresponsive
from models.upstream import gates
from ostler.clock import utcnow
from ostler.upstreams import Upstream
from rules.claims.machines import RUNNERS, Purpose
from rules.claims.pod_view import PodView
from rules.pools import pool_plan
from rules.pools.pod_states import PodState, Registration, StateFacts, state_of
from rules.pools.pool_plan import ObservedPod, PlanFacts, PoolPlan, rolls
from rules.pools.pool_spec import PoolSpec
from rules.pools.starts import recovered
from rules.pools.volumes import NO_VOLUMES, VolumePlan
from rules.pools.workloads import pod_name, pod_name_of
from rules.sweeps.nodes import OVERDUE_AFTER
from tasks.claims.evidence import judge
from tasks.pools.observe import Observed
from tasks.pools.volumes import make_volume_plan, observe_volumes
from tasks.worker.nodes import NodeSnapshot, observe_nodes
from tasks.worker.runtime import Runtime

MAX_CREATIONS = 50
"""Upper bound on Pods that one reconcile creates. The next reconcile creates the remaining Pods."""

HEARD_WITHIN = timedelta(seconds=110)
"""Time after its last recorded poll during which a Pod counts as polling.

By default, a poll lasts 55 s at most. The polls of a Pod are recorded once a minute at most.
"""


@dataclass(frozen=True, slots=True)
class Planned:
    """A pool with the plan that a reconcile committed for it.

    The steps after `plan` read this record and never change it.
    """

    observed: Observed
    pool_row: Pool
    """The pool's row, as it was read when it was locked."""
    pod_rows: Sequence[PodRow]
    """The rows of the pool's Pods, as they were read under the pool's lock."""
    given: PlanFacts
    """The input of the plan: the pool's specification, and the facts beside it."""
    plan: PoolPlan
    committed: pool_plans.Committed
    """The rows and claims that were written for the plan."""
    freed: Sequence[str]
    """UIDs of Pods on nodes that this reconcile was the first to find gone. No budget counts these Pods any more."""
    volumes: VolumePlan | None = NO_VOLUMES
    """The volumes of the pool's runners, and what to do with them. None if they could not be listed."""


def plan(rt: Runtime, observed: Observed) -> Planned:
    """Plan the reconcile of a pool, and commit the plan.

    The nodes are read before the lock is taken, because a lock must not be held during a call to Kubernetes (law L15).
    The names of new Pods are also drawn before the lock is taken.

    After a list of ended Pods, the plan only creates Pods. It does not see the other Pods of the pool, so it counts all
    of them as replicas that no row shows as over or on a gone node.
    """
    by_uid = observed.by_uid
    drawn = [(secrets.token_hex(4), secrets.token_hex(8)) for _ in range(MAX_CREATIONS)]
    live = () if observed.listed.ended else by_uid.values()  # the node of a Pod that has ended changes no plan
    nodes = observe_nodes(rt, {pod.node for pod in live if pod.node is not None})
    listed_volumes = observe_volumes(rt, observed.pool)

    def body(db: Connection) -> Planned:
        now = utcnow()
        pool = pool_plans.lock_pool(db, observed.pool.id)
        rows = pod_rows.pod_rows(db, pool_id=observed.pool.id, now=now)
        pod_facts.charge(db, [row.id for row in rows if row.ever_delivered and not row.charged])
        freed = record_nodes(db, rows, by_uid, nodes, now=now)
        volumes = make_volume_plan(db, pool, listed_volumes, listed=observed.listed)
        most = 0 if volumes is None else MAX_CREATIONS
        given, made = make_plan(db, pool, rows, by_uid, nodes=nodes, most=most, now=now)
        if observed.listed.ended:
            made = replace(made, give_up=(), retire=(), failed_starts=(), starts=pool_plans.starts_of(pool))
        names = names_of(given.pool, volumes, drawn)
        committed = pool_plans.commit_plan(
            db, pool, made, names=names, due_after=rt.timings.due_after, now=now, who=rt.who
        )
        return Planned(observed, pool, rows, given, made, committed, freed, volumes)

    return rt.transaction(body)


def names_of(pool: PoolSpec, volumes: VolumePlan | None, drawn: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the names and attempt ids of the Pods that the plan may create.

    `drawn` has a random suffix and an attempt id for each Pod. A runner that gets the volumes of an earlier runner has
    the name of that runner. Such names come first.
    """
    names = [pod_name(pool.workload, pool=pool.name, suffix=suffix) for suffix, _ in drawn]
    names[:0] = [] if volumes is None else [pod_name_of(runner) for runner in volumes.reusable]
    return [(name, attempt) for name, (_, attempt) in zip(names, drawn, strict=False)]


def make_plan(
    db: Connection,
    pool: Pool,
    rows: Sequence[PodRow],
    by_uid: Mapping[str, PodView],
    *,
    nodes: NodeSnapshot,
    most: int,
    now: datetime,
) -> tuple[PlanFacts, PoolPlan]:
    """Return the input of the plan, and the plan.

    `nodes`: the nodes of the listed Pods. `most`: upper bound on Pods that the plan creates. The caller must hold the
    pool's lock.

    While the Kubernetes gate is tripped, Pods must not be retired. The gate is read only if the plan retires Pods. If
    the gate is tripped, a second plan without retirements replaces the first plan.
    """
    generations: dict[str, datetime] = {}
    for row in rows:
        generations[row.template_hash] = min(row.created_at, generations.get(row.template_hash, row.created_at))
    pods = [
        observed_pod(
            row,
            by_uid.get(row.uid or ""),
            template_hash=pool.template_hash,
            generation=generations[row.template_hash],
            nodes=nodes,
            now=now,
        )
        for row in rows
    ]
    fresh = {pod.id for pod in pods if not pod.stale}
    polls = (row.first_polled_at for row in rows if row.id in fresh and row.first_polled_at is not None)
    starting = any(pod.state is PodState.STARTING and pod.seen for pod in pods)
    heard_from = now - timedelta(seconds=pool.start_timeout)
    spec = pool_mirror.spec_of(pool)
    given = PlanFacts(
        pool=spec,
        starts=recovered(pool_plans.starts_of(pool), first_polls=polls, rolls=rolls(spec, pods, now=now)),
        start_timeout=pool.start_timeout,
        retired=pool_plans.retired_in_tick(pool, now=now),
        web_beats=starting and unresponsive.web_beats(db, since=heard_from, now=now),
    )
    made = pool_plan.plan(given, pods, most=most, now=now)
    if made.retire and not gates.is_open(db, Upstream.KUBERNETES):
        given = replace(given, gate_open=False)
        made = pool_plan.plan(given, pods, most=most, now=now)
    return given, made


def observed_pod(
    row: PodRow, pod: PodView | None, *, template_hash: str, generation: datetime, nodes: NodeSnapshot, now: datetime
) -> ObservedPod:
    """Return a Pod in the form that the plan reads.

    `pod`: the listed Pod, or None if the list does not show it. The plan does not change a Pod that is not listed.
    `generation`: creation of the pool's oldest Pod with the same template.
    """
    heard = row.offered or (row.polled_at is not None and now - row.polled_at < HEARD_WITHIN)
    state = state_of(
        StateFacts(
            terminal=row.terminal_at is not None,
            retiring=row.claim_purpose == Purpose.RETIRE,
            claimed=row.claim_purpose in RUNNERS,
            delivered=row.claim_delivered,
            ever_delivered=row.ever_delivered,
            may_hold_jit=judge(row.recorded, pod).busy,
            ever_polled=row.first_polled_at is not None or row.offered,
            heard=heard,
            registration=registration_of(row, pod),
        )
    )
    return ObservedPod(
        id=row.id,
        state=state,
        created_at=row.created_at if pod is None else max(row.created_at, pod.created_at),
        generation=generation,
        stale=row.uid is not None and row.template_hash != template_hash,
        cordoned=pod is not None and pod.node in nodes.cordoned,
        node_gone=on_gone_node(row, pod, nodes),
        unborn=row.uid is None,
        seen=pod is not None,
        terminating=pod is not None and pod.terminating,
        gated=pod is not None and bool(pod.gates),
        gated_at=row.gated_at,
        unschedulable=pod is not None and pod.unschedulable,
        no_node_because="" if pod is None else pod.no_node_because,
        waiting=None if pod is None else pod.waiting_reason,
        poller_exit_code=None if pod is None else pod.poller_exit_code,
        runner_exit_code=None if pod is None else pod.runner_exit_code,
        overdue=pod is not None and pod.is_overdue(now=now, after=OVERDUE_AFTER),
        marked=row.claim_purpose == Purpose.REGISTER and row.claim_delivered and row.releasing,
        registering=row.claim_purpose == Purpose.REGISTER and row.online_at is None,
        registered_at=row.online_at,
    )


def registration_of(row: PodRow, pod: PodView | None) -> Registration | None:
    """Return the state of a Pod's registration, or None without a registration claim that was delivered."""
    if row.claim_purpose != Purpose.REGISTER or not row.claim_delivered:
        return None
    if row.releasing or row.executes or (pod is not None and pod.runner_ready):
        return Registration.BUSY
    return Registration.BEGUN if row.online_at is None else Registration.IDLE


def on_gone_node(row: PodRow, pod: PodView | None, nodes: NodeSnapshot) -> bool:
    """Return True if a Pod's node is gone; False otherwise.

    If the state of the node is unknown, return the value in the Pod's row (law L8).
    """
    if pod is None or pod.node not in nodes.known:
        return row.node_gone
    return pod.node in nodes.gone


def record_nodes(
    db: Connection, rows: Sequence[PodRow], by_uid: Mapping[str, PodView], nodes: NodeSnapshot, *, now: datetime
) -> list[str]:
    """Record which listed Pods are on gone nodes, and which Pods of the pool are no longer on a gone node.

    Sweeps read this record. Return the UIDs of Pods whose node was not recorded as gone before.
    """
    known = {row.uid: row.node_gone for row in rows}
    gone = [
        uid
        for uid, pod in by_uid.items()
        if pod.node in nodes.gone and not pod.is_terminal and not known.get(uid, False)
    ]
    back = [
        row.uid
        for row in rows
        if row.uid is not None and row.node_gone and not on_gone_node(row, by_uid.get(row.uid), nodes)
    ]
    pod_facts.record_nodes(db, gone=gone, back=back, now=now)
    return gone
