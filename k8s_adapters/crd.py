"""The CustomResourceDefinition of `RunnerPool` and its installation.

The definition has the schema, defaults, CEL rules, columns and subresources.

This module is the only source of the definition. `ostler crd` applies it, and the chart contains the output of `ostler
crd --print`. The API server refuses a spec that violates a CEL rule. CEL cannot detect some errors, such as an invalid
overlay of the Pod template. Ostler reports such errors in the condition `Degraded` of the pool.
"""

from __future__ import annotations

from k8s_adapters.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.names import (
    API_VERSION,
    CONTAINERS_BUILDKIT,
    CONTAINERS_DIND,
    CONTAINERS_KUBERNETES,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
)
from ostler.errors import Conflict, Gone, Retryable
from rules.pools.hook_names import LONGEST_POOL
from rules.pools.pod_security import PodSecurity
from rules.pools.volumes import Reclaim
from rules.pools.workloads import LONGEST_STATEFUL_POOL, Lifecycle, Workload

CRD_NAME = f"{PLURAL}.{GROUP}"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

DEFAULT_CPU = "2"
DEFAULT_MEMORY = "4Gi"
DEFAULT_EPHEMERAL_STORAGE = "10Gi"
LONGEST_NAME = 54
"""Maximum number of characters in a pool's name.

The name of a Pod is the name of its pool, `-` and 8 hex digits. The name of a Pod must fit into a label value (63
characters).
"""

LONGEST_GROUP = 100
"""Maximum number of characters in the name of a runner group."""

LEAST_HOOK_MEMORY = 64
"""Minimum memory in MiB of a hook Pod, or of the daemon that builds images. With less, no container of a job starts."""

_MOST_PODS = 10_000
_MOST_MEMORY = 2**31
_DURATION = "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"
_CONDITION_TYPES = ("Ready", "Draining", "Degraded", "RunnerOutdated")
COUNTS = ("starting", "warm", "reserved", "busy", "ending", "retiring", "unresponsive", "spent", "stale", "lost")
"""Counts in a pool's status: the states of a Pod, and the counts `stale` and `lost`.

A `stale` Pod is also in the count of its state. A `lost` Pod is in no other count.
"""


def apply_crd(client: KubeClient, *, within: float = 30.0) -> None:
    """Create or update the definition of `RunnerPool`, and wait until the API server serves it.

    Several processes may call this function at the same time. Raises `Retryable` if the definition is not served after
    `within` seconds, and the errors of `KubeClient.request`.
    """
    try:
        client.request("POST", _CRDS, body=crd_manifest())
    except Conflict:
        client.request("PATCH", f"{_CRDS}/{CRD_NAME}", body=crd_manifest(), content_type=MERGE_PATCH)
    deadline = client.timing.clock() + within
    while not _established(client.request("GET", f"{_CRDS}/{CRD_NAME}")) or not _served(client):
        if client.timing.clock() > deadline:
            raise Retryable(f"the API server does not serve {CRD_NAME} after {within:.0f} s; try again")
        client.timing.sleep(0.05)


def _established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # the conditions are null at first
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _served(client: KubeClient) -> bool:
    """Return whether the API server serves `RunnerPool` objects.

    For a moment after the condition `Established` is true, the API server still answers 404.
    """
    try:
        client.request("GET", f"/apis/{API_VERSION}/{PLURAL}", query={"limit": 1})
    except Gone:
        return False
    return True


def crd_manifest() -> Json:
    """Return the definition of `RunnerPool` as JSON."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": "runnerpool",
                "shortNames": ["rpool"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _columns() -> list[Json]:
    return [
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Warm", "type": "integer", "jsonPath": ".status.warm"},
        {"name": "Busy", "type": "integer", "jsonPath": ".status.busy"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Labels", "type": "string", "jsonPath": ".spec.runnerLabels"},
        {
            "name": "Degraded",
            "type": "string",
            "priority": 1,
            "jsonPath": '.status.conditions[?(@.type=="Degraded")].message',
        },
        {"name": "Image", "type": "string", "jsonPath": ".spec.image", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]


def _schema() -> Json:
    spec = {
        "type": "object",
        "required": ["image", "runnerLabels"],
        "properties": {**_routing(), **_shape(), **_size()},
    }
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": _status()},
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {LONGEST_NAME}",
                "message": f"the name of a pool has at most {LONGEST_NAME} characters: its Pods are named after it",
            },
            {
                "rule": "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "the name of a pool has no dots: its Pods are named after it",
            },
            {
                "rule": f"!has(self.spec.containers) || self.spec.containers.mode != '{CONTAINERS_KUBERNETES}' "
                f"|| size(self.metadata.name) <= {LONGEST_POOL}",
                "message": f"the name of a pool with containers.mode {CONTAINERS_KUBERNETES} has at most "
                f"{LONGEST_POOL} characters: hook Pods are named after its Pods",
            },
            {
                "rule": f"!has(self.spec.containers) || self.spec.containers.mode == '{CONTAINERS_KUBERNETES}' "
                "|| (has(self.spec.security) && has(self.spec.security.podSecurity) "
                "&& self.spec.security.podSecurity == 'privileged')",
                "message": f"containers.mode {CONTAINERS_BUILDKIT} and {CONTAINERS_DIND} need security.podSecurity "
                "privileged",
            },
            *_workload_rules(),
            *_lifecycle_rules(),
        ],
    }


def _workload_rules() -> list[Json]:
    """Return the CEL rules about `workload` and `volumes`.

    `volumes` cannot be added or removed, and `reclaim` cannot be changed. Otherwise a volume that a job of a fork wrote
    could become the cache of other jobs.
    """
    stateful = f"(has(self.spec.workload) && self.spec.workload == '{Workload.STATEFUL_SET}')"
    return [
        {
            "rule": f"!has(self.spec.volumes) || {stateful}",
            "message": "volumes need workload StatefulSet: create another pool with this workload, because the "
            "workload of a pool cannot be changed",
        },
        {
            "rule": f"!{stateful} || size(self.metadata.name) <= {LONGEST_STATEFUL_POOL}",
            "message": f"the name of a pool with workload StatefulSet has at most {LONGEST_STATEFUL_POOL} characters",
        },
        {
            "rule": f"!{stateful} || !has(self.spec.containers)",
            "message": "containers do not work with workload StatefulSet: use workload Pod",
        },
        {
            "rule": "has(self.spec.volumes) == has(oldSelf.spec.volumes)",
            "message": "volumes cannot be added to a pool or removed: create another pool, then delete this pool",
        },
        {
            "rule": "!has(self.spec.volumes) || !has(self.spec.allowForks) || !self.spec.allowForks "
            f"|| (has(self.spec.volumes.reclaim) && self.spec.volumes.reclaim == '{Reclaim.DELETE}')",
            "message": "allowForks needs volumes.reclaim Delete: with Retain, a later job would read what a job of a "
            "fork wrote",
        },
    ]


def _lifecycle_rules() -> list[Json]:
    """Return the CEL rules about `lifecycle`, and about the fields that only one lifecycle can have."""
    persistent = f"(has(self.spec.lifecycle) && self.spec.lifecycle == '{Lifecycle.PERSISTENT}')"
    return [
        {
            "rule": f"{persistent} == has(self.spec.registration)",
            "message": "lifecycle persistent needs registration, and lifecycle ephemeral must not have it",
        },
        {
            "rule": f"{persistent} || !has(self.spec.maxRunnerAge)",
            "message": "maxRunnerAge needs lifecycle persistent: remove maxRunnerAge",
        },
        {
            "rule": f"!{persistent} || !has(self.spec.containers)",
            "message": "containers do not work with lifecycle persistent: remove containers, or use lifecycle "
            "ephemeral in another pool",
        },
        {
            "rule": f"!{persistent} || !has(self.spec.maxJobDuration)",
            "message": "maxJobDuration does not work with lifecycle persistent, because the kubelet would end the "
            "runner: remove maxJobDuration, and set timeout-minutes in the workflow",
        },
        {
            "rule": f"!{persistent} || !has(self.spec.runnerGroup) || type(self.spec.runnerGroup) != int "
            "|| self.spec.runnerGroup == 1",
            "message": "lifecycle persistent needs the name of the runner group: write the name into runnerGroup",
        },
        {
            "rule": f"!{persistent} || self.spec.runnerLabels.all(label, label.matches('^[^,[:cntrl:]]+$'))",
            "message": "with lifecycle persistent, runnerLabels must have no commas and no line breaks",
        },
        {
            "rule": f"!{persistent} || !has(self.spec.allowedRepositories) "
            "|| self.spec.allowedRepositories.size() == 0",
            "message": "allowedRepositories does not work with lifecycle persistent, because GitHub chooses the job: "
            "remove allowedRepositories, and restrict the repositories of the runner group",
        },
    ]


def _routing() -> Json:
    """Return the fields of the schema that decide which jobs a pool serves."""
    return {
        "runnerLabels": {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": {"type": "string", "minLength": 1, "maxLength": 256},
            "x-kubernetes-list-type": "set",
            "description": "Labels of the pool's runners on GitHub. A job matches if the pool has every label in the "
            "job's `runs-on`.",
        },
        "runnerGroup": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "default": 1,
            "maxLength": LONGEST_GROUP,
            "description": "Runner group on GitHub, by its number or its name. Numbers differ between organisations, "
            "except that 1 is always the default group.",
            "x-kubernetes-validations": [
                {
                    "rule": "type(self) == int ? self > 0 : size(string(self)) > 0",
                    "message": "must be the number of a runner group, 1 or more, or its name",
                }
            ],
        },
        "routingPriority": {
            "type": "integer",
            "default": 0,
            "description": "Priority among the matching pools with the fewest labels. The pool with the highest number "
            "gets the job.",
        },
        "allowedAccounts": {
            "type": "array",
            "items": {"type": "integer", "format": "int64"},
            "description": "Accounts that may use the pool, by GitHub's numeric id. An empty list allows all accounts.",
        },
        "allowedRepositories": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "description": "Repositories that may use the pool, as owner/name. An empty list allows all repositories.",
        },
        "allowForks": {
            "type": "boolean",
            "default": False,
            "description": "Whether the pool serves jobs of runs that come from a fork of a public repository. Anyone "
            "on the internet can start such runs. Persistent pools without it serve private repositories only.",
        },
    }


def _shape() -> Json:
    """Return the fields of the schema that describe a Pod of the pool."""
    return {
        "image": {
            "type": "string",
            "minLength": 1,
            "description": "Image of the containers `poller` and `runner` of a Pod. It must contain GitHub's runner.",
        },
        "resources": {
            "type": "object",
            "default": {},
            "properties": {
                "cpu": _quantity(2, "CPU request and limit of the container `runner`."),
                "memory": _quantity(DEFAULT_MEMORY, "Memory request and limit of the container `runner`."),
                "ephemeralStorage": _quantity(
                    DEFAULT_EPHEMERAL_STORAGE,
                    "Disk request of the container `runner`. It covers the container's own files, logs and emptyDir "
                    "volumes.",
                ),
                "ephemeralStorageLimit": _quantity(
                    None,
                    "Disk limit of the Pod, which `containers.cache` raises by its own size. It covers the files of "
                    "all containers, logs and emptyDir volumes. The kubelet evicts a Pod that uses more, and its job "
                    "fails. Without a value there is no limit.",
                ),
            },
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.ephemeralStorageLimit) || quantity(string(self.ephemeralStorageLimit))"
                    ".compareTo(quantity(string(self.ephemeralStorage))) >= 0",
                    "message": "resources.ephemeralStorageLimit must be at least resources.ephemeralStorage, "
                    f"which is {DEFAULT_EPHEMERAL_STORAGE} unless it is set",
                }
            ],
        },
        "containers": {
            "type": "object",
            "required": ["mode"],
            "description": "Containers and images in jobs. Without a value, jobs with `container`, `services` or a "
            "Docker action fail, and jobs cannot build images.",
            "properties": {
                "mode": {
                    "type": "string",
                    "enum": [CONTAINERS_KUBERNETES, CONTAINERS_BUILDKIT, CONTAINERS_DIND],
                    "description": "`kubernetes`: jobs may have `container`, `services` and Docker actions. A job "
                    "with `container` or `services` has a hook Pod, and each Docker action has one more. `buildkit`: "
                    "jobs may build images with a BuildKit daemon beside the runner, which needs nodes with user "
                    "namespaces. `dind`: jobs may use a Docker daemon beside the runner. This daemon runs as root of "
                    "the node, and was not tested in a user namespace. `buildkit` and `dind` need security.podSecurity "
                    "privileged.",
                },
                "vcpu": _quantity(
                    None,
                    "CPU of one hook Pod, which its containers share, or of the daemon. The default is resources.cpu.",
                ),
                "memoryMib": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Memory in MiB of one hook Pod, which its containers share, or of the "
                    "daemon. The default is resources.memory.",
                    "x-kubernetes-validations": [
                        {
                            "rule": f"self >= {LEAST_HOOK_MEMORY} && self <= {_MOST_MEMORY}",
                            "message": f"must be a number of MiB from {LEAST_HOOK_MEMORY} to {_MOST_MEMORY}",
                        }
                    ],
                },
                "cache": _quantity(
                    None,
                    "Size of the volume for layers of images. The kubelet evicts a Pod that uses more, and its job "
                    "fails. BuildKit deletes unused layers if the layers need more than 80 % of this size. Without a "
                    "value there is no limit. Only for the modes buildkit and dind.",
                ),
            },
            "x-kubernetes-validations": [
                {
                    "rule": f"!has(self.cache) || self.mode != '{CONTAINERS_KUBERNETES}'",
                    "message": f"containers.cache needs containers.mode {CONTAINERS_BUILDKIT} or {CONTAINERS_DIND}",
                }
            ],
        },
        "assignedUser": {
            "type": "boolean",
            "default": False,
            "description": "Whether the cluster assigns the user and the groups of the Pods, as OpenShift's "
            "restricted-v2 "
            "requires. Otherwise they are 1001, the user of GitHub's runner image.",
        },
        "security": _security(),
        "workload": {
            "type": "string",
            "enum": [each.value for each in Workload],
            "default": Workload.POD.value,
            "description": "Kind of object that a runner is. `Pod`: a runner is one Pod. `StatefulSet`: a runner is a "
            "StatefulSet with one replica, which `volumes` need; this requires Kubernetes 1.35. The workload of a pool "
            "cannot be changed.",
            "x-kubernetes-validations": [
                {
                    "rule": "self == oldSelf",
                    "message": "the workload of a pool cannot be changed: create another pool, then delete this pool",
                }
            ],
        },
        "volumes": _volumes(),
        "lifecycle": {
            "type": "string",
            "enum": [each.value for each in Lifecycle],
            "default": Lifecycle.EPHEMERAL.value,
            "description": "How long a runner lives. `ephemeral`: a runner runs one job, which Ostler chooses, and its "
            "Pod is replaced. `persistent`: a runner runs one job after the other, which GitHub chooses. The "
            "lifecycle of a pool cannot be changed.",
            "x-kubernetes-validations": [
                {
                    "rule": "self == oldSelf",
                    "message": "the lifecycle of a pool cannot be changed: create another pool, then delete this pool",
                }
            ],
        },
        "registration": {
            "type": "object",
            "description": "Where persistent runners are registered: in an organisation or in a repository. This field "
            "cannot be changed.",
            "properties": {
                "organization": {
                    "type": "string",
                    "maxLength": 100,
                    "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$",
                    "description": "Login of the organisation.",
                },
                "repository": {
                    "type": "string",
                    "maxLength": 200,
                    "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9._-]+$",
                    "description": "Repository, as owner/name.",
                },
            },
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.organization) != has(self.repository)",
                    "message": "registration needs exactly one of organization and repository",
                },
                {
                    "rule": "self == oldSelf",
                    "message": "registration cannot be changed: create another pool, then delete this pool",
                },
            ],
        },
        "maxRunnerAge": {
            **_duration(
                None,
                "Time after which an idle persistent runner is replaced. Without a value there is no limit.",
            ),
            "x-kubernetes-validations": [
                {"rule": "duration(self) >= duration('1h')", "message": "must be at least one hour"}
            ],
        },
        "podTemplate": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "description": "`metadata` (labels, annotations) and `spec`, applied to the Pod by strategic merge. If a "
            "field "
            "would weaken the separation of poller and runner, the pool becomes Degraded.",
        },
    }


def _volumes() -> Json:
    """Return the schema of `spec.volumes`."""
    claim = {
        "type": "object",
        "required": ["name", "mountPath", "storage"],
        "properties": {
            "name": {
                "type": "string",
                "maxLength": 30,
                "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
                "description": "Name of the volume. Its PersistentVolumeClaim is named after it and after the Pod.",
            },
            "mountPath": {
                "type": "string",
                "maxLength": 200,
                "pattern": "^/",
                "description": "Folder of the container `runner` in which the volume is mounted.",
            },
            "storage": _quantity(None, "Size of the volume."),
            "storageClassName": {
                "type": "string",
                "maxLength": 253,
                "description": "Storage class of the volume. Without a value, the cluster's default class is used.",
            },
            "accessMode": {
                "type": "string",
                "enum": ["ReadWriteOnce", "ReadWriteOncePod"],
                "default": "ReadWriteOnce",
                "description": "Access mode of the volume. Two Pods never use one volume at the same time.",
            },
        },
    }
    return {
        "type": "object",
        "required": ["claims"],
        "description": "Volumes of each runner that can outlive its Pod, for example for caches. They need workload "
        "StatefulSet.",
        "properties": {
            "claims": {
                "type": "array",
                "minItems": 1,
                "maxItems": 8,
                "items": claim,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "reclaim": {
                "type": "string",
                "enum": [each.value for each in Reclaim],
                "default": Reclaim.RETAIN.value,
                "description": "What becomes of the volumes of a runner that has ended. `Retain`: the next new runner "
                "of the pool gets them, with their contents; such a pool serves private repositories only. `Delete`: "
                "they are deleted, and every runner begins with empty volumes. This field cannot be changed.",
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "volumes.reclaim cannot be changed: create another pool, then delete this pool",
                    }
                ],
            },
        },
    }


def _security() -> Json:
    """Return the schema of `spec.security`.

    The level of a pool cannot be changed. Otherwise a job of a fork could get a Pod of the old level, while the pool
    admits forks because of its new level.
    """
    return {
        "type": "object",
        "default": {},
        "properties": {
            "podSecurity": {
                "type": "string",
                "enum": [level.value for level in PodSecurity],
                "default": "restricted",
                "description": "Pod Security level of the pool's Pods: restricted, baseline or privileged. The owner "
                "of the cluster allows the levels above restricted, in a namespace of their own. The level of a pool "
                "cannot be changed.",
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "the level of a pool cannot be changed: create another pool",
                    }
                ],
            },
            "allowPrivilegeEscalation": {
                "type": "boolean",
                "default": False,
                "description": "Whether a job may gain privileges inside its container, for example with sudo. It "
                "needs podSecurity baseline or privileged.",
            },
            "allowForks": {
                "type": "boolean",
                "default": False,
                "description": "Whether a pool above the level restricted serves jobs of forks. Such a pool needs both "
                "this field and spec.allowForks.",
            },
        },
        "x-kubernetes-validations": [
            {
                # The API server also evaluates the rule for the default value, an object without fields.
                "rule": "!has(self.allowPrivilegeEscalation) || !self.allowPrivilegeEscalation "
                "|| (has(self.podSecurity) && self.podSecurity != 'restricted')",
                "message": "security.allowPrivilegeEscalation needs security.podSecurity baseline or privileged",
            }
        ],
    }


def _size() -> Json:
    """Return the fields of the schema that control the number of Pods and the replacement of Pods."""
    return {
        "replicas": {
            "type": "integer",
            "minimum": 0,
            "maximum": _MOST_PODS,
            "default": 0,
            "description": "Desired number of Pods. With autoscaling, the autoscaler writes this field.",
        },
        "paused": {
            "type": "boolean",
            "default": False,
            "description": "Whether the pool is paused. The reconciler then creates and retires none of its Pods until "
            "the pool is deleted. Warm Pods still serve jobs, and sweeps still retire Pods that do not work.",
        },
        "drainTimeout": _duration(
            None,
            "Time after the deletion of the pool before a running job is reported as overdue. It ends no job.",
        ),
        "startTarget": _duration(
            None,
            "Time from the queueing of a job to its start within which jobs should start. `ostler usage` reports the "
            "jobs that took longer. It changes no job and no Pod.",
        ),
        "maxJobDuration": {
            **_duration(
                None,
                "Maximum duration of a job, one minute or more. After that the kubelet ends the Pod and the job "
                "fails. Without a value there is no limit.",
            ),
            "x-kubernetes-validations": [
                {"rule": "duration(self) >= duration('1m')", "message": "must be at least one minute"}
            ],
        },
        "autoscaling": {
            "type": "object",
            "default": {},
            "properties": {
                "enabled": {"type": "boolean", "default": False},
                "minWarm": _whole(1, "Number of warm Pods in addition to the Pods with jobs."),
                "maxReplicas": _whole(10, "Maximum number of Pods."),
                "scaleDownDelay": _duration("10m", "Time after the last scale-up before the pool may shrink."),
                "targetBusyPercent": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 100,
                    "default": 100,
                    "description": "Percentage of the Pods that are busy at the usual load of the last hour. A smaller "
                    "value keeps more idle Pods in a pool with more jobs.",
                },
            },
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.enabled) || !self.enabled || self.minWarm <= self.maxReplicas",
                    "message": "autoscaling.minWarm is more than autoscaling.maxReplicas",
                }
            ],
        },
        "rollout": {
            "type": "object",
            "default": {},
            "properties": {
                "maxUnavailablePercent": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 100,
                    "default": 10,
                    "description": "Percentage of the replicas that may be unavailable at the same time while a "
                    "changed "
                    "template rolls out. At least one Pod may always be unavailable.",
                },
                "maxSurge": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": _MOST_PODS,
                    "description": "Number of Pods above `replicas` that a roll may create before it retires old "
                    "Pods. These "
                    "Pods count in maxUnavailablePercent. The default is 1 if maxUnavailablePercent is one Pod, and "
                    "otherwise 0.",
                },
            },
        },
        "provisioning": {
            "type": "object",
            "default": {},
            "properties": {
                "startTimeout": _duration(
                    None,
                    "Time from the creation of a Pod to its first poll before the Pod is replaced. "
                    "The default is OSTLER_START_TIMEOUT.",
                ),
                "maxConcurrent": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": _MOST_PODS,
                    "default": 100,
                    "description": "Maximum number of Pods of the pool that may be starting at the same time.",
                },
            },
        },
    }


def _quantity(default: int | str | None, text: str) -> Json:
    schema: Json = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": 64,
        "description": text,
        "x-kubernetes-validations": [
            {
                "rule": "type(self) == int ? self > 0 : "
                "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
                "message": "must be a quantity of more than 0, such as 2, 500m or 4Gi",
            }
        ],
    }
    return schema if default is None else {**schema, "default": default}


def _whole(default: int, text: str) -> Json:
    return {"type": "integer", "minimum": 0, "maximum": _MOST_PODS, "default": default, "description": text}


def _duration(default: str | None, text: str) -> Json:
    schema: Json = {
        "type": "string",
        "minLength": 2,
        "maxLength": 20,
        "pattern": _DURATION,
        "description": f"{text} Format: 90s, 10m or 1h30m.",
    }
    return schema if default is None else {**schema, "default": default}


def _status() -> Json:
    number: Json = {"type": "integer"}
    time: Json = {"type": "string", "format": "date-time"}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "enum": list(_CONDITION_TYPES)},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": number,
            "lastTransitionTime": time,
            "reason": {"type": "string", "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": number,
            "replicas": {**number, "description": "Number of Pods that are not spent."},
            "selector": {
                "type": "string",
                "description": "Label selector of the pool's Pods, for the scale subresource.",
            },
            **dict.fromkeys(COUNTS, number),
            "volumes": {
                "type": "object",
                "description": "Numbers of volumes of a pool with `spec.volumes`. Runners use the volumes in `inUse`. "
                "The next runners get the volumes in `free`, unless they were created from another `spec.volumes`.",
                "properties": {"inUse": number, "free": number, "lost": number},
            },
            "lastScaleUpTime": time,
            "lastScaleDownTime": time,
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }
