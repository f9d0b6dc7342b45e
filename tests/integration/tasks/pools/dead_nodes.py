"""Nodes of one test: alive, unreachable for some time, out of service or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from k8s_adapters.cluster import nodes as adapter
from k8s_adapters.cluster.nodes import NodeSeen
from k8s_adapters.runners.pods import list_pods
from ostler.clock import utcnow
from ostler.errors import Gone
from rules.claims.pod_view import PodView
from rules.sweeps.nodes import NodeHealth, Ready
from tasks.worker import nodes as of_nodes
from tests.integration.tasks.conftest import Stage

LONG, SHORT = 700.0, 300.0
"""Seconds: longer and shorter than `node_lost_after`."""


class Nodes:
    """Nodes that only this test sees in a list, because other tests leave dead nodes in the shared API server.

    The test writes their health. The node controller of the control plane would overwrite it.
    """

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stage = stage
        self._health: dict[str, NodeHealth] = {}
        self.hidden: set[str] = set()
        """Existing nodes that the list does not show."""

        def listed(*given: Any, **named: Any) -> list[NodeSeen]:
            found = adapter.list_nodes(*given, **named)
            return [self._seen(node) for node in found if node.name in self._health and node.name not in self.hidden]

        def got(*given: Any, **named: Any) -> NodeSeen | None:
            found = adapter.get_node(*given, **named)
            return None if found is None else self._seen(found)

        monkeypatch.setattr(of_nodes, "list_nodes", listed)
        monkeypatch.setattr(of_nodes, "get_node", got)

    def _seen(self, node: NodeSeen) -> NodeSeen:
        return replace(node, health=self._health[node.name])

    def add(self, name: str) -> str:
        """Add a node that is Ready, and return its whole name."""
        name = f"{self._stage.namespace}-{name}"
        self._stage.kube.request("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
        self.comes_back(name)
        return name

    def dies(self, name: str, *, seconds_ago: float) -> None:
        """Make a node unreachable, with the status that the node lifecycle controller writes."""
        at = utcnow() - timedelta(seconds=seconds_ago)
        self._health[name] = NodeHealth(Ready.UNKNOWN, ready_since=at, tainted=True, tainted_since=at)

    def is_out_of_service(self, name: str) -> None:
        """Add the out-of-service taint of an operator to a node that died a moment ago."""
        self.dies(name, seconds_ago=SHORT)
        self._health[name] = replace(self._health[name], out_of_service=True, tainted=False, tainted_since=None)

    def comes_back(self, name: str) -> None:
        """Let the kubelet of a node report again."""
        self._health[name] = NodeHealth(Ready.TRUE, ready_since=utcnow())

    def delete(self, name: str) -> None:
        """Delete a node's object."""
        self._stage.kube.request("DELETE", f"/api/v1/nodes/{name}")
        del self._health[name]

    def delete_all(self) -> None:
        """Delete all nodes of the test."""
        for name in list(self._health):
            try:
                self.delete(name)
            except Gone:
                continue


@pytest.fixture
def nodes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster without nodes."""
    found = Nodes(stage, monkeypatch)
    yield found
    found.delete_all()


def bind(stage: Stage, pod: str, node: str) -> None:
    """Bind a Pod to a node, as the scheduler does."""
    body = {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}}
    stage.kube.request("POST", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}/binding", body=body)


def all_pods(stage: Stage) -> dict[str, PodView]:
    """Return the Pods by name, also Terminating ones."""
    return {pod.name: pod for pod in list_pods(stage.kube, namespace=stage.namespace)}


def delete_gently(stage: Stage, pod: str) -> None:
    """Delete a Pod as taint eviction does: on a node without a kubelet it stays Terminating."""
    stage.kube.request("DELETE", f"/api/v1/namespaces/{stage.namespace}/pods/{pod}")
