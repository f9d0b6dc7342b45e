"""Processes of `ostler watch` on the real control plane, with breakable connections and their messages."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from k8s_adapters.calls.client import KubeClient, object_path
from k8s_adapters.cluster.leases import read_lease
from k8s_adapters.names import HOOK_OF_LABEL, HOOK_POOL_LABEL
from k8s_adapters.pools.pools import create_pool
from k8s_adapters.runners.resources import Created
from k8s_adapters.runners.runners import create_runner
from lab.control_plane import ClusterAccess
from lab.faults import FaultProxy
from lab.faults.proxy import kubeconfig_through
from lab.processes import Child, free_port
from lab.redis import Redis
from lab.timings import timings
from rules.pools.pool_spec import PoolSpec
from rules.upstream.retry import ONCE
from tests.integration.watch.relay import Relay

PATIENCE = 60.0
QUEUES = ("dispatch", "pools", "sweeps")
Message = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Watch:
    """One process, its connection to the API server, and its log."""

    child: Child
    relay: Relay
    proxy: FaultProxy
    metrics_port: int

    def said(self) -> list[Mapping[str, Any]]:
        """Return the log."""
        lines = self.child.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, name: str) -> list[Mapping[str, Any]]:
        """Return the log lines of one event."""
        return [line for line in self.said() if line["event"] == name]

    def leads(self) -> bool:
        """Return whether the process has led and listed at least once."""
        return bool(self.events("watch.objects_listed"))

    def metrics_up(self) -> bool:
        """Return whether the process has started."""
        try:
            return "ostler_watch_leader" in self.metrics()
        except httpx.TransportError:
            return False

    def metrics(self) -> dict[str, float]:
        """Return a scrape as a mapping of series to values."""
        answer = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10)
        lines = (line.rpartition(" ") for line in answer.text.splitlines() if line.startswith("ostler_watch"))
        return {name: float(value) for name, _, value in lines}


@dataclass(slots=True)
class Scene:
    """A namespace with a pool, a Redis, and the processes that a test starts."""

    namespace: str
    kube: KubeClient
    pool: PoolSpec
    redis: Redis
    start: Callable[..., Watch]
    heard: list[Message] = field(default_factory=list)

    def runner(self, name: str) -> Created:
        """Create a Pod of the pool."""
        return create_runner(
            self.kube, pool=self.pool, name=name, attempt="a1", dispatch_url="http://web/", audience="ostler-dispatch"
        )

    def hook_pod(self, name: str, *, runner: Created) -> None:
        """Create a hook Pod of a runner Pod."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": runner.name, "uid": runner.uid}
        labels = {HOOK_OF_LABEL: runner.name, HOOK_POOL_LABEL: self.pool.name}
        body = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "job", "image": "job:1"}]},
        }
        self.kube.request("POST", object_path("pods", namespace=self.namespace), body=body)

    def hooks(self, runner: str) -> list[tuple[str, bool]]:
        """Return the reported hook Pods of a runner Pod, and whether each was gone, with repetitions."""
        told = [arguments["hooks"] for name, arguments in self.messages() if name == "ostler.pods_changed"]
        return [(pod["name"], pod["gone"]) for each in told for pod in each.get(runner, ())]

    def report(self, name: str, *, phase: str, ready: bool = False) -> None:
        """Write the status of a Pod as its kubelet does."""
        runner = {"name": "runner", "image": "runner:1", "imageID": "", "ready": ready, "restartCount": 0}
        self.kube.request(
            "PATCH",
            f"{object_path('pods', namespace=self.namespace, name=name)}/status",
            body={"status": {"phase": phase, "containerStatuses": [runner]}},
            content_type="application/merge-patch+json",
        )

    def delete(self, name: str) -> None:
        """Delete a Pod at once."""
        body = {"gracePeriodSeconds": 0}
        self.kube.request("DELETE", object_path("pods", namespace=self.namespace, name=name), body=body)

    def holder(self) -> str:
        """Return the holder of the Lease."""
        lease = read_lease(self.kube, namespace=self.namespace, name="ostler-watch", policy=ONCE)
        return "" if lease is None else lease.holder

    def messages(self) -> list[Message]:
        """Return the messages that were sent until now. They are not ordered over the queues."""
        with self.redis.client() as client:
            for queue in QUEUES:
                while (raw := client.rpop(queue)) is not None:
                    message = json.loads(raw)
                    _, arguments, _ = json.loads(base64.b64decode(message["body"]))
                    self.heard.append((message["headers"]["task"], arguments))
        return self.heard

    def told(self, what: str) -> list[str]:
        """Return the objects that hints named as `gone`, `executing` or `pools`, with repetitions."""
        return [
            each for name, arguments in self.messages() if name == "ostler.pods_changed" for each in arguments[what]
        ]

    def endings(self) -> dict[str, Any]:
        """Return the reported ends of the Pods that hints named as gone."""
        told = [arguments["endings"] for name, arguments in self.messages() if name == "ostler.pods_changed"]
        return {uid: ending for each in told for uid, ending in each.items()}

    def changed(self) -> list[str]:
        """Return the pools that hints named as changed."""
        return [arguments["pool"] for name, arguments in self.messages() if name == "ostler.pool_changed"]

    def asked_sweeps(self) -> int:
        """Return the number of requests that the sweeps check everything."""
        return sum(1 for name, _ in self.messages() if name == "ostler.missing_pods")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis for the module."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def scene(
    control_plane: ClusterAccess, admin: KubeClient, namespace: str, redis_server: Redis, tmp_path: Path
) -> Iterator[Scene]:
    """A scene without processes."""
    redis_server.flush()
    with ExitStack() as stack:

        def start(*, lease: float = 30, timeout: int = 30, executing_after: float = 0) -> Watch:
            name = f"watch-{secrets.token_hex(3)}"
            proxy = stack.enter_context(FaultProxy(control_plane.url, ca_file=control_plane.ca_file))
            relay = stack.enter_context(Relay(urlsplit(proxy.url).port or 0))
            folder = tmp_path / name
            folder.mkdir()
            kubeconfig = folder / "kubeconfig"
            kubeconfig.write_bytes(control_plane.kubeconfig.read_bytes())
            port = free_port()
            environment = {
                **{key: value for key, value in os.environ.items() if not key.startswith("OSTLER_")},
                "PYTHONWARNINGS": "ignore",
                "OSTLER_REDIS_URL": redis_server.url,
                "OSTLER_KUBECONFIG": str(kubeconfig_through(kubeconfig, f"http://127.0.0.1:{relay.port}")),
                "OSTLER_NAMESPACE": namespace,
                "OSTLER_METRICS_PORT": str(port),
                **timings(watch_lease=lease, watch_timeout=timeout, watch_executing_after=executing_after),
            }
            child = Child(name, _command(), log=tmp_path / f"{name}.log", env=environment)
            child.start()
            stack.callback(child.stop, timeout=10)
            return Watch(child, relay, proxy, port)

        spec = {"image": "runner:1", "runnerLabels": ["linux"]}
        pool = create_pool(admin, namespace=namespace, name="small", spec=spec)
        yield Scene(namespace, admin, pool, redis_server, start)


def _command() -> Sequence[str]:
    return [sys.executable, "-m", "ostler", "watch"]
