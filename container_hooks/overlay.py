"""Overlay of the operator on hook Pods: the file of `ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE`.

The file has the form of a PodTemplateSpec, and it is merged as the hooks of GitHub merge it (ADR 0134 of
actions/runner-container-hooks):

- Labels and annotations are added.
- Volumes, pull secrets, host aliases, tolerations and init containers are added. The fields of `securityContext` are
  merged. Every other field of the overlay replaces the field of the Pod.
- A container `$job` changes the job's container and the containers of steps. A container `$NAME` changes a service,
  where NAME is the key of the service or the name of its container. `env`, `volumeMounts` and `ports` are added, and
  the fields of `securityContext` are merged. `name` and `image` are ignored. Every other field of the overlay replaces
  the field of the container.
- A container without `$` in its name is added to the Pod.

Only fields that are known to be harmless are allowed. Every other field is refused, and the message has its path.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from container_hooks.copies import JOB
from container_hooks.failures import HookFailed
from container_hooks.manifests import FILES, FILES_IN, restricted
from k8s_adapters.calls.client import Json

VARIABLE = "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"
_LARGEST = 256 * 1024  # bytes
_ADDED_TO_CONTAINER = ("env", "volumeMounts", "ports")
_ADDED_TO_POD = ("volumes", "imagePullSecrets", "hostAliases")
_POD_FIELDS = frozenset(
    {
        "activeDeadlineSeconds",
        "affinity",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "hostUsers",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "preemptionPolicy",
        "priorityClassName",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
_CONTAINER_FIELDS = frozenset(
    {
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "ports",
        "readinessProbe",
        "resources",
        "securityContext",
        "startupProbe",
        "terminationMessagePolicy",
        "volumeMounts",
        "workingDir",
    }
)
_POD_SECURITY = frozenset({"fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsUser", "supplementalGroups"})
_CONTAINER_SECURITY = frozenset({"readOnlyRootFilesystem", "runAsGroup", "runAsUser"})
_ONLY = {"restartPolicy": "Never", "hostUsers": False}
_OURS = {JOB, "$", FILES, f"${FILES}", FILES_IN}
_RESERVED = ("ostler.dev/", "app.kubernetes.io/managed-by")


def load_overlay(path: Path | None) -> Json | None:
    """Return the overlay in a file, or None without a path. Raises `HookFailed` if the overlay cannot be used."""
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HookFailed(
            f"{VARIABLE}: {path} cannot be read ({(error.strerror or 'no reason was given').lower()}); ask the "
            "operator to correct the path"
        ) from error
    if len(data) > _LARGEST:
        raise HookFailed(f"{VARIABLE}: {path} has more than {_LARGEST} bytes; ask the operator to shorten it")
    try:
        content = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise HookFailed(f"{VARIABLE}: {path} is not YAML; ask the operator to correct it") from error
    if not isinstance(content, dict):
        raise HookFailed(
            f"{VARIABLE}: {path} must contain an object with metadata and spec; ask the operator to correct it"
        )
    if (reason := next(refusals(content), None)) is not None:
        raise HookFailed(f"{VARIABLE}: {path}: {reason}; ask the operator to correct the file")
    return content


def apply_overlay(pod: Json, overlay: Json | None, *, services: Mapping[str, str]) -> tuple[Json, list[str]]:
    """Return the Pod with the overlay, and log lines about images that are ignored. No argument is changed.

    `services` has the name of the container of each service, by the key of the service.
    """
    if overlay is None:
        return pod, []
    merged, lines = copy.deepcopy(pod), list[str]()
    metadata: Json = overlay.get("metadata") or {}
    merged["metadata"] = {kind: dict(metadata.get(kind) or {}) for kind in ("labels", "annotations")}
    spec: Json = overlay.get("spec") or {}
    for field, value in spec.items():
        if field == "containers":
            continue
        if field in _ADDED_TO_POD:
            merged["spec"][field] = [*(merged["spec"].get(field) or ()), *copy.deepcopy(value or [])]
        elif field == "tolerations":
            merged["spec"][field] = [*merged["spec"][field], *copy.deepcopy(value or [])]
        elif field == "securityContext":
            merged["spec"][field] = {**merged["spec"][field], **value}
        elif field == "initContainers":
            # Ostler's own comes last: it begins the step.
            added = [restricted(copy.deepcopy(each)) for each in value or ()]
            merged["spec"][field] = [*added, *(merged["spec"].get(field) or ())]
        else:
            merged["spec"][field] = copy.deepcopy(value)
    for each in spec.get("containers") or ():
        lines += _lay_container(merged["spec"]["containers"], copy.deepcopy(each), services)
    return merged, lines


def _lay_container(containers: list[Json], over: Json, services: Mapping[str, str]) -> Iterator[str]:
    name = str(over["name"])
    if not name.startswith("$"):
        containers.append(restricted(over))
        return
    wanted = services.get(name[1:], name[1:])
    for place, below in enumerate(containers):
        if below["name"] != wanted:
            continue
        if "image" in over:
            yield f"The image of container {name} in {VARIABLE} is ignored, because the workflow chooses it"
        for field, value in over.items():
            if field in {"name", "image"}:
                continue
            if field in _ADDED_TO_CONTAINER:
                below[field] = [*(below.get(field) or ()), *(value or ())]
            elif field == "securityContext":
                below[field] = {**(below.get(field) or {}), **value}
            else:
                below[field] = value
        containers[place] = restricted(below)


def refusals(overlay: Json) -> Iterator[str]:
    """Yield a reason for each field of an overlay that is not allowed."""
    try:
        yield from _refusals(overlay)
    except (AttributeError, KeyError, TypeError):
        yield "it does not have the structure of a Pod"


def _refusals(overlay: Json) -> Iterator[str]:
    yield from _unknown(overlay, frozenset({"metadata", "spec", "apiVersion", "kind"}), "")
    metadata: Json = overlay.get("metadata") or {}
    yield from _unknown(metadata, frozenset({"labels", "annotations", "name"}), "metadata.")
    for kind in ("labels", "annotations"):
        for name in metadata.get(kind) or {}:
            if name.startswith(_RESERVED):
                yield f"metadata.{kind}[{name}] is reserved for Ostler"
    spec: Json = overlay.get("spec") or {}
    yield from _unknown(spec, _POD_FIELDS, "spec.")
    for field, value in _ONLY.items():
        if field in spec and spec[field] != value:
            yield f"spec.{field} can only be {value}"
    yield from _security(spec.get("securityContext") or {}, _POD_SECURITY, "spec.securityContext")
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            yield from _container(container, kind)
    for volume in spec.get("volumes") or ():
        yield from _unknown(volume, frozenset({"name", "emptyDir"}), f"spec.volumes[{volume['name']}].")


def _container(container: Json, kind: str) -> Iterator[str]:
    where = f"spec.{kind}[{container['name']}]"
    yield from _unknown(container, _CONTAINER_FIELDS, f"{where}.")
    yield from _security(container.get("securityContext") or {}, _CONTAINER_SECURITY, f"{where}.securityContext")
    if kind == "initContainers" and container["name"].startswith("$"):
        yield f"{where}: only a container in spec.containers can have a name with $"
    if container["name"] in _OURS:
        yield f"{where}: the name is reserved for Ostler"


def _unknown(value: Mapping[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    for field in value:
        if field not in known:
            yield f"{where}{field} must not be set"


def _security(value: Json, known: frozenset[str], where: str) -> Iterator[str]:
    yield from _unknown(value, known, f"{where}.")
    if value.get("runAsUser") == 0:
        yield f"{where}.runAsUser must not be 0"
