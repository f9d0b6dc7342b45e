"""Size of hook Pods: each runner Pod keeps the size that its pool had when the runner Pod was created (law L12)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, make_client
from k8s_adapters.hooks.hook_rights import build_role
from k8s_adapters.names import DIGEST_ANNOTATION
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.pools.pools import create_pool, delete_pool, list_pools, pool_path
from k8s_adapters.runners.resources import Created, create_role, create_service_account
from k8s_adapters.runners.runners import build_service_account
from lab.control_plane import ClusterAccess
from ostler.clock import Timing
from rules.pools.hook_names import step_pod
from rules.pools.pool_spec import PoolSpec
from tests.contract.chart.test_hook_rights import (
    CPU,
    MEMORY,
    SIZE,
    Change,
    Stage,
    Tenant,
    client_of,
    container,
    create,
    limits,
    make_runner,
    metadata,
    pool_spec,
    role,
    stage,
)
from tests.waiting import eventually

__all__ = ["stage"]

Hire = Callable[..., Tenant]
BY_ROLE = "must begin with the size in the Role of"


@pytest.fixture
def hire(stage: Stage, admin: KubeClient, control_plane: ClusterAccess, tmp_path: Path) -> Iterator[Hire]:
    """Return a function that creates a runner Pod of a pool, as a worker of this release or of the previous one."""
    clients = []

    def new(pool: PoolSpec, name: str, *, earlier: bool = False, size: str = SIZE) -> Tenant:
        make = make_as_before if earlier else make_runner
        made = make(stage.worker, pool, name)
        client = client_of(made, admin=admin, access=control_plane, namespace=pool.namespace, path=tmp_path / name)
        clients.append(client)
        tenant = Tenant(pool=pool, pod=made, client=client, size=size)
        eventually(lambda: create(client, small(tenant)) == (200, ""), within=60)
        return tenant

    yield new
    for each in clients:
        each.close()


def make_as_before(worker: KubeClient, pool: PoolSpec, name: str) -> Created:
    """Create a runner Pod whose Role contains no size, as workers of the previous release do."""
    account = create_service_account(worker, body=build_service_account(pool=pool, name=name, attempt="a"))
    body = build_role(
        namespace=pool.namespace,
        name=name,
        pool=pool.name,
        attempt="a",
        digest=pool.template_hash,
        account_uid=account.uid,
        size=SIZE,
    )
    del body["rules"][-1]
    create_role(worker, body=body)
    return make_runner(worker, pool, name)


def of_size(tenant: Tenant, cpu: str, memory: str = "64Mi") -> Json:
    """Return a hook Pod with one container, which has these limits."""
    pod = tenant.hook_pod(step_pod(tenant.pod.name, 1))
    del pod["spec"]["initContainers"]
    container(**limits(cpu, memory))(pod)
    return pod


def small(tenant: Tenant) -> Json:
    return of_size(tenant, "10m", "16Mi")


def whole(tenant: Tenant) -> Json:
    return of_size(tenant, "1500m", "128Mi")


def says(tenant: Tenant, body: Json, why: str) -> bool:
    """Return whether a creation is refused with this reason, or allowed if there is no reason."""
    message = create(tenant.client, body)[1]
    return why in message if why else not message


def give(admin: KubeClient, pool: PoolSpec, **spec: Any) -> None:
    """Change fields of a pool. The value None removes a field."""
    path = pool_path(pool.namespace, pool.name)
    admin.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)


def with_containers(*more: Json, kind: str = "containers", **fields: Any) -> Change:
    """Return a change that appends copies of the first container to a list, each with these fields."""

    def change(body: Json) -> None:
        first = body["spec"]["containers"][0]
        for number, each in enumerate(more):
            body["spec"][kind].append({**copy.deepcopy(first), "name": f"more-{number}", **fields, **each})

    return change


SIZES: dict[str, tuple[Change, str | None]] = {
    "the whole size": (container(**limits("1500m", "128Mi")), None),
    "two containers of the whole size": (with_containers(limits("0.5")), None),
    "an init container of the whole size": (container("initContainers", **limits("1500m", "128Mi")), None),
    "too much CPU": (container(**limits("1501m")), CPU),
    "too much memory": (container(**limits("1", "129Mi")), MEMORY),
    "too much CPU together": (with_containers(limits("501m")), CPU),
    "too much memory together": (with_containers(limits("100m", "65Mi")), MEMORY),
    "too large an init container": (container("initContainers", **limits("2")), CPU),
    "an init container with too much memory": (container("initContainers", **limits("1", "1Gi")), MEMORY),
    "a sidecar beside the containers": (
        with_containers(limits("501m"), kind="initContainers", restartPolicy="Always"),
        CPU,
    ),
    "a second init container": (with_containers(limits("1500m"), kind="initContainers"), None),
}


@pytest.mark.parametrize("what", SIZES)
def test_size_of_a_hook_pod_is_the_limit_of_its_containers(stage: Stage, what: str) -> None:
    change, why = SIZES[what]
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))
    change(pod)
    status, message = create(stage.one.client, pod)
    assert (status, (why or "") in message) == (200 if why is None else 403, True), message


def test_runner_pod_keeps_its_size_whatever_happens_to_its_pool(stage: Stage, admin: KubeClient, hire: Hire) -> None:
    """The runner Pod of the previous release shows when the API server knows the change of the pool."""
    pool = create_pool(admin, namespace=stage.cast.runners, name="kept", spec=pool_spec("kept"))
    busy, earlier = hire(pool, "kept-0000000a"), hire(pool, "kept-0000000b", earlier=True)

    def keeps_its_size() -> None:
        assert create(busy.client, whole(busy)) == (200, "")
        for body, why in ((of_size(busy, "1501m", "128Mi"), CPU), (of_size(busy, "1500m", "129Mi"), MEMORY)):
            status, message = create(busy.client, body)
            assert (status, why in message) == (403, True), message

    keeps_its_size()
    for change, said in (
        ({"containers": {"vcpu": "100m", "memoryMib": 64}}, CPU),
        ({"containers": None}, "pool kept has no container jobs"),
        ({"containers": {"mode": "kubernetes", "vcpu": 64, "memoryMib": 8192}}, ""),
        ({"containers": None}, "pool kept has no container jobs"),
    ):
        give(admin, pool, **change)
        eventually(partial(says, earlier, whole(earlier), said), within=60)
        keeps_its_size()
    delete_pool(admin, namespace=pool.namespace, name=pool.name)
    eventually(partial(says, earlier, whole(earlier), ""), within=60)
    keeps_its_size()


def test_runner_pod_of_the_previous_release_follows_its_pool(stage: Stage, admin: KubeClient, hire: Hire) -> None:
    """Its Role contains no size. By default the size is that of the container `runner`."""
    pool = create_pool(admin, namespace=stage.cast.runners, name="earlier", spec=pool_spec("earlier"))
    earlier = hire(pool, "earlier-0000000a", earlier=True)
    pod = of_size(earlier, "3")
    pod["metadata"]["annotations"][DIGEST_ANNOTATION] = "d"
    assert create(earlier.client, whole(earlier)) == (200, "")
    for given, said in (
        ({}, CPU),
        ({"containers": {"vcpu": None, "memoryMib": None}, "resources": {"cpu": 3, "memory": "1Gi"}}, ""),
        ({"resources": {"memory": "63Mi"}}, MEMORY),
        ({"containers": None}, "pool earlier has no container jobs"),
        (pool_spec("earlier"), CPU),
    ):
        give(admin, pool, **given)
        eventually(partial(says, earlier, pod, said), within=60)


def test_runner_pod_is_refused_the_size_of_another_runner_pod(stage: Stage, admin: KubeClient, hire: Hire) -> None:
    """Neither the size of another pool nor a larger size that its own pool has now."""
    namespace = stage.cast.runners
    pools = {
        name: create_pool(admin, namespace=namespace, name=name, spec=pool_spec(name, vcpu=vcpu, memoryMib=1024))
        for name, vcpu in (("small", 1), ("large", 8))
    }
    small_one = hire(pools["small"], "small-0000000a", size="1000m-1024Mi")
    large_one = hire(pools["large"], "large-0000000a", size="8000m-1024Mi")
    give(admin, pools["small"], containers={"vcpu": 4})
    pool = pools["small"].name
    eventually(lambda: create(stage.worker, role(namespace, f"{pool}-0000000b", "4000m-1024Mi")) == (200, ""))
    assert create(large_one.client, of_size(large_one, "8")) == (200, "")
    assert create(small_one.client, of_size(small_one, "1")) == (200, "")
    assert CPU in create(small_one.client, of_size(small_one, "2"))[1]
    for size in ("8000m-1024Mi", "4000m-1024Mi"):
        pod = of_size(small_one, "2")
        pod["metadata"]["annotations"][DIGEST_ANNOTATION] = f"{size}.d"
        status, message = create(small_one.client, pod)
        assert (status, BY_ROLE in message) == (403, True), message


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "d",
        "limited",
        "limited.d",
        ".d",
        "*.d",
        f"d.{SIZE}",
        f"{SIZE}-1.d",
        f"0{SIZE}.d",
        "1500-128.d",
        "1499m-128Mi.d",
    ],
)
def test_hook_pod_without_the_size_of_its_role_is_refused(stage: Stage, annotation: str) -> None:
    pod = small(stage.one)
    pod["metadata"]["annotations"][DIGEST_ANNOTATION] = annotation
    status, message = create(stage.one.client, pod)
    assert (status, BY_ROLE in message) == (403, True), message


def test_hook_pod_without_annotations_is_refused(stage: Stage) -> None:
    pod = small(stage.one)
    metadata(annotations={})(pod)
    status, message = create(stage.one.client, pod)
    assert (status, BY_ROLE in message) == (403, True), message


def test_worker_is_refused_a_size_for_a_pool_without_container_jobs(stage: Stage, admin: KubeClient) -> None:
    namespace = stage.cast.runners
    spec = pool_spec("plain")
    del spec["containers"]
    create_pool(admin, namespace=namespace, name="plain", spec=spec)
    eventually(
        lambda: "pool plain has no container jobs" in create(stage.worker, role(namespace, "plain-0000000a"))[1],
        within=60,
    )


def is_answered(stage: Stage, body: Json, *, allowed: bool) -> bool:
    """Return whether the API server allows or refuses a Role as expected."""
    return (create(stage.worker, body)[0] == 200) is allowed


def test_size_of_a_role_is_compared_with_the_default_of_its_pool(stage: Stage, admin: KubeClient) -> None:
    """By default it is the size of the container `runner`."""
    namespace = stage.cast.runners
    spec = pool_spec("default", mode="kubernetes") | {"resources": {"cpu": "2500m", "memory": "2Gi"}}
    create_pool(admin, namespace=namespace, name="default", spec=spec)
    for size, allowed in (("2501m-2048Mi", False), ("2500m-2049Mi", False), ("2500m-2048Mi", True)):
        body = role(namespace, "default-0000000a", size)
        eventually(partial(is_answered, stage, body, allowed=allowed), within=60)


def test_worker_repeats_a_role_while_the_change_of_the_pool_is_not_known(
    stage: Stage, admin: KubeClient, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    """The cache of the admission plugin lags behind. Here the change of the pool comes after the first try."""
    namespace = stage.cast.runners
    spec = pool_spec("raised")
    pool = create_pool(admin, namespace=namespace, name="raised", spec=spec | {"containers": None})
    body = role(namespace, "raised-0000000b")
    eventually(lambda: "pool raised has no container jobs" in create(stage.worker, body)[1], within=60)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        give(admin, pool, containers=spec["containers"])
        eventually(lambda: create(stage.worker, body) == (200, ""), within=60)

    kubeconfig = stage.cast.identities.kubeconfig("worker", control_plane, tmp_path)
    client = make_client(kubeconfig=str(kubeconfig), timing=Timing(sleep=sleep))
    made = make_runner(client, read_pool(admin.request("GET", pool_path(namespace, "raised")) | {"spec": spec}))
    client.close()

    assert made.name == "raised-0000000a"
    assert len(waits) == 1


def test_worker_of_the_previous_release_creates_roles_without_a_size(stage: Stage) -> None:
    """An upgrade replaces the workers one after the other, after it has changed the policies."""
    body = role(stage.cast.runners, "one-0000000b")
    del body["rules"][-1]
    assert create(stage.worker, body) == (200, "")


def test_namespace_without_pools_allows_pods_roles_and_hook_pods(stage: Stage, admin: KubeClient, hire: Hire) -> None:
    """The last pool might be deleted while one of its jobs runs. The other tests of this file need no such pool."""
    namespace = stage.cast.runners
    pool = create_pool(admin, namespace=namespace, name="last", spec=pool_spec("last"))
    busy = hire(pool, "last-0000000a")
    for each in list_pools(admin, namespace=namespace):
        delete_pool(admin, namespace=namespace, name=each.name)
    eventually(lambda: not list_pools(admin, namespace=namespace), within=60)
    plain = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "plain", "namespace": namespace},
        "spec": small(busy)["spec"],
    }
    for _ in range(20):
        assert create(busy.client, whole(busy)) == (200, "")
        assert CPU in create(busy.client, of_size(busy, "1501m"))[1]
        assert create(admin, plain) == (200, "")
