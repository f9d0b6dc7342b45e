"""An autoscaled pool in the whole system: from no Pods to Pods for jobs, and back to the minimum."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.pools.pools import get_pool
from lab.bootstrap import LabPool
from lab.control_plane import ClusterAccess
from lab.system import Options, System, read_log
from lab.timings import timings
from lab.verdict import judge
from ostler.secrets import Secret
from ostler.wakes import Waker
from tests.cluster import delete_namespace
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LABELS = ("self-hosted", "linux", "scaled")
JOBS = 12
MOST = 4


@pytest.fixture
def system(
    control_plane: ClusterAccess, admin: KubeClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    """A system whose only pool has no Pods. The autoscaler runs only on request."""
    namespace = f"scaled-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    scaling = {"enabled": True, "minWarm": 1, "maxReplicas": MOST, "scaleDownDelay": "3s"}
    options = Options(
        pools=(LabPool("scaled", LABELS, 0, cpu="1", memory="1Gi", autoscaling=scaling),),
        beats=1,
        real_pods=0,
        settings=timings(autoscale_every=3600, pools_every=2, sweep_every=5),
    )
    folder = tmp_path_factory.mktemp("system")
    with System(folder, options, say=print, namespace=namespace, control_plane=control_plane) as running:
        yield running
    delete_namespace(admin, namespace)


def test_pool_grows_with_jobs_without_a_tick_and_shrinks_to_its_floor_after_them(system: System) -> None:
    engine, kube = create_engine(system.postgres.url("ostler")), system.kube()
    waker = Waker(Secret(system.redis.url))

    def rows(statement: str) -> list[Any]:
        with engine.connect() as db:
            return list(db.execute(text(statement)))

    def replicas() -> int:
        found = get_pool(kube, namespace=system.namespace, name="scaled")
        assert found is not None
        return found.replicas

    eventually(lambda: bool(rows("SELECT 1 FROM pools WHERE autoscaled")), within=240)
    job = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.5, "count": JOBS}
    system.lab("POST", "/jobs", job)
    eventually(lambda: rows("SELECT count(*) FROM jobs WHERE state = 'completed'")[0][0] == JOBS, within=300)
    assert replicas() == MOST, "woken by jobs without Pods, it grew as far as it may"

    def settled() -> bool:
        waker.autoscale()
        alive = rows("""
            SELECT count(*) FROM runner_pods p WHERE p.gone_at IS NULL AND p.terminal_at IS NULL
            AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.purpose = 'retire')
        """)
        return replicas() == 1 and alive[0][0] == 1

    eventually(settled)
    # Never more Pods alive at a time than it may have.
    (most,) = rows("""
        SELECT max((SELECT count(*) FROM runner_pods o WHERE o.created_at <= p.created_at
                    AND coalesce(o.terminal_at, o.gone_at, 'infinity') > p.created_at)) AS pods FROM runner_pods p
    """)
    assert most.pods <= MOST
    eventually(lambda: not system.lab("GET", "/runners")["runners"], within=240)
    verdict = judge(read_log(system.github_log), read_log(system.kubelet_log))
    assert verdict.problems == ()
    assert verdict.executions == JOBS
    waker.close()
    kube.close()
    engine.dispose()
