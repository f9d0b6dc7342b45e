"""Test Pods on real nodes whose connections NetworkPolicies judge, and addresses outside the cluster that answer."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from lab.bootstrap import RUNNER_IMAGE
from lab.node.policies.enforcer import PolicyEnforcer
from lab.node.policies.ruleset import Mode, PodNetwork
from ostler.errors import Conflict, UpstreamError
from tests.fleet import Fleet
from tests.node import pod_agent
from tests.waiting import eventually

TCP_PORT, OTHER_PORT, DNS_PORT = 8080, 8081, 53
METADATA, PUBLIC = "169.254.169.254", "203.0.113.5"
"""Addresses outside the cluster: the metadata service of most clouds, and one of the documentation's (RFC 5737)."""
OUTSIDE_PORT = 80

_AGENT = Path(pod_agent.__file__).read_text()


def enforcer_of(fleet: Fleet, mode: Mode) -> PolicyEnforcer:
    """Return an enforcer for the nodes of the fleet."""
    networks = [
        PodNetwork(bridge=each.addresses.bridge, addresses=each.addresses.pods) for each in fleet.system.real_nodes
    ]
    return PolicyEnforcer(kubeconfig=fleet.system.kubeconfig, networks=networks, mode=mode)


class Policed:
    """Pods and policies of one namespace. Each Pod runs `pod_agent`, which the node can always reach."""

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        with contextlib.suppress(Conflict):
            kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})

    def start(self, name: str, *, node: str, labels: Mapping[str, str] | None = None, early: str = "") -> None:
        """Create a Pod on a node. With `early`, its program tries to connect to that `host:port` from the start."""
        container = {
            "name": "agent",
            "image": RUNNER_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["python3", "-c", _AGENT, str(TCP_PORT), str(OTHER_PORT)],
            "env": [{"name": "EARLY", "value": early}],
            "ports": [{"name": "http", "containerPort": TCP_PORT}],
        }
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]},
            "containers": [container],
        }
        body = {"metadata": {"name": name, "labels": {"name": name, **(labels or {})}}, "spec": spec}

        def create() -> bool:
            try:
                self.kube.request("POST", object_path("pods", namespace=self.namespace), body=body)
            except Conflict:
                return True
            except UpstreamError:  # the namespace has no ServiceAccount yet
                return False
            return True

        eventually(create, f"Pod {name} was not created", within=30)

    def wait_for(self, *names: str) -> None:
        """Wait until the agents of the Pods answer."""
        for name in names:
            eventually(partial(self._answers, name), f"Pod {name} does not answer", within=60)

    def address(self, name: str) -> str:
        """Return the address of a Pod, which is empty until the kubelet has reported it."""
        pod = self.kube.request("GET", object_path("pods", namespace=self.namespace, name=name))
        return str(pod["status"].get("podIP", ""))

    def label(self, name: str, labels: Mapping[str, str | None]) -> None:
        """Change labels of a Pod. None removes a label."""
        path = object_path("pods", namespace=self.namespace, name=name)
        self.kube.request("PATCH", path, body={"metadata": {"labels": labels}}, content_type=MERGE_PATCH)

    def put(self, name: str, **spec: Any) -> None:
        """Create a policy."""
        body = {"metadata": {"name": name}, "spec": spec}
        self.kube.request("POST", self._policies(), body=body, query={"fieldValidation": "Strict"})

    def remove_policies(self) -> None:
        """Delete all policies of the namespace."""
        self.kube.request("DELETE", self._policies())

    def ask(self, name: str, order: str, to: str, port: int) -> str:
        """Let a Pod carry out an order of `pod_agent` and return its answer. `to` is an address or another Pod."""
        host = to if to[0].isdigit() else self.address(to)
        query = urlencode({"host": host, "port": port})
        url = f"http://{self.address(name)}:{pod_agent.CONTROL_PORT}/{order}?{query}"
        with urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    def tcp(self, name: str, to: str, port: int = TCP_PORT) -> str:
        """Return the answer to an attempt at a TCP connection: `open`, `silent` or `refused`."""
        return self.ask(name, "tcp", to, port)

    def _answers(self, name: str) -> bool:
        try:
            return bool(self.address(name)) and self.tcp(name, self.address(name)) == "open"
        except OSError:
            return False

    def _policies(self) -> str:
        return f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies"


@contextlib.contextmanager
def answering_outside(addresses: Sequence[str] = (METADATA, PUBLIC)) -> Iterator[None]:
    """Give the node's network addresses that are outside the cluster, with a server at `OUTSIDE_PORT`."""
    servers = []
    try:
        for each in addresses:
            subprocess.run(["ip", "address", "replace", f"{each}/32", "dev", "lo"], check=True)
            servers.append(pod_agent.Server((each, OUTSIDE_PORT), pod_agent.Echo))
            threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        yield
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for each in addresses:
            subprocess.run(["ip", "address", "del", f"{each}/32", "dev", "lo"], check=False)
