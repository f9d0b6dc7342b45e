"""Conversion of a RunnerDeployment, RunnerReplicaSet or RunnerSet of actions-runner-controller into a pool.

Source: the custom resource definitions of actions-runner-controller (`actions.summerwind.dev/v1alpha1`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rules.conversion.arc_pods import (
    ABSENT,
    CONTAINER_FIELDS,
    IMAGE,
    NO_COUNTERPART,
    POD_FIELDS,
    Converted,
    Json,
    NotConvertible,
    admit,
    advice,
    container_of,
    lay_template,
    note_absent,
    note_object,
)
from rules.pools.workloads import Lifecycle, Workload

KINDS = ("RunnerDeployment", "RunnerReplicaSet", "RunnerSet")
AUTOSCALER = "HorizontalRunnerAutoscaler"
DEFAULT_THRESHOLD = 0.8
"""Share of busy runners above which actions-runner-controller adds runners if the metric sets none."""
_DELAY = "scaleDownDelaySecondsAfterScaleOut"
DEFAULT_LABELS = ("self-hosted", "linux", "x64")
"""Labels that a runner of actions-runner-controller has besides its own. Ostler's runners have no other labels than
those of their pool, so a workflow that asks for one of them would find no runner otherwise."""

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

_NEEDLESS = frozenset({"effectiveTime", "podManagementPolicy", "selector", "serviceName", "updateStrategy"})
"""Fields that select or order objects of actions-runner-controller. A pool needs none of them."""


def convert_runners(item: Json, made: Converted, scalers: Sequence[Json]) -> Converted:
    """Return the pool of a runner object, with the limits of the autoscaler that names it.

    Raises `NotConvertible` if the object lacks what a pool needs, and AttributeError, KeyError, TypeError or ValueError
    if it does not have the structure of its kind.
    """
    spec: Json = item.get("spec") or {}
    template: Json = spec.get("template") or {}
    inner: Json = template.get("spec") or {}
    runner = {**inner, **spec} if made.kind == "RunnerSet" else inner
    own = {**container_of(inner), **{name: runner[name] for name in CONTAINER_FIELDS & set(runner)}}
    if any(each.get("controller") for each in item["metadata"].get("ownerReferences") or ()):
        made.asks("metadata.ownerReferences", "another object owns this one and can write it again; change the owner")
    note_object(made, item["metadata"])
    _registration(made, runner)
    _lifecycle(made, runner)
    made.spec["replicas"] = int(spec.get("replicas", 1))
    made.became("replicas", "replicas")
    _autoscaling(made, scalers)
    _volumes(made, spec.get("volumeClaimTemplates") or (), own)
    lay_template(made, runner, own, {kind: value for kind, value in (template.get("metadata") or {}).items() if value})
    has_daemon = runner.get("dockerdWithinRunnerContainer") or runner.get("containerMode") == "kubernetes"
    note_absent(made, ABSENT - set(runner) - set(own) - ({"dockerEnabled"} if has_daemon else set()))
    for name in sorted((set(runner) | set(spec)) - _READ - POD_FIELDS - CONTAINER_FIELDS):
        if name in _NEEDLESS or (name == "dockerEnabled" and runner.get(name) is False):
            made.became(name, "nothing: a pool needs no such field")
        else:
            made.asks(name, advice(name, runner.get(name)))
    return made


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
        admit(made, scope)
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
        made.became(f"{AUTOSCALER}.maxReplicas", "autoscaling.maxReplicas")
        made.asks(
            f"{AUTOSCALER}.minReplicas",
            f"autoscaling.minWarm {least}, which counts only runners that wait for a job, beside those that are busy; "
            "a smaller number can be sufficient",
        )
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
        made.asks("kind RunnerSet", "workload StatefulSet, which needs Kubernetes 1.35 (docs/operations/volumes.md)")
    claims = []
    for each in templates:
        name, claim = each["metadata"]["name"], each["spec"]
        where = f"volumeClaimTemplates[{name}]"
        mounts = [mount for mount in container.get("volumeMounts") or () if mount["name"] == name]
        storage = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
        if not mounts or storage is None:
            made.asks(where, "the runner does not mount it, or it has no size; write it by hand")
            continue
        one = {"name": name, "mountPath": mounts[0]["mountPath"], "storage": storage}
        if claim.get("storageClassName"):
            one["storageClassName"] = claim["storageClassName"]
        claims.append(one)
        made.asks(where, "volumes.claims with reclaim Retain; such a pool serves private repositories only")
        _mounts(made, mounts)
        modes = claim.get("accessModes") or ["ReadWriteOnce"]
        if modes == ["ReadWriteOncePod"]:
            one["accessMode"] = modes[0]
        elif modes != ["ReadWriteOnce"]:
            made.asks(
                f"{where}.spec.accessModes",
                f"the claim is ReadWriteOnce instead of {', '.join(modes)}: two runners never share a volume",
            )
    if claims:
        made.spec["volumes"] = {"claims": claims, "reclaim": "Retain"}


def _mounts(made: Converted, mounts: Sequence[Json]) -> None:
    """Ask about mounts of a claim that differ from the one mount that a claim of a pool has."""
    for mount in mounts:
        path, left = mount["mountPath"], sorted(set(mount) - {"name", "mountPath"})
        if left or mount is not mounts[0]:
            what = "it has " + ", ".join(f"{field} {mount[field]}" for field in left) if left else "it is a second one"
            made.asks(f"volumeMounts[{path}]", f"{what}; a claim is mounted once, as a whole, at its mountPath")
        if f"{path}/".startswith("/var/lib/docker/"):
            made.asks(f"volumeMounts[{path}]", "the runners of the pool have no Docker daemon; delete the claim")
