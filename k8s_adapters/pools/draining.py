"""Finalizer that delays the removal of a deleted pool until the busy Pods of the pool have finished.

Ostler adds the finalizer while the pool is not deleted, because the API server refuses a new finalizer on an object
that is being deleted. Ostler removes the finalizer when the drain has ended. Each write changes only the list of
finalizers. The write fails if the list has changed since it was read. The finalizers of other owners are therefore not
removed.
"""

from __future__ import annotations

from k8s_adapters.calls.client import MERGE_PATCH, METADATA_ONLY, KubeClient
from k8s_adapters.calls.finalizers import ROUNDS, metadata_of, remove
from k8s_adapters.names import DRAIN_FINALIZER
from k8s_adapters.pools.pools import pool_path
from ostler.errors import Conflict, Gone, Retryable
from rules.upstream.retry import RetryPolicy


def add_finalizer(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> bool:
    """Add Ostler's finalizer to the pool with this UID. Return True if the pool has the finalizer now.

    Return False if the pool is gone, or if the pool is being deleted and does not have the finalizer. Raises
    `Retryable` if another client changed the pool during every try.
    """
    path = pool_path(namespace, name)
    for _ in range(ROUNDS):
        metadata = metadata_of(client, path, uid, policy)
        if metadata is None:
            return False
        finalizers = list(metadata.get("finalizers") or ())
        if DRAIN_FINALIZER in finalizers:
            return True
        if "deletionTimestamp" in metadata:
            return False
        # A merge patch replaces the whole list. With the resource version, the patch fails if another client has added
        # a finalizer since the read.
        guarded = {"resourceVersion": metadata["resourceVersion"], "finalizers": [*finalizers, DRAIN_FINALIZER]}
        try:
            client.request(
                "PATCH", path, body={"metadata": guarded}, content_type=MERGE_PATCH, accept=METADATA_ONLY, policy=policy
            )
        except Gone:
            return False
        except Conflict:
            continue
        return True
    raise Retryable(f"{path} changed {ROUNDS} times before the finalizer could be added")


def remove_finalizer(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> bool:
    """Remove Ostler's finalizer from the pool with this UID. Return True if this call removed the finalizer.

    Return False if the pool does not have the finalizer, or if the pool is gone. Raises `Retryable` if another client
    changed the finalizers during every try.
    """
    return remove(client, pool_path(namespace, name), uid=uid, finalizer=DRAIN_FINALIZER, policy=policy)
