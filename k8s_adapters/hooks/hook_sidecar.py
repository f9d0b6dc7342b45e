"""The sidecar of a runner Pod with container jobs: the native sidecar `hooks`, its volumes and its token.

The sidecar executes `ostler hook serve`. No other container of the Pod has a token of the Kubernetes API. Container
`runner` sees the folder of the socket read-only, so code of a job can connect to the socket but cannot replace it or
`hook.sh`.

A native sidecar starts before the main containers and ends after them, so the sidecar does not change when a Pod is
over. The kubelet starts the main containers after the startup probe has succeeded, and restarts a sidecar that has
ended.
"""

from __future__ import annotations

from k8s_adapters.calls.client import Json
from k8s_adapters.hooks.externals import copy_externals
from k8s_adapters.names import CONTAINERS_KUBERNETES, CONTAINERS_LABEL
from rules.pools.hook_names import login_secret
from rules.pools.pod_template import (
    EXTERNALS_VOLUME,
    GITHUB_VOLUME,
    HOOKS,
    HOOKS_PROGRAM,
    HOOKS_TOKEN_VOLUME,
    HOOKS_VOLUME,
    RUNNER,
    WORK_VOLUME,
)
from rules.pools.pool_spec import HookPods, PoolSpec

FOLDER = "/var/run/ostler-hooks"
SOCKET = f"{FOLDER}/hooks.sock"
SCRIPT = f"{FOLDER}/hook.sh"
_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path, where clients look for a token
_WORK = "/home/runner/_work"
_TOKEN_SECONDS = 3600
_CPU, _MEMORY = "250m", "256Mi"
_STARTS_WITHIN = 180  # seconds


def add_sidecar(pod: Json, *, pool: PoolSpec, containers: HookPods, image: str) -> None:
    """Add the sidecar, its volumes and the variable for the runner to a Pod that `build_pod` makes."""
    name = pod["metadata"]["name"]
    pod["metadata"]["labels"][CONTAINERS_LABEL] = CONTAINERS_KUBERNETES
    spec: Json = pod["spec"]
    spec["initContainers"] = [_sidecar(name, pool, containers, image)]
    spec["volumes"] += [
        {"name": HOOKS_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": HOOKS_TOKEN_VOLUME, "projected": {"sources": _token_sources()}},
    ]
    runner: Json = next(each for each in spec["containers"] if each["name"] == RUNNER)
    runner["env"].append({"name": HOOKS_PROGRAM, "value": SCRIPT})
    runner["volumeMounts"].append({"name": HOOKS_VOLUME, "mountPath": FOLDER, "readOnly": True})
    if containers.shared:
        _share_workspace(pod, containers, runner, pool.image)


def _share_workspace(pod: Json, containers: HookPods, runner: Json, runner_image: str) -> None:
    """Add what the containers of a job need in the runner Pod itself. Most fields of a running Pod cannot change.

    The sidecar creates the Secret with the logins of image registries when a job has logins. Without the Secret, the
    kubelet pulls images without a login.
    """
    spec: Json = pod["spec"]
    spec["initContainers"].insert(0, copy_externals(runner_image))
    spec["volumes"] += [{"name": name, "emptyDir": {}} for name in (WORK_VOLUME, EXTERNALS_VOLUME, GITHUB_VOLUME)]
    runner["volumeMounts"].append({"name": WORK_VOLUME, "mountPath": _WORK})
    spec["imagePullSecrets"] = [{"name": login_secret(pod["metadata"]["name"])}]
    if containers.service_names:
        spec["hostAliases"] = [{"ip": "127.0.0.1", "hostnames": list(containers.service_names)}]


def _sidecar(name: str, pool: PoolSpec, containers: HookPods, image: str) -> Json:
    return {
        "name": HOOKS,
        "image": image,
        "args": ["hook", "serve"],
        # The user of the Pod has no access to the home folder of the image.
        "workingDir": "/",
        "restartPolicy": "Always",
        "env": [
            {"name": "ACTIONS_RUNNER_POD_NAME", "value": name},
            {"name": "ACTIONS_RUNNER_KUBERNETES_NAMESPACE", "value": pool.namespace},
            {"name": "OSTLER_HOOKS_POD_UID", "valueFrom": _field("metadata.uid")},
            {"name": "OSTLER_HOOKS_POOL", "value": pool.name},
            {"name": "OSTLER_HOOKS_SOCKET", "value": SOCKET},
            {"name": "OSTLER_HOOKS_VCPU", "value": str(containers.vcpu_millicores)},
            {"name": "OSTLER_HOOKS_MEMORY_MIB", "value": str(containers.memory_mib)},
            *([{"name": "OSTLER_HOOKS_WORKSPACE", "value": "shared"}] if containers.shared else []),
            *_disk(pool),
        ],
        # The limits equal the requests, so that the Pod keeps the quality of service `Guaranteed`.
        "resources": {
            "requests": {"cpu": _CPU, "memory": _MEMORY},
            "limits": {"cpu": _CPU, "memory": _MEMORY},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # The socket appears at its path when the server listens.
        "startupProbe": {
            "exec": {"command": ["test", "-S", SOCKET]},
            "periodSeconds": 1,
            "failureThreshold": _STARTS_WITHIN,
        },
        "volumeMounts": [
            {"name": HOOKS_VOLUME, "mountPath": FOLDER},
            {"name": HOOKS_TOKEN_VOLUME, "mountPath": _TOKEN_FOLDER, "readOnly": True},
        ],
    }


def _disk(pool: PoolSpec) -> list[Json]:
    """Return the variable with the limit of disk space. A hook Pod has the limit of container `runner`."""
    limit = pool.ephemeral_storage_limit_mib
    return [] if limit is None else [{"name": "OSTLER_HOOKS_DISK_MIB", "value": str(limit)}]


def _field(path: str) -> Json:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _token_sources() -> list[Json]:
    """Return the files that clients of the API server expect: a token without an audience of its own, and the CA."""
    return [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _field("metadata.namespace")["fieldRef"]}]}},
    ]
