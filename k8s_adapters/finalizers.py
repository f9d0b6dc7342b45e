"""Removal of one finalizer from an object. The finalizers of other programs stay."""

from __future__ import annotations

from http import HTTPStatus

from k8s_adapters.client import JSON_PATCH, METADATA_ONLY, Json, KubeClient
from k8s_adapters.retry import answer_of
from ostler.errors import Conflict, Gone, Invalid, Retryable
from rules.upstream.retry import RetryPolicy

ROUNDS = 4
"""Maximum number of tries of a write.

A try fails if another client changes the object after the read and before the patch.
"""


def remove(client: KubeClient, path: str, *, uid: str, finalizer: str, policy: RetryPolicy | None = None) -> bool:
    """Remove a finalizer from the object with this UID. Return True if this call removed the finalizer.

    Return False if the object does not have the finalizer, or if the object is gone. Raises `Retryable` if another
    client changed the finalizers during every try.
    """
    for _ in range(ROUNDS):
        metadata = metadata_of(client, path, uid, policy)
        finalizers = list((metadata or {}).get("finalizers") or ())
        if finalizer not in finalizers:
            return False
        place = f"/metadata/finalizers/{finalizers.index(finalizer)}"
        operations: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": place, "value": finalizer},
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
    raise Retryable(f"{path} changed {ROUNDS} times before the finalizer could be removed")


def metadata_of(client: KubeClient, path: str, uid: str, policy: RetryPolicy | None) -> Json | None:
    """Return the metadata of the object with this UID, or None if the object is gone."""
    try:
        metadata: Json = client.request("GET", path, accept=METADATA_ONLY, policy=policy)["metadata"]
    except Gone:
        return None
    return metadata if metadata["uid"] == uid else None
