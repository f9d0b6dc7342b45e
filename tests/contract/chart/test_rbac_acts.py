"""Acts of the processes, performed by their adapters with their identities, and attempts of forbidden acts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, make_client
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.cluster.access import who_am_i
from k8s_adapters.cluster.epochs import read_epoch, write_epoch
from k8s_adapters.cluster.leases import create_lease, read_lease, write_lease
from k8s_adapters.cluster.watching import PodWatch
from k8s_adapters.pools.crd import apply_crd
from k8s_adapters.pools.pools import create_pool, get_pool, list_pools
from k8s_adapters.runners.identity import TokenVerifier, Unjudged, review_token
from k8s_adapters.runners.pods import get_pod, list_pods
from k8s_adapters.runners.resources import Created
from k8s_adapters.runners.runners import Deletion, create_runner, delete_runner
from k8s_adapters.runners.stamps import StampOutcome, stamp, unstamp
from lab.control_plane import ClusterAccess, write_kubeconfig
from ostler.errors import Forbidden
from rules.pools.pool_spec import PoolSpec
from rules.restore.epochs import Epoch
from rules.upstream.retry import ONCE
from tests.contract.chart.cast import ALL, POOLS, Cast, allowed
from tests.waiting import eventually
from watch.leader import LEASE


@pytest.fixture
def pool(cast: Cast) -> PoolSpec:
    name = f"p{secrets.token_hex(4)}"
    return create_pool(
        cast.admin, namespace=cast.runners, name=name, spec={"image": "runner:1", "runnerLabels": ["linux"]}
    )


def make_runner(client: KubeClient, pool: PoolSpec, name: str) -> Created:
    return create_runner(
        client, pool=pool, name=name, attempt="a1", dispatch_url="http://web/", audience="ostler-dispatch", policy=ONCE
    )


def test_a_worker_makes_stamps_lists_and_deletes_runners(cast: Cast, pool: PoolSpec) -> None:
    worker, name = cast.clients["worker"], f"{pool.name}-0000000a"

    made = make_runner(worker, pool, name)
    put_on = stamp(worker, namespace=cast.runners, name=name, uid=made.uid, expected="0.0", value="1.1", owner=7)
    taken_off = unstamp(worker, namespace=cast.runners, name=name, uid=made.uid, expected="1.1", value="1.2")
    listed = [
        each.name
        for page in metadata_pages(worker, "serviceaccounts", namespace=cast.runners, selector=OF_POOLS)
        for each in page
    ]
    pods = [each.name for each in list_pods(worker, namespace=cast.runners, pool=pool.name)]
    gone = delete_runner(worker, namespace=cast.runners, name=name, uid=made.uid, attempt="a1")

    assert put_on.outcome is taken_off.outcome is StampOutcome.DONE
    assert name in listed
    assert pods == [name]
    assert gone is Deletion.REMOVED


def test_a_worker_reads_pools_and_writes_their_status_and_finalizers(cast: Cast, pool: PoolSpec) -> None:
    worker = cast.clients["worker"]
    path = f"/apis/ostler.dev/v1alpha1/namespaces/{cast.runners}/runnerpools/{pool.name}"

    assert pool.name in {each.name for each in list_pools(worker, namespace=cast.runners)}
    worker.request("PATCH", f"{path}/status", body={"status": {"observedGeneration": 1}}, content_type=MERGE_PATCH)
    for finalizers in (["ostler.dev/drain"], []):
        worker.request("PATCH", path, body={"metadata": {"finalizers": finalizers}}, content_type=MERGE_PATCH)


def test_a_worker_keeps_the_epoch_and_no_other_config_map(cast: Cast) -> None:
    worker = cast.clients["worker"]
    for number in (1, 2):
        seen = read_epoch(worker, namespace=cast.runners, policy=ONCE)
        assert write_epoch(worker, namespace=cast.runners, epoch=Epoch(number, "db"), seen=seen, policy=ONCE)
    with pytest.raises(Forbidden):
        worker.request("GET", f"/api/v1/namespaces/{cast.runners}/configmaps/kube-root-ca.crt")


def test_web_judges_a_pod_and_its_token(cast: Cast, pool: PoolSpec) -> None:
    web, name = cast.clients["web"], f"{pool.name}-0000000b"
    make_runner(cast.clients["worker"], pool, name)
    body = {"spec": {"audiences": ["ostler-dispatch"]}}
    path = f"/api/v1/namespaces/{cast.runners}/serviceaccounts/{name}/token"
    token = cast.admin.request("POST", path, body=body)["status"]["token"]

    found = get_pod(web, namespace=cast.runners, name=name)
    assert found is not None
    assert get_pool(web, namespace=cast.runners, name=pool.name) is not None
    assert review_token(web, token=token, audience="ostler-dispatch", timeout=20) is True
    TokenVerifier(client=web, audience="ostler-dispatch").fetch_keys()


def test_the_keys_need_no_binding_of_the_clusters_own(cast: Cast) -> None:
    """The binding that lets every ServiceAccount read the keys is removed. Web still reads them by its own binding."""
    binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:service-account-issuer-discovery"
    before = cast.admin.request("GET", binding)
    cast.admin.request("PATCH", binding, body={"subjects": []}, content_type=MERGE_PATCH)
    try:
        eventually(lambda: not allowed(cast.clients["beat"], "get", "//openid/v1/jwks", namespace=None), within=60)
        TokenVerifier(client=cast.clients["web"], audience="ostler-dispatch").fetch_keys()
        with pytest.raises(Unjudged):
            TokenVerifier(client=cast.clients["worker"], audience="ostler-dispatch").fetch_keys()
    finally:
        body = {"subjects": before["subjects"]}
        cast.admin.request("PATCH", binding, body=body, content_type=MERGE_PATCH)


def test_a_watch_follows_and_leads(cast: Cast) -> None:
    watch = cast.clients["watch"]

    with PodWatch(watch, namespace=cast.runners, since="", seconds=1) as following:
        list(following.events())
    made = create_lease(watch, namespace=cast.runners, name=LEASE, holder="a", duration=10, policy=ONCE)
    seen = read_lease(watch, namespace=cast.runners, name=LEASE, policy=ONCE)
    assert made is not None
    assert seen == made
    assert write_lease(watch, namespace=cast.runners, name=LEASE, seen=seen, holder="b", duration=10, policy=ONCE)


def test_the_migration_brings_the_definition_up_to_date(cast: Cast) -> None:
    apply_crd(cast.clients["migrate"])


# What must never happen, really tried.


@pytest.mark.parametrize(
    ("process", "act"),
    [
        ("web", lambda cast, pool: make_runner(cast.clients["web"], pool, f"{pool.name}-0000000c")),
        ("web", lambda cast, _: list_pods(cast.clients["web"], namespace=cast.runners)),
        ("web", lambda cast, _: list_pools(cast.clients["web"], namespace=cast.runners)),
        ("watch", lambda cast, pool: _delete(cast, "watch", pool)),
        ("web", lambda cast, pool: _delete(cast, "web", pool)),
        ("worker", lambda cast, _: cast.clients["worker"].request("GET", f"/api/v1/namespaces/{cast.runners}/secrets")),
        ("worker", lambda cast, _: list_pods(cast.clients["worker"], namespace=cast.release)),
        ("worker", lambda cast, _: list_pools(cast.clients["worker"], namespace="default")),
        ("worker", lambda cast, _: cast.clients["worker"].request("DELETE", f"/api/v1/namespaces/{cast.runners}")),
        ("worker", lambda cast, pool: _mint_a_token(cast, "worker", pool)),
        ("worker", lambda cast, _: apply_crd(cast.clients["worker"])),
        ("beat", lambda cast, _: list_pods(cast.clients["beat"], namespace=cast.runners)),
        ("flower", lambda cast, _: list_pods(cast.clients["flower"], namespace=cast.runners)),
        ("migrate", lambda cast, _: list_pods(cast.clients["migrate"], namespace=cast.runners)),
    ],
)
def test_what_a_process_has_no_business_with_is_refused(
    cast: Cast, pool: PoolSpec, process: str, act: Callable[[Cast, PoolSpec], object]
) -> None:
    assert who_am_i(cast.clients[process]).endswith(process)
    with pytest.raises(Forbidden):
        act(cast, pool)


def _delete(cast: Cast, process: str, pool: PoolSpec) -> None:
    name = f"{pool.name}-0000000d"
    made = make_runner(cast.clients["worker"], pool, name)
    delete_runner(cast.clients[process], namespace=cast.runners, name=name, uid=made.uid)


def _mint_a_token(cast: Cast, process: str, pool: PoolSpec) -> None:
    name = f"{pool.name}-0000000e"
    make_runner(cast.clients["worker"], pool, name)
    path = f"/api/v1/namespaces/{cast.runners}/serviceaccounts/{name}/token"
    cast.clients[process].request("POST", path, body={"spec": {"audiences": ["ostler-dispatch"]}})


def test_a_runners_own_service_account_may_do_nothing(
    cast: Cast, pool: PoolSpec, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    name = f"{pool.name}-0000000f"
    make_runner(cast.clients["worker"], pool, name)
    path = f"/api/v1/namespaces/{cast.runners}/serviceaccounts/{name}/token"
    token = cast.admin.request("POST", path, body={"spec": {}})["status"]["token"]
    write_kubeconfig(tmp_path / "kubeconfig", url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    runner = make_client(kubeconfig=str(tmp_path / "kubeconfig"))

    assert who_am_i(runner) == f"system:serviceaccount:{cast.runners}:{name}"
    for resource in ("pods", "secrets", "configmaps", "serviceaccounts", POOLS):
        for verb in ALL:
            assert not allowed(runner, verb, resource, namespace=cast.runners)
    runner.close()
