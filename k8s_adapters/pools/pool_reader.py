"""Reader of `RunnerPool` objects: the specification of a pool from its JSON, with the errors that CEL cannot detect."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.calls.client import Json, part
from k8s_adapters.names import (
    CONTAINERS_BUILDKIT,
    CONTAINERS_DIND,
    CONTAINERS_KUBERNETES,
    DRAIN_FINALIZER,
    PAUSE_ANNOTATION,
)
from k8s_adapters.runners.runner_scripts import SCRIPTS_FOLDER
from ostler.errors import Invalid
from rules.pools import pod_template
from rules.pools.hook_names import LONGEST_POOL
from rules.pools.pod_security import PodSecurity
from rules.pools.pool_spec import (
    Builder,
    HookPods,
    PoolSpec,
    VolumeClaim,
    Volumes,
    builder_problems,
    template_hash,
)
from rules.pools.spec_writers import is_ours
from rules.pools.volumes import Reclaim
from rules.pools.workloads import LONGEST_STATEFUL_POOL, Lifecycle, Workload
from rules.routing.scopes import Scope

DEFAULT_CPU = "2"
DEFAULT_MEMORY = "4Gi"
DEFAULT_EPHEMERAL_STORAGE = "10Gi"
LEAST_HOOK_MEMORY = 64
"""Minimum memory in MiB of a hook Pod, or of the daemon that builds images. With less, no container of a job starts."""
LONGEST_GROUP = 100
"""Maximum number of characters in the name of a runner group."""

_MIB = 1024 * 1024
_LARGEST = 2**31  # millicores, or MiB
COPY, SHARED = "copy", "shared"
"""Values of `spec.containers.workspace`: hook Pods with a copy of the files, or containers in the runner Pod."""

SERVICE_NAMES = (
    "cache",
    "cassandra",
    "clickhouse",
    "database",
    "db",
    "dynamodb",
    "elasticsearch",
    "kafka",
    "localstack",
    "mailhog",
    "mailpit",
    "mariadb",
    "memcached",
    "minio",
    "mongo",
    "mongodb",
    "mssql",
    "mysql",
    "nats",
    "neo4j",
    "nginx",
    "opensearch",
    "pg",
    "pgvector",
    "postgres",
    "postgresql",
    "rabbitmq",
    "redis",
    "selenium",
    "sqlserver",
    "valkey",
    "zookeeper",
)
"""Default of `spec.containers.serviceNames`: keys of `services:` in public workflows."""

_WORKSPACES = (COPY, SHARED)
_HOST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MODES = (CONTAINERS_KUBERNETES, CONTAINERS_BUILDKIT, CONTAINERS_DIND)
_LONGEST = 365 * 24 * 3600  # seconds
_SHORTEST_JOB = 60  # seconds
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


_MOUNT_PATH = re.compile(r"(?:/[A-Za-z0-9._@+-]*[A-Za-z0-9_@+-])+")
_OUR_FOLDERS = ("/var/run/ostler", f"{SCRIPTS_FOLDER}/")
"""Beginnings of the folders in which Ostler's own volumes are mounted."""


def read_pool(item: Json) -> PoolSpec:
    """Return a pool from its JSON. If the spec has errors that the schema allows, `problem` describes them.

    Raises ValueError, KeyError, TypeError or AttributeError if the JSON violates the schema of `RunnerPool`.
    """
    metadata: Json = item["metadata"]
    spec, status = part(item, "spec"), part(item, "status")
    resources, autoscaling = part(spec, "resources"), part(spec, "autoscaling")
    provisioning, rollout = part(spec, "provisioning"), part(spec, "rollout")
    problems: list[str] = []
    vcpu = _whole(resources.get("cpu", DEFAULT_CPU), 1000, "spec.resources.cpu", problems)
    memory = _mebibytes(resources.get("memory", DEFAULT_MEMORY), "memory", problems)
    disk, disk_limit = _disk(resources, problems)
    image = str(spec.get("image") or "")
    labels = tuple(str(label) for label in spec.get("runnerLabels") or ())
    overlay = spec.get("podTemplate") or None
    if not image:
        problems.append("spec.image is empty")
    if not labels:
        problems.append("spec.runnerLabels is empty")
    containers, builder = _containers(spec.get("containers"), metadata["name"], resources, problems)
    level, escalates, elevated_forks = _security(spec.get("security"), problems)
    assigned_user = spec.get("assignedUser") is True
    if containers is not None and containers.shared and (assigned_user or level.elevated):
        problems.append(
            "spec.containers.workspace shared works neither with spec.assignedUser nor above the level restricted of "
            "spec.security.podSecurity: use the workspace copy"
        )
    if builder is not None:
        problems.extend(builder_problems(builder, level, assigned_user=assigned_user))
    registers_in = _registration(spec, labels, problems)
    refused = pod_template.refusals(
        overlay or {},
        containers=containers is not None,
        builder=builder is not None,
        persistent=registers_in is not None,
        level=level,
    )
    problems.extend(refused)
    workload = _workload(spec, metadata["name"], problems)
    volumes = _volumes(spec, workload, overlay, problems)
    deleted_at = metadata.get("deletionTimestamp")
    pool = PoolSpec(
        uid=metadata["uid"],
        name=metadata["name"],
        namespace=metadata["namespace"],
        generation=int(metadata.get("generation", 0)),
        resource_version=str(metadata.get("resourceVersion", "")),
        image=image,
        labels=labels,
        runner_group=_group(spec.get("runnerGroup", 1), problems),
        vcpu_millicores=vcpu,
        memory_mib=memory,
        ephemeral_storage_mib=disk,
        ephemeral_storage_limit_mib=disk_limit,
        replicas=int(spec.get("replicas", 0)),
        replicas_writer=_replicas_writer(metadata, spec) if autoscaling.get("enabled") else None,
        writers=_writers(metadata),
        pause_request=part(metadata, "annotations").get(PAUSE_ANNOTATION),
        paused=bool(spec.get("paused")),
        autoscaled=bool(autoscaling.get("enabled")),
        min_warm=int(autoscaling.get("minWarm", 1)),
        max_replicas=int(autoscaling.get("maxReplicas", 10)),
        scale_down_delay=_seconds(autoscaling, "scaleDownDelay", "10m", problems),
        target_busy_percent=int(autoscaling.get("targetBusyPercent", 100)),
        max_unavailable_percent=int(rollout.get("maxUnavailablePercent", 10)),
        max_surge=rollout.get("maxSurge"),
        start_timeout=_optional(provisioning, "startTimeout", problems),
        max_concurrent=int(provisioning.get("maxConcurrent", 100)),
        drain_timeout=_optional(spec, "drainTimeout", problems),
        max_job_seconds=_longest_job(spec, problems),
        start_target=_optional(spec, "startTarget", problems),
        allowed_accounts=tuple(int(account) for account in spec.get("allowedAccounts") or ()),
        allowed_repositories=tuple(str(repository) for repository in spec.get("allowedRepositories") or ()),
        routing_priority=int(spec.get("routingPriority", 0)),
        allow_forks=spec.get("allowForks") is True,
        serves_unlabelled=spec.get("serveUnlabelled") is True,
        pod_template=None if refused else overlay,
        template_hash="",
        has_finalizer=DRAIN_FINALIZER in (metadata.get("finalizers") or ()),
        deleted_at=None if deleted_at is None else datetime.fromisoformat(deleted_at),
        problem=None,
        status=status,
        assigned_user=assigned_user,
        containers=containers,
        builder=builder,
        pod_security=level,
        allow_privilege_escalation=escalates,
        elevated_forks=elevated_forks,
        workload=workload,
        volumes=volumes,
        registers_in=registers_in,
        max_runner_age=_optional(spec, "maxRunnerAge", problems),
    )
    return replace(pool, template_hash=template_hash(pool, overlay=overlay), problem="; ".join(problems) or None)


def _registration(spec: Json, labels: Sequence[str], problems: list[str]) -> Scope | None:
    """Return the scope of a pool's persistent runners, or None if its runners are ephemeral.

    Add a problem for each value that the pool cannot have. The schema refuses the same values, but an object might be
    older than the schema.
    """
    given, registration = spec.get("lifecycle", Lifecycle.EPHEMERAL), part(spec, "registration")
    if given not in set(Lifecycle):
        problems.append(f"spec.lifecycle must be one of {', '.join(Lifecycle)}: {given!r}")
    if given != Lifecycle.PERSISTENT:
        return None
    problems += [
        f"spec.{field} does not work with spec.lifecycle persistent: remove spec.{field}"
        for field in ("containers", "maxJobDuration")
        if spec.get(field) is not None
    ]
    if isinstance(spec.get("runnerGroup"), int) and spec["runnerGroup"] != 1:
        problems.append("spec.lifecycle persistent needs the name of the runner group in spec.runnerGroup")
    if any(not label.isprintable() or "," in label for label in labels):
        problems.append("with spec.lifecycle persistent, spec.runnerLabels must have no commas and no line breaks")
    try:
        if "repository" in registration:
            return Scope.repository(str(registration["repository"]))
        return Scope.organization(str(registration.get("organization") or ""))
    except Invalid as error:
        problems.append(f"spec.registration: {error}")
        return None


def _workload(spec: Json, name: str, problems: list[str]) -> Workload:
    """Return the workload of a pool. Add a problem for a value that the pool cannot have."""
    given = spec.get("workload", Workload.POD)
    try:
        workload = Workload(given)
    except ValueError:
        problems.append(f"spec.workload must be one of {', '.join(Workload)}: {given!r}")
        return Workload.POD
    if workload is Workload.STATEFUL_SET:
        if len(name) > LONGEST_STATEFUL_POOL:
            problems.append(
                f"the name of a pool with spec.workload StatefulSet has at most {LONGEST_STATEFUL_POOL} characters: "
                f"{name!r}"
            )
        if spec.get("containers") is not None:
            problems.append("spec.containers does not work with spec.workload StatefulSet: use the workload Pod")
    return workload


def _volumes(spec: Json, workload: Workload, overlay: Any, problems: list[str]) -> Volumes | None:
    """Return the volumes of a pool, or None if it has none. Add a problem for each invalid value."""
    given = part(spec, "volumes")
    if not given.get("claims"):
        return None
    if workload is not Workload.STATEFUL_SET:
        problems.append("spec.volumes needs spec.workload StatefulSet")
        return None
    try:
        reclaim = Reclaim(given.get("reclaim", Reclaim.RETAIN))
    except ValueError:
        problems.append(f"spec.volumes.reclaim must be one of {', '.join(Reclaim)}: {given['reclaim']!r}")
        reclaim = Reclaim.RETAIN
    if reclaim is Reclaim.RETAIN and spec.get("allowForks") is True:
        problems.append(
            "spec.allowForks does not work with spec.volumes.reclaim Retain, because a later job would read what a job "
            "of a fork wrote: set spec.volumes.reclaim to Delete"
        )
    claims = tuple(_claim(each, problems) for each in given["claims"])
    used = pod_template.OUR_VOLUMES | {
        each.get("name") for each in part(overlay or {}, "spec").get("volumes") or () if isinstance(each, dict)
    }
    for claim in claims:
        if claim.name in used:
            problems.append(f"spec.volumes.claims has the name {claim.name!r}, which another volume of the Pod has")
        used = used | {claim.name}
    return Volumes(claims=claims, reclaim=reclaim)


def _claim(given: Json, problems: list[str]) -> VolumeClaim:
    name, path = str(given.get("name") or ""), str(given.get("mountPath") or "")
    if not _MOUNT_PATH.fullmatch(path) or any(f"{path}/".startswith(folder) for folder in _OUR_FOLDERS):
        problems.append(
            f"the mountPath of volume {name!r} must be an absolute path outside {' and '.join(_OUR_FOLDERS)}: {path!r}"
        )
    return VolumeClaim(
        name=name,
        mount_path=path,
        storage_mib=_whole(given.get("storage"), Decimal(1) / _MIB, f"the storage of volume {name!r}", problems),
        storage_class=given.get("storageClassName"),
        access_mode=str(given.get("accessMode") or "ReadWriteOnce"),
    )


def _security(given: Any, problems: list[str]) -> tuple[PodSecurity, bool, bool]:
    """Return the level, whether jobs may gain privileges, and whether the pool admits forks above `restricted`.

    Add a problem for an invalid value. An unknown level counts as `privileged`, the level with the fewest restrictions.
    """
    security = given if isinstance(given, dict) else {}
    if given is not None and not isinstance(given, dict):
        problems.append("spec.security is not an object")
    asked = security.get("podSecurity", PodSecurity.RESTRICTED)
    try:
        level = PodSecurity(asked)
    except ValueError:
        problems.append(f"spec.security.podSecurity must be one of {', '.join(PodSecurity)}: {asked!r}")
        level = PodSecurity.PRIVILEGED
    escalates = security.get("allowPrivilegeEscalation") is True
    if escalates and not level.elevated:
        problems.append("spec.security.allowPrivilegeEscalation needs spec.security.podSecurity baseline or privileged")
    return level, escalates and level.elevated, security.get("allowForks") is True


def _containers(given: Any, name: str, resources: Json, problems: list[str]) -> tuple[HookPods | None, Builder | None]:
    """Return the size of a hook Pod, and the builder. Each of the two is None if the pool does not use it.

    Add a problem for an invalid value. The default size is the size of the container `runner`. Sizes are rounded down,
    because the admission policy of the chart refuses a hook Pod that is larger than the size in the spec.
    """
    if given is None:
        return None, None
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in _MODES:
        problems.append(f"spec.containers.mode must be one of {', '.join(_MODES)}: {mode!r}")
        return None, None
    if mode == CONTAINERS_KUBERNETES and len(name) > LONGEST_POOL:
        problems.append(
            f"the name of a pool with spec.containers.mode {mode} has at most {LONGEST_POOL} characters: {name!r}"
        )
    vcpu = _rounded_down(given.get("vcpu", resources.get("cpu", DEFAULT_CPU)), 1000)
    memory = _rounded_down(resources.get("memory", DEFAULT_MEMORY), Decimal(1) / _MIB)
    if "vcpu" in given:
        _whole(given["vcpu"], 1000, "spec.containers.vcpu", problems)
    if "memoryMib" in given:
        memory = _whole(given["memoryMib"], 1, "spec.containers.memoryMib", problems)
        if 0 < memory < LEAST_HOOK_MEMORY:
            problems.append(f"spec.containers.memoryMib must be at least {LEAST_HOOK_MEMORY}: {memory}")
    if mode == CONTAINERS_KUBERNETES:
        shared, names = _workspace(given, problems)
        return HookPods(vcpu_millicores=vcpu, memory_mib=memory, shared=shared, service_names=names), None
    cache = None
    if given.get("cache") is not None:
        cache = _whole(given["cache"], Decimal(1) / _MIB, "spec.containers.cache", problems)
    return None, Builder(mode=mode, vcpu_millicores=vcpu, memory_mib=memory, cache_mib=cache)


def _workspace(given: Json, problems: list[str]) -> tuple[bool, tuple[str, ...]]:
    """Return whether the containers of a job run in the runner Pod, and the names of their services.

    Add a problem for an invalid value. Without a shared workspace, no names are needed.
    """
    workspace = given.get("workspace", COPY)
    if workspace not in _WORKSPACES:
        problems.append(f"spec.containers.workspace must be one of {', '.join(_WORKSPACES)}: {workspace!r}")
    names = given.get("serviceNames")
    if names is None:
        names = list(SERVICE_NAMES)
    if not isinstance(names, list) or not all(isinstance(each, str) and _HOST.fullmatch(each) for each in names):
        problems.append(f"spec.containers.serviceNames must be host names in lower case without a dot: {names!r}")
        names = []
    return workspace == SHARED, tuple(names) if workspace == SHARED else ()


def _rounded_down(value: Any, factor: int | Decimal) -> int:
    """Return a quantity times `factor`, rounded down but at least 1. Return 0 for an invalid quantity."""
    found: list[str] = []
    _whole(value, factor, "", found)
    if found:
        return 0
    return max(1, math.floor(Decimal(parse_quantity(value)) * factor))  # type: ignore[no-untyped-call]


def _replicas_writer(metadata: Json, spec: Json) -> str | None:
    """Return the field manager other than Ostler that owns `spec.replicas`, or None if there is none.

    The owner is read from the managed fields of the pool. A client that creates a pool without server-side apply also
    owns fields that it did not set, such as `replicas` with the default 0. Such a client is therefore returned only if
    `replicas` is above 0.
    """
    for each in metadata.get("managedFields") or ():
        owned = part(part(each, "fieldsV1"), "f:spec")
        if is_ours(str(each.get("manager"))) or "f:replicas" not in owned:
            continue
        if each.get("operation") == "Apply" or spec.get("replicas"):
            return str(each.get("manager") or "an unnamed field manager")
    return None


def _writers(metadata: Json) -> tuple[str, ...]:
    """Return the field managers that wrote fields of the spec, the latest first."""
    entries = [
        (str(each.get("time") or ""), str(each.get("manager") or "an unnamed field manager"))
        for each in metadata.get("managedFields") or ()
        if not each.get("subresource") and part(each, "fieldsV1").get("f:spec")
    ]
    return tuple(manager for _, manager in sorted(entries, reverse=True))


def _group(value: Any, problems: list[str]) -> int | str:
    """Return a runner group, which is a number or a name.

    If the value is neither, add a problem and return an empty name.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and 0 < len(value) <= LONGEST_GROUP and value.isprintable():
        return value
    problems.append(f"spec.runnerGroup is neither a number nor the name of a runner group: {value!r}")
    return ""


def _optional(part: Json, field: str, problems: list[str]) -> float | None:
    return _seconds(part, field, "", problems) if part.get(field) else None


def _longest_job(spec: Json, problems: list[str]) -> float | None:
    before = len(problems)
    found = _optional(spec, "maxJobDuration", problems)
    if found is not None and found < _SHORTEST_JOB and len(problems) == before:
        problems.append(f"spec.maxJobDuration must be at least {_SHORTEST_JOB} seconds: {spec['maxJobDuration']!r}")
    return found


def _seconds(part: Json, field: str, default: str, problems: list[str]) -> float:
    """Return a duration such as 1h30m in seconds. If the duration is invalid, add a problem and return 0."""
    text = str(part.get(field) or default)
    found = _DURATION.fullmatch(text)
    if found is None:
        problems.append(f"{field} is not a duration such as 90s, 10m or 1h30m: {text!r}")
        return 0.0
    hours, minutes, seconds = (int(each or 0) for each in found.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total > _LONGEST:
        problems.append(f"{field} is longer than a year: {text!r}")
        return 0.0
    return float(total)


def _disk(resources: Json, problems: list[str]) -> tuple[int, int | None]:
    """Return the request and the limit of ephemeral storage in MiB.

    Add a problem if the limit is smaller than the request.
    """
    request = _mebibytes(resources.get("ephemeralStorage", DEFAULT_EPHEMERAL_STORAGE), "ephemeralStorage", problems)
    if (given := resources.get("ephemeralStorageLimit")) is None:
        return request, None
    limit = _mebibytes(given, "ephemeralStorageLimit", problems)
    if 0 < limit < request:
        problems.append(
            f"spec.resources.ephemeralStorageLimit is less than ephemeralStorage, which is {request}Mi: {given!r}"
        )
    return request, limit


def _mebibytes(value: Any, field: str, problems: list[str]) -> int:
    return _whole(value, Decimal(1) / _MIB, f"spec.resources.{field}", problems)


def _whole(value: Any, factor: int | Decimal, field: str, problems: list[str]) -> int:
    """Return a quantity times `factor`, rounded up. If the quantity is invalid, add a problem and return 0."""
    try:
        amount = Decimal(parse_quantity(value)) * factor  # type: ignore[no-untyped-call]
    except (ValueError, ArithmeticError):
        problems.append(f"{field} is not a quantity: {value!r}")
        return 0
    if not amount.is_finite() or not 0 < amount <= _LARGEST:
        problems.append(f"{field} must be more than 0, and at most 2,147,483,648 millicores or MiB: {value!r}")
        return 0
    return math.ceil(amount)
