"""`RunnerPool` objects: read, list and patch them.

If the spec of a pool cannot be used, the pool is listed with a `problem`. One such pool does not make the list fail
(law L14). Ostler writes with merge patches. A full update would make Ostler the owner of fields that other clients set.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from kubernetes.utils.quantity import parse_quantity

from k8s_adapters.client import MERGE_PATCH, Json, KubeClient
from k8s_adapters.crd import (
    DEFAULT_CPU,
    DEFAULT_EPHEMERAL_STORAGE,
    DEFAULT_MEMORY,
    LEAST_HOOK_MEMORY,
    LONGEST_GROUP,
)
from k8s_adapters.names import (
    API_VERSION,
    ATTEMPT_ANNOTATION,
    CONTAINERS_BUILDKIT,
    CONTAINERS_DIND,
    CONTAINERS_KUBERNETES,
    DRAIN_FINALIZER,
    KIND,
    PAUSE_ANNOTATION,
    PLURAL,
)
from k8s_adapters.runner_scripts import SCRIPTS_FOLDER, scripts_name
from ostler.errors import Conflict, Gone, Invalid, Retryable
from rules.pools import pod_template
from rules.pools.hook_names import LONGEST_POOL
from rules.pools.pod_security import PodSecurity, admits_forks
from rules.pools.spec_writers import is_ours
from rules.pools.volumes import Reclaim
from rules.pools.workloads import LONGEST_STATEFUL_POOL, Lifecycle, Workload
from rules.routing import forks
from rules.routing.scopes import Scope
from rules.upstream.retry import RetryPolicy

_PAGE = 500
_TEMPLATE_VERSION = 4  # increase this version if a change of Ostler makes another Pod from the same spec
_SIDECAR_VERSION = 1  # increase this version if a change of Ostler makes another sidecar from the same spec
_BUILDER_VERSION = 2  # increase this version if a change of Ostler makes another builder from the same spec
_STATEFUL_SET_VERSION = 1  # increase this version if a change of Ostler makes another StatefulSet from the same spec
_PERSISTENT_VERSION = 2  # increase this version if a change of Ostler makes another persistent Pod from the same spec
_MIB = 1024 * 1024
_LARGEST = 2**31  # millicores, or MiB
_MODES = (CONTAINERS_KUBERNETES, CONTAINERS_BUILDKIT, CONTAINERS_DIND)
_LONGEST = 365 * 24 * 3600  # seconds
_SHORTEST_JOB = 60  # seconds
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


_MOUNT_PATH = re.compile(r"(?:/[A-Za-z0-9._@+-]*[A-Za-z0-9_@+-])+")
_OUR_FOLDERS = ("/var/run/ostler", f"{SCRIPTS_FOLDER}/")
"""Beginnings of the folders in which Ostler's own volumes are mounted."""

HOOK_PODS = 2
"""Number of hook Pods that a job is charged for: one for the job, and one for the Docker action that runs."""


@dataclass(frozen=True, kw_only=True)
class HookPods:
    """Size of one hook Pod of a pool with container jobs."""

    vcpu_millicores: int
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The sidecar that builds images in each Pod of a pool: its size, and the size of its volume.

    `mode` is `spec.containers.mode`: the sidecar is a BuildKit daemon or a Docker daemon. `cache_mib` is the size of
    the volume for layers, or None if the volume has no limit.
    """

    mode: str
    vcpu_millicores: int
    memory_mib: int
    cache_mib: int | None = None


@dataclass(frozen=True, kw_only=True)
class VolumeClaim:
    """A volume that each runner of a pool has: its name, its folder in the container `runner`, and its size in MiB.

    `storage_class` is None for the default class of the cluster.
    """

    name: str
    mount_path: str
    storage_mib: int
    storage_class: str | None = None
    access_mode: str = "ReadWriteOnce"


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """The volumes of a pool's runners, and what becomes of them after their runner."""

    claims: tuple[VolumeClaim, ...]
    reclaim: Reclaim


@dataclass(frozen=True, kw_only=True)
class PoolSeen:
    """One pool as it was read. `problem` says why the pool cannot be used. It is None if the pool can be used.

    `template_hash` is a hash of all fields of the pool that shape its Pods. Durations are in seconds. An optional field
    is None if the pool does not set the field. If `max_surge` is None, the default of `maxSurge` applies.

    `replicas_writer` is the field manager that owns `spec.replicas`, if this manager is not Ostler. An example is a
    GitOps controller with a manifest that sets `spec.replicas`. None means that there is no such field manager.

    `containers` is None if the pool has no container jobs. `builder` is None if its Pods build no images. `volumes` is
    None if its runners have no volumes that outlive a Pod.

    `has_finalizer` is True if the pool has Ostler's finalizer. `deleted_at` is the time of the deletion request.
    `status` is the present status of the pool. `resource_version` is the version of the pool that was read.
    """

    uid: str
    name: str
    namespace: str
    generation: int
    resource_version: str
    image: str
    runner_labels: tuple[str, ...]
    runner_group: int | str
    vcpu_millicores: int
    memory_mib: int
    ephemeral_storage_mib: int
    ephemeral_storage_limit_mib: int | None
    replicas: int
    replicas_writer: str | None
    paused: bool
    autoscaled: bool
    min_warm: int
    max_replicas: int
    scale_down_delay: float
    target_busy_percent: int
    max_unavailable_percent: int
    max_surge: int | None
    start_timeout: float | None
    max_concurrent: int
    drain_timeout: float | None
    max_job_seconds: float | None
    start_target: float | None
    allowed_accounts: tuple[int, ...]
    allowed_repositories: tuple[str, ...]
    routing_priority: int
    allow_forks: bool
    pod_template: Json | None
    template_hash: str
    has_finalizer: bool
    deleted_at: datetime | None
    problem: str | None
    status: Json
    assigned_user: bool = False
    containers: HookPods | None = None
    pod_security: PodSecurity = PodSecurity.RESTRICTED
    allow_privilege_escalation: bool = False
    elevated_forks: bool = False
    builder: Builder | None = None
    workload: Workload = Workload.POD
    volumes: Volumes | None = None
    registers_in: Scope | None = None
    """Organisation or repository in which persistent runners are registered. None if the runners are ephemeral."""
    max_runner_age: float | None = None
    writers: tuple[str, ...] = ()
    """Field managers that wrote the spec, the latest first."""
    pause_request: str | None = None
    """Id of the last request to pause or resume the pool that a worker carried out."""

    @property
    def persistent(self) -> bool:
        """Return whether the pool's runners are persistent."""
        return self.registers_in is not None

    @property
    def charged_millicores(self) -> int:
        """Return the CPU that a job of the pool uses of its account's budget. Hook Pods and builder are included."""
        hooks = 0 if self.containers is None else HOOK_PODS * self.containers.vcpu_millicores
        return self.vcpu_millicores + hooks + (0 if self.builder is None else self.builder.vcpu_millicores)

    @property
    def charged_mib(self) -> int:
        """Return the memory in MiB that a job uses of its account's budget. Hook Pods and builder are included."""
        hooks = 0 if self.containers is None else HOOK_PODS * self.containers.memory_mib
        return self.memory_mib + hooks + (0 if self.builder is None else self.builder.memory_mib)

    @property
    def terminating(self) -> bool:
        """Return whether the deletion of the pool was requested."""
        return self.deleted_at is not None


def list_pools(client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None) -> list[PoolSeen]:
    """Return all pools of a namespace. The list is complete.

    Raises `Retryable` if a page cannot be read, or if the list expires between two pages.
    """
    return list_pools_at(client, namespace=namespace, policy=policy)[0]


def list_pools_at(
    client: KubeClient, *, namespace: str, policy: RetryPolicy | None = None
) -> tuple[list[PoolSeen], str]:
    """Return the result of `list_pools`, and the resource version of the list.

    A watch can continue from this version.
    """
    query: dict[str, str | int] = {"limit": _PAGE}
    pools: list[PoolSeen] = []
    while True:
        page = client.request("GET", pool_path(namespace), query=query, policy=policy)
        if "items" not in page:  # a missing key does not mean an empty list
            raise Retryable(f"the answer to a list of pools in {namespace} has no field `items`")
        pools.extend(read_pool(item) for item in page["items"] or ())
        following = page.get("metadata", {}).get("continue")
        if not following:
            return pools, str(page.get("metadata", {}).get("resourceVersion") or "")
        query = {"limit": _PAGE, "continue": following}


def get_pool(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy | None = None) -> PoolSeen | None:
    """Return one pool, or None if no pool has this name."""
    try:
        return read_pool(client.request("GET", pool_path(namespace, name), policy=policy))
    except Gone:
        return None


def create_pool(client: KubeClient, *, namespace: str, name: str, spec: Json) -> PoolSeen:
    """Create a pool from its `spec`, and return the pool.

    If the API server created the pool but its answer was lost, a retry finds this pool and returns it. Raises
    `Conflict` if another pool has the name, and `Invalid` if the API server refuses the spec.
    """
    attempt = secrets.token_hex(8)
    metadata = {"name": name, "annotations": {ATTEMPT_ANNOTATION: attempt}}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return read_pool(client.request("POST", pool_path(namespace), body=body))
    except Conflict:
        found = client.request("GET", pool_path(namespace, name))
        if (found["metadata"].get("annotations") or {}).get(ATTEMPT_ANNOTATION) != attempt:
            raise
        return read_pool(found)


def patch_pool_replicas(client: KubeClient, *, namespace: str, name: str, replicas: int) -> PoolSeen:
    """Set `spec.replicas` of a pool. Raises `Gone` if there is no such pool."""
    body = {"spec": {"replicas": replicas}}
    return read_pool(client.request("PATCH", pool_path(namespace, name), body=body, content_type=MERGE_PATCH))


def scale_pool(
    client: KubeClient,
    pool: PoolSeen,
    *,
    replicas: int,
    manager: str | None = None,
    policy: RetryPolicy | None = None,
) -> PoolSeen:
    """Set `spec.replicas` of a pool, unless the pool has changed since it was read.

    `manager` is the field manager of the write. If it is None, the API server takes `FIELD_MANAGER`.

    Raises `Gone` if there is no such pool, and `Conflict` if the pool has changed. `Conflict` is also raised if an
    earlier attempt of this call made the change, but the answer to this attempt was lost.
    """
    metadata = {"uid": pool.uid, "resourceVersion": pool.resource_version}
    return _patch(client, pool, {"metadata": metadata, "spec": {"replicas": replicas}}, manager, policy)


def patch_pool_status(
    client: KubeClient, *, namespace: str, name: str, uid: str, status: Json, policy: RetryPolicy | None = None
) -> None:
    """Write fields of a pool's status. Each given field replaces the old value of the field.

    Raises `Gone` if there is no such pool, and `Invalid` if another pool has the name.
    """
    body = {"metadata": {"uid": uid}, "status": status}
    client.request("PATCH", f"{pool_path(namespace, name)}/status", body=body, content_type=MERGE_PATCH, policy=policy)


def pause_pool(
    client: KubeClient,
    pool: PoolSeen,
    *,
    paused: bool,
    manager: str | None = None,
    policy: RetryPolicy | None = None,
) -> PoolSeen:
    """Pause the given pool if `paused` is True, otherwise end its pause. `manager` is as in `scale_pool`.

    Raises `Gone` if there is no such pool, and `Conflict` if another pool has its name.
    """
    return _patch(client, pool, {"metadata": {"uid": pool.uid}, "spec": {"paused": paused}}, manager, policy)


def answer_pause_request(
    client: KubeClient, pool: PoolSeen, *, request: str, paused: bool, manager: str, policy: RetryPolicy | None = None
) -> PoolSeen:
    """Pause or resume a pool as `pause_pool` does, and write the id of the request to the pool in the same call.

    Raises `Conflict` if the pool has changed since it was read. `manager` is as in `scale_pool`.
    """
    metadata = {
        "uid": pool.uid,
        "resourceVersion": pool.resource_version,
        "annotations": {PAUSE_ANNOTATION: request},
    }
    return _patch(client, pool, {"metadata": metadata, "spec": {"paused": paused}}, manager, policy)


def _patch(client: KubeClient, pool: PoolSeen, body: Json, manager: str | None, policy: RetryPolicy | None) -> PoolSeen:
    path, query = pool_path(pool.namespace, pool.name), {} if manager is None else {"fieldManager": manager}
    return read_pool(client.request("PATCH", path, body=body, query=query, content_type=MERGE_PATCH, policy=policy))


def drain_pool(client: KubeClient, pool: PoolSeen) -> None:
    """Request the deletion of the pool, unless the pool has changed since it was read.

    Because of Ostler's finalizer, the pool drains before the API server removes it. If the pool is already gone, no
    error is raised. Raises `Conflict` if the pool has changed, because another client might have removed the finalizer.
    """
    preconditions = {"uid": pool.uid, "resourceVersion": pool.resource_version}
    body = {"preconditions": preconditions, "propagationPolicy": "Background"}
    try:
        client.request("DELETE", pool_path(pool.namespace, pool.name), body=body)
    except Gone:
        return


def delete_pool(client: KubeClient, *, namespace: str, name: str) -> None:
    """Delete a pool with the propagation policy `Background`.

    If the pool is already gone, no error is raised.
    """
    try:
        client.request("DELETE", pool_path(namespace, name), query={"propagationPolicy": "Background"})
    except Gone:
        return


def read_pool(item: Json) -> PoolSeen:
    """Return a pool from its JSON. If the spec has errors that the schema allows, `problem` describes them.

    Raises ValueError, KeyError, TypeError or AttributeError if the JSON violates the schema of `RunnerPool`.
    """
    metadata: Json = item["metadata"]
    spec: Json = item.get("spec") or {}
    resources: Json = spec.get("resources") or {}
    autoscaling: Json = spec.get("autoscaling") or {}
    provisioning: Json = spec.get("provisioning") or {}
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
    if builder is not None:
        problems.extend(_of_builder(builder, level, assigned_user=assigned_user))
    refused: tuple[str, ...] = ()
    registers_in = _registration(spec, labels, problems)
    if overlay is not None:
        refused = pod_template.refusals(
            overlay,
            containers=containers is not None,
            builder=builder is not None,
            persistent=registers_in is not None,
            level=level,
        )
    problems.extend(refused)
    workload = _workload(spec, metadata["name"], problems)
    volumes = _volumes(spec, workload, overlay, problems)
    group = _group(spec.get("runnerGroup", 1), problems)
    allow_forks = spec.get("allowForks") is True
    private_only = forks.private_only(
        retains=volumes is not None and volumes.reclaim is Reclaim.RETAIN,
        persistent=registers_in is not None,
        allow_forks=admits_forks(level, allow_forks=allow_forks, elevated_forks=elevated_forks),
    )
    deleted_at = metadata.get("deletionTimestamp")
    return PoolSeen(
        uid=metadata["uid"],
        name=metadata["name"],
        namespace=metadata["namespace"],
        generation=int(metadata.get("generation", 0)),
        resource_version=str(metadata.get("resourceVersion", "")),
        image=image,
        runner_labels=labels,
        runner_group=group,
        vcpu_millicores=vcpu,
        memory_mib=memory,
        ephemeral_storage_mib=disk,
        ephemeral_storage_limit_mib=disk_limit,
        replicas=int(spec.get("replicas", 0)),
        replicas_writer=_replicas_writer(metadata, spec),
        writers=_writers(metadata),
        pause_request=(metadata.get("annotations") or {}).get(PAUSE_ANNOTATION),
        paused=bool(spec.get("paused")),
        autoscaled=bool(autoscaling.get("enabled")),
        min_warm=int(autoscaling.get("minWarm", 1)),
        max_replicas=int(autoscaling.get("maxReplicas", 10)),
        scale_down_delay=_seconds(autoscaling, "scaleDownDelay", "10m", problems),
        target_busy_percent=int(autoscaling.get("targetBusyPercent", 100)),
        max_unavailable_percent=int((spec.get("rollout") or {}).get("maxUnavailablePercent", 10)),
        max_surge=(spec.get("rollout") or {}).get("maxSurge"),
        start_timeout=_optional(provisioning, "startTimeout", problems),
        max_concurrent=int(provisioning.get("maxConcurrent", 100)),
        drain_timeout=_optional(spec, "drainTimeout", problems),
        max_job_seconds=_longest_job(spec, problems),
        start_target=_optional(spec, "startTarget", problems),
        allowed_accounts=tuple(int(account) for account in spec.get("allowedAccounts") or ()),
        allowed_repositories=tuple(str(repository) for repository in spec.get("allowedRepositories") or ()),
        routing_priority=int(spec.get("routingPriority", 0)),
        allow_forks=allow_forks,
        pod_template=None if refused else overlay,
        template_hash=template_hash(
            image=image,
            vcpu_millicores=vcpu,
            memory_mib=memory,
            ephemeral_storage_mib=(disk, disk_limit),
            overlay=overlay,
            assigned_user=assigned_user,
            containers=containers,
            builder=builder,
            security=(level, escalates),
            workload=workload,
            volumes=volumes,
            registers_in=registers_in,
            runner_group=group,
            private_only=private_only,
        ),
        has_finalizer=DRAIN_FINALIZER in (metadata.get("finalizers") or ()),
        deleted_at=None if deleted_at is None else datetime.fromisoformat(deleted_at),
        problem="; ".join(problems) or None,
        status=item.get("status") or {},
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


def _registration(spec: Json, labels: Sequence[str], problems: list[str]) -> Scope | None:
    """Return the scope of a pool's persistent runners, or None if its runners are ephemeral.

    Add a problem for each value that the pool cannot have. The schema refuses the same values, but an object might be
    older than the schema.
    """
    given, registration = spec.get("lifecycle", Lifecycle.EPHEMERAL), spec.get("registration") or {}
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
    given = spec.get("volumes") or {}
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
        each.get("name") for each in ((overlay or {}).get("spec") or {}).get("volumes") or () if isinstance(each, dict)
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
        return HookPods(vcpu_millicores=vcpu, memory_mib=memory), None
    cache = None
    if given.get("cache") is not None:
        cache = _whole(given["cache"], Decimal(1) / _MIB, "spec.containers.cache", problems)
    return None, Builder(mode=mode, vcpu_millicores=vcpu, memory_mib=memory, cache_mib=cache)


def _of_builder(builder: Builder, level: PodSecurity, *, assigned_user: bool) -> Iterator[str]:
    """Yield the reasons why a pool cannot have its builder.

    Both daemons mount file systems, which no level below `privileged` allows. The socket belongs to the group of the
    runner, which is unknown if the cluster assigns it.
    """
    if level is not PodSecurity.PRIVILEGED:
        yield f"spec.containers.mode {builder.mode} needs spec.security.podSecurity privileged"
    if assigned_user:
        yield f"spec.containers.mode {builder.mode} does not work with spec.assignedUser"


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
        owned = (each.get("fieldsV1") or {}).get("f:spec") or {}
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
        if not each.get("subresource") and (each.get("fieldsV1") or {}).get("f:spec")
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


def template_hash(
    *,
    image: str,
    vcpu_millicores: int,
    memory_mib: int,
    ephemeral_storage_mib: tuple[int, int | None],
    overlay: Any = None,
    assigned_user: bool = False,
    containers: HookPods | None = None,
    builder: Builder | None = None,
    security: tuple[PodSecurity, bool] = (PodSecurity.RESTRICTED, False),
    workload: Workload = Workload.POD,
    volumes: Volumes | None = None,
    registers_in: Scope | None = None,
    runner_group: int | str = 1,
    private_only: bool = True,
) -> str:
    """Return 16 hex digits that identify the fields that shape a Pod. The digits are a valid label value.

    `ephemeral_storage_mib` is the request and the limit. `assigned_user` is part of the hash only if it is True. If
    False were also part of the hash, the hash of every older pool would change, and all its Pods would become stale.
    `containers` and `builder` are part of the hash only if they are not None, for the same reason. `security` is the
    level of the pool, and whether its runner may gain privileges. `security` is part of the hash only above the
    level `restricted`. The workload and the claims of `volumes` are part of the hash only for the workload
    `StatefulSet`. What becomes of a volume after its runner does not shape a Pod. The scope of persistent runners is
    part of the hash only if it is not None, together with their runner group and whether it must not admit public
    repositories: runners of an older spec must leave.
    """
    shape = [_TEMPLATE_VERSION, image, vcpu_millicores, memory_mib, ephemeral_storage_mib]
    if overlay is not None:
        shape.append(overlay)
    if assigned_user:
        shape.append("assigned user")
    if containers is not None:
        shape.append(["containers", _SIDECAR_VERSION, containers.vcpu_millicores, containers.memory_mib])
    if builder is not None:
        shape.append(["builder", _BUILDER_VERSION, *dataclasses.astuple(builder)])
    if security[0].elevated:
        shape.append(["security", *security])
    if workload is not Workload.POD:
        claims = () if volumes is None else volumes.claims
        shape.append(["workload", workload, _STATEFUL_SET_VERSION, *map(dataclasses.astuple, claims)])
    if registers_in is not None:
        shape.append(["persistent", _PERSISTENT_VERSION, str(registers_in), runner_group, private_only])
    content = json.dumps(shape, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def pod_hash(
    pool: PoolSeen,
    *,
    dispatch_url: str,
    audience: str,
    dispatch_ca: str | None = None,
    hooks_image: str | None = None,
    builder_image: str | None = None,
) -> str:
    """Return 16 hex digits that identify the shape of a Pod.

    If the hash in the row of a Pod differs from the hash of its pool, the Pod is stale.

    The hash covers the template, the audience, the scripts and the URL for polls. The URL is included because a Pod
    would never get a job if its URL is no longer served. Of the CAs, only the name of the ConfigMap is included,
    because a changed CA also reaches running Pods. The image of the sidecar `hooks` is included if the pool has
    container jobs. An upgrade of Ostler then replaces all Pods that are not busy, so that no job runs with an old
    sidecar. The image of the builder is included if the pool has one.
    """
    shape: list[Any] = [pool.template_hash, dispatch_url, audience, scripts_name()]
    if (name := mounted_ca(dispatch_url, dispatch_ca)) is not None:
        shape.append(name)
    if pool.containers is not None:
        shape.append({"hooks": hooks_image})
    if pool.builder is not None:
        shape.append({"builder": builder_image})
    content = json.dumps(shape)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def mounted_ca(dispatch_url: str, dispatch_ca: str | None) -> str | None:
    """Return the name of the ConfigMap with CAs that a Pod mounts.

    Return None if the dispatch URL is not https, or if `dispatch_ca` is None.
    """
    return dispatch_ca if dispatch_url.startswith("https://") else None


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


def pool_path(namespace: str, name: str | None = None) -> str:
    """Return the path of a pool. If `name` is None, return the path of all pools of the namespace."""
    collection = f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}/{PLURAL}"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"
