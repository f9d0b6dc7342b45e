"""A running system, with the queries and acts of tests of whole jobs: its jobs, its Pods and its pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.bootstrap import LabPool, on_real_node, put_pools_in_place
from lab.system import System, read_log
from tests.waiting import eventually

LABELS = ("self-hosted", "linux", "small")


class Fleet:
    """A running system, with the queries and acts of a test."""

    def __init__(self, system: System, *, namespace: str | None = None) -> None:
        self.system = system
        self.namespace = namespace or system.namespace
        """Namespace of the pools and their Pods."""
        self.kube = system.kube()

    def send(self, count: int = 1, *, labels: tuple[str, ...] = LABELS, **job: Any) -> list[int]:
        """Queue jobs at the lab's GitHub and return their ids."""
        body = {"repository": "acme/shop", "labels": list(labels), "count": count, **job}
        ids: list[int] = self.system.lab("POST", "/jobs", body)["ids"]
        return ids

    def job(self, number: int) -> Mapping[str, Any]:
        """Return a job as the lab's GitHub shows it."""
        found: Mapping[str, Any] = next(
            each for each in self.system.lab("GET", "/jobs")["jobs"] if each["id"] == number
        )
        return found

    def wait_for(self, number: int, status: str, *, within: float = 120) -> Mapping[str, Any]:
        """Wait until a job has a status at GitHub, and return the job."""
        eventually(lambda: self.job(number)["status"] == status, f"job {number} is not {status}", within=within)
        return self.job(number)

    def events(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one kind from the journal of the kubelet or of the nodes."""
        return [each for each in read_log(self.system.kubelet_log) if each["event"] == event]

    def pod_of(self, number: int) -> str:
        """Return the name of the Pod that began a job."""
        started = eventually(lambda: [each for each in self.events("job_started") if each["job"] == number])
        return str(started[0]["pod"])

    def pods(self, pool: str = "small") -> dict[str, Mapping[str, Any]]:
        """Return the Pods of a pool by name."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=ostler.dev%2Fpool%3D{pool}"
        return {each["metadata"]["name"]: each for each in self.kube.request("GET", path)["items"]}

    def node_of(self, pod: str) -> int:
        """Return the index of the node that a Pod runs on."""
        name = self.pods()[pod]["spec"]["nodeName"]
        return [node.name for node in self.system.real_nodes].index(name)

    def pool(self, name: str = "small") -> Mapping[str, Any]:
        """Return a pool's object."""
        path = f"/apis/ostler.dev/v1alpha1/namespaces/{self.namespace}/runnerpools/{name}"
        found: Mapping[str, Any] = self.kube.request("GET", path)
        return found

    def problem(self, name: str = "small") -> Mapping[str, Any]:
        """Return a pool's condition Degraded if it is True, and an empty mapping if it is not."""
        conditions = (self.pool(name).get("status") or {}).get("conditions") or []
        return next((each for each in conditions if (each["type"], each["status"]) == ("Degraded", "True")), {})

    def degraded(self, name: str = "small") -> str:
        """Return the reason of a pool's condition Degraded if it is True, and an empty string if it is not."""
        return str(self.problem(name).get("reason", ""))

    def wait_until_degraded(self, name: str, *reasons: str) -> Mapping[str, Any]:
        """Wait until a pool is Degraded for one of these reasons, and return the condition.

        A pool can first be Degraded for another reason, such as a node that an earlier test removed.
        """

        def read() -> Mapping[str, Any] | None:
            found = self.problem(name)
            return found if found.get("reason") in reasons else None

        return eventually(read, f"pool {name} is not Degraded for {' or '.join(reasons)}")

    def is_whole(self, name: str = "small") -> bool:
        """Return True if all replicas of a pool are warm and it is not degraded."""
        pool = self.pool(name)
        warm = (pool.get("status") or {}).get("warm", 0)
        return bool(warm >= pool["spec"]["replicas"]) and not self.degraded(name)

    def wait_until_whole(self, name: str = "small", *, within: float = 240) -> None:
        """Wait until all replicas of a pool are available again."""
        eventually(lambda: self.is_whole(name), f"pool {name} is not whole", within=within)

    def add_pool(self, pool: LabPool) -> None:
        """Create a pool whose runners find the lab's GitHub."""
        whole = on_real_node(pool, github_url=self.system.github_url)
        put_pools_in_place(self.kube, namespace=self.namespace, pools=[whole])

    def delete_pool(self, name: str) -> None:
        """Delete a pool. Ostler drains it."""
        path = f"/apis/ostler.dev/v1alpha1/namespaces/{self.namespace}/runnerpools/{name}"
        self.kube.request("DELETE", path)
