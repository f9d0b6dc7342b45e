"""Step 4 of a reconcile, report: update the brake of a pool, and write the pool's status to its object."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import orjson
import structlog

from k8s_adapters.calls.writes import Writes
from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pools.pools import patch_pool_status
from models.claims.registrations import runners_of_pool
from models.pools import draining, failing_calls, pool_plans
from models.pools.blocked_mints import blocked_mints
from ostler.clock import utcnow
from ostler.errors import Gone, UpstreamError
from ostler.reasons import meaning_of
from rules.claims.runner_brakes import Brake
from rules.pools.draining import Drain, DrainReport
from rules.pools.draining import report as report_drain
from rules.pools.failing_calls import FailingCall
from rules.pools.pod_states import PodState
from rules.pools.pool_status import StatusFacts, WaitingPods, status_of
from rules.pools.volumes import Reclaim
from tasks.claims.braking import update_brake
from tasks.pools.plan import Planned
from tasks.pools.runner_versions import outdated
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.failing_calls import record_writes
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

STATUS_SECONDS = 5.0
"""Shortest time in seconds between two writes of a pool's status. A changed condition is written at once."""

HELD_SECONDS = 60.0
"""Seconds after the end of its grace period until a terminal Pod counts as kept by a finalizer."""

MESSAGE = 300
"""Maximum length of the names of gates or finalizers in a condition."""

log = structlog.get_logger(__name__)


def report(rt: Runtime, planned: Planned, *, writes: Writes) -> None:
    """Update the brake of a pool, then write the pool's status to its object.

    `writes`: the writes to the API server that this reconcile has made before. After a list of ended Pods, the status
    is not written, because its numbers and conditions depend on all Pods.
    """
    brake = update_brake(rt, planned.pool_row, now=utcnow())
    if planned.observed.listed.ended:
        return
    version = outdated(rt, planned.observed.pool.id)
    failing = record(rt, planned, writes)
    write_status(rt, planned, brake=brake, version=version, failing=failing, now=utcnow())


def record(rt: Runtime, planned: Planned, writes: Writes) -> tuple[FailingCall, ...]:
    """Record the writes of a reconcile, and return the calls of the pool that fail.

    Without failures, now and in the last runs, there is nothing to record. If every Pod of the pool is created, earlier
    failures of creations no longer apply.
    """
    pool, outcomes = planned.pool_row, writes.outcomes
    if not writes.has_failures and not pool.failing_calls:
        return ()
    if planned.plan.creates and not planned.committed.create:
        outcomes = {**{each.call: None for each in failing_calls.read(pool) if each.creates}, **outcomes}
    return record_writes(
        rt, namespace=pool.namespace, pool=pool.name, uid=pool.uid, outcomes=outcomes, began=planned.observed.at
    )


def write_status(
    rt: Runtime,
    planned: Planned,
    *,
    brake: Brake | None,
    version: str | None,
    failing: tuple[FailingCall, ...],
    now: datetime,
) -> None:
    """Write a pool's status if it has changed and the pool exists. If the write fails, the next reconcile repeats it.

    The row has the status that was written last, and the time at which a reconcile last found this status to be
    current. Commands and the API show both.

    `brake`: the brake of the pool, or None if the pool is not braked. `version`: a warning about the version of the
    pool's runner, or None if there is no reason for a warning. `failing`: the calls of the pool that fail.
    """
    pool, spec, plan = planned.pool_row, planned.given.pool, planned.plan
    if pool.deleted_at is not None:
        return
    mints = rt.transaction(blocked_mints, pool.id, now=now)
    runners = rt.transaction(runners_of_pool, pool.id) if spec.persistent else None
    registration = runners.failure if runners is not None and runners.online < plan.wanted else None
    facts = StatusFacts(
        pool=spec,
        selector=f"{POOL_LABEL}={pool.name}",
        drain=describe_drain(rt, planned, now=now) if spec.terminating else None,
        scaled_up_at=pool.scaled_up_at,
        scaled_down_at=pool.scaled_down_at,
        brake=brake,
        blocked_mints=mints,
        registration=registration,
        version=version,
        failing_calls=failing,
        gated=waiting_pods(
            [
                (pod.gates, pod.created_at)
                for pod in planned.observed.listed.own_pods
                if pod.gates and not pod.terminating
            ]
        ),
        held=waiting_pods(
            [
                (pod.held_by, pod.deletion_at)
                for pod in planned.observed.listed.own_pods
                if pod.held_by and pod.is_terminal and pod.is_overdue(now=now, after=HELD_SECONDS)
            ]
        ),
        volumes=planned.volumes if pool.volume_reclaim is not None else None,
    )
    status = status_of(facts, plan, before=pool.status, now=now)
    if not pool_plans.status_is_due(pool, status, every=STATUS_SECONDS, now=now):
        return
    if status == pool.status:
        rt.transaction(pool_plans.confirm_status, pool, now=NOW)
        return
    try:
        patch_pool_status(
            rt.kube, namespace=pool.namespace, name=pool.name, uid=pool.uid, status=status, policy=calls(SWEEP_ROW)
        )
    except Gone:
        return
    except UpstreamError as error:
        log.warning("pool.status_not_written", pool=pool.name, error=meaning_of(error))
        return
    text = orjson.dumps(status).decode()
    rt.transaction(pool_plans.record_status, pool.id, text, now=NOW)


def waiting_pods(pods: Sequence[tuple[str, datetime | None]]) -> WaitingPods | None:
    """Return the Pods that wait for another program, or None without such Pods.

    `pods`: for each Pod, the names of its gates or finalizers, and the time since which the Pod waits.
    """
    times = [since for _, since in pods if since is not None]
    if not times:
        return None
    names = sorted({name for names, _ in pods for name in names.split(", ")})
    return WaitingPods(len(pods), ", ".join(names)[:MESSAGE], min(times))


def describe_drain(rt: Runtime, planned: Planned, *, now: datetime) -> DrainReport:
    """Return the state of a drain for the pool's status.

    The report contains the start of the drain, the number of busy Pods, the job that has been running longest, and the
    number of volumes that must be deleted.
    """
    pool, plan, volumes = planned.pool_row, planned.plan, planned.volumes
    to_delete = volumes is None or pool.volume_reclaim == Reclaim.DELETE
    oldest = rt.transaction(draining.oldest_job, pool.id)
    drain = Drain(
        since=pool.draining_since or now,
        timeout=planned.given.pool.drain_timeout,
        busy=plan.counts.get(PodState.BUSY, 0),
        left=plan.alive + plan.lost,
        oldest_job=None if oldest is None else oldest.id,
        oldest_since=None if oldest is None else oldest.since,
        volumes=0 if not to_delete else None if volumes is None else volumes.count,
    )
    return report_drain(drain, now=now)
