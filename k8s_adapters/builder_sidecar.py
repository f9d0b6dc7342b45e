"""The sidecar of a runner Pod that builds images: the native sidecar `builder`, its socket and its volume of layers.

The Pod has a user namespace of its own. Root of the sidecar is root in this namespace only, so BuildKit needs neither
setuid programs nor rights on the node. Within the namespace it mounts file systems, which needs the capability
SYS_ADMIN, and system calls that the seccomp profile of container runtimes refuses.

A native sidecar starts before the other containers and ends after them, so it does not change when a Pod is over.
"""

from __future__ import annotations

from k8s_adapters.client import Json
from k8s_adapters.pools import Builder
from rules.pools.pod_template import BUILDER, BUILDER_CACHE_VOLUME, BUILDER_VOLUME, RUNNER

FOLDER = "/var/run/ostler-builder"
ADDRESS = f"unix://{FOLDER}/buildkitd.sock"
_CACHE_FOLDER = "/var/lib/buildkit"
_CACHE_SHARE = 0.8
"""Share of the volume above which BuildKit deletes layers that no build uses. The rest is for the layers in use."""

_MB_PER_MIB = 1024 * 1024 / 1_000_000
_STARTS_WITHIN = 180  # seconds
CAPABILITIES = (
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
"""Capabilities of the sidecar: those that BuildKit gives to each command of a build, and SYS_ADMIN for its mounts.

Without one of the first, no command of a build starts: runc cannot give away a capability that it does not have.
"""


def add_builder(pod: Json, *, builder: Builder, image: str, group: int) -> None:
    """Add the sidecar, its volumes and the variable for the runner to a Pod that `build_pod` makes.

    `group` is the group of the runner, whose processes may use the socket.
    """
    spec: Json = pod["spec"]
    spec["hostUsers"] = False
    spec.setdefault("initContainers", []).append(_sidecar(builder, image, group))
    limit = {} if builder.cache_mib is None else {"sizeLimit": f"{builder.cache_mib}Mi"}
    spec["volumes"] += [
        {"name": BUILDER_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": BUILDER_CACHE_VOLUME, "emptyDir": limit},
    ]
    runner: Json = next(each for each in spec["containers"] if each["name"] == RUNNER)
    runner["env"].append({"name": "BUILDKIT_HOST", "value": ADDRESS})
    runner["volumeMounts"].append({"name": BUILDER_VOLUME, "mountPath": FOLDER, "readOnly": True})


def _sidecar(builder: Builder, image: str, group: int) -> Json:
    size = {"cpu": f"{builder.vcpu_millicores}m", "memory": f"{builder.memory_mib}Mi"}
    disk = {} if builder.cache_mib is None else {"ephemeral-storage": f"{builder.cache_mib}Mi"}
    return {
        "name": BUILDER,
        "image": image,
        "command": ["buildkitd", "--rootless", "--addr", ADDRESS, "--group", str(group), "--root", _CACHE_FOLDER],
        "args": _bound(builder),
        "workingDir": "/",
        "restartPolicy": "Always",
        "resources": {"requests": {**size, **disk}, "limits": size},
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": True,  # the API server requires it for SYS_ADMIN
            "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
            "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
        },
        "startupProbe": {
            "exec": {"command": ["buildctl", "--addr", ADDRESS, "debug", "workers"]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": _STARTS_WITHIN,
        },
        "volumeMounts": [
            {"name": BUILDER_VOLUME, "mountPath": FOLDER},
            {"name": BUILDER_CACHE_VOLUME, "mountPath": _CACHE_FOLDER},
        ],
    }


def _bound(builder: Builder) -> list[str]:
    """Return the arguments that keep the layers below the size of their volume."""
    if builder.cache_mib is None:
        return []
    return ["--oci-worker-gc", f"--oci-worker-gc-keepstorage={int(builder.cache_mib * _CACHE_SHARE * _MB_PER_MIB)}"]
