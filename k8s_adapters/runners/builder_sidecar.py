"""The sidecar of a runner Pod that builds images: the native sidecar `builder`, its socket and its volume of layers.

With the mode `buildkit`, the Pod has a user namespace of its own. Root of the sidecar is root in this namespace only,
so BuildKit needs neither setuid programs nor rights on the node. BuildKit mounts file systems in the user namespace.
For these mounts BuildKit needs the capability SYS_ADMIN, and system calls that the seccomp profile of container
runtimes refuses.

With the mode `dind`, the sidecar is a Docker daemon in a privileged container. The daemon sees the work folder and the
programs of the runner at the same paths as the runner, because the runner mounts these folders into containers.

A native sidecar starts before the main containers and ends after them. The sidecar therefore does not change when a Pod
counts as over.
"""

from __future__ import annotations

from k8s_adapters.calls.client import Json
from k8s_adapters.hooks.externals import copy_externals
from k8s_adapters.names import CONTAINERS_DIND
from rules.pools.pod_template import (
    BUILDER,
    BUILDER_CACHE_VOLUME,
    BUILDER_VOLUME,
    EXTERNALS_VOLUME,
    RUNNER,
    WORK_VOLUME,
)
from rules.pools.pool_spec import Builder

FOLDER = "/var/run/ostler-builder"
BUILDKIT_ADDRESS = f"unix://{FOLDER}/buildkitd.sock"
DOCKER_ADDRESS = f"unix://{FOLDER}/docker.sock"
_BUILDKIT_CACHE, _DOCKER_CACHE = "/var/lib/buildkit", "/var/lib/docker"
_CACHE_SHARE = 0.8
"""Share of the volume above which BuildKit deletes layers that no build uses. The rest is for the layers in use."""

_DISK = "ephemeral-storage"
_HOME = "/home/runner"
_MB_PER_MIB = 1024 * 1024 / 1_000_000
_STARTS_WITHIN = 180  # seconds
_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_ADMIN",
    "SYS_CHROOT",
)
"""Capabilities of BuildKit: SYS_ADMIN for its mounts, and the capabilities that it gives to each command of a build.

If a capability for commands is missing, no command of a build starts, because runc can give a command only capabilities
that runc itself has.
"""


def add_builder(pod: Json, *, builder: Builder, image: str, runner_image: str, group: int) -> None:
    """Add the sidecar, its volumes and the variable for the runner to a Pod that `build_pod` makes.

    `group` is the group of the runner, whose processes may use the socket.
    """
    spec: Json = pod["spec"]
    limit = {} if builder.cache_mib is None else {"sizeLimit": f"{builder.cache_mib}Mi"}
    spec["volumes"] += [
        {"name": BUILDER_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": BUILDER_CACHE_VOLUME, "emptyDir": limit},
    ]
    before: list[Json] = spec.setdefault("initContainers", [])
    runner: Json = next(each for each in spec["containers"] if each["name"] == RUNNER)
    runner["volumeMounts"].append({"name": BUILDER_VOLUME, "mountPath": FOLDER, "readOnly": True})
    if builder.mode == CONTAINERS_DIND:
        runner["env"].append({"name": "DOCKER_HOST", "value": DOCKER_ADDRESS})
        runner["volumeMounts"].append({"name": WORK_VOLUME, "mountPath": f"{_HOME}/_work"})
        spec["volumes"] += [{"name": WORK_VOLUME, "emptyDir": {}}, {"name": EXTERNALS_VOLUME, "emptyDir": {}}]
        before += [copy_externals(runner_image), _docker(builder, image, group)]
    else:
        # buildctl reads the first variable. run.sh configures a builder of Buildx with the address in the second one.
        # run.sh does not use the first variable, because an image can set it to the address of another builder.
        for variable in ("BUILDKIT_HOST", "OSTLER_BUILDKIT"):
            runner["env"].append({"name": variable, "value": BUILDKIT_ADDRESS})
        spec["hostUsers"] = False
        # With `fsGroup`, the kubelet would give the volume of layers to this group and set the setgid bit of the
        # volume. All files of a build that lie in the root of an image would then belong to this group, also in the
        # image that a job pushes.
        spec["securityContext"].pop("fsGroup", None)
        before.append(_buildkit(builder, image, group))


def limit_layers(pod: Json, *, builder: Builder) -> None:
    """Give the builder a limit of disk for its layers if the runner of the Pod has a limit.

    The kubelet adds up the limits of all containers, and evicts a Pod whose containers and volumes use more than the
    sum. Without this limit, the layers would use up the runner's limit. The pool's overlay can set a limit for the
    runner, so call this function after the overlay was merged.
    """
    containers = {each["name"]: each for each in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])}
    if builder.cache_mib is not None and _DISK in containers[RUNNER]["resources"].get("limits", {}):
        containers[BUILDER]["resources"]["limits"][_DISK] = f"{builder.cache_mib}Mi"


def _buildkit(builder: Builder, image: str, group: int) -> Json:
    arguments = ["--rootless", "--addr", BUILDKIT_ADDRESS, "--group", str(group), "--root", _BUILDKIT_CACHE]
    if builder.cache_mib is not None:
        bound = int(builder.cache_mib * _CACHE_SHARE * _MB_PER_MIB)
        arguments += ["--oci-worker-gc", f"--oci-worker-gc-keepstorage={bound}"]
    return {
        **_sidecar(builder, image, ["buildctl", "--addr", BUILDKIT_ADDRESS, "debug", "workers"]),
        "command": ["buildkitd"],
        "args": arguments,
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": True,  # the API server requires it for SYS_ADMIN
            "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
            "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
        },
        "volumeMounts": [
            {"name": BUILDER_VOLUME, "mountPath": FOLDER},
            {"name": BUILDER_CACHE_VOLUME, "mountPath": _BUILDKIT_CACHE},
        ],
    }


def _docker(builder: Builder, image: str, group: int) -> Json:
    """Return the Docker daemon. The entry point of its image prepares control groups and the packet filter."""
    return {
        **_sidecar(builder, image, ["docker", "--host", DOCKER_ADDRESS, "version"]),
        # The runner mounts the second socket, at its usual path, into the containers of a job.
        "args": [
            "dockerd",
            f"--host={DOCKER_ADDRESS}",
            "--host=unix:///var/run/docker.sock",
            f"--group={group}",
            f"--data-root={_DOCKER_CACHE}",
        ],
        "env": [{"name": "DOCKER_TLS_CERTDIR", "value": ""}],  # no TLS, because the daemon has no port on the network
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False, "privileged": True},
        "volumeMounts": [
            {"name": BUILDER_VOLUME, "mountPath": FOLDER},
            {"name": BUILDER_CACHE_VOLUME, "mountPath": _DOCKER_CACHE},
            {"name": WORK_VOLUME, "mountPath": f"{_HOME}/_work"},
            {"name": EXTERNALS_VOLUME, "mountPath": f"{_HOME}/externals"},
        ],
    }


def _sidecar(builder: Builder, image: str, ready: list[str]) -> Json:
    """Return what both daemons have in common. `ready` is a command that succeeds when the daemon serves."""
    size = {"cpu": f"{builder.vcpu_millicores}m", "memory": f"{builder.memory_mib}Mi"}
    disk = {} if builder.cache_mib is None else {_DISK: f"{builder.cache_mib}Mi"}
    return {
        "name": BUILDER,
        "image": image,
        "workingDir": "/",
        "restartPolicy": "Always",
        "resources": {"requests": {**size, **disk}, "limits": {**size}},
        "startupProbe": {
            "exec": {"command": ready},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": _STARTS_WITHIN,
        },
    }
