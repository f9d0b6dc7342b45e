"""Specification of a pool: the parsed fields of its `RunnerPool` object, and the hash of its template.

All code that decides about a pool reads this record. The hash identifies the fields that shape a Pod.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rules.pools.pod_security import PodSecurity, admits_forks, is_refusal
from rules.pools.volumes import Reclaim
from rules.pools.workloads import Workload
from rules.routing import forks
from rules.routing.scopes import Scope

Json = dict[str, Any]

_TEMPLATE_VERSION = 4  # increase this version if a change of Ostler makes another Pod from the same spec
_SIDECAR_VERSION = 1  # increase this version if a change of Ostler makes another sidecar from the same spec
_SHARED_VERSION = 1  # increase this version if a change of Ostler makes another shared workspace from the same spec
_BUILDER_VERSION = 2  # increase this version if a change of Ostler makes another builder from the same spec
_STATEFUL_SET_VERSION = 1  # increase this version if a change of Ostler makes another StatefulSet from the same spec
_PERSISTENT_VERSION = 2  # increase this version if a change of Ostler makes another persistent Pod from the same spec

HOOK_PODS = 2
"""Number of hook Pods that a job is charged for: one for the job, and one for the Docker action that runs."""


@dataclass(frozen=True, kw_only=True)
class HookPods:
    """Size of the containers of a job: of one hook Pod, or of all containers that a runner Pod gets.

    If `shared` is True, the containers of a job run in the runner Pod, whose size includes them. They reach their
    services by the host names `service_names`, which the Pod has from its creation.
    """

    vcpu_millicores: int
    memory_mib: int
    shared: bool = False
    service_names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of these sizes that a job is charged for."""
        return 1 if self.shared else HOOK_PODS


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

    @property
    def shape(self) -> str:
        """Return 16 hex digits that identify the claims. The folders of their mounts do not count."""
        return digest([(each.name, each.storage_mib, each.storage_class, each.access_mode) for each in self.claims])


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """One pool as it was read. `problem` says why the pool cannot be used. It is None if the pool can be used.

    `template_hash` is a hash of all fields of the pool that shape its Pods. Durations are in seconds. An optional field
    is None if the pool does not set the field. If `max_surge` is None, the default of `maxSurge` applies.

    `replicas_writer` is the field manager that owns `spec.replicas` of an autoscaled pool, if it is not Ostler. An
    example is a GitOps controller with a manifest that sets `spec.replicas`.

    `containers` is None if the pool has no container jobs. `builder` is None if its Pods build no images. `volumes` is
    None if its runners have no volumes that outlive a Pod.

    `has_finalizer` is True if the pool has Ostler's finalizer. `deleted_at` is the time of the deletion request.
    `status` is the present status of the pool. `resource_version` is the version of the pool that was read.

    The row of a pool contains this record as well. There, `template_hash` is the hash of the pool's Pods, and
    `start_timeout` is set, because both depend on the settings of the workers.
    """

    uid: str
    name: str
    namespace: str
    generation: int
    image: str
    labels: tuple[str, ...]
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
    resource_version: str = ""
    has_finalizer: bool = False
    deleted_at: datetime | None = None
    problem: str | None = None
    status: Json = field(default_factory=dict)
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
    serves_unlabelled: bool = False
    """True if the pool serves jobs without labels."""
    writers: tuple[str, ...] = ()
    """Field managers that wrote the spec, the latest first."""
    pause_request: str | None = None
    """Id of the last request to pause or resume the pool that a worker carried out."""

    @property
    def runner_group_id(self) -> int:
        """Return the number of the runner group, or 0 if the pool names its group."""
        return self.runner_group if isinstance(self.runner_group, int) else 0

    @property
    def runner_group_name(self) -> str | None:
        """Return the name of the runner group, or None if the pool gives its number."""
        return self.runner_group if isinstance(self.runner_group, str) else None

    @property
    def serves_forks(self) -> bool:
        """Return whether the pool serves jobs of forks. Above the level `restricted`, two fields decide."""
        return admits_forks(self.pod_security, allow_forks=self.allow_forks, elevated_forks=self.elevated_forks)

    @property
    def private_only(self) -> bool:
        """Return whether the pool serves private repositories only."""
        retains = self.volumes is not None and self.volumes.reclaim is Reclaim.RETAIN
        return forks.private_only(retains=retains, persistent=self.persistent, allow_forks=self.serves_forks)

    @property
    def volume_reclaim(self) -> Reclaim | None:
        """Return `spec.volumes.reclaim`, or None if the runners have no volumes."""
        return None if self.volumes is None else self.volumes.reclaim

    @property
    def volume_shape(self) -> str | None:
        """Return the digest of the volume claims, or None if the runners have no volumes."""
        return None if self.volumes is None else self.volumes.shape

    @property
    def persistent(self) -> bool:
        """Return whether the pool's runners are persistent."""
        return self.registers_in is not None

    @property
    def charged_millicores(self) -> int:
        """Return the CPU that a job of the pool uses of its account's budget. Hook Pods and builder are included."""
        hooks = 0 if self.containers is None else self.containers.count * self.containers.vcpu_millicores
        return self.vcpu_millicores + hooks + (0 if self.builder is None else self.builder.vcpu_millicores)

    @property
    def charged_mib(self) -> int:
        """Return the memory in MiB that a job uses of its account's budget. Hook Pods and builder are included."""
        hooks = 0 if self.containers is None else self.containers.count * self.containers.memory_mib
        return self.memory_mib + hooks + (0 if self.builder is None else self.builder.memory_mib)

    @property
    def terminating(self) -> bool:
        """Return whether the deletion of the pool was requested."""
        return self.deleted_at is not None

    @property
    def forbidden(self) -> bool:
        """Return whether the cluster does not allow the Pod Security level, so that no Pod may get another job."""
        return self.problem is not None and is_refusal(self.problem)

    @property
    def wanted(self) -> int:
        """Return the number of Pods that the pool should have."""
        return 0 if self.terminating or self.forbidden else self.replicas

    @property
    def suspended(self) -> bool:
        """Return whether the Pods of the pool stay unchanged, because the pool is paused or its spec is invalid."""
        return (self.paused or self.problem is not None) and not self.terminating and not self.forbidden


def pool_changed(before: PoolSpec | None, after: PoolSpec | None) -> bool:
    """Return whether a worker has to check a pool. None stands for a pool that is unknown or gone.

    A change of the status alone is none, because Ostler itself writes the status.
    """
    if before is None or after is None:
        return before is not after
    return (before.name, before.generation, before.terminating) != (after.name, after.generation, after.terminating)


def builder_problems(builder: Builder, level: PodSecurity, *, assigned_user: bool) -> Iterator[str]:
    """Yield the reasons why a pool cannot have its builder.

    Both daemons mount file systems, which no level below `privileged` allows. The socket belongs to the group of the
    runner, which is unknown if the cluster assigns it.
    """
    if level is not PodSecurity.PRIVILEGED:
        yield f"spec.containers.mode {builder.mode} needs spec.security.podSecurity privileged"
    if assigned_user:
        yield f"spec.containers.mode {builder.mode} does not work with spec.assignedUser"


def template_hash(pool: PoolSpec, *, overlay: Any) -> str:
    """Return 16 hex digits that identify the fields that shape a Pod. The digits are a valid label value.

    `overlay` is the Pod template of the spec, even if it is refused. A field that was added later is part of the hash
    only above its default. Otherwise the hash of every older pool would change, and all its Pods would become stale.
    What becomes of a volume after its runner does not shape a Pod. Persistent runners of an older scope, of another
    runner group, or that may get jobs of public repositories, must leave, so the hash covers these three fields.
    """
    disk = (pool.ephemeral_storage_mib, pool.ephemeral_storage_limit_mib)
    shape = [_TEMPLATE_VERSION, pool.image, pool.vcpu_millicores, pool.memory_mib, disk]
    if overlay is not None:
        shape.append(overlay)
    if pool.assigned_user:
        shape.append("assigned user")
    if (hooks := pool.containers) is not None:
        shape.append(["containers", _SIDECAR_VERSION, hooks.vcpu_millicores, hooks.memory_mib])
        if hooks.shared:
            shape.append(["shared workspace", _SHARED_VERSION, *hooks.service_names])
    if pool.builder is not None:
        shape.append(["builder", _BUILDER_VERSION, *dataclasses.astuple(pool.builder)])
    if pool.pod_security.elevated:
        shape.append(["security", pool.pod_security, pool.allow_privilege_escalation])
    if pool.workload is not Workload.POD:
        claims = () if pool.volumes is None else pool.volumes.claims
        shape.append(["workload", pool.workload, _STATEFUL_SET_VERSION, *map(dataclasses.astuple, claims)])
    if pool.registers_in is not None:
        scope = str(pool.registers_in)
        shape.append(["persistent", _PERSISTENT_VERSION, scope, pool.runner_group, pool.private_only])
    return digest(shape)


def digest(shape: Any) -> str:
    """Return 16 hex digits that identify a value of JSON."""
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
