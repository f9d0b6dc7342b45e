"""Nodes of tests without a kubelet. The control plane evicts the Pods of a Node without heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from ostler.errors import Conflict, Gone

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RENEW_SECONDS = 10.0


class LiveNode:
    """A Node that reports its status and renews its Lease during the context. Afterwards it is deleted."""

    def __init__(
        self,
        kube: KubeClient,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        ready: bool = True,
        every: float = _RENEW_SECONDS,
    ) -> None:
        """Prepare the Node. `every` is the number of seconds between two renewals."""
        self.name = name
        self._kube = kube
        self._labels = dict(labels or {})
        self._allocatable = dict(allocatable or {})
        self._ready = ready
        self._every = every
        self._cut = threading.Event()
        self._heart: threading.Thread | None = None

    def __enter__(self) -> Self:
        _register(self._kube, self.name, self._labels)
        self.beat()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut_off()
        _delete(self._kube, self.name)

    def read(self) -> Json:
        """Return the Node from the API server."""
        return self._kube.request("GET", f"/api/v1/nodes/{self.name}")

    def ready(self) -> str:
        """Return the status of its condition Ready."""
        return next(str(each["status"]) for each in self.read()["status"]["conditions"] if each["type"] == "Ready")

    def taints(self) -> list[tuple[str, str]]:
        """Return key and effect of its taints, sorted."""
        return sorted((each["key"], each["effect"]) for each in self.read()["spec"].get("taints") or ())

    def taint(self, key: str, effect: str) -> None:
        """Put a taint on the Node, as an operator does. Its other taints are removed."""
        body = {"spec": {"taints": [{"key": key, "effect": effect}]}}
        self._kube.request("PATCH", f"/api/v1/nodes/{self.name}", body=body, content_type=MERGE_PATCH)

    def bind(self, namespace: str, pod: str) -> None:
        """Bind a Pod to the Node, as the scheduler does."""
        body = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": self.name}}
        self._kube.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body=body)

    def cordon(self) -> None:
        """Mark the Node unschedulable, as `kubectl cordon` does."""
        body = {"spec": {"unschedulable": True}}
        self._kube.request("PATCH", f"/api/v1/nodes/{self.name}", body=body, content_type=MERGE_PATCH)

    def cut_off(self) -> None:
        """Stop all reports, as if the kubelet or its connection to the API server were gone."""
        self._cut.set()
        if self._heart is not None:
            self._heart.join()
            self._heart = None

    def beat(self) -> None:
        """Report the status and renew the Lease, now and from now on."""
        self.report(ready=self._ready)
        self._renew()
        self._cut.clear()
        self._heart = threading.Thread(target=self._keep_beating, name=f"kubelet of {self.name}")
        self._heart.start()

    def report(self, *, ready: bool, since: float = 0) -> None:
        """Report the status. Its condition Ready changed `since` seconds ago."""
        self._ready, now = ready, datetime.now(UTC)
        condition = {"type": "Ready", "status": str(ready), "reason": "AsTheTestSays", "message": ""}
        condition |= {"lastHeartbeatTime": _written(now)}
        condition |= {"lastTransitionTime": _written(now - timedelta(seconds=since))}
        status: Json = {"conditions": [condition]}
        if self._allocatable:
            status["allocatable"] = self._allocatable
        path = f"/api/v1/nodes/{self.name}/status"
        self._kube.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)

    def _keep_beating(self) -> None:
        while not self._cut.wait(self._every):
            self._renew()

    def _renew(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        try:
            self._kube.request("PATCH", f"{_LEASES}/{self.name}", body={"spec": spec}, content_type=MERGE_PATCH)
        except Gone:
            self._kube.request("POST", _LEASES, body={"metadata": {"name": self.name}, "spec": spec})


def _written(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _register(kube: KubeClient, name: str, labels: Mapping[str, str]) -> None:
    with suppress(Conflict):  # a POST that was repeated may meet what its first attempt made
        kube.request("POST", "/api/v1/nodes", body={"metadata": {"name": name, "labels": dict(labels)}})
    # Admission taints a new Node until somebody says that it is ready.
    kube.request("PATCH", f"/api/v1/nodes/{name}", body={"spec": {"taints": None}}, content_type=MERGE_PATCH)


def _delete(kube: KubeClient, name: str) -> None:
    for path in (f"/api/v1/nodes/{name}", f"{_LEASES}/{name}"):
        with suppress(Gone):
            kube.request("DELETE", path)
