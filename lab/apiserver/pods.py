"""Special rules of Pods: defaults, admission by ServiceAccount, allowed changes, and the end of a Pod."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from http import HTTPStatus

from lab.apiserver.kinds import POD, SERVICE_ACCOUNT, Json
from lab.apiserver.refusals import Refused, cause, conflict, forbidden, required
from lab.apiserver.store import Store, Stored

_GRACE = 30
_CHANGEABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")
_NOT_EPHEMERAL = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources")
"""Fields of a container that an ephemeral container must not have."""


def prepare(content: Json, *, store: Store) -> Json:
    """Return a new Pod with those defaults that its readers need.

    Raises `Refused` if its ServiceAccount does not exist.
    """
    metadata = content["metadata"]
    spec = dict(content.get("spec") or {})
    account = spec.get("serviceAccountName") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", _GRACE)
    namespace = metadata["namespace"]
    if store.get(SERVICE_ACCOUNT, namespace, account) is None:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden(POD.plural, {"name": metadata["name"], "kind": POD.plural}, metadata["name"], why)
    return {**content, "spec": spec, "status": {"phase": "Pending"}}


def problems(content: Json) -> Iterator[Json]:
    """Yield a cause for each rule that a Pod's spec breaks."""
    containers = content["spec"].get("containers") or []
    if not containers:
        yield required("spec.containers")
    for number, container in enumerate(containers):
        for key in ("name", "image"):
            if not container.get(key):
                yield required(f"spec.containers[{number}].{key}")


def forbidden_changes(old: Json, new: Json) -> Iterator[Json]:
    """Yield a cause if a change modifies an immutable field of a Pod."""
    if _fixed(old) != _fixed(new):
        why = "pod updates may not change fields other than `spec.containers[*].image`"
        yield cause("spec", "Forbidden", f"Forbidden: {why}")
    gates, before = (each["spec"].get("schedulingGates") or () for each in (new, old))
    if any(gate not in before for gate in gates):
        why = "only deletion is allowed, but found new scheduling gate"
        yield cause("spec.schedulingGates", "Forbidden", f"Forbidden: {why}")


def ephemeral_problems(old: Json, containers: list[Json]) -> Iterator[Json]:
    """Yield a cause for each rule that new ephemeral containers of a Pod break. Existing ones must not change."""
    place, spec = "spec.ephemeralContainers", old["spec"]
    wanted = {each.get("name"): each for each in containers}
    for each in spec.get("ephemeralContainers") or ():
        if wanted.get(each["name"]) != each:
            how = "changed" if each["name"] in wanted else "removed"
            why = f'existing ephemeral containers "{each["name"]}" may not be {how}'
            yield cause(place, "Forbidden", f"Forbidden: {why}")
    taken = {each["name"] for kind in ("containers", "initContainers") for each in spec.get(kind) or ()}
    volumes = {each["name"] for each in spec.get("volumes") or ()}
    for number, container in enumerate(containers):
        where, name = f"{place}[{number}]", container.get("name") or ""
        if name in taken:
            yield cause(f"{where}.name", "Duplicate", f'Duplicate value: "{name}"')
        taken.add(name)
        for key in ("name", "image"):
            if not container.get(key):
                yield required(f"{where}.{key}")
        for key in filter(container.get, _NOT_EPHEMERAL):
            yield _not_ephemeral(f"{where}.{key}")
        yield from _mount_problems(container.get("volumeMounts") or (), where, volumes)


def _mount_problems(mounts: Sequence[Json], where: str, volumes: Collection[str]) -> Iterator[Json]:
    for number, mount in enumerate(mounts):
        if mount["name"] not in volumes:
            yield cause(f"{where}.volumeMounts[{number}].name", "NotFound", f'Not found: "{mount["name"]}"')
        if mount.get("subPath"):
            yield _not_ephemeral(f"{where}.volumeMounts[{number}].subPath")


def _not_ephemeral(field: str) -> Json:
    return cause(field, "Forbidden", "Forbidden: cannot be set for an Ephemeral Container")


def grace(pod: Stored, asked: int | None) -> int:
    """Return the grace period of a Pod's deletion in seconds. `asked` is the period of the request, or None.

    The period is 0 if the Pod has no node or has ended. A negative period counts as 1.
    """
    if not pod.content["spec"].get("nodeName") or pod.content["status"].get("phase") in {"Succeeded", "Failed"}:
        return 0
    seconds = pod.content["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return 1 if seconds < 0 else int(seconds)


def bound(pod: Stored, binding: Json, *, now: str) -> Json:
    """Return the content of a Pod after a Binding assigned it to a node. Raises `Refused`."""
    name = pod.metadata["name"]
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "", "target.name: Required value")
    wanted = (binding.get("metadata") or {}).get("uid")
    if wanted and wanted != pod.uid:
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {pod.uid}"
        raise conflict(POD.plural, {"name": name, "kind": POD.plural}, name, why)
    binding_details = {"name": name, "kind": "pods/binding"}
    if pod.terminating:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", binding_details, name, why)
    content = pod.copy()
    if taken := content["spec"].get("nodeName"):
        raise conflict("pods/binding", binding_details, name, f'pod {name} is already assigned to node "{taken}"')
    content["spec"]["nodeName"] = node
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    content["status"]["conditions"] = [*content["status"].get("conditions", []), scheduled]
    return content


def _fixed(content: Json) -> Json:
    spec = copy.deepcopy({key: value for key, value in content["spec"].items() if key not in _CHANGEABLE})
    for container in spec.get("containers") or ():
        container.pop("image", None)
    return spec
