"""Conversion of the RunnerDeployments, RunnerReplicaSets and RunnerSets of actions-runner-controller into pools.

The module is pure: it reads objects and returns a pool for each, with a note for every field that the object sets. A
field without a counterpart gets a note that says what to do.

Source: the custom resource definitions of actions-runner-controller (`actions.summerwind.dev/v1alpha1`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rules.pools.pod_template import RUNNER
from rules.pools.workloads import Lifecycle, Workload

Json = dict[str, Any]

IMAGE = "ghcr.io/actions/actions-runner:2.337.0"
"""Image of a converted pool: the version that the pages of this project use. Its note asks for a newer one."""
KINDS = ("RunnerDeployment", "RunnerReplicaSet", "RunnerSet")
AUTOSCALER = "HorizontalRunnerAutoscaler"
SCALE_SETS = ("AutoscalingRunnerSet", "AutoscalingListener", "EphemeralRunnerSet", "EphemeralRunner")
SCALE_SETS_ARE_LEFT = (
    "runner scale sets are not converted yet; write the pool by hand with the table in "
    "docs/operations/runner-images.md#bring-an-image-that-ran-under-arc"
)
DEFAULT_THRESHOLD = 0.8
"""Share of busy runners above which actions-runner-controller adds runners if the metric sets none."""
_DELAY = "scaleDownDelaySecondsAfterScaleOut"
DEFAULT_LABELS = ("self-hosted", "linux", "x64")
"""Labels that a runner of actions-runner-controller has besides its own. Ostler's runners have no other labels than
those of their pool, so a workflow that asks for one of them would find no runner otherwise."""

_POD_FIELDS = frozenset(
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

_CONTAINER_FIELDS = frozenset({"env", "envFrom", "imagePullPolicy", "resources", "volumeMounts"})
"""Fields of the runner's container that an overlay may set, with the same meaning on both sides."""

_READ = frozenset(
    {
        "containers",
        "ephemeral",
        "group",
        "labels",
        "organization",
        "replicas",
        "repository",
        "template",
        "volumeClaimTemplates",
    }
)
"""Fields that become fields of a pool with another name or form."""

_ADVICE: Mapping[str, str] = {
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
    "image": "the runners have the image of their controller",
    "resources": "the runners have no limits, and the pool would get 2 CPU, 4Gi memory and 10Gi disk",
    "securityContext": "the jobs may use sudo, and jobs of the pool may not (docs/operations/rights-of-jobs.md)",
    "serviceAccountName": "the runners have the token of their namespace's default ServiceAccount",
    "workDir": "the runners work in /runner/_work",
}
"""Meaning of absent fields to actions-runner-controller, if a pool without the field behaves differently."""

NO_COUNTERPART = "it has no counterpart; check whether the pool needs it"
_NEEDLESS = frozenset({"effectiveTime", "podManagementPolicy", "selector", "serviceName", "updateStrategy"})
"""Fields that select or order objects of actions-runner-controller. A pool needs none of them."""
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


@dataclass(frozen=True, slots=True)
class Conversion:
    """Pools that were made, and a note for each object that became no pool."""

    pools: list[Converted]
    skipped: list[Note]


def convert(objects: Iterable[Json]) -> Conversion:
    """Return a pool for each runner object without an owner, with the limits of the autoscaler that names it.

    An object that another object made, such as the RunnerReplicaSet of a RunnerDeployment, becomes no pool: its owner
    does. Objects that have nothing to do with runners are ignored. Raises `NotConvertible` if an object cannot become a
    pool, or if there is none.
    """
    found = [each for each in objects if isinstance(each, dict)]
    scalers = [each for each in found if each.get("kind") == AUTOSCALER]
    present = {_title(each) for each in found}
    pools, skipped = [], []
    for each in found:
        if reason := _skip(each, present):
            skipped.append(reason)
            continue
        if each.get("kind") not in KINDS:
            continue
        name = (each.get("metadata") or {}).get("name")
        if not name:
            raise NotConvertible(f"a {each['kind']} has no metadata.name")
        try:
            pools.append(_convert(each, Converted(each["kind"], str(name)), scalers))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise NotConvertible(f"{each['kind']} {name} does not have the structure of its kind") from None
    if not pools:
        reasons = [f"{note.field}: {note.what}" for note in skipped if note.open]
        raise NotConvertible("; ".join([f"there is no object of the kinds {', '.join(KINDS)}", *reasons[:1]]))
    _compare(pools)
    return Conversion(pools, skipped)


def _title(item: Json) -> str:
    metadata = item.get("metadata")
    return f"{item.get('kind')} {metadata.get('name') if isinstance(metadata, dict) else None}"


def _skip(item: Json, present: Container[str]) -> Note | None:
    """Return a note if the object is about runners and no pool is made of it, or None."""
    kind = item.get("kind")
    if kind is None and "githubConfigUrl" in item:
        return Note("values of the chart gha-runner-scale-set", SCALE_SETS_ARE_LEFT, open=True)
    if kind not in (*KINDS, *SCALE_SETS, AUTOSCALER, "Runner"):
        return None
    metadata = item.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in owners or ():
        if owner.get("kind") not in (*KINDS, *SCALE_SETS):
            continue
        name = f"{owner['kind']} {owner.get('name')}"
        if name in present:
            return Note(_title(item), f"no pool, because {name} owns it")
        return Note(_title(item), f"no pool, because {name} owns it; convert {name} instead", open=True)
    if kind in SCALE_SETS:
        return Note(_title(item), SCALE_SETS_ARE_LEFT, open=True)
    if kind == "Runner":
        return Note(_title(item), "single runners are not converted; write a pool with replicas 1", open=True)
    if kind == AUTOSCALER:
        target = (item.get("spec") or {}).get("scaleTargetRef") or {}
        name = f"{target.get('kind', KINDS[0])} {target.get('name')}"
        if name not in present:
            return Note(_title(item), f"its target {name} is not in the input; convert both together", open=True)
    return None


def _compare(pools: Sequence[Converted]) -> None:
    """Ask for a decision about pools with equal names, and about pools with equal labels that serve the same jobs."""
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if other.name == pool.name:
                pool.asks("metadata.name", f"{other.kind} {other.name} becomes a pool of the same name; rename one")
            scopes = {pool.scope, other.scope}
            if pool.labels == other.labels and (None in scopes or len(scopes) == 1):
                pool.asks(
                    "runnerLabels",
                    f"{other.kind} {other.name} has the same labels; a job that both pools serve is held until one has "
                    "another label or routingPriority",
                )


def _convert(item: Json, made: Converted, scalers: Sequence[Json]) -> Converted:
    spec: Json = item.get("spec") or {}
    template: Json = spec.get("template") or {}
    inner: Json = template.get("spec") or {}
    runner = {**inner, **spec} if made.kind == "RunnerSet" else inner
    containers = {each["name"]: each for each in inner.get("containers") or ()}
    container = containers.pop(RUNNER, {})
    own = {**container, **{name: runner[name] for name in _CONTAINER_FIELDS & set(runner)}}
    if any(each.get("controller") for each in item["metadata"].get("ownerReferences") or ()):
        made.asks("metadata.ownerReferences", "another object owns this one and can write it again; change the owner")
    _registration(made, runner)
    _lifecycle(made, runner)
    made.spec["replicas"] = int(spec.get("replicas", 1))
    made.became("replicas", "replicas")
    _autoscaling(made, scalers)
    _volumes(made, spec.get("volumeClaimTemplates") or (), own)
    _template(made, runner, own, template.get("metadata") or {})
    for name in sorted(containers):
        made.asks(f"containers[{name}]", _ADVICE["sidecarContainers"])
    _rest(made, spec, runner, own)
    return made


def _rest(made: Converted, spec: Json, runner: Json, own: Json) -> None:
    """Report the fields that no pool has, and the defaults that a pool does not share."""
    for name in sorted(set(own) - _CONTAINER_FIELDS - {"name"}):
        made.asks(f"containers[runner].{name}", _ADVICE.get(name, NO_COUNTERPART))
    has_daemon = runner.get("dockerdWithinRunnerContainer") or runner.get("containerMode") == "kubernetes"
    for name in sorted(set(_DEFAULTS) - set(runner) - set(own)):
        if name != "dockerEnabled" or not has_daemon:
            made.asks(name, f"absent, so {_DEFAULTS[name]}; {_ADVICE[name]}")
    for name in sorted((set(runner) | set(spec)) - _READ - _POD_FIELDS - _CONTAINER_FIELDS):
        if name in _NEEDLESS or (name == "dockerEnabled" and runner.get(name) is False):
            made.became(name, "nothing: a pool needs no such field")
        else:
            made.asks(name, _ADVICE.get(name, NO_COUNTERPART))


def _registration(made: Converted, runner: Json) -> None:
    made.spec["image"] = IMAGE
    made.spec["runnerLabels"] = list(
        dict.fromkeys((*DEFAULT_LABELS, *(str(each) for each in runner.get("labels") or ())))
    )
    made.became("labels", f"runnerLabels, with the default labels {', '.join(DEFAULT_LABELS)}")
    if runner.get("group"):
        made.spec["runnerGroup"] = str(runner["group"])
        made.became("group", "runnerGroup")


def _lifecycle(made: Converted, runner: Json) -> None:
    scope = {name: str(runner[name]) for name in ("organization", "repository") if runner.get(name)}
    if runner.get("ephemeral", True):
        made.spec["lifecycle"] = Lifecycle.EPHEMERAL.value
        made.became("ephemeral", "lifecycle ephemeral")
        made.asks("allowForks", "jobs of forks wait in this pool; set allowForks to true if it must run them")
        if "repository" in scope:
            made.spec["allowedRepositories"] = [scope["repository"]]
            made.became("repository", "allowedRepositories; Ostler registers each runner where its job is")
        elif scope:
            made.asks(
                "organization",
                "Ostler registers each runner where its job is; to admit this organisation alone, write its numeric id "
                "into allowedAccounts",
            )
        return
    if not scope:
        raise NotConvertible(
            f"{made.kind} {made.name} has persistent runners (ephemeral: false) and neither organization nor repository"
        )
    made.spec |= {"lifecycle": Lifecycle.PERSISTENT.value, "registration": scope}
    made.became("ephemeral", "lifecycle persistent")
    made.asks("allowForks", "no runner joins a group for public repositories; set allowForks to true to allow it")
    for name in scope:
        made.became(name, f"registration.{name}")


def _autoscaling(made: Converted, scalers: Sequence[Json]) -> None:
    for each in scalers:
        spec: Json = each.get("spec") or {}
        target: Json = spec.get("scaleTargetRef") or {}
        if target.get("name") != made.name or target.get("kind", KINDS[0]) != made.kind:
            continue
        least, most = int(spec.get("minReplicas") or 0), int(spec["maxReplicas"])
        made.spec.pop("replicas")
        made.spec["autoscaling"] = {"enabled": True, "minWarm": least, "maxReplicas": most}
        made.became(f"{AUTOSCALER}.minReplicas, maxReplicas", "autoscaling.minWarm, autoscaling.maxReplicas")
        threshold = _busy_threshold(spec.get("metrics") or ())
        if threshold is not None:
            made.spec["autoscaling"]["targetBusyPercent"] = threshold
            made.became(f"{AUTOSCALER}.metrics.scaleUpThreshold", "autoscaling.targetBusyPercent")
        if (delay := spec.get(_DELAY)) is not None:
            made.spec["autoscaling"]["scaleDownDelay"] = f"{int(delay)}s"
            made.became(f"{AUTOSCALER}.{_DELAY}", "autoscaling.scaleDownDelay")
        for name in sorted(set(spec) - {"scaleTargetRef", "minReplicas", "maxReplicas", _DELAY}):
            if name in {"metrics", "scaleUpTriggers"}:
                made.became(f"{AUTOSCALER}.{name}", "nothing: Ostler counts the queued jobs itself")
            else:
                made.asks(f"{AUTOSCALER}.{name}", NO_COUNTERPART)
        return


def _busy_threshold(metrics: Sequence[Json]) -> int | None:
    """Return the percentage of busy runners above which the autoscaler adds runners, or None if it does not use it."""
    for metric in metrics:
        if metric.get("type") == "PercentageRunnersBusy":
            return min(100, max(1, round(100 * float(metric.get("scaleUpThreshold", DEFAULT_THRESHOLD)))))
    return None


def _volumes(made: Converted, templates: Sequence[Json], container: Json) -> None:
    if made.kind == "RunnerSet":
        made.spec["workload"] = Workload.STATEFUL_SET.value
        made.became("kind RunnerSet", "workload StatefulSet")
    mounts = {each["name"]: each["mountPath"] for each in container.get("volumeMounts") or ()}
    claims = []
    for each in templates:
        name, claim = each["metadata"]["name"], each["spec"]
        storage = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
        if name not in mounts or storage is None:
            made.asks(
                f"volumeClaimTemplates[{name}]", "the runner does not mount it, or it has no size; write it by hand"
            )
            continue
        one = {"name": name, "mountPath": mounts[name], "storage": storage}
        if claim.get("storageClassName"):
            one["storageClassName"] = claim["storageClassName"]
        claims.append(one)
        made.became(f"volumeClaimTemplates[{name}]", "volumes.claims")
        if claim.get("accessModes") not in (None, ["ReadWriteOnce"]):
            made.asks(f"volumeClaimTemplates[{name}].spec.accessModes", "set accessMode of the claim")
    if claims:
        made.spec["volumes"] = {"claims": claims, "reclaim": "Retain"}


def _template(made: Converted, runner: Json, own: Json, metadata: Json) -> None:
    pod = {name: runner[name] for name in sorted(_POD_FIELDS & set(runner))}
    container = {name: own[name] for name in sorted(_CONTAINER_FIELDS & set(own))}
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
