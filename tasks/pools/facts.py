"""Facts of pool objects, in the form that their rows store."""

from __future__ import annotations

from k8s_adapters.names import CONTAINERS_DIND
from k8s_adapters.owners.volumes import volume_shape
from k8s_adapters.pools import PoolSeen, pod_hash
from models.pools import pool_mirror
from rules.pools.pod_security import PodSecurity, admits_forks, refusal
from rules.pools.pool_status import CONTAINERS_DISABLED, builder_disabled
from tasks.worker.runtime import Runtime


def pool_facts(rt: Runtime, pool: PoolSeen) -> pool_mirror.PoolFacts:
    """Return the fields of a pool that its row mirrors."""
    return pool_mirror.PoolFacts(
        uid=pool.uid,
        namespace=pool.namespace,
        name=pool.name,
        image=pool.image,
        labels=pool.runner_labels,
        runner_group_id=pool.runner_group if isinstance(pool.runner_group, int) else 0,
        runner_group_name=pool.runner_group if isinstance(pool.runner_group, str) else None,
        allow_forks=admits_forks(pool.pod_security, allow_forks=pool.allow_forks, elevated_forks=pool.elevated_forks),
        pod_security=str(pool.pod_security),
        workload=str(pool.workload),
        volume_reclaim=None if pool.volumes is None else str(pool.volumes.reclaim),
        volume_shape=None if pool.volumes is None else volume_shape(pool.volumes),
        registers_in=None if pool.registers_in is None else str(pool.registers_in),
        max_runner_age=pool.max_runner_age,
        vcpu=pool.charged_millicores,
        memory=pool.charged_mib,
        replicas=pool.replicas,
        allowed_accounts=pool.allowed_accounts,
        allowed_repositories=pool.allowed_repositories,
        routing_priority=pool.routing_priority,
        template_hash=pod_hash_of(rt, pool),
        draining=pool.terminating,
        draining_since=pool.deleted_at,
        generation=pool.generation,
        paused=pool.paused,
        autoscaled=pool.autoscaled,
        min_warm=pool.min_warm,
        max_replicas=pool.max_replicas,
        scale_down_delay=pool.scale_down_delay,
        max_unavailable_percent=pool.max_unavailable_percent,
        max_surge=pool.max_surge,
        replicas_writer=pool.replicas_writer if pool.autoscaled else None,
        start_timeout=rt.settings.start_timeout if pool.start_timeout is None else pool.start_timeout,
        max_concurrent=pool.max_concurrent,
        drain_timeout=pool.drain_timeout,
        max_job_seconds=pool.max_job_seconds,
        start_target=pool.start_target,
        writers=pool.writers,
    )


def pod_hash_of(rt: Runtime, pool: PoolSeen) -> str:
    """Return the hash of a pool's current Pod template.

    A Pod with another hash is stale.
    """
    return pod_hash(
        pool,
        dispatch_url=rt.settings.dispatch_url,
        audience=rt.settings.token_audience,
        dispatch_ca=rt.settings.dispatch_ca,
        hooks_image=rt.settings.hooks_image,
        builder_image=builder_image_of(rt, pool),
    )


def builder_image_of(rt: Runtime, pool: PoolSeen) -> str | None:
    """Return the image of the sidecar that builds images, or None if the pool or the settings have none."""
    if pool.builder is None:
        return None
    return rt.settings.dind_image if pool.builder.mode == CONTAINERS_DIND else rt.settings.buildkit_image


def problem_of(rt: Runtime, pool: PoolSeen) -> str | None:
    """Return why a pool cannot be used, or None.

    A valid spec cannot be used if it needs a setting that is missing, or if it asks for more than the cluster allows.
    """
    refused = refusal(
        pool.pod_security,
        allowed=PodSecurity(rt.settings.allowed_pod_security),
        namespace=pool.namespace,
        elevated_namespace=rt.settings.elevated_namespace,
    )
    if refused is not None:
        return refused
    if pool.problem is None and pool.containers is not None and rt.settings.hooks_image is None:
        return CONTAINERS_DISABLED
    if pool.problem is None and pool.builder is not None and builder_image_of(rt, pool) is None:
        return builder_disabled(pool.builder.mode)
    return pool.problem
