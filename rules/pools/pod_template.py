"""Overlay of a pool on the runner Pod: the allowed fields, and the merge with the Pod that Ostler builds.

The merge is strategic, as in `kubectl patch`: maps merge key by key, lists of named items merge by name, and every
other list is replaced. The overlay may contain only fields that are known to be harmless. A field that a later version
of Kubernetes adds is therefore refused until the field has been reviewed. The container `poller` has a token of the
Pod, and so does the container `hooks` of a pool with container jobs. The container `runner` runs the code of jobs. A
field must not weaken the separation of `runner` from the other two containers.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rules.pools.pod_security import PodSecurity

Json = dict[str, Any]

POLLER, RUNNER, HOOKS = "poller", "runner", "hooks"
JIT_VOLUME, TOKEN_VOLUME, CA_VOLUME, SCRIPTS_VOLUME = "jit", "token", "ostler-ca", "ostler-scripts"
REGISTER, REGISTRATION_VOLUME = "register", "ostler-registration"
"""Names of the container that registers a persistent runner, and of the volume that it shares with the runner."""
HOOKS_VOLUME, HOOKS_TOKEN_VOLUME = "ostler-hooks", "ostler-hooks-token"
BUILDER, EXTERNALS = "builder", "externals"
"""Names of the sidecar that builds images, and of the init container that copies programs of the runner for it."""
BUILDER_VOLUME, BUILDER_CACHE_VOLUME = "ostler-builder", "ostler-builder-cache"
WORK_VOLUME, EXTERNALS_VOLUME, GITHUB_VOLUME = "ostler-work", "ostler-externals", "ostler-github"
OUR_VOLUMES = frozenset(
    {
        JIT_VOLUME,
        TOKEN_VOLUME,
        CA_VOLUME,
        SCRIPTS_VOLUME,
        REGISTRATION_VOLUME,
        HOOKS_VOLUME,
        HOOKS_TOKEN_VOLUME,
        BUILDER_VOLUME,
        BUILDER_CACHE_VOLUME,
        WORK_VOLUME,
        EXTERNALS_VOLUME,
        GITHUB_VOLUME,
    }
)

_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
}
OURS = (
    "ostler.dev/",
    "app.kubernetes.io/managed-by",
    "karpenter.sh/do-not-disrupt",
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
)
POD_FIELDS = frozenset(
    {
        "affinity",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "hostUsers",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
_MAPS = frozenset(
    {
        "affinity",
        "annotations",
        "dnsConfig",
        "labels",
        "limits",
        "metadata",
        "nodeSelector",
        "overhead",
        "projected",
        "requests",
        "resources",
        "securityContext",
        "spec",
    }
)
_LISTS = frozenset(
    {
        "containers",
        "env",
        "envFrom",
        "hostAliases",
        "imagePullSecrets",
        "initContainers",
        "sources",
        "tolerations",
        "topologySpreadConstraints",
        "volumeDevices",
        "volumeMounts",
        "volumes",
    }
)
_POLLER_FIELDS = frozenset({"name", "image", "imagePullPolicy", "resources"})
_REGISTER_FIELDS = frozenset({"name", "imagePullPolicy", "resources", "env"})
RUNNER_FIELDS = frozenset(
    {
        "name",
        "image",
        "imagePullPolicy",
        "resources",
        "env",
        "envFrom",
        "volumeMounts",
        "workingDir",
        "securityContext",
        "terminationMessagePolicy",
    }
)
_OTHER_FIELDS = RUNNER_FIELDS | {
    "args",
    "command",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "restartPolicy",
    "startupProbe",
}
_HOOKS_FIELDS = frozenset({"name", "imagePullPolicy", "resources", "env", "volumeMounts"})
_HOOKS_ENV = frozenset(
    {
        "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE",
        "ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS",
        "ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS",
        "ACTIONS_RUNNER_HEARTBEAT_DEADLINE_MS",
    }
)
HOOKS_FILES = "/etc/ostler-hooks"
"""Folder of the container `hooks` in which an overlay may mount ConfigMaps, such as the overlay of hook Pods."""

HOOKS_PROGRAM = "ACTIONS_RUNNER_CONTAINER_HOOKS"
"""Variable of the container `runner` with the path of `hook.sh`."""

_VOLUME_KINDS = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "name", "persistentVolumeClaim", "projected", "secret"}
)
LOST_NODE_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Keys of the taints that the node controller adds to a node that is unreachable or not ready."""

_SECURITY_FIELDS: Mapping[PodSecurity, frozenset[str]] = {
    PodSecurity.RESTRICTED: frozenset({"readOnlyRootFilesystem", "runAsGroup", "runAsUser"}),
    PodSecurity.BASELINE: frozenset(
        {"capabilities", "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser"}
    ),
    PodSecurity.PRIVILEGED: frozenset(
        {"capabilities", "privileged", "procMount", "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser"}
    ),
}
"""Allowed fields of a container's securityContext, by the level of the pool. The API server checks their values.

No level allows volumes or namespaces of the node.
"""
_OUR_ENV = ("OSTLER_", "ACTIONS_RUNNER_HOOK_JOB_STARTED", "ACTIONS_RUNNER_INPUT_")
JOB_COMPLETED = "ACTIONS_RUNNER_HOOK_JOB_COMPLETED"
_RUNNER_ENV = frozenset({"OSTLER_RUNNER_HOME", "OSTLER_JOB_STARTED_HOOK", "OSTLER_JOB_COMPLETED_HOOK"})
"""Variables of the container `runner` that describe the image, and that a pool may therefore set."""


def lay_over(pod: Json, overlay: Json) -> Json:
    """Return the Pod with the overlay applied. Neither argument is changed.

    The caller must first check that `refusals` is empty for the overlay.
    """
    merged = copy.deepcopy(pod)
    for part in ("metadata", "spec"):
        if part in overlay:
            merged[part] = _merge(merged[part], overlay[part], part)
    return merged


def _merge(below: Any, above: Any, field: str) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        merged = dict(below)
        for key, value in above.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = _merge(below.get(key), value, key)
        return merged
    if isinstance(below, list) and isinstance(above, list) and field in _MERGE_KEYS:
        return _merge_named(below, above, _MERGE_KEYS[field])
    return copy.deepcopy(above)


def _merge_named(below: Sequence[Json], above: Sequence[Json], key: str) -> list[Json]:
    over = {each[key]: each for each in above}
    merged = [_merge(each, over.pop(each[key]), "") if each[key] in over else each for each in below]
    return [*merged, *(copy.deepcopy(each) for each in over.values())]


def outlive_lost_nodes(tolerations: Sequence[Json]) -> list[Json]:
    """Return a Pod's tolerations, extended so that the loss of its node's network never evicts the Pod.

    The effect of the added tolerations must be NoExecute. Without an effect, the scheduler would place new Pods on dead
    nodes. The added tolerations come first, because the first toleration that matches a taint decides how long the Pod
    stays. A wildcard with `tolerationSeconds` that comes later then has no effect. A given toleration with the key of
    an added toleration is left out. All other given tolerations stay.
    """
    ours = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in LOST_NODE_TAINTS]
    return [*ours, *(each for each in tolerations if each.get("key") not in LOST_NODE_TAINTS)]


def refusals(
    overlay: Any,
    *,
    containers: bool = False,
    builder: bool = False,
    persistent: bool = False,
    level: PodSecurity = PodSecurity.RESTRICTED,
) -> tuple[str, ...]:
    """Return the reasons why this overlay is refused, each with its field.

    The result is empty if the overlay is allowed. If `containers` is True, the pool has container jobs, and its Pods
    have the init container `hooks`. If `builder` is True, its Pods have the init container `builder`. If
    `persistent` is True, its Pods have the container `register`. `level` is the Pod Security level of the pool.
    """
    if not isinstance(overlay, dict):
        return ("spec.podTemplate is not an object",)
    try:
        return (
            *_refusals(overlay, containers=containers, level=level),
            *(_of_hooks(overlay) if containers else ()),
            *(_of_builder(overlay) if builder else ()),
            *(_of_register(overlay) if persistent else ()),
        )
    except (AttributeError, KeyError, TypeError):
        return ("spec.podTemplate does not have the structure of a Pod",)


def _refusals(overlay: Json, *, containers: bool, level: PodSecurity) -> Iterator[str]:
    misshapen = tuple(_misshapen(overlay, "podTemplate"))
    if misshapen:
        yield from misshapen
        return
    yield from _unknown(overlay, frozenset({"metadata", "spec"}), "podTemplate")
    metadata: Json = overlay.get("metadata") or {}
    yield from _unknown(metadata, frozenset({"labels", "annotations"}), "podTemplate.metadata")
    for kind in ("labels", "annotations"):
        for name in metadata.get(kind) or {}:
            if name.startswith(OURS):
                yield f"podTemplate.metadata.{kind}[{name}] is reserved for Ostler"
    spec: Json = overlay.get("spec") or {}
    yield from _unknown(spec, POD_FIELDS, "podTemplate.spec")
    if spec.get("hostUsers", False) is not False:
        yield "podTemplate.spec.hostUsers may only be false, which gives the Pod a user namespace of its own"
    for container in spec.get("containers") or ():
        yield from _container(container, f"podTemplate.spec.containers[{container['name']}]", level)
    for container in spec.get("initContainers") or ():
        where = f"podTemplate.spec.initContainers[{container['name']}]"
        if container["name"] in {POLLER, RUNNER}:
            yield f"{where}: the name is already in use by a container of Ostler: choose another name"
        if not (containers and container["name"] == HOOKS):
            yield from _container(container, where, level)
    for volume in spec.get("volumes") or ():
        yield from _volume(volume)


def _unknown(value: Json, known: frozenset[str], where: str) -> Iterator[str]:
    for field in value:
        if field not in known:
            yield f"{where}.{field} must not be set"


def _misshapen(value: Any, where: str) -> Iterator[str]:
    """Yield a reason for each field that must be a map or a list but is not, and for each field that removes something.

    A null or a `$patch` removes its field with everything below the field.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            here = f"{where}.{key}"
            if inner is None or key.startswith("$"):
                yield f"{here}: an overlay must not remove anything; delete this null or patch directive"
            elif key in _MAPS and not isinstance(inner, dict):
                yield f"{here} is not a map"
            elif key in _LISTS and not (isinstance(inner, list) and all(isinstance(each, dict) for each in inner)):
                yield f"{here} is not a list of maps"
            else:
                yield from _misshapen(inner, here)
    elif isinstance(value, list):
        for inner in value:
            yield from _misshapen(inner, where)


def _container(container: Json, where: str, level: PodSecurity) -> Iterator[str]:
    name = container["name"]
    known = {POLLER: _POLLER_FIELDS, RUNNER: RUNNER_FIELDS}.get(name, _OTHER_FIELDS)
    yield from _unknown(container, known, where)
    security: Json = container.get("securityContext") or {}
    yield from _unknown(security, _SECURITY_FIELDS[level], f"{where}.securityContext")
    if security.get("runAsUser") == 0 and not level.elevated:
        yield (
            f"{where}.securityContext.runAsUser is 0 (root): use another user, or ask for a weaker level in "
            "spec.security.podSecurity"
        )
    if name == RUNNER and "runAsUser" in security:
        yield (
            f"{where}.securityContext.runAsUser must not be set: the containers poller and runner must have the user "
            "of the Pod"
        )
    for variable in container.get("env") or ():
        allowed = name in {RUNNER, REGISTER} and variable["name"] in _RUNNER_ENV
        if variable["name"].startswith(_OUR_ENV) and not allowed:
            yield f"{where}.env[{variable['name']}] is reserved for Ostler"
    for mount in container.get("volumeMounts") or ():
        if mount["name"] in OUR_VOLUMES:
            yield f"{where}.volumeMounts: volume {mount['name']} is reserved for the containers of Ostler"
        if mount["mountPath"].rstrip("/").startswith(("/var/run/ostler", "/opt/ostler")):
            yield f"{where}.volumeMounts[{mount['mountPath']}] would hide a path that Ostler uses: choose another path"


def _of_hooks(overlay: Json) -> Iterator[str]:
    """Yield the reasons that concern container jobs only.

    Container `hooks` has a token of the Kubernetes API. An overlay must therefore not change the program of this
    container, and must not give it a file that code of a job can write.
    """
    spec: Json = overlay.get("spec") or {}
    for container in spec.get("containers") or ():
        where = f"podTemplate.spec.containers[{container['name']}]"
        if container["name"] == HOOKS:
            yield f"{where}: the name is already in use by an init container of Ostler: choose another name"
        for variable in container.get("env") or ():
            if variable["name"] == HOOKS_PROGRAM:
                yield f"{where}.env[{HOOKS_PROGRAM}] is reserved for Ostler while spec.containers is set"
    maps = {each["name"] for each in spec.get("volumes") or () if "configMap" in each}
    for container in spec.get("initContainers") or ():
        if container["name"] == HOOKS:
            yield from _of_sidecar(container, maps)


def _of_sidecar(container: Json, maps: Collection[str]) -> Iterator[str]:
    """Yield the reasons that concern the overlay of container `hooks`. `maps`: its volumes that are ConfigMaps."""
    where = f"podTemplate.spec.initContainers[{HOOKS}]"
    yield from _unknown(container, _HOOKS_FIELDS, where)
    for variable in container.get("env") or ():
        if variable["name"] not in _HOOKS_ENV or "value" not in variable:
            yield f"{where}.env[{variable['name']}] must be a plain value of {', '.join(sorted(_HOOKS_ENV))}"
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in maps:
            yield f"{where}.volumeMounts: volume {mount['name']} is not a ConfigMap of the overlay"
        if not _is_below(mount["mountPath"], HOOKS_FILES):
            yield f"{where}.volumeMounts[{mount['mountPath']}] must be {HOOKS_FILES} or a path below it"


def _of_register(overlay: Json) -> Iterator[str]:
    """Yield the reasons that concern persistent runners only.

    Container `register` has the registration token. An overlay must therefore not change its program, and must not give
    it a file that code of a job can write. Without Ostler's hook at the end of a job, a runner would seem to be busy
    after its first job.
    """
    spec: Json = overlay.get("spec") or {}
    for container in spec.get("containers") or ():
        if container["name"] == REGISTER:
            yield from _unknown(container, _REGISTER_FIELDS, f"podTemplate.spec.containers[{REGISTER}]")
        if any(variable["name"] == JOB_COMPLETED for variable in container.get("env") or ()):
            yield (
                f"podTemplate.spec.containers[{container['name']}].env[{JOB_COMPLETED}] is reserved for Ostler: set "
                "OSTLER_JOB_COMPLETED_HOOK instead"
            )
    for container in spec.get("initContainers") or ():
        if container["name"] == REGISTER:
            where = f"podTemplate.spec.initContainers[{REGISTER}]"
            yield f"{where}: the name is already in use by a container of Ostler: choose another name"


def _of_builder(overlay: Json) -> Iterator[str]:
    """Yield the reasons that concern pools with a builder only. An overlay must not set any field of the builder."""
    spec: Json = overlay.get("spec") or {}
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            if (name := container["name"]) in {BUILDER, EXTERNALS}:
                yield f"podTemplate.spec.{kind}[{name}] must not be set while spec.containers has a builder"


def _is_below(path: str, folder: str) -> bool:
    return ".." not in path.split("/") and f"{path}/".startswith(f"{folder}/")


def _volume(volume: Json) -> Iterator[str]:
    where = f"podTemplate.spec.volumes[{volume['name']}]"
    if volume["name"] in OUR_VOLUMES:
        yield f"{where} is reserved for Ostler"
    yield from _unknown(volume, _VOLUME_KINDS, where)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            yield (
                f"{where}: the source serviceAccountToken must not be set, because only the container poller and the "
                "sidecar hooks may have a token of the Pod"
            )
