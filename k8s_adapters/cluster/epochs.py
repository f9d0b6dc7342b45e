"""The cluster's copy of the epoch, in a ConfigMap.

The ConfigMap is created once. Every later write names the resourceVersion that was read. If two processes write at the
same time, one write succeeds and the other changes nothing. `write_epoch` does not lower the number of the epoch,
unless the new epoch is from another Postgres.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from ostler.errors import Conflict, Gone, Invalid
from rules.restore.epochs import Epoch
from rules.upstream.retry import RetryPolicy

NAME = "ostler-epoch"


@dataclass(frozen=True, slots=True)
class EpochSeen:
    """The ConfigMap as it was read. `epoch` is None if the ConfigMap contains no valid epoch."""

    epoch: Epoch | None
    version: str


def read_epoch(client: KubeClient, *, namespace: str, policy: RetryPolicy) -> EpochSeen | None:
    """Return the ConfigMap, or None if it does not exist. Raises the errors of `KubeClient.request`."""
    try:
        return _seen(client.request("GET", _path(namespace, NAME), policy=policy))
    except Gone:
        return None


def write_epoch(
    client: KubeClient, *, namespace: str, epoch: Epoch, seen: EpochSeen | None, policy: RetryPolicy
) -> bool:
    """Write the epoch into the ConfigMap. Return True if the epoch was written.

    `seen` is the ConfigMap as it was read before. If `seen` is None, the ConfigMap is created. Return False if the
    ConfigMap was changed, deleted or created in the meantime.

    Raises `Invalid` if the epoch in `seen` is from the same Postgres and the number of the new epoch is not higher.
    Raises the errors of `KubeClient.request`.
    """
    data = {"epoch": str(epoch.number), "database": epoch.database}
    if seen is None:
        body: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace},
            "data": data,
        }
        try:
            client.request("POST", _path(namespace), body=body, policy=policy)
        except Conflict:
            return False
        return True
    before = seen.epoch
    if before is not None and before.database == epoch.database and before.number >= epoch.number:
        raise Invalid(f"the new epoch {epoch.number} must be higher than the cluster's epoch {before.number}")
    body = {"metadata": {"resourceVersion": seen.version}, "data": data}
    try:
        client.request("PATCH", _path(namespace, NAME), body=body, content_type=MERGE_PATCH, policy=policy)
    except (Conflict, Gone):
        return False
    return True


def _seen(found: Json) -> EpochSeen:
    data = found.get("data") or {}
    number, database = str(data.get("epoch", "")), str(data.get("database", ""))
    epoch = Epoch(int(number), database) if number.isdecimal() and database else None
    return EpochSeen(epoch, found["metadata"]["resourceVersion"])


def _path(namespace: str, name: str | None = None) -> str:
    collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"
