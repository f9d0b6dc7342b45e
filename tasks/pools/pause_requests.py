"""Requests of people to pause or resume a pool: a worker carries them out, because `web` must not write RunnerPools.

The worker reads the object first and the request second. It then writes `spec.paused` and the id of the request in one
patch, which names the resource version that was read. A worker with an older request is therefore refused, and a
request whose patch was made before the worker was killed is not carried out again.
"""

from __future__ import annotations

import structlog

from k8s_adapters.pools.pools import answer_pause_request, get_pool
from models.pools import pause_requests
from ostler.errors import Conflict
from ostler.halt import halt
from rules.pools.pool_spec import PoolSpec
from rules.pools.spec_writers import manager_of
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.runtime import Runtime

TRIES = 3

log = structlog.get_logger(__name__)


def carry_out(rt: Runtime, *, namespace: str, name: str, uid: str) -> PoolSpec | None:
    """Carry out the request of a pool. Return the pool after it, or None if there was nothing to do.

    If other clients change the pool again and again, the next tick of `ostler.pools` carries out the request.
    """
    for _ in range(TRIES):
        pool = get_pool(rt.kube, namespace=namespace, name=name, policy=calls(SWEEP_ROW))
        request = rt.transaction(pause_requests.open_request, uid=uid)
        if pool is None or pool.uid != uid or request is None:
            return None
        if pool.pause_request != request.id:
            halt("pause_pool.before_call")
            try:
                pool = answer_pause_request(
                    rt.kube,
                    pool,
                    request=request.id,
                    paused=request.paused,
                    manager=manager_of(request.who, request.via),
                    policy=calls(SWEEP_ROW),
                )
            except Conflict:
                continue
            halt("pause_pool.after_call")
            log.info("pool.paused" if request.paused else "pool.resumed", namespace=namespace, pool=name)
        rt.transaction(pause_requests.end, uid=uid, request=request.id)
        return pool
    return None
