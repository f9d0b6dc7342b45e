"""Fast creation of many Pods: copies of the stored bytes of one Pod are written directly into etcd under other names.

The API server creates the first Pod and its ServiceAccount, stamps the Pod, and sets its status. Every other Pod is a
copy of the stored bytes with another name, UID and claim of the same length, so that the encoding stays valid. A list
then has the same contents as with Pods that the API server created one by one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

import urllib3

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.runners.runners import create_runner
from k8s_adapters.runners.stamps import stamp
from ostler.errors import Retryable
from rules.pools.pool_spec import PoolSpec

OWNER = 1001
_FIRST_CLAIM = 1_000_000
_OPERATIONS = 100
"""Number of objects in one etcd transaction. etcd accepts at most 128 operations and 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Made:
    """One Pod. Its name, UID and claim have the same length for each number."""

    number: int

    @property
    def name(self) -> str:
        """Return the name of the Pod and its ServiceAccount."""
        return f"bench-{self.number:08x}"

    @property
    def uid(self) -> str:
        """Return the UID of the Pod."""
        return f"00000000-0000-4000-8000-0000{self.number:08x}"

    @property
    def claim_id(self) -> int:
        """Return the id of the claim in the Pod's stamp."""
        return _FIRST_CLAIM + self.number


class Herd:
    """Stamped runner Pods of one pool, all running, and their ServiceAccounts."""

    def __init__(self, client: KubeClient, pool: PoolSpec, *, etcd_url: str) -> None:
        """Create the first Pod through the API server."""
        self.count = 1
        self._client, self._namespace = client, pool.namespace
        self._http = urllib3.PoolManager()
        self._etcd_url = etcd_url
        first = Made(0)
        uid = create_runner(
            client, pool=pool, name=first.name, attempt="bench", dispatch_url="http://web/", audience="ostler-dispatch"
        ).uid
        stamp(
            client,
            namespace=pool.namespace,
            name=first.name,
            uid=uid,
            expected="0.0",
            value=f"{first.claim_id}.1",
            owner=OWNER,
        )
        client.request(
            "PATCH",
            f"{object_path('pods', namespace=pool.namespace, name=first.name)}/status",
            body={"status": _RUNNING},
            content_type="application/merge-patch+json",
        )
        account = client.request("GET", object_path("serviceaccounts", namespace=pool.namespace, name=first.name))
        pods, accounts = (f"/registry/{kind}/{pool.namespace}/" for kind in ("pods", "serviceaccounts"))
        self._copied = (
            (pods, self._read(pods + first.name), uid),
            (accounts, self._read(accounts + first.name), account["metadata"]["uid"]),
        )
        # The first Pod also gets the UID that belongs to its number.
        self._write(self._puts(first))

    def grow(self, count: int) -> None:
        """Create Pods until `count` exist. Lists of the API server show all of them when `is_listed` returns True."""
        pending: list[dict[str, object]] = []
        for number in range(self.count, count):
            pending += self._puts(Made(number))
            if len(pending) >= _OPERATIONS:
                self._write(pending)
                pending = []
        if pending:
            self._write(pending)
        self.count = count

    def is_listed(self) -> bool:
        """Return whether the cache of the API server, which serves lists, has all Pods."""
        try:
            page = self._client.request("GET", object_path("pods", namespace=self._namespace), query={"limit": 1})
        except Retryable:
            return False
        return int(page["metadata"].get("remainingItemCount") or 0) == self.count - 1

    def made(self) -> Iterator[Made]:
        """Yield all Pods."""
        return (Made(number) for number in range(self.count))

    def _puts(self, pod: Made) -> list[dict[str, object]]:
        first = Made(0)
        return [
            {
                "requestPut": {
                    "key": _encoded((folder + pod.name).encode()),
                    "value": _encoded(
                        stored.replace(first.name.encode(), pod.name.encode())
                        .replace(uid.encode(), pod.uid.encode())
                        .replace(f"{first.claim_id}.1".encode(), f"{pod.claim_id}.1".encode())
                    ),
                }
            }
            for folder, stored, uid in self._copied
        ]

    def _read(self, key: str) -> bytes:
        (found,) = self._etcd("range", {"key": _encoded(key.encode())})["kvs"]
        return base64.b64decode(found["value"])

    def _write(self, operations: list[dict[str, object]]) -> None:
        if not self._etcd("txn", {"success": operations}).get("succeeded"):
            raise RuntimeError(f"etcd rejected a transaction with {len(operations)} objects; see etcd.log")

    def _etcd(self, what: str, body: object) -> dict[str, list[dict[str, str]]]:
        answer = self._http.request("POST", f"{self._etcd_url}/v3/kv/{what}", body=json.dumps(body), timeout=30)
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"etcd answered {what} with status {answer.status}: {answer.data[:200]!r}")
        found: dict[str, list[dict[str, str]]] = answer.json()
        return found


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _container(name: str) -> dict[str, object]:
    return {
        "name": name,
        "image": "runner:1",
        "imageID": "sha256:0",
        "containerID": f"lab://{name}",
        "ready": False,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }


_RUNNING = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("PodScheduled", "Initialized", "PodReadyToStartContainers")
    ],
    "containerStatuses": [_container("poller"), _container("runner")],
}
