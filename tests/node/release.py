"""Release of the chart on real nodes: stores, an address for GitHub's webhooks, and what its Deployments say."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from k8s_adapters.calls.client import KubeClient
from lab import helm
from lab.bootstrap import LabPool, on_real_node, spec_of
from lab.node.namespace import NODE_ADDRESS
from lab.node.product_images import PRODUCT
from lab.node.store_images import POSTGRES, REDIS
from lab.system import System
from tests.waiting import eventually

RELEASE = "ostler"
STORES = "stores"
WEBHOOK_ADDRESS = "10.0.0.80"
"""Virtual address at which GitHub reaches web: it stands in for an ingress."""

DEPLOYMENTS = ("ostler-beat", "ostler-flower", "ostler-watch", "ostler-web", "ostler-worker-default")

Object = Mapping[str, Any]


@dataclass
class Release:
    """A release of the chart, installed by Helm on the nodes of a system."""

    system: System
    kube: KubeClient
    pools: tuple[LabPool, ...]
    exit_codes: dict[str, set[int]] = field(default_factory=dict)
    """The exit codes of the release's containers that ended since its start, by component."""
    _restarted: dict[str, int] = field(default_factory=dict)

    def install(self, settings: Mapping[str, str]) -> None:
        """Start the stores, create the Secret, and install the chart. `settings` are those of the lab's GitHub."""
        password = secrets.token_hex(12)
        self._put("namespaces", {"metadata": {"name": STORES}})
        variables = {"POSTGRES_PASSWORD": password, "POSTGRES_USER": "ostler", "POSTGRES_DB": "ostler"}
        self._start_store("postgres", POSTGRES, 5432, variables)
        self._start_store("redis", REDIS, 6379, {})
        self._put("namespaces", {"metadata": {"name": RELEASE}})
        ours = {
            "OSTLER_DATABASE_URL": f"postgresql+psycopg2://ostler:{password}@postgres.{STORES}.svc/ostler",
            "OSTLER_REDIS_URL": f"redis://redis.{STORES}.svc:6379/0",
            "OSTLER_FLOWER_BASIC_AUTH": f"ostler:{secrets.token_hex(12)}",
        }
        from_lab = ("GITHUB_APP_ID", "GITHUB_PRIVATE_KEY", "WEBHOOK_SECRETS", "ENCRYPTION_KEYS")
        ours |= {f"OSTLER_{name}": settings[f"OSTLER_{name}"] for name in from_lab}
        self._put(f"namespaces/{RELEASE}/secrets", {"metadata": {"name": "ostler"}, "stringData": ours})
        spec = {
            "clusterIP": WEBHOOK_ADDRESS,
            "selector": {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": "web"},
            "ports": [{"port": 80, "targetPort": 8080}],
        }
        self._put(f"namespaces/{RELEASE}/services", {"metadata": {"name": "ingress"}, "spec": spec})
        for name in ("postgres", "redis"):
            self.wait_until(partial(self._is_available, STORES, name), f"{name} does not run")
        self.upgrade()
        self.wait_until_available()
        # On a slow machine, web gives up its first start if Postgres has none of the CPU at that moment.
        self._restarted = self._restart_counts()
        self.exit_codes.clear()

    def upgrade(self, **settings: str) -> None:
        """Install the release or upgrade it, with these settings besides those that the lab needs."""
        repository, _, tag = PRODUCT.rpartition(":")
        github = urlsplit(self.system.github_url)
        values = {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
            "settings": {
                "OSTLER_GITHUB_API_URL": self.system.github_url,
                "OSTLER_NEW_ACCOUNTS": "serve",
                **settings,
            },
            "networkPolicies": {
                "dns": {"addresses": [f"{NODE_ADDRESS}/32"]},
                "runners": {"allow": [{"cidr": f"{NODE_ADDRESS}/32", "ports": [{"port": github.port}]}]},
            },
            "pools": {pool.name: spec_of(on_real_node(pool, github_url=self.system.github_url)) for pool in self.pools},
        }
        helm.upgrade_install(values=values, kubeconfig=self.system.kubeconfig, namespace=RELEASE, hooks=True, crds=True)

    def verify_deploy(self, *, to: str) -> subprocess.CompletedProcess[str]:
        """Run `ostler verify-deploy --roll` as an administrator, and return the process with its output."""
        return subprocess.run(
            [sys.executable, "-m", "ostler", "verify-deploy", "--roll", "--for=60", f"--to={to}/"],
            env={**os.environ, "KUBECONFIG": str(self.system.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=400,
        )

    def roll_back(self) -> None:
        """Roll back to the revision before."""
        helm.rollback(kubeconfig=self.system.kubeconfig, namespace=RELEASE, hooks=True)

    def wait_until_available(self, *, within: float = 300) -> None:
        """Wait until each Deployment consists of available Pods of its newest version only."""
        self.wait_until(
            lambda: all(self._is_available(RELEASE, name) for name in DEPLOYMENTS),
            "not every Deployment is available",
            within=within,
        )

    def wait_until(self, reached: Callable[[], bool], what: str, *, within: float = 180) -> None:
        """Wait, and record the exit codes of containers that end meanwhile."""

        def read() -> bool:
            self._record_ends()
            return reached()

        try:
            eventually(read, what, within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from error

    def setting(self, deployment: str, name: str) -> str | None:
        """Return a variable of the Deployment's container, or None."""
        spec = self.deployment(deployment)["spec"]["template"]["spec"]
        return next((each["value"] for each in spec["containers"][0]["env"] if each["name"] == name), None)

    def deployment(self, name: str, namespace: str = RELEASE) -> Object:
        """Return a Deployment."""
        return self.kube.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")

    def pods(self, component: str = "") -> list[Object]:
        """Return the release's Pods, or those of one component."""
        query = {"labelSelector": f"app.kubernetes.io/component={component}"} if component else {}
        found: list[Object] = self.kube.request("GET", f"/api/v1/namespaces/{RELEASE}/pods", query=query)["items"]
        return found

    def restarts(self) -> dict[str, int]:
        """Return how often the container of each Pod was restarted since the release first became available."""
        return {name: count - self._restarted.get(name, 0) for name, count in self._restart_counts().items()}

    def _restart_counts(self) -> dict[str, int]:
        return {pod["metadata"]["name"]: _restarts_of(pod) for pod in self.pods()}

    def run_in(self, component: str, *command: str) -> str:
        """Run a command in a container of a component, as `kubectl exec` does, and return its whole output."""
        pod = next(each for each in self.pods(component) if "deletionTimestamp" not in each["metadata"])
        [status] = pod["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        node = next(each for each in self.system.real_nodes if each.name == pod["spec"]["nodeName"])
        number = f"test-{time.monotonic_ns()}"
        done = node.ctr("tasks", "exec", "--exec-id", number, container, *command)
        return done.stdout + done.stderr

    def describe(self) -> str:
        """Return what a person would ask of the cluster: the state of each Pod, and the latest Events."""
        lines = []
        for namespace in (STORES, RELEASE, self.system.namespace):
            for pod in self.kube.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
                states = [each.get("state") for each in pod["status"].get("containerStatuses", ())]
                lines.append(f"{namespace}/{pod['metadata']['name']}: {pod['status']['phase']} {json.dumps(states)}")
        events = self.kube.request("GET", "/api/v1/events")["items"]
        lines += [
            f"{each['involvedObject'].get('name')}: {each['reason']}: {each.get('message')}"
            for each in events[-60:]
            if each["type"] != "Normal"
        ]
        return "\n".join(lines)

    def _record_ends(self) -> None:
        for pod in self.pods():
            component = pod["metadata"]["labels"].get("app.kubernetes.io/component", "")
            again = _restarts_of(pod) > self._restarted.get(pod["metadata"]["name"], 0)
            for each in pod["status"].get("containerStatuses", ()):
                for state in (each["state"], each.get("lastState", {}) if again else {}):
                    if "terminated" in state:
                        self.exit_codes.setdefault(component, set()).add(state["terminated"]["exitCode"])

    def _is_available(self, namespace: str, name: str) -> bool:
        found = self.deployment(name, namespace)
        status, wanted = found["status"], found["spec"]["replicas"]
        numbers = {
            status.get(each, 0) for each in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        }
        return status.get("observedGeneration") == found["metadata"]["generation"] and numbers == {wanted}

    def _start_store(self, name: str, image: str, port: int, variables: Mapping[str, str]) -> None:
        labels = {"app": name}
        container = {
            "name": name,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "env": [{"name": key, "value": value} for key, value in variables.items()],
            "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2, "timeoutSeconds": 5},
        }
        spec = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        }
        self._put(f"namespaces/{STORES}/deployments", {"metadata": {"name": name}, "spec": spec}, api="apis/apps/v1")
        spec = {"selector": labels, "ports": [{"port": port}]}
        self._put(f"namespaces/{STORES}/services", {"metadata": {"name": name}, "spec": spec})

    def _put(self, path: str, body: Object, *, api: str = "api/v1") -> None:
        self.kube.request("POST", f"/{api}/{path}", body=body)


def _restarts_of(pod: Object) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
