"""Pools made from objects of actions-runner-controller: their notes, and the parts of a Pod that they keep.

The conversions of all kinds of objects share this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rules.pools.pod_template import RUNNER

Json = dict[str, Any]

IMAGE = "ghcr.io/actions/actions-runner:2.337.0"
"""Image of a converted pool: the version that the pages of this project use. Its note asks for a newer one."""

POD_FIELDS = frozenset(
    {
        "affinity",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "initContainers",
        "nodeSelector",
        "priorityClassName",
        "runtimeClassName",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
"""Fields of a Pod that an overlay may set, with the same meaning on both sides."""

CONTAINER_FIELDS = frozenset({"env", "envFrom", "imagePullPolicy", "resources", "volumeMounts"})
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
    spec: Json = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def pool(self) -> Json:
        """Return the RunnerPool."""
        metadata = {"name": self.name}
        return {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", "metadata": metadata, "spec": self.spec}

    @property
    def labels(self) -> set[str]:
        """Return the labels of the pool. Their case has no meaning."""
        return {label.lower() for label in self.spec["runnerLabels"]}

    @property
    def scope(self) -> object:
        """Return the only repository whose jobs the pool serves, or None if it may serve several."""
        allowed = self.spec.get("allowedRepositories") or [(self.spec.get("registration") or {}).get("repository")]
        return allowed[0]

    def became(self, source: str, target: str) -> None:
        """Note that a field became another field."""
        self.notes.append(Note(source, target))

    def asks(self, source: str, advice: str) -> None:
        """Note that a person has to decide about a field."""
        self.notes.append(Note(source, advice, open=True))


def lay_template(made: Converted, runner: Json, own: Json, metadata: Json) -> None:
    """Set the sizes and the Pod template of a pool. `own` has the fields of the container `runner`."""
    pod = {name: runner[name] for name in sorted(POD_FIELDS & set(runner))}
    container = {name: own[name] for name in sorted(CONTAINER_FIELDS & set(own))}
    _resources(made, container.pop("resources", None) or {})
    claimed = {each["name"] for each in (made.spec.get("volumes") or {}).get("claims", ())}
    if left := [each for each in container.pop("volumeMounts", ()) if each["name"] not in claimed]:
        container["volumeMounts"] = left
    for name in pod:
        made.became(name, f"podTemplate.spec.{name}")
    for name in container:
        made.became(name, f"podTemplate.spec.containers[runner].{name}")
    if container:
        pod["containers"] = [{"name": RUNNER, **container}]
    overlay: Json = {}
    if kept := {kind: metadata[kind] for kind in ("labels", "annotations") if metadata.get(kind)}:
        overlay["metadata"] = kept
        made.became("template.metadata", "podTemplate.metadata")
    if pod:
        overlay["spec"] = pod
    if overlay:
        made.spec["podTemplate"] = overlay


def _resources(made: Converted, resources: Json) -> None:
    """Set the sizes from the limits, and where there is no limit from the requests: a pool has one size for both."""
    sizes = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    if known := {_SIZES[name]: size for name, size in sizes.items() if name in _SIZES}:
        made.spec["resources"] = known
        made.became("resources", "resources; requests and limits are equal, the limit if both are set")
    for name in sorted(set(sizes) - set(_SIZES)):
        made.asks(f"resources[{name}]", NO_COUNTERPART)
