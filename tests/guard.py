"""The chart's policy against deletions of runner Pods, applied to one namespace of a test."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, object_path
from k8s_adapters.cluster.admission import refuses_the_collector
from k8s_adapters.names import API_VERSION, KIND
from k8s_adapters.pools.pools import create_pool, delete_pool
from lab import helm
from lab.control_plane import ClusterAccess
from lab.manifests import Kinds
from ostler.errors import Gone
from rules.pools.pool_spec import PoolSpec
from tests.waiting import eventually

POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
KEPT = "helm.sh/resource-policy"
PATIENCE = 60.0
"""Longest time in seconds until a policy is in force, or is not any more. The usual time is one second."""


def of_the_chart(runners: str, kinds: Sequence[str]) -> list[helm.Manifest]:
    """Return the objects of these kinds from the chart, for a namespace of runners."""
    release = f"{runners}-release"
    values = {"runners": {"namespace": runners, "create": False}}
    return [
        each
        for each in helm.render(values=values, namespace=release)
        if each["kind"] in kinds and each["metadata"].get("namespace") != release
    ]


def collector_policy(runners: str) -> list[helm.Manifest]:
    """Return the policy against the garbage collector and its binding, which stay after the release is uninstalled."""
    return [each for each in of_the_chart(runners, POLICY) if KEPT in each["metadata"].get("annotations", {})]


@contextmanager
def guarded(kube: KubeClient, runners: str, *, accounts: bool = True, tried: bool = True) -> Iterator[None]:
    """Apply the admission policy to this namespace during the block, for Pods only unless `accounts` is True.

    Unless `tried` is True, the policy comes into force about a second after the block began, and the namespace need not
    exist.
    """
    kinds = Kinds(kube)
    policy = collector_policy(runners)
    if not accounts:
        (rule,) = policy[0]["spec"]["matchConstraints"]["resourceRules"]
        rule["resources"] = ["pods"]
    for each in policy:
        kinds.apply(each)
    try:
        if tried:
            until_refused(kube, runners, refused=True)
        yield
    finally:
        for each in policy:
            with suppress(Gone):
                kube.request("DELETE", f"{kinds.collection(each)}/{each['metadata']['name']}")


def until_refused(kube: KubeClient, runners: str, *, refused: bool) -> None:
    """Wait until the garbage collector is refused the deletion of runner Pods there, or is not refused any more."""
    deadline = time.monotonic() + PATIENCE
    while (found := refuses_the_collector(kube, runners)).refused is not refused:
        assert time.monotonic() < deadline, found.why
        time.sleep(0.2)


def until_collected(kube: KubeClient, namespace: str) -> None:
    """Wait until the collector knows RunnerPools, which takes up to 40 s after the creation of the kind."""
    pool = create_pool(kube, namespace=namespace, name="canary", spec={"image": "none", "runnerLabels": ["none"]})
    path = own(kube, pool)
    delete_pool(kube, namespace=namespace, name="canary")
    eventually(lambda: not exists(kube, path), what="the collector knows RunnerPools", within=3 * PATIENCE)


def own(kube: KubeClient, pool: PoolSpec) -> str:
    """Create an unprotected object that a pool owns, to show the collector's acts, and return its path."""
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": pool.name, "uid": pool.uid}
    body = {"metadata": {"name": f"{pool.name}-canary", "ownerReferences": [owner]}}
    collection = object_path("configmaps", namespace=pool.namespace)
    kube.request("POST", collection, body=body)
    return f"{collection}/{pool.name}-canary"


@contextmanager
def lingering(kube: KubeClient, path: str) -> Iterator[None]:
    """Delay the foreground deletion of a pool, and so the collector, by an object of the pool, during the block.

    Otherwise the collector would finish with the pool at once, and would reach only some of the Pods.
    """
    owner = {**kube.request("GET", path)["metadata"]["ownerReferences"][0], "blockOwnerDeletion": True}
    _patch(kube, path, {"finalizers": ["example.com/lingers"], "ownerReferences": [owner]})
    try:
        yield
    finally:
        _patch(kube, path, {"finalizers": []})


def _patch(kube: KubeClient, path: str, metadata: Json) -> None:
    with suppress(Gone):
        kube.request("PATCH", path, body={"metadata": metadata}, content_type=MERGE_PATCH)


def exists(kube: KubeClient, path: str) -> bool:
    """Return whether the object exists."""
    try:
        kube.request("GET", path)
    except Gone:
        return False
    return True


def refused(access: ClusterAccess, uids: Collection[str]) -> set[str]:
    """Return those of these Pods and accounts whose deletion the collector was refused, by its own log."""
    lines = (access.kubeconfig.parent / "kube-controller-manager.log").read_text(errors="replace").splitlines()
    denied = [line for line in lines if "denied request" in line and "garbagecollector" in line]
    return {uid for uid in uids if any(f'UID:\\"{uid}' in line for line in denied)}
