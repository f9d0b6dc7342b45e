"""Removal of one finalizer from an object. The finalizers of other programs stay."""

from __future__ import annotations

from k8s_adapters.calls.client import JSON, METADATA_ONLY, Json, KubeClient
from ostler.errors import Conflict, Gone, Retryable
from rules.upstream.retry import RetryPolicy

ROUNDS = 4
"""Maximum number of tries of a write.

A try fails if another client changes the object after the read and before the write.
"""


def remove(client: KubeClient, path: str, *, uid: str, finalizer: str, policy: RetryPolicy | None = None) -> bool:
    """Remove a finalizer from the object with this UID. Return True if this call removed the finalizer.

    Return False if the object does not have the finalizer, or if the object is gone. Raises `Retryable` if another
    client changed the object during every try.

    The whole object is written by a PUT. If the last finalizer of an object is removed, the API server deletes the
    object in a second step, which checks the UID only after a PUT. After two PATCHes at once, the second one can delete
    a new object that got the name in between, whatever the patches test.
    """
    for _ in range(ROUNDS):
        found = _read(client, path, uid, policy)
        metadata = (found or {}).get("metadata", {})
        finalizers = metadata.get("finalizers") or ()
        if finalizer not in finalizers:
            return False
        metadata["finalizers"] = [each for each in finalizers if each != finalizer]
        try:
            client.request("PUT", path, body=found, accept=METADATA_ONLY, policy=policy)
        except Gone:
            return False
        except Conflict:  # another client has changed the object, or another object has its name
            continue
        return True
    raise Retryable(f"{path} changed {ROUNDS} times before the finalizer could be removed")


def metadata_of(client: KubeClient, path: str, uid: str, policy: RetryPolicy | None) -> Json | None:
    """Return the metadata of the object with this UID, or None if the object is gone."""
    found = _read(client, path, uid, policy, accept=METADATA_ONLY)
    return None if found is None else found["metadata"]


def _read(client: KubeClient, path: str, uid: str, policy: RetryPolicy | None, *, accept: str = JSON) -> Json | None:
    try:
        found = client.request("GET", path, accept=accept, policy=policy)
    except Gone:
        return None
    return found if found["metadata"]["uid"] == uid else None
