"""Finalizer that keeps a pool until its busy Pods are done: added while the pool lives, removed at the end.

Nothing but the list of finalizers is written, and only where nobody else changed it meanwhile, so those of others stay.
The API server lets nobody put a finalizer on an object whose deletion was asked for.
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
"""Times that somebody else may change the pool between our check at it and our patch."""


def add_finalizer(
    client: KubeClient, *, namespace: str, name: str, uid: str, policy: RetryPolicy | None = None
) -> bool:
    """Put our finalizer on the pool with this UID; False when it is gone, or its deletion was asked for before.

    Raises `Retryable` when others change it all the time.
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
        # A merge patch replaces the whole list: the version keeps it from taking away what came meanwhile.
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
    """Take our finalizer off the pool with this UID; False when it was not on it, or the pool is gone.

    Raises `Retryable` when others change its finalizers all the time.
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
        except Invalid as error:  # a test that fails is a 422 without causes
            refused = answer_of(error)
            if refused is None or refused.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            continue
        return True
    raise Retryable(f"{path} changed {_ROUNDS} times before the finalizer could be removed")


def _metadata(client: KubeClient, path: str, uid: str, policy: RetryPolicy | None) -> Json | None:
    """Return the metadata of the pool with this UID, or None when it is gone."""
    try:
        metadata: Json = client.request("GET", path, accept=METADATA_ONLY, policy=policy)["metadata"]
    except Gone:
        return None
    return metadata if metadata["uid"] == uid else None
