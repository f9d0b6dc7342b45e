"""Hash of the Pods of a pool. A Pod with another hash has an older template, so the reconciler replaces it."""

from __future__ import annotations

from typing import Any

from k8s_adapters.runners.runner_scripts import scripts_name
from rules.pools.pool_spec import PoolSpec, digest


def pod_hash(
    pool: PoolSpec,
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
    return digest(shape)


def mounted_ca(dispatch_url: str, dispatch_ca: str | None) -> str | None:
    """Return the name of the ConfigMap with CAs that a Pod mounts.

    Return None if the dispatch URL is not https, or if `dispatch_ca` is None.
    """
    return dispatch_ca if dispatch_url.startswith("https://") else None
