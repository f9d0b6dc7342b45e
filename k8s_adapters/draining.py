"""Finalizer that delays the removal of a deleted pool until the busy Pods of the pool have finished.

Ostler adds the finalizer while the pool is not deleted, because the API server refuses a new finalizer on an object
that is being deleted. Ostler removes the finalizer when the drain has ended. Each write changes only the list of
finalizers. The write fails if the list has changed since it was read. The finalizers of other owners are therefore not
removed.
"""

from __future__ import annotations

from http import HTTPStatus

from k8s_adapters.client import JSON_PATCH, MERGE_PATCH, METADATA_ONLY, Json, KubeClient
from k8s_adapters.names import DRAIN_FINALIZER
from k8s_adapters.pools import pool_path
from k8s_adapters.retry import answer_of
from ostler.errors import Conflict, Gone, Invalid, Retryable
from rules.upstream.retry import RetryPolicy

_ROUNDS = 4
"""Maximum number of tries of a write.

A try fails if another client changes the pool after the read and before the patch.
"""


def add_finalizer(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> bool:
    """Add Ostler's finalizer to the pool with this UID. Return True if the pool has the finalizer now.

    Return False if the pool is gone, or if the pool is being deleted and does not have the finalizer. Raises
    `Retryable` if another client changed the pool during every try.
    """
    path = pool_path(namespace, name)
    for _ in range(_ROUNDS):
        metadata = _metadata(client, path, uid, policy)
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
    raise Retryable(f"{path} changed {_ROUNDS} times before the finalizer could be added")


def remove_finalizer(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> bool:
    """Remove Ostler's finalizer from the pool with this UID. Return True if this call removed the finalizer.

    Return False if the pool does not have the finalizer, or if the pool is gone. Raises `Retryable` if another client
    changed the finalizers during every try.
    """
    path = pool_path(namespace, name)
    for _ in range(_ROUNDS):
        metadata = _metadata(client, path, uid, policy)
        finalizers = list((metadata or {}).get("finalizers") or ())
        if DRAIN_FINALIZER not in finalizers:
            return False
        place = f"/metadata/finalizers/{finalizers.index(DRAIN_FINALIZER)}"
        operations: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": place, "value": DRAIN_FINALIZER},
            {"op": "remove", "path": place},
        ]
        try:
            client.request("PATCH", path, body=operations, content_type=JSON_PATCH, accept=METADATA_ONLY, policy=policy)
        except Gone:
            return False
        except Conflict:
            continue
        except Invalid as error:  # a JSON patch whose test fails is answered with 422 without causes
            refused = answer_of(error)
            if refused is None or refused.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            continue
        return True
    raise Retryable(f"{path} changed {_ROUNDS} times before the finalizer could be removed")


def _metadata(client: KubeClient, path: str, uid: str, policy: RetryPolicy | None) -> Json | None:
    """Return the metadata of the pool with this UID, or None if the pool is gone."""
    try:
        metadata: Json = client.request("GET", path, accept=METADATA_ONLY, policy=policy)["metadata"]
    except Gone:
        return None
    return metadata if metadata["uid"] == uid else None
