"""Deletion of the volumes that no runner of a pool needs any more."""

from __future__ import annotations

import random
from datetime import datetime

import structlog
from sqlalchemy import Connection

from k8s_adapters.runners.owners.volumes import delete_volume
from models.db import epochs
from models.upstream import gates
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from ostler.upstreams import Upstream
from rules.pools.pool_plan import budget_of
from tasks.pools.plan import Planned
from tasks.worker.base import SWEEP_ROW, calls, remaining
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

RESERVE = 5.0
"""Seconds of the task's deadline that must be left before a volume is deleted.

The next reconcile deletes the other volumes.
"""


def delete_volumes(rt: Runtime, planned: Planned) -> None:
    """Delete volumes of a plan. A volume that cannot be deleted now is left to the next reconcile.

    No volume is deleted while the pool must not change, while the gate of Kubernetes is tripped, or while the rows are
    not trusted. One reconcile deletes at most as many volumes as a reconcile may retire Pods.
    """
    volumes = planned.volumes
    if volumes is None or not volumes.delete or planned.given.pool.suspended or not rt.transaction(may_delete, now=NOW):
        return
    # In a random order, so that volumes that can never be deleted do not stop the others (L14).
    most = min(len(volumes.delete), budget_of(len(volumes.delete) + volumes.in_use))
    for volume in random.sample(volumes.delete, most):
        if remaining() < RESERVE:
            return
        try:
            namespace = planned.observed.pool.namespace
            delete_volume(rt.kube, namespace=namespace, name=volume.name, uid=volume.uid, policy=calls(SWEEP_ROW))
        except UpstreamError as error:
            log.warning("volume.not_deleted", volume=volume.name, error=meaning_of(error))
        else:
            log.info("volume.deleted", volume=volume.name, runner=volume.runner)


def may_delete(db: Connection, *, now: datetime) -> bool:
    """Return True if the gate of Kubernetes is ok, and the rows are as new as the cluster."""
    return gates.is_open(db, Upstream.KUBERNETES) and epochs.doubt(db, now=now) is None
