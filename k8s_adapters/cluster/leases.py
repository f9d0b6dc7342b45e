"""Leases of the cluster (`coordination.k8s.io/v1`).

Every write names the resourceVersion that was read. If two processes write a Lease at the same time, one write succeeds
and the other changes nothing.
"""

from __future__ import annotations

from urllib.parse import quote

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from ostler.clock import utcnow
from ostler.errors import Conflict, Gone
from rules.upstream.leadership import LeaseSeen
from rules.upstream.retry import RetryPolicy


def read_lease(client: KubeClient, *, namespace: str, name: str, policy: RetryPolicy) -> LeaseSeen | None:
    """Return a Lease, or None if it does not exist. Raises the errors of `KubeClient.request`."""
    try:
        return _seen(client.request("GET", _path(namespace, name), policy=policy))
    except Gone:
        return None


def create_lease(
    client: KubeClient, *, namespace: str, name: str, holder: str, duration: float, policy: RetryPolicy
) -> LeaseSeen | None:
    """Create a Lease with the holder `holder`. Return None if the Lease exists already."""
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _spec(holder, duration=duration, transitions=0, taken=True),
    }
    try:
        return _seen(client.request("POST", _path(namespace), body=body, policy=policy))
    except Conflict:
        return None


def write_lease(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    seen: LeaseSeen,
    holder: str,
    duration: float,
    policy: RetryPolicy,
) -> LeaseSeen | None:
    """Acquire or renew the Lease for `holder`. If `holder` is empty, release the Lease.

    `seen` is the Lease as it was read before. Return None if the Lease was changed or deleted since then.
    """
    taken = holder != seen.holder and bool(holder)
    spec = _spec(holder, duration=duration, transitions=seen.transitions + taken, taken=taken)
    body = {"metadata": {"resourceVersion": seen.version}, "spec": spec}
    try:
        return _seen(
            client.request("PATCH", _path(namespace, name), body=body, content_type=MERGE_PATCH, policy=policy)
        )
    except (Conflict, Gone):
        return None


def _spec(holder: str, *, duration: float, transitions: int, taken: bool) -> Json:
    now = utcnow().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec: Json = {
        "holderIdentity": holder,
        "leaseDurationSeconds": max(1, round(duration)),
        "renewTime": now,
        "leaseTransitions": transitions,
    }
    return spec | ({"acquireTime": now} if taken else {})


def _seen(lease: Json) -> LeaseSeen:
    spec = lease.get("spec") or {}
    return LeaseSeen(
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 1),
        version=lease["metadata"]["resourceVersion"],
        transitions=spec.get("leaseTransitions") or 0,
    )


def _path(namespace: str, name: str | None = None) -> str:
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
    return collection if name is None else f"{collection}/{quote(name, safe='')}"
