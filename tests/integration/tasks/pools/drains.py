"""Steps of the drain tests: run the controller, delete pools, let Pods work, and end their jobs."""

from __future__ import annotations

from typing import Any

from k8s_adapters.calls.client import MERGE_PATCH
from k8s_adapters.pools.pools import get_pool, pool_path
from k8s_adapters.runners.stamps import stamp
from rules.pools.pool_spec import PoolSpec
from tasks.claims.retire import retire
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tests.integration.tasks.conftest import Stage

POOL = "small"


def tick(stage: Stage) -> None:
    """Run the reconciler and every message that it sends, once."""
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    for message in stage.outbox.take("ostler.retire"):
        retire.run(**message)


def drain(stage: Stage) -> None:
    """Run the drain until it makes no progress by itself."""
    for _ in range(3):
        tick(stage)


def delete(stage: Stage, name: str = POOL, *, propagation: str = "Background") -> None:
    """Delete a pool as another client would."""
    path = pool_path(stage.namespace, name)
    stage.kube.request("DELETE", path, query={"propagationPolicy": propagation})


def seen(stage: Stage, name: str = POOL) -> PoolSpec | None:
    """Return a pool, or None if it does not exist."""
    return get_pool(stage.kube, namespace=stage.namespace, name=name)


def patch(stage: Stage, body: dict[str, Any], name: str = POOL) -> None:
    """Patch a pool as another client would."""
    stage.kube.request("PATCH", pool_path(stage.namespace, name), body=body, content_type=MERGE_PATCH)


def busy_pod(stage: Stage, job_id: int = 7, *, name: str | None = None, stamped: bool = False) -> tuple[str, int]:
    """Let a Pod of the pool execute a job, by default the first by name. Return its name and the claim."""
    stage.job(job_id, state="running")
    name = name or min(stage.pods())
    claim = stage.claim(name, job_id=job_id, state="executing")
    stage.finish(name, phase="Running", runner=None)
    if stamped:
        pod = stage.pods()[name]
        value = f"{claim}.1"
        stamp(
            stage.kube,
            namespace=stage.namespace,
            name=name,
            uid=pod.uid,
            expected=pod.stamp or "",
            value=value,
            owner=1,
        )
        stage.rows("UPDATE claims SET stamp = 'on', stamp_no = 1 WHERE id = :id", id=claim)
    return name, claim


def end_job(stage: Stage, name: str, claim: int) -> None:
    """End the job at GitHub, and write the kubelet's status of the finished Pod."""
    (row,) = stage.rows(
        """
        UPDATE claims SET state = 'ended', end_reason = 'completed', ended_at = now() WHERE id = :id RETURNING job_id
        """,
        id=claim,
    )
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success' WHERE id = :id", id=row.job_id)
    stage.finish(name)


def end_creations(stage: Stage) -> None:
    """Let enough time pass that no creation of a given-up Pod can still run."""
    stage.rows("UPDATE runner_pods SET gone_at = gone_at - interval '61 s' WHERE uid IS NULL")
