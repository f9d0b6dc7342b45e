"""Creation of Pods in a reconcile: create a Pod for each committed row that has none.

The row is committed before the Pod is created. If the creation fails, the row stays, and the next reconcile repeats the
creation with the same name.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from k8s_adapters.calls.refusals import Refusal, refusal_of
from k8s_adapters.pools.pools import get_pool
from k8s_adapters.runners.events import pool_of
from k8s_adapters.runners.owners.stateful_set import PodRefused, Unsupported
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runner_scripts import ForeignScripts
from k8s_adapters.runners.runners import clear_name, create_runner
from models.pools import pod_rows, pool_plans
from models.state import pod_births
from models.state.pools import Pool
from ostler import telemetry
from ostler.clock import utcnow
from ostler.errors import Conflict, UpstreamError
from ostler.reasons import meaning_of, words_of
from rules.pools.pool_spec import PoolSpec
from rules.pools.starts import Trouble
from rules.pools.workloads import stateful_set_of
from tasks.pools.facts import builder_image_of, pod_hash_of, problem_of
from tasks.pools.plan import Planned
from tasks.worker.base import SWEEP, SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


MAX_FAILURES = 2
"""Number of failed creations after which a run creates no further Pod.

A refusal by the API server ends the run at once. Any other failure might concern only one name, so the run tries one
more name.
"""


RETRIED_FOR = timedelta(minutes=10)
"""Maximum age of a row whose creation is repeated while objects of an earlier runner have the name of its Pod."""

RESERVE = 3.0
"""Seconds of the task's deadline that must be left before the task creates another Pod.

The creation also leaves these seconds, so that the status of the pool can be written even if the API server answers
slowly, for example because an admission webhook does not answer.
"""


def create_pods(rt: Runtime, planned: Planned) -> None:
    """Create the Pods of a plan, unless the pool's object no longer matches the pool's row.

    Nothing is created while the object is missing, unusable, being deleted or without its finalizer, or while the
    scripts of runner Pods are not available.
    """
    row = planned.pool_row
    pool = get_pool(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP))
    if pool is None or pool.uid != row.uid or pool.terminating or not pool.has_finalizer:
        return
    if problem_of(rt, pool) is not None:
        return
    if pod_hash_of(rt, pool) != row.template_hash:
        # Another version of Ostler mirrored the pool, or its spec is not mirrored yet. New Pods would be stale at once.
        log.info("pool.pods_not_created_because_template_changed", pool=row.name)
        return
    if planned.committed.create and not has_scripts(rt, row):
        return
    create_each(rt, planned, pool)


def has_scripts(rt: Runtime, row: Pool) -> bool:
    """Ensure that the ConfigMap with the scripts of runner Pods exists. Return False if it cannot be used.

    A Pod without this ConfigMap would not start, so none is created. If the API server refused the ConfigMap, or if an
    object that Ostler did not create has its name, the condition of the pool shows the cause.
    """
    try:
        rt.scripts.ensure(rt.kube, namespace=row.namespace, policy=calls(SWEEP, reserve=RESERVE))
    except UpstreamError as error:
        log.warning("pool.pods_not_created_because_scripts_are_missing", pool=row.name, error=meaning_of(error))
        record_refusal(rt, row, error)
        return False
    return True


def create_each(rt: Runtime, planned: Planned, pool: PoolSpec) -> None:
    """Create the Pods of a plan.

    Stop if the API server refuses a Pod, if `MAX_FAILURES` creations have failed, or if less than `RESERVE` seconds are
    left.
    """
    row = planned.pool_row
    failures = 0
    taken = planned.plan.starts.trouble not in {Trouble.QUOTA, Trouble.REFUSED}
    for row_id, pod_name, attempt in planned.committed.create:
        if remaining() < RESERVE:
            return
        try:
            if create_once(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt) and not taken:
                rt.transaction(pool_plans.record_taken, row.id)
                taken = True
        except UpstreamError as error:
            log.warning("pod.not_created", pod=pod_name, error=meaning_of(error), said=error.words)
            failures += 1
            if record_refusal(rt, row, error) or failures == MAX_FAILURES:
                return
        except DBAPIError as error:  # for example a locked row: the next reconcile repeats the attempt (L14)
            log.warning("pod.creation_not_recorded", pod=pod_name, error=words_of(error))


def create_once(rt: Runtime, pool: PoolSpec, *, row_id: int, pod_name: str, attempt: str) -> bool:
    """Create one Pod, unless another reconciler is creating it or has created it.

    Return True if the API server accepted the Pod or its owner; False if another reconciler creates the Pod, if the row
    no longer needs one, or if another object has the name. Raises what the Kubernetes adapter raises.
    """
    with rt.waker.single_flight(f"create:{row_id}") as first:
        if not first or not is_still_wanted(rt, row_id):
            return False
        return create(rt, pool, row_id=row_id, pod_name=pod_name, attempt=attempt)


def record_refusal(rt: Runtime, pool: Pool, error: UpstreamError) -> bool:
    """Record that the API server refuses the Pods of a pool or their scripts, and publish an Event about the refusal.

    Return True if `error` is such a refusal, if the ConfigMap of the scripts belongs to another program, if the API
    server is too old for the pool's workload, or if a controller cannot create the Pod. Otherwise record nothing and
    return False.
    """
    if isinstance(error, PodRefused):
        refusal: Refusal | None = error.refusal
    elif isinstance(error, ForeignScripts | Unsupported):
        refusal = Refusal(quota=False, text=str(error))
    else:
        refusal = refusal_of(error)
    if refusal is None:
        return False
    if not refusal.quota:
        telemetry.FAILED_STARTS.labels(pool.namespace, pool.name, Trouble.REFUSED).inc()

    def body(db: Connection) -> None:
        pool_plans.record_refusal(db, pool.id, detail=refusal.text, quota=refusal.quota, now=utcnow())

    rt.transaction(body)
    about = pool_of(namespace=pool.namespace, name=pool.name, uid=pool.uid)
    rt.events.record(about, "Warning", "FailedCreate", f"The API server refused a Pod: {refusal.text}")
    return True


def is_still_wanted(rt: Runtime, row_id: int) -> bool:
    """Return True if a row still needs its Pod; False otherwise. The row might have changed since the plan."""
    return rt.transaction(pod_rows.is_wanted, row_id=row_id)


def create(rt: Runtime, pool: PoolSpec, *, row_id: int, pod_name: str, attempt: str) -> bool:
    """Create one Pod for its row, and record its UID. Return False if another object has the name.

    If a controller creates the Pod, the next list or the first poll shows the UID. Until then, each reconcile repeats
    the call, which finds the owner of the Pod.

    If another object already has the name, `resolve_conflict` decides what becomes of the row. After any other failure
    the row stays, and the next reconcile repeats the same attempt.
    """
    try:
        created = create_runner(
            rt.kube,
            pool=pool,
            name=pod_name,
            attempt=attempt,
            dispatch_url=rt.settings.dispatch_url,
            audience=rt.settings.token_audience,
            dispatch_ca=rt.settings.dispatch_ca,
            hooks_image=rt.settings.hooks_image,
            builder_image=builder_image_of(rt, pool),
            policy=calls(SWEEP, reserve=RESERVE),
        )
    except Conflict:
        resolve_conflict(rt, pool, row_id=row_id, pod_name=pod_name)
        return False

    def body(db: Connection) -> None:
        pod_births.record_created(db, row_id=row_id, uid=created.uid, template_hash=pod_hash_of(rt, pool))

    if created.uid:
        rt.transaction(body)
    if created.uid or not created.ours_before:
        telemetry.PODS_CREATED.inc()
    return True


def resolve_conflict(rt: Runtime, pool: PoolSpec, *, row_id: int, pod_name: str) -> None:
    """Decide what becomes of a row after a creation, because an object already has the name of the Pod.

    A runner with volumes gets the name of an earlier runner, so the objects of the earlier runner might still have the
    name. They are removed, and the next reconcile repeats the creation, for `RETRIED_FOR` at most. If a runner Pod has
    the name, the next list shows it: the row gets the Pod of this attempt, and makes way for the Pod of another attempt
    (`pod_births.drop_hiding`). After every other conflict, the row is marked as gone.
    """
    namespace, retried = pool.namespace, False
    if stateful_set_of(pod_name) is not None:
        pod = get_pod(rt.kube, namespace=namespace, name=pod_name, policy=calls(SWEEP_ROW))
        if pod is not None and pod.is_ours:
            return
        retried = clear_name(rt.kube, namespace=namespace, name=pod_name, policy=calls(SWEEP_ROW))
    log.warning("pod.not_created_because_name_is_in_use", pod=pod_name)
    older_than = RETRIED_FOR if retried else timedelta()
    rt.transaction(pod_births.give_up_row, row_id=row_id, older_than=older_than, now=NOW)
