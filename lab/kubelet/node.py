"""The kubelet's Node: registered, reported Ready, and kept alive by a Lease, as with the real kubelet.

By default, the node controller marks a node as unreachable if neither its Lease nor its status was written for 50
seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.kubelet.cluster import Cluster, GoneError

RENEW_SECONDS = 10.0
REPORT_SECONDS = 300.0
"""Seconds until an unchanged status is written again. The interval is long, because the Lease is the heartbeat."""

_LEASE_SECONDS = 40
_CAPACITY = {"cpu": "10000", "memory": "40000Gi", "pods": "100000"}
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
)


class NodeHeartbeat:
    """Renews the Lease and the status of one Node. It touches `alive_file` after every renewal."""

    def __init__(self, *, cluster: Cluster, alive_file: Path | None, every: float = RENEW_SECONDS) -> None:
        self.endpoint: tuple[str, int] | None = None
        """Address and port of the exec endpoint. Set it before the first renewal."""
        self._cluster = cluster
        self._alive_file = alive_file
        self._every = every
        self._reported_at = -REPORT_SECONDS

    async def renew_forever(self) -> None:
        """Renew every `every` seconds until cancelled. Raises `RefusedError`."""
        while True:
            await asyncio.sleep(self._every)
            await self.renew()

    async def renew(self) -> None:
        """Register the Node unless it exists, write its status if it differs or is due, and renew the Lease."""
        while True:
            try:
                await self._renew()
            except GoneError:
                await self._cluster.announce_node()
            else:
                break
        if self._alive_file is not None:
            self._alive_file.touch()

    async def _renew(self) -> None:
        node = await self._cluster.read_node()
        before = (node.get("status") or {}).get("conditions") or []
        due = time.monotonic() - self._reported_at >= REPORT_SECONDS
        if due or _statuses(before) != {kind: status for kind, status, _ in _CONDITIONS}:
            await self._cluster.report_node({**_status(before), **_endpoint(self.endpoint)})
            self._reported_at = time.monotonic()
        with contextlib.suppress(GoneError):  # a young cluster lacks the namespace of Leases; retried next time
            await self._cluster.renew_lease(node["metadata"]["uid"], seconds=_LEASE_SECONDS)


def _status(before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the status of a healthy Node. An unchanged condition keeps the time of its last change."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    changed = {each["type"]: each.get("lastTransitionTime") or now for each in before}
    as_before = _statuses(before)
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": changed[kind] if as_before.get(kind) == status else now,
        }
        for kind, status, reason in _CONDITIONS
    ]
    return {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": conditions}


def _endpoint(endpoint: tuple[str, int] | None) -> dict[str, Any]:
    """Return the fields of a Node's status that tell an API server the address of the exec endpoint."""
    if endpoint is None:
        return {}
    host, port = endpoint
    return {
        "addresses": [{"type": "InternalIP", "address": host}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
    }


def _statuses(conditions: list[dict[str, Any]]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in conditions}
