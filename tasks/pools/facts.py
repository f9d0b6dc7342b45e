"""Facts of pools that depend on the settings: the hash of a pool's Pods, and why a pool cannot be used."""

from __future__ import annotations

from dataclasses import replace

from k8s_adapters.names import CONTAINERS_DIND
from k8s_adapters.runners.pod_hash import pod_hash
from models.pools import unlabelled
from rules.pools.pod_security import PodSecurity, refusal
from rules.pools.pool_spec import PoolSpec
from rules.pools.pool_status import CONTAINERS_DISABLED, builder_disabled
from rules.routing.unlabelled import problem_beside
from tasks.worker.runtime import Runtime


def stored(rt: Runtime, pool: PoolSpec) -> PoolSpec:
    """Return a pool as its row contains it: with the hash of its Pods, and with a start timeout."""
    timeout = rt.settings.start_timeout if pool.start_timeout is None else pool.start_timeout
    return replace(pool, template_hash=pod_hash_of(rt, pool), start_timeout=timeout)


def pod_hash_of(rt: Runtime, pool: PoolSpec) -> str:
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


def builder_image_of(rt: Runtime, pool: PoolSpec) -> str | None:
    """Return the image of the sidecar that builds images, or None if the pool or the settings have none."""
    if pool.builder is None:
        return None
    return rt.settings.dind_image if pool.builder.mode == CONTAINERS_DIND else rt.settings.buildkit_image


def problem_of(rt: Runtime, pool: PoolSpec) -> str | None:
    """Return why a pool cannot be used, or None.

    A valid spec cannot be used if it needs a setting that is missing, or if it asks for more than the cluster allows.
    It cannot be used either if another pool already serves the jobs without labels of an account of the pool.
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
    if pool.problem is None and pool.serves_unlabelled:
        other = rt.transaction(unlabelled.pool_before, pool)
        return None if other is None else problem_beside(other)
    return pool.problem
