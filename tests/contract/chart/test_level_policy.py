"""Levels of Pods under the chart's policies in the namespace for higher levels, as a worker and as a runner."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import Json, KubeClient, make_client, object_path
from k8s_adapters.names import POOL_LABEL
from k8s_adapters.pools.pool_reader import read_pool
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.runners import build_pod
from lab.control_plane import ClusterAccess
from lab.control_plane_access import write_kubeconfig
from lab.identities import Identities
from rules.pools.pod_security import PodSecurity
from tests.contract.chart.test_creation_policy import refusal
from tests.waiting import eventually

RESTRICTED, BASELINE, PRIVILEGED = PodSecurity
POOLS = {
    "docker": PRIVILEGED,
    "base": BASELINE,
    "small": RESTRICTED,
    "liar": PRIVILEGED,
    "lower": BASELINE,
    "higher": PRIVILEGED,
}
"""Pools of the namespace, with the level in their spec."""

LISTED = {
    "docker": "privileged",
    "base": "baseline",
    "lower": "privileged",
    "higher": "baseline",
    "builds": "privileged",
    "absent": "baseline",
}
"""Pools of the chart, with their levels."""

BOUNDS = {
    "docker": PRIVILEGED,
    "base": BASELINE,
    "small": RESTRICTED,
    "liar": RESTRICTED,
    "lower": BASELINE,
    "higher": BASELINE,
    "ghost": RESTRICTED,
    "absent": BASELINE,
}
"""The weakest level of a Pod with this name of a pool. The pools ghost and absent do not exist."""


BUILDS: Mapping[str, Any] = {
    "image": "i",
    "runnerLabels": ["linux"],
    "security": {"podSecurity": "privileged"},
    "containers": {"mode": "buildkit"},
}
"""Spec of the pool `builds`, whose Pods need a user namespace."""


@dataclass(frozen=True)
class Scene:
    """A namespace for pools above restricted."""

    worker: KubeClient
    runners: Mapping[str, KubeClient]
    elevated: str

    def pod(self, pool: str) -> Json:
        """Return a runner Pod as Ostler builds it for a restricted pool of this name."""
        metadata = {"uid": "u", "name": pool, "namespace": self.elevated}
        seen = read_pool({"metadata": metadata, "spec": {"image": "i", "runnerLabels": ["linux"]}})
        return build_pod(pool=seen, name=f"{pool}-0000000a", attempt="a", dispatch_url="https://web/", audience="a")


def container(**security: Any) -> Callable[[Json], None]:
    """Return a change of the security context of the container runner. A value of None removes the field."""

    def change(pod: Json) -> None:
        context = pod["spec"]["containers"][1]["securityContext"]
        context.update(security)
        for name in [name for name, value in security.items() if value is None]:
            del context[name]

    return change


def whole(**fields: Any) -> Callable[[Json], None]:
    """Return a change of the Pod's spec. The fields of its security context are replaced one by one."""

    def change(pod: Json) -> None:
        pod["spec"].update({name: value for name, value in fields.items() if name != "securityContext"})
        context = {**pod["spec"]["securityContext"], **fields.get("securityContext", {})}
        pod["spec"]["securityContext"] = {name: value for name, value in context.items() if value is not None}

    return change


def port(pod: Json) -> None:
    pod["spec"]["containers"][1]["ports"] = [{"containerPort": 80, "hostPort": 80}]


def init(pod: Json) -> None:
    pod["spec"]["initContainers"] = [{"name": "i", "image": "i", "securityContext": {"privileged": True}}]


def probe(pod: Json) -> None:
    pod["spec"]["containers"][1]["livenessProbe"] = {"httpGet": {"port": 80, "host": "10.0.0.1"}}


def unmasked(pod: Json) -> None:
    container(procMount="Unmasked")(pod)
    whole(hostUsers=False)(pod)


def annotated(pod: Json) -> None:
    pod["metadata"]["annotations"]["container.apparmor.security.beta.kubernetes.io/runner"] = "unconfined"


CHANGES: Mapping[str, tuple[PodSecurity, Callable[[Json], None]]] = {
    "nothing": (RESTRICTED, lambda _: None),
    "a capability that restricted allows": (
        RESTRICTED,
        container(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    ),
    "privilege escalation": (BASELINE, container(allowPrivilegeEscalation=True)),
    "privilege escalation by default": (BASELINE, container(allowPrivilegeEscalation=None)),
    "capabilities of the runtime": (BASELINE, container(capabilities=None)),
    "a capability of baseline": (BASELINE, container(capabilities={"drop": ["ALL"], "add": ["SETUID"]})),
    "a container as root": (BASELINE, container(runAsUser=0, runAsNonRoot=False)),
    "a container with the user root": (BASELINE, container(runAsUser=0)),
    "a container that may be root": (BASELINE, container(runAsNonRoot=False)),
    "a Pod that may be root": (BASELINE, whole(securityContext={"runAsNonRoot": None})),
    "a Pod with the user root": (BASELINE, whole(securityContext={"runAsUser": 0})),
    "a Pod as root": (BASELINE, whole(securityContext={"runAsUser": 0, "runAsNonRoot": None})),
    "no seccomp profile": (BASELINE, whole(securityContext={"seccompProfile": None})),
    "a privileged container": (PRIVILEGED, container(privileged=True, allowPrivilegeEscalation=None)),
    "a privileged init container": (PRIVILEGED, init),
    "any capability": (PRIVILEGED, container(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
    "an unmasked proc": (PRIVILEGED, unmasked),
    "an unconfined container": (PRIVILEGED, container(seccompProfile={"type": "Unconfined"})),
    "an unconfined Pod": (PRIVILEGED, whole(securityContext={"seccompProfile": {"type": "Unconfined"}})),
    "no AppArmor": (PRIVILEGED, container(appArmorProfile={"type": "Unconfined"})),
    "no AppArmor by annotation": (PRIVILEGED, annotated),
    "a port of the node": (PRIVILEGED, port),
    "a probe of another host": (PRIVILEGED, probe),
    "a sysctl": (PRIVILEGED, whole(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]})),
    "an SELinux type": (PRIVILEGED, container(seLinuxOptions={"type": "spc_t"})),
}


NEVER: Mapping[str, Callable[[Json], None]] = {
    "the node's network": whole(hostNetwork=True),
    "the node's processes": whole(hostPID=True),
    "the node's IPC": whole(hostIPC=True),
    "a node by its name": whole(nodeName="control-plane"),
}
"""Changes that no level allows."""


def levels(control: KubeClient, elevated: str, level: str) -> None:
    """Create the namespace as the chart does."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    control.request("POST", "/api/v1/namespaces", body={"metadata": {"name": elevated, "labels": labels}})


def runner_client(admin: KubeClient, elevated: str, name: str, access: ClusterAccess, folder: Path) -> KubeClient:
    """Return a client with the token of a runner Pod's ServiceAccount, which may do everything in its namespace."""
    body: Json = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": elevated}],
    }
    group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{elevated}/rolebindings"
    admin.request("POST", group, body=body)
    path = f"{object_path('serviceaccounts', namespace=elevated, name=name)}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = str(admin.request("POST", path, body=asked)["status"]["token"])
    write_kubeconfig(folder / name, url=access.url, ca_file=access.ca_file, token=token)
    return make_client(kubeconfig=str(folder / name))


@pytest.fixture(scope="module")
def scene(admin: KubeClient, control_plane: ClusterAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    release = f"levels-{secrets.token_hex(6)}"
    runners, elevated = f"{release}-runners", f"{release}-up"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": runners}})
    levels(admin, elevated, "privileged")
    values = {
        "allowedPodSecurity": "privileged",
        "elevatedNamespace": elevated,
        "elevatedPools": LISTED,
    }
    identities = Identities(admin, namespace=release, runners=runners, values={"runners": values})
    for name, level in POOLS.items():
        spec = {"image": "i", "runnerLabels": ["linux"], "security": {"podSecurity": str(level)}}
        create_pool(admin, namespace=elevated, name=name, spec=spec)
    create_pool(admin, namespace=elevated, name="builds", spec=dict(BUILDS))
    for name in (*POOLS, "builds", "ghost", "absent"):
        body: Json = {"metadata": {"name": f"{name}-0000000a"}}
        admin.request("POST", object_path("serviceaccounts", namespace=elevated), body=body)
    identities.put_in_place()
    folder = tmp_path_factory.mktemp("identities")
    worker = make_client(kubeconfig=str(identities.kubeconfig("worker", control_plane, folder)))
    runner_clients = {pool: runner_client(admin, elevated, f"{pool}-0000000a", control_plane, folder) for pool in POOLS}
    found = Scene(worker, runner_clients, elevated)
    escalates = CHANGES["privilege escalation"][1]
    for pool in ("small", "liar"):
        pod = found.pod(pool)
        escalates(pod)
        eventually(partial(refusal, worker, pod), within=60)
    privileged = found.pod("base")
    CHANGES["a privileged container"][1](privileged)
    eventually(partial(refusal, worker, privileged), within=60)
    yield found
    for client in (worker, *runner_clients.values()):
        client.close()
    identities.remove()
    for name in (runners, elevated):
        admin.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("what", list(CHANGES))
def test_worker_creates_pods_up_to_the_level_of_their_pool(scene: Scene, what: str) -> None:
    needed, change = CHANGES[what]
    found = {}
    for pool in BOUNDS:
        pod = copy.deepcopy(scene.pod(pool))
        change(pod)
        found[pool] = refusal(scene.worker, pod)
    allowed = {pool for pool, said in found.items() if said is None}
    assert allowed == {pool for pool, bound in BOUNDS.items() if needed.rank <= bound.rank}, found
    assert all("Pod Security level" in said for said in found.values() if said is not None), found


@pytest.mark.parametrize("what", list(CHANGES))
def test_worker_creates_stateful_sets_up_to_the_level_of_their_pool(scene: Scene, what: str) -> None:
    needed, change = CHANGES[what]
    found = {}
    for pool in BOUNDS:
        pod = copy.deepcopy(scene.pod(pool))
        change(pod)
        found[pool] = refusal(scene.worker, in_a_set(pod))
    allowed = {pool for pool, said in found.items() if said is None}
    assert allowed == {pool for pool, bound in BOUNDS.items() if needed.rank <= bound.rank}, found


@pytest.mark.parametrize("what", list(NEVER))
def test_stateful_set_of_no_level_uses_its_node(scene: Scene, what: str) -> None:
    pod = scene.pod("docker")
    NEVER[what](pod)
    assert "no pool can" in str(refusal(scene.worker, in_a_set(pod)))


def in_a_set(pod: Json) -> Json:
    """Return the StatefulSet of a Pod of the workload `Pod`."""
    name = pod["metadata"]["name"]
    selected = {POOL_LABEL: pod["metadata"]["labels"][POOL_LABEL]}
    spec = {**pod["spec"], "restartPolicy": "Always", "serviceAccountName": f"{name}-0"}
    metadata = {key: pod["metadata"].get(key) or {} for key in ("labels", "annotations")}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": pod["metadata"],
        "spec": {
            "serviceName": name,
            "selector": {"matchLabels": selected},
            "template": {"metadata": metadata, "spec": spec},
        },
    }


@pytest.mark.parametrize("what", ["nothing", "privilege escalation", "a privileged container"])
def test_job_creates_pods_up_to_the_level_of_its_own_pool(scene: Scene, what: str) -> None:
    needed, change = CHANGES[what]
    allowed = set()
    for pool, client in scene.runners.items():
        pod = scene.pod("docker")  # its labels and its name say nothing
        pod["metadata"]["name"] = "docker-0000000a-workflow"
        change(pod)
        if refusal(client, pod) is None:
            allowed.add(pool)
    assert allowed == {pool for pool in POOLS if needed.rank <= BOUNDS[pool].rank}


def test_pod_with_a_builder_needs_a_user_namespace_of_its_own(scene: Scene) -> None:
    seen = read_pool({"metadata": {"uid": "u", "name": "builds", "namespace": scene.elevated}, "spec": BUILDS})
    pod = build_pod(
        pool=seen, name="builds-0000000a", attempt="a", dispatch_url="https://web/", audience="a", builder_image="b"
    )
    assert refusal(scene.worker, pod) is None

    for users in ({}, {"hostUsers": True}):
        without = {**pod, "spec": {name: value for name, value in pod["spec"].items() if name != "hostUsers"} | users}
        said = refusal(scene.worker, without)
        assert "has no user namespace of its own, which pool builds needs" in str(said)


@pytest.mark.parametrize("what", list(NEVER))
def test_pod_of_no_level_uses_its_node(scene: Scene, what: str) -> None:
    found = {}
    for pool in BOUNDS:
        pod = scene.pod(pool)
        NEVER[what](pod)
        found[pool] = refusal(scene.worker, pod)
    assert None not in found.values(), found
    assert "no pool can" in str(found["docker"])


def test_refused_pod_names_the_cure_in_the_chart(scene: Scene) -> None:
    pod = scene.pod("liar")
    CHANGES["privilege escalation"][1](pod)
    said = refusal(scene.worker, pod)
    assert "its pool liar in runners.elevatedPools of the chart" in str(said)
