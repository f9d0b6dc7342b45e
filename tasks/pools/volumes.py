"""Volumes of a pool's runners in a reconcile: list them before the plan, and plan what to do with them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy import Connection

from k8s_adapters.runners.owners.volumes import list_volumes
from models.pools import pod_lists, pod_rows
from models.pools.pool_mirror import PoolRef
from models.state.pools import Pool
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from rules.pools.volumes import NO_VOLUMES, Reclaim, VolumePlan, VolumeSeen, plan_volumes
from rules.pools.workloads import pod_name_of
from tasks.pools.pod_lists import Listed
from tasks.worker.base import SWEEP_LIST, calls
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


def observe_volumes(rt: Runtime, pool: PoolRef) -> Sequence[VolumeSeen] | None:
    """Return the volumes of a pool's runners, or None if they cannot be listed. Most pools have none, without a call.

    A reconcile that does not know the volumes creates no runner, because the runner would get new volumes although old
    ones are free.
    """
    if not pool.has_volumes:
        return ()
    try:
        return list_volumes(rt.kube, namespace=pool.namespace, pool=pool.name, policy=calls(SWEEP_LIST))
    except UpstreamError as error:
        log.warning("pool.pods_not_created_because_volumes_were_not_listed", pool=pool.name, error=meaning_of(error))
        return None


def make_volume_plan(
    db: Connection, pool: Pool, volumes: Sequence[VolumeSeen] | None, *, listed: Listed
) -> VolumePlan | None:
    """Return the plan for the listed volumes, or None if they were not listed.

    `listed`: the list of the pool's Pods. The volumes of a listed Pod are in use, unless the Pod disappeared after the
    list began. The caller must hold the pool's lock.
    """
    if volumes is None:
        return None
    volumes = [each for each in volumes if each.pool_uid == pool.uid]  # a deleted pool might have had the name
    if not volumes or pool.volume_reclaim is None:
        return NO_VOLUMES
    names = {pod_name_of(each.runner): each.runner for each in volumes}
    rows = pod_rows.newest_rows(db, namespace=pool.namespace, names=list(names))
    used_by = {names[row.name]: None if row.open else row.id for row in rows}
    gone = pod_lists.gone_since(db, uids=[pod.uid for pod in listed.own_pods], taken_at=listed.began) or frozenset()
    used_by |= {names[pod.name]: None for pod in listed.own_pods if pod.name in names and pod.uid not in gone}
    return plan_volumes(volumes, used_by=used_by, shape=pool.volume_shape or "", reclaim=Reclaim(pool.volume_reclaim))
