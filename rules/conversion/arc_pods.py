"""Pools made from objects of actions-runner-controller: their notes, and the parts of a Pod that they keep.

The conversions of all kinds of objects share this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rules.pools import pod_template
from rules.pools.pod_template import RUNNER

Json = dict[str, Any]

IMAGE = "ghcr.io/actions/actions-runner:2.337.0"
"""Image of a converted pool: the version that the pages of this project use. Its note asks for a newer one."""

POD_FIELDS = pod_template.POD_FIELDS - {"containers"}
"""Fields of a Pod that an overlay may set, with the same meaning on both sides."""

CONTAINER_FIELDS = pod_template.RUNNER_FIELDS - {"image", "name", "securityContext"}
"""Fields of the runner's container that an overlay may set, with the same meaning on both sides."""

ADVICE: Mapping[str, str] = {
    "containerMode": "use spec.containers.mode kubernetes (docs/operations/container-jobs.md); it needs lifecycle "
    "ephemeral and workload Pod",
    "dockerEnabled": "a job has no Docker daemon by default; spec.containers.mode buildkit or dind gives it one "
    "(docs/operations/docker-in-jobs.md)",
    "dockerdWithinRunnerContainer": "spec.containers.mode dind gives a job a Docker daemon "
    "(docs/operations/docker-in-jobs.md)",
    "enterprise": "Ostler registers runners in organisations and repositories; write one pool for each organisation",
    "githubAPICredentialsFrom": "Ostler is one GitHub App for all pools; install it in the organisation",
    "image": f"the pool has {IMAGE}, because the images of actions-runner-controller have another layout; write the "
    "newest version of GitHub's image, or your own image (docs/operations/runner-images.md)",
    "resources": "each runner of a pool has limits; write the sizes of a job into spec.resources",
    "serviceAccountName": "each runner has a ServiceAccount of its own without rights; give a job credentials in "
    "another way, such as OpenID Connect",
    "sidecarContainers": "a sidecar must end with the job; write it into podTemplate.spec.initContainers with "
    "restartPolicy Always",
    "securityContext": "spec.security and spec.assignedUser decide the user and the rights of the Pods",
    "workDir": "the work folder is _work in the runner's home",
    "workVolumeClaimTemplate": "workload StatefulSet with volumes.claims keeps a volume (docs/operations/volumes.md)",
}
"""Advice about fields without a counterpart. Every other field without a counterpart gets `NO_COUNTERPART`."""

_DEFAULTS: Mapping[str, str] = {
    "dockerEnabled": "the runners have a Docker daemon",
    "image": "the runners have the image of their controller or chart",
    "resources": "the runners have no limits, and the pool would get 2 CPU, 4Gi memory and 10Gi disk",
    "securityContext": "the jobs may use sudo, and jobs of the pool cannot (docs/operations/rights-of-jobs.md)",
    "serviceAccountName": "the runners have the token of their namespace's default ServiceAccount",
    "workDir": "the runners work in /runner/_work",
}
"""Meaning of absent fields to actions-runner-controller, if a pool without the field behaves differently."""
ABSENT = frozenset(_DEFAULTS)
_SAFE = frozenset({"securityContext"})
"""Absent fields whose default in Ostler is stricter. A job that needs more rights fails, and its log says so."""

_NODE_LABELS = ("kubernetes.io/arch", "kubernetes.io/os")
_ARCHITECTURES = {"amd64": "x64", "arm64": "arm64", "arm": "arm"}
"""Names of architectures in labels of nodes and of runners."""

NO_COUNTERPART = "it has no counterpart; check whether the pool needs it"
_SIZES = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "ephemeralStorage"}
"""Names of resources in a container and in `spec.resources` of a pool."""


class NotConvertible(Exception):
    """The object cannot become a pool. The text says why."""


@dataclass(frozen=True, slots=True)
class Note:
    """Result of the conversion of one field. `open` is True if a person has to decide about the field."""

    field: str
    what: str
    open: bool = False


@dataclass(slots=True)
class Converted:
    """A pool, with a note for each field of the object that it was made from."""

    kind: str
    name: str
    metadata: Json = field(default_factory=dict)
    spec: Json = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def pool(self) -> Json:
        """Return the RunnerPool."""
        metadata = {"name": self.name, **self.metadata}
        return {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", "metadata": metadata, "spec": self.spec}

    @property
    def labels(self) -> set[str]:
        """Return the labels of the pool. Their case has no meaning."""
        return {label.lower() for label in self.spec["runnerLabels"]}

    @property
    def scope(self) -> str | None:
        """Return the repository whose jobs the pool serves, `owner/*` for all of an owner, or None for all."""
        registration: Json = self.spec.get("registration") or {}
        owner = registration.get("organization")
        allowed: list[str | None] = self.spec.get("allowedRepositories") or [
            f"{owner}/*" if owner else registration.get("repository")
        ]
        return allowed[0]

    def became(self, source: str, target: str) -> None:
        """Note that a field became another field."""
        self.notes.append(Note(source, target))

    def asks(self, source: str, advice: str) -> None:
        """Note that a person has to decide about a field."""
        self.notes.append(Note(source, advice, open=True))


def advice(name: str, value: object) -> str:
    """Return what a person can do about a field without a counterpart. Only images are repeated in it."""
    return f"{value}: {ADVICE[name]}" if name == "image" else ADVICE.get(name, NO_COUNTERPART)


def container_of(pod: Json) -> Json:
    """Return the fields of the container `runner` of a Pod."""
    return next((dict(each) for each in pod.get("containers") or () if each["name"] == RUNNER), {})


def admit(made: Converted, scope: Mapping[str, str]) -> None:
    """Restrict a pool of ephemeral runners to the scope of the old runners, as far as a pool can be restricted."""
    made.became("allowForks", "false: jobs of forks wait in this pool; set it to true if the pool must run them")
    for kind, pattern in (("repository", "{}"), ("organization", "{}/*")):
        if kind in scope:
            made.spec["allowedRepositories"] = [pattern.format(scope[kind])]
            made.became(kind, "allowedRepositories; Ostler registers each runner where its job is")
            return


def note_absent(made: Converted, names: Iterable[str]) -> None:
    """Note absent fields whose default differs in Ostler, and ask for a decision unless Ostler's default is safe."""
    for name in sorted(names):
        note = made.became if name in _SAFE else made.asks
        note(name, f"absent, so {_DEFAULTS[name]}; {ADVICE[name]}")


def note_object(made: Converted, metadata: Json) -> None:
    """Keep the labels of an object, except those of tools, and note the other metadata."""
    labels: Json = metadata.get("labels") or {}
    if own := {name: value for name, value in labels.items() if "/" not in name}:
        made.metadata["labels"] = own
        made.became("metadata.labels", f"metadata.labels: {', '.join(sorted(own))}")
    if tools := sorted(set(labels) - set(own)):
        made.became("metadata.labels", f"nothing: {', '.join(tools)} belong to the old object")
    if metadata.get("annotations"):
        names = ", ".join(sorted(metadata["annotations"]))
        made.became("metadata.annotations", f"nothing: {names} belong to the old object")
    if metadata.get("namespace"):
        made.became(
            "metadata.namespace",
            "nothing: apply the pool in the namespace of Ostler's runners, which needs the ConfigMaps, Secrets and "
            "volumes that the pool names",
        )


def lay_template(made: Converted, runner: Json, own: Json, metadata: Json) -> None:
    """Set the sizes and the Pod template of a pool. `own` has the fields of the container `runner`."""
    pod = {name: runner[name] for name in sorted(POD_FIELDS & set(runner))}
    container = {name: own[name] for name in sorted(CONTAINER_FIELDS & set(own))}
    if devices := _resources(made, container.pop("resources", None) or {}):
        container["resources"] = {"limits": devices}
    claimed = {each["name"] for each in (made.spec.get("volumes") or {}).get("claims", ())}
    if left := [each for each in container.pop("volumeMounts", ()) if each["name"] not in claimed]:
        container["volumeMounts"] = left
    for name in pod:
        made.became(name, f"podTemplate.spec.{name}")
    for name in container:
        made.became(name, f"podTemplate.spec.containers[runner].{name}")
    for name in sorted(set(own) - CONTAINER_FIELDS - {"name"}):
        made.asks(f"containers[runner].{name}", advice(name, own[name]))
    for each in runner.get("containers") or ():
        if each["name"] != RUNNER:
            made.asks(f"containers[{each['name']}]", ADVICE["sidecarContainers"])
    if container:
        pod["containers"] = [{"name": RUNNER, **container}]
    overlay: Json = {"metadata": kept} if (kept := _metadata(made, metadata)) else {}
    if pod:
        overlay["spec"] = pod
    if overlay:
        made.spec["podTemplate"] = overlay
    _check_nodes(made, pod)
    if secrets := sorted(set(_secrets(pod))):
        made.asks(
            "podTemplate",
            f"it reads {', '.join(secrets)}; the admission policy of the chart refuses such Pods unless "
            "runners.allowSecrets is true (docs/security.md), and jobs can read these Secrets",
        )


def _metadata(made: Converted, metadata: Json) -> Json:
    """Return the labels and annotations of a Pod that a pool may set."""
    overlay: Json = {}
    for kind in sorted(metadata):
        if kind not in {"labels", "annotations"}:
            made.asks(f"template.metadata.{kind}", NO_COUNTERPART)
            continue
        kept = {name: text for name, text in metadata[kind].items() if not name.startswith(pod_template.OURS)}
        for name in sorted(set(metadata[kind]) - set(kept)):
            made.became(f"template.metadata.{kind}[{name}]", "nothing: Ostler sets it itself")
        if kept:
            overlay[kind] = kept
            made.became(f"template.metadata.{kind}", f"podTemplate.metadata.{kind}")
    return overlay


def _maps(value: Any) -> Iterator[Json]:
    """Yield each map in a value, the value itself included."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _maps(each)


def _check_nodes(made: Converted, pod: Json) -> None:
    """Ask about a selector of nodes whose architecture or system is not that of the pool's labels."""
    for name in sorted({"affinity", "nodeSelector"} & set(pod)):
        wanted: set[object] = set()
        for each in _maps(pod[name]):
            wanted |= {each[key] for key in _NODE_LABELS if key in each}
            if each.get("key") in _NODE_LABELS and each.get("operator") == "In":
                wanted |= set(each["values"])
        for value in sorted(map(str, wanted - {"linux"})):
            others = sorted(made.labels & set(_ARCHITECTURES.values()) - {_ARCHITECTURES.get(value, value)})
            if value == "windows":
                made.asks(name, "it selects nodes with Windows, and Ostler's runners are Linux Pods")
            elif others:
                made.asks(name, f"it selects nodes with {value}, beside the label {others[0]}; correct the labels")


def _secrets(pod: Json) -> Iterator[str]:
    """Yield the Secrets that environment and volumes of a Pod read."""
    for each in _maps(pod):
        for kind in ("secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"):
            if isinstance(named := each.get(kind), dict):
                yield f"the Secret {named.get('secretName') or named.get('name')}"


def _resources(made: Converted, resources: Json) -> Json:
    """Set the sizes from the limits, and where there is no limit from the requests: a pool has one size for both.

    Return the devices, such as `nvidia.com/gpu`, by name. They stay in the container.
    """
    sizes = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    if known := {_SIZES[name]: size for name, size in sizes.items() if name in _SIZES}:
        made.spec["resources"] = known
        made.became("resources", "resources; requests and limits are equal, the limit if both are set")
    devices = {name: size for name, size in sizes.items() if "/" in name}
    for name in sorted(set(sizes) - set(_SIZES) - set(devices)):
        made.asks(f"resources[{name}]", NO_COUNTERPART)
    return devices
