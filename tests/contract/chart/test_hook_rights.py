"""Safety between tenants with container jobs: what a runner's real token and a worker may do on a real API server."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.doctor import cluster
from cli.doctor.findings import Outcome
from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient, make_client, object_path
from k8s_adapters.calls.metadata import OF_POOLS, metadata_pages
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.cluster.admission import refuses_other_roles
from k8s_adapters.cluster.deployed import labels_of_runners
from k8s_adapters.hooks.hook_pods import find_left_over
from k8s_adapters.hooks.hook_rights import RBAC, build_role, build_role_binding, hook_metadata
from k8s_adapters.names import HOOK_OF_LABEL, HOOK_POOL_LABEL, MANAGED_BY_LABEL, POOL_LABEL
from k8s_adapters.pools.pools import create_pool, list_pools
from k8s_adapters.runners.pods import list_pods
from k8s_adapters.runners.resources import Created
from k8s_adapters.runners.runners import create_runner, delete_runner
from lab.control_plane import ClusterAccess, write_kubeconfig
from lab.identities import Identities
from lab.manifests import Kinds
from ostler.errors import UpstreamError
from rules.pools.hook_names import pod_names, secret, secret_names, step_pod, workflow_pod
from rules.pools.pod_template import outlive_lost_nodes
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import ONCE
from tests.contract.chart.cast import ALL, Cast, allowed
from tests.guard import POLICY
from tests.waiting import eventually

OF_TOKENS = "kubernetes.io/service-account.name"
VALUES: Mapping[str, Any] = {
    "runners": {
        "containers": {"enabled": True, "labels": ["team"], "annotations": [OF_TOKENS], "pullSecrets": ["registry"]}
    },
    "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32"]}},
}
SIZE = "1500m-128Mi"
"""Size of a hook Pod in `pool_spec`."""

LIMITS = {"cpu": "1", "memory": "64Mi"}
SECURE: Json = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
Change = Callable[[Json], object]
Said = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A runner Pod with the rights for container jobs, and a client with the token that the kubelet would mount."""

    pool: PoolSpec
    pod: Created
    client: KubeClient
    size: str

    def hook_pod(self, name: str | None = None) -> Json:
        """Return a hook Pod of this tenant."""
        metadata = hook_metadata(
            namespace=self.pool.namespace,
            name=name or workflow_pod(self.pod.name),
            pod=self.pod.name,
            pod_uid=self.pod.uid,
            pool=self.pool.name,
            digest="d",
            size=self.size,
        )
        container = {"name": "job", "image": "i", "resources": {"limits": LIMITS}, "securityContext": SECURE}
        mounted = secret(self.pod.name, 0)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "automountServiceAccountToken": False,
                "restartPolicy": "Never",
                "tolerations": outlive_lost_nodes(()),
                "imagePullSecrets": [{"name": mounted}, {"name": "registry"}],
                "initContainers": [copy.deepcopy(container) | {"name": "first"}],
                "containers": [container | {"envFrom": [{"secretRef": {"name": mounted}}]}],
                "volumes": [{"name": "work", "emptyDir": {}}, {"name": "s", "secret": {"secretName": mounted}}],
            },
        }

    def secret(self, n: int = 0) -> Json:
        """Return a Secret of this tenant."""
        metadata = hook_metadata(
            namespace=self.pool.namespace,
            name=secret(self.pod.name, n),
            pod=self.pod.name,
            pod_uid=self.pod.uid,
            pool=self.pool.name,
            digest="d",
        )
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": "b"}}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A release with container jobs, a worker, and two tenants in pools of their own."""

    cast: Cast
    worker: KubeClient
    one: Tenant
    two: Tenant


def answer(client: KubeClient, method: str, path: str, body: Json | None = None, *, dry: bool = True) -> Said:
    """Return the status and the message of an answer. A change is a dry run unless `dry` is False."""
    query = {"dryRun": "All"} if dry and method != "GET" else None
    try:
        client.request(method, path, body=body, query=query, policy=ONCE)
    except UpstreamError as error:
        if (found := answer_of(error)) is None:
            raise
        return found.status, found.message
    return 200, ""


def create(client: KubeClient, body: Json, *, dry: bool = True) -> Said:
    """Create an object of a namespace, and return the answer."""
    kind = {"Pod": "pods", "Secret": "secrets", "Role": "roles", "RoleBinding": "rolebindings"}[body["kind"]]
    group = str(body["apiVersion"]).rpartition("/")[0]
    path = object_path(kind, namespace=body["metadata"]["namespace"], group=group)
    return answer(client, "POST", path, body, dry=dry)


def token_of(admin: KubeClient, namespace: str, pod: Created) -> str:
    """Return a token that is bound to a Pod, as the kubelet requests it for a projected volume."""
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    path = f"{object_path('serviceaccounts', namespace=namespace, name=pod.name)}/token"
    made = admin.request("POST", path, body={"spec": {"boundObjectRef": bound, "expirationSeconds": 3600}})
    return str(made["status"]["token"])


@pytest.fixture(scope="module")
def stage(admin: KubeClient, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("hooks")
    release = f"hooks-{secrets.token_hex(6)}"
    runners = f"{release}-runners"
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": runners, "labels": level}})
    identities = Identities(admin, namespace=release, runners=runners, values=VALUES)
    identities.put_in_place()
    worker = make_client(kubeconfig=str(identities.kubeconfig("worker", control_plane, folder)))
    cast = Cast(identities=identities, clients={"worker": worker}, runners=runners, admin=admin)
    foreign = role(runners, "other-0000000a")
    foreign["rules"] = []
    eventually(lambda: create(worker, foreign)[0] == 403, within=60)
    eventually(lambda: allowed(worker, "escalate", f"{RBAC}@roles", namespace=runners), within=60)
    tenants = []
    for name in ("one", "two"):
        pool = create_pool(admin, namespace=runners, name=name, spec=pool_spec(name))
        wait_for_role_sizes(worker, pool)
        made = make_runner(worker, pool)
        client = client_of(made, admin=admin, access=control_plane, namespace=runners, path=folder / name)
        tenant = Tenant(pool=pool, pod=made, client=client, size=SIZE)
        wait_for_policies(tenant)
        for body in (tenant.secret(), tenant.hook_pod()):
            assert create(tenant.client, body, dry=False) == (200, "")
        tenants.append(tenant)
    yield Stage(cast=cast, worker=worker, one=tenants[0], two=tenants[1])
    for client in (worker, *(each.client for each in tenants)):
        client.close()
    identities.remove()
    admin.request("DELETE", f"/api/v1/namespaces/{runners}")


def pool_spec(name: str, **containers: Any) -> Json:
    size = containers or {"vcpu": "1500m", "memoryMib": 128}
    return {"image": "runner:1", "runnerLabels": [name], "containers": {"mode": "kubernetes", **size}}


def make_runner(worker: KubeClient, pool: PoolSpec, name: str | None = None) -> Created:
    return create_runner(
        worker,
        pool=pool,
        name=name or f"{pool.name}-0000000a",
        attempt="a",
        dispatch_url="http://web/",
        audience="ostler-dispatch",
        hooks_image="ostler:1",
    )


def client_of(pod: Created, *, admin: KubeClient, access: ClusterAccess, namespace: str, path: Path) -> KubeClient:
    """Return a client with the token of a runner Pod. Its kubeconfig is written to `path`."""
    write_kubeconfig(path, url=access.url, ca_file=access.ca_file, token=token_of(admin, namespace, pod))
    return make_client(kubeconfig=str(path))


def wait_for_role_sizes(worker: KubeClient, pool: PoolSpec) -> None:
    """Return once the policy refuses a Role with a size that is above the size in its pool."""
    large = role(pool.namespace, f"{pool.name}-0000000b", size="64000m-128Mi")
    eventually(lambda: "is above the size of a hook Pod in pool" in create(worker, large)[1], within=60)


def wait_for_policies(tenant: Tenant) -> None:
    """Return once the tenant has its rights and each policy refuses something. The usual time is a second."""
    large = tenant.hook_pod()
    container(**limits("64"))(large)
    client = tenant.client
    eventually(lambda: allowed(client, "create", "pods", namespace=tenant.pool.namespace), within=60)
    eventually(lambda: "must have one owner" in create(client, bare(tenant))[1], within=60)
    eventually(lambda: "must have one owner" in create(client, keyless(tenant))[1], within=60)
    eventually(lambda: CPU in create(client, large)[1], within=60)


def bare(tenant: Tenant) -> Json:
    pod = tenant.hook_pod(step_pod(tenant.pod.name, 0))
    del pod["metadata"]["ownerReferences"]
    return pod


def keyless(tenant: Tenant) -> Json:
    body = tenant.secret(1)
    del body["metadata"]["ownerReferences"]
    return body


def role(namespace: str, name: str, size: str | None = SIZE) -> Json:
    pool = name[:-9]
    return build_role(namespace=namespace, name=name, pool=pool, attempt="a", digest="d", account_uid="u", size=size)


def binding(namespace: str, name: str) -> Json:
    pool = name[:-9]
    return build_role_binding(namespace=namespace, name=name, pool=pool, attempt="a", digest="d", account_uid="u")


# What a runner may do.


def test_runner_creates_hook_pods_and_secrets_with_each_of_its_names(stage: Stage) -> None:
    one = stage.one
    for name in pod_names(one.pod.name)[1:]:
        assert create(one.client, one.hook_pod(name)) == (200, "")
    for n in range(1, len(secret_names(one.pod.name))):
        assert create(one.client, one.secret(n)) == (200, "")
    registry = one.secret(1) | {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}
    assert create(one.client, registry) == (200, "")


def test_runner_has_the_rights_of_its_role_and_no_other(stage: Stage) -> None:
    one, namespace = stage.one, stage.cast.runners
    wanted = {
        "pods": {"create", "get", "delete"},
        "pods/exec": {"create", "get"},
        "pods/log": {"get"},
        "secrets": set(),
    }
    name = workflow_pod(one.pod.name)
    for resource in (
        *wanted,
        "pods/attach",
        "pods/portforward",
        "pods/binding",
        "pods/eviction",
        "pods/ephemeralcontainers",
        "pods/status",
        "pods/resize",
        "serviceaccounts",
        "serviceaccounts/token",
        "configmaps",
        "events",
        f"{RBAC}@roles",
        f"{RBAC}@rolebindings",
        "batch@jobs",
        "ostler.dev@runnerpools",
    ):
        found = {verb for verb in ALL if allowed(one.client, verb, resource, namespace=namespace, name=name)}
        assert found - {"create"} == wanted.get(resource, set()) - {"create"}, resource
        created = allowed(one.client, "create", resource, namespace=namespace)
        assert created is (resource in {"pods", "secrets"}), resource
        assert allowed(one.client, "create", resource, namespace=namespace, name=name) is (
            "create" in wanted.get(resource, set()) or resource in {"pods", "secrets"}
        ), resource
    for size, granted in ((SIZE, True), ("1000m-128Mi", False), ("64000m-128Mi", False), (None, False)):
        assert allowed(one.client, "use", "ostler.dev@hooksizes", namespace=namespace, name=size) is granted, size
    own = secret(one.pod.name, 0)
    assert {verb for verb in ALL if allowed(one.client, verb, "secrets", namespace=namespace, name=own)} == {
        "create",
        "get",
        "delete",
    }


def test_runner_reads_and_deletes_its_own_objects(stage: Stage) -> None:
    one, namespace = stage.one, stage.cast.runners
    for kind, name in (("pods", workflow_pod(one.pod.name)), ("secrets", secret(one.pod.name, 0))):
        path = object_path(kind, namespace=namespace, name=name)
        assert answer(one.client, "GET", path) == (200, "")
        assert answer(one.client, "DELETE", path) == (200, "")


# How a runner deletes its hook Pods.


@pytest.fixture
def bound(stage: Stage) -> Iterator[str]:
    """The path of a hook Pod on a node. The API server applies grace periods to such Pods only."""
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 7))
    assert create(stage.one.client, pod, dry=False) == (200, "")
    name = pod["metadata"]["name"]
    path = object_path("pods", namespace=stage.cast.runners, name=name)
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "somewhere"}}
    stage.cast.admin.request("POST", f"{path}/binding", body=body)
    yield path
    stage.cast.admin.request("DELETE", path, body={"gracePeriodSeconds": 0})


TOO_LONG = "must delete its hook Pods with a grace period of 300 seconds at most"


@pytest.mark.parametrize("how", ["body", "query"])
@pytest.mark.parametrize("seconds", [301, 10**9])
def test_runner_is_refused_a_longer_grace_period_of_a_deletion(
    stage: Stage, how: str, seconds: int, bound: str
) -> None:
    """A process that ignores SIGTERM would run for this time after its runner Pod is gone."""
    query = f"?gracePeriodSeconds={seconds}" if how == "query" else ""
    body = {"gracePeriodSeconds": seconds} if how == "body" else None

    status, message = answer(stage.one.client, "DELETE", f"{bound}{query}", body, dry=False)

    assert (status, TOO_LONG in message) == (403, True), message
    assert "deletionTimestamp" not in stage.cast.admin.request("GET", bound)["metadata"]


@pytest.mark.parametrize(("body", "seconds"), [(None, 30), ({}, 30), ({"gracePeriodSeconds": 300}, 300)])
def test_hook_pod_ends_within_300_seconds_of_its_deletion(
    stage: Stage, body: Json | None, seconds: int, bound: str
) -> None:
    assert answer(stage.one.client, "DELETE", bound, body, dry=False) == (200, "")
    answer(stage.one.client, "DELETE", bound, {"gracePeriodSeconds": 10**9}, dry=False)

    assert stage.cast.admin.request("GET", bound)["metadata"]["deletionGracePeriodSeconds"] == seconds


# What a runner must not do to others.


@pytest.mark.parametrize(
    ("method", "of"),
    [
        ("GET", lambda two: f"pods/{two.pod.name}"),
        ("DELETE", lambda two: f"pods/{two.pod.name}"),
        ("GET", lambda two: f"pods/{two.pod.name}/exec?command=sh&stdout=true"),
        ("POST", lambda two: f"pods/{two.pod.name}/exec?command=sh&stdout=true"),
        ("GET", lambda two: f"pods/{two.pod.name}/log"),
        ("GET", lambda two: f"pods/{workflow_pod(two.pod.name)}"),
        ("DELETE", lambda two: f"pods/{workflow_pod(two.pod.name)}"),
        ("GET", lambda two: f"pods/{workflow_pod(two.pod.name)}/exec?command=sh&stdout=true"),
        ("POST", lambda two: f"pods/{workflow_pod(two.pod.name)}/exec?command=sh&stdout=true"),
        ("GET", lambda two: f"pods/{workflow_pod(two.pod.name)}/log"),
        ("PUT", lambda two: f"pods/{workflow_pod(two.pod.name)}/ephemeralcontainers"),
        ("GET", lambda two: f"secrets/{secret(two.pod.name, 0)}"),
        ("DELETE", lambda two: f"secrets/{secret(two.pod.name, 0)}"),
        ("POST", lambda two: f"serviceaccounts/{two.pod.name}/token"),
        ("GET", lambda _: "pods"),
        ("GET", lambda _: "pods?watch=true"),
        ("GET", lambda _: "secrets"),
        ("GET", lambda _: "configmaps"),
        ("DELETE", lambda _: "pods"),
        ("DELETE", lambda _: "secrets"),
    ],
)
def test_runner_is_refused_the_objects_of_others(stage: Stage, method: str, of: Callable[[Tenant], str]) -> None:
    path = f"/api/v1/namespaces/{stage.cast.runners}/{of(stage.two)}"
    body: Json | None = {} if method in {"POST", "PUT"} else None
    status, message = answer(stage.one.client, method, path, body, dry="?" not in path)
    assert (status, "cannot" in message) == (403, True), message


@pytest.mark.parametrize("path", ["", "/status", "/exec?command=sh&stdout=true", "/token", "/ephemeralcontainers"])
def test_runner_is_refused_its_own_runner_pod(stage: Stage, path: str) -> None:
    one = stage.one
    kind = "serviceaccounts" if path == "/token" else "pods"
    own = object_path(kind, namespace=stage.cast.runners, name=one.pod.name)
    for method in ("GET", "PATCH", "DELETE", "POST"):
        if path == "" and method == "POST":
            continue
        body: Json | None = {} if method in {"POST", "PATCH"} else None
        assert answer(one.client, method, f"{own}{path}", body, dry=False)[0] == 403


def test_runner_is_refused_roles_and_objects_of_other_namespaces(stage: Stage) -> None:
    one, namespace = stage.one, stage.cast.runners
    for body in (role(namespace, one.pod.name), binding(namespace, one.pod.name)):
        assert create(one.client, body)[0] == 403
    for kind in ("roles", "rolebindings"):
        path = object_path(kind, namespace=namespace, name=one.pod.name, group=RBAC)
        for method in ("GET", "PATCH", "DELETE"):
            assert answer(one.client, method, path, {} if method == "PATCH" else None)[0] == 403
    pod = one.hook_pod()
    pod["metadata"]["namespace"] = "default"
    assert create(one.client, pod)[0] == 403


# Creations that the policies refuse.


def spec(**fields: Any) -> Change:
    return lambda body: body["spec"].update(fields)


def container(kind: str = "containers", **fields: Any) -> Change:
    return lambda body: body["spec"][kind][0].update(fields)


def limits(cpu: str, memory: str = "64Mi") -> Json:
    return {"resources": {"limits": {"cpu": cpu, "memory": memory}}}


def metadata(**fields: Any) -> Change:
    return lambda body: body["metadata"].update(fields)


def owner(**fields: Any) -> Change:
    return lambda body: body["metadata"]["ownerReferences"][0].update(fields)


def without(*path: Any) -> Change:
    def change(body: Json) -> None:
        for step in path[:-1]:
            body = body[step]
        del body[path[-1]]

    return change


TWO = "two-0000000a"
DURING = "DuringSchedulingIgnoredDuringExecution"
TO_A_HOST = {"httpGet": {"host": "169.254.169.254", "port": 80}}
PODS: dict[str, tuple[Change, str]] = {
    "name of another runner": (metadata(name=f"{TWO}-workflow"), "the names of its hook Pods only"),
    "name of a runner Pod": (metadata(name="one-0000000b"), "the names of its hook Pods only"),
    "step beyond the last": (metadata(name="one-0000000a-step-32"), "the names of its hook Pods only"),
    "step with a zero": (metadata(name="one-0000000a-step-00"), "the names of its hook Pods only"),
    "name of a Secret": (metadata(name="one-0000000a-secret-0"), "the names of its hook Pods only"),
    "generated name": (metadata(name=None, generateName="one-0000000a-step-"), "the names of its hook Pods only"),
    "no owner": (without("metadata", "ownerReferences"), "must have one owner"),
    "owner of another name": (owner(name=TWO), "must have one owner"),
    "owner with another UID": (owner(uid="0"), "must have one owner"),
    "owner of another kind": (owner(apiVersion="apps/v1", kind="ReplicaSet"), "must have one owner"),
    "owner that is blocked": (owner(blockOwnerDeletion=True), "must have one owner"),
    "second owner": (
        lambda body: body["metadata"]["ownerReferences"].append(
            {"apiVersion": "v1", "kind": "Pod", "name": TWO, "uid": "0"}
        ),
        "must have one owner",
    ),
    "hook-of of another runner": (
        lambda body: body["metadata"]["labels"].update({HOOK_OF_LABEL: TWO}),
        "must have the labels ostler.dev/hook-of: one-0000000a",
    ),
    "hook-pool of another pool": (
        lambda body: body["metadata"]["labels"].update({HOOK_POOL_LABEL: "two"}),
        "and ostler.dev/hook-pool: one",
    ),
    "label of a runner Pod": (
        lambda body: body["metadata"]["labels"].update({POOL_LABEL: "one"}),
        "a label that hook objects must not have",
    ),
    "label that opens the API server": (
        lambda body: body["metadata"]["labels"].update({"ostler.dev/containers": "kubernetes"}),
        "a label that hook objects must not have",
    ),
    "label of another manager": (
        lambda body: body["metadata"]["labels"].update({MANAGED_BY_LABEL: "Helm"}),
        "another value of the label app.kubernetes.io/managed-by than ostler",
    ),
    "unknown annotation": (metadata(annotations={"iam.example.com/role": "admin"}), "an annotation that hook objects"),
    "finalizer": (metadata(finalizers=["example.com/stays"]), "must not have a finalizer"),
    "ServiceAccount of another runner": (spec(serviceAccountName=TWO), "must have no ServiceAccount besides default"),
    "own ServiceAccount": (spec(serviceAccountName="one-0000000a"), "must have no ServiceAccount besides default"),
    "mounted token": (spec(automountServiceAccountToken=True), "automountServiceAccountToken: false"),
    "token by default": (without("spec", "automountServiceAccountToken"), "automountServiceAccountToken: false"),
    "projected token": (
        spec(volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
        "volumes of the kind emptyDir",
    ),
    "ConfigMap": (spec(volumes=[{"name": "v", "configMap": {"name": "c"}}]), "volumes of the kind emptyDir"),
    "claim": (
        spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "cache"}}]),
        "volumes of the kind emptyDir",
    ),
    "mounted Secret of another": (
        spec(volumes=[{"name": "v", "secret": {"secretName": f"{TWO}-secret-0"}}]),
        "and Secrets of one-0000000a",
    ),
    "environment from another Secret": (
        container(envFrom=[{"secretRef": {"name": f"{TWO}-secret-0"}}]),
        "read variables from Secrets of one-0000000a only",
    ),
    "environment of an init container": (
        container("initContainers", envFrom=[{"secretRef": {"name": "registry"}}]),
        "read variables from Secrets of one-0000000a only",
    ),
    "variable from another Secret": (
        container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "registry", "key": "a"}}}]),
        "read variables from Secrets of one-0000000a only",
    ),
    "variable from a ConfigMap": (
        container(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "a"}}}]),
        "read variables from Secrets of one-0000000a only",
    ),
    "environment from a ConfigMap": (
        container(envFrom=[{"configMapRef": {"name": "c"}}]),
        "read variables from Secrets of one-0000000a only",
    ),
    "pull Secret of another": (
        spec(imagePullSecrets=[{"name": f"{TWO}-secret-0"}]),
        "pull images with Secrets of one-0000000a only",
    ),
    "node": (spec(nodeName="node-1"), "must not set nodeName"),
    "toleration of everything": (spec(tolerations=[{"operator": "Exists"}]), "tolerates a taint"),
    "toleration of a control plane": (
        spec(tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]),
        "tolerates a taint",
    ),
    "distance from all other Pods": (
        spec(affinity={"podAntiAffinity": {f"required{DURING}": [{"topologyKey": "zone", "namespaceSelector": {}}]}}),
        "must not have a required podAntiAffinity",
    ),
    "priority": (spec(priorityClassName="system-node-critical"), "must not choose a PriorityClass"),
    "long end": (spec(terminationGracePeriodSeconds=301), "must end within 300 seconds"),
    "long end after a failed probe": (
        container(livenessProbe={"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 301}),
        "must end within 300 seconds",
    ),
    "restart policy": (spec(restartPolicy="Always"), "must set restartPolicy: Never"),
    "restart policy by default": (without("spec", "restartPolicy"), "must set restartPolicy: Never"),
    "no limits": (container(resources={}), "needs limits of cpu and memory"),
    "no limit of memory": (container(resources={"limits": {"cpu": "1"}}), "needs limits of cpu and memory"),
    # For the kubelet and for a ResourceQuota, a limit of 0 is no limit.
    **{
        f"limits {cpu} and {memory} in {kind}": (
            container(kind, **limits(cpu, memory)),
            "needs limits of cpu and memory",
        )
        for kind in ("containers", "initContainers")
        for cpu, memory in (("0", "64Mi"), ("0m", "64Mi"), ("100m", "0"), ("0", "0Gi"))
    },
    "resources of the whole Pod": (
        spec(resources={"requests": {"cpu": "64"}, "limits": {"cpu": "64"}}),
        "neither resource claims nor resources of the whole Pod",
    ),
    "limit of another resource": (
        container(resources={"limits": LIMITS | {"nvidia.com/gpu": "8"}}),
        "a resource that hook Pods must not have",
    ),
    "huge pages of an init container": (
        container("initContainers", resources={"limits": LIMITS | {"hugepages-2Mi": "1Gi"}}),
        "a resource that hook Pods must not have",
    ),
    "init container without limits": (container("initContainers", resources={}), "needs limits of cpu and memory"),
    "container that runs as root": (
        container(securityContext=SECURE | {"runAsNonRoot": False}),
        "violates PodSecurity",
    ),
}


OF_NODES: dict[str, tuple[Change, str]] = {
    "host path": (spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "volumes of the kind emptyDir"),
    "host network": (spec(hostNetwork=True), "a namespace of its node"),
    "host processes": (spec(hostPID=True), "a namespace of its node"),
    "host IPC": (spec(hostIPC=True), "a namespace of its node"),
    "probe of a host": (container(livenessProbe=TO_A_HOST), "a probe or a lifecycle handler with a host"),
    "start probe of a host": (
        container(startupProbe={"tcpSocket": {"host": "169.254.169.254", "port": 80}}),
        "a probe or a lifecycle handler with a host",
    ),
    "handler with a host": (
        container(lifecycle={"postStart": TO_A_HOST}),
        "a probe or a lifecycle handler with a host",
    ),
}
"""Changes that Pod Security refuses too, at least in the newest version of Kubernetes."""


@pytest.mark.parametrize("what", PODS)
def test_runner_is_refused_a_pod_with(stage: Stage, what: str) -> None:
    change, why = PODS[what]
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))
    change(pod)
    status, message = create(stage.one.client, pod)
    assert (status, why in message) == (403, True), message


SECRETS: dict[str, tuple[Change, str]] = {
    "label of another manager": (
        lambda body: body["metadata"]["labels"].update({MANAGED_BY_LABEL: "Helm"}),
        "another value of the label app.kubernetes.io/managed-by than ostler",
    ),
    "name of another runner": (metadata(name=f"{TWO}-secret-1"), "the names of its Secrets only"),
    "another name": (metadata(name="registry"), "the names of its Secrets only"),
    "number beyond the last": (metadata(name="one-0000000a-secret-8"), "the names of its Secrets only"),
    "no owner": (without("metadata", "ownerReferences"), "must have one owner"),
    "owner with another UID": (owner(uid="0"), "must have one owner"),
    "label of a pool": (
        lambda body: body["metadata"]["labels"].update({POOL_LABEL: "one"}),
        "a label that hook objects must not have",
    ),
    "type of a ServiceAccount token": (
        lambda body: (
            body.update(type="kubernetes.io/service-account-token"),
            body["metadata"]["annotations"].update({OF_TOKENS: TWO}),
        ),
        "must have the type Opaque or kubernetes.io/dockerconfigjson",
    ),
    "type of a bootstrap token": (
        lambda body: body.update(type="bootstrap.kubernetes.io/token"),
        "must have the type Opaque or kubernetes.io/dockerconfigjson",
    ),
    "unknown annotation": (
        metadata(annotations={"iam.example.com/role": "admin"}),
        "an annotation that hook objects must not have",
    ),
    "finalizer": (metadata(finalizers=["example.com/stays"]), "must not have a finalizer"),
}


@pytest.mark.parametrize("what", SECRETS)
def test_runner_is_refused_a_secret_with(stage: Stage, what: str) -> None:
    change, why = SECRETS[what]
    body = stage.one.secret(1)
    change(body)
    status, message = create(stage.one.client, body)
    assert (status, why in message) == (403, True), message


CPU, MEMORY = "the limits of CPU are above", "the limits of memory are above"


def test_token_that_is_not_bound_to_the_pod_creates_nothing(
    stage: Stage, admin: KubeClient, control_plane: ClusterAccess, tmp_path: Path
) -> None:
    one, namespace = stage.one, stage.cast.runners
    path = f"{object_path('serviceaccounts', namespace=namespace, name=one.pod.name)}/token"
    token = admin.request("POST", path, body={"spec": {}})["status"]["token"]
    write_kubeconfig(tmp_path / "kubeconfig", url=control_plane.url, ca_file=control_plane.ca_file, token=token)
    client = make_client(kubeconfig=str(tmp_path / "kubeconfig"))
    for body in (one.hook_pod(step_pod(one.pod.name, 1)), one.secret(1)):
        status, message = create(client, body)
        assert (status, "is not bound to the Pod of this name" in message) == (403, True), message
    client.close()


def test_hook_pods_may_have_what_the_operator_allows(stage: Stage) -> None:
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))
    pod["metadata"]["labels"]["team"] = "web"
    assert create(stage.one.client, pod) == (200, "")


@contextmanager
def level(stage: Stage, name: str | None) -> Iterator[None]:
    """Give another Pod Security level to the namespace of the runners."""
    path, key = f"/api/v1/namespaces/{stage.cast.runners}", "pod-security.kubernetes.io/enforce"
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))

    def give(value: str | None) -> None:
        body = {"metadata": {"labels": {key: value}}}
        stage.cast.admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    give(name)
    try:
        eventually(lambda: "need the label" in create(stage.one.client, pod)[1], within=60)
        yield
    finally:
        give("restricted")
        eventually(lambda: create(stage.one.client, pod) == (200, ""), within=60)


def test_hook_pods_need_a_namespace_with_a_security_level(stage: Stage) -> None:
    with level(stage, None):
        pass


def test_policy_itself_refuses_what_belongs_to_the_node(stage: Stage) -> None:
    with level(stage, "privileged"):
        for change, why in OF_NODES.values():
            pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))
            change(pod)
            status, message = create(stage.one.client, pod)
            assert (status, why in message) == (403, True), message


@pytest.mark.parametrize("what", OF_NODES)
def test_pod_security_refuses_what_belongs_to_the_node(stage: Stage, what: str) -> None:
    pod = stage.one.hook_pod(step_pod(stage.one.pod.name, 1))
    OF_NODES[what][0](pod)
    assert create(stage.one.client, pod)[0] == 403


# What a worker must not do.


def role_size(size: str) -> Change:
    def change(body: Json) -> None:
        body["rules"][5]["resourceNames"][1] = size

    return change


ROLES: dict[str, tuple[Change, str]] = {
    "more rights": (
        lambda body: body["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}),
        "and no other rules",
    ),
    "every resource": (
        lambda body: body.update(rules=[{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        "and no other rules",
    ),
    "one verb more": (lambda body: body["rules"][0]["verbs"].append("patch"), "and no other rules"),
    "one name more": (lambda body: body["rules"][1]["resourceNames"].append("two-0000000a"), "and no other rules"),
    "names of another": (
        lambda body: body["rules"][1].update(resourceNames=list(pod_names(TWO))),
        "and no other rules",
    ),
    "no names": (lambda body: body["rules"][1].pop("resourceNames"), "and no other rules"),
    "no rules": (lambda body: body.update(rules=[]), "and no other rules"),
    "two sizes": (lambda body: body["rules"][5]["resourceNames"].append("64000m-128Mi"), "and no other rules"),
    "two sizes in another order": (
        lambda body: body["rules"][5]["resourceNames"].insert(1, "64000m-128Mi"),
        "and no other rules|is above the size of a hook Pod",  # two policies refuse it, and any of them answers
    ),
    "a size that is no size": (role_size("*"), "and no other rules"),
    "a size of zero": (
        role_size("0m-128Mi"),
        "and no other rules",
    ),
    "every size": (lambda body: body["rules"][5].pop("resourceNames"), "and no other rules"),
    "a size without the name of the limit": (
        lambda body: body["rules"][5]["resourceNames"].__delitem__(0),
        "and no other rules",
    ),
    "another right to the size": (lambda body: body["rules"][5].update(verbs=["*"]), "and no other rules"),
    "too much CPU": (
        role_size("1501m-128Mi"),
        "the size 1501m-128Mi is above the size of a hook Pod in pool one",
    ),
    "too much memory": (
        role_size("1500m-129Mi"),
        "the size 1500m-129Mi is above the size of a hook Pod in pool one",
    ),
    "another API group": (lambda body: body["rules"][0].update(apiGroups=["*"]), "and no other rules"),
    "a free name": (metadata(name="deployer"), "of a runner Pod is named after the pool"),
    "no label": (metadata(labels={}), "of a runner Pod is named after the pool"),
    "another label": (metadata(labels={POOL_LABEL: "two"}), "of a runner Pod is named after the pool"),
}
BINDINGS: dict[str, tuple[Change, str]] = {
    "another subject": (
        lambda body: body["subjects"][0].update(name=TWO),
        "to the ServiceAccount of its name",
    ),
    "another namespace": (
        lambda body: body["subjects"][0].update(namespace="default"),
        "to the ServiceAccount of its name",
    ),
    "a user": (
        lambda body: body.update(subjects=[{"apiGroup": RBAC, "kind": "User", "name": "eve"}]),
        "to the ServiceAccount of its name",
    ),
    "a second subject": (
        lambda body: body["subjects"].append({"apiGroup": RBAC, "kind": "Group", "name": "system:authenticated"}),
        "to the ServiceAccount of its name",
    ),
    "another Role": (lambda body: body["roleRef"].update(name=TWO), "must bind the Role of its name"),
    "a free name": (metadata(name="deployer"), "of a runner Pod is named after the pool"),
}


@pytest.mark.parametrize("what", ROLES)
def test_worker_is_refused_a_role_with(stage: Stage, what: str) -> None:
    change, why = ROLES[what]
    body = role(stage.cast.runners, "one-0000000b")
    change(body)
    status, message = create(stage.worker, body)
    assert (status, any(each in message for each in why.split("|"))) == (403, True), message


@pytest.mark.parametrize("what", BINDINGS)
def test_worker_is_refused_a_binding_with(stage: Stage, what: str) -> None:
    change, why = BINDINGS[what]
    body = binding(stage.cast.runners, "one-0000000b")
    change(body)
    status, message = create(stage.worker, body)
    assert (status, why in message) == (403, True), message


def test_worker_cannot_bind_a_cluster_role(stage: Stage) -> None:
    body = binding(stage.cast.runners, "one-0000000b")
    body["roleRef"] |= {"kind": "ClusterRole", "name": "cluster-admin"}
    assert create(stage.worker, body)[0] == 403


def test_worker_creates_the_role_and_binding_of_a_runner_and_changes_none(stage: Stage) -> None:
    namespace, name = stage.cast.runners, stage.one.pod.name
    assert create(stage.worker, role(namespace, "one-0000000b")) == (200, "")
    assert create(stage.worker, binding(namespace, "one-0000000b")) == (200, "")
    for kind in ("roles", "rolebindings"):
        path = object_path(kind, namespace=namespace, name=name, group=RBAC)
        found = stage.worker.request("GET", path)
        assert answer(stage.worker, "PUT", path, found)[0] == 403
        assert answer(stage.worker, "PATCH", path, {})[0] == 403
        assert answer(stage.worker, "DELETE", path)[0] == 403


def test_worker_that_could_update_roles_is_refused_by_the_policy(stage: Stage, admin: KubeClient) -> None:
    """Somebody might give a worker more verbs by another Role."""
    namespace = stage.cast.runners
    called = {"name": "more", "namespace": namespace}
    rules = [{"apiGroups": [RBAC], "resources": ["roles", "rolebindings"], "verbs": ["update"]}]
    subject = {"kind": "ServiceAccount", "name": "ostler-worker", "namespace": stage.cast.release}
    for each in (
        {"kind": "Role", "rules": rules},
        {
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "more"},
            "subjects": [subject],
        },
    ):
        Kinds(admin).apply({"apiVersion": f"{RBAC}/v1", "metadata": called, **each})
    path = object_path("roles", namespace=namespace, name=stage.one.pod.name, group=RBAC)
    found = stage.worker.request("GET", path)
    eventually(lambda: "and must not change them" in answer(stage.worker, "PUT", path, found)[1], within=60)


def test_worker_cannot_execute_commands_or_read_secrets(stage: Stage) -> None:
    namespace = stage.cast.runners
    for name in (stage.one.pod.name, workflow_pod(stage.one.pod.name)):
        path = object_path("pods", namespace=namespace, name=name)
        assert answer(stage.worker, "GET", f"{path}/exec?command=sh&stdout=true", dry=False)[0] == 403
        assert answer(stage.worker, "GET", f"{path}/log", dry=False)[0] == 403
    path = object_path("secrets", namespace=namespace, name=secret(stage.one.pod.name, 0))
    assert answer(stage.worker, "GET", path)[0] == 403


def test_doctor_sees_the_policy_for_roles_as_a_worker_and_as_an_administrator(stage: Stage) -> None:
    for client in (stage.worker, stage.cast.admin):
        found = refuses_other_roles(client, stage.cast.runners)
        assert (found.refused, found.cure) == (True, None)
        assert "ValidatingAdmissionPolicy" in found.why


def test_doctor_sees_that_a_worker_may_create_any_role(stage: Stage, namespace: str) -> None:
    """The worker's Role exists, but the policy does not."""
    admin = stage.cast.admin
    release = f"bare-{namespace}"
    bare = Identities(admin, namespace=release, runners=namespace, values=VALUES)
    for each in bare.manifests:
        if each["kind"] in {"Role", "RoleBinding"} and each["metadata"]["name"].endswith("-worker"):
            Kinds(admin).apply(each)
    eventually(lambda: refuses_other_roles(admin, namespace).refused is False, within=60)
    found = refuses_other_roles(admin, namespace)
    assert f"may create any Role in {namespace}" in found.why
    assert "runners.containers.enabled" in (found.cure or "")


def test_doctor_names_the_rights_for_container_jobs_that_a_worker_lacks(stage: Stage, cast: Cast) -> None:
    """The release of `cast` has no container jobs, although a pool with container jobs exists."""
    create_pool(cast.admin, namespace=cast.runners, name="images", spec=pool_spec("images"))
    for client, runners, outcome in (
        (cast.clients["worker"], cast.runners, Outcome.FAILED),
        (stage.worker, stage.cast.runners, Outcome.OK),
    ):
        place = SimpleNamespace(namespace=runners, namespaces=(runners,))
        pools = list_pools(client, namespace=runners)
        seen = SimpleNamespace(kube=client, place=place, lab_cluster=False, pools=lambda pools=pools: pools)
        found = cluster.rights(seen)  # type: ignore[arg-type]
        assert found.outcome is outcome, found
        lacks = "create roles.rbac.authorization.k8s.io, escalate roles.rbac.authorization.k8s.io" in found.cause
        assert lacks is (outcome is Outcome.FAILED)


def test_lists_of_runner_pods_contain_no_hook_pods(stage: Stage) -> None:
    admin, namespace = stage.cast.admin, stage.cast.runners
    runners = {stage.one.pod.name, stage.two.pod.name}
    assert {each.name for each in list_pods(admin, namespace=namespace)} == runners
    pages = metadata_pages(admin, "pods", namespace=namespace, selector=OF_POOLS)
    assert {each.name for page in pages for each in page} == runners
    assert all(HOOK_OF_LABEL not in each for each in labels_of_runners(admin, namespace=namespace))
    assert find_left_over(admin, namespace=namespace) == []


def test_garbage_collector_deletes_hook_objects_after_the_runner_pod(stage: Stage) -> None:
    admin, namespace = stage.cast.admin, stage.cast.runners
    pool = create_pool(admin, namespace=namespace, name="three", spec=pool_spec("three"))
    made = make_runner(stage.worker, pool)
    three = Tenant(pool=pool, pod=made, client=admin, size=SIZE)
    for body in (three.hook_pod(), three.secret()):
        assert create(admin, body, dry=False) == (200, "")
    paths = [
        object_path("pods", namespace=namespace, name=workflow_pod(made.name)),
        object_path("secrets", namespace=namespace, name=secret(made.name, 0)),
        object_path("roles", namespace=namespace, name=made.name, group=RBAC),
        object_path("rolebindings", namespace=namespace, name=made.name, group=RBAC),
    ]
    assert [answer(admin, "GET", path)[0] for path in paths] == [200] * 4

    delete_runner(stage.worker, namespace=namespace, name=made.name, uid=made.uid)

    eventually(lambda: [answer(admin, "GET", path)[0] for path in paths] == [404] * 4, within=60)


def test_eviction_of_a_hook_pod_waits_until_it_has_ended(stage: Stage) -> None:
    """A hook Pod can be Ready, unlike a runner Pod, and has no controller. The budget must not count it as spare."""
    admin, namespace = stage.cast.admin, stage.cast.runners
    path = object_path("pods", namespace=namespace, name=workflow_pod(stage.two.pod.name))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": workflow_pod(stage.two.pod.name)}}
    budget = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/runners-hooks"

    def status(**fields: Any) -> None:
        admin.request("PATCH", f"{path}/status", body={"status": fields}, content_type=MERGE_PATCH)

    status(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    eventually(lambda: (admin.request("GET", budget).get("status") or {}).get("currentHealthy"), within=60)
    assert answer(admin, "POST", f"{path}/eviction", body)[0] == 429
    status(phase="Succeeded")
    assert answer(admin, "POST", f"{path}/eviction", body)[0] in {200, 201}


def is_checked(admin: KubeClient, path: str) -> bool:
    """Return whether the controller has checked the types of a policy."""
    return "typeChecking" in (admin.request("GET", path).get("status") or {})


def test_expressions_of_hook_policies_pass_the_type_check(stage: Stage) -> None:
    admin = stage.cast.admin
    policies = [
        each
        for each in stage.cast.identities.manifests
        if each["kind"] == POLICY[0] and "-hook-" in each["metadata"]["name"]
    ]
    assert len(policies) == 8
    for policy in policies:
        path = f"{Kinds(admin).collection(policy)}/{policy['metadata']['name']}"
        eventually(partial(is_checked, admin, path), within=60)
        assert admin.request("GET", path)["status"]["typeChecking"].get("expressionWarnings") is None
